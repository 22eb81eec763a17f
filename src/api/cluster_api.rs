//! The slices of Cluster API v1beta2 objects that the provider reads. It never writes them but for an
//! annotation of Machines, where it is asked to.
//!
//! Only the fields that are used are kept, so that a cache of ten thousand Machines stays small.

use kube::CustomResource;
use serde::{Deserialize, Serialize};

/// API group of Machine and Cluster.
pub const GROUP: &str = "cluster.x-k8s.io";

/// What is read of `Machine.spec`.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta2",
    kind = "Machine",
    namespaced,
    schema = "disabled",
    status = "MachineStatus"
)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineSpec {
    /// The Cluster that the Machine belongs to.
    pub cluster_name: String,
    /// Where the bootstrap data is.
    pub bootstrap: Bootstrap,
    /// The InfraMachine.
    pub infrastructure_ref: ObjectReference,
    /// The failure domain that the Machine asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_domain: Option<String>,
}

/// What is read of `Machine.status`: of all conditions, only what they say of the Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(from = "WrittenMachineStatus")]
pub struct MachineStatus {
    /// The Machine's Node, once it was found by the providerID.
    pub node_name: Option<Box<str>>,
    /// Whether the condition `NodeHealthy` is True.
    pub node_is_healthy: bool,
}

/// `Machine.status` as it is written.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WrittenMachineStatus {
    node_ref: Option<WrittenNodeReference>,
    conditions: Vec<WrittenCondition>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WrittenNodeReference {
    name: Box<str>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WrittenCondition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
}

impl From<WrittenMachineStatus> for MachineStatus {
    fn from(written: WrittenMachineStatus) -> Self {
        let is_healthy =
            |condition: &WrittenCondition| condition.type_ == "NodeHealthy" && condition.status == "True";
        Self {
            node_name: written.node_ref.map(|node| node.name),
            node_is_healthy: written.conditions.iter().any(is_healthy),
        }
    }
}

/// Where the bootstrap data of a Machine is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Bootstrap {
    /// Name of the Secret in the Machine's namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_secret_name: Option<String>,
}

/// A reference without a version: the CRD's contract label says which one to read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectReference {
    /// API group.
    pub api_group: String,
    /// Kind.
    pub kind: String,
    /// Name, in the namespace of the object that refers.
    pub name: String,
}

/// What is read of `Cluster.spec`.
#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize)]
#[kube(
    group = "cluster.x-k8s.io",
    version = "v1beta2",
    kind = "Cluster",
    namespaced,
    schema = "disabled",
    status = "ClusterStatus"
)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterSpec {
    /// Pauses everything of this Cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// The InfraCluster, of any kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub infrastructure_ref: Option<ObjectReference>,
    /// Where the control plane is reached, when the user said so here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_plane_endpoint: Option<ApiEndpoint>,
}

/// Host and port of an API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct ApiEndpoint {
    /// Name or address.
    pub host: String,
    /// 1–65535.
    pub port: i32,
}

/// What is read of `Cluster.status`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterStatus {
    /// How far the Cluster has come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initialization: Option<ClusterInitialization>,
}

/// How far a Cluster has come.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterInitialization {
    /// Machines may be created from now on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub infrastructure_provisioned: Option<bool>,
}

impl Cluster {
    /// Whether the user paused it.
    pub fn is_paused(&self) -> bool {
        self.spec.paused.unwrap_or(false)
    }

    /// Whether Machines may be created.
    pub fn infrastructure_is_provisioned(&self) -> bool {
        self.status
            .as_ref()
            .and_then(|status| status.initialization.as_ref())
            .and_then(|initialization| initialization.infrastructure_provisioned)
            .unwrap_or(false)
    }
}
