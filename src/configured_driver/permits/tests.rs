use std::time::Duration;

use super::queue::{REPORTED_AFTER, RESERVED_FOR};
use super::rate::RATE_WINDOW;
use super::*;

/// The waiters that were woken, in order.
#[derive(Clone, Default)]
struct WokenKeys(Arc<Mutex<Vec<String>>>);

impl WokenKeys {
    fn waker(&self, key: &str) -> Waker {
        let (woken, key) = (self.clone(), key.to_owned());
        Waker::new(move || woken.0.lock().push(key))
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

fn permits(all: u32) -> (Permits, WokenKeys) {
    let permits = Permits::new(NonZeroU32::new(all).unwrap(), false);
    (permits, WokenKeys::default())
}

/// Permits of a driver that several namespaces share.
fn shared(all: u32) -> (Permits, WokenKeys) {
    let permits = Permits::new(NonZeroU32::new(all).unwrap(), true);
    (permits, WokenKeys::default())
}

impl Permits {
    /// Asks for one in the name of the only namespace.
    fn try_acquire(&self, priority: Priority, key: &str, waker: Waker) -> bool {
        self.try_acquire_in("ns", priority, key, waker)
    }

    fn try_acquire_in(&self, namespace: &str, priority: Priority, key: &str, waker: Waker) -> bool {
        self.acquire_or_queue(priority, Requester::new(key, namespace), waker)
            .is_some()
    }
}

#[test]
fn creates_leave_a_reserve_that_a_deletion_finds_free() {
    for (all, for_creates) in [(1, 1), (2, 1), (4, 3), (32, 28)] {
        let (permits, woken) = permits(all);
        let create = |n: u32| {
            let key = format!("create-{n}");
            permits.try_acquire(Priority::Create, &key, woken.waker(&key))
        };
        let taken = (0..all).filter(|n| create(*n)).count();
        assert_eq!(taken, for_creates, "of {all}");
        let deletion = permits.try_acquire(Priority::Upkeep, "delete", woken.waker("delete"));
        assert_eq!(deletion, all > 1, "of {all}");
    }
}

#[test]
fn a_waiter_is_woken_in_order_and_finds_the_permit_reserved() {
    let (permits, woken) = permits(1);
    assert!(permits.try_acquire(Priority::Create, "a", woken.waker("a")));
    for key in ["b", "c", "b"] {
        assert!(!permits.try_acquire(Priority::Create, key, woken.waker(key)));
    }
    permits.release("ns", Priority::Create);
    assert_eq!(woken.take(), ["b"], "one permit, one call, and the first place");
    assert!(
        !permits.try_acquire(Priority::Create, "d", woken.waker("d")),
        "it is reserved for b"
    );
    assert!(permits.try_acquire(Priority::Create, "b", woken.waker("b")));
    permits.release("ns", Priority::Create);
    assert_eq!(woken.take(), ["c"]);
}

#[test]
fn a_deletion_is_woken_before_the_creates_that_came_first() {
    let (permits, woken) = permits(2);
    for key in ["a", "b", "c"] {
        permits.try_acquire(Priority::Create, key, woken.waker(key));
    }
    assert!(permits.try_acquire(Priority::Upkeep, "x", woken.waker("x")));
    assert!(!permits.try_acquire(Priority::Upkeep, "y", woken.waker("y")));
    permits.release("ns", Priority::Create);
    assert_eq!(woken.take(), ["y"]);
    assert!(permits.try_acquire(Priority::Upkeep, "y", woken.waker("y")));
    permits.release("ns", Priority::Upkeep);
    assert_eq!(woken.take(), ["b"]);
}

#[test]
fn a_look_up_that_leads_to_a_create_counts_as_one() {
    let (permits, woken) = permits(2);
    assert!(permits.try_acquire(Priority::Upkeep, "a", woken.waker("a")));
    assert!(permits.try_acquire(Priority::Upkeep, "b", woken.waker("b")));
    assert!(permits.promote_to_create("a", "ns"));
    assert!(
        !permits.promote_to_create("b", "ns"),
        "the other permit is the reserve"
    );
    permits.release("ns", Priority::Create);
    assert!(permits.promote_to_create("b", "ns"));
}

/// Its create before may have made the VM. In a long queue it would come to the end again and again.
#[test]
fn one_that_is_woken_to_make_a_vm_and_looks_it_up_first_may_make_it_with_that_permit() {
    let (permits, woken) = permits(4);
    for key in ["a", "b", "c"] {
        assert!(permits.try_acquire(Priority::Create, key, woken.waker(key)));
    }
    for key in ["d", "e"] {
        assert!(!permits.try_acquire(Priority::Create, key, woken.waker(key)));
    }
    let look_up = |key: &str| {
        let requester = Requester::new(key, "ns");
        permits.acquire_or_queue(Priority::Upkeep, requester, woken.waker(key))
    };
    permits.begin("d");
    assert_eq!(look_up("d"), Some(Priority::Upkeep), "it was not woken");
    permits.release("ns", Priority::Upkeep);
    permits.end("d");
    permits.release("ns", Priority::Create);
    assert_eq!(woken.take(), ["e"]);
    assert_eq!(look_up("e"), Some(Priority::Create));
    assert!(!permits.try_acquire(Priority::Create, "f", woken.waker("f")));
}

/// Of what wakes it, such as a change of its Machine, the look-up has to say again that there is no VM.
#[test]
fn one_that_waits_to_make_a_vm_and_looks_it_up_meanwhile_keeps_its_place() {
    let (permits, woken) = permits(4);
    for key in ["a", "b", "c"] {
        assert!(permits.try_acquire(Priority::Create, key, woken.waker(key)));
    }
    for key in ["d", "e", "f"] {
        assert!(!permits.try_acquire(Priority::Create, key, woken.waker(key)));
    }
    permits.begin("d");
    assert!(permits.try_acquire(Priority::Upkeep, "d", woken.waker("d")));
    permits.release("ns", Priority::Create);
    assert_eq!(woken.take(), ["e"], "d has a permit");
    assert!(!permits.promote_to_create("d", "ns"));
    assert!(!permits.try_acquire(Priority::Create, "d", woken.waker("d")));
    permits.release("ns", Priority::Upkeep);
    permits.end("d");
    assert!(permits.try_acquire(Priority::Create, "e", woken.waker("e")));
    permits.release("ns", Priority::Create);
    assert_eq!(woken.take(), ["d"]);
}

/// A driver that has no permit for the look-up either.
#[test]
fn one_that_waits_to_make_a_vm_keeps_its_place_while_it_waits_to_look_it_up() {
    let (permits, woken) = permits(4);
    for key in ["a", "b", "c"] {
        assert!(permits.try_acquire(Priority::Create, key, woken.waker(key)));
    }
    assert!(permits.try_acquire(Priority::Upkeep, "x", woken.waker("x")));
    for key in ["d", "e"] {
        assert!(!permits.try_acquire(Priority::Create, key, woken.waker(key)));
    }
    permits.begin("d");
    assert!(!permits.try_acquire(Priority::Upkeep, "d", woken.waker("d")));
    permits.end("d");
    permits.release("ns", Priority::Upkeep);
    assert_eq!(woken.take(), ["d"]);
    permits.begin("d");
    assert!(permits.try_acquire(Priority::Upkeep, "d", woken.waker("d")));
    assert!(!permits.promote_to_create("d", "ns"));
    assert!(!permits.try_acquire(Priority::Create, "d", woken.waker("d")));
    permits.release("ns", Priority::Upkeep);
    permits.end("d");
    permits.release("ns", Priority::Create);
    assert_eq!(woken.take(), ["d"]);
}

/// What was to be looked up is known by now.
#[test]
fn one_that_waits_to_look_its_vm_up_and_may_create_it_at_once_takes_its_place_back() {
    let (permits, woken) = permits(4);
    for key in ["a", "b", "c"] {
        assert!(permits.try_acquire(Priority::Create, key, woken.waker(key)));
    }
    assert!(permits.try_acquire(Priority::Upkeep, "x", woken.waker("x")));
    for key in ["d", "e"] {
        assert!(!permits.try_acquire(Priority::Create, key, woken.waker(key)));
    }
    assert!(!permits.try_acquire(Priority::Upkeep, "d", woken.waker("d")));
    assert!(!permits.try_acquire(Priority::Create, "d", woken.waker("d")));
    assert!(permits.queue.lock().set_aside.is_empty());
    permits.release("ns", Priority::Create);
    assert_eq!(woken.take(), ["d"]);
}

/// Its object may have been deleted.
#[test]
fn a_place_for_a_create_that_is_not_asked_for_again_is_forgotten() {
    let (permits, woken) = permits(4);
    for key in ["a", "b", "c"] {
        assert!(permits.try_acquire(Priority::Create, key, woken.waker(key)));
    }
    assert!(!permits.try_acquire(Priority::Create, "d", woken.waker("d")));
    permits.begin("d");
    assert!(permits.try_acquire(Priority::Upkeep, "d", woken.waker("d")));
    permits.release("ns", Priority::Upkeep);
    permits.end("d");
    permits.release("ns", Priority::Create);
    assert!(woken.take().is_empty());
    assert!(permits.queue.lock().set_aside.is_empty());
}

/// A fleet that waited while it was not known what the driver can do, and then has nothing to ask of it.
#[tokio::test(start_paused = true)]
async fn many_waiters_that_want_no_permit_any_more_do_not_hold_up_one_that_does() {
    let (permits, woken) = permits(4);
    for n in 0..4 {
        let key = format!("first-{n}");
        assert!(permits.try_acquire(Priority::Upkeep, &key, woken.waker(&key)));
    }
    for n in 0..300 {
        let key = format!("idle-{n}");
        assert!(!permits.try_acquire(Priority::Upkeep, &key, woken.waker(&key)));
    }
    assert!(!permits.try_acquire(Priority::Create, "create", woken.waker("create")));
    let start = Instant::now();
    for _ in 0..4 {
        permits.release("ns", Priority::Upkeep);
    }
    let mut keys = Vec::new();
    while !keys.iter().any(|key| key == "create") {
        keys = woken.take();
        assert!(!keys.is_empty(), "a permit is held and not used");
        for key in keys.iter().filter(|key| key.starts_with("idle")) {
            permits.begin(key);
            permits.end(key);
        }
    }
    assert!(permits.try_acquire(Priority::Create, "create", woken.waker("create")));
    assert_eq!(start.elapsed(), Duration::ZERO);
    let state = permits.queue.lock();
    assert!(
        state.queued.is_empty() && state.reservations.is_empty() && state.flows.keys().eq([&Arc::from("ns")])
    );
}

#[test]
fn a_waiter_that_does_not_ask_again_is_not_woken() {
    let (permits, woken) = permits(1);
    assert!(permits.try_acquire(Priority::Create, "a", woken.waker("a")));
    for key in ["deleted", "b"] {
        assert!(!permits.try_acquire(Priority::Create, key, woken.waker(key)));
    }
    permits.begin("deleted");
    permits.end("deleted");
    permits.release("ns", Priority::Create);
    assert_eq!(woken.take(), ["b"]);
}

/// The permit may be reserved while its reconcile still publishes that it waits.
#[test]
fn a_waiter_that_asked_in_its_reconcile_and_is_woken_before_that_ends_keeps_the_reserved_permit() {
    let (permits, woken) = permits(1);
    assert!(permits.try_acquire(Priority::Create, "a", woken.waker("a")));
    permits.begin("b");
    assert!(!permits.try_acquire(Priority::Create, "b", woken.waker("b")));
    permits.release("ns", Priority::Create);
    permits.end("b");
    assert_eq!(woken.take(), ["b"]);
    assert!(!permits.try_acquire(Priority::Create, "c", woken.waker("c")));
    permits.begin("b");
    assert!(permits.try_acquire(Priority::Create, "b", woken.waker("b")));
    permits.end("b");
}

/// It was deleted while it waited.
#[tokio::test(start_paused = true)]
async fn a_permit_is_not_reserved_for_ever_for_one_that_does_not_come() {
    let (permits, woken) = permits(2);
    for key in ["a", "b"] {
        assert!(permits.try_acquire(Priority::Upkeep, key, woken.waker(key)));
    }
    for key in ["gone", "c"] {
        assert!(!permits.try_acquire(Priority::Upkeep, key, woken.waker(key)));
    }
    permits.release("ns", Priority::Upkeep);
    assert_eq!(woken.take(), ["gone"]);
    assert!(!permits.try_acquire(Priority::Upkeep, "d", woken.waker("d")));
    tokio::time::advance(RESERVED_FOR).await;
    assert!(permits.try_acquire(Priority::Upkeep, "d", woken.waker("d")));
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
            permits.try_acquire_in("many", Priority::Create, &key, woken.waker(&key)),
            n < 3
        );
    }
    for key in ["other-1", "other-2"] {
        assert!(!permits.try_acquire_in("other", Priority::Create, key, woken.waker(key)));
    }
    assert!(!permits.try_acquire_in("third", Priority::Create, "third", woken.waker("third")));
    let mut order = Vec::new();
    for _ in 0..4 {
        permits.release("many", Priority::Create);
        for key in woken.take() {
            let namespace = key.split('-').next().unwrap();
            assert!(permits.try_acquire_in(namespace, Priority::Create, &key, woken.waker(&key)));
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
        let try_acquire = |namespace: &str, priority, n: u32| {
            let key = format!("{namespace}-{priority:?}-{n}");
            permits.try_acquire_in(namespace, priority, &key, woken.waker(&key))
        };
        let creating = (0..all)
            .filter(|n| try_acquire("a", Priority::Create, *n))
            .count();
        let upkeep = (0..all)
            .filter(|n| try_acquire("a", Priority::Upkeep, *n))
            .count();
        assert_eq!((creating, creating + upkeep), (creates, held), "of {all}");
        // The one of two that is left is not for creates.
        let priority = if all == 2 {
            Priority::Upkeep
        } else {
            Priority::Create
        };
        assert!(try_acquire("b", priority, 0), "of {all}");
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
async fn one_that_waits_in_a_queue_that_is_not_served_is_woken_once_to_say_so_and_keeps_its_place() {
    let (permits, woken) = permits(2);
    assert!(permits.try_acquire(Priority::Create, "hangs", woken.waker("hangs")));
    for key in ["a", "b"] {
        assert!(!permits.try_acquire(Priority::Create, key, woken.waker(key)));
    }
    permits.wake_to_report(10);
    assert!(woken.take().is_empty() && !permits.should_report("a"));
    tokio::time::advance(RATE_WINDOW * 2).await;
    permits.wake_to_report(10);
    assert_eq!(woken.take(), ["a", "b"]);
    for key in ["b", "a"] {
        assert!(!permits.try_acquire(Priority::Create, key, woken.waker(key)));
        assert!(permits.should_report(key));
    }
    tokio::time::advance(REPORTED_AFTER).await;
    permits.wake_to_report(10);
    assert!(woken.take().is_empty(), "it is said");
    permits.release("ns", Priority::Create);
    assert_eq!(woken.take(), ["a"]);
    assert!(permits.try_acquire(Priority::Create, "a", woken.waker("a")));
    assert!(!permits.should_report("a"));
}

/// A fleet that comes up at the pace of its driver costs no writes for its waits.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_served_within_minutes_is_not_woken_to_say_so() {
    let (permits, woken) = permits(1);
    assert!(permits.try_acquire(Priority::Create, "first", woken.waker("first")));
    for n in 0..600 {
        let key = format!("next-{n}");
        assert!(!permits.try_acquire(Priority::Create, &key, woken.waker(&key)));
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
            assert!(permits.try_acquire(Priority::Create, &key, woken.waker(&key)));
        }
    }
    assert_eq!(is_reported(&permits), 0);
    tokio::time::advance(Duration::from_secs(30)).await;
    assert_eq!(is_reported(&permits), 500, "nothing was served for half a minute");
}

/// The API server is what a large fleet waits for: what is reported of waits is a few of its writes.
#[tokio::test(start_paused = true)]
async fn of_a_long_queue_that_is_served_fast_a_few_far_back_are_woken_to_say_so() {
    const WAITERS: usize = 20_000;
    let (permits, woken) = permits(1);
    assert!(permits.try_acquire(Priority::Create, "first", woken.waker("first")));
    for n in 0..WAITERS {
        let key = format!("{n}");
        assert!(!permits.try_acquire(Priority::Create, &key, woken.waker(&key)));
    }
    let mut granted = 0;
    // Fifty a second, for a minute: 15,000 more are served within five minutes.
    for _ in 0..60 {
        for _ in 0..50 {
            tokio::time::advance(Duration::from_millis(20)).await;
            permits.release("ns", Priority::Create);
            let keys = woken.take();
            assert_eq!(keys.len(), 1, "{keys:?}");
            assert!(permits.try_acquire(Priority::Create, &keys[0], woken.waker(&keys[0])));
            granted += 1;
        }
        permits.wake_to_report(20);
        for key in woken.take() {
            let position: usize = key.parse::<usize>().unwrap() - granted;
            assert!((14_000..WAITERS).contains(&position), "{position}");
            assert!(!permits.try_acquire(Priority::Create, &key, woken.waker(&key)));
        }
    }
    let reported = (0..WAITERS).filter(|n| permits.should_report(&n.to_string()));
    assert!((1..=60).contains(&reported.count()));
}

/// Many namespaces are served as fast together as one is.
#[tokio::test(start_paused = true)]
async fn of_many_namespaces_served_fast_together_a_few_are_woken_and_first_those_that_waited_longest() {
    let (permits, woken) = permits(1);
    assert!(permits.try_acquire(Priority::Create, "first", woken.waker("first")));
    let mut namespace_of = std::collections::HashMap::from([("first".to_owned(), "ns".to_owned())]);
    for n in 0..30 {
        // The last namespaces came first.
        let namespace = format!("ns-{:02}", 29 - n);
        for m in 0..1000 {
            let key = format!("{namespace}/{m}");
            assert!(!permits.try_acquire_in(&namespace, Priority::Create, &key, woken.waker(&key)));
            namespace_of.insert(key, namespace.clone());
        }
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    let mut holder = "first".to_owned();
    // Sixty a second, two for each namespace.
    for second in 0..30 {
        for _ in 0..60 {
            tokio::time::advance(Duration::from_millis(16)).await;
            permits.release(&namespace_of[&holder], Priority::Create);
            let [next] = &woken.take()[..] else {
                panic!("one is next")
            };
            assert!(permits.try_acquire_in(&namespace_of[next], Priority::Create, next, woken.waker(next)));
            next.clone_into(&mut holder);
        }
        permits.wake_to_report(20);
        let reported = woken.take();
        assert!(reported.len() <= 1, "{} in a second", reported.len());
        if second >= 6 {
            assert_eq!(namespace_of[&reported[0]], "ns-29", "it has waited longest");
        }
        for key in reported {
            assert!(!permits.try_acquire_in(&namespace_of[&key], Priority::Create, &key, woken.waker(&key)));
        }
    }
}

/// What it shows is wrong by now.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_shows_another_wait_is_woken_to_say_so_however_fast_the_queue_is_served() {
    let (permits, woken) = permits(1);
    assert!(permits.try_acquire(Priority::Create, "first", woken.waker("first")));
    for n in 0..10_000 {
        let key = format!("{n}");
        let requester = Requester {
            shows_another_wait: n % 2 == 0,
            ..Requester::new(&key, "ns")
        };
        assert!(
            permits
                .acquire_or_queue(Priority::Create, requester, woken.waker(&key))
                .is_none()
        );
    }
    // Twenty a second, for ten.
    for _ in 0..200 {
        tokio::time::advance(Duration::from_millis(50)).await;
        permits.release("ns", Priority::Create);
        for key in woken.take() {
            assert!(permits.try_acquire(Priority::Create, &key, woken.waker(&key)));
        }
    }
    permits.wake_to_report(20);
    let reported: Vec<usize> = woken.take().iter().map(|key| key.parse().unwrap()).collect();
    assert_eq!(reported.len(), 20);
    let others = reported.iter().filter(|number| *number % 2 == 1).count();
    assert_eq!(others, 0, "{reported:?}");
    assert!(reported.iter().all(|number| *number > 6000), "{reported:?}");
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
        permits.try_acquire(priority, key, woken.waker(key));
    }
    let load = permits.load().map(|load| (load.in_use, load.waiting));
    assert_eq!(load, [(1, 2), (1, 1)]);
}

/// The permit was reserved for another, which did not come.
#[tokio::test(start_paused = true)]
async fn a_waiter_with_a_free_permit_leaves_the_queue() {
    let (permits, woken) = permits(1);
    assert!(permits.try_acquire(Priority::Create, "a", woken.waker("a")));
    for key in ["b", "c"] {
        assert!(!permits.try_acquire(Priority::Create, key, woken.waker(key)));
    }
    permits.release("ns", Priority::Create);
    assert_eq!(woken.take(), ["b"]);
    tokio::time::advance(RESERVED_FOR).await;
    assert!(permits.try_acquire(Priority::Create, "c", woken.waker("c")));
    permits.release("ns", Priority::Create);
    assert!(woken.take().is_empty(), "it has had its permit");
}
