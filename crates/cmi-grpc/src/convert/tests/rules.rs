//! The rules for fields, one by one.

use std::collections::HashMap;

use prost::Message;

use crate::MAX_MESSAGE_BYTES;
use crate::convert::{Declaration, FieldError, MachinePage, PageRequest};
use crate::proto::{capcmi, cmi};
use cmi_driver::*;

fn create() -> cmi::v1::CreateMachineRequest {
    cmi::v1::CreateMachineRequest {
        machine_name: "m-0".to_owned(),
        provider_spec: b"{}".to_vec(),
        ..Default::default()
    }
}

fn created() -> cmi::v1::CreateMachineResponse {
    cmi::v1::CreateMachineResponse {
        provider_id: "sim:///m-0".to_owned(),
        node_name: "m-0".to_owned(),
        ..Default::default()
    }
}

/// Returns the error for a message that breaks a rule.
#[track_caller]
fn refused<Wire, Value>(message: Wire) -> String
where
    Value: TryFrom<Wire, Error = FieldError> + std::fmt::Debug,
{
    Value::try_from(message).unwrap_err().to_string()
}

#[track_caller]
fn refused_create(change: impl FnOnce(&mut cmi::v1::CreateMachineRequest)) -> String {
    let mut request = create();
    change(&mut request);
    refused::<_, CreateMachineRequest>(request)
}

/// CMI-15, CMI-19, CMI-28, CMI-87, CMI-89
#[test]
fn a_required_field_of_a_request_may_not_be_missing() {
    assert_eq!(
        refused_create(|request| request.machine_name.clear()),
        "field MachineName is required"
    );
    assert_eq!(
        refused_create(|request| request.provider_spec.clear()),
        "field ProviderSpec is required"
    );
    let volumes = cmi::v1::GetVolumeIDsRequest::default();
    assert_eq!(
        refused::<_, GetVolumeIdsRequest>(volumes),
        "field PVSpecList is required"
    );
    let update = capcmi::v1::UpdateMachineRequest::default();
    assert_eq!(
        refused::<_, UpdateMachineRequest>(update),
        "field machine_name is required"
    );
}

/// CMI-15, CMI-92, CMI-93, CMI-121, CMI-122
#[test]
fn a_machine_without_an_id_or_a_node_name_is_no_answer() {
    let nameless = |response: cmi::v1::CreateMachineResponse| refused::<_, Machine>(response);
    let no_id = cmi::v1::CreateMachineResponse {
        provider_id: String::new(),
        ..created()
    };
    assert_eq!(nameless(no_id), "field ProviderID is required");
    let no_name = cmi::v1::CreateMachineResponse {
        node_name: String::new(),
        ..created()
    };
    assert_eq!(nameless(no_name), "field NodeName is required");
    let status = cmi::v1::GetMachineStatusResponse::default();
    assert_eq!(refused::<_, Machine>(status), "field ProviderID is required");
}

/// CMI-14
#[test]
fn a_field_may_be_as_long_as_the_file_says_and_no_longer() {
    assert!(
        CreateMachineRequest::try_from(cmi::v1::CreateMachineRequest {
            machine_name: "m".repeat(253),
            last_known_state: vec![0; 4096],
            ..create()
        })
        .is_ok()
    );
    assert_eq!(
        refused_create(|request| request.machine_name = "m".repeat(254)),
        "field MachineName has 254 bytes; the limit is 253"
    );
    assert_eq!(
        refused_create(|request| request.last_known_state = vec![0; 4097]),
        "field LastKnownState has 4097 bytes; the limit is 4096"
    );
    let long_secret = HashMap::from([("k".to_owned(), vec![0; 2 * 1024 * 1024])]);
    assert_eq!(
        refused_create(|request| request.secrets = long_secret),
        "field Secrets has 2097153 bytes; the limit is 2097152"
    );
    let long_id = cmi::v1::CreateMachineResponse {
        provider_id: "p".repeat(513),
        ..created()
    };
    assert_eq!(
        refused::<_, Machine>(long_id),
        "field ProviderID has 513 bytes; the limit is 512"
    );
    let info = cmi::v1::GetPluginInfoResponse {
        name: "a.example".to_owned(),
        version: "1".to_owned(),
        manifest: HashMap::from([("k".to_owned(), "v".repeat(4096))]),
    };
    assert_eq!(
        refused::<_, PluginInfo>(info),
        "field manifest has 4097 bytes; the limit is 4096"
    );
}

/// CMI-88: the text names the position, and shows none of the value.
#[test]
fn a_provider_spec_that_is_no_json_object_is_refused() {
    for spec in [
        "canary",
        "[\"canary\"]",
        "{\"a\": canary}",
        "\"canary\"",
        "{\"a\": 1",
        "\u{0}",
    ] {
        let said = refused_create(|request| request.provider_spec = spec.into());
        assert!(
            said.starts_with("field ProviderSpec is not a JSON object, at line 1"),
            "{said}"
        );
        assert!(!said.contains("canary"), "{said}");
    }
}

/// CMI-147
#[test]
fn volume_specs_are_a_json_list() {
    let read = |text: &str| {
        GetVolumeIdsRequest::try_from(cmi::v1::GetVolumeIDsRequest {
            pv_spec_list: text.into(),
        })
    };
    assert_eq!(read("[]").unwrap().pv_specs.len(), 0);
    assert_eq!(read("[{\"csi\": {}}]").unwrap().pv_specs.len(), 1);
    assert!(
        read("{}")
            .unwrap_err()
            .to_string()
            .starts_with("field PVSpecList is not a JSON list")
    );
}

/// CMI-43, CMI-44
#[test]
fn secrets_are_binary_and_their_keys_are_not() {
    let request = cmi::v1::CreateMachineRequest {
        secrets: HashMap::from([("a-Z_0.9".to_owned(), vec![0, 0xFF, 0xC0])]),
        ..create()
    };
    let read = CreateMachineRequest::try_from(request).unwrap();
    assert_eq!(
        read.machine.class.secrets.get("a-Z_0.9").unwrap().expose(),
        [0, 0xFF, 0xC0]
    );
    for key in ["", "a b", "ä", "a/b"] {
        let secrets = HashMap::from([(key.to_owned(), b"canary".to_vec())]);
        let said = refused_create(|request| request.secrets = secrets);
        assert!(said.starts_with("field Secrets has an invalid key"), "{said}");
        assert!(!said.contains("canary"), "{said}");
    }
}

/// CMI-51, CMI-53, CMI-54, CMI-55
#[test]
fn a_plugin_has_a_domain_name_and_a_version() {
    let read = |name: &str, version: &str| {
        PluginInfo::try_from(cmi::v1::GetPluginInfoResponse {
            name: name.to_owned(),
            version: version.to_owned(),
            manifest: HashMap::new(),
        })
    };
    for name in ["a", "ec2.example.com", "7.Example-1.COM", &"a".repeat(63)] {
        assert!(read(name, "blue-green").is_ok(), "{name}");
    }
    for name in [
        "",
        "-a",
        "a-",
        "a.",
        ".a",
        "a..b",
        "a_b",
        "a b",
        "ä",
        &"a".repeat(64),
    ] {
        assert!(read(name, "1").is_err(), "{name}");
    }
    assert_eq!(
        read("a", "").unwrap_err().to_string(),
        "field version is required"
    );
}

/// CMI-71
#[test]
fn a_probe_without_readiness_is_ready() {
    let read = |ready| Readiness::from(cmi::v1::ProbeResponse { ready });
    assert_eq!([None, Some(true)].map(read), [Readiness::Ready; 2]);
    assert_eq!(read(Some(false)), Readiness::NotReady);
}

/// CMI-60: the numbers in the published file differ from those in its text.
#[test]
fn list_is_capability_four_and_shut_down_is_five() {
    // capabilities { rpc { type: 4 } }, and the same with an unknown number.
    let bytes = [0x0A, 4, 0x0A, 2, 0x08, 4, 0x0A, 4, 0x0A, 2, 0x08, 99, 0x0A, 0];
    let plugin = cmi::v1::GetPluginCapabilitiesResponse::decode(&bytes[..]).unwrap();
    let read = Capabilities::try_from(Declaration {
        plugin,
        extension: None,
    })
    .unwrap();
    assert_eq!(read.operations, [Operation::ListMachines].into());
    let both = Capabilities {
        operations: [Operation::ShutDownMachine].into(),
        ..Capabilities::minimal()
    };
    let declared = Declaration::from(&both).plugin.encode_to_vec();
    assert!(declared.ends_with(&[0x0A, 4, 0x0A, 2, 0x08, 5]), "{declared:?}");
}

/// A plugin of the published file alone.
#[test]
fn a_plugin_that_declares_nothing_offers_create_and_delete() {
    let read = Capabilities::try_from(Declaration::default()).unwrap();
    assert_eq!(read, Capabilities::minimal());
}

#[test]
fn what_an_extension_says_of_itself_has_to_make_sense() {
    type Extension = capcmi::v1::GetExtensionCapabilitiesResponse;
    let read = |extension: Extension| {
        let declaration = Declaration {
            extension: Some(extension),
            ..Declaration::default()
        };
        Capabilities::try_from(declaration).map_err(|error| error.to_string())
    };
    let unknown = Extension {
        calls: vec![99, 0, 6],
        ..Extension::default()
    };
    assert_eq!(read(unknown).unwrap().operations, [Operation::ListZones].into());
    let wrong = [
        (
            Extension {
                tag_path: "tags".to_owned(),
                ..Extension::default()
            },
            "field tag_path is not a JSON pointer to a field",
        ),
        (
            Extension {
                address_path: "ips".to_owned(),
                ..Extension::default()
            },
            "field address_path is not a JSON pointer to a field",
        ),
        (
            Extension {
                hot_updatable: vec![String::new()],
                ..Extension::default()
            },
            "field hot_updatable is required",
        ),
        (
            Extension {
                consistency_window: Some(prost_types::Duration {
                    seconds: -1,
                    nanos: 0,
                }),
                ..Extension::default()
            },
            "field consistency_window is negative",
        ),
        (
            Extension {
                provider_spec_schema: b"{".to_vec(),
                ..Extension::default()
            },
            "field provider_spec_schema is not a JSON schema, at line 1, column 1",
        ),
    ];
    for (extension, said) in wrong {
        assert_eq!(read(extension).unwrap_err(), said);
    }
}

/// CMI-17, CMI-141, CMI-151: "none" is an answer.
#[test]
fn lists_may_be_empty() {
    let machines: Vec<ListedMachine> = cmi::v1::ListMachinesResponse::default().try_into().unwrap();
    let volumes: Vec<String> = cmi::v1::GetVolumeIDsResponse::default().try_into().unwrap();
    assert!(machines.is_empty() && volumes.is_empty());
}

/// CMI-14, CMI-137
#[test]
fn ten_thousand_machines_with_the_longest_names_fit_into_one_message() {
    let machines: Vec<_> = (0..10_000)
        .map(|number| {
            let provider_id = format!("{number:0>512}").parse().unwrap();
            ListedMachine::new(provider_id, format!("{number:0>253}"))
        })
        .collect();
    let message = cmi::v1::ListMachinesResponse::from(machines.clone());
    assert!(message.encoded_len() < MAX_MESSAGE_BYTES);
    let read: Vec<ListedMachine> = message.try_into().unwrap();
    assert_eq!(read, machines);
}

/// A machine may have many addresses, and usual libraries take 4 MiB.
#[test]
fn a_page_of_machines_with_many_addresses_fits_into_a_message() {
    let address = Address {
        kind: AddressType::InternalDNS,
        address: "a".repeat(256),
    };
    let machines: Vec<_> = (0..1000)
        .map(|number| ListedMachine {
            addresses: vec![address.clone(); 40],
            ..ListedMachine::new(format!("{number:0>512}").parse().unwrap(), "m")
        })
        .collect();
    let place = |token| {
        let request = capcmi::v1::ListMachinesPagedRequest {
            provider_spec: b"{}".to_vec(),
            page_token: token,
            ..Default::default()
        };
        PageRequest::try_from(request).unwrap().place().unwrap()
    };
    let mut read = Vec::new();
    let mut token = String::new();
    loop {
        let page = capcmi::v1::ListMachinesPagedResponse::from(place(token).cut(machines.clone()));
        assert!(page.encoded_len() < 4 << 20, "{}", page.encoded_len());
        let MachinePage { machines, next } = page.try_into().unwrap();
        read.extend(machines);
        let Some(next) = next else { break };
        token = next.0;
    }
    assert_eq!(read, machines);
}

#[test]
fn an_unknown_address_and_an_unknown_power_state_are_left_out() {
    let address = |kind: i32, address: &str| capcmi::v1::MachineAddress {
        r#type: kind,
        address: address.to_owned(),
    };
    let machine = capcmi::v1::Machine {
        provider_id: "p".to_owned(),
        node_name: "n".to_owned(),
        addresses: vec![address(99, ""), address(0, "x"), address(3, "10.0.0.1")],
        power_state: 99,
        ..Default::default()
    };
    let read = Machine::try_from(machine.clone()).unwrap();
    let internal = Address {
        kind: AddressType::InternalIP,
        address: "10.0.0.1".to_owned(),
    };
    assert_eq!((read.addresses, read.power_state), (vec![internal], None));
    let empty = capcmi::v1::Machine {
        addresses: vec![address(3, "")],
        ..machine
    };
    assert_eq!(
        refused::<_, Machine>(empty),
        "field addresses.address is required"
    );
}

/// An invalid time would make a VM look older than it is.
#[test]
fn a_listed_machine_was_made_at_a_time_that_there_is() {
    for (seconds, nanos) in [(-1, 0), (0, -1), (0, 1_000_000_000), (i64::MAX, 0)] {
        let machine = capcmi::v1::list_machines_paged_response::ListedMachine {
            provider_id: "p".to_owned(),
            created_at: Some(prost_types::Timestamp { seconds, nanos }),
            ..Default::default()
        };
        let page = capcmi::v1::ListMachinesPagedResponse {
            machines: vec![machine],
            ..Default::default()
        };
        assert_eq!(
            refused::<_, MachinePage>(page),
            "field machines.created_at is not a time between 1970 and 9999"
        );
    }
}

#[test]
fn a_page_has_no_negative_size() {
    let request = capcmi::v1::ListMachinesPagedRequest {
        provider_spec: b"{}".to_vec(),
        page_size: -1,
        ..Default::default()
    };
    assert_eq!(refused::<_, PageRequest>(request), "field page_size is negative");
}

/// CMI-28, CMI-30: the caller must fix a broken request, and the plugin a broken response.
#[test]
fn broken_requests_are_invalid_argument_and_responses_internal() {
    let mut request = create();
    request.machine_name.clear();
    let error = CreateMachineRequest::try_from(request).unwrap_err();
    assert_eq!(error.in_request().code(), Code::InvalidArgument);
    let status = error.in_response(Operation::CreateMachine);
    assert_eq!(status.code(), Code::Internal);
    assert!(status.message().contains("CreateMachine"), "{status}");
}
