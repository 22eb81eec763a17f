//! Calls made bare that the client replaces by others, or answers itself.

use prost::Message as _;
use tonic::Code as Grpc;

use super::case;
use super::requests::{EXTENSION, Fields, INITIALIZE, LIST, MIGRATE, STATUS, UPDATE, raw};
use crate::cmi::proto::capcmi::v1::get_extension_capabilities_response::Call;
use crate::cmi::proto::capcmi::v1::{
    GenerateMachineClassForMigrationRequest, GetExtensionCapabilitiesResponse, InitializeMachineRequest,
    UpdateMachineRequest,
};
use crate::cmi::proto::cmi::v1::{GetMachineStatusResponse, ListMachinesResponse};
use crate::conformance::answer::{Outcome, ensure};
use crate::conformance::{Case, Need, Order, Trial};
use crate::driver::{Operation, ProviderId};

const CALLED_STATUS: Need = Need::Call(Operation::GetMachineStatus);
const CALLED_LIST: Need = Need::Call(Operation::ListMachines);

pub(super) const CASES: &[Case] = &[
    case!(
        "wire-status-answers",
        "the published GetMachineStatus names the VM, and no other, also when the extension has a call for it",
        proves: ["PLG-GS-00", "PLG-GS-05", "CMI-115", "CMI-116", "CMI-121", "CMI-122"],
        needs: [Need::Endpoint, CALLED_STATUS],
        status_answers
    ),
    case!(
        "wire-list-answers",
        "the published ListMachines holds the VMs of its cluster alone, also when the extension has a call for it",
        proves: ["PLG-LM-00", "CMI-49", "CMI-137", "CMI-138", "CMI-141"],
        needs: [Need::Endpoint, CALLED_LIST],
        list_answers
    ),
    case!(
        "wire-undeclared-extension",
        "a call of the extension that is not declared is UNIMPLEMENTED, and one that is declared is not",
        proves: ["INI-11", "UPD-02", "DRV-48", "DRV-MG-12"],
        needs: [Need::Endpoint],
        undeclared_extension
    ),
];

async fn status_answers(t: Trial) -> Outcome {
    let order = t.order("a");
    let ask = async |order: &Order| raw(&t, STATUS, &Fields::of(order).request(STATUS)).await;
    ask(&order).await?.is(Grpc::NotFound)?;
    let made = t.prepare(&order).await?;
    let read: GetMachineStatusResponse = ask(&order).await?.ok()?;
    ensure(
        (read.provider_id.as_str(), &read.node_name) == (made.provider_id.as_str(), &made.node_name),
        || {
            format!(
                "CreateMachine answered `{}` and `{}`, {STATUS} `{}` and `{}`",
                made.provider_id, made.node_name, read.provider_id, read.node_name
            )
        },
    )?;
    for foreign in [
        order.clone().in_cluster(&t.other_cluster()),
        order.clone().with_identity("somebody-else"),
    ] {
        ask(&foreign).await?.is(Grpc::NotFound)?;
    }
    Ok(())
}

async fn list_answers(t: Trial) -> Outcome {
    let (one, two) = (t.order("a"), t.order("b"));
    let there = t.order("c").in_cluster(&t.other_cluster());
    lists(&t, &one, &[]).await?;
    let (first, second) = (t.prepare(&one).await?, t.prepare(&two).await?);
    let other = t.prepare(&there).await?;
    let here = [(&one, &first.provider_id), (&two, &second.provider_id)];
    lists(&t, &one, &here).await?;
    lists(&t, &there, &[(&there, &other.provider_id)]).await
}

async fn lists(t: &Trial, order: &Order, wanted: &[(&Order, &ProviderId)]) -> Outcome {
    let listed: ListMachinesResponse = raw(t, LIST, &Fields::of(order).request(LIST)).await?.ok()?;
    let mut found: Vec<_> = listed.machine_list.into_iter().collect();
    found.sort();
    let mut wanted: Vec<_> = wanted
        .iter()
        .map(|(order, id)| (id.to_string(), order.name.clone()))
        .collect();
    wanted.sort();
    ensure(found == wanted, || {
        format!(
            "{LIST} of cluster `{}` has to answer {wanted:?}, and answered {found:?}",
            order.cluster()
        )
    })
}

/// What the extension declares; none when the plugin does not serve it.
pub(super) async fn extended(t: &Trial) -> Outcome<Option<GetExtensionCapabilitiesResponse>> {
    let answer = raw(t, EXTENSION, &[]).await?;
    if answer.is_code(Grpc::Unimplemented) {
        return Ok(None);
    }
    answer.ok().map(Some)
}

async fn undeclared_extension(t: Trial) -> Outcome {
    let declared = extended(&t).await?.unwrap_or_default().calls;
    let Fields { name, spec, secrets } = Fields::of(&t.order("a"));
    let initialize = InitializeMachineRequest {
        machine_name: name.clone(),
        provider_spec: spec.clone(),
        secrets: secrets.clone(),
        ..Default::default()
    };
    let update = UpdateMachineRequest {
        machine_name: name,
        provider_id: "conformance:///nobody".to_owned(),
        last_applied_provider_spec: spec.clone(),
        provider_spec: spec,
        secrets,
        ..Default::default()
    };
    let migrate = GenerateMachineClassForMigrationRequest {
        provider_specific_machine_class: b"{}".to_vec(),
        machine_class: b"{}".to_vec(),
        class_api_group: "example.com".to_owned(),
        class_kind: "Unknown".to_owned(),
    };
    for (call, path, request) in [
        (Call::InitializeMachine, INITIALIZE, initialize.encode_to_vec()),
        (Call::UpdateMachine, UPDATE, update.encode_to_vec()),
        (
            Call::GenerateMachineClassForMigration,
            MIGRATE,
            migrate.encode_to_vec(),
        ),
    ] {
        let answer = raw(&t, path, &request).await?;
        let wanted = declared.contains(&(call as i32));
        ensure(answer.is_code(Grpc::Unimplemented) != wanted, || {
            let word = if wanted { "declared" } else { "not declared" };
            format!("{path} is {word}, and answered code {}", answer.code)
        })?;
    }
    Ok(())
}
