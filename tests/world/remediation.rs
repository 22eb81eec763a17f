//! InfraMachineRemediations: the provider restarts a VM, up to the strategy's limit, before the owner
//! replaces its Machine.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use capcmi::api::annotations;
use capcmi::api::conditions::{PAUSED, READY, reason};
use capcmi::api::v1alpha1::{InfraMachineRemediation, RemediationPhase};
use cmi_driver::Operation;
use cmi_simulated::{CallLine, Phase};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::{Resource as _, ResourceExt as _};
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::support::fleet::objects;
use crate::support::{ByHand, Cloud, DEADLINE, Point, Provider, Side, Trap, World};

/// Long enough for an unwanted restart.
const A_WHILE: Duration = Duration::from_secs(5);

/// The interval between checks of a lasting state: a refused restart is repeated only after minutes.
const LOOK: Duration = Duration::from_secs(1);

const OWNERS_TURN: [&str; 3] = ["OwnerRemediated", "HealthCheckSucceeded", "ExternallyRemediated"];

/// A world with running machines.
async fn world_with(case: &str, config: Value, names: &[&str]) -> Result<(World, Cloud, Vec<ByHand>)> {
    let world = World::new(case).await?;
    let cloud = Cloud::new(&world);
    let mut provider = Provider::new(cloud.drivers(config)).start(&world).await?;
    let machines = running(&world, names).await?;
    provider.terminate().await?;
    // The name of an event consists of its object's name and the time, so an event about a remediation must
    // have another time than one about the InfraMachine.
    tokio::time::sleep(Duration::from_millis(10)).await;
    Ok((world, cloud, machines))
}

async fn running(world: &World, names: &[&str]) -> Result<Vec<ByHand>> {
    world.cluster("one").await?;
    let mut machines = Vec::new();
    for name in names {
        let machine = ByHand::new(world, "one", *name).create().await?;
        machine.provisioned().await?;
        machines.push(machine);
    }
    Ok(machines)
}

/// A provider whose driver waits an hour for the answer to a change.
fn patient(cloud: &Cloud) -> Provider {
    let entry = json!({"timeouts": {"restartMachine": "1h", "updateMachine": "1h"}});
    Provider::new(cloud.drivers_with(entry, json!({})))
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_no_restart_helps_is_left_to_its_owner() -> Result<()> {
    let (world, cloud, _) = world_with("restart-limit", json!({}), &["m", "other"]).await?;
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let strategy = json!({"strategy": {"retryLimit": 2, "timeoutSeconds": 5}});
    remediate(&world, "m", &strategy).await?;
    restarts(&cloud, "m", 1).await?;
    restarting(&world, "m", 1).await?;
    restarts(&cloud, "m", 2).await?;
    left_to_its_owner(&world, "m").await?;
    event(&world, "m", reason::RESTARTS_EXHAUSTED).await?;
    tokio::time::sleep(A_WHILE).await;
    restarts(&cloud, "m", 2).await?;
    restarts(&cloud, "other", 0).await
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_cannot_restart_leaves_the_machine_to_its_owner() -> Result<()> {
    let without = json!({"disabledCalls": ["RestartMachine"]});
    let (world, cloud, _) = world_with("restart-without", without.clone(), &["m"]).await?;
    let _provider = Provider::new(cloud.drivers(without)).start(&world).await?;
    remediate(&world, "m", &json!({"strategy": {"timeoutSeconds": 3600}})).await?;
    left_to_its_owner(&world, "m").await?;
    event(&world, "m", reason::RESTART_NOT_POSSIBLE).await?;
    restarts(&cloud, "m", 0).await
}

/// A pause leaves the VM alone, and an earlier restart is not repeated.
#[tokio::test(start_paused = true)]
async fn nothing_is_restarted_while_paused() -> Result<()> {
    let (world, cloud, _) = world_with("restart-paused", json!({}), &["m"]).await?;
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let (core, infra) = (
        ("cluster.x-k8s.io", "v1beta2"),
        ("infrastructure.capcmi.io", "v1alpha1"),
    );
    for (calls, (group, kind, name, pause, unpause)) in (0..).zip([
        (core, "Machine", "m", annotated(true), annotated(false)),
        (infra, "InfraMachine", "m", annotated(true), annotated(false)),
        (
            infra,
            "InfraMachineRemediation",
            "m",
            annotated(true),
            annotated(false),
        ),
        (
            core,
            "Cluster",
            "one",
            json!({"spec": {"paused": true}}),
            json!({"spec": {"paused": false}}),
        ),
    ]) {
        let api = objects(&world, group.0, group.1, kind);
        let patch = async |patch: Value| {
            api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
                .await
        };
        let mut made = request(&world, &machine(&world, "m").await?, &json!({}));
        if kind == "InfraMachineRemediation" {
            made["metadata"]["annotations"] = json!({annotations::PAUSED: ""});
        } else {
            patch(pause).await?;
        }
        management_cluster::apply(&world.admin, made).await?;
        shows(&world, "m", PAUSED, |shown| shown.status == "True").await?;
        let paused = remediation(&world, "m").await?.context("no remediation")?;
        let observed = paused.status.and_then(|status| status.observed_generation);
        ensure!(
            observed != paused.metadata.generation,
            "a paused remediation is observed"
        );
        tokio::time::sleep(A_WHILE).await;
        let seen = cloud.count(Operation::RestartMachine, "m")?;
        ensure!(seen == calls, "{kind}: restarted {seen} times");

        patch(unpause).await?;
        restarts(&cloud, "m", calls + 1).await?;
        shows(&world, "m", READY, |shown| shown.reason == reason::RESTARTED).await?;
        shows(&world, "m", PAUSED, |shown| shown.status == "False").await?;
        let found = remediation(&world, "m").await?.context("no remediation")?;
        let phase = found.status.and_then(|status| status.phase);
        ensure!(phase == Some(RemediationPhase::Restarting), "{phase:?}");
        // The Machine shows the condition first.
        let shown = of(&machine(&world, "m").await?, "ExternallyRemediated");
        ensure!(
            shown["status"] == "True" && shown["reason"] == reason::RESTARTED,
            "{shown:#}"
        );
        remediations(&world).delete("m", &DeleteParams::default()).await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_changed_strategy_applies_to_a_running_remediation() -> Result<()> {
    let (world, cloud, _) = world_with("restart-changed", json!({}), &["m"]).await?;
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let strategy = json!({"strategy": {"retryLimit": 1, "timeoutSeconds": 3600}});
    remediate(&world, "m", &strategy).await?;
    restarting(&world, "m", 1).await?;
    // Ready at the changed generation, with a message about this number of restarts.
    let answers = async |strategy: Value, reason: &str, limit: &str| {
        let patch = Patch::Merge(json!({"spec": {"strategy": strategy}}));
        let params = PatchParams::default();
        let changed = remediations(&world).patch("m", &params, &patch).await?;
        shows(&world, "m", READY, |shown| {
            shown.status == "True"
                && shown.reason == reason
                && shown.message.contains(limit)
                && shown.observed_generation >= changed.metadata.generation
        })
        .await
    };
    let begun = tokio::time::Instant::now();
    answers(json!({"retryLimit": 2}), reason::RESTARTED, "of at most 2 times").await?;
    answers(
        json!({"timeoutSeconds": 60}),
        reason::RESTARTED,
        "of at most 2 times",
    )
    .await?;
    restarting(&world, "m", 2).await?;
    left_to_its_owner(&world, "m").await?;
    ensure!(
        begun.elapsed() < Duration::from_hours(1),
        "the first timeout had to pass"
    );
    answers(
        json!({"retryLimit": 9}),
        reason::RESTARTS_EXHAUSTED,
        "2 times, the limit",
    )
    .await?;
    tokio::time::sleep(Duration::from_hours(1)).await;
    restarts(&cloud, "m", 2).await
}

/// A restart in flight does not delay the deletion, is not repeated, and leaves no VM.
#[tokio::test(start_paused = true)]
async fn a_machine_deleted_during_a_restart_takes_its_vm_along() -> Result<()> {
    let (world, cloud, machines) = world_with("restart-deleted", json!({}), &["m"]).await?;
    let _provider = patient(&cloud).start(&world).await?;
    cloud.fail(json!([{"operation": "RestartMachine", "hang": "held"}]))?;
    remediate(&world, "m", &json!({})).await?;
    restarts(&cloud, "m", 1).await?;

    machines[0].delete().await?;
    machines[0].gone().await?;
    cloud.holds(0).await?;
    ensure!(ended_restarts(&cloud)? == 0, "the restart was not in flight");
    cloud.fail(json!([]))?;
    one_restart_ends(&cloud).await?;
    eventually(DEADLINE, "the end of the remediation", async || {
        ensure!(remediation(&world, "m").await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    restarts(&cloud, "m", 1).await?;
    cloud.holds(0).await.map(drop)
}

/// CMI-09: a driver that locks a VM during a change would refuse the restart, and its Machine would be
/// replaced.
#[tokio::test(start_paused = true)]
async fn a_vm_is_restarted_after_its_update_has_ended() -> Result<()> {
    let names = ["updated", "first", "second"];
    let (world, cloud, machines) = world_with("restart-update", json!({}), &names).await?;
    let _provider = patient(&cloud).start(&world).await?;
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

    // A refused attempt does not admit the next one. The other VM's restart shows that the provider has
    // checked it.
    for (attempt, other) in (1..).zip([first, second]) {
        for made in [updated, other] {
            let owner = machine(&world, &made.name).await?;
            let mut request = request(&world, &owner, &json!({}));
            request["metadata"]["annotations"] = json!({"attempt": attempt.to_string()});
            management_cluster::apply(&world.admin, request).await?;
        }
        restarts(&cloud, &other.name, 1).await?;
    }
    restarts(&cloud, "updated", 0).await?;
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

/// The remediation that the kill interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    /// The provider restarts the VM, and reports the restart on the Machine.
    Restart,
    /// After the restart, the provider leaves the Machine to its owner.
    OwnersTurn,
    /// The driver refuses the restart. The provider reverts the record, and restarts later.
    TakenBack,
}

#[tokio::test(start_paused = true)]
async fn a_restart_is_made_once_whenever_the_provider_is_killed() -> Result<()> {
    survives_a_kill_at_any_point(Scenario::Restart).await
}

#[tokio::test(start_paused = true)]
async fn a_machine_is_left_to_its_owner_whenever_the_provider_is_killed() -> Result<()> {
    survives_a_kill_at_any_point(Scenario::OwnersTurn).await
}

#[tokio::test(start_paused = true)]
async fn a_refused_restart_is_made_once_whenever_the_provider_is_killed() -> Result<()> {
    survives_a_kill_at_any_point(Scenario::TakenBack).await
}

async fn survives_a_kill_at_any_point(scenario: Scenario) -> Result<()> {
    let undisturbed = Trap::counting();
    let (world, cloud) = begun(scenario, &undisturbed).await?;
    ended(&world, scenario).await?;
    restarted(&cloud, 1..=1)?;
    let (calls, writes) = (undisturbed.calls(), undisturbed.writes());
    // The writes are the record, the Machine's status and the remediation's status.
    ensure!(!calls.is_empty() && writes.len() >= 3, "{calls:?}, {writes:?}");
    // The first write to the Machine comes after the restart.
    let reports = writes.iter().position(|write| write == "PATCH machines/status");
    let reports = reports.context("the Machine's status was not written")?;
    for point in undisturbed.points() {
        let last = calls.iter().rposition(|call| *call == Operation::RestartMachine);
        let is_made = matches!(point, Point::Call(call, Side::After) if Some(call) >= last);
        let is_made = is_made || matches!(point, Point::Write(write, _) if write >= reports);
        let killed = killed_at(scenario, point, usize::from(is_made)).await;
        killed.with_context(|| format!("killed at {point:?} of calls {calls:?} and writes {writes:?}"))?;
    }
    Ok(())
}

/// A world with a remediation, and a provider that ends at a point.
async fn begun(scenario: Scenario, trap: &Trap) -> Result<(World, Cloud)> {
    let (world, cloud, _) = world_with("restart-killed", json!({}), &["m"]).await?;
    let provider = without_inventory(&cloud).caught_in(trap);
    trap.arm();
    if scenario == Scenario::TakenBack {
        let refused = json!({"operation": "RestartMachine", "code": "ResourceExhausted", "count": 1});
        cloud.fail(json!([refused]))?;
    }
    let seconds = match scenario {
        Scenario::OwnersTurn => 3,
        Scenario::Restart | Scenario::TakenBack => 24 * 3600,
    };
    let mut replica = provider.start(&world).await?;
    let strategy = json!({"strategy": {"retryLimit": 1, "timeoutSeconds": seconds}});
    remediate(&world, "m", &strategy).await?;
    tokio::select! {
        biased;
        () = trap.sprung() => {}
        ended = ended(&world, scenario) => ended?,
    }
    replica.kill();
    Ok((world, cloud))
}

/// Kills the provider at a point. `certain` is the number of restarts that must have happened by then.
async fn killed_at(scenario: Scenario, point: Point, certain: usize) -> Result<()> {
    let trap = Trap::at(point);
    let (world, cloud) = begun(scenario, &trap).await?;
    ensure!(
        trap.writes().len() + trap.calls().len() > 0,
        "the point is not reached"
    );
    let _again = without_inventory(&cloud).start(&world).await?;
    ended(&world, scenario).await?;
    // An uncertain restart is not repeated, even though the VM may never have been restarted.
    restarted(&cloud, certain..=1)?;
    tokio::time::sleep(A_WHILE).await;
    restarted(&cloud, certain..=1)?;
    ended(&world, scenario).await
}

fn without_inventory(cloud: &Cloud) -> Provider {
    Provider::new(cloud.drivers(json!({})))
        .with(|options| options.inventory_interval = Duration::from_hours(24))
}

/// Waits until a scenario is over.
async fn ended(world: &World, scenario: Scenario) -> Result<()> {
    match scenario {
        Scenario::Restart | Scenario::TakenBack => restarting(world, "m", 1).await,
        Scenario::OwnersTurn => left_to_its_owner(world, "m").await,
    }
}

/// Checks how often the driver has restarted a VM.
fn restarted(cloud: &Cloud, allowed: std::ops::RangeInclusive<usize>) -> Result<()> {
    let calls = cloud.calls()?;
    let is_restart = |call: &&CallLine| {
        call.operation == Operation::RestartMachine
            && call.phase == Phase::Ended
            && call.code.as_deref() == Some("OK")
    };
    let times = calls.iter().filter(is_restart).count();
    ensure!(allowed.contains(&times), "{times} restarts, and not {allowed:?}");
    Ok(())
}

/// A restart counts after a move. The target does not repeat it, even if the answer comes after the move, and
/// the Node's time continues.
#[tokio::test(start_paused = true)]
async fn a_restart_in_flight_counts_after_a_move() -> Result<()> {
    let (source, cloud, _) = world_with("restart-moved", json!({}), &["m"]).await?;
    let target = source.elsewhere().await?;
    let _at_source = patient(&cloud).start(&source).await?;
    let _at_target = patient(&cloud).start(&target).await?;
    cloud.fail(json!([{"operation": "RestartMachine", "hang": "held"}]))?;
    let strategy = json!({"strategy": {"retryLimit": 1, "timeoutSeconds": 20}});
    remediate(&source, "m", &strategy).await?;
    restarts(&cloud, "m", 1).await?;
    let vms = cloud.holds(1).await?;

    source.move_when_unblocked(&target).await?;
    restarting(&target, "m", 1).await?;
    ensure!(ended_restarts(&cloud)? == 0, "the restart was not in flight");
    cloud.fail(json!([]))?;
    one_restart_ends(&cloud).await?;
    tokio::time::sleep(A_WHILE).await;
    restarting(&target, "m", 1).await?;
    restarts(&cloud, "m", 1).await?;

    left_to_its_owner(&target, "m").await?;
    restarts(&cloud, "m", 1).await?;
    let after = cloud.holds(1).await?;
    ensure!(after[0].id == vms[0].id, "another VM than before the move");
    Ok(())
}

/// Creates a remediation like a MachineHealthCheck.
async fn remediate(world: &World, name: &str, spec: &Value) -> Result<()> {
    let request = request(world, &machine(world, name).await?, spec);
    management_cluster::apply(&world.admin, request).await.map(drop)
}

fn request(world: &World, machine: &DynamicObject, spec: &Value) -> Value {
    let name = machine.name_any();
    json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachineRemediation",
        "metadata": {
            "name": name, "namespace": world.namespace,
            "labels": {"cluster.x-k8s.io/cluster-name": machine.data["spec"]["clusterName"]},
            "ownerReferences": [{
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": name,
                "uid": machine.meta().uid,
            }],
        },
        "spec": spec,
    })
}

/// Waits until a remediation reports this number of restarts.
async fn restarting(world: &World, name: &str, count: i32) -> Result<()> {
    eventually(DEADLINE, "a restart that is shown", async || {
        tokio::time::sleep(LOOK).await;
        let found = remediation(world, name).await?.context("no remediation")?;
        let status = found.status.context("no status")?;
        ensure!(
            status.phase == Some(RemediationPhase::Restarting) && status.retry_count == Some(count),
            "{status:?}"
        );
        Ok(())
    })
    .await
}

/// Waits until a Machine is left to its owner for replacement.
async fn left_to_its_owner(world: &World, name: &str) -> Result<()> {
    eventually(DEADLINE, "a Machine that is left to its owner", async || {
        tokio::time::sleep(LOOK).await;
        let machine = machine(world, name).await?;
        for type_ in OWNERS_TURN {
            ensure!(of(&machine, type_)["status"] == "False", "{:#}", machine.data);
        }
        let found = remediation(world, name).await?.context("no remediation")?;
        let phase = found.status.and_then(|status| status.phase);
        ensure!(phase == Some(RemediationPhase::Replacing), "{phase:?}");
        Ok(())
    })
    .await
}

/// Waits until a condition of a remediation is as wanted.
async fn shows(world: &World, name: &str, type_: &str, is_wanted: impl Fn(&Condition) -> bool) -> Result<()> {
    eventually(DEADLINE, &format!("the condition {type_}"), async || {
        let found = remediation(world, name).await?.context("no remediation")?;
        let conditions = found.status.context("no status")?.conditions;
        let shown = conditions.iter().find(|condition| condition.type_ == type_);
        ensure!(shown.is_some_and(&is_wanted), "{conditions:?}");
        Ok(())
    })
    .await
}

fn annotated(paused: bool) -> Value {
    let value = if paused { json!("") } else { Value::Null };
    json!({"metadata": {"annotations": {annotations::PAUSED: value}}})
}

/// Waits until the driver got this number of restart calls for a VM.
async fn restarts(cloud: &Cloud, machine: &str, times: usize) -> Result<()> {
    eventually(DEADLINE, "the restarts", async || {
        let calls = cloud.count(Operation::RestartMachine, machine)?;
        ensure!(calls == times, "{calls} restarts of {machine}, and not {times}");
        Ok(())
    })
    .await
}

/// The number of restart calls that have ended, for all VMs.
fn ended_restarts(cloud: &Cloud) -> Result<usize> {
    let calls = cloud.calls()?;
    let is_end = |call: &&CallLine| call.operation == Operation::RestartMachine && call.phase == Phase::Ended;
    Ok(calls.iter().filter(is_end).count())
}

async fn one_restart_ends(cloud: &Cloud) -> Result<()> {
    eventually(DEADLINE, "the end of the restart", async || {
        ensure!(ended_restarts(cloud)? == 1, "not yet");
        Ok(())
    })
    .await
}

/// Waits for an event about a remediation.
async fn event(world: &World, name: &str, reason: &str) -> Result<()> {
    let events = objects(world, "events.k8s.io", "v1", "Event");
    eventually(DEADLINE, &format!("an event {reason}"), async || {
        let all = events.list(&ListParams::default()).await?.items;
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

fn remediations(world: &World) -> Api<InfraMachineRemediation> {
    Api::namespaced(world.admin.clone(), &world.namespace)
}

async fn remediation(world: &World, name: &str) -> Result<Option<InfraMachineRemediation>> {
    Ok(remediations(world).get_opt(name).await?)
}

async fn machine(world: &World, name: &str) -> Result<DynamicObject> {
    let machines = objects(world, "cluster.x-k8s.io", "v1beta2", "Machine");
    Ok(machines.get(name).await?)
}

/// A condition of a Cluster API object.
fn of(object: &DynamicObject, type_: &str) -> Value {
    let all = object.data["status"]["conditions"].as_array();
    all.into_iter()
        .flatten()
        .find(|condition| condition["type"] == type_)
        .cloned()
        .unwrap_or_default()
}
