//! How a VM is deleted: only as the machine's own, and never while the machine is paused.

use std::time::Duration;

use jiff::Timestamp;

use super::waits::{deletion_poll_interval, retry_wait};
use super::{
    Delete, GRACE, Observed, PendingCreate, Plan, ShutDown, Step, blocked, capabilities_unknown,
    known_provider_id, no_driver, paused, plan_invalid_record,
};
use crate::api::annotations;
use crate::api::conditions::{self, reason};
use crate::api::identity::{self, Adoption, VmRecord, VmState};
use crate::api::v1alpha1::{InfraMachine, OperationType};
use crate::api::wall_clock::{elapsed, remaining};
use crate::driver::{DriverState, KnownDriver, PERMIT_WAIT};
use crate::machine::finalizer::has_finalizer;
use crate::machine::outcome::{Outcome, RemovalReason};
use cmi_driver::Operation;

/// How long the guest gets to shut down when the object does not say, in seconds.
const SHUTDOWN_TIMEOUT: i32 = 60;
/// How often in a row ShutDownMachine has to fail before the VM is deleted without it; the guest's time,
/// which runs from the deletion of the object, has to be over as well. The process counts these failures: a
/// status counts the failures of all calls together, and an object that can't be read has none.
pub const SHUT_DOWN_TRIES: u32 = 4;

/// Decides what has to be done for a machine that is being deleted.
pub fn plan_deletion(machine: &InfraMachine, observed: &Observed) -> Plan {
    let is_forced = identity::annotation(machine, annotations::FORCE_DELETE) == Some("true");
    // The pause of the Cluster is not enough: the cache may be behind, or have lost the Cluster already.
    let is_moved = identity::annotation(machine, annotations::DELETE_FOR_MOVE).is_some();
    if !has_finalizer(machine) {
        return plan_without_finalizer(machine, observed);
    }
    if is_moved && !is_forced {
        return plan_moved(machine, observed);
    }
    // A move that stopped halfway leaves its Cluster paused; a complete one would have removed the finalizer.
    if let Some(block) = paused(machine, observed.cluster.as_deref()).filter(|_| !is_moved) {
        return Outcome::Blocked(block).into();
    }
    if is_forced {
        return Outcome::RemoveFinalizer(RemovalReason::Forced).into();
    }
    let record = match VmRecord::of(machine) {
        Ok(Some(record)) => record,
        Ok(None) if Adoption::of(machine) == Adoption::Asked => {
            return Outcome::RemoveFinalizer(RemovalReason::NeverCreated).into();
        }
        Ok(None) => return plan_lost_record(),
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
        Ok(DriverState::Unknown(status)) => return capabilities_unknown(OperationType::Delete, status),
        Ok(DriverState::Pending) => return Outcome::Waiting(Some(PERMIT_WAIT)).into(),
        // The spec was never valid, and no driver is left that could say whether anything was made.
        Err(_) if refused => return Outcome::RemoveFinalizer(RemovalReason::NeverCreated).into(),
        Err(unresolved) => return no_driver(machine, None, unresolved),
    };
    if let Some(wait) = retry_wait(observed) {
        return Outcome::Waiting(wait.requeue_after()).into();
    }
    // Another id than that of a known VM was not written by this provider.
    let provider_id = known_provider_id(machine).filter(|_| record.state.is_known());
    let shut_down = shut_down(machine, record.state, observed)
        .filter(|_| driver.capabilities.supports(Operation::ShutDownMachine) && !refused);
    let left = shut_down.map(|shut_down| shut_down.left(observed.now));
    Step::Delete(Box::new(Delete {
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

/// Plans an object that this provider holds and whose record was removed.
fn plan_lost_record() -> Plan {
    let message = format!(
        "annotation {} is missing, so no VM can be deleted safely: restore it, or delete the VM by hand and \
            set annotation {}=true",
        annotations::VM_RECORD,
        annotations::FORCE_DELETE
    );
    blocked(None, conditions::DELETING, reason::FOREIGN_IDENTITY, message)
}

/// Plans an object that this provider does not hold, or no longer holds. Where this provider has written
/// conditions, it says whose finalizers hold the object.
fn plan_without_finalizer(machine: &InfraMachine, observed: &Observed) -> Plan {
    let has_said_something = machine
        .status
        .as_ref()
        .is_some_and(|status| !status.conditions.is_empty());
    let holders = machine.metadata.finalizers.as_deref().unwrap_or_default();
    if !has_said_something || holders.is_empty() || paused(machine, observed.cluster.as_deref()).is_some() {
        return Outcome::NoOp("the object is being deleted, and this provider holds no finalizer").into();
    }
    let message = format!(
        "waiting for the finalizers of other controllers: {}",
        holders.join(", ")
    );
    blocked(
        None,
        conditions::DELETING,
        reason::WAITING_FOR_FINALIZERS,
        message,
    )
}

/// Plans an object that clusterctl has moved: clusterctl has created the object in another management
/// cluster, marked this one and deleted it, and removes the finalizers next, which is not worth a write. The
/// VM belongs to the other object and is left alone, even when the mark stays.
fn plan_moved(machine: &InfraMachine, observed: &Observed) -> Plan {
    let deleted = machine.metadata.deletion_timestamp.as_ref();
    let left = deleted.and_then(|deleted| remaining(deleted.0, GRACE, observed.now));
    if let Some(left) = left {
        return Outcome::Requeue(left).into();
    }
    let (mark, force) = (annotations::DELETE_FOR_MOVE, annotations::FORCE_DELETE);
    let message = format!(
        "annotation {mark} marks the machine as moved to another management cluster, so its VM is not \
            touched: if it was moved, set {force}=true; otherwise remove {mark}"
    );
    blocked(None, conditions::DELETING, reason::DELETE_FOR_MOVE, message)
}

/// Returns the create that may still make a VM.
///
/// The settle time runs by two clocks, and is over when one of them says so: the wall clock runs from the
/// latest time at which the create was given up, which a restart does not interrupt, and the monotonic clock
/// from when the VM was first absent, which nothing sets back.
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
        .absent_since
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

/// Returns how long ago the object was deleted; zero if a clock was set back.
fn deleted_for(machine: &InfraMachine, now: Timestamp) -> Duration {
    let deleted = machine.metadata.deletion_timestamp.as_ref();
    deleted
        .and_then(|deleted| elapsed(deleted.0, now))
        .unwrap_or_default()
}

/// Returns how the guest is asked to stop; nothing where it has no time, or no time left.
pub(super) fn shut_down(machine: &InfraMachine, state: VmState, observed: &Observed) -> Option<ShutDown> {
    let seconds = machine.spec.shutdown_timeout_seconds.unwrap_or(SHUTDOWN_TIMEOUT);
    let grace = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
    // A time in the future comes from a clock that was set back: the driver is asked anew.
    let accepted = match state {
        VmState::ShuttingDown { accepted, .. } => Some(accepted),
        VmState::None
        | VmState::Creating { .. }
        | VmState::Refused
        | VmState::Exists { .. }
        | VmState::Updating { .. } => None,
    };
    let accepted = accepted.filter(|accepted| elapsed(*accepted, observed.now).is_some());
    let shut_down = ShutDown {
        grace,
        accepted,
        last_try: deleted_for(machine, observed.now) >= grace
            && observed.state.failed_shut_downs >= SHUT_DOWN_TRIES,
    };
    (!shut_down.left(observed.now).is_zero()).then_some(shut_down)
}
