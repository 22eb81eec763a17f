//! Maps errors of the operating system to codes of the driver contract.

use std::io::{Error, ErrorKind};

use cmi_driver::{Code, Status};

/// Messages of the kernel that the runtime passes on.
const NO_ROOM: [&str; 4] = [
    "no space left on device",
    "cannot allocate memory",
    "disk quota exceeded",
    "too many open files",
];

/// The code of an error with the state folder or an image. No error maps to NOT_FOUND: the provider would
/// then make another machine.
fn code(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::OutOfMemory => Code::ResourceExhausted,
        ErrorKind::PermissionDenied => Code::PermissionDenied,
        ErrorKind::ReadOnlyFilesystem | ErrorKind::CrossesDevices => Code::FailedPrecondition,
        // The file system of the folder is away.
        ErrorKind::NotFound
        | ErrorKind::StaleNetworkFileHandle
        | ErrorKind::NotConnected
        | ErrorKind::HostUnreachable
        | ErrorKind::NetworkUnreachable
        | ErrorKind::TimedOut => Code::Unavailable,
        ErrorKind::ResourceBusy | ErrorKind::DirectoryNotEmpty => Code::Aborted,
        _ => Code::Unknown,
    }
}

/// Returns the status of an error, with the operation that failed.
pub fn status(doing: &str, error: Error) -> Status {
    Status::new(code(error.kind()), format!("{doing} failed: {error}")).with_source(error)
}

/// Returns the code of a program that failed, by its message. A message that nobody knows is UNKNOWN, which
/// callers retry.
pub fn of_program(message: &str) -> Code {
    let message = message.to_lowercase();
    if NO_ROOM.iter().any(|words| message.contains(words)) {
        return Code::ResourceExhausted;
    }
    Code::Unknown
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DRV-30
    #[test]
    fn no_error_says_that_there_is_no_machine() {
        for (kind, expected) in [
            (ErrorKind::StorageFull, Code::ResourceExhausted),
            (ErrorKind::NotFound, Code::Unavailable),
            (ErrorKind::PermissionDenied, Code::PermissionDenied),
            (ErrorKind::CrossesDevices, Code::FailedPrecondition),
            (ErrorKind::ResourceBusy, Code::Aborted),
            (ErrorKind::NotADirectory, Code::Unknown),
        ] {
            assert_eq!(status("reading it", kind.into()).code(), expected, "{kind}");
        }
        assert_eq!(of_program("cp: No space left on device"), Code::ResourceExhausted);
        assert_eq!(of_program("no such file"), Code::Unknown);
    }
}
