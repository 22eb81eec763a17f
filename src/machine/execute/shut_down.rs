//! Asks the guest to stop before its VM is deleted.

use std::time::Duration;

use jiff::Timestamp;

use super::Executor;
use crate::api::conditions::reason;
use crate::api::identity::{self, VmEvent, VmRecord};
use crate::api::retry::{self, Call, Disposition};
use crate::api::wall_clock;
use crate::apiserver::Error;
use crate::machine::object::Moves;
use crate::machine::outcome::{Failure, Outcome};
use crate::machine::plan::{Delete, SHUT_DOWN_TRIES, ShutDown};
use cmi_driver::{
    self, Code, LastKnownState, Machine, MachineClass, MachineRef, Operation, PowerState,
    ShutDownMachineRequest, Status,
};

/// The shortest wait before a guest that is stopping is checked again.
const MIN_PAUSE: Duration = Duration::from_secs(1);

impl Executor<'_, '_, '_> {
    /// Asks the guest to stop. Returns `None` when the VM may be deleted now.
    pub async fn shut_down(
        &mut self,
        plan: &Delete,
        asking: ShutDown,
        class: MachineClass,
    ) -> Result<Option<Outcome>, Error> {
        let request = ShutDownMachineRequest {
            machine: MachineRef::new(self.object.name(), class.clone()),
            provider_id: plan.provider_id.clone(),
            last_known_state: identity::last_known_state(self.object.get()),
        };
        let call = self.permit.driver().shut_down_machine(request);
        let answer = self.object.awaiting(Operation::ShutDownMachine, call).await;
        let answered = wall_clock::now();
        let accepted = asking.accepted.unwrap_or(answered);
        let deadline = &deadline_of(accepted, asking.grace);
        match answer {
            Ok(response) => {
                let vm = if self
                    .permit
                    .known_capabilities()
                    .supports(Operation::GetMachineStatus)
                {
                    Some(self.read(plan.provider_id.as_ref(), class).await)
                } else {
                    None
                };
                let outcome = after_acceptance(vm, deadline, plan.requeue_after);
                let waits = outcome.is_some();
                self.record_acceptance(response.last_known_state.as_ref(), waits.then_some(accepted))
                    .await?;
                Ok(outcome)
            }
            Err(status) => {
                let failure = Failure::new(Call::ShutDown, status);
                // The driver is stopping the guest and waits for it to stop.
                let is_accepted = failure.status.code() == Code::Aborted;
                self.record_acceptance(failure.status.last_known_state(), is_accepted.then_some(accepted))
                    .await?;
                Ok(after_shut_down(
                    failure,
                    asking,
                    deadline,
                    answered,
                    plan.requeue_after,
                ))
            }
        }
    }

    /// Records when the grace period began, and the driver's last known state.
    async fn record_acceptance(
        &mut self,
        state: Option<&LastKnownState>,
        accepted: Option<Timestamp>,
    ) -> Result<(), Error> {
        let action = "recording the answer to the shutdown";
        let shut_down = |record: VmRecord| {
            let record = record.with_last_known_state(state);
            match accepted {
                Some(at) => record.after(VmEvent::ShutDownAccepted { at }),
                None => record,
            }
        };
        self.object
            .change_record(action, shut_down, Moves::AsBefore, None)
            .await
    }
}

/// Returns the end of the grace period as a message.
fn deadline_of(accepted: Timestamp, grace: Duration) -> String {
    let deadline = accepted.checked_add(grace).unwrap_or(Timestamp::MAX);
    format!("the VM is deleted at {deadline:.0} at the latest")
}

/// Returns the outcome for a guest that has stopped or is stopping. Returns `None` when the VM may be
/// deleted. OK of a shut-down means either (CMI-127), and a guest that is still stopping needs its grace
/// period. Without a visible power state, the guest gets its full grace period.
fn after_acceptance(
    answer: Option<cmi_driver::Result<Machine>>,
    deadline: &str,
    requeue_after: Duration,
) -> Option<Outcome> {
    let power = match answer {
        None => None,
        Some(Ok(machine)) => machine.power_state,
        Some(Err(status)) => match status.machine() {
            Some(machine) => machine.power_state,
            None => return unobserved(status, deadline, requeue_after),
        },
    };
    match power {
        Some(PowerState::Stopped | PowerState::Failed) => None,
        Some(power @ (PowerState::Starting | PowerState::Running | PowerState::Stopping)) => {
            let observation = format!("its VM is {}", power.name());
            Some(shutting_down(&observation, deadline, requeue_after))
        }
        None => Some(shutting_down(
            "the driver reports no power state",
            deadline,
            requeue_after,
        )),
    }
}

/// Returns the outcome when the VM can't be read after its guest accepted to stop. A missing VM needs no
/// grace period.
fn unobserved(status: Status, deadline: &str, requeue_after: Duration) -> Option<Outcome> {
    let message = format!("cannot read whether the guest has stopped: {}", status.message());
    let failure = Failure::new(Call::ShutDown, status.with_message(message));
    match (failure.disposition, failure.status.code()) {
        (Disposition::Delete, Code::NotFound) => None,
        (Disposition::Delete, _) => Some(shutting_down(failure.status.message(), deadline, requeue_after)),
        _ => Some(Outcome::Failed(Box::new(failure))),
    }
}

fn shutting_down(observation: &str, deadline: &str, requeue_after: Duration) -> Outcome {
    Outcome::Deleting {
        reason: reason::SHUTTING_DOWN,
        message: format!("the guest accepted the shutdown, and {observation}; {deadline}"),
        requeue_after,
    }
}

/// Returns the outcome of a failed shut-down, and `None` when the VM may be deleted. `requeue_after` is the
/// wait if the driver requests none. The wait never exceeds the grace period.
fn after_shut_down(
    mut failure: Failure,
    asking: ShutDown,
    deadline: &str,
    now: Timestamp,
    requeue_after: Duration,
) -> Option<Outcome> {
    if failure.disposition == Disposition::Delete {
        tracing::info!(code = %failure.status.code(), "the driver cannot shut down the guest; deleting its \
            VM");
        return None;
    }
    if failure.status.code() == Code::Aborted {
        return Some(Outcome::Deleting {
            reason: reason::SHUTTING_DOWN,
            message: format!("{}; {deadline}", failure.message()),
            requeue_after: retry::requested_delay(&failure.status)
                .map_or(requeue_after, |asked| asked.min(asking.left(now)).max(MIN_PAUSE)),
        });
    }
    // A driver that can't be reached can't delete the VM either.
    if asking.last_try && !failure.status.is_never_sent() {
        tracing::warn!(
            code = %failure.status.code(),
            "shutdown failed too often; deleting the VM"
        );
        return None;
    }
    let ends = match asking.accepted {
        Some(_) => deadline.to_owned(),
        None => format!(
            "after {SHUT_DOWN_TRIES} failures in a row and {} s, the VM is deleted without a shutdown",
            asking.grace.as_secs()
        ),
    };
    let message = format!("{}; {ends}", failure.status.message());
    failure.status = failure.status.with_message(message);
    Some(Outcome::Failed(Box::new(failure)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::fixtures::at;

    const PACE: Duration = Duration::from_secs(15);

    fn asking(accepted: Option<Timestamp>, last_try: bool) -> ShutDown {
        ShutDown {
            grace: Duration::from_mins(1),
            accepted,
            last_try,
        }
    }

    fn deadline() -> String {
        deadline_of(at(0), Duration::from_mins(1))
    }

    fn after(status: Status) -> Option<Outcome> {
        after_shut_down(
            Failure::new(Call::ShutDown, status),
            asking(None, false),
            &deadline(),
            at(0),
            PACE,
        )
    }

    #[track_caller]
    fn message(outcome: Option<Outcome>) -> String {
        match outcome {
            Some(Outcome::Deleting { message, .. }) => message,
            Some(Outcome::Failed(failure)) => failure.message(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_guest_that_is_stopping_is_asked_again_when_the_driver_says() {
        let wait = Duration::from_secs(9);
        let outcome = after(Status::new(Code::Aborted, "stopping").with_retry_after(wait));
        assert!(matches!(
            outcome,
            Some(Outcome::Deleting { reason: reason::SHUTTING_DOWN, requeue_after, .. })
                if requeue_after == wait
        ));
    }

    /// The driver's requested wait must not exceed the grace period.
    #[test]
    fn a_guest_that_is_stopping_is_not_left_alone_for_longer_than_its_time() {
        let requeue_after = |seconds: i64, accepted: Option<Timestamp>| {
            let status = Status::new(Code::Aborted, "stopping").with_retry_after(Duration::from_hours(1));
            let failure = Failure::new(Call::ShutDown, status);
            match after_shut_down(failure, asking(accepted, false), &deadline(), at(seconds), PACE) {
                Some(Outcome::Deleting { requeue_after, .. }) => requeue_after.as_secs(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(requeue_after(0, None), 60);
        assert_eq!(requeue_after(20, Some(at(0))), 40);
        assert_eq!(requeue_after(60, Some(at(0))), MIN_PAUSE.as_secs());
    }

    #[test]
    fn a_guest_that_takes_its_time_is_asked_ever_more_rarely() {
        let stopping = || Status::new(Code::Aborted, "stopping");
        for status in [stopping(), stopping().with_retry_after(Duration::ZERO)] {
            assert!(matches!(
                after(status),
                Some(Outcome::Deleting {
                    requeue_after: PACE,
                    ..
                })
            ));
        }
    }

    fn vm(power: Option<PowerState>) -> Machine {
        let mut machine = Machine::new("simulated://zone-a/1".parse().unwrap(), "a");
        machine.power_state = power;
        machine
    }

    /// CMI-127: OK means that the guest has stopped or is stopping. A plain plugin does not report which.
    #[test]
    fn a_guest_that_has_accepted_to_stop_and_still_may_run_gets_its_time() {
        let running = [PowerState::Starting, PowerState::Running, PowerState::Stopping];
        let powers = running.map(Some).into_iter().chain([None]);
        let answers = powers.flat_map(|power| {
            let uninitialized = Status::new(Code::Uninitialized, "not yet").with_machine(vm(power));
            [Some(Ok(vm(power))), Some(Err(uninitialized))]
        });
        let denied = Some(Err(Status::new(Code::PermissionDenied, "no")));
        for answer in answers.chain([None, denied]) {
            let text = format!("{answer:?}");
            let outcome = after_acceptance(answer, &deadline(), PACE);
            assert!(
                matches!(
                    outcome,
                    Some(Outcome::Deleting {
                        reason: reason::SHUTTING_DOWN,
                        requeue_after: PACE,
                        ..
                    })
                ),
                "{text}"
            );
            let message = message(outcome);
            assert!(
                message.contains(&at(60).to_string()),
                "it does not say until when: {message}"
            );
        }
    }

    #[test]
    fn a_guest_that_is_stopped_or_gone_is_deleted_now() {
        for power in [PowerState::Stopped, PowerState::Failed] {
            let answer = Some(Ok(vm(Some(power))));
            assert!(after_acceptance(answer, &deadline(), PACE).is_none(), "{power:?}");
        }
        let gone = Status::new(Code::NotFound, "there is none");
        assert!(after_acceptance(Some(Err(gone)), &deadline(), PACE).is_none());
        let outage = Status::new(Code::Unavailable, "it can't be reached");
        assert!(matches!(
            after_acceptance(Some(Err(outage)), &deadline(), PACE),
            Some(Outcome::Failed(_))
        ));
    }

    #[test]
    fn a_guest_that_cannot_be_asked_to_stop_is_deleted_now() {
        for code in Code::ALL {
            let waits = retry::disposition(Call::ShutDown, code) == Disposition::Retry;
            assert_eq!(after(Status::new(code, "no")).is_some(), waits, "{code}");
        }
    }

    #[test]
    fn a_failing_shut_down_delays_a_deletion_until_its_last_try() {
        let unavailable = || Failure::new(Call::ShutDown, Status::new(Code::Unavailable, "down"));
        let last = asking(None, true);
        assert!(
            message(after(Status::new(Code::Unavailable, "down"))).contains("4 failures in a row and 60 s")
        );
        assert!(after_shut_down(unavailable(), last, &deadline(), at(0), PACE).is_none());
        let mut never_sent = unavailable();
        never_sent.status = never_sent.status.with_never_sent();
        assert!(
            matches!(
                after_shut_down(never_sent, last, &deadline(), at(0), PACE),
                Some(Outcome::Failed(_))
            ),
            "a driver that can't be reached was not asked"
        );
        let stopping = Failure::new(Call::ShutDown, Status::new(Code::Aborted, "stopping"));
        assert!(
            after_shut_down(stopping, last, &deadline(), at(0), PACE).is_some(),
            "it has its time"
        );
    }
}
