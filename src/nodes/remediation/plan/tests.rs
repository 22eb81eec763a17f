use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::*;
use crate::api::cluster_api::ClusterSpec;
use crate::api::v1alpha1::{InfraMachineRemediationSpec, InfraMachineRemediationStatus, RemediationStrategy};
use crate::api::{GROUP, annotations};
use crate::driver::{KnownDriver, StableReachability};
use cmi_driver::{Capabilities, Code, Status};

const TIMEOUT: i64 = 60;
const LIMIT: u32 = 2;
const CREATED: i64 = 1_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A remediation of an unhealthy Machine whose VM may be restarted, with all related objects.
#[derive(Debug)]
struct World {
    remediation: InfraMachineRemediation,
    machine: Option<Value>,
    cluster: Option<Cluster>,
    infra: Option<InfraMachine>,
    driver: fn() -> Result<DriverState, ResolveError>,
}

fn record(machine: &str) -> String {
    let made = json!({"driver": "pool", "providerSpec": {"size": "small"}});
    crate::api::identity::fixtures::existing(machine, &made)
}

fn world() -> World {
    let strategy = RemediationStrategy {
        retry_limit: Some(2),
        timeout_seconds: Some(60),
        ..RemediationStrategy::default()
    };
    let spec = InfraMachineRemediationSpec {
        strategy: Some(strategy),
    };
    let mut remediation = InfraMachineRemediation::new("m", spec);
    remediation.metadata.creation_timestamp = Some(Time(at(CREATED)));
    let machine = json!({
        "metadata": {"name": "m", "uid": "u"},
        "spec": {
            "clusterName": "c",
            "infrastructureRef": {"apiGroup": GROUP, "kind": "InfraMachine", "name": "m"},
        },
        "status": {"conditions": [{"type": "HealthCheckSucceeded", "status": "False"}]},
    });
    let infra = json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachine",
        "metadata": {
            "name": "m", "namespace": "ns",
            "annotations": {annotations::VM_RECORD: record("ns/m/u-1")},
            "ownerReferences": [{
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": "m", "uid": "u",
                "controller": true,
            }],
        },
        "spec": {"providerID": "simulated://a/1"},
    });
    World {
        remediation,
        machine: Some(machine),
        cluster: Some(Cluster::new("c", ClusterSpec::default())),
        infra: Some(serde_json::from_value(infra).unwrap()),
        driver: || Ok(driver(true, true)),
    }
}

fn driver(offers: bool, is_current: bool) -> DriverState {
    let mut capabilities = Capabilities::minimal();
    capabilities
        .operations
        .extend(offers.then_some(Operation::RestartMachine));
    DriverState::Known(KnownDriver {
        name: Arc::from("simulated"),
        capabilities: Arc::new(capabilities),
        is_current,
        create_given_up_after: Duration::from_secs(1),
        create_settle_time: Duration::from_secs(1),
        reachability: StableReachability::Reachable,
    })
}

impl World {
    fn restarted(mut self, count: u32, issued_at: i64) -> Self {
        let annotations = [
            (annotations::RESTARTS.to_owned(), count.to_string()),
            (
                annotations::RESTART_ISSUED_AT.to_owned(),
                at(issued_at).to_string(),
            ),
        ];
        self.remediation.metadata.annotations = Some(annotations.into());
        self
    }

    fn machine(mut self, path: &str, value: Value) -> Self {
        *self.machine.as_mut().unwrap().pointer_mut(path).unwrap() = value;
        self
    }

    fn plan(&self, now: i64) -> Plan {
        let machine = self.machine.clone();
        let machine = machine.map(|machine| Box::new(serde_json::from_value(machine).unwrap()));
        let observed = Observed {
            owner: machine.map_or(Owner::Missing, Owner::Found),
            cluster: self.cluster.clone().map(Arc::new),
            infra: self.infra.clone(),
            driver: Some((self.driver)()),
            now: at(now),
        };
        plan(&self.remediation, &observed)
    }

    /// The phase, the reason, and whether the owner must remediate.
    #[track_caller]
    fn outcome(&self, now: i64) -> (RemediationPhase, String, bool) {
        match self.plan(now) {
            Plan::Publish(outcome) => (
                outcome.phase,
                outcome.reason,
                outcome
                    .owner_remediation
                    .is_some_and(|owner_remediation| owner_remediation.owner_must_remediate),
            ),
            other => panic!("{other:?}"),
        }
    }
}

fn waiting_for(reason: &str) -> (RemediationPhase, String, bool) {
    (RemediationPhase::Waiting, reason.to_owned(), false)
}

fn replaced_for(reason: &str) -> (RemediationPhase, String, bool) {
    (RemediationPhase::Replacing, reason.to_owned(), true)
}

#[test]
fn a_vm_is_restarted_up_to_the_limit_and_then_left_to_its_owner() {
    let count = |plan: Plan| match plan {
        Plan::Restart(restart) => Some((
            restart.before.count,
            restart.record.count,
            restart.record.issued_at,
        )),
        _ => None,
    };
    let mut issued = CREATED + 5;
    assert_eq!(count(world().plan(issued)), Some((0, 1, Some(at(issued)))));
    for number in 1..=LIMIT {
        let restarted = || world().restarted(number, issued);
        assert_eq!(count(restarted().plan(issued + TIMEOUT - 1)), None);
        let now = issued + TIMEOUT;
        if number < LIMIT {
            assert_eq!(
                count(restarted().plan(now)),
                Some((number, number + 1, Some(at(now))))
            );
        } else {
            assert_eq!(restarted().outcome(now), replaced_for(reason::RESTARTS_EXHAUSTED));
        }
        issued = now;
    }
}

/// After a crash or a move right after the record: the restart counts, whether or not it was made.
#[test]
fn an_unpublished_restart_gets_its_time_and_is_published() {
    let unshown = world().restarted(1, CREATED);
    let (phase, reason, _) = unshown.outcome(CREATED + 1);
    assert_eq!(
        (phase, reason.as_str()),
        (RemediationPhase::Restarting, reason::RESTARTED)
    );
    let mut shown = world().restarted(1, CREATED);
    shown.remediation.status = Some(InfraMachineRemediationStatus {
        phase: Some(RemediationPhase::Restarting),
        retry_count: Some(1),
        ..InfraMachineRemediationStatus::default()
    });
    let left = Requeue::After(Duration::from_secs(59));
    assert_eq!(shown.plan(CREATED + 1), Plan::Later(left));
}

/// Without an answer, the user would wait for an effect.
#[test]
fn a_changed_spec_is_answered_during_a_restart_and_when_it_is_too_late() {
    let now = CREATED + 1;
    let shown = |phase, cause: &str| {
        let mut world = world().restarted(1, CREATED);
        let mut conditions = Vec::new();
        let holds = ConditionStatus::True;
        conditions::set(&mut conditions, READY, holds, cause, "before", None, at(CREATED));
        world.remediation.status = Some(InfraMachineRemediationStatus {
            phase: Some(phase),
            retry_count: Some(1),
            conditions,
            observed_generation: Some(1),
            ..InfraMachineRemediationStatus::default()
        });
        world.remediation.metadata.generation = Some(2);
        world
    };
    let state = |world: &World| match world.plan(now) {
        Plan::Publish(state) => (state.reason, state.message),
        other => panic!("{other:?}"),
    };
    let mut restarting = shown(RemediationPhase::Restarting, reason::RESTARTED);
    let strategy = restarting.remediation.spec.strategy.as_mut().unwrap();
    (strategy.retry_limit, strategy.timeout_seconds) = (Some(7), Some(90));
    let (why, message) = state(&restarting);
    assert_eq!(why, reason::RESTARTED);
    let until = format!("until {:.0}", at(CREATED + 90));
    assert!(
        message.contains("at most 7 times") && message.contains(&until),
        "{message}"
    );

    let failed = json!({"type": "HealthCheckSucceeded", "status": "False"});
    let left = json!({"type": "OwnerRemediated", "status": "False"});
    let mut replacing = shown(RemediationPhase::Replacing, reason::RESTARTS_EXHAUSTED)
        .machine("/status/conditions", json!([failed, left]));
    let cause = (reason::RESTARTS_EXHAUSTED.to_owned(), "before".to_owned());
    assert_eq!(state(&replacing), cause);
    for observed in [&mut restarting, &mut replacing] {
        observed.remediation.metadata.generation = Some(1);
        assert!(matches!(observed.plan(now), Plan::Later(_)), "{observed:?}");
    }
}

/// Possible causes: the clock was set back, a move came from a host whose clock is ahead, or a user set the
/// annotation.
#[test]
fn a_restart_recorded_in_the_future_counts_without_a_wait_for_its_node() {
    for ahead in [31, 1_000_000, 253_402_000_000 - CREATED] {
        match world().restarted(1, CREATED + ahead).plan(CREATED) {
            Plan::Restart(restart) => assert_eq!(restart.record.count, 2),
            other => panic!("{ahead}: {other:?}"),
        }
    }
    let left = |issued: i64, now: i64| match world().restarted(1, issued).plan(now) {
        Plan::Publish(outcome) => Some(outcome.requeue),
        Plan::Restart(_) => None,
        other => panic!("{other:?}"),
    };
    // Clocks may differ by this much. The Node gets that much longer, without a write.
    let whole = Some(Requeue::After(Duration::from_mins(1)));
    assert_eq!(left(CREATED + 30, CREATED), whole);
    assert_eq!(left(CREATED + 30, CREATED + 30 + TIMEOUT), None);
}

/// Otherwise each remediation would have its own limit of restarts.
#[test]
fn only_the_remediation_with_the_machines_name_restarts_its_vm() {
    let mut second = world();
    second.remediation.metadata.name = Some("n".to_owned());
    assert!(matches!(world().plan(CREATED), Plan::Restart(_)));
    assert_eq!(second.outcome(CREATED), waiting_for(reason::WAITING_FOR_OWNER));
    assert_eq!(
        second.outcome(CREATED + TIMEOUT),
        waiting_for(reason::WAITING_FOR_OWNER)
    );
}

#[test]
fn whatever_pauses_it_keeps_its_vm_as_it_is() {
    let annotation = || Some([(annotations::PAUSED.to_owned(), String::new())].into());
    let mut paused = [world(), world(), world(), world()];
    paused[0].remediation.metadata.annotations = annotation();
    paused[1].cluster.as_mut().unwrap().spec.paused = Some(true);
    paused[2]
        .infra
        .as_mut()
        .unwrap()
        .metadata
        .annotations
        .as_mut()
        .unwrap()
        .extend(annotation().unwrap());
    paused[3].machine.as_mut().unwrap()["metadata"]["annotations"] = json!({annotations::PAUSED: ""});
    for (world, by) in paused
        .iter()
        .zip(["InfraMachineRemediation", "Cluster", "InfraMachine ", "Machine "])
    {
        match world.plan(CREATED + 1) {
            Plan::Pause(what) => assert!(what.starts_with(by), "{what}"),
            other => panic!("{by}: {other:?}"),
        }
    }
    let mut thrice = world();
    thrice.remediation.metadata.annotations = annotation();
    thrice.cluster.as_mut().unwrap().spec.paused = Some(true);
    thrice.machine.as_mut().unwrap()["metadata"]["annotations"] = json!({annotations::PAUSED: ""});
    let by_all = "Cluster spec.paused is set to true; InfraMachineRemediation has the \
        cluster.x-k8s.io/paused annotation; Machine has the cluster.x-k8s.io/paused annotation; remove the \
        pause to resume";
    assert_eq!(thrice.plan(CREATED + 1), Plan::Pause(by_all.to_owned()));
}

#[test]
fn nothing_is_done_for_what_goes_or_is_well_or_is_replaced_already() {
    let now = CREATED + 1;
    let mut deleted = world();
    deleted.remediation.metadata.deletion_timestamp = Some(Time(at(now)));
    assert_eq!(deleted.plan(now), Plan::NoOp);
    let healthy = world().machine("/status/conditions/0/status", json!("True"));
    assert_eq!(healthy.plan(now), Plan::Later(Requeue::OnChange));
    let failed = json!({"type": "HealthCheckSucceeded", "status": "False"});
    let replaced = json!({"type": "OwnerRemediated", "status": "False", "reason": "RemediationDeferred"});
    let told = world().machine("/status/conditions", json!([failed, replaced]));
    let mut going = world();
    going.machine.as_mut().unwrap()["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    for world in [told, going] {
        let left = (
            RemediationPhase::Replacing,
            reason::LEFT_TO_OWNER.to_owned(),
            false,
        );
        assert_eq!(world.outcome(now), left);
    }
    let mut without = world();
    without.machine = None;
    assert_eq!(without.outcome(now), waiting_for(reason::WAITING_FOR_OWNER));
    let mut moving = world();
    moving.cluster = None;
    assert_eq!(moving.plan(now), Plan::Later(Requeue::OnChange));
}

/// Only VMs that this provider created, and that are provisioned.
#[test]
fn a_machine_without_its_own_vm_is_left_to_its_owner_after_a_while() {
    let mut worlds = [world(), world(), world(), world(), world(), world()];
    worlds[0].infra = None;
    worlds[1].infra.as_mut().unwrap().spec.provider_id = None;
    let foreign = record("ns/other/u-1");
    let annotations = worlds[2]
        .infra
        .as_mut()
        .unwrap()
        .metadata
        .annotations
        .as_mut()
        .unwrap();
    annotations.insert(annotations::VM_RECORD.to_owned(), foreign);
    worlds[3].infra.as_mut().unwrap().metadata.deletion_timestamp = Some(Time(at(CREATED)));
    worlds[4].machine.as_mut().unwrap()["spec"]["infrastructureRef"]["kind"] = json!("DevMachine");
    // It names the InfraMachine of another Machine.
    let owners = worlds[5]
        .infra
        .as_mut()
        .unwrap()
        .metadata
        .owner_references
        .as_mut();
    owners.unwrap()[0].uid = "other".to_owned();
    for world in &worlds {
        let reason = reason::WAITING_FOR_VIRTUAL_MACHINE;
        assert_eq!(world.outcome(CREATED + TIMEOUT - 1), waiting_for(reason));
        assert_eq!(
            world.outcome(CREATED + TIMEOUT),
            replaced_for(reason::RESTART_NOT_POSSIBLE)
        );
    }
}

#[test]
fn only_a_driver_without_restarts_leaves_the_machine_to_its_owner() {
    let of = |driver: fn() -> _| World { driver, ..world() };
    let now = CREATED + 1;
    assert_eq!(
        of(|| Ok(driver(false, true))).outcome(now),
        replaced_for(reason::RESTART_NOT_POSSIBLE)
    );
    let wait = Plan::Later(Requeue::After(PERMIT_WAIT));
    assert_eq!(of(|| Ok(driver(false, false))).plan(now), wait);
    assert_eq!(of(|| Ok(DriverState::Pending)).plan(now), wait);
    let away = || {
        let status = Status::new(Code::Unavailable, "connection refused");
        Ok(DriverState::Unknown(status))
    };
    assert_eq!(of(away).outcome(now), waiting_for("Unavailable"));
}

/// The MachineHealthCheck may be about to find the Machine healthy.
#[test]
fn a_machine_whose_node_has_just_come_back_is_not_left_to_its_owner() {
    let end = CREATED + TIMEOUT;
    let failed = json!({"type": "HealthCheckSucceeded", "status": "False"});
    let back = |since: i64| {
        let healthy =
            json!({"type": "NodeHealthy", "status": "True", "lastTransitionTime": at(since).to_string()});
        world()
            .restarted(LIMIT, CREATED)
            .machine("/status/conditions", json!([failed, healthy]))
    };
    assert_eq!(
        back(end - 1).plan(end),
        Plan::Later(Requeue::After(Duration::from_secs(29)))
    );
    assert_eq!(
        back(end - 30).outcome(end),
        replaced_for(reason::RESTARTS_EXHAUSTED)
    );
}

/// A Machine with the condition of its MachineHealthCheck, and the time since when its Node is healthy.
fn with_conditions(world: World, check: Option<&str>, healthy_since: Option<i64>) -> World {
    let check = check.map(|status| json!({"type": "HealthCheckSucceeded", "status": status}));
    let node = healthy_since.map(
        |since| json!({"type": "NodeHealthy", "status": "True", "lastTransitionTime": at(since).to_string()}),
    );
    let conditions: Vec<_> = check.into_iter().chain(node).collect();
    world.machine("/status/conditions", json!(conditions))
}

/// It makes no difference whether the Node came back just before this timeout or before the last one.
#[test]
fn a_vm_whose_node_has_just_come_back_is_not_restarted_again() {
    let end = CREATED + TIMEOUT;
    let back = |since| with_conditions(world().restarted(1, CREATED), Some("False"), Some(since));
    assert_eq!(
        back(end - 1).plan(end),
        Plan::Later(Requeue::After(Duration::from_secs(29)))
    );
    assert!(matches!(back(end - 30).plan(end), Plan::Restart(_)));
}

/// A MachineHealthCheck is inactive during a pause, so its earlier condition is outdated when the pause ends.
#[test]
fn the_time_of_a_node_begins_anew_when_a_pause_ends() {
    let resumed = CREATED + 10 * TIMEOUT;
    let mut world = with_conditions(world().restarted(1, CREATED), Some("False"), None);
    let mut conditions = Vec::new();
    let (holds, why) = (ConditionStatus::False, reason::NOT_PAUSED);
    conditions::set(&mut conditions, PAUSED, holds, why, "", None, at(resumed));
    world.remediation.status = Some(InfraMachineRemediationStatus {
        phase: Some(RemediationPhase::Restarting),
        retry_count: Some(1),
        conditions,
        ..InfraMachineRemediationStatus::default()
    });
    let in_time = Plan::Later(Requeue::After(Duration::from_secs(TIMEOUT.unsigned_abs() - 1)));
    assert_eq!(world.plan(resumed + 1), in_time);
    assert!(matches!(world.plan(resumed + TIMEOUT), Plan::Restart(_)));
}

/// `clusterctl move` creates the remediation again without the MachineHealthCheck's condition, so the health
/// of the Node decides.
#[test]
fn after_a_move_a_machine_with_a_healthy_node_is_left_alone() {
    let (moved, end) = (CREATED + 100, CREATED + 100 + TIMEOUT);
    for count in [0, 1, LIMIT] {
        let mut world = with_conditions(world().restarted(count, CREATED), None, Some(CREATED + 50));
        world.remediation.metadata.creation_timestamp = Some(Time(at(moved)));
        assert_eq!(
            world.outcome(end),
            waiting_for(reason::WAITING_FOR_HEALTH_CHECK),
            "{count}"
        );
    }
    let mut silent = with_conditions(world().restarted(LIMIT, CREATED), None, None);
    silent.remediation.metadata.creation_timestamp = Some(Time(at(moved)));
    assert!(!silent.outcome(end - 1).2, "the Node has its time anew");
    assert_eq!(silent.outcome(end), replaced_for(reason::RESTARTS_EXHAUSTED));
}

/// The VM to adopt may run as a Node, and a replacement of its Machine would drain the Node.
#[test]
fn a_machine_that_waits_for_its_adoption_is_never_replaced() {
    let mut world = world();
    let annotations = [(annotations::ADOPT.to_owned(), "{}".to_owned())];
    world.infra.as_mut().unwrap().metadata.annotations = Some(annotations.into());
    let later = CREATED + 1000 * TIMEOUT;
    assert_eq!(
        world.outcome(later),
        waiting_for(reason::WAITING_FOR_VIRTUAL_MACHINE)
    );
}

#[test]
fn a_vm_that_another_extension_updates_is_not_restarted() {
    let mut world = world();
    let annotations = world.infra.as_mut().unwrap().metadata.annotations.as_mut();
    let key = "in-place-updates.internal.cluster.x-k8s.io/update-in-progress";
    annotations.unwrap().insert(key.to_owned(), String::new());
    assert_eq!(
        world.outcome(CREATED),
        waiting_for(reason::WAITING_FOR_VIRTUAL_MACHINE)
    );
    assert_eq!(
        world.outcome(CREATED + TIMEOUT),
        replaced_for(reason::RESTART_NOT_POSSIBLE)
    );
}

/// The status does not move along, so it is published again, with the Node's time at the target.
#[test]
fn after_a_move_it_is_said_until_when_the_node_has_time_at_the_target() {
    let moved = CREATED + 30;
    let mut world = world().restarted(1, CREATED);
    world.remediation.metadata.creation_timestamp = Some(Time(at(moved)));
    let Plan::Publish(outcome) = world.plan(moved) else {
        panic!("nothing is said");
    };
    let until = format!("until {:.0}", at(moved + TIMEOUT));
    assert!(outcome.message.contains(&until), "{}", outcome.message);
    assert_eq!(
        outcome.requeue,
        Requeue::After(Duration::from_secs(TIMEOUT.unsigned_abs()))
    );
}
