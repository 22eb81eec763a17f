//! Calls that have a better alternative in the extension.

use super::plugin::{Plugin, Reply};
use super::*;
use crate::proto::capcmi::v1::get_extension_capabilities_response::Call as ExtensionCall;
use crate::proto::capcmi::v1::list_machines_paged_response::ListedMachine;
use crate::proto::capcmi::v1::{
    GetExtensionCapabilitiesResponse, ListMachinesPagedRequest, ListMachinesPagedResponse, Machine,
    PowerState,
};
use crate::proto::cmi::v1::ListMachinesResponse;
use cmi_driver::ListZonesRequest;
use prost::Message as _;

fn extended(calls: &[ExtensionCall]) -> Plugin {
    let plugin = Plugin::start();
    let extension = GetExtensionCapabilitiesResponse {
        calls: calls.iter().map(|call| (*call).into()).collect(),
        ..GetExtensionCapabilitiesResponse::default()
    };
    plugin.answers("GetExtensionCapabilities", Reply::ok(&extension));
    plugin
}

fn page(name: &str, next: &str) -> Reply {
    Reply::ok(&ListMachinesPagedResponse {
        machines: vec![ListedMachine {
            provider_id: format!("sim://{name}"),
            machine_name: name.to_owned(),
            ..ListedMachine::default()
        }],
        next_page_token: next.to_owned(),
    })
}

#[tokio::test]
async fn the_extensions_status_is_asked_for_where_there_is_one() {
    let plugin = extended(&[ExtensionCall::GetMachine]);
    let machine = Machine {
        provider_id: "sim://1".to_owned(),
        node_name: "m".to_owned(),
        power_state: PowerState::Running.into(),
        ..Machine::default()
    };
    plugin.answers("GetMachine", Reply::ok(&machine));
    let read = driver(&plugin).get_machine_status(look_up()).await.unwrap();
    assert_eq!(read.power_state, Some(cmi_driver::PowerState::Running));
    assert_eq!(plugin.count("GetMachineStatus"), 0);
}

/// CLI-LM-00
#[tokio::test]
async fn a_list_is_all_of_its_pages() {
    let plugin = extended(&[ExtensionCall::ListMachinesPaged]);
    plugin.answers_in_turn("ListMachinesPaged", [page("a", "2"), page("b", "")]);
    let machines = driver(&plugin).list_machines(list()).await.unwrap();
    let names: Vec<_> = machines
        .iter()
        .map(|machine| machine.machine_name.as_str())
        .collect();
    assert_eq!(names, ["a", "b"]);
    let tokens: Vec<_> = plugin
        .calls()
        .iter()
        .filter(|call| call.method == "ListMachinesPaged")
        .map(|call| {
            ListMachinesPagedRequest::decode(call.message.as_slice())
                .unwrap()
                .page_token
        })
        .collect();
    assert_eq!(tokens, ["", "2"]);
    assert_eq!(plugin.count("ListMachines"), 0);
}

/// Half a list would make VMs look gone.
#[tokio::test]
async fn a_list_that_does_not_end_is_internal() {
    let plugin = extended(&[ExtensionCall::ListMachinesPaged]);
    plugin.answers("ListMachinesPaged", page("a", "again"));
    let status = driver(&plugin).list_machines(list()).await.unwrap_err();
    assert_eq!(status.code(), Code::Internal, "{status}");
    assert_eq!(plugin.count("ListMachinesPaged"), 2);
}

/// A machine that appears or disappears between two pages may put another machine on both pages.
#[tokio::test]
async fn a_machine_that_is_on_two_pages_is_listed_once() {
    let plugin = extended(&[ExtensionCall::ListMachinesPaged]);
    plugin.answers_in_turn(
        "ListMachinesPaged",
        [page("b", "2"), page("a", "3"), page("b", "")],
    );
    let machines = driver(&plugin).list_machines(list()).await.unwrap();
    let names: Vec<_> = machines
        .iter()
        .map(|machine| machine.machine_name.as_str())
        .collect();
    assert_eq!(names, ["a", "b"]);
}

/// CMI-14: a list takes only so much memory.
#[tokio::test]
async fn a_list_of_more_machines_than_any_cluster_has_is_internal() {
    let plugin = extended(&[ExtensionCall::ListMachinesPaged]);
    let full = |next: &str| {
        let machines = (0..50_001).map(|n| ListedMachine {
            provider_id: format!("sim://{n}"),
            machine_name: "m".to_owned(),
            ..ListedMachine::default()
        });
        Reply::ok(&ListMachinesPagedResponse {
            machines: machines.collect(),
            next_page_token: next.to_owned(),
        })
    };
    plugin.answers_in_turn("ListMachinesPaged", ["1", "2", "3", "4", ""].map(full));
    let listed = driver(&plugin).list_machines(list()).await;
    let status = listed.map(|machines| machines.len()).unwrap_err();
    assert_eq!(status.code(), Code::Internal, "{status}");
    assert!(status.message().contains("too many machines"), "{status}");
    assert_eq!(plugin.count("ListMachinesPaged"), 4);
}

/// CMI-14: an empty element takes two bytes on the wire, and a hundred as a struct.
#[tokio::test]
async fn an_answer_of_too_many_elements_is_internal_before_any_is_decoded() {
    let calls = [ExtensionCall::ListMachinesPaged, ExtensionCall::ListZones];
    let (paged, plain) = (extended(&calls), Plugin::start());
    let empty = [0x0a, 0].repeat(200_001);
    for method in ["ListMachinesPaged", "ListZones"] {
        paged.answers(method, Reply::frame(&empty));
    }
    plain.answers("ListMachines", Reply::frame(&empty));
    let zones = ListZonesRequest { class: list().class };
    for status in [
        driver(&paged).list_machines(list()).await.unwrap_err(),
        driver(&plain).list_machines(list()).await.unwrap_err(),
        driver(&paged).list_zones(zones).await.unwrap_err(),
    ] {
        assert_eq!(status.code(), Code::Internal, "{status}");
        assert!(status.message().contains("too many elements"), "{status}");
    }
}

/// CMI-14: the limits of messages are raised on purpose.
#[tokio::test]
async fn ten_thousand_machines_with_long_names_fit_into_one_list() {
    let plugin = Plugin::start();
    let machines = (0..10_000).map(|n| (format!("{n:0>512}"), format!("{n:0>253}")));
    let all = ListMachinesResponse {
        machine_list: machines.collect(),
    };
    plugin.answers("ListMachines", Reply::ok(&all));
    let listed = driver(&plugin).list_machines(list()).await.unwrap();
    assert_eq!(listed.len(), 10_000);
}
