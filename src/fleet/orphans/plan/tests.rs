//! Each rule alone. [`interleavings`] tests all rules together.

mod interleavings;

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::api::DeserializeGuard;
use crate::api::annotations;
use crate::api::cluster_api::Cluster;
use crate::api::v1alpha1::{InfraCluster, InfraMachine};
use crate::fleet::orphans::owner::{CommonTexts, LiveMachine};

const HOUR: Duration = Duration::from_hours(1);
const GAP: Duration = Duration::from_mins(10);

fn scope() -> Scope {
    Scope {
        cluster: NamespacedName::new("ns", "c"),
        uid: "u-c".to_owned(),
        cluster_id: "c-1".to_owned(),
    }
}

/// A VM of Cluster `c` that was made for the machine object `id`, two hours ago.
fn vm(name: &str, id: &str) -> ListedMachine {
    ListedMachine {
        cluster_id: Some("c-1".to_owned()),
        machine_id: Some(id.to_owned()),
        created_at: Some(Timestamp::UNIX_EPOCH),
        ..ListedMachine::new(format!("p-{name}-{id}").parse().unwrap(), name)
    }
}

/// A machine of Cluster `c` with the identity `id` and, if given, a VM.
fn machine(name: &str, id: &str, provider_id: Option<&str>) -> LiveMachine {
    LiveMachine {
        key: NamespacedName::new("ns", name),
        uid: format!("uid-{id}").into(),
        cluster: Some("c".into()),
        cluster_id: Some("c-1".into()),
        identity: Some(id.into()),
        may_have_vm: true,
        provider_id: provider_id.map(Box::from),
        is_readable: true,
        is_moving: false,
    }
}

fn cluster(change: impl FnOnce(&mut Value)) -> Arc<Cluster> {
    let mut cluster = json!({
        "metadata": {"namespace": "ns", "name": "c", "uid": "u-c"},
        "spec": {"infrastructureRef": {"apiGroup": "infrastructure.capcmi.io", "kind": "InfraCluster",
        "name": "c"}},
    });
    change(&mut cluster);
    Arc::new(serde_json::from_value(cluster).unwrap())
}

fn infra_cluster(change: impl FnOnce(&mut Value)) -> Arc<DeserializeGuard<InfraCluster>> {
    let mut infra = json!({
        "metadata": {"namespace": "ns", "name": "c", "annotations": {annotations::CLUSTER_ID: "c-1"}},
        "spec": {},
    });
    change(&mut infra);
    Arc::new(DeserializeGuard(Ok(serde_json::from_value(infra).unwrap())))
}

fn live(machines: Vec<LiveMachine>) -> Live {
    Live::new(machines, &[infra_cluster(|_| {})], &[cluster(|_| {})], true)
}

/// A sequence of lists, with times in seconds after the start.
struct Passes {
    start: Instant,
    observations: Observations,
    policy: DeletionPolicy,
    /// The identities whose deletion was observed.
    observed_deletion: Vec<&'static str>,
}

fn passes() -> Passes {
    Passes {
        start: Instant::now(),
        observations: Observations::new(),
        policy: DeletionPolicy {
            delete: true,
            gap: GAP,
            min_age: HOUR,
        },
        observed_deletion: vec!["m"],
    }
}

impl Passes {
    fn classify(&mut self, seconds: u64, vms: &[ListedMachine], live: &Live) -> Vec<Finding> {
        let clock = self.clock(seconds);
        let observed_deletion = |id: &str| self.observed_deletion.contains(&id);
        classify(
            &scope(),
            vms,
            |_| true,
            live,
            observed_deletion,
            &mut self.observations,
            (self.policy, clock),
        )
    }

    fn clock(&self, seconds: u64) -> Clock {
        let now = Timestamp::UNIX_EPOCH + HOUR * 2 + Duration::from_secs(seconds);
        Clock {
            requested_at: self.start + Duration::from_secs(seconds),
            now,
        }
    }

    /// The finding about one VM after two observations.
    fn settled(&mut self, vm: &ListedMachine, live: &Live) -> Finding {
        self.classify(0, std::slice::from_ref(vm), live);
        let mut findings = self.classify(600, std::slice::from_ref(vm), live);
        findings.pop().unwrap()
    }
}

fn key(name: &str) -> NamespacedName {
    NamespacedName::new("ns", name)
}

/// CTL-LM-00, CLI-LM-00
#[test]
fn a_vm_without_a_machine_is_an_orphan_after_two_distant_lists() {
    let (mut passes, live) = (passes(), live(vec![]));
    let vms = [vm("n", "m")];
    for seconds in [0, 1, 599] {
        assert_eq!(
            passes.classify(seconds, &vms, &live),
            [Finding::SeenOnce],
            "{seconds} s"
        );
    }
    assert_eq!(passes.classify(600, &vms, &live), [Finding::Orphan(vec![])]);
    // A VM that was missing in between is counted again from the start.
    assert_eq!(passes.classify(601, &[], &live), []);
    assert_eq!(passes.classify(602, &vms, &live), [Finding::SeenOnce]);
}

/// The first list may be as late as the second. Without time in between they count as one scan.
#[test]
fn two_lists_at_the_same_time_are_one_sighting() {
    let (mut passes, live) = (passes(), live(vec![]));
    passes.policy.gap = Duration::ZERO;
    let vms = [vm("n", "m")];
    assert_eq!(passes.classify(0, &vms, &live), [Finding::SeenOnce]);
    assert_eq!(passes.classify(0, &vms, &live), [Finding::SeenOnce]);
    assert_eq!(passes.classify(1, &vms, &live), [Finding::Orphan(vec![])]);
}

/// If a list of the scope failed, a VM's absence from the other lists proves nothing.
#[test]
fn a_pass_that_lacks_a_list_forgets_nothing() {
    let (mut passes, live) = (passes(), live(vec![]));
    let vms = [vm("n", "m")];
    passes.classify(0, &vms, &live);
    let clock = passes.clock(300);
    classify(
        &scope(),
        &[],
        |_| false,
        &live,
        |_| true,
        &mut passes.observations,
        (passes.policy, clock),
    );
    assert_eq!(passes.classify(600, &vms, &live), [Finding::Orphan(vec![])]);
}

#[test]
fn a_vm_belongs_to_a_machine_with_its_id_or_identity_in_any_namespace() {
    let elsewhere = |change: fn(&mut LiveMachine)| {
        let mut machine = machine("other", "other", None);
        machine.key = NamespacedName::new("other", machine.key.name());
        machine.cluster = None;
        machine.cluster_id = None;
        change(&mut machine);
        machine
    };
    let owners = [
        (
            "the same id",
            elsewhere(|machine| machine.provider_id = Some("p-n-m".into())),
        ),
        (
            "the same identity",
            elsewhere(|machine| machine.identity = Some("m".into())),
        ),
        (
            "the UID that the identity comes from",
            elsewhere(|machine| {
                machine.uid = "m".into();
                machine.identity = None;
            }),
        ),
        (
            "a machine that can't be read",
            elsewhere(|machine| {
                machine.identity = Some("m".into());
                machine.is_readable = false;
            }),
        ),
    ];
    for (what, owner) in owners {
        let finding = passes().settled(&vm("n", "m"), &live(vec![owner.clone()]));
        assert_eq!(finding, Finding::Owned(owner.key), "{what}");
    }
}

/// The time between the create and write 2.
#[test]
fn the_vm_of_a_half_done_create_is_owned_also_where_only_its_name_tells() {
    let half_done = || live(vec![machine("n", "m", None)]);
    assert_eq!(
        passes().settled(&vm("n", "m"), &half_done()),
        Finding::Owned(key("n"))
    );
    let bare = ListedMachine::new("p".parse().unwrap(), "n");
    assert_eq!(passes().settled(&bare, &half_done()), Finding::Owned(key("n")));
    let mut refused = machine("n", "m", None);
    refused.may_have_vm = false;
    let finding = passes().settled(&bare, &live(vec![refused]));
    assert!(matches!(
        finding,
        Finding::Orphan(keep_reasons) if keep_reasons.contains(&KeepReason::NameInUse(key("n")))
    ));
}

/// CTL-GS-11, CLI-GS-11: GetMachineStatus answers OUT_OF_RANGE for these VMs.
#[test]
fn a_second_vm_of_a_machine_is_a_duplicate_and_never_deleted() {
    let mut second = vm("n", "m");
    second.provider_id = "second".parse().unwrap();
    let vms = [vm("n", "m"), second.clone()];
    for has_its_id in [true, false] {
        let owner = machine("n", "m", has_its_id.then_some("p-n-m"));
        let mut passes = passes();
        let live = live(vec![owner]);
        passes.classify(0, &vms, &live);
        let first = if has_its_id {
            Finding::Owned(key("n"))
        } else {
            Finding::Duplicate(key("n"))
        };
        assert_eq!(
            passes.classify(600, &vms, &live),
            [first, Finding::Duplicate(key("n"))]
        );
        let observation = passes.observations["second"];
        let at = (passes.policy, passes.clock(600));
        assert!(!may_still_be_deleted(
            &scope(),
            &second,
            &vms,
            &live,
            |_| true,
            observation,
            at
        ));
    }
    let bare = |id: &str| ListedMachine::new(id.parse().unwrap(), "n");
    let finding = passes().settled(&bare("second"), &live(vec![machine("n", "m", Some("first"))]));
    assert_eq!(
        finding,
        Finding::Duplicate(key("n")),
        "of a driver that lists names alone"
    );
}

#[test]
fn a_vm_of_a_cluster_that_is_not_here_is_left_alone_and_counted_anew() {
    let clusters = [
        ("none", vec![]),
        (
            "another of its name",
            vec![cluster(|cluster| cluster["metadata"]["uid"] = json!("u-2"))],
        ),
    ];
    for (what, clusters) in clusters {
        let mut passes = passes();
        let away = Live::new(vec![], &[infra_cluster(|_| {})], &clusters, true);
        passes.classify(0, &[vm("n", "m")], &live(vec![]));
        assert_eq!(
            passes.classify(600, &[vm("n", "m")], &away),
            [Finding::Foreign],
            "{what}"
        );
        assert_eq!(
            passes.classify(601, &[vm("n", "m")], &live(vec![])),
            [Finding::SeenOnce],
            "{what}"
        );
    }
    let mut of_another = vm("n", "m");
    of_another.cluster_id = Some("c-2".to_owned());
    assert_eq!(passes().settled(&of_another, &live(vec![])), Finding::Foreign);
    let other_id =
        infra_cluster(|infra| infra["metadata"]["annotations"][annotations::CLUSTER_ID] = json!("c-2"));
    let live = Live::new(vec![], &[other_id], &[cluster(|_| {})], true);
    assert_eq!(passes().settled(&vm("n", "m"), &live), Finding::Foreign);
}

#[test]
fn a_pause_or_move_of_a_cluster_restarts_the_count_of_lists() {
    let marked =
        |key: &'static str| move |object: &mut Value| object["metadata"]["annotations"][key] = json!("");
    let moving = || {
        let mut moving = machine("other", "other", None);
        moving.is_moving = true;
        vec![moving]
    };
    let frozen = [
        Live::new(
            vec![],
            &[infra_cluster(|_| {})],
            &[cluster(|c| c["spec"]["paused"] = json!(true))],
            true,
        ),
        Live::new(
            vec![],
            &[infra_cluster(marked(annotations::PAUSED))],
            &[cluster(|_| {})],
            true,
        ),
        Live::new(
            vec![],
            &[infra_cluster(marked(annotations::DELETE_FOR_MOVE))],
            &[cluster(|_| {})],
            true,
        ),
        Live::new(
            vec![],
            &[infra_cluster(marked(annotations::BLOCK_MOVE))],
            &[cluster(|_| {})],
            true,
        ),
        Live::new(
            vec![],
            &[infra_cluster(|_| {})],
            &[cluster(marked(annotations::DELETE_FOR_MOVE))],
            true,
        ),
        Live::new(moving(), &[infra_cluster(|_| {})], &[cluster(|_| {})], true),
    ];
    for (index, frozen) in frozen.iter().enumerate() {
        let mut passes = passes();
        passes.classify(0, &[vm("n", "m")], &live(vec![]));
        let findings = passes.classify(600, &[vm("n", "m")], frozen);
        assert!(
            matches!(findings.as_slice(), [Finding::Frozen(_)]),
            "{index}: {findings:?}"
        );
        assert_eq!(
            passes.classify(601, &[vm("n", "m")], &live(vec![])),
            [Finding::SeenOnce],
            "{index}"
        );
    }
}

/// Each guard is necessary: in some situation, no other guard keeps the VM.
#[test]
fn each_hold_is_in_some_situation_the_only_one() {
    let changed = |change: fn(&mut ListedMachine)| {
        let mut vm = vm("n", "m");
        change(&mut vm);
        vm
    };
    let namesake = || machine("n", "m-2", Some("p-2"));
    let unreadable = || {
        let mut unreadable = machine("other", "other", None);
        unreadable.is_readable = false;
        unreadable
    };
    let twin = || {
        let mut twin = machine("other", "other", None);
        twin.cluster = Some("twin".into());
        twin
    };
    let twins = [
        cluster(|_| {}),
        cluster(|twin| {
            twin["metadata"]["name"] = json!("twin");
            twin["metadata"]["uid"] = json!("u-twin");
        }),
    ];
    let young = Timestamp::UNIX_EPOCH + HOUR * 2;
    let cases: Vec<(ListedMachine, Live, KeepReason)> = vec![
        (
            changed(|vm| vm.machine_id = None),
            live(vec![]),
            KeepReason::NoIdentity,
        ),
        (
            changed(|vm| vm.cluster_id = None),
            live(vec![]),
            KeepReason::NoCluster,
        ),
        (
            changed(|vm| vm.machine_name.clear()),
            live(vec![]),
            KeepReason::NoName,
        ),
        (
            changed(|vm| vm.machine_id = Some("unseen".to_owned())),
            live(vec![]),
            KeepReason::DeletionUnseen,
        ),
        (
            ListedMachine {
                created_at: Some(young),
                ..vm("n", "m")
            },
            live(vec![]),
            KeepReason::TooYoung { least: HOUR },
        ),
        (
            changed(|vm| vm.created_at = None),
            live(vec![]),
            KeepReason::TooYoung { least: HOUR },
        ),
        (
            vm("n", "m"),
            live(vec![namesake()]),
            KeepReason::NameInUse(key("n")),
        ),
        (
            vm("n", "m"),
            live(vec![unreadable()]),
            KeepReason::Unreadable(key("other")),
        ),
        (
            vm("n", "m"),
            Live::new(vec![], &[infra_cluster(|_| {})], &[cluster(|_| {})], false),
            KeepReason::OtherNamespaces,
        ),
        (
            vm("n", "m"),
            Live::new(vec![twin()], &[infra_cluster(|_| {})], &twins, true),
            KeepReason::SharedClusterId(key("twin")),
        ),
    ];
    for (vm, live, keep_reason) in cases {
        assert_eq!(
            passes().settled(&vm, &live),
            Finding::Orphan(vec![keep_reason.clone()])
        );
        let mut passes = passes();
        passes.settled(&vm, &live);
        let observation = passes.observations[vm.provider_id.as_str()];
        let (at, vms) = ((passes.policy, passes.clock(600)), std::slice::from_ref(&vm));
        let observed_deletion = |id: &str| id == "m";
        assert!(
            !may_still_be_deleted(&scope(), &vm, vms, &live, observed_deletion, observation, at),
            "{keep_reason:?}"
        );
    }
    let mut reporting = passes();
    reporting.policy.delete = false;
    let finding = reporting.settled(&vm("n", "m"), &live(vec![]));
    assert_eq!(finding, Finding::Orphan(vec![KeepReason::ReportOnly]));
}

#[test]
fn an_orphan_that_got_an_owner_before_the_call_is_not_deleted() {
    let mut passes = passes();
    let vm = vm("n", "m");
    assert_eq!(passes.settled(&vm, &live(vec![])), Finding::Orphan(vec![]));
    let (observation, at) = (passes.observations["p-n-m"], (passes.policy, passes.clock(600)));
    let may = |live: &Live, observation| {
        may_still_be_deleted(
            &scope(),
            &vm,
            std::slice::from_ref(&vm),
            live,
            |_| true,
            observation,
            at,
        )
    };
    assert!(may(&live(vec![]), observation));
    assert!(!may(&live(vec![machine("n", "m", None)]), observation));
    let once = Observation {
        is_confirmed: false,
        ..observation
    };
    assert!(!may(&live(vec![]), once));
}

#[test]
fn a_vm_that_two_lists_report_differently_proves_nothing() {
    let (one, mut other) = (vm("n", "m"), vm("n", "m"));
    let lists = |vms: [&ListedMachine; 2]| vec![(vms[0].clone(), "first"), (vms[1].clone(), "second")];
    assert_eq!(each_once(lists([&one, &one])), [(one.clone(), "first")]);
    other.machine_id = Some("m-2".to_owned());
    other.cluster_id = None;
    other.machine_name = "other".to_owned();
    other.created_at = Some(Timestamp::UNIX_EPOCH + HOUR);
    let bare = ListedMachine {
        created_at: other.created_at,
        ..ListedMachine::new(one.provider_id.clone(), "")
    };
    assert_eq!(each_once(lists([&one, &other])), [(bare, "first")]);
}
