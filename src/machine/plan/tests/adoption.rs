//! Tests the adoption of VMs that another controller created.

use super::*;
use crate::machine::outcome::RemovalReason;
use crate::reconcile::runtime_state::LookUpHint;
use cmi_driver::tags;

const OLD: &str = r#"{"kubernetes.io/cluster": "old", "kubernetes.io/role": "worker"}"#;

/// Returns a machine that adopts a VM.
fn asked() -> MachineFixture {
    machine()
        .provider_id("sim://9")
        .annotated(annotations::ADOPT, OLD)
}

/// Returns the machine after the confirmation.
fn confirmed() -> MachineFixture {
    asked()
        .known("sim://9")
        .record(|record| record.adopted = true)
        .made_from(&old_spec(&json!({"size": "s"})))
}

fn old_spec(spec: &serde_json::Value) -> ProviderSpec {
    let mut spec = ProviderSpec(spec.as_object().unwrap().clone());
    let tags = json!({"kubernetes.io/cluster": "old", "kubernetes.io/role": "worker"});
    spec.0.insert("tags".to_owned(), tags);
    spec
}

#[track_caller]
fn adopt(plan: Plan) -> Adopt {
    match plan {
        Plan::CallDriver(DriverPlan::Adopt(plan)) => *plan,
        other => panic!("expected an adoption, got {other:?}"),
    }
}

#[test]
fn an_adoption_looks_up_id_and_old_tags_without_bootstrap_data() {
    for world in [world(), world().without_bootstrap(), world().cluster_not_ready()] {
        let plan = world.plan(asked());
        assert_eq!(plan.required_policy_check(), RequiredPolicyCheck::Fresh);
        let plan = adopt(plan);
        assert_eq!(plan.look_up, old_spec(&json!({"size": "s"})));
        let made = plan.record.made_from.unwrap();
        assert_eq!(made.provider_spec, plan.look_up);
        assert_eq!(plan.record.state, VmState::Exists { unanswered: None });
        assert!(plan.record.adopted);
        assert_eq!(plan.provider_id.as_str(), "sim://9");
    }
}

#[test]
fn an_adoption_records_driver_secret_and_the_given_state() {
    for (machine, secret) in [(asked(), None), (asked().secret("a"), Some("a"))] {
        let record = adopt(world().plan(machine)).record;
        let made = record.made_from.unwrap();
        assert_eq!((made.driver.as_str(), made.secret.as_deref()), ("pool", secret));
        assert_eq!(record.last_known_state, None);
    }
    let with_state = r#"{"kubernetes.io/cluster": "old", "lastKnownState": "czE="}"#;
    let record = adopt(world().plan(asked().annotated(annotations::ADOPT, with_state))).record;
    assert_eq!(record.last_known_state.unwrap().as_bytes(), b"s1");
}

#[test]
fn a_provider_id_that_no_administrator_vouches_for_leads_to_no_call() {
    let plan = world().plan(machine().provider_id("sim://9"));
    assert_eq!(reason_of(plan), (conditions::READY, reason::FOREIGN_PROVIDER_ID));
}

#[test]
fn what_is_not_said_or_contested_is_no_reason_to_call_or_to_take_over() {
    let cases = [
        (
            world(),
            machine().annotated(annotations::ADOPT, "{}"),
            reason::ADOPTION_INVALID,
        ),
        (
            world(),
            asked().annotated(annotations::ADOPT, "yes"),
            reason::ADOPTION_INVALID,
        ),
        (
            world(),
            asked().annotated(annotations::ADOPT, r#"{"lastKnownState": "no base64"}"#),
            reason::ADOPTION_INVALID,
        ),
        (
            world().conflicting_with("ns2/m7"),
            asked(),
            reason::ADOPTION_CONTESTED,
        ),
        (
            world().not_offering(Operation::GetMachineStatus),
            asked(),
            reason::ADOPTION_INVALID,
        ),
        (
            world().driver_not_configured(),
            asked(),
            reason::DRIVER_NOT_CONFIGURED,
        ),
        (
            world().owner(|owner| owner.spec.infrastructure_ref.name = "m2".to_owned()),
            asked(),
            reason::NOT_REFERENCED,
        ),
    ];
    for (world, machine, expected) in cases {
        let block = blocked(world.plan(machine));
        assert_eq!((block.condition, block.reason), (conditions::READY, expected));
        assert!(
            block.record.is_none(),
            "it takes over a VM that no driver has confirmed"
        );
    }
    let message = blocked(world().conflicting_with("ns2/m7").plan(asked())).message;
    assert!(
        message.contains("ns2/m7") && message.contains("sim://9"),
        "{message}"
    );
    assert!(
        message.contains("delete the InfraMachine that is not to own the VM first, and then its Machine"),
        "{message}"
    );
    let unknown = world().not_cached_yet();
    let Plan::Outcome(Outcome::Unchanged(Some(_))) = unknown.plan(asked()) else {
        panic!("others may name the VM that are not cached either");
    };
    refresh(unknown.plan(confirmed()));
}

/// The VM of an unanswered create, or the remains of a refused create, still belong to the machine.
#[test]
fn an_object_that_a_create_was_issued_for_adopts_no_vm() {
    let issued = VmState::Creating {
        issued: now(),
        several: false,
    };
    for state in [issued, VmState::Refused] {
        let annotated = machine().recorded(state).annotated(annotations::ADOPT, OLD);
        for (machine, remedy) in [
            (annotated.clone(), "remove the annotation"),
            (
                annotated.provider_id("sim://9"),
                "delete this InfraMachine first and then its Machine",
            ),
        ] {
            let block = blocked(world().plan(machine));
            let said = (block.condition, block.reason);
            assert_eq!(said, (conditions::READY, reason::ADOPTION_INVALID));
            let message = block.message;
            assert!(
                message.contains("create was issued") && message.contains(remedy),
                "{message}"
            );
        }
    }
    adopt(
        world().plan(
            machine()
                .recorded(VmState::None)
                .annotated(annotations::ADOPT, OLD)
                .provider_id("sim://9"),
        ),
    );
}

#[track_caller]
fn refresh(plan: Plan) -> Refresh {
    match plan {
        Plan::CallDriver(DriverPlan::Refresh(plan)) => *plan,
        other => panic!("expected a look-up, got {other:?}"),
    }
}

/// The process ended after the confirmation, or a move lost the status.
#[test]
fn a_confirmed_adoption_is_looked_up_as_recorded_and_never_created() {
    for machine in [
        confirmed(),
        confirmed().annotated(annotations::ADOPT, "broken"),
        confirmed().spec(&json!({"size": "xl"})),
    ] {
        let plan = refresh(
            world()
                .conflicting_with("ns2/m7")
                .without_bootstrap()
                .plan(machine),
        );
        assert_eq!(plan.look_up, old_spec(&json!({"size": "s"})));
    }
}

#[test]
fn a_failed_look_up_is_waited_for() {
    assert_eq!(world().remembering(40).plan(asked()), waits(40));
}

/// The tags of the VM stay, even if the annotation changes.
#[test]
fn an_adopted_vm_is_up_to_date_by_its_old_tags() {
    let up = confirmed().provisioned().provider_id("sim://9");
    for machine in [up.clone(), up.clone().without(annotations::ADOPT)] {
        let plan = world().plan(machine);
        let Plan::Outcome(Outcome::UpToDate { not_updatable, .. }) = plan else {
            panic!("{plan:?}");
        };
        assert_eq!(not_updatable, []);
    }
    let Plan::CallDriver(DriverPlan::Update(update)) = world().plan(up.spec(&json!({"size": "xl"}))) else {
        panic!("its spec can be changed");
    };
    assert_eq!(update.wanted, old_spec(&json!({"size": "xl"})));
    assert!(
        !update.wanted.0["tags"]
            .as_object()
            .unwrap()
            .contains_key(tags::MACHINE)
    );
}

/// Until the update is recorded, every call uses the old tags, which the VM may still have. A VM with another
/// machine's identity keeps it.
#[test]
fn an_adopted_vm_without_an_identity_gets_one_if_the_driver_can_add_it() {
    let with_identity = |identity: &str| {
        let mut spec = old_spec(&json!({"size": "s"}));
        spec.0["tags"][tags::MACHINE] = json!(identity);
        spec
    };
    let applied = |spec: &ProviderSpec| {
        let up = confirmed().provisioned().provider_id("sim://9");
        up.made_from(spec)
    };
    let adding = || world().capabilities(|all| all.hot_updatable = vec![all.machine_tag_path()]);
    let old = old_spec(&json!({"size": "s"}));
    let Plan::CallDriver(DriverPlan::Update(update)) = adding().plan(applied(&old)) else {
        panic!("the identity is missing");
    };
    assert_eq!((&update.applied, &update.wanted), (&old, &with_identity("u-1")));
    let Plan::CallDriver(DriverPlan::Refresh(refresh)) =
        adding().hinting(LookUpHint::Signal).plan(applied(&old))
    else {
        panic!("a hint is looked after first");
    };
    assert_eq!(refresh.look_up, old);

    let tags_in_general = world().capabilities(|all| all.hot_updatable = vec![all.tag_path.clone()]);
    for (world, machine) in [
        (adding(), applied(&with_identity("u-1"))),
        (adding(), applied(&with_identity("another"))),
        (tags_in_general, applied(&old)),
        (adding().not_offering(Operation::UpdateMachine), applied(&old)),
    ] {
        let plan = world.plan(machine);
        let Plan::Outcome(Outcome::UpToDate { not_updatable, .. }) = plan else {
            panic!("{plan:?}");
        };
        assert_eq!(not_updatable, []);
    }
}

/// After an upgrade, a driver may expect its tags elsewhere.
#[test]
fn an_adopted_vm_whose_tags_cannot_be_told_is_not_changed() {
    let elsewhere = || world().capabilities(|all| all.tag_path = "/meta/labels".parse().unwrap());
    let up = confirmed().provisioned().provider_id("sim://9");
    for machine in [
        up.clone(),
        up.clone().without(annotations::ADOPT),
        up.spec(&json!({"size": "xl"})),
    ] {
        let plan = elsewhere().plan(machine);
        let Plan::Outcome(Outcome::Refused { invalid, .. }) = plan else {
            panic!("{plan:?}");
        };
        assert!(invalid.to_string().contains("/meta/labels"), "{invalid}");
    }
}

#[test]
fn deleting_a_machine_keeps_a_vm_whose_adoption_was_not_confirmed() {
    let released = |plan: Plan| {
        matches!(
            plan,
            Plan::Outcome(Outcome::RemoveFinalizer(RemovalReason::NeverCreated))
        )
    };
    let held = asked().recorded(VmState::None).deleted_at(now());
    assert!(released(world().plan(held)));
    assert_left(&world(), asked().deleted_at(now()));
    let Plan::CallDriver(DriverPlan::Delete(delete)) = world().plan(confirmed().deleted_at(now())) else {
        panic!("a confirmed VM goes with its machine");
    };
    assert_eq!(delete.spec, old_spec(&json!({"size": "s"})));
    assert_eq!(delete.provider_id.unwrap().as_str(), "sim://9");
}

/// Uses the name and the tags of the machine's own VM, and ignores an id that was never confirmed.
#[test]
fn a_pending_create_is_deleted_despite_a_later_adoption_request() {
    let deletion = |machine: MachineFixture| match world().plan(machine.deleted_at(now())) {
        Plan::CallDriver(DriverPlan::Delete(delete)) => *delete,
        other => panic!("expected a deletion, got {other:?}"),
    };
    let issued = VmState::Creating {
        issued: now(),
        several: false,
    };
    for (state, refused) in [(issued, false), (VmState::Refused, true)] {
        let issued = || machine().recorded(state).annotated(annotations::ADOPT, OLD);
        for machine in [issued(), issued().provider_id("sim://9")] {
            let delete = deletion(machine);
            assert_eq!((delete.provider_id, delete.refused), (None, refused));
            assert_eq!(delete.spec, tagged(&json!({"size": "s"})));
            assert!(
                !delete.may_have_second_vm,
                "any VM of the machine is looked for anyway"
            );
            assert_eq!(
                delete.pending_create.is_some(),
                !refused,
                "a late create may make one"
            );
        }
    }
}
