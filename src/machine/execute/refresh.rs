//! Reads the status of a VM whose id is known.

use super::initialize::PresentVm;
use super::look_up::LookUpResult;
use super::{ExecuteError, Executor};
use crate::api::conditions::reason;
use crate::api::identity;
use crate::api::retry::Call;
use crate::api::v1alpha1::InfraMachine;
use crate::api::wall_clock;
use crate::apiserver::NewEvent;
use crate::driver::VM_LOCK_WAIT;
use crate::machine::outcome::Outcome;
use crate::machine::plan::{Initialize, Refresh};
use crate::machine::status::started;
use cmi_driver::{Machine, MachineClass, MachineRef, Operation, PowerState, RestartMachineRequest};

impl Executor<'_, '_, '_> {
    /// Reads the status of a VM whose id is known. Never leads to a create.
    pub async fn refresh(&mut self, plan: Refresh) -> Result<Outcome, ExecuteError> {
        let class = self.with_credentials(plan.look_up).await?;
        match self
            .look_up(Some(&plan.provider_id), Call::Refresh, class.clone())
            .await
        {
            LookUpResult::Present(PresentVm::ToInitialize(_)) if plan.initialize == Initialize::Never => {
                Ok(Outcome::NotSupported(Operation::InitializeMachine))
            }
            LookUpResult::Present(PresentVm::Initialized(machine))
                if plan.start && machine.power_state == Some(PowerState::Stopped) =>
            {
                self.start(class, machine).await
            }
            LookUpResult::Present(vm) => self.finish(class, vm).await,
            LookUpResult::Absent => {
                let behind = self.behind_for(self.permit.known_capabilities().consistency_window);
                Ok(behind.map_or(Outcome::Vanished(plan.provider_id), |left| {
                    Outcome::Waiting(Some(left))
                }))
            }
            LookUpResult::CannotLook if plan.initialize == Initialize::OnTheWayUp => {
                self.finish(class, PresentVm::listed(plan.provider_id)).await
            }
            LookUpResult::CannotLook => Ok(Outcome::NotSupported(Operation::GetMachineStatus)),
            LookUpResult::Failed(failure) => Ok(failure.into()),
        }
    }

    /// Starts the machine's own VM, which a look-up has just found switched off.
    ///
    /// # Guarantees
    /// The record shows the start before the driver is called, on the planned version of the object. Neither
    /// a crash nor a stale cache leads to an early start, and a deletion or pause of the object during the
    /// look-up prevents this one. The lock keeps remediation from restarting the VM during the call.
    async fn start(&mut self, class: MachineClass, mut machine: Machine) -> Result<Outcome, ExecuteError> {
        let uid = self.object.uid().to_owned();
        let Some(_lock) = self.permit.configured_driver().try_lock_vm(&uid) else {
            return Ok(Outcome::Waiting(Some(VM_LOCK_WAIT)));
        };
        let request = RestartMachineRequest {
            machine: MachineRef::new(self.object.name(), class),
            provider_id: machine.provider_id.clone(),
            last_known_state: identity::last_known_state(self.object.get()),
        };
        self.object.record_start(wall_clock::now()).await?;
        let answer = self.permit.driver().restart_machine(request).await;
        // The driver's message may quote bootstrap data.
        let refused = answer.err().map(|status| status.code());
        let (action, id) = (Operation::RestartMachine.name(), &machine.provider_id);
        let event = match refused {
            None => {
                machine.power_state = Some(PowerState::Starting);
                let note = format!("VM {id} was off, and is started");
                NewEvent::normal(reason::RESTARTED, action, note)
            }
            Some(code) => NewEvent::warning(code.name(), action, format!("cannot start VM {id}")),
        };
        self.ctx.events.record(self.object.get(), event).await;
        let started = |machine: &InfraMachine| started(machine, refused, wall_clock::now());
        self.object.insist_on_status(started).await?;
        Ok(Outcome::Provisioned(Box::new(machine)))
    }
}
