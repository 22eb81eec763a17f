//! Decides when a driver may or must be called again. Pure.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::{Observed, has_failed_for_good};
use crate::api::addresses;
use crate::api::conditions::{self, ConditionStatus};
use crate::api::retry::{FIRST_BACKOFF, MAX_BACKOFF, MAX_REQUESTED_DELAY, MIN_REQUEUE};
use crate::api::v1alpha1::{InfraMachine, OperationState, OperationType};
use crate::api::wall_clock::{elapsed, until};
use crate::reconcile::Action;
use crate::reconcile::runtime_state::{Retry, RetryCondition, RetryTrigger, UnimplementedCall};
use cmi_driver::{Code, Operation, PowerState};

/// Returns the wait after the last failure, which ends with time or with a change such as another driver.
pub fn retry_wait(observed: &Observed) -> Option<Action> {
    if observed.state.hint.is_some_and(|hint| hint.is_new) {
        return None;
    }
    recorded_wait(observed)
}

/// Returns the wait that the status shows, for a process that has no wait in memory. It is never longer than
/// the earlier process planned. A change of the inputs ends it. Without recorded inputs, the current `inputs`
/// count as unchanged.
pub fn restored(machine: &InfraMachine, now: Timestamp, instant: Instant, inputs: u64) -> Option<Retry> {
    let status = machine.status.as_ref()?;
    let last = status.last_operation.as_ref()?;
    let is_deleted = machine.metadata.deletion_timestamp.is_some();
    let is_current = last.state == OperationState::Failed
        && status.observed_generation == machine.metadata.generation
        && is_deleted == (last.type_ == OperationType::Delete);
    let until = match &last.next_retry_time {
        _ if !is_current => return None,
        Some(next) => {
            // A clock that was set back must not lengthen the wait.
            let planned = until(next.0, last.last_update_time.0).min(MAX_REQUESTED_DELAY);
            RetryCondition::Time(instant + until(next.0, now).min(planned))
        }
        None if has_failed_for_good(machine) => RetryCondition::Change,
        None => return None,
    };
    let code = last.code.as_deref();
    let code = Code::ALL.into_iter().find(|known| Some(known.name()) == code);
    Some(Retry {
        during: last.type_,
        attempts: u32::try_from(last.attempts).unwrap_or_default(),
        trigger: RetryTrigger::of(code),
        until,
        inputs: last
            .inputs
            .as_ref()
            .and_then(|inputs| inputs.parse().ok())
            .unwrap_or(inputs),
    })
}

fn recorded_wait(observed: &Observed) -> Option<Action> {
    match observed.failure()?.until {
        RetryCondition::Time(time) => {
            let left = time.saturating_duration_since(observed.instant);
            (!left.is_zero()).then_some(Action::requeue(left))
        }
        // The status decides: a change of the generation alone is retried as well.
        RetryCondition::Change => None,
        RetryCondition::AnotherDriver(unable) => {
            let is_met_again = unable.connection_generation == observed.connection_generation;
            is_met_again.then_some(Action::await_change())
        }
    }
}

/// Returns whether the current driver has answered that it does not support a call, despite its capabilities.
pub fn lacks(observed: &Observed, operation: Operation) -> bool {
    let unable = UnimplementedCall {
        connection_generation: observed.connection_generation,
        operation,
    };
    let failure = observed.failure();
    failure.is_some_and(|failure| failure.until == RetryCondition::AnotherDriver(unable))
}

/// Returns how long the last failure still delays a look-up. A failure because of another unsupported call
/// causes no delay.
pub fn look_up_wait(observed: &Observed) -> Option<Duration> {
    recorded_wait(observed).and_then(Action::requeue_after)
}

/// Returns whether a provisioned VM must be polled because it is starting or uninitialized.
fn is_unsettled(machine: &InfraMachine) -> bool {
    machine.status.as_ref().is_some_and(|status| {
        status.power_state.as_deref() == Some("Starting")
            || conditions::get(&status.conditions, conditions::VIRTUAL_MACHINE_INITIALIZED)
                .is_some_and(|initialized| initialized.status == ConditionStatus::False.as_str())
    })
}

/// How long a new VM is polled for its first IP address. After this time, lists find the address.
const FIRST_ADDRESS_WITHIN: Duration = Duration::from_mins(15);

/// Returns the interval for polling a provisioned VM that is unsettled or has no IP address yet, or `None` if
/// the VM is not polled. The interval grows with the age of the VM. A driver that reports `Starting` forever
/// therefore causes few calls.
pub fn poll_interval(machine: &InfraMachine, now: Timestamp) -> Option<Duration> {
    const FIRST: Duration = Duration::from_secs(2);
    const LONGEST: Duration = Duration::from_secs(30);
    let age = created_for(machine, now).unwrap_or_default();
    if age < FIRST_ADDRESS_WITHIN && awaits_address(machine) {
        return Some(age.clamp(FIRST, LONGEST));
    }
    is_unsettled(machine).then(|| age.clamp(FIRST_BACKOFF, MAX_BACKOFF))
}

/// Answers of `cmi.v1` alone have neither a power state nor addresses.
fn awaits_address(machine: &InfraMachine) -> bool {
    let is_off = [PowerState::Stopped, PowerState::Failed].map(PowerState::name);
    machine.status.as_ref().is_some_and(|status| {
        let may_run = status
            .power_state
            .as_deref()
            .is_some_and(|power| !is_off.contains(&power));
        may_run && !addresses::has_ip(&status.addresses) && !machine.has_vanished()
    })
}

/// Returns the time since the VM was created.
fn created_for(machine: &InfraMachine, now: Timestamp) -> Option<Duration> {
    let conditions = &machine.status.as_ref()?.conditions;
    let created = conditions::get(conditions, conditions::VIRTUAL_MACHINE_CREATED)?;
    elapsed(created.last_transition_time.0, now)
}

/// Returns the time until the next poll of an unsettled VM, and `None` if the poll is due.
///
/// An earlier trigger neither leads to an earlier call nor drops the later call.
pub fn until_settling(observed: &Observed) -> Option<Duration> {
    let rest = observed.state.unsettled_until().and_then(|until| {
        let left = until.saturating_duration_since(observed.instant);
        (!left.is_zero()).then_some(left)
    });
    rest.max(look_up_wait(observed))
}

/// Returns the interval for polling a VM that is being deleted: a quarter of the time since the deletion, and
/// at most the rest of the grace period. A slow deletion thus causes few calls. Its end is seen late by at
/// most a quarter of its duration.
pub fn deletion_poll_interval(deleted_for: Duration, left_to_shut_down: Option<Duration>) -> Duration {
    const MAX_INTERVAL: Duration = Duration::from_mins(1);
    let interval = (deleted_for / 4).clamp(FIRST_BACKOFF, MAX_INTERVAL);
    left_to_shut_down.map_or(interval, |left| interval.min(left.max(MIN_REQUEUE)))
}
