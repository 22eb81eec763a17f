//! The answer of a call, and its check by a case.

use std::fmt;

use super::config::Setting;
use cmi_driver::{Code, Machine, Operation, Status};

/// The reason why a case ends early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaseError {
    /// A rule is broken: a sentence for the driver's author.
    #[error("{0}")]
    Failed(String),
    /// The driver went away during a call of this case, and no other case had a running call: the case fails,
    /// even if it does not test this call.
    #[error("{0}")]
    DriverGone(String),
    /// The case did not get as far as its test: something else that it needs does not work.
    #[error("{0}")]
    Inconclusive(String),
    /// The case can't be run here.
    #[error("{0}")]
    Skipped(String),
    /// The case cannot run without another setting.
    #[error("{reason}")]
    Unconfigured {
        /// The effect of the missing setting on the case.
        reason: String,
        /// The setting to be configured.
        setting: Setting,
    },
}

/// The end of a case.
pub type CaseResult<T = ()> = Result<T, CaseError>;

impl CaseError {
    /// Returns the error of a broken rule.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }

    /// Prepends the subject to the reason.
    #[must_use]
    pub fn after(self, about: &str) -> Self {
        self.reworded(|reason| format!("{about}: {reason}"))
    }

    /// Appends advice to the reason.
    #[must_use]
    pub fn before(self, advice: &str) -> Self {
        self.reworded(|reason| reason + advice)
    }

    fn reworded(self, reword: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Failed(reason) => Self::Failed(reword(reason)),
            Self::Inconclusive(reason) => Self::Inconclusive(reword(reason)),
            Self::DriverGone(_) | Self::Skipped(_) | Self::Unconfigured { .. } => self,
        }
    }

    /// Turns the error into one of the preparation, which says nothing about the tested rule.
    #[must_use]
    pub fn in_preparation(self) -> Self {
        match self {
            Self::Failed(reason) => Self::Inconclusive(format!("preparation failed: {reason}")),
            Self::DriverGone(_) | Self::Inconclusive(_) | Self::Skipped(_) | Self::Unconfigured { .. } => {
                self
            }
        }
    }
}

/// Fails with a message unless something holds.
///
/// # Errors
/// [`CaseError::Failed`] with the message.
pub fn ensure(holds: bool, message: impl FnOnce() -> String) -> CaseResult {
    if holds {
        Ok(())
    } else {
        Err(CaseError::Failed(message()))
    }
}

/// Returns the names of a VM in an answer: its id, and the name of its Node.
pub fn names(machine: &Machine) -> (&str, &str) {
    (machine.provider_id.as_str(), &machine.node_name)
}

/// Fails unless a call names the VM as CreateMachine did.
///
/// # Errors
/// [`CaseError::Failed`] with the names of both.
pub fn same_names(made: &Machine, call: impl fmt::Display, found: (&str, &str)) -> CaseResult {
    ensure(found == names(made), || {
        let (id, node) = names(made);
        format!(
            "CreateMachine answered `{id}` and `{node}`, {call} `{}` and `{}`",
            found.0, found.1
        )
    })
}

/// The answer of a call, not checked yet.
#[derive(Debug)]
#[must_use = "an answer that is not checked proves nothing"]
pub struct Answer<T> {
    /// The call.
    pub operation: Operation,
    /// The subject of the call, for messages: a machine's name or a class.
    pub about: String,
    /// The response or the error.
    pub result: cmi_driver::Result<T>,
}

impl<T> Answer<T> {
    /// Returns the response; anything else is a failure.
    ///
    /// # Errors
    /// [`CaseError::Failed`] when the call was refused.
    pub fn ok(self) -> CaseResult<T> {
        let (operation, about) = (self.operation, self.about);
        self.result.map_err(|status| {
            CaseError::failed(format!(
                "{operation} of {about} must answer OK, but answered {status}"
            ))
        })
    }

    /// Returns the error if it has exactly this code.
    ///
    /// # Errors
    /// [`CaseError::Failed`] when the call succeeded or has another code.
    pub fn refused(self, code: Code) -> CaseResult<Status> {
        self.refused_with(&[code])
    }

    /// Returns the error if it has one of these codes.
    ///
    /// # Errors
    /// [`CaseError::Failed`] when the call succeeded or has another code.
    pub fn refused_with(self, codes: &[Code]) -> CaseResult<Status> {
        let answered = match self.result {
            Err(status) if codes.contains(&status.code()) => return Ok(status),
            Err(status) => status.to_string(),
            Ok(_) => "OK".to_owned(),
        };
        let (operation, about, wanted) = (self.operation, self.about, names_of(codes));
        Err(CaseError::failed(format!(
            "{operation} of {about} must answer {wanted}, but answered {answered}"
        )))
    }

    /// Returns the response, or `None` when the call was refused with one of these codes.
    ///
    /// # Errors
    /// [`CaseError::Failed`] for every other code.
    pub fn ok_or(self, codes: &[Code]) -> CaseResult<Option<T>> {
        match &self.result {
            Err(status) if codes.contains(&status.code()) => Ok(None),
            Ok(_) | Err(_) => self.ok().map(Some),
        }
    }

    /// Returns the error code of the call.
    pub fn code(&self) -> Option<Code> {
        self.result.as_ref().err().map(Status::code)
    }

    /// Returns the answer without its response, for a caller that only asks how the call ended.
    pub fn bare(self) -> Answer<()> {
        Answer {
            operation: self.operation,
            about: self.about,
            result: self.result.map(|_| ()),
        }
    }
}

fn names_of(codes: &[Code]) -> String {
    let names: Vec<_> = codes.iter().map(|code| code.name()).collect();
    names.join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(result: cmi_driver::Result<u8>) -> Answer<u8> {
        Answer {
            operation: Operation::CreateMachine,
            about: "machine `a`".to_owned(),
            result,
        }
    }

    #[test]
    fn another_code_than_the_one_asked_for_is_a_failure_that_names_both() {
        let error = answer(Err(Status::new(Code::Internal, "a disk is missing")))
            .refused(Code::NotFound)
            .unwrap_err();
        let message = error.to_string();
        assert!(
            message.contains("NotFound") && message.contains("Internal"),
            "{message}"
        );
        assert!(answer(Ok(1)).refused(Code::NotFound).is_err());
        assert!(
            answer(Err(Status::new(Code::Aborted, "it is pending")))
                .ok()
                .is_err()
        );
    }
}
