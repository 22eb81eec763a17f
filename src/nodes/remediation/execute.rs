//! The restart, which is the only driver call.

use std::time::Duration;

use jiff::Timestamp;

use super::Context;
use super::answer::RestartResult;
use super::gather::Gathered;
use super::plan::{RemediationState, Restart, hand_over, not_done, restarted, unanswered};
use super::publish::{publish, record_failure, write_record};
use super::record::Record;
use crate::admission::{self, Enforcement};
use crate::api::ObjectMetaExt as _;
use crate::api::conditions::reason;
use crate::api::identity;
use crate::api::retry::{self, Call};
use crate::api::v1alpha1::{InfraMachine, InfraMachineRemediation, RemediationPhase};
use crate::api::wall_clock;
use crate::apiserver::secrets::without_bootstrap_data;
use crate::apiserver::{Error, NewEvent};
use crate::driver::credentials;
use crate::driver::{PERMIT_WAIT, Permit, VM_LOCK_WAIT};
use crate::reconcile::{Requeue, upkeep_permit};
use cmi_driver::{MachineClass, MachineRef, Operation, RestartMachineRequest, Status};

/// Restarts the VM if that is possible now, and publishes the outcome.
///
/// This is no [`crate::reconcile::driver_query`], because it locks the VM and records the restart between
/// the permit and the call.
///
/// # Guarantees
/// The restart is recorded before the driver is called, on the planned version of the object. So neither a
/// crash nor a stale cache leads to an additional restart. The record is removed only if the call never left
/// this process, or if the driver reports that nothing was restarted. The VM is neither initialized nor
/// updated during the restart.
pub async fn restart(gathered: &Gathered, ctx: &Context, restart: Restart) -> Result<Requeue, Error> {
    let remediation = &gathered.remediation;
    let Some((infra, driver)) = gathered.infra_and_driver() else {
        return Ok(Requeue::After(PERMIT_WAIT));
    };
    let Some(permit) = upkeep_permit(driver, &ctx.enqueue, &remediation.metadata) else {
        return Ok(Requeue::After(PERMIT_WAIT));
    };
    let Some(_lock) = driver.try_lock_vm(infra.metadata.uid()) else {
        return Ok(Requeue::After(VM_LOCK_WAIT));
    };
    let unwritten = &remediation.metadata;
    let class = match prepared(gathered, ctx, infra, &permit, &restart).await? {
        Ok(class) => class,
        Err(outcome) => {
            publish(gathered, unwritten, ctx, restart.before, &outcome).await?;
            return Ok(outcome.requeue);
        }
    };
    let written = write_record(ctx, gathered.namespace(), unwritten, restart.record).await?;
    let request = RestartMachineRequest {
        machine: MachineRef::new(infra.metadata.name().to_owned(), class),
        provider_id: restart.provider_id.clone(),
        last_known_state: identity::last_known_state(infra),
    };
    let answer = permit.driver().restart_machine(request).await;
    let answer = match answer {
        Err(status) => Err(redacted(gathered, ctx, status).await),
        Ok(()) => Ok(()),
    };
    let (record, metadata) = match RestartResult::of(&answer) {
        RestartResult::NotMade => {
            let taken_back = write_record(ctx, gathered.namespace(), &written, restart.before).await?;
            (restart.before, taken_back)
        }
        RestartResult::Made | RestartResult::MayBeMade | RestartResult::NotPossible => {
            (restart.record, written)
        }
    };
    let outcome = outcome(remediation, restart.record, answer, wall_clock::now());
    if outcome.phase != RemediationPhase::Replacing {
        record_failure(gathered, ctx, event(&outcome)).await;
    }
    publish(gathered, &metadata, ctx, record, &outcome).await?;
    Ok(outcome.requeue)
}

/// The class for the call if the call can be made, or else the outcome to publish.
async fn prepared(
    gathered: &Gathered,
    ctx: &Context,
    infra: &InfraMachine,
    permit: &Permit<'_>,
    restart: &Restart,
) -> Result<Result<MachineClass, RemediationState>, Error> {
    if let Enforcement::NotInForce(why) = ctx.policies.enforcement_since(gathered.read_before).await {
        let requeue = Requeue::After(admission::CHECK_INTERVAL);
        return Ok(Err(not_done(
            reason::IDENTITY_NOT_GUARDED,
            why.to_string(),
            requeue,
        )));
    }
    let name = identity::credentials(infra);
    let driver = permit.configured_driver();
    let spec = restart.spec.clone();
    let class =
        match credentials::machine_class(&ctx.client, driver, gathered.namespace(), name.as_deref(), spec)
            .await?
        {
            Ok(class) => class,
            Err(invalid) => {
                // Secrets are not watched.
                let requeue = Requeue::BackOff(Duration::ZERO);
                return Ok(Err(not_done(
                    reason::INVALID_SECRET,
                    invalid.to_string(),
                    requeue,
                )));
            }
        };
    match permit.driver().prepare_call(Operation::RestartMachine).await {
        Ok(()) => Ok(Ok(class)),
        Err(status) => Ok(Err(not_sent(&status))),
    }
}

/// The outcome of the call.
fn outcome(
    remediation: &InfraMachineRemediation,
    record: Record,
    answer: Result<(), Status>,
    now: Timestamp,
) -> RemediationState {
    let result = RestartResult::of(&answer);
    let Err(status) = answer else {
        return restarted(remediation, record, now);
    };
    match result {
        RestartResult::Made => restarted(remediation, record, now),
        RestartResult::NotMade if status.is_never_sent() => not_sent(&status),
        RestartResult::NotMade => not_made(&status),
        RestartResult::MayBeMade => unanswered(
            remediation,
            record,
            (status.code().name(), &message_of(&status)),
            now,
        ),
        RestartResult::NotPossible => hand_over(reason::RESTART_NOT_POSSIBLE, message_of(&status)),
    }
}

fn not_sent(status: &Status) -> RemediationState {
    let requeue = Requeue::BackOff(retry::requested_delay(status).unwrap_or_default());
    not_done(status.code().name(), message_of(status), requeue)
}

/// The driver reports that nothing was restarted. The next call follows the table of codes.
fn not_made(status: &Status) -> RemediationState {
    let message = format!(
        "{}; the VM was not restarted, and the attempt does not count",
        message_of(status)
    );
    not_done(
        status.code().name(),
        message,
        Requeue::after_failure(Call::Restart, status),
    )
}

fn message_of(status: &Status) -> String {
    format!("{}: {}", Operation::RestartMachine, status.message())
}

fn event(outcome: &RemediationState) -> NewEvent {
    NewEvent {
        warning: outcome.reason != reason::RESTARTED,
        reason: outcome.reason.clone(),
        action: Operation::RestartMachine.name(),
        note: outcome.message.clone(),
    }
}

/// The status without bootstrap data, which a driver may have kept from the create (OPS-11).
async fn redacted(gathered: &Gathered, ctx: &Context, status: Status) -> Status {
    let machine = gathered.observed.owner.machine();
    let Some(name) = machine.and_then(|machine| machine.spec.bootstrap.data_secret_name.as_deref()) else {
        return status;
    };
    let namespace = gathered.namespace();
    let message = without_bootstrap_data(&ctx.client, namespace, name, status.message()).await;
    status.with_message(message)
}
