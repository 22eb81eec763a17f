//! The infrastructure of a Cluster: its control-plane endpoint and failure domains.

use std::collections::BTreeMap;

use garde::Validate;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{SecretReference, TemplateMetadata};
use crate::api::cluster_api::{ApiEndpoint, Cluster};
use crate::api::{conditions, schema};

/// The infrastructure of a Cluster.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema, Validate)]
#[kube(
    group = "infrastructure.capcmi.io",
    version = "v1alpha1",
    kind = "InfraCluster",
    namespaced,
    status = "InfraClusterStatus",
    category = "cluster-api",
    label("cluster.x-k8s.io/v1beta2", "v1alpha1"),
    label("cluster.x-k8s.io/provider", "infrastructure-capcmi-cmi"),
    label("clusterctl.cluster.x-k8s.io", ""),
    doc = "InfraCluster is the infrastructure of a Cluster at a CMI back end, except for its machines.",
    printcolumn(
        name = "Cluster",
        type_ = "string",
        json_path = ".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']",
        description = "Cluster that owns the object"
    ),
    printcolumn(
        name = "Endpoint",
        type_ = "string",
        json_path = ".spec.controlPlaneEndpoint.host",
        description = "Host of the control plane endpoint"
    ),
    printcolumn(
        name = "Provisioned",
        type_ = "boolean",
        json_path = ".status.initialization.provisioned",
        description = "Whether machines may be created"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether the object is in the desired state"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason",
        description = "Reason of the condition Ready"
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        description = "Message of the condition Ready",
        priority = "1"
    ),
    printcolumn(
        name = "Reachable",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"DriverReachable\")].status",
        description = "Whether the drivers of the Cluster are reachable",
        priority = "1"
    ),
    printcolumn(
        name = "Zones",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"FailureDomainsUpToDate\")].reason",
        description = "Whether the failure domains match the driver's",
        priority = "1"
    ),
    printcolumn(
        name = "Paused",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Paused\")].status",
        description = "Whether reconciliation is paused",
        priority = "1"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct InfraClusterSpec {
    /// Address of the control plane. No driver creates a load balancer: set the address here or on the
    /// Cluster, or let the control-plane provider set it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "endpoint")]
    #[garde(skip)]
    pub control_plane_endpoint: Option<ApiEndpoint>,
    /// Name of the configured driver that lists failure domains. Optional when exactly one driver serves this
    /// namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    #[garde(length(bytes, min = 1, max = 63), pattern(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub driver: Option<String>,
    /// Secret in this namespace with the credentials. The driver receives all of its keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[garde(dive)]
    pub secret_ref: Option<SecretReference>,
}

impl InfraCluster {
    /// The name of a Cluster's InfraCluster, if that is of this provider.
    pub fn name_in(cluster: &Cluster) -> Option<&str> {
        let infra = cluster.spec.infrastructure_ref.as_ref()?;
        infra.is_to::<Self>().then_some(infra.name.as_str())
    }

    /// Whether a Cluster of the same namespace refers to it.
    pub fn is_of(&self, cluster: &Cluster) -> bool {
        Self::name_in(cluster) == self.metadata.name.as_deref()
    }

    /// Why no machine may be made, in a word; nothing where machines may be made, or it was not said yet.
    pub fn why_not_provisioned(&self) -> Option<&str> {
        let status = self.status.as_ref()?;
        let initialization = status.initialization.as_ref();
        if initialization.and_then(|initialization| initialization.provisioned) == Some(true) {
            return None;
        }
        let shown = if conditions::is_true(&status.conditions, conditions::PAUSED) {
            conditions::PAUSED
        } else {
            conditions::READY
        };
        Some(conditions::get(&status.conditions, shown)?.reason.as_str())
    }
}

fn endpoint(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "required": ["host", "port"],
        "properties": {
            "host": {"type": "string", "minLength": 1, "maxLength": 512, "description": "Name or address."},
            "port": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 65535,
            "description": "TCP port."},
        },
    })
}

/// Observed state of the infrastructure of a Cluster.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("default" = schema::unobserved()))]
pub struct InfraClusterStatus {
    /// Initialization as Cluster API reads it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initialization: Option<InfraClusterInitialization>,
    /// Failure domains for Machines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), extend(
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["name"]
    ))]
    pub failure_domains: Vec<FailureDomain>,
    /// Ready, Paused, DriverReachable, FailureDomainsUpToDate, and Deleting during a deletion. Causes and
    /// remedies:
    /// <https://github.com/capcmi/cluster-api-provider-cmi/blob/main/docs/reference/reasons.md#reasons>
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Generation that this status describes; -1 before the first reconcile.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1))]
    pub observed_generation: Option<i64>,
}

/// Initialization as Cluster API reads it, before it creates Machines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(extend("minProperties" = 1))]
pub struct InfraClusterInitialization {
    /// Machines may be created. Never reverts to false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provisioned: Option<bool>,
}

/// A failure domain of the back end.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailureDomain {
    /// Name, as in spec.failureDomain of a Machine.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// Whether control-plane Machines may be placed in it.
    #[serde(default)]
    pub control_plane: bool,
    /// Attributes from the driver.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::string_map")]
    pub attributes: BTreeMap<String, String>,
}

/// A template of InfraClusters, for ClusterClasses.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "infrastructure.capcmi.io",
    version = "v1alpha1",
    kind = "InfraClusterTemplate",
    namespaced,
    category = "cluster-api",
    label("cluster.x-k8s.io/v1beta2", "v1alpha1"),
    label("cluster.x-k8s.io/provider", "infrastructure-capcmi-cmi"),
    label("clusterctl.cluster.x-k8s.io", ""),
    doc = "InfraClusterTemplate is the template of a ClusterClass for InfraClusters. Its spec is immutable.",
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct InfraClusterTemplateSpec {
    /// The InfraCluster to create.
    pub template: InfraClusterTemplateResource,
}

/// The InfraCluster to create.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct InfraClusterTemplateResource {
    /// Labels and annotations of the InfraCluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// Spec of the InfraCluster.
    pub spec: InfraClusterSpec,
}
