//! Permits to call a driver: how many calls run at the same time, and which waiter is next. [`super::Permit`]
//! is one of them.
//!
//! No worker of a controller waits for a permit, since the machines of all drivers share the workers: a
//! reconcile that gets none is queued and ends, and is woken when a permit is free. A driver that hangs
//! therefore holds as many workers as it has permits, and no more.
//!
//! Look-ups and deletions come before creates. Within each priority, permits go to namespaces and not in the
//! order of the requests: the namespace that holds the fewest is next, so that the fleet of one namespace
//! does not keep a machine of another waiting. No namespace holds all permits, since a call that hangs
//! releases its permit only at its timeout.
//!
//! This is not `tokio::sync::Semaphore`, which has one queue, in which a task waits, and no reserve.

mod priority;
mod queue;
mod rate;
#[cfg(test)]
mod tests;

use std::num::NonZeroU32;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use self::priority::PerPriority;
pub use self::priority::Priority;
use self::queue::{Flow, Queue, Reservation, Waiter};
use super::waker::Waker;

/// An object or a task that wants a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requester<'a> {
    /// The UID of an object, or the name of a task. A key has one place in the queue, however often it asks.
    pub key: &'a str,
    /// The namespace that the permit is counted for; empty for a task of the provider's own.
    pub namespace: &'a str,
    /// Whether the object's status shows that the object waits for something else.
    pub shows_another_wait: bool,
}

impl<'a> Requester<'a> {
    /// A requester whose status shows no other wait.
    pub fn new(key: &'a str, namespace: &'a str) -> Self {
        Self {
            key,
            namespace,
            shows_another_wait: false,
        }
    }
}

/// How many permits of a priority are held, and how many requesters wait for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// The priority.
    pub priority: Priority,
    /// Permits in use.
    pub in_use: u32,
    /// The objects and tasks that wait for a permit.
    pub waiting: usize,
}

/// The permits of one driver.
#[derive(Debug)]
pub(super) struct Permits {
    /// How many permits there are, for each priority. The permits for creates are part of all permits.
    limits: PerPriority<u32>,
    /// How many permits a namespace may hold, for each priority.
    per_namespace: PerPriority<u32>,
    queue: Mutex<Queue>,
}

impl Permits {
    /// Returns this many permits. An eighth of them, and at least one, is reserved from creates; a single
    /// permit is for everything. Where several namespaces may use the driver, one namespace leaves another
    /// eighth, and at least one, to the others.
    pub(super) fn new(all: NonZeroU32, shared: bool) -> Self {
        let all = all.get();
        let reserve = if all > 1 { (all / 8).max(1) } else { 0 };
        let limits = PerPriority {
            upkeep: all,
            create: all - reserve,
        };
        let for_others = if shared { reserve } else { 0 };
        // A single permit can't be shared.
        let per_namespace = |most: u32| (most - for_others).max(1);
        Self {
            limits,
            per_namespace: PerPriority {
                upkeep: per_namespace(limits.upkeep),
                create: per_namespace(limits.create),
            },
            queue: Mutex::default(),
        }
    }

    /// How many permits there are.
    pub(super) fn all(&self) -> u32 {
        self.limits.upkeep
    }

    /// Takes a permit, or queues the requester, which has one place; `waker` runs when the requester should
    /// ask again. Returns what the permit is for: a requester that was woken to create a VM, and looks the VM
    /// up first, does not go to the end of the queue for that.
    pub(super) fn acquire_or_queue(
        &self,
        priority: Priority,
        requester: Requester<'_>,
        waker: Waker,
    ) -> Option<Priority> {
        let now = Instant::now();
        let mut queue = self.queue.lock();
        queue.end_late_reservations(now);
        let reservation = queue.end_reservation(requester.key);
        let was_for_create = reservation.as_ref().is_some_and(Reservation::is_for_create);
        let reserved = was_for_create.then_some(Priority::Create);
        for granted in reserved.into_iter().chain([priority]) {
            if self.has_room(&queue, requester.namespace, granted) {
                match granted {
                    Priority::Upkeep => queue.set_aside(requester.key, reservation),
                    Priority::Create => queue.leave_served(requester.key),
                }
                queue.take(requester.namespace, granted, now);
                return Some(granted);
            }
        }
        queue.join(priority, requester, reservation, waker, now);
        None
    }

    /// Lets the permit that `key` has taken for upkeep be used to create a VM, if one more create may run.
    pub(super) fn promote_to_create(&self, key: &str, namespace: &str) -> bool {
        let mut queue = self.queue.lock();
        let is_promoted = self.has_room_to_create(&queue, namespace);
        if is_promoted {
            queue.leave_served(key);
            queue.release(namespace, Priority::Upkeep);
            queue.take(namespace, Priority::Create, Instant::now());
        }
        is_promoted
    }

    /// Releases a permit, and wakes the waiters that can have one now.
    pub(super) fn release(&self, namespace: &str, priority: Priority) {
        let mut queue = self.queue.lock();
        queue.release(namespace, priority);
        let wakers = self.wake_next(&mut queue);
        queue.forget_idle(namespace);
        drop(queue);
        wake_all(wakers);
    }

    /// Begins a reconcile of `key`: its place in the queue, and the permit that is reserved for it, count as
    /// those of an earlier reconcile until `key` asks again.
    pub(super) fn begin(&self, key: &str) {
        self.queue.lock().expire(key);
    }

    /// Ends the reconcile of `key`: if it has not asked again, it leaves the queue. Where a permit was
    /// reserved for it, the reservation ends, and the waiters that can have one now are woken.
    pub(super) fn end(&self, key: &str) {
        let mut queue = self.queue.lock();
        if !queue.leave_expired(key) {
            return;
        }
        let wakers = self.wake_next(&mut queue);
        drop(queue);
        wake_all(wakers);
    }

    /// Forgets `key`, which asks no more.
    pub(super) fn forget(&self, key: &str) {
        self.begin(key);
        self.end(key);
    }

    /// Wakes the waiters that can have a permit now. A reservation that lapses, as of a waiter whose object
    /// is gone, frees a permit without a call of this type: where no other permit is held, a waiter that has
    /// published its wait would sleep until something else has it ask again.
    pub(super) fn wake_waiting(&self) {
        let wakers = self.wake_next(&mut self.queue.lock());
        wake_all(wakers);
    }

    /// Whether `key` waits and has to publish that.
    pub(super) fn should_report(&self, key: &str) -> bool {
        self.queue.lock().waiter(key).is_some_and(Waiter::is_reported)
    }

    /// Wakes at most this many of the waiters that have to publish that they wait: those that have waited for
    /// some seconds and are not served within minutes. A fleet that comes up at the pace of its driver hardly
    /// causes such writes.
    pub(super) fn wake_to_report(&self, most: usize) {
        let wakers = self.queue.lock().wakers_to_report(most, Instant::now());
        wake_all(wakers);
    }

    /// Returns how many permits are held and waited for.
    pub(super) fn load(&self) -> [Load; 2] {
        let queue = self.queue.lock();
        Priority::ALL.map(|priority| Load {
            priority,
            in_use: *queue.held.of(priority),
            waiting: queue
                .flows
                .values()
                .map(|flow| flow.waiting.of(priority).len())
                .sum(),
        })
    }

    /// Whether there is a permit for this namespace besides the reserved ones.
    fn has_room(&self, queue: &Queue, namespace: &str, priority: Priority) -> bool {
        let of_it = queue.flows.get(namespace).map_or(0, Flow::permits);
        let is_free =
            queue.held.sum() + queue.reserved.sum() < self.limits.upkeep && of_it < self.per_namespace.upkeep;
        match priority {
            Priority::Upkeep => is_free,
            Priority::Create => is_free && self.has_room_to_create(queue, namespace),
        }
    }

    fn has_room_to_create(&self, queue: &Queue, namespace: &str) -> bool {
        let of_it = queue
            .flows
            .get(namespace)
            .map_or(0, |flow| flow.permits_of(Priority::Create));
        queue.held.create + queue.reserved.create < self.limits.create && of_it < self.per_namespace.create
    }

    fn wake_next(&self, queue: &mut Queue) -> Vec<Waker> {
        let now = Instant::now();
        queue.end_late_reservations(now);
        let mut wakers = Vec::new();
        while let Some((namespace, priority)) = self.next(queue) {
            wakers.extend(queue.wake(&namespace, priority, now));
        }
        wakers
    }

    /// Returns the namespace that gets the next permit, and for what: of the namespaces that wait and may
    /// have one, the one that has the fewest, and of these the one whose last grant is the longest ago.
    fn next(&self, queue: &Queue) -> Option<(Arc<str>, Priority)> {
        Priority::ALL.into_iter().find_map(|priority| {
            let waiting = queue.flows.iter().filter(|(namespace, flow)| {
                !flow.waiting.of(priority).is_empty() && self.has_room(queue, namespace, priority)
            });
            let (namespace, _) =
                waiting.min_by_key(|(_, flow)| (flow.permits_of(priority), *flow.last_grant.of(priority)))?;
            Some((Arc::clone(namespace), priority))
        })
    }
}

/// Runs wakers without the lock: a waker may ask for a permit.
fn wake_all(wakers: Vec<Waker>) {
    wakers.into_iter().for_each(Waker::wake);
}
