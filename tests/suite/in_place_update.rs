//! MachineDeployments that are pointed at a new template, and whose VMs are updated in place: with Cluster
//! API's own controllers, which call the provider's Runtime Extension.

mod client_certificates;
mod control_plane;
mod half_done;
mod in_flight;
mod other_extension;
mod plan;
mod scope;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use capcmi::api::annotations;
use capcmi::api::conditions::{self, VIRTUAL_MACHINE_UP_TO_DATE};
use capcmi::api::v1alpha1::InfraMachine;
use cmi_driver::Operation;
use cmi_simulated::Vm;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use management_cluster::eventually;
use management_cluster::hollow_kubelet::HollowKubelet;
use management_cluster::proxy::{Fault, Gate, ProxiedRequest, Proxy};
use management_cluster::stand_in::StandInController;
use serde_json::{Value, json};

use crate::support::backing::{Backed, with_every_backing};
use crate::support::by_hand::{self, says};
use crate::support::fleet::objects;
use crate::support::provider::{Replica, service_account};
use crate::support::world::run;
use crate::support::{Backing, ByHand, Cloud, DEADLINE, Extension, Fleet, Provider, World, bootstrap};

with_every_backing!(a_deployment_is_updated_in_place_where_the_driver_can_and_rolled_where_not);

/// A namespace with Machines that run and a provider that serves the extension.
struct InPlace {
    world: World,
    cloud: Cloud,
    backed: Backed,
    extension: Extension,
    provider: Provider,
}

impl InPlace {
    async fn new(case: &str) -> Result<Self> {
        Self::with(case, Backing::InProcess, json!({})).await
    }

    /// With this driver, and further keys of its entry.
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

    /// A provider whose extension is registered, and the kubelets of the guests.
    async fn serve(&self) -> Result<(Replica, HollowKubelet)> {
        let replica = self.provider.start(&self.world).await?;
        self.extension.register(&self.world).await?;
        Ok((replica, self.world.kubelets(&self.cloud)))
    }

    /// So many Machines that run, of which one at a time may be away. Cluster API asks for no update of one
    /// that has no bootstrap configuration.
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

/// Annotation of a Machine: the hooks that core has to call for it.
const PENDING_HOOKS: &str = "runtime.cluster.x-k8s.io/pending-hooks";

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

/// Waits until all VMs are of a tier, and nothing of the update is left to do.
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
        // Core loses an update that begins while it ends the one before.
        ensure!(has_no_update(&machine), "{:#}", machine.data);
    }
    Ok(())
}

/// How many updates of a fleet core may lose, one after the other.
const MAX_TEMPLATES: usize = 5;

/// Waits as [`updated`] does, where the update begins as core ends the one before: then core may lose it, and
/// the operator points the MachineDeployment at a new template.
async fn updated_by_repetition(in_place: &InPlace, fleet: &Fleet<'_>, tier_name: &str) -> Result<()> {
    let (world, cloud) = (&in_place.world, &in_place.cloud);
    let mut template = tier_name.to_owned();
    for again in 0..MAX_TEMPLATES {
        let is_lost = eventually(DEADLINE, "an update that is done, or lost", async || {
            up_to_date_is_true(in_place, fleet).await?;
            if is_lost(in_place, &template, tier_name).await? {
                return Ok(true);
            }
            is_settled(world, cloud, fleet, tier_name).await?;
            Ok(false)
        })
        .await?;
        if !is_lost {
            return Ok(());
        }
        template = format!("{tier_name}-{again}");
        retemplate(fleet, &template, tier(tier_name)).await?;
    }
    bail!("core lost {MAX_TEMPLATES} updates")
}

/// Waits as [`says_of_its_update`] does, where core may lose the update as in [`updated_by_repetition`].
async fn says_by_repetition(
    in_place: &InPlace,
    fleet: &Fleet<'_>,
    tier_name: &str,
    text: &str,
) -> Result<()> {
    let mut template = tier_name.to_owned();
    for again in 0..MAX_TEMPLATES {
        let what = format!("a Machine that says `{text}`, or whose update is lost");
        let is_said = eventually(DEADLINE, &what, async || {
            let all = updating(&in_place.world).await?;
            if all.contains(text) {
                return Ok(true);
            }
            ensure!(is_lost(in_place, &template, tier_name).await?, "{all}");
            Ok(false)
        })
        .await?;
        if is_said {
            return Ok(());
        }
        template = format!("{tier_name}-again-{again}");
        retemplate(fleet, &template, tier(tier_name)).await?;
    }
    bail!("core lost {MAX_TEMPLATES} updates")
}

/// Sees that of no VM is said that it has the spec which it has not: that would look like an update that core
/// has lost.
async fn up_to_date_is_true(in_place: &InPlace, fleet: &Fleet<'_>) -> Result<()> {
    let machines = fleet.infra_machines().await?;
    // Read later: what was said has to be true by now.
    let vms = in_place.cloud.vms()?;
    for machine in &machines {
        let said = by_hand::condition(machine, VIRTUAL_MACHINE_UP_TO_DATE);
        let is_said = said.is_some_and(|said| {
            said.status == "True" && said.observed_generation == machine.metadata.generation
        });
        let vm = vms.iter().find(|vm| vm.name == machine.name_any());
        let labels = vm.map(|vm| json!(vm.labels));
        ensure!(
            !is_said || labels.as_ref() == machine.spec.provider_spec.get("labels"),
            "{said:?} of a VM with {labels:?}"
        );
    }
    Ok(())
}

/// Whether core has moved the Machine to the MachineSet of a template, and forgotten to update it.
async fn is_lost(in_place: &InPlace, template: &str, tier: &str) -> Result<bool> {
    let of = |kind| objects(&in_place.world, "cluster.x-k8s.io", "v1beta2", kind);
    let sets = of("MachineSet").list(&ListParams::default()).await?.items;
    let machines = of("Machine").list(&ListParams::default()).await?.items;
    let is_wanted = |machine: &DynamicObject| {
        let mut owned = sets.iter().filter(|set| {
            let owners = machine.owner_references();
            owners
                .iter()
                .any(|owner| Some(&owner.uid) == set.metadata.uid.as_ref())
        });
        let reference = "/spec/template/spec/infrastructureRef/name";
        owned.any(|set| set.data.pointer(reference) == Some(&json!(template)))
    };
    let is_over = machines
        .iter()
        .all(|machine| is_wanted(machine) && has_no_update(machine));
    Ok(is_over && !machines.is_empty() && !is_tier(&in_place.cloud, tier)?)
}

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

/// What Cluster API says of the updates of all Machines.
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

/// Waits until a Machine says this of its update.
async fn says_of_its_update(world: &World, text: &str) -> Result<()> {
    eventually(DEADLINE, &format!("a Machine that says `{text}`"), async || {
        let all = updating(world).await?;
        ensure!(all.contains(text), "{all}");
        Ok(())
    })
    .await
}

/// There is the one machine that there was, with its VM as it was.
async fn is_untouched(in_place: &InPlace, before: &[Vm]) -> Result<()> {
    let machines = objects(&in_place.world, "cluster.x-k8s.io", "v1beta2", "Machine");
    let all = machines.list(&ListParams::default()).await?.items;
    ensure!(
        all.len() == 1 && all[0].metadata.deletion_timestamp.is_none(),
        "{all:?}"
    );
    ensure!(in_place.cloud.vms()? == before, "the VM was touched");
    Ok(())
}

fn ids(vms: &[Vm]) -> Vec<String> {
    let mut ids: Vec<_> = vms.iter().map(Vm::provider_id).collect();
    ids.sort();
    ids
}

/// What `capcmi plan` prints.
fn plan(world: &World, in_place: &InPlace, template: &str) -> Result<String> {
    run(&mut plan_command(world, in_place, template)?)
}

fn plan_command(world: &World, in_place: &InPlace, template: &str) -> Result<Command> {
    let drivers = world.folder.join("plan-drivers.yaml");
    std::fs::write(&drivers, &in_place.backed.drivers).context("writing the drivers file")?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_capcmi"));
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

/// UPD-01, UPD-02: what the driver can change keeps the VM, and all else replaces it.
async fn a_deployment_is_updated_in_place_where_the_driver_can_and_rolled_where_not(
    backing: Backing,
) -> Result<()> {
    let in_place = InPlace::with("in-place", backing, json!({})).await?;
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

    // Another authority, and a certificate of it: the provider serves that without a restart.
    in_place.extension.renew()?;
    in_place.extension.register(world).await?;
    let mut larger = tier("gold");
    larger["size"] = json!("medium");
    fleet.template("md-3", larger.clone()).await?;
    let planned = plan(world, &in_place, "md-3")?;
    ensure!(
        planned
            .matches("replaced   /providerSpec/size can't change on a living VM")
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

/// A driver that is away is no reason to replace machines, and no proof that they can be kept.
#[tokio::test]
async fn while_the_driver_is_away_machines_are_neither_updated_nor_replaced() -> Result<()> {
    let in_place = InPlace::new("in-place-away").await?;
    let (world, cloud) = (&in_place.world, &in_place.cloud);
    let (replica, _kubelets) = in_place.serve().await?;
    let fleet = in_place.fleet(1).await?;
    let before = cloud.holds(1).await?;
    cloud.fail(json!([{"operation": "Probe", "code": "Unavailable"}]))?;
    eventually(DEADLINE, "a driver that is away", async || {
        let metrics = replica.metrics().await?;
        let away = metrics
            .lines()
            .any(|line| line.starts_with("capcmi_driver_reachable") && line.ends_with(" 0"));
        ensure!(away, "it is reachable");
        Ok(())
    })
    .await?;

    retemplate(&fleet, "md-2", tier("gold")).await?;
    eventually(DEADLINE, "a question that was not answered", async || {
        let log = replica.log()?;
        ensure!(
            log.contains("can't say whether it can be updated in place"),
            "not asked"
        );
        Ok(())
    })
    .await?;
    is_untouched(&in_place, &before).await?;

    cloud.fail(json!([]))?;
    updated(&in_place, &fleet, "gold").await?;
    ensure!(ids(&cloud.holds(1).await?) == ids(&before), "the VM was replaced");
    Extension::unregister(world).await
}

/// With `maxSurge: 0` an old machine would go before the new one fails.
#[tokio::test]
async fn a_template_that_no_machine_can_be_made_from_costs_no_machine() -> Result<()> {
    let in_place = InPlace::new("in-place-refused").await?;
    let (world, cloud) = (&in_place.world, &in_place.cloud);
    let (replica, _kubelets) = in_place.serve().await?;
    let fleet = in_place.fleet(1).await?;
    let before = cloud.holds(1).await?;

    retemplate(&fleet, "refused", json!({"vmPool": 7, "size": "small"})).await?;
    eventually(DEADLINE, "a question that is refused", async || {
        let log = replica.log()?;
        let refused = "no machine can be made from the new spec: providerSpec/vmPool";
        ensure!(log.contains(refused), "not refused");
        Ok(())
    })
    .await?;
    is_untouched(&in_place, &before).await?;

    retemplate(&fleet, "md-2", tier("gold")).await?;
    updated(&in_place, &fleet, "gold").await?;
    ensure!(ids(&cloud.holds(1).await?) == ids(&before), "the VM was replaced");
    Extension::unregister(world).await
}

/// UPD-03: to S2 and back to S1 while the driver fails; the Machine says what holds its update up.
#[tokio::test]
async fn an_update_that_fails_is_shown_on_the_machine_and_taken_back_at_the_driver() -> Result<()> {
    let in_place = InPlace::new("in-place-back").await?;
    let (world, cloud) = (&in_place.world, &in_place.cloud);
    let _serving = in_place.serve().await?;
    let fleet = in_place.fleet(1).await?;
    retemplate(&fleet, "silver", tier("silver")).await?;
    updated(&in_place, &fleet, "silver").await?;
    let before = cloud.holds(1).await?;

    // The VM is changed, and the answer is lost.
    cloud.fail(json!([{"operation": "UpdateMachine", "loseResponse": "Aborted"}]))?;
    retemplate(&fleet, "gold", tier("gold")).await?;
    says_by_repetition(&in_place, &fleet, "gold", "Aborted: UpdateMachine").await?;
    retemplate(&fleet, "silver", tier("silver")).await?;
    cloud.fail(json!([]))?;
    updated_by_repetition(&in_place, &fleet, "silver").await?;
    ensure!(ids(&cloud.holds(1).await?) == ids(&before), "the VM was replaced");

    // And deleted in the middle of another one.
    cloud.fail(json!([{"operation": "UpdateMachine", "code": "Aborted"}]))?;
    retemplate(&fleet, "gold", tier("gold")).await?;
    says_by_repetition(&in_place, &fleet, "gold", "Aborted: UpdateMachine").await?;
    deployments(&fleet).delete("md", &DeleteParams::default()).await?;
    fleet.gone().await?;
    cloud.holds(0).await?;
    Extension::unregister(world).await
}

/// CanUpdateMachine, by which KubeadmControlPlane asks: what the driver can change is patched, and all else
/// and every other provider's machine is not.
#[tokio::test]
async fn of_one_machine_the_extension_patches_what_the_driver_can_change() -> Result<()> {
    let in_place = InPlace::new("in-place-cp").await?;
    let world = &in_place.world;
    let _serving = in_place.serve().await?;
    world.cluster("one").await?;
    let machine = ByHand::new(world, "one", "in-place-cp").create().await?;
    machine.provisioned().await?;

    let infra = serde_json::to_value(machine.get().await?)?;
    let asked = |change: &Value| {
        let mut desired = infra.clone();
        json_patch::merge(&mut desired, change);
        json!({
            "current": {"machine": {}, "infrastructureMachine": infra},
            "desired": {"machine": {}, "infrastructureMachine": desired},
        })
    };
    let hook = "canupdatemachine/can-update-machine";
    let labels_change = json!({"spec": {"providerSpec": {"labels": {"tier": "gold"}}}});
    let both = json!({"spec": {"providerSpec": {"labels": {"tier": "gold"}, "size": "large"}}});
    for change in [&labels_change, &both] {
        let answer = in_place.extension.call(hook, &asked(change)).await?;
        ensure!(answer["status"] == "Success", "{answer}");
        let patch = BASE64_STANDARD.decode(
            answer["infrastructureMachinePatch"]["patch"]
                .as_str()
                .unwrap_or_default(),
        )?;
        let patch: json_patch::Patch = serde_json::from_slice(&patch)?;
        let mut patched = infra.clone();
        json_patch::patch(&mut patched, &patch)?;
        let mut expected = infra.clone();
        json_patch::merge(&mut expected, &labels_change);
        ensure!(patched["spec"] == expected["spec"], "{patched:#}");
    }
    // Another provider's machine is not patched, and so replaced.
    let mut other = asked(&labels_change);
    for side in ["current", "desired"] {
        other[side]["infrastructureMachine"]["apiVersion"] = json!("infrastructure.cluster.x-k8s.io/v1beta2");
    }
    let answer = in_place.extension.call(hook, &other).await?;
    ensure!(
        answer["status"] == "Success" && answer.get("infrastructureMachinePatch").is_none(),
        "{answer}"
    );
    Extension::unregister(world).await
}

/// Another extension may own the update: its machine's VM is left alone until it has ended. What it has not
/// done of the spec by then is applied, or said.
#[tokio::test]
async fn an_update_that_another_extension_carries_out_is_left_to_it() -> Result<()> {
    let world = World::new("in-place-other").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    machine.provisioned().await?;
    let in_progress =
        |value: Value| json!({"metadata": {"annotations": {annotations::UPDATE_IN_PROGRESS: value}}});
    let says = |machine: &InfraMachine, status: &str, reason: &str| {
        says(machine, VIRTUAL_MACHINE_UP_TO_DATE, status, reason)
            && by_hand::says(machine, conditions::READY, "True", "Ready")
    };
    for (change, calls, status, reason) in [
        (json!({"labels": {"tier": "gold"}}), 1, "True", "UpToDate"),
        (json!({"size": "medium"}), 1, "False", "NotHotUpdatable"),
    ] {
        let before = cloud.count(Operation::UpdateMachine, "m")?;
        let mut begun = in_progress(json!(""));
        begun["spec"] = json!({"providerSpec": change});
        machine.patch(begun).await?;
        let waits = |machine: &InfraMachine| says(machine, "False", "WaitingForUpdateRequest");
        machine
            .until("a machine whose update is another's", waits)
            .await?;
        ensure!(
            cloud.count(Operation::UpdateMachine, "m")? == before,
            "the VM was touched"
        );

        machine.patch(in_progress(Value::Null)).await?;
        let settled = |machine: &InfraMachine| says(machine, status, reason);
        machine
            .until("a machine that is the provider's again", settled)
            .await?;
        let seen = cloud.count(Operation::UpdateMachine, "m")?;
        ensure!(seen == calls, "{seen} updates");
    }
    Ok(())
}

/// That a generation was looked at is no word about the VM: after a restart, while nothing is known of the
/// driver, the update goes on to be under way.
#[tokio::test]
async fn an_update_is_not_done_because_a_provider_that_restarts_knows_nothing_of_the_driver() -> Result<()> {
    let in_place = InPlace::new("in-place-restart").await?;
    let (world, cloud) = (&in_place.world, &in_place.cloud);
    let (replica, _kubelets) = in_place.serve().await?;
    let fleet = in_place.fleet(1).await?;
    let before = cloud.holds(1).await?;
    cloud.fail(json!([{"operation": "UpdateMachine", "hang": "before"}]))?;
    retemplate(&fleet, "md-2", tier("gold")).await?;
    called(cloud, &before[0].name).await?;
    drop(replica);
    cloud.fail(json!([
        {"operation": "GetPluginCapabilities", "code": "Unavailable"},
        {"operation": "Probe", "code": "Unavailable"},
    ]))?;
    let again = in_place.provider.clone().named("again").start(world).await?;
    eventually(DEADLINE, "a call of the hook after a reconcile", async || {
        let log = again.log()?;
        let (_, after) = log
            .split_once("operation: GetPluginCapabilities")
            .context("no reconcile yet")?;
        let reads = after.lines().filter(|line| {
            line.contains("http.method=GET")
                && line.contains("/inframachines/")
                && line.contains("requesting")
        });
        ensure!(reads.count() >= 2, "not asked again");
        Ok(())
    })
    .await?;
    for machine in fleet.infra_machines().await? {
        let annotations = machine.annotations();
        ensure!(
            annotations.contains_key(annotations::UPDATE_IN_PROGRESS),
            "{annotations:?}"
        );
    }
    cloud.fail(json!([]))?;
    updated(&in_place, &fleet, "gold").await?;
    ensure!(ids(&cloud.holds(1).await?) == ids(&before), "the VM was replaced");
    Extension::unregister(world).await
}

/// Waits until a VM is being updated.
async fn called(cloud: &Cloud, name: &str) -> Result<()> {
    eventually(DEADLINE, "the call", async || {
        ensure!(cloud.count(Operation::UpdateMachine, name)? == 1, "none yet");
        Ok(())
    })
    .await
}

/// Where the provider is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Point {
    /// Around this write to the InfraMachine that is not one of its status.
    Write(Write, Side),
    /// Around the driver's call.
    Call(Side),
}

/// The writes of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    Request,
    BlockMove,
    Applied,
    /// That it is done, of a new template in which nothing differs: the VM is not touched.
    Report,
}

impl Write {
    /// How many come before it.
    fn index(self) -> usize {
        match self {
            Self::Request => 0,
            Self::BlockMove | Self::Report => 1,
            Self::Applied => 2,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Before,
    After,
}

/// Runs at the same time.
const AT_ONCE: usize = 3;

#[tokio::test]
async fn killed_at_any_point_of_an_update_in_place_the_provider_finishes_it() -> Result<()> {
    let sides = [Side::Before, Side::After];
    let writes = [Write::Request, Write::BlockMove, Write::Applied, Write::Report];
    let points = writes
        .into_iter()
        .flat_map(|write| sides.map(|side| Point::Write(write, side)))
        .chain(sides.map(Point::Call));
    stream::iter(points)
        .map(async |point| killed_at(point).await.with_context(|| format!("{point:?}")))
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

async fn killed_at(point: Point) -> Result<()> {
    let mut in_place = InPlace::new("in-place-killed").await?;
    let gate = Gate::new();
    let fault = match point {
        Point::Write(write, Side::Before) => Some((write.index(), Fault::HoldBefore(gate.clone()))),
        Point::Write(write, Side::After) => Some((write.index(), Fault::HoldAfter(gate.clone()))),
        Point::Call(_) => None,
    };
    let wanted = match point {
        Point::Write(Write::Report, _) => "bronze",
        Point::Write(..) | Point::Call(_) => "gold",
    };
    let armed = Arc::new(AtomicBool::new(false));
    let hook = {
        let (armed, seen) = (Arc::clone(&armed), AtomicUsize::new(0));
        move |request: &ProxiedRequest| {
            let is_one = armed.load(Ordering::SeqCst)
                && request.write.is_some()
                && request.path.contains("/inframachines/")
                && !request.path.ends_with("/status");
            match &fault {
                Some((write, fault)) if is_one && seen.fetch_add(1, Ordering::SeqCst) == *write => {
                    fault.clone()
                }
                _ => Fault::None,
            }
        }
    };
    let proxy = Proxy::start(&in_place.world.management, hook).await?;
    let kubeconfig = proxy.kubeconfig(&service_account(&in_place.world).await?)?;
    in_place.provider = in_place.provider.clone().through(kubeconfig);
    let (world, cloud) = (&in_place.world, &in_place.cloud);
    let (replica, _kubelets) = in_place.serve().await?;
    let fleet = in_place.fleet(1).await?;
    let before = cloud.holds(1).await?;
    let hang = match point {
        Point::Call(Side::Before) => Some("before"),
        Point::Call(Side::After) => Some("after"),
        Point::Write(..) => None,
    };
    if let Some(hang) = hang {
        cloud.fail(json!([{"operation": "UpdateMachine", "hang": hang}]))?;
    }
    armed.store(true, Ordering::SeqCst);
    retemplate(&fleet, "md-2", tier(wanted)).await?;
    if hang.is_some() {
        called(cloud, &before[0].name).await?;
    } else {
        let reached = tokio::time::timeout(DEADLINE, gate.reached());
        reached.await.context("the write was never made")?;
    }
    drop(replica);
    cloud.fail(json!([]))?;
    let _again = in_place.provider.clone().named("again").start(world).await?;
    updated(&in_place, &fleet, wanted).await?;
    fleet.running(1).await?;
    ensure!(ids(&cloud.holds(1).await?) == ids(&before), "the VM was replaced");
    Extension::unregister(world).await
}

/// `clusterctl move` waits for a call that changes the VM; what is left of the update is done at the target.
#[tokio::test]
async fn an_update_that_failed_goes_on_where_clusterctl_has_moved_the_machine() -> Result<()> {
    let lost = json!([{"operation": "UpdateMachine", "loseResponse": "Internal"}]);
    moved_in_the_middle("in-place-move", lost, "Internal", tier).await
}

/// Moves a machine whose update ends with a failure of this code, and waits for its end at the target.
async fn moved_in_the_middle(
    case: &str,
    failures: Value,
    code: &str,
    spec: impl FnOnce(&str) -> Value,
) -> Result<()> {
    let source = InPlace::new(case).await?;
    let target = source.world.elsewhere().await?;
    target.apply(bootstrap::KINDS).await?;
    let cloud = &source.cloud;
    let _at_source = source.provider.start(&source.world).await?;
    let extension = Extension::new(&target)?;
    let at_target = extension.of(Provider::new(cloud.drivers(json!({}))));
    let _at_target = at_target.named("target").start(&target).await?;
    source.extension.register(&source.world).await?;
    extension.register(&target).await?;
    let _control_planes = StandInController::start(&target.management).await?;
    let _kubelets = world.kubelets(&cloud);
    let fleet = source.fleet(1).await?;
    let before = cloud.holds(1).await?;
    cloud.fail(failures)?;
    let gold = spec("gold");
    retemplate(&fleet, "md-2", gold.clone()).await?;
    says_of_its_update(&source.world, &format!("{code}: UpdateMachine")).await?;
    let left = cloud.vms()?;

    source.world.move_to(&target)?;
    ensure!(cloud.vms()? == left, "updated before the driver was well again");
    cloud.fail(json!([]))?;
    let moved = Fleet::of(&target, "md");
    settled(&target, cloud, &moved, "gold").await?;
    moved.running(1).await?;
    let after = cloud.holds(1).await?;
    ensure!(ids(&after) == ids(&before), "the VM was replaced");
    ensure!(json!(after[0].labels) == gold["labels"], "{:?}", after[0].labels);
    Extension::unregister(&source.world).await
}
