//! Machine codes: the canonical gRPC codes 1–16 and code 17.

use std::str::FromStr;

use crate::named_enum::named_enum;

named_enum! {
    /// Why a driver call failed. There is no OK: an error that says OK cannot be written down (DRV-06).
    ///
    /// Litmus test for the three that are mixed up most: UNAVAILABLE when repeating just this call may help,
    /// ABORTED when the whole look-up-and-create has to be repeated, FAILED_PRECONDITION when repeating does
    /// not help before the VM is repaired.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    #[repr(u8)]
    pub enum Code {
        /// The call was cancelled by its caller.
        Canceled = 1,
        /// Not enough is known about what went wrong.
        Unknown = 2,
        /// Name or provider spec can't be accepted; the message names the field.
        InvalidArgument = 3,
        /// The deadline passed before the call was done. It may have been done.
        DeadlineExceeded = 4,
        /// There is no such VM in this cluster.
        NotFound = 5,
        /// A VM of this name exists with other parameters or another identity.
        AlreadyExists = 6,
        /// The credentials do not allow this.
        PermissionDenied = 7,
        /// Quota or pool is used up.
        ResourceExhausted = 8,
        /// The VM is in a state that forbids this.
        FailedPrecondition = 9,
        /// An operation on this machine is pending.
        Aborted = 10,
        /// A size is outside of the valid range; from get status: several VMs match.
        OutOfRange = 11,
        /// The driver does not implement this call.
        Unimplemented = 12,
        /// An invariant of the back end is broken.
        Internal = 13,
        /// The back end can't be reached right now.
        Unavailable = 14,
        /// Data was lost for good.
        DataLoss = 15,
        /// The credentials are missing or wrong.
        Unauthenticated = 16,
        /// The VM exists but its post-create initialization is not done (INI-12).
        Uninitialized = 17,
    }
}

/// A code outside of 1–17, or a name that no code has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a machine error code")]
pub struct ParseCodeError(String);

impl Code {
    /// The number on the wire, 1–17.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Whether the driver could not be reached or did not answer in time. Any other code is an answer.
    pub const fn is_outage(self) -> bool {
        matches!(self, Self::Unavailable | Self::DeadlineExceeded)
    }

    /// Whether the same call may succeed when it is repeated unchanged: it was cut off, or the cause of its
    /// failure is temporary. Any other code is the driver's decision about the request or about the VM.
    pub const fn is_transient(self) -> bool {
        match self {
            Self::Canceled | Self::Unknown | Self::DeadlineExceeded | Self::Aborted | Self::Unavailable => {
                true
            }
            Self::InvalidArgument
            | Self::NotFound
            | Self::AlreadyExists
            | Self::PermissionDenied
            | Self::ResourceExhausted
            | Self::FailedPrecondition
            | Self::OutOfRange
            | Self::Unimplemented
            | Self::Internal
            | Self::DataLoss
            | Self::Unauthenticated
            | Self::Uninitialized => false,
        }
    }

    /// Whether a create that failed with this code is over: the driver has decided against it, and the back
    /// end will not carry it out later. Any other code leaves that open.
    pub const fn is_final_for_create(self) -> bool {
        match self {
            Self::InvalidArgument
            | Self::AlreadyExists
            | Self::OutOfRange
            | Self::ResourceExhausted
            | Self::PermissionDenied
            | Self::Unauthenticated
            | Self::FailedPrecondition
            | Self::Unimplemented
            // The VM exists.
            | Self::Uninitialized => true,
            Self::Canceled
            | Self::Unknown
            | Self::DeadlineExceeded
            | Self::NotFound
            | Self::Aborted
            | Self::Internal
            | Self::Unavailable
            | Self::DataLoss => false,
        }
    }
}

impl TryFrom<u8> for Code {
    type Error = ParseCodeError;

    fn try_from(number: u8) -> Result<Self, Self::Error> {
        Self::ALL
            .into_iter()
            .find(|code| code.number() == number)
            .ok_or_else(|| ParseCodeError(number.to_string()))
    }
}

impl FromStr for Code {
    type Err = ParseCodeError;

    /// Reads a name in any of the spellings in use: `ResourceExhausted`, `RESOURCE_EXHAUSTED`, `CANCELLED`,
    /// `PRECONDITION_FAILED`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let folded: String = text
            .chars()
            .filter(|c| *c != '_')
            .flat_map(char::to_lowercase)
            .collect();
        match folded.as_str() {
            "cancelled" => return Ok(Self::Canceled),
            "preconditionfailed" => return Ok(Self::FailedPrecondition),
            "initialization" => return Ok(Self::Uninitialized),
            _ => {}
        }
        Self::ALL
            .into_iter()
            .find(|code| code.name().eq_ignore_ascii_case(&folded))
            .ok_or_else(|| ParseCodeError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DRV-06
    #[test]
    fn every_number_and_every_name_leads_back_to_its_code() {
        for code in Code::ALL {
            assert_eq!(Code::try_from(code.number()), Ok(code));
            assert_eq!(code.name().parse(), Ok(code));
        }
    }

    #[test]
    fn an_outage_passes_and_what_is_transient_ends_no_create() {
        for code in Code::ALL {
            assert!(code.is_transient() || !code.is_outage(), "{code}");
            assert!(!(code.is_transient() && code.is_final_for_create()), "{code}");
        }
        assert!(Code::Unknown.is_transient() && Code::Aborted.is_transient());
        assert!(!Code::Internal.is_transient() && !Code::NotFound.is_transient());
    }

    #[test]
    fn ok_and_numbers_beyond_seventeen_are_no_error_codes() {
        assert!(Code::try_from(0).is_err());
        assert!(Code::try_from(18).is_err());
        assert!("OK".parse::<Code>().is_err());
    }

    #[test]
    fn the_spellings_of_the_specifications_are_understood() {
        assert_eq!("CANCELLED".parse(), Ok(Code::Canceled));
        assert_eq!("PRECONDITION_FAILED".parse(), Ok(Code::FailedPrecondition));
        assert_eq!("DATALOSS".parse(), Ok(Code::DataLoss));
        assert_eq!("RESOURCE_EXHAUSTED".parse(), Ok(Code::ResourceExhausted));
    }
}
