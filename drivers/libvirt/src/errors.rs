//! What the errors of libvirt are to the driver contract: one table.

use cmi_driver::{Code, Status};
use virt::error::{Error, ErrorNumber};

/// What each error of libvirt means, by its number. One that is not here is UNKNOWN, and none is NOT_FOUND,
/// upon which the provider would make a VM: that a domain is not there is said by the look-up alone.
const TABLE: &[(ErrorNumber, Code)] = &[
    // The host, or the way to it, is not there. Repeating may help.
    (ErrorNumber::NoConnect, Code::Unavailable),
    (ErrorNumber::UnknownHost, Code::Unavailable),
    (ErrorNumber::InvalidConn, Code::Unavailable),
    (ErrorNumber::Rpc, Code::Unavailable),
    (ErrorNumber::GnutlsError, Code::Unavailable),
    (ErrorNumber::Ssh, Code::Unavailable),
    (ErrorNumber::Libssh, Code::Unavailable),
    (ErrorNumber::AgentUnresponsive, Code::Unavailable),
    // The driver may not do this on the host.
    (ErrorNumber::AuthFailed, Code::Unauthenticated),
    (ErrorNumber::AuthCancelled, Code::Unauthenticated),
    (ErrorNumber::AuthUnavailable, Code::Unauthenticated),
    (ErrorNumber::OperationDenied, Code::PermissionDenied),
    (ErrorNumber::AccessDenied, Code::PermissionDenied),
    // Something else works on the same: look again, and then act.
    (ErrorNumber::NoDomain, Code::Aborted),
    (ErrorNumber::DomExist, Code::Aborted),
    (ErrorNumber::StorageVolExist, Code::Aborted),
    (ErrorNumber::OperationTimeout, Code::Aborted),
    (ErrorNumber::OperationAborted, Code::Aborted),
    (ErrorNumber::ResourceBusy, Code::Aborted),
    // The host is not as the configuration takes it to be, or the domain is in a state that forbids this.
    (ErrorNumber::OperationInvalid, Code::FailedPrecondition),
    (ErrorNumber::NoStoragePool, Code::FailedPrecondition),
    (ErrorNumber::NoStorageVolume, Code::FailedPrecondition),
    (ErrorNumber::NoNetwork, Code::FailedPrecondition),
    (ErrorNumber::ConfigUnsupported, Code::FailedPrecondition),
    (ErrorNumber::ArgumentUnsupported, Code::FailedPrecondition),
    (ErrorNumber::OperationUnsupported, Code::FailedPrecondition),
    (ErrorNumber::NoSupport, Code::FailedPrecondition),
    (ErrorNumber::CpuIncompatible, Code::FailedPrecondition),
    (ErrorNumber::DeviceMissing, Code::FailedPrecondition),
    (ErrorNumber::HookScriptFailed, Code::FailedPrecondition),
    // There is no room.
    (ErrorNumber::NoMemory, Code::ResourceExhausted),
    // A person has to look.
    (ErrorNumber::InternalError, Code::Internal),
    (ErrorNumber::SystemError, Code::Internal),
    (ErrorNumber::OperationFailed, Code::Internal),
    (ErrorNumber::InvalidArg, Code::Internal),
    (ErrorNumber::XmlError, Code::Internal),
    (ErrorNumber::XmlDetail, Code::Internal),
    (ErrorNumber::XmlInvalidSchema, Code::Internal),
];

/// What libvirt passes on of the operating system and of QEMU, in the C locale.
const NO_ROOM: [&str; 3] = [
    "No space left on device",
    "Cannot allocate memory",
    "Disk quota exceeded",
];

/// The machine code of an error.
pub fn code(number: ErrorNumber, message: &str) -> Code {
    if NO_ROOM.iter().any(|words| message.contains(words)) {
        return Code::ResourceExhausted;
    }
    let row = TABLE.iter().find(|(known, _)| *known == number);
    row.map_or(Code::Unknown, |(_, code)| *code)
}

/// An error of libvirt, with what was being done.
pub fn status(doing: &str, error: Error) -> Status {
    let code = code(error.code(), error.message());
    let message = format!("{doing} failed: {}", error.message());
    Status::new(code, message).with_source(error)
}

/// An error with a volume that was found. One that another call makes or removes at this moment is busy, and
/// soon will not be.
pub fn of_a_volume(doing: &str, error: Error) -> Status {
    let is_busy = [ErrorNumber::OperationInvalid, ErrorNumber::NoStorageVolume].contains(&error.code());
    let status = status(doing, error);
    if is_busy {
        return Status::new(Code::Aborted, status.message()).with_source(status);
    }
    status
}

/// An error while a connection was opened. Whatever it is, unless the host refuses the driver: it says
/// nothing about any VM.
pub fn not_connected(host: &str, error: Error) -> Status {
    let code = match code(error.code(), error.message()) {
        refused @ (Code::Unauthenticated | Code::PermissionDenied) => refused,
        _ => Code::Unavailable,
    };
    let message = format!("host `{host}` can't be reached: {}", error.message());
    Status::new(code, message).with_source(error)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_error_of_libvirt_has_the_code_that_is_written_down_and_none_says_that_there_is_no_vm() {
        use ErrorNumber as E;
        let expected = [
            (E::NoConnect, Code::Unavailable),
            (E::UnknownHost, Code::Unavailable),
            (E::InvalidConn, Code::Unavailable),
            (E::Rpc, Code::Unavailable),
            (E::GnutlsError, Code::Unavailable),
            (E::Ssh, Code::Unavailable),
            (E::Libssh, Code::Unavailable),
            (E::AgentUnresponsive, Code::Unavailable),
            (E::AuthFailed, Code::Unauthenticated),
            (E::AuthCancelled, Code::Unauthenticated),
            (E::AuthUnavailable, Code::Unauthenticated),
            (E::OperationDenied, Code::PermissionDenied),
            (E::AccessDenied, Code::PermissionDenied),
            (E::NoDomain, Code::Aborted),
            (E::DomExist, Code::Aborted),
            (E::StorageVolExist, Code::Aborted),
            (E::OperationTimeout, Code::Aborted),
            (E::OperationAborted, Code::Aborted),
            (E::ResourceBusy, Code::Aborted),
            (E::OperationInvalid, Code::FailedPrecondition),
            (E::NoStoragePool, Code::FailedPrecondition),
            (E::NoStorageVolume, Code::FailedPrecondition),
            (E::NoNetwork, Code::FailedPrecondition),
            (E::ConfigUnsupported, Code::FailedPrecondition),
            (E::ArgumentUnsupported, Code::FailedPrecondition),
            (E::OperationUnsupported, Code::FailedPrecondition),
            (E::NoSupport, Code::FailedPrecondition),
            (E::CpuIncompatible, Code::FailedPrecondition),
            (E::DeviceMissing, Code::FailedPrecondition),
            (E::HookScriptFailed, Code::FailedPrecondition),
            (E::NoMemory, Code::ResourceExhausted),
            (E::InternalError, Code::Internal),
            (E::SystemError, Code::Internal),
            (E::OperationFailed, Code::Internal),
            (E::InvalidArg, Code::Internal),
            (E::XmlError, Code::Internal),
            (E::XmlDetail, Code::Internal),
            (E::XmlInvalidSchema, Code::Internal),
        ];
        assert_eq!(TABLE.len(), expected.len(), "a row has no test");
        let numbers: HashSet<_> = TABLE.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers.len(), TABLE.len(), "an error is twice in the table");
        for (number, expected) in expected {
            assert_eq!(code(number, "words"), expected, "{number:?}");
            assert_ne!(code(number, "words"), Code::NotFound, "{number:?}");
            assert_eq!(
                code(number, "qemu-img: No space left on device"),
                Code::ResourceExhausted,
                "{number:?}"
            );
        }
    }

    /// DRV-30
    #[test]
    fn a_host_that_is_away_is_unavailable_and_what_is_not_known_is_unknown() {
        for number in [ErrorNumber::NoConnect, ErrorNumber::Rpc, ErrorNumber::UnknownHost] {
            assert_eq!(code(number, ""), Code::Unavailable);
        }
        assert_eq!(code(ErrorNumber::MigrateUnsafe, ""), Code::Unknown);
    }

    /// Real errors: the test driver of libvirt is in its library.
    #[test]
    fn an_error_of_libvirt_keeps_its_words_and_says_what_was_done() {
        virt::error::clear_error_callback();
        let mut connection = virt::connect::Connect::open(Some("test:///default")).unwrap();
        let error = virt::domain::Domain::lookup_by_name(&connection, "none").unwrap_err();
        let status = status("looking", error);
        assert_eq!(status.code(), Code::Aborted);
        assert!(status.message().starts_with("looking failed: "), "{status}");
        // Another call removes it at this moment.
        let pool = virt::storage_pool::StoragePool::lookup_by_name(&connection, "default-pool").unwrap();
        let xml = "<volume><name>v</name><capacity>1</capacity></volume>";
        let volume = virt::storage_vol::StorageVol::create_xml(&pool, xml, 0).unwrap();
        volume.delete(0).unwrap();
        let status = of_a_volume("deleting it", volume.delete(0).unwrap_err());
        assert_eq!(status.code(), Code::Aborted, "{status}");
        connection.close().unwrap();

        let error = virt::connect::Connect::open(Some("qemu+unix:///system?socket=/nowhere")).unwrap_err();
        let status = not_connected("host-a", error);
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains("`host-a`"), "{status}");
    }
}
