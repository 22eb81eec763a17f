//! Tests the input of a plan.

use std::convert::Infallible;
use std::sync::atomic::Ordering;

use http::{Request, Response};
use kube::client::{Body, Client};
use kube::runtime::watcher::Event;
use serde_json::json;

use super::*;
use crate::admission::AdmissionPolicies;
use crate::api::DeserializeGuard;
use crate::api::identity::VmState;
use crate::apiserver::Events;
use crate::driver::ConfiguredDrivers;
use crate::driver::resolution::{Choice, choice};
use crate::driver::tests::{FakeDriver, configured_driver};
use crate::machine::fixtures::{MachineFixture, machine};
use crate::reconcile::caches::{Caches, ClusterIds};
use crate::telemetry::metrics::Metrics;
use cmi_driver::{Capabilities, Code, SpecSchema, Status};

fn context(driver: FakeDriver) -> Context {
    let unused =
        tower::service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty())));
    let client = Client::new(unused, "default");
    let caches = Caches::empty();
    Context {
        policies: Arc::new(AdmissionPolicies::trusting(client.clone())),
        client: client.clone(),
        cluster_ids: Arc::new(ClusterIds::new(&caches)),
        caches,
        drivers: ConfiguredDrivers::new(vec![configured_driver(driver)]).unwrap(),
        states: Arc::default(),
        failures: Arc::default(),
        events: Events::new(client, "test".to_owned()),
        metrics: Arc::new(Metrics::new()),
        enqueue: Arc::new(|_| {}),
        claims_wanted: Arc::default(),
    }
}

/// CMI-37: the driver may reconnect before its refusal is recorded. The refusal then belongs to the previous
/// driver.
#[tokio::test]
async fn a_driver_that_is_met_during_a_call_is_not_the_one_that_answered_it() {
    let driver = FakeDriver::default();
    let met = Arc::clone(&driver.connection_generation);
    met.store(1, Ordering::SeqCst);
    let gathered = gather(&context(driver), &machine().identified().build()).await;
    met.store(2, Ordering::SeqCst);
    assert_eq!(gathered.observed.connection_generation, 1);
}

/// After an upgrade, a plugin may accept specs that it refused before.
#[tokio::test(start_paused = true)]
async fn the_schema_of_a_driver_that_was_lost_refuses_nothing() {
    let mut strict = Capabilities::minimal();
    strict.provider_spec_schema = Some(SpecSchema::new(json!({"required": ["vmPool"]})));
    let driver = FakeDriver::default();
    let met = Arc::clone(&driver.connection_generation);
    let says = Arc::clone(&driver.capabilities);
    *says.lock().unwrap() = Ok(strict);
    let ctx = context(driver);
    let machine = machine().identified().build();
    assert!(gather(&ctx, &machine).await.observed.violation.is_some());
    *says.lock().unwrap() = Err(Status::new(Code::Unavailable, "down"));
    met.store(1, Ordering::SeqCst);
    assert_eq!(gather(&ctx, &machine).await.observed.violation, None);
}

/// A field without effect would be accepted in silence.
#[tokio::test(start_paused = true)]
async fn a_power_policy_that_the_driver_cannot_follow_is_refused() {
    let driver = FakeDriver::default();
    let says = Arc::clone(&driver.capabilities);
    let met = Arc::clone(&driver.connection_generation);
    let ctx = context(driver);
    *says.lock().unwrap() = Ok(Capabilities::minimal());
    let always_on = machine().identified().always_on().build();
    let why = gather(&ctx, &always_on).await.observed.violation.unwrap();
    assert!(why.starts_with("spec.powerPolicy: AlwaysOn"), "{why}");
    let plain = machine().identified().build();
    assert_eq!(gather(&ctx, &plain).await.observed.violation, None);
    let mut able = Capabilities::minimal();
    able.operations.insert(Operation::RestartMachine);
    *says.lock().unwrap() = Ok(able.clone());
    met.store(1, Ordering::SeqCst);
    let why = gather(&ctx, &always_on).await.observed.violation.unwrap();
    assert!(why.contains("GetMachineStatus"), "{why}");
    able.operations.insert(Operation::GetMachineStatus);
    *says.lock().unwrap() = Ok(able);
    met.store(2, Ordering::SeqCst);
    assert_eq!(gather(&ctx, &always_on).await.observed.violation, None);
}

/// The driver that refused made no VM, so another driver may be tried.
#[test]
fn a_machine_gets_the_driver_that_it_asks_for_until_a_vm_may_exist() {
    let moved = machine().identified().configured_driver("other");
    assert_eq!(
        choice(&moved.clone().build()),
        Choice::Asked(Some("pool".to_owned()))
    );
    let refused = moved.recorded(VmState::Refused);
    assert_eq!(choice(&refused.build()), Choice::Asked(Some("other".to_owned())));
    assert_eq!(choice(&machine().build()), Choice::Asked(None));
}

/// A namespace that has lost access to a driver keeps its VMs, and they can be deleted.
#[test]
fn a_vm_is_looked_after_by_the_driver_that_has_it() {
    let deleted = machine().identified().deleted_at(wall_clock::now());
    let holder = || Choice::Holder("pool".to_owned());
    assert_eq!(choice(&deleted.build()), holder());
    assert_eq!(choice(&machine().provisioned().build()), holder());
}

#[test]
fn a_driver_that_came_with_a_copied_identity_is_not_used() {
    let copied = machine().identified().with_copied_record();
    assert_eq!(choice(&copied.build()), Choice::Asked(None));
}

#[test]
fn only_changes_by_users_are_a_reason_to_retry() {
    let of = |machine: &InfraMachine| inputs(machine, None);
    let plain = of(&machine().build());
    assert_eq!(plain, of(&machine().identified().build()));
    let identified = machine().known("sim://1").generation(2);
    assert_eq!(plain, of(&identified.build()));
    for changed in [
        machine().spec(&serde_json::json!({"size": "l"})),
        machine().configured_driver("other"),
        machine().secret("other"),
        machine().annotated("example.com/try", "again"),
        machine().annotated(annotations::FORCE_DELETE, "true"),
        machine().deleted_at(wall_clock::now()),
    ] {
        assert_ne!(plain, of(&changed.build()));
    }
}

/// Two machines that want the same VM both wait. A machine that has a VM is never contested by a machine that
/// wants the VM.
#[tokio::test]
async fn a_machine_that_wants_a_vm_sees_every_other_that_names_it() {
    let wants = |namespace: &str, name: &str| {
        let mut machine = machine()
            .provider_id("sim://9")
            .annotated(annotations::ADOPT, "{}")
            .build();
        machine.metadata.namespace = Some(namespace.to_owned());
        machine.metadata.name = Some(name.to_owned());
        machine.metadata.uid = Some(format!("{namespace}-{name}"));
        machine
    };
    let (first, second) = (wants("ns1", "m1"), wants("ns2", "m2"));
    let (infra_machines, mut writer) = kube_fleet::store();
    let mut ctx = context(FakeDriver::default());
    ctx.caches.infra_machines = infra_machines;
    writer.apply_watcher_event(&Event::Apply(DeserializeGuard(Ok(first.clone()))));
    let conflict = async |machine: &InfraMachine| gather(&ctx, machine).await.observed.conflict;
    assert_eq!(
        conflict(&first).await,
        ProviderIdConflict::None,
        "itself is no conflict"
    );
    let mut newer = first.clone();
    newer.metadata.resource_version = Some("9".to_owned());
    let why = "others may have been written before it that the cache does not have either";
    assert_eq!(conflict(&newer).await, ProviderIdConflict::Unknown, "{why}");
    writer.apply_watcher_event(&Event::Apply(DeserializeGuard(Ok(second.clone()))));
    assert_eq!(
        conflict(&first).await,
        ProviderIdConflict::Named("ns2/m2".to_owned())
    );
    assert_eq!(
        conflict(&second).await,
        ProviderIdConflict::Named("ns1/m1".to_owned())
    );
    let has_it = MachineFixture::from(first)
        .known("sim://9")
        .record(|record| record.adopted = true);
    assert_eq!(conflict(&has_it.build()).await, ProviderIdConflict::None);
}
