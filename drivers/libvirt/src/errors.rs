//! Maps the errors of libvirt to codes of the driver contract: one table.

use cmi_driver::{Code, Status};
use virt::error::{Error, ErrorNumber};

/// The code of a libvirt error, by its number. No error maps to NOT_FOUND, since the provider would then
/// create a VM: only the look-up shows that a domain does not exist.
#[rustfmt::skip]
fn code_of(number: ErrorNumber) -> Code {
    use ErrorNumber as E;
    match number {
        // The host, or the network path to it, is unavailable. Repeating may help.
        E::NoConnect | E::UnknownHost | E::InvalidConn | E::Rpc | E::GnutlsError | E::Ssh | E::Libssh
        | E::AgentUnresponsive | E::AgentUnsynced | E::AgentCommandTimeout => Code::Unavailable,
        // The driver may not do this on the host.
        E::AuthFailed | E::AuthCancelled | E::AuthUnavailable => Code::Unauthenticated,
        E::OperationDenied | E::AccessDenied => Code::PermissionDenied,
        // Something else works on the same object: look again, and then act.
        E::NoDomain | E::DomExist | E::StorageVolExist | E::NetworkPortExists | E::OperationTimeout
        | E::OperationAborted | E::ResourceBusy | E::BlockCopyActive => Code::Aborted,
        // The host is not as the configuration says, or the domain is in a state that forbids this.
        E::OperationInvalid | E::NoStorage | E::NoStoragePool | E::NoStorageVolume | E::NoNetwork
        | E::NoNetworkStart | E::NoInterface | E::NoInterfaceStart | E::NoNwfilter | E::NoNwfilterStart
        | E::NoNode | E::NoSecret | E::NoSecretStart | E::NoSecurityModel | E::BuildFirewall | E::OsType
        | E::ConfigUnsupported | E::ArgumentUnsupported | E::OperationUnsupported | E::NoSupport
        | E::CpuIncompatible | E::DeviceMissing | E::HookScriptFailed => Code::FailedPrecondition,
        // There is no room.
        E::NoMemory => Code::ResourceExhausted,
        // libvirt or QEMU failed, or got an invalid request: an administrator has to look.
        E::InternalError | E::SystemError | E::OperationFailed | E::InvalidArg | E::XmlError
        | E::XmlDetail | E::XmlInvalidSchema | E::StorageProbeFailed | E::Overflow | E::DbusService
        | E::AgentCommandFailed | E::DriverFull | E::OpenFailed | E::ReadFailed | E::ParseFailed
        | E::ConfSyntax | E::WriteFailed | E::NoKernel | E::NoRoot | E::NoSource | E::NoTarget
        | E::NoName | E::NoOs | E::NoDevice | E::InvalidDomain | E::InvalidNetwork | E::InvalidMac
        | E::InvalidStoragePool | E::InvalidStorageVol | E::InvalidStream | E::MultipleDomains
        | E::NoHostname | E::NoDomainMetadata
        // Errors of features that this driver does not use: libvirt reports them by mistake, if at all.
        | E::Ok | E::GetFailed | E::PostFailed | E::HttpError | E::SExprSerial | E::NoXen | E::XenCall
        | E::NoXenStore | E::CallFailed | E::NetworkExist | E::InvalidNodeDevice | E::NoNodeDevice
        | E::InvalidInterface | E::MultipleInterfaces | E::InvalidNwfilter | E::InvalidNwfilterBinding
        | E::NoNwfilterBinding | E::InvalidSecret | E::StoragePoolBuilt | E::InvalidDomainSnapshot
        | E::NoDomainSnapshot | E::SnapshotRevertRisky | E::InvalidDomainCheckpoint
        | E::NoDomainCheckpoint | E::CheckpointInconsistent | E::NoDomainBackup | E::MigratePersistFailed
        | E::MigrateUnsafe | E::MigrateFinishOk | E::NoServer | E::NoClient
        | E::InvalidNetworkPort | E::NoNetworkPort | E::NoNetworkMetadata => Code::Internal,
        // An error number that a later libvirt has added.
        E::Last => Code::Unknown,
    }
}

/// Messages of the operating system and of QEMU, in the C locale, that libvirt passes on.
const NO_ROOM: [&str; 3] = [
    "No space left on device",
    "Cannot allocate memory",
    "Disk quota exceeded",
];

/// Returns the code of the driver contract for an error.
pub fn code(number: ErrorNumber, message: &str) -> Code {
    if NO_ROOM.iter().any(|words| message.contains(words)) {
        return Code::ResourceExhausted;
    }
    code_of(number)
}

/// The status of a libvirt error, with the operation that failed.
pub fn status(doing: &str, error: Error) -> Status {
    let code = code(error.code(), error.message());
    let message = format!("{doing} failed: {}", error.message());
    Status::new(code, message).with_source(error)
}

/// Returns the status of an error with an existing volume. ABORTED if another call is making or removing it,
/// since the volume is busy only for a short time.
pub fn of_a_volume(doing: &str, error: Error) -> Status {
    let is_busy = [ErrorNumber::OperationInvalid, ErrorNumber::NoStorageVolume].contains(&error.code());
    let status = status(doing, error);
    if is_busy {
        return Status::new(Code::Aborted, status.message()).with_source(status);
    }
    status
}

/// Returns the status of a failed attempt to connect: UNAVAILABLE, unless the host refuses the driver. It
/// does not tell the state of any VM.
pub fn not_connected(host: &str, error: Error) -> Status {
    let code = match code(error.code(), error.message()) {
        refused @ (Code::Unauthenticated | Code::PermissionDenied) => refused,
        _ => Code::Unavailable,
    };
    let message = format!("cannot reach host `{host}`: {}", error.message());
    Status::new(code, message).with_source(error)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use ErrorNumber as E;

    /// Repeats each row.
    #[rustfmt::skip]
    const EXPECTED: [(Code, &[E]); 8] = [
        (Code::Unavailable, &[
            E::NoConnect, E::UnknownHost, E::InvalidConn, E::Rpc, E::GnutlsError, E::Ssh, E::Libssh,
            E::AgentUnresponsive, E::AgentUnsynced, E::AgentCommandTimeout
        ]),
        (Code::Unauthenticated, &[E::AuthFailed, E::AuthCancelled, E::AuthUnavailable]),
        (Code::PermissionDenied, &[E::OperationDenied, E::AccessDenied]),
        (Code::Aborted, &[
            E::NoDomain, E::DomExist, E::StorageVolExist, E::NetworkPortExists, E::OperationTimeout,
            E::OperationAborted, E::ResourceBusy, E::BlockCopyActive
        ]),
        (Code::FailedPrecondition, &[
            E::OperationInvalid, E::NoStorage, E::NoStoragePool, E::NoStorageVolume, E::NoNetwork,
            E::NoNetworkStart, E::NoInterface, E::NoInterfaceStart, E::NoNwfilter, E::NoNwfilterStart,
            E::NoNode, E::NoSecret, E::NoSecretStart, E::NoSecurityModel, E::BuildFirewall, E::OsType,
            E::ConfigUnsupported, E::ArgumentUnsupported, E::OperationUnsupported, E::NoSupport,
            E::CpuIncompatible, E::DeviceMissing, E::HookScriptFailed
        ]),
        (Code::ResourceExhausted, &[E::NoMemory]),
        (Code::Internal, &[
            E::InternalError, E::SystemError, E::OperationFailed, E::InvalidArg, E::XmlError,
            E::XmlDetail, E::XmlInvalidSchema, E::StorageProbeFailed, E::Overflow, E::DbusService,
            E::AgentCommandFailed, E::DriverFull, E::OpenFailed, E::ReadFailed, E::ParseFailed,
            E::ConfSyntax, E::WriteFailed, E::NoKernel, E::NoRoot, E::NoSource, E::NoTarget, E::NoName,
            E::NoOs, E::NoDevice, E::InvalidDomain, E::InvalidNetwork, E::InvalidMac,
            E::InvalidStoragePool, E::InvalidStorageVol, E::InvalidStream, E::MultipleDomains,
            E::NoHostname, E::NoDomainMetadata, E::Ok, E::GetFailed, E::PostFailed, E::HttpError,
            E::SExprSerial, E::NoXen, E::XenCall, E::NoXenStore, E::CallFailed, E::NetworkExist,
            E::InvalidNodeDevice, E::NoNodeDevice, E::InvalidInterface, E::MultipleInterfaces,
            E::InvalidNwfilter, E::InvalidNwfilterBinding, E::NoNwfilterBinding, E::InvalidSecret,
            E::StoragePoolBuilt, E::InvalidDomainSnapshot, E::NoDomainSnapshot, E::SnapshotRevertRisky,
            E::InvalidDomainCheckpoint, E::NoDomainCheckpoint, E::CheckpointInconsistent,
            E::NoDomainBackup, E::MigratePersistFailed, E::MigrateUnsafe, E::MigrateFinishOk, E::NoServer,
            E::NoClient, E::InvalidNetworkPort, E::NoNetworkPort, E::NoNetworkMetadata
        ]),
        (Code::Unknown, &[E::Last]),
    ];

    #[test]
    fn libvirt_errors_map_to_their_codes_and_none_to_not_found() {
        let rows = EXPECTED
            .iter()
            .flat_map(|(code, numbers)| numbers.iter().map(move |number| (*number, *code)));
        let numbers: HashSet<_> = rows.clone().map(|(number, _)| number).collect();
        assert_eq!(
            numbers.len(),
            rows.clone().count(),
            "an error is twice in the table"
        );
        assert_eq!(numbers.len(), E::Last as usize + 1, "a row has no test");
        for (number, expected) in rows {
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
        assert_eq!(code(ErrorNumber::Last, ""), Code::Unknown);
    }

    /// The errors are real: libvirt's library contains its test driver.
    #[test]
    fn an_error_of_libvirt_keeps_its_words_and_says_what_was_done() {
        virt::error::clear_error_callback();
        let mut connection = virt::connect::Connect::open(Some("test:///default")).unwrap();
        let error = virt::domain::Domain::lookup_by_name(&connection, "none").unwrap_err();
        let status = status("looking", error);
        assert_eq!(status.code(), Code::Aborted);
        assert!(status.message().starts_with("looking failed: "), "{status}");
        // Another call is removing it.
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
