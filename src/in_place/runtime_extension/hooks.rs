//! The wire format of the hooks: `hooks.runtime.cluster.x-k8s.io/v1alpha1`, only with the used fields.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use json_patch::jsonptr::Pointer;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::progress::Progress;
use super::{brief, is_of_group};
use crate::api::identity::VmRecord;

/// Group and version of every hook.
const API_VERSION: &str = "hooks.runtime.cluster.x-k8s.io/v1alpha1";
/// How long Cluster API waits for an answer. No answer waits for a driver's back end.
const TIMEOUT_SECONDS: u32 = 10;

/// A hook of the extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Lists the served hooks.
    Discovery,
    /// Whether the machines of a MachineSet can get the spec of another MachineSet.
    CanUpdateMachineSet,
    /// Whether a machine of a control plane can get another spec.
    CanUpdateMachine,
    /// Updates a machine to its new spec.
    UpdateMachine,
}

impl Hook {
    /// The hooks that Discovery lists.
    const HANDLED: [Self; 3] = [
        Self::CanUpdateMachineSet,
        Self::CanUpdateMachine,
        Self::UpdateMachine,
    ];

    /// The hook's name.
    const fn name(self) -> &'static str {
        match self {
            Self::Discovery => "Discovery",
            Self::CanUpdateMachineSet => "CanUpdateMachineSet",
            Self::CanUpdateMachine => "CanUpdateMachine",
            Self::UpdateMachine => "UpdateMachine",
        }
    }

    /// The name of the hook's handler, which is part of the path.
    const fn handler(self) -> Option<&'static str> {
        match self {
            Self::Discovery => None,
            Self::CanUpdateMachineSet => Some("can-update-machine-set"),
            Self::CanUpdateMachine => Some("can-update-machine"),
            Self::UpdateMachine => Some("update-machine"),
        }
    }

    /// The path of the hook.
    pub fn path(self) -> String {
        let hook = self.name().to_lowercase();
        match self.handler() {
            Some(handler) => format!("/{API_VERSION}/{hook}/{handler}"),
            None => format!("/{API_VERSION}/{hook}"),
        }
    }
}

/// The common fields of every answer. A success may have an empty message. After a failure, Cluster API asks
/// again.
pub fn response(hook: Hook, result: Result<&str, &str>) -> Value {
    let (status, message) = match result {
        Ok(message) => ("Success", message),
        Err(why) => ("Failure", why),
    };
    let kind = format!("{}Response", hook.name());
    let mut response = json!({"apiVersion": API_VERSION, "kind": kind, "status": status});
    if !message.is_empty() {
        response["message"] = json!(message);
    }
    response
}

/// The answer to Discovery: all hooks that are served.
pub fn discovered() -> Value {
    let handlers = Hook::HANDLED.into_iter().filter_map(|hook| {
        Some(json!({
            "name": hook.handler()?,
            "requestHook": {"apiVersion": API_VERSION, "hook": hook.name()},
            "timeoutSeconds": TIMEOUT_SECONDS,
            // A failed call is repeated. To ignore it would be to decide without an answer.
            "failurePolicy": "Fail",
        }))
    });
    let mut response = response(Hook::Discovery, Ok(""));
    response["handlers"] = handlers.collect();
    response
}

/// The largest spec, as JSON. The API accepts a provider spec of 64 KiB, and Go escapes some bytes as six.
/// Parsed JSON takes many times as much memory.
const MAX_SPEC_BYTES: usize = 512 * 1024;

/// An infrastructure object or template of any provider.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Infrastructure {
    /// Group and version.
    #[serde(default)]
    pub api_version: String,
    /// Kind.
    #[serde(default)]
    pub kind: String,
    /// Name, namespace and the needed labels and annotations.
    pub metadata: Metadata,
    /// The original spec, including fields that this provider's version does not know.
    spec: Box<RawValue>,
}

/// The metadata of an object.
#[derive(Debug, Deserialize)]
pub struct Metadata {
    /// Name.
    #[serde(default)]
    pub name: String,
    /// Namespace.
    #[serde(default)]
    pub namespace: String,
    /// The needed annotations.
    #[serde(default)]
    pub annotations: Annotations,
    /// The needed labels.
    #[serde(default)]
    pub labels: Labels,
}

/// The annotations that the provider reads.
#[derive(Debug, Default, Deserialize)]
pub struct Annotations {
    /// [`crate::api::annotations::VM_RECORD`]
    #[serde(rename = "infrastructure.capcmi.io/vm-record")]
    pub vm_record: Option<String>,
}

/// The labels that the provider reads.
#[derive(Debug, Default, Deserialize)]
pub struct Labels {
    /// [`crate::api::labels::WATCH_FILTER`]
    #[serde(rename = "cluster.x-k8s.io/watch-filter")]
    pub watch_filter: Option<String>,
}

impl Metadata {
    /// The recorded driver of the machine's VM, if any.
    pub fn recorded_driver(&self) -> Option<String> {
        let record = VmRecord::parse(self.annotations.vm_record.as_deref()?).ok()?;
        Some(record.made_from?.driver)
    }
}

impl Infrastructure {
    /// Whether the object has this provider's group and the kind of the hook.
    pub fn is_ours<T: Objects>(&self) -> bool {
        is_of_group(&self.api_version) && self.kind == T::KIND
    }

    /// The spec.
    ///
    /// # Errors
    /// It is larger than the API server accepts, or has another form.
    pub fn spec<S: DeserializeOwned>(&self) -> Result<S, String> {
        let json = self.spec.get();
        if json.len() > MAX_SPEC_BYTES {
            let length = json.len();
            return Err(format!("spec has {length} bytes; the limit is {MAX_SPEC_BYTES}"));
        }
        serde_json::from_str(json).map_err(|error| format!("cannot read spec: {}", brief(&error)))
    }

    /// The spec of the InfraMachine, or of the template's InfraMachine.
    ///
    /// # Errors
    /// As [`Infrastructure::spec`], or it has none.
    pub fn machine_spec<T: Objects>(&self) -> Result<Map<String, Value>, String> {
        let within = T::SPEC.as_str().trim_start_matches("/spec");
        let spec: Value = self.spec()?;
        let found = spec.pointer(within).and_then(Value::as_object);
        found
            .cloned()
            .ok_or_else(|| format!("{} is not an object", T::SPEC))
    }
}

/// A request that asks whether the current objects can become the desired objects.
#[derive(Debug, Deserialize)]
pub struct CanUpdateRequest<T> {
    /// The current objects.
    pub current: T,
    /// The desired objects.
    pub desired: T,
}

/// The objects of a request.
pub trait Objects {
    /// The kind of the infrastructure object.
    const KIND: &'static str;
    /// The path of the InfraMachine's spec in the object. A patch may change nothing else.
    const SPEC: &'static Pointer;
    /// The hook of the request.
    const HOOK: Hook;
    /// The answer's field for the patch.
    const PATCH: &'static str;

    /// The infrastructure object.
    fn infrastructure(&self) -> &Infrastructure;

    /// Whether its machines have a bootstrap configuration. Cluster API's Machine controller calls
    /// UpdateMachine only for such machines. For any other machine, an update would never end.
    fn has_bootstrap_config(&self) -> bool;
}

/// The answer that the patched fields can be updated in place. It has no patch if the patch is empty.
pub fn patched<T: Objects>(patch: &json_patch::Patch) -> Value {
    let mut response = response(T::HOOK, Ok(""));
    if !patch.is_empty() {
        // Base64, as Go writes bytes.
        let patch = BASE64_STANDARD.encode(patch.to_string());
        response[T::PATCH] = json!({"patchType": "JSONPatch", "patch": patch});
    }
    response
}

/// The objects of CanUpdateMachineSet.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CanUpdateMachineSetObjects {
    machine_set: MachineSet,
    infrastructure_machine_template: Infrastructure,
}

/// The needed field of a MachineSet: whether its machines have a bootstrap configuration.
#[derive(Debug, Deserialize)]
struct MachineSet {
    spec: MachineSetSpec,
}

#[derive(Debug, Deserialize)]
struct MachineSetSpec {
    template: MachineTemplate,
}

#[derive(Debug, Deserialize)]
struct MachineTemplate {
    spec: MachineTemplateSpec,
}

#[derive(Debug, Deserialize)]
struct MachineTemplateSpec {
    #[serde(default)]
    bootstrap: Bootstrap,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bootstrap {
    config_ref: Option<ConfigRef>,
}

#[derive(Debug, Deserialize)]
struct ConfigRef {
    #[serde(default)]
    name: String,
}

/// The objects of CanUpdateMachine.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CanUpdateMachineObjects {
    infrastructure_machine: Infrastructure,
}

impl Objects for CanUpdateMachineSetObjects {
    const KIND: &'static str = "InfraMachineTemplate";
    const SPEC: &'static Pointer = Pointer::from_static("/spec/template/spec");
    const HOOK: Hook = Hook::CanUpdateMachineSet;
    const PATCH: &'static str = "infrastructureMachineTemplatePatch";

    fn infrastructure(&self) -> &Infrastructure {
        &self.infrastructure_machine_template
    }

    fn has_bootstrap_config(&self) -> bool {
        let reference = &self.machine_set.spec.template.spec.bootstrap.config_ref;
        reference
            .as_ref()
            .is_some_and(|reference| !reference.name.is_empty())
    }
}

impl Objects for CanUpdateMachineObjects {
    const KIND: &'static str = "InfraMachine";
    const SPEC: &'static Pointer = Pointer::from_static("/spec");
    const HOOK: Hook = Hook::CanUpdateMachine;
    const PATCH: &'static str = "infrastructureMachinePatch";

    fn infrastructure(&self) -> &Infrastructure {
        &self.infrastructure_machine
    }

    /// Every machine of a control plane has a bootstrap configuration.
    fn has_bootstrap_config(&self) -> bool {
        true
    }
}

/// A request to update a machine.
#[derive(Debug, Deserialize)]
pub struct UpdateMachineRequest {
    /// The desired objects.
    pub desired: UpdateMachineObjects,
}

/// The objects of a machine.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdateMachineObjects {
    /// The infrastructure object.
    pub infrastructure_machine: Infrastructure,
}

/// The answer to UpdateMachine: the progress, or why it is unknown.
///
/// A failure of the driver does not fail the call. Cluster API shows the message of an update in progress in
/// the Machine's condition `Updating`, but logs the message of a failed call only.
pub fn updated(progress: Result<&Progress, &str>) -> Value {
    let (result, retry_after) = match progress {
        Ok(Progress::Done) => (Ok(""), 0),
        Ok(Progress::NotRequested) => (Ok("the VM update is queued"), 1),
        Ok(Progress::Updating { message, retry_after }) => (Ok(&**message), retry_after.as_secs().max(1)),
        Err(why) => (Err(why), 0),
    };
    let mut response = response(Hook::UpdateMachine, result);
    // 0 means that the update is done.
    response["retryAfterSeconds"] = json!(retry_after);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message is written to logs.
    #[test]
    fn a_spec_that_cannot_be_read_is_quoted_in_part() {
        let object = json!({"metadata": {}, "spec": "x".repeat(100_000)});
        let object: Infrastructure = serde_json::from_str(&object.to_string()).unwrap();
        let error = object.spec::<Map<String, Value>>().unwrap_err();
        assert!(error.len() < 300 && error.contains("xxx"), "{error}");
        assert!(object.machine_spec::<CanUpdateMachineObjects>().is_err());
        let large = json!({"metadata": {}, "spec": {"a": "x".repeat(MAX_SPEC_BYTES)}});
        let large: Infrastructure = serde_json::from_str(&large.to_string()).unwrap();
        let error = large.machine_spec::<CanUpdateMachineObjects>().unwrap_err();
        assert!(error.contains("the limit is"), "{error}");
    }

    /// `GVHToPath` of Cluster API's catalog.
    #[test]
    fn hooks_are_where_cluster_api_calls_them() {
        assert_eq!(
            Hook::Discovery.path(),
            "/hooks.runtime.cluster.x-k8s.io/v1alpha1/discovery"
        );
        assert_eq!(
            Hook::CanUpdateMachineSet.path(),
            "/hooks.runtime.cluster.x-k8s.io/v1alpha1/canupdatemachineset/can-update-machine-set"
        );
    }

    #[test]
    fn every_hook_but_the_discovery_is_discovered() {
        let answer = discovered();
        assert_eq!(
            (&answer["kind"], &answer["status"]),
            (&json!("DiscoveryResponse"), &json!("Success"))
        );
        assert_eq!(
            answer["handlers"][2],
            json!({
                "name": "update-machine", "timeoutSeconds": 10, "failurePolicy": "Fail",
                "requestHook": {"apiVersion": API_VERSION, "hook": "UpdateMachine"},
            })
        );
        assert_eq!(answer["handlers"].as_array().map(Vec::len), Some(3));
    }

    #[test]
    fn a_patch_is_a_json_patch_in_base64() {
        let patch = json!([{"op": "add", "path": "/spec/template/spec/shutdownTimeoutSeconds", "value": 5}]);
        let parsed = serde_json::from_value(patch.clone()).unwrap();
        let answer = patched::<CanUpdateMachineSetObjects>(&parsed);
        let answered = &answer["infrastructureMachineTemplatePatch"];
        assert_eq!(answered["patchType"], "JSONPatch");
        let decoded = BASE64_STANDARD
            .decode(answered["patch"].as_str().unwrap())
            .unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&decoded).unwrap(), patch);
        let unchanged = patched::<CanUpdateMachineObjects>(&json_patch::Patch::default());
        assert!(
            unchanged.get("infrastructureMachinePatch").is_none(),
            "{unchanged}"
        );
    }
}
