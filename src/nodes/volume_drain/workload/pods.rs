//! The pods of a Node, and which of them have volumes and may be evicted.

use std::collections::BTreeMap;

use http::StatusCode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ListParams;
use kube::core::Request;
use serde::Deserialize;

use crate::api::labels;
use crate::nodes::volume_drain::drain_rules::DrainRules;
use crate::nodes::volume_drain::next_eviction::Pod;
use crate::nodes::workload_cluster::request::{is_name, parse};
use crate::nodes::workload_cluster::{Connection, Unreachable};

/// Pods of one response, each of some tens of KiB.
const PAGE: u32 = 25;
/// The most responses for the pods of one Node, which usually has at most 250 pods.
const MAX_PAGES: usize = 40;
/// The most pods of one Node that are read.
const MAX_PODS: usize = MAX_PAGES * PAGE as usize;
/// The most claims of one pod that are read.
const MAX_CLAIMS: usize = 32;

#[derive(Deserialize)]
struct PodList {
    #[serde(default)]
    metadata: ListMetadata,
    items: Vec<PodObject>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ListMetadata {
    #[serde(rename = "continue")]
    token: String,
}

#[derive(Deserialize)]
struct PodObject {
    metadata: PodMetadata,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodMetadata {
    namespace: String,
    name: String,
    uid: String,
    deletion_timestamp: Option<Time>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: PodAnnotations,
    #[serde(default)]
    owner_references: Vec<Owner>,
}

/// The annotation of a static pod. Other annotations are not read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct PodAnnotations {
    #[serde(rename = "kubernetes.io/config.mirror")]
    mirror: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Owner {
    kind: String,
    #[serde(default)]
    controller: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    priority: i32,
    termination_grace_period_seconds: Option<i64>,
    volumes: Vec<Volume>,
    tolerations: Vec<Toleration>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Toleration {
    key: String,
    operator: String,
}

impl Toleration {
    /// Whether a pod with this toleration may be scheduled to a cordoned Node. Such a pod would come back to
    /// the Node after each eviction.
    fn is_of_a_cordon(&self) -> bool {
        const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
        self.key == UNSCHEDULABLE || self.key.is_empty() && self.operator == "Exists"
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    name: String,
    persistent_volume_claim: Option<ClaimReference>,
    ephemeral: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimReference {
    claim_name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodStatus {
    phase: String,
}

/// The pods of a Node that have claims and have not ended.
pub async fn pods(connection: &Connection, node: &str, rules: &DrainRules) -> Result<Vec<Pod>, Unreachable> {
    let (mut pods, mut token) = (Vec::new(), String::new());
    let mut seen = 0;
    for _ in 0..MAX_PAGES {
        let mut params = ListParams::default()
            .fields(&format!("spec.nodeName={node}"))
            .limit(PAGE);
        if !token.is_empty() {
            params = params.continue_token(&token);
        }
        let request = Request::new("/api/v1/pods").list(&params)?;
        let answer = connection.send(request).await?;
        if answer.code != StatusCode::OK {
            return Err(answer.refusal());
        }
        let list: PodList = parse(&answer.text)?;
        seen += list.items.len();
        // A page may exceed the requested limit: the workload cluster is not trusted.
        if seen > MAX_PODS {
            break;
        }
        pods.extend(list.items.into_iter().filter_map(|object| pod(object, rules)));
        token = list.metadata.token;
        if token.is_empty() {
            return Ok(pods);
        }
    }
    let too_many = format!("the Node has more than {MAX_PODS} pods");
    Err(Unreachable::Failed(too_many.into()))
}

/// The grace period of a pod. Kubernetes accepts any number, and ends a pod with a negative one after a
/// second.
fn grace_seconds(given: Option<i64>) -> u32 {
    let given = given.unwrap_or(30).max(1);
    u32::try_from(given).unwrap_or(u32::MAX)
}

/// A pod that may hold a volume. A pod with an invalid name can't be requested.
fn pod(object: PodObject, rules: &DrainRules) -> Option<Pod> {
    let PodObject {
        metadata,
        spec,
        status,
    } = object;
    let claims = spec.volumes.into_iter().filter_map(|volume| {
        let own = volume
            .ephemeral
            .map(|_| format!("{}-{}", metadata.name, volume.name));
        volume
            .persistent_volume_claim
            .map(|claim| claim.claim_name)
            .or(own)
    });
    let claims: Vec<_> = claims.filter(|name| is_name(name)).take(MAX_CLAIMS).collect();
    let has_ended = ["Succeeded", "Failed"].contains(&status.phase.as_str());
    let can_be_named = is_name(&metadata.namespace) && is_name(&metadata.name);
    if claims.is_empty() || has_ended || !can_be_named {
        return None;
    }
    let is_daemon = |owner: &Owner| owner.controller && owner.kind == "DaemonSet";
    let drain = metadata.labels.get(labels::DRAIN).map_or("", String::as_str);
    let is_skipped = labels::NOT_DRAINED
        .iter()
        .any(|value| drain.eq_ignore_ascii_case(value));
    Some(Pod {
        claims,
        priority: spec.priority,
        grace_seconds: grace_seconds(spec.termination_grace_period_seconds),
        is_excluded: is_skipped
            || rules.may_concern(&metadata.labels)
            || metadata.annotations.mirror.is_some()
            || spec.tolerations.iter().any(Toleration::is_of_a_cordon)
            || metadata.owner_references.iter().any(is_daemon),
        is_leaving: metadata.deletion_timestamp.is_some(),
        namespace: metadata.namespace,
        name: metadata.name,
        uid: metadata.uid,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(change: impl FnOnce(&mut Value)) -> Option<Pod> {
        let mut object = json!({
            "metadata": {"namespace": "ns", "name": "p", "uid": "u", "labels": {"app": "db"}},
            "spec": {"terminationGracePeriodSeconds": 5, "volumes": [
                {"name": "config", "configMap": {"name": "c"}},
                {"name": "data", "persistentVolumeClaim": {"claimName": "data-0"}},
                {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}},
            ]},
            "status": {"phase": "Running"},
        });
        change(&mut object);
        pod(serde_json::from_value(object).unwrap(), &DrainRules::default())
    }

    /// The API server accepts any 64-bit number.
    #[test]
    fn a_pod_with_an_odd_time_to_end_is_read() {
        for (given, expected) in [(-1_i64, 1), (0, 1), (i64::MAX, u32::MAX)] {
            let found = read(|pod| pod["spec"]["terminationGracePeriodSeconds"] = json!(given));
            assert_eq!(found.unwrap().grace_seconds, expected, "{given}");
        }
    }

    #[test]
    fn of_all_pods_those_with_claims_count_that_have_not_ended() {
        let found = read(|_| {}).unwrap();
        assert_eq!(found.claims, ["data-0", "p-scratch"]);
        assert!(found.grace_seconds == 5 && !found.is_excluded && !found.is_leaving);
        assert_eq!(read(|pod| pod["spec"]["volumes"] = json!([])), None);
        for phase in ["Succeeded", "Failed"] {
            assert_eq!(read(|pod| pod["status"]["phase"] = json!(phase)), None, "{phase}");
        }
        // A name that would change the path.
        assert_eq!(read(|pod| pod["metadata"]["name"] = json!("../../x?")), None);
    }

    #[test]
    fn daemon_set_static_and_skipped_pods_are_excluded() {
        for (path, value) in [
            (
                "ownerReferences",
                json!([{"kind": "DaemonSet", "name": "d", "controller": true}]),
            ),
            ("annotations", json!({"kubernetes.io/config.mirror": "x"})),
            ("labels", json!({"cluster.x-k8s.io/drain": "skip"})),
            ("labels", json!({"cluster.x-k8s.io/drain": "Wait-Completed"})),
        ] {
            let found = read(|pod| pod["metadata"][path] = value).unwrap();
            assert!(found.is_excluded, "{path}");
        }
        for (toleration, expected) in [
            (
                json!({"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}),
                true,
            ),
            (json!({"operator": "Exists"}), true),
            (
                json!({"key": "node.kubernetes.io/not-ready", "operator": "Exists"}),
                false,
            ),
        ] {
            let found = read(|pod| pod["spec"]["tolerations"] = json!([toleration])).unwrap();
            assert_eq!(found.is_excluded, expected, "{toleration}");
        }
        let of_a_set = json!([{"kind": "StatefulSet", "name": "s", "controller": true}]);
        assert!(
            !read(|pod| pod["metadata"]["ownerReferences"] = of_a_set)
                .unwrap()
                .is_excluded
        );
        let leaving = read(|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
        assert!(leaving.unwrap().is_leaving);
    }
}
