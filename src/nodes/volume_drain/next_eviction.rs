//! Chooses the next pod of a Node to evict, and decides whether the eviction is due. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::record::Eviction;

/// A pod with persistent volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its claims, in its namespace.
    pub claims: Vec<String>,
    /// Its priority.
    pub priority: i32,
    /// Its termination grace period.
    pub grace_seconds: u32,
    /// Whether it is never evicted: the pod of a DaemonSet, a static pod, or a pod that Cluster API skips.
    pub is_excluded: bool,
    /// Whether it is being deleted.
    pub is_leaving: bool,
}

impl Pod {
    /// Namespace and name.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    fn is_to_be_evicted(&self) -> bool {
        !self.is_excluded && !self.is_leaving
    }
}

/// The next eviction of a drain.
#[derive(Debug, PartialEq, Eq)]
pub enum NextEviction<'a> {
    /// No pod with volumes is left to evict.
    Done(PreviousEviction),
    /// The volumes of the last evicted pod have not left the Node.
    Wait(Waiting),
    /// Evict the first of these pods whose eviction is allowed.
    Evict(Vec<&'a Pod>, PreviousEviction),
}

/// How the last eviction ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PreviousEviction {
    /// Its volumes have left, or there was no eviction.
    Left,
    /// The drain no longer waits for its volumes.
    TimedOut(Waiting),
}

/// The wait for the last evicted pod and its volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The evicted pod.
    pub pod: String,
    /// Whether the pod still exists.
    pub is_there: bool,
    /// The pod's volumes that are attached to the Node.
    pub volumes: Vec<String>,
    /// When the drain stops waiting.
    pub until: Timestamp,
    /// The number of pods left after it.
    pub left: usize,
}

/// Returns the next eviction on a Node with these attached volumes and these running pods with claims.
///
/// # Guarantees
/// No pod is evicted until the last evicted pod is gone and its volumes are detached, or until the time for
/// that is over (CTL-05).
pub fn next_eviction<'a>(
    attached: &[String],
    pods: &'a [Pod],
    last: Option<&Eviction>,
    timeout: Duration,
    now: Timestamp,
) -> NextEviction<'a> {
    let mut next: Vec<_> = pods.iter().filter(|pod| pod.is_to_be_evicted()).collect();
    // The most important pod goes first, and so is back first.
    next.sort_by_key(|pod| (-i64::from(pod.priority), &pod.namespace, &pod.name));
    // All other pods come before a pod whose eviction was refused.
    let refused = last.filter(|last| last.refused);
    if let Some(refused) = refused.and_then(|last| next.iter().position(|pod| pod.uid == last.uid)) {
        next.rotate_left(refused + 1);
    }
    let before = match last.map(|last| awaited(attached, pods, last, timeout)) {
        None | Some(None) => PreviousEviction::Left,
        Some(Some(waiting)) => {
            let waiting = Waiting {
                left: next.len(),
                ..waiting
            };
            if now < waiting.until {
                return NextEviction::Wait(waiting);
            }
            PreviousEviction::TimedOut(waiting)
        }
    };
    if next.is_empty() {
        NextEviction::Done(before)
    } else {
        NextEviction::Evict(next, before)
    }
}

/// The wait for the last eviction, if any. A recorded eviction that was not carried out is not awaited.
fn awaited(attached: &[String], pods: &[Pod], last: &Eviction, timeout: Duration) -> Option<Waiting> {
    let pod = pods.iter().find(|pod| pod.uid == last.uid);
    if pod.is_some_and(|pod| !pod.is_leaving) {
        return None;
    }
    let volumes: Vec<_> = last.awaited(attached).into_iter().map(str::to_owned).collect();
    if pod.is_none() && volumes.is_empty() {
        return None;
    }
    let time = SignedDuration::from_secs(last.grace_seconds.into())
        + SignedDuration::try_from(timeout).unwrap_or(SignedDuration::MAX);
    Some(Waiting {
        pod: last.pod.clone(),
        is_there: pod.is_some(),
        volumes,
        until: last.evicted_at.saturating_add(time).unwrap_or(Timestamp::MAX),
        left: 0,
    })
}

/// The claims of a pod that no other pod of the Node uses. Shared volumes stay attached.
pub fn claims_of_its_own<'a>(pod: &'a Pod, pods: &[Pod]) -> Vec<&'a str> {
    let is_shared = |claim: &String| {
        pods.iter().any(|other| {
            other.uid != pod.uid && other.namespace == pod.namespace && other.claims.contains(claim)
        })
    };
    pod.claims
        .iter()
        .filter(|claim| !is_shared(claim))
        .map(String::as_str)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_mins(1);

    fn pod(name: &str) -> Pod {
        Pod {
            namespace: "ns".to_owned(),
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            claims: vec![name.to_owned()],
            ..Pod::default()
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn evicted(name: &str, grace_seconds: u32, volumes: &[&str]) -> Eviction {
        Eviction::new(
            &format!("ns/{name}"),
            &format!("uid-{name}"),
            at(0),
            grace_seconds,
            volumes,
        )
    }

    fn names(next: &NextEviction<'_>) -> Vec<String> {
        match next {
            NextEviction::Evict(pods, _) => pods.iter().map(|pod| pod.name.clone()).collect(),
            NextEviction::Done(_) | NextEviction::Wait(_) => Vec::new(),
        }
    }

    #[test]
    fn pods_are_evicted_by_priority_without_excluded_and_leaving_ones() {
        let mut pods = ["b", "a", "first", "daemon", "gone"].map(pod);
        pods[2].priority = 10;
        pods[3].is_excluded = true;
        pods[4].is_leaving = true;
        let next = next_eviction(&[], &pods, None, TIMEOUT, at(0));
        assert_eq!(names(&next), ["first", "a", "b"]);
    }

    /// CTL-05
    #[test]
    fn the_next_pod_is_evicted_when_the_last_one_and_its_volume_are_gone() {
        let last = evicted("a", 10, &["v-a"]);
        let attached = ["v-a".to_owned(), "v-b".to_owned()];
        let mut leaving = pod("a");
        leaving.is_leaving = true;
        let waits = |attached: &[String], pods: &[Pod], now| {
            matches!(
                next_eviction(attached, pods, Some(&last), TIMEOUT, now),
                NextEviction::Wait(_)
            )
        };
        assert!(waits(&attached, &[leaving.clone(), pod("b")], at(1)));
        assert!(waits(&attached, &[pod("b")], at(1)), "attached");
        assert!(waits(&attached[1..], &[leaving, pod("b")], at(1)), "there");
        let pods = [pod("b")];
        let next = next_eviction(&attached[1..], &pods, Some(&last), TIMEOUT, at(1));
        assert_eq!(
            (names(&next), &next),
            (
                vec!["b".to_owned()],
                &NextEviction::Evict(vec![&pods[0]], PreviousEviction::Left)
            )
        );
        assert_eq!(
            next_eviction(&[], &[], Some(&last), TIMEOUT, at(1)),
            NextEviction::Done(PreviousEviction::Left)
        );
    }

    #[test]
    fn a_wait_for_a_volume_lasts_the_grace_period_plus_the_timeout() {
        let last = evicted("a", 10, &["v-a"]);
        let (attached, pods) = (["v-a".to_owned()], [pod("b")]);
        let NextEviction::Wait(waiting) = next_eviction(&attached, &pods, Some(&last), TIMEOUT, at(69))
        else {
            panic!("not waited for")
        };
        assert_eq!(
            (waiting.until, waiting.left, waiting.is_there),
            (at(70), 1, false)
        );
        let late = next_eviction(&attached, &pods, Some(&last), TIMEOUT, at(70));
        assert!(
            matches!(late, NextEviction::Evict(_, PreviousEviction::TimedOut(_))),
            "{late:?}"
        );
        let end = next_eviction(&attached, &[], Some(&last), TIMEOUT, at(70));
        assert!(
            matches!(end, NextEviction::Done(PreviousEviction::TimedOut(_))),
            "{end:?}"
        );
    }

    /// The process was killed between the record and the eviction.
    #[test]
    fn an_eviction_that_was_written_down_and_not_made_is_made() {
        let (last, pods) = (evicted("a", 0, &["v-a"]), ["a", "b"].map(pod));
        let next = next_eviction(&["v-a".to_owned()], &pods, Some(&last), TIMEOUT, at(1));
        assert_eq!(names(&next), ["a", "b"]);
    }

    /// Pods whose evictions are always refused must not block the pods after them.
    #[test]
    fn an_eviction_that_was_refused_is_tried_again_after_all_others() {
        let pods = ["a", "b", "c"].map(pod);
        for (last, expected) in [
            ("a", ["b", "c", "a"]),
            ("b", ["c", "a", "b"]),
            ("c", ["a", "b", "c"]),
        ] {
            let last = evicted(last, 0, &["v-b"]).refused();
            let next = next_eviction(&["v-b".to_owned()], &pods, Some(&last), TIMEOUT, at(1));
            assert_eq!(names(&next), expected);
        }
    }

    #[test]
    fn a_claim_that_another_pod_of_the_node_uses_is_not_waited_for() {
        let (mut one, mut two) = (pod("one"), pod("two"));
        one.claims = vec!["shared".to_owned(), "own".to_owned()];
        two.claims = vec!["shared".to_owned()];
        let pods = [one.clone(), two.clone()];
        assert_eq!(claims_of_its_own(&one, &pods), ["own"]);
        two.namespace = "other".to_owned();
        assert_eq!(claims_of_its_own(&one, &[one.clone(), two]), ["shared", "own"]);
    }
}
