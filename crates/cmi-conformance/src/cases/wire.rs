//! The parts of the interface that only the wire shows: services, fields, status, capabilities.

use tonic::Code as Grpc;

use super::cases;
use super::faults::{after_deadline, prepared, slow_down};
use super::requests::{
    BROKEN_SPECS, CAPABILITIES, CREATE, DELETE, Fields, INFO, LIST, PROBE, SHUT_DOWN, STATUS, VOLUMES,
    before, raw, volumes,
};
use crate::answer::{CaseError, CaseResult, ensure};
use crate::wire::RawAnswer;
use crate::{Case, Hook, HookCall, Need, TestContext};
use cmi_driver::Operation;
use cmi_grpc::proto::cmi::v1::plugin_capability::Type;
use cmi_grpc::proto::cmi::v1::plugin_capability::rpc::Type as Capability;
use cmi_grpc::proto::cmi::v1::{
    CreateMachineResponse, GetPluginCapabilitiesResponse, GetPluginInfoResponse, PluginCapability,
    ProbeResponse,
};

/// The optional calls, and how they are declared.
const OPTIONAL: [(Capability, &str); 4] = [
    (Capability::GetMachineStatus, STATUS),
    (Capability::ListMachines, LIST),
    (Capability::ShutdownMachine, SHUT_DOWN),
    (Capability::GetVolumeIds, VOLUMES),
];
const MANY: usize = 1000;

pub(super) const CASES: &[Case] = cases! {
    "wire-services": "one endpoint serves the required calls of both services"
        ["CMI-03", "CMI-08", "CMI-50", "CMI-58", "CMI-64", "CMI-153", "CMI-155", "CMI-159", "CMI-161"],
        [Need::Endpoint] => services;
    "wire-required-capabilities": "create and delete are declared, and all declared capabilities are known"
        ["CMI-06", "CMI-60", "CMI-61", "CMI-62", "CMI-81", "CMI-99"],
        [Need::Endpoint] => required_capabilities;
    "wire-undeclared-calls": "an undeclared call is UNIMPLEMENTED, a declared call is not"
        ["CMI-07", "CMI-36", "CMI-114", "CMI-126", "CMI-136", "CMI-146", "PLG-GS-12", "PLG-LM-12",
        "PLG-SD-12", "PLG-GV-12"], [Need::Endpoint] => undeclared_calls;
    "wire-missing-fields": "a request without a REQUIRED field is INVALID_ARGUMENT"
        ["CMI-15", "CMI-19", "CMI-28", "CMI-87", "CMI-89", "CMI-105", "CMI-106", "CMI-118", "CMI-119",
        "CMI-130", "CMI-131", "CMI-139"], [Need::Endpoint] => missing_fields;
    "wire-broken-spec": "a provider spec that is not a JSON object is INVALID_ARGUMENT"
        ["CMI-30", "CMI-48", "CMI-88"], [Need::Endpoint] => broken_spec;
    "wire-broken-volumes": "a volume list that is not a JSON list is INVALID_ARGUMENT"
        ["PLG-GV-03", "CMI-150"], [Need::Endpoint] => broken_volumes;
    "wire-status": "errors have a canonical code, a message and no details, even for malformed requests"
        ["CMI-23", "CMI-24", "CMI-40", "CMI-41"], [Need::Endpoint] => status;
    "wire-response-fields": "responses contain their REQUIRED fields"
        ["CMI-15", "CMI-92", "CMI-93"], [Need::Endpoint] => response_fields;
    "wire-any-bytes": "secrets and LastKnownState can contain any bytes"
        ["CMI-44", "CMI-94", "CMI-109", "CMI-132"], [Need::Endpoint] => any_bytes;
    "wire-serves-on": "the plugin still serves after a thousand calls"
        ["CMI-182"], [Need::Endpoint] => serves_on;
    "wire-unhealthy": "an unhealthy plugin answers Probe with FAILED_PRECONDITION"
        ["CMI-68", "CMI-75"], [Need::Endpoint, Need::Hook(Hook::Unhealthy)] => unhealthy;
    "wire-create-deadline": "a call that exceeds the caller's deadline is DEADLINE_EXCEEDED"
        ["PLG-CR-04"],
        [Need::Endpoint, Need::Hook(Hook::Slow)] => |t| deadline(t, Operation::CreateMachine, CREATE);
    "wire-delete-deadline": "a call that exceeds the caller's deadline is DEADLINE_EXCEEDED"
        ["PLG-DE-04"],
        [Need::Endpoint, Need::Hook(Hook::Slow)] => |t| deadline(t, Operation::DeleteMachine, DELETE);
    "wire-status-deadline": "a call that exceeds the caller's deadline is DEADLINE_EXCEEDED"
        ["PLG-GS-04"],
        [Need::Endpoint, Need::Hook(Hook::Slow), Need::Call(Operation::GetMachineStatus)]
            => |t| deadline(t, Operation::GetMachineStatus, STATUS);
    "wire-list-deadline": "a call that exceeds the caller's deadline is DEADLINE_EXCEEDED"
        ["PLG-LM-04"],
        [Need::Endpoint, Need::Hook(Hook::Slow), Need::Call(Operation::ListMachines)]
            => |t| deadline(t, Operation::ListMachines, LIST);
    "wire-shut-down-deadline": "a call that exceeds the caller's deadline is DEADLINE_EXCEEDED"
        ["PLG-SD-04"],
        [Need::Endpoint, Need::Hook(Hook::Slow), Need::Call(Operation::ShutDownMachine)]
            => |t| deadline(t, Operation::ShutDownMachine, SHUT_DOWN);
};

pub(super) async fn declared(t: &TestContext) -> CaseResult<Vec<i32>> {
    let response: GetPluginCapabilitiesResponse = raw(t, CAPABILITIES, &[]).await?.ok()?;
    let rpc = |capability: &PluginCapability| {
        let Type::Rpc(rpc) = capability.r#type.as_ref()?;
        Some(rpc.r#type)
    };
    Ok(response.capabilities.iter().filter_map(rpc).collect())
}

/// Returns the calls of the Machine service that the plugin has to serve.
async fn offered(t: &TestContext) -> CaseResult<Vec<&'static str>> {
    let declared = declared(t).await?;
    let optional = OPTIONAL
        .into_iter()
        .filter(|(capability, _)| declared.contains(&(*capability as i32)));
    Ok([CREATE, DELETE]
        .into_iter()
        .chain(optional.map(|(_, path)| path))
        .collect())
}

async fn services(t: TestContext) -> CaseResult {
    let info: GetPluginInfoResponse = raw(&t, INFO, &[]).await?.ok()?;
    ensure(!info.name.is_empty() && !info.version.is_empty(), || {
        "GetPluginInfo must answer name and version".to_owned()
    })?;
    raw(&t, PROBE, &[]).await?.ok::<ProbeResponse>()?;
    for path in offered(&t).await? {
        let answer = raw(&t, path, &[]).await?;
        ensure(!answer.is_code(Grpc::Unimplemented), || {
            format!("{path} has to be served")
        })?;
    }
    Ok(())
}

async fn required_capabilities(t: TestContext) -> CaseResult {
    let declared = declared(&t).await?;
    for needed in [Capability::CreateMachine, Capability::DeleteMachine] {
        ensure(declared.contains(&(needed as i32)), || {
            format!("{} has to be declared", needed.as_str_name())
        })?;
    }
    for unknown in declared.iter().filter(|number| !(1..=6).contains(*number)) {
        t.warn(format!("capability {unknown} is none of the published ones"));
    }
    Ok(())
}

async fn undeclared_calls(t: TestContext) -> CaseResult {
    let offered = offered(&t).await?;
    let fields = Fields {
        pv_spec_list: b"[]".to_vec(),
        ..Fields::of(&t.machine_request("a"))
    };
    for (_, path) in OPTIONAL {
        let answer = raw(&t, path, &fields.request(path)).await?;
        if offered.contains(&path) {
            ensure(!answer.is_code(Grpc::Unimplemented), || {
                format!("{path} is declared and UNIMPLEMENTED")
            })?;
        } else {
            answer.is(Grpc::Unimplemented)?;
        }
    }
    Ok(())
}

async fn is_invalid(t: &TestContext, path: &'static str, request: &[u8]) -> CaseResult {
    raw(t, path, request).await?.is(Grpc::InvalidArgument)
}

async fn missing_fields(t: TestContext) -> CaseResult {
    let machine_request = t.machine_request("a");
    t.track(&machine_request);
    for path in offered(&t).await?.into_iter().filter(|path| *path != VOLUMES) {
        let mut without_spec = Fields::of(&machine_request);
        without_spec.provider_spec.clear();
        is_invalid(&t, path, &without_spec.request(path)).await?;
        if path != LIST {
            let mut without_name = Fields::of(&machine_request);
            without_name.machine_name.clear();
            is_invalid(&t, path, &without_name.request(path)).await?;
        }
    }
    t.has_none(&machine_request).await
}

async fn broken_spec(t: TestContext) -> CaseResult {
    let machine_request = t.machine_request("a");
    t.track(&machine_request);
    for path in offered(&t).await?.into_iter().filter(|path| *path != VOLUMES) {
        for broken in BROKEN_SPECS {
            let mut fields = Fields::of(&machine_request);
            fields.provider_spec = broken.to_vec();
            is_invalid(&t, path, &fields.request(path)).await?;
        }
    }
    t.has_none(&machine_request).await
}

async fn broken_volumes(t: TestContext) -> CaseResult {
    if !offered(&t).await?.contains(&VOLUMES) {
        return Err(CaseError::Skipped(
            "the driver does not offer GetVolumeIDs".to_owned(),
        ));
    }
    for broken in [
        b"".as_slice(),
        b"not json",
        b"null",
        b"{}",
        b"[\"text\"]",
        b"[null]",
        b"\xff",
    ] {
        is_invalid(&t, VOLUMES, &volumes(broken.to_vec())).await?;
    }
    Ok(())
}

async fn status(t: TestContext) -> CaseResult {
    let (machine_request, missing) = (t.machine_request("a"), t.machine_request("b"));
    t.prepare(&machine_request).await?;
    let other = machine_request.clone().with_identity("another-machine");
    t.track(&other);
    for path in offered(&t).await? {
        speaks(&raw(&t, path, &[]).await?)?;
        let well_formed = match path {
            CREATE => vec![&machine_request, &other],
            DELETE => vec![&other, &missing],
            // Stopping an existing VM would leave the later calls without a running VM.
            SHUT_DOWN => vec![&missing],
            _ => vec![&machine_request, &other, &missing],
        };
        for machine_request in well_formed {
            speaks(&raw(&t, path, &Fields::of(machine_request).request(path)).await?)?;
        }
    }
    Ok(())
}

/// Fails unless an answer has a gRPC code, a message if it is an error, and no details.
fn speaks(answer: &RawAnswer) -> CaseResult {
    let (path, code) = (answer.path(), &answer.code);
    ensure(answer.is_canonical(), || {
        format!("{path} answered code {code}, which is none of gRPC")
    })?;
    ensure(
        answer.is_code(Grpc::Ok) || !answer.message().trim().is_empty(),
        || format!("{path} answered code {code} without a message"),
    )?;
    ensure(!answer.has_details(), || {
        format!("{path} answered code {code} with `grpc-status-details-bin`")
    })
}

async fn response_fields(t: TestContext) -> CaseResult {
    let machine_request = t.machine_request("a");
    // The VM is initialized, so the answer can be OK.
    t.prepare(&machine_request).await?;
    let created: CreateMachineResponse = raw(&t, CREATE, &Fields::of(&machine_request).request(CREATE))
        .await?
        .ok()?;
    ensure(
        !created.provider_id.is_empty() && !created.node_name.is_empty(),
        || "CreateMachine must answer ProviderID and NodeName".to_owned(),
    )
}

async fn any_bytes(t: TestContext) -> CaseResult {
    let machine_request = t.machine_request("a");
    t.track(&machine_request);
    let bytes = vec![0, 255, 254, 10, 0];
    let mut accepted = vec![Grpc::Ok, Grpc::Aborted, Grpc::InvalidArgument];
    if t.supports(Operation::InitializeMachine) {
        // Code 17 has this code on the wire.
        accepted.push(Grpc::FailedPrecondition);
    }
    let mut fields = Fields::of(&machine_request);
    fields
        .secrets
        .insert("conformance-binary".to_owned(), bytes.clone());
    raw(&t, CREATE, &fields.request(CREATE))
        .await?
        .is_one_of(&accepted)?;
    t.make(&machine_request).await?;
    let fields = Fields {
        last_known_state: bytes,
        ..Fields::of(&machine_request)
    };
    let offered = offered(&t).await?;
    let stop = offered.contains(&SHUT_DOWN).then_some(SHUT_DOWN);
    for path in stop.into_iter().chain([DELETE]) {
        let answer = raw(&t, path, &fields.request(path)).await?;
        answer.is_one_of(&[Grpc::Ok, Grpc::InvalidArgument, Grpc::Aborted])?;
    }
    t.remove(&machine_request, None).await
}

async fn serves_on(t: TestContext) -> CaseResult {
    for _ in 0..MANY {
        raw(&t, INFO, &[]).await?.is(Grpc::Ok)?;
    }
    Ok(())
}

async fn unhealthy(t: TestContext) -> CaseResult {
    t.run_hook(HookCall::new(Hook::Unhealthy)).await?;
    let answer = raw(&t, PROBE, &[]).await?;
    t.restore().await?;
    answer.is(Grpc::FailedPrecondition)
}

async fn deadline(t: TestContext, operation: Operation, path: &'static str) -> CaseResult {
    let (machine_request, id) = prepared(&t, operation).await?;
    t.track(&machine_request);
    slow_down(&t).await?;
    let request = Fields::of(&machine_request).request(path);
    let answer = before(&t, path, &request, Some(t.config().short_deadline())).await;
    t.restore().await?;
    answer?.is(Grpc::DeadlineExceeded)?;
    after_deadline(&t, operation, &machine_request, id.as_ref()).await
}
