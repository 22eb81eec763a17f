//! Permits to call a driver: how much it works on at the same time, and which waiter is next.
//! [`super::Permit`] is one of them.
//!
//! No worker of a controller, which is shared by the machines of all drivers, waits for a permit: a reconcile
//! that gets none leaves word and ends, and is called when a permit is free. So a driver that hangs holds as
//! many workers as it has permits, and no more.
//!
//! Look-ups and deletions come before creates. Among each of them permits go to namespaces, not to those
//! that came first: the namespace that holds the fewest is next, so that a fleet of one does not keep the
//! machine of another waiting, and no namespace holds all of them, since a call that hangs gives its permit
//! back at its timeout only.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// A permit is kept this long for a waiter that was called: it may have been deleted
/// meanwhile, and never come.
const RESERVED_FOR: Duration = Duration::from_secs(5);
/// A wait shorter than this is not worth a word.
const REPORTED_AFTER: Duration = Duration::from_secs(5);
/// A queue that is served within this time is not worth a write for each that stands in it.
const LONG_QUEUE: Duration = Duration::from_mins(5);
/// What counts as lately in the rate at which a queue is served.
const RATE_WINDOW: Duration = Duration::from_secs(5);

/// What a permit is wanted for. Look-ups and deletions come before creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Anything but to make a VM. May use every permit.
    Upkeep,
    /// To make a VM, or to finish it. Leaves a reserve, so that creates that hang hold no deletion up.
    Create,
}

/// What wants a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requester<'a> {
    /// The UID of an object, or the name of a task. It has one place in the queue, however often it asks.
    pub key: &'a str,
    /// The namespace that the permit is counted for; empty for a task of the provider's own.
    pub namespace: &'a str,
}

/// Calls a waiter. It must not block.
pub type Waker = Box<dyn FnOnce() + Send>;

/// How many permits of a priority are used, and how many wait for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// The priority.
    pub priority: Priority,
    /// Permits in use.
    pub in_use: u32,
    /// Objects and tasks that wait for one.
    pub waiting: usize,
}

/// The permits of one driver.
#[derive(Debug)]
pub(super) struct Permits {
    /// How many there are, of each priority. Those for creates are some of all.
    limits: PerPriority<u32>,
    /// How many of these a namespace may hold.
    per_namespace: PerPriority<u32>,
    state: Mutex<State>,
}

/// One for each priority.
#[derive(Clone, Copy, Debug, Default)]
struct PerPriority<T> {
    upkeep: T,
    create: T,
}

#[derive(Debug, Default)]
struct State {
    places: u64,
    grants: u64,
    /// Permits that are taken, and those that are kept for waiters that were called.
    held: PerPriority<u32>,
    reserved: PerPriority<u32>,
    /// The namespaces that hold a permit or wait for one.
    tenants: BTreeMap<Arc<str>, Tenant>,
    /// Where each waiter stands.
    queued: HashMap<Arc<str>, Place>,
    /// The waiters that were called and have not come yet.
    woken: HashMap<Arc<str>, Woken>,
}

/// A namespace.
#[derive(Debug, Default)]
struct Tenant {
    held: PerPriority<u32>,
    reserved: PerPriority<u32>,
    /// The grant that was its last, counted from 1.
    last: PerPriority<u64>,
    rate: PerPriority<GrantRate>,
    waiting: PerPriority<BTreeMap<u64, Waiter>>,
}

/// How often something happened lately.
#[derive(Clone, Copy, Debug, Default)]
struct GrantRate {
    /// The begin of the time that is counted in `now`.
    since: Option<Instant>,
    now: u32,
    /// In the time before that, which was as long as [`LATELY`].
    before: u32,
}

/// A place in the queue.
#[derive(Clone, Debug)]
struct Place {
    namespace: Arc<str>,
    priority: Priority,
    number: u64,
}

struct Waiter {
    key: Arc<str>,
    waker: Option<Waker>,
    since: Instant,
    /// Whether it was called to say that it waits.
    is_reported: bool,
}

#[derive(Debug)]
struct Woken {
    place: Place,
    at: Instant,
    since: Instant,
    is_reported: bool,
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Waiter").field(&self.key).finish()
    }
}

impl Priority {
    /// Both, in the order in which they are served.
    const ALL: [Self; 2] = [Self::Upkeep, Self::Create];

    /// The label of metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Upkeep => "upkeep",
            Self::Create => "create",
        }
    }
}

impl<T> PerPriority<T> {
    fn of(&self, priority: Priority) -> &T {
        match priority {
            Priority::Upkeep => &self.upkeep,
            Priority::Create => &self.create,
        }
    }

    fn of_mut(&mut self, priority: Priority) -> &mut T {
        match priority {
            Priority::Upkeep => &mut self.upkeep,
            Priority::Create => &mut self.create,
        }
    }
}

impl PerPriority<u32> {
    fn sum(self) -> u32 {
        self.upkeep + self.create
    }
}

impl Permits {
    /// So many permits. An eighth of them, and one at least, is kept from creates; a single permit is
    /// for everything. Where several namespaces may use the driver, one leaves another eighth, and
    /// one at least, to the others.
    pub(super) fn new(all: NonZeroU32, shared: bool) -> Self {
        let all = all.get();
        let reserve = if all > 1 { (all / 8).max(1) } else { 0 };
        let limits = PerPriority {
            upkeep: all,
            create: all - reserve,
        };
        let for_others = if shared { reserve } else { 0 };
        // A single one can't be shared.
        let per_namespace = |most: u32| (most - for_others).max(1);
        Self {
            limits,
            per_namespace: PerPriority {
                upkeep: per_namespace(limits.upkeep),
                create: per_namespace(limits.create),
            },
            state: Mutex::default(),
        }
    }

    /// Permits there are.
    pub(super) fn all(&self) -> u32 {
        self.limits.upkeep
    }

    /// Takes a permit, or joins the queue, in which each requester stands once; `waker` is called when
    /// it is worth to come again.
    pub(super) fn acquire_or_queue(
        &self,
        priority: Priority,
        requester: Requester<'_>,
        waker: Waker,
    ) -> bool {
        let now = Instant::now();
        let mut state = self.lock();
        state.end_late_reservations(now);
        let was_woken = state.end_reservation(requester.key);
        if self.has_room(&state, requester.namespace, priority) {
            state.leave_queue(requester.key);
            state.take(requester.namespace, priority, now);
            return true;
        }
        state.join_queue(priority, requester, was_woken, waker, now);
        false
    }

    /// Lets a permit that was taken for upkeep be used to make a VM, if one more create may be.
    pub(super) fn promote_to_create(&self, namespace: &str) -> bool {
        let mut state = self.lock();
        let lent = self.has_room_to_create(&state, namespace);
        if lent {
            state.release(namespace, Priority::Upkeep);
            state.take(namespace, Priority::Create, Instant::now());
        }
        lent
    }

    /// Gives a permit back, and calls the next waiter.
    pub(super) fn release(&self, namespace: &str, priority: Priority) {
        let wakers = {
            let mut state = self.lock();
            state.release(namespace, priority);
            let wakers = self.wake_next(&mut state);
            state.forget_tenant(namespace);
            wakers
        };
        for waker in wakers {
            waker();
        }
    }

    /// Takes a requester that wants no permit any more out of the queue, and calls the next waiter.
    pub(super) fn cancel(&self, key: &str) {
        let wakers = {
            let mut state = self.lock();
            state.leave_queue(key);
            if state.end_reservation(key).is_none() {
                return;
            }
            self.wake_next(&mut state)
        };
        for waker in wakers {
            waker();
        }
    }

    /// Whether `key` waits and has to say so.
    pub(super) fn should_report(&self, key: &str) -> bool {
        let state = self.lock();
        let waiter = state.queued.get(key).and_then(|place| state.waiter(place));
        waiter.is_some_and(|waiter| waiter.is_reported)
    }

    /// Calls those that have to say that they wait, so many at most: each of them that has waited for some
    /// seconds in a queue that is not served within minutes. A fleet that comes up at the pace of its driver
    /// is not written to for that.
    pub(super) fn wake_to_report(&self, most: usize) {
        let now = Instant::now();
        let wakers: Vec<_> = {
            let mut state = self.lock();
            let queues = state.tenants.values_mut().flat_map(Tenant::queues);
            queues
                .filter(|(waiting, rate)| rate.is_slow(waiting.len(), now))
                .flat_map(|(waiting, _)| waiting.values_mut())
                .filter(|waiter| {
                    !waiter.is_reported && now.saturating_duration_since(waiter.since) >= REPORTED_AFTER
                })
                .take(most)
                .filter_map(|waiter| {
                    waiter.is_reported = true;
                    waiter.waker.take()
                })
                .collect()
        };
        for waker in wakers {
            waker();
        }
    }

    /// How many permits are used and waited for.
    pub(super) fn load(&self) -> [Load; 2] {
        let state = self.lock();
        Priority::ALL.map(|priority| Load {
            priority,
            in_use: *state.held.of(priority),
            waiting: state
                .tenants
                .values()
                .map(|tenant| tenant.waiting.of(priority).len())
                .sum(),
        })
    }

    /// Whether there is a permit for this namespace besides those that are kept for waiters that were called.
    fn has_room(&self, state: &State, namespace: &str, priority: Priority) -> bool {
        let of_it = state.tenants.get(namespace).map_or(0, Tenant::permits);
        let is_free =
            state.held.sum() + state.reserved.sum() < self.limits.upkeep && of_it < self.per_namespace.upkeep;
        match priority {
            Priority::Upkeep => is_free,
            Priority::Create => is_free && self.has_room_to_create(state, namespace),
        }
    }

    fn has_room_to_create(&self, state: &State, namespace: &str) -> bool {
        let of_it = state
            .tenants
            .get(namespace)
            .map_or(0, |tenant| tenant.permits_of(Priority::Create));
        state.held.create + state.reserved.create < self.limits.create && of_it < self.per_namespace.create
    }

    fn wake_next(&self, state: &mut State) -> Vec<Waker> {
        let now = Instant::now();
        state.end_late_reservations(now);
        let mut wakers = Vec::new();
        while let Some((namespace, priority)) = self.next(state) {
            wakers.extend(state.wake(&namespace, priority, now));
        }
        wakers
    }

    /// The namespace that gets the next permit, and for what: of those that wait and may have one, the one
    /// that has the fewest, and of these the one whose last is the longest ago.
    fn next(&self, state: &State) -> Option<(Arc<str>, Priority)> {
        Priority::ALL.into_iter().find_map(|priority| {
            let waiting = state.tenants.iter().filter(|(namespace, tenant)| {
                !tenant.waiting.of(priority).is_empty() && self.has_room(state, namespace, priority)
            });
            let (namespace, _) =
                waiting.min_by_key(|(_, tenant)| (tenant.permits_of(priority), *tenant.last.of(priority)))?;
            Some((Arc::clone(namespace), priority))
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tenant {
    /// The permits that it holds or that are kept for it.
    fn permits(&self) -> u32 {
        self.held.sum() + self.reserved.sum()
    }

    fn permits_of(&self, priority: Priority) -> u32 {
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

impl GrantRate {
    fn count(&mut self, now: Instant) {
        let age = self.age(now);
        if self.since.is_none() || age >= RATE_WINDOW {
            *self = Self {
                since: Some(now),
                now: 0,
                before: if age < RATE_WINDOW * 2 { self.now } else { 0 },
            };
        }
        self.now = self.now.saturating_add(1);
    }

    fn age(&self, now: Instant) -> Duration {
        self.since
            .map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// Whether a queue of this length takes long at the pace at which permits were granted lately.
    fn is_slow(self, waiting: usize, now: Instant) -> bool {
        let age = self.age(now);
        let granted = self.now.saturating_add(self.before);
        let time = age
            + if self.before > 0 {
                RATE_WINDOW
            } else {
                Duration::ZERO
            };
        let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
        // The next grant would have begun to count anew.
        let none_lately = granted == 0 || age >= RATE_WINDOW * 2;
        none_lately || time.as_secs_f64() * f64::from(waiting) > LONG_QUEUE.as_secs_f64() * f64::from(granted)
    }
}

impl State {
    fn tenant(&mut self, namespace: &str) -> &mut Tenant {
        if !self.tenants.contains_key(namespace) {
            self.tenants.insert(namespace.into(), Tenant::default());
        }
        self.tenants.entry(namespace.into()).or_default()
    }

    fn waiter(&self, place: &Place) -> Option<&Waiter> {
        let tenant = self.tenants.get(&place.namespace)?;
        tenant.waiting.of(place.priority).get(&place.number)
    }

    fn take(&mut self, namespace: &str, priority: Priority, now: Instant) {
        *self.held.of_mut(priority) += 1;
        self.grants += 1;
        let grant = self.grants;
        let tenant = self.tenant(namespace);
        *tenant.held.of_mut(priority) += 1;
        *tenant.last.of_mut(priority) = grant;
        tenant.rate.of_mut(priority).count(now);
    }

    fn release(&mut self, namespace: &str, priority: Priority) {
        let held = self.held.of_mut(priority);
        *held = held.saturating_sub(1);
        if let Some(tenant) = self.tenants.get_mut(namespace) {
            let held = tenant.held.of_mut(priority);
            *held = held.saturating_sub(1);
        }
    }

    /// Calls the first of a queue; a permit is kept for it. One that was called to say that it
    /// waits is on its way already.
    fn wake(&mut self, namespace: &Arc<str>, priority: Priority, now: Instant) -> Option<Waker> {
        let tenant = self.tenants.get_mut(namespace)?;
        let (number, waiter) = tenant.waiting.of_mut(priority).pop_first()?;
        *tenant.reserved.of_mut(priority) += 1;
        *self.reserved.of_mut(priority) += 1;
        self.queued.remove(&waiter.key);
        let place = Place {
            namespace: Arc::clone(namespace),
            priority,
            number,
        };
        let woken = Woken {
            place,
            at: now,
            since: waiter.since,
            is_reported: waiter.is_reported,
        };
        self.woken.insert(waiter.key, woken);
        waiter.waker
    }

    fn end_late_reservations(&mut self, now: Instant) {
        let is_late = |woken: &Woken| now.saturating_duration_since(woken.at) >= RESERVED_FOR;
        let late: Vec<_> = self
            .woken
            .iter()
            .filter(|(_, woken)| is_late(woken))
            .map(|(key, _)| Arc::clone(key))
            .collect();
        for key in late {
            self.end_reservation(&key);
        }
    }

    /// The permit that was kept for `key`, if there was one, is kept no longer.
    fn end_reservation(&mut self, key: &str) -> Option<Woken> {
        let woken = self.woken.remove(key)?;
        let Place {
            namespace, priority, ..
        } = &woken.place;
        let reserved = self.reserved.of_mut(*priority);
        *reserved = reserved.saturating_sub(1);
        if let Some(tenant) = self.tenants.get_mut(namespace) {
            let reserved = tenant.reserved.of_mut(*priority);
            *reserved = reserved.saturating_sub(1);
        }
        self.forget_tenant(namespace);
        Some(woken)
    }

    /// Forgets a namespace of which there is nothing to know.
    fn forget_tenant(&mut self, namespace: &str) {
        if self.tenants.get(namespace).is_some_and(Tenant::is_idle) {
            self.tenants.remove(namespace);
        }
    }

    fn leave_queue(&mut self, key: &str) -> Option<(Place, Waiter)> {
        let place = self.queued.remove(key)?;
        let tenant = self.tenants.get_mut(&place.namespace)?;
        let waiter = tenant.waiting.of_mut(place.priority).remove(&place.number)?;
        self.forget_tenant(&place.namespace);
        Some((place, waiter))
    }

    /// A waiter in the queue keeps its place, and so does one that was called and found the permit gone.
    fn join_queue(
        &mut self,
        priority: Priority,
        requester: Requester<'_>,
        was_woken: Option<Woken>,
        waker: Waker,
        now: Instant,
    ) {
        let stood = self
            .leave_queue(requester.key)
            .map(|(place, waiter)| (place, waiter.since, waiter.is_reported));
        let was_woken = was_woken.map(|woken| (woken.place, woken.since, woken.is_reported));
        let reserved = stood
            .or(was_woken)
            .filter(|(place, ..)| place.priority == priority && *place.namespace == *requester.namespace);
        let (place, since, is_reported) = reserved.unwrap_or_else(|| {
            self.places += 1;
            let place = Place {
                namespace: requester.namespace.into(),
                priority,
                number: self.places,
            };
            (place, now, false)
        });
        let key: Arc<str> = requester.key.into();
        let waiter = Waiter {
            key: Arc::clone(&key),
            waker: Some(waker),
            since,
            is_reported,
        };
        let tenant = self.tenant(requester.namespace);
        tenant.waiting.of_mut(priority).insert(place.number, waiter);
        self.queued.insert(key, place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The waiters that were called, in order.
    #[derive(Clone, Default)]
    struct Woken(Arc<Mutex<Vec<String>>>);

    impl Woken {
        fn waker(&self, key: &str) -> Waker {
            let (woken, key) = (self.clone(), key.to_owned());
            Box::new(move || woken.0.lock().unwrap().push(key))
        }

        fn take(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock().unwrap())
        }
    }

    fn permits(all: u32) -> (Permits, Woken) {
        let permits = Permits::new(NonZeroU32::new(all).unwrap(), false);
        (permits, Woken::default())
    }

    /// One that several namespaces priority.
    fn shared(all: u32) -> (Permits, Woken) {
        let permits = Permits::new(NonZeroU32::new(all).unwrap(), true);
        (permits, Woken::default())
    }

    impl Permits {
        /// Asks for one in the name of the only namespace.
        fn ask(&self, priority: Priority, key: &str, waker: Waker) -> bool {
            self.ask_in("ns", priority, key, waker)
        }

        fn ask_in(&self, namespace: &str, priority: Priority, key: &str, waker: Waker) -> bool {
            self.acquire_or_queue(priority, Requester { key, namespace }, waker)
        }
    }

    #[test]
    fn creates_leave_a_reserve_that_a_deletion_finds_free() {
        for (all, for_creates) in [(1, 1), (2, 1), (4, 3), (32, 28)] {
            let (permits, woken) = permits(all);
            let create = |n: u32| {
                let key = format!("create-{n}");
                permits.ask(Priority::Create, &key, woken.waker(&key))
            };
            let taken = (0..all).filter(|n| create(*n)).count();
            assert_eq!(taken, for_creates, "of {all}");
            let deletion = permits.ask(Priority::Upkeep, "delete", woken.waker("delete"));
            assert_eq!(deletion, all > 1, "of {all}");
        }
    }

    #[test]
    fn a_waiter_is_woken_in_order_and_finds_the_permit_reserved() {
        let (permits, woken) = permits(1);
        assert!(permits.ask(Priority::Create, "a", woken.waker("a")));
        for key in ["b", "c", "b"] {
            assert!(!permits.ask(Priority::Create, key, woken.waker(key)));
        }
        permits.release("ns", Priority::Create);
        assert_eq!(woken.take(), ["b"], "one permit, one call, and the first place");
        assert!(
            !permits.ask(Priority::Create, "d", woken.waker("d")),
            "it is reserved for b"
        );
        assert!(permits.ask(Priority::Create, "b", woken.waker("b")));
        permits.release("ns", Priority::Create);
        assert_eq!(woken.take(), ["c"]);
    }

    #[test]
    fn a_deletion_is_called_before_the_creates_that_came_first() {
        let (permits, woken) = permits(2);
        for key in ["a", "b", "c"] {
            permits.ask(Priority::Create, key, woken.waker(key));
        }
        assert!(permits.ask(Priority::Upkeep, "x", woken.waker("x")));
        assert!(!permits.ask(Priority::Upkeep, "y", woken.waker("y")));
        permits.release("ns", Priority::Create);
        assert_eq!(woken.take(), ["y"]);
        assert!(permits.ask(Priority::Upkeep, "y", woken.waker("y")));
        permits.release("ns", Priority::Upkeep);
        assert_eq!(woken.take(), ["b"]);
    }

    #[test]
    fn a_look_up_that_leads_to_a_create_counts_as_one() {
        let (permits, woken) = permits(2);
        assert!(permits.ask(Priority::Upkeep, "a", woken.waker("a")));
        assert!(permits.ask(Priority::Upkeep, "b", woken.waker("b")));
        assert!(permits.promote_to_create("ns"));
        assert!(
            !permits.promote_to_create("ns"),
            "the other permit is the reserve"
        );
        permits.release("ns", Priority::Create);
        assert!(permits.promote_to_create("ns"));
    }

    /// A fleet that waited while it was not known what the driver can do, and then has nothing to ask of it.
    #[tokio::test(start_paused = true)]
    async fn many_waiters_that_want_no_permit_any_more_do_not_hold_up_one_that_does() {
        let (permits, woken) = permits(4);
        for n in 0..4 {
            let key = format!("first-{n}");
            assert!(permits.ask(Priority::Upkeep, &key, woken.waker(&key)));
        }
        for n in 0..300 {
            let key = format!("idle-{n}");
            assert!(!permits.ask(Priority::Upkeep, &key, woken.waker(&key)));
        }
        assert!(!permits.ask(Priority::Create, "create", woken.waker("create")));
        let start = Instant::now();
        for _ in 0..4 {
            permits.release("ns", Priority::Upkeep);
        }
        let mut called = Vec::new();
        while !called.iter().any(|key| key == "create") {
            called = woken.take();
            assert!(!called.is_empty(), "a permit is held and not used");
            for key in called.iter().filter(|key| key.starts_with("idle")) {
                permits.cancel(key);
            }
        }
        assert!(permits.ask(Priority::Create, "create", woken.waker("create")));
        assert_eq!(start.elapsed(), Duration::ZERO);
        let state = permits.lock();
        assert!(
            state.queued.is_empty() && state.woken.is_empty() && state.tenants.keys().eq([&Arc::from("ns")])
        );
    }

    #[test]
    fn a_waiter_that_has_cancelled_is_not_woken() {
        let (permits, woken) = permits(1);
        assert!(permits.ask(Priority::Create, "a", woken.waker("a")));
        for key in ["deleted", "b"] {
            assert!(!permits.ask(Priority::Create, key, woken.waker(key)));
        }
        permits.cancel("deleted");
        permits.release("ns", Priority::Create);
        assert_eq!(woken.take(), ["b"]);
    }

    /// It was deleted while it waited.
    #[tokio::test(start_paused = true)]
    async fn a_permit_is_not_reserved_for_ever_for_one_that_does_not_come() {
        let (permits, woken) = permits(2);
        for key in ["a", "b"] {
            assert!(permits.ask(Priority::Upkeep, key, woken.waker(key)));
        }
        for key in ["gone", "c"] {
            assert!(!permits.ask(Priority::Upkeep, key, woken.waker(key)));
        }
        permits.release("ns", Priority::Upkeep);
        assert_eq!(woken.take(), ["gone"]);
        assert!(!permits.ask(Priority::Upkeep, "d", woken.waker("d")));
        tokio::time::advance(RESERVED_FOR).await;
        assert!(permits.ask(Priority::Upkeep, "d", woken.waker("d")));
        permits.release("ns", Priority::Upkeep);
        assert_eq!(woken.take(), ["c"]);
    }

    /// 40 machines of one namespace whose creates hang, and one of another.
    #[tokio::test(start_paused = true)]
    async fn the_next_permit_is_the_one_of_the_namespace_that_has_the_fewest() {
        let (permits, woken) = permits(4);
        for n in 0..40 {
            let key = format!("many-{n}");
            assert_eq!(
                permits.ask_in("many", Priority::Create, &key, woken.waker(&key)),
                n < 3
            );
        }
        for key in ["other-1", "other-2"] {
            assert!(!permits.ask_in("other", Priority::Create, key, woken.waker(key)));
        }
        assert!(!permits.ask_in("third", Priority::Create, "third", woken.waker("third")));
        let mut order = Vec::new();
        for _ in 0..4 {
            permits.release("many", Priority::Create);
            for key in woken.take() {
                let namespace = key.split('-').next().unwrap();
                assert!(permits.ask_in(namespace, Priority::Create, &key, woken.waker(&key)));
                order.push(key);
            }
        }
        assert_eq!(order, ["other-1", "third", "many-3", "many-4"]);
    }

    /// A call that hangs gives its permit back at its timeout only.
    #[test]
    fn of_a_driver_that_several_namespaces_share_no_namespace_holds_all_permits() {
        for (all, creates, held) in [(2, 1, 1), (3, 1, 2), (4, 2, 3), (8, 6, 7), (32, 24, 28)] {
            let (permits, woken) = shared(all);
            let ask = |namespace: &str, priority, n: u32| {
                let key = format!("{namespace}-{priority:?}-{n}");
                permits.ask_in(namespace, priority, &key, woken.waker(&key))
            };
            let creating = (0..all).filter(|n| ask("a", Priority::Create, *n)).count();
            let upkeep = (0..all).filter(|n| ask("a", Priority::Upkeep, *n)).count();
            assert_eq!((creating, creating + upkeep), (creates, held), "of {all}");
            // The one of two that is left is not for creates.
            let priority = if all == 2 {
                Priority::Upkeep
            } else {
                Priority::Create
            };
            assert!(ask("b", priority, 0), "of {all}");
            permits.release("b", priority);
            assert!(
                woken.take().is_empty(),
                "of {all}, the permit stays for the others"
            );
            permits.release("a", Priority::Create);
            assert_eq!(woken.take().len(), 1, "of {all}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_waits_in_a_queue_that_is_not_served_is_called_once_to_say_so_and_keeps_its_place() {
        let (permits, woken) = permits(2);
        assert!(permits.ask(Priority::Create, "hangs", woken.waker("hangs")));
        for key in ["a", "b"] {
            assert!(!permits.ask(Priority::Create, key, woken.waker(key)));
        }
        permits.wake_to_report(10);
        assert!(woken.take().is_empty() && !permits.should_report("a"));
        tokio::time::advance(RATE_WINDOW * 2).await;
        permits.wake_to_report(10);
        assert_eq!(woken.take(), ["a", "b"]);
        for key in ["b", "a"] {
            assert!(!permits.ask(Priority::Create, key, woken.waker(key)));
            assert!(permits.should_report(key));
        }
        tokio::time::advance(REPORTED_AFTER).await;
        permits.wake_to_report(10);
        assert!(woken.take().is_empty(), "it is said");
        permits.release("ns", Priority::Create);
        assert_eq!(woken.take(), ["a"]);
        assert!(permits.ask(Priority::Create, "a", woken.waker("a")));
        assert!(!permits.should_report("a"));
    }

    /// A fleet that comes up at the pace of its driver costs no writes for its waits.
    #[tokio::test(start_paused = true)]
    async fn a_waiter_in_a_queue_that_is_served_within_minutes_is_not_called_to_say_so() {
        let (permits, woken) = permits(1);
        assert!(permits.ask(Priority::Create, "first", woken.waker("first")));
        for n in 0..600 {
            let key = format!("next-{n}");
            assert!(!permits.ask(Priority::Create, &key, woken.waker(&key)));
        }
        let is_reported = |permits: &Permits| {
            permits.wake_to_report(1000);
            woken.take().len()
        };
        // Ten a second.
        for _ in 0..100 {
            tokio::time::advance(Duration::from_millis(100)).await;
            permits.release("ns", Priority::Create);
            for key in woken.take() {
                assert!(permits.ask(Priority::Create, &key, woken.waker(&key)));
            }
        }
        assert_eq!(is_reported(&permits), 0);
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!(is_reported(&permits), 500, "nothing was served for half a minute");
    }

    #[test]
    fn what_is_used_and_waited_for_is_counted_by_priority() {
        let (permits, woken) = permits(2);
        for (priority, key) in [
            (Priority::Create, "a"),
            (Priority::Create, "b"),
            (Priority::Upkeep, "c"),
            (Priority::Upkeep, "d"),
            (Priority::Upkeep, "e"),
        ] {
            permits.ask(priority, key, woken.waker(key));
        }
        let load = permits.load().map(|load| (load.in_use, load.waiting));
        assert_eq!(load, [(1, 2), (1, 1)]);
    }
}
