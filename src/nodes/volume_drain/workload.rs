//! The Node and its pods in the workload cluster. All reads are bounded, because the workload cluster is not
//! trusted.

mod node;
mod pods;
mod volumes;

use std::time::Duration;

use http::StatusCode;
use kube::api::PostParams;
use kube::core::Request;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use self::node::{cordon, node};
use self::pods::pods;
use self::volumes::specs;
use super::next_eviction::{NextEviction, Pod, PreviousEviction, Waiting, next_eviction};
use super::plan::DrainTarget;
use crate::apiserver::leadership::Leadership;
use crate::nodes::workload_cluster::{Answer, Connection, Unreachable};

/// The most pods that are tried in one reconcile while budgets forbid their eviction.
const MAX_TRIED: usize = 32;
/// The fewest pods that are tried: the most important pod, and two others.
const MIN_TRIED: usize = 3;
/// How long the pods of one reconcile are tried. A connection that takes its whole time counts as an outage,
/// but a slow API server is not down.
const MAX_TRYING: Duration = Duration::from_secs(3);
/// How long the same pods are tried.
const SECONDS_A_ROUND: i64 = 10;
/// The most characters of the API server's message about an eviction in a message.
const MAX_SHOWN: usize = 256;

/// The state of a Node, and the next step.
#[derive(Debug)]
pub enum DrainObservation {
    /// The Node does not exist.
    NoNode,
    /// The Node belongs to another machine, with this providerID.
    ForeignNode(Option<String>),
    /// The kubelet does not report, so no pod would end, and no volume would be detached.
    SilentNode,
    /// The Node changed in the meantime, or this replica no longer leads.
    Raced,
    /// No pod with volumes is left to evict.
    Done(PreviousEviction),
    /// The drain waits for the last evicted pod.
    Waiting(Waiting),
    /// No pod can be evicted now.
    Blocked {
        /// The first pod.
        pod: String,
        /// The cause.
        why: String,
        /// The number of pods left.
        left: usize,
    },
    /// This pod can be evicted.
    Next(Next),
}

/// The next pod to evict.
#[derive(Debug)]
pub struct Next {
    /// The pod.
    pub pod: Pod,
    /// The PersistentVolumes that leave the Node with it.
    pub specs: Vec<Value>,
    /// The volumes that are attached to its Node.
    pub attached: Vec<String>,
    /// The number of pods left, including this pod.
    pub left: usize,
    /// How the last eviction ended.
    pub before: PreviousEviction,
}

/// The result of an eviction.
#[derive(Debug)]
pub enum EvictionResult {
    /// The pod is terminating, or gone.
    Accepted,
    /// Refused, temporarily or permanently, for this reason.
    Refused(String),
}

/// Cordons the Node, and finds the next pod to evict.
///
/// # Errors
/// The workload cluster cannot be reached, or refuses.
pub async fn observe(
    connection: &Connection,
    target: &DrainTarget,
    leadership: &Leadership,
    now: jiff::Timestamp,
) -> Result<DrainObservation, Unreachable> {
    let Some(node) = node(connection, target).await? else {
        return Ok(DrainObservation::NoNode);
    };
    if node.provider_id.as_ref() != Some(&target.provider_id) {
        return Ok(DrainObservation::ForeignNode(node.provider_id));
    }
    if node.is_silent {
        return Ok(DrainObservation::SilentNode);
    }
    if leadership.check().is_err() || !node.is_cordoned && !cordon(connection, target, &node.uid).await? {
        return Ok(DrainObservation::Raced);
    }
    let pods = pods(connection, &target.node, &target.rules).await?;
    let (candidates, before) =
        match next_eviction(&node.attached, &pods, target.last.as_ref(), target.timeout, now) {
            NextEviction::Done(before) => return Ok(DrainObservation::Done(before)),
            NextEviction::Wait(waiting) => return Ok(DrainObservation::Waiting(waiting)),
            NextEviction::Evict(candidates, before) => (candidates, before),
        };
    let mut refused = None;
    let begun = Instant::now();
    for (number, pod) in tried(&candidates, now).enumerate() {
        if number >= MIN_TRIED && begun.elapsed() >= MAX_TRYING {
            break;
        }
        match evict(connection, pod, DryRun::Yes).await? {
            EvictionResult::Accepted => {
                return Ok(DrainObservation::Next(Next {
                    specs: specs(connection, pod, &pods).await?,
                    pod: (*pod).clone(),
                    attached: node.attached,
                    left: candidates.len(),
                    before,
                }));
            }
            EvictionResult::Refused(why) => {
                refused.get_or_insert((pod.full_name(), why));
            }
        }
    }
    let (pod, why) = refused.unwrap_or_default();
    Ok(DrainObservation::Blocked {
        pod,
        why,
        left: candidates.len(),
    })
}

/// The pods that are tried in one reconcile: always the first candidate, and others from an offset that
/// changes with each round. So each pod is tried eventually, however many pods budgets protect.
fn tried<T>(candidates: &[T], now: jiff::Timestamp) -> impl Iterator<Item = &T> {
    let round = usize::try_from(now.as_second() / SECONDS_A_ROUND).unwrap_or_default();
    let (first, others) = candidates.split_at(candidates.len().min(1));
    let from = (round * (MIN_TRIED - 1))
        .checked_rem(others.len())
        .unwrap_or_default();
    let others = others.iter().cycle().skip(from).take(others.len());
    first.iter().chain(others.take(MAX_TRIED - 1))
}

/// Whether the request is a dry run, which only tests whether the eviction is allowed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum DryRun {
    /// Nothing is evicted.
    Yes,
    /// The pod is evicted.
    No,
}

/// Evicts the pod with this UID, if PodDisruptionBudgets and admission allow it.
///
/// # Errors
/// The workload cluster can't be reached, or refuses.
pub async fn evict(
    connection: &Connection,
    pod: &Pod,
    dry_run: DryRun,
) -> Result<EvictionResult, Unreachable> {
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid}},
    });
    let params = PostParams {
        dry_run: dry_run == DryRun::Yes,
        ..PostParams::default()
    };
    let request = Request::new(format!("/api/v1/namespaces/{}/pods", pod.namespace)).create_subresource(
        "eviction",
        &pod.name,
        &params,
        eviction.to_string().into_bytes(),
    )?;
    let answer = connection.send(request).await?;
    match answer.code {
        StatusCode::OK | StatusCode::CREATED | StatusCode::NOT_FOUND => Ok(EvictionResult::Accepted),
        // A budget, several budgets, another pod with the same name, or admission.
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::INTERNAL_SERVER_ERROR
        | StatusCode::CONFLICT
        | StatusCode::FORBIDDEN
        | StatusCode::BAD_REQUEST
        | StatusCode::UNPROCESSABLE_ENTITY => Ok(EvictionResult::Refused(message_of(&answer))),
        _ => Err(answer.refusal()),
    }
}

/// The API server's message about an eviction: usually it names the budget.
fn message_of(answer: &Answer) -> String {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Status {
        message: String,
    }
    let status: Status = serde_json::from_str(&answer.text).unwrap_or_default();
    let letters = status.message.chars().filter(|letter| !letter.is_control());
    let message: String = letters.take(MAX_SHOWN).collect();
    format!("{} {message}", answer.code.as_u16())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Method, Response};
    use kube::Client;
    use kube::client::Body;
    use tokio::time::sleep;

    use super::*;
    use crate::nodes::volume_drain::drain_rules::DrainRules;
    use crate::nodes::workload_cluster::SLOW;

    const PROVIDER_ID: &str = "sim://1";

    /// An API server whose Node has many pods. A budget protects each pod, and each refusal takes this long.
    /// Also returns the number of requested evictions.
    fn refusing_after(time: Duration) -> (Connection, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let pods: Vec<_> = (0..MAX_TRIED)
            .map(|number| {
                let name = format!("p-{number:02}");
                json!({
                    "metadata": {"namespace": "ns", "name": name, "uid": number.to_string()},
                    "spec": {"volumes": [
                        {"name": "data", "persistentVolumeClaim": {"claimName": format!("data-{number}")}},
                    ]},
                })
            })
            .collect();
        let pods = json!({"items": pods});
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (asked, pods) = (Arc::clone(&counted), pods.clone());
            async move {
                let is_eviction = request.method() == Method::POST;
                let (code, answer) = if is_eviction {
                    asked.fetch_add(1, Ordering::Relaxed);
                    sleep(time).await;
                    (StatusCode::TOO_MANY_REQUESTS, json!({"message": "a budget"}))
                } else if request.uri().path().ends_with("/pods") {
                    (StatusCode::OK, pods)
                } else {
                    let node = json!({
                        "metadata": {"uid": "u"},
                        "spec": {"providerID": PROVIDER_ID, "unschedulable": true},
                    });
                    (StatusCode::OK, node)
                };
                let mut response = Response::new(Body::from(answer.to_string().into_bytes()));
                *response.status_mut() = code;
                Ok::<_, Infallible>(response)
            }
        });
        (Connection::new(Client::new(service, "default")), asked)
    }

    /// A slower connection leads to a back-off for all machines of the Cluster, and then to an outage, which
    /// ends the drain.
    #[tokio::test(start_paused = true)]
    async fn slow_refusals_of_evictions_do_not_count_as_an_outage() {
        let target = DrainTarget {
            node: "n".to_owned(),
            provider_id: PROVIDER_ID.to_owned(),
            timeout: Duration::from_mins(1),
            last: None,
            deadline: jiff::Timestamp::MAX,
            rules: DrainRules::default(),
        };
        for (refuses_after, tried) in [
            (Duration::from_millis(300), 10),
            // The minimum number of pods, although two refusals take longer than the limit.
            (Duration::from_millis(1600), MIN_TRIED),
        ] {
            let (connection, asked) = refusing_after(refuses_after);
            let begun = Instant::now();
            let seen = observe(&connection, &target, &Leadership::unelected(), at_round(1)).await;
            let took = begun.elapsed();
            let DrainObservation::Blocked { pod, why, left } = seen.unwrap() else {
                panic!("not blocked")
            };
            assert_eq!((&*pod, &*why, left), ("ns/p-00", "429 a budget", MAX_TRIED));
            assert!(took < SLOW, "took {took:?}");
            assert_eq!(asked.load(Ordering::Relaxed), tried, "{refuses_after:?}");
        }
    }

    fn at_round(round: i64) -> jiff::Timestamp {
        jiff::Timestamp::from_second(round * SECONDS_A_ROUND).unwrap()
    }

    #[test]
    fn no_pod_waits_for_good_behind_pods_that_budgets_keep() {
        for (most, rounds) in [(MAX_TRIED, 60), (MIN_TRIED, 1000)] {
            for many in 0..=120 {
                let candidates: Vec<usize> = (0..many).collect();
                let mut seen = BTreeSet::new();
                for round in 1000..1000 + rounds {
                    let tried: Vec<_> = tried(&candidates, at_round(round)).collect();
                    assert_eq!(tried.len(), many.min(MAX_TRIED));
                    assert_eq!(
                        tried.first().copied(),
                        candidates.first(),
                        "the one that is shown"
                    );
                    assert_eq!(BTreeSet::from_iter(&tried).len(), tried.len(), "none twice");
                    seen.extend(tried.into_iter().take(most).copied());
                }
                assert_eq!(seen.len(), many, "all have been tried");
            }
        }
    }
}
