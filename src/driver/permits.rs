//! Permits to call a driver ([`super::Permit`]): how many calls run at the same time, and who is next.
//!
//! No worker waits for a permit, since all drivers share the workers: a reconcile without a permit is queued
//! and ends. A free permit is set aside for the next waiter in the queue, whose waker runs. Namespaces take
//! turns, so that no namespace starves another. Within a namespace, the longest wait is next. `tokio`'s
//! semaphore has neither turns nor a reserve, and its waiters are tasks.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::waker::Waker;
use crate::telemetry::metrics::PermitCount;

/// How long a permit is set aside for a waiter that was woken.
const CLAIMED_WITHIN: Duration = Duration::from_secs(5);
/// A wait is published after this time.
const REPORTED_AFTER: Duration = Duration::from_secs(10);
/// How many waits are published per second, so that a fleet that starts at the pace of its driver hardly
/// causes such writes.
const REPORTED_AT_ONCE: usize = 5;

/// The purpose of a permit. Look-ups and deletions come before creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Anything but creating a VM. May use every permit.
    Upkeep,
    /// Creating a VM, or finishing it. Leaves a reserve, so that hanging creates do not block deletions.
    Create,
}

/// The permits of one driver.
#[derive(Debug)]
pub(super) struct Permits {
    most: Count,
    most_per_namespace: Count,
    state: Mutex<State>,
}

/// Permits that are held or set aside, and how many of them are for creates.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    all: u32,
    creates: u32,
}

/// The namespaces with their waiting keys, in the order of turns. A key that has left is skipped at its turn.
type Queues = VecDeque<(Arc<str>, VecDeque<Arc<str>>)>;

#[derive(Debug, Default)]
struct State {
    held: HashMap<Box<str>, Count>,
    queues: BTreeMap<Priority, Queues>,
    /// The waiters, including those with a permit that they have not claimed yet.
    waiters: HashMap<Arc<str>, Waiter>,
}

#[derive(Debug)]
struct Waiter {
    namespace: Arc<str>,
    priority: Priority,
    since: Instant,
    asked_at: Instant,
    /// When a permit was set aside for it.
    granted_at: Option<Instant>,
    is_reported: bool,
    waker: Option<Waker>,
}

impl Permits {
    /// Returns this many permits. An eighth of them, and at least one, is reserved from creates; a single
    /// permit serves every call. If several namespaces may use the driver, one namespace leaves another
    /// eighth, and at least one, to the others: a hanging call holds its permit until its timeout.
    pub(super) fn new(all: NonZeroU32, shared: bool) -> Self {
        let all = all.get();
        let reserve = if all > 1 { (all / 8).max(1) } else { 0 };
        let less = |for_others: u32| Count {
            all: (all - for_others).max(1),
            creates: (all - reserve - for_others).max(1),
        };
        Self {
            most: less(0),
            most_per_namespace: less(if shared { reserve } else { 0 }),
            state: Mutex::default(),
        }
    }

    /// Takes a permit, or queues `key`, which has one place. `waker` runs when `key` should ask again.
    /// Returns the priority of the permit: a permit that was set aside for a create also serves the look-up
    /// before it.
    pub(super) fn acquire_or_queue(
        &self,
        priority: Priority,
        key: &str,
        namespace: &str,
        waker: Waker,
    ) -> Option<Priority> {
        self.change(|state| {
            let granted = state.claim(key, priority);
            if granted.is_some() || self.take(state, namespace, priority) {
                return granted.or(Some(priority));
            }
            state.join(key, namespace, priority, waker);
            None
        })
    }

    /// Exchanges an upkeep permit for a permit to create a VM. If no create may run, keeps the permit and
    /// queues `key`.
    pub(super) fn exchange_for_create(&self, key: &str, namespace: &str, waker: Waker) -> bool {
        self.change(|state| {
            state.release(namespace, Priority::Upkeep);
            if state.claim(key, Priority::Create).is_some() || self.take(state, namespace, Priority::Create) {
                return true;
            }
            self.take(state, namespace, Priority::Upkeep);
            state.join(key, namespace, Priority::Create, waker);
            false
        })
    }

    pub(super) fn release(&self, namespace: &str, priority: Priority) {
        self.change(|state| state.release(namespace, priority));
    }

    /// Removes `key` and its reserved permit from the queue, unless `key` has asked since then.
    pub(super) fn leave_unless_asked_since(&self, key: &str, since: Instant) {
        self.change(|state| {
            let waiter = state.waiters.get(key);
            if waiter.is_some_and(|waiter| waiter.asked_at < since) {
                state.leave(key);
            }
        });
    }

    pub(super) fn forget(&self, key: &str) {
        self.change(|state| state.leave(key));
    }

    /// Passes on permits that were not claimed, for example after a deletion. Wakes some of the waiters that
    /// have to publish their wait. Runs once a second.
    pub(super) fn tick(&self) {
        let now = Instant::now();
        let reporters = self.change(|state| {
            state.end_unclaimed_grants(now);
            state.next_to_report(now)
        });
        reporters.into_iter().for_each(Waker::wake);
    }

    pub(super) fn should_report(&self, key: &str) -> bool {
        let state = self.state.lock();
        state.waiters.get(key).is_some_and(|waiter| waiter.is_reported)
    }

    pub(super) fn count(&self) -> [PermitCount; 2] {
        let state = self.state.lock();
        let Count { all, creates } = state.held();
        let waiters = |priority| {
            state
                .waiters
                .values()
                .map(move |waiter| waiter.waits_for(priority))
        };
        let count = |name, priority, in_use| PermitCount {
            priority: name,
            in_use: u64::from(in_use),
            waiting: waiters(priority).map(u64::from).sum(),
        };
        [
            count("upkeep", Priority::Upkeep, all - creates),
            count("create", Priority::Create, creates),
        ]
    }

    fn take(&self, state: &mut State, namespace: &str, priority: Priority) -> bool {
        let has_room = self.has_room(state, namespace, priority);
        if has_room {
            let held = state.held.entry(namespace.into()).or_default();
            held.all += 1;
            held.creates += u32::from(priority == Priority::Create);
        }
        has_room
    }

    fn has_room(&self, state: &State, namespace: &str, priority: Priority) -> bool {
        let of_it = state.held.get(namespace).copied().unwrap_or_default();
        state.held().has_room(self.most, priority) && of_it.has_room(self.most_per_namespace, priority)
    }

    /// Changes the state, sets permits aside for the waiters that can have one then, and wakes these waiters.
    /// A waker may ask for a permit, so it runs without the lock.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state);
        let mut wakers = Vec::new();
        while let Some((priority, namespace, key)) = self.next(&mut state) {
            let waiter = state.waiters.get_mut(&key);
            if let Some(waiter) = waiter.filter(|waiter| waiter.waits_for(priority)) {
                waiter.granted_at = Some(Instant::now());
                wakers.extend(waiter.waker.take());
                self.take(&mut state, &namespace, priority);
            }
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    /// Returns the next waiter of the namespace whose turn it is.
    fn next(&self, state: &mut State) -> Option<(Priority, Arc<str>, Arc<str>)> {
        let mut priorities = [Priority::Upkeep, Priority::Create].into_iter();
        priorities.find_map(|priority| {
            let mut turns = state.queues.get(&priority)?.iter();
            let turn = turns.position(|(namespace, _)| self.has_room(state, namespace, priority))?;
            let queues = state.queues.get_mut(&priority)?;
            let (namespace, mut keys) = queues.remove(turn)?;
            let key = keys.pop_front()?;
            if !keys.is_empty() {
                queues.push_back((Arc::clone(&namespace), keys));
            }
            Some((priority, namespace, key))
        })
    }
}

impl Count {
    fn has_room(self, most: Self, priority: Priority) -> bool {
        self.all < most.all && (priority == Priority::Upkeep || self.creates < most.creates)
    }
}

impl Waiter {
    fn waits_for(&self, priority: Priority) -> bool {
        self.priority == priority && self.granted_at.is_none()
    }
}

impl State {
    fn held(&self) -> Count {
        self.held.values().fold(Count::default(), |sum, count| Count {
            all: sum.all + count.all,
            creates: sum.creates + count.creates,
        })
    }

    fn release(&mut self, namespace: &str, priority: Priority) {
        if let Some(held) = self.held.get_mut(namespace) {
            held.all -= 1;
            held.creates -= u32::from(priority == Priority::Create);
        }
        self.held.retain(|_, held| held.all > 0);
    }

    /// Takes the permit that is set aside for `key`, if it serves this priority.
    fn claim(&mut self, key: &str, priority: Priority) -> Option<Priority> {
        let serves = |waiter: &&Waiter| waiter.granted_at.is_some() && waiter.priority >= priority;
        self.waiters.get(key).filter(serves)?;
        Some(self.waiters.remove(key)?.priority)
    }

    /// Queues `key`. A waiter keeps its place, unless it waits for the other priority now.
    fn join(&mut self, key: &str, namespace: &str, priority: Priority, waker: Waker) {
        let now = Instant::now();
        let waiter = self.waiters.get_mut(key);
        if let Some(waiter) = waiter.filter(|waiter| waiter.priority == priority) {
            waiter.asked_at = now;
            waiter.waker = Some(waker);
            return;
        }
        self.leave(key);
        let key: Arc<str> = key.into();
        let waiter = Waiter {
            namespace: self.line_up(Arc::clone(&key), namespace, priority),
            priority,
            since: now,
            asked_at: now,
            granted_at: None,
            is_reported: false,
            waker: Some(waker),
        };
        self.waiters.insert(key, waiter);
    }

    /// Returns the name of the namespace, which its waiters share.
    fn line_up(&mut self, key: Arc<str>, namespace: &str, priority: Priority) -> Arc<str> {
        let queues = self.queues.entry(priority).or_default();
        if let Some((namespace, keys)) = queues.iter_mut().find(|(of, _)| **of == *namespace) {
            keys.push_back(key);
            return Arc::clone(namespace);
        }
        let namespace: Arc<str> = namespace.into();
        queues.push_back((Arc::clone(&namespace), VecDeque::from([key])));
        namespace
    }

    /// Removes `key`, and the permit that is set aside for it.
    fn leave(&mut self, key: &str) {
        let left = self.waiters.remove(key);
        if let Some(waiter) = left.filter(|waiter| waiter.granted_at.is_some()) {
            self.release(&waiter.namespace, waiter.priority);
        }
    }

    fn end_unclaimed_grants(&mut self, now: Instant) {
        let is_late = |waiter: &Waiter| waiter.granted_at.is_some_and(|at| now - at >= CLAIMED_WITHIN);
        let late = self.waiters.iter().filter(|(_, waiter)| is_late(waiter));
        let late: Vec<_> = late.map(|(key, _)| Arc::clone(key)).collect();
        for key in late {
            self.leave(&key);
        }
    }

    /// Returns the wakers of waiters that have to publish their wait, each waiter once.
    fn next_to_report(&mut self, now: Instant) -> Vec<Waker> {
        let is_silent = |waiter: &&mut Waiter| waiter.granted_at.is_none() && !waiter.is_reported;
        let waiters = self.waiters.values_mut().filter(is_silent);
        let due = waiters.filter(|waiter| now - waiter.since >= REPORTED_AFTER);
        let wakers = due.take(REPORTED_AT_ONCE).filter_map(|waiter| {
            waiter.is_reported = true;
            waiter.waker.take()
        });
        wakers.collect()
    }
}
