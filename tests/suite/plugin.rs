//! A driver in its own process: outages, upgrades, crashes and certificates.

use std::process::Command;

use anyhow::{Result, ensure};
use capcmi::api::conditions::{DRIVER_REACHABLE, READY, VIRTUAL_MACHINE_UP_TO_DATE};
use cmi_driver::Operation;
use cmi_simulated::Phase;
use management_cluster::eventually;
use serde_json::json;

use crate::support::by_hand::{condition, says};
use crate::support::world::run;
use crate::support::{Authority, ByHand, Cloud, DEADLINE, Plugin, Provider, World};

/// CMI-76, CMI-78, CMI-167, CMI-169, CLI-CR-14: an outage does not affect machines that are up, and the
/// others wait for its end.
#[tokio::test]
async fn a_plugin_that_is_away_leaves_machines_alone_and_catches_up() -> Result<()> {
    let world = World::new("plugin-outage").await?;
    let cloud = Cloud::new(&world);
    let config = cloud.config(json!({}));
    // It is not there yet: the provider waits for it.
    let mut plugin = Plugin::absent(&world, "simulated", &config)?;
    let provider = Provider::new(plugin.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    let up = ByHand::new(&world, "one", "up").create().await?;
    provider.finds_driver_reachable(false).await?;
    plugin.listen(&world).await?;
    let before = up.provisioned().await?;
    let shown = r#"capcmi_driver_info{driver="simulated",name="simulated.capcmi.io",version=""#;
    ensure!(provider.metrics().await?.contains(shown), "no {shown}");

    plugin.kill();
    let late = ByHand::new(&world, "one", "late").create().await?;
    let during = up
        .until("an outage that is shown", |machine| {
            condition(machine, DRIVER_REACHABLE).is_some_and(|shown| shown.status == "False")
        })
        .await?;
    ensure!(
        condition(&during, READY) == condition(&before, READY),
        "Ready was touched: {:?}",
        condition(&during, READY)
    );
    provider.finds_driver_reachable(false).await?;
    let waiting = late
        .until("a machine that waits", |machine| {
            says(machine, READY, "False", "Unavailable")
        })
        .await?;
    let status = waiting.status.unwrap_or_default();
    ensure!(status.failure_reason.is_none(), "{status:?}");

    plugin.listen(&world).await?;
    late.provisioned().await?;
    let after = up
        .until("a driver that is back", |machine| {
            says(machine, DRIVER_REACHABLE, "True", "Reachable")
        })
        .await?;
    ensure!(
        condition(&after, READY) == condition(&before, READY),
        "Ready was touched"
    );
    provider.finds_driver_reachable(true).await?;
    cloud.holds(2).await?;
    for name in ["up", "late"] {
        let creates = cloud.count(Operation::CreateMachine, name)?;
        ensure!(creates == 1, "{creates} creates of {name}");
    }
    Ok(())
}

/// DRV-12, CMI-10, CMI-37, CLI-CR-04: whether the work was done or not when the plugin died, there is one VM
/// in the end. The plugin that comes back can do more, which is noticed without a restart of the provider.
#[tokio::test]
async fn a_killed_plugin_that_comes_back_with_more_is_called_for_it() -> Result<()> {
    const NAMES: [&str; 2] = ["after", "before"];
    let world = World::new("plugin-killed").await?;
    let cloud = Cloud::new(&world);
    let old = cloud.config(json!({"disabledCalls": ["UpdateMachine"]}));
    let mut plugin = Plugin::start(&world, "simulated", &old).await?;
    let _provider = Provider::new(plugin.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    machine.provisioned().await?;
    ensure!(!info(&plugin)?.contains("UpdateMachine"), "{}", info(&plugin)?);
    machine.respecify("labels", json!({"tier": "gold"})).await?;
    machine
        .until("a change that can't be made", |machine| {
            says(machine, VIRTUAL_MACHINE_UP_TO_DATE, "False", "NotHotUpdatable")
        })
        .await?;
    cloud.fail(json!([
        {"operation": "CreateMachine", "machine": "before", "hang": "before"},
        {"operation": "CreateMachine", "machine": "after", "hang": "after"},
    ]))?;
    let mut machines = Vec::new();
    for name in NAMES {
        machines.push(ByHand::new(&world, "one", name).create().await?);
    }
    eventually(DEADLINE, "creates that hang", async || {
        for name in NAMES {
            ensure!(cloud.count(Operation::CreateMachine, name)? == 1, "{name}");
        }
        ensure!(cloud.vms()?.len() == 2, "{} VMs", cloud.vms()?.len());
        Ok(())
    })
    .await?;
    plugin.kill();
    cloud.fail(json!([]))?;
    plugin.configure(&cloud.config(json!({})))?;
    plugin.listen(&world).await?;
    for machine in &machines {
        machine.provisioned().await?;
    }
    cloud.holds(3).await?;
    let creates = cloud.count(Operation::CreateMachine, "after")?;
    ensure!(creates == 1, "{creates} creates of a machine whose VM was there");
    machine
        .until("the change", |machine| {
            says(machine, VIRTUAL_MACHINE_UP_TO_DATE, "True", "UpToDate")
        })
        .await?;
    ensure!(cloud.count(Operation::UpdateMachine, "m")? == 1);
    for expected in ["simulated.capcmi.io", "UpdateMachine", "/labels", "\"vmPool\""] {
        ensure!(
            info(&plugin)?.contains(expected),
            "no {expected} in {}",
            info(&plugin)?
        );
    }
    Ok(())
}

/// What `capcmi driver info` prints of a plugin.
fn info(plugin: &Plugin) -> Result<String> {
    let mut command = Command::new(testbed::program("capcmi")?);
    run(command.args(["driver", "info", "--endpoint", &plugin.endpoint()]))
}

/// CMI-160, CMI-192: mutual TLS, and a new authority for both while both run.
#[tokio::test]
async fn a_remote_plugin_is_called_over_mutual_tls_whose_certificates_change() -> Result<()> {
    let world = World::new("plugin-tls").await?;
    let cloud = Cloud::new(&world);
    Authority::new()?.write(&world.folder)?;
    let plugin = Plugin::secured(&world, "simulated", &cloud.config(json!({}))).await?;
    let provider = Provider::new(plugin.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    ByHand::new(&world, "one", "a")
        .create()
        .await?
        .provisioned()
        .await?;

    Authority::new()?.write(&world.folder)?;
    eventually(DEADLINE, "a connection with the new certificates", async || {
        let expected = "reconnected with changed TLS files";
        ensure!(provider.log()?.contains(expected), "not connected");
        Ok(())
    })
    .await?;
    ByHand::new(&world, "one", "b")
        .create()
        .await?
        .provisioned()
        .await?;
    cloud.holds(2).await?;
    let failed = cloud.calls()?.into_iter().find(|call| {
        call.phase == Phase::Ended
            && call.operation == Operation::CreateMachine
            && call.code.as_deref() != Some("OK")
    });
    ensure!(failed.is_none(), "{failed:?}");
    Ok(())
}
