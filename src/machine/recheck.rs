//! Ask after a VM that is provisioned.

use super::Context;
use super::absence::gone_or_behind;
use super::class::{self, Stopped};
use super::initialization::{initialize, uninitialized};
use super::look_up::{Seen, look_up};
use super::object::Object;
use super::outcome::Outcome;
use super::plan::Recheck;
use crate::configured_driver::Permit;
use crate::retry::Stage;
use cmi_driver::Operation;

/// Asks after a VM that is provisioned.
pub async fn recheck(
    ctx: &Context,
    object: &mut Object<'_>,
    permit: &mut Permit<'_>,
    plan: Recheck,
) -> Result<Outcome, Stopped> {
    let class = class::with_credentials(ctx, object, permit.configured_driver(), plan.look_up).await?;
    match look_up(
        object,
        permit,
        Some(&plan.provider_id),
        Stage::Recheck,
        class.clone(),
    )
    .await
    {
        Seen::Machine(machine) => {
            ctx.states.seen(object.uid());
            Ok(Outcome::Provisioned(Box::new(machine)))
        }
        Seen::Uninitialized(_) if !plan.may_initialize => {
            ctx.states.seen(object.uid());
            Ok(Outcome::NotOffered(Operation::InitializeMachine))
        }
        Seen::Uninitialized(failure) => {
            ctx.states.seen(object.uid());
            let vm = uninitialized(Some(plan.provider_id), failure);
            initialize(ctx, object, permit, class, vm).await
        }
        Seen::Absent => Ok(gone_or_behind(ctx, object, permit, plan.provider_id)),
        // The id is known: no list is asked for.
        Seen::Listed(_) | Seen::CannotLook => Ok(Outcome::NotOffered(Operation::GetMachineStatus)),
        Seen::Failed(failure) => Ok(Outcome::Failed(Box::new(failure))),
    }
}
