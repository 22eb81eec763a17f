//! What a status says when something went wrong.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Draft, MAX_MESSAGE, Moment};
use crate::api::conditions::{self, State, reason};
use crate::api::v1alpha1::{LastOperation, OperationState, OperationType};
use crate::driver::Operation;
use crate::driver::retry::Next;
use crate::machine::outcome::Failure;

/// How long a creation may take when the object does not say, in seconds.
const CREATION_TIMEOUT: i32 = 1200;

impl Draft<'_> {
    pub(super) fn failed(&mut self, failure: &Failure, moment: Moment) {
        self.working();
        let (code, message) = (failure.status.code(), failure.message());
        if let Some(vm) = &failure.machine {
            self.describe(vm);
        }
        if failure.is_outage() {
            self.set(conditions::DRIVER_REACHABLE, State::False, code.name(), &message);
        } else {
            self.set(conditions::DRIVER_REACHABLE, State::True, reason::REACHABLE, "");
        }
        self.failed_operation(
            failure.during,
            Some(failure.operation),
            code.name(),
            &message,
            moment,
        );
        if failure.next == Next::Terminal {
            self.refused(code, &message);
            return;
        }
        match failure.during {
            OperationType::Delete => self.deleting(code.name(), &message),
            OperationType::Update => {
                self.set(
                    conditions::VIRTUAL_MACHINE_UP_TO_DATE,
                    State::False,
                    code.name(),
                    &message,
                );
            }
            OperationType::Create if failure.operation == Operation::InitializeMachine => {
                self.set(
                    conditions::VIRTUAL_MACHINE_CREATED,
                    State::True,
                    reason::CREATED,
                    "",
                );
                self.set(
                    conditions::VIRTUAL_MACHINE_INITIALIZED,
                    State::False,
                    code.name(),
                    &message,
                );
                self.not_ready_yet(code.name(), &message);
            }
            OperationType::Create => self.not_created_yet(code.name(), &message),
        }
    }

    pub(super) fn no_secrets(&mut self, during: OperationType, message: &str, moment: Moment) {
        self.working();
        self.failed_operation(during, None, reason::INVALID_SECRET, message, moment);
        match during {
            // It says nothing about a VM that is up, so `Ready` stays.
            OperationType::Create if self.machine.is_provisioned() => {
                self.set(
                    conditions::DRIVER_REACHABLE,
                    State::False,
                    reason::INVALID_SECRET,
                    message,
                );
            }
            OperationType::Create => self.not_created_yet(reason::INVALID_SECRET, message),
            OperationType::Update => {
                self.set(
                    conditions::VIRTUAL_MACHINE_UP_TO_DATE,
                    State::False,
                    reason::INVALID_SECRET,
                    message,
                );
            }
            OperationType::Delete => self.deleting(reason::INVALID_SECRET, message),
        }
    }

    pub(super) fn not_created_yet(&mut self, reason: &str, message: &str) {
        if self.machine.is_provisioned() {
            // `Ready` is a promise to MachineHealthChecks: an error says nothing about a VM that was up.
            return;
        }
        if self.machine.spec.provider_id.is_none() {
            self.set(conditions::VIRTUAL_MACHINE_CREATED, State::False, reason, message);
        }
        self.not_ready_yet(reason, message);
    }

    pub(super) fn not_ready_yet(&mut self, reason: &str, message: &str) {
        if self.machine.is_provisioned() {
            return;
        }
        let limit = self
            .machine
            .spec
            .creation_timeout_seconds
            .unwrap_or(CREATION_TIMEOUT);
        let age = self
            .machine
            .metadata
            .creation_timestamp
            .as_ref()
            .map_or(0, |created| self.now.as_second() - created.0.as_second());
        if age > i64::from(limit) {
            let message = format!("not provisioned after {limit} s; {reason}: {message}");
            self.set(
                conditions::READY,
                State::False,
                conditions::reason::CREATION_TIMED_OUT,
                &message,
            );
        } else {
            self.set(conditions::READY, State::False, reason, message);
        }
    }

    fn failed_operation(
        &mut self,
        type_: OperationType,
        operation: Option<Operation>,
        code: &str,
        message: &str,
        moment: Moment,
    ) {
        // A failed recheck is no operation on the VM, which stays provisioned; DriverReachable tells.
        if type_ == OperationType::Create && self.machine.is_provisioned() {
            return;
        }
        self.status.last_operation = Some(LastOperation {
            type_,
            state: OperationState::Failed,
            operation: operation.map(|operation| operation.name().to_owned()),
            code: Some(code.to_owned()),
            message: Some(message.chars().take(MAX_MESSAGE).collect()),
            attempts: i32::try_from(moment.attempts).unwrap_or(i32::MAX),
            last_update_time: Time(self.now),
            next_retry_time: moment
                .wait
                .and_then(|wait| self.now.checked_add(wait).ok())
                .map(Time),
        });
    }
}
