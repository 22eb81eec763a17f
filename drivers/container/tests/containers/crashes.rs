//! A driver that is killed at random moments of creates and deletes.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cmi_driver::{
    Code, CreateMachineRequest, DeleteMachineRequest, Driver, GetMachineStatusRequest, MachineRef,
};
use cmi_grpc::client::GrpcDriver;
use futures::future::join_all;
use serde_json::json;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::lab::{DEADLINE, Lab, machine};

/// The number of times that the driver is killed.
const KILLS: u32 = 24;
/// The machines that are made and deleted at the same time.
const MACHINES: [&str; 3] = ["a", "b", "c"];
/// The latest moment of a kill: a create or a delete ends before it.
const LATEST: Duration = Duration::from_millis(800);

/// Returns a number below `limit`.
fn random(limit: u128) -> u128 {
    Uuid::new_v4().as_u128() % limit
}

fn named(name: &str) -> MachineRef {
    machine(name, &json!({}), b"#cloud-config\n")
}

async fn create(driver: &GrpcDriver, name: &str) -> cmi_driver::Result<()> {
    let request = CreateMachineRequest {
        machine: named(name),
        last_known_state: None,
    };
    driver.create_machine(request).await.map(drop)
}

async fn delete(driver: &GrpcDriver, name: &str) -> cmi_driver::Result<()> {
    let request = DeleteMachineRequest {
        machine: named(name),
        provider_id: None,
        last_known_state: None,
    };
    driver.delete_machine(request).await.map(drop)
}

async fn status(driver: &GrpcDriver, name: &str) -> cmi_driver::Result<()> {
    let request = GetMachineStatusRequest {
        machine: named(name),
        provider_id: None,
    };
    driver.get_machine_status(request).await.map(drop)
}

/// Repeats a call as a provider does, until it is OK.
async fn until_ok(mut call: impl AsyncFnMut() -> cmi_driver::Result<()>) -> Result<()> {
    let deadline = Instant::now() + DEADLINE;
    while let Err(status) = call().await {
        let passes = [Code::Unavailable, Code::Aborted].contains(&status.code());
        ensure!(passes && Instant::now() < deadline, "{status}");
        sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// Creates or deletes each machine at random, and kills the driver meanwhile.
async fn kill_amid_calls(lab: &Lab) -> Result<String> {
    let driver = lab.client().await?;
    let plan = MACHINES.map(|name| (name, random(2) == 0));
    let wait = Duration::from_millis(random(LATEST.as_millis()).try_into()?);
    let calls = plan.map(|(name, is_create)| {
        let driver = &driver;
        async move {
            // The kill may come before, during or after the call.
            let _answer = if is_create {
                create(driver, name).await
            } else {
                delete(driver, name).await
            };
        }
    });
    let killed = async {
        sleep(wait).await;
        lab.kill_driver()
    };
    let (_, killed) = tokio::join!(join_all(calls), killed);
    killed?;
    Ok(format!(
        "killed after {wait:?} of {plan:?} (name, is it a create)"
    ))
}

/// After the restart, each machine is created or deleted as a whole.
async fn finish(lab: &Lab) -> Result<()> {
    let driver = lab.client().await?;
    let mut expected = 0;
    for name in MACHINES {
        if random(2) == 0 {
            until_ok(async || create(&driver, name).await).await?;
            status(&driver, name).await?;
            expected += 1;
        } else {
            until_ok(async || delete(&driver, name).await).await?;
            let status = status(&driver, name).await;
            ensure!(status.is_err_and(|status| status.code() == Code::NotFound));
        }
    }
    let containers = lab.containers()?;
    ensure!(
        containers.len() == expected,
        "{expected} are expected: {containers:?}"
    );
    Ok(())
}

/// DRV-10, DRV-12, DRV-19, DRV-21
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_driver_leaves_nothing_and_makes_nothing_twice() -> Result<()> {
    let lab = Lab::start().await?;
    for _ in 0..KILLS {
        let what = kill_amid_calls(&lab).await?;
        println!("{what}");
        lab.start_driver()?;
        finish(&lab)
            .await
            .with_context(|| format!("{what}\nthe driver's log:\n{}", lab.log()))?;
    }
    let driver = lab.client().await?;
    for name in MACHINES {
        until_ok(async || delete(&driver, name).await).await?;
    }
    assert_eq!(
        lab.left()?,
        Vec::<String>::new(),
        "the driver's log:\n{}",
        lab.log()
    );
    Ok(())
}

/// The bridge and the DHCP server are the driver's, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_stops_without_machines_leaves_no_bridge() -> Result<()> {
    let lab = Lab::start().await?;
    let driver = lab.client().await?;
    until_ok(async || create(&driver, "a").await).await?;
    let has_bridge = || lab.inside("ip").args(["link", "show", "br-lab"]).output();
    lab.stop_driver()?;
    ensure!(has_bridge()?.status.success(), "a machine has lost its bridge");
    lab.start_driver()?;
    let driver = lab.client().await?;
    until_ok(async || delete(&driver, "a").await).await?;
    lab.stop_driver()?;
    ensure!(!has_bridge()?.status.success(), "the bridge is left");
    ensure!(!lab.at("state/dnsmasq.pid").exists(), "the DHCP server is left");
    Ok(())
}
