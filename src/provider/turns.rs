//! Turns: how much a driver works on at the same time, and who is next.
//!
//! Nobody waits for a turn in a worker of a controller, which is shared by the machines of all drivers: who gets none
//! leaves word, ends its reconcile, and is called when a turn is free. So a driver that hangs holds as many workers as it
//! has turns, and no more.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// A turn is kept this long for whoever was called: it may have been deleted meanwhile, and never come.
const KEPT: Duration = Duration::from_secs(5);

/// What a turn is wanted for. Look-ups and deletions come before creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Share {
    /// Anything but to make a VM. May use every turn.
    Upkeep,
    /// To make a VM, or to finish it. Leaves a reserve, so that creates that hang hold no deletion up.
    Create,
}

/// How whoever waits is called. It must not block.
pub type Bell = Box<dyn FnOnce() + Send>;

/// The turns of one driver.
#[derive(Debug)]
pub(super) struct Turns {
    /// Turns there are.
    all: u32,
    /// Of these, the ones that a create may use.
    for_creates: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    taken: u32,
    creating: u32,
    places: u64,
    waiting: BTreeMap<Place, Waiter>,
    /// Where everybody who waits stands.
    standing: HashMap<Arc<str>, Place>,
    /// Who was called and has not come yet.
    called: HashMap<Arc<str>, Called>,
}

/// A place in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    share: Share,
    number: u64,
}

struct Waiter {
    who: Arc<str>,
    bell: Bell,
}

#[derive(Debug)]
struct Called {
    place: Place,
    at: Instant,
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Waiter").field(&self.who).finish()
    }
}

impl Turns {
    /// So many turns. An eighth of them, and one at least, is kept from creates; a single turn is for everything.
    pub(super) fn new(all: NonZeroU32) -> Self {
        let all = all.get();
        let reserve = if all > 1 { (all / 8).max(1) } else { 0 };
        Self {
            all,
            for_creates: all - reserve,
            state: Mutex::default(),
        }
    }

    /// Turns there are.
    pub(super) fn all(&self) -> u32 {
        self.all
    }

    /// Takes a turn, or joins the line, in which everybody stands once; `bell` rings when it is worth to come again.
    pub(super) fn take_or_wait(&self, share: Share, who: &str, bell: Bell) -> bool {
        let mut state = self.lock();
        state.forget_late(Instant::now());
        let was_called = state.called.remove(who).map(|called| called.place);
        if self.has_room(&state, share) {
            state.leave_line(who);
            state.take(share);
            return true;
        }
        state.join_line(share, who, was_called, bell);
        false
    }

    /// Lets a turn that was taken for upkeep be used to make a VM, if one more create may be.
    pub(super) fn lend_to_create(&self) -> bool {
        let mut state = self.lock();
        let lent = state.creating + state.called_for(Share::Create) < self.for_creates;
        state.creating += u32::from(lent);
        lent
    }

    /// Gives a turn back, and calls whoever is next.
    pub(super) fn give_back(&self, share: Share) {
        let bells = {
            let mut state = self.lock();
            state.taken = state.taken.saturating_sub(1);
            if share == Share::Create {
                state.creating = state.creating.saturating_sub(1);
            }
            self.call_next(&mut state)
        };
        for bell in bells {
            bell();
        }
    }

    /// Takes out of the line whoever wants no turn any more, and calls whoever is next.
    pub(super) fn withdraw(&self, who: &str) {
        let bells = {
            let mut state = self.lock();
            state.leave_line(who);
            if state.called.remove(who).is_none() {
                return;
            }
            self.call_next(&mut state)
        };
        for bell in bells {
            bell();
        }
    }

    /// Whether there is a turn besides those that are kept for whoever was called.
    fn has_room(&self, state: &State, share: Share) -> bool {
        let kept = state.called_for(Share::Upkeep) + state.called_for(Share::Create);
        let is_free = state.taken + kept < self.all;
        match share {
            Share::Upkeep => is_free,
            Share::Create => is_free && state.creating + state.called_for(Share::Create) < self.for_creates,
        }
    }

    fn call_next(&self, state: &mut State) -> Vec<Bell> {
        let now = Instant::now();
        state.forget_late(now);
        let mut bells = Vec::new();
        while let Some(place) = [Share::Upkeep, Share::Create]
            .into_iter()
            .filter(|share| self.has_room(state, *share))
            .find_map(|share| state.first_of(share))
        {
            let Some(Waiter { who, bell }) = state.waiting.remove(&place) else {
                break;
            };
            state.standing.remove(&who);
            state.called.insert(who, Called { place, at: now });
            bells.push(bell);
        }
        bells
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take(&mut self, share: Share) {
        self.taken += 1;
        self.creating += u32::from(share == Share::Create);
    }

    fn forget_late(&mut self, now: Instant) {
        self.called
            .retain(|_, called| now.saturating_duration_since(called.at) < KEPT);
    }

    /// How many were called for this and have not come yet. There are never more of them than turns.
    fn called_for(&self, share: Share) -> u32 {
        let called = self.called.values().filter(|called| called.place.share == share);
        u32::try_from(called.count()).unwrap_or(u32::MAX)
    }

    fn first_of(&self, share: Share) -> Option<Place> {
        let first = Place { share, number: 0 };
        let (place, _) = self.waiting.range(first..).next()?;
        (place.share == share).then_some(*place)
    }

    fn leave_line(&mut self, who: &str) {
        if let Some(place) = self.standing.remove(who) {
            self.waiting.remove(&place);
        }
    }

    /// Who stands in the line keeps its place, and so does who was called and found the turn gone.
    fn join_line(&mut self, share: Share, who: &str, was_called: Option<Place>, bell: Bell) {
        let stood = self.standing.remove(who);
        if let Some(place) = stood {
            self.waiting.remove(&place);
        }
        let place = stood
            .or(was_called)
            .filter(|place| place.share == share)
            .unwrap_or_else(|| {
                self.places += 1;
                Place {
                    share,
                    number: self.places,
                }
            });
        let who: Arc<str> = who.into();
        self.standing.insert(Arc::clone(&who), place);
        self.waiting.insert(place, Waiter { who, bell });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who was called, in order.
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
        (Turns::new(NonZeroU32::new(all).unwrap()), Calls::default())
    }

    #[test]
    fn creates_leave_a_reserve_that_a_deletion_finds_free() {
        for (all, for_creates) in [(1, 1), (2, 1), (4, 3), (32, 28)] {
            let (turns, calls) = turns(all);
            let create = |n: u32| {
                let who = format!("create-{n}");
                turns.take_or_wait(Share::Create, &who, calls.bell(&who))
            };
            let taken = (0..all).filter(|n| create(*n)).count();
            assert_eq!(taken, for_creates, "of {all}");
            let deletion = turns.take_or_wait(Share::Upkeep, "delete", calls.bell("delete"));
            assert_eq!(deletion, all > 1, "of {all}");
        }
    }

    #[test]
    fn who_waits_is_called_in_turn_and_finds_the_turn_kept() {
        let (turns, calls) = turns(1);
        assert!(turns.take_or_wait(Share::Create, "a", calls.bell("a")));
        for who in ["b", "c", "b"] {
            assert!(!turns.take_or_wait(Share::Create, who, calls.bell(who)));
        }
        turns.give_back(Share::Create);
        assert_eq!(calls.take(), ["b"], "one turn, one call, and the first place");
        assert!(
            !turns.take_or_wait(Share::Create, "d", calls.bell("d")),
            "it is kept for b"
        );
        assert!(turns.take_or_wait(Share::Create, "b", calls.bell("b")));
        turns.give_back(Share::Create);
        assert_eq!(calls.take(), ["c"]);
    }

    #[test]
    fn a_deletion_is_called_before_the_creates_that_came_first() {
        let (turns, calls) = turns(2);
        for who in ["a", "b", "c"] {
            turns.take_or_wait(Share::Create, who, calls.bell(who));
        }
        assert!(turns.take_or_wait(Share::Upkeep, "x", calls.bell("x")));
        assert!(!turns.take_or_wait(Share::Upkeep, "y", calls.bell("y")));
        turns.give_back(Share::Create);
        assert_eq!(calls.take(), ["y"]);
        assert!(turns.take_or_wait(Share::Upkeep, "y", calls.bell("y")));
        turns.give_back(Share::Upkeep);
        assert_eq!(calls.take(), ["b"]);
    }

    #[test]
    fn a_look_up_that_leads_to_a_create_counts_as_one() {
        let (turns, calls) = turns(2);
        assert!(turns.take_or_wait(Share::Upkeep, "a", calls.bell("a")));
        assert!(turns.take_or_wait(Share::Upkeep, "b", calls.bell("b")));
        assert!(turns.lend_to_create());
        assert!(!turns.lend_to_create(), "the other turn is the reserve");
        turns.give_back(Share::Create);
        assert!(turns.lend_to_create());
    }

    /// A fleet that waited while nobody knew what the driver can do, and then has nothing to ask of it.
    #[tokio::test(start_paused = true)]
    async fn many_who_want_no_turn_any_more_do_not_hold_up_one_who_does() {
        let (turns, calls) = turns(4);
        for n in 0..4 {
            let who = format!("first-{n}");
            assert!(turns.take_or_wait(Share::Upkeep, &who, calls.bell(&who)));
        }
        for n in 0..300 {
            let who = format!("idle-{n}");
            assert!(!turns.take_or_wait(Share::Upkeep, &who, calls.bell(&who)));
        }
        assert!(!turns.take_or_wait(Share::Create, "create", calls.bell("create")));
        let start = Instant::now();
        for _ in 0..4 {
            turns.give_back(Share::Upkeep);
        }
        let mut called = Vec::new();
        while !called.iter().any(|who| who == "create") {
            called = calls.take();
            assert!(!called.is_empty(), "somebody holds a turn that nobody uses");
            for who in called.iter().filter(|who| who.starts_with("idle")) {
                turns.withdraw(who);
            }
        }
        assert!(turns.take_or_wait(Share::Create, "create", calls.bell("create")));
        assert_eq!(start.elapsed(), Duration::ZERO);
        let state = turns.lock();
        assert!(state.waiting.is_empty() && state.standing.is_empty() && state.called.is_empty());
    }

    #[test]
    fn who_withdraws_from_the_line_is_not_called() {
        let (turns, calls) = turns(1);
        assert!(turns.take_or_wait(Share::Create, "a", calls.bell("a")));
        for who in ["deleted", "b"] {
            assert!(!turns.take_or_wait(Share::Create, who, calls.bell(who)));
        }
        turns.withdraw("deleted");
        turns.give_back(Share::Create);
        assert_eq!(calls.take(), ["b"]);
    }

    /// It was deleted while it waited.
    #[tokio::test(start_paused = true)]
    async fn a_turn_is_not_kept_for_ever_for_one_that_does_not_come() {
        let (turns, calls) = turns(2);
        for who in ["a", "b"] {
            assert!(turns.take_or_wait(Share::Upkeep, who, calls.bell(who)));
        }
        for who in ["gone", "c"] {
            assert!(!turns.take_or_wait(Share::Upkeep, who, calls.bell(who)));
        }
        turns.give_back(Share::Upkeep);
        assert_eq!(calls.take(), ["gone"]);
        assert!(!turns.take_or_wait(Share::Upkeep, "d", calls.bell("d")));
        tokio::time::advance(KEPT).await;
        assert!(turns.take_or_wait(Share::Upkeep, "d", calls.bell("d")));
        turns.give_back(Share::Upkeep);
        assert_eq!(calls.take(), ["c"]);
    }
}
