//! VMs without an InfraMachine: they are reported, and deleted in delete mode.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capcmi::api::identity;
use capcmi::manager::OrphanOptions;
use cmi_driver::Operation;
use cmi_simulated::{PlantedVm, Vm};
use fake_apiserver::{Call, Fate, Recorded};
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use management_cluster::eventually;
use serde_json::json;

use crate::support::admission::{confirm_identities, remove_binding};
use crate::support::provider::Replica;
use crate::support::{ByHand, Cloud, DEADLINE, Provider, World};

/// A Cluster with two machines. The driver refuses to delete the VM of `gone`.
struct Leak {
    world: World,
    cloud: Cloud,
    gone: ByHand,
    stays: ByHand,
    /// The Cluster's id at the driver.
    cluster_id: String,
    replica: Replica,
}

impl Leak {
    /// Sets it up, and removes the finalizer of `gone` during its deletion.
    async fn new(case: &str, delete: bool) -> Result<Self> {
        Self::behind(case, delete, |_| Fate::Served).await
    }

    /// As [`Leak::new`], with a provider whose requests meet this fate.
    async fn behind(
        case: &str,
        delete: bool,
        fate: impl Fn(&Call) -> Fate + Send + Sync + 'static,
    ) -> Result<Self> {
        let world = World::new(case).await?;
        let cloud = Cloud::new(&world);
        world.cluster("c").await?;
        let provider = Provider::new(cloud.drivers(json!({}))).with(|options| {
            options.orphans = OrphanOptions {
                delete,
                interval: Duration::from_secs(1),
                min_age: Duration::from_millis(1),
                ..OrphanOptions::default()
            };
        });
        let replica = provider.requests_meet(fate).start(&world).await?;
        let (gone, stays) = (
            ByHand::new(&world, "c", "gone"),
            ByHand::new(&world, "c", "stays"),
        );
        let (gone, stays) = (gone.create().await?, stays.create().await?);
        gone.provisioned().await?;
        stays.provisioned().await?;
        let vms = cloud.holds(2).await?;
        let leak = Self {
            cluster_id: vms[0].cluster().to_owned(),
            world,
            cloud,
            gone,
            stays,
            replica,
        };
        leak.cloud
            .fail(json!([{"operation": "DeleteMachine", "machine": "gone", "code": "FailedPrecondition"}]))?;
        leak.gone.delete().await?;
        eventually(DEADLINE, "an attempt to delete the VM", async || {
            let attempts = leak.cloud.count(Operation::DeleteMachine, "gone")?;
            ensure!(attempts > 0, "none yet");
            Ok(())
        })
        .await?;
        leak.gone.patch(json!({"metadata": {"finalizers": null}})).await?;
        leak.gone.gone().await?;
        Ok(leak)
    }

    /// Plants a VM that no machine has requested.
    fn plant(&self, cluster: &str, name: &str, machine: &str) -> Result<String> {
        let planted = self
            .cloud
            .console()?
            .plant(PlantedVm::new(cluster, name, machine));
        planted.context("planting a VM")
    }

    /// Waits for this many further lists of the driver.
    async fn lists(&self, count: usize) -> Result<()> {
        let lists = || self.cloud.count(Operation::ListMachines, "");
        let before = lists()?;
        eventually(DEADLINE, &format!("{count} lists"), async || {
            let now = lists()?;
            ensure!(now >= before + count, "{} so far", now - before);
            Ok(())
        })
        .await
    }

    /// The VM of a machine.
    fn vm(&self, name: &str) -> Result<Option<Vm>> {
        Ok(self.cloud.vms()?.into_iter().find(|vm| vm.name == name))
    }

    /// Waits for an event on the InfraCluster with this reason, about this VM.
    async fn event(&self, reason: &str, vm: &str) -> Result<String> {
        orphan_event(&self.world, reason, vm).await
    }

    /// Waits until the gauge has this value.
    async fn gauge(&self, reason: &str, count: Option<usize>) -> Result<()> {
        let labels = format!(
            r#"capcmi_orphans{{driver="simulated",namespace="{}",reason="{reason}"}}"#,
            self.world.namespace
        );
        eventually(DEADLINE, &format!("{count:?} of {labels}"), async || {
            let metrics = self.replica.metrics();
            let value = metrics.lines().find_map(|line| line.strip_prefix(&labels));
            let value = value.and_then(|value| value.trim().parse().ok());
            ensure!(value == count, "{value:?}");
            Ok(())
        })
        .await
    }
}

/// Waits for an event of InfraCluster `c` about a VM, and returns its text.
async fn orphan_event(world: &World, reason: &str, vm: &str) -> Result<String> {
    let events: Api<Event> = Api::namespaced(world.admin.clone(), &world.namespace);
    eventually(DEADLINE, &format!("an event {reason} about {vm}"), async || {
        let all = events.list(&ListParams::default()).await?.items;
        let fits = |event: &&Event| {
            let regarding = event.regarding.clone().unwrap_or_default();
            regarding.kind.as_deref() == Some("InfraCluster")
                && regarding.name.as_deref() == Some("c")
                && event.reason.as_deref() == Some(reason)
                && event.note.as_deref().is_some_and(|note| note.contains(vm))
        };
        let found = all.iter().find(fits).context("not yet")?;
        Ok(found.note.clone().unwrap_or_default())
    })
    .await
}

/// CTL-LM-00: only the scan can find this VM.
#[tokio::test(start_paused = true)]
async fn an_orphan_is_reported_and_not_deleted() -> Result<()> {
    let leak = Leak::new("orphan", false).await?;
    let vm = leak.vm("gone")?.context("the VM is gone already")?;
    leak.plant("unknown-cluster", "gone", "unknown")?;
    let note = leak.event("VirtualMachineOrphaned", &vm.provider_id()).await?;
    ensure!(
        note.contains(&format!(
            "its InfraMachine {}/gone was deleted at",
            leak.world.namespace
        )) && note.contains("--orphans=report"),
        "{note}"
    );
    leak.gauge("orphan", Some(1)).await?;

    let deletes = leak.cloud.count(Operation::DeleteMachine, "gone")?;
    leak.cloud.fail(json!([]))?;
    leak.lists(6).await?;
    ensure!(leak.cloud.holds(3).await?.iter().any(|left| left.id == vm.id));
    ensure!(
        leak.cloud.count(Operation::DeleteMachine, "gone")? == deletes,
        "a report deletes nothing"
    );
    let events: Api<Event> = Api::namespaced(leak.world.admin.clone(), &leak.world.namespace);
    let reported = events.list(&ListParams::default()).await?.items;
    let reported = reported
        .iter()
        .filter(|event| event.reason.as_deref() == Some("VirtualMachineOrphaned"));
    ensure!(reported.count() == 1, "it is reported once");
    leak.cloud.console()?.vanish(vm.id)?;
    leak.gauge("orphan", None).await
}

/// CTL-CR-14: the API server removes an object whose finalizer is added while the deletion begins.
#[tokio::test(start_paused = true)]
async fn an_object_deleted_despite_its_finalizer_leaves_an_orphan() -> Result<()> {
    let world = World::new("vanished").await?;
    let cloud = Cloud::new(&world);
    world.cluster("c").await?;
    let provider = Provider::new(cloud.drivers(json!({}))).with(|options| {
        options.orphans = OrphanOptions {
            interval: Duration::from_secs(1),
            min_age: Duration::from_millis(1),
            ..OrphanOptions::default()
        };
    });
    let _replica = provider.start(&world).await?;
    // The class of another machine has the scan list the VM.
    let stays = ByHand::new(&world, "c", "stays").create().await?;
    stays.provisioned().await?;
    cloud.fail(json!([{"operation": "CreateMachine", "machine": "gone", "latencyMs": 5000}]))?;
    let gone = ByHand::new(&world, "c", "gone").create().await?;
    gone.until("a create that is issued", |machine| {
        identity::vm_state(machine).unanswered().is_some()
    })
    .await?;
    world
        .management
        .delete_despite_finalizers("inframachines", &world.namespace, "gone");
    eventually(DEADLINE, "a VM without an owner", async || {
        ensure!(gone.api().get_opt("gone").await?.is_none(), "the object is there");
        ensure!(cloud.vms()?.len() == 2, "the create is not done");
        Ok(())
    })
    .await?;
    let vms = cloud.vms()?;
    let left = vms.iter().find(|vm| vm.name == "gone").context("no VM is left")?;
    orphan_event(&world, "VirtualMachineOrphaned", &left.provider_id()).await?;
    stays.provisioned().await?;
    Ok(())
}

/// CTL-LM-00, CTL-GS-11, CLI-GS-11: VMs that may belong to a machine stay.
#[tokio::test(start_paused = true)]
async fn in_delete_mode_only_the_orphan_is_deleted() -> Result<()> {
    let leak = Leak::new("purge", true).await?;
    let vm = leak.vm("gone")?.context("the VM is gone already")?;
    let owned = leak.vm("stays")?.context("the VM of a living machine is gone")?;
    let unknown = leak.plant("unknown-cluster", "gone", vm.machine())?;
    let unseen = leak.plant(&leak.cluster_id, "unseen", "of-no-machine-that-was-seen")?;
    let second = leak.plant(&leak.cluster_id, "stays", owned.machine())?;
    leak.cloud.fail(json!([]))?;
    leak.event("OrphanDeleted", &vm.provider_id()).await?;
    leak.event("VirtualMachineDuplicated", &second).await?;
    let note = leak.event("VirtualMachineOrphaned", &unseen).await?;
    ensure!(note.contains("did not observe the deletion"), "{note}");
    leak.gauge("duplicate", Some(1)).await?;
    leak.gauge("orphan", Some(1)).await?;
    leak.lists(6).await?;
    let mut left: Vec<_> = leak.cloud.vms()?.iter().map(Vm::provider_id).collect();
    let mut wanted = vec![owned.provider_id(), unknown, unseen, second];
    left.sort();
    wanted.sort();
    ensure!(left == wanted, "{left:?}, not {wanted:?}");
    let machine = leak.stays.get().await?;
    ensure!(
        machine.spec.provider_id == Some(owned.provider_id()),
        "{:?}",
        machine.name_any()
    );
    Ok(())
}

/// A machine without its identity looks deleted, and a deleted object may have carried a forged identity.
#[tokio::test(start_paused = true)]
async fn no_orphan_from_before_a_policy_gap_is_deleted() -> Result<()> {
    let leak = Leak::new("forgeable", true).await?;
    let vm = leak.vm("gone")?.context("the VM is gone already")?;
    let policy = "capcmi-reserved-annotations";
    leak.event("VirtualMachineOrphaned", &vm.provider_id()).await?;
    remove_binding(&leak.world, policy).await?;
    // The scan that checked the policies earlier has ended.
    leak.lists(2).await?;
    leak.cloud.fail(json!([]))?;
    leak.lists(4).await?;
    ensure!(leak.vm("gone")?.is_some(), "it was deleted");

    eventually(DEADLINE, "a gap that was found", async || {
        let metrics = leak.replica.metrics();
        ensure!(
            metrics.contains("capcmi_admission_policies_in_force 0"),
            "{metrics}"
        );
        Ok(())
    })
    .await?;
    confirm_identities(&leak.world, policy).await?;
    eventually(DEADLINE, "identities that are guarded again", async || {
        let metrics = leak.replica.metrics();
        ensure!(
            metrics.contains("capcmi_admission_policies_in_force 1"),
            "{metrics}"
        );
        Ok(())
    })
    .await?;
    leak.lists(4).await?;
    ensure!(
        leak.vm("gone")?.is_some(),
        "what was seen before the gap was believed"
    );
    Ok(())
}

/// Without an answer of the API server, no object counts as missing.
#[tokio::test(start_paused = true)]
async fn without_the_api_server_no_orphan_is_deleted() -> Result<()> {
    let cut = Arc::new(AtomicBool::new(false));
    let is_cut = Arc::clone(&cut);
    let fate = move |_: &Call| {
        if is_cut.load(Ordering::SeqCst) {
            Fate::Refused(503, "ServiceUnavailable")
        } else {
            Fate::Served
        }
    };
    let leak = Leak::behind("cut", true, fate).await?;
    leak.event("VirtualMachineOrphaned", "gone").await?;
    cut.store(true, Ordering::SeqCst);
    // The scan that read the objects earlier has ended.
    eventually(DEADLINE, "a scan that could not read", async || {
        let requests = leak.world.management.recorded();
        let is_refused = |request: &Recorded| {
            request.code == 503 && !request.call.is_watch() && request.call.path.ends_with("/inframachines")
        };
        ensure!(requests.iter().any(is_refused), "none yet");
        Ok(())
    })
    .await?;
    leak.cloud.fail(json!([]))?;
    let deletes = leak.cloud.count(Operation::DeleteMachine, "gone")?;
    leak.lists(8).await?;
    ensure!(
        leak.vm("gone")?.is_some(),
        "it was deleted without a look at the API server"
    );
    ensure!(
        leak.cloud.count(Operation::DeleteMachine, "gone")? == deletes,
        "a delete was tried"
    );
    cut.store(false, Ordering::SeqCst);
    eventually(DEADLINE, "the end of the orphan", async || {
        ensure!(leak.vm("gone")?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    ensure!(
        leak.vm("stays")?.is_some(),
        "the VM of a living machine was deleted"
    );
    Ok(())
}
