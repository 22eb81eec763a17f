//! The Node of a drain: reads it with its attached volumes, and cordons it.

use http::StatusCode;
use kube::api::Patch;
use kube::core::Request;
use serde::Deserialize;
use serde_json::json;

use crate::apiserver::patch_params;
use crate::nodes::volume_drain::plan::DrainTarget;
use crate::nodes::workload_cluster::request::get;
use crate::nodes::workload_cluster::{Connection, Unreachable};

const NODES: &str = "/api/v1/nodes";
/// The most attached volumes of one Node that are read.
const MAX_ATTACHED: usize = 512;

/// The fields of a Node that the provider reads.
#[derive(Debug)]
pub struct Node {
    /// Its UID.
    pub uid: String,
    /// Its providerID.
    pub provider_id: Option<String>,
    /// Whether it is unschedulable.
    pub is_cordoned: bool,
    /// Whether its kubelet no longer reports.
    pub is_silent: bool,
    /// The volumes that are attached to it.
    pub attached: Vec<String>,
}

/// The Node with this name, if it exists.
pub async fn node(connection: &Connection, target: &DrainTarget) -> Result<Option<Node>, Unreachable> {
    #[derive(Deserialize)]
    struct Object {
        metadata: Metadata,
        #[serde(default)]
        spec: Spec,
        #[serde(default)]
        status: Status,
    }
    #[derive(Deserialize)]
    struct Metadata {
        uid: String,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Spec {
        #[serde(rename = "providerID")]
        provider_id: Option<String>,
        unschedulable: bool,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Status {
        conditions: Vec<Condition>,
        volumes_attached: Vec<AttachedVolume>,
    }
    #[derive(Deserialize)]
    struct Condition {
        #[serde(rename = "type")]
        type_: String,
        status: String,
    }
    #[derive(Deserialize)]
    struct AttachedVolume {
        name: String,
    }
    let found: Option<Object> = get(connection, NODES, &target.node).await?;
    Ok(found.map(
        |Object {
             metadata,
             spec,
             status,
         }| Node {
            uid: metadata.uid,
            provider_id: spec.provider_id,
            is_cordoned: spec.unschedulable,
            is_silent: status
                .conditions
                .iter()
                .any(|condition| condition.type_ == "Ready" && condition.status == "Unknown"),
            attached: status
                .volumes_attached
                .into_iter()
                .take(MAX_ATTACHED)
                .map(|volume| volume.name)
                .collect(),
        },
    ))
}

/// Cordons the Node. Returns `false` if the Node changed in the meantime.
pub async fn cordon(connection: &Connection, target: &DrainTarget, uid: &str) -> Result<bool, Unreachable> {
    let body = json!({"metadata": {"uid": uid}, "spec": {"unschedulable": true}});
    let request = Request::new(NODES).patch(&target.node, &patch_params(), &Patch::Merge(&body))?;
    let answer = connection.send(request).await?;
    match answer.code {
        StatusCode::OK => Ok(true),
        StatusCode::NOT_FOUND | StatusCode::CONFLICT => Ok(false),
        _ => Err(answer.refusal()),
    }
}
