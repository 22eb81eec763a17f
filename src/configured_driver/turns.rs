//! Permits to call a driver: how much it works on at the same time, and which waiter is next.
//! [`super::Turn`] is one of them.
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
const KEPT: Duration = Duration::from_secs(5);
/// A wait shorter than this is not worth a word.
const SHOWN_AFTER: Duration = Duration::from_secs(5);
/// A queue that is served within this time is not worth a write for each that stands in it.
const LONG_QUEUE: Duration = Duration::from_mins(5);
/// What counts as lately in the rate at which a queue is served.
const LATELY: Duration = Duration::from_secs(5);

/// What a turn is wanted for. Look-ups and deletions come before creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Share {
    /// Anything but to make a VM. May use every turn.
    Upkeep,
    /// To make a VM, or to finish it. Leaves a reserve, so that creates that hang hold no deletion up.
    Create,
}

/// What wants a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applicant<'a> {
    /// The UID of an object, or the name of a task. It has one place in the queue, however often it asks.
    pub who: &'a str,
    /// The namespace that the permit is counted for; empty for a task of the provider's own.
    pub namespace: &'a str,
}

/// Calls a waiter. It must not block.
pub type Bell = Box<dyn FnOnce() + Send>;

/// How many permits of a share are used, and how many wait for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// The share.
    pub share: Share,
    /// Permits in use.
    pub in_use: u32,
    /// Objects and tasks that wait for one.
    pub waiting: usize,
}

/// The permits of one driver.
#[derive(Debug)]
pub(super) struct Turns {
    /// How many there are, of each share. Those for creates are some of all.
    limits: Shares<u32>,
    /// How many of these a namespace may hold.
    for_one: Shares<u32>,
    state: Mutex<State>,
}

/// One for each share.
#[derive(Clone, Copy, Debug, Default)]
struct Shares<T> {
    upkeep: T,
    create: T,
}

#[derive(Debug, Default)]
struct State {
    places: u64,
    grants: u64,
    /// Permits that are taken, and those that are kept for waiters that were called.
    held: Shares<u32>,
    kept: Shares<u32>,
    /// The namespaces that hold a permit or wait for one.
    tenants: BTreeMap<Arc<str>, Tenant>,
    /// Where each waiter stands.
    standing: HashMap<Arc<str>, Place>,
    /// The waiters that were called and have not come yet.
    called: HashMap<Arc<str>, Called>,
}

/// A namespace.
#[derive(Debug, Default)]
struct Tenant {
    held: Shares<u32>,
    kept: Shares<u32>,
    /// The grant that was its last, counted from 1.
    last: Shares<u64>,
    recent: Shares<Recent>,
    waiting: Shares<BTreeMap<u64, Waiter>>,
}

/// How often something happened lately.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
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
    share: Share,
    number: u64,
}

struct Waiter {
    who: Arc<str>,
    bell: Option<Bell>,
    since: Instant,
    /// Whether it was called to say that it waits.
    shown: bool,
}

#[derive(Debug)]
struct Called {
    place: Place,
    at: Instant,
    since: Instant,
    shown: bool,
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Waiter").field(&self.who).finish()
    }
}

impl Share {
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

impl<T> Shares<T> {
    fn of(&self, share: Share) -> &T {
        match share {
            Share::Upkeep => &self.upkeep,
            Share::Create => &self.create,
        }
    }

    fn of_mut(&mut self, share: Share) -> &mut T {
        match share {
            Share::Upkeep => &mut self.upkeep,
            Share::Create => &mut self.create,
        }
    }
}

impl Shares<u32> {
    fn sum(self) -> u32 {
        self.upkeep + self.create
    }
}

impl Turns {
    /// So many permits. An eighth of them, and one at least, is kept from creates; a single permit is
    /// for everything. Where several namespaces may use the driver, one leaves another eighth, and
    /// one at least, to the others.
    pub(super) fn new(all: NonZeroU32, shared: bool) -> Self {
        let all = all.get();
        let reserve = if all > 1 { (all / 8).max(1) } else { 0 };
        let limits = Shares {
            upkeep: all,
            create: all - reserve,
        };
        let for_others = if shared { reserve } else { 0 };
        // A single one can't be shared.
        let for_one = |most: u32| (most - for_others).max(1);
        Self {
            limits,
            for_one: Shares {
                upkeep: for_one(limits.upkeep),
                create: for_one(limits.create),
            },
            state: Mutex::default(),
        }
    }

    /// Permits there are.
    pub(super) fn all(&self) -> u32 {
        self.limits.upkeep
    }

    /// Takes a permit, or joins the queue, in which each applicant stands once; `bell` rings when
    /// it is worth to come again.
    pub(super) fn take_or_wait(&self, share: Share, applicant: Applicant<'_>, bell: Bell) -> bool {
        let now = Instant::now();
        let mut state = self.lock();
        state.forget_late(now);
        let was_called = state.forget_called(applicant.who);
        if self.has_room(&state, applicant.namespace, share) {
            state.leave_queue(applicant.who);
            state.take(applicant.namespace, share, now);
            return true;
        }
        state.join_queue(share, applicant, was_called, bell, now);
        false
    }

    /// Lets a permit that was taken for upkeep be used to make a VM, if one more create may be.
    pub(super) fn lend_to_create(&self, namespace: &str) -> bool {
        let mut state = self.lock();
        let lent = self.has_room_to_create(&state, namespace);
        if lent {
            state.give_back(namespace, Share::Upkeep);
            state.take(namespace, Share::Create, Instant::now());
        }
        lent
    }

    /// Gives a permit back, and calls the next waiter.
    pub(super) fn give_back(&self, namespace: &str, share: Share) {
        let bells = {
            let mut state = self.lock();
            state.give_back(namespace, share);
            let bells = self.call_next(&mut state);
            state.forget_tenant(namespace);
            bells
        };
        for bell in bells {
            bell();
        }
    }

    /// Takes an applicant that wants no permit any more out of the queue, and calls the next waiter.
    pub(super) fn withdraw(&self, who: &str) {
        let bells = {
            let mut state = self.lock();
            state.leave_queue(who);
            if state.forget_called(who).is_none() {
                return;
            }
            self.call_next(&mut state)
        };
        for bell in bells {
            bell();
        }
    }

    /// Whether `who` waits and has to say so.
    pub(super) fn is_shown(&self, who: &str) -> bool {
        let state = self.lock();
        let waiter = state.standing.get(who).and_then(|place| state.waiter(place));
        waiter.is_some_and(|waiter| waiter.shown)
    }

    /// Calls those that have to say that they wait, so many at most: each of them that has waited for some
    /// seconds in a queue that is not served within minutes. A fleet that comes up at the pace of its driver
    /// is not written to for that.
    pub(super) fn have_waits_shown(&self, most: usize) {
        let now = Instant::now();
        let bells: Vec<_> = {
            let mut state = self.lock();
            let queues = state.tenants.values_mut().flat_map(Tenant::queues);
            queues
                .filter(|(waiting, recent)| recent.serves_slowly(waiting.len(), now))
                .flat_map(|(waiting, _)| waiting.values_mut())
                .filter(|waiter| !waiter.shown && now.saturating_duration_since(waiter.since) >= SHOWN_AFTER)
                .take(most)
                .filter_map(|waiter| {
                    waiter.shown = true;
                    waiter.bell.take()
                })
                .collect()
        };
        for bell in bells {
            bell();
        }
    }

    /// How many permits are used and waited for.
    pub(super) fn load(&self) -> [Load; 2] {
        let state = self.lock();
        Share::ALL.map(|share| Load {
            share,
            in_use: *state.held.of(share),
            waiting: state
                .tenants
                .values()
                .map(|tenant| tenant.waiting.of(share).len())
                .sum(),
        })
    }

    /// Whether there is a permit for this namespace besides those that are kept for waiters that were called.
    fn has_room(&self, state: &State, namespace: &str, share: Share) -> bool {
        let of_it = state.tenants.get(namespace).map_or(0, Tenant::permits);
        let is_free = state.held.sum() + state.kept.sum() < self.limits.upkeep && of_it < self.for_one.upkeep;
        match share {
            Share::Upkeep => is_free,
            Share::Create => is_free && self.has_room_to_create(state, namespace),
        }
    }

    fn has_room_to_create(&self, state: &State, namespace: &str) -> bool {
        let of_it = state
            .tenants
            .get(namespace)
            .map_or(0, |tenant| tenant.permits_of(Share::Create));
        state.held.create + state.kept.create < self.limits.create && of_it < self.for_one.create
    }

    fn call_next(&self, state: &mut State) -> Vec<Bell> {
        let now = Instant::now();
        state.forget_late(now);
        let mut bells = Vec::new();
        while let Some((namespace, share)) = self.next(state) {
            bells.extend(state.call(&namespace, share, now));
        }
        bells
    }

    /// The namespace that gets the next permit, and for what: of those that wait and may have one, the one
    /// that has the fewest, and of these the one whose last is the longest ago.
    fn next(&self, state: &State) -> Option<(Arc<str>, Share)> {
        Share::ALL.into_iter().find_map(|share| {
            let waiting = state.tenants.iter().filter(|(namespace, tenant)| {
                !tenant.waiting.of(share).is_empty() && self.has_room(state, namespace, share)
            });
            let (namespace, _) =
                waiting.min_by_key(|(_, tenant)| (tenant.permits_of(share), *tenant.last.of(share)))?;
            Some((Arc::clone(namespace), share))
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tenant {
    /// The permits that it holds or that are kept for it.
    fn permits(&self) -> u32 {
        self.held.sum() + self.kept.sum()
    }

    fn permits_of(&self, share: Share) -> u32 {
        self.held.of(share) + self.kept.of(share)
    }

    fn queues(&mut self) -> [(&mut BTreeMap<u64, Waiter>, Recent); 2] {
        [
            (&mut self.waiting.upkeep, self.recent.upkeep),
            (&mut self.waiting.create, self.recent.create),
        ]
    }

    fn is_idle(&self) -> bool {
        self.permits() == 0 && self.waiting.upkeep.is_empty() && self.waiting.create.is_empty()
    }
}

impl Recent {
    fn count(&mut self, now: Instant) {
        let age = self.age(now);
        if self.since.is_none() || age >= LATELY {
            *self = Self {
                since: Some(now),
                now: 0,
                before: if age < LATELY * 2 { self.now } else { 0 },
            };
        }
        self.now = self.now.saturating_add(1);
    }

    fn age(&self, now: Instant) -> Duration {
        self.since
            .map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// Whether a queue of this length takes long at the pace at which permits were granted lately.
    fn serves_slowly(self, waiting: usize, now: Instant) -> bool {
        let age = self.age(now);
        let granted = self.now.saturating_add(self.before);
        let time = age + if self.before > 0 { LATELY } else { Duration::ZERO };
        let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
        // The next grant would have begun to count anew.
        let none_lately = granted == 0 || age >= LATELY * 2;
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
        tenant.waiting.of(place.share).get(&place.number)
    }

    fn take(&mut self, namespace: &str, share: Share, now: Instant) {
        *self.held.of_mut(share) += 1;
        self.grants += 1;
        let grant = self.grants;
        let tenant = self.tenant(namespace);
        *tenant.held.of_mut(share) += 1;
        *tenant.last.of_mut(share) = grant;
        tenant.recent.of_mut(share).count(now);
    }

    fn give_back(&mut self, namespace: &str, share: Share) {
        let held = self.held.of_mut(share);
        *held = held.saturating_sub(1);
        if let Some(tenant) = self.tenants.get_mut(namespace) {
            let held = tenant.held.of_mut(share);
            *held = held.saturating_sub(1);
        }
    }

    /// Calls the first of a queue; a permit is kept for it. One that was called to say that it
    /// waits is on its way already.
    fn call(&mut self, namespace: &Arc<str>, share: Share, now: Instant) -> Option<Bell> {
        let tenant = self.tenants.get_mut(namespace)?;
        let (number, waiter) = tenant.waiting.of_mut(share).pop_first()?;
        *tenant.kept.of_mut(share) += 1;
        *self.kept.of_mut(share) += 1;
        self.standing.remove(&waiter.who);
        let place = Place {
            namespace: Arc::clone(namespace),
            share,
            number,
        };
        let called = Called {
            place,
            at: now,
            since: waiter.since,
            shown: waiter.shown,
        };
        self.called.insert(waiter.who, called);
        waiter.bell
    }

    fn forget_late(&mut self, now: Instant) {
        let is_late = |called: &Called| now.saturating_duration_since(called.at) >= KEPT;
        let late: Vec<_> = self
            .called
            .iter()
            .filter(|(_, called)| is_late(called))
            .map(|(who, _)| Arc::clone(who))
            .collect();
        for who in late {
            self.forget_called(&who);
        }
    }

    /// The permit that was kept for `who`, if there was one, is kept no longer.
    fn forget_called(&mut self, who: &str) -> Option<Called> {
        let called = self.called.remove(who)?;
        let Place { namespace, share, .. } = &called.place;
        let kept = self.kept.of_mut(*share);
        *kept = kept.saturating_sub(1);
        if let Some(tenant) = self.tenants.get_mut(namespace) {
            let kept = tenant.kept.of_mut(*share);
            *kept = kept.saturating_sub(1);
        }
        self.forget_tenant(namespace);
        Some(called)
    }

    /// Forgets a namespace of which there is nothing to know.
    fn forget_tenant(&mut self, namespace: &str) {
        if self.tenants.get(namespace).is_some_and(Tenant::is_idle) {
            self.tenants.remove(namespace);
        }
    }

    fn leave_queue(&mut self, who: &str) -> Option<(Place, Waiter)> {
        let place = self.standing.remove(who)?;
        let tenant = self.tenants.get_mut(&place.namespace)?;
        let waiter = tenant.waiting.of_mut(place.share).remove(&place.number)?;
        self.forget_tenant(&place.namespace);
        Some((place, waiter))
    }

    /// A waiter in the queue keeps its place, and so does one that was called and found the permit gone.
    fn join_queue(
        &mut self,
        share: Share,
        applicant: Applicant<'_>,
        was_called: Option<Called>,
        bell: Bell,
        now: Instant,
    ) {
        let stood = self
            .leave_queue(applicant.who)
            .map(|(place, waiter)| (place, waiter.since, waiter.shown));
        let was_called = was_called.map(|called| (called.place, called.since, called.shown));
        let kept = stood
            .or(was_called)
            .filter(|(place, ..)| place.share == share && *place.namespace == *applicant.namespace);
        let (place, since, shown) = kept.unwrap_or_else(|| {
            self.places += 1;
            let place = Place {
                namespace: applicant.namespace.into(),
                share,
                number: self.places,
            };
            (place, now, false)
        });
        let who: Arc<str> = applicant.who.into();
        let waiter = Waiter {
            who: Arc::clone(&who),
            bell: Some(bell),
            since,
            shown,
        };
        let tenant = self.tenant(applicant.namespace);
        tenant.waiting.of_mut(share).insert(place.number, waiter);
        self.standing.insert(who, place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The waiters that were called, in order.
    #[derive(Clone, Default)]
    struct Calls(Arc<Mutex<Vec<String>>>);

    impl Calls {
        fn bell(&self, who: &str) -> Bell {
            let (calls, who) = (self.clone(), who.to_owned());
            Box::new(move || calls.0.lock().unwrap().push(who))
        }

        fn take(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock().unwrap())
        }
    }

    fn turns(all: u32) -> (Turns, Calls) {
        let turns = Turns::new(NonZeroU32::new(all).unwrap(), false);
        (turns, Calls::default())
    }

    /// One that several namespaces share.
    fn shared(all: u32) -> (Turns, Calls) {
        let turns = Turns::new(NonZeroU32::new(all).unwrap(), true);
        (turns, Calls::default())
    }

    impl Turns {
        /// Asks for one in the name of the only namespace.
        fn ask(&self, share: Share, who: &str, bell: Bell) -> bool {
            self.ask_in("ns", share, who, bell)
        }

        fn ask_in(&self, namespace: &str, share: Share, who: &str, bell: Bell) -> bool {
            self.take_or_wait(share, Applicant { who, namespace }, bell)
        }
    }

    #[test]
    fn creates_leave_a_reserve_that_a_deletion_finds_free() {
        for (all, for_creates) in [(1, 1), (2, 1), (4, 3), (32, 28)] {
            let (turns, calls) = turns(all);
            let create = |n: u32| {
                let who = format!("create-{n}");
                turns.ask(Share::Create, &who, calls.bell(&who))
            };
            let taken = (0..all).filter(|n| create(*n)).count();
            assert_eq!(taken, for_creates, "of {all}");
            let deletion = turns.ask(Share::Upkeep, "delete", calls.bell("delete"));
            assert_eq!(deletion, all > 1, "of {all}");
        }
    }

    #[test]
    fn a_waiter_is_called_in_turn_and_finds_the_turn_kept() {
        let (turns, calls) = turns(1);
        assert!(turns.ask(Share::Create, "a", calls.bell("a")));
        for who in ["b", "c", "b"] {
            assert!(!turns.ask(Share::Create, who, calls.bell(who)));
        }
        turns.give_back("ns", Share::Create);
        assert_eq!(calls.take(), ["b"], "one turn, one call, and the first place");
        assert!(
            !turns.ask(Share::Create, "d", calls.bell("d")),
            "it is kept for b"
        );
        assert!(turns.ask(Share::Create, "b", calls.bell("b")));
        turns.give_back("ns", Share::Create);
        assert_eq!(calls.take(), ["c"]);
    }

    #[test]
    fn a_deletion_is_called_before_the_creates_that_came_first() {
        let (turns, calls) = turns(2);
        for who in ["a", "b", "c"] {
            turns.ask(Share::Create, who, calls.bell(who));
        }
        assert!(turns.ask(Share::Upkeep, "x", calls.bell("x")));
        assert!(!turns.ask(Share::Upkeep, "y", calls.bell("y")));
        turns.give_back("ns", Share::Create);
        assert_eq!(calls.take(), ["y"]);
        assert!(turns.ask(Share::Upkeep, "y", calls.bell("y")));
        turns.give_back("ns", Share::Upkeep);
        assert_eq!(calls.take(), ["b"]);
    }

    #[test]
    fn a_look_up_that_leads_to_a_create_counts_as_one() {
        let (turns, calls) = turns(2);
        assert!(turns.ask(Share::Upkeep, "a", calls.bell("a")));
        assert!(turns.ask(Share::Upkeep, "b", calls.bell("b")));
        assert!(turns.lend_to_create("ns"));
        assert!(!turns.lend_to_create("ns"), "the other turn is the reserve");
        turns.give_back("ns", Share::Create);
        assert!(turns.lend_to_create("ns"));
    }

    /// A fleet that waited while it was not known what the driver can do, and then has nothing to ask of it.
    #[tokio::test(start_paused = true)]
    async fn many_waiters_that_want_no_turn_any_more_do_not_hold_up_one_that_does() {
        let (turns, calls) = turns(4);
        for n in 0..4 {
            let who = format!("first-{n}");
            assert!(turns.ask(Share::Upkeep, &who, calls.bell(&who)));
        }
        for n in 0..300 {
            let who = format!("idle-{n}");
            assert!(!turns.ask(Share::Upkeep, &who, calls.bell(&who)));
        }
        assert!(!turns.ask(Share::Create, "create", calls.bell("create")));
        let start = Instant::now();
        for _ in 0..4 {
            turns.give_back("ns", Share::Upkeep);
        }
        let mut called = Vec::new();
        while !called.iter().any(|who| who == "create") {
            called = calls.take();
            assert!(!called.is_empty(), "a turn is held and not used");
            for who in called.iter().filter(|who| who.starts_with("idle")) {
                turns.withdraw(who);
            }
        }
        assert!(turns.ask(Share::Create, "create", calls.bell("create")));
        assert_eq!(start.elapsed(), Duration::ZERO);
        let state = turns.lock();
        assert!(
            state.standing.is_empty()
                && state.called.is_empty()
                && state.tenants.keys().eq([&Arc::from("ns")])
        );
    }

    #[test]
    fn a_waiter_that_withdraws_from_the_line_is_not_called() {
        let (turns, calls) = turns(1);
        assert!(turns.ask(Share::Create, "a", calls.bell("a")));
        for who in ["deleted", "b"] {
            assert!(!turns.ask(Share::Create, who, calls.bell(who)));
        }
        turns.withdraw("deleted");
        turns.give_back("ns", Share::Create);
        assert_eq!(calls.take(), ["b"]);
    }

    /// It was deleted while it waited.
    #[tokio::test(start_paused = true)]
    async fn a_turn_is_not_kept_for_ever_for_one_that_does_not_come() {
        let (turns, calls) = turns(2);
        for who in ["a", "b"] {
            assert!(turns.ask(Share::Upkeep, who, calls.bell(who)));
        }
        for who in ["gone", "c"] {
            assert!(!turns.ask(Share::Upkeep, who, calls.bell(who)));
        }
        turns.give_back("ns", Share::Upkeep);
        assert_eq!(calls.take(), ["gone"]);
        assert!(!turns.ask(Share::Upkeep, "d", calls.bell("d")));
        tokio::time::advance(KEPT).await;
        assert!(turns.ask(Share::Upkeep, "d", calls.bell("d")));
        turns.give_back("ns", Share::Upkeep);
        assert_eq!(calls.take(), ["c"]);
    }

    /// 40 machines of one namespace whose creates hang, and one of another.
    #[tokio::test(start_paused = true)]
    async fn the_next_permit_is_the_one_of_the_namespace_that_has_the_fewest() {
        let (turns, calls) = turns(4);
        for n in 0..40 {
            let who = format!("many-{n}");
            assert_eq!(turns.ask_in("many", Share::Create, &who, calls.bell(&who)), n < 3);
        }
        for who in ["other-1", "other-2"] {
            assert!(!turns.ask_in("other", Share::Create, who, calls.bell(who)));
        }
        assert!(!turns.ask_in("third", Share::Create, "third", calls.bell("third")));
        let mut order = Vec::new();
        for _ in 0..4 {
            turns.give_back("many", Share::Create);
            for who in calls.take() {
                let namespace = who.split('-').next().unwrap();
                assert!(turns.ask_in(namespace, Share::Create, &who, calls.bell(&who)));
                order.push(who);
            }
        }
        assert_eq!(order, ["other-1", "third", "many-3", "many-4"]);
    }

    /// A call that hangs gives its permit back at its timeout only.
    #[test]
    fn of_a_driver_that_several_namespaces_share_no_namespace_holds_all_permits() {
        for (all, creates, permits) in [(2, 1, 1), (3, 1, 2), (4, 2, 3), (8, 6, 7), (32, 24, 28)] {
            let (turns, calls) = shared(all);
            let ask = |namespace: &str, share, n: u32| {
                let who = format!("{namespace}-{share:?}-{n}");
                turns.ask_in(namespace, share, &who, calls.bell(&who))
            };
            let creating = (0..all).filter(|n| ask("a", Share::Create, *n)).count();
            let upkeep = (0..all).filter(|n| ask("a", Share::Upkeep, *n)).count();
            assert_eq!((creating, creating + upkeep), (creates, permits), "of {all}");
            // The one of two that is left is not for creates.
            let share = if all == 2 { Share::Upkeep } else { Share::Create };
            assert!(ask("b", share, 0), "of {all}");
            turns.give_back("b", share);
            assert!(
                calls.take().is_empty(),
                "of {all}, the permit stays for the others"
            );
            turns.give_back("a", Share::Create);
            assert_eq!(calls.take().len(), 1, "of {all}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_waits_in_a_queue_that_is_not_served_is_called_once_to_say_so_and_keeps_its_place() {
        let (turns, calls) = turns(2);
        assert!(turns.ask(Share::Create, "hangs", calls.bell("hangs")));
        for who in ["a", "b"] {
            assert!(!turns.ask(Share::Create, who, calls.bell(who)));
        }
        turns.have_waits_shown(10);
        assert!(calls.take().is_empty() && !turns.is_shown("a"));
        tokio::time::advance(LATELY * 2).await;
        turns.have_waits_shown(10);
        assert_eq!(calls.take(), ["a", "b"]);
        for who in ["b", "a"] {
            assert!(!turns.ask(Share::Create, who, calls.bell(who)));
            assert!(turns.is_shown(who));
        }
        tokio::time::advance(SHOWN_AFTER).await;
        turns.have_waits_shown(10);
        assert!(calls.take().is_empty(), "it is said");
        turns.give_back("ns", Share::Create);
        assert_eq!(calls.take(), ["a"]);
        assert!(turns.ask(Share::Create, "a", calls.bell("a")));
        assert!(!turns.is_shown("a"));
    }

    /// A fleet that comes up at the pace of its driver costs no writes for its waits.
    #[tokio::test(start_paused = true)]
    async fn a_waiter_in_a_queue_that_is_served_within_minutes_is_not_called_to_say_so() {
        let (turns, calls) = turns(1);
        assert!(turns.ask(Share::Create, "first", calls.bell("first")));
        for n in 0..600 {
            let who = format!("next-{n}");
            assert!(!turns.ask(Share::Create, &who, calls.bell(&who)));
        }
        let shown = |turns: &Turns| {
            turns.have_waits_shown(1000);
            calls.take().len()
        };
        // Ten a second.
        for _ in 0..100 {
            tokio::time::advance(Duration::from_millis(100)).await;
            turns.give_back("ns", Share::Create);
            for who in calls.take() {
                assert!(turns.ask(Share::Create, &who, calls.bell(&who)));
            }
        }
        assert_eq!(shown(&turns), 0);
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!(shown(&turns), 500, "nothing was served for half a minute");
    }

    #[test]
    fn what_is_used_and_waited_for_is_counted_by_share() {
        let (turns, calls) = turns(2);
        for (share, who) in [
            (Share::Create, "a"),
            (Share::Create, "b"),
            (Share::Upkeep, "c"),
            (Share::Upkeep, "d"),
            (Share::Upkeep, "e"),
        ] {
            turns.ask(share, who, calls.bell(who));
        }
        let load = turns.load().map(|load| (load.in_use, load.waiting));
        assert_eq!(load, [(1, 2), (1, 1)]);
    }
}
