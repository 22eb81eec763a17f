//! Calls of the extension about a machine, made bare: what they refuse, and what they answer.

use prost::Message as _;
use tonic::Code as Grpc;

use super::cases;
use super::requests::{Fields, GET_MACHINE, INITIALIZE, RESTART, UPDATE, of_machine, raw};
use crate::answer::{CaseError, CaseResult, names, same_names};
use crate::{Case, Need, TestContext};
use cmi_driver::{Machine, Operation, ProviderId};
use cmi_grpc::proto::capcmi::v1::get_extension_capabilities_response::Call;
use cmi_grpc::proto::capcmi::v1::{
    self, GetMachineRequest, InitializeMachineRequest, RestartMachineRequest, RestartMachineResponse,
    UpdateMachineRequest, UpdateMachineResponse,
};

pub(super) const CASES: &[Case] = cases! {
    "wire-extension-missing-fields":
        "a request of the extension about a machine without a REQUIRED field is INVALID_ARGUMENT"
        ["CAP-21"], [Need::Endpoint] => missing_fields;
    "wire-extension-broken-spec":
        "a request of the extension about a machine whose provider spec is no JSON object is INVALID_ARGUMENT"
        ["CAP-21"], [Need::Endpoint] => broken_spec;
    "wire-extension-answers":
        "an answer of the extension about a machine can be read, its REQUIRED fields are there and no field \
         is too long, and it names the VM"
        ["CAP-22"], [Need::Endpoint] => answers;
};

/// A request about a machine, field by field.
struct Request<'a> {
    fields: &'a Fields,
    id: &'a str,
    last_applied: &'a [u8],
}

impl Request<'_> {
    fn of(&self, path: &str) -> Vec<u8> {
        let (fields, provider_id) = (self.fields, self.id.to_owned());
        match path {
            GET_MACHINE => of_machine!(fields, GetMachineRequest),
            INITIALIZE => of_machine!(fields, InitializeMachineRequest),
            RESTART => RestartMachineRequest {
                machine_name: fields.name.clone(),
                provider_spec: fields.spec.clone(),
                secrets: fields.secrets.clone(),
                provider_id,
                ..Default::default()
            }
            .encode_to_vec(),
            _ => UpdateMachineRequest {
                machine_name: fields.name.clone(),
                provider_spec: fields.spec.clone(),
                last_applied_provider_spec: self.last_applied.to_vec(),
                secrets: fields.secrets.clone(),
                provider_id,
                ..Default::default()
            }
            .encode_to_vec(),
        }
    }
}

/// The calls about a machine that are declared, and a VM for them.
async fn prepared(t: &TestContext) -> CaseResult<(Vec<&'static str>, Fields, Machine)> {
    let declared = super::published::extended(t).await?.unwrap_or_default();
    let offered: Vec<_> = [
        (Call::GetMachine, GET_MACHINE),
        (Call::InitializeMachine, INITIALIZE),
        (Call::UpdateMachine, UPDATE),
        (Call::RestartMachine, RESTART),
    ]
    .into_iter()
    .filter(|(call, _)| declared.calls.contains(&(*call as i32)))
    .map(|(_, path)| path)
    .collect();
    if offered.is_empty() {
        return Err(CaseError::Skipped(
            "the driver declares no call of the extension about a machine".to_owned(),
        ));
    }
    let machine_request = t.machine_request("a");
    let made = t.prepare(&machine_request).await?;
    Ok((offered, Fields::of(&machine_request), made))
}

async fn refused(t: &TestContext, path: &'static str, request: &Request<'_>, what: &str) -> CaseResult {
    let answer = raw(t, path, &request.of(path)).await?;
    answer
        .is(Grpc::InvalidArgument)
        .map_err(|error| error.after(&format!("a request {what}")))
}

async fn missing_fields(t: TestContext) -> CaseResult {
    let (offered, fields, made) = prepared(&t).await?;
    let nameless = Fields {
        name: String::new(),
        ..fields.clone()
    };
    let specless = Fields {
        spec: Vec::new(),
        ..fields.clone()
    };
    let id = made.provider_id.as_str();
    let request = |fields, id| Request {
        fields,
        id,
        last_applied: b"{}",
    };
    for path in offered {
        refused(&t, path, &request(&nameless, id), "without machine_name").await?;
        refused(&t, path, &request(&specless, id), "without provider_spec").await?;
        // Of these two it says which VM is meant.
        if [UPDATE, RESTART].contains(&path) {
            refused(&t, path, &request(&fields, ""), "without provider_id").await?;
        }
    }
    is_there(&t, &made.provider_id).await
}

async fn broken_spec(t: TestContext) -> CaseResult {
    let (offered, mut fields, made) = prepared(&t).await?;
    for path in offered {
        for broken in [
            b"not json".as_slice(),
            b"[]",
            b"null",
            b"7",
            b"{\"a\":",
            b"\xff\xfe",
        ] {
            fields.spec = broken.to_vec();
            let request = Request {
                fields: &fields,
                id: made.provider_id.as_str(),
                last_applied: b"{}",
            };
            let what = format!("with `{}` as provider_spec", String::from_utf8_lossy(broken));
            refused(&t, path, &request, &what).await?;
        }
    }
    is_there(&t, &made.provider_id).await
}

async fn is_there(t: &TestContext, id: &ProviderId) -> CaseResult {
    let machine_request = t.machine_request("a");
    t.has_exactly(&machine_request, &[(&machine_request, id)]).await
}

/// The rules are those of the client, which takes no answer that breaks them.
async fn answers(t: TestContext) -> CaseResult {
    let (offered, fields, made) = prepared(&t).await?;
    let request = Request {
        fields: &fields,
        id: made.provider_id.as_str(),
        last_applied: &fields.spec,
    };
    for path in offered {
        let answer = raw(&t, path, &request.of(path)).await?;
        match path {
            UPDATE => drop(answer.ok::<UpdateMachineResponse>()?),
            // One that still boots is on its way up.
            RESTART if answer.is_code(Grpc::Aborted) => {}
            RESTART => drop(answer.ok::<RestartMachineResponse>()?),
            _ => is_of(&made, path, answer.ok()?)?,
        }
    }
    // What was last applied is a hint: one that can't be read is refused, or as good as none.
    if t.supports(Operation::UpdateMachine) {
        for broken in [b"".as_slice(), b"not json", b"null", b"{\"tags\": 7}"] {
            let request = Request {
                last_applied: broken,
                ..request
            };
            let answer = raw(&t, UPDATE, &request.of(UPDATE)).await?;
            answer.is_one_of(&[Grpc::Ok, Grpc::InvalidArgument, Grpc::Aborted])?;
        }
    }
    is_there(&t, &made.provider_id).await
}

fn is_of(made: &Machine, path: &str, answered: v1::Machine) -> CaseResult {
    let machine = Machine::try_from(answered)
        .map_err(|error| CaseError::failed(format!("the client refuses the answer of {path}: {error}")))?;
    same_names(made, path, names(&machine))
}
