//! Confirms that a VM is gone and that no create can still make it.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::Executor;
use super::look_up::LookUpResult;
use crate::api::conditions::reason;
use crate::api::retry::{Call, Disposition, MIN_REQUEUE};
use crate::apiserver::Error;
use crate::machine::outcome::{Failure, Outcome};
use crate::machine::plan::{Delete, PendingCreate};
use cmi_driver::{MachineClass, Operation, ProviderId};

impl Executor<'_, '_, '_> {
    /// Returns [`Outcome::Gone`] if the driver reliably reports no VM, and otherwise the wait or failure.
    pub async fn confirm_gone(&mut self, plan: &Delete, class: MachineClass) -> Result<Outcome, Error> {
        let capabilities = self.permit.known_capabilities();
        if !capabilities.supports(Operation::GetMachineStatus) {
            return self.confirm_without_look_up(plan, class).await;
        }
        let known = plan.provider_id.as_ref();
        let mut seen = self.look_up(known, Call::ConfirmGone, class.clone()).await;
        if plan.may_have_second_vm && matches!(seen, LookUpResult::Absent) {
            seen = self.look_up(None, Call::ConfirmGone, class.clone()).await;
            // Without an id from the driver, the VM can only be deleted by name.
            if let LookUpResult::Present(stray) = &seen
                && let Some(failure) = self.remove_second_vm(stray.id().cloned(), class).await?
            {
                return Ok(failure.into());
            }
        }
        Ok(match seen {
            LookUpResult::Failed(failure) => failure.into(),
            LookUpResult::Absent => {
                let behind = self.behind_for(capabilities.consistency_window);
                after_absence(plan.pending_create, behind, plan.requeue_after)
            }
            LookUpResult::Present(_) | LookUpResult::CannotLook => Outcome::Deleting {
                reason: reason::DELETING,
                message: "the driver accepted the deletion, and the VM still exists".to_owned(),
                requeue_after: plan.requeue_after,
            },
        })
    }

    /// Returns the outcome of a deletion by a driver that can't look up and has deleted the VM. The list of
    /// such a driver may still show the VM of an unanswered create. The list contains all VMs of the cluster,
    /// so it is requested only when there may be such a VM.
    async fn confirm_without_look_up(
        &mut self,
        plan: &Delete,
        class: MachineClass,
    ) -> Result<Outcome, Error> {
        let capabilities = self.permit.known_capabilities();
        let is_unanswered = plan.may_have_second_vm || plan.pending_create.is_some();
        if is_unanswered && capabilities.supports(Operation::ListMachines) {
            match self.own_in_list(class.clone()).await {
                Ok(Some(listed)) if listed.is_empty() => {
                    let behind = self.behind_for(capabilities.consistency_window);
                    return Ok(after_absence(plan.pending_create, behind, plan.requeue_after));
                }
                Ok(Some(listed)) => {
                    self.ctx.states.clear_absence(self.object.uid());
                    return self.remove_listed(plan, listed, class).await;
                }
                Ok(None) => {}
                Err(failure) => return Ok(failure.into()),
            }
        }
        // A second VM can only be found by name. The driver decides whether it can do so after calls with an
        // id.
        if plan.may_have_second_vm
            && let Some(failure) = self.remove_vm(None, class).await?
        {
            if failure.disposition == Disposition::Retry {
                return Ok(failure.into());
            }
            tracing::warn!(
                name = self.object.name(),
                code = %failure.status.code(),
                "the driver does not delete by name: a VM of an unanswered create may remain"
            );
        }
        // Starts the time since which the driver has reported the VM as deleted.
        self.ctx.states.absent_for(self.object.uid(), Instant::now());
        Ok(plan.pending_create.map_or(Outcome::Gone, |pending_create| {
            awaiting_create(
                "the driver accepted the deletion",
                pending_create,
                plan.requeue_after,
            )
        }))
    }

    /// Deletes the listed VMs of the machine, except the VM whose deletion the driver has confirmed.
    async fn remove_listed(
        &mut self,
        plan: &Delete,
        listed: BTreeSet<ProviderId>,
        class: MachineClass,
    ) -> Result<Outcome, Error> {
        let strays = listed
            .into_iter()
            .filter(|id| plan.provider_id.as_ref() != Some(id));
        for stray in strays {
            if let Some(failure) = self.remove_second_vm(Some(stray), class.clone()).await? {
                return Ok(failure.into());
            }
        }
        Ok(Outcome::Deleting {
            reason: reason::DELETING,
            message: "the driver accepted the deletion, and still lists a VM of the machine".to_owned(),
            requeue_after: plan.requeue_after,
        })
    }

    async fn remove_second_vm(
        &mut self,
        stray: Option<ProviderId>,
        class: MachineClass,
    ) -> Result<Option<Failure>, Error> {
        tracing::warn!(
            name = self.object.name(),
            stray = stray.as_ref().map(ProviderId::as_str),
            "an unanswered create made a VM: deleting it"
        );
        self.remove_vm(stray, class).await
    }
}

/// Returns the outcome for an absent VM. `behind` is how much longer the driver's answer may be stale.
fn after_absence(
    pending_create: Option<PendingCreate>,
    behind: Option<Duration>,
    requeue_after: Duration,
) -> Outcome {
    match (pending_create, behind) {
        (Some(pending_create), _) => {
            awaiting_create("the driver does not find the VM", pending_create, requeue_after)
        }
        (None, Some(requeue_after)) => Outcome::Deleting {
            reason: reason::CONFIRMING_DELETION,
            message: "the driver does not find the VM: waiting for its consistency window to end".to_owned(),
            requeue_after,
        },
        (None, None) => Outcome::Gone,
    }
}

/// Returns the outcome of a deletion that waits for a create. The controller keeps looking for the VM, and
/// deletes any VM it finds, until the create can no longer make one.
fn awaiting_create(seen: &str, pending_create: PendingCreate, requeue_after: Duration) -> Outcome {
    Outcome::Deleting {
        reason: reason::CREATE_UNANSWERED,
        message: format!("{seen}, but {}", pending_create.in_words()),
        requeue_after: requeue_after.min(pending_create.left).max(MIN_REQUEUE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::fixtures::at;

    const PACE: Duration = Duration::from_secs(15);

    fn pending_create() -> PendingCreate {
        PendingCreate {
            issued: at(0),
            latest: at(900),
            time: Duration::from_mins(5),
            left: Duration::from_secs(7),
        }
    }

    #[test]
    fn an_absent_vm_is_gone_once_neither_create_nor_delay_can_return_it() {
        let behind = Some(Duration::from_secs(3));
        assert!(matches!(after_absence(None, None, PACE), Outcome::Gone));
        assert!(matches!(
            after_absence(None, behind, PACE),
            Outcome::Deleting { reason: reason::CONFIRMING_DELETION, requeue_after, .. }
                    if Some(requeue_after) == behind
        ));
        for behind in [None, behind] {
            assert!(matches!(
                after_absence(Some(pending_create()), behind, PACE),
                Outcome::Deleting { reason: reason::CREATE_UNANSWERED, requeue_after, .. }
                    if requeue_after.as_secs() == 7
            ));
        }
    }

    #[test]
    fn the_wait_for_a_create_says_until_when_and_why_and_the_same_every_time() {
        let text = |pending_create| match after_absence(Some(pending_create), None, PACE) {
            Outcome::Deleting { message, .. } => message,
            other => panic!("{other:?}"),
        };
        let known = text(pending_create());
        for part in [
            at(0).to_string(),
            "absent for 300 s".to_owned(),
            at(900).to_string(),
            "never answered".to_owned(),
        ] {
            assert!(known.contains(&part), "no `{part}` in: {known}");
        }
        let later = PendingCreate {
            left: Duration::from_secs(1),
            ..pending_create()
        };
        assert_eq!(text(later), known, "a message that changes is a write");
    }
}
