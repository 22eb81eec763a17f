//! Shut down and delete, until the VM is gone.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::api::conditions::reason;
use crate::api::labels;
use crate::apiserver::{Error, InvalidSecret};
use crate::configured_driver::Permit;
use crate::identity;
use crate::machine::Context;
use crate::machine::execute::consistency::behind_for;
use crate::machine::execute::look_up::own_in_list;
use crate::machine::execute::machine_class::{self, Stopped};
use crate::machine::object::{Annotation, Object};
use crate::machine::outcome::{Failure, Outcome, RemovalReason};
use crate::machine::plan::{Delete, SHUT_DOWN_TRIES, Settling, ShutDown};
use crate::retry::{Disposition, Stage};
use cmi_driver::{
    self, Code, DeleteMachineRequest, GetMachineStatusRequest, LastKnownState, Machine, MachineClass,
    MachineRef, Operation, PowerState, ProviderId, Secrets, ShutDownMachineRequest, Status,
};

/// How soon at the earliest a guest that is stopping is asked again, whatever the driver asks for.
const SOONEST: Duration = Duration::from_secs(1);

/// Deletes the VM.
///
/// # Guarantees
/// [`Outcome::Gone`] only when the driver, where it can be asked, said NOT_FOUND for as long as it may be
/// behind, and no create that was never answered can make the VM any more. A missing Secret does not stop the
/// deletion of a VM that the driver sees without it.
pub async fn delete(
    ctx: &Context,
    object: &mut Object<'_>,
    permit: &Permit<'_>,
    plan: Delete,
) -> Result<Outcome, Stopped> {
    // It is none of clusterctl's any more: what is being deleted is not moved.
    object.unblock_move().await?;
    let (class, secret_is_gone) =
        match machine_class::with_credentials(ctx, object, permit.configured_driver(), plan.spec.clone())
            .await
        {
            Ok(class) => (class, false),
            Err(Stopped::Secret(InvalidSecret::Missing { name, .. })) => {
                let class = MachineClass {
                    provider_spec: plan.spec.clone(),
                    secrets: Secrets::default(),
                };
                if !plan.refused
                    && let Some(failure) = do_without(object, permit, &plan, name, class.clone()).await?
                {
                    return Ok(Outcome::Failed(Box::new(failure)));
                }
                (class, true)
            }
            Err(stopped) => return Err(stopped),
        };
    if let Some(asking) = plan.shut_down
        && let Some(outcome) = shut_down(ctx, object, permit, &plan, asking, class.clone()).await?
    {
        return Ok(outcome);
    }
    let secrets = class.secrets.clone();
    let outcome = match remove(object, permit, &plan, class.clone()).await? {
        None => confirm_gone(ctx, object, permit, &plan, class).await?,
        Some(failure) if may_be_gone(&failure, permit) => {
            match confirm_gone(ctx, object, permit, &plan, class).await? {
                gone @ (Outcome::Gone
                | Outcome::Deleting {
                    reason: reason::CONFIRMING_DELETION | reason::CREATE_UNANSWERED,
                    ..
                }) => gone,
                _ => Outcome::Failed(Box::new(failure)),
            }
        }
        Some(failure) => Outcome::Failed(Box::new(failure)),
    };
    if matches!(outcome, Outcome::Gone) && !plan.refused {
        permit.note_gone(&secrets);
    }
    Ok(if plan.refused {
        of_a_refused_spec(outcome, secret_is_gone)
    } else {
        outcome
    })
}

/// Whether a deletion that failed may have nothing to delete, and the driver can say so.
fn may_be_gone(failure: &Failure, permit: &Permit<'_>) -> bool {
    failure.disposition == Disposition::VerifyDeleted
        && permit.known_capabilities().offers(Operation::GetMachineStatus)
}

/// What the deletion of what a refused create may have left comes to. No VM was made, so that a driver which
/// refuses the same spec again, or does not open without a Secret that is gone, does not keep the object.
fn of_a_refused_spec(outcome: Outcome, secret_is_gone: bool) -> Outcome {
    match outcome {
        Outcome::Gone => Outcome::RemoveFinalizer(RemovalReason::NeverCreated),
        Outcome::Failed(failure) => {
            let refuses = match failure.status.code() {
                Code::InvalidArgument | Code::OutOfRange | Code::AlreadyExists | Code::Unimplemented => true,
                Code::Unauthenticated | Code::PermissionDenied => secret_is_gone,
                Code::Canceled
                | Code::Unknown
                | Code::DeadlineExceeded
                | Code::NotFound
                | Code::ResourceExhausted
                | Code::FailedPrecondition
                | Code::Aborted
                | Code::Internal
                | Code::Unavailable
                | Code::DataLoss
                | Code::Uninitialized => false,
            };
            if refuses {
                tracing::info!(
                    code = %failure.status.code(),
                    "the driver refuses to delete what it has refused to make: nothing is left to be done"
                );
                Outcome::RemoveFinalizer(RemovalReason::NeverCreated)
            } else {
                Outcome::Failed(failure)
            }
        }
        other => other,
    }
}

/// The Secret with the credentials that the VM was made with is gone. A driver that sees the VM without
/// them needs none, and this is written down: once the VM is deleted it could not be told any more. To
/// a driver that does not see it, it may be gone, or in an account that only the credentials open: that
/// is for the operator to say.
///
/// One that can't look up is asked to delete, which it answers UNAUTHENTICATED when it needs the credentials.
async fn do_without(
    object: &mut Object<'_>,
    permit: &Permit<'_>,
    plan: &Delete,
    name: String,
    class: MachineClass,
) -> Result<Option<Failure>, Stopped> {
    // A driver that has credentials from the provider needs some, and those open another
    // account than the Secret did.
    if permit.configured_driver().has_credentials() {
        return Err(InvalidSecret::Needed { name }.into());
    }
    if !permit.known_capabilities().offers(Operation::GetMachineStatus) {
        return Ok(None);
    }
    match look(object, permit, plan.provider_id.as_ref(), class).await {
        Ok(Sight::There(_)) => {}
        Ok(Sight::Absent) => return Err(InvalidSecret::Needed { name }.into()),
        Err(mut failure) => {
            let said = failure.status.message();
            let message = format!("the Secret `{name}` is gone, and the driver wants what it held: {said}");
            failure.status = failure.status.with_message(message);
            return Ok(Some(failure));
        }
    }
    let none = (labels::SECRET, Some(String::new()));
    object
        .try_patch_annotations("noting that the driver sees the VM without credentials", &[none])
        .await?;
    Ok(None)
}

/// What the driver says of the VM.
async fn read(
    object: &mut Object<'_>,
    permit: &Permit<'_>,
    provider_id: Option<&ProviderId>,
    class: MachineClass,
) -> cmi_driver::Result<Machine> {
    let request = GetMachineStatusRequest {
        machine: MachineRef::new(object.name(), class),
        provider_id: provider_id.cloned(),
    };
    let call = permit.driver().get_machine_status(request);
    object.awaiting(Operation::GetMachineStatus, call).await
}

/// Whether the driver sees a VM.
enum Sight {
    /// It does; its id, where the driver says it.
    There(Option<ProviderId>),
    /// It does not.
    Absent,
}

/// Looks for the VM of this id, or for any of the machine.
async fn look(
    object: &mut Object<'_>,
    permit: &Permit<'_>,
    provider_id: Option<&ProviderId>,
    class: MachineClass,
) -> Result<Sight, Failure> {
    let status = match read(object, permit, provider_id, class).await {
        Ok(machine) => return Ok(Sight::There(Some(machine.provider_id))),
        Err(status) => status,
    };
    let id = status.machine().map(|machine| machine.provider_id.clone());
    let failure = Failure::new(Stage::ConfirmGone, status);
    match failure.disposition {
        Disposition::Gone => Ok(Sight::Absent),
        Disposition::StillThere => Ok(Sight::There(id)),
        _ => Err(failure),
    }
}

/// Asks the guest to stop; `None` when the VM may be deleted now.
async fn shut_down(
    ctx: &Context,
    object: &mut Object<'_>,
    permit: &Permit<'_>,
    plan: &Delete,
    asking: ShutDown,
    class: MachineClass,
) -> Result<Option<Outcome>, Error> {
    let request = ShutDownMachineRequest {
        machine: MachineRef::new(object.name(), class.clone()),
        provider_id: plan.provider_id.clone(),
        last_known_state: identity::last_known_state(object.get()),
    };
    let call = permit.driver().shut_down_machine(request);
    let answer = object.awaiting(Operation::ShutDownMachine, call).await;
    let answered = Timestamp::now();
    let accepted = asking.accepted.unwrap_or(answered);
    let until = Until::of(accepted, asking.grace);
    match answer {
        Ok(response) => {
            ctx.states.shut_down_accepted(object.uid());
            let seen = if permit.known_capabilities().offers(Operation::GetMachineStatus) {
                Some(read(object, permit, plan.provider_id.as_ref(), class).await)
            } else {
                None
            };
            let outcome = after_acceptance(seen, until, plan.again);
            let waits = outcome.is_some();
            record_acceptance(
                object,
                response.last_known_state.as_ref(),
                waits.then_some(accepted),
            )
            .await?;
            Ok(outcome)
        }
        Err(status) => {
            let failure = Failure::new(Stage::ShutDown, status);
            // It has begun to stop the guest, and waits for that itself.
            let is_accepted = failure.status.code() == Code::Aborted;
            if is_accepted {
                ctx.states.shut_down_accepted(object.uid());
            } else if !failure.status.is_never_sent() {
                ctx.states.shut_down_failed(object.uid());
            }
            record_acceptance(
                object,
                failure.last_known_state(),
                is_accepted.then_some(accepted),
            )
            .await?;
            Ok(after_shut_down(failure, asking, until, answered, plan.again))
        }
    }
}

/// Writes down since when the guest's time runs, and what the driver wants back.
async fn record_acceptance(
    object: &mut Object<'_>,
    state: Option<&LastKnownState>,
    accepted: Option<Timestamp>,
) -> Result<(), Error> {
    let state = state.map(identity::last_known_state_annotation);
    let state = state.map(|(key, state)| (key, Some(state)));
    let accepted = accepted.map(|time| (labels::SHUT_DOWN_ACCEPTED_AT, Some(time.to_string())));
    let notes: Vec<Annotation> = state.into_iter().chain(accepted).collect();
    object
        .patch_annotations("noting that the driver shuts the guest down", &notes)
        .await
}

/// Until when the guest has time, as a message says it.
#[derive(Clone, Copy)]
struct Until(Option<Timestamp>);

impl Until {
    fn of(accepted: Timestamp, grace: Duration) -> Self {
        Self(accepted.checked_add(grace).ok())
    }
}

impl std::fmt::Display for Until {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(time) => write!(f, "the VM is deleted at {time:.0} at the latest"),
            None => Ok(()),
        }
    }
}

/// What a guest leads to that is stopped or has accepted to stop; `None` to the deletion. OK of a shut-down
/// means either (CMI-127), and a guest that has only accepted needs its time. It gets all of it where its
/// power state can't be seen.
fn after_acceptance(
    seen: Option<cmi_driver::Result<Machine>>,
    until: Until,
    again: Duration,
) -> Option<Outcome> {
    let power = match seen {
        None => None,
        Some(Ok(machine)) => machine.power_state,
        Some(Err(status)) => match status.machine() {
            Some(machine) => machine.power_state,
            None => return after_lost_sight(status, until, again),
        },
    };
    match power {
        Some(PowerState::Stopped | PowerState::Failed) => None,
        Some(power @ (PowerState::Starting | PowerState::Running | PowerState::Stopping)) => {
            let sight = format!("its VM is {}", power.name());
            Some(shutting_down(&sight, until, again))
        }
        None => Some(shutting_down(
            "the driver does not tell whether it runs",
            until,
            again,
        )),
    }
}

/// What it leads to that the VM could not be looked at after its guest had accepted to stop. One that
/// is not there needs no time.
fn after_lost_sight(status: Status, until: Until, again: Duration) -> Option<Outcome> {
    let message = format!("looking whether the guest has stopped: {}", status.message());
    let failure = Failure::new(Stage::ShutDown, status.with_message(message));
    match (failure.disposition, failure.status.code()) {
        (Disposition::Delete, Code::NotFound) => None,
        (Disposition::Delete, _) => Some(shutting_down(failure.status.message(), until, again)),
        _ => Some(Outcome::Failed(Box::new(failure))),
    }
}

fn shutting_down(sight: &str, until: Until, again: Duration) -> Outcome {
    Outcome::Deleting {
        reason: reason::SHUTTING_DOWN,
        message: format!("the guest has accepted to stop, and {sight}; {until}"),
        again,
    }
}

/// What a shut-down that failed leads to; `None` to the deletion. `again` is when to look, where the driver
/// does not say; it is asked again no later than when the guest's time is over.
fn after_shut_down(
    mut failure: Failure,
    asking: ShutDown,
    until: Until,
    now: Timestamp,
    again: Duration,
) -> Option<Outcome> {
    if failure.disposition == Disposition::Delete {
        tracing::info!(code = %failure.status.code(), "the guest can't be shut down; deleting its VM");
        return None;
    }
    if failure.status.code() == Code::Aborted {
        return Some(Outcome::Deleting {
            reason: reason::SHUTTING_DOWN,
            message: format!("{}; {until}", failure.message()),
            again: failure
                .asked()
                .map_or(again, |asked| asked.min(asking.left(now)).max(SOONEST)),
        });
    }
    // What can't be reached can't be asked to delete either.
    if asking.last_try && !failure.status.is_never_sent() {
        tracing::warn!(
            code = %failure.status.code(),
            "the guest could not be shut down, however often the driver was asked; deleting its VM"
        );
        return None;
    }
    let ends = match asking.accepted {
        Some(_) => until.to_string(),
        None => format!(
            "after {SHUT_DOWN_TRIES} failures in a row and {} s of the deletion, the VM is deleted without a shut-down",
            asking.grace.as_secs()
        ),
    };
    let message = format!("{}; {ends}", failure.status.message());
    failure.status = failure.status.with_message(message);
    Some(Outcome::Failed(Box::new(failure)))
}

async fn remove(
    object: &mut Object<'_>,
    permit: &Permit<'_>,
    plan: &Delete,
    class: MachineClass,
) -> Result<Option<Failure>, Error> {
    remove_vm(object, permit, plan.provider_id.clone(), class).await
}

async fn remove_vm(
    object: &mut Object<'_>,
    permit: &Permit<'_>,
    provider_id: Option<ProviderId>,
    class: MachineClass,
) -> Result<Option<Failure>, Error> {
    let request = DeleteMachineRequest {
        machine: MachineRef::new(object.name(), class),
        provider_id,
        last_known_state: identity::last_known_state(object.get()),
    };
    let call = permit.driver().delete_machine(request);
    let status = match object.awaiting(Operation::DeleteMachine, call).await {
        Ok(response) => {
            object
                .patch_last_known_state(response.last_known_state.as_ref())
                .await?;
            return Ok(None);
        }
        Err(status) => status,
    };
    let failure = Failure::new(Stage::Delete, status);
    Ok((failure.disposition != Disposition::Gone).then_some(failure))
}

async fn confirm_gone(
    ctx: &Context,
    object: &mut Object<'_>,
    permit: &Permit<'_>,
    plan: &Delete,
    class: MachineClass,
) -> Result<Outcome, Error> {
    let capabilities = permit.known_capabilities();
    if !capabilities.offers(Operation::GetMachineStatus) {
        return confirm_without_look_up(ctx, object, permit, plan, class).await;
    }
    let known = plan.provider_id.as_ref();
    let mut sight = look(object, permit, known, class.clone()).await;
    if plan.strays && matches!(sight, Ok(Sight::Absent)) {
        sight = look(object, permit, None, class.clone()).await;
        // Where the driver does not say its id, its name is all there is to delete it by.
        if let Ok(Sight::There(stray)) = &sight
            && let Some(failure) = remove_stray(object, permit, stray.clone(), class).await?
        {
            return Ok(Outcome::Failed(Box::new(failure)));
        }
    }
    Ok(match sight {
        Err(failure) => Outcome::Failed(Box::new(failure)),
        Ok(Sight::There(_)) => {
            ctx.states.seen(object.uid());
            Outcome::Deleting {
                reason: reason::DELETING,
                message: "the driver accepted the deletion and still sees the VM".to_owned(),
                again: plan.again,
            }
        }
        Ok(Sight::Absent) => {
            let behind = behind_for(ctx, object.uid(), capabilities.consistency_window);
            after_absence(plan.settling, behind, plan.again)
        }
    })
}

/// What the deletion comes to of a driver that can't look up and has answered that the VM is deleted. Its
/// list shows what it knows nothing of by then: the VM of a create that was never answered. It is asked for
/// only where there may be one, since a list is one of all VMs of the cluster.
async fn confirm_without_look_up(
    ctx: &Context,
    object: &mut Object<'_>,
    permit: &Permit<'_>,
    plan: &Delete,
    class: MachineClass,
) -> Result<Outcome, Error> {
    let capabilities = permit.known_capabilities();
    let is_unanswered = plan.strays || plan.settling.is_some();
    if is_unanswered && capabilities.offers(Operation::ListMachines) {
        match own_in_list(object, permit, class.clone()).await {
            Ok(Some(listed)) if listed.is_empty() => {
                let behind = behind_for(ctx, object.uid(), capabilities.consistency_window);
                return Ok(after_absence(plan.settling, behind, plan.again));
            }
            Ok(Some(listed)) => {
                ctx.states.seen(object.uid());
                return remove_listed(object, permit, plan, listed, class).await;
            }
            Ok(None) => {}
            Err(failure) => return Ok(Outcome::Failed(Box::new(failure))),
        }
    }
    // The name is all there is to find another VM by. Whether a driver that was told an id before
    // can do so is its own affair.
    if plan.strays
        && let Some(failure) = remove_vm(object, permit, None, class).await?
    {
        if failure.disposition == Disposition::Retry {
            return Ok(Outcome::Failed(Box::new(failure)));
        }
        tracing::warn!(
            name = object.name(),
            code = %failure.status.code(),
            "the driver does not delete by name alone: a VM of a create that was never answered may be left"
        );
    }
    // Since when it has been answering that the VM is deleted.
    ctx.states.absent_for(object.uid(), Instant::now());
    Ok(plan.settling.map_or(Outcome::Gone, |settling| {
        awaiting_create("the driver accepted the deletion", settling, plan.again)
    }))
}

/// Deletes the VMs of the machine that a list still has, besides the one whose
/// deletion the driver has answered.
async fn remove_listed(
    object: &mut Object<'_>,
    permit: &Permit<'_>,
    plan: &Delete,
    listed: BTreeSet<ProviderId>,
    class: MachineClass,
) -> Result<Outcome, Error> {
    let strays = listed
        .into_iter()
        .filter(|id| plan.provider_id.as_ref() != Some(id));
    for stray in strays {
        if let Some(failure) = remove_stray(object, permit, Some(stray), class.clone()).await? {
            return Ok(Outcome::Failed(Box::new(failure)));
        }
    }
    Ok(Outcome::Deleting {
        reason: reason::DELETING,
        message: "the driver accepted the deletion and still lists a VM of the machine".to_owned(),
        again: plan.again,
    })
}

async fn remove_stray(
    object: &mut Object<'_>,
    permit: &Permit<'_>,
    stray: Option<ProviderId>,
    class: MachineClass,
) -> Result<Option<Failure>, Error> {
    tracing::warn!(
        name = object.name(),
        stray = stray.as_ref().map(ProviderId::as_str),
        "a create that was never answered has made a VM: deleting it"
    );
    remove_vm(object, permit, stray, class).await
}

/// What the absence of a VM leads to: `behind` is for how much longer the driver may be wrong about it.
fn after_absence(settling: Option<Settling>, behind: Option<Duration>, again: Duration) -> Outcome {
    match (settling, behind) {
        (Some(settling), _) => awaiting_create("the driver does not see the VM", settling, again),
        (None, Some(again)) => Outcome::Deleting {
            reason: reason::CONFIRMING_DELETION,
            message: "the driver no longer sees the VM; waiting for its consistency window to pass"
                .to_owned(),
            again,
        },
        (None, None) => Outcome::Gone,
    }
}

/// The VM is looked for again, and deleted where it is there, until no create can make it any more.
fn awaiting_create(seen: &str, settling: Settling, again: Duration) -> Outcome {
    const SHORTEST: Duration = Duration::from_millis(100);
    Outcome::Deleting {
        reason: reason::CREATE_UNANSWERED,
        message: format!("{seen}, but {}", settling.in_words()),
        again: again.min(settling.left).max(SHORTEST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::fixtures::at;
    use crate::retry;

    const PACE: Duration = Duration::from_secs(15);

    fn asking(accepted: Option<Timestamp>, last_try: bool) -> ShutDown {
        ShutDown {
            grace: Duration::from_mins(1),
            accepted,
            last_try,
        }
    }

    fn until() -> Until {
        Until::of(at(0), Duration::from_mins(1))
    }

    fn after(status: Status) -> Option<Outcome> {
        after_shut_down(
            Failure::new(Stage::ShutDown, status),
            asking(None, false),
            until(),
            at(0),
            PACE,
        )
    }

    #[track_caller]
    fn message(outcome: Option<Outcome>) -> String {
        match outcome {
            Some(Outcome::Deleting { message, .. }) => message,
            Some(Outcome::Failed(failure)) => failure.message(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_guest_that_is_stopping_is_asked_again_when_the_driver_says() {
        let wait = Duration::from_secs(9);
        let outcome = after(Status::new(Code::Aborted, "stopping").with_retry_after(wait));
        assert!(matches!(
            outcome,
            Some(Outcome::Deleting { reason: reason::SHUTTING_DOWN, again, .. }) if again == wait
        ));
    }

    /// What the driver asks for must not take more than the guest's time.
    #[test]
    fn a_guest_that_is_stopping_is_not_left_alone_for_longer_than_its_time() {
        let again = |seconds: i64, accepted: Option<Timestamp>| {
            let status = Status::new(Code::Aborted, "stopping").with_retry_after(Duration::from_hours(1));
            let failure = Failure::new(Stage::ShutDown, status);
            match after_shut_down(failure, asking(accepted, false), until(), at(seconds), PACE) {
                Some(Outcome::Deleting { again, .. }) => again.as_secs(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(again(0, None), 60);
        assert_eq!(again(20, Some(at(0))), 40);
        assert_eq!(again(60, Some(at(0))), SOONEST.as_secs());
    }

    #[test]
    fn a_guest_that_takes_its_time_is_asked_ever_more_rarely() {
        let stopping = || Status::new(Code::Aborted, "stopping");
        for status in [stopping(), stopping().with_retry_after(Duration::ZERO)] {
            assert!(matches!(
                after(status),
                Some(Outcome::Deleting { again: PACE, .. })
            ));
        }
    }

    fn seen(power: Option<PowerState>) -> Machine {
        let mut machine = Machine::new("simulated://zone-a/1".parse().unwrap(), "a");
        machine.power_state = power;
        machine
    }

    /// CMI-127: OK says that it is stopped, or that it will. A plain plugin does not tell which.
    #[test]
    fn a_guest_that_has_accepted_to_stop_and_still_may_run_gets_its_time() {
        let running = [PowerState::Starting, PowerState::Running, PowerState::Stopping];
        let powers = running.map(Some).into_iter().chain([None]);
        let sights = powers.flat_map(|power| {
            let uninitialized = Status::new(Code::Uninitialized, "not yet").with_machine(seen(power));
            [Some(Ok(seen(power))), Some(Err(uninitialized))]
        });
        let denied = Some(Err(Status::new(Code::PermissionDenied, "no")));
        for seen in sights.chain([None, denied]) {
            let text = format!("{seen:?}");
            let outcome = after_acceptance(seen, until(), PACE);
            assert!(
                matches!(
                    outcome,
                    Some(Outcome::Deleting {
                        reason: reason::SHUTTING_DOWN,
                        again: PACE,
                        ..
                    })
                ),
                "{text}"
            );
            let message = message(outcome);
            assert!(
                message.contains(&at(60).to_string()),
                "it does not say until when: {message}"
            );
        }
    }

    #[test]
    fn a_guest_that_is_stopped_or_gone_is_deleted_now() {
        for power in [PowerState::Stopped, PowerState::Failed] {
            let seen = Some(Ok(seen(Some(power))));
            assert!(after_acceptance(seen, until(), PACE).is_none(), "{power:?}");
        }
        let gone = Status::new(Code::NotFound, "there is none");
        assert!(after_acceptance(Some(Err(gone)), until(), PACE).is_none());
        let outage = Status::new(Code::Unavailable, "it can't be reached");
        assert!(matches!(
            after_acceptance(Some(Err(outage)), until(), PACE),
            Some(Outcome::Failed(_))
        ));
    }

    #[test]
    fn a_guest_that_cannot_be_asked_to_stop_is_deleted_now() {
        for code in Code::ALL {
            let waits = retry::disposition(Stage::ShutDown, code) == Disposition::Retry;
            assert_eq!(after(Status::new(code, "no")).is_some(), waits, "{code}");
        }
    }

    #[test]
    fn a_shut_down_that_fails_holds_a_deletion_up_until_its_last_try_and_says_so() {
        let unavailable = || Failure::new(Stage::ShutDown, Status::new(Code::Unavailable, "down"));
        let last = asking(None, true);
        assert!(
            message(after(Status::new(Code::Unavailable, "down"))).contains("4 failures in a row and 60 s")
        );
        assert!(after_shut_down(unavailable(), last, until(), at(0), PACE).is_none());
        let mut never_sent = unavailable();
        never_sent.status = never_sent.status.never_sent();
        assert!(
            matches!(
                after_shut_down(never_sent, last, until(), at(0), PACE),
                Some(Outcome::Failed(_))
            ),
            "a driver that can't be reached was not asked"
        );
        let stopping = Failure::new(Stage::ShutDown, Status::new(Code::Aborted, "stopping"));
        assert!(
            after_shut_down(stopping, last, until(), at(0), PACE).is_some(),
            "it has its time"
        );
    }

    fn settling(issued: Option<Timestamp>) -> Settling {
        Settling {
            issued: issued.map(|issued| (issued, issued + Duration::from_mins(15))),
            time: Duration::from_mins(5),
            left: Duration::from_secs(7),
        }
    }

    #[test]
    fn an_absent_vm_is_gone_when_neither_a_create_nor_a_driver_that_is_behind_can_bring_it_back() {
        let behind = Some(Duration::from_secs(3));
        assert!(matches!(after_absence(None, None, PACE), Outcome::Gone));
        assert!(matches!(
            after_absence(None, behind, PACE),
            Outcome::Deleting { reason: reason::CONFIRMING_DELETION, again, .. } if Some(again) == behind
        ));
        for behind in [None, behind] {
            assert!(matches!(
                after_absence(Some(settling(None)), behind, PACE),
                Outcome::Deleting { reason: reason::CREATE_UNANSWERED, again, .. } if again.as_secs() == 7
            ));
        }
    }

    #[test]
    fn the_wait_for_a_create_says_until_when_and_why_and_the_same_every_time() {
        let text = |settling| message(Some(after_absence(Some(settling), None, PACE)));
        let known = text(settling(Some(at(0))));
        for part in [
            at(0).to_string(),
            "absent for 300 s".to_owned(),
            at(900).to_string(),
            "never answered".to_owned(),
        ] {
            assert!(known.contains(&part), "no `{part}` in: {known}");
        }
        let later = Settling {
            left: Duration::from_secs(1),
            ..settling(Some(at(0)))
        };
        assert_eq!(text(later), known, "a message that changes is a write");
        assert!(text(settling(None)).contains("absent for 300 s"));
    }

    /// A machine whose spec was never valid can be deleted, whatever the driver thinks of the spec.
    #[test]
    fn a_driver_that_refuses_to_delete_what_it_refused_to_make_does_not_keep_the_object() {
        let after = |code, secret_is_gone| {
            let failure = Failure::new(Stage::Delete, Status::new(code, "no"));
            of_a_refused_spec(Outcome::Failed(Box::new(failure)), secret_is_gone)
        };
        let released = |outcome| matches!(outcome, Outcome::RemoveFinalizer(RemovalReason::NeverCreated));
        for code in [
            Code::InvalidArgument,
            Code::OutOfRange,
            Code::AlreadyExists,
            Code::Unimplemented,
        ] {
            assert!(released(after(code, false)), "{code}");
        }
        for code in [
            Code::Unavailable,
            Code::Aborted,
            Code::FailedPrecondition,
            Code::Internal,
        ] {
            assert!(!released(after(code, false)), "{code}: something may be there");
        }
        assert!(released(after(Code::Unauthenticated, true)));
        assert!(
            !released(after(Code::Unauthenticated, false)),
            "the credentials can be repaired"
        );
        assert!(released(of_a_refused_spec(Outcome::Gone, false)));
    }
}
