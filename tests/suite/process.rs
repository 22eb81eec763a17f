//! The process: how it starts, ends, says how it is, and goes on beside an object that it can't read.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cmi_driver::Operation;
use cmi_simulated::{CallLine, Phase, Vm};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps,
};
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use management_cluster::proxy::{Fault, Gate, Proxy};
use management_cluster::{ManagementCluster, eventually};
use serde_json::json;

use crate::leadership::ended;
use crate::support::by_hand::{event, is_provisioned};
use crate::support::fleet::objects;
use crate::support::provider::{get, service_account};
use crate::support::world::run;
use crate::support::{Cloud, DEADLINE, Provider, Stage, World};

fn creates(cloud: &Cloud, machine: &str) -> Result<usize> {
    let is_create = |line: &&CallLine| {
        line.operation == Operation::CreateMachine && line.phase == Phase::Started && line.machine == machine
    };
    Ok(cloud.calls()?.iter().filter(is_create).count())
}

/// DRV-10, DRV-12
#[tokio::test]
async fn a_provider_that_is_asked_to_end_writes_the_result_of_the_call_in_flight() -> Result<()> {
    let world = World::new("drain").await?;
    let cloud = Cloud::new(&world);
    let stage = Stage::set(&world).await?;
    cloud.fail(json!([{"operation": "CreateMachine", "machine": "m", "latencyMs": 4000}]))?;
    let provider = Provider::new(cloud.drivers(json!({})));
    let mut first = provider.start(&world).await?;
    stage.machine("m").create().await?;
    eventually(DEADLINE, "the create", async || {
        ensure!(creates(&cloud, "m")? == 1, "no create yet");
        Ok(())
    })
    .await?;
    first.process.signal("TERM")?;
    eventually(DEADLINE, "/readyz to say that it stops", async || {
        let (code, why) = get(&first.health, "/readyz").await?;
        ensure!(code == 503 && why.contains("stopping"), "{code}: {why}");
        Ok(())
    })
    .await?;
    let (code, _) = get(&first.health, "/healthz").await?;
    ensure!(code == 200, "/healthz answers {code} while it drains");
    ensure!(cloud.vms()?.is_empty(), "the call is not in flight any more");
    let status = ended(&mut first).await?;
    ensure!(status.success(), "ended with {status}");
    let machine = stage.machine("m").get().await?;
    let ids: Vec<_> = cloud.vms()?.iter().map(Vm::provider_id).collect();
    ensure!(
        is_provisioned(&machine) && machine.spec.provider_id.as_slice() == ids,
        "the result was not written: {:?} {:?}",
        machine.spec,
        machine.status
    );
    let _second = provider.named("second").start(&world).await?;
    // Machines are looked at in their order: when a later one is up, the first has been looked at.
    stage.machine("n").create().await?;
    stage.machine("n").provisioned().await?;
    ensure!(creates(&cloud, "m")? == 1, "it was created again");
    Ok(())
}

/// A second signal does not ask.
#[tokio::test]
async fn a_provider_that_is_asked_twice_does_not_wait_for_the_call_in_flight() -> Result<()> {
    let world = World::new("hurry").await?;
    let cloud = Cloud::new(&world);
    let stage = Stage::set(&world).await?;
    cloud.fail(json!([{"operation": "CreateMachine", "hang": "before"}]))?;
    let provider = Provider::new(cloud.drivers(json!({}))).flag("--graceful-shutdown-timeout=10m");
    let mut first = provider.start(&world).await?;
    stage.machine("m").create().await?;
    eventually(DEADLINE, "the create", async || {
        ensure!(creates(&cloud, "m")? == 1, "no create yet");
        Ok(())
    })
    .await?;
    first.process.signal("TERM")?;
    eventually(DEADLINE, "the drain", async || {
        let (code, _) = get(&first.health, "/readyz").await?;
        ensure!(code == 503, "{code}");
        Ok(())
    })
    .await?;
    first.process.signal("TERM")?;
    let status = ended(&mut first).await?;
    ensure!(status.code() == Some(130), "ended with {status}");
    cloud.fail(json!([]))?;
    let _second = provider.named("second").start(&world).await?;
    stage.machine("m").provisioned().await?;
    cloud.holds(1).await?;
    Ok(())
}

/// OPS-13
#[test]
fn a_misconfigured_provider_ends_at_once_and_names_file_and_field() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("drivers.yaml");
    for (text, field) in [
        (
            "drivers: [{name: a, simulated: {bootSeconds: -1}}]",
            "drivers[0].simulated.bootSeconds",
        ),
        ("drivers: [{name: a, simulated: {}, colour: red}]", "colour"),
        ("drivers: [{name: a}]", "drivers[0]"),
        ("drivers: {", "line 1"),
    ] {
        std::fs::write(&file, text)?;
        let begun = Instant::now();
        let output = Command::new(env!("CARGO_BIN_EXE_capcmi"))
            .arg("run")
            .arg(format!("--drivers-config={}", file.display()))
            .env("KUBECONFIG", "/dev/null")
            .output()?;
        let took = begun.elapsed();
        let said = String::from_utf8(output.stderr)?;
        ensure!(
            output.status.code() == Some(2),
            "{text}: {}: {said}",
            output.status
        );
        ensure!(took < Duration::from_secs(30), "{text}: {took:?}");
        let last = said.trim_end().lines().last().unwrap_or_default();
        ensure!(
            last.contains(&file.display().to_string()) && last.contains(field),
            "{text}: {said}"
        );
    }
    Ok(())
}

/// A message may quote what a driver has said.
#[test]
fn an_error_commands_no_terminal_and_keeps_its_exit_code_where_nothing_reads_it() -> Result<()> {
    let run = |stderr: Stdio| {
        Command::new(env!("CARGO_BIN_EXE_capcmi"))
            .arg("run")
            .arg("--drivers-config=/nowhere/\u{1b}[2J.yaml")
            .stderr(stderr)
            .spawn()?
            .wait_with_output()
    };
    let said = String::from_utf8(run(Stdio::piped())?.stderr)?;
    ensure!(
        said.contains("/nowhere/\\u001b[2J.yaml") && !said.contains('\u{1b}'),
        "{said:?}"
    );
    let (_, gone) = std::io::pipe()?;
    let code = run(gone.into())?.status.code();
    ensure!(code == Some(2), "{code:?}");
    Ok(())
}

/// `capcmi driver serve … 2>&1 | head -1`
#[tokio::test]
async fn a_process_whose_log_nothing_reads_any_more_goes_on() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let endpoint = format!("unix://{}", folder.path().join("driver.sock").display());
    let (_, gone) = std::io::pipe()?;
    let mut served = tokio::process::Command::new(env!("CARGO_BIN_EXE_capcmi"))
        .args(["driver", "serve", "simulated", "-v=4", "--endpoint"])
        .arg(&endpoint)
        .stderr(gone)
        .kill_on_drop(true)
        .spawn()?;
    eventually(DEADLINE, "an answer of the driver", async || {
        if let Some(status) = served.try_wait()? {
            anyhow::bail!("it ended with {status}");
        }
        let mut info = Command::new(env!("CARGO_BIN_EXE_capcmi"));
        run(info
            .args(["driver", "info", "--endpoint", &endpoint])
            .env_remove("CMI_ENDPOINT"))
        .map(drop)
    })
    .await
}

#[tokio::test]
async fn a_provider_is_alive_and_names_the_cache_that_it_waits_for_before_it_is_ready() -> Result<()> {
    let world = World::new("cold").await?;
    let cloud = Cloud::new(&world);
    let gate = Gate::new();
    let held = gate.clone();
    let proxy = Proxy::start(&world.management, move |request| {
        if request.path.ends_with("/inframachines") {
            Fault::HoldBefore(held.clone())
        } else {
            Fault::None
        }
    })
    .await?;
    let kubeconfig = proxy.kubeconfig(&service_account(&world).await?)?;
    let mut replica = Provider::new(cloud.drivers(json!({})))
        .through(kubeconfig)
        .launch(&world)
        .await?;
    tokio::time::timeout(DEADLINE, gate.reached())
        .await
        .context("the InfraMachines are not read")?;
    let (health, diagnostics) = (replica.health.clone(), replica.diagnostics.clone());
    eventually(DEADLINE, "/readyz to say what it waits for", async || {
        let (code, why) = get(&health, "/readyz").await?;
        ensure!(
            code == 503 && why.contains("the caches (InfraMachine)"),
            "{code}: {why}"
        );
        Ok(())
    })
    .await?;
    let (code, _) = get(&health, "/healthz").await?;
    ensure!(code == 200, "/healthz answers {code}");
    let (code, _) = get(&diagnostics, "/metrics").await?;
    ensure!(code == 200, "/metrics answers {code}");
    gate.open();
    let ready = replica.process.wait_until(DEADLINE, async || {
        get(&health, "/readyz").await.is_ok_and(|(code, _)| code == 200)
    });
    ready.await
}

/// A management cluster whose schema of InfraMachines lets everything in, as one of another version may.
async fn loose_world() -> Result<World> {
    let management = ManagementCluster::builder().core(false).start().await?;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/config/default");
    management
        .apply_yaml(&run(management.kubectl().args(["kustomize", folder]))?)
        .await?;
    let admin = management.admin_client().await?;
    let crds = Api::<CustomResourceDefinition>::all(admin.clone());
    let name = "inframachines.infrastructure.capcmi.io";
    let mut crd = crds.get(name).await?;
    for version in &mut crd.spec.versions {
        let loose = JSONSchemaProps {
            type_: Some("object".to_owned()),
            x_kubernetes_preserve_unknown_fields: Some(true),
            ..JSONSchemaProps::default()
        };
        version.schema.get_or_insert_default().open_api_v3_schema = Some(loose);
    }
    crds.replace(name, &PostParams::default(), &crd).await?;
    let namespace = management.namespace("malformed").await?;
    World::own(management, &namespace).await
}

/// An object that can't be read neither stops the others nor stays for ever, and its VM does not stay either.
#[tokio::test]
async fn a_malformed_machine_stops_no_other_and_can_be_deleted_with_its_vm() -> Result<()> {
    let world = loose_world().await?;
    let cloud = Cloud::new(&world);
    let stage = Stage::set(&world).await?;
    let provider = Provider::new(cloud.drivers(json!({})));
    let _provider = provider.start(&world).await?;
    stage.machine("good").create().await?;
    stage.machine("spoiled").create().await?;
    stage.machine("good").provisioned().await?;
    stage.machine("spoiled").provisioned().await?;
    let machines: Api<DynamicObject> =
        objects(&world, "infrastructure.capcmi.io", "v1alpha1", "InfraMachine");
    let spoil = Patch::Merge(json!({"spec": {"shutdownTimeoutSeconds": "soon"}}));
    eventually(DEADLINE, "a schema that lets everything in", async || {
        machines.patch("spoiled", &PatchParams::default(), &spoil).await?;
        Ok(())
    })
    .await?;
    stage
        .machine("never-good")
        .infra("/spec/shutdownTimeoutSeconds", json!("soon"))
        .create()
        .await?;
    stage.machine("later").create().await?;
    stage.machine("later").provisioned().await?;
    cloud.holds(3).await?;
    for name in ["never-good", "spoiled"] {
        let reported = event(&world, name, "Unreadable").await?;
        let note = reported.note.unwrap_or_default();
        ensure!(
            note.contains("soon"),
            "the event does not say what is wrong: {note}"
        );
    }
    for name in ["never-good", "spoiled"] {
        stage.machine(name).delete().await?;
        stage.machine(name).gone().await?;
    }
    let names: Vec<_> = cloud.holds(2).await?.into_iter().map(|vm| vm.name).collect();
    ensure!(names == ["good", "later"], "the VMs are now {names:?}");
    Ok(())
}
