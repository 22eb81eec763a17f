//! The meaning of the driver's answer to RestartMachine. Pure.

use crate::api::retry::{self, Call, Disposition};
use cmi_driver::{Code, Status};

/// Whether the VM was restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartResult {
    /// The VM is restarting.
    Made,
    /// The VM may be restarting, now or later. The restart counts.
    MayBeMade,
    /// The VM was not restarted, and will not be. No restart counts.
    NotMade,
    /// The VM can't be restarted at all.
    NotPossible,
}

impl RestartResult {
    /// Classifies the answer. These failures do not count as restarts: an outage of the driver, an outage of
    /// its back end before the driver began the restart, and expired credentials. Otherwise a Machine could
    /// be replaced without a single restart of its VM.
    pub fn of(answer: &Result<(), Status>) -> Self {
        let Err(status) = answer else {
            return Self::Made;
        };
        if status.is_never_sent() {
            return Self::NotMade;
        }
        if retry::disposition(Call::Restart, status.code()) == Disposition::Replace {
            return Self::NotPossible;
        }
        match status.code() {
            _ if status.has_no_side_effects() => Self::NotMade,
            // It is restarting already.
            Code::Aborted => Self::Made,
            Code::PermissionDenied | Code::Unauthenticated | Code::ResourceExhausted => Self::NotMade,
            // UNAVAILABLE may come from a proxy that lost the plugin, or from a connection that broke.
            Code::Canceled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
            | Code::Uninitialized => Self::MayBeMade,
            Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented => Self::NotPossible,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: Status) -> RestartResult {
        RestartResult::of(&Err(status))
    }

    #[test]
    fn only_a_restart_that_may_have_been_made_counts_as_one() {
        use Code::*;
        assert_eq!(RestartResult::of(&Ok(())), RestartResult::Made);
        for code in Code::ALL {
            let expected = match code {
                Aborted => RestartResult::Made,
                PermissionDenied | Unauthenticated | ResourceExhausted => RestartResult::NotMade,
                Canceled | Unknown | DeadlineExceeded | Internal | Unavailable | DataLoss | Uninitialized => {
                    RestartResult::MayBeMade
                }
                NotFound | Unimplemented | FailedPrecondition | InvalidArgument | AlreadyExists
                | OutOfRange => RestartResult::NotPossible,
            };
            assert_eq!(of(Status::new(code, "no")), expected, "{code}");
        }
    }

    /// A proxy that lost the plugin during the call answers UNAVAILABLE in the plugin's name.
    #[test]
    fn a_restart_with_a_lost_answer_counts_unless_it_had_no_effect() {
        for code in [Code::Unavailable, Code::DeadlineExceeded, Code::Internal] {
            let status = || Status::new(code, "no");
            assert_eq!(of(status()), RestartResult::MayBeMade, "{code}");
            assert_eq!(of(status().with_never_sent()), RestartResult::NotMade, "{code}");
            assert_eq!(
                of(status().with_no_side_effects()),
                RestartResult::NotMade,
                "{code}"
            );
        }
    }
}
