//! The error of a driver call.

use std::error::Error;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::{Code, LastKnownState, Machine, Operation};

type Source = Box<dyn Error + Send + Sync + 'static>;

/// The error of a driver call, with the driver's further data (DRV-06, DRV-17).
///
/// The message is a sentence for an operator and may be shown to end users: it must not hold secret values.
#[derive(Debug)]
pub struct Status {
    code: Code,
    message: String,
    last_known_state: Option<LastKnownState>,
    machine: Option<Box<Machine>>,
    retry_after: Option<Duration>,
    never_sent: bool,
    no_side_effects: bool,
    source: Option<Source>,
}

/// Text that is not of the form `machine codes error: code = [..] message = [..]`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` does not have the form `code = [<code>] message = [<message>]`")]
pub struct ParseStatusError(String);

impl Status {
    /// An error with this code. A blank message is replaced, since DRV-17 forbids it.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.trim().is_empty() {
            message = no_message(code);
        }
        Self {
            code,
            message,
            last_known_state: None,
            machine: None,
            retry_after: None,
            never_sent: false,
            no_side_effects: false,
            source: None,
        }
    }

    /// The answer of a call that a driver does not implement.
    pub fn unimplemented(operation: Operation) -> Self {
        Self::new(
            Code::Unimplemented,
            format!("the driver does not implement {operation}"),
        )
    }

    /// Adds the state that the driver gets back with the next call on this machine (CTL-01, CTL-03).
    #[must_use]
    pub fn with_last_known_state(mut self, state: LastKnownState) -> Self {
        self.last_known_state = Some(state);
        self
    }

    /// Adds the machine that exists in spite of the error (INI-18).
    #[must_use]
    pub fn with_machine(mut self, machine: Machine) -> Self {
        self.machine = Some(Box::new(machine));
        self
    }

    /// Adds the delay that the driver requests before the next call.
    #[must_use]
    pub fn with_retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// Marks that the call never left this process: the driver has done nothing, and will do nothing. Only
    /// the caller can know that; a driver's or plugin's answer never carries this mark.
    #[must_use]
    pub fn with_never_sent(mut self) -> Self {
        self.never_sent = true;
        self
    }

    /// Marks that the driver has begun nothing, and will not carry out the call later. Regardless of the
    /// code, a create that failed with this mark creates no VM later, and a restart has not restarted the VM.
    #[must_use]
    pub fn with_no_side_effects(mut self) -> Self {
        self.no_side_effects = true;
        self
    }

    /// Adds the error that caused this one.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Source>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The same error with another message, for a caller that removes secrets or adds context.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self
    }

    /// The machine code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The sentence for an operator.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether the message replaces a missing message of the driver.
    pub fn has_default_message(&self) -> bool {
        self.message == no_message(self.code)
    }

    /// The state that the driver gets back with the next call.
    pub fn last_known_state(&self) -> Option<&LastKnownState> {
        self.last_known_state.as_ref()
    }

    /// The machine that exists in spite of the error.
    pub fn machine(&self) -> Option<&Machine> {
        self.machine.as_deref()
    }

    /// Whether the call never left this process.
    pub fn is_never_sent(&self) -> bool {
        self.never_sent
    }

    /// Whether the driver reports that it has begun nothing.
    pub fn has_no_side_effects(&self) -> bool {
        self.no_side_effects
    }

    /// The delay that the driver requests before the next call.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }
}

fn no_message(code: Code) -> String {
    format!("the driver returned {code} without a message")
}

impl fmt::Display for Status {
    /// The text form that Machine Controller Manager parses; it is an interface and stays as it is.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "machine codes error: code = [{}] message = [{}]",
            self.code, self.message
        )
    }
}

impl Error for Status {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source
            .as_deref()
            .map(|source| source as &(dyn Error + 'static))
    }
}

impl FromStr for Status {
    type Err = ParseStatusError;

    /// Reads the text form out of any surrounding text: the first known code in brackets, and the message up
    /// to the last bracket, so that brackets inside the message do no harm.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || ParseStatusError(text.to_owned());
        let (_, after_code) = text.split_once("code = [").ok_or_else(bad)?;
        let (code, rest) = after_code.split_once(']').ok_or_else(bad)?;
        let (_, message) = rest.split_once("message = [").ok_or_else(bad)?;
        let end = message.rfind(']').ok_or_else(bad)?;
        Ok(Self::new(code.parse().map_err(|_| bad())?, &message[..end]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DRV-06
    #[test]
    fn the_text_form_of_every_code_is_read_back() {
        for code in Code::ALL {
            let written = Status::new(code, "pool [a] is full").to_string();
            let read: Status = written.parse().unwrap();
            assert_eq!((read.code(), read.message()), (code, "pool [a] is full"));
        }
    }

    #[test]
    fn the_text_form_is_found_inside_other_text() {
        let read: Status = "context [1]: machine codes error: code = [Aborted] message = [busy]"
            .parse()
            .unwrap();
        assert_eq!((read.code(), read.message()), (Code::Aborted, "busy"));
    }

    /// DRV-17
    #[test]
    fn a_blank_message_is_replaced_by_one_that_says_so() {
        let status = Status::new(Code::Internal, " ");
        assert!(status.message().contains("without a message") && status.has_default_message());
        assert!(!Status::new(Code::Internal, "the disk is missing").has_default_message());
    }
}
