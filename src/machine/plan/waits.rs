//! When a driver may be called again, and when it has to be. Pure.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::Observed;
use crate::api::ObjectMetaExt as _;
use crate::api::conditions::{self, ConditionStatus};
use crate::api::retry::{
    BACKOFF_JITTER, FIRST_BACKOFF, MAX_BACKOFF, MAX_REQUESTED_DELAY, MIN_REQUEUE, jitter,
};
use crate::api::v1alpha1::{InfraMachine, OperationState, OperationType};
use crate::api::wall_clock::{elapsed, until};
use crate::machine::outcome::RetryTrigger;
use crate::machine::runtime_state::{Retry, RetryCondition, UnimplementedCall};
use crate::reconcile::Action;
use cmi_driver::{Code, Operation};

/// After a start, the machines that waited for capacity come within this time.
const RECALLED_WITHIN: Duration = Duration::from_secs(10);

/// Returns what the last failure still makes a call wait for: time, or a change, such as another driver.
pub fn retry_wait(observed: &Observed) -> Option<Action> {
    if observed.state.hint.is_some() && observed.state.hint_is_new {
        return None;
    }
    recorded_wait(observed)
}

/// Returns the wait that a status shows, for a process that remembers none because another process made the
/// call. `inputs` are the current ones, so that a change of them ends the wait as it ends a wait of this
/// process.
///
/// # Guarantees
/// The wait is never longer than the one that the earlier process meant, and one for capacity is over
/// within seconds. A failure that repeats is not written each time (see [`crate::machine::status`]), so once
/// the next try that is shown was due, there may have been more attempts than the status shows, as many as
/// there was time for. Until then the status shows all of them.
pub fn restored(machine: &InfraMachine, now: Timestamp, instant: Instant, inputs: u64) -> Option<Retry> {
    let status = machine.status.as_ref()?;
    let last = status
        .last_operation
        .as_ref()
        .filter(|last| last.state == OperationState::Failed)?;
    let deleting = machine.metadata.deletion_timestamp.is_some();
    if status.observed_generation != machine.metadata.generation
        || deleting != (last.type_ == OperationType::Delete)
    {
        return None;
    }
    let next = last.next_retry_time.as_ref()?.0;
    // A clock that was set back must not make the wait longer than it was meant to be.
    let meant = until(next, last.last_update_time.0);
    let meant = meant.min(MAX_REQUESTED_DELAY);
    let left = until(next, now);
    let shown = u32::try_from(last.attempts).unwrap_or_default();
    let elapsed = elapsed(last.last_update_time.0, now).unwrap_or_default();
    let unshown = if left.is_zero() {
        most_unshown(shown, meant, elapsed)
    } else {
        0
    };
    let code = last.code.as_deref().and_then(code_named);
    let trigger = match code {
        Some(Code::ResourceExhausted) => RetryTrigger::Capacity,
        Some(code) if code.is_transient() => RetryTrigger::Transient,
        Some(_) | None => RetryTrigger::Other,
    };
    let awaits_create = trigger == RetryTrigger::Capacity && last.type_ == OperationType::Create;
    let left = if awaits_create {
        // There may be room by now: one machine of each class finds out.
        let uid = machine.metadata.uid();
        left.min(meant).min(RECALLED_WITHIN.mul_f64(jitter(uid, shown)))
    } else if left.is_zero() && shown > 1 {
        let uid = machine.metadata.uid();
        meant.mul_f64(jitter(uid, shown))
    } else {
        left.min(meant)
    };
    Some(Retry {
        attempts: shown.saturating_add(unshown),
        trigger,
        until: RetryCondition::Time(instant + left),
        inputs,
        unpublished: None,
    })
}

/// Returns how many attempts may have failed unpublished since the attempt `shown` of the status: as many as
/// fit into `elapsed`, where each wait was at least `meant` less its jitter. They are fewer than `shown`,
/// since the status is written again once the attempts have doubled.
fn most_unshown(shown: u32, meant: Duration, elapsed: Duration) -> u32 {
    let most = shown.saturating_sub(1);
    let shortest = meant.mul_f64(1.0 - BACKOFF_JITTER).as_millis();
    let there_was_time_for = elapsed.as_millis().checked_div(shortest).unwrap_or(u128::MAX);
    u32::try_from(there_was_time_for).map_or(most, |there_was| there_was.min(most))
}

fn code_named(name: &str) -> Option<Code> {
    Code::ALL.into_iter().find(|code| code.name() == name)
}

fn recorded_wait(observed: &Observed) -> Option<Action> {
    let retry = observed.state.retry.as_ref()?;
    if retry.inputs != observed.inputs {
        return None;
    }
    match retry.until {
        RetryCondition::Time(time) => {
            let left = time.saturating_duration_since(observed.instant);
            (!left.is_zero()).then_some(Action::requeue(left))
        }
        RetryCondition::AnotherDriver(unable) => {
            let is_met_again = unable.connection_generation == observed.connection_generation;
            is_met_again.then_some(Action::await_change())
        }
    }
}

/// Whether the current driver has answered that it does not offer a call, whatever its capabilities say.
pub fn lacks(observed: &Observed, operation: Operation) -> bool {
    let Some(retry) = observed.state.retry.as_ref() else {
        return false;
    };
    let unable = UnimplementedCall {
        connection_generation: observed.connection_generation,
        operation,
    };
    retry.inputs == observed.inputs && retry.until == RetryCondition::AnotherDriver(unable)
}

/// Returns how long the last remembered failure still holds up a look-up. A driver that does not offer some
/// other call can be asked at any time.
pub fn look_up_wait(observed: &Observed) -> Option<Duration> {
    recorded_wait(observed).and_then(Action::requeue_after)
}

/// Whether a provisioned VM has to be polled until it is as it should be: it is still starting, or its
/// initialization is not done.
pub fn is_unsettled(machine: &InfraMachine) -> bool {
    machine.status.as_ref().is_some_and(|status| {
        status.power_state.as_deref() == Some("Starting")
            || conditions::get(&status.conditions, conditions::VIRTUAL_MACHINE_INITIALIZED)
                .is_some_and(|initialized| initialized.status == ConditionStatus::False.as_str())
    })
}

/// Returns when to poll a VM that is not settled: `None` for now, else after this long.
///
/// A trigger that comes earlier does not lead to an earlier call, and must not make the later call be
/// forgotten.
pub fn until_settling(observed: &Observed) -> Option<Duration> {
    let rest = observed.state.settle_until.and_then(|until| {
        let left = until.saturating_duration_since(observed.instant);
        (!left.is_zero()).then_some(left)
    });
    rest.max(look_up_wait(observed))
}

/// Returns how long to leave a VM that is being deleted: a quarter of the time that the deletion has taken so
/// far, so that the calls grow rare by themselves, and no longer than the guest still has to shut down. The
/// end of a deletion is thus seen late by at most a quarter of what it took.
pub fn deletion_poll_interval(deleted_for: Duration, left_to_shut_down: Option<Duration>) -> Duration {
    const MAX_INTERVAL: Duration = Duration::from_mins(1);
    let interval = (deleted_for / 4).clamp(FIRST_BACKOFF, MAX_INTERVAL);
    left_to_shut_down.map_or(interval, |left| interval.min(left.max(MIN_REQUEUE)))
}

/// Returns how long to leave a VM that is not settled: as long again as it has existed, so that the calls
/// grow rare by themselves where a driver says `Starting` for ever.
pub fn settling_poll_interval(machine: &InfraMachine, now: Timestamp) -> Duration {
    let created = machine
        .status
        .as_ref()
        .and_then(|status| conditions::get(&status.conditions, conditions::VIRTUAL_MACHINE_CREATED))
        .and_then(|created| elapsed(created.last_transition_time.0, now));
    created.unwrap_or_default().clamp(FIRST_BACKOFF, MAX_BACKOFF)
}
