//! A driver that is killed at each program that it runs, and at random moments.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cmi_driver::{
    Code, CreateMachineRequest, DeleteMachineRequest, Driver, GetMachineStatusRequest, Machine, MachineRef,
    PowerState, ProviderId, RestartMachineRequest, ShutDownMachineRequest, UpdateMachineRequest,
};
use cmi_grpc::client::GrpcDriver;
use futures::future::join_all;
use serde_json::json;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::lab::{DEADLINE, Lab, eventually, machine};

/// The number of kills at random moments.
const KILLS: u32 = 24;
/// The machines that are made and deleted at the same time.
const MACHINES: [&str; 3] = ["a", "b", "c"];
/// The moments of a kill at a program: instead of it, and after it.
const MOMENTS: [&str; 2] = ["before", "after"];
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

async fn status(driver: &GrpcDriver, name: &str) -> cmi_driver::Result<Machine> {
    let request = GetMachineStatusRequest {
        machine: named(name),
        provider_id: None,
    };
    driver.get_machine_status(request).await
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

/// The name of a machine, and whether it is created. Otherwise it is deleted.
type Plan = [(&'static str, bool); MACHINES.len()];

/// Creates or deletes each machine at random, and kills the driver during the calls.
async fn kill_amid_calls(lab: &Lab) -> Result<(Plan, Duration)> {
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
    Ok((plan, wait))
}

/// After the restart, each machine is created or deleted as a whole. A begun deletion ends before a create.
async fn finish(lab: &Lab, plan: Plan) -> Result<()> {
    let driver = lab.client().await?;
    let mut expected = 0;
    for (name, was_created) in plan {
        if !was_created {
            until_ok(async || delete(&driver, name).await).await?;
        }
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

/// A call that is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Create,
    Update,
    ShutDown,
    Restart,
    Delete,
}

impl Call {
    const ALL: [Self; 5] = [
        Self::Create,
        Self::Update,
        Self::ShutDown,
        Self::Restart,
        Self::Delete,
    ];

    /// Makes the call about machine `a`, which has this id unless it is created.
    async fn make(self, driver: &GrpcDriver, id: Option<&ProviderId>) -> cmi_driver::Result<()> {
        let provider_id = || id.unwrap().clone();
        match self {
            Self::Create => create(driver, "a").await,
            Self::Delete => delete(driver, "a").await,
            Self::Update => {
                let request = UpdateMachineRequest {
                    machine: machine("a", &json!({"size": "large"}), b""),
                    provider_id: provider_id(),
                    last_applied_provider_spec: named("a").class.provider_spec,
                    last_known_state: None,
                };
                driver.update_machine(request).await
            }
            Self::ShutDown => {
                let request = ShutDownMachineRequest {
                    machine: named("a"),
                    provider_id: None,
                    last_known_state: None,
                };
                driver.shut_down_machine(request).await.map(drop)
            }
            Self::Restart => {
                let request = RestartMachineRequest {
                    machine: named("a"),
                    provider_id: provider_id(),
                    last_known_state: None,
                };
                driver.restart_machine(request).await
            }
        }
    }

    /// Checks the result of the call.
    async fn check(self, lab: &Lab, driver: &GrpcDriver) -> Result<()> {
        let containers = lab.containers()?;
        if self == Self::Delete {
            ensure!(containers.is_empty(), "{containers:?}");
            return Ok(());
        }
        ensure!(containers.len() == 1, "{containers:?}");
        if self == Self::Update {
            let stats = lab.runc(&["events", "--stats", &containers[0]])?;
            let limit = format!("\"limit\":{}", 512 * 1024 * 1024);
            ensure!(
                stats.contains(&limit),
                "the memory is not that of `large`: {stats}"
            );
        }
        let wanted = match self {
            Self::ShutDown => PowerState::Stopped,
            _ => PowerState::Running,
        };
        eventually("the power state", async || {
            let seen = status(driver, "a").await?.power_state;
            ensure!(seen == Some(wanted), "{seen:?}");
            Ok(())
        })
        .await
    }
}

/// Kills the driver at the program of this number, repeats the call as a provider does, and deletes the
/// machine. Returns whether the call ran that many programs.
async fn kill_at(lab: &Lab, call: Call, moment: &str, number: u32) -> Result<bool> {
    let mut driver = lab.client().await?;
    let id = if call == Call::Create {
        None
    } else {
        until_ok(async || create(&driver, "a").await).await?;
        Some(status(&driver, "a").await?.provider_id)
    };
    let before = match call {
        Call::Restart => lab.runc(&["state", &lab.containers()?[0]])?,
        _ => String::new(),
    };
    let armed = lab.at("faults").join(format!("kill-{moment}"));
    fs::write(&armed, number.to_string())?;
    let answer = call.make(&driver, id.as_ref()).await;
    let is_killed = !armed.exists();
    if is_killed {
        ensure!(answer.is_err(), "a killed driver answered");
        lab.kill_driver()?;
        lab.start_driver()?;
        driver = lab.client().await?;
        until_ok(async || call.make(&driver, id.as_ref()).await).await?;
    } else {
        fs::remove_file(armed)?;
        answer?;
    }
    call.check(lab, &driver).await?;
    if call == Call::Restart {
        let after = lab.runc(&["state", &lab.containers()?[0]])?;
        ensure!(after != before, "the machine was not restarted");
    }
    until_ok(async || delete(&driver, "a").await).await?;
    let left = lab.left()?;
    ensure!(left.is_empty(), "{left:?} is left");
    Ok(is_killed)
}

/// DRV-10, DRV-12, DRV-19, DRV-21
///
/// It takes a minute: a driver starts again for each program of each call.
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_program_of_any_call_is_made_up_for() -> Result<()> {
    let lab = Lab::start().await?;
    for call in Call::ALL {
        for moment in MOMENTS {
            let mut number = 1;
            loop {
                let killed = kill_at(&lab, call, moment, number).await;
                let killed = killed.with_context(|| {
                    let log = lab.log();
                    format!("{call:?}, killed {moment} program {number}; the driver's log:\n{log}")
                });
                if !killed? {
                    break;
                }
                number += 1;
            }
            println!("{call:?} runs {} programs", number - 1);
            ensure!(number > 1, "{call:?} runs no program");
        }
    }
    Ok(())
}

/// Otherwise two drivers would work on one machine.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_of_a_killed_driver_keeps_the_folder() -> Result<()> {
    let lab = Lab::start().await?;
    let driver = lab.client().await?;
    fs::write(lab.at("faults/slow"), "3")?;
    let kill = async {
        // The call has come to the runtime.
        eventually("a slow program", async || {
            ensure!(lab.processes("runtime.sh")?.len() > 1);
            Ok(())
        })
        .await?;
        lab.kill_driver()
    };
    let (_answer, killed) = tokio::join!(create(&driver, "a"), kill);
    killed?;
    let lock = fs::File::open(lab.at("state/lock"))?;
    ensure!(lock.try_lock().is_err(), "nothing keeps the next driver waiting");
    fs::remove_file(lab.at("faults/slow"))?;
    lock.lock()?;
    ensure!(lab.processes("runtime.sh")?.is_empty(), "the program still runs");
    Ok(())
}

/// DRV-10, DRV-12, DRV-19, DRV-21
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_driver_leaves_nothing_and_makes_nothing_twice() -> Result<()> {
    let lab = Lab::start().await?;
    for _ in 0..KILLS {
        let (plan, wait) = kill_amid_calls(&lab).await?;
        let what = format!("killed after {wait:?} of {plan:?} (true is a create)");
        println!("{what}");
        lab.start_driver()?;
        finish(&lab, plan)
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

#[tokio::test(flavor = "multi_thread")]
async fn machines_outlast_the_driver_and_the_last_takes_the_bridge() -> Result<()> {
    let lab = Lab::start().await?;
    let driver = lab.client().await?;
    until_ok(async || create(&driver, "a").await).await?;
    let has_bridge = || lab.inside("ip").args(["link", "show", "br-lab"]).output();
    let container = lab.containers()?.pop().context("no container")?;
    let before = lab.runc(&["state", &container])?;
    ensure!(before.contains("\"running\""), "{before}");
    lab.stop_driver()?;
    ensure!(has_bridge()?.status.success(), "a machine has lost its bridge");
    lab.start_driver()?;
    let driver = lab.client().await?;
    let after = lab.runc(&["state", &container])?;
    ensure!(before == after, "the container was {before}, and is {after}");
    until_ok(async || delete(&driver, "a").await).await?;
    lab.stop_driver()?;
    ensure!(!has_bridge()?.status.success(), "the bridge is left");
    ensure!(!lab.at("state/dnsmasq.pid").exists(), "the DHCP server is left");
    Ok(())
}
