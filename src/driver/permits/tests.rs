use std::time::Duration;

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
    /// Asks for a permit in the only namespace.
    fn try_acquire(&self, priority: Priority, key: &str, waker: Waker) -> bool {
        self.try_acquire_in("ns", priority, key, waker)
    }

    fn try_acquire_in(&self, namespace: &str, priority: Priority, key: &str, waker: Waker) -> bool {
        self.acquire_or_queue(priority, key, namespace, waker).is_some()
    }

    fn exchange(&self, key: &str, woken: &WokenKeys) -> bool {
        self.exchange_for_create(key, "ns", woken.waker(key))
    }
}

/// Lets time pass, so that a reconcile begins after another.
async fn moment() -> Instant {
    tokio::time::advance(Duration::from_millis(1)).await;
    Instant::now()
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
    for key in ["a", "b"] {
        assert!(permits.try_acquire(Priority::Upkeep, key, woken.waker(key)));
    }
    assert!(permits.exchange("a", &woken));
    assert!(!permits.exchange("b", &woken), "the other permit is the reserve");
    permits.release("ns", Priority::Create);
    assert_eq!(woken.take(), ["b"]);
    assert!(
        permits.exchange("b", &woken),
        "the permit that is set aside for it"
    );
    assert_eq!(
        permits.count().map(|count| (count.in_use, count.waiting)),
        [(0, 0), (1, 0)]
    );
}

/// The previous create may have made the VM. In a long queue, the machine would be queued at the end again
/// and again.
#[test]
fn one_that_is_woken_to_make_a_vm_looks_it_up_with_that_permit() {
    let (permits, woken) = permits(4);
    for key in ["a", "b", "c", "d"] {
        let is_free = key != "d";
        assert_eq!(
            permits.try_acquire(Priority::Create, key, woken.waker(key)),
            is_free
        );
    }
    permits.release("ns", Priority::Create);
    assert_eq!(woken.take(), ["d"]);
    let look_up = permits.acquire_or_queue(Priority::Upkeep, "d", "ns", woken.waker("d"));
    assert_eq!(look_up, Some(Priority::Create));
    assert!(!permits.try_acquire(Priority::Create, "e", woken.waker("e")));
}

/// After a change of its Machine, the look-up has to confirm again that there is no VM.
#[tokio::test(start_paused = true)]
async fn one_that_waits_to_make_a_vm_and_looks_it_up_keeps_its_place() {
    let (permits, woken) = permits(4);
    for key in ["a", "b", "c", "d", "e"] {
        permits.try_acquire(Priority::Create, key, woken.waker(key));
    }
    let began = moment().await;
    assert!(permits.try_acquire(Priority::Upkeep, "d", woken.waker("d")));
    assert!(!permits.exchange("d", &woken));
    permits.release("ns", Priority::Upkeep);
    permits.leave_unless_asked_since("d", began);
    permits.release("ns", Priority::Create);
    assert_eq!(woken.take(), ["d"]);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_does_not_wait_at_the_place_of_a_create() {
    let (permits, woken) = permits(2);
    for key in ["a", "b", "c"] {
        permits.try_acquire(Priority::Create, key, woken.waker(key));
    }
    assert!(permits.try_acquire(Priority::Upkeep, "x", woken.waker("x")));
    assert!(!permits.try_acquire(Priority::Upkeep, "c", woken.waker("c")));
    permits.release("ns", Priority::Upkeep);
    assert_eq!(woken.take(), ["c"]);
    assert!(permits.try_acquire(Priority::Upkeep, "c", woken.waker("c")));
}

/// A fleet that was paused while it waited.
#[tokio::test(start_paused = true)]
async fn waiters_that_need_no_permit_any_more_do_not_delay_others() {
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
    let start = moment().await;
    for _ in 0..4 {
        permits.release("ns", Priority::Upkeep);
    }
    let mut keys = Vec::new();
    while !keys.iter().any(|key| key == "create") {
        keys = woken.take();
        assert!(!keys.is_empty(), "a permit is held and not used");
        for key in keys.iter().filter(|key| key.starts_with("idle")) {
            permits.leave_unless_asked_since(key, start);
        }
    }
    assert!(permits.try_acquire(Priority::Create, "create", woken.waker("create")));
    assert_eq!(start.elapsed(), Duration::ZERO);
    let state = permits.state.lock();
    assert!(state.waiters.is_empty() && state.held.keys().eq([&Box::from("ns")]));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_does_not_ask_again_is_not_woken() {
    let (permits, woken) = permits(1);
    assert!(permits.try_acquire(Priority::Create, "a", woken.waker("a")));
    for key in ["idle", "deleted", "b"] {
        assert!(!permits.try_acquire(Priority::Create, key, woken.waker(key)));
    }
    permits.leave_unless_asked_since("idle", moment().await);
    permits.forget("deleted");
    permits.release("ns", Priority::Create);
    assert_eq!(woken.take(), ["b"]);
}

/// The permit may be free while its reconcile still publishes that it waits.
#[tokio::test(start_paused = true)]
async fn a_waiter_keeps_the_permit_reserved_during_its_reconcile() {
    let (permits, woken) = permits(1);
    assert!(permits.try_acquire(Priority::Create, "a", woken.waker("a")));
    let began = moment().await;
    assert!(!permits.try_acquire(Priority::Create, "b", woken.waker("b")));
    permits.release("ns", Priority::Create);
    permits.leave_unless_asked_since("b", began);
    assert_eq!(woken.take(), ["b"]);
    assert!(!permits.try_acquire(Priority::Create, "c", woken.waker("c")));
    assert!(permits.try_acquire(Priority::Create, "b", woken.waker("b")));
}

/// The waiter was deleted.
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
    tokio::time::advance(CLAIMED_WITHIN).await;
    permits.tick();
    assert_eq!(woken.take(), ["c"]);
}

/// The creates of 40 machines of one namespace hang, and one machine is of another namespace.
#[tokio::test(start_paused = true)]
async fn namespaces_take_turns() {
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
    assert_eq!(order, ["many-3", "other-1", "third", "many-4"]);
}

/// A hanging call returns its permit only at its timeout.
#[test]
fn no_namespace_holds_all_permits_of_a_shared_driver() {
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
        // The last of two permits is not for creates.
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
async fn a_long_wait_is_reported_once_and_keeps_its_place() {
    let (permits, woken) = permits(2);
    assert!(permits.try_acquire(Priority::Create, "hangs", woken.waker("hangs")));
    for key in ["a", "b"] {
        assert!(!permits.try_acquire(Priority::Create, key, woken.waker(key)));
    }
    permits.tick();
    assert!(woken.take().is_empty() && !permits.should_report("a"));
    tokio::time::advance(REPORTED_AFTER).await;
    permits.tick();
    let mut keys = woken.take();
    keys.sort_unstable();
    assert_eq!(keys, ["a", "b"]);
    for key in ["b", "a"] {
        assert!(!permits.try_acquire(Priority::Create, key, woken.waker(key)));
        assert!(permits.should_report(key));
    }
    tokio::time::advance(REPORTED_AFTER).await;
    permits.tick();
    assert!(woken.take().is_empty(), "it is said");
    permits.release("ns", Priority::Create);
    assert_eq!(woken.take(), ["a"]);
    assert!(permits.try_acquire(Priority::Create, "a", woken.waker("a")));
    assert!(!permits.should_report("a"));
}

/// A fleet that starts at the pace of its driver hardly causes writes for its waits.
#[tokio::test(start_paused = true)]
async fn of_many_long_waits_a_few_are_reported_at_once() {
    let (permits, woken) = permits(1);
    assert!(permits.try_acquire(Priority::Create, "first", woken.waker("first")));
    for n in 0..20_000 {
        let key = format!("{n}");
        assert!(!permits.try_acquire(Priority::Create, &key, woken.waker(&key)));
    }
    let mut reported = Vec::new();
    // Ten a second, for two minutes.
    for _ in 0..120 {
        for _ in 0..10 {
            tokio::time::advance(Duration::from_millis(100)).await;
            permits.release("ns", Priority::Create);
            let [key] = &woken.take()[..] else {
                panic!("one is next")
            };
            assert!(permits.try_acquire(Priority::Create, key, woken.waker(key)));
        }
        permits.tick();
        let keys = woken.take();
        for key in &keys {
            assert!(!permits.try_acquire(Priority::Create, key, woken.waker(key)));
        }
        reported.push(keys.len());
    }
    assert_eq!(reported[..9].iter().sum::<usize>(), 0);
    assert!(reported[9..].iter().all(|count| *count == REPORTED_AT_ONCE));
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
    let load = permits.count().map(|count| (count.in_use, count.waiting));
    assert_eq!(load, [(1, 2), (1, 1)]);
}

/// The permit was set aside for another, which is gone.
#[test]
fn a_waiter_with_a_free_permit_leaves_the_queue() {
    let (permits, woken) = permits(1);
    assert!(permits.try_acquire(Priority::Create, "a", woken.waker("a")));
    for key in ["b", "c"] {
        assert!(!permits.try_acquire(Priority::Create, key, woken.waker(key)));
    }
    permits.release("ns", Priority::Create);
    assert_eq!(woken.take(), ["b"]);
    permits.forget("b");
    assert_eq!(woken.take(), ["c"]);
    assert!(permits.try_acquire(Priority::Create, "c", woken.waker("c")));
    permits.release("ns", Priority::Create);
    assert!(woken.take().is_empty(), "it has had its permit");
}
