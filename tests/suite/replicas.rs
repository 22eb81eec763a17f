//! Two replicas in the middle of a batch of machines: whatever becomes of the leader, every machine gets one
//! VM, and no two replicas act at the same time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cmi_driver::Operation;
use cmi_simulated::{CallLine, Phase, Vm};
use management_cluster::eventually;
use management_cluster::proxy::{Fault, Gate, ProxiedRequest, Proxy};
use serde_json::json;

use crate::leadership::{elected, ended, leads};
use crate::support::provider::service_account;
use crate::support::{Cloud, DEADLINE, Provider, Stage, World};

const MACHINES: usize = 20;
/// Enough of the batch to be in the middle of it.
const A_FEW: usize = 4;
/// What is said when a replica leaves because it may not act any more.
const LOST: &str = "leadership was lost";

/// A batch of machines, and two replicas that are configured alike.
struct Batch {
    world: World,
    cloud: Cloud,
    stage: Stage,
    provider: Provider,
}

impl Batch {
    async fn new(case: &str, lease: &str, deadline: &str) -> Result<Self> {
        let world = World::new(case).await?;
        let cloud = Cloud::new(&world);
        let stage = Stage::set(&world).await?;
        // A few at a time, so that the batch takes seconds: the driver's permits bound that, not
        // the controller's workers.
        let drivers = cloud.drivers_with(json!({"maxConcurrentCalls": 3}), json!({"latencyMs": 200}));
        let provider = elected(&world, drivers)
            .await?
            .flag(format!("--leader-elect-lease-duration={lease}"))
            .flag(format!("--leader-elect-renew-deadline={deadline}"))
            .flag("--leader-elect-retry-period=500ms");
        Ok(Self {
            world,
            cloud,
            stage,
            provider,
        })
    }

    /// Makes the machines, and does something in the middle of it.
    async fn in_the_middle(&self, act: impl AsyncFnOnce() -> Result<()>) -> Result<()> {
        let create = async {
            for index in 0..MACHINES {
                self.stage.machine(&name(index)).create().await?;
            }
            Ok(())
        };
        let act = async {
            self.is_under_way().await?;
            act().await
        };
        tokio::try_join!(create, act).map(drop)
    }

    /// Waits until the batch is under way, and looks that it is not over.
    async fn is_under_way(&self) -> Result<()> {
        eventually(DEADLINE, "the first VMs", async || {
            let count = self.cloud.vms()?.len();
            ensure!(count >= A_FEW, "{count} VMs");
            Ok(())
        })
        .await?;
        let count = self.cloud.vms()?.len();
        ensure!(count < MACHINES, "the batch is over already");
        Ok(())
    }

    /// Waits until all machines are provisioned, and holds them against the VMs.
    async fn is_done(&self) -> Result<()> {
        let mut ids = Vec::new();
        for index in 0..MACHINES {
            let machine = self.stage.machine(&name(index)).provisioned().await?;
            ids.extend(machine.spec.provider_id);
        }
        let mut vms: Vec<_> = self.cloud.vms()?.iter().map(Vm::provider_id).collect();
        ids.sort();
        vms.sort();
        ensure!(ids == vms, "providerIDs {ids:?}, VMs {vms:?}");
        self.nothing_is_made_twice()
    }

    /// Of all creates of a machine, in whatever process, one made the VM and
    /// answered: the next replica adopts.
    fn nothing_is_made_twice(&self) -> Result<()> {
        let mut made: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for line in self.cloud.calls()? {
            if line.operation == Operation::CreateMachine && line.code.as_deref() == Some("OK") {
                made.entry(line.machine).or_default().push(line.pid);
            }
        }
        made.retain(|_, pids| pids.len() > 1);
        ensure!(made.is_empty(), "made more than once, by processes: {made:?}");
        Ok(())
    }

    /// The calls about machines of the process that called first. From the first call of the other on, it
    /// must not have begun another one.
    fn one_after_the_other(&self) -> Result<Vec<CallLine>> {
        let mut lines = self.cloud.calls()?;
        lines.retain(|line| !line.machine.is_empty());
        let first = lines.first().context("no replica called")?.pid;
        let at = lines
            .iter()
            .position(|line| line.pid != first)
            .context("only one process called")?;
        let is_late = |(index, line): &(usize, &CallLine)| *index > at && line.pid == first;
        let late: Vec<_> = lines.iter().enumerate().filter(is_late).collect();
        ensure!(
            late.iter().all(|(_, line)| line.phase == Phase::Ended),
            "the first process called after the second had begun: {late:?}"
        );
        lines.retain(|line| line.pid == first);
        Ok(lines)
    }
}

fn name(index: usize) -> String {
    format!("m-{index}")
}

/// DRV-10, DRV-12
#[tokio::test]
async fn a_leader_that_is_killed_in_the_middle_of_a_batch_is_followed_by_one_that_makes_nothing_twice()
-> Result<()> {
    let batch = Batch::new("killed", "6s", "4s").await?;
    let mut first = batch.provider.start(&batch.world).await?;
    leads(&first).await?;
    let second = batch.provider.clone().named("second").start(&batch.world).await?;
    batch
        .in_the_middle(async || {
            first.process.kill();
            leads(&second).await
        })
        .await?;
    batch.is_done().await?;
    batch.one_after_the_other()?;
    Ok(())
}

/// The lease is long, so that only a replica that hands it over lets the other begin.
#[tokio::test]
async fn a_leader_that_is_asked_to_end_in_the_middle_of_a_batch_finishes_its_calls_and_hands_over()
-> Result<()> {
    let batch = Batch::new("asked", "2m", "90s").await?;
    let mut first = batch.provider.start(&batch.world).await?;
    leads(&first).await?;
    let second = batch.provider.clone().named("second").start(&batch.world).await?;
    batch
        .in_the_middle(async || {
            let status = first.process.terminate(DEADLINE).await?;
            let ended_at = Instant::now();
            ensure!(
                status.is_some_and(|status| status.success()),
                "ended with {status:?}"
            );
            leads(&second).await?;
            let took = ended_at.elapsed();
            ensure!(took < Duration::from_secs(30), "{took:?} until the next leader");
            Ok(())
        })
        .await?;
    batch.is_done().await?;
    let calls = batch.one_after_the_other()?;
    let begun = calls.iter().filter(|line| line.phase == Phase::Started).count();
    let is_answer = |line: &&CallLine| line.code.as_deref().is_some_and(|code| code != "Canceled");
    let answered = calls.iter().filter(is_answer).count();
    ensure!(begun == answered, "{begun} calls begun, {answered} answered");
    Ok(())
}

/// A process that is stopped does not know it: when it wakes up, another leads and has done its work.
#[tokio::test]
async fn a_leader_that_is_stopped_in_the_middle_of_a_batch_wakes_up_and_does_nothing() -> Result<()> {
    let batch = Batch::new("asleep", "6s", "4s").await?;
    let writes = Arc::new(AtomicUsize::new(0));
    let hook = {
        let writes = Arc::clone(&writes);
        move |request: &ProxiedRequest| {
            if request.write.is_some() {
                writes.fetch_add(1, Ordering::SeqCst);
            }
            Fault::None
        }
    };
    let proxy = Proxy::start(&batch.world.management, hook).await?;
    let kubeconfig = proxy.kubeconfig(&service_account(&batch.world).await?)?;
    let mut first = batch
        .provider
        .clone()
        .through(kubeconfig)
        .start(&batch.world)
        .await?;
    leads(&first).await?;
    let second = batch.provider.clone().named("second").start(&batch.world).await?;
    batch
        .in_the_middle(async || {
            first.process.signal("STOP")?;
            leads(&second).await
        })
        .await?;
    batch.is_done().await?;
    let written = writes.load(Ordering::SeqCst);
    let vms = batch.cloud.vms()?.len();
    first.process.signal("CONT")?;
    let status = ended(&mut first).await?;
    ensure!(status.code() == Some(1), "ended with {status}");
    ensure!(first.log()?.contains(LOST), "it does not say why it ended");
    ensure!(
        writes.load(Ordering::SeqCst) == written,
        "it wrote after it woke up"
    );
    ensure!(batch.cloud.vms()?.len() == vms, "it made a VM after it woke up");
    batch.one_after_the_other()?;
    Ok(())
}

/// A replica that can't renew the lease can't know whether another holds it.
#[tokio::test]
async fn a_leader_that_cannot_reach_the_api_server_for_longer_than_the_deadline_leaves() -> Result<()> {
    let batch = Batch::new("cut-off", "6s", "4s").await?;
    let (cut, gate) = (Arc::new(AtomicBool::new(false)), Gate::new());
    let hook = {
        let (cut, gate) = (Arc::clone(&cut), gate.clone());
        move |_: &ProxiedRequest| {
            if cut.load(Ordering::SeqCst) {
                Fault::HoldBefore(gate.clone())
            } else {
                Fault::None
            }
        }
    };
    let proxy = Proxy::start(&batch.world.management, hook).await?;
    let kubeconfig = proxy.kubeconfig(&service_account(&batch.world).await?)?;
    let mut first = batch
        .provider
        .clone()
        .through(kubeconfig)
        .start(&batch.world)
        .await?;
    leads(&first).await?;
    batch
        .in_the_middle(async || {
            cut.store(true, Ordering::SeqCst);
            let status = ended(&mut first).await?;
            ensure!(status.code() == Some(1), "ended with {status}");
            Ok(())
        })
        .await?;
    ensure!(first.log()?.contains(LOST), "it does not say why it ended");
    let _second = batch.provider.clone().named("second").start(&batch.world).await?;
    batch.is_done().await?;
    batch.one_after_the_other()?;
    Ok(())
}
