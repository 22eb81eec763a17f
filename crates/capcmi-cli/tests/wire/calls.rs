//! Tests every call over every kind of socket, with code generated from `proto/` alone.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Result, ensure};
use cmi_driver::{LastKnownState, Machine, tags};
use cmi_grpc::proto::{capcmi as extended, cmi};
use cmi_grpc::trailers;
use serde_json::{Value, json};
use tokio_stream::StreamExt as _;

use crate::support::{Connection, Scripted, Served, create, provider_spec, simulated};

const FAST: &str = "{bootSeconds: 0, bootJitterSeconds: 0, shutDownSeconds: 0, deleteSeconds: 0}";

/// CMI-03, CMI-08, CMI-153, CMI-159, CMI-161, CMI-180
#[tokio::test]
async fn a_machine_comes_and_goes_over_a_unix_socket_and_over_tcp() -> Result<()> {
    for served in [
        Served::simulated(FAST).await?,
        Served::at("tcp://127.0.0.1:0", simulated(FAST)?, None).await?,
        Served::at("tcp://[::1]:0", simulated(FAST)?, None).await?,
    ] {
        live_and_die(&served).await?;
        served.stop().await?;
    }
    Ok(())
}

/// CMI-153: a client of the published specification alone does not know the tag `capcmi.io/machine`.
#[tokio::test]
async fn a_client_that_sends_no_identity_is_served() -> Result<()> {
    let served = Served::simulated(FAST).await?;
    let mut machines = served.machine().await?;
    let spec = json!({
        "vmPool": "default",
        "size": "small",
        "tags": {tags::CLUSTER: "c", tags::ROLE: "node"},
    });
    let plain = cmi::v1::CreateMachineRequest {
        provider_spec: spec.to_string().into_bytes(),
        ..create("m-plain")
    };
    let [first, again] = [
        machines.create_machine(plain.clone()).await?.into_inner(),
        machines.create_machine(plain.clone()).await?.into_inner(),
    ];
    ensure!(first.provider_id == again.provider_id, "{first:?} {again:?}");
    let deletion = cmi::v1::DeleteMachineRequest {
        machine_name: plain.machine_name,
        provider_spec: plain.provider_spec,
        secrets: plain.secrets,
        ..Default::default()
    };
    machines.delete_machine(deletion).await?;
    served.stop().await
}

async fn live_and_die(served: &Served) -> Result<()> {
    let (mut machines, mut extension) = (served.machine().await?, served.extension().await?);
    let class = || (provider_spec("c", "m-0"), HashMap::new());
    let created = machines.create_machine(create("m-0")).await?.into_inner();
    ensure!(
        created.node_name == "m-0" && !created.provider_id.is_empty(),
        "{created:?}"
    );
    let id = created.provider_id.clone();

    let (provider_spec, secrets) = class();
    let status = machines
        .get_machine_status(cmi::v1::GetMachineStatusRequest {
            machine_name: "m-0".to_owned(),
            provider_id: id.clone(),
            provider_spec,
            secrets,
        })
        .await?
        .into_inner();
    ensure!(status.provider_id == id, "{status:?}");

    let (provider_spec, secrets) = class();
    let full = extension
        .get_machine(extended::v1::GetMachineRequest {
            machine_name: "m-0".to_owned(),
            provider_spec,
            secrets,
            provider_id: String::new(),
        })
        .await?
        .into_inner();
    ensure!(full.provider_id == id && !full.addresses.is_empty(), "{full:?}");
    ensure!(
        full.power_state() == extended::v1::PowerState::Running,
        "{full:?}"
    );

    let (provider_spec, secrets) = class();
    let listed = machines
        .list_machines(cmi::v1::ListMachinesRequest {
            provider_spec,
            secrets,
        })
        .await?
        .into_inner();
    ensure!(
        listed.machine_list == HashMap::from([(id.clone(), "m-0".to_owned())]),
        "{listed:?}"
    );

    let (provider_spec, secrets) = class();
    let initialized = extension
        .initialize_machine(extended::v1::InitializeMachineRequest {
            machine_name: "m-0".to_owned(),
            provider_spec,
            secrets,
            ..Default::default()
        })
        .await?
        .into_inner();
    ensure!(initialized.provider_id == id, "{initialized:?}");

    let (old, secrets) = class();
    let mut new: Value = serde_json::from_slice(&old)?;
    new["labels"] = json!({"colour": "red"});
    extension
        .update_machine(extended::v1::UpdateMachineRequest {
            machine_name: "m-0".to_owned(),
            provider_id: id.clone(),
            last_applied_provider_spec: old,
            provider_spec: new.to_string().into_bytes(),
            secrets,
            last_known_state: Vec::new(),
        })
        .await?;

    let (provider_spec, secrets) = class();
    machines
        .shut_down_machine(cmi::v1::ShutDownMachineRequest {
            machine_name: "m-0".to_owned(),
            provider_spec,
            secrets,
            ..Default::default()
        })
        .await?;

    // Twice: the second finds none (CMI-100).
    for _ in 0..2 {
        let (provider_spec, secrets) = class();
        machines
            .delete_machine(cmi::v1::DeleteMachineRequest {
                machine_name: "m-0".to_owned(),
                provider_spec,
                secrets,
                provider_id: id.clone(),
                last_known_state: Vec::new(),
            })
            .await?;
    }
    Ok(())
}

/// CMI-147, CMI-148
#[tokio::test]
async fn what_is_asked_about_classes_and_volumes_is_answered() -> Result<()> {
    let served = Served::simulated("{}").await?;
    let (mut machines, mut extension) = (served.machine().await?, served.extension().await?);
    let zones = extension
        .list_zones(extended::v1::ListZonesRequest {
            provider_spec: b"{}".to_vec(),
            secrets: HashMap::new(),
        })
        .await?
        .into_inner();
    let names: Vec<_> = zones.zones.iter().map(|zone| zone.name.as_str()).collect();
    ensure!(names == ["zone-a", "zone-b", "zone-c"], "{names:?}");

    let class = extension
        .describe_class(extended::v1::DescribeClassRequest {
            provider_spec: provider_spec("c", "m"),
            secrets: HashMap::new(),
        })
        .await?
        .into_inner();
    ensure!(
        class.capacity["memory"] == "4Gi" && class.architecture == "amd64",
        "{class:?}"
    );

    let volumes = json!([{"csi": {"driver": "simulated.capcmi.io", "volumeHandle": "v-1"}}, {"nfs": {}}]);
    let ids = machines
        .get_volume_i_ds(cmi::v1::GetVolumeIDsRequest {
            pv_spec_list: volumes.to_string().into_bytes(),
        })
        .await?
        .into_inner();
    ensure!(ids.volume_i_ds == ["v-1"], "{ids:?}");

    let migrated = extension
        .generate_machine_class_for_migration(extended::v1::GenerateMachineClassForMigrationRequest {
            provider_specific_machine_class: json!({"spec": {"pool": "p", "size": "s"}})
                .to_string()
                .into_bytes(),
            machine_class: b"{\"metadata\": {}}".to_vec(),
            class_api_group: "example.com".to_owned(),
            class_kind: "SimulatedMachineClass".to_owned(),
        })
        .await?
        .into_inner();
    let migrated: Value = serde_json::from_slice(&migrated.machine_class)?;
    ensure!(
        migrated["providerSpec"] == json!({"vmPool": "p", "size": "s"}),
        "{migrated}"
    );
    served.stop().await
}

/// CMI-50, CMI-58, CMI-61, CMI-62, CMI-69
#[tokio::test]
async fn a_plugin_says_its_name_what_it_offers_and_whether_it_is_ready() -> Result<()> {
    let served = Served::start(Scripted::creating(|_| async { unreachable!() })).await?;
    let mut identity = served.identity().await?;
    let info = identity
        .get_plugin_info(cmi::v1::GetPluginInfoRequest {})
        .await?
        .into_inner();
    ensure!(
        info.name == "scripted.example" && info.manifest["motto"] == "as you like it",
        "{info:?}"
    );
    let offered = identity
        .get_plugin_capabilities(cmi::v1::GetPluginCapabilitiesRequest {})
        .await?
        .into_inner();
    ensure!(offered.capabilities.len() == 2, "{offered:?}");
    let ready = identity.probe(cmi::v1::ProbeRequest {}).await?.into_inner().ready;
    ensure!(ready == Some(false), "{ready:?}");
    let extension = served
        .extension()
        .await?
        .get_extension_capabilities(extended::v1::GetExtensionCapabilitiesRequest {})
        .await?
        .into_inner();
    ensure!(
        extension.calls.is_empty() && extension.tag_path == "/tags",
        "{extension:?}"
    );
    served.stop().await
}

/// Reads the whole list page by page.
#[tokio::test]
async fn a_list_in_pages_holds_every_machine_once() -> Result<()> {
    let served = Served::simulated(FAST).await?;
    let (mut machines, mut extension) = (served.machine().await?, served.extension().await?);
    for number in 0..7 {
        machines.create_machine(create(&format!("m-{number}"))).await?;
    }
    let mut seen = BTreeMap::new();
    let mut pages = 0;
    let mut token = String::new();
    loop {
        let request = extended::v1::ListMachinesPagedRequest {
            provider_spec: provider_spec("c", ""),
            page_size: 3,
            page_token: token,
            ..Default::default()
        };
        let page = extension.list_machines_paged(request).await?.into_inner();
        pages += 1;
        ensure!(page.machines.len() <= 3, "{page:?}");
        for machine in page.machines {
            let twice = seen.insert(machine.provider_id, machine.machine_name);
            ensure!(twice.is_none(), "{twice:?}");
        }
        if page.next_page_token.is_empty() {
            break;
        }
        token = page.next_page_token;
    }
    ensure!((pages, seen.len()) == (3, 7), "{pages} pages, {seen:?}");

    let refused = extension
        .list_machines_paged(extended::v1::ListMachinesPagedRequest {
            provider_spec: provider_spec("c", ""),
            page_token: "elsewhere".to_owned(),
            ..Default::default()
        })
        .await
        .err();
    ensure!(
        refused
            .as_ref()
            .is_some_and(|status| status.code() == tonic::Code::InvalidArgument
                && status.message().contains("page_token")),
        "{refused:?}"
    );
    served.stop().await
}

/// Fields that the cmi.v1 response lacks are sent as trailers, where libraries of any language find them.
#[tokio::test]
async fn the_rest_of_a_machine_comes_in_the_trailers_of_its_response() -> Result<()> {
    let served = Served::start(Scripted::creating(|request| async move {
        Ok(Machine {
            failure_domain: Some("zone-a".to_owned()),
            last_known_state: LastKnownState::new(vec![0, 0xFF]),
            ..Machine::new("s:///1".parse().unwrap(), request.machine.name)
        })
    }))
    .await?;
    let socket = tokio::net::UnixStream::connect(served.socket()?).await?;
    let mut connection = Connection::open(socket).await?;
    let answer = connection
        .call("/cmi.v1.Machine/CreateMachine", &create("m-0"), &[])
        .await?;
    ensure!(answer.code()? == tonic::Code::Ok);
    ensure!(
        !answer.headers.contains_key("capcmi-response-bin"),
        "{:?}",
        answer.headers
    );
    ensure!(
        answer.trailers.contains_key("capcmi-response-bin"),
        "{:?}",
        answer.trailers
    );

    let response = served.machine().await?.create_machine(create("m-0")).await?;
    let (metadata, message, _) = response.into_parts();
    let full = trailers::completed(message.try_into()?, &metadata);
    ensure!(full.failure_domain.as_deref() == Some("zone-a"), "{full:?}");
    ensure!(
        full.last_known_state
            .is_some_and(|state| state.as_bytes() == [0, 0xFF])
    );
    served.stop().await
}

/// CMI-14: the limits of messages are raised on both sides.
#[tokio::test]
async fn a_request_may_be_larger_than_grpc_allows_by_default() -> Result<()> {
    let served = Served::simulated("{}").await?;
    let mut machines = served.machine().await?;
    let volumes = vec![json!({"nfs": {"path": "x".repeat(1000)}}); 6000];
    let ids = machines
        .get_volume_i_ds(cmi::v1::GetVolumeIDsRequest {
            pv_spec_list: json!(volumes).to_string().into_bytes(),
        })
        .await?
        .into_inner();
    ensure!(ids.volume_i_ds.is_empty(), "{ids:?}");
    served.stop().await
}

#[tokio::test]
async fn reflection_shows_the_services_and_health_says_that_they_serve() -> Result<()> {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

    let served = Served::simulated("{}").await?;
    let channel = served.channel().await?;
    let ask = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut answers = ServerReflectionClient::new(channel.clone())
        .server_reflection_info(tokio_stream::once(ask))
        .await?
        .into_inner();
    let answer = answers
        .next()
        .await
        .transpose()?
        .and_then(|answer| answer.message_response);
    let Some(MessageResponse::ListServicesResponse(services)) = answer else {
        anyhow::bail!("{answer:?}");
    };
    let mut names: Vec<_> = services.service.into_iter().map(|service| service.name).collect();
    names.sort();
    for name in [
        "capcmi.v1.MachineExtension",
        "cmi.v1.Identity",
        "cmi.v1.Machine",
        "grpc.health.v1.Health",
    ] {
        ensure!(
            names.iter().any(|known| known == name),
            "{name} is not among {names:?}"
        );
    }

    let mut health = tonic_health::pb::health_client::HealthClient::new(channel);
    for service in ["", "cmi.v1.Machine", "capcmi.v1.MachineExtension"] {
        let request = tonic_health::pb::HealthCheckRequest {
            service: service.to_owned(),
        };
        let status = health.check(request).await?.into_inner().status();
        ensure!(
            status == tonic_health::pb::health_check_response::ServingStatus::Serving,
            "{service}: {status:?}"
        );
    }
    served.stop().await
}
