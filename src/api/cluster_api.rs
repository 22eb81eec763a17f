//! The fields of Cluster API v1beta2 objects that the provider reads. It never writes these objects, except
//! for an annotation of Machines on request.
//!
//! Only the used fields are kept, so that a cache of ten thousand Machines stays small.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::NamespaceResourceScope;
use serde::{Deserialize, Deserializer, Serialize};

use super::deserialize_guard::ReadParts;
use super::labels;

/// API group of Machine and Cluster.
pub const GROUP: &str = "cluster.x-k8s.io";
const VERSION: &str = "v1beta2";

/// A Cluster API object without its managed fields, which are skipped unparsed. A Cluster's variables may be
/// nested deeper than JSON is read, and its managed fields are nested as deep. One such Cluster would make
/// the list of all Clusters unreadable.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CoreObject<S, T> {
    /// Without managed fields.
    pub metadata: ObjectMeta,
    /// The fields of the spec that the provider reads.
    pub spec: S,
    /// The fields of the status that the provider reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<T>,
}

/// A Machine.
pub type Machine = CoreObject<MachineSpec, MachineStatus>;
/// A Cluster.
pub type Cluster = CoreObject<ClusterSpec, ClusterStatus>;

/// The names of a spec's kind.
pub trait CoreSpec {
    /// The kind.
    const KIND: &str;
    /// The kind in URLs.
    const PLURAL: &str;
}

impl CoreSpec for MachineSpec {
    const KIND: &str = "Machine";
    const PLURAL: &str = "machines";
}

impl CoreSpec for ClusterSpec {
    const KIND: &str = "Cluster";
    const PLURAL: &str = "clusters";
}

impl<S, T> CoreObject<S, T> {
    /// An object of this name, without a status.
    pub fn new(name: &str, spec: S) -> Self {
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        };
        Self {
            metadata,
            spec,
            status: None,
        }
    }
}

impl<'de, S: Deserialize<'de>, T: Deserialize<'de>> Deserialize<'de> for CoreObject<S, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let ReadParts {
            metadata,
            spec,
            status,
        } = ReadParts::deserialize(deserializer)?;
        Ok(Self {
            metadata: metadata.into(),
            spec,
            status,
        })
    }
}

impl<S: CoreSpec, T> Resource for CoreObject<S, T> {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        S::KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        S::PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// The fields of `Machine.spec` that the provider reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineSpec {
    /// The Cluster that the Machine belongs to.
    pub cluster_name: String,
    /// Where the bootstrap data is.
    pub bootstrap: Bootstrap,
    /// The InfraMachine.
    pub infrastructure_ref: ObjectReference,
    /// The requested failure domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_domain: Option<String>,
}

/// The fields of `Machine.status` that the provider reads, and the health of the Node from the conditions.
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

impl ObjectReference {
    /// Whether it is to an object of this provider's kind `K`.
    pub fn is_to<K: Resource<DynamicType = ()>>(&self) -> bool {
        self.api_group == K::group(&()) && self.kind == K::kind(&())
    }
}

/// The Cluster that an object is labelled with.
pub fn cluster_name(meta: &ObjectMeta) -> Option<&str> {
    meta.labels
        .as_ref()?
        .get(labels::CLUSTER_NAME)
        .map(String::as_str)
}

/// The fields of `Cluster.spec` that the provider reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterSpec {
    /// Pauses everything of this Cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// The InfraCluster, of any kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub infrastructure_ref: Option<ObjectReference>,
    /// The address of the control plane, if the user set it here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_plane_endpoint: Option<ApiEndpoint>,
    /// The networks of the Cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_network: Option<ClusterNetwork>,
}

/// The networks of a Cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct ClusterNetwork {
    /// The networks of Services.
    pub services: NetworkRanges,
}

/// Network ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkRanges {
    /// The ranges, such as `10.96.0.0/12`. The first one names the preferred family.
    pub cidr_blocks: Vec<String>,
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

/// The fields of `Cluster.status` that the provider reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterStatus {
    /// How far the Cluster has come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initialization: Option<ClusterInitialization>,
}

/// How far a Cluster has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
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

    /// The first network of Services, if the Cluster names one.
    pub fn first_service_cidr(&self) -> Option<&str> {
        let network = self.spec.cluster_network.as_ref()?;
        network.services.cidr_blocks.first().map(String::as_str)
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

#[cfg(test)]
mod tests {
    use kube::core::ObjectList;
    use serde_json::json;

    use super::*;

    /// The API server accepts variables deeper than JSON is read. They must not affect other tenants.
    #[test]
    fn a_deeply_nested_cluster_is_read_as_any_other() {
        let deep = format!("{}1{}", r#"{"a":"#.repeat(300), "}".repeat(300));
        let cluster = |name: &str, value: &str| {
            format!(
                r#"{{"metadata": {{"name": "{name}", "uid": "u", "managedFields": [{{"fieldsV1": {value}}}]}},
                    "spec": {{"paused": true,
                    "topology": {{"variables": [{{"name": "v", "value": {value}}}]}}}}}}"#
            )
        };
        let (deep, flat) = (cluster("deep", &deep), cluster("flat", "{}"));
        let list =
            format!(r#"{{"apiVersion": "v1", "kind": "L", "metadata": {{}}, "items": [{deep}, {flat}]}}"#);
        let list: ObjectList<Cluster> = serde_json::from_str(&list).unwrap();
        let read: Vec<_> = list
            .items
            .iter()
            .map(|cluster| (cluster.metadata.name.as_deref().unwrap(), cluster.is_paused()))
            .collect();
        assert_eq!(read, [("deep", true), ("flat", true)]);
    }

    #[test]
    fn the_kinds_are_those_of_cluster_api() {
        assert_eq!(
            Machine::url_path(&(), Some("ns")),
            "/apis/cluster.x-k8s.io/v1beta2/namespaces/ns/machines"
        );
        assert_eq!(
            Cluster::url_path(&(), None),
            "/apis/cluster.x-k8s.io/v1beta2/clusters"
        );
        let machine = Machine::new("a", MachineSpec::default());
        assert_eq!(json!(machine)["metadata"]["name"], "a");
    }
}
