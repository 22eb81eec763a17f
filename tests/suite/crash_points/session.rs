//! One run of a scenario, and the trap in which the provider is caught.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, anyhow, bail, ensure};
use capcmi::api::annotations;
use capcmi::api::v1alpha1::{InfraMachine, OperationState, OperationType};
use cmi_driver::{Operation, tags};
use cmi_simulated::{Phase, PlantedVm, Vm};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams};
use management_cluster::eventually;
use management_cluster::proxy::{Fault, Gate, ProxiedRequest, Proxy};
use serde_json::{Value, json};

use super::{Point, Recording, Scenario, Side};
use crate::leadership::{elected, leads};
use crate::support::backing::Backed;
use crate::support::provider::{Replica, service_account};
use crate::support::{Backing, ByHand, Cloud, DEADLINE, Provider, Stage, World};

const MACHINE: &str = "m";
/// The machine that lives on while the collector is at work.
const STAYS: &str = "stays";
/// What the simulated driver logs when a call hangs.
const HANGS: &str = "a fault lets the call hang";

/// What the proxy does to the writes, and has seen of them.
#[derive(Default)]
struct Trap {
    armed: bool,
    writes: Vec<String>,
    fault: Option<(usize, Fault)>,
}

/// A namespace, a cloud and a proxy of its own.
pub struct Session {
    pub world: World,
    cloud: Cloud,
    machine: ByHand,
    stays: ByHand,
    /// The call that hangs, where that is for the collector's to do.
    hang: Option<Value>,
    cluster_id: String,
    scenario: Scenario,
    trap: Arc<Mutex<Trap>>,
    pub provider: Provider,
    backed: Backed,
    _proxy: Proxy,
    /// Calls before the scenario began.
    earlier: usize,
}

impl Session {
    /// A namespace with nothing but another machine's VM of the same name in its cloud.
    pub async fn new(backing: Backing, scenario: Scenario) -> Result<Self> {
        let world = World::new("crash").await?;
        let cloud = Cloud::new(&world);
        let stage = Stage::set(&world).await?;
        let mut machine = stage.machine(MACHINE);
        if scenario == Scenario::RefusedCreate {
            // A look-up does not mind; a create does.
            machine = machine.machine("/spec/failureDomain", json!("nowhere"));
        }
        if scenario == Scenario::Adopt {
            machine = to_adopt(machine, &cloud, &stage.cluster_id)?;
        }
        cloud
            .console()?
            .plant(PlantedVm::new("another-cluster", MACHINE, "another/machine"))
            .map_err(|status| anyhow!("planting a VM: {status}"))?;
        cloud.fail(json!(refusals(scenario)))?;
        let trap = Arc::new(Mutex::new(Trap::default()));
        let hook = {
            let trap = Arc::clone(&trap);
            move |request: &ProxiedRequest| {
                trap.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .spring(request)
            }
        };
        let proxy = Proxy::start(&world.management, hook).await?;
        let kubeconfig = proxy.kubeconfig(&service_account(&world).await?)?;
        let config = json!({
            "addsMachineTag": scenario == Scenario::Adopt,
            "namesProviderIds": scenario != Scenario::CreateUnnamed,
        });
        let backed = backing.of(&world, &cloud, config).await?;
        // No survey comes in between: it would be one more call at no certain time.
        let drivers = backed.drivers.clone();
        let provider = match scenario {
            Scenario::Collect => elected(&world, drivers)
                .await?
                .flag("--leader-elect-lease-duration=8s")
                .flag("--leader-elect-renew-deadline=6s")
                .flag("--leader-elect-retry-period=1s")
                .flag("--orphans=delete")
                .flag("--orphans-interval=1s")
                .flag("--orphans-min-age=1ms"),
            Scenario::Create
            | Scenario::CreateUnnamed
            | Scenario::Adopt
            | Scenario::RefusedCreate
            | Scenario::Update
            | Scenario::Delete => Provider::new(drivers),
        };
        let provider = provider.through(kubeconfig).flag("--inventory-interval=1h");
        Ok(Self {
            stays: stage.machine(STAYS),
            hang: None,
            world,
            cloud,
            machine,
            cluster_id: stage.cluster_id,
            scenario,
            trap,
            provider,
            backed,
            _proxy: proxy,
            earlier: 0,
        })
    }

    fn trap(&self) -> MutexGuard<'_, Trap> {
        self.trap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A replica that waits for the end of the one that leads, where the scenario takes two.
    pub async fn standby(&self, leader: &Replica) -> Result<Option<Replica>> {
        if self.scenario != Scenario::Collect {
            return Ok(None);
        }
        leads(leader).await?;
        let standby = self.provider.clone().named("standby");
        standby.start(&self.world).await.map(Some)
    }

    /// The writes since the scenario began.
    pub fn writes(&self) -> Vec<String> {
        self.trap().writes.clone()
    }

    /// Lays the trap; it is armed when the scenario begins.
    pub fn set_trap(&mut self, point: Point) -> Result<Gate> {
        let gate = Gate::new();
        match point {
            Point::Write(write, side) => {
                let fault = match side {
                    Side::Before => Fault::HoldBefore(gate.clone()),
                    Side::After => Fault::HoldAfter(gate.clone()),
                };
                self.trap().fault = Some((write, fault));
            }
            Point::Call(call, side) if self.scenario == Scenario::Collect => {
                let hang = if side == Side::Before { "before" } else { "after" };
                self.hang = Some(json!({"machine": MACHINE, "after": call, "count": 1, "hang": hang}));
            }
            Point::Call(call, side) => {
                // The calls of the creation before the scenario are counted too.
                let before = if self.scenario.has_vm() {
                    CALLS_OF_A_CREATE
                } else {
                    0
                };
                let hang = if side == Side::Before { "before" } else { "after" };
                let mut faults = vec![json!({
                    "machine": MACHINE, "after": before + call, "count": 1, "hang": hang,
                })];
                faults.extend(refusals(self.scenario));
                self.cloud.fail(json!(faults))?;
            }
        }
        Ok(gate)
    }

    /// Lets everything through again.
    pub fn remove_trap(&self) -> Result<()> {
        self.trap().fault = None;
        self.cloud.fail(json!(refusals(self.scenario)))
    }

    /// Brings the provider to where the scenario begins, and begins it.
    pub async fn begin(&mut self) -> Result<()> {
        if self.scenario.has_vm() {
            self.machine.clone().create().await?;
            self.machine.provisioned().await?;
            self.earlier = self.calls()?.len();
            ensure!(
                self.earlier == CALLS_OF_A_CREATE,
                "a create has other calls: {:?}",
                self.calls()?
            );
        }
        if self.scenario == Scenario::Collect {
            self.deletion_that_fails().await?;
            self.earlier += self.calls()?.len();
            self.cloud.fail(json!(Vec::from_iter(self.hang.clone())))?;
        }
        self.trap().armed = true;
        match self.scenario {
            Scenario::Create | Scenario::CreateUnnamed | Scenario::Adopt | Scenario::RefusedCreate => {
                self.machine.clone().create().await.map(drop)
            }
            Scenario::Update => {
                let changed = self.machine.respecify("labels", json!({"round": "1"})).await;
                changed.map(drop)
            }
            Scenario::Delete => self.machine.delete().await,
            Scenario::Collect => {
                self.machine
                    .patch(json!({"metadata": {"finalizers": null}}))
                    .await?;
                self.machine.gone().await
            }
        }
    }

    /// The other machine comes up, and the deletion of the machine runs, has failed, and says so.
    async fn deletion_that_fails(&self) -> Result<()> {
        self.stays.clone().create().await?;
        self.stays.provisioned().await?;
        self.cloud.fail(
            json!([{"operation": "DeleteMachine", "machine": MACHINE, "code": "FailedPrecondition"}]),
        )?;
        self.machine.delete().await?;
        self.event("FailedPrecondition").await
    }

    async fn event(&self, reason: &str) -> Result<()> {
        let events: Api<Event> = Api::namespaced(self.world.admin.clone(), &self.world.namespace);
        eventually(DEADLINE, &format!("an event {reason}"), async || {
            let all = events.list(&ListParams::default()).await?.items;
            let is_there = all.iter().any(|event| event.reason.as_deref() == Some(reason));
            ensure!(is_there, "none yet");
            Ok(())
        })
        .await
    }

    /// Waits until the scenario is over.
    pub async fn finished(&self) -> Result<()> {
        let refused = |machine: &InfraMachine| {
            let status = machine.status.as_ref();
            status.is_some_and(|status| status.failure_reason.is_some())
        };
        let updated = |machine: &InfraMachine| {
            let status = machine.status.as_ref();
            let last = status.and_then(|status| status.last_operation.as_ref());
            last.is_some_and(|last| {
                last.type_ == OperationType::Update && last.state == OperationState::Successful
            })
        };
        match self.scenario {
            Scenario::Create | Scenario::CreateUnnamed => self.machine.provisioned().await.map(drop),
            Scenario::RefusedCreate => self.machine.until("refused", refused).await.map(drop),
            // The identity is added once the VM is the machine's.
            Scenario::Adopt | Scenario::Update => self.machine.until("updated", updated).await.map(drop),
            Scenario::Delete => self.machine.gone().await,
            Scenario::Collect => self.event("OrphanDeleted").await,
        }
    }

    /// Waits until the provider is where it is to be killed; whether it came there by the same writes as in
    /// the recorded run.
    pub async fn reached(
        &self,
        run: &Recording,
        point: Point,
        gate: &Gate,
        replica: &Replica,
    ) -> Result<bool> {
        match point {
            Point::Write(write, _) => {
                tokio::time::timeout(DEADLINE, gate.reached())
                    .await
                    .with_context(|| format!("only {:?} were written", self.trap().writes))?;
                let writes = self.trap().writes.clone();
                return Ok(run.writes.get(..=write) == writes.get(..=write));
            }
            Point::Call(call, _) => {
                eventually(DEADLINE, "a call that hangs", async || {
                    let log = self.backed.log()?.map_or_else(|| replica.log(), Ok)?;
                    ensure!(log.contains(HANGS), "calls: {:?}", self.calls()?);
                    Ok(())
                })
                .await?;
                let calls = self.calls()?;
                ensure!(
                    calls.len() == call + 1 && calls.get(call) == run.calls.get(call),
                    "it hangs in the last of {calls:?}"
                );
            }
        }
        Ok(true)
    }

    /// Deletes the machine, and waits until it is gone.
    pub async fn clean_up(&self) -> Result<()> {
        let left = match self.scenario {
            Scenario::Collect => &self.stays,
            Scenario::Create
            | Scenario::CreateUnnamed
            | Scenario::Adopt
            | Scenario::RefusedCreate
            | Scenario::Update
            | Scenario::Delete => &self.machine,
        };
        left.delete().await?;
        left.gone().await
    }

    /// The calls for the machine since the scenario began.
    pub fn calls(&self) -> Result<Vec<Operation>> {
        let lines = self.cloud.calls()?;
        let ours = lines
            .into_iter()
            .filter(|line| line.machine == MACHINE && line.phase == Phase::Started);
        Ok(ours.map(|line| line.operation).skip(self.earlier).collect())
    }

    /// The VMs of this cluster; those of others have to be as they were.
    pub fn own_vms(&self) -> Result<Vec<Vm>> {
        let (own, others): (Vec<_>, Vec<_>) = self
            .cloud
            .vms()?
            .into_iter()
            .partition(|vm| vm.cluster() == self.cluster_id);
        ensure!(others.len() == 1, "another machine's VM was touched: {others:?}");
        Ok(own)
    }

    /// All that a user sees of how it ended, without what differs from run to run.
    pub async fn end(&self) -> Result<Value> {
        let vms = self.own_vms()?;
        let kept: Vec<_> = vms.iter().map(|vm| json!([vm.name, vm.labels])).collect();
        let Some(machine) = self.machine.api().get_opt(MACHINE).await? else {
            return Ok(json!({"vms": kept, "machine": null}));
        };
        if let Some(id) = &machine.spec.provider_id
            && !vms.iter().any(|vm| vm.provider_id() == *id)
        {
            bail!("providerID {id} is that of no VM: {vms:?}");
        }
        let status = machine.status.unwrap_or_default();
        let conditions: BTreeSet<_> = status
            .conditions
            .iter()
            .map(|condition| format!("{}={} {}", condition.type_, condition.status, condition.reason))
            .collect();
        let mut annotations: BTreeSet<_> = machine
            .metadata
            .annotations
            .unwrap_or_default()
            .into_keys()
            // Of a create that was cut short it may be for ever unknown what became of it.
            .filter(|key| key != annotations::CREATE_ISSUED_AT)
            .collect();
        // That only the status says of a VM that it is there: a second create says it in the metadata.
        if annotations.remove(annotations::PROVIDER_ID) {
            annotations.remove(annotations::BLOCK_MOVE);
        }
        let last = status
            .last_operation
            .map(|last| json!([last.type_, last.state, last.operation, last.code]));
        Ok(json!({
            "vms": kept,
            "machine": {
                "identified": machine.spec.provider_id.is_some(), "finalizers": machine.metadata.finalizers,
                "annotations": annotations, "provisioned": status.initialization,
                "failureReason": status.failure_reason, "failureMessage": status.failure_message,
                "conditions": conditions, "lastOperation": last, "nodeName": status.node_name,
            },
        }))
    }
}

/// A look-up, the create, and the initialization.
const CALLS_OF_A_CREATE: usize = 3;

/// The faults of a scenario, besides the one that lets a call hang.
fn refusals(scenario: Scenario) -> Vec<Value> {
    match scenario {
        Scenario::Create
        | Scenario::CreateUnnamed
        | Scenario::Adopt
        | Scenario::Update
        | Scenario::Delete
        | Scenario::Collect => Vec::new(),
        Scenario::RefusedCreate => {
            vec![json!({"operation": "DeleteMachine", "machine": MACHINE, "code": "InvalidArgument"})]
        }
    }
}

impl Trap {
    fn spring(&mut self, request: &ProxiedRequest) -> Fault {
        // Both replicas write to their Lease, at no certain time.
        if !self.armed || request.write.is_none() || request.path.contains("/leases") {
            return Fault::None;
        }
        let index = self.writes.len();
        let place = request
            .path
            .rsplit_once("/namespaces/")
            .map_or("", |(_, rest)| rest);
        let what = place.split_once('/').map_or("", |(_, rest)| rest);
        self.writes.push(format!("{} {what}", request.method));
        match &self.fault {
            Some((write, fault)) if *write == index => fault.clone(),
            _ => Fault::None,
        }
    }
}

/// The machine, with a VM of its name that another has made and that it is to adopt.
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
