//! A provider that is killed at any point starts again, and reaches the same end as without the kill.
//!
//! An undisturbed run determines the points: before and after each driver call and each write to the API
//! server. At a point after a call or write, it is carried out, but its answer is lost.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use capcmi::api::annotations;
use capcmi::api::conditions;
use capcmi::api::identity;
use capcmi::api::v1alpha1::{InfraMachine, OperationState, OperationType};
use cmi_driver::{Operation, tags};
use cmi_simulated::{PlantedVm, Vm};
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::leadership::{elected, leads};
use crate::support::by_hand::{event, says};
use crate::support::provider::Replica;
use crate::support::{ByHand, Cloud, DEADLINE, Point, Provider, Side, Stage, Trap, World};

const MACHINE: &str = "m";
/// The machine that remains while the collector works.
const STAYS: &str = "stays";

/// The activity of the provider when it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    Create,
    /// The machine adopts an existing VM.
    Adopt,
    /// The driver permanently refuses the create, and would refuse a delete with the same spec.
    RefusedCreate,
    /// A field that the driver can update changes in the spec.
    Update,
    /// The VM of a machine with `powerPolicy: AlwaysOn` is switched off.
    Start,
    Delete,
    /// The machine was removed without its VM, next to the VM of another machine. The collector deletes only
    /// the former.
    ///
    /// A collector acts only on deletions that it has seen. After a restart, the provider therefore deletes
    /// no older orphan. The other replica has seen the deletion, and continues.
    Collect,
}

/// DRV-10, DRV-12, DRV-21, DRV-22, INI-22.
#[tokio::test(start_paused = true)]
async fn a_create_survives_a_kill_at_any_point() -> Result<()> {
    survives_a_kill_at_any_point(Scenario::Create).await
}

/// DRV-12, UPD-03.
#[tokio::test(start_paused = true)]
async fn an_adoption_survives_a_kill_at_any_point() -> Result<()> {
    survives_a_kill_at_any_point(Scenario::Adopt).await
}

/// DRV-12, DRV-21.
#[tokio::test(start_paused = true)]
async fn a_refused_create_survives_a_kill_at_any_point() -> Result<()> {
    survives_a_kill_at_any_point(Scenario::RefusedCreate).await
}

/// DRV-12, UPD-03.
#[tokio::test(start_paused = true)]
async fn an_update_survives_a_kill_at_any_point() -> Result<()> {
    survives_a_kill_at_any_point(Scenario::Update).await
}

/// DRV-12, CAP-14.
#[tokio::test(start_paused = true)]
async fn a_start_survives_a_kill_at_any_point() -> Result<()> {
    survives_a_kill_at_any_point(Scenario::Start).await
}

/// The start is recorded before the call, so the limit of one start in five minutes outlives the process.
#[tokio::test(start_paused = true)]
async fn a_kill_after_a_start_allows_no_early_start() -> Result<()> {
    let undisturbed = Trap::counting();
    let session = Session::new(Scenario::Start).await?;
    let mut replica = session.start(&undisturbed).await?;
    session.begin(&undisturbed).await?;
    session.finished().await?;
    replica.terminate().await?;
    let calls = undisturbed.calls();
    let start = calls.iter().position(|call| *call == Operation::RestartMachine);
    let start = start.context("the VM was not started")?;

    let session = Session::new(Scenario::Start).await?;
    let trap = Trap::at(Point::Call(start, Side::After));
    let mut replica = session.start(&trap).await?;
    session.begin(&trap).await?;
    tokio::time::timeout(DEADLINE, trap.sprung())
        .await
        .context("the VM is not started")?;
    replica.kill();
    session.switch_off()?;
    let _again = session.start(&Trap::counting()).await?;
    tokio::time::sleep(Duration::from_mins(4)).await;
    ensure!(session.starts()? == 1, "it was started again too soon");
    session.finished().await?;
    ensure!(session.starts()? == 2, "{} starts", session.starts()?);
    Ok(())
}

/// DRV-12, DRV-21, DRV-22.
#[tokio::test(start_paused = true)]
async fn a_deletion_survives_a_kill_at_any_point() -> Result<()> {
    survives_a_kill_at_any_point(Scenario::Delete).await
}

/// DRV-12, DRV-21.
#[tokio::test(start_paused = true)]
async fn a_deletion_of_an_orphan_survives_a_kill_at_any_point() -> Result<()> {
    survives_a_kill_at_any_point(Scenario::Collect).await
}

async fn survives_a_kill_at_any_point(scenario: Scenario) -> Result<()> {
    let undisturbed = Trap::counting();
    let session = Session::new(scenario).await?;
    let mut replica = session.start(&undisturbed).await?;
    session.begin(&undisturbed).await?;
    session.finished().await?;
    // A terminated process writes nothing.
    replica.terminate().await?;
    let (calls, writes, end) = (undisturbed.calls(), undisturbed.writes(), session.end().await?);
    ensure!(
        !calls.is_empty() && !writes.is_empty(),
        "nothing was recorded: {calls:?}, {writes:?}"
    );
    for point in undisturbed.points() {
        let killed = killed_at(scenario, point, &end).await;
        killed.with_context(|| format!("killed at {point:?} of calls {calls:?} and writes {writes:?}"))?;
    }
    Ok(())
}

/// Kills the provider at a point, starts it again, and compares the end with the undisturbed run.
async fn killed_at(scenario: Scenario, point: Point, undisturbed_end: &Value) -> Result<()> {
    let session = Session::new(scenario).await?;
    let trap = Trap::at(point);
    let mut replica = session.start(&trap).await?;
    let standby = if scenario == Scenario::Collect {
        leads(&replica).await?;
        Some(session.start(&Trap::counting()).await?)
    } else {
        None
    };
    session.begin(&trap).await?;
    tokio::time::timeout(DEADLINE, trap.sprung())
        .await
        .context("the point is not reached")?;
    replica.kill();
    let _again = match standby {
        Some(standby) => standby,
        None => session.start(&Trap::counting()).await?,
    };
    eventually(DEADLINE, "the end of the undisturbed run", async || {
        let end = session.end().await?;
        ensure!(end == *undisturbed_end, "{end} and not {undisturbed_end}");
        Ok(())
    })
    .await?;
    let left = match scenario {
        Scenario::Delete => None,
        Scenario::Collect => Some(&session.stays),
        _ => Some(&session.machine),
    };
    if let Some(left) = left {
        left.delete().await?;
        left.gone().await?;
    }
    let left = session.own_vms()?;
    ensure!(left.is_empty(), "after the deletion there are {left:?}");
    Ok(())
}

/// A single run of a scenario.
struct Session {
    world: World,
    cloud: Cloud,
    machine: ByHand,
    stays: ByHand,
    cluster_id: String,
    scenario: Scenario,
}

impl Session {
    /// A world whose cloud has only the VM of another machine with the same name.
    async fn new(scenario: Scenario) -> Result<Self> {
        let world = World::new("crash").await?;
        let cloud = Cloud::new(&world);
        let stage = Stage::set(&world).await?;
        let mut machine = stage.machine(MACHINE);
        if scenario == Scenario::RefusedCreate {
            // A look-up ignores the failure domain; a create does not.
            machine = machine.machine("/spec/failureDomain", json!("nowhere"));
            let refused =
                json!({"operation": "DeleteMachine", "machine": MACHINE, "code": "InvalidArgument"});
            cloud.fail(json!([refused]))?;
        }
        if scenario == Scenario::Start {
            machine = machine.infra("/spec/powerPolicy", json!("AlwaysOn"));
        }
        if scenario == Scenario::Adopt {
            machine = to_adopt(machine, &cloud, &stage.cluster_id)?;
        }
        cloud
            .console()?
            .plant(PlantedVm::new("another-cluster", MACHINE, "another/machine"))
            .map_err(|status| anyhow!("planting a VM: {status}"))?;
        Ok(Self {
            world,
            cloud,
            machine,
            stays: stage.machine(STAYS),
            cluster_id: stage.cluster_id,
            scenario,
        })
    }

    /// Starts a provider. Its inventory interferes only with a start.
    async fn start(&self, trap: &Trap) -> Result<Replica> {
        let drivers = self.cloud.drivers(json!({
            "addsMachineTag": self.scenario == Scenario::Adopt,
        }));
        // Lists find a VM that is off, or on again.
        let interval = if self.scenario == Scenario::Start {
            Duration::from_mins(1)
        } else {
            Duration::from_hours(24)
        };
        let provider = Provider::new(drivers).with(|options| options.inventory_interval = interval);
        let provider = provider.caught_in(trap);
        if self.scenario != Scenario::Collect {
            return provider.start(&self.world).await;
        }
        let provider = provider.with(|options| {
            options.orphans.delete = true;
            options.orphans.interval = Duration::from_secs(1);
            options.orphans.min_age = Duration::from_millis(1);
        });
        elected(&self.world, &provider, "capcmi")?
            .start(&self.world)
            .await
    }

    /// Prepares the machine for the scenario, and starts the scenario.
    async fn begin(&self, trap: &Trap) -> Result<()> {
        if matches!(
            self.scenario,
            Scenario::Update | Scenario::Start | Scenario::Delete | Scenario::Collect
        ) {
            self.machine.clone().create().await?;
            self.machine.provisioned().await?;
        }
        if self.scenario == Scenario::Collect {
            self.deletion_that_fails().await?;
        }
        trap.arm();
        match self.scenario {
            Scenario::Create | Scenario::Adopt | Scenario::RefusedCreate => {
                self.machine.clone().create().await.map(drop)
            }
            Scenario::Update => self
                .machine
                .respecify("labels", json!({"round": "1"}))
                .await
                .map(drop),
            Scenario::Start => self.switch_off(),
            Scenario::Delete => self.machine.delete().await,
            Scenario::Collect => {
                self.machine
                    .patch(json!({"metadata": {"finalizers": null}}))
                    .await?;
                self.machine.gone().await
            }
        }
    }

    /// The other machine comes up, and a deletion of the machine starts and fails.
    async fn deletion_that_fails(&self) -> Result<()> {
        self.stays.clone().create().await?;
        self.stays.provisioned().await?;
        let refused = json!({"operation": "DeleteMachine", "machine": MACHINE, "code": "FailedPrecondition"});
        self.cloud.fail(json!([refused]))?;
        self.machine.delete().await?;
        event(&self.world, MACHINE, "FailedPrecondition").await?;
        self.cloud.fail(json!([]))
    }

    /// Waits until the scenario is over.
    async fn finished(&self) -> Result<()> {
        let refused = |machine: &InfraMachine| {
            machine
                .status
                .as_ref()
                .is_some_and(|status| status.failure_reason.is_some())
        };
        let updated = |machine: &InfraMachine| {
            let last = machine
                .status
                .as_ref()
                .and_then(|status| status.last_operation.as_ref());
            last.is_some_and(|last| {
                last.type_ == OperationType::Update && last.state == OperationState::Successful
            })
        };
        match self.scenario {
            Scenario::Create => self.machine.provisioned().await.map(drop),
            Scenario::RefusedCreate => self.machine.until("refused", refused).await.map(drop),
            // The provider adds the identity after the adoption.
            Scenario::Adopt | Scenario::Update => self.machine.until("updated", updated).await.map(drop),
            Scenario::Start => {
                let is_on = |machine: &InfraMachine| {
                    says(machine, conditions::VIRTUAL_MACHINE_RUNNING, "True", "Running")
                };
                self.machine.until("started", is_on).await.map(drop)
            }
            Scenario::Delete => self.machine.gone().await,
            Scenario::Collect => {
                eventually(DEADLINE, "the end of the orphan", async || {
                    let left = self.own_vms()?;
                    ensure!(left.len() == 1, "{left:?}");
                    Ok(())
                })
                .await?;
                // The collector then writes an event.
                tokio::time::sleep(Duration::from_millis(500)).await;
                Ok(())
            }
        }
    }

    /// Switches the machine's VM off, as an operator would at the back end.
    fn switch_off(&self) -> Result<()> {
        let [vm] = &self.own_vms()?[..] else {
            bail!("there is not one VM");
        };
        Ok(self.cloud.console()?.switch(vm.id, false)?)
    }

    fn starts(&self) -> Result<usize> {
        self.cloud.count(Operation::RestartMachine, MACHINE)
    }

    /// The VMs of this cluster. Checks that the VMs of others are unchanged.
    fn own_vms(&self) -> Result<Vec<Vm>> {
        let (own, others): (Vec<_>, Vec<_>) = self
            .cloud
            .vms()?
            .into_iter()
            .partition(|vm| vm.cluster() == self.cluster_id);
        ensure!(others.len() == 1, "another machine's VM was touched: {others:?}");
        Ok(own)
    }

    /// The visible end state, without parts that differ in each run.
    async fn end(&self) -> Result<Value> {
        let vms = self.own_vms()?;
        let kept: Vec<_> = vms.iter().map(|vm| json!([vm.name, vm.labels])).collect();
        let Some(machine) = self.machine.api().get_opt(MACHINE).await? else {
            return Ok(json!({"vms": kept, "machine": null}));
        };
        if let Some(id) = &machine.spec.provider_id
            && !vms.iter().any(|vm| vm.provider_id() == *id)
        {
            bail!("no VM has the providerID {id}: {vms:?}");
        }
        // The result of an interrupted create may stay unknown forever.
        let record = identity::record(&machine).map(|record| {
            let made = record.made_from.map(|made| made.provider_spec);
            let state = record.state.is_known().then(|| record.state.name());
            json!([state, made, record.adopted])
        });
        let status = machine.status.unwrap_or_default();
        // Only some runs take as long as a bootstrap.
        let conditions: BTreeSet<_> = status
            .conditions
            .iter()
            .filter(|condition| condition.type_ != conditions::NODE_JOINED)
            .map(|condition| format!("{}={} {}", condition.type_, condition.status, condition.reason))
            .collect();
        let annotations: BTreeSet<_> = machine
            .metadata
            .annotations
            .unwrap_or_default()
            .into_keys()
            .collect();
        // The result of an interrupted start may stay unknown. It is never repeated early.
        let last = status
            .last_operation
            .filter(|_| self.scenario != Scenario::Start)
            .map(|last| json!([last.type_, last.state, last.operation, last.code]));
        Ok(json!({
            "vms": kept, "starts": self.starts()?,
            "machine": {
                "identified": machine.spec.provider_id.is_some(), "finalizers": machine.metadata.finalizers,
                "annotations": annotations, "record": record, "provisioned": status.initialization,
                "failureReason": status.failure_reason, "failureMessage": status.failure_message,
                "conditions": conditions, "lastOperation": last, "nodeName": status.node_name,
            },
        }))
    }
}

/// The machine, with a foreign VM of its name that it should adopt.
fn to_adopt(machine: ByHand, cloud: &Cloud, cluster_id: &str) -> Result<ByHand> {
    let mut planted = PlantedVm::new(cluster_id, MACHINE, "");
    planted.tags.remove(tags::MACHINE);
    planted.tags.insert(tags::ROLE.to_owned(), "worker".to_owned());
    planted.tags.insert("team".to_owned(), "a".to_owned());
    "small".clone_into(&mut planted.size);
    planted.root_fs_gb = 10;
    let planted = cloud.console()?.plant(planted);
    let id = planted.map_err(|status| anyhow!("planting a VM: {status}"))?;
    let carried = json!({tags::ROLE: "worker"}).to_string();
    Ok(machine
        .infra("/metadata/annotations", json!({annotations::ADOPT: carried}))
        .infra("/spec/providerID", json!(id)))
}
