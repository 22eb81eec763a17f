//! The permits that are held and reserved, and the waiters for one.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Requester;
use super::priority::{PerPriority, Priority};
use super::rate::GrantRate;
use crate::configured_driver::waker::Waker;

/// How long a permit is reserved for a waiter that was woken: its object may have been deleted meanwhile.
pub(super) const RESERVED_FOR: Duration = Duration::from_secs(5);
/// A wait shorter than this is not published.
pub(super) const REPORTED_AFTER: Duration = Duration::from_secs(5);
/// A wait that is over within this time, at the rate at which permits are granted, is not published either.
const LONG_QUEUE_WAIT: Duration = Duration::from_mins(5);

/// The permits and the waiters of one driver.
#[derive(Debug, Default)]
pub(super) struct Queue {
    places: u64,
    grants: u64,
    /// Permits that are held, and permits that are reserved for waiters that were woken.
    pub(super) held: PerPriority<u32>,
    pub(super) reserved: PerPriority<u32>,
    /// The namespaces that hold a permit or wait for one.
    pub(super) flows: BTreeMap<Arc<str>, Flow>,
    /// The place of each waiter.
    pub(super) queued: HashMap<Arc<str>, QueuePosition>,
    /// The places in the queue for creates of the waiters that look up their VM first.
    pub(super) set_aside: HashMap<Arc<str>, Place>,
    /// The permits that are reserved for waiters that were woken and have not asked again, by their keys.
    pub(super) reservations: HashMap<Arc<str>, Reservation>,
}

/// The permits and waiters of a namespace: a flow, as the API server's priority and fairness calls it.
#[derive(Debug, Default)]
pub(super) struct Flow {
    held: PerPriority<u32>,
    reserved: PerPriority<u32>,
    /// The number of the namespace's last grant, from 1.
    pub(super) last_grant: PerPriority<u64>,
    rate: PerPriority<GrantRate>,
    pub(super) waiting: PerPriority<BTreeMap<u64, Waiter>>,
}

/// Where a waiter stands: its number in a queue of its namespace.
#[derive(Clone, Debug)]
pub(super) struct QueuePosition {
    namespace: Arc<str>,
    priority: Priority,
    number: u64,
}

#[derive(Debug)]
pub(super) struct Waiter {
    key: Arc<str>,
    waker: Option<Waker>,
    since: Instant,
    /// Whether the waiter's status shows that it waits for something else.
    shows_another_wait: bool,
    /// Whether the waiter was woken to publish that it waits.
    is_reported: bool,
    /// Whether the waiter has asked since its reconcile began.
    is_current: bool,
}

/// A place in the queue, and for how long it has been waited there.
#[derive(Debug)]
pub(super) struct Place {
    position: QueuePosition,
    since: Instant,
    is_reported: bool,
}

impl Place {
    fn of(position: QueuePosition, waiter: &Waiter) -> Self {
        Self {
            position,
            since: waiter.since,
            is_reported: waiter.is_reported,
        }
    }

    fn is_to_create(&self) -> bool {
        self.position.priority == Priority::Create
    }
}

/// A permit that is reserved for a waiter that was woken.
#[derive(Debug)]
pub(super) struct Reservation {
    place: Place,
    at: Instant,
    is_current: bool,
}

impl Reservation {
    /// Whether the reserved permit may be used to create a VM.
    pub(super) fn is_for_create(&self) -> bool {
        self.place.is_to_create()
    }
}

impl Flow {
    /// The permits that the namespace holds or that are reserved for it.
    pub(super) fn permits(&self) -> u32 {
        self.held.sum() + self.reserved.sum()
    }

    pub(super) fn permits_of(&self, priority: Priority) -> u32 {
        self.held.of(priority) + self.reserved.of(priority)
    }

    fn queues(&mut self) -> [(&mut BTreeMap<u64, Waiter>, GrantRate); 2] {
        [
            (&mut self.waiting.upkeep, self.rate.upkeep),
            (&mut self.waiting.create, self.rate.create),
        ]
    }

    fn is_idle(&self) -> bool {
        self.permits() == 0 && self.waiting.upkeep.is_empty() && self.waiting.create.is_empty()
    }
}

impl Queue {
    fn flow(&mut self, namespace: &str) -> &mut Flow {
        let name = self.shared_name(namespace);
        self.flows.entry(name).or_default()
    }

    /// Returns the name of a namespace, which its waiters share.
    fn shared_name(&self, namespace: &str) -> Arc<str> {
        let known = self.flows.get_key_value(namespace);
        known.map_or_else(|| namespace.into(), |(name, _)| Arc::clone(name))
    }

    pub(super) fn take(&mut self, namespace: &str, priority: Priority, now: Instant) {
        *self.held.of_mut(priority) += 1;
        self.grants += 1;
        let grant = self.grants;
        let flow = self.flow(namespace);
        *flow.held.of_mut(priority) += 1;
        *flow.last_grant.of_mut(priority) = grant;
        flow.rate.of_mut(priority).count(now);
    }

    /// Releases a permit. The flow stays until [`Queue::forget_idle`], so that its place in the order
    /// outlasts the next grant.
    pub(super) fn release(&mut self, namespace: &str, priority: Priority) {
        decrement(self.held.of_mut(priority));
        if let Some(flow) = self.flows.get_mut(namespace) {
            decrement(flow.held.of_mut(priority));
        }
    }

    /// Forgets a namespace that holds nothing and waits for nothing.
    pub(super) fn forget_idle(&mut self, namespace: &str) {
        if self.flows.get(namespace).is_some_and(Flow::is_idle) {
            self.flows.remove(namespace);
        }
    }

    /// Queues a requester. A waiter keeps its place, and so does a waiter that was woken and found the permit
    /// gone.
    pub(super) fn join(
        &mut self,
        priority: Priority,
        requester: Requester<'_>,
        reservation: Option<Reservation>,
        waker: Waker,
        now: Instant,
    ) {
        let key: Arc<str> = requester.key.into();
        let queued = self
            .leave(&key)
            .map(|(position, waiter)| Place::of(position, &waiter));
        let before = queued.or(reservation.map(|reservation| reservation.place));
        let aside = self.set_aside.remove(&key);
        let (to_create, upkeep) = match before {
            Some(place) if place.is_to_create() => (Some(place), None),
            before => (aside, before),
        };
        let before = match priority {
            Priority::Create => to_create,
            Priority::Upkeep => {
                self.set_aside
                    .extend(to_create.map(|place| (Arc::clone(&key), place)));
                upkeep
            }
        };
        let before = before.filter(|place| *place.position.namespace == *requester.namespace);
        let place = before.unwrap_or_else(|| {
            self.places += 1;
            let position = QueuePosition {
                namespace: self.shared_name(requester.namespace),
                priority,
                number: self.places,
            };
            Place {
                position,
                since: now,
                is_reported: false,
            }
        });
        let Place {
            position,
            since,
            is_reported,
        } = place;
        let waiter = Waiter {
            key: Arc::clone(&key),
            waker: Some(waker),
            since,
            shows_another_wait: requester.shows_another_wait,
            is_reported,
            is_current: true,
        };
        let flow = self.flows.entry(Arc::clone(&position.namespace)).or_default();
        flow.waiting.of_mut(priority).insert(position.number, waiter);
        self.queued.insert(key, position);
    }

    pub(super) fn leave(&mut self, key: &str) -> Option<(QueuePosition, Waiter)> {
        let position = self.queued.remove(key)?;
        let flow = self.flows.get_mut(&position.namespace)?;
        let waiter = flow.waiting.of_mut(position.priority).remove(&position.number)?;
        self.forget_idle(&position.namespace);
        Some((position, waiter))
    }

    pub(super) fn waiter(&self, key: &str) -> Option<&Waiter> {
        let position = self.queued.get(key)?;
        let flow = self.flows.get(&position.namespace)?;
        flow.waiting.of(position.priority).get(&position.number)
    }

    /// Takes `key` out of the queue while it has a permit for upkeep. Its place for a create is kept, since
    /// the look-up may lead to a create; meanwhile no free permit wakes that place.
    pub(super) fn set_aside(&mut self, key: &str, reservation: Option<Reservation>) {
        let queued = self.leave(key);
        let queued = queued.map(|(position, waiter)| Place::of(position, &waiter));
        let place = queued.or(reservation.map(|reservation| reservation.place));
        if let Some(place) = place.filter(Place::is_to_create) {
            self.set_aside.insert(key.into(), place);
        }
    }

    /// Takes `key` out of the queue: it has the permit that it waited for.
    pub(super) fn leave_served(&mut self, key: &str) {
        self.leave(key);
        self.set_aside.remove(key);
    }

    /// Marks what `key` asked for before as expired, until it asks again.
    pub(super) fn expire(&mut self, key: &str) {
        if let Some(position) = self.queued.get(key)
            && let Some(flow) = self.flows.get_mut(&position.namespace)
            && let Some(waiter) = flow.waiting.of_mut(position.priority).get_mut(&position.number)
        {
            waiter.is_current = false;
        }
        if let Some(reservation) = self.reservations.get_mut(key) {
            reservation.is_current = false;
        }
    }

    /// Removes `key` if it has not asked again. Returns whether a permit was reserved for it.
    pub(super) fn leave_expired(&mut self, key: &str) -> bool {
        if self.waiter(key).is_some_and(|waiter| !waiter.is_current) {
            self.leave(key);
        }
        let is_expired = self
            .reservations
            .get(key)
            .is_some_and(|reservation| !reservation.is_current);
        let is_ended = is_expired && self.end_reservation(key).is_some();
        if !self.queued.contains_key(key) && !self.reservations.contains_key(key) {
            self.set_aside.remove(key);
        }
        is_ended
    }

    /// Wakes the first waiter of a queue, and reserves a permit for it. A waiter that was woken before, to
    /// publish that it waits, asks again without its waker.
    pub(super) fn wake(&mut self, namespace: &Arc<str>, priority: Priority, now: Instant) -> Option<Waker> {
        let flow = self.flows.get_mut(namespace)?;
        let (number, waiter) = flow.waiting.of_mut(priority).pop_first()?;
        *flow.reserved.of_mut(priority) += 1;
        *self.reserved.of_mut(priority) += 1;
        self.queued.remove(&waiter.key);
        let position = QueuePosition {
            namespace: Arc::clone(namespace),
            priority,
            number,
        };
        let reservation = Reservation {
            place: Place::of(position, &waiter),
            at: now,
            is_current: waiter.is_current,
        };
        self.reservations.insert(waiter.key, reservation);
        waiter.waker
    }

    pub(super) fn end_late_reservations(&mut self, now: Instant) {
        let is_late =
            |reservation: &Reservation| now.saturating_duration_since(reservation.at) >= RESERVED_FOR;
        let late: Vec<_> = self
            .reservations
            .iter()
            .filter(|(_, reservation)| is_late(reservation))
            .map(|(key, _)| Arc::clone(key))
            .collect();
        for key in late {
            self.end_reservation(&key);
        }
    }

    /// Ends the reservation of a permit for `key`, if there is one.
    pub(super) fn end_reservation(&mut self, key: &str) -> Option<Reservation> {
        let reservation = self.reservations.remove(key)?;
        let QueuePosition {
            namespace, priority, ..
        } = &reservation.place.position;
        decrement(self.reserved.of_mut(*priority));
        if let Some(flow) = self.flows.get_mut(namespace) {
            decrement(flow.reserved.of_mut(*priority));
        }
        self.forget_idle(namespace);
        Some(reservation)
    }

    /// Returns the wakers of the waiters that have waited for some seconds and get no permit within minutes:
    /// each waiter once, at most this many, and the longest waiting first, of whatever namespace. The faster
    /// the driver is called, the fewer are woken: the reports would take API requests from what the permits
    /// are for. Only a waiter whose status shows another wait, which is over, is reported however fast the
    /// driver is called.
    pub(super) fn wakers_to_report(&mut self, most: usize, now: Instant) -> Vec<Waker> {
        let mut wakers = self.report(most, now, |waiter| waiter.shows_another_wait);
        let rates = self.flows.values().map(|flow| flow.rate.per_second(now));
        let fewer = most.div_ceil(whole(rates.sum()).saturating_add(1));
        wakers.extend(self.report(fewer.min(most - wakers.len()), now, |_| true));
        wakers
    }

    fn report(&mut self, most: usize, now: Instant, which: impl Fn(&Waiter) -> bool) -> Vec<Waker> {
        let queues = self.flows.values_mut().flat_map(Flow::queues);
        let mut queues: Vec<_> = queues
            .map(|(waiting, rate)| {
                let soon = whole(rate.per_second(now) * LONG_QUEUE_WAIT.as_secs_f64());
                let is_to_report = |waiter: &&mut Waiter| {
                    !waiter.is_reported
                        && now.saturating_duration_since(waiter.since) >= REPORTED_AFTER
                        && which(waiter)
                };
                waiting.values_mut().skip(soon).filter(is_to_report).peekable()
            })
            .collect();
        let longest_waiting = || {
            let first = queues.iter_mut().filter_map(|queue| {
                let since = queue.peek()?.since;
                Some((since, queue))
            });
            let (_, queue) = first.min_by_key(|(since, _)| *since)?;
            queue.next()
        };
        std::iter::from_fn(longest_waiting)
            .take(most)
            .filter_map(|waiter| {
                waiter.is_reported = true;
                waiter.waker.take()
            })
            .collect()
    }
}

/// Returns the number without its fraction.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast saturates, and there are no less than none"
)]
fn whole(number: f64) -> usize {
    number as usize
}

impl Waiter {
    pub(super) fn is_reported(&self) -> bool {
        self.is_reported
    }
}

fn decrement(count: &mut u32) {
    *count = count.saturating_sub(1);
}
