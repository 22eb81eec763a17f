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
    ShutDownMachineRequest,
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
        let guest = Guest::new(asking, accepted, plan.requeue_after);
        match answer {
            Ok(response) => {
                let capabilities = self.permit.known_capabilities();
                let vm = if capabilities.supports(Operation::GetMachineStatus) {
                    Some(self.read(plan.provider_id.as_ref(), class).await)
                } else {
                    None
                };
                let outcome = guest.after_acceptance(vm);
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
                Ok(guest.after_failure(failure, answered))
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

/// A guest that was asked to stop.
struct Guest {
    asking: ShutDown,
    /// The end of the grace period, as a message.
    deadline: String,
    /// When to check again, if the driver requests no time.
    requeue_after: Duration,
}

impl Guest {
    fn new(asking: ShutDown, accepted: Timestamp, requeue_after: Duration) -> Self {
        let deadline = accepted.checked_add(asking.grace).unwrap_or(Timestamp::MAX);
        Self {
            asking,
            deadline: format!("the VM is deleted at {deadline:.0} at the latest"),
            requeue_after,
        }
    }

    /// Returns the outcome for a guest that has stopped or is stopping. Returns `None` when the VM may be
    /// deleted. OK of a shut-down means either (CMI-127), and a guest that is still stopping needs its grace
    /// period. Without a visible power state, the guest gets its full grace period.
    fn after_acceptance(&self, answer: Option<cmi_driver::Result<Machine>>) -> Option<Outcome> {
        let power = match answer {
            None => None,
            Some(Ok(machine)) => machine.power_state,
            // A missing VM needs no grace period.
            Some(Err(status)) if status.code() == Code::NotFound => return None,
            Some(Err(status)) => match status.machine() {
                Some(machine) => machine.power_state,
                None => return Some(self.stopping(&format!("its VM cannot be read: {}", status.message()))),
            },
        };
        match power {
            Some(PowerState::Stopped | PowerState::Failed) => None,
            Some(power @ (PowerState::Starting | PowerState::Running | PowerState::Stopping)) => {
                Some(self.stopping(&format!("its VM is {}", power.name())))
            }
            None => Some(self.stopping("the driver reports no power state")),
        }
    }

    fn stopping(&self, observation: &str) -> Outcome {
        Outcome::Deleting {
            reason: reason::SHUTTING_DOWN,
            message: format!(
                "the guest accepted the shutdown, and {observation}; {}",
                self.deadline
            ),
            requeue_after: self.requeue_after,
        }
    }

    /// Returns the outcome of a failed shut-down, and `None` when the VM may be deleted. The wait never
    /// exceeds the grace period.
    fn after_failure(self, mut failure: Failure, now: Timestamp) -> Option<Outcome> {
        let (asking, code) = (self.asking, failure.status.code());
        if failure.disposition == Disposition::Delete {
            tracing::info!(%code, "the driver cannot shut down the guest; deleting its VM");
            return None;
        }
        if code == Code::Aborted {
            let requested = retry::requested_delay(&failure.status);
            return Some(Outcome::Deleting {
                reason: reason::SHUTTING_DOWN,
                message: format!("{}; {}", failure.message(), self.deadline),
                requeue_after: requested.map_or(self.requeue_after, |requested| {
                    requested.min(asking.left(now)).max(MIN_PAUSE)
                }),
            });
        }
        // A driver that can't be reached can't delete the VM either.
        if asking.last_try && !failure.status.is_never_sent() {
            tracing::warn!(%code, "shutdown failed too often; deleting the VM");
            return None;
        }
        let ends = match asking.accepted {
            Some(_) => self.deadline,
            None => format!(
                "after {SHUT_DOWN_TRIES} failures in a row and {} s, the VM is deleted without a shutdown",
                asking.grace.as_secs()
            ),
        };
        let message = format!("{}; {ends}", failure.status.message());
        failure.status = failure.status.with_message(message);
        Some(failure.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::fixtures::at;
    use cmi_driver::Status;

    const PACE: Duration = Duration::from_secs(15);

    fn asking(accepted: Option<Timestamp>, last_try: bool) -> ShutDown {
        ShutDown {
            grace: Duration::from_mins(1),
            accepted,
            last_try,
        }
    }

    fn guest(asking: ShutDown) -> Guest {
        Guest::new(asking, at(0), PACE)
    }

    fn after(status: Status) -> Option<Outcome> {
        guest(asking(None, false)).after_failure(Failure::new(Call::ShutDown, status), at(0))
    }

    fn after_acceptance(answer: Option<cmi_driver::Result<Machine>>) -> Option<Outcome> {
        guest(asking(None, false)).after_acceptance(answer)
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
            match guest(asking(accepted, false)).after_failure(failure, at(seconds)) {
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
        let unread =
            [Code::PermissionDenied, Code::Unavailable].map(|code| Some(Err(Status::new(code, "no"))));
        for answer in answers.chain([None]).chain(unread) {
            let text = format!("{answer:?}");
            let outcome = after_acceptance(answer);
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
            assert!(after_acceptance(answer).is_none(), "{power:?}");
        }
        let gone = Status::new(Code::NotFound, "there is none");
        assert!(after_acceptance(Some(Err(gone))).is_none());
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
        assert!(guest(last).after_failure(unavailable(), at(0)).is_none());
        let mut never_sent = unavailable();
        never_sent.status = never_sent.status.with_never_sent();
        assert!(
            matches!(
                guest(last).after_failure(never_sent, at(0)),
                Some(Outcome::Failed(_))
            ),
            "a driver that can't be reached was not asked"
        );
        let stopping = Failure::new(Call::ShutDown, Status::new(Code::Aborted, "stopping"));
        assert!(
            guest(last).after_failure(stopping, at(0)).is_some(),
            "it has its time"
        );
    }
}
