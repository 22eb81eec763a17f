//! Look up, create, initialize.

use super::Context;
use super::absence::behind_for;
use super::class::{self, Stopped};
use super::identity;
use super::object::Object;
use super::outcome::{Failure, Outcome};
use super::plan::{Claim, Provision};
use crate::api::labels;
use crate::driver::retry::{Call, Next};
use crate::driver::{
    self, Code, CreateMachineRequest, GetMachineStatusRequest, InitializeMachineRequest, LastKnownState,
    MachineClass, ProviderId, Status,
};
use crate::provider::Turn;

/// What the look-up saw.
enum Seen {
    Machine(driver::Machine),
    Uninitialized(Option<driver::Machine>),
    Absent,
    /// The driver can't look up: its create finds what is there.
    CannotLook,
    Failed(Failure),
}

/// Brings the VM up, or finds it up.
///
/// # Guarantees
/// A create is issued only after the driver said NOT_FOUND (or can't look), only with finalizer and identity written,
/// and only on an object that was read or written at the API server a moment ago.
pub async fn provision(
    ctx: &Context,
    object: &mut Object<'_>,
    turn: &mut Turn<'_>,
    plan: Provision,
) -> Result<Outcome, Stopped> {
    let class = class::with_credentials(ctx, object.get(), plan.look_up.clone()).await?;
    let call = if plan.issued {
        Call::LookUpAgain
    } else {
        Call::LookUp
    };
    match look_up(object, turn, &plan, call, class.clone()).await {
        Seen::Machine(machine) => {
            ctx.memory.seen(object.uid());
            object.claim(&adopted(&plan)).await?;
            Ok(Outcome::Provisioned(Box::new(machine)))
        }
        Seen::Uninitialized(machine) => {
            ctx.memory.seen(object.uid());
            object.claim(&adopted(&plan)).await?;
            initialize(ctx, object, turn, class, uninitialized(&plan, machine)).await
        }
        Seen::Absent => absent(ctx, object, turn, plan, class).await,
        Seen::CannotLook => match plan.provider_id.clone() {
            // The id is known, so a create has succeeded: another one would make a second VM if the first is gone.
            Some(id) => {
                let known = ToInitialize {
                    known: Some(id.clone()),
                    machine: Some(driver::Machine::new(id, "")),
                    required: false,
                };
                initialize(ctx, object, turn, class, known).await
            }
            None => create(ctx, object, turn, plan, class).await,
        },
        Seen::Failed(failure) => Ok(Outcome::Failed(Box::new(failure))),
    }
}

/// Asks after a VM that is provisioned. Never creates.
pub async fn recheck(
    ctx: &Context,
    object: &mut Object<'_>,
    turn: &mut Turn<'_>,
    plan: Provision,
) -> Result<Outcome, Stopped> {
    let class = class::with_credentials(ctx, object.get(), plan.look_up.clone()).await?;
    match look_up(object, turn, &plan, Call::Recheck, class.clone()).await {
        Seen::Machine(machine) => {
            ctx.memory.seen(object.uid());
            Ok(Outcome::Provisioned(Box::new(machine)))
        }
        Seen::Uninitialized(machine) => {
            ctx.memory.seen(object.uid());
            initialize(ctx, object, turn, class, uninitialized(&plan, machine)).await
        }
        Seen::Absent => Ok(gone_or_behind(ctx, object, turn, plan.provider_id)),
        Seen::CannotLook => Ok(Outcome::Left),
        Seen::Failed(failure) => Ok(Outcome::Failed(Box::new(failure))),
    }
}

async fn look_up(
    object: &Object<'_>,
    turn: &Turn<'_>,
    plan: &Provision,
    call: Call,
    class: MachineClass,
) -> Seen {
    if !turn.known_capabilities().offers(call.operation()) {
        return Seen::CannotLook;
    }
    let request = GetMachineStatusRequest {
        machine_name: machine_name(object),
        provider_id: plan.provider_id.clone(),
        class,
    };
    let known = plan.provider_id.as_ref();
    let status = match turn.driver().get_machine_status(request).await {
        Ok(machine) => {
            return match another_vm(call, known, Some(&machine)) {
                Some(failure) => Seen::Failed(failure),
                None => Seen::Machine(machine),
            };
        }
        Err(status) => status,
    };
    if let Some(failure) = another_vm(call, known, status.machine()) {
        return Seen::Failed(failure);
    }
    let failure = Failure::new(call, status);
    match failure.next {
        Next::Create | Next::Vanished => Seen::Absent,
        Next::Fallback => Seen::CannotLook,
        Next::Initialize => Seen::Uninitialized(failure.machine),
        Next::Retry
        | Next::AwaitCapacity
        | Next::AwaitPerson
        | Next::AwaitDriver
        | Next::Terminal
        | Next::LookUp
        | Next::Delete
        | Next::LookWhetherGone
        | Next::StillThere
        | Next::Gone => Seen::Failed(failure),
    }
}

async fn absent(
    ctx: &Context,
    object: &mut Object<'_>,
    turn: &mut Turn<'_>,
    plan: Provision,
    class: MachineClass,
) -> Result<Outcome, Stopped> {
    // An earlier create may have made the VM: only once the driver can't be behind any more is its NOT_FOUND the truth.
    if plan.provider_id.is_some() {
        return Ok(gone_or_behind(ctx, object, turn, plan.provider_id));
    }
    if plan.issued
        && let Some(again) = behind_for(ctx, object.uid(), turn.known_capabilities().consistency_window)
    {
        return Ok(Outcome::Absent { again });
    }
    create(ctx, object, turn, plan, class).await
}

/// A VM whose id is known and that the driver does not see.
fn gone_or_behind(ctx: &Context, object: &Object<'_>, turn: &Turn<'_>, id: Option<ProviderId>) -> Outcome {
    match (
        behind_for(ctx, object.uid(), turn.known_capabilities().consistency_window),
        id,
    ) {
        (Some(again), _) => Outcome::Absent { again },
        (None, Some(id)) => Outcome::Vanished(id),
        (None, None) => Outcome::Left,
    }
}

async fn create(
    ctx: &Context,
    object: &mut Object<'_>,
    turn: &mut Turn<'_>,
    plan: Provision,
    class: MachineClass,
) -> Result<Outcome, Stopped> {
    if !ctx.may_create(object.get(), turn) {
        return Ok(Outcome::Held(ctx.waiting_for_a_turn(object.get())));
    }
    let credentials = MachineClass {
        provider_spec: plan.wanted.clone(),
        ..class
    };
    let class = class::with_bootstrap_data(ctx, object.get(), credentials.clone(), &plan.bootstrap).await?;
    if !object.claim(&plan.claim).await? {
        object.confirm().await?;
    }
    // From here on a VM may be: an absence that was seen before says nothing about it.
    ctx.memory.seen(object.uid());
    let request = CreateMachineRequest {
        machine_name: machine_name(object),
        class,
        last_known_state: last_known_state(object),
    };
    let status = match turn.driver().create_machine(request).await {
        Ok(machine) => return created(ctx, object, turn, plan, credentials, machine).await,
        Err(status) => status,
    };
    let failure = Failure::new(Call::Create, status);
    match failure.next {
        Next::Initialize => {
            let vm = uninitialized(&plan, failure.machine);
            initialize(ctx, object, turn, credentials, vm).await
        }
        Next::Terminal if !plan.issued => {
            object.note_no_instance().await?;
            Ok(Outcome::Failed(Box::new(failure)))
        }
        _ => Ok(Outcome::Failed(Box::new(failure))),
    }
}

async fn created(
    ctx: &Context,
    object: &Object<'_>,
    turn: &mut Turn<'_>,
    plan: Provision,
    class: MachineClass,
    machine: driver::Machine,
) -> Result<Outcome, Stopped> {
    if let Some(failure) = another_vm(Call::Create, plan.provider_id.as_ref(), Some(&machine)) {
        return Ok(Outcome::Failed(Box::new(failure)));
    }
    let vm = ToInitialize {
        known: Some(machine.provider_id.clone()),
        machine: Some(machine),
        required: false,
    };
    initialize(ctx, object, turn, class, vm).await
}

/// A VM that exists and may have to be initialized.
struct ToInitialize {
    /// Its id, as far as anybody knows.
    known: Option<ProviderId>,
    /// What the driver said of it.
    machine: Option<driver::Machine>,
    /// Whether the driver said that it is not initialized.
    required: bool,
}

fn uninitialized(plan: &Provision, machine: Option<driver::Machine>) -> ToInitialize {
    let id = machine.as_ref().map(|machine| machine.provider_id.clone());
    ToInitialize {
        known: plan.provider_id.clone().or(id),
        machine,
        required: true,
    }
}

/// Initializes a VM that exists; a driver without the call has nothing to initialize.
async fn initialize(
    ctx: &Context,
    object: &Object<'_>,
    turn: &mut Turn<'_>,
    class: MachineClass,
    vm: ToInitialize,
) -> Result<Outcome, Stopped> {
    if !ctx.may_create(object.get(), turn) {
        return Ok(Outcome::Held(ctx.waiting_for_a_turn(object.get())));
    }
    let state = vm
        .machine
        .as_ref()
        .and_then(|machine| machine.last_known_state.clone());
    let request = InitializeMachineRequest {
        machine_name: machine_name(object),
        provider_id: vm.known.clone(),
        class,
        last_known_state: state.or_else(|| last_known_state(object)),
    };
    Ok(initialized(vm, turn.driver().initialize_machine(request).await))
}

/// What the answer to an initialization leads to.
fn initialized(vm: ToInitialize, answer: driver::Result<driver::Machine>) -> Outcome {
    let call = if vm.required {
        Call::FinishInitialization
    } else {
        Call::Initialize
    };
    let state = vm
        .machine
        .as_ref()
        .and_then(|machine| machine.last_known_state.clone());
    let seen = match &answer {
        Ok(machine) => Some(machine),
        Err(status) => status.machine(),
    };
    if let Some(failure) = another_vm(call, vm.known.as_ref(), seen) {
        return Outcome::Failed(Box::new(failure));
    }
    let status = match answer {
        Ok(mut machine) => {
            machine.last_known_state = machine.last_known_state.or(state);
            return Outcome::Provisioned(Box::new(machine));
        }
        Err(status) => status,
    };
    let mut failure = Failure::new(call, status);
    match (failure.next, vm.machine) {
        (Next::Fallback, Some(machine)) => Outcome::Provisioned(Box::new(machine)),
        (_, machine) => {
            failure.machine = failure.machine.or(machine);
            Outcome::Failed(Box::new(failure))
        }
    }
}

/// The failure that it is when a driver answers with another VM than the one that was asked about: nothing is done to that
/// one, and its id is not written, since it may be anybody's.
fn another_vm(call: Call, known: Option<&ProviderId>, seen: Option<&driver::Machine>) -> Option<Failure> {
    let (known, seen) = (known?, &seen?.provider_id);
    (known != seen).then(|| {
        let message =
            format!("the driver answered providerID `{seen}` for the machine whose providerID is `{known}`");
        Failure::new(call, Status::new(Code::Internal, message))
    })
}

/// The claim on a VM that is there: it has the spec of the create that made it.
fn adopted(plan: &Provision) -> Claim {
    Claim {
        applied: Some(plan.look_up.clone()),
        ..plan.claim.clone()
    }
}

/// The name that the driver knows the machine by.
pub fn machine_name(object: &Object<'_>) -> String {
    object.get().metadata.name.clone().unwrap_or_default()
}

/// What the driver wants back.
pub fn last_known_state(object: &Object<'_>) -> Option<LastKnownState> {
    use base64::prelude::{BASE64_STANDARD, Engine as _};
    let text = identity::annotation(object.get(), labels::LAST_KNOWN_STATE)?;
    LastKnownState::new(BASE64_STANDARD.decode(text).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Operation;

    fn vm(id: &str) -> driver::Machine {
        driver::Machine::new(id.parse().unwrap(), "node")
    }

    fn to_initialize(required: bool) -> ToInitialize {
        ToInitialize {
            known: Some("sim://1".parse().unwrap()),
            machine: Some(vm("sim://1")),
            required,
        }
    }

    fn failed(outcome: Outcome) -> Failure {
        match outcome {
            Outcome::Failed(failure) => *failure,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_vm_of_another_id_is_not_taken_for_the_one_that_was_asked_about() {
        let known = "sim://1".parse().unwrap();
        let call = Call::LookUpAgain;
        assert!(another_vm(call, Some(&known), Some(&vm("sim://1"))).is_none());
        assert!(another_vm(call, None, Some(&vm("sim://2"))).is_none());
        let failure = another_vm(call, Some(&known), Some(&vm("sim://2"))).unwrap();
        assert_eq!(failure.status.code(), Code::Internal);
        assert!(
            failure.machine.is_none(),
            "nothing of the other VM is kept: {failure:?}"
        );
        let failure = failed(initialized(to_initialize(true), Ok(vm("sim://2"))));
        assert!(failure.machine.is_none());
    }

    /// INI-11
    #[test]
    fn a_driver_without_initialization_has_nothing_to_initialize_after_a_create() {
        let answer = Err(Status::unimplemented(Operation::InitializeMachine));
        let outcome = initialized(to_initialize(false), answer);
        assert!(matches!(outcome, Outcome::Provisioned(machine) if *machine == vm("sim://1")));
    }

    /// INI-02, INI-24
    #[test]
    fn a_vm_that_the_driver_calls_uninitialized_is_not_up_because_the_call_is_missing_or_the_vm_is() {
        for code in Code::ALL {
            let answer = Err(Status::new(code, "no"));
            let failure = failed(initialized(to_initialize(true), answer));
            assert_eq!(failure.machine, Some(vm("sim://1")), "{code}");
        }
    }

    /// INI-18, INI-19: the driver may know no more of the VM than that it is not initialized.
    #[test]
    fn an_initialization_begins_with_what_is_known_of_the_vm() {
        let plan = |id: Option<&str>| {
            let machine = crate::machine::fixtures::machine().claimed().build();
            Provision {
                claim: crate::machine::fixtures::claim(&machine),
                wanted: crate::driver::ProviderSpec::default(),
                look_up: crate::driver::ProviderSpec::default(),
                provider_id: id.map(|id| id.parse().unwrap()),
                bootstrap: String::new(),
                issued: true,
            }
        };
        let known = |vm: ToInitialize| vm.known.map(|id| id.to_string());
        assert_eq!(known(uninitialized(&plan(None), None)), None);
        assert_eq!(
            known(uninitialized(&plan(None), Some(vm("sim://2")))).as_deref(),
            Some("sim://2")
        );
        assert_eq!(
            known(uninitialized(&plan(Some("sim://1")), None)).as_deref(),
            Some("sim://1")
        );
    }

    /// CTL-01
    #[test]
    fn the_state_that_a_create_left_survives_an_initialization_that_leaves_none() {
        let state = LastKnownState::new(b"s1".to_vec());
        let mut vm_to_initialize = to_initialize(false);
        if let Some(machine) = &mut vm_to_initialize.machine {
            machine.last_known_state.clone_from(&state);
        }
        let outcome = initialized(vm_to_initialize, Ok(vm("sim://1")));
        assert!(matches!(outcome, Outcome::Provisioned(machine) if machine.last_known_state == state));
    }
}
