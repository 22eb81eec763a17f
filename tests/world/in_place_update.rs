//! Updates in place: the hooks of the Runtime Extension, and the provider that updates VMs for them.
//!
//! The cases call the hooks like Cluster API does. `tests/suite` shows that the real Cluster API calls them,
//! and acts on the answers.

mod in_flight;
mod kills;
mod scope;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use capcmi::api::annotations;
use capcmi::api::conditions::{READY, VIRTUAL_MACHINE_UP_TO_DATE};
use capcmi::api::v1alpha1::InfraMachine;
use cmi_driver::Operation;
use cmi_simulated::Vm;
use kube::ResourceExt as _;
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::support::by_hand::{condition, says};
use crate::support::hooks::{
    CAN_UPDATE_MACHINE, CAN_UPDATE_MACHINE_SET, Hooks, begin_update, has_ended, in_progress,
};
use crate::support::provider::Replica;
use crate::support::{ByHand, Cloud, DEADLINE, Provider, World};

/// How long Cluster API waits for an update.
const LOOKS: Duration = Duration::from_secs(30);

/// A provider with the extension, and a machine whose VM has the tier bronze.
struct InPlace {
    world: World,
    cloud: Cloud,
    provider: Provider,
    replica: Replica,
    hooks: Hooks,
    machine: ByHand,
    /// The VM before all updates.
    vm: Vm,
}

impl InPlace {
    async fn new(case: &str) -> Result<Self> {
        Self::with(case, json!({}), |provider| provider).await
    }

    /// A case with further keys of the driver's entry, and a changed provider.
    async fn with(case: &str, entry: Value, change: impl FnOnce(Provider) -> Provider) -> Result<Self> {
        let world = World::new(case).await?;
        let cloud = Cloud::new(&world);
        let provider = change(Provider::new(cloud.drivers_with(entry, json!({}))));
        let mut replica = provider.start(&world).await?;
        world.cluster("one").await?;
        let machine = ByHand::new(&world, "one", "m").infra("/spec/providerSpec", tier("bronze"));
        let machine = machine.create().await?;
        machine.provisioned().await?;
        Ok(Self {
            hooks: replica.hooks().await?,
            vm: cloud.holds(1).await?.remove(0),
            world,
            cloud,
            provider,
            replica,
            machine,
        })
    }

    /// Kills the provider, and starts it again.
    async fn restart(&mut self) -> Result<()> {
        self.replica.kill();
        self.replica = self.provider.start(&self.world).await?;
        self.hooks = self.replica.hooks().await?;
        Ok(())
    }

    /// Calls UpdateMachine until its answer is as wanted. Also checks that the status never claims a spec
    /// that the VM does not have.
    async fn asked_until(&self, what: &str, is_wanted: impl Fn(&Value) -> bool) -> Result<()> {
        eventually(DEADLINE, what, async || {
            let answer = self.hooks.update(&self.machine).await?;
            self.claims_are_true().await?;
            ensure!(is_wanted(&answer), "{answer}");
            Ok(())
        })
        .await
    }

    /// Waits until UpdateMachine answers with this text that the update is in progress.
    async fn answers(&self, text: &str) -> Result<()> {
        let has_text = |answer: &Value| {
            let message = answer["message"].as_str().unwrap_or_default();
            answer["status"] == "Success" && message.contains(text) && !has_ended(answer)
        };
        self.asked_until(&format!("an answer with `{text}`"), has_text)
            .await
    }

    /// Waits until UpdateMachine reports the end of the update, and ends it like core does.
    async fn finish(&self) -> Result<()> {
        self.asked_until("an update that has ended", has_ended).await?;
        self.machine.patch(in_progress(Value::Null)).await.map(drop)
    }

    /// Checks that the original VM has these labels, and the update is complete.
    async fn is_updated_to(&self, labels: &Value) -> Result<()> {
        let is_done = |machine: &InfraMachine| {
            says(machine, VIRTUAL_MACHINE_UP_TO_DATE, "True", "UpToDate")
                && says(machine, READY, "True", "Ready")
                && !machine
                    .annotations()
                    .contains_key(annotations::UPDATE_IN_PROGRESS)
        };
        self.machine.until("an updated machine", is_done).await?;
        self.has_labels(labels)
    }

    fn has_labels(&self, labels: &Value) -> Result<()> {
        let vms = self.cloud.vms()?;
        ensure!(
            vms.len() == 1 && vms[0].id == self.vm.id,
            "the VM was replaced: {vms:?}"
        );
        ensure!(json!(vms[0].labels) == *labels, "{:?}", vms[0].labels);
        Ok(())
    }

    fn is_untouched(&self) -> Result<()> {
        let vms = self.cloud.vms()?;
        ensure!(vms == [self.vm.clone()], "the VM was touched: {vms:?}");
        Ok(())
    }

    fn updates(&self) -> Result<usize> {
        self.cloud.count(Operation::UpdateMachine, "m")
    }

    /// Checks that the status claims no spec that the VM does not have.
    async fn claims_are_true(&self) -> Result<()> {
        let machine = self.machine.get().await?;
        let shown = condition(&machine, VIRTUAL_MACHINE_UP_TO_DATE);
        let is_claimed = shown.is_some_and(|shown| {
            shown.status == "True" && shown.observed_generation == machine.metadata.generation
        });
        let vms = self.cloud.vms()?;
        let labels = vms.first().map(|vm| json!(vm.labels));
        ensure!(
            !is_claimed || labels.as_ref() == machine.spec.provider_spec.get("labels"),
            "{shown:?} of a VM with {labels:?}"
        );
        Ok(())
    }

    /// The answers to both hooks that ask whether a provider spec can be applied in place.
    async fn can_update(&self, provider_spec: &Value) -> Result<[Value; 2]> {
        let current = self.machine.get().await?.spec;
        let mut desired = current.clone();
        desired.provider_spec = serde_json::from_value(provider_spec.clone())?;
        let set = |spec: &Value| {
            json!({
                "machineSet":
                    {"spec": {"template": {"spec": {"bootstrap": {"configRef": {"name": "boot"}}}}}},
                "infrastructureMachineTemplate": {
                    "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachineTemplate",
                    "metadata": {"name": "t", "namespace": self.world.namespace},
                    "spec": {"template": {"spec": spec}},
                },
            })
        };
        let (current, desired) = (serde_json::to_value(current)?, serde_json::to_value(desired)?);
        let of_set = json!({"current": set(&current), "desired": set(&desired)});
        Ok([
            self.hooks.call(CAN_UPDATE_MACHINE_SET, &of_set).await?,
            self.hooks
                .call(CAN_UPDATE_MACHINE, &question(&self.machine, provider_spec).await?)
                .await?,
        ])
    }
}

/// The request for CanUpdateMachine with another provider spec.
async fn question(machine: &ByHand, provider_spec: &Value) -> Result<Value> {
    let current = serde_json::to_value(machine.get().await?)?;
    let mut desired = current.clone();
    desired["spec"]["providerSpec"] = provider_spec.clone();
    let of = |infra: &Value| json!({"machine": {}, "infrastructureMachine": infra});
    Ok(json!({"current": of(&current), "desired": of(&desired)}))
}

/// A provider spec with labels of this tier.
fn tier(tier: &str) -> Value {
    json!({"vmPool": "default", "size": "small", "tags": {"team": "a"}, "labels": {"tier": tier}})
}

/// Like [`tier`], with a second label. The driver changes it after the first one.
fn both(name: &str) -> Value {
    let mut spec = tier(name);
    spec["labels"]["zoning"] = json!(name);
    spec
}

/// Checks that a hook answered with this failure.
fn failed_because(answer: &Value, why: &str) -> Result<()> {
    let message = answer["message"].as_str().unwrap_or_default();
    ensure!(
        answer["status"] == "Failure" && message.contains(why),
        "{answer}, and not {why}"
    );
    Ok(())
}

/// The JSON patch in an answer; `None` if nothing is patched.
fn patch_of(answer: &Value) -> Result<Option<json_patch::Patch>> {
    ensure!(answer["status"] == "Success", "{answer}");
    let patches = ["infrastructureMachineTemplatePatch", "infrastructureMachinePatch"];
    let patch = patches.iter().find_map(|field| answer[*field]["patch"].as_str());
    let patch = patch.map(|patch| anyhow::Ok(serde_json::from_slice(&BASE64_STANDARD.decode(patch)?)?));
    patch.transpose()
}

/// While the driver is down, machines must neither be replaced nor count as updatable.
#[tokio::test(start_paused = true)]
async fn while_the_driver_is_away_no_question_is_answered() -> Result<()> {
    let in_place = InPlace::new("in-place-away").await?;
    let cloud = &in_place.cloud;
    cloud.fail(json!([{"operation": "Probe", "code": "Unavailable"}]))?;
    let gold = tier("gold");
    eventually(DEADLINE, "questions that are not answered", async || {
        for answer in in_place.can_update(&gold).await? {
            failed_because(&answer, "driver `simulated` is unreachable")?;
        }
        Ok(())
    })
    .await?;
    in_place.is_untouched()?;

    cloud.fail(json!([]))?;
    eventually(DEADLINE, "questions that are answered", async || {
        for answer in in_place.can_update(&gold).await? {
            ensure!(patch_of(&answer)?.is_some(), "{answer}");
        }
        Ok(())
    })
    .await?;
    begin_update(&in_place.machine, gold.clone()).await?;
    in_place.finish().await?;
    in_place.is_updated_to(&gold["labels"]).await?;
    ensure!(in_place.updates()? == 1, "{} updates", in_place.updates()?);
    Ok(())
}

/// With `maxSurge: 0`, an old machine would be deleted before the new one fails.
#[tokio::test(start_paused = true)]
async fn a_spec_that_no_machine_can_be_made_from_is_refused() -> Result<()> {
    let in_place = InPlace::new("in-place-refused").await?;
    for answer in in_place
        .can_update(&json!({"vmPool": 7, "size": "small"}))
        .await?
    {
        failed_because(&answer, "the driver rejects the new spec: providerSpec/vmPool")?;
    }
    in_place.is_untouched()
}

/// UPD-01, UPD-02: the answer patches only changes that the driver can make, and only this provider's
/// machines. Otherwise Cluster API replaces machines.
#[tokio::test(start_paused = true)]
async fn the_extension_patches_what_the_driver_can_change() -> Result<()> {
    let in_place = InPlace::new("in-place-patch").await?;
    let gold = tier("gold");
    let mut larger = gold.clone();
    larger["size"] = json!("large");
    for wanted in [&gold, &larger] {
        let current = json!({"spec": {"providerSpec": tier("bronze")}});
        let within = ["/spec/template/spec", "/spec"];
        for (answer, prefix) in in_place.can_update(wanted).await?.iter().zip(within) {
            let patch = patch_of(answer)?.with_context(|| format!("no patch: {answer}"))?;
            let mut patched = match prefix {
                "/spec" => current.clone(),
                _ => json!({"spec": {"template": current}}),
            };
            json_patch::patch(&mut patched, &patch)?;
            let spec = patched.pointer(&format!("{prefix}/providerSpec"));
            ensure!(spec == Some(&gold), "{patched:#}");
        }
    }
    let mut other = question(&in_place.machine, &gold).await?;
    for side in ["current", "desired"] {
        other[side]["infrastructureMachine"]["apiVersion"] = json!("infrastructure.cluster.x-k8s.io/v1beta2");
    }
    let answer = in_place.hooks.call(CAN_UPDATE_MACHINE, &other).await?;
    ensure!(patch_of(&answer)?.is_none(), "{answer}");
    Ok(())
}

/// UPD-03: to S2 and back to S1 while the driver fails; the answer names the obstacle.
#[tokio::test(start_paused = true)]
async fn a_failed_update_is_reported_and_taken_back_at_the_driver() -> Result<()> {
    let in_place = InPlace::new("in-place-back").await?;
    let (cloud, machine) = (&in_place.cloud, &in_place.machine);
    begin_update(machine, tier("silver")).await?;
    in_place.finish().await?;
    in_place.is_updated_to(&json!({"tier": "silver"})).await?;

    // The VM changes, but the answer is lost.
    cloud.fail(json!([{"operation": "UpdateMachine", "loseResponse": "Aborted"}]))?;
    begin_update(machine, tier("gold")).await?;
    in_place.answers("Aborted: UpdateMachine").await?;
    in_place.has_labels(&json!({"tier": "gold"}))?;
    begin_update(machine, tier("silver")).await?;
    cloud.fail(json!([]))?;
    in_place.finish().await?;
    in_place.is_updated_to(&json!({"tier": "silver"})).await?;

    // Then the machine is deleted during another update.
    cloud.fail(json!([{"operation": "UpdateMachine", "code": "Aborted"}]))?;
    begin_update(machine, tier("gold")).await?;
    in_place.answers("Aborted: UpdateMachine").await?;
    machine.delete().await?;
    machine.gone().await?;
    cloud.holds(0).await.map(drop)
}

/// UPD-03: when the driver fails, only one of two labels has changed. The last applied spec reverts it, and
/// the new spec completes the update.
#[tokio::test(start_paused = true)]
async fn a_half_updated_vm_reaches_the_old_spec_and_the_new_one() -> Result<()> {
    let in_place = InPlace::new("in-place-half").await?;
    let (cloud, machine) = (&in_place.cloud, &in_place.machine);
    begin_update(machine, both("silver")).await?;
    in_place.finish().await?;
    in_place.is_updated_to(&both("silver")["labels"]).await?;

    in_place.half_updates("gold").await?;
    begin_update(machine, both("silver")).await?;
    cloud.fail(json!([]))?;
    in_place.finish().await?;
    in_place.is_updated_to(&both("silver")["labels"]).await?;

    in_place.half_updates("golden").await?;
    cloud.fail(json!([]))?;
    in_place.finish().await?;
    in_place.is_updated_to(&both("golden")["labels"]).await?;
    let deletes = cloud.count(Operation::DeleteMachine, "m")?;
    ensure!(deletes == 0, "{deletes} deletions");
    Ok(())
}

impl InPlace {
    /// Updates the silver VM to another tier. The driver changes one label, and then fails.
    async fn half_updates(&self, name: &str) -> Result<()> {
        self.cloud.fail(half())?;
        begin_update(&self.machine, both(name)).await?;
        self.answers("Aborted: UpdateMachine").await?;
        self.has_labels(&json!({"tier": name, "zoning": "silver"}))
    }
}

/// The faults of a driver that performs half of an update, and then fails.
fn half() -> Value {
    json!([
        {"operation": "UpdateMachine", "half": "Aborted", "count": 1},
        {"operation": "UpdateMachine", "code": "Aborted"},
    ])
}

/// Cluster API 1.14 calls a single extension, which may be another one. The provider leaves the VM alone
/// until that update has ended, even after a restart. Then it applies or reports the rest of the spec.
#[tokio::test(start_paused = true)]
async fn an_update_of_another_extension_is_left_to_it() -> Result<()> {
    let mut in_place = InPlace::new("in-place-other").await?;
    let shows = |machine: &InfraMachine, status: &str, reason: &str| {
        says(machine, VIRTUAL_MACHINE_UP_TO_DATE, status, reason) && says(machine, READY, "True", "Ready")
    };
    let mut larger = tier("gold");
    larger["size"] = json!("medium");
    for (spec, calls, status, reason) in [
        (tier("gold"), 1, "True", "UpToDate"),
        (larger, 1, "False", "NotHotUpdatable"),
    ] {
        let before = (in_place.updates()?, in_place.cloud.vms()?);
        begin_update(&in_place.machine, spec).await?;
        for restart in [false, true] {
            if restart {
                in_place.restart().await?;
            }
            let waits = |machine: &InfraMachine| shows(machine, "False", "WaitingForUpdateRequest");
            let what = "a machine that another extension updates";
            in_place.machine.until(what, waits).await?;
            tokio::time::sleep(LOOKS).await;
            in_place.machine.until(what, waits).await?;
            let now = (in_place.updates()?, in_place.cloud.vms()?);
            ensure!(now == before, "the VM was touched: {now:?}");
        }
        in_place.machine.patch(in_progress(Value::Null)).await?;
        let settled = |machine: &InfraMachine| shows(machine, status, reason);
        let what = "a machine that is the provider's again";
        in_place.machine.until(what, settled).await?;
        ensure!(in_place.updates()? == calls, "{} updates", in_place.updates()?);
    }
    in_place.has_labels(&json!({"tier": "gold"}))
}

/// An observed generation does not prove the state of the VM. After a restart, the update is incomplete while
/// the driver's capabilities are unknown.
#[tokio::test(start_paused = true)]
async fn an_update_is_not_done_while_the_driver_is_unknown() -> Result<()> {
    let mut in_place = InPlace::new("in-place-restart").await?;
    in_place
        .cloud
        .fail(json!([{"operation": "UpdateMachine", "hang": "before"}]))?;
    begin_update(&in_place.machine, tier("gold")).await?;
    in_place
        .asked_until("an update that is under way", |_| {
            in_place.updates().is_ok_and(|calls| calls == 1)
        })
        .await?;
    in_place.cloud.fail(json!([
        {"operation": "GetPluginCapabilities", "code": "Unavailable"},
        {"operation": "Probe", "code": "Unavailable"},
    ]))?;
    in_place.restart().await?;
    for _ in 0..6 {
        tokio::time::sleep(LOOKS / 6).await;
        let answer = in_place.hooks.update(&in_place.machine).await?;
        ensure!(answer["status"] == "Success" && !has_ended(&answer), "{answer}");
    }
    in_place.cloud.fail(json!([]))?;
    in_place.finish().await?;
    in_place.is_updated_to(&json!({"tier": "gold"})).await
}
