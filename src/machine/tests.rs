//! Tests complete reconciles of a deletion, and the effects of a failed write.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::advance;

use super::execute::execute;
use super::fakes::{Server, Vms};
use super::fixtures::{MachineFixture, machine, now, world};
use super::gather::gather;
use super::object::{HasStatus, Object};
use super::outcome::{Blocked, Failure, Outcome};
use super::plan::{DriverPlan, Plan, SHUT_DOWN_TRIES, plan};
use super::publish::publish;
use super::{Context, reconcile};
use crate::api::conditions::{self, reason};
use crate::api::identity::VmState;
use crate::api::retry::Call;
use crate::api::{ObjectMetaExt as _, annotations};
use crate::apiserver::Error;
use crate::driver::{Limits, Priority, Timeouts};
use crate::reconcile::runtime_state::{LookUpHint, RuntimeState};
use cmi_driver::{
    Address, AddressType, Code, DeleteMachineRequest, MachineClass, MachineRef, Operation, PowerState, Status,
};

mod histories;

const NO_SETTLE_TIME: Duration = Duration::ZERO;

/// Returns a machine with a VM, deleted two minutes ago.
fn deleted() -> MachineFixture {
    let deleted = Timestamp::now() - Duration::from_mins(2);
    machine()
        .configured_driver("pool")
        .identified()
        .deleted_at(deleted)
}

/// Reconciles once more, regardless of any wait.
async fn again(server: &Server, ctx: &Arc<Context>) {
    server.ask_again();
    reconcile(&server.infra_machine(), ctx).await.unwrap();
}

/// Reconciles once more, after any wait.
async fn after_a_wait(server: &Server, ctx: &Arc<Context>) {
    advance(Duration::from_mins(10)).await;
    reconcile(&server.infra_machine(), ctx).await.unwrap();
}

/// An unreadable object has no usable status.
#[tokio::test(start_paused = true)]
async fn a_deletion_of_an_unreadable_object_ends_despite_failed_shut_downs() {
    let mut object = serde_json::to_value(deleted().provider_id("sim://1").build()).unwrap();
    object["spec"]["providerSpec"] = json!("no object");
    object["status"] = Value::Null;
    let server = Server::holding(object);
    assert!(server.infra_machine().0.is_err());
    let vms = Vms::default();
    vms.add("sim://1", "m1", None);
    let offers = [Operation::ShutDownMachine, Operation::GetMachineStatus];
    let ctx = Arc::new(server.context(vec![vms.configured_driver(&offers, NO_SETTLE_TIME)]));
    for tried in 1..=SHUT_DOWN_TRIES {
        after_a_wait(&server, &ctx).await;
        assert_eq!(
            vms.count(Operation::ShutDownMachine),
            usize::try_from(tried).unwrap()
        );
        assert!(server.is_kept(), "after {tried} tries");
    }
    after_a_wait(&server, &ctx).await;
    assert_eq!(vms.ids(), Vec::<String>::new());
    assert!(!server.is_kept());
}

/// The cache is stale. It will show the other object or the deletion.
#[tokio::test]
async fn unreadable_object_keeps_the_vm_of_another_or_living_object() {
    let unreadable = |fixture: MachineFixture, uid: &str| {
        let mut object = serde_json::to_value(fixture.provider_id("sim://1").build()).unwrap();
        object["spec"]["providerSpec"] = json!("no object");
        object["metadata"]["uid"] = json!(uid);
        Server::holding(object)
    };
    let kept = machine().configured_driver("pool").identified();
    for live in [unreadable(deleted(), "u-2"), unreadable(kept, "u-1")] {
        let cached = unreadable(deleted(), "u-1").infra_machine();
        let vms = Vms::default();
        vms.add("sim://1", "m1", None);
        let driver = vms.configured_driver(&[Operation::GetMachineStatus], NO_SETTLE_TIME);
        let done = reconcile(&cached, &live.context(vec![driver])).await;
        assert!(matches!(done, Err(Error::Conflict { .. })), "{done:?}");
        assert_eq!(vms.ids(), ["sim://1"]);
        assert_eq!(live.version(), "1", "nothing is written");
    }
}

/// clusterctl pauses a Cluster, and then waits until the annotation is removed.
#[tokio::test]
async fn a_paused_machine_lets_clusterctl_go_on_and_leaves_what_a_user_blocks() {
    for (block, left) in [(annotations::BLOCK_MOVE_VALUE, None), ("true", Some("true"))] {
        for fixture in [machine().provisioned(), machine().provisioned().deleted_at(now())] {
            let fixture = fixture.annotated(annotations::BLOCK_MOVE, block);
            let server = Server::with(&fixture.clone().build());
            let ctx = server.context(Vec::new());
            let mut object = Object::new(&ctx, Arc::new(server.object()), HasStatus::Yes);
            let gathered = gather(&ctx, &server.object()).await;
            let plan = world().paused().plan(fixture);
            execute(&ctx, &mut object, &gathered, plan).await.unwrap();
            assert_eq!(server.annotation(annotations::BLOCK_MOVE).as_deref(), left);
        }
    }
}

/// Returns a deleted machine with this VM and an old unanswered create, which may have made another VM.
fn with_unanswered(known: &str) -> MachineFixture {
    let issued = Timestamp::now() - Duration::from_hours(1);
    let state = VmState::Exists {
        unanswered: Some(issued),
    };
    deleted().recorded(state).provider_id(known)
}

/// The driver has no look-up to find the second VM.
#[tokio::test]
async fn a_second_vm_is_found_by_its_tag_and_deleted_by_its_id() {
    let vms = Vms::default();
    vms.add("sim://1", "m1", Some("u-1"));
    vms.add("sim://2", "", Some("u-1"));
    vms.add("sim://3", "m1", Some("u-3"));
    let server = Server::with(&with_unanswered("sim://1").build());
    let ctx = Arc::new(server.context(vec![
        vms.configured_driver(&[Operation::ListMachines], NO_SETTLE_TIME),
    ]));
    again(&server, &ctx).await;
    assert_eq!(vms.ids(), ["sim://3"], "that of another machine stays");
    assert!(server.is_kept(), "until a list shows none");
    again(&server, &ctx).await;
    assert!(!server.is_kept());
}

#[tokio::test]
async fn a_deletion_finds_a_late_vm_of_a_pending_create_in_the_list() {
    let vms = Vms::default();
    let state = VmState::Creating {
        issued: Timestamp::now(),
        several: false,
    };
    let server = Server::with(&deleted().recorded(state).build());
    let settle = Duration::from_hours(1);
    let ctx = Arc::new(server.context(vec![vms.configured_driver(&[Operation::ListMachines], settle)]));
    again(&server, &ctx).await;
    // The VM has lost its name, so a deletion by name does not find it.
    vms.add("sim://1", "", Some("u-1"));
    again(&server, &ctx).await;
    assert_eq!(vms.ids(), Vec::<String>::new());
    assert!(server.is_kept(), "another may come");
}

#[tokio::test]
async fn a_second_vm_is_deleted_by_name_where_nothing_shows_it() {
    let vms = Vms::default();
    vms.add("sim://1", "m1", None);
    vms.add("sim://2", "m1", None);
    let server = Server::with(&with_unanswered("sim://1").build());
    let ctx = Arc::new(server.context(vec![vms.configured_driver(&[], NO_SETTLE_TIME)]));
    again(&server, &ctx).await;
    assert_eq!(vms.ids(), Vec::<String>::new());
    assert!(!server.is_kept());
}

/// A list contains all VMs of the cluster.
#[tokio::test]
async fn a_deletion_costs_no_list_where_every_create_was_answered() {
    let vms = Vms::default();
    vms.add("sim://1", "m1", Some("u-1"));
    let server = Server::with(&deleted().provider_id("sim://1").build());
    let ctx = Arc::new(server.context(vec![
        vms.configured_driver(&[Operation::ListMachines], NO_SETTLE_TIME),
    ]));
    again(&server, &ctx).await;
    assert_eq!(vms.count(Operation::ListMachines), 0);
    assert_eq!(vms.ids(), Vec::<String>::new());
    assert!(!server.is_kept());
}

/// The machine waits for ten minutes, and the status must show why.
#[tokio::test]
async fn a_wait_for_capacity_is_shown_despite_a_write_of_another_client() {
    let server = Server::with(&machine().build());
    let ctx = server.context(Vec::new());
    let before = server.object();
    let gathered = gather(&ctx, &before).await;
    let mut object = Object::new(&ctx, Arc::new(before.clone()), HasStatus::Yes);
    server.ask_again();
    let outcome = Outcome::AwaitingCapacity {
        failure_domain: None,
        requeue_after: Duration::from_mins(10),
    };
    publish(&ctx, &before, &mut object, &gathered, outcome)
        .await
        .unwrap();
    let status = server.object().status.unwrap();
    let shown = conditions::get(&status.conditions, conditions::READY).unwrap();
    assert_eq!(shown.reason, reason::WAITING_FOR_CAPACITY);
    assert!(ctx.states.get(before.metadata.uid()).retry.is_some());
}

/// A call whose failure nobody could see is repeated, not waited for.
#[tokio::test]
async fn a_failure_that_cannot_be_shown_starts_no_wait() {
    let server = Server::with(&machine().build());
    let ctx = server.context(Vec::new());
    let before = server.object();
    let gathered = gather(&ctx, &before).await;
    let mut object = Object::new(&ctx, Arc::new(before.clone()), HasStatus::Yes);
    server.replace(&{
        let mut another = before.clone();
        another.metadata.uid = Some("u-2".to_owned());
        another
    });
    let failure = Failure::new(Call::Create, Status::new(Code::PermissionDenied, "no"));
    let written = publish(&ctx, &before, &mut object, &gathered, failure.into()).await;
    assert!(matches!(written, Err(Error::Gone { .. })), "{written:?}");
    assert!(ctx.states.get(before.metadata.uid()).retry.is_none());
}

/// A second create of the first control plane machine would start a second cluster.
#[tokio::test]
async fn a_vm_that_is_absent_after_a_restore_is_gone_and_not_made_again() {
    let vms = Vms::default();
    let restored = machine().known("sim://1");
    let server = Server::with(&restored.configured_driver("pool").build());
    let driver = vms.configured_driver(&[Operation::GetMachineStatus], NO_SETTLE_TIME);
    let ctx = server.context(vec![driver]);
    let before = server.object();
    let gathered = gather(&ctx, &before).await;
    let mut object = Object::new(&ctx, Arc::new(before.clone()), HasStatus::Yes);
    let plan = world().plan(before.into());
    let outcome = execute(&ctx, &mut object, &gathered, plan).await.unwrap().0;
    assert!(
        matches!(&outcome, Outcome::Vanished(id) if id.as_str() == "sim://1"),
        "{outcome:?}"
    );
    assert_eq!(vms.count(Operation::CreateMachine), 0);
}

/// Returns how long a deletion waits after a create has just timed out. The driver is limited to five calls a
/// second. If `waits` is set, another call delays the create.
async fn left_after_a_create(waits: bool, settle: Duration) -> Duration {
    let create_timeout = (Operation::CreateMachine, Duration::from_millis(100));
    let limits = Limits {
        calls_per_second: NonZeroU32::new(5).unwrap(),
        burst: NonZeroU32::MIN,
        timeouts: Timeouts {
            by_operation: [create_timeout].into(),
            ..Timeouts::default()
        },
        ..Limits::default()
    };
    let vms = Vms::hanging();
    let server = Server::with(&machine().configured_driver("pool").build());
    let ctx = server.context(vec![vms.limited_driver(limits, &[], settle)]);
    if waits {
        let driver = ctx.drivers.named("pool").unwrap();
        let permit = driver.acquire(Priority::Upkeep, "another").await;
        let another = DeleteMachineRequest {
            machine: MachineRef::new("another", MachineClass::default()),
            provider_id: None,
            last_known_state: None,
        };
        permit.driver().delete_machine(another).await.unwrap();
    }
    let before = server.object();
    let gathered = gather(&ctx, &before).await;
    let mut object = Object::new(&ctx, Arc::new(before.clone()), HasStatus::Yes);
    let create = world().plan(before.into());
    let given_up = execute(&ctx, &mut object, &gathered, create).await;
    let outcome = given_up.unwrap().0;
    assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
    assert_eq!(vms.count(Operation::CreateMachine), 1);
    let deleted = MachineFixture::from(server.object()).deleted_at(Timestamp::now());
    let deleted = deleted.build();
    let gathered = gather(&ctx, &deleted).await;
    let Plan::CallDriver(DriverPlan::Delete(delete)) = plan(&deleted, &gathered.observed) else {
        panic!("it has to be deleted");
    };
    delete.pending_create.unwrap().left
}

#[tokio::test]
async fn a_rate_limited_create_has_the_same_settle_time_after_its_timeout() {
    let settle = Duration::from_mins(1);
    let left = [
        left_after_a_create(true, settle).await,
        left_after_a_create(false, settle).await,
    ];
    assert_eq!(left, [settle, settle]);
}

/// Without a wake-up, the machines must not all retry together.
#[tokio::test]
async fn wait_for_a_permit_is_checked_again_within_an_hour() {
    let driver = Vms::default().configured_driver(&[], NO_SETTLE_TIME);
    for n in 0..32 {
        let mut machine = machine().build();
        machine.metadata.uid = Some(format!("u-{n}"));
        let ctx = Server::with(&machine).context(Vec::new());
        let outcome = ctx.waiting_for_a_permit(&machine, &driver);
        let Outcome::Waiting(Some(wait)) = outcome else {
            panic!("{outcome:?}");
        };
        assert!(
            (Duration::from_mins(30)..=Duration::from_hours(1)).contains(&wait),
            "{wait:?}"
        );
    }
}

/// Returns the runtime state after this outcome is published. The machine is running and was suspected to be
/// missing.
async fn known_after(outcome: Outcome) -> RuntimeState {
    let server = Server::with(&machine().provisioned().build());
    let ctx = server.context(Vec::new());
    ctx.states.hint("u-1", LookUpHint::Missing);
    let before = server.object();
    let gathered = gather(&ctx, &before).await;
    let mut object = Object::new(&ctx, Arc::new(before.clone()), HasStatus::Yes);
    publish(&ctx, &before, &mut object, &gathered, outcome)
        .await
        .unwrap();
    ctx.states.get("u-1")
}

#[tokio::test]
async fn suspicion_ends_only_with_an_answer_or_a_pause() {
    let blocked = |condition, reason| Outcome::Blocked(Blocked::new(condition, reason, "waits"));
    for (outcome, left) in [
        (Outcome::Updated, None),
        (Outcome::Vanished("sim://1".parse().unwrap()), None),
        (blocked(conditions::PAUSED, reason::PAUSED), None),
        (
            blocked(conditions::READY, reason::WAITING_FOR_OWNER),
            Some(LookUpHint::Missing),
        ),
    ] {
        let said = format!("{outcome:?}");
        assert_eq!(known_after(outcome).await.hinted(), left, "{said}");
    }
}

#[tokio::test]
async fn a_vm_that_starts_is_left_alone_for_a_while() {
    let vm = |power_state, ips: &[&str]| {
        let ip = |ip: &&str| Address {
            kind: AddressType::InternalIP,
            address: (*ip).to_owned(),
        };
        let vm = cmi_driver::Machine::new("sim://1".parse().unwrap(), "m1");
        Outcome::Provisioned(Box::new(cmi_driver::Machine {
            power_state: Some(power_state),
            addresses: ips.iter().map(ip).collect(),
            ..vm
        }))
    };
    let ip = &["10.0.0.1"][..];
    for (power, ips) in [(PowerState::Starting, ip), (PowerState::Running, &[])] {
        let state = known_after(vm(power, ips)).await;
        assert!(state.unsettled_until().is_some(), "{power:?} with {ips:?}");
    }
    let running = known_after(vm(PowerState::Running, ip)).await;
    assert!(running.presence.is_none() && running.hint.is_none());
}

/// The driver has already answered that it does not support the call.
#[tokio::test]
async fn a_vm_that_is_up_is_not_initialized_without_the_call() {
    let vms = Vms::uninitialized();
    let fixture = || machine().provisioned().configured_driver("pool");
    let server = Server::with(&fixture().build());
    let driver = vms.configured_driver(&[Operation::GetMachineStatus], NO_SETTLE_TIME);
    let ctx = server.context(vec![driver]);
    let before = server.object();
    let gathered = gather(&ctx, &before).await;
    let mut object = Object::new(&ctx, Arc::new(before.clone()), HasStatus::Yes);
    let lacking = world().unable_to(Operation::InitializeMachine, 0);
    let plan = lacking.refresh().plan(fixture());
    let execution = execute(&ctx, &mut object, &gathered, plan).await;
    let outcome = execution.unwrap().0;
    assert!(
        matches!(outcome, Outcome::NotSupported(Operation::InitializeMachine)),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn update_without_a_vm_leads_to_a_look_up() {
    for (offers, hint) in [
        (&[Operation::GetMachineStatus][..], Some(LookUpHint::Signal)),
        (&[], None),
    ] {
        let server = Server::with(&machine().provisioned().configured_driver("pool").build());
        let driver = Vms::default().configured_driver(offers, NO_SETTLE_TIME);
        let ctx = server.context(vec![driver]);
        // The first call queries the driver's capabilities.
        gather(&ctx, &server.object()).await;
        let before = server.object();
        let gathered = gather(&ctx, &before).await;
        let mut object = Object::new(&ctx, Arc::new(before.clone()), HasStatus::Yes);
        let failure = Failure::new(Call::Update, Status::new(Code::NotFound, "there is none"));
        let outcome = Outcome::Failed(Box::new(failure));
        publish(&ctx, &before, &mut object, &gathered, outcome)
            .await
            .unwrap();
        assert_eq!(ctx.states.get("u-1").hinted(), hint);
    }
}
