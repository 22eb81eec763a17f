//! Looks up, creates and initializes the VM.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::initialize::{made, uninitialized};
use super::look_up::LookUpResult;
use super::{ExecuteError, Executor};
use crate::api::ObjectMetaExt as _;
use crate::api::conditions::{self, reason};
use crate::api::identity::{VmEvent, VmRecord, VmState};
use crate::api::retry::{Call, Disposition, LONG_WAIT, LONG_WAIT_JITTER, MIN_REQUEUE, jitter};
use crate::api::wall_clock;
use crate::apiserver::leadership::is_not_leader;
use crate::apiserver::secrets;
use crate::driver::failure_domain;
use crate::machine::object::Moves;
use crate::machine::outcome::{Blocked, Failure, Outcome};
use crate::machine::plan::{LOOK_UP_INTERVAL, PendingCreate, Provision};
use cmi_driver::{Code, CreateMachineRequest, MachineClass, MachineRef, Operation};

impl Executor<'_, '_, '_> {
    /// Creates and initializes the VM where necessary.
    ///
    /// # Guarantees
    /// A create is issued only after the driver answered NOT_FOUND or listed no VM of the name. Drivers that
    /// support neither call get the create directly. Finalizer and record are written to the API server
    /// immediately before the create. The create times out before a deletion assumes that it has timed out.
    pub async fn provision(&mut self, plan: Provision) -> Result<Outcome, ExecuteError> {
        let class = self.with_credentials(plan.look_up.clone()).await?;
        let call = if plan.vm_may_exist() {
            Call::LookUpAgain
        } else {
            Call::LookUp
        };
        match self.look_up(None, call, class.clone()).await {
            LookUpResult::Present(vm) => {
                self.own_existing_vm(plan).await?;
                self.finish(class, vm).await
            }
            LookUpResult::Absent | LookUpResult::CannotLook => self.create(plan, class).await,
            LookUpResult::Failed(failure) => Ok(failure.into()),
        }
    }

    /// Writes the finalizer and the record after the look-up has found the VM.
    async fn own_existing_vm(&mut self, plan: Provision) -> Result<(), ExecuteError> {
        let record = if plan.vm_may_exist() {
            plan.record
        } else {
            // The record lacks the create that made this VM, for example after a restore from a backup.
            let issued = VmEvent::CreateIssued {
                at: VmEvent::time_of_create(wall_clock::now()),
                others: false,
            };
            plan.record.made_from(plan.made_from).after(issued)
        };
        self.object.own(&record).await?;
        Ok(())
    }

    /// Creates the VM after the driver has not found it.
    async fn create(&mut self, plan: Provision, class: MachineClass) -> Result<Outcome, ExecuteError> {
        let wanted = MachineClass {
            provider_spec: plan.made_from.provider_spec.clone(),
            ..class
        };
        if let Some(wait) = self.wait_before_create(&plan).await? {
            return Ok(wait);
        }
        let (uid, waker) = (self.object.uid(), self.ctx.capacity_waker(self.object.get()));
        let admitted = self
            .permit
            .admit_create_or_wait(&wanted, uid, plan.requested, waker);
        let Some(attempt) = admitted else {
            return Ok(Outcome::AwaitingCapacity {
                failure_domain: failure_domain(&wanted.provider_spec).map(str::to_owned),
                requeue_after: LONG_WAIT.mul_f64(1.0 - LONG_WAIT_JITTER * jitter(uid, 0)),
            });
        };
        // If the call cannot be sent, nothing is written. Otherwise, a driver outage would cost writes.
        let sendable = self.permit.driver().prepare_call(Operation::CreateMachine).await;
        if let Err(status) = sendable {
            return Ok(Failure::new(Call::Create, status).into());
        }
        let (issued, answer) = self.issue_create(&plan, wanted.clone()).await?;
        attempt.record(&answer);
        let failure = match answer {
            Ok(machine) => {
                self.ctx.states.answered(self.object.uid(), issued);
                return self.initialize(wanted, made(machine)).await;
            }
            Err(status) => Failure::new(Call::Create, status),
        };
        if failure.is_final_for_create() {
            self.ctx.states.answered(self.object.uid(), issued);
        }
        if failure.disposition == Disposition::Initialize {
            return self.initialize(wanted, uninitialized(None, failure)).await;
        }
        self.record_refusal(plan.record.state, issued, &failure).await?;
        Ok(failure.into())
    }

    /// Returns the wait for an earlier create or for a permit, if there is one. [`Self::create`] then checks
    /// the circuit breaker and the connection.
    async fn wait_before_create(&mut self, plan: &Provision) -> Result<Option<Outcome>, ExecuteError> {
        // An earlier create may have made the VM, so NOT_FOUND counts only after the driver's consistency
        // window.
        let capabilities = self.permit.known_capabilities();
        let can_look = [Operation::GetMachineStatus, Operation::ListMachines]
            .into_iter()
            .any(|operation| capabilities.supports(operation));
        if plan.vm_may_exist()
            && can_look
            && let Some(left) = self.behind_for(capabilities.consistency_window)
        {
            // The status shows what an answered create came to.
            return Ok(Some(if plan.earlier_create {
                awaiting_consistency(capabilities.consistency_window, left).into()
            } else {
                Outcome::Waiting(Some(left))
            }));
        }
        if let Some(pending_create) = plan.pending_create {
            self.object.unblock_move().await?;
            return Ok(Some(awaiting_create_of_another_spec(pending_create).into()));
        }
        Ok(self.wait_to_create())
    }

    /// Records the create and issues it. Returns the time of the create and the driver's answer.
    async fn issue_create(
        &mut self,
        plan: &Provision,
        wanted: MachineClass,
    ) -> Result<(Timestamp, cmi_driver::Result<cmi_driver::Machine>), ExecuteError> {
        let MachineClass {
            provider_spec,
            secrets,
        } = wanted;
        let namespace = self.object.get().metadata.namespace();
        let (client, bootstrap) = (&self.ctx.client, &plan.bootstrap);
        let secrets = secrets::bootstrap_data(client, namespace, bootstrap, secrets).await??;
        let class = MachineClass {
            provider_spec,
            secrets,
        };
        let (noted, at) = (Instant::now(), VmEvent::time_of_create(wall_clock::now()));
        let issued = VmEvent::CreateIssued {
            at,
            others: plan.earlier_create,
        };
        let record = plan
            .record
            .clone()
            .made_from(plan.made_from.clone())
            .after(issued);
        self.object.record_create(&record).await?;
        self.ctx.states.clear_absence(self.object.uid());
        let request = CreateMachineRequest {
            machine: MachineRef::new(self.object.name(), class),
            last_known_state: record.last_known_state,
        };
        let call = self.permit.driver().create_machine(request);
        let call = self.permit.configured_driver().give_up_in_time(noted, call);
        let answer = self.object.awaiting(Operation::CreateMachine, call).await;
        self.ctx.states.clear_absence(self.object.uid());
        Ok((at, answer))
    }

    /// Records the result of a failed create and unblocks `clusterctl move`. Writes nothing between the
    /// attempts of one create. `before` is the state before the create.
    async fn record_refusal(
        &mut self,
        before: VmState,
        issued: Timestamp,
        failure: &Failure,
    ) -> Result<(), ExecuteError> {
        // The new leader writes the record.
        if !is_not_leader(&failure.status)
            && let Some(left_something) = left_by_refusal(before, failure)
        {
            let refused = VmEvent::CreateRefused {
                issued,
                left_something,
            };
            let action = "recording that no VM was created";
            let change = |record: VmRecord| record.after(refused);
            self.object
                .change_record(action, change, Moves::Unblocked, None)
                .await?;
        }
        Ok(())
    }
}

/// Blocks a machine whose VM the driver does not find, although an unanswered create may have made it. `left`
/// is the rest of the driver's consistency window.
fn awaiting_consistency(window: Duration, left: Duration) -> Blocked {
    let seconds = window.as_secs_f64();
    let message =
        format!("CreateMachine was not answered: waiting until its VM has been absent for {seconds} s");
    Blocked::new(conditions::READY, reason::CREATE_UNANSWERED, message).until(left)
}

/// Blocks a machine whose spec has changed while an earlier create may still succeed. The controller needs
/// the recorded spec to find and delete the VM of that create. It keeps the recorded spec until there is no
/// such VM.
fn awaiting_create_of_another_spec(pending_create: PendingCreate) -> Blocked {
    let message = format!(
        "waiting to create the VM from the changed spec, because a VM of the previous spec may still \
            appear: {}",
        pending_create.in_words()
    );
    let left = pending_create.left.min(LOOK_UP_INTERVAL).max(MIN_REQUEUE);
    Blocked::new(conditions::READY, reason::CREATE_UNANSWERED, message).until(left)
}

/// Returns whether a failed create may have left something other than a VM. Returns `None` if the create is
/// retried unchanged or its VM may exist. `before` is the state before the create.
fn left_by_refusal(before: VmState, failure: &Failure) -> Option<bool> {
    if failure.status.is_never_sent() {
        return (!before.may_exist()).then_some(before == VmState::Refused);
    }
    // If the name was taken, the VM belongs to another machine. Nothing may be deleted under this name.
    let is_refused = failure.disposition == Disposition::Terminal;
    is_refused.then(|| failure.status.code() != Code::AlreadyExists)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::retry;
    use crate::machine::fixtures::at;
    use cmi_driver::Status;

    fn left(before: VmState, status: Status) -> Option<bool> {
        left_by_refusal(before, &Failure::new(Call::Create, status))
    }

    fn creating() -> VmState {
        VmState::Creating {
            issued: at(0),
            several: false,
        }
    }

    #[test]
    fn a_create_that_never_reached_the_driver_leaves_what_was_there_before() {
        let refused = || Status::new(Code::Unavailable, "connection refused");
        let never_sent = || refused().with_never_sent();
        assert_eq!(left(VmState::None, never_sent()), Some(false));
        assert_eq!(left(VmState::Refused, never_sent()), Some(true));
        assert_eq!(
            left(creating(), never_sent()),
            None,
            "an earlier one may have made it"
        );
        assert_eq!(left(VmState::None, refused()), None, "it may have been made");
    }

    #[test]
    fn a_refused_create_may_have_left_something_unless_the_name_was_taken() {
        let refused = |before, code| left(before, Status::new(code, "no"));
        for code in [Code::InvalidArgument, Code::OutOfRange] {
            assert_eq!(refused(VmState::None, code), Some(true));
            assert_eq!(refused(creating(), code), Some(true));
        }
        assert_eq!(refused(VmState::None, Code::AlreadyExists), Some(false));
    }

    /// Otherwise, a machine that waits for its quota would cost a write at every attempt.
    #[test]
    fn nothing_is_written_of_a_create_that_is_tried_again() {
        for code in Code::ALL {
            let is_final = retry::disposition(Call::Create, code) == Disposition::Terminal;
            assert_eq!(
                left(VmState::None, Status::new(code, "no")).is_some(),
                is_final,
                "{code}"
            );
        }
    }

    #[test]
    fn only_an_answer_or_a_call_of_which_nothing_was_begun_ends_a_create() {
        use Code::{
            AlreadyExists, FailedPrecondition, InvalidArgument, OutOfRange, PermissionDenied,
            ResourceExhausted, Unauthenticated, Unimplemented, Uninitialized,
        };
        let answers = [
            InvalidArgument,
            AlreadyExists,
            PermissionDenied,
            ResourceExhausted,
            FailedPrecondition,
            OutOfRange,
            Unimplemented,
            Unauthenticated,
            Uninitialized,
        ];
        for code in Code::ALL {
            let failure = |status| Failure::new(Call::Create, status);
            let status = || Status::new(code, "no");
            assert_eq!(
                failure(status()).is_final_for_create(),
                answers.contains(&code),
                "{code}"
            );
            assert!(
                failure(status().with_never_sent()).is_final_for_create(),
                "{code}"
            );
            assert!(
                failure(status().with_no_side_effects()).is_final_for_create(),
                "{code}"
            );
        }
    }
}
