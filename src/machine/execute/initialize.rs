//! Initializes a VM that exists.

use super::vm::another_vm;
use super::{ExecuteError, Executor};
use crate::api::identity;
use crate::api::retry::{Call, Disposition};
use crate::driver::VM_LOCK_WAIT;
use crate::machine::outcome::{Failure, Outcome};
use cmi_driver::{InitializeMachineRequest, LastKnownState, MachineClass, MachineRef, Operation, ProviderId};

/// An existing VM.
pub enum PresentVm {
    /// The driver reported the VM without an error.
    Initialized(cmi_driver::Machine),
    /// The driver reported that the VM is uninitialized, or only listed it.
    ToInitialize(ToInitialize),
}

impl PresentVm {
    /// A VM with a known id, at a driver that can't look up.
    pub fn listed(id: ProviderId) -> Self {
        Self::ToInitialize(made(cmi_driver::Machine::new(id, "")))
    }

    /// The id of the VM, if known.
    pub fn id(&self) -> Option<&ProviderId> {
        match self {
            Self::Initialized(machine) => Some(&machine.provider_id),
            Self::ToInitialize(vm) => vm.known.as_ref(),
        }
    }
}

/// An existing VM that may need initialization.
pub struct ToInitialize {
    /// The id of the VM, if known.
    known: Option<ProviderId>,
    /// The VM as the driver reported it.
    machine: Option<cmi_driver::Machine>,
    /// The last known state to send with the initialization.
    state: Option<LastKnownState>,
    /// Whether the driver reported that the VM is uninitialized.
    required: bool,
}

/// Returns a VM that the driver reported without an error.
pub fn made(machine: cmi_driver::Machine) -> ToInitialize {
    ToInitialize {
        known: Some(machine.provider_id.clone()),
        state: machine.last_known_state.clone(),
        machine: Some(machine),
        required: false,
    }
}

/// Returns a VM that the driver reported as uninitialized. The driver may send its last known state with the
/// error or with the machine.
pub fn uninitialized(known: Option<ProviderId>, failure: Failure) -> ToInitialize {
    let state = failure.status.last_known_state().cloned();
    let machine = failure.machine;
    let id = machine.as_ref().map(|machine| machine.provider_id.clone());
    let said = machine
        .as_ref()
        .and_then(|machine| machine.last_known_state.clone());
    ToInitialize {
        known: known.or(id),
        state: state.or(said),
        machine,
        required: true,
    }
}

impl Executor<'_, '_, '_> {
    /// Initializes an existing VM where necessary.
    pub async fn finish(&mut self, class: MachineClass, vm: PresentVm) -> Result<Outcome, ExecuteError> {
        match vm {
            PresentVm::Initialized(machine) => Ok(Outcome::Provisioned(Box::new(machine))),
            PresentVm::ToInitialize(vm) => self.initialize(class, vm).await,
        }
    }

    /// Initializes an existing VM. A driver without this call needs no initialization. The lock keeps
    /// remediation from restarting the VM during the call.
    pub async fn initialize(
        &mut self,
        class: MachineClass,
        vm: ToInitialize,
    ) -> Result<Outcome, ExecuteError> {
        if vm.required {
            // The answer with this state is already received, so the state must be kept even if the
            // initialization fails.
            self.object.record_last_known_state(vm.state.as_ref()).await?;
        }
        if let Some(wait) = self.wait_to_create() {
            return Ok(wait);
        }
        let uid = self.object.uid().to_owned();
        let driver = self.permit.configured_driver();
        let Some(_lock) = driver.try_lock_vm(&uid) else {
            return Ok(Outcome::Waiting(Some(VM_LOCK_WAIT)));
        };
        let request = InitializeMachineRequest {
            machine: MachineRef::new(self.object.name(), class),
            provider_id: vm.known.clone(),
            last_known_state: vm
                .state
                .clone()
                .or_else(|| identity::last_known_state(self.object.get())),
        };
        let call = self.permit.driver().initialize_machine(request);
        let answer = self.object.awaiting(Operation::InitializeMachine, call).await;
        Ok(initialized(vm, answer))
    }
}

fn initialized(vm: ToInitialize, answer: cmi_driver::Result<cmi_driver::Machine>) -> Outcome {
    let call = if vm.required {
        Call::FinishInitialization
    } else {
        Call::Initialize
    };
    let vm_of_answer = match &answer {
        Ok(machine) => Some(machine),
        Err(status) => status.machine(),
    };
    if let Some(failure) = another_vm(call, vm.known.as_ref(), vm_of_answer.map(|vm| &vm.provider_id)) {
        return Outcome::Failed(Box::new(failure));
    }
    let status = match answer {
        Ok(mut machine) => {
            machine.last_known_state = machine.last_known_state.or(vm.state);
            return Outcome::Provisioned(Box::new(machine));
        }
        Err(status) => status,
    };
    let mut failure = Failure::new(call, status);
    match (failure.disposition, vm.machine) {
        (Disposition::Fallback, Some(machine)) => Outcome::Provisioned(Box::new(machine)),
        (_, machine) => {
            failure.machine = failure.machine.or(machine).map(|machine| cmi_driver::Machine {
                last_known_state: machine.last_known_state.clone().or(vm.state),
                ..machine
            });
            Outcome::Failed(Box::new(failure))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cmi_driver::{Code, Operation, Status};

    fn vm(id: &str) -> cmi_driver::Machine {
        cmi_driver::Machine::new(id.parse().unwrap(), "node")
    }

    fn to_initialize(required: bool) -> ToInitialize {
        ToInitialize {
            known: Some("sim://1".parse().unwrap()),
            machine: Some(vm("sim://1")),
            state: None,
            required,
        }
    }

    fn state(text: &str) -> LastKnownState {
        LastKnownState::new(text.as_bytes().to_vec()).unwrap()
    }

    /// Builds a VM that the driver calls uninitialized with this status.
    fn known(id: Option<&str>, call: Call, status: Status) -> ToInitialize {
        uninitialized(id.map(|id| id.parse().unwrap()), Failure::new(call, status))
    }

    fn failed(outcome: Outcome) -> Failure {
        match outcome {
            Outcome::Failed(failure) => *failure,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_initialization_that_answers_another_vm_leaves_nothing_of_it() {
        let failure = failed(initialized(to_initialize(true), Ok(vm("sim://2"))));
        assert!(failure.machine.is_none());
    }

    /// INI-11
    #[test]
    fn a_create_without_an_initialize_call_is_provisioned() {
        let answer = Err(Status::unimplemented(Operation::InitializeMachine));
        let outcome = initialized(to_initialize(false), answer);
        assert!(matches!(outcome, Outcome::Provisioned(machine) if *machine == vm("sim://1")));
    }

    /// INI-02, INI-24
    #[test]
    fn an_uninitialized_vm_is_not_up_after_any_failed_initialization() {
        for code in Code::ALL {
            let answer = Err(Status::new(code, "no"));
            let failure = failed(initialized(to_initialize(true), answer));
            assert_eq!(failure.machine, Some(vm("sim://1")), "{code}");
        }
    }

    /// INI-18, INI-19: the driver may report only that the VM is uninitialized.
    #[test]
    fn an_initialization_begins_with_what_is_known_of_the_vm() {
        let said = |machine: Option<cmi_driver::Machine>| {
            let status = Status::new(Code::Uninitialized, "no");
            match machine {
                Some(machine) => status.with_machine(machine),
                None => status,
            }
        };
        for call in [Call::LookUp, Call::LookUpAgain, Call::Create, Call::Refresh] {
            let known = |id, status| known(id, call, status).known.map(|id| id.to_string());
            assert_eq!(known(None, said(None)), None);
            assert_eq!(known(None, said(Some(vm("sim://2")))).as_deref(), Some("sim://2"));
            assert_eq!(known(Some("sim://1"), said(None)).as_deref(), Some("sim://1"));
        }
    }

    /// CTL-01: the state may come with the error or with the machine in the error.
    #[test]
    fn initialization_receives_the_last_known_state_of_the_error() {
        for call in [Call::LookUp, Call::LookUpAgain, Call::Create, Call::Refresh] {
            let beside = Status::new(Code::Uninitialized, "no").with_last_known_state(state("s1"));
            let mut old = vm("sim://1");
            old.last_known_state = Some(state("s0"));
            for (status, expected) in [
                (Status::new(Code::Uninitialized, "no"), None),
                (
                    Status::new(Code::Uninitialized, "no").with_machine(old.clone()),
                    Some(state("s0")),
                ),
                (beside.with_machine(old.clone()), Some(state("s1"))),
            ] {
                assert_eq!(known(None, call, status).state, expected, "{call:?}");
            }
        }
    }

    /// CTL-01
    #[test]
    fn a_create_keeps_its_last_known_state_if_initialization_returns_none() {
        let mut created = vm("sim://1");
        created.last_known_state = Some(state("s1"));
        let (bare, unavailable) = (vm("sim://1"), Status::new(Code::Unavailable, "no"));
        for (answer, kept) in [
            (Ok(bare.clone()), "s1"),
            (
                Ok(cmi_driver::Machine {
                    last_known_state: Some(state("s2")),
                    ..bare.clone()
                }),
                "s2",
            ),
            (Err(Status::unimplemented(Operation::InitializeMachine)), "s1"),
        ] {
            let outcome = initialized(made(created.clone()), answer);
            let Outcome::Provisioned(machine) = outcome else {
                panic!("{outcome:?}");
            };
            assert_eq!(machine.last_known_state, Some(state(kept)));
        }
        for status in [
            Status::new(Code::Unavailable, "no"),
            unavailable.with_machine(bare),
        ] {
            let failure = failed(initialized(made(created.clone()), Err(status)));
            let machine = failure.machine.unwrap();
            assert_eq!(machine.last_known_state, Some(state("s1")));
        }
    }
}
