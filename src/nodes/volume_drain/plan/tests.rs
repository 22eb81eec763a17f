use serde_json::{Value, json};

use super::*;
use crate::api::cluster_api::{ClusterSpec, MachineSpec};
use crate::api::identity::fixtures::{existing, in_state};
use crate::api::v1alpha1::InfraMachineSpec;

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

fn annotate(meta: &mut ObjectMeta, key: &str, value: &str) {
    let all = meta.annotations.get_or_insert_default();
    all.insert(key.to_owned(), value.to_owned());
}

/// The inputs for a Machine in deletion while Cluster API waits for the provider.
struct Seen {
    enabled: bool,
    machine: Machine,
    infra: InfraMachine,
    cluster: Cluster,
    live: Value,
    outage: Option<Duration>,
}

impl Seen {
    fn new() -> Self {
        let mut machine = Machine::new("m", MachineSpec::default());
        machine.metadata.deletion_timestamp = Some(Time(now()));
        annotate(&mut machine.metadata, annotations::VOLUME_DRAIN_HOOK, "");
        let mut infra = InfraMachine::new("m", InfraMachineSpec::default());
        infra.spec.provider_id = Some("p".to_owned());
        infra.metadata.namespace = Some("ns".to_owned());
        let made = json!({"driver": "pool", "providerSpec": {}});
        annotate(
            &mut infra.metadata,
            annotations::VM_RECORD,
            &existing("ns/m/u", &made),
        );
        annotate(&mut infra.metadata, annotations::VOLUME_DRAIN, "5m");
        Self {
            enabled: true,
            machine,
            infra,
            cluster: Cluster::new("c", ClusterSpec::default()),
            live: json!({
                "metadata": {"name": "m", "deletionTimestamp": "2026-01-01T00:58:00Z"},
                "spec": {"deletion": {}},
                "status": {
                    "nodeRef": {"name": "n"},
                    "deletion": {"waitForPreDrainHookStartTime": "2026-01-01T00:59:00Z"},
                },
            }),
            outage: None,
        }
    }

    fn with(change: impl FnOnce(&mut Self)) -> Self {
        let mut seen = Self::new();
        change(&mut seen);
        seen
    }

    /// The plan as a short text.
    fn plan(&self) -> String {
        self.plan_with(Infra::Found(Box::new(self.infra.clone())))
    }

    fn plan_with(&self, infra: Infra) -> String {
        let observed = Observed {
            enabled: self.enabled,
            machine: Arc::new(self.machine.clone()),
            infra,
            cluster: Some(Arc::new(self.cluster.clone())),
            live: serde_json::from_value(self.live.clone()).unwrap(),
            rules: None,
            outage: self.outage,
            now: now(),
        };
        match plan(&observed) {
            Plan::NoOp => "nothing".to_owned(),
            Plan::Wait(time) => format!("wait {time:?}"),
            Plan::Publish(report) => format!("show {:?}", report.map(|report| report.reason)),
            Plan::SetHook => "set".to_owned(),
            Plan::RemoveHook(end) => format!("release {end:?}"),
            Plan::Drain(target, _) => format!("drain {} {:?}", target.node, target.timeout),
        }
    }
}

#[test]
fn pods_are_evicted_while_cluster_api_waits_for_the_hook_and_not_before() {
    assert_eq!(Seen::new().plan(), "drain n 300s");
    let early = Seen::with(|seen| seen.live["status"]["deletion"] = json!({}));
    assert_eq!(early.plan(), "nothing");
}

/// v1.11 to v1.13 lack the field.
#[test]
fn pods_are_evicted_for_a_cluster_api_that_only_sets_the_condition() {
    let says = |condition: Value, timeout: u32| {
        Seen::with(|seen| {
            seen.live["status"]["deletion"] = json!({"nodeDrainStartTime": null});
            seen.live["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}, condition]);
            seen.live["spec"]["deletion"] = json!({"nodeDrainTimeoutSeconds": timeout});
        })
    };
    let deleting = |status: &str, reason: &str| {
        json!({"type": "Deleting", "status": status, "reason": reason,
            "lastTransitionTime": "2026-01-01T00:59:00Z"})
    };
    let waits = deleting("True", "WaitingForPreDrainHook");
    assert_eq!(says(waits.clone(), 61).plan(), "drain n 300s");
    assert_eq!(says(waits, 60).plan(), "release TimedOut(60s)");
    for (status, reason) in [("True", "DrainingNode"), ("False", "WaitingForPreDrainHook")] {
        assert_eq!(
            says(deleting(status, reason), 60).plan(),
            "nothing",
            "{status} {reason}"
        );
    }
    let mut timeless = deleting("True", "WaitingForPreDrainHook");
    timeless.as_object_mut().unwrap().remove("lastTransitionTime");
    assert_eq!(says(timeless.clone(), 121).plan(), "drain n 300s");
    assert_eq!(says(timeless, 120).plan(), "release TimedOut(120s)");
}

#[test]
fn the_hook_is_set_on_request_and_never_during_a_deletion() {
    let bare = |seen: &mut Seen| seen.machine.metadata.annotations = None;
    let alive = |seen: &mut Seen| seen.machine.metadata.deletion_timestamp = None;
    assert_eq!(Seen::with(bare).plan(), "nothing");
    let both = |seen: &mut Seen| {
        bare(seen);
        alive(seen);
    };
    assert_eq!(Seen::with(both).plan(), "set");
    assert_eq!(Seen::with(alive).plan(), "show None");
    let invalid = Seen::with(|seen| {
        alive(seen);
        annotate(&mut seen.infra.metadata, annotations::VOLUME_DRAIN, "soon");
    });
    assert_eq!(invalid.plan(), "show Some(\"InvalidVolumeDrain\")");
    let never_asked = Seen::with(|seen| {
        both(seen);
        seen.infra.metadata.annotations = None;
    });
    assert_eq!(never_asked.plan(), "show None");
}

#[test]
fn the_hook_goes_when_it_is_not_asked_for_any_more_or_the_feature_is_off() {
    let off = Seen::with(|seen| seen.enabled = false);
    assert_eq!(off.plan(), "release NotAskedFor");
    let opted_out = Seen::with(|seen| seen.infra.metadata.annotations = None);
    assert_eq!(opted_out.plan(), "release NotAskedFor");
    let said_no = Seen::with(|seen| annotate(&mut seen.infra.metadata, annotations::VOLUME_DRAIN, "false"));
    assert_eq!(said_no.plan(), "release NotAskedFor");
    let alive = Seen::with(|seen| {
        seen.enabled = false;
        seen.machine.metadata.deletion_timestamp = None;
    });
    assert_eq!(alive.plan(), "release NotAskedFor");
}

#[test]
fn the_hook_goes_with_the_infra_machine_and_another_replicas_stays() {
    assert_eq!(Seen::new().plan_with(Infra::Gone), "release NoInfraMachine");
    assert_eq!(Seen::new().plan_with(Infra::Unknown), "wait 7140s");
    let deleted = Seen::with(|seen| seen.infra.metadata.deletion_timestamp = Some(Time(now())));
    assert_eq!(deleted.plan(), "release NoInfraMachine");
}

#[test]
fn what_cluster_api_does_not_drain_is_not_drained_here() {
    for key in [
        annotations::EXCLUDE_NODE_DRAINING,
        annotations::EXCLUDE_VOLUME_DETACH,
    ] {
        let excluded = Seen::with(|seen| seen.live["metadata"]["annotations"] = json!({key: ""}));
        assert!(
            excluded.plan().starts_with("release Skipped"),
            "{}",
            excluded.plan()
        );
    }
    let cluster = Seen::with(|seen| seen.cluster.metadata.deletion_timestamp = Some(Time(now())));
    assert!(
        cluster.plan().starts_with("release Skipped"),
        "{}",
        cluster.plan()
    );
    let without = Seen::with(|seen| seen.live["status"]["nodeRef"] = json!({"name": ""}));
    assert!(
        without.plan().starts_with("release Skipped"),
        "{}",
        without.plan()
    );
}

#[test]
fn nothing_is_done_that_is_paused() {
    let cluster = Seen::with(|seen| seen.cluster.spec.paused = Some(true));
    let infra = Seen::with(|seen| annotate(&mut seen.infra.metadata, annotations::PAUSED, ""));
    let machine = Seen::with(|seen| seen.live["metadata"]["annotations"] = json!({annotations::PAUSED: ""}));
    for seen in [cluster, infra, machine] {
        assert_eq!(seen.plan(), "nothing");
    }
}

#[test]
fn the_wait_for_volumes_never_exceeds_the_nodes_detach_timeout() {
    let limited = |seconds: u32| {
        Seen::with(|seen| seen.live["spec"]["deletion"]["nodeVolumeDetachTimeoutSeconds"] = json!(seconds))
    };
    assert_eq!(limited(60).plan(), "drain n 60s");
    assert_eq!(limited(600).plan(), "drain n 300s");
    assert_eq!(limited(0).plan(), "drain n 300s");
}

/// With any cause of a delay: a budget, a dead workload cluster, or a driver.
#[test]
fn the_hook_ends_after_the_drain_timeout_two_hours_or_an_outage() {
    let limited = |seconds: u32| {
        Seen::with(|seen| seen.live["spec"]["deletion"]["nodeDrainTimeoutSeconds"] = json!(seconds))
    };
    assert_eq!(limited(60).plan(), "release TimedOut(60s)");
    assert_eq!(limited(61).plan(), "drain n 300s");
    // No limit, as in Cluster API.
    assert_eq!(limited(0).plan(), "drain n 300s");
    let begun = |at: &str| {
        Seen::with(|seen| seen.live["status"]["deletion"]["waitForPreDrainHookStartTime"] = json!(at))
    };
    assert_eq!(begun("2025-12-31T23:00:00Z").plan(), "release TimedOut(7200s)");
    assert_eq!(begun("2025-12-31T23:00:01Z").plan(), "drain n 300s");
    let away = |outage| Seen::with(|seen| seen.outage = Some(outage)).plan();
    assert_eq!(away(MAX_OUTAGE), "release Outage");
    assert_eq!(
        away(MAX_OUTAGE.saturating_sub(Duration::from_secs(1))),
        "drain n 300s"
    );
}

/// Cluster API finds the Node of an unconfirmed adoption by its providerID, which may belong to another
/// machine.
#[test]
fn the_node_of_a_machine_without_a_vm_of_its_own_is_left_alone() {
    let expected = "release Skipped(\"the machine has no VM of its own\")";
    let unconfirmed = Seen::with(|seen| {
        let all = seen.infra.metadata.annotations.get_or_insert_default();
        all.remove(annotations::VM_RECORD);
    });
    assert_eq!(unconfirmed.plan(), expected);
    let made = json!({"driver": "pool", "providerSpec": {}});
    let none = in_state("ns/m/u", &json!({"name": "None"}), &made);
    let none = Seen::with(|seen| annotate(&mut seen.infra.metadata, annotations::VM_RECORD, &none));
    assert_eq!(none.plan(), expected);
}

/// A user can make an InfraMachine unreadable, or give it another owner.
#[test]
fn no_infra_machine_holds_a_deletion_up_for_ever() {
    let seen = Seen::new();
    assert_eq!(
        seen.plan_with(Infra::Unreadable),
        "release Skipped(\"the InfraMachine cannot be read\")"
    );
    assert_eq!(seen.plan_with(Infra::Unknown), "wait 7140s");
    let later = Seen::with(|seen| {
        seen.live["spec"]["deletion"] = json!({"nodeDrainTimeoutSeconds": 60});
    });
    assert_eq!(later.plan_with(Infra::Unknown), "release TimedOut(60s)");
    let off = Seen::with(|seen| {
        seen.enabled = false;
        seen.live["spec"]["deletion"] = json!({"nodeDrainTimeoutSeconds": 60});
    });
    assert_eq!(off.plan_with(Infra::Unknown), "release TimedOut(60s)");
    let alive = Seen::with(|seen| seen.machine.metadata.deletion_timestamp = None);
    assert_eq!(alive.plan_with(Infra::Unreadable), "nothing");
    // Cluster API does not report that it waits, so the time counts from the deletion.
    let unsaid = |timeout: u32| {
        Seen::with(|seen| {
            seen.live["status"]["deletion"] = json!({});
            seen.live["spec"]["deletion"] = json!({"nodeDrainTimeoutSeconds": timeout});
        })
    };
    assert_eq!(unsaid(121).plan_with(Infra::Unknown), "wait 1s");
    assert_eq!(unsaid(120).plan_with(Infra::Unknown), "release TimedOut(120s)");
}
