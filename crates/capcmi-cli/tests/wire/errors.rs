//! Failures as a client sees them.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use cmi_driver::{Code, CreateMachineRequest, LastKnownState, Machine, SecretValue, Status};
use cmi_grpc::proto::{capcmi as extended, cmi};
use cmi_grpc::trailers;
use tokio::net::UnixStream;

use crate::support::{Connection, Scripted, Served, create, provider_spec};

const CREATE: &str = "/cmi.v1.Machine/CreateMachine";

async fn connection(served: &Served) -> Result<Connection> {
    Connection::open(UnixStream::connect(served.socket()?).await?).await
}

fn machine() -> Result<Machine> {
    Ok(Machine::new("s:///1".parse()?, "m-0"))
}

fn created(machine: Machine) -> Ready<cmi_driver::Result<Machine>> {
    ready(Ok(machine))
}

/// CMI-23, CMI-24, CMI-40, CMI-41, CMI-98, PLG-CR-01..PLG-CR-16, INI-18
#[tokio::test]
async fn every_code_arrives_with_its_message_and_all_that_comes_with_it() -> Result<()> {
    let next = Arc::new(AtomicU8::new(1));
    let (numbers, existing) = (Arc::clone(&next), machine()?);
    let expected = existing.clone();
    let served = Served::start(Scripted::creating(move |_| {
        let code = Code::try_from(numbers.load(Ordering::SeqCst)).unwrap();
        let status = Status::new(code, format!("no {code}, 100 % – sorry"))
            .with_last_known_state(LastKnownState::new(vec![0, 1, 0xFF]).unwrap())
            .with_retry_after(Duration::from_millis(1500));
        let status = match code {
            // Beside a machine that would be a contradiction.
            Code::NotFound => status,
            _ => status.with_machine(existing.clone()),
        };
        async { Err(status) }
    }))
    .await?;
    let (mut machines, mut raw) = (served.machine().await?, connection(&served).await?);
    for code in Code::ALL {
        next.store(code.number(), Ordering::SeqCst);
        let status = machines.create_machine(create("m-0")).await.err();
        let read = trailers::from_grpc(status.with_context(|| format!("{code} is an answer"))?);
        ensure!(read.code() == code, "{code}: {read}");
        ensure!(
            read.message() == format!("no {code}, 100 % – sorry"),
            "{code}: {read}"
        );
        let expected = Some(&expected).filter(|_| code != Code::NotFound);
        ensure!(read.machine() == expected, "{code}: {read:?}");
        ensure!(
            read.retry_after() == Some(Duration::from_millis(1500)),
            "{code}: {read:?}"
        );
        let state = read.last_known_state().map(LastKnownState::as_bytes);
        ensure!(state == Some(&[0, 1, 0xFF]), "{code}: {read:?}");

        let answer = raw.call(CREATE, &create("m-0"), &[]).await?;
        ensure!(answer.code()? as i32 <= 16 && answer.code()? != tonic::Code::Ok);
        let details = "grpc-status-details-bin";
        ensure!(!answer.headers.contains_key(details) && !answer.trailers.contains_key(details));
    }
    served.stop().await
}

/// CMI-23: a panic of a driver fails only one call.
#[tokio::test]
async fn a_panic_in_the_driver_is_an_answer_and_the_connection_lives_on() -> Result<()> {
    let machine = machine()?;
    let served = Served::start(Scripted::creating(move |request: CreateMachineRequest| {
        let machine = machine.clone();
        async move {
            assert_ne!(request.machine.name, "m-0", "canary-4711");
            Ok(machine)
        }
    }))
    .await?;
    let mut machines = served.machine().await?;
    let status = machines
        .create_machine(create("m-0"))
        .await
        .err()
        .context("the driver panicked")?;
    ensure!(status.code() == tonic::Code::Internal, "{status}");
    ensure!(status.message().contains("panicked in CreateMachine"), "{status}");
    ensure!(!status.message().contains("canary"), "{status}");
    machines.create_machine(create("m-1")).await?;
    served.stop().await
}

/// CMI-07, CMI-36, CMI-114: also when the driver has the call after all.
#[tokio::test]
async fn a_call_that_is_not_declared_is_unimplemented() -> Result<()> {
    let machine = machine()?;
    let served = Served::start(Scripted::creating(move |_| created(machine.clone()))).await?;
    let (mut machines, mut extension) = (served.machine().await?, served.extension().await?);
    let refused = [
        machines
            .list_machines(cmi::v1::ListMachinesRequest::default())
            .await
            .err(),
        machines
            .get_machine_status(cmi::v1::GetMachineStatusRequest::default())
            .await
            .err(),
        extension
            .list_machines_paged(extended::v1::ListMachinesPagedRequest::default())
            .await
            .err(),
        extension
            .initialize_machine(extended::v1::InitializeMachineRequest::default())
            .await
            .err(),
    ];
    for status in refused {
        let status = status.context("it is not declared")?;
        ensure!(status.code() == tonic::Code::Unimplemented, "{status}");
        ensure!(!status.message().is_empty(), "{status}");
    }
    let answer = connection(&served)
        .await?
        .call("/cmi.v1.Machine/ResizeMachine", &create("m-0"), &[])
        .await?;
    ensure!(answer.code()? == tonic::Code::Unimplemented);
    served.stop().await
}

/// CMI-15, CMI-28, CMI-30, CMI-87, CMI-89, CMI-105, CMI-106, CMI-118, CMI-139
#[tokio::test]
async fn a_request_that_breaks_a_rule_is_refused_by_the_name_of_its_field() -> Result<()> {
    let served = Served::simulated("{}").await?;
    let mut machines = served.machine().await?;
    let nameless = cmi::v1::CreateMachineRequest {
        machine_name: String::new(),
        ..create("m-0")
    };
    let long = cmi::v1::CreateMachineRequest {
        machine_name: "m".repeat(254),
        ..create("m-0")
    };
    let specless = cmi::v1::DeleteMachineRequest {
        machine_name: "m-0".to_owned(),
        ..Default::default()
    };
    let list = cmi::v1::GetVolumeIDsRequest {
        pv_spec_list: b"{}".to_vec(),
    };
    let mut spaced = create("m-0");
    spaced.secrets.insert("a b".to_owned(), b"canary".to_vec());
    let refused = [
        ("MachineName", machines.create_machine(nameless).await.err()),
        ("MachineName", machines.create_machine(long).await.err()),
        ("Secrets", machines.create_machine(spaced).await.err()),
        ("ProviderSpec", machines.delete_machine(specless).await.err()),
        (
            "ProviderSpec",
            machines
                .list_machines(cmi::v1::ListMachinesRequest::default())
                .await
                .err(),
        ),
        ("PVSpecList", machines.get_volume_i_ds(list).await.err()),
    ];
    for (field, status) in refused {
        let status = status.with_context(|| format!("{field} breaks a rule"))?;
        ensure!(status.code() == tonic::Code::InvalidArgument, "{field}: {status}");
        ensure!(status.message().contains(field), "{field}: {status}");
        ensure!(!status.message().contains("canary"), "{field}: {status}");
    }
    served.stop().await
}

/// CMI-44, CMI-91: a driver gets bytes as they were sent.
#[tokio::test]
async fn secrets_and_state_are_binary_all_the_way() -> Result<()> {
    let machine = machine()?;
    let served = Served::start(Scripted::creating(move |request: CreateMachineRequest| {
        let token = request.machine.class.secrets.get("token");
        assert_eq!(token.map(SecretValue::expose), Some(&[0xFF, 0, 0xFE][..]));
        created(Machine {
            last_known_state: request.last_known_state,
            ..machine.clone()
        })
    }))
    .await?;
    let mut request = create("m-0");
    request.secrets.insert("token".to_owned(), vec![0xFF, 0, 0xFE]);
    request.last_known_state = vec![0xC0, 0];
    let created = served
        .machine()
        .await?
        .create_machine(request)
        .await?
        .into_inner();
    ensure!(created.last_known_state == [0xC0, 0], "{created:?}");
    served.stop().await
}

/// OPS-11: secrets are removed before a message is cut to size. The client would not find half of a secret.
#[tokio::test]
async fn a_long_secret_that_a_driver_echoes_does_not_leave_the_plugin_in_part() -> Result<()> {
    const PART: usize = 12;
    let served = Served::start(Scripted::creating(|request: CreateMachineRequest| async move {
        let data = request
            .machine
            .class
            .secrets
            .get("userData")
            .map(SecretValue::expose);
        let data = data.unwrap_or_default();
        let plain = String::from_utf8_lossy(data);
        let message = format!("no {} or {plain}", BASE64_STANDARD.encode(data));
        Err(Status::new(Code::InvalidArgument, message))
    }))
    .await?;
    let data = "correct horse battery staple ".repeat(100);
    let mut request = create("m-0");
    request
        .secrets
        .insert("userData".to_owned(), data.clone().into_bytes());
    let status = served.machine().await?.create_machine(request).await.err();
    let said = status.context("the driver refuses")?.message().to_owned();
    ensure!(said.contains("[redacted]"), "{said}");
    for secret in [BASE64_STANDARD.encode(&data), data] {
        for part in secret.as_bytes().windows(PART) {
            let part = std::str::from_utf8(part)?;
            ensure!(!said.contains(part), "{part} in {said}");
        }
    }
    served.stop().await
}

/// A request with fields of a newer client.
#[derive(Clone, PartialEq, prost::Message)]
struct FutureRequest {
    #[prost(string, tag = "1")]
    machine_name: String,
    #[prost(bytes = "vec", tag = "2")]
    provider_spec: Vec<u8>,
    #[prost(string, tag = "99")]
    colour: String,
}

#[tokio::test]
async fn unknown_fields_are_ignored_and_bytes_that_are_no_message_refused() -> Result<()> {
    let served = Served::simulated("{}").await?;
    let mut raw = connection(&served).await?;
    let request = FutureRequest {
        machine_name: "m-0".to_owned(),
        provider_spec: provider_spec("c", "m-0"),
        colour: "red".to_owned(),
    };
    ensure!(raw.call(CREATE, &request, &[]).await?.code()? == tonic::Code::Ok);
    // A list instead of text: field 1 is a number here.
    let broken = prost_types::Duration { seconds: 1, nanos: 0 };
    let code = raw.call(CREATE, &broken, &[]).await?.code()?;
    ensure!(code != tonic::Code::Ok, "{code}");
    // And the connection is as good as before.
    ensure!(raw.call(CREATE, &create("m-1"), &[]).await?.code()? == tonic::Code::Ok);
    served.stop().await
}

/// DRV-30: a driver that cannot read its capabilities makes no statement about a VM.
#[tokio::test]
async fn a_failure_to_read_capabilities_is_unavailable_and_never_not_found() -> Result<()> {
    let faults = "{faults: [{operation: GetPluginCapabilities, code: NotFound}]}";
    let served = Served::simulated(faults).await?;
    let status = served
        .machine()
        .await?
        .get_machine_status(cmi::v1::GetMachineStatusRequest {
            machine_name: "m-0".to_owned(),
            provider_spec: provider_spec("c", "m-0"),
            ..Default::default()
        })
        .await
        .err()
        .context("the driver can't say whether it offers the call")?;
    ensure!(status.code() == tonic::Code::Unavailable, "{status}");
    served.stop().await
}

/// CMI-57, CMI-63, CMI-72: a plugin that fails to answer does not report an empty name or no capabilities.
#[tokio::test]
async fn an_identity_call_that_fails_is_not_answered_ok() -> Result<()> {
    let faults = "{faults: [
        {operation: GetPluginInfo, code: Internal}, {operation: GetPluginCapabilities, code: Internal},
        {operation: Probe, code: FailedPrecondition},
    ]}";
    let served = Served::simulated(faults).await?;
    let mut identity = served.identity().await?;
    let info = identity.get_plugin_info(cmi::v1::GetPluginInfoRequest {}).await;
    let capabilities = identity
        .get_plugin_capabilities(cmi::v1::GetPluginCapabilitiesRequest {})
        .await;
    let probe = identity.probe(cmi::v1::ProbeRequest {}).await;
    for (call, failed, expected) in [
        ("GetPluginInfo", info.err(), tonic::Code::Internal),
        ("GetPluginCapabilities", capabilities.err(), tonic::Code::Internal),
        ("Probe", probe.err(), tonic::Code::FailedPrecondition),
    ] {
        let status = failed.with_context(|| format!("{call} answered OK"))?;
        ensure!(status.code() == expected, "{call}: {status}");
    }
    served.stop().await
}
