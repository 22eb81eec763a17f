//! The status after a failure.

use jiff::SignedDuration;

use super::{Draft, RetryTiming};
use crate::api::conditions::{
    self, DRIVER_REACHABLE, READY, VIRTUAL_MACHINE_CREATED, VIRTUAL_MACHINE_INITIALIZED,
    VIRTUAL_MACHINE_UP_TO_DATE, reason,
};
use crate::api::retry::Disposition;
use crate::api::v1alpha1::{LastOperation, OperationState, OperationType};
use crate::machine::outcome::Failure;
use cmi_driver::Operation;

/// The default timeout of a creation, in seconds.
const CREATION_TIMEOUT: i32 = 1200;
/// A repeated failure is published again after this time at the latest. This limits the age of the published
/// time of the next attempt.
const MAX_REPEAT_AGE: SignedDuration = SignedDuration::from_mins(30);

impl Draft<'_> {
    pub(super) fn failed(&mut self, failure: &Failure, timing: RetryTiming) {
        self.working();
        let (reason, message) = (failure.reason(), self.failed_operation(failure, timing));
        if let Some(vm) = &failure.machine {
            self.describe(vm);
        }
        let is_recheck = failure.is_recheck_of(self.machine);
        match (failure.operation, failure.status.code().is_outage()) {
            // The failure says nothing about a running VM, so `Ready` stays.
            (None, _) if is_recheck => self.mark_false(DRIVER_REACHABLE, reason, &message),
            // For a running VM, only a lasting outage is reported, so that one failed call does not write the
            // whole fleet.
            (Some(_), true) if is_recheck => {}
            (Some(_), true) => self.mark_false(DRIVER_REACHABLE, reason, &message),
            (Some(_), false) => self.reachable(),
            (None, _) => {}
        }
        if failure.disposition == Disposition::Terminal {
            self.refused(failure.status.code(), &message);
            return;
        }
        match failure.during {
            OperationType::Delete => self.deleting(reason, &message),
            OperationType::Update => self.mark_false(VIRTUAL_MACHINE_UP_TO_DATE, reason, &message),
            OperationType::Create if failure.operation == Some(Operation::InitializeMachine) => {
                self.mark_true(VIRTUAL_MACHINE_CREATED, reason::CREATED);
                self.mark_false(VIRTUAL_MACHINE_INITIALIZED, reason, &message);
                self.not_ready_yet(reason, &message);
            }
            OperationType::Create => self.not_created_yet(reason, &message),
        }
    }

    pub(super) fn not_created_yet(&mut self, reason: &str, message: &str) {
        if self.machine.is_provisioned() {
            // MachineHealthChecks rely on `Ready`, and an error says nothing about a running VM.
            return;
        }
        if self.machine.spec.provider_id.is_none() {
            self.mark_false(VIRTUAL_MACHINE_CREATED, reason, message);
        }
        self.not_ready_yet(reason, message);
    }

    pub(super) fn not_ready_yet(&mut self, reason: &str, message: &str) {
        if self.machine.is_provisioned() {
            return;
        }
        let (spec, metadata) = (&self.machine.spec, &self.machine.metadata);
        let limit = spec.creation_timeout_seconds.unwrap_or(CREATION_TIMEOUT);
        let created = metadata.creation_timestamp.as_ref();
        let age = created.map_or(0, |created| self.now.as_second() - created.0.as_second());
        if age > i64::from(limit) {
            let message = format!("not provisioned after {limit} s: {reason}: {message}");
            self.mark_false(READY, reason::CREATION_TIMED_OUT, &message);
        } else {
            self.mark_false(READY, reason, message);
        }
    }

    /// Records the failure as the last operation, unless it repeats the published failure. Returns the
    /// message to show. A repeat keeps its published message.
    fn failed_operation(&mut self, failure: &Failure, timing: RetryTiming) -> String {
        let (type_, message) = (failure.during, failure.message());
        // A failed recheck is not an operation on the VM, which stays provisioned. DriverReachable reports
        // the failure.
        if type_ == OperationType::Create && self.machine.is_provisioned() {
            return message;
        }
        let message: String = message.chars().take(conditions::MAX_MESSAGE).collect();
        let operation = failure.operation.map(Operation::name);
        let failed = LastOperation {
            code: Some(failure.reason().to_owned()),
            message: Some(message),
            attempts: i32::try_from(timing.attempts).unwrap_or(i32::MAX),
            next_retry_time: self.next_retry_time(timing.wait),
            ..LastOperation::new(type_, OperationState::Failed, operation, self.now)
        };
        let is_of_this_spec = self.status.observed_generation == self.machine.metadata.generation;
        let shown = self
            .status
            .last_operation
            .take()
            .filter(|shown| is_of_this_spec && is_shown_by(shown, &failed));
        let mut published = shown.unwrap_or(failed);
        if failure.disposition == Disposition::Terminal {
            // Any process notices a change after a create that failed for good.
            published.inputs = Some(timing.inputs.to_string());
        }
        let message = published.message.clone().unwrap_or_default();
        self.status.last_operation = Some(published);
        message
    }
}

/// Returns whether the status already shows the same failure, so that no write is needed. A repeated failure
/// is published after 1, 2, 4, 8 … attempts, and every half an hour.
fn is_shown_by(shown: &LastOperation, failed: &LastOperation) -> bool {
    let same = shown.type_ == failed.type_
        && shown.state == failed.state
        && shown.operation == failed.operation
        && shown.code == failed.code
        && shown.next_retry_time.is_some() == failed.next_retry_time.is_some()
        && are_alike(shown.message.as_deref(), failed.message.as_deref());
    // Fewer attempts belong to a different series of failures.
    let few_more = (shown.attempts..shown.attempts.saturating_mul(2)).contains(&failed.attempts);
    let age = failed.last_update_time.0.duration_since(shown.last_update_time.0);
    // A clock that was set back must not suppress the report.
    same && few_more && (SignedDuration::ZERO..MAX_REPEAT_AGE).contains(&age)
}

/// Returns whether two messages are equal apart from words that contain a digit. A back end's message may
/// contain a time, a count or a request id, which differ each time.
fn are_alike(a: Option<&str>, b: Option<&str>) -> bool {
    fn words(text: &str) -> impl Iterator<Item = Option<&str>> {
        let has_digit = |word: &str| word.contains(|c: char| c.is_ascii_digit());
        text.split_whitespace()
            .map(move |word| (!has_digit(word)).then_some(word))
    }
    match (a, b) {
        (Some(a), Some(b)) => a == b || words(a).eq(words(b)),
        (a, b) => a == b,
    }
}
