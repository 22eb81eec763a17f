//! Look up, create, initialize.

use super::Context;
use super::absence::{behind_for, gone_or_behind};
use super::class::{self, Stopped};
use super::initialization::{initialize, made, uninitialized};
use super::look_up::{Seen, another_vm, look_up};
use super::object::Object;
use super::outcome::{Failure, Outcome};
use super::plan::{Claim, Provision};
use crate::driver::retry::{Call, Next};
use crate::driver::{self, CreateMachineRequest, MachineClass, Operation};
use crate::identity;
use crate::provider::Turn;

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
    let class = class::with_credentials(ctx, object.get(), turn.provider(), plan.look_up.clone()).await?;
    let call = if plan.vm_may_exist {
        Call::LookUpAgain
    } else {
        Call::LookUp
    };
    let known = plan.provider_id.as_ref();
    match look_up(object, turn, known, call, class.clone()).await {
        Seen::Machine(machine) => {
            ctx.memory.seen(object.uid());
            object.claim(&adopted(&plan)).await?;
            Ok(Outcome::Provisioned(Box::new(machine)))
        }
        Seen::Uninitialized(failure) => {
            ctx.memory.seen(object.uid());
            object.claim(&adopted(&plan)).await?;
            initialize(ctx, object, turn, class, uninitialized(plan.provider_id, failure)).await
        }
        Seen::Absent => absent(ctx, object, turn, plan, class).await,
        Seen::CannotLook => match plan.provider_id.clone() {
            // The id is known, so a create has succeeded: another one would make a second VM if the first is gone.
            Some(id) => {
                let vm = made(driver::Machine::new(id, ""));
                initialize(ctx, object, turn, class, vm).await
            }
            None => create(ctx, object, turn, plan, class).await,
        },
        Seen::Failed(failure) => Ok(Outcome::Failed(Box::new(failure))),
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
    if let Some(id) = plan.provider_id.clone() {
        return Ok(gone_or_behind(ctx, object, turn, id));
    }
    if plan.vm_may_exist
        && let Some(again) = behind_for(ctx, object.uid(), turn.known_capabilities().consistency_window)
    {
        return Ok(Outcome::Absent { again });
    }
    create(ctx, object, turn, plan, class).await
}

async fn create(
    ctx: &Context,
    object: &mut Object<'_>,
    turn: &mut Turn<'_>,
    plan: Provision,
    class: MachineClass,
) -> Result<Outcome, Stopped> {
    if !ctx.may_create(object.get(), turn) {
        return Ok(ctx.waiting_for_a_turn(object.get(), turn.provider()));
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
        machine_name: object.name().to_owned(),
        class,
        last_known_state: identity::last_known_state(object.get()),
    };
    let call = turn.driver().create_machine(request);
    let status = match object.awaiting(Operation::CreateMachine, call).await {
        Ok(machine) => return created(ctx, object, turn, plan, credentials, machine).await,
        Err(status) => status,
    };
    let failure = Failure::new(Call::Create, status);
    match failure.next {
        Next::Initialize => {
            let vm = uninitialized(plan.provider_id, failure);
            initialize(ctx, object, turn, credentials, vm).await
        }
        Next::Terminal if !plan.vm_may_exist => {
            object.note_no_instance().await?;
            Ok(Outcome::Failed(Box::new(failure)))
        }
        _ => Ok(Outcome::Failed(Box::new(failure))),
    }
}

async fn created(
    ctx: &Context,
    object: &mut Object<'_>,
    turn: &mut Turn<'_>,
    plan: Provision,
    class: MachineClass,
    machine: driver::Machine,
) -> Result<Outcome, Stopped> {
    if let Some(failure) = another_vm(Call::Create, plan.provider_id.as_ref(), Some(&machine)) {
        return Ok(Outcome::Failed(Box::new(failure)));
    }
    initialize(ctx, object, turn, class, made(machine)).await
}

/// The claim on a VM that is there: it has the spec of the create that made it.
fn adopted(plan: &Provision) -> Claim {
    Claim {
        applied: Some(plan.look_up.clone()),
        ..plan.claim.clone()
    }
}
