//! Looks the VM up, creates it and initializes it.

use tokio::time::Instant;

use super::initialize::{made, uninitialized};
use super::look_up::{LookUpResult, another_vm};
use super::{ExecuteError, Executor};
use crate::api::VmExistence;
use crate::api::conditions::{self, reason};
use crate::configured_driver::is_circuit_open;
use crate::identity;
use crate::machine::Context;
use crate::machine::outcome::{Blocked, Failure, Outcome};
use crate::machine::ownership::Ownership;
use crate::machine::plan::{LOOK_UP_INTERVAL, PendingCreate, Provision};
use crate::machine::runtime_state::AnsweredCreate;
use crate::retry::{Disposition, MIN_REQUEUE, Stage};
use crate::wall_clock;
use cmi_driver::{Code, CreateMachineRequest, MachineClass, MachineRef, Operation};

impl Executor<'_, '_, '_> {
    /// Brings the VM up, or finds that it is up.
    ///
    /// # Guarantees
    /// A create is issued only after the driver answered NOT_FOUND (or lists no VM of the name, or can do
    /// neither), and only on an object that was written to the API server a moment ago: finalizer, identity,
    /// and when the create was issued. A create is given up in the time after which a deletion counts it as
    /// given up.
    pub async fn provision(&mut self, plan: Provision) -> Result<Outcome, ExecuteError> {
        let class = self.with_credentials(plan.look_up.clone()).await?;
        // The machine was refused before, and no other create can have made its VM: there is nothing to look
        // up while nothing may be created.
        if plan.half_open_reason.recalled
            && plan.provider_id.is_none()
            && plan.unanswered.latest().is_none()
            && let Some(awaiting_capacity) = self.admit_create_or_wait(&plan, &class)
        {
            return Ok(awaiting_capacity);
        }
        let stage = if plan.vm_may_exist() {
            Stage::LookUpAgain
        } else {
            Stage::LookUp
        };
        match self
            .look_up(plan.provider_id.as_ref(), stage, class.clone())
            .await
        {
            LookUpResult::Machine(machine) => {
                self.own_existing_vm(&plan).await?;
                Ok(Outcome::Provisioned(Box::new(machine)))
            }
            LookUpResult::Uninitialized(failure) => {
                self.own_existing_vm(&plan).await?;
                self.initialize(class, uninitialized(plan.provider_id, failure))
                    .await
            }
            LookUpResult::Listed(id) => {
                self.own_existing_vm(&plan).await?;
                self.initialize(class, made(cmi_driver::Machine::new(id, "")))
                    .await
            }
            LookUpResult::Absent => self.absent(plan, class).await,
            LookUpResult::CannotLook => match plan.provider_id.clone() {
                // The id is known, so a create has succeeded: another create would make a second VM if the
                // first is gone.
                Some(id) => {
                    let vm = made(cmi_driver::Machine::new(id, ""));
                    self.initialize(class, vm).await
                }
                None => self.create(plan, class).await,
            },
            LookUpResult::Failed(failure) => Ok(Outcome::Failed(Box::new(failure))),
        }
    }

    /// Writes the finalizer and the identity of a machine whose VM the look-up has found.
    async fn own_existing_vm(&mut self, plan: &Provision) -> Result<(), ExecuteError> {
        self.ctx.states.clear_absence(self.object.uid());
        // It has the spec of the create that made it.
        let ownership = Ownership {
            applied: Some(plan.look_up.clone()),
            ..plan.ownership.clone()
        };
        self.object.ensure_finalizer_and_identity(&ownership).await?;
        Ok(())
    }

    async fn absent(&mut self, plan: Provision, class: MachineClass) -> Result<Outcome, ExecuteError> {
        // An earlier create may have made the VM: the driver's NOT_FOUND is reliable only once the driver
        // can't be behind any more.
        if let Some(id) = plan.provider_id {
            return Ok(self.gone_or_behind(id));
        }
        if plan.vm_may_exist()
            && let Some(requeue_after) = self.behind_for(self.permit.known_capabilities().consistency_window)
        {
            return Ok(Outcome::Absent { requeue_after });
        }
        self.create(plan, class).await
    }

    async fn create(&mut self, plan: Provision, class: MachineClass) -> Result<Outcome, ExecuteError> {
        if let Some(pending_create) = plan.pending_create {
            self.object.unblock_move().await?;
            return Ok(Outcome::Blocked(awaiting_create_of_another_spec(pending_create)));
        }
        if !self.ctx.may_create(self.object.get(), self.permit) {
            return Ok(self
                .ctx
                .waiting_for_a_permit(self.object.get(), self.permit.configured_driver()));
        }
        let wanted = MachineClass {
            provider_spec: plan.wanted.clone(),
            ..class
        };
        if let Some(awaiting_capacity) = self.admit_create_or_wait(&plan, &wanted) {
            return Ok(awaiting_capacity);
        }
        // Nothing is written about a create that would not leave this process: otherwise a driver that is
        // down would cost writes.
        if let Err(status) = self.permit.driver().prepare_call(Operation::CreateMachine).await {
            return Ok(Outcome::Failed(Box::new(Failure::new(Stage::Create, status))));
        }
        let with_bootstrap_data = self.with_bootstrap_data(wanted.clone(), &plan.bootstrap).await?;
        let noted = Instant::now();
        let (unanswered, issued) = plan.unanswered.clone().with(wall_clock::now());
        // In flight from before the write on: the object may go at any time after it.
        let mut in_flight = self.ctx.states.create_in_flight(self.object.uid());
        self.object.record_create(&plan.ownership, &unanswered).await?;
        in_flight.issued();
        let request = CreateMachineRequest {
            machine: MachineRef::new(self.object.name(), with_bootstrap_data),
            last_known_state: identity::last_known_state(self.object.get()),
        };
        let call = self.permit.driver().create_machine(request);
        let call = self.permit.configured_driver().give_up_in_time(noted, call);
        let status = match self.object.awaiting(Operation::CreateMachine, call).await {
            Ok(machine) => {
                self.ctx
                    .states
                    .answered(self.object.uid(), AnsweredCreate { issued, made: true });
                drop(in_flight);
                return self.created(plan, wanted, machine).await;
            }
            Err(status) => status,
        };
        let failure = Failure::new(Stage::Create, status);
        if failure.is_final_for_create() {
            let made = failure.disposition == Disposition::Initialize;
            self.ctx
                .states
                .answered(self.object.uid(), AnsweredCreate { issued, made });
        }
        drop(in_flight);
        if failure.disposition == Disposition::Initialize {
            let vm = uninitialized(plan.provider_id, failure);
            return self.initialize(wanted, vm).await;
        }
        self.record_refusal(&plan, &failure).await?;
        if failure.disposition == Disposition::AwaitCapacity {
            self.ctx.await_capacity(self.object.get(), self.permit, &wanted);
        }
        if is_circuit_open(&failure.status) {
            return Ok(Context::awaiting_capacity(self.object.get()));
        }
        Ok(Outcome::Failed(Box::new(failure)))
    }

    /// Records what a failed create leaves, and lets `clusterctl move` go on; writes nothing between the
    /// tries of one create.
    async fn record_refusal(&mut self, plan: &Provision, failure: &Failure) -> Result<(), ExecuteError> {
        if failure.is_not_leading() {
            // The replica that leads by now writes it.
            return Ok(());
        }
        match existence_after_failure(plan.recorded, failure) {
            Some(VmExistence::MayExist) => self.object.unblock_move().await?,
            Some(existence) => self.object.record_no_vm(existence).await?,
            None => {}
        }
        Ok(())
    }

    /// Lets a VM of the wanted spec be created; the outcome where there is known to be no capacity for it.
    fn admit_create_or_wait(&self, plan: &Provision, class: &MachineClass) -> Option<Outcome> {
        let wanted = MachineClass {
            provider_spec: plan.wanted.clone(),
            secrets: class.secrets.clone(),
        };
        self.ctx
            .admit_create_or_wait(self.object.get(), self.permit, &wanted, plan.half_open_reason)
    }

    async fn created(
        &mut self,
        plan: Provision,
        class: MachineClass,
        machine: cmi_driver::Machine,
    ) -> Result<Outcome, ExecuteError> {
        if let Some(failure) = another_vm(
            Stage::Create,
            plan.provider_id.as_ref(),
            Some(&machine.provider_id),
        ) {
            return Ok(Outcome::Failed(Box::new(failure)));
        }
        self.initialize(class, made(machine)).await
    }
}

/// Blocks a machine whose spec has changed since a create that may still be carried out. The VM of that
/// create is looked for and deleted by the spec that is written down, so that spec stays until there is no
/// such VM.
fn awaiting_create_of_another_spec(pending_create: PendingCreate) -> Blocked {
    let message = format!(
        "waiting to create the VM from the changed spec, because a VM of the previous spec may still \
            appear: {}",
        pending_create.in_words()
    );
    Blocked {
        requeue_after: Some(pending_create.left.min(LOOK_UP_INTERVAL).max(MIN_REQUEUE)),
        ..Blocked::new(conditions::READY, reason::CREATE_UNANSWERED, message)
    }
}

/// Returns what a failed create leaves, when it is not retried as it is or never reached the driver;
/// `recorded` is what the object said before. Nothing is written between the tries of one create.
fn existence_after_failure(recorded: VmExistence, failure: &Failure) -> Option<VmExistence> {
    if failure.status.is_never_sent() {
        return (recorded != VmExistence::MayExist).then_some(recorded);
    }
    match (failure.disposition, recorded) {
        (Disposition::Terminal, VmExistence::MayExist) => Some(VmExistence::MayExist),
        // The name was taken, and the VM that has it is not this machine's: there is nothing to delete under
        // this name.
        (Disposition::Terminal, _) if failure.status.code() == Code::AlreadyExists => Some(VmExistence::None),
        (Disposition::Terminal, _) => Some(VmExistence::Refused),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retry;
    use cmi_driver::Status;

    fn left(recorded: VmExistence, status: Status) -> Option<VmExistence> {
        existence_after_failure(recorded, &Failure::new(Stage::Create, status))
    }

    #[test]
    fn a_create_that_never_reached_the_driver_makes_no_vm_possible() {
        let refused = || Status::new(Code::Unavailable, "connection refused");
        assert_eq!(
            left(VmExistence::None, refused().with_never_sent()),
            Some(VmExistence::None)
        );
        assert_eq!(
            left(VmExistence::Refused, refused().with_never_sent()),
            Some(VmExistence::Refused)
        );
        assert_eq!(
            left(VmExistence::MayExist, refused().with_never_sent()),
            None,
            "an earlier one may have made it"
        );
        assert_eq!(left(VmExistence::None, refused()), None, "it may have been made");
    }

    #[test]
    fn what_a_refused_create_may_have_left_is_noted_and_what_was_anothers_before_is_not() {
        let refused = |recorded, code| left(recorded, Status::new(code, "no"));
        for code in [Code::InvalidArgument, Code::OutOfRange] {
            assert_eq!(refused(VmExistence::None, code), Some(VmExistence::Refused));
        }
        assert_eq!(
            refused(VmExistence::None, Code::AlreadyExists),
            Some(VmExistence::None)
        );
        assert_eq!(
            refused(VmExistence::MayExist, Code::InvalidArgument),
            Some(VmExistence::MayExist),
            "another create may have made it"
        );
    }

    /// A machine that waits for its quota would cost a write at every try.
    #[test]
    fn nothing_is_written_of_a_create_that_is_tried_again() {
        for code in Code::ALL {
            let is_final = retry::disposition(Stage::Create, code) == Disposition::Terminal;
            assert_eq!(
                left(VmExistence::None, Status::new(code, "no")).is_some(),
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
            let failure = |status| Failure::new(Stage::Create, status);
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
