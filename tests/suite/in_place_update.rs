//! MachineDeployments get a new template, and their VMs are updated in place. Cluster API's own controllers
//! call the provider's Runtime Extension.
//!
//! Only core's gate InPlaceUpdates decides between update and roll-out, so these cases run the real core.
//! `tests/world` tests the answers of the hooks, and the updates after them.

mod client_certificates;
mod control_plane;
mod plan;

use std::process::Command;

use anyhow::{Context, Result, ensure};
use capcmi::api::annotations;
use capcmi::api::conditions::VIRTUAL_MACHINE_UP_TO_DATE;
use cmi_driver::Operation;
use cmi_simulated::Vm;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use management_cluster::eventually;
use management_cluster::hollow_kubelet::HollowKubelet;
use serde_json::{Value, json};

use crate::support::backing::Backed;
use crate::support::by_hand::says;
use crate::support::fleet::objects;
use crate::support::provider::Replica;
use crate::support::world::run;
use crate::support::{Backing, Cloud, DEADLINE, Extension, Fleet, Provider, World, bootstrap};

/// A namespace with Machines that run and a provider that serves the extension.
struct InPlace {
    world: World,
    cloud: Cloud,
    backed: Backed,
    extension: Extension,
    provider: Provider,
}

impl InPlace {
    /// A case with this driver, and further keys of its entry.
    async fn with(case: &str, backing: Backing, entry: Value) -> Result<Self> {
        Self::of(World::rate_limited(case).await?, backing, entry).await
    }

    async fn of(world: World, backing: Backing, entry: Value) -> Result<Self> {
        world.apply(bootstrap::KINDS).await?;
        let cloud = Cloud::new(&world);
        let backed = backing.with(&world, &cloud, entry, json!({})).await?;
        let extension = Extension::new(&world)?;
        let provider = extension.of(Provider::new(&backed.drivers));
        Ok(Self {
            world,
            cloud,
            backed,
            extension,
            provider,
        })
    }

    /// Starts a provider with a registered extension, and the kubelets of the guests.
    async fn serve(&self) -> Result<(Replica, HollowKubelet)> {
        let replica = self.provider.start(&self.world).await?;
        self.extension.register(&self.world).await?;
        Ok((replica, self.world.kubelets(&self.cloud)))
    }

    /// A number of running Machines, and at most one may be unavailable. They have a bootstrap configuration:
    /// without it, Cluster API requests no update.
    async fn fleet(&self, replicas: u32) -> Result<Fleet<'_>> {
        self.world.cluster("md").await?;
        let fleet = Fleet::of(&self.world, "md");
        fleet.template("md-1", tier("bronze")).await?;
        // The kind may not be served yet.
        let what = "a bootstrap configuration";
        eventually(DEADLINE, what, async || self.world.apply(BOOTSTRAP).await).await?;
        let changed = json!({"spec": {
            "rollout": {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}},
            "template": {"spec": {"bootstrap": {"dataSecretName": null, "configRef": {
                "apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "StandInBootstrapTemplate",
                "name": "worker",
            }}}},
        }});
        fleet.deployment_with("md-1", replicas, &changed).await?;
        fleet.running(replicas as usize).await?;
        Ok(fleet)
    }
}

const BOOTSTRAP: &str = r"
apiVersion: bootstrap.cluster.x-k8s.io/v1alpha1
kind: StandInBootstrapTemplate
metadata: {name: worker, namespace: $NS}
spec: {template: {spec: {}}}
";

/// The spec of the first template, with labels of this tier.
fn tier(tier: &str) -> Value {
    json!({"vmPool": "default", "size": "small", "tags": {"team": "a"}, "labels": {"tier": tier}})
}

/// Points the MachineDeployment at a new template.
async fn retemplate(fleet: &Fleet<'_>, template: &str, provider_spec: Value) -> Result<()> {
    fleet.template(template, provider_spec).await?;
    let reference = json!({"spec": {"template": {"spec": {"infrastructureRef": {"name": template}}}}});
    let deployments = deployments(fleet);
    let patch = Patch::Merge(reference);
    let patched = deployments
        .patch(&fleet.name, &PatchParams::default(), &patch)
        .await;
    patched.map(drop).context("pointing at the new template")
}

fn deployments(fleet: &Fleet<'_>) -> Api<DynamicObject> {
    objects(fleet.world(), "cluster.x-k8s.io", "v1beta2", "MachineDeployment")
}

/// Waits until all VMs have a tier, and the update is complete.
async fn updated(in_place: &InPlace, fleet: &Fleet<'_>, tier: &str) -> Result<()> {
    settled(&in_place.world, &in_place.cloud, fleet, tier).await
}

async fn settled(world: &World, cloud: &Cloud, fleet: &Fleet<'_>, tier: &str) -> Result<()> {
    eventually(DEADLINE, &format!("VMs of tier {tier}"), async || {
        is_settled(world, cloud, fleet, tier).await
    })
    .await
}

async fn is_settled(world: &World, cloud: &Cloud, fleet: &Fleet<'_>, tier: &str) -> Result<()> {
    ensure!(
        is_tier(cloud, tier)?,
        "{:?}, {}",
        cloud.vms()?,
        updating(world).await?
    );
    for machine in fleet.infra_machines().await? {
        let annotations = machine.annotations();
        let is_done = says(&machine, VIRTUAL_MACHINE_UP_TO_DATE, "True", "UpToDate")
            && !annotations.contains_key(annotations::UPDATE_IN_PROGRESS);
        ensure!(is_done, "{machine:?}, {}", updating(world).await?);
    }
    let machines = objects(world, "cluster.x-k8s.io", "v1beta2", "Machine");
    for machine in machines.list(&ListParams::default()).await?.items {
        // Core loses an update that starts before the previous one has ended.
        ensure!(has_no_update(&machine), "{:#}", machine.data);
    }
    Ok(())
}

/// Annotation of a Machine: the hooks that core has to call for it.
const PENDING_HOOKS: &str = "runtime.cluster.x-k8s.io/pending-hooks";

fn has_no_update(machine: &DynamicObject) -> bool {
    let annotations = machine.annotations();
    !annotations.contains_key(annotations::UPDATE_IN_PROGRESS)
        && !annotations.contains_key(PENDING_HOOKS)
        && condition(machine, "Updating")["status"] == "False"
}

fn is_tier(cloud: &Cloud, tier: &str) -> Result<bool> {
    let vms = cloud.vms()?;
    let mut tiers = vms.iter().map(|vm| vm.labels.get("tier"));
    Ok(tiers.all(|seen| seen.is_some_and(|seen| seen == tier)))
}

/// The Updating conditions of all Machines.
async fn updating(world: &World) -> Result<String> {
    let machines = objects(world, "cluster.x-k8s.io", "v1beta2", "Machine");
    let all = machines.list(&ListParams::default()).await?.items;
    Ok(all
        .iter()
        .map(|machine| condition(machine, "Updating").to_string())
        .collect())
}

fn condition<'a>(object: &'a DynamicObject, type_: &str) -> &'a Value {
    let all = object.data["status"]["conditions"].as_array();
    let found = all.and_then(|all| all.iter().find(|condition| condition["type"] == type_));
    found.unwrap_or(&Value::Null)
}

fn ids(vms: &[Vm]) -> Vec<String> {
    let mut ids: Vec<_> = vms.iter().map(Vm::provider_id).collect();
    ids.sort();
    ids
}

/// The output of `capcmi plan`.
fn plan(world: &World, in_place: &InPlace, template: &str) -> Result<String> {
    run(&mut plan_command(world, in_place, template)?)
}

fn plan_command(world: &World, in_place: &InPlace, template: &str) -> Result<Command> {
    let drivers = world.folder.join("plan-drivers.yaml");
    std::fs::write(&drivers, &in_place.backed.drivers).context("writing the drivers file")?;
    let mut command = Command::new(testbed::program("capcmi")?);
    command
        .args(["plan", "--machinedeployment=md"])
        .arg(format!("--template={template}"))
        .arg(format!("--namespace={}", world.namespace))
        .arg(format!(
            "--kubeconfig={}",
            world.management.admin_kubeconfig().display()
        ))
        .arg(format!("--drivers-config={}", drivers.display()));
    Ok(command)
}

/// UPD-01, UPD-02: changes that the driver supports keep the VM, and all others replace it.
#[tokio::test]
async fn a_deployment_is_updated_in_place_or_rolled() -> Result<()> {
    let in_place = InPlace::with("in-place", Backing::Plugin, json!({})).await?;
    let (world, cloud) = (&in_place.world, &in_place.cloud);
    let _serving = in_place.serve().await?;
    let fleet = in_place.fleet(2).await?;
    let before = cloud.holds(2).await?;

    fleet.template("md-2", tier("gold")).await?;
    let planned = plan(world, &in_place, "md-2")?;
    ensure!(
        planned.contains("/providerSpec/labels/tier   md-1   bronze   gold   in place"),
        "{planned}"
    );
    ensure!(planned.matches("md-1       in place").count() == 2, "{planned}");
    retemplate(&fleet, "md-2", tier("gold")).await?;
    updated(&in_place, &fleet, "gold").await?;
    let machines = fleet.running(2).await?;
    ensure!(ids(&cloud.vms()?) == ids(&before), "a VM was replaced");
    for machine in &machines {
        let calls = cloud.count(Operation::UpdateMachine, &machine.name_any())?;
        ensure!(calls == 1, "{calls} updates of {}", machine.name_any());
    }

    // The provider serves a certificate of a new authority without a restart.
    in_place.extension.renew()?;
    in_place.extension.register(world).await?;
    let mut larger = tier("gold");
    larger["size"] = json!("medium");
    fleet.template("md-3", larger.clone()).await?;
    let planned = plan(world, &in_place, "md-3")?;
    ensure!(
        planned
            .matches("replaced   /providerSpec/size cannot change on a running VM")
            .count()
            == 2,
        "{planned}"
    );
    retemplate(&fleet, "md-3", larger).await?;
    eventually(DEADLINE, "VMs that are larger", async || {
        let vms = cloud.vms()?;
        ensure!(vms.iter().all(|vm| vm.size == "medium"), "{vms:?}");
        Ok(())
    })
    .await?;
    fleet.running(2).await?;
    let after = ids(&cloud.holds(2).await?);
    ensure!(after.iter().all(|id| !ids(&before).contains(id)), "a VM was kept");
    Extension::unregister(world).await
}
