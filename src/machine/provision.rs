//! Look up, create, initialize.

use std::time::{Duration, Instant};

use super::Context;
use super::class;
use super::identity;
use super::object::Object;
use super::outcome::{Failure, Outcome};
use super::plan::{Claim, Provision};
use crate::api::labels;
use crate::api::v1alpha1::OperationType;
use crate::apiserver::Error;
use crate::driver::retry::Next;
use crate::driver::{
    self, Code, CreateMachineRequest, GetMachineStatusRequest, InitializeMachineRequest, LastKnownState,
    MachineClass, Operation, ProviderId, Status,
};
use crate::provider::Provider;

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
    provider: &Provider,
    plan: Provision,
) -> Result<Outcome, Error> {
    let class = match class::with_credentials(ctx, object.get(), plan.look_up.clone()).await? {
        Ok(class) => class,
        Err(cause) => {
            return Ok(Outcome::NoSecrets {
                during: OperationType::Create,
                cause,
            });
        }
    };
    match look_up(object, provider, &plan, class.clone()).await {
        Seen::Machine(machine) => {
            ctx.memory.seen(object.uid());
            object.claim(&adopted(&plan)).await?;
            Ok(Outcome::Provisioned(Box::new(machine)))
        }
        Seen::Uninitialized(machine) => {
            ctx.memory.seen(object.uid());
            object.claim(&adopted(&plan)).await?;
            Ok(initialize(object, provider, class, machine).await)
        }
        Seen::Absent => absent(ctx, object, provider, plan, class).await,
        Seen::CannotLook => create(ctx, object, provider, plan, class).await,
        Seen::Failed(failure) => Ok(Outcome::Failed(Box::new(failure))),
    }
}

/// Asks after a VM that is provisioned. Never creates.
pub async fn recheck(
    ctx: &Context,
    object: &mut Object<'_>,
    provider: &Provider,
    plan: Provision,
) -> Result<Outcome, Error> {
    let class = match class::with_credentials(ctx, object.get(), plan.look_up.clone()).await? {
        Ok(class) => class,
        Err(cause) => {
            return Ok(Outcome::NoSecrets {
                during: OperationType::Create,
                cause,
            });
        }
    };
    match look_up(object, provider, &plan, class.clone()).await {
        Seen::Machine(machine) => {
            ctx.memory.seen(object.uid());
            Ok(Outcome::Provisioned(Box::new(machine)))
        }
        Seen::Uninitialized(machine) => {
            ctx.memory.seen(object.uid());
            Ok(initialize(object, provider, class, machine).await)
        }
        Seen::Absent => Ok(gone_or_behind(ctx, object, provider, plan.provider_id)),
        Seen::CannotLook => Ok(Outcome::Left),
        Seen::Failed(failure) => Ok(Outcome::Failed(Box::new(failure))),
    }
}

async fn look_up(object: &Object<'_>, provider: &Provider, plan: &Provision, class: MachineClass) -> Seen {
    let request = GetMachineStatusRequest {
        machine_name: machine_name(object),
        provider_id: plan.provider_id.clone(),
        class,
    };
    let status = match provider.driver().get_machine_status(request).await {
        Ok(machine) => return Seen::Machine(machine),
        Err(status) => status,
    };
    let machine = status.machine().cloned();
    let failure = Failure::new(Operation::GetMachineStatus, OperationType::Create, status);
    match failure.next {
        Next::Create => Seen::Absent,
        Next::Fallback => Seen::CannotLook,
        Next::Initialize => Seen::Uninitialized(machine),
        Next::Retry
        | Next::AwaitCapacity
        | Next::AwaitPerson
        | Next::AwaitDriver
        | Next::Terminal
        | Next::Gone
        | Next::LookUp => Seen::Failed(if plan.issued {
            failure
        } else {
            failure.before_any_create()
        }),
    }
}

async fn absent(
    ctx: &Context,
    object: &mut Object<'_>,
    provider: &Provider,
    plan: Provision,
    class: MachineClass,
) -> Result<Outcome, Error> {
    // A create with another spec may have made the VM: only once the driver can't be behind any more is its NOT_FOUND
    // the truth.
    let respecified = plan.issued && plan.wanted != plan.look_up;
    if plan.provider_id.is_some() {
        return Ok(gone_or_behind(ctx, object, provider, plan.provider_id));
    }
    if respecified && let Some(again) = behind_for(ctx, object, provider) {
        return Ok(Outcome::Absent { again });
    }
    create(ctx, object, provider, plan, class).await
}

/// A VM whose id is known and that the driver does not see.
fn gone_or_behind(
    ctx: &Context,
    object: &Object<'_>,
    provider: &Provider,
    id: Option<ProviderId>,
) -> Outcome {
    match (behind_for(ctx, object, provider), id) {
        (Some(again), _) => Outcome::Absent { again },
        (None, Some(id)) => Outcome::Vanished(id),
        (None, None) => Outcome::Left,
    }
}

/// How long the driver may still be wrong about a VM that it does not see.
fn behind_for(ctx: &Context, object: &Object<'_>, provider: &Provider) -> Option<Duration> {
    let window = provider.capabilities().consistency_window;
    let absent_for = ctx.memory.absent_for(object.uid(), Instant::now());
    window
        .checked_sub(absent_for)
        .filter(|left| !left.is_zero())
        .map(|left| left.max(Duration::from_millis(10)))
}

async fn create(
    ctx: &Context,
    object: &mut Object<'_>,
    provider: &Provider,
    plan: Provision,
    class: MachineClass,
) -> Result<Outcome, Error> {
    let credentials = MachineClass {
        provider_spec: plan.wanted.clone(),
        ..class
    };
    let class =
        match class::with_bootstrap_data(ctx, object.get(), credentials.clone(), &plan.bootstrap).await? {
            Ok(class) => class,
            Err(cause) => {
                return Ok(Outcome::NoSecrets {
                    during: OperationType::Create,
                    cause,
                });
            }
        };
    if !object.claim(&plan.claim).await? {
        object.confirm().await?;
    }
    let request = CreateMachineRequest {
        machine_name: machine_name(object),
        class,
        last_known_state: last_known_state(object),
    };
    let status = match provider.driver().create_machine(request).await {
        Ok(machine) => return Ok(created(object, provider, plan, credentials, machine).await),
        Err(status) => status,
    };
    let failure = Failure::new(Operation::CreateMachine, OperationType::Create, status);
    match (failure.next, &failure.machine) {
        (Next::Initialize, Some(machine)) => {
            let machine = machine.clone();
            Ok(initialize(object, provider, credentials, Some(machine)).await)
        }
        (Next::Terminal, _) if !plan.issued => {
            object.note_no_instance().await?;
            Ok(Outcome::Failed(Box::new(failure)))
        }
        _ => Ok(Outcome::Failed(Box::new(failure))),
    }
}

async fn created(
    object: &Object<'_>,
    provider: &Provider,
    plan: Provision,
    class: MachineClass,
    machine: driver::Machine,
) -> Outcome {
    if let Some(known) = plan.provider_id.filter(|known| *known != machine.provider_id) {
        let message = format!(
            "the driver answered providerID `{}` for a machine whose providerID is `{known}`",
            machine.provider_id
        );
        let status = Status::new(Code::Internal, message);
        return Outcome::Failed(Box::new(Failure::new(
            Operation::CreateMachine,
            OperationType::Create,
            status,
        )));
    }
    initialize(object, provider, class, Some(machine)).await
}

/// Initializes a VM that exists; a driver without the call has nothing to initialize.
async fn initialize(
    object: &Object<'_>,
    provider: &Provider,
    class: MachineClass,
    machine: Option<driver::Machine>,
) -> Outcome {
    let state = machine
        .as_ref()
        .and_then(|machine| machine.last_known_state.clone());
    let request = InitializeMachineRequest {
        machine_name: machine_name(object),
        provider_id: machine.as_ref().map(|machine| machine.provider_id.clone()),
        class,
        last_known_state: state.clone().or_else(|| last_known_state(object)),
    };
    let status = match provider.driver().initialize_machine(request).await {
        Ok(mut initialized) => {
            initialized.last_known_state = initialized.last_known_state.or(state);
            return Outcome::Provisioned(Box::new(initialized));
        }
        Err(status) => status,
    };
    let mut failure = Failure::new(Operation::InitializeMachine, OperationType::Create, status);
    match (failure.next, machine) {
        (Next::Fallback, Some(machine)) => Outcome::Provisioned(Box::new(machine)),
        (_, machine) => {
            failure.machine = failure.machine.or(machine);
            Outcome::Failed(Box::new(failure))
        }
    }
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
