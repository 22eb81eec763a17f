//! Ask after a VM that is provisioned.

use super::ExecuteError;
use super::consistency::gone_or_behind;
use super::initialize::{initialize, uninitialized};
use super::look_up::{LookUpResult, look_up};
use super::machine_class;
use crate::configured_driver::Permit;
use crate::machine::Context;
use crate::machine::object::Object;
use crate::machine::outcome::Outcome;
use crate::machine::plan::Refresh;
use crate::retry::Stage;
use cmi_driver::Operation;

/// Asks after a VM that is provisioned.
pub async fn refresh(
    ctx: &Context,
    object: &mut Object<'_>,
    permit: &mut Permit<'_>,
    plan: Refresh,
) -> Result<Outcome, ExecuteError> {
    let class =
        machine_class::with_credentials(ctx, object, permit.configured_driver(), plan.look_up).await?;
    match look_up(
        object,
        permit,
        Some(&plan.provider_id),
        Stage::Refresh,
        class.clone(),
    )
    .await
    {
        LookUpResult::Machine(machine) => {
            ctx.states.clear_absence(object.uid());
            Ok(Outcome::Provisioned(Box::new(machine)))
        }
        LookUpResult::Uninitialized(_) if !plan.may_initialize => {
            ctx.states.clear_absence(object.uid());
            Ok(Outcome::NotSupported(Operation::InitializeMachine))
        }
        LookUpResult::Uninitialized(failure) => {
            ctx.states.clear_absence(object.uid());
            let vm = uninitialized(Some(plan.provider_id), failure);
            initialize(ctx, object, permit, class, vm).await
        }
        LookUpResult::Absent(_) => Ok(gone_or_behind(ctx, object, permit, plan.provider_id)),
        // The id is known: no list is asked for.
        LookUpResult::Listed(_) | LookUpResult::CannotLook => {
            Ok(Outcome::NotSupported(Operation::GetMachineStatus))
        }
        LookUpResult::Failed(failure) => Ok(Outcome::Failed(Box::new(failure))),
    }
}
