//! Plans the deletion of a VM. Deletes only the machine's own VM, and never while the machine is paused.

use std::time::Duration;

use jiff::Timestamp;

use super::waits::{deletion_poll_interval, retry_wait};
use super::{
    Delete, DriverPlan, GRACE, Observed, PendingCreate, Plan, ShutDown, known_provider_id, no_driver, paused,
    plan_invalid_record,
};
use crate::api::conditions::{self, reason};
use crate::api::identity::{self, Adoption, InvalidRecord, VmRecord, VmState};
use crate::api::v1alpha1::{InfraMachine, OperationType};
use crate::api::wall_clock::{elapsed, remaining};
use crate::api::{MACHINE_FINALIZER, ObjectMetaExt as _, annotations};
use crate::driver::{DriverState, KnownDriver, PERMIT_WAIT};
use crate::machine::outcome::{Blocked, Failure, Outcome, RemovalReason};
use cmi_driver::Operation;

/// The default grace period of a guest, in seconds.
const SHUTDOWN_TIMEOUT: i32 = 60;
/// After this number of consecutive failures of the deletion, the next failure of ShutDownMachine deletes the
/// VM without a shutdown. The grace period, counted from the deletion of the object, must have ended too.
pub const SHUT_DOWN_TRIES: u32 = 4;

/// Decides the next action for a machine that is being deleted.
pub fn plan_deletion(machine: &InfraMachine, observed: &Observed) -> Plan {
    let is_forced = identity::annotation(machine, annotations::FORCE_DELETE) == Some("true");
    // The pause of the Cluster is not enough, because the cache may be stale or may already lack the Cluster.
    let is_moved = identity::annotation(machine, annotations::DELETE_FOR_MOVE).is_some();
    if !machine.metadata.has_finalizer(MACHINE_FINALIZER) {
        return plan_without_finalizer(machine, observed);
    }
    if is_moved && !is_forced {
        return plan_moved(machine, observed);
    }
    // An interrupted move leaves its Cluster paused. A completed move would have removed the finalizer.
    if let Some(block) = paused(machine, observed.cluster.as_deref()).filter(|_| !is_moved) {
        return block.into();
    }
    if is_forced {
        return Outcome::RemoveFinalizer(RemovalReason::Forced).into();
    }
    let record = match VmRecord::of(machine) {
        Ok(Some(record)) => record,
        Ok(None) if Adoption::of(machine) == Adoption::Asked => {
            return Outcome::RemoveFinalizer(RemovalReason::NeverCreated).into();
        }
        Ok(None) => return plan_invalid_record(machine, &InvalidRecord::Missing),
        Err(invalid) => return plan_invalid_record(machine, &invalid),
    };
    let Some(made) = record
        .made_from
        .as_ref()
        .filter(|_| record.state != VmState::None)
    else {
        return Outcome::RemoveFinalizer(RemovalReason::NeverCreated).into();
    };
    let refused = record.state == VmState::Refused;
    let driver = match &observed.driver {
        Ok(DriverState::Known(driver)) => driver,
        Ok(DriverState::Unknown(status)) => {
            return Failure::capabilities_unknown(OperationType::Delete, status).into();
        }
        Ok(DriverState::Pending) => return Outcome::Waiting(Some(PERMIT_WAIT)).into(),
        // The spec was never valid, and no driver is left to report whether anything was made.
        Err(_) if refused => return Outcome::RemoveFinalizer(RemovalReason::NeverCreated).into(),
        Err(unresolved) => return no_driver(machine, None, unresolved),
    };
    if let Some(wait) = retry_wait(observed) {
        return Outcome::Waiting(wait.requeue_after()).into();
    }
    // The providerID of an unconfirmed VM was not written by this provider.
    let provider_id = known_provider_id(machine).filter(|_| record.state.is_known());
    let shut_down = shut_down(machine, record.state, observed)
        .filter(|_| driver.capabilities.supports(Operation::ShutDownMachine) && !refused);
    let left = shut_down.map(|shut_down| shut_down.left(observed.now));
    DriverPlan::Delete(Box::new(Delete {
        may_have_second_vm: provider_id.is_some() && record.state.unanswered().is_some(),
        provider_id,
        spec: made.provider_spec.clone(),
        shut_down,
        pending_create: pending_create(record.state, observed, driver),
        refused,
        requeue_after: deletion_poll_interval(deleted_for(machine, observed.now), left),
    }))
    .into()
}

/// Plans an object without this provider's finalizer. If this provider has written conditions, the status
/// names the remaining finalizers.
fn plan_without_finalizer(machine: &InfraMachine, observed: &Observed) -> Plan {
    let has_said_something = machine
        .status
        .as_ref()
        .is_some_and(|status| !status.conditions.is_empty());
    let holders = machine.metadata.finalizers.as_deref().unwrap_or_default();
    if !has_said_something || holders.is_empty() || paused(machine, observed.cluster.as_deref()).is_some() {
        return Outcome::Unchanged(None).into();
    }
    let message = format!(
        "waiting for the finalizers of other controllers: {}",
        holders.join(", ")
    );
    Blocked::new(conditions::DELETING, reason::WAITING_FOR_FINALIZERS, message).into()
}

/// Plans an object that clusterctl has moved. clusterctl has created the object in another management
/// cluster, and has marked and deleted this object. It removes the finalizers next, so no write is needed.
/// The VM belongs to the other object and is left alone, even if the mark stays.
fn plan_moved(machine: &InfraMachine, observed: &Observed) -> Plan {
    let deleted = machine.metadata.deletion_timestamp.as_ref();
    let left = deleted.and_then(|deleted| remaining(deleted.0, GRACE, observed.now));
    if let Some(left) = left {
        return Outcome::Unchanged(Some(left)).into();
    }
    let (mark, force) = (annotations::DELETE_FOR_MOVE, annotations::FORCE_DELETE);
    let message = format!(
        "annotation {mark} marks the machine as moved to another management cluster, so its VM is not \
            touched: if it was moved, set {force}=true; otherwise remove {mark}"
    );
    Blocked::new(conditions::DELETING, reason::DELETE_FOR_MOVE, message).into()
}

/// Returns the create that may still make a VM.
///
/// Two clocks measure the settle time, and it ends when either clock shows its end. The wall clock starts at
/// the create's latest timeout and survives a restart. The monotonic clock starts when the VM was first
/// absent and can't be set back.
pub(super) fn pending_create(
    state: VmState,
    observed: &Observed,
    driver: &KnownDriver,
) -> Option<PendingCreate> {
    let issued = state.unanswered()?;
    let is_only = matches!(state, VmState::Creating { several: false, .. });
    if is_only && observed.state.answered == Some(issued) {
        return None;
    }
    let time = driver.create_settle_time;
    let absent_for = observed
        .state
        .absent_since()
        .map(|since| observed.instant.saturating_duration_since(since));
    let by_own_clock = time.saturating_sub(absent_for.unwrap_or_default());
    let whole = driver.create_given_up_after.saturating_add(time);
    let by_wall_clock = elapsed(issued, observed.now).map(|passed| whole.saturating_sub(passed));
    let left = by_wall_clock.map_or(by_own_clock, |left| left.min(by_own_clock));
    let latest = issued.checked_add(whole).unwrap_or(issued);
    (!left.is_zero()).then_some(PendingCreate {
        issued,
        latest,
        time,
        left,
    })
}

/// Returns the time since the object was deleted, and zero if a clock was set back.
fn deleted_for(machine: &InfraMachine, now: Timestamp) -> Duration {
    let deleted = machine.metadata.deletion_timestamp.as_ref();
    deleted
        .and_then(|deleted| elapsed(deleted.0, now))
        .unwrap_or_default()
}

/// Returns how to shut the guest down, and `None` when it has no grace period left.
pub(super) fn shut_down(machine: &InfraMachine, state: VmState, observed: &Observed) -> Option<ShutDown> {
    let seconds = machine.spec.shutdown_timeout_seconds.unwrap_or(SHUTDOWN_TIMEOUT);
    let grace = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
    // An acceptance in the future means that a clock was set back. The driver is asked again.
    let accepted = match state {
        VmState::ShuttingDown { accepted, .. } => elapsed(accepted, observed.now).map(|_| accepted),
        _ => None,
    };
    let shut_down = ShutDown {
        grace,
        accepted,
        last_try: accepted.is_none()
            && deleted_for(machine, observed.now) >= grace
            && observed.failure().map_or(0, |failure| failure.attempts) >= SHUT_DOWN_TRIES,
    };
    (!shut_down.left(observed.now).is_zero()).then_some(shut_down)
}
