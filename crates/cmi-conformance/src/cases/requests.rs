//! Requests as bytes, for the cases of the wire.

use std::time::Duration;

use prost::Message as _;

use crate::answer::{CaseError, CaseResult};
pub(super) use crate::wire::PROBE;
use crate::wire::{RawAnswer, call};
use crate::{MachineRequest, TestContext};
use cmi_driver::{Code, Operation};
use cmi_grpc::proto::cmi::v1::{
    CreateMachineRequest, DeleteMachineRequest, GetMachineStatusRequest, GetVolumeIDsRequest,
    ListMachinesRequest, ShutDownMachineRequest,
};

pub(super) const INFO: &str = "/cmi.v1.Identity/GetPluginInfo";
pub(super) const CAPABILITIES: &str = "/cmi.v1.Identity/GetPluginCapabilities";
pub(super) const CREATE: &str = "/cmi.v1.Machine/CreateMachine";
pub(super) const DELETE: &str = "/cmi.v1.Machine/DeleteMachine";
pub(super) const STATUS: &str = "/cmi.v1.Machine/GetMachineStatus";
pub(super) const LIST: &str = "/cmi.v1.Machine/ListMachines";
pub(super) const SHUT_DOWN: &str = "/cmi.v1.Machine/ShutDownMachine";
pub(super) const VOLUMES: &str = "/cmi.v1.Machine/GetVolumeIDs";
pub(super) const EXTENSION: &str = "/capcmi.v1.MachineExtension/GetExtensionCapabilities";
pub(super) const INITIALIZE: &str = "/capcmi.v1.MachineExtension/InitializeMachine";
pub(super) const UPDATE: &str = "/capcmi.v1.MachineExtension/UpdateMachine";
pub(super) const MIGRATE: &str = "/capcmi.v1.MachineExtension/GenerateMachineClassForMigration";
pub(super) const GET_MACHINE: &str = "/capcmi.v1.MachineExtension/GetMachine";
pub(super) const LIST_PAGED: &str = "/capcmi.v1.MachineExtension/ListMachinesPaged";
pub(super) const ZONES: &str = "/capcmi.v1.MachineExtension/ListZones";
pub(super) const RESTART: &str = "/capcmi.v1.MachineExtension/RestartMachine";
pub(super) const DESCRIBE: &str = "/capcmi.v1.MachineExtension/DescribeClass";

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

/// With a deadline that is sent to the plugin. Only the plugin keeps it.
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

/// The fields that all requests about a machine have.
#[derive(Clone)]
pub(super) struct Fields {
    pub name: String,
    pub spec: Vec<u8>,
    pub secrets: std::collections::HashMap<String, Vec<u8>>,
}

/// The message of a request about a machine, with these fields and no other.
macro_rules! of_machine {
    ($fields:expr, $message:ident) => {
        $message {
            machine_name: $fields.name.clone(),
            provider_spec: $fields.spec.clone(),
            secrets: $fields.secrets.clone(),
            ..Default::default()
        }
        .encode_to_vec()
    };
}
pub(super) use of_machine;

impl Fields {
    pub fn of(machine_request: &MachineRequest) -> Self {
        let secrets = machine_request.class.secrets.iter();
        Self {
            name: machine_request.name.clone(),
            spec: serde_json::Value::Object(machine_request.class.provider_spec.0.clone())
                .to_string()
                .into_bytes(),
            secrets: secrets
                .map(|(key, value)| (key.to_owned(), value.expose().to_vec()))
                .collect(),
        }
    }

    /// The request of a call about a machine, or about its cluster.
    pub fn request(&self, path: &str) -> Vec<u8> {
        match path {
            CREATE => of_machine!(self, CreateMachineRequest),
            DELETE => of_machine!(self, DeleteMachineRequest),
            STATUS => of_machine!(self, GetMachineStatusRequest),
            SHUT_DOWN => of_machine!(self, ShutDownMachineRequest),
            LIST => ListMachinesRequest {
                provider_spec: self.spec.clone(),
                secrets: self.secrets.clone(),
            }
            .encode_to_vec(),
            _ => Vec::new(),
        }
    }
}

pub(super) fn volumes(list: &[u8]) -> Vec<u8> {
    GetVolumeIDsRequest {
        pv_spec_list: list.to_vec(),
    }
    .encode_to_vec()
}
