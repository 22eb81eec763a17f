//! The template of the InfraMachines that Cluster API creates.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::InfraMachineSpec;
use crate::api::schema;

/// A template of InfraMachines.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "infrastructure.capcmi.io",
    version = "v1alpha1",
    kind = "InfraMachineTemplate",
    namespaced,
    status = "InfraMachineTemplateStatus",
    shortname = "imt",
    category = "cluster-api",
    label("cluster.x-k8s.io/v1beta2", "v1alpha1"),
    label("cluster.x-k8s.io/provider", "infrastructure-capcmi-cmi"),
    label("clusterctl.cluster.x-k8s.io", ""),
    doc = "InfraMachineTemplate is the template of Cluster API for InfraMachines. Its spec is immutable: \
        create a new template to roll out changes.",
    printcolumn(
        name = "Driver",
        type_ = "string",
        json_path = ".spec.template.spec.driver",
        description = "Configured driver"
    ),
    printcolumn(
        name = "CPU",
        type_ = "string",
        json_path = ".status.capacity.cpu",
        description = "CPUs of one machine"
    ),
    printcolumn(
        name = "Memory",
        type_ = "string",
        json_path = ".status.capacity.memory",
        description = "Memory of one machine"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether machines can be created from the template"
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
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct InfraMachineTemplateSpec {
    /// The InfraMachine to create.
    pub template: InfraMachineTemplateResource,
}

/// The InfraMachine to create.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!has(self.spec.providerID)", "message": "spec.template.spec.providerID must not be set: every \
        machine gets its own"}
]))]
pub struct InfraMachineTemplateResource {
    /// Labels and annotations of the InfraMachine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// Spec of the InfraMachine.
    pub spec: InfraMachineSpec,
}

/// Labels and annotations for objects created from a template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(extend("minProperties" = 1))]
pub struct TemplateMetadata {
    /// Labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::string_map")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::string_map")]
    pub annotations: BTreeMap<String, String>,
}

/// Resources of a machine of the template, for an autoscaler that starts from zero, and the validity of the
/// template.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("default" = schema::unobserved()))]
pub struct InfraMachineTemplateStatus {
    /// Resources by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::quantities")]
    pub capacity: BTreeMap<String, String>,
    /// Architecture and operating system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_info: Option<NodeInfo>,
    /// Ready, with the invalid field in its message, Paused, and Complete while a field is missing. Causes
    /// and remedies:
    /// <https://github.com/capcmi/cluster-api-provider-cmi/blob/main/docs/reference/reasons.md#reasons>
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Generation that this status describes; -1 before the first reconcile.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1))]
    pub observed_generation: Option<i64>,
}

/// Architecture and operating system of a Node of the template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct NodeInfo {
    /// amd64, arm64, s390x or ppc64le.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub architecture: Option<Architecture>,
    /// linux or windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operating_system: Option<OperatingSystem>,
}

/// CPU architectures that Cluster API knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    /// x86-64.
    Amd64,
    /// AArch64.
    Arm64,
    /// IBM Z.
    S390x,
    /// POWER, little endian.
    Ppc64le,
}

/// Operating systems that Cluster API knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OperatingSystem {
    /// Linux.
    Linux,
    /// Windows.
    Windows,
}
