//! The request of a MachineHealthCheck to remediate a Machine: Cluster API's external remediation.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::TemplateMetadata;
use crate::api::schema;

/// How often a VM is restarted where the strategy does not say.
const RETRY_LIMIT: i32 = 1;
/// How many seconds a Node has to come back where the strategy does not say.
const TIMEOUT_SECONDS: i32 = 300;

/// Remediation of the Machine with the same name.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "infrastructure.capcmi.io",
    version = "v1alpha1",
    kind = "InfraMachineRemediation",
    namespaced,
    status = "InfraMachineRemediationStatus",
    shortname = "imr",
    category = "cluster-api",
    label("cluster.x-k8s.io/v1beta2", "v1alpha1"),
    label("cluster.x-k8s.io/provider", "infrastructure-capcmi-cmi"),
    label("clusterctl.cluster.x-k8s.io", ""),
    doc = "InfraMachineRemediation restarts the VM of a Machine that a MachineHealthCheck finds unhealthy, \
        and lets the Machine be replaced when restarts do not help. The MachineHealthCheck creates and \
        deletes it.",
    printcolumn(
        name = "Cluster",
        type_ = "string",
        json_path = ".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']",
        description = "Cluster of the Machine"
    ),
    printcolumn(
        name = "Phase",
        type_ = "string",
        json_path = ".status.phase",
        description = "Waiting, Restarting or Replacing"
    ),
    printcolumn(
        name = "Restarts",
        type_ = "integer",
        json_path = ".status.retryCount",
        description = "Number of restarts"
    ),
    printcolumn(
        name = "Last Restart",
        type_ = "date",
        json_path = ".status.lastRemediated",
        description = "Time of the last restart"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether the remediation proceeds"
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
pub struct InfraMachineRemediationSpec {
    /// Action, number of attempts, and time for the Node to recover.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<RemediationStrategy>,
}

/// Action, number of attempts, and time for the Node to recover.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct RemediationStrategy {
    /// Action for an unhealthy Machine. Restart, the default: the driver restarts the VM. If the driver
    /// cannot restart, the owner replaces the Machine.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<RemediationType>,
    /// Number of restarts before the Machine is replaced. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub retry_limit: Option<i32>,
    /// Seconds for the Node to recover after a restart. Default 300.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86400))]
    pub timeout_seconds: Option<i32>,
}

/// Action for an unhealthy Machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum RemediationType {
    /// Restart its VM.
    #[default]
    Restart,
}

impl InfraMachineRemediationSpec {
    /// How often the VM is restarted before the Machine is replaced.
    pub fn retry_limit(&self) -> u32 {
        let limit = self.strategy.as_ref().and_then(|strategy| strategy.retry_limit);
        u32::try_from(limit.unwrap_or(RETRY_LIMIT)).unwrap_or_default()
    }

    /// How long the Node has after a restart to be healthy again.
    pub fn timeout(&self) -> Duration {
        let seconds = self
            .strategy
            .as_ref()
            .and_then(|strategy| strategy.timeout_seconds);
        Duration::from_secs(u64::try_from(seconds.unwrap_or(TIMEOUT_SECONDS)).unwrap_or_default())
    }
}

/// Progress of a remediation.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("default" = schema::unobserved()))]
pub struct InfraMachineRemediationStatus {
    /// Waiting, Restarting or Replacing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<RemediationPhase>,
    /// Number of restarts so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub retry_count: Option<i32>,
    /// Time of the last restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub last_remediated: Option<Time>,
    /// Ready and Paused. Causes and remedies:
    /// <https://github.com/capcmi/cluster-api-provider-cmi/blob/main/docs/reference/reasons.md#reasons>
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Generation that this status describes; -1 before the first reconcile.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1))]
    pub observed_generation: Option<i64>,
}

/// Progress of a remediation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum RemediationPhase {
    /// No restart yet. The condition Ready has the reason.
    Waiting,
    /// The VM was restarted, and its Node has time to recover.
    Restarting,
    /// The owner of the Machine replaces it.
    Replacing,
}

/// A template of InfraMachineRemediations.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "infrastructure.capcmi.io",
    version = "v1alpha1",
    kind = "InfraMachineRemediationTemplate",
    namespaced,
    shortname = "imrt",
    category = "cluster-api",
    label("cluster.x-k8s.io/v1beta2", "v1alpha1"),
    label("cluster.x-k8s.io/provider", "infrastructure-capcmi-cmi"),
    label("clusterctl.cluster.x-k8s.io", ""),
    label("clusterctl.cluster.x-k8s.io/move", ""),
    doc = "InfraMachineRemediationTemplate is the template of a MachineHealthCheck for \
        InfraMachineRemediations, named by its spec.remediation.templateRef.",
    printcolumn(
        name = "Type",
        type_ = "string",
        json_path = ".spec.template.spec.strategy.type",
        description = "Remediation strategy"
    ),
    printcolumn(
        name = "Limit",
        type_ = "integer",
        json_path = ".spec.template.spec.strategy.retryLimit",
        description = "Maximum number of restarts"
    ),
    printcolumn(
        name = "Timeout",
        type_ = "integer",
        json_path = ".spec.template.spec.strategy.timeoutSeconds",
        description = "Seconds for a Node to become ready after a restart"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct InfraMachineRemediationTemplateSpec {
    /// The InfraMachineRemediation to create.
    pub template: InfraMachineRemediationTemplateResource,
}

/// The InfraMachineRemediation to create.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct InfraMachineRemediationTemplateResource {
    /// Labels and annotations of the InfraMachineRemediation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// Spec of the InfraMachineRemediation.
    pub spec: InfraMachineRemediationSpec,
}
