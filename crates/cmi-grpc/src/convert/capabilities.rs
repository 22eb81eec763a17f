//! The capabilities that a plugin declares on both services.

use std::collections::BTreeSet;
use std::time::Duration;

use super::field::{Field, FieldError, FieldProblem, OBJECT};
use crate::proto::capcmi::v1::{
    GetExtensionCapabilitiesResponse, get_extension_capabilities_response::Call as ExtensionCall,
};
use crate::proto::cmi::v1::plugin_capability::{Rpc, Type, rpc::Type as PluginCall};
use crate::proto::cmi::v1::{GetPluginCapabilitiesResponse, PluginCapability};
use crate::{extension_rpcs, machine_rpcs};
use cmi_driver::{Capabilities, JsonPointer, Operation, Request, SpecSchema};

/// The most bytes of a JSON pointer.
const POINTER: usize = 512;

/// The calls of a service with their capability values: its rpcs, and those that both services have.
macro_rules! declarations {
    ([$call:ident: $($shared:tt)*] $(
        $driver:ident: $method:ident($request:ident $({ $($field:ident),+ })?)
            -> $response:ident, $reply:ident, $declared:ident;
    )+) => {
        &[
            $((<cmi_driver::$driver as Request>::OPERATION, $call::$declared),)+
            $($shared)*
        ]
    };
}

/// The calls of cmi.v1.
const PLUGIN_CALLS: &[(Operation, PluginCall)] = machine_rpcs!(declarations [PluginCall:
    (Operation::GetMachineStatus, PluginCall::GetMachineStatus),
    (Operation::ListMachines, PluginCall::ListMachines),
]);
/// The calls of the extension.
const EXTENSION_CALLS: &[(Operation, ExtensionCall)] = extension_rpcs!(declarations [ExtensionCall:
    (Operation::GetMachineStatus, ExtensionCall::GetMachine),
    (Operation::ListMachines, ExtensionCall::ListMachinesPaged),
]);

/// The capabilities that a plugin's services report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Declaration {
    /// The answer of cmi.v1.
    pub plugin: GetPluginCapabilitiesResponse,
    /// The answer of capcmi.v1; `None` if the plugin does not serve it.
    pub extension: Option<GetExtensionCapabilitiesResponse>,
}

impl From<&Capabilities> for Declaration {
    fn from(capabilities: &Capabilities) -> Self {
        let plugin = declared(PLUGIN_CALLS, capabilities);
        let extension = declared(EXTENSION_CALLS, capabilities);
        Self {
            plugin: GetPluginCapabilitiesResponse {
                capabilities: plugin.map(capability).collect(),
            },
            extension: Some(GetExtensionCapabilitiesResponse {
                calls: extension.map(i32::from).collect(),
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
                    .as_ref()
                    .map(|schema| schema.as_json().to_string().into_bytes())
                    .unwrap_or_default(),
                list_has_state: capabilities.list_has_state,
                address_path: capabilities
                    .address_path
                    .as_ref()
                    .map(ToString::to_string)
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
        capabilities.operations.extend(
            extension
                .calls()
                .filter_map(|call| offered(EXTENSION_CALLS, call)),
        );
        capabilities.zones = extension.zones;
        capabilities.list_has_state = extension.list_has_state;
        capabilities.consistency_window = window(extension.consistency_window)?;
        if let Some(path) = Field("tag_path").optional_text(extension.tag_path, POINTER)? {
            capabilities.tag_path = pointer(Field("tag_path"), &path)?;
        }
        if let Some(path) = Field("address_path").optional_text(extension.address_path, POINTER)? {
            capabilities.address_path = Some(pointer(Field("address_path"), &path)?);
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
            capabilities.provider_spec_schema = Some(SpecSchema::new(schema));
        }
        Ok(capabilities)
    }
}

/// The capability values of the calls that a driver offers.
fn declared<T: Copy>(calls: &[(Operation, T)], capabilities: &Capabilities) -> impl Iterator<Item = T> {
    let offered = calls
        .iter()
        .filter(|(operation, _)| capabilities.supports(*operation));
    offered.map(|(_, call)| *call)
}

/// The call that a plugin offers. Unknown ones are ignored, and required ones need no declaration.
fn offered<T: Copy + PartialEq>(calls: &[(Operation, T)], declared: T) -> Option<Operation> {
    let (operation, _) = calls.iter().find(|(_, call)| *call == declared)?;
    (!operation.is_required()).then_some(*operation)
}

fn capability(call: PluginCall) -> PluginCapability {
    PluginCapability {
        r#type: Some(Type::Rpc(Rpc { r#type: call.into() })),
    }
}

fn declared_by_plugin(response: &GetPluginCapabilitiesResponse) -> BTreeSet<Operation> {
    let declared = response.capabilities.iter();
    declared
        .filter_map(|capability| match &capability.r#type {
            Some(Type::Rpc(rpc)) => offered(PLUGIN_CALLS, rpc.r#type()),
            None => None,
        })
        .collect()
}

fn pointer(field: Field, text: &str) -> Result<JsonPointer, FieldError> {
    text.parse()
        .map_err(|_| field.wrong(FieldProblem::Malformed("is not a JSON pointer to a field")))
}

fn window(message: Option<prost_types::Duration>) -> Result<Duration, FieldError> {
    let Some(message) = message else {
        return Ok(Duration::ZERO);
    };
    message
        .try_into()
        .map_err(|_| Field("consistency_window").wrong(FieldProblem::Malformed("is negative")))
}

/// `None` without a window. A window of more seconds than the message can hold becomes the longest that it
/// can.
fn window_message(window: Duration) -> Option<prost_types::Duration> {
    let longest = prost_types::Duration {
        seconds: i64::MAX,
        nanos: 0,
    };
    (!window.is_zero()).then(|| window.try_into().unwrap_or(longest))
}
