//! The process: how it starts, ends, and says how it is.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cmi_driver::Operation;
use management_cluster::eventually;
use management_cluster::proxy::{Fault, Gate, Proxy};
use serde_json::json;

use crate::leadership::ended;
use crate::support::by_hand::is_provisioned;
use crate::support::provider::{Replica, get, service_account};
use crate::support::world::run;
use crate::support::{Cloud, DEADLINE, Provider, Stage, World};

/// DRV-10, DRV-12: a process is alive before it is ready. A first SIGTERM lets it finish the call in flight;
/// a second one does not.
#[tokio::test]
async fn a_process_says_when_it_is_ready_and_ends_as_it_is_asked() -> Result<()> {
    let world = World::new("process").await?;
    let cloud = Cloud::new(&world);
    let stage = Stage::set(&world).await?;
    let provider = Provider::new(cloud.drivers(json!({}))).flag("--graceful-shutdown-timeout=10m");
    cloud.fail(json!([{"operation": "CreateMachine", "machine": "m", "latencyMs": 4000}]))?;
    let (mut first, _proxy) = names_the_cache_that_it_waits_for(&world, &provider).await?;

    let machine = stage.machine("m").create().await?;
    is_stopping_in_a_create(&cloud, "m", &mut first).await?;
    let (code, _) = get(&first.health, "/healthz").await?;
    ensure!(code == 200, "/healthz answers {code} while it drains");
    ensure!(cloud.vms()?.is_empty(), "the call is not in flight any more");
    let status = ended(&mut first).await?;
    ensure!(status.success(), "ended with {status}");
    let provisioned = machine.get().await?;
    ensure!(
        is_provisioned(&provisioned),
        "the result was not written: {:?}",
        provisioned.status
    );

    cloud.fail(json!([{"operation": "CreateMachine", "hang": "before"}]))?;
    let mut second = provider.clone().named("second").start(&world).await?;
    stage.machine("n").create().await?;
    is_stopping_in_a_create(&cloud, "n", &mut second).await?;
    second.process.signal("TERM")?;
    let status = ended(&mut second).await?;
    ensure!(status.code() == Some(130), "ended with {status}");
    cloud.fail(json!([]))?;
    let _third = provider.named("third").start(&world).await?;
    stage.machine("n").provisioned().await?;
    cloud.holds(2).await?;
    Ok(())
}

/// Asks a provider to end while a create is in flight, and waits until it says that it is not ready.
async fn is_stopping_in_a_create(cloud: &Cloud, machine: &str, replica: &mut Replica) -> Result<()> {
    eventually(DEADLINE, "the create", async || {
        ensure!(
            cloud.count(Operation::CreateMachine, machine)? == 1,
            "no create yet"
        );
        Ok(())
    })
    .await?;
    replica.process.signal("TERM")?;
    eventually(DEADLINE, "/readyz to say that it stops", async || {
        let (code, why) = get(&replica.health, "/readyz").await?;
        ensure!(code == 503 && why.contains("stopping"), "{code}: {why}");
        Ok(())
    })
    .await
}

/// Starts a provider that gets no InfraMachines at first: it is alive and not ready. It is ready with them.
async fn names_the_cache_that_it_waits_for(world: &World, provider: &Provider) -> Result<(Replica, Proxy)> {
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
    let kubeconfig = proxy.kubeconfig(&service_account(world).await?)?;
    let mut replica = provider.clone().through(kubeconfig).launch(world).await?;
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
    ready.await?;
    Ok((replica, proxy))
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
        let output = Command::new(env!("CARGO_BIN_EXE_capcmi-manager"))
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

/// A message may quote a driver.
#[test]
fn errors_escape_control_characters_and_keep_their_exit_code() -> Result<()> {
    let run = |stderr: Stdio| {
        Command::new(env!("CARGO_BIN_EXE_capcmi-manager"))
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
    let capcmi = testbed::program("capcmi")?;
    let mut served = tokio::process::Command::new(&capcmi)
        .args(["driver", "serve", "simulated", "-v=4", "--endpoint"])
        .arg(&endpoint)
        .stderr(gone)
        .kill_on_drop(true)
        .spawn()?;
    eventually(DEADLINE, "an answer of the driver", async || {
        if let Some(status) = served.try_wait()? {
            anyhow::bail!("it ended with {status}");
        }
        let mut info = Command::new(&capcmi);
        run(info
            .args(["driver", "info", "--endpoint", &endpoint])
            .env_remove("CMI_ENDPOINT"))
        .map(drop)
    })
    .await
}
