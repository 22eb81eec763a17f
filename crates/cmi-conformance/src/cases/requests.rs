//! Requests as bytes, for the cases of the wire.

use std::collections::HashMap;
use std::time::Duration;

use prost::Message as _;

use crate::answer::{CaseError, CaseResult};
pub(super) use crate::wire::PROBE;
use crate::wire::{RawAnswer, call};
use crate::{MachineRequest, TestContext};
use cmi_driver::{Code, Operation};
use cmi_grpc::proto::{capcmi::v1 as capcmi, cmi::v1 as cmi};

pub(super) const INFO: &str = "/cmi.v1.Identity/GetPluginInfo";
pub(super) const CAPABILITIES: &str = "/cmi.v1.Identity/GetPluginCapabilities";
pub(super) const EXTENSION: &str = "/capcmi.v1.MachineExtension/GetExtensionCapabilities";

/// The fields of requests, with their names in `proto/`.
#[derive(Clone, Default)]
pub(super) struct Fields {
    pub machine_name: String,
    pub provider_spec: Vec<u8>,
    pub secrets: HashMap<String, Vec<u8>>,
    pub provider_id: String,
    pub last_applied_provider_spec: Vec<u8>,
    pub last_known_state: Vec<u8>,
    pub pv_spec_list: Vec<u8>,
    pub page_size: i32,
    pub page_token: String,
}

/// The paths of rpcs and their requests: each has the fields that are sent, or the values that are sent in
/// their place.
macro_rules! rpcs {
    ($($service:literal of $messages:ident {$(
        $path:ident = $rpc:ident($message:ident { $($field:ident $(: $value:expr)?),+ $(,)? });
    )+})+) => {
        $($(pub(super) const $path: &str = concat!($service, stringify!($rpc));)+)+

        impl Fields {
            /// Returns the request of the rpc with this path.
            pub fn request(&self, path: &str) -> Vec<u8> {
                let fields = self.clone();
                match path {
                    $($($path => {
                        let mut message = $messages::$message::default();
                        $(message.$field = rpcs!(@ fields.$field $($value)?);)+
                        message.encode_to_vec()
                    })+)+
                    // Requests about the plugin itself have no fields.
                    _ => Vec::new(),
                }
            }
        }
    };
    (@ $fields:ident.$field:ident) => { $fields.$field };
    (@ $fields:ident.$field:ident $value:expr) => { $value };
}

rpcs! {
    "/cmi.v1.Machine/" of cmi {
        CREATE = CreateMachine(CreateMachineRequest {
            machine_name, provider_spec, secrets, last_known_state
        });
        DELETE = DeleteMachine(DeleteMachineRequest {
            machine_name, provider_spec, secrets, last_known_state
        });
        STATUS = GetMachineStatus(GetMachineStatusRequest { machine_name, provider_spec, secrets });
        LIST = ListMachines(ListMachinesRequest { provider_spec, secrets });
        SHUT_DOWN = ShutDownMachine(ShutDownMachineRequest {
            machine_name, provider_spec, secrets, last_known_state
        });
        VOLUMES = GetVolumeIDs(GetVolumeIDsRequest { pv_spec_list });
    }
    "/capcmi.v1.MachineExtension/" of capcmi {
        INITIALIZE = InitializeMachine(InitializeMachineRequest { machine_name, provider_spec, secrets });
        UPDATE = UpdateMachine(UpdateMachineRequest {
            machine_name, provider_spec, secrets, provider_id, last_applied_provider_spec
        });
        MIGRATE = GenerateMachineClassForMigration(GenerateMachineClassForMigrationRequest {
            provider_specific_machine_class: b"{}".to_vec(),
            machine_class: b"{}".to_vec(),
            class_api_group: "example.com".to_owned(),
            class_kind: "Unknown".to_owned(),
        });
        GET_MACHINE = GetMachine(GetMachineRequest { machine_name, provider_spec, secrets });
        LIST_PAGED = ListMachinesPaged(ListMachinesPagedRequest {
            provider_spec, secrets, page_size, page_token
        });
        ZONES = ListZones(ListZonesRequest { provider_spec, secrets });
        RESTART = RestartMachine(RestartMachineRequest { machine_name, provider_spec, secrets, provider_id });
        CONSOLE = GetConsole(GetConsoleRequest { machine_name, provider_spec, secrets, provider_id });
        DESCRIBE = DescribeClass(DescribeClassRequest { provider_spec, secrets });
    }
}

impl Fields {
    /// Returns the fields of a machine. Its update has the same spec before and after.
    pub fn of(machine_request: &MachineRequest) -> Self {
        let class = &machine_request.class;
        let spec = serde_json::Value::Object(class.provider_spec.0.clone());
        let secrets = class.secrets.iter();
        Self {
            machine_name: machine_request.name.clone(),
            provider_spec: spec.to_string().into_bytes(),
            secrets: secrets
                .map(|(key, value)| (key.to_owned(), value.expose().to_vec()))
                .collect(),
            last_applied_provider_spec: spec.to_string().into_bytes(),
            ..Self::default()
        }
    }
}

pub(super) fn volumes(pv_spec_list: Vec<u8>) -> Vec<u8> {
    let fields = Fields {
        pv_spec_list,
        ..Fields::default()
    };
    fields.request(VOLUMES)
}

/// Provider specs that are broken: no JSON, or no object.
pub(super) const BROKEN_SPECS: [&[u8]; 7] = [
    b"not json",
    b"[]",
    b"null",
    b"7",
    b"\"text\"",
    b"{\"a\":",
    b"\xff\xfe",
];

/// Skips a case about a call that the client answers itself, since the plugin did not declare it.
pub(super) fn reaches_the_plugin(t: &TestContext, operation: Operation) -> CaseResult {
    if t.target().wire().is_some() && !t.supports(operation) {
        return Err(CaseError::Skipped(format!(
            "{operation} is not declared, so the client does not call it; `wire-undeclared-extension` does"
        )));
    }
    Ok(())
}

/// Fails unless a call works when it is declared, and is UNIMPLEMENTED when it is not.
pub(super) async fn as_declared(t: TestContext, operation: Operation) -> CaseResult {
    let request = t.machine_request("a");
    for _ in 0..3 {
        let answer = t.invoke(operation, &request, None).await?;
        if t.supports(operation) {
            answer.ok()?;
        } else {
            answer.refused(Code::Unimplemented)?;
        }
    }
    Ok(())
}

pub(super) async fn raw(t: &TestContext, path: &'static str, request: &[u8]) -> CaseResult<RawAnswer> {
    before(t, path, request, None).await
}

/// Makes a call with a deadline that only the plugin enforces.
pub(super) async fn before(
    t: &TestContext,
    path: &'static str,
    request: &[u8],
    deadline: Option<Duration>,
) -> CaseResult<RawAnswer> {
    let Some(wire) = t.target().wire() else {
        return Err(CaseError::Skipped(
            "the driver is not behind an endpoint".to_owned(),
        ));
    };
    let answer = match t.watched(path, call(wire, path, request, deadline)).await? {
        Ok(answer) => answer,
        Err(error) => {
            t.is_alive(path, &error.to_string()).await?;
            return Err(error);
        }
    };
    if answer.is_code(tonic::Code::Ok) {
        t.answered_ok(path);
    }
    t.look_raw(&answer);
    Ok(answer)
}
