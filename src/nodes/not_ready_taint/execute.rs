//! Removes the taint from the Node in the workload cluster, and nothing else.

use http::StatusCode;
use kube::api::Patch;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::plan::Removal;
use super::status::Progress;
use crate::apiserver::leadership::Leadership;
use crate::apiserver::patch_params;
use crate::nodes::workload_cluster::request::text;
use crate::nodes::workload_cluster::{Connection, Unreachable};

/// The path of Nodes.
const NODES: &str = "/api/v1/nodes";
/// The most taints with one key: there is one for each effect, and Kubernetes has three effects.
const MAX_TAINTS: usize = 8;

/// The parts of a Node that are read: a hostile API server may send far more.
#[derive(Debug, PartialEq, Eq)]
struct Node {
    uid: String,
    provider_id: Option<String>,
    /// The taints of the key, with their indices.
    taints: Vec<(usize, Value)>,
}

/// Removes the taint. Returns `None` if the Node changed in the meantime, or if this replica no longer leads.
///
/// # Errors
/// The workload cluster can't be reached, or refuses.
pub async fn remove_taint(
    connection: &Connection,
    removal: &Removal,
    leadership: &Leadership,
) -> Result<Option<Progress>, Unreachable> {
    let Some(node) = read(connection, removal).await? else {
        return Ok(Some(Progress::NoNode));
    };
    if node.provider_id.as_ref() != Some(&removal.provider_id) {
        return Ok(Some(Progress::ForeignNode(node.provider_id)));
    }
    if removal.removed_from.as_ref() == Some(&node.uid) {
        return Ok(Some(Progress::RemovedBefore));
    }
    if node.taints.is_empty() {
        return Ok(Some(Progress::NotTainted(node.uid)));
    }
    let patch = serde_json::from_value(patch(&node)).map_err(|_bug| Unreachable::NotAnApiServer)?;
    let request = kube::core::Request::new(NODES).patch_metadata(
        &removal.node,
        &patch_params(),
        &Patch::Json::<()>(patch),
    )?;
    if leadership.check().is_err() {
        return Ok(None);
    }
    let answer = connection.send(request).await?;
    match answer.code {
        StatusCode::OK => Ok(Some(Progress::Removed(node.uid))),
        StatusCode::NOT_FOUND | StatusCode::CONFLICT => Ok(None),
        // A test of the patch failed, or an admission rule forbids this change.
        StatusCode::UNPROCESSABLE_ENTITY if read(connection, removal).await?.as_ref() != Some(&node) => {
            Ok(None)
        }
        StatusCode::UNPROCESSABLE_ENTITY | StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST => {
            Ok(Some(Progress::Refused(answer.refusal().to_string())))
        }
        _ => Err(answer.refusal()),
    }
}

async fn read(connection: &Connection, removal: &Removal) -> Result<Option<Node>, Unreachable> {
    let text = text(connection, NODES, &removal.node).await?;
    text.map(|text| parse(&text, &removal.key)).transpose()
}

fn parse(text: &str, key: &str) -> Result<Node, Unreachable> {
    #[derive(Deserialize)]
    struct Object<'a> {
        metadata: Metadata,
        #[serde(borrow)]
        spec: Spec<'a>,
    }
    #[derive(Deserialize)]
    struct Metadata {
        uid: String,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Spec<'a> {
        #[serde(rename = "providerID")]
        provider_id: Option<String>,
        #[serde(borrow)]
        taints: Vec<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Key<'a> {
        key: std::borrow::Cow<'a, str>,
    }
    // The parser's message would quote the response.
    let Object { metadata, spec } =
        serde_json::from_str(text).map_err(|_quotes| Unreachable::NotAnApiServer)?;
    let of_key = |taint: &RawValue| {
        let read: Result<Key<'_>, _> = serde_json::from_str(taint.get());
        read.is_ok_and(|taint| taint.key == key)
    };
    let taints = spec.taints.iter().enumerate().filter(|(_, taint)| of_key(taint));
    let taints = taints
        .take(MAX_TAINTS)
        .map(|(at, taint)| Ok((at, serde_json::from_str(taint.get())?)))
        .collect::<serde_json::Result<_>>();
    Ok(Node {
        uid: metadata.uid,
        provider_id: spec.provider_id,
        taints: taints.map_err(|_quotes| Unreachable::NotAnApiServer)?,
    })
}

/// The JSON patch that removes all taints with the key and nothing else. It applies only to the Node with
/// this UID and to taints at the same indices, because other taints may be added or removed concurrently.
fn patch(node: &Node) -> Value {
    let this_node = json!({"op": "test", "path": "/metadata/uid", "value": node.uid});
    // From the end, so that a removal does not move the taints that follow in the patch.
    let removals = node.taints.iter().rev().flat_map(|(at, taint)| {
        let path = format!("/spec/taints/{at}");
        [
            json!({"op": "test", "path": path, "value": taint}),
            json!({"op": "remove", "path": path}),
        ]
    });
    std::iter::once(this_node).chain(removals).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// INI-05: only this key, with any effect.
    #[test]
    fn of_all_taints_of_a_node_those_of_the_key_go_and_no_other() {
        let taint =
            |key: &str, effect: &str| json!({"key": key, "effect": effect, "timeAdded": "t", "new": 1});
        let taints = [
            taint("mine", "NoSchedule"),
            taint("other", "NoSchedule"),
            taint("mine", "NoExecute"),
            taint("mine-too", "NoSchedule"),
        ];
        let mut object = json!({"metadata": {"uid": "u"}, "spec": {"taints": taints}});
        let node = parse(&object.to_string(), "mine").unwrap();
        let patch: json_patch::Patch = serde_json::from_value(patch(&node)).unwrap();
        // Another Node, or other taints at these indices: the patch does not apply.
        for other in [
            json!({"metadata": {"uid": "v"}, "spec": {"taints": taints}}),
            json!({"metadata": {"uid": "u"}, "spec": {"taints": taints[1..]}}),
        ] {
            let mut other = other;
            json_patch::patch(&mut other, &patch).unwrap_err();
        }
        json_patch::patch(&mut object, &patch).unwrap();
        assert_eq!(object["spec"]["taints"], json!([taints[1], taints[3]]));
        assert!(parse(&object.to_string(), "mine").unwrap().taints.is_empty());
    }

    /// A tenant's kubeconfig may point to any server that the provider can reach.
    #[test]
    fn an_answer_that_is_no_node_is_not_repeated() {
        for text in [
            r#""s3cret""#,
            r#"{"metadata": "s3cret"}"#,
            r#"{"metadata": {"uid": 7}, "spec": "s3cret"}"#,
        ] {
            let error = parse(text, "k").unwrap_err().to_string();
            assert!(!error.contains("s3cret"), "{error}");
        }
    }
}
