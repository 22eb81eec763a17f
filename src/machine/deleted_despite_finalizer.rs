//! An InfraMachine that the API server deleted although the finalizer was on it.
//!
//! The API server looks at an object's finalizers before it deletes the object, and not again (`Store.Delete`
//! of k8s.io/apiserver): a finalizer that is written in between is lost with the object. This can happen to a
//! Machine that is deleted while it comes up: the delete has begun when the finalizer is written, and the
//! create that follows makes a VM without an object. The VM is deleted with what the watch last showed of the
//! object, and what the driver has said since.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio::time::sleep;

use super::execute::execute;
use super::object::{LiveObject, Object};
use super::outcome::Outcome;
use super::ownership::has_finalizer;
use super::publish::{events, record_failure};
use super::{Context, gather_and_plan};
use crate::api::ObjectMetaExt as _;
use crate::api::v1alpha1::InfraMachine;
use crate::api::{VmExistence, annotations};
use crate::apiserver::Error;
use crate::configured_driver::PERMIT_WAIT;
use crate::identity::{self, MachineId};
use crate::retry::LONG_WAIT;
use crate::wall_clock;

/// How long the deletion is retried at most; the report of orphans shows what is left then. The time is
/// longer than a create may be in flight.
const MAX_RETRY_TIME: Duration = Duration::from_hours(24);

/// Whether an object that a watch reports as deleted, and whose last version is `last`, was deleted in spite
/// of its finalizer. Any other removal begins with a requested deletion, or takes the finalizer off first: a
/// move, a forced deletion, a VM that is gone. An object that has its providerID had the finalizer long
/// before: it was taken out of the API server's store by hand, and the report of orphans shows its VM.
pub fn was_deleted_despite_finalizer(last: &InfraMachine) -> bool {
    let is_marked = |mark| identity::annotation(last, mark).is_some();
    last.metadata.deletion_timestamp.is_none()
        && last.spec.provider_id.is_none()
        && has_finalizer(last)
        && MachineId::of(last).is_some()
        && identity::vm_existence(last) == VmExistence::MayExist
        && ![annotations::DELETE_FOR_MOVE, annotations::FORCE_DELETE]
            .into_iter()
            .any(is_marked)
}

/// Deletes the VM of such an object as the object's deletion would have, until no create of the object can
/// make a VM any more. `last` is the object as the watch last showed it.
pub fn delete_vm_left_behind(ctx: &Context, last: InfraMachine) -> impl Future<Output = ()> + Send + 'static {
    // A wake-up of the object resumes this task: the object is in no cache, and no controller reconciles it
    // any more.
    let woken = Arc::new(Notify::new());
    let waker = Arc::clone(&woken);
    let ctx = Context {
        enqueue: Arc::new(move |_| waker.notify_one()),
        ..ctx.clone()
    };
    async move { retry_until_deleted(&ctx, last, &woken).await }
}

async fn retry_until_deleted(ctx: &Context, last: InfraMachine, woken: &Notify) {
    let name = full_name(&last);
    let (began, mut errors, mut is_reported) = (Instant::now(), 0, false);
    // One object for all attempts: what an attempt has learned of the VM, nothing else keeps.
    let mut object = Object::deleted_despite_finalizer(ctx, Arc::new(as_deleted(last)));
    loop {
        let wait = match attempt(ctx, &mut object, &mut is_reported).await {
            Ok(None) => return,
            Ok(Some(wait)) => wait,
            Err(error) => {
                errors += 1;
                tracing::warn!(machine = name, %error, "retrying to delete the VM of a removed InfraMachine");
                error.wait(errors)
            }
        };
        let Some(left) = MAX_RETRY_TIME.checked_sub(began.elapsed()) else {
            tracing::error!(machine = name, "cannot delete the VM of a removed InfraMachine");
            ctx.states.forget(object.uid());
            return;
        };
        tokio::select! {
            () = woken.notified() => {}
            () = sleep(wait.min(left)) => {}
        }
    }
}

/// Returns the name as logs have it: no reconcile, and so no span, names the object here.
fn full_name(machine: &InfraMachine) -> String {
    let meta = &machine.metadata;
    format!("{}/{}", meta.namespace(), meta.name())
}

/// Returns the object as if its deletion had been requested. The guest gets no time to shut down: it has not
/// come up.
fn as_deleted(mut machine: InfraMachine) -> InfraMachine {
    machine.metadata.deletion_timestamp = Some(Time(wall_clock::now()));
    machine.spec.shutdown_timeout_seconds = Some(0);
    machine
}

/// Tries the deletion once. Returns when to try again, or nothing when nothing is left to do. Nothing is
/// logged about an object that still exists and that only this process no longer watches.
///
/// The VM is left alone once another object has the name: a plugin need not know the tag that tells the VMs
/// of the two apart, and would delete the VM of the later one.
async fn attempt(
    ctx: &Context,
    object: &mut Object<'_>,
    is_reported: &mut bool,
) -> Result<Option<Duration>, Error> {
    let machine = object.latest();
    match object.live().await? {
        LiveObject::Absent => {}
        LiveObject::Same => return Ok(None),
        LiveObject::Another => {
            tracing::error!(
                machine = full_name(&machine),
                "an InfraMachine was removed despite its finalizer, and another one has its name: not \
                    deleting its VM"
            );
            ctx.states.forget(object.uid());
            return Ok(None);
        }
    }
    if !std::mem::replace(is_reported, true) {
        tracing::warn!(
            machine = full_name(&machine),
            "an InfraMachine was removed despite its finalizer: deleting its VM"
        );
    }
    let (gathered, plan) = gather_and_plan(ctx, &machine).await;
    let execution = execute(ctx, object, &gathered, plan).await?;
    let outcome = &execution.outcome;
    let timing = record_failure(ctx, &machine, &gathered, outcome, None);
    object.patch_last_known_state(outcome.last_known_state()).await?;
    if matches!(outcome, Outcome::Gone | Outcome::RemoveFinalizer(_)) {
        ctx.states.forget(object.uid());
        if let Some(note) = events::of(&machine, outcome, timing.attempts) {
            ctx.events.record(&*machine, note).await;
        }
        return Ok(None);
    }
    Ok(Some(next_attempt_in(outcome, timing.wait)))
}

/// Returns how long to wait before the next attempt; `wait` is that of the outcome.
fn next_attempt_in(outcome: &Outcome, wait: Option<Duration>) -> Duration {
    let wait = wait.unwrap_or(LONG_WAIT);
    match outcome {
        // A reconcile that was under way when the object went asks for a permit by the same key, and may take
        // the place and the wake-up of this task. Other waits of this kind are short, or cost one read a
        // minute.
        Outcome::Queued { .. } | Outcome::Waiting(_) => wait.min(PERMIT_WAIT),
        _ => wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configured_driver::{Priority, Waker};
    use crate::machine::fakes::{Server, Vms};
    use crate::machine::fixtures::{MachineFixture, at, machine};
    use cmi_driver::Operation;

    fn made() -> MachineFixture {
        machine()
            .configured_driver("pool")
            .identified()
            .annotated(annotations::CREATE_ISSUED_AT, &at(0).to_string())
    }

    #[test]
    fn only_an_object_whose_deletion_was_not_asked_for_was_let_go_in_spite_of_its_finalizer() {
        assert!(was_deleted_despite_finalizer(&made().build()));
        for other in [
            made().deleted_at(at(0)),
            made().without_finalizer(),
            made().provider_id("sim://1"),
            made().without(annotations::MACHINE_ID),
            made().annotated(annotations::MACHINE_ID, "ns1/other/u-9"),
            made().annotated(annotations::VM_EXISTENCE, "none"),
            made().annotated(annotations::DELETE_FOR_MOVE, ""),
            made().annotated(annotations::FORCE_DELETE, "true"),
        ] {
            let other = other.build();
            assert!(!was_deleted_despite_finalizer(&other), "{other:?}");
        }
    }

    async fn left_by(server: &Server, vms: &Vms) -> Vec<String> {
        let offers = [Operation::GetMachineStatus, Operation::ShutDownMachine];
        let ctx = server.context(vec![vms.configured_driver(&offers, Duration::ZERO)]);
        ends(delete_vm_left_behind(&ctx, made().build())).await;
        vms.ids()
    }

    fn ends(deletion: impl Future<Output = ()>) -> impl Future<Output = ()> {
        let deletion = tokio::time::timeout(Duration::from_secs(30), Box::pin(deletion));
        async { assert!(deletion.await.is_ok(), "it goes on for ever") }
    }

    /// CTL-CR-14
    #[tokio::test]
    async fn the_vm_of_an_object_that_was_let_go_in_spite_of_its_finalizer_is_deleted() {
        let (server, vms) = (Server::with(&made().build()), Vms::default());
        vms.add("sim://1", "m1", Some("u-1"));
        server.erase();
        assert_eq!(left_by(&server, &vms).await, Vec::<String>::new());
        assert_eq!(
            vms.count(Operation::ShutDownMachine),
            0,
            "the guest has not come up"
        );
    }

    /// CTL-CR-14. The driver's answers to look-ups and deletions say nothing of a VM that is being made.
    #[tokio::test]
    async fn a_create_that_outlives_its_object_leaves_no_vm_behind() {
        let (server, vms) = (Server::with(&made().build()), Vms::default());
        server.erase();
        let offers = [Operation::GetMachineStatus, Operation::ShutDownMachine];
        let ctx = Arc::new(server.context(vec![vms.configured_driver(&offers, Duration::ZERO)]));
        let mut in_flight = ctx.states.create_in_flight("u-1");
        in_flight.issued();
        let deletion = tokio::spawn(delete_vm_left_behind(&ctx, made().build()));
        until("the driver is asked", || {
            vms.count(Operation::GetMachineStatus) > 0
        })
        .await;
        vms.add("sim://1", "m1", Some("u-1"));
        drop(in_flight);
        deletion.await.unwrap();
        assert_eq!(vms.ids(), Vec::<String>::new());
    }

    /// CTL-CR-14. Its object is in no queue that a permit could wake.
    #[tokio::test]
    async fn a_deletion_that_waits_for_a_permit_goes_on_when_there_is_one() {
        let (server, vms) = (Server::with(&made().build()), Vms::default());
        vms.add("sim://1", "m1", Some("u-1"));
        server.erase();
        let ctx = server.context(vec![
            vms.configured_driver(&[Operation::GetMachineStatus], Duration::ZERO),
        ]);
        let driver = ctx.drivers.resolve(Some("pool"), "ns1").unwrap();
        let permits: Vec<_> = (0..driver.max_concurrent_calls())
            .filter_map(|n| {
                let key = format!("other-{n}");
                driver.try_acquire(Priority::Upkeep, &key, &key, Waker::new(|| {}))
            })
            .collect();
        let deletion = tokio::spawn(delete_vm_left_behind(&ctx, made().build()));
        until("it waits", || driver.waiting() > 0).await;
        drop(permits);
        let ended = tokio::time::timeout(Duration::from_secs(30), deletion).await;
        assert!(ended.is_ok(), "it was not woken");
        assert_eq!(vms.ids(), Vec::<String>::new());
    }

    #[test]
    fn a_wait_for_a_permit_whose_wake_up_another_may_take_is_short() {
        let requeue_after = Duration::from_hours(1);
        for outcome in [
            Outcome::Waiting(Some(requeue_after)),
            Outcome::Queued { requeue_after },
        ] {
            assert_eq!(
                next_attempt_in(&outcome, Some(requeue_after)),
                PERMIT_WAIT,
                "{outcome:?}"
            );
        }
        let absent = Outcome::Absent { requeue_after };
        assert_eq!(next_attempt_in(&absent, Some(requeue_after)), requeue_after);
    }

    async fn until(what: &str, is_so: impl Fn() -> bool) {
        let waited = async {
            while !is_so() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(30), waited).await;
        assert!(waited.is_ok(), "{what}");
    }

    #[tokio::test]
    async fn the_vm_of_an_object_that_is_there_again_stays() {
        for again in [made(), made().without(annotations::MACHINE_ID)] {
            let (server, vms) = (Server::with(&again.build()), Vms::default());
            vms.add("sim://1", "m1", Some("u-1"));
            assert_eq!(left_by(&server, &vms).await, ["sim://1"]);
        }
    }

    /// An InfraMachine that has the name of the one that was let go, as it was made.
    fn later() -> MachineFixture {
        let mut later = machine().configured_driver("pool").build();
        later.metadata.uid = Some("u-2".to_owned());
        MachineFixture::from(later)
    }

    /// The driver knows VMs by their names alone, and says of none whose it is.
    #[tokio::test]
    async fn the_vm_of_a_later_object_stays_when_the_vm_of_one_of_its_name_that_was_let_go_is_deleted() {
        for later in [later(), later().identified()] {
            let (server, vms) = (Server::with(&later.build()), Vms::default());
            vms.add("sim://2", "m1", None);
            assert_eq!(left_by(&server, &vms).await, ["sim://2"]);
        }
    }

    #[tokio::test]
    async fn a_later_object_that_comes_while_the_deletion_is_prepared_keeps_its_vm() {
        for offers in [
            &[][..],
            &[Operation::GetMachineStatus],
            &[Operation::ListMachines],
        ] {
            let (server, vms) = (Server::with(&later().identified().build()), Vms::default());
            vms.add("sim://2", "m1", None);
            let ctx = server.context(vec![vms.configured_driver(offers, Duration::ZERO)]);
            let gone = Arc::new(as_deleted(made().build()));
            let mut object = Object::deleted_despite_finalizer(&ctx, Arc::clone(&gone));
            let (gathered, plan) = gather_and_plan(&ctx, &gone).await;
            let execution = execute(&ctx, &mut object, &gathered, plan).await;
            assert!(
                matches!(execution.err(), Some(Error::Conflict { .. })),
                "{offers:?}"
            );
            assert_eq!(vms.ids(), ["sim://2"], "{offers:?}");
        }
    }

    /// CTL-01, CTL-03
    #[tokio::test]
    async fn the_state_that_a_deletion_answers_comes_back_with_the_next_call_without_the_object() {
        let (server, vms) = (Server::with(&made().build()), Vms::deleting_in_steps());
        vms.add("sim://1", "m1", Some("u-1"));
        server.erase();
        assert_eq!(left_by(&server, &vms).await, Vec::<String>::new());
        assert_eq!(vms.count(Operation::DeleteMachine), 3);
    }

    /// The Secret goes with the object, as with their namespace, and the driver needs none. A create that was
    /// not answered has the deletion look again.
    #[tokio::test]
    async fn a_vm_that_is_deleted_without_its_secret_is_gone_at_the_next_attempt() {
        let made = made()
            .secret("creds")
            .annotated(annotations::SECRET, "creds")
            .annotated(annotations::CREATE_ISSUED_AT, &jiff::Timestamp::now().to_string());
        let (server, vms) = (Server::with(&made.clone().build()), Vms::default());
        vms.add("sim://1", "m1", Some("u-1"));
        server.erase();
        let settle_time = Duration::from_millis(1);
        let driver = vms.configured_driver(&[Operation::GetMachineStatus], settle_time);
        let ctx = server.context(vec![driver]);
        ends(delete_vm_left_behind(&ctx, made.build())).await;
        assert_eq!(vms.ids(), Vec::<String>::new());
        assert_eq!(vms.count(Operation::DeleteMachine), 2, "it waits for the create");
    }
}
