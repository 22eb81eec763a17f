//! Decides when a driver may or must be called again. Pure.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::{Observed, has_failed_for_good};
use crate::api::ObjectMetaExt as _;
use crate::api::addresses;
use crate::api::conditions::{self, ConditionStatus};
use crate::api::retry::{
    BACKOFF_JITTER, FIRST_BACKOFF, MAX_BACKOFF, MAX_REQUESTED_DELAY, MIN_REQUEUE, jitter,
};
use crate::api::v1alpha1::{InfraMachine, OperationState, OperationType};
use crate::api::wall_clock::{elapsed, until};
use crate::machine::outcome::RetryTrigger;
use crate::machine::runtime_state::{Retry, RetryCondition, UnimplementedCall};
use crate::reconcile::Action;
use cmi_driver::{Capabilities, Code, Operation, PowerState};

/// After a restart, the machines that waited for capacity retry within this time.
const RECALLED_WITHIN: Duration = Duration::from_secs(10);

/// Returns the wait after the last failure, which ends with time or with a change such as another driver.
pub fn retry_wait(observed: &Observed) -> Option<Action> {
    if observed.state.hint.is_some_and(|hint| hint.is_new) {
        return None;
    }
    recorded_wait(observed)
}

/// Returns the wait that a status shows, for a process that has no wait in memory because another process
/// made the call. `inputs` are the current inputs. A later change of them ends this wait.
///
/// # Guarantees
/// The wait is never longer than the earlier process planned. A wait for capacity ends within seconds. Not
/// every repeated failure is written (see [`crate::machine::status`]). After the published time of the next
/// attempt, there may therefore have been more attempts than the status shows. The number of attempts
/// includes as many as there was time for.
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
    if has_failed_for_good(machine) {
        // A later change of the inputs is retried.
        return Some(Retry {
            during: last.type_,
            attempts: u32::try_from(last.attempts).unwrap_or_default(),
            trigger: RetryTrigger::Other,
            until: RetryCondition::Change,
            inputs,
            unpublished: None,
        });
    }
    let next = last.next_retry_time.as_ref()?.0;
    // A clock that was set back must not lengthen the wait.
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
        // There may be capacity again, and one machine of each class finds out.
        let uid = machine.metadata.uid();
        left.min(meant).min(RECALLED_WITHIN.mul_f64(jitter(uid, shown)))
    } else if left.is_zero() && shown > 1 {
        let uid = machine.metadata.uid();
        meant.mul_f64(jitter(uid, shown))
    } else {
        left.min(meant)
    };
    Some(Retry {
        during: last.type_,
        attempts: shown.saturating_add(unshown),
        trigger,
        until: RetryCondition::Time(instant + left),
        inputs,
        unpublished: None,
    })
}

/// Returns how many attempts may have failed without a status write since the attempt `shown`. This is as
/// many as fit into `elapsed`, where each wait was at least `meant` less its jitter. The result is below
/// `shown`, because the status is written again when the attempts have doubled.
fn most_unshown(shown: u32, meant: Duration, elapsed: Duration) -> u32 {
    let most = shown.saturating_sub(1);
    let shortest = meant.mul_f64(1.0 - BACKOFF_JITTER).as_millis();
    let there_was_time_for = elapsed.as_millis().checked_div(shortest).unwrap_or(u128::MAX);
    u32::try_from(there_was_time_for).map_or(most, |there_was| there_was.min(most))
}

fn code_named(name: &str) -> Option<Code> {
    Code::ALL.into_iter().find(|code| code.name() == name)
}

/// Returns the number of consecutive failures with the current inputs.
pub fn failures(observed: &Observed) -> u32 {
    let retry = observed.state.retry.as_ref();
    let retry = retry.filter(|retry| retry.inputs == observed.inputs);
    retry.map_or(0, |retry| retry.attempts)
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
    let Some(retry) = observed.state.retry.as_ref() else {
        return false;
    };
    let unable = UnimplementedCall {
        connection_generation: observed.connection_generation,
        operation,
    };
    retry.inputs == observed.inputs && retry.until == RetryCondition::AnotherDriver(unable)
}

/// Returns how long the last failure still delays a look-up. A failure because of another unsupported call
/// causes no delay.
pub fn look_up_wait(observed: &Observed) -> Option<Duration> {
    recorded_wait(observed).and_then(Action::requeue_after)
}

/// Returns whether a provisioned VM must be polled because it is starting or uninitialized.
pub fn is_unsettled(machine: &InfraMachine) -> bool {
    machine.status.as_ref().is_some_and(|status| {
        status.power_state.as_deref() == Some("Starting")
            || conditions::get(&status.conditions, conditions::VIRTUAL_MACHINE_INITIALIZED)
                .is_some_and(|initialized| initialized.status == ConditionStatus::False.as_str())
    })
}

/// How long a new VM is polled for its first IP address. From then on, lists find it.
const FIRST_ADDRESS_WITHIN: Duration = Duration::from_mins(15);

/// Returns the interval for polling a VM for its first IP address: the time since its creation, between 2 and
/// 30 seconds. Returns `None` if the VM is not polled. A driver whose lists have no state may know no
/// addresses at all.
pub fn address_poll_interval(
    machine: &InfraMachine,
    capabilities: &Capabilities,
    now: Timestamp,
) -> Option<Duration> {
    const FIRST: Duration = Duration::from_secs(2);
    const LONGEST: Duration = Duration::from_secs(30);
    let status = machine.status.as_ref();
    let has_ip = status.is_some_and(|status| addresses::has_ip(&status.addresses));
    let power = status.and_then(|status| status.power_state.as_deref());
    let is_off = [PowerState::Stopped, PowerState::Failed].map(PowerState::name);
    let age = created_for(machine, now).unwrap_or_default();
    let is_awaited = capabilities.list_has_state
        && !has_ip
        && !power.is_some_and(|power| is_off.contains(&power))
        && !machine.has_vanished()
        && age < FIRST_ADDRESS_WITHIN;
    is_awaited.then(|| age.clamp(FIRST, LONGEST))
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

/// Returns the interval for polling an unsettled VM: the time since its creation. A driver that reports
/// `Starting` forever thus causes few calls.
pub fn settling_poll_interval(machine: &InfraMachine, now: Timestamp) -> Duration {
    let age = created_for(machine, now).unwrap_or_default();
    age.clamp(FIRST_BACKOFF, MAX_BACKOFF)
}
