//! Plans for a provisioned VM. No other VM is ever created for its Machine.

use std::time::Duration;

use super::power::until_start;
use super::waits::{lacks, look_up_wait, poll_interval, retry_wait, until_settling};
use super::{DriverPlan, Initialize, Observed, Owner, Plan, Refresh, Update, machine_deleted};
use crate::api::conditions::{self, reason};
use crate::api::identity::{InvalidSpec, MadeFrom, VmRecord, VmState};
use crate::api::v1alpha1::InfraMachine;
use crate::driver::KnownDriver;
use crate::in_place::hot_update::{Changes, InPlaceUpdate};
use crate::machine::outcome::{Blocked, Outcome};
use crate::reconcile::runtime_state::LookUpHint;
use cmi_driver::{Machine, Operation, ProviderId, ProviderSpec};

/// Decides the next action for a provisioned machine that is not paused. `wanted` is its spec for the driver,
/// if that can be computed.
pub fn plan_provisioned(
    machine: &InfraMachine,
    observed: &Observed,
    driver: &KnownDriver,
    record: &VmRecord,
    made: &MadeFrom,
    provider_id: ProviderId,
    wanted: Result<ProviderSpec, InvalidSpec>,
) -> Plan {
    let offers = |operation| driver.capabilities.supports(operation);
    let applied = &made.provider_spec;
    let mut requeue_after = None;
    let lacks_look_up = lacks(observed, Operation::GetMachineStatus);
    let can_look = offers(Operation::GetMachineStatus) && !lacks_look_up;
    // The look-up comes first, because a refused spec or a failed update must not hide a missing VM.
    if can_look {
        let initialize = if lacks(observed, Operation::InitializeMachine) {
            Initialize::Never
        } else {
            Initialize::OnRequest
        };
        // Polling does not settle a VM that waits for an unsupported call.
        let unsettled = initialize == Initialize::OnRequest && poll_interval(machine, observed.now).is_some();
        // An unanswered hint stays, and waits like any failed call.
        let hinted = observed.state.hint.is_some();
        let unanswered =
            look_up_wait(observed).filter(|_| observed.state.hint.is_some_and(|hint| !hint.is_new));
        requeue_after = until_settling(observed).filter(|_| unsettled).or(unanswered);
        let until_start = until_start(machine, observed, driver, record);
        let start = until_start == Some(Duration::ZERO);
        if ((hinted || start) && unanswered.is_none()) || (unsettled && requeue_after.is_none()) {
            return DriverPlan::Refresh(Box::new(Refresh {
                look_up: applied.clone(),
                provider_id,
                initialize,
                start,
            }))
            .into();
        }
        requeue_after = requeue_after.into_iter().chain(until_start).min();
    } else {
        match (observed.state.hinted(), machine.has_vanished()) {
            (Some(LookUpHint::Missing), false) => return Outcome::Vanished(provider_id).into(),
            (Some(LookUpHint::Back), true) => {
                return Outcome::Provisioned(Box::new(Machine::new(provider_id, ""))).into();
            }
            (Some(LookUpHint::Missing), true)
            | (Some(LookUpHint::Back), false)
            | (Some(LookUpHint::Signal) | None, _) => {}
        }
    }
    let wanted = match wanted {
        Ok(wanted) => wanted,
        Err(invalid) => {
            return Outcome::Refused {
                invalid,
                requeue_after,
            }
            .into();
        }
    };
    let Changes { hot, not_updatable } = Changes::between(applied, &wanted, &driver.capabilities);
    // The VM may be half updated, even after a move.
    let is_unfinished = matches!(record.state, VmState::Updating { .. });
    let differs = is_unfinished || !hot.is_empty() || !not_updatable.is_empty();
    if let Owner::Found(owner) = &observed.owner
        && owner.metadata.deletion_timestamp.is_some()
        && differs
    {
        let (condition, message) = (conditions::VIRTUAL_MACHINE_UP_TO_DATE, machine_deleted(owner));
        let block = Blocked::new(condition, reason::MACHINE_DELETED, message);
        return block.until(requeue_after).into();
    }
    match InPlaceUpdate::of(machine) {
        InPlaceUpdate::NotRequested if differs => return update_not_requested(requeue_after),
        InPlaceUpdate::Requested if !differs => return Plan::ReportInPlaceUpdate,
        InPlaceUpdate::None
        | InPlaceUpdate::NotRequested
        | InPlaceUpdate::Requested
        | InPlaceUpdate::Done => {}
    }
    if not_updatable.is_empty() && (is_unfinished || !hot.is_empty()) {
        // An unsupported look-up does not delay an update.
        if let Some(wait) = retry_wait(observed).filter(|_| !lacks_look_up) {
            return Outcome::Waiting(requeue_after.into_iter().chain(wait.requeue_after()).min()).into();
        }
        return DriverPlan::Update(Box::new(Update {
            provider_id,
            applied: applied.clone(),
            wanted,
        }))
        .into();
    }
    Outcome::UpToDate {
        reachability: driver.reachability.clone(),
        not_updatable,
        requeue_after,
    }
    .into()
}

/// Blocks an update that Cluster API manages and that another extension may have to carry out.
fn update_not_requested(requeue_after: Option<Duration>) -> Plan {
    let message = "Cluster API updates the machine in place and has not asked this provider to change the \
        VM: another extension that is registered for UpdateMachine must update it";
    let condition = conditions::VIRTUAL_MACHINE_UP_TO_DATE;
    let block = Blocked::new(condition, reason::WAITING_FOR_UPDATE_REQUEST, message);
    block.until(requeue_after).into()
}
