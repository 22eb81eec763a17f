//! What a plugin declares, on both services.

use std::collections::BTreeSet;
use std::time::Duration;

use super::field::{Field, FieldError, FieldProblem, OBJECT};
use crate::proto::capcmi::v1::{GetExtensionCapabilitiesResponse, get_extension_capabilities_response::Call};
use crate::proto::cmi::v1::plugin_capability::{Rpc, Type, rpc};
use crate::proto::cmi::v1::{GetPluginCapabilitiesResponse, PluginCapability};
use cmi_driver::{Capabilities, JsonPointer, Operation};

/// The most bytes of a JSON pointer.
const POINTER: usize = 512;

/// The answers of a plugin's services to what they offer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Declaration {
    /// Of cmi.v1.
    pub plugin: GetPluginCapabilitiesResponse,
    /// Of capcmi.v1; none when the plugin does not serve it.
    pub extension: Option<GetExtensionCapabilitiesResponse>,
}

impl From<Capabilities> for Declaration {
    fn from(capabilities: Capabilities) -> Self {
        let offered = || {
            let all = Operation::ALL.into_iter();
            all.filter(|operation| capabilities.offers(*operation))
        };
        Self {
            plugin: GetPluginCapabilitiesResponse {
                capabilities: offered().filter_map(plugin_call).map(capability).collect(),
            },
            extension: Some(GetExtensionCapabilitiesResponse {
                calls: offered().filter_map(extension_call).map(i32::from).collect(),
                zones: capabilities.zones,
                consistency_window: window_message(capabilities.consistency_window),
                tag_path: capabilities.tag_path.to_string(),
                hot_updatable: capabilities
                    .hot_updatable
                    .iter()
                    .map(ToString::to_string)
                    .collect(),
                provider_spec_schema: capabilities
                    .provider_spec_schema
                    .map(|schema| schema.to_string().into_bytes())
                    .unwrap_or_default(),
            }),
        }
    }
}

impl TryFrom<Declaration> for Capabilities {
    type Error = FieldError;

    /// A call is offered when either service declares it.
    fn try_from(declaration: Declaration) -> Result<Self, FieldError> {
        let mut capabilities = Self {
            operations: declared_by_plugin(&declaration.plugin),
            ..Self::minimal()
        };
        let Some(extension) = declaration.extension else {
            return Ok(capabilities);
        };
        capabilities
            .operations
            .extend(extension.calls().filter_map(call_operation));
        capabilities.zones = extension.zones;
        capabilities.consistency_window = window(extension.consistency_window)?;
        if let Some(path) = Field("tag_path").optional_text(extension.tag_path, POINTER)? {
            capabilities.tag_path = pointer(Field("tag_path"), &path)?;
        }
        let places = extension.hot_updatable.into_iter();
        capabilities.hot_updatable = places
            .map(|place| {
                let field = Field("hot_updatable");
                pointer(field, &field.text(place, POINTER)?)
            })
            .collect::<Result<_, _>>()?;
        if !extension.provider_spec_schema.is_empty() {
            let schema =
                Field("provider_spec_schema").json(&extension.provider_spec_schema, OBJECT, "schema")?;
            capabilities.provider_spec_schema = Some(schema);
        }
        Ok(capabilities)
    }
}

fn capability(call: rpc::Type) -> PluginCapability {
    PluginCapability {
        r#type: Some(Type::Rpc(Rpc { r#type: call.into() })),
    }
}

fn declared_by_plugin(response: &GetPluginCapabilitiesResponse) -> BTreeSet<Operation> {
    let declared = response.capabilities.iter();
    declared
        .filter_map(|capability| match &capability.r#type {
            Some(Type::Rpc(rpc)) => rpc_operation(rpc.r#type()),
            None => None,
        })
        .collect()
}

/// The capability of cmi.v1 that stands for a call.
fn plugin_call(operation: Operation) -> Option<rpc::Type> {
    match operation {
        Operation::CreateMachine => Some(rpc::Type::CreateMachine),
        Operation::DeleteMachine => Some(rpc::Type::DeleteMachine),
        Operation::GetMachineStatus => Some(rpc::Type::GetMachineStatus),
        Operation::ListMachines => Some(rpc::Type::ListMachines),
        Operation::ShutDownMachine => Some(rpc::Type::ShutdownMachine),
        Operation::GetVolumeIds => Some(rpc::Type::GetVolumeIds),
        Operation::InitializeMachine
        | Operation::UpdateMachine
        | Operation::GenerateMachineClassForMigration
        | Operation::ListZones
        | Operation::DescribeClass
        | Operation::Probe
        | Operation::GetPluginInfo
        | Operation::GetPluginCapabilities => None,
    }
}

/// The optional call that a capability of cmi.v1 stands for.
fn rpc_operation(call: rpc::Type) -> Option<Operation> {
    match call {
        // Unknown ones are ignored, required ones need no declaration.
        rpc::Type::Unknown | rpc::Type::CreateMachine | rpc::Type::DeleteMachine => None,
        rpc::Type::GetMachineStatus => Some(Operation::GetMachineStatus),
        rpc::Type::ListMachines => Some(Operation::ListMachines),
        rpc::Type::ShutdownMachine => Some(Operation::ShutDownMachine),
        rpc::Type::GetVolumeIds => Some(Operation::GetVolumeIds),
    }
}

/// The call of the extension that stands for a call of the driver.
fn extension_call(operation: Operation) -> Option<Call> {
    match operation {
        Operation::InitializeMachine => Some(Call::InitializeMachine),
        Operation::UpdateMachine => Some(Call::UpdateMachine),
        Operation::GenerateMachineClassForMigration => Some(Call::GenerateMachineClassForMigration),
        Operation::GetMachineStatus => Some(Call::GetMachine),
        Operation::ListMachines => Some(Call::ListMachinesPaged),
        Operation::ListZones => Some(Call::ListZones),
        Operation::DescribeClass => Some(Call::DescribeClass),
        Operation::CreateMachine
        | Operation::DeleteMachine
        | Operation::ShutDownMachine
        | Operation::GetVolumeIds
        | Operation::Probe
        | Operation::GetPluginInfo
        | Operation::GetPluginCapabilities => None,
    }
}

/// The call of the driver that a call of the extension stands for.
fn call_operation(call: Call) -> Option<Operation> {
    match call {
        Call::Unspecified => None,
        Call::InitializeMachine => Some(Operation::InitializeMachine),
        Call::UpdateMachine => Some(Operation::UpdateMachine),
        Call::GenerateMachineClassForMigration => Some(Operation::GenerateMachineClassForMigration),
        Call::GetMachine => Some(Operation::GetMachineStatus),
        Call::ListMachinesPaged => Some(Operation::ListMachines),
        Call::ListZones => Some(Operation::ListZones),
        Call::DescribeClass => Some(Operation::DescribeClass),
    }
}

fn pointer(field: Field, text: &str) -> Result<JsonPointer, FieldError> {
    text.parse()
        .map_err(|_| field.wrong(FieldProblem::Malformed("is no JSON pointer to a field")))
}

fn window(message: Option<prost_types::Duration>) -> Result<Duration, FieldError> {
    let Some(message) = message else {
        return Ok(Duration::ZERO);
    };
    message
        .try_into()
        .map_err(|_| Field("consistency_window").wrong(FieldProblem::Malformed("is before zero")))
}

/// None for no window. One of more seconds than the message can hold is as long as it can say.
fn window_message(window: Duration) -> Option<prost_types::Duration> {
    let longest = prost_types::Duration {
        seconds: i64::MAX,
        nanos: 0,
    };
    (!window.is_zero()).then(|| window.try_into().unwrap_or(longest))
}
