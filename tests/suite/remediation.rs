//! MachineHealthChecks that restart a VM before its Machine is replaced: Cluster API's external remediation,
//! with core's own controllers.

use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use capcmi::api::annotations;
use capcmi::api::conditions::{PAUSED, READY, reason};
use capcmi::api::v1alpha1::{InfraMachineRemediation, RemediationPhase};
use capcmi::manifests::{self, Part};
use cmi_driver::Operation;
use cmi_simulated::{CallLine, Phase, Vm};
use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use management_cluster::eventually;
use management_cluster::proxy::{Fault, Gate, ProxiedRequest, Proxy};
use serde_json::{Value, json};

use crate::support::backing::with_every_backing;
use crate::support::fleet::{copy_bootstrap_secret, objects};
use crate::support::plugin::Plugin;
use crate::support::provider::service_account;
use crate::support::{Backing, ByHand, Cloud, DEADLINE, Fleet, MovePair, Provider, World};

with_every_backing!(
    a_machine_whose_node_falls_silent_is_restarted_and_keeps_its_vm,
    killed_around_a_restart_the_provider_makes_no_more_than_it_may
);

/// What the opt-in grants, to the provider and to core.
pub async fn permitted(world: &World) -> Result<()> {
    let roles = manifests::stream(&[Part::Remediation])?;
    world.management.apply_yaml(&roles).await.map(drop)
}

fn provider(cloud: &Cloud, config: Value) -> Provider {
    with(&cloud.drivers(config))
}

/// With this drivers file.
fn with(drivers: &str) -> Provider {
    Provider::new(drivers).flag("--enable-remediation")
}

async fn a_machine_whose_node_falls_silent_is_restarted_and_keeps_its_vm(backing: Backing) -> Result<()> {
    let world = World::new("restart").await?;
    permitted(&world).await?;
    let cloud = Cloud::new(&world);
    let backed = backing.of(&world, &cloud, json!({})).await?;
    let _provider = with(&backed.drivers).start(&world).await?;
    let _kubelets = world.kubelets(&cloud);
    let fleet = Fleet::create(&world, "md", 2).await?;
    let before = uids(&fleet.running(2).await?);
    let vms = cloud.holds(2).await?;
    health_check(&world, &json!({"retryLimit": 2, "timeoutSeconds": 600})).await?;

    fall_silent(&world, &vms[0]).await?;
    let name = &vms[0].name;
    restarts(&cloud, name, 1).await?;
    // Not on the Machine: that may be healthy before it can be said there.
    event(&world, name, reason::RESTARTED).await?;
    // The guest boots, and its kubelet registers anew.
    eventually(DEADLINE, "a Machine that is healthy again", async || {
        let machine = machine(&world, name).await?;
        let status = |type_: &str| of(&machine, type_)["status"].clone();
        ensure!(status("HealthCheckSucceeded") == "True", "{:#}", machine.data);
        ensure!(of(&machine, "OwnerRemediated").is_null(), "{:#}", machine.data);
        ensure!(
            remediation(&world, name).await?.is_none(),
            "the remediation is there"
        );
        Ok(())
    })
    .await?;
    ensure!(uids(&fleet.running(2).await?) == before, "a Machine was replaced");
    let ids = |vms: &[Vm]| vms.iter().map(|vm| vm.id).collect::<Vec<_>>();
    ensure!(ids(&cloud.holds(2).await?) == ids(&vms), "a VM was replaced");
    restarts(&cloud, name, 1).await?;
    restarts(&cloud, &vms[1].name, 0).await
}

#[tokio::test]
async fn a_machine_that_no_restart_helps_is_replaced_after_as_many_as_there_may_be() -> Result<()> {
    let world = World::new("restart-limit").await?;
    permitted(&world).await?;
    let cloud = Cloud::new(&world);
    let _provider = provider(&cloud, json!({})).start(&world).await?;
    let kubelets = world.kubelets(&cloud);
    let fleet = Fleet::create(&world, "md", 2).await?;
    fleet.running(2).await?;
    let vms = cloud.holds(2).await?;
    health_check(&world, &json!({"retryLimit": 2, "timeoutSeconds": 2})).await?;

    // No guest comes back.
    drop(kubelets);
    fall_silent(&world, &vms[0]).await?;
    let name = &vms[0].name;
    replaced(&world, name).await?;
    restarts(&cloud, name, 2).await?;
    event(&world, name, reason::RESTARTS_EXHAUSTED).await?;
    let _kubelets = world.kubelets(&cloud);
    fleet.running(2).await?;
    ensure!(
        cloud.holds(2).await?.iter().any(|vm| vm.id == vms[1].id),
        "the other VM was touched"
    );
    restarts(&cloud, &vms[1].name, 0).await
}

#[tokio::test]
async fn a_driver_that_cannot_restart_has_the_machine_replaced_at_once() -> Result<()> {
    let world = World::new("restart-without").await?;
    permitted(&world).await?;
    let cloud = Cloud::new(&world);
    let without = json!({"disabledCalls": ["RestartMachine"]});
    let _provider = provider(&cloud, without).start(&world).await?;
    let _kubelets = world.kubelets(&cloud);
    let fleet = Fleet::create(&world, "md", 2).await?;
    fleet.running(2).await?;
    let vms = cloud.holds(2).await?;
    health_check(&world, &json!({"timeoutSeconds": 3600})).await?;
    fall_silent(&world, &vms[0]).await?;
    let name = &vms[0].name;
    replaced(&world, name).await?;
    restarts(&cloud, name, 0).await?;
    event(&world, name, reason::RESTART_NOT_POSSIBLE).await?;
    fleet.running(2).await.map(drop)
}

/// What pauses it keeps its VM as it is; what was restarted before is not restarted again.
#[tokio::test]
async fn nothing_is_restarted_that_is_paused() -> Result<()> {
    let world = World::new("restart-paused").await?;
    permitted(&world).await?;
    let cloud = Cloud::new(&world);
    let _provider = provider(&cloud, json!({})).start(&world).await?;
    let kubelets = world.kubelets(&cloud);
    let fleet = Fleet::create(&world, "md", 1).await?;
    let machines = fleet.running(1).await?;
    let name = machines[0].name_any();
    drop(kubelets);
    fall_silent(&world, &cloud.holds(1).await?[0]).await?;
    for (kind, pause, unpause) in [
        ("machines.cluster.x-k8s.io", annotated(true), annotated(false)),
        ("inframachines", annotated(true), annotated(false)),
        ("inframachineremediations", annotated(true), annotated(false)),
        (
            "clusters.cluster.x-k8s.io",
            json!({"spec": {"paused": true}}),
            json!({"spec": {"paused": false}}),
        ),
    ] {
        let calls = cloud.count(Operation::RestartMachine, &name)?;
        let object = if kind.starts_with("clusters") { "md" } else { &name };
        let patch =
            |patch: &Value| world.kubectl(&["patch", kind, object, "--type=merge", "-p", &patch.to_string()]);
        let mut made = request(&world, &machines[0], &json!({}));
        if kind == "inframachineremediations" {
            made["metadata"]["annotations"] = json!({annotations::PAUSED: ""});
        } else {
            patch(&pause)?;
        }
        management_cluster::apply(&world.admin, made).await?;
        eventually(
            DEADLINE,
            "a remediation that says that it is paused",
            async || {
                let status = remediation(&world, &name).await?.and_then(|found| found.status);
                let conditions = status.context("no status")?.conditions;
                let paused = conditions.iter().find(|condition| condition.type_ == PAUSED);
                ensure!(
                    paused.is_some_and(|paused| paused.status == "True"),
                    "{conditions:?}"
                );
                Ok(())
            },
        )
        .await?;
        ensure!(
            cloud.count(Operation::RestartMachine, &name)? == calls,
            "{kind}: restarted"
        );
        patch(&unpause)?;
        restarts(&cloud, &name, calls + 1).await?;
        eventually(DEADLINE, "a remediation that is not paused", async || {
            let found = remediation(&world, &name).await?.context("it is gone")?;
            let status = found.status.context("no status")?;
            ensure!(status.phase == Some(RemediationPhase::Restarting), "{status:?}");
            let of = |type_: &str| {
                status
                    .conditions
                    .iter()
                    .find(|condition| condition.type_ == type_)
            };
            ensure!(
                of(PAUSED).is_some_and(|paused| paused.status == "False"),
                "{status:?}"
            );
            ensure!(
                of(READY).is_some_and(|ready| ready.reason == reason::RESTARTED),
                "{status:?}"
            );
            Ok(())
        })
        .await?;
        // It is said on the Machine first.
        let machine = machine(&world, &name).await?;
        let remediated = of(&machine, "ExternallyRemediated");
        ensure!(
            remediated["status"] == "True" && remediated["reason"] == reason::RESTARTED,
            "{remediated:#}"
        );
        world.kubectl(&["delete", "inframachineremediation", &name])?;
    }
    Ok(())
}

/// A restart that is in flight holds no deletion up, is not made again, and leaves no VM.
#[tokio::test]
async fn a_machine_that_is_deleted_while_its_vm_is_restarted_takes_the_vm_along() -> Result<()> {
    let world = World::new("restart-deleted").await?;
    permitted(&world).await?;
    let cloud = Cloud::new(&world);
    let patient = json!({"timeouts": {"restartMachine": "1h"}});
    let _provider = with(&cloud.drivers_with(patient, json!({})))
        .start(&world)
        .await?;
    world.cluster("one").await?;
    let deleted = ByHand::new(&world, "one", "m").create().await?;
    deleted.provisioned().await?;
    cloud.fail(json!([{"operation": "RestartMachine", "hang": "held"}]))?;
    let owner = machine(&world, "m").await?;
    management_cluster::apply(&world.admin, request(&world, &owner, &json!({}))).await?;
    restarts(&cloud, "m", 1).await?;

    deleted.delete().await?;
    deleted.gone().await?;
    cloud.holds(0).await?;
    ensure!(ended_restarts(&cloud)? == 0, "the restart was not in flight");
    cloud.fail(json!([]))?;
    eventually(DEADLINE, "the end of the restart", async || {
        ensure!(ended_restarts(&cloud)? == 1, "not yet");
        Ok(())
    })
    .await?;
    eventually(DEADLINE, "the end of the remediation", async || {
        ensure!(remediation(&world, "m").await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    restarts(&cloud, "m", 1).await?;
    cloud.holds(0).await.map(drop)
}

/// CMI-09: a driver that locks a VM while it changes it would refuse the restart, for which the Machine is
/// replaced.
#[tokio::test]
async fn a_vm_that_is_being_updated_is_restarted_once_that_has_ended() -> Result<()> {
    let world = World::new("restart-update").await?;
    permitted(&world).await?;
    let cloud = Cloud::new(&world);
    let patient = json!({"timeouts": {"updateMachine": "1h"}});
    let _provider = with(&cloud.drivers_with(patient, json!({})))
        .start(&world)
        .await?;
    world.cluster("one").await?;
    let mut machines = Vec::new();
    for name in ["updated", "first", "second"] {
        let made = ByHand::new(&world, "one", name).create().await?;
        made.provisioned().await?;
        machines.push(made);
    }
    let [updated, first, second] = &machines[..] else {
        bail!("there are three");
    };
    cloud.fail(json!([{"operation": "UpdateMachine", "machine": "updated", "hang": "held"}]))?;
    updated.respecify("labels", json!({"round": "1"})).await?;
    eventually(DEADLINE, "an update in flight", async || {
        let calls = cloud.count(Operation::UpdateMachine, "updated")?;
        ensure!(calls == 1, "{calls} updates");
        Ok(())
    })
    .await?;

    // A refused attempt does not let the next one in. What came before another restart has been looked at.
    for (attempt, other) in (1..).zip([first, second]) {
        for made in [updated, other] {
            let owner = machine(&world, &made.name).await?;
            let mut request = request(&world, &owner, &json!({}));
            request["metadata"]["annotations"] = json!({"attempt": attempt.to_string()});
            management_cluster::apply(&world.admin, request).await?;
        }
        restarts(&cloud, &other.name, 1).await?;
    }
    cloud.fail(json!([]))?;
    restarts(&cloud, "updated", 1).await?;
    let calls = cloud.calls()?;
    let place = |operation, phase| {
        calls
            .iter()
            .position(|call| call.machine == "updated" && call.operation == operation && call.phase == phase)
    };
    let (ended, restarted) = (
        place(Operation::UpdateMachine, Phase::Ended).context("the update has no end")?,
        place(Operation::RestartMachine, Phase::Started).context("there is no restart")?,
    );
    ensure!(ended < restarted, "the VM was restarted while it was updated");
    Ok(())
}

/// Where the provider is killed: around the write that a restart is made, and around the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Point {
    BeforeWrite,
    AfterWrite,
    BeforeCall,
    AfterCall,
}

/// Killed at any moment of a restart, the provider counts it, whether or not it was made, and makes no other.
async fn killed_around_a_restart_the_provider_makes_no_more_than_it_may(backing: Backing) -> Result<()> {
    for (point, calls) in [
        (Point::BeforeWrite, 1),
        (Point::AfterWrite, 0),
        (Point::BeforeCall, 1),
        (Point::AfterCall, 1),
    ] {
        killed_at(backing, point, calls)
            .await
            .with_context(|| format!("{point:?}"))?;
    }
    Ok(())
}

async fn killed_at(backing: Backing, point: Point, calls: usize) -> Result<()> {
    let world = World::new("restart-killed").await?;
    permitted(&world).await?;
    let cloud = Cloud::new(&world);
    let backed = backing.of(&world, &cloud, json!({})).await?;
    let gate = Gate::new();
    let fault = Mutex::new(match point {
        Point::BeforeWrite => Some(Fault::HoldBefore(gate.clone())),
        Point::AfterWrite => Some(Fault::HoldAfter(gate.clone())),
        Point::BeforeCall | Point::AfterCall => None,
    });
    let hook = move |request: &ProxiedRequest| {
        let is_record = request.method == Method::PATCH
            && request.path.contains("/inframachineremediations/")
            && !request.path.ends_with("/status");
        let mut fault = fault.lock().unwrap_or_else(PoisonError::into_inner);
        fault.take_if(|_| is_record).unwrap_or(Fault::None)
    };
    let proxy = Proxy::start(&world.management, hook).await?;
    let kubeconfig = proxy.kubeconfig(&service_account(&world).await?)?;
    let provider = with(&backed.drivers).through(kubeconfig);
    let replica = provider.start(&world).await?;
    world.cluster("one").await?;
    let name = "m";
    ByHand::new(&world, "one", name)
        .create()
        .await?
        .provisioned()
        .await?;
    let hang = match point {
        Point::BeforeCall => Some("before"),
        Point::AfterCall => Some("after"),
        Point::BeforeWrite | Point::AfterWrite => None,
    };
    if let Some(hang) = hang {
        cloud.fail(json!([{"operation": "RestartMachine", "hang": hang}]))?;
    }
    let owner = machine(&world, name).await?;
    let once = json!({"strategy": {"retryLimit": 1, "timeoutSeconds": 3600}});
    management_cluster::apply(&world.admin, request(&world, &owner, &once)).await?;
    if hang.is_some() {
        restarts(&cloud, name, 1).await?;
    } else {
        let reached = tokio::time::timeout(DEADLINE, gate.reached());
        reached.await.context("no restart was written down")?;
    }
    drop(replica);
    cloud.fail(json!([]))?;
    let _again = provider.named("again").start(&world).await?;
    restarting_once(&world, name).await?;
    restarts(&cloud, name, calls).await
}

/// What of a restart is said on its Machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    /// That the VM was restarted.
    Restarted,
    /// That no restart is left, so that the owner replaces the Machine.
    OwnersTurn,
}

/// Killed around each write to the status of the Machine, the provider ends where it would have, and
/// makes no other restart.
#[tokio::test]
async fn killed_around_what_it_says_on_the_machine_the_provider_comes_to_the_same_end() -> Result<()> {
    for said in [Said::Restarted, Said::OwnersTurn] {
        // Others write the Machine, too: one that is answered may have been refused.
        for (side, is_answered) in [
            (Fault::HoldBefore as fn(Gate) -> Fault, false),
            (Fault::HoldAfter, true),
        ] {
            let killed = killed_when_said(said, side).await;
            killed.with_context(|| format!("{said:?}, answered: {is_answered}"))?;
        }
    }
    Ok(())
}

async fn killed_when_said(said: Said, side: fn(Gate) -> Fault) -> Result<()> {
    let world = World::new("restart-said").await?;
    permitted(&world).await?;
    let cloud = Cloud::new(&world);
    let gate = Gate::new();
    let fault = Mutex::new((said as usize, Some(side(gate.clone()))));
    let hook = move |request: &ProxiedRequest| {
        let is_said = request.method == Method::PATCH
            && request.path.contains("/machines/")
            && request.path.ends_with("/status");
        let mut fault = fault.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, trap) = &mut *fault;
        if is_said && *before > 0 {
            *before -= 1;
            return Fault::None;
        }
        trap.take_if(|_| is_said).unwrap_or(Fault::None)
    };
    let proxy = Proxy::start(&world.management, hook).await?;
    let kubeconfig = proxy.kubeconfig(&service_account(&world).await?)?;
    let provider = provider(&cloud, json!({})).through(kubeconfig);
    let replica = provider.start(&world).await?;
    world.cluster("one").await?;
    ByHand::new(&world, "one", "m")
        .create()
        .await?
        .provisioned()
        .await?;
    let owner = machine(&world, "m").await?;
    let timeout = match said {
        Said::Restarted => 3600,
        Said::OwnersTurn => 2,
    };
    let once = json!({"strategy": {"retryLimit": 1, "timeoutSeconds": timeout}});
    management_cluster::apply(&world.admin, request(&world, &owner, &once)).await?;
    let reached = tokio::time::timeout(DEADLINE, gate.reached());
    reached.await.context("nothing was said on the Machine")?;
    drop(replica);

    let _again = provider.named("again").start(&world).await?;
    match said {
        Said::Restarted => restarting_once(&world, "m").await?,
        Said::OwnersTurn => {
            eventually(DEADLINE, "a Machine that is left to its owner", async || {
                let machine = machine(&world, "m").await?;
                for type_ in ["OwnerRemediated", "HealthCheckSucceeded", "ExternallyRemediated"] {
                    ensure!(of(&machine, type_)["status"] == "False", "{:#}", machine.data);
                }
                let found = remediation(&world, "m").await?.context("no remediation")?;
                let phase = found.status.and_then(|status| status.phase);
                ensure!(phase == Some(RemediationPhase::Replacing), "{phase:?}");
                Ok(())
            })
            .await?;
        }
    }
    restarts(&cloud, "m", 1).await
}

/// Killed around the write that takes a restart back which never left the process, the provider counts it
/// where it was not taken back, and makes it where it was.
#[tokio::test]
async fn killed_around_the_record_that_is_taken_back_the_provider_makes_no_more_than_it_may() -> Result<()> {
    for (side, calls) in [(Fault::HoldBefore as fn(Gate) -> Fault, 0), (Fault::HoldAfter, 1)] {
        let killed = killed_when_taken_back(side, calls).await;
        killed.with_context(|| format!("{calls} restarts"))?;
    }
    Ok(())
}

async fn killed_when_taken_back(side: fn(Gate) -> Fault, calls: usize) -> Result<()> {
    let world = World::new("restart-taken-back").await?;
    permitted(&world).await?;
    let cloud = Cloud::new(&world);
    let (noted, taken_back) = (Gate::new(), Gate::new());
    let faults = Mutex::new(vec![side(taken_back.clone()), Fault::HoldBefore(noted.clone())]);
    let hook = move |request: &ProxiedRequest| {
        let is_record = request.method == Method::PATCH
            && request.path.contains("/inframachineremediations/")
            && !request.path.ends_with("/status");
        let mut faults = faults.lock().unwrap_or_else(PoisonError::into_inner);
        let sprung = if is_record { faults.pop() } else { None };
        sprung.unwrap_or(Fault::None)
    };
    let proxy = Proxy::start(&world.management, hook).await?;
    let kubeconfig = proxy.kubeconfig(&service_account(&world).await?)?;
    let mut plugin = Plugin::start(&world, "simulated", &cloud.config(json!({}))).await?;
    let provider = with(&plugin.drivers(json!({}))).through(kubeconfig);
    let replica = provider.start(&world).await?;
    world.cluster("one").await?;
    ByHand::new(&world, "one", "m")
        .create()
        .await?
        .provisioned()
        .await?;
    let owner = machine(&world, "m").await?;
    let once = json!({"strategy": {"retryLimit": 1, "timeoutSeconds": 3600}});
    management_cluster::apply(&world.admin, request(&world, &owner, &once)).await?;
    let reached = tokio::time::timeout(DEADLINE, noted.reached());
    reached.await.context("no restart was written down")?;
    // The call that follows finds no plugin.
    plugin.kill();
    noted.open();
    let reached = tokio::time::timeout(DEADLINE, taken_back.reached());
    reached.await.context("nothing was taken back")?;
    drop(replica);

    plugin.listen(&world).await?;
    let _again = provider.named("again").start(&world).await?;
    restarting_once(&world, "m").await?;
    restarts(&cloud, "m", calls).await
}

/// The restarts that were made count at the target of a move, and none is made there again: when the Node has
/// had its time, the owner replaces the Machine, whose move has lost that it is unhealthy.
#[tokio::test]
async fn a_restart_counts_after_clusterctl_has_moved_the_machine() -> Result<()> {
    let pair = MovePair::start("restart-move", Part::Remediation, |cloud| {
        provider(cloud, json!({}))
    })
    .await?;
    let MovePair {
        source,
        target,
        cloud,
        ..
    } = &pair;
    let kubelets = world.kubelets(&cloud);
    let fleet = Fleet::create(source, "md", 1).await?;
    let machines = fleet.running(1).await?;
    let name = machines[0].name_any();
    // No guest comes back.
    drop(kubelets);
    fall_silent(source, &cloud.holds(1).await?[0]).await?;
    let once = json!({"strategy": {"retryLimit": 1, "timeoutSeconds": 3600}});
    management_cluster::apply(&source.admin, request(source, &machines[0], &once)).await?;
    restarting_once(source, &name).await?;
    let vms = cloud.holds(1).await?;

    source.move_to(target)?;
    restarting_once(target, &name).await?;
    restarts(cloud, &name, 1).await?;
    ensure!(
        cloud.holds(1).await?[0].id == vms[0].id,
        "another VM than before the move"
    );

    copy_bootstrap_secret(source, target, "boot").await?;
    no_time_is_left(target, &name)?;
    replaced(target, &name).await?;
    restarts(cloud, &name, 1).await?;
    let _kubelets = world.kubelets(&cloud);
    Fleet::of(target, "md").running(1).await?;
    ensure!(
        cloud.holds(1).await?[0].id != vms[0].id,
        "the Machine has the VM of the one that was replaced"
    );
    Ok(())
}

/// A move waits for no restart: its answer comes when the objects are at the target, where the restart counts
/// and is not made again.
#[tokio::test]
async fn a_restart_that_is_in_flight_when_clusterctl_moves_the_machine_is_not_made_again() -> Result<()> {
    let pair = MovePair::start("restart-in-flight", Part::Remediation, |cloud| {
        with(&cloud.drivers_with(json!({"timeouts": {"restartMachine": "1h"}}), json!({})))
    })
    .await?;
    let MovePair {
        source,
        target,
        cloud,
        ..
    } = &pair;
    let kubelets = world.kubelets(&cloud);
    let fleet = Fleet::create(source, "md", 1).await?;
    let machines = fleet.running(1).await?;
    let name = machines[0].name_any();
    drop(kubelets);
    let vms = cloud.holds(1).await?;
    fall_silent(source, &vms[0]).await?;
    cloud.fail(json!([{"operation": "RestartMachine", "hang": "held"}]))?;
    let once = json!({"strategy": {"retryLimit": 1, "timeoutSeconds": 3600}});
    management_cluster::apply(&source.admin, request(source, &machines[0], &once)).await?;
    restarts(cloud, &name, 1).await?;

    source.move_to(target)?;
    let shown = restarting_once(target, &name).await;
    let made = cloud.count(Operation::RestartMachine, &name)?;
    ensure!(made == 1, "{made} restarts");
    shown?;
    ensure!(ended_restarts(cloud)? == 0, "the restart was not in flight");
    cloud.fail(json!([]))?;
    eventually(DEADLINE, "the end of the restart", async || {
        ensure!(ended_restarts(cloud)? == 1, "not yet");
        Ok(())
    })
    .await?;
    let _kubelets = world.kubelets(&cloud);
    Fleet::of(target, "md").running(1).await?;
    let after = cloud.holds(1).await?;
    ensure!(after[0].id == vms[0].id, "another VM than before the move");
    restarting_once(target, &name).await?;
    restarts(cloud, &name, 1).await
}

/// Cluster, check, template and remediation move together: the check at the target finds the machine as sick
/// as it was, has nothing restarted anew, and the machine replaced when the Node has had its time.
#[tokio::test]
async fn a_health_check_that_clusterctl_has_moved_counts_the_restarts_of_before() -> Result<()> {
    let pair = MovePair::start("check-move", Part::Remediation, |cloud| {
        provider(cloud, json!({}))
    })
    .await?;
    let MovePair {
        source,
        target,
        cloud,
        ..
    } = &pair;
    let kubelets = world.kubelets(&cloud);
    let fleet = Fleet::create(source, "md", 2).await?;
    fleet.running(2).await?;
    let vms = cloud.holds(2).await?;
    health_check(source, &json!({"retryLimit": 1, "timeoutSeconds": 3600})).await?;
    // No guest comes back.
    drop(kubelets);
    fall_silent(source, &vms[0]).await?;
    let name = &vms[0].name;
    restarting_once(source, name).await?;

    source.move_to(target)?;
    restarting_once(target, name).await?;
    may_be_checked(target).await?;
    // Cluster API has looked before it read Nodes, and would look again after ten minutes, or at a change.
    target.kubectl(&["annotate", "machinehealthcheck", "check", "look=again"])?;
    // A Machine that has its remediation is not told anew that it is sick: the check's own count shows it.
    let checks = objects(target, "cluster.x-k8s.io", "v1beta2", "MachineHealthCheck");
    eventually(DEADLINE, "a check that finds one of two sick", async || {
        let status = checks.get("check").await?.data["status"].clone();
        ensure!(
            status["expectedMachines"] == 2 && status["currentHealthy"] == 1,
            "{status:#}"
        );
        Ok(())
    })
    .await?;
    let sick = machine(target, name).await?;
    let found = remediation(target, name).await?.context("no remediation")?;
    let owners = found.metadata.owner_references.unwrap_or_default();
    ensure!(
        owners
            .iter()
            .any(|owner| Some(&owner.uid) == sick.metadata.uid.as_ref()),
        "{owners:?}"
    );
    restarts(cloud, name, 1).await?;

    copy_bootstrap_secret(source, target, "boot").await?;
    no_time_is_left(target, name)?;
    replaced(target, name).await?;
    restarts(cloud, name, 1).await?;
    let _kubelets = world.kubelets(&cloud);
    Fleet::of(target, "md").running(2).await?;
    ensure!(
        cloud.holds(2).await?.iter().any(|vm| vm.id == vms[1].id),
        "the other VM was touched"
    );
    restarts(cloud, &vms[1].name, 0).await
}

/// Leaves the Node of a remediation's Machine no time to come back.
fn no_time_is_left(world: &World, name: &str) -> Result<()> {
    let over = json!({"spec": {"strategy": {"timeoutSeconds": 1}}}).to_string();
    let kind = "inframachineremediation";
    world
        .kubectl(&["patch", kind, name, "--type=merge", "-p", &over])
        .map(drop)
}

/// A remediation as a MachineHealthCheck makes it.
pub fn request(world: &World, machine: &DynamicObject, spec: &Value) -> Value {
    let name = machine.name_any();
    json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachineRemediation",
        "metadata": {
            "name": name, "namespace": world.namespace,
            "labels": {"cluster.x-k8s.io/cluster-name": machine.data["spec"]["clusterName"]},
            "ownerReferences": [{
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": name,
                "uid": machine.uid(),
            }],
        },
        "spec": spec,
    })
}

/// Waits until a remediation says that the VM was restarted once.
async fn restarting_once(world: &World, name: &str) -> Result<()> {
    eventually(DEADLINE, "a restart that is shown", async || {
        let found = remediation(world, name).await?.context("no remediation")?;
        let status = found.status.context("no status")?;
        ensure!(
            status.phase == Some(RemediationPhase::Restarting) && status.retry_count == Some(1),
            "{status:?}"
        );
        Ok(())
    })
    .await
}

fn annotated(paused: bool) -> Value {
    let value = if paused { json!("") } else { Value::Null };
    json!({"metadata": {"annotations": {annotations::PAUSED: value}}})
}

/// Waits until a VM was restarted so often.
pub async fn restarts(cloud: &Cloud, machine: &str, times: usize) -> Result<()> {
    eventually(DEADLINE, "the restarts", async || {
        let calls = cloud.count(Operation::RestartMachine, machine)?;
        ensure!(
            calls == times,
            "{machine} was restarted {calls} times, and not {times}"
        );
        Ok(())
    })
    .await
}

/// How many restarts have ended, of any VM.
fn ended_restarts(cloud: &Cloud) -> Result<usize> {
    let calls = cloud.calls()?;
    let is_end = |call: &&CallLine| call.operation == Operation::RestartMachine && call.phase == Phase::Ended;
    Ok(calls.iter().filter(is_end).count())
}

/// Waits until a Machine is gone.
async fn replaced(world: &World, name: &str) -> Result<()> {
    let machines = objects(world, "cluster.x-k8s.io", "v1beta2", "Machine");
    eventually(DEADLINE, "the end of the Machine", async || {
        let found = machines.get_opt(name).await?;
        ensure!(
            found.is_none(),
            "{:#}",
            found.map(|machine| machine.data).unwrap_or_default()
        );
        Ok(())
    })
    .await
}

/// Waits for the event that says why a Machine is left to its owner.
async fn event(world: &World, name: &str, reason: &str) -> Result<()> {
    let events = objects(world, "events.k8s.io", "v1", "Event");
    eventually(DEADLINE, "an event that says why", async || {
        let all = events.list(&kube::api::ListParams::default()).await?.items;
        let is_it = |event: &DynamicObject| {
            let data = &event.data;
            data["regarding"]["kind"] == "InfraMachineRemediation"
                && data["regarding"]["name"] == name
                && data["reason"] == reason
        };
        ensure!(all.iter().any(is_it), "none of {} events", all.len());
        Ok(())
    })
    .await
}

/// What the node lifecycle controller says of a kubelet that it does not hear any more.
pub async fn fall_silent(world: &World, vm: &Vm) -> Result<()> {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let silent = json!({"status": {"conditions": [{
        "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "",
        "lastTransitionTime": now,
    }]}});
    let workload = world.management.workload().await?.admin_client().await?;
    Api::<Node>::all(workload)
        .patch_status(&vm.name, &PatchParams::default(), &Patch::Strategic(silent))
        .await?;
    Ok(())
}

/// A MachineHealthCheck on silent Nodes that restarts by this strategy; returns when it has looked at two
/// machines.
async fn health_check(world: &World, strategy: &Value) -> Result<()> {
    may_be_checked(world).await?;
    let template = json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachineRemediationTemplate",
        "metadata": {"name": "restart", "namespace": world.namespace},
        "spec": {"template": {"spec": {"strategy": strategy}}},
    });
    let check = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineHealthCheck",
        "metadata": {"name": "check", "namespace": world.namespace},
        "spec": {
            "clusterName": "md",
            "selector": {"matchLabels": {"cluster.x-k8s.io/deployment-name": "md"}},
            "checks": {"unhealthyNodeConditions": [{"type": "Ready", "status": "Unknown",
            "timeoutSeconds": 1}]},
            "remediation": {"templateRef": {
                "apiVersion": "infrastructure.capcmi.io/v1alpha1",
                "kind": "InfraMachineRemediationTemplate", "name": "restart",
            }},
        },
    });
    for object in [template, check] {
        management_cluster::apply(&world.admin, object).await?;
    }
    let checks = objects(world, "cluster.x-k8s.io", "v1beta2", "MachineHealthCheck");
    eventually(DEADLINE, "a health check that has looked", async || {
        let status = checks.get("check").await?.data["status"].clone();
        ensure!(status["expectedMachines"] == 2, "{status:#}");
        Ok(())
    })
    .await
}

/// Waits until Cluster API reads the Nodes of the Cluster.
async fn may_be_checked(world: &World) -> Result<()> {
    let clusters = objects(world, "cluster.x-k8s.io", "v1beta2", "Cluster");
    eventually(DEADLINE, "a Cluster that may be health checked", async || {
        let cluster = clusters.get("md").await?;
        for type_ in ["ControlPlaneInitialized", "InfrastructureReady"] {
            ensure!(of(&cluster, type_)["status"] == "True", "{:#}", cluster.data);
        }
        Ok(())
    })
    .await
}

async fn remediation(world: &World, name: &str) -> Result<Option<InfraMachineRemediation>> {
    let api: Api<InfraMachineRemediation> = Api::namespaced(world.admin.clone(), &world.namespace);
    Ok(api.get_opt(name).await?)
}

async fn machine(world: &World, name: &str) -> Result<DynamicObject> {
    let machines = objects(world, "cluster.x-k8s.io", "v1beta2", "Machine");
    Ok(machines.get(name).await?)
}

fn uids(machines: &[DynamicObject]) -> Vec<String> {
    let mut all: Vec<_> = machines.iter().filter_map(ResourceExt::uid).collect();
    all.sort();
    all
}

/// A condition of an object of Cluster API.
fn of(object: &DynamicObject, type_: &str) -> Value {
    let all = object.data["status"]["conditions"].as_array();
    all.into_iter()
        .flatten()
        .find(|condition| condition["type"] == type_)
        .cloned()
        .unwrap_or_default()
}
