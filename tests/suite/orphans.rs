//! VMs that no InfraMachine has: reported in every way, and deleted where that was asked for.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use cmi_driver::Operation;
use cmi_simulated::{PlantedVm, Vm};
use http::StatusCode;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use management_cluster::eventually;
use management_cluster::proxy::{Fault, Proxy};
use serde_json::{Value, json};

use crate::support::provider::{Replica, service_account};
use crate::support::world::run;
use crate::support::{ByHand, Cloud, DEADLINE, Provider, World};

/// A Cluster with two machines, of which `gone` can't be deleted.
struct Leak {
    world: World,
    cloud: Cloud,
    gone: ByHand,
    stays: ByHand,
    /// The id that the driver knows the Cluster by.
    cluster_id: String,
    replica: Replica,
}

impl Leak {
    /// Sets it up, with further flags, and takes the finalizer of `gone` away while its deletion runs.
    async fn new(
        case: &str,
        flags: &[&str],
        through: impl Fn(bool) -> bool + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::on(World::new(case).await?, flags, through).await
    }

    /// The same in this namespace.
    async fn on(
        world: World,
        flags: &[&str],
        through: impl Fn(bool) -> bool + Send + Sync + 'static,
    ) -> Result<Self> {
        let cloud = Cloud::new(&world);
        world.cluster("c").await?;
        let is_refused = move |request: &management_cluster::proxy::ProxiedRequest| {
            if through(request.is_watch()) {
                Fault::None
            } else {
                Fault::Refuse(StatusCode::SERVICE_UNAVAILABLE)
            }
        };
        let proxy: &'static Proxy = Box::leak(Box::new(Proxy::start(&world.management, is_refused).await?));
        let kubeconfig = proxy.kubeconfig(&service_account(&world).await?)?;
        let provider = Provider::new(cloud.drivers(json!({}))).through(kubeconfig);
        let flags = ["--orphans-interval=1s", "--orphans-min-age=1ms"]
            .iter()
            .chain(flags);
        let provider = flags.fold(provider, |provider, flag| provider.flag(*flag));
        let replica = provider.start(&world).await?;
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

    /// A VM that the driver was not asked for.
    fn plant(&self, cluster: &str, name: &str, machine: &str) -> Result<String> {
        let planted = self
            .cloud
            .console()?
            .plant(PlantedVm::new(cluster, name, machine));
        planted.context("planting a VM")
    }

    /// Waits until the driver was asked for so many further lists.
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
        let events: Api<Event> = Api::namespaced(self.world.admin.clone(), &self.world.namespace);
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

    /// Waits until the gauge says so.
    async fn gauge(&self, reason: &str, count: Option<usize>) -> Result<()> {
        let labels = format!(
            r#"capcmi_orphans{{driver="simulated",namespace="{}",reason="{reason}"}}"#,
            self.world.namespace
        );
        eventually(DEADLINE, &format!("{count:?} of {labels}"), async || {
            let metrics = self.replica.metrics().await?;
            let value = metrics.lines().find_map(|line| line.strip_prefix(&labels));
            let value = value.and_then(|value| value.trim().parse().ok());
            ensure!(value == count, "{value:?}");
            Ok(())
        })
        .await
    }

    /// What `capcmi orphans list` prints, as the shipped ServiceAccount.
    async fn listed(&self, flags: &[&str]) -> Result<String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_capcmi"));
        command
            .args(["orphans", "list", "--namespace", &self.world.namespace])
            .arg("--drivers-config")
            .arg(self.world.folder.join("provider-drivers.yaml"))
            .arg("--kubeconfig")
            .arg(service_account(&self.world).await?)
            .args(flags);
        run(&mut command)
    }
}

/// CTL-LM-00, CLI-LM-00: nothing else would ever find this VM.
#[tokio::test]
async fn a_vm_whose_machine_got_away_is_reported_and_left_alone() -> Result<()> {
    let leak = Leak::new("orphan", &[], |_| true).await?;
    let vm = leak.vm("gone")?.context("the VM is gone already")?;
    let unknown = leak.plant("unknown-cluster", "gone", "unknown")?;
    let note = leak.event("VirtualMachineOrphaned", &vm.provider_id()).await?;
    ensure!(
        note.contains(&format!(
            "its InfraMachine {}/gone is gone since",
            leak.world.namespace
        )) && note.contains("--orphans=report"),
        "{note}"
    );
    leak.gauge("orphan", Some(1)).await?;

    let listed: Value = serde_json::from_str(&leak.listed(&["--output=json"]).await?)?;
    let [row] = listed.as_array().map(Vec::as_slice).unwrap_or_default() else {
        anyhow::bail!("{listed:#}")
    };
    for (field, value) in [
        ("finding", "orphan"),
        ("driver", "simulated"),
        ("namespace", &leak.world.namespace),
        ("cluster", "c"),
        ("providerId", &vm.provider_id()),
        ("name", "gone"),
        ("machineId", vm.machine()),
    ] {
        ensure!(row[field] == value, "{field} is not {value}: {row:#}");
    }
    let table = leak.listed(&["--all"]).await?;
    ensure!(
        table.contains("owned") && table.contains("stays") && !table.contains(&unknown),
        "{table}"
    );

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

/// CTL-LM-00, CTL-GS-11, CLI-GS-11: a VM of no machine goes; a VM that may be a machine's stays.
#[tokio::test]
async fn in_delete_mode_the_orphan_goes_and_every_other_vm_stays() -> Result<()> {
    let leak = Leak::new("purge", &["--orphans=delete"], |_| true).await?;
    let vm = leak.vm("gone")?.context("the VM is gone already")?;
    let owned = leak.vm("stays")?.context("the VM of a living machine is gone")?;
    let unknown = leak.plant("unknown-cluster", "gone", vm.machine())?;
    let unseen = leak.plant(&leak.cluster_id, "unseen", "of-no-machine-that-was-seen")?;
    let second = leak.plant(&leak.cluster_id, "stays", owned.machine())?;
    leak.cloud.fail(json!([]))?;
    leak.event("OrphanDeleted", &vm.provider_id()).await?;
    leak.event("VirtualMachineDuplicated", &second).await?;
    let note = leak.event("VirtualMachineOrphaned", &unseen).await?;
    ensure!(note.contains("has not seen the deletion"), "{note}");
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

/// A machine whose identity was taken away looks as if it had ended, and the object that was seen to end
/// may have carried the identity of another.
#[tokio::test]
async fn once_identities_were_not_guarded_no_orphan_of_before_is_deleted() -> Result<()> {
    let world = World::new("forgeable").await?.elsewhere().await?;
    world
        .apply("{apiVersion: v1, kind: Namespace, metadata: {name: $NS}}")
        .await?;
    let leak = Leak::on(world, &["--orphans=delete"], |_| true).await?;
    let vm = leak.vm("gone")?.context("the VM is gone already")?;
    let policy = "capcmi-reserved-annotations";
    let kubectl = |args: &[&str]| leak.world.kubectl(args);
    leak.event("VirtualMachineOrphaned", &vm.provider_id()).await?;
    kubectl(&["delete", "validatingadmissionpolicybinding", policy])?;
    // The look that had checked the policies before is over.
    leak.lists(2).await?;
    leak.cloud.fail(json!([]))?;
    leak.lists(4).await?;
    ensure!(leak.vm("gone")?.is_some(), "it was deleted");

    eventually(DEADLINE, "a gap that was found", async || {
        let metrics = leak.replica.metrics().await?;
        ensure!(
            metrics.contains("capcmi_admission_policies_in_force 0"),
            "{metrics}"
        );
        Ok(())
    })
    .await?;
    let confirm = format!("{}-", capcmi::admission::UNCONFIRMED);
    kubectl(&["annotate", "validatingadmissionpolicy", policy, &confirm])?;
    eventually(DEADLINE, "identities that are guarded again", async || {
        let metrics = leak.replica.metrics().await?;
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

/// An API server that does not answer says of nothing that it is not there.
#[tokio::test]
async fn with_the_api_server_out_of_reach_nothing_is_deleted() -> Result<()> {
    let cut = Arc::new(AtomicBool::new(false));
    let is_cut = Arc::clone(&cut);
    let through = move |_| !is_cut.load(Ordering::SeqCst);
    let leak = Leak::new("cut", &["--orphans=delete"], through).await?;
    leak.event("VirtualMachineOrphaned", "gone").await?;
    cut.store(true, Ordering::SeqCst);
    // The look that had read before is over.
    eventually(DEADLINE, "a look that could not read", async || {
        let is_logged = leak.replica.log()?.contains("looking for owners of VMs failed");
        ensure!(is_logged, "none yet");
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
