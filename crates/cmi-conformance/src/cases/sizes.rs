//! The lengths of fields in answers and in requests, and fields that are new to a driver.

use std::collections::HashMap;
use std::time::Duration;

use prost::Message as _;
use tokio::time::Instant;
use tonic::Code as Grpc;

use super::cases;
use super::requests::{
    CAPABILITIES, CREATE, DELETE, Fields, INFO, LIST, PROBE, SHUT_DOWN, STATUS, UPDATE, VOLUMES, raw, volumes,
};
use crate::answer::{CaseError, CaseResult, ensure};
use crate::wire::RawAnswer;
use crate::{Case, Need, TestContext};
use cmi_driver::Operation;
use cmi_grpc::proto::capcmi::v1::UpdateMachineRequest;
use cmi_grpc::proto::cmi::v1::{
    CreateMachineResponse, DeleteMachineResponse, GetMachineStatusResponse, GetVolumeIDsResponse,
    ListMachinesResponse, ShutDownMachineResponse,
};

/// The longest lengths of fields, in bytes.
const PROVIDER_ID: usize = 512;
const NAME: usize = 253;
const VOLUME_ID: usize = 512;
const STATE: usize = 4 << 10;
const SPEC: usize = 1 << 20;
const SECRETS: usize = 2 << 20;
const VOLUME_SPECS: usize = 16 << 20;
/// The pause before the repeat of a call that was ABORTED.
const BETWEEN_REPEATS: Duration = Duration::from_millis(50);
/// A field that no message of the interface has: number 1000, a text of 19 bytes.
const UNKNOWN_FIELD: &[u8] = b"\xc2\x3e\x13conformance-unknown";

pub(super) const CASES: &[Case] = cases! {
    "wire-response-sizes": "response fields are within their size limits"
        ["CMI-14"], [Need::Endpoint] => response_sizes;
    "wire-large-requests": "requests with fields at their size limits are accepted, even above 4 MiB"
        ["CMI-14"], [Need::Endpoint] => large_requests;
    "wire-unknown-fields": "unknown request fields are ignored"
        ["CMI-154"], [Need::Endpoint] => unknown_fields;
    "wire-key-case": "field names in the provider spec are case-sensitive"
        ["DRV-03", "CMI-30", "CMI-49"], [Need::Endpoint] => key_case;
};

/// The codes of a create that makes a VM. Code 17 is FAILED_PRECONDITION on the wire: the VM exists and waits
/// for its initialization. ABORTED means that the VM is being created.
fn made(t: &TestContext) -> &'static [Grpc] {
    if t.supports(Operation::InitializeMachine) {
        &[Grpc::Ok, Grpc::Aborted, Grpc::FailedPrecondition]
    } else {
        &[Grpc::Ok, Grpc::Aborted]
    }
}

fn at_most(path: &str, field: &str, has: usize, most: usize) -> CaseResult {
    ensure(has <= most, || {
        format!("{field} in the answer of {path} has {has} bytes, and may have {most}")
    })
}

async fn response_sizes(t: TestContext) -> CaseResult {
    let machine_request = t.machine_request("a");
    let fields = Fields::of(&machine_request);
    t.track(&machine_request);
    let answer = raw(&t, CREATE, &fields.request(CREATE)).await?;
    answer.is_one_of(made(&t))?;
    if answer.is_code(Grpc::Ok) {
        let created: CreateMachineResponse = answer.ok()?;
        at_most(CREATE, "ProviderID", created.provider_id.len(), PROVIDER_ID)?;
        at_most(CREATE, "NodeName", created.node_name.len(), NAME)?;
        at_most(CREATE, "LastKnownState", created.last_known_state.len(), STATE)?;
    }
    t.prepare(&machine_request).await?;
    if t.supports(Operation::GetMachineStatus) {
        let answer = raw(&t, STATUS, &fields.request(STATUS)).await?;
        if answer.is_code(Grpc::Ok) {
            let read: GetMachineStatusResponse = answer.ok()?;
            at_most(STATUS, "ProviderID", read.provider_id.len(), PROVIDER_ID)?;
            at_most(STATUS, "NodeName", read.node_name.len(), NAME)?;
        }
    }
    if t.supports(Operation::ListMachines) {
        let listed: ListMachinesResponse = raw(&t, LIST, &fields.request(LIST)).await?.ok()?;
        for (id, name) in &listed.machine_list {
            at_most(LIST, "a ProviderID", id.len(), PROVIDER_ID)?;
            at_most(LIST, "a machine name", name.len(), NAME)?;
        }
    }
    if t.supports(Operation::ShutDownMachine) {
        let answer = raw(&t, SHUT_DOWN, &fields.request(SHUT_DOWN)).await?;
        if answer.is_code(Grpc::Ok) {
            let stopped: ShutDownMachineResponse = answer.ok()?;
            at_most(SHUT_DOWN, "LastKnownState", stopped.last_known_state.len(), STATE)?;
        }
    }
    let answer = raw(&t, DELETE, &fields.request(DELETE)).await?;
    if answer.is_code(Grpc::Ok) {
        let deleted: DeleteMachineResponse = answer.ok()?;
        at_most(DELETE, "LastKnownState", deleted.last_known_state.len(), STATE)?;
    }
    if t.supports(Operation::GetVolumeIds) {
        let answer = raw(&t, VOLUMES, &volumes(own_volumes(&t))).await?;
        if answer.is_code(Grpc::Ok) {
            let found: GetVolumeIDsResponse = answer.ok()?;
            for id in &found.volume_i_ds {
                at_most(VOLUMES, "an id", id.len(), VOLUME_ID)?;
            }
        }
    }
    Ok(())
}

/// Returns the driver's own volumes in the form that GetVolumeIDs takes: a JSON array.
fn own_volumes(t: &TestContext) -> Vec<u8> {
    let specs = t.config().persistent_volumes.own_specs();
    serde_json::Value::Array(specs).to_string().into_bytes()
}

/// Pads JSON with white space, so that any spec can be as long as the limit allows.
fn padded(mut json: Vec<u8>, length: usize) -> Vec<u8> {
    json.resize(json.len().max(length), b' ');
    json
}

/// Adds a key that fills the secrets up to their limit: a driver ignores unknown secrets. Their length on the
/// wire reaches the limit as well, and does not exceed it.
fn filled(mut secrets: HashMap<String, Vec<u8>>) -> HashMap<String, Vec<u8>> {
    let key = "conformance-filling".to_owned();
    secrets.insert(key.clone(), vec![b'x'; SECRETS]);
    let message = UpdateMachineRequest {
        secrets,
        ..Default::default()
    };
    let left = (2 * SECRETS).saturating_sub(message.encoded_len());
    let mut secrets = message.secrets;
    secrets.insert(key, vec![b'x'; left]);
    secrets
}

/// Returns the fields at their limits, without a state. The two specs and the secrets of an update have 4 MiB
/// already. With the other fields, the message is longer than many libraries accept.
fn large(fields: Fields) -> Fields {
    let spec = padded(fields.provider_spec, SPEC);
    Fields {
        last_applied_provider_spec: spec.clone(),
        provider_spec: spec,
        secrets: filled(fields.secrets),
        ..fields
    }
}

/// Checks the code, and adds a hint for the case that a library refused the length of a message before the
/// plugin saw it.
fn taken(answer: &RawAnswer, codes: &[Grpc], length: usize) -> CaseResult {
    answer.is_one_of(codes).map_err(|error| {
        error.after(&format!(
            "a request of {length} bytes, no field of which is longer than it may be (a gRPC server takes 4 \
                MiB unless told otherwise: grpc.MaxRecvMsgSize in Go, grpc.max_receive_message_length in \
                Python, maxInboundMessageSize in Java)"
        ))
    })
}

async fn large_requests(t: TestContext) -> CaseResult {
    let machine_request = t.machine_request("a");
    t.track(&machine_request);
    let mut fields = large(Fields::of(&machine_request));
    let request = fields.request(CREATE);
    taken(&raw(&t, CREATE, &request).await?, made(&t), request.len())?;
    let id = t.make(&machine_request).await?.provider_id;
    if t.supports(Operation::UpdateMachine) {
        fields.provider_id = id.to_string();
        let request = fields.request(UPDATE);
        taken(&raw(&t, UPDATE, &request).await?, &[Grpc::Ok], request.len())?;
    }
    if t.supports(Operation::GetVolumeIds) {
        let request = volumes(padded(own_volumes(&t), VOLUME_SPECS));
        let answer = raw(&t, VOLUMES, &request).await?;
        let own = &t.config().persistent_volumes.own;
        // A plugin may refuse a list without a volume for its content (CMI-150), but has to read it first.
        let is_refused = own.is_empty() && answer.is_code(Grpc::InvalidArgument);
        if !is_refused {
            taken(&answer, &[Grpc::Ok], request.len())?;
            let ids: GetVolumeIDsResponse = answer.ok()?;
            let own = own.iter().map(|volume| &volume.volume_id);
            ensure(own.eq(&ids.volume_i_ds), || {
                format!("the ids of a long list of volumes are {:?}", ids.volume_i_ds)
            })?;
        }
    }
    let request = fields.request(DELETE);
    let codes = [Grpc::Ok, Grpc::Aborted];
    taken(&raw(&t, DELETE, &request).await?, &codes, request.len())?;
    t.remove(&machine_request, None).await
}

/// The code must be the same as without the field, which a later version of the interface may add. A request
/// that is also refused without the field shows nothing.
async fn unknown_fields(t: TestContext) -> CaseResult {
    let machine_request = t.machine_request("a");
    t.prepare(&machine_request).await?;
    let fields = Fields::of(&machine_request);
    let mut requests: Vec<_> = [INFO, CAPABILITIES, PROBE, CREATE]
        .map(|path| (path, fields.request(path)))
        .into();
    requests.extend(taken_volumes(&t).await?.map(|request| (VOLUMES, request)));
    for (operation, path) in [
        (Operation::GetMachineStatus, STATUS),
        (Operation::ListMachines, LIST),
        (Operation::ShutDownMachine, SHUT_DOWN),
        // DeleteMachine removes the VM, so it comes last.
        (Operation::DeleteMachine, DELETE),
    ] {
        if t.supports(operation) {
            requests.push((path, fields.request(path)));
        }
    }
    for (path, mut request) in requests {
        let usual = not_aborted(&t, path, &request).await?;
        usual.is(Grpc::Ok).map_err(CaseError::in_preparation)?;
        request.extend_from_slice(UNKNOWN_FIELD);
        let answer = not_aborted(&t, path, &request).await?;
        answer.is(Grpc::Ok).map_err(|error| {
            error.after("a request that is taken without a field that the interface does not have yet")
        })?;
    }
    t.remove(&machine_request, None).await
}

/// Repeats the call while it answers ABORTED, which only means that an operation is running. Returns the next
/// answer, or ABORTED when the time is over.
async fn not_aborted(t: &TestContext, path: &'static str, request: &[u8]) -> CaseResult<RawAnswer> {
    let until = Instant::now() + t.config().call_limit();
    loop {
        let answer = raw(t, path, request).await?;
        if !answer.is_code(Grpc::Aborted) || Instant::now() >= until {
            return Ok(answer);
        }
        tokio::time::sleep(BETWEEN_REPEATS).await;
    }
}

/// Returns a request for volume ids that the driver takes: it may refuse a volume that is not its own, and an
/// empty list, too.
async fn taken_volumes(t: &TestContext) -> CaseResult<Option<Vec<u8>>> {
    if !t.supports(Operation::GetVolumeIds) {
        return Ok(None);
    }
    for list in [own_volumes(t), b"[{}]".to_vec()] {
        let request = volumes(list);
        if not_aborted(t, VOLUMES, &request).await?.is_code(Grpc::Ok) {
            return Ok(Some(request));
        }
    }
    t.warn("GetVolumeIDs takes no list that the suite knows: an unknown field in its request was not tried");
    Ok(None)
}

/// Some JSON libraries read `TAGS` into `tags`, and use the last key: such a driver creates the VM in a
/// cluster that the tags of its spec do not name.
async fn key_case(t: TestContext) -> CaseResult {
    let here = t.machine_request("a");
    let there = here.clone().in_cluster(&t.other_cluster());
    t.track(&here);
    t.track(&there);
    let top = t.capabilities().tag_path.segments().first();
    let Some((key, other)) = top.and_then(|top| Some((top, crate::machine_request::other_case(top)?))) else {
        return Err(CaseError::Skipped(
            "the place of the tags has no letters".to_owned(),
        ));
    };
    let foreign = there.class.provider_spec.0.get(key).cloned().unwrap_or_default();
    let mut fields = Fields::of(&here);
    // The key comes after all others; a map would sort it before them.
    let end = fields.provider_spec.pop();
    let more = format!(",\"{other}\":{foreign}");
    fields.provider_spec.extend(more.into_bytes());
    fields.provider_spec.extend(end);
    let answer = raw(&t, CREATE, &fields.request(CREATE)).await?;
    let codes = [made(&t), &[Grpc::InvalidArgument]].concat();
    answer.is_one_of(&codes)?;
    t.settle().await;
    let nowhere = t.has_none(&there).await;
    nowhere.map_err(|error| {
        error.after(&format!(
            "the spec names cluster `{}` in `{key}` and another one in `{other}`",
            here.cluster()
        ))
    })?;
    if answer.is_code(Grpc::InvalidArgument) {
        return t.has_none(&here).await;
    }
    let id = t.make(&here).await?.provider_id;
    t.has_only(&here, &id).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CMI-14: by default, gRPC servers take 4 MiB.
    #[test]
    fn a_large_update_is_within_the_limits_and_above_the_grpc_default() {
        for own in [0, 1, 8] {
            let own = (0..own).map(|key| (format!("key-{key}"), vec![b'v'; 1000]));
            let fields = large(Fields {
                machine_name: "a".to_owned(),
                provider_spec: b"{}".to_vec(),
                secrets: own.collect(),
                provider_id: "a:///b".to_owned(),
                ..Fields::default()
            });
            let used: usize = fields
                .secrets
                .iter()
                .map(|(key, value)| key.len() + value.len())
                .sum();
            assert!(fields.provider_spec.len() <= SPEC && used <= SECRETS, "{used}");
            let length = fields.request(UPDATE).len();
            assert!(length > 4 << 20, "{length}");
        }
    }
}
