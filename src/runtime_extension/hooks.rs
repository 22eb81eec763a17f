//! The hooks on the wire: `hooks.runtime.cluster.x-k8s.io/v1alpha1`, and only the fields that are used.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use json_patch::jsonptr::Pointer;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::progress::Progress;
use super::{brief, is_of_group};

/// Group and version of every hook.
const API_VERSION: &str = "hooks.runtime.cluster.x-k8s.io/v1alpha1";
/// How long Cluster API waits for an answer. None waits for a driver's back end.
const TIMEOUT_SECONDS: u32 = 10;

/// What is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Which hooks are served.
    Discovery,
    /// Whether the machines of a MachineSet can get the spec of another one.
    CanUpdateMachineSet,
    /// Whether a machine of a control plane can.
    CanUpdateMachine,
    /// Bring a machine to the spec that it has got.
    UpdateMachine,
}

impl Hook {
    /// What a discovery names.
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

    /// The name of its handler, which is part of the path.
    const fn handler(self) -> Option<&'static str> {
        match self {
            Self::Discovery => None,
            Self::CanUpdateMachineSet => Some("can-update-machine-set"),
            Self::CanUpdateMachine => Some("can-update-machine"),
            Self::UpdateMachine => Some("update-machine"),
        }
    }

    /// Where Cluster API calls it.
    pub fn path(self) -> String {
        let hook = self.name().to_lowercase();
        match self.handler() {
            Some(handler) => format!("/{API_VERSION}/{hook}/{handler}"),
            None => format!("/{API_VERSION}/{hook}"),
        }
    }
}

/// How a call went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ResponseStatus {
    /// It is answered.
    Success,
    /// It can't be, now: Cluster API asks again.
    Failure,
}

/// What every answer begins with.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Common {
    api_version: &'static str,
    kind: String,
    status: ResponseStatus,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
}

impl Common {
    fn new(hook: Hook, status: ResponseStatus, message: impl Into<String>) -> Self {
        Self {
            api_version: API_VERSION,
            kind: format!("{}Response", hook.name()),
            status,
            message: message.into(),
        }
    }
}

/// The answer to Discovery.
#[derive(Debug, Serialize)]
pub struct DiscoveryResponse {
    #[serde(flatten)]
    common: Common,
    handlers: Vec<Handler>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Handler {
    name: &'static str,
    request_hook: RequestHook,
    timeout_seconds: u32,
    failure_policy: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RequestHook {
    api_version: &'static str,
    hook: &'static str,
}

impl DiscoveryResponse {
    /// All that is served.
    pub fn answer() -> Self {
        let handlers = Hook::HANDLED.into_iter().filter_map(|hook| {
            Some(Handler {
                name: hook.handler()?,
                request_hook: RequestHook {
                    api_version: API_VERSION,
                    hook: hook.name(),
                },
                timeout_seconds: TIMEOUT_SECONDS,
                // A call that fails is repeated: to ignore it would be to decide without an answer.
                failure_policy: "Fail",
            })
        });
        Self {
            common: Common::new(Hook::Discovery, ResponseStatus::Success, ""),
            handlers: handlers.collect(),
        }
    }
}

/// The most that a spec may have, as JSON: the API takes 64 KiB of a provider spec, of which Go writes some
/// bytes as six. What is read of JSON takes many times as much memory.
const MAX_SPEC_BYTES: usize = 512 * 1024;

/// An infrastructure object, or a template of one, of any provider.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Infrastructure {
    /// Group and version.
    #[serde(default)]
    pub api_version: String,
    /// Kind.
    #[serde(default)]
    pub kind: String,
    /// Which one.
    pub metadata: Metadata,
    /// Its spec, with what this provider's version does not know, as it was sent.
    spec: Box<RawValue>,
}

/// Which object.
#[derive(Debug, Deserialize)]
pub struct Metadata {
    /// Name.
    #[serde(default)]
    pub name: String,
    /// Namespace.
    #[serde(default)]
    pub namespace: String,
    /// The annotations that are looked at.
    #[serde(default)]
    pub annotations: Annotations,
    /// The labels that are looked at.
    #[serde(default)]
    pub labels: Labels,
}

/// Of the annotations, those that are looked at.
#[derive(Debug, Default, Deserialize)]
pub struct Annotations {
    /// [`crate::api::labels::DRIVER`]
    #[serde(rename = "infrastructure.capcmi.io/driver")]
    pub driver: Option<String>,
}

/// Of the labels, those that are looked at.
#[derive(Debug, Default, Deserialize)]
pub struct Labels {
    /// [`crate::api::labels::WATCH_FILTER`]
    #[serde(rename = "cluster.x-k8s.io/watch-filter")]
    pub watch_filter: Option<String>,
}

impl Infrastructure {
    /// Whether it is of the kind that is asked about, and this provider's.
    pub fn is_ours<T: Objects>(&self) -> bool {
        is_of_group(&self.api_version) && self.kind == T::KIND
    }

    /// The spec.
    ///
    /// # Errors
    /// It is larger than the API server takes, or of another form.
    pub fn spec<S: DeserializeOwned>(&self) -> Result<S, String> {
        let json = self.spec.get();
        if json.len() > MAX_SPEC_BYTES {
            let length = json.len();
            return Err(format!(
                "spec has {length} bytes; at most {MAX_SPEC_BYTES} are read"
            ));
        }
        serde_json::from_str(json).map_err(|error| format!("spec can't be read: {}", brief(&error)))
    }

    /// The spec of the InfraMachine that it is, or is a template of.
    ///
    /// # Errors
    /// As [`Infrastructure::spec`], or it has none.
    pub fn machine_spec<T: Objects>(&self) -> Result<Map<String, Value>, String> {
        let within = T::SPEC.as_str().trim_start_matches("/spec");
        let spec: Value = self.spec()?;
        let found = spec.pointer(within).and_then(Value::as_object);
        found.cloned().ok_or_else(|| format!("{} is no object", T::SPEC))
    }
}

/// A question whether what is there can become what is desired.
#[derive(Debug, Deserialize)]
pub struct CanUpdateRequest<T> {
    /// What is there.
    pub current: T,
    /// What it is to become.
    pub desired: T,
}

/// The objects that one of the questions is about.
pub trait Objects {
    /// The kind of the infrastructure object.
    const KIND: &'static str;
    /// Where in it the spec of the InfraMachine is, and what a patch may change.
    const SPEC: &'static Pointer;
    /// What it is answered with.
    type Response: Serialize;

    /// The infrastructure object.
    fn infrastructure(&self) -> &Infrastructure;

    /// Whether its machines have a bootstrap configuration. Cluster API's Machine controller calls
    /// UpdateMachine for no other: an update that was begun would never end.
    fn has_bootstrap_config(&self) -> bool;

    /// Nothing of it can be updated in place.
    fn unchanged() -> Self::Response {
        Self::patched(json_patch::Patch::default())
    }

    /// This can.
    fn patched(patch: json_patch::Patch) -> Self::Response;

    /// It is not known now.
    fn failed(why: &str) -> Self::Response;
}

/// What CanUpdateMachineSet is about.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CanUpdateMachineSetObjects {
    machine_set: MachineSet,
    infrastructure_machine_template: Infrastructure,
}

/// What is read of a MachineSet: whether its machines have a bootstrap configuration.
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

/// What CanUpdateMachine is about.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CanUpdateMachineObjects {
    infrastructure_machine: Infrastructure,
}

/// The answer to CanUpdateMachineSet.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CanUpdateMachineSetResponse {
    #[serde(flatten)]
    common: Common,
    #[serde(skip_serializing_if = "Option::is_none")]
    infrastructure_machine_template_patch: Option<Patch>,
}

/// The answer to CanUpdateMachine.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CanUpdateMachineResponse {
    #[serde(flatten)]
    common: Common,
    #[serde(skip_serializing_if = "Option::is_none")]
    infrastructure_machine_patch: Option<Patch>,
}

impl Objects for CanUpdateMachineSetObjects {
    const KIND: &'static str = "InfraMachineTemplate";
    const SPEC: &'static Pointer = Pointer::from_static("/spec/template/spec");
    type Response = CanUpdateMachineSetResponse;

    fn infrastructure(&self) -> &Infrastructure {
        &self.infrastructure_machine_template
    }

    fn has_bootstrap_config(&self) -> bool {
        let reference = &self.machine_set.spec.template.spec.bootstrap.config_ref;
        reference
            .as_ref()
            .is_some_and(|reference| !reference.name.is_empty())
    }

    fn patched(patch: json_patch::Patch) -> Self::Response {
        CanUpdateMachineSetResponse {
            common: Common::new(Hook::CanUpdateMachineSet, ResponseStatus::Success, ""),
            infrastructure_machine_template_patch: Patch::of(&patch),
        }
    }

    fn failed(why: &str) -> Self::Response {
        CanUpdateMachineSetResponse {
            common: Common::new(Hook::CanUpdateMachineSet, ResponseStatus::Failure, why),
            infrastructure_machine_template_patch: None,
        }
    }
}

impl Objects for CanUpdateMachineObjects {
    const KIND: &'static str = "InfraMachine";
    const SPEC: &'static Pointer = Pointer::from_static("/spec");
    type Response = CanUpdateMachineResponse;

    fn infrastructure(&self) -> &Infrastructure {
        &self.infrastructure_machine
    }

    /// Those of a control plane have one each.
    fn has_bootstrap_config(&self) -> bool {
        true
    }

    fn patched(patch: json_patch::Patch) -> Self::Response {
        CanUpdateMachineResponse {
            common: Common::new(Hook::CanUpdateMachine, ResponseStatus::Success, ""),
            infrastructure_machine_patch: Patch::of(&patch),
        }
    }

    fn failed(why: &str) -> Self::Response {
        CanUpdateMachineResponse {
            common: Common::new(Hook::CanUpdateMachine, ResponseStatus::Failure, why),
            infrastructure_machine_patch: None,
        }
    }
}

/// A patch of an object.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Patch {
    patch_type: &'static str,
    /// JSON in base64, as Go writes bytes.
    patch: String,
}

impl Patch {
    fn of(patch: &json_patch::Patch) -> Option<Self> {
        (!patch.is_empty()).then(|| Self {
            patch_type: "JSONPatch",
            patch: BASE64_STANDARD.encode(patch.to_string()),
        })
    }
}

/// What has to be brought where.
#[derive(Debug, Deserialize)]
pub struct UpdateMachineRequest {
    /// The objects as they have to be.
    pub desired: UpdateMachineObjects,
}

/// The objects of a machine.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdateMachineObjects {
    /// The infrastructure object.
    pub infrastructure_machine: Infrastructure,
}

/// The answer to UpdateMachine.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdateMachineResponse {
    #[serde(flatten)]
    common: Common,
    /// 0 where the update is done.
    retry_after_seconds: u64,
}

impl UpdateMachineResponse {
    /// How far it is. A failure of the driver is no failure of the call: Cluster API shows the message of one
    /// that goes on in the Machine's condition `Updating`, and that of a failure in its log alone.
    pub fn of(progress: &Progress) -> Self {
        let (message, retry_after) = match progress {
            Progress::Done => (String::new(), 0),
            Progress::NotRequested => ("the VM is about to be updated".to_owned(), 1),
            Progress::Updating { message, retry_after } => (message.clone(), retry_after.as_secs().max(1)),
        };
        Self {
            common: Common::new(Hook::UpdateMachine, ResponseStatus::Success, message),
            retry_after_seconds: retry_after,
        }
    }

    /// It is not known how far it is.
    pub fn failed(why: impl Into<String>) -> Self {
        Self {
            common: Common::new(Hook::UpdateMachine, ResponseStatus::Failure, why),
            retry_after_seconds: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The answer goes into logs.
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
        assert!(error.contains("at most"), "{error}");
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
        let answer = serde_json::to_value(DiscoveryResponse::answer()).unwrap();
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
        let answer = serde_json::to_value(CanUpdateMachineSetObjects::patched(parsed)).unwrap();
        let answered = &answer["infrastructureMachineTemplatePatch"];
        assert_eq!(answered["patchType"], "JSONPatch");
        let decoded = BASE64_STANDARD
            .decode(answered["patch"].as_str().unwrap())
            .unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&decoded).unwrap(), patch);
        let unchanged = serde_json::to_value(CanUpdateMachineObjects::unchanged()).unwrap();
        assert!(
            unchanged.get("infrastructureMachinePatch").is_none(),
            "{unchanged}"
        );
    }
}
