//! The Node in the workload cluster: the taint goes, and all else stays as it is.

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Error};
use serde_json::{Value, json};

use super::plan::Removal;
use crate::apiserver::FIELD_MANAGER;
use crate::leadership::Leadership;

/// What came of it.
#[derive(Debug, PartialEq, Eq)]
pub enum TaintRemoval {
    /// The Node had the taint, and has it no more.
    Removed {
        /// The Node's UID.
        node_uid: String,
    },
    /// The Node has no such taint.
    NotTainted {
        /// The Node's UID.
        node_uid: String,
    },
    /// It was removed from this very Node before: one that it has now is another's.
    RemovedBefore,
    /// There is no such Node.
    NoNode,
    /// The Node is another machine's: its providerID.
    ForeignNode(Option<String>),
    /// The Node's taints changed meanwhile.
    Raced,
    /// This replica does not lead any more.
    NotLeading,
}

/// Removes the taint.
///
/// # Errors
/// The workload cluster can't be reached, or refuses.
pub async fn remove_taint(
    client: Client,
    removal: &Removal,
    leadership: &Leadership,
) -> Result<TaintRemoval, Error> {
    let nodes = Api::<Node>::all(client);
    let Some(node) = nodes.get_opt(&removal.node).await? else {
        return Ok(TaintRemoval::NoNode);
    };
    let spec = node.spec.unwrap_or_default();
    if spec.provider_id.as_ref() != Some(&removal.provider_id) {
        return Ok(TaintRemoval::ForeignNode(spec.provider_id));
    }
    let node_uid = node.metadata.uid.unwrap_or_default();
    if removal.removed_from.as_ref() == Some(&node_uid) {
        return Ok(TaintRemoval::RemovedBefore);
    }
    let Some(patch) = patch(&node_uid, &spec.taints.unwrap_or_default(), &removal.key) else {
        return Ok(TaintRemoval::NotTainted { node_uid });
    };
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let patch: json_patch::Patch = serde_json::from_value(patch).map_err(Error::SerdeError)?;
    if leadership.check().is_err() {
        return Ok(TaintRemoval::NotLeading);
    }
    match nodes
        .patch(&removal.node, &params, &Patch::Json::<()>(patch))
        .await
    {
        Ok(_) => Ok(TaintRemoval::Removed { node_uid }),
        // A test of the patch did not hold, or the Node is gone.
        Err(Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => Ok(TaintRemoval::Raced),
        Err(error) => Err(error),
    }
}

/// The JSON patch that removes all taints of a key and nothing else; `None` where there is none. It holds of
/// this very Node, and of taints that stand where they stood: others may be added or removed meanwhile.
fn patch(node_uid: &str, taints: &[Taint], key: &str) -> Option<Value> {
    let found: Vec<_> = taints
        .iter()
        .enumerate()
        .filter(|(_, taint)| taint.key == key)
        .collect();
    if found.is_empty() {
        return None;
    }
    let this_node = json!({"op": "test", "path": "/metadata/uid", "value": node_uid});
    // From the end, so that what is removed moves none that is still to be removed.
    let removals = found.into_iter().rev().flat_map(|(at, taint)| {
        let path = format!("/spec/taints/{at}");
        [
            json!({"op": "test", "path": path, "value": taint}),
            json!({"op": "remove", "path": path}),
        ]
    });
    Some(std::iter::once(this_node).chain(removals).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str, effect: &str) -> Taint {
        Taint {
            key: key.to_owned(),
            effect: effect.to_owned(),
            ..Taint::default()
        }
    }

    /// INI-05: only this key, with whatever effect.
    #[test]
    fn of_all_taints_of_a_node_those_of_the_key_go_and_no_other() {
        let taints = [
            taint("mine", "NoSchedule"),
            taint("other", "NoSchedule"),
            taint("mine", "NoExecute"),
            taint("mine-too", "NoSchedule"),
        ];
        let mut node = json!({"metadata": {"uid": "u"}, "spec": {"taints": taints}});
        let written = patch("u", &taints, "mine").unwrap();
        let applied: json_patch::Patch = serde_json::from_value(written.clone()).unwrap();
        json_patch::patch(&mut node, &applied).unwrap();
        assert_eq!(node["spec"]["taints"], json!([taints[1], taints[3]]));
        assert_eq!(patch("u", &taints[1..2], "mine"), None);
        // Another Node, or other taints in their places: the patch does not hold.
        for other in [
            json!({"metadata": {"uid": "v"}, "spec": {"taints": taints}}),
            json!({"metadata": {"uid": "u"}, "spec": {"taints": taints[1..]}}),
        ] {
            let mut other = other;
            json_patch::patch(&mut other, &applied).unwrap_err();
        }
    }
}
