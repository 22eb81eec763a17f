//! Calls of the extension about a machine, made without the client: their refusals and their answers.

use tonic::Code as Grpc;

use super::cases;
use super::published::{extended, path_of};
use super::requests::{BROKEN_SPECS, CONSOLE, Fields, RESTART, UPDATE, raw};
use crate::answer::{CaseError, CaseResult, names, same_names};
use crate::{Case, Need, TestContext};
use cmi_driver::{Machine, Operation, ProviderId};
use cmi_grpc::proto::capcmi::v1::get_extension_capabilities_response::Call;
use cmi_grpc::proto::capcmi::v1::{self, GetConsoleResponse, RestartMachineResponse, UpdateMachineResponse};

pub(super) const CASES: &[Case] = cases! {
    "wire-extension-missing-fields": "an extension request without a REQUIRED field is INVALID_ARGUMENT"
        ["CAP-21"], [Need::Endpoint] => missing_fields;
    "wire-extension-broken-spec":
        "an extension request whose provider spec is not a JSON object is INVALID_ARGUMENT"
        ["CAP-21"], [Need::Endpoint] => broken_spec;
    "wire-extension-answers":
        "extension answers can be parsed, contain the REQUIRED fields within their limits, and name the VM"
        ["CAP-22"], [Need::Endpoint] => answers;
};

/// Returns the declared calls about a machine, the fields of their requests, and a VM for them.
async fn prepared(t: &TestContext) -> CaseResult<(Vec<&'static str>, Fields, Machine)> {
    let declared = extended(t).await?.unwrap_or_default();
    let offered: Vec<_> = declared
        .calls()
        .filter(|call| is_about_a_machine(*call))
        .map(path_of)
        .collect();
    if offered.is_empty() {
        return Err(CaseError::Skipped(
            "the driver declares no call of the extension about a machine".to_owned(),
        ));
    }
    let machine_request = t.machine_request("a");
    let made = t.prepare(&machine_request).await?;
    let fields = Fields {
        provider_id: made.provider_id.to_string(),
        ..Fields::of(&machine_request)
    };
    Ok((offered, fields, made))
}

fn is_about_a_machine(call: Call) -> bool {
    match call {
        Call::GetMachine
        | Call::InitializeMachine
        | Call::UpdateMachine
        | Call::RestartMachine
        | Call::GetConsole => true,
        Call::Unspecified
        | Call::GenerateMachineClassForMigration
        | Call::ListMachinesPaged
        | Call::ListZones
        | Call::DescribeClass => false,
    }
}

async fn refused(t: &TestContext, path: &'static str, fields: &Fields, what: &str) -> CaseResult {
    let answer = raw(t, path, &fields.request(path)).await?;
    answer
        .is(Grpc::InvalidArgument)
        .map_err(|error| error.after(&format!("a request {what}")))
}

async fn missing_fields(t: TestContext) -> CaseResult {
    let (offered, fields, made) = prepared(&t).await?;
    let (mut nameless, mut specless, mut without_id) = (fields.clone(), fields.clone(), fields);
    nameless.machine_name.clear();
    specless.provider_spec.clear();
    without_id.provider_id.clear();
    for path in offered {
        refused(&t, path, &nameless, "without machine_name").await?;
        refused(&t, path, &specless, "without provider_spec").await?;
        // In these calls, provider_id selects the VM.
        if [UPDATE, RESTART, CONSOLE].contains(&path) {
            refused(&t, path, &without_id, "without provider_id").await?;
        }
    }
    is_there(&t, &made.provider_id).await
}

async fn broken_spec(t: TestContext) -> CaseResult {
    let (offered, mut fields, made) = prepared(&t).await?;
    for path in offered {
        for broken in BROKEN_SPECS {
            fields.provider_spec = broken.to_vec();
            let what = format!("with `{}` as provider_spec", String::from_utf8_lossy(broken));
            refused(&t, path, &fields, &what).await?;
        }
    }
    is_there(&t, &made.provider_id).await
}

async fn is_there(t: &TestContext, id: &ProviderId) -> CaseResult {
    let machine_request = t.machine_request("a");
    t.has_only(&machine_request, id).await
}

/// Applies the rules of the client, which accepts no answer that breaks them.
async fn answers(t: TestContext) -> CaseResult {
    let (offered, mut fields, made) = prepared(&t).await?;
    for path in offered {
        let answer = raw(&t, path, &fields.request(path)).await?;
        match path {
            UPDATE => drop(answer.ok::<UpdateMachineResponse>()?),
            // A VM that still boots is already starting.
            RESTART if answer.is_code(Grpc::Aborted) => {}
            RESTART => drop(answer.ok::<RestartMachineResponse>()?),
            // A VM may have no console.
            CONSOLE if answer.is_code(Grpc::FailedPrecondition) => {}
            CONSOLE => drop(answer.ok::<GetConsoleResponse>()?),
            _ => is_of(&made, path, answer.ok()?)?,
        }
    }
    // The last applied spec is a hint: the driver refuses or ignores an unreadable spec.
    if t.supports(Operation::UpdateMachine) {
        for broken in [b"".as_slice(), b"not json", b"null", b"{\"tags\": 7}"] {
            fields.last_applied_provider_spec = broken.to_vec();
            let answer = raw(&t, UPDATE, &fields.request(UPDATE)).await?;
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
