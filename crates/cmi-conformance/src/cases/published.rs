//! Calls on the wire that the client replaces by others, or answers itself.

use tonic::Code as Grpc;

use super::cases;
use super::requests::{
    CONSOLE, DESCRIBE, EXTENSION, Fields, GET_MACHINE, INITIALIZE, LIST, LIST_PAGED, MIGRATE, RESTART,
    STATUS, UPDATE, ZONES, raw,
};
use crate::answer::{CaseError, CaseResult, ensure, same_names};
use crate::{Case, MachineRequest, Need, TestContext};
use cmi_driver::{Capabilities, Operation, ProviderId};
use cmi_grpc::convert::Declaration;
use cmi_grpc::proto::capcmi::v1::get_extension_capabilities_response::Call as ExtensionCall;
use cmi_grpc::proto::capcmi::v1::{GetExtensionCapabilitiesResponse, ListMachinesPagedResponse};
use cmi_grpc::proto::cmi::v1::{GetMachineStatusResponse, ListMachinesResponse};

const CALLED_STATUS: Need = Need::Call(Operation::GetMachineStatus);
const CALLED_LIST: Need = Need::Call(Operation::ListMachines);

pub(super) const CASES: &[Case] = cases! {
    "wire-status-answers": "the published GetMachineStatus returns the right VM, also beside the extension"
        ["PLG-GS-00", "PLG-GS-05", "CMI-115", "CMI-116", "CMI-121", "CMI-122"],
        [Need::Endpoint, CALLED_STATUS] => status_answers;
    "wire-status-other-identity": "the published GetMachineStatus returns no VM with another machine tag"
        ["CAP-03"], [Need::Endpoint, CALLED_STATUS] => status_other_identity;
    "wire-list-answers":
        "the published ListMachines returns only VMs of its cluster, also beside the extension"
        ["PLG-LM-00", "CMI-49", "CMI-137", "CMI-138", "CMI-141"],
        [Need::Endpoint, CALLED_LIST] => list_answers;
    "wire-undeclared-extension": "an undeclared extension call is UNIMPLEMENTED, a declared call is not"
        ["INI-11", "UPD-02", "DRV-48", "DRV-MG-12", "CAP-05"],
        [Need::Endpoint] => undeclared_extension;
    "wire-extension-capabilities":
        "extension capabilities can be parsed: JSON pointers, and a schema that is an object"
        ["CAP-05"], [Need::Endpoint] => extension_capabilities;
    "wire-list-pages": "no page exceeds the requested size, and together they contain each VM once"
        ["CAP-06"], [Need::Endpoint, CALLED_LIST] => list_pages;
};

/// The number of VMs in the paged list: more than one page of the smallest size.
const LISTED: usize = 6;
/// The page sizes of the requests: one needs several pages, the other fits everything. Some back ends have no
/// page below 5.
const PAGE_SIZES: [i32; 2] = [5, 100];
/// The most pages of a list: a page may be empty without being the last, but endless pages are an error.
const MAX_PAGES: usize = 100;

async fn status_answers(t: TestContext) -> CaseResult {
    let machine_request = t.machine_request("a");
    let ask = async |machine_request: &MachineRequest| {
        raw(&t, STATUS, &Fields::of(machine_request).request(STATUS)).await
    };
    ask(&machine_request).await?.is(Grpc::NotFound)?;
    let made = t.prepare(&machine_request).await?;
    let read: GetMachineStatusResponse = ask(&machine_request).await?.ok()?;
    same_names(&made, STATUS, (&read.provider_id, &read.node_name))?;
    let foreign = machine_request.in_cluster(&t.other_cluster());
    ask(&foreign).await?.is(Grpc::NotFound)
}

async fn status_other_identity(t: TestContext) -> CaseResult {
    let machine_request = t.machine_request("a");
    t.prepare(&machine_request).await?;
    let other = machine_request.with_identity("another-machine");
    let answer = raw(&t, STATUS, &Fields::of(&other).request(STATUS)).await?;
    answer.is(Grpc::NotFound)
}

async fn list_answers(t: TestContext) -> CaseResult {
    let (one, two) = (t.machine_request("a"), t.machine_request("b"));
    let there = t.machine_request("c").in_cluster(&t.other_cluster());
    lists(&t, &one, &[]).await?;
    let (first, second) = (t.prepare(&one).await?, t.prepare(&two).await?);
    let other = t.prepare(&there).await?;
    let here = [(&one, &first.provider_id), (&two, &second.provider_id)];
    lists(&t, &one, &here).await?;
    lists(&t, &there, &[(&there, &other.provider_id)]).await
}

pub(super) async fn lists(
    t: &TestContext,
    machine_request: &MachineRequest,
    wanted: &[(&MachineRequest, &ProviderId)],
) -> CaseResult {
    let listed: ListMachinesResponse = raw(t, LIST, &Fields::of(machine_request).request(LIST))
        .await?
        .ok()?;
    let mut found: Vec<_> = listed.machine_list.into_iter().collect();
    found.sort();
    let mut wanted: Vec<_> = wanted
        .iter()
        .map(|(machine_request, id)| (id.to_string(), machine_request.name.clone()))
        .collect();
    wanted.sort();
    ensure(found == wanted, || {
        format!(
            "{LIST} of cluster `{}` must answer {wanted:?}, but answered {found:?}",
            machine_request.cluster()
        )
    })
}

/// Returns the declaration of the extension, or `None` if the plugin does not serve it.
pub(super) async fn extended(t: &TestContext) -> CaseResult<Option<GetExtensionCapabilitiesResponse>> {
    let answer = raw(t, EXTENSION, &[]).await?;
    if answer.is_code(Grpc::Unimplemented) {
        return Ok(None);
    }
    answer.ok().map(Some)
}

/// Applies the rules of the client, which accepts no plugin that breaks them.
async fn extension_capabilities(t: TestContext) -> CaseResult {
    let declaration = Declaration {
        extension: extended(&t).await?,
        ..Declaration::default()
    };
    Capabilities::try_from(declaration).map(drop).map_err(|error| {
        CaseError::failed(format!(
            "the client refuses the answer of {EXTENSION}, and with it the plugin: {error}"
        ))
    })
}

async fn undeclared_extension(t: TestContext) -> CaseResult {
    let declared = extended(&t).await?.unwrap_or_default().calls;
    // The requests are well formed, and about a VM that does not exist.
    let fields = Fields {
        provider_id: "conformance:///missing".to_owned(),
        ..Fields::of(&t.machine_request("a"))
    };
    let calls = (1_i32..).map_while(|number| ExtensionCall::try_from(number).ok());
    for call in calls {
        let path = path_of(call);
        let answer = raw(&t, path, &fields.request(path)).await?;
        let wanted = declared.contains(&(call as i32));
        ensure(answer.is_code(Grpc::Unimplemented) != wanted, || {
            let word = if wanted { "declared" } else { "not declared" };
            format!("{path} is {word}, and answered code {}", answer.code)
        })?;
    }
    Ok(())
}

/// Returns the path of a call of the extension.
pub(super) const fn path_of(call: ExtensionCall) -> &'static str {
    match call {
        ExtensionCall::Unspecified => EXTENSION,
        ExtensionCall::InitializeMachine => INITIALIZE,
        ExtensionCall::UpdateMachine => UPDATE,
        ExtensionCall::GenerateMachineClassForMigration => MIGRATE,
        ExtensionCall::GetMachine => GET_MACHINE,
        ExtensionCall::ListMachinesPaged => LIST_PAGED,
        ExtensionCall::ListZones => ZONES,
        ExtensionCall::DescribeClass => DESCRIBE,
        ExtensionCall::RestartMachine => RESTART,
        ExtensionCall::GetConsole => CONSOLE,
    }
}

fn page_request(machine_request: &MachineRequest, page_size: i32, page_token: String) -> Vec<u8> {
    let fields = Fields {
        page_size,
        page_token,
        ..Fields::of(machine_request)
    };
    fields.request(LIST_PAGED)
}

async fn list_pages(t: TestContext) -> CaseResult {
    let declared = extended(&t).await?.unwrap_or_default().calls;
    if !declared.contains(&(ExtensionCall::ListMachinesPaged as i32)) {
        return Err(CaseError::Skipped("ListMachinesPaged is not declared".to_owned()));
    }
    let mut wanted = Vec::new();
    for number in 0..LISTED {
        let machine_request = t.machine_request(&format!("n{number}"));
        let id = t.prepare(&machine_request).await?.provider_id;
        wanted.push((id.to_string(), machine_request.name));
    }
    wanted.sort();
    let machine_request = t.machine_request("n0");
    for size in PAGE_SIZES {
        let mut found = all_pages(&t, &machine_request, size).await?;
        found.sort();
        ensure(found == wanted, || {
            format!("{LIST_PAGED} in pages of {size} must answer {wanted:?}, but answered {found:?}")
        })?;
    }
    let foreign = page_request(&machine_request, 1, "conformance:no-token".to_owned());
    raw(&t, LIST_PAGED, &foreign).await?.is(Grpc::InvalidArgument)
}

async fn all_pages(
    t: &TestContext,
    machine_request: &MachineRequest,
    size: i32,
) -> CaseResult<Vec<(String, String)>> {
    let (mut all, mut token) = (Vec::new(), String::new());
    for _ in 0..MAX_PAGES {
        let request = page_request(machine_request, size, std::mem::take(&mut token));
        let page: ListMachinesPagedResponse = raw(t, LIST_PAGED, &request).await?.ok()?;
        let (machines, most) = (
            page.machines.into_iter(),
            usize::try_from(size).unwrap_or_default(),
        );
        ensure(machines.len() <= most, || {
            format!("a page of at most {most} machines has {}", machines.len())
        })?;
        all.extend(machines.map(|machine| (machine.provider_id, machine.machine_name)));
        if page.next_page_token.is_empty() {
            return Ok(all);
        }
        token = page.next_page_token;
    }
    Err(CaseError::failed(format!(
        "{LIST_PAGED} in pages of {size} does not end after {MAX_PAGES} pages"
    )))
}
