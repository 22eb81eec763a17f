//! Computes the status from an outcome. Pure.

use std::time::Duration;

use jiff::{RoundMode, Timestamp, TimestampRound, Unit};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::addresses;
use crate::api::conditions::{
    self, ConditionStatus, DELETING, DRIVER_REACHABLE, PAUSED, READY, Setter, VIRTUAL_MACHINE_CREATED,
    VIRTUAL_MACHINE_INITIALIZED, VIRTUAL_MACHINE_RUNNING, VIRTUAL_MACHINE_UP_TO_DATE, reason,
};
use crate::api::identity;
use crate::api::retry::LONG_WAIT;
use crate::api::v1alpha1::{
    InfraMachine, InfraMachineInitialization, InfraMachineStatus, LastOperation, OperationState,
    OperationType,
};
use crate::driver::{CREATES_SUSPENDED, StableReachability, full_failure_domain};
use crate::machine::outcome::{Blocked, Outcome, RETRY_NOW_HINT};
use crate::machine::plan::is_refused_uncalled;
use cmi_driver::{Code, JsonPointer, Operation, PowerState};

mod failure;
mod in_progress;
#[cfg(test)]
mod tests;

pub use in_progress::in_progress;

/// The maximum length of a Node name.
const MAX_NODE_NAME: usize = 253;
/// Cluster API's maximum length of a failure domain.
const MAX_FAILURE_DOMAIN: usize = 256;

/// The time of an outcome, its attempts, and the wait that follows.
#[derive(Clone, Copy, Debug)]
pub struct RetryTiming {
    /// Now.
    pub now: Timestamp,
    /// Consecutive failures, including this failure.
    pub attempts: u32,
    /// The wait before the next attempt, if any.
    pub wait: Option<Duration>,
    /// The fingerprint of everything that may change the outcome.
    pub inputs: u64,
}

/// A status under construction.
struct Draft<'a> {
    machine: &'a InfraMachine,
    status: InfraMachineStatus,
    now: Timestamp,
}

/// Returns the status after an outcome. The status is unchanged if nothing changed. A repeated failure is
/// written at a decreasing rate.
pub fn after(machine: &InfraMachine, outcome: &Outcome, timing: RetryTiming) -> InfraMachineStatus {
    let status = machine.status.clone().unwrap_or_default();
    let mut draft = Draft {
        machine,
        status,
        now: timing.now,
    };
    // The outcomes that return at once leave the other conditions as they are.
    match outcome {
        Outcome::Unchanged(_) | Outcome::NotSupported(_) | Outcome::Gone | Outcome::RemoveFinalizer(_) => {
            return draft.status;
        }
        Outcome::Waiting(_) => {
            draft.unpaused();
            return draft.status;
        }
        Outcome::Queued { .. } => {
            draft.queued();
            return draft.status;
        }
        Outcome::AwaitingCapacity { failure_domain, .. } => {
            draft.circuit_open(failure_domain.as_deref());
            return draft.status;
        }
        // While paused, the other fields still describe an earlier generation. Marking them as current would
        // attribute an old failure to a spec that was never tried.
        Outcome::Blocked(block) if block.condition == PAUSED => {
            draft.paused(block);
            return draft.status;
        }
        Outcome::Blocked(block) => draft.blocked(block),
        Outcome::Refused { invalid, .. } => {
            draft.working();
            draft.refused_uncalled(Code::InvalidArgument, &invalid.to_string());
        }
        Outcome::Provisioned(vm) => draft.provisioned(vm),
        Outcome::UpToDate {
            reachability,
            not_updatable,
            requeue_after,
        } => draft.kept(reachability, not_updatable, *requeue_after),
        Outcome::Updated => draft.updated(),
        Outcome::Failed(failure) => draft.failed(failure, timing),
        Outcome::Vanished(id) => draft.vanished(id.as_str()),
        Outcome::Deleting { reason, message, .. } => {
            draft.reachable();
            draft.deleting(reason, message);
        }
    }
    draft.ignored_change();
    draft.not_ready_taint();
    // The spec of a VM that is up is compared after its look-up, and only with a driver.
    let is_compared = match outcome {
        Outcome::Failed(failure) => !failure.is_recheck_of(machine),
        Outcome::Provisioned(_) => !machine.is_provisioned(),
        Outcome::Blocked(block) => block.condition != DRIVER_REACHABLE,
        _ => true,
    };
    if is_compared {
        draft.status.observed_generation = machine.metadata.generation;
    }
    draft.status
}

/// Returns the status of a machine whose driver was asked to start the VM.
pub fn started(machine: &InfraMachine, refused: Option<Code>, now: Timestamp) -> InfraMachineStatus {
    let mut status = machine.status.clone().unwrap_or_default();
    let (state, code) = match refused {
        None => (OperationState::Successful, None),
        Some(code) => (OperationState::Failed, Some(code.name().to_owned())),
    };
    let operation = Some(Operation::RestartMachine.name());
    let start = LastOperation::new(OperationType::Update, state, operation, now);
    status.last_operation = Some(LastOperation { code, ..start });
    status
}

impl Draft<'_> {
    fn set(&mut self, type_: &str, state: ConditionStatus, reason: &str, message: &str) {
        Setter::new(&mut self.status.conditions, &self.machine.metadata, self.now)
            .set(type_, state, reason, message);
    }

    /// Sets a condition to true, without a message.
    fn mark_true(&mut self, type_: &str, reason: &str) {
        self.set(type_, ConditionStatus::True, reason, "");
    }

    fn mark_false(&mut self, type_: &str, reason: &str, message: &str) {
        self.set(type_, ConditionStatus::False, reason, message);
    }

    /// Drops a condition that no longer applies.
    fn forget(&mut self, type_: &str) {
        self.status.conditions.retain(|shown| shown.type_ != type_);
    }

    fn reachable(&mut self) {
        self.mark_true(DRIVER_REACHABLE, reason::REACHABLE);
    }

    /// Reports the pause. A deletion reports it as well, because it is on hold. The machine is no longer
    /// ready.
    fn paused(&mut self, block: &Blocked) {
        self.clear_next_retry_time();
        self.set(PAUSED, ConditionStatus::True, block.reason, &block.message);
        if self.machine.metadata.deletion_timestamp.is_some() {
            self.set(DELETING, ConditionStatus::True, block.reason, &block.message);
            self.mark_false(READY, block.reason, &block.message);
        }
    }

    /// Reports that the machine is not paused, and clears an earlier refusal.
    fn working(&mut self) {
        self.mark_false(PAUSED, reason::NOT_PAUSED, "");
        self.status.failure_reason = None;
        self.status.failure_message = None;
    }

    /// Clears the time of the next attempt while no call is planned. Otherwise, readers would expect a call
    /// at that time, and a new process would still wait after the obstacle is removed. A pause ends the wait.
    fn clear_next_retry_time(&mut self) {
        if let Some(last) = &mut self.status.last_operation {
            last.next_retry_time = None;
        }
    }

    /// Returns the end of a wait, rounded up to whole seconds for the API. A process that has no wait in
    /// memory waits until then.
    fn next_retry_time(&self, wait: Option<Duration>) -> Option<Time> {
        let next = self.now.checked_add(wait?).ok()?;
        let whole = TimestampRound::new().smallest(Unit::Second).mode(RoundMode::Ceil);
        next.round(whole).ok().map(Time)
    }

    /// Reports that the machine is not paused, if a pause was reported.
    fn unpaused(&mut self) {
        if conditions::is_true(&self.status.conditions, PAUSED) {
            self.mark_false(PAUSED, reason::NOT_PAUSED, "");
        }
    }

    /// Reports a machine that waits for the driver calls of other machines. The earlier result and its
    /// generation stay.
    fn queued(&mut self) {
        let message = "waiting for a permit: all concurrent calls of the driver are in use";
        self.unpaused();
        if self.shows_result_of_call() {
            return;
        }
        if self.machine.metadata.deletion_timestamp.is_some() {
            self.deleting(reason::WAITING_FOR_DRIVER, message);
        } else if !self.machine.is_provisioned() {
            self.mark_false(READY, reason::WAITING_FOR_DRIVER, message);
        } // Else the VM is as it was, and `Ready` is a promise to MachineHealthChecks.
    }

    /// Returns whether the status shows the result of a call. Replacing it by a report of the next wait would
    /// hide the result and cost two writes for each call.
    fn shows_result_of_call(&self) -> bool {
        let (during, condition) = if self.machine.metadata.deletion_timestamp.is_some() {
            (OperationType::Delete, DELETING)
        } else {
            (OperationType::Create, READY)
        };
        let Some(shown) = conditions::get(&self.status.conditions, condition) else {
            return false;
        };
        let came_of_deletion = [
            reason::DELETING,
            reason::SHUTTING_DOWN,
            reason::CONFIRMING_DELETION,
            reason::CREATE_UNANSWERED,
        ];
        let has_failed = self.status.last_operation.as_ref().is_some_and(|last| {
            let codes = [last.code.as_deref(), Some(reason::CREATION_TIMED_OUT)];
            last.type_ == during
                && last.state == OperationState::Failed
                && codes.contains(&Some(shown.reason.as_str()))
        });
        has_failed || (during == OperationType::Delete && came_of_deletion.contains(&shown.reason.as_str()))
    }

    /// Reports a machine that waits for capacity because another machine was refused. A machine that was
    /// refused itself already reports this.
    fn circuit_open(&mut self, failure_domain: Option<&str>) {
        self.unpaused();
        let is_shown = conditions::get(&self.status.conditions, READY).is_some_and(|shown| {
            [Code::ResourceExhausted.name(), reason::CREATION_TIMED_OUT].contains(&shown.reason.as_str())
        });
        if is_shown || self.machine.is_provisioned() {
            return;
        }
        // An earlier wait had a different cause. A failure for good ends with the change that requested this
        // create.
        self.clear_next_retry_time();
        self.status.failure_reason = None;
        self.status.failure_message = None;
        let message = format!(
            "{CREATES_SUSPENDED}; one machine retries every {} minutes, or when the driver requests it; \
                {RETRY_NOW_HINT}{}",
            LONG_WAIT.as_secs() / 60,
            failure_domain.map(full_failure_domain).unwrap_or_default()
        );
        self.mark_false(READY, reason::WAITING_FOR_CAPACITY, &message);
    }

    fn blocked(&mut self, block: &Blocked) {
        self.working();
        self.clear_next_retry_time();
        let state = ConditionStatus::from(block.condition == DELETING);
        self.set(block.condition, state, block.reason, &block.message);
        if !self.machine.is_provisioned() || block.condition == DELETING {
            // Before a call, the driver's reachability is unknown. For a running VM, a look-up reports it.
            self.forget(DRIVER_REACHABLE);
        }
        if block.reason == reason::WAITING_FOR_FINALIZERS {
            // The VM is gone or was abandoned by force, so its last state no longer applies.
            self.status.power_state = None;
            self.status.addresses.clear();
        }
        if block.condition == DELETING {
            self.mark_false(READY, block.reason, &block.message);
        }
    }

    /// Reports a spec that was refused without a driver call. A last operation without a call marks this,
    /// because a different or newer driver may accept the same spec. See
    /// [`crate::machine::plan::is_refused_uncalled`].
    fn refused_uncalled(&mut self, code: Code, message: &str) {
        self.refused(code, message);
        let last = self.status.last_operation.as_ref();
        let is_same = last.is_some_and(|last| last.message == self.status.failure_message);
        if self.machine.is_provisioned() || is_same && is_refused_uncalled(self.machine) {
            return;
        }
        self.status.last_operation = Some(LastOperation {
            code: Some(code.name().to_owned()),
            message: self.status.failure_message.clone(),
            attempts: 1,
            ..LastOperation::new(OperationType::Create, OperationState::Failed, None, self.now)
        });
    }

    /// Reports a terminal failure of this spec (step "terminal failures" of the contract).
    fn refused(&mut self, code: Code, message: &str) {
        if self.machine.is_provisioned() {
            // The VM is unchanged, and only the new spec is refused.
            self.mark_false(VIRTUAL_MACHINE_UP_TO_DATE, code.name(), message);
            return;
        }
        self.status.failure_reason = Some(code.name().to_owned());
        self.status.failure_message = Some(message.chars().take(conditions::MAX_MESSAGE).collect());
        self.mark_false(VIRTUAL_MACHINE_CREATED, code.name(), message);
        self.mark_false(READY, code.name(), message);
    }

    fn provisioned(&mut self, vm: &cmi_driver::Machine) {
        let first = !self.machine.is_provisioned();
        self.working();
        self.status.ready = true;
        self.status.initialization = Some(InfraMachineInitialization {
            provisioned: Some(true),
        });
        self.describe(vm);
        self.running(vm.power_state);
        self.mark_true(VIRTUAL_MACHINE_CREATED, reason::CREATED);
        self.mark_true(VIRTUAL_MACHINE_INITIALIZED, reason::INITIALIZED);
        self.reachable();
        if first {
            self.up_to_date();
            self.succeeded(OperationType::Create, None);
        }
        if vm.power_state == Some(PowerState::Failed) {
            let message = "the driver reports that the VM failed and will not run again";
            self.mark_false(READY, reason::VIRTUAL_MACHINE_FAILED, message);
        } else {
            self.mark_true(READY, reason::READY);
        }
    }

    /// Reports a VM that is switched off, and one that is on again. `Ready` stays, because an operator may
    /// have switched the VM off.
    fn running(&mut self, power: Option<PowerState>) {
        let type_ = VIRTUAL_MACHINE_RUNNING;
        let was_off = conditions::get(&self.status.conditions, type_).is_some();
        match power {
            Some(PowerState::Stopped) => {
                self.mark_false(type_, reason::POWERED_OFF, "the VM is switched off");
            }
            Some(PowerState::Running) if was_off => self.mark_true(type_, reason::RUNNING),
            // The VM will not run again.
            Some(PowerState::Failed) => self.forget(type_),
            Some(PowerState::Running | PowerState::Starting | PowerState::Stopping) | None => {}
        }
    }

    fn describe(&mut self, vm: &cmi_driver::Machine) {
        // Values that violate the schema are left out, so that the rest of the status can be written.
        if (1..=MAX_NODE_NAME).contains(&vm.node_name.len()) {
            self.status.node_name = Some(vm.node_name.clone());
        }
        // `publish` has chosen them with the rules of the Cluster.
        self.status.addresses = addresses::published(&vm.addresses);
        // Without a reported power state, the VM counts neither as starting nor as off.
        let ended = [PowerState::Starting, PowerState::Stopped].map(PowerState::name);
        let before = self.status.power_state.take();
        let before = before.filter(|power| !ended.contains(&power.as_str()));
        self.status.power_state = vm.power_state.map(|power| power.name().to_owned()).or(before);
        if let Some(zone) = &vm.failure_domain
            && (1..=MAX_FAILURE_DOMAIN).contains(&zone.len())
        {
            self.status.failure_domain = Some(zone.clone());
        }
    }

    fn kept(
        &mut self,
        reachability: &StableReachability,
        not_updatable: &[JsonPointer],
        requeue_after: Option<Duration>,
    ) {
        self.working();
        let shown = conditions::get(&self.status.conditions, DRIVER_REACHABLE);
        let shown = shown.map(|shown| shown.reason.as_str());
        match reachability {
            // Reported once: a changed reason of the outage is not worth a write for the whole fleet.
            StableReachability::Unreachable(_) if shown == Some(Code::Unavailable.name()) => {}
            StableReachability::Unreachable(why) => {
                let message = format!("the last probe failed: {why}; the VM is not affected");
                let code = Code::Unavailable.name();
                self.mark_false(DRIVER_REACHABLE, code, &message);
            }
            StableReachability::Reachable
                if requeue_after.is_none() || shown != Some(reason::INVALID_SECRET) =>
            {
                self.reachable();
            }
            // The driver is configured again and has reported its capabilities.
            StableReachability::Unsettled if shown == Some(reason::DRIVER_NOT_CONFIGURED) => {
                self.reachable();
            }
            // Still open: the reachability is unsettled, or the driver answers but could not be queried about
            // this VM.
            StableReachability::Reachable | StableReachability::Unsettled => {}
        }
        if not_updatable.is_empty() {
            self.up_to_date();
            self.end_update();
        } else {
            let places: Vec<_> = not_updatable.iter().map(ToString::to_string).collect();
            let differs = format!(
                "spec.providerSpec differs from the VM in {}, which a running VM does not support: replace \
                    the machine",
                places.join(", ")
            );
            let message = match identity::changed_secret(self.machine) {
                Some(changed) => format!("{differs}; {changed}"),
                None => differs,
            };
            self.mark_false(VIRTUAL_MACHINE_UP_TO_DATE, reason::NOT_HOT_UPDATABLE, &message);
        }
    }

    /// Completes the report of a successful update whose process ended early.
    fn end_update(&mut self) {
        let start = Some(Operation::RestartMachine.name());
        let is_open = self.status.last_operation.as_ref().is_some_and(|last| {
            last.type_ == OperationType::Update
                && last.state != OperationState::Successful
                && last.operation.as_deref() != start
        });
        if is_open {
            self.succeeded(OperationType::Update, Some(Operation::UpdateMachine));
        }
    }

    /// Reports that the VM has the wanted provider spec and credentials.
    fn up_to_date(&mut self) {
        let type_ = VIRTUAL_MACHINE_UP_TO_DATE;
        match identity::ignored_change(self.machine) {
            Some((why, changed)) => self.mark_false(type_, why, &changed),
            None => self.mark_true(type_, reason::UP_TO_DATE),
        }
    }

    /// Drops the report about a taint that was removed from the spec.
    fn not_ready_taint(&mut self) {
        if self.machine.spec.not_ready_taint.is_none() {
            self.forget(conditions::NOT_READY_TAINT_REMOVED);
        }
    }

    /// Reports a Secret or a driver in the spec that differs from the one in use, because the author of the
    /// change expects an effect. Applies to every machine that is not being deleted. Any other problem of the
    /// spec is reported first.
    fn ignored_change(&mut self) {
        let shown = conditions::get(&self.status.conditions, VIRTUAL_MACHINE_UP_TO_DATE);
        let is_shown = shown.is_some_and(|shown| {
            [reason::SECRET_CHANGED, reason::DRIVER_CHANGED].contains(&shown.reason.as_str())
        });
        let is_up_to_date = shown.is_none_or(|shown| shown.status == ConditionStatus::True.as_str());
        let has_changed = identity::ignored_change(self.machine).is_some();
        let is_deleted = self.machine.metadata.deletion_timestamp.is_some();
        if !is_deleted && (is_shown || has_changed && is_up_to_date) {
            self.up_to_date();
        }
    }

    fn updated(&mut self) {
        self.working();
        self.up_to_date();
        self.reachable();
        self.succeeded(OperationType::Update, Some(Operation::UpdateMachine));
    }

    fn vanished(&mut self, id: &str) {
        self.working();
        let message = format!(
            "the driver confirmed that VM `{id}` no longer exists; it is not created again for this Machine"
        );
        self.status.power_state = None;
        self.forget(VIRTUAL_MACHINE_RUNNING);
        self.reachable();
        self.mark_false(READY, reason::VIRTUAL_MACHINE_VANISHED, &message);
    }

    fn deleting(&mut self, reason: &str, message: &str) {
        self.mark_false(PAUSED, reason::NOT_PAUSED, "");
        self.set(DELETING, ConditionStatus::True, reason, message);
        self.mark_false(READY, reason::DELETING, message);
    }

    fn succeeded(&mut self, type_: OperationType, operation: Option<Operation>) {
        let operation = operation.map(Operation::name);
        let success = LastOperation::new(type_, OperationState::Successful, operation, self.now);
        self.status.last_operation = Some(success);
    }
}
