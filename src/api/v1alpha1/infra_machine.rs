//! One VM of one Machine.

use garde::Validate;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::api::conditions::{self, reason};
use crate::api::{bounded, schema};
use cmi_driver::{Capabilities, Operation};

/// The VM of a Machine.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema, Validate)]
#[kube(
    group = "infrastructure.capcmi.io",
    version = "v1alpha1",
    kind = "InfraMachine",
    namespaced,
    status = "InfraMachineStatus",
    shortname = "im",
    category = "cluster-api",
    label("cluster.x-k8s.io/v1beta2", "v1alpha1"),
    label("cluster.x-k8s.io/provider", "infrastructure-capcmi-cmi"),
    label("clusterctl.cluster.x-k8s.io", ""),
    doc = "InfraMachine is one VM at the back end of a CMI driver, for one Cluster API Machine.",
    // Not a rule of the spec: the dry run of the topology controller changes the spec of a template.
    validation = Rule::new(
        "has(self.spec.addressesFromPools) == has(oldSelf.spec.addressesFromPools) && \
            (!has(self.spec.addressesFromPools) || self.spec.addressesFromPools == \
            oldSelf.spec.addressesFromPools)"
    )
    .message("spec.addressesFromPools is immutable: the addresses are claimed for the life of the machine"),
    printcolumn(
        name = "Cluster",
        type_ = "string",
        json_path = ".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']",
        description = "Cluster of the machine"
    ),
    printcolumn(
        name = "Machine",
        type_ = "string",
        json_path = ".metadata.ownerReferences[?(@.kind==\"Machine\")].name",
        description = "Machine that owns the object",
        priority = "1"
    ),
    printcolumn(
        name = "ProviderID",
        type_ = "string",
        json_path = ".spec.providerID",
        description = "The driver's id of the VM"
    ),
    printcolumn(
        name = "Address",
        type_ = "string",
        json_path = ".status.addresses[0].address",
        description = "First address of the VM"
    ),
    printcolumn(
        name = "Zone",
        type_ = "string",
        json_path = ".status.failureDomain",
        description = "Failure domain of the VM",
        priority = "1"
    ),
    printcolumn(
        name = "Power",
        type_ = "string",
        json_path = ".status.powerState",
        description = "Power state of the VM"
    ),
    printcolumn(
        name = "Provisioned",
        type_ = "boolean",
        json_path = ".status.initialization.provisioned",
        description = "Whether the VM was handed over to Cluster API"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether the VM is up"
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
        description = "Whether the driver is reachable",
        priority = "1"
    ),
    printcolumn(
        name = "Paused",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Paused\")].status",
        description = "Whether reconciliation is paused",
        priority = "1"
    ),
    printcolumn(
        name = "Next Try",
        type_ = "string",
        json_path = ".status.lastOperation.nextRetryTime",
        description = "Time of the next driver call, RFC 3339",
        priority = "1"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "!has(oldSelf.providerID) || (has(self.providerID) && self.providerID == oldSelf.providerID)",
        "message": "spec.providerID is immutable"
    },
    {
        "rule": "!has(oldSelf.providerID) || (has(oldSelf.driver) ? has(self.driver) && self.driver == \
            oldSelf.driver : !has(self.driver))",
        "message": "spec.driver is immutable once the VM exists or is being created"
    }
]))]
pub struct InfraMachineSpec {
    /// The driver's id of the VM, equal to the Node's spec.providerID. The provider sets it once, when the VM
    /// is created. The cluster autoscaler knows a machine by the last segment.
    #[serde(rename = "providerID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    #[garde(length(bytes, min = 1, max = 512))]
    pub provider_id: Option<String>,

    /// Name of the configured driver. Optional when exactly one driver serves this namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    #[garde(length(bytes, min = 1, max = 63), pattern(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub driver: Option<String>,

    /// Specification of the VM. The driver defines its fields. It may change until the VM is created; later,
    /// only fields that the driver can update on a running VM may change. The provider adds the tags
    /// kubernetes.io/cluster, kubernetes.io/role and capcmi.io/machine, and rejects a spec that contains
    /// them. At most 64 KiB as JSON, and 4096 values.
    #[serde(
        default,
        skip_serializing_if = "Map::is_empty",
        deserialize_with = "bounded::provider_spec"
    )]
    #[schemars(schema_with = "schema::open_object")]
    #[garde(custom(is_small_enough))]
    pub provider_spec: Map<String, Value>,

    /// Static addresses of the VM, one from each of these pools. The provider claims them before it creates
    /// the VM, and releases them when the VM is gone. Requires a driver that can set addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = MAX_POOLS),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["apiGroup", "kind", "name"])
    )]
    #[garde(length(max = MAX_POOLS), dive)]
    pub addresses_from_pools: Vec<AddressFromPool>,

    /// Secret in this namespace with the credentials. The driver receives all of its keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[garde(dive)]
    pub secret_ref: Option<SecretReference>,

    /// Seconds until Ready reports CreationTimedOut. The provider continues to call the driver. Default 1200.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86400))]
    #[garde(range(min = 1, max = 86400))]
    pub creation_timeout_seconds: Option<i32>,

    /// Seconds for the guest to shut down before its VM is deleted. 0 deletes without a shutdown, as do
    /// drivers that cannot shut down. Default 60.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    #[garde(range(min = 0, max = 86400))]
    pub shutdown_timeout_seconds: Option<i32>,

    /// When the provider starts a VM that is switched off.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[garde(skip)]
    pub power_policy: Option<PowerPolicy>,

    /// Taint that keeps workload off the Node until the VM is initialized. The kubelet must register with it;
    /// the provider never adds it, and removes it once after the initialization. Without this field, the
    /// provider touches no Node.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[garde(dive)]
    pub not_ready_taint: Option<NotReadyTaint>,
}

impl InfraMachine {
    /// Whether the VM was handed to Cluster API.
    pub fn is_provisioned(&self) -> bool {
        let status = self.status.as_ref();
        status
            .and_then(|status| status.initialization.as_ref()?.provisioned)
            .unwrap_or(false)
    }

    /// Whether the VM was found to be gone.
    pub fn has_vanished(&self) -> bool {
        self.status
            .as_ref()
            .and_then(|status| conditions::get(&status.conditions, conditions::READY))
            .is_some_and(|ready| ready.reason == reason::VIRTUAL_MACHINE_VANISHED)
    }
}

impl InfraMachineSpec {
    /// Returns violations of rules that the API server does not check, each with the path of the field.
    pub fn violations(&self) -> Vec<String> {
        let Err(report) = self.validate() else {
            return Vec::new();
        };
        let written = serde_json::to_value(self).unwrap_or_default();
        report
            .iter()
            .map(|(path, error)| format!("{}: {error}", as_written(&path.to_string(), &written)))
            .collect()
    }

    /// Returns a message if a field would have no effect with a driver of these capabilities.
    pub fn unsupported(&self, capabilities: &Capabilities) -> Option<String> {
        let needed = PowerPolicy::CALLS
            .into_iter()
            .find(|call| self.power_policy.is_some() && !capabilities.supports(*call));
        if let Some(call) = needed {
            return Some(format!(
                "powerPolicy: AlwaysOn requires a driver that implements {call}, and this driver does not: \
                    remove the field"
            ));
        }
        let without_path = !self.addresses_from_pools.is_empty() && capabilities.address_path.is_none();
        without_path.then(|| {
            "addressesFromPools requires a driver that can set static addresses, and this driver cannot: \
                create the object without the field, or use another driver"
                .to_owned()
        })
    }
}

/// Returns the path with the names of the serialized object, since garde uses Rust's names.
fn as_written(path: &str, written: &Value) -> String {
    let plain = |name: &str| name.replace('_', "").to_lowercase();
    let (field, rest) = path.split_at(path.find(['.', '[']).unwrap_or(path.len()));
    let mut names = written.as_object().into_iter().flat_map(Map::keys);
    let name = names.find(|name| plain(name) == plain(field));
    let mut words = rest.split('_');
    let mut below = words.next().unwrap_or_default().to_owned();
    for word in words {
        let (first, others) = word.split_at(word.len().min(1));
        below.push_str(&first.to_uppercase());
        below.push_str(others);
    }
    format!("{}{below}", name.map_or(field, String::as_str))
}

#[allow(clippy::trivially_copy_pass_by_ref)] // garde's signature
fn is_small_enough(spec: &Map<String, Value>, _: &()) -> garde::Result {
    if spec.len() > schema::MAX_PROPERTIES {
        return Err(garde::Error::new(format!(
            "has {} fields; the limit is {}",
            spec.len(),
            schema::MAX_PROPERTIES
        )));
    }
    if let Some(why) = bounded::not_read(spec) {
        return Err(garde::Error::new(why));
    }
    let json = serde_json::to_string(spec).map_err(|error| garde::Error::new(error.to_string()))?;
    bounded::too_large(&json).map_or(Ok(()), |why| Err(garde::Error::new(why)))
}

/// The taint of a Node whose VM is not initialized (INI-04).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema, Validate)]
pub struct NotReadyTaint {
    /// The taint's key; it is removed with every value and effect. Keys of `kubernetes.io`, `k8s.io` and
    /// `x-k8s.io` belong to Kubernetes and Cluster API, and are refused.
    #[serde(default = "default_not_ready_taint_key")]
    #[schemars(
        length(min = 1, max = 317),
        regex(pattern = concat!(
            r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?",
            r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
        )),
        extend("x-kubernetes-validations" = [{
            "rule": r"!self.matches('^([^/]+\\.)?(kubernetes\\.io|k8s\\.io|x-k8s\\.io)/')",
            "message": "Kubernetes and Cluster API own the taints of kubernetes.io, k8s.io and x-k8s.io and \
                remove them: use your own domain"
        }])
    )]
    #[garde(length(bytes, min = 1, max = 317), custom(is_not_kubernetes_own))]
    pub key: String,
}

/// The key that the specification names (INI-04).
fn default_not_ready_taint_key() -> String {
    "node.machine.sapcloud.io/instance-not-ready".to_owned()
}

impl Default for NotReadyTaint {
    fn default() -> Self {
        Self {
            key: default_not_ready_taint_key(),
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // garde's signature
fn is_not_kubernetes_own(key: &str, _: &()) -> garde::Result {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let is_own = ["kubernetes.io", "k8s.io", "x-k8s.io"]
        .iter()
        .any(|own| domain == *own || domain.ends_with(&format!(".{own}")));
    if is_own {
        return Err(garde::Error::new(format!(
            "is {key}, a taint of Kubernetes or Cluster API: use your own domain"
        )));
    }
    Ok(())
}

/// The most pools of a machine.
const MAX_POOLS: usize = 8;

/// A pool of an IPAM provider that a machine gets an address from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema, Validate)]
#[serde(rename_all = "camelCase")]
pub struct AddressFromPool {
    /// API group of the pool.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    #[garde(
        length(bytes, min = 1, max = 253),
        pattern(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub api_group: String,
    /// Kind of the pool.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$")
    )]
    #[garde(
        length(bytes, min = 1, max = 63),
        pattern(r"^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$")
    )]
    pub kind: String,
    /// Name of the pool. A namespaced pool must be in this namespace.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    #[garde(
        length(bytes, min = 1, max = 253),
        pattern(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub name: String,
    /// Network of the VM that the address is for, as the driver names it. Default: the first network.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    #[garde(length(bytes, min = 1, max = 253))]
    pub network: Option<String>,
}

/// A Secret in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema, Validate)]
pub struct SecretReference {
    /// Name of the Secret.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    #[garde(
        length(bytes, min = 1, max = 253),
        pattern(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub name: String,
}

/// Observed state of the VM.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("default" = schema::unobserved()))]
pub struct InfraMachineStatus {
    /// Whether the VM was provisioned. For readers of the older contract.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ready: bool,
    /// Initialization as Cluster API reads it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initialization: Option<InfraMachineInitialization>,
    /// Addresses of the VM.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "atomic"))]
    pub addresses: Vec<MachineAddress>,
    /// Failure domain that the VM was placed in.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub failure_domain: Option<String>,
    /// Why creation cannot succeed with this spec: the name of a machine code, like the reason of Ready.
    /// Retried once when the spec or an annotation changes. With contract v1beta2, Cluster API reads the
    /// condition instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub failure_reason: Option<String>,
    /// Details of failureReason.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 10240))]
    pub failure_message: Option<String>,
    /// Ready, Paused, DriverReachable, one for each phase of the VM, Deleting, and NodeJoined,
    /// NotReadyTaintRemoved and VolumesDrained where they apply. Causes and remedies:
    /// <https://github.com/capcmi/cluster-api-provider-cmi/blob/main/docs/reference/reasons.md#reasons>
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Name of the VM's Node, even before it registers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub node_name: Option<String>,
    /// Power state of the VM: Starting, Running, Stopping, Stopped or Failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub power_state: Option<String>,
    /// The last operation, and the time of the next attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_operation: Option<LastOperation>,
    /// Generation that this status describes; -1 before the first reconcile.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1))]
    pub observed_generation: Option<i64>,
}

/// Initialization as Cluster API reads it, before it uses providerID and addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(extend("minProperties" = 1))]
pub struct InfraMachineInitialization {
    /// The VM is created and initialized. Never reverts to false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provisioned: Option<bool>,
}

/// An address of the VM.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct MachineAddress {
    /// Hostname, ExternalIP, InternalIP, ExternalDNS or InternalDNS.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["Hostname", "ExternalIP", "InternalIP", "ExternalDNS", "InternalDNS"]))]
    pub type_: String,
    /// The address.
    #[schemars(length(min = 1, max = 256))]
    pub address: String,
}

/// AlwaysOn starts the VM again when it is found switched off, at most every 5 minutes. Requires a driver
/// that implements GetMachineStatus and RestartMachine. Without this field, the provider starts no existing
/// VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub enum PowerPolicy {
    /// Whenever it is found switched off.
    AlwaysOn,
}

impl PowerPolicy {
    /// The optional calls that the policy requires of a driver.
    pub const CALLS: [Operation; 2] = [Operation::GetMachineStatus, Operation::RestartMachine];
}

/// Type of an operation on a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum OperationType {
    /// Look-up, creation and initialization (INI-16).
    Create,
    /// Update of a running VM.
    Update,
    /// Shutdown and deletion.
    Delete,
}

/// Result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum OperationState {
    /// In progress.
    Processing,
    /// The last call failed: see code and message (INI-17).
    Failed,
    /// Finished.
    Successful,
}

/// The last operation of the driver.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastOperation {
    /// Type of the operation.
    #[serde(rename = "type")]
    pub type_: OperationType,
    /// Result of an operation.
    pub state: OperationState,
    /// The driver call, such as CreateMachine.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub operation: Option<String>,
    /// Name of the machine code of a failed call.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub code: Option<String>,
    /// Message of the driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10240))]
    pub message: Option<String>,
    /// Number of consecutive failures.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub attempts: i32,
    /// Time of this update.
    #[schemars(schema_with = "schema::time")]
    pub last_update_time: Time,
    /// Time of the next call, if nothing changes earlier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub next_retry_time: Option<Time>,
    /// Fingerprint of the inputs of a create that failed for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub inputs: Option<String>,
}

impl LastOperation {
    /// Returns an operation at this time, without a failure or a planned retry.
    pub fn new(type_: OperationType, state: OperationState, operation: Option<&str>, at: Timestamp) -> Self {
        Self {
            type_,
            state,
            operation: operation.map(str::to_owned),
            code: None,
            message: None,
            attempts: 0,
            last_update_time: Time(at),
            next_retry_time: None,
            inputs: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violation_names_the_field_as_the_object_has_it() {
        let fields = (0..=schema::MAX_PROPERTIES).map(|n| (format!("k{n}"), Value::Null));
        let spec = InfraMachineSpec {
            provider_id: Some(String::new()),
            driver: Some("A".to_owned()),
            provider_spec: fields.collect(),
            addresses_from_pools: vec![AddressFromPool::default()],
            secret_ref: Some(SecretReference::default()),
            creation_timeout_seconds: Some(0),
            shutdown_timeout_seconds: Some(-1),
            power_policy: None,
            not_ready_taint: Some(NotReadyTaint {
                key: "node.kubernetes.io/unreachable".to_owned(),
            }),
        };
        let violations = spec.violations();
        let places: Vec<_> = violations
            .iter()
            .filter_map(|text| text.split(':').next())
            .collect();
        let expected = [
            "addressesFromPools[0].apiGroup",
            "addressesFromPools[0].apiGroup",
            "addressesFromPools[0].kind",
            "addressesFromPools[0].kind",
            "addressesFromPools[0].name",
            "addressesFromPools[0].name",
            "creationTimeoutSeconds",
            "driver",
            "notReadyTaint.key",
            "providerID",
            "providerSpec",
            "secretRef.name",
            "secretRef.name",
            "shutdownTimeoutSeconds",
        ];
        assert_eq!(places, expected, "{violations:?}");
        assert!(
            violations[10].contains("257 fields; the limit is 256"),
            "{violations:?}"
        );
        assert_eq!(InfraMachineSpec::default().violations(), Vec::<String>::new());
    }
}
