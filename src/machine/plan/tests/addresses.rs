//! Tests the plans for static addresses.

use serde_json::{Value, json};

use super::*;
use cmi_driver::{Capabilities, StaticAddress};

/// A driver with static addresses at `/network/ips`.
fn network() -> World {
    world().capabilities(|all| all.address_path = Some("/network/ips".parse().unwrap()))
}

fn address(pool: &str) -> StaticAddress {
    let pool = json!({"apiGroup": "ipam.example.com", "kind": "Pool", "name": pool});
    serde_json::from_value(json!({"address": "10.0.0.2", "prefix": 24, "pool": pool})).unwrap()
}

fn allocated(pool: &str) -> ObservedClaim {
    ObservedClaim::Allocated(address(pool))
}

fn pooled() -> MachineFixture {
    machine().pools(&["a", "b"])
}

/// The spec for the driver with addresses from these pools.
fn with_addresses(pools: &[&str]) -> ProviderSpec {
    let ips: Vec<_> = pools.iter().map(|pool| address(pool)).collect();
    tagged(&json!({"size": "s", "network": {"ips": ips}}))
}

#[track_caller]
fn claim(plan: Plan) -> Claim {
    match plan {
        Plan::Claim(plan) => *plan,
        other => panic!("expected a claim, got {other:?}"),
    }
}

#[test]
fn claims_are_read_only_when_nothing_else_is_awaited() {
    assert!(matches!(network().plan(pooled()), Plan::ReadClaims));
    for world in [
        network().without_bootstrap(),
        network().driver_not_configured(),
        network().paused(),
        network().driver_busy(),
    ] {
        assert!(!matches!(world.plan(pooled()), Plan::ReadClaims));
    }
    for machine in [
        pooled().recorded(VmState::None).deleted_at(now()),
        pooled().identified().made_from(&with_addresses(&["a", "b"])),
        pooled().provisioned().made_from(&with_addresses(&["a", "b"])),
        machine(),
    ] {
        assert!(!matches!(network().plan(machine), Plan::ReadClaims));
    }
}

#[test]
fn a_missing_claim_is_made_after_finalizer_and_record() {
    let world = network().claims([allocated("a"), ObservedClaim::Absent]);
    let plan = world.plan(pooled());
    assert_eq!(plan.required_policy_check(), RequiredPolicyCheck::Cached);
    let first = claim(plan);
    assert_eq!(first.record.state, VmState::None);
    assert_eq!(
        (first.cluster.as_str(), first.absent, first.terminating),
        ("c", vec![1], vec![])
    );
    let wait = first.wait;
    assert_eq!(
        (wait.condition, wait.reason),
        (conditions::READY, reason::WAITING_FOR_ADDRESS)
    );
    assert!(
        wait.message.contains("Pool `b`") && wait.message.contains("`m1-1`"),
        "{}",
        wait.message
    );
    assert_eq!(wait.requeue_after, Some(LONG_WAIT));
    let deleted = network().claims([ObservedClaim::Terminating, allocated("b")]);
    assert_eq!(claim(deleted.plan(pooled())).terminating, [0]);
}

#[test]
fn a_wait_names_the_pool_and_the_reason_of_its_claim() {
    use ObservedClaim::{Absent, Invalid, Pending};
    for (claims, why, parts) in [
        (
            [allocated("a"), Pending(Some("PoolExhausted".to_owned()))],
            reason::WAITING_FOR_ADDRESS,
            ["Pool `b`", "reports PoolExhausted"],
        ),
        (
            [Pending(None), Pending(None)],
            reason::WAITING_FOR_ADDRESS,
            ["Pool `a`", "has none yet"],
        ),
        (
            [Absent, Invalid("IPAddressClaim `m1-1` is not its own".to_owned())],
            reason::ADDRESS_CLAIM_INVALID,
            ["m1-1", "not its own"],
        ),
    ] {
        let block = blocked(network().claims(claims).plan(pooled()));
        assert_eq!((block.condition, block.reason), (conditions::READY, why));
        let message = &block.message;
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        assert_eq!(
            block.requeue_after,
            Some(LONG_WAIT),
            "the watch may miss a change"
        );
    }
}

#[test]
fn a_vm_is_made_with_the_addresses_and_keeps_them() {
    let world = network().claims([allocated("a"), allocated("b")]);
    let made = provision(world.plan(pooled()));
    assert_eq!(made.made_from.provider_spec, with_addresses(&["a", "b"]));
    // A repeated create and a VM that runs have the recorded addresses, whatever became of the claims.
    let recorded = with_addresses(&["a", "b"]);
    for claims in [Some([ObservedClaim::Absent, ObservedClaim::Absent]), None] {
        let mut world = network();
        if let Some(claims) = claims {
            world = world.claims(claims);
        }
        let again = provision(world.plan(pooled().identified().made_from(&recorded)));
        assert_eq!(
            (&again.look_up, &again.made_from.provider_spec),
            (&recorded, &recorded)
        );
        let up = world.plan(pooled().provisioned().made_from(&recorded));
        let Plan::Outcome(Outcome::UpToDate { not_updatable, .. }) = &up else {
            panic!("expected no change, got {up:?}");
        };
        assert!(not_updatable.is_empty(), "{up:?}");
    }
}

#[test]
fn a_spec_with_a_value_at_the_place_of_the_addresses_is_refused() {
    let claims = || network().claims([allocated("a"), allocated("b")]);
    for (spec, place) in [
        (json!({"network": {"ips": []}}), "providerSpec/network/ips"),
        (json!({"network": "none"}), "providerSpec/network"),
    ] {
        let why = refused(claims().plan(pooled().spec(&spec))).to_string();
        assert!(why.contains(place), "{why}");
    }
    let by_hand = machine().spec(&json!({"network": {"ips": []}}));
    assert!(
        refused(network().plan(by_hand))
            .to_string()
            .contains("addressesFromPools")
    );
}

#[test]
fn a_driver_without_static_addresses_refuses_pools() {
    let machine = pooled().build();
    let why = machine.spec.unsupported(&Capabilities::minimal()).unwrap();
    assert!(why.starts_with("addressesFromPools requires"), "{why}");
    let known = Capabilities {
        address_path: Some("/ips".parse().unwrap()),
        ..Capabilities::minimal()
    };
    assert_eq!(machine.spec.unsupported(&known), None);
}

#[test]
fn an_adopted_vm_gets_no_addresses() {
    let adopting = pooled()
        .provider_id("sim://1")
        .annotated(annotations::ADOPT, "{}");
    let (_, why) = reason_of(network().plan(adopting));
    assert_eq!(why, reason::ADOPTION_INVALID);
}

#[test]
fn machines_with_other_addresses_are_of_one_class() {
    let of = |pool: &str| {
        let record = identity::record(&pooled().provisioned().made_from(&with_addresses(&[pool])).build());
        let made = record.unwrap().made_from.unwrap();
        crate::driver::listing::ClassRef::of_made(made, &"/tags".parse().unwrap()).unwrap()
    };
    assert_eq!(of("a"), of("b"));
    let spec: Value = serde_json::from_str(&of("a").spec).unwrap();
    assert_eq!(spec["network"], Value::Null);
}
