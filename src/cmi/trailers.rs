//! Errors on the wire, and what travels in trailing metadata because gRPC has no room for it.
//!
//! The keys and what they mean stand at the top of `proto/capcmi/v1/capcmi.proto`. Towards the wire all of it together
//! stays below what HTTP/2 libraries take by default, so that an error never costs the stream. From the wire everything
//! is optional and may be garbage: what can't be used is ignored, and the code and message are kept.

use std::time::Duration;

use prost::Message as _;
use tonic::metadata::{Ascii, Binary, MetadataKey, MetadataMap, MetadataValue};

use super::proto::capcmi::v1;
use crate::driver::{Code, LastKnownState, Machine, Status};

/// Name of a machine code that is not canonical.
pub const MACHINE_CODE: &str = "capcmi-machine-code";
/// What the plugin wants back with the next call on the machine.
pub const LAST_KNOWN_STATE: &str = "capcmi-last-known-state-bin";
/// The machine that comes with an error, or what a response of `cmi.v1` has no room for.
pub const RESPONSE: &str = "capcmi-response-bin";
/// For how many milliseconds the plugin asks to be left alone.
pub const RETRY_AFTER: &str = "capcmi-retry-after-ms";

/// The most bytes of all metadata of an answer, as HTTP/2 counts them: what most libraries take by default.
pub const MOST_METADATA: usize = 16 * 1024;
/// The most bytes of the machine in [`RESPONSE`].
const MOST_RESPONSE: usize = 6 * 1024;
/// The most bytes of a message as a header, where a byte takes up to three. With the longest state and machine, and the
/// headers that gRPC adds, that is still less than [`MOST_METADATA`].
const MOST_MESSAGE: usize = 2 * 1024;
/// What a message that was cut ends with.
const CUT: &str = " [...]";

/// The status of a server's answer. Its details stay empty (CMI-41) and its code is canonical (CMI-24).
pub fn to_grpc(status: &Status) -> tonic::Status {
    let mut metadata = MetadataMap::new();
    if status.code() == Code::Uninitialized {
        insert(&mut metadata, MACHINE_CODE, status.code().name());
    }
    if let Some(state) = status.last_known_state() {
        insert_bytes(&mut metadata, LAST_KNOWN_STATE, state.as_bytes());
    }
    if let Some(machine) = status.machine()
        && let Some(message) = machine_message(machine.clone())
    {
        insert_bytes(&mut metadata, RESPONSE, &message.encode_to_vec());
    }
    if let Some(wait) = status.retry_after() {
        insert(&mut metadata, RETRY_AFTER, &wait.as_millis().to_string());
    }
    tonic::Status::with_metadata(canonical(status.code()), cut(status.message()), metadata)
}

/// The error that a plugin answered, or that gRPC found on the way.
///
/// NOT_FOUND beside a machine contradicts itself. Believed, it would lead to a second VM, so it is INTERNAL.
pub fn from_grpc(status: tonic::Status) -> Status {
    let metadata = status.metadata();
    let code = text(metadata, MACHINE_CODE)
        .and_then(|name| name.parse().ok())
        .filter(|code| *code == Code::Uninitialized)
        .unwrap_or_else(|| machine_code(status.code()));
    let machine = machine(metadata);
    if code == Code::NotFound
        && let Some(machine) = &machine
    {
        return contradiction(machine, status.message());
    }
    let mut read = Status::new(code, cut(status.message()));
    if let Some(state) = bytes(metadata, LAST_KNOWN_STATE).and_then(LastKnownState::new) {
        read = read.with_last_known_state(state);
    }
    if let Some(machine) = machine {
        read = read.with_machine(machine);
    }
    if let Some(wait) = text(metadata, RETRY_AFTER).and_then(milliseconds) {
        read = read.with_retry_after(wait);
    }
    if std::error::Error::source(&status).is_some() {
        read = read.with_source(status);
    }
    read
}

/// Nothing of such an answer is believed, and no part of it is passed on.
fn contradiction(machine: &Machine, message: &str) -> Status {
    let why = format!(
        "the plugin's answer contradicts itself: NOT_FOUND beside the machine {}: {message}",
        machine.provider_id
    );
    Status::new(Code::Internal, cut(&why))
}

/// What goes next to the OK of CreateMachine and of GetMachineStatus: all that their responses have no room for.
pub fn beside(machine: Machine) -> MetadataMap {
    let mut metadata = MetadataMap::new();
    if let Some(message) = machine_message(machine) {
        insert_bytes(&mut metadata, RESPONSE, &message.encode_to_vec());
    }
    metadata
}

/// The machine of a response with what the metadata next to its OK says besides.
///
/// A machine there that is another one is ignored.
pub fn completed(machine: Machine, metadata: &MetadataMap) -> Machine {
    match self::machine(metadata) {
        Some(beside)
            if beside.provider_id == machine.provider_id && beside.node_name == machine.node_name =>
        {
            Machine {
                last_known_state: machine.last_known_state.or(beside.last_known_state),
                ..beside
            }
        }
        Some(_) | None => machine,
    }
}

/// None when even the two names are too long. Addresses that find no room are left out.
fn machine_message(machine: Machine) -> Option<v1::Machine> {
    let mut message = v1::Machine::from(machine);
    while message.encoded_len() > MOST_RESPONSE {
        message.addresses.pop()?;
    }
    Some(message)
}

fn machine(metadata: &MetadataMap) -> Option<Machine> {
    let bytes = bytes(metadata, RESPONSE).filter(|bytes| bytes.len() <= MOST_RESPONSE)?;
    v1::Machine::decode(bytes.as_slice()).ok()?.try_into().ok()
}

fn insert(metadata: &mut MetadataMap, key: &'static str, value: &str) {
    if let Ok(value) = MetadataValue::<Ascii>::try_from(value) {
        metadata.insert(MetadataKey::<Ascii>::from_static(key), value);
    }
}

fn insert_bytes(metadata: &mut MetadataMap, key: &'static str, value: &[u8]) {
    metadata.insert_bin(
        MetadataKey::<Binary>::from_static(key),
        MetadataValue::from_bytes(value),
    );
}

fn text<'m>(metadata: &'m MetadataMap, key: &str) -> Option<&'m str> {
    metadata.get(key)?.to_str().ok()
}

fn bytes(metadata: &MetadataMap, key: &str) -> Option<Vec<u8>> {
    Some(metadata.get_bin(key)?.to_bytes().ok()?.to_vec())
}

/// Decimal digits and nothing else.
fn milliseconds(text: &str) -> Option<Duration> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let millis = text.parse().ok().filter(|_| is_number);
    millis.map(Duration::from_millis)
}

/// The message, or so much of it as a header has room for.
fn cut(message: &str) -> String {
    let mut room = MOST_MESSAGE;
    for (at, c) in message.char_indices() {
        let size = size_in_header(c);
        if size > room {
            let kept = at.saturating_sub(3 * CUT.len());
            return format!("{}{CUT}", &message[..message.floor_char_boundary(kept)]);
        }
        room -= size;
    }
    message.to_owned()
}

/// How many bytes a character takes at most in `grpc-message`, which is percent-encoded.
fn size_in_header(c: char) -> usize {
    if c.is_ascii_alphanumeric() {
        1
    } else {
        3 * c.len_utf8()
    }
}

/// The canonical code that stands for a machine code.
fn canonical(code: Code) -> tonic::Code {
    match code {
        Code::Canceled => tonic::Code::Cancelled,
        Code::Unknown => tonic::Code::Unknown,
        Code::InvalidArgument => tonic::Code::InvalidArgument,
        Code::DeadlineExceeded => tonic::Code::DeadlineExceeded,
        Code::NotFound => tonic::Code::NotFound,
        Code::AlreadyExists => tonic::Code::AlreadyExists,
        Code::PermissionDenied => tonic::Code::PermissionDenied,
        Code::ResourceExhausted => tonic::Code::ResourceExhausted,
        // The VM exists and has to become something else before it can be used.
        Code::FailedPrecondition | Code::Uninitialized => tonic::Code::FailedPrecondition,
        Code::Aborted => tonic::Code::Aborted,
        Code::OutOfRange => tonic::Code::OutOfRange,
        Code::Unimplemented => tonic::Code::Unimplemented,
        Code::Internal => tonic::Code::Internal,
        Code::Unavailable => tonic::Code::Unavailable,
        Code::DataLoss => tonic::Code::DataLoss,
        Code::Unauthenticated => tonic::Code::Unauthenticated,
    }
}

/// The machine code of a canonical one. tonic reads numbers that it does not know as UNKNOWN.
fn machine_code(code: tonic::Code) -> Code {
    match code {
        // An error that says OK says nothing.
        tonic::Code::Ok | tonic::Code::Unknown => Code::Unknown,
        tonic::Code::Cancelled => Code::Canceled,
        tonic::Code::InvalidArgument => Code::InvalidArgument,
        tonic::Code::DeadlineExceeded => Code::DeadlineExceeded,
        tonic::Code::NotFound => Code::NotFound,
        tonic::Code::AlreadyExists => Code::AlreadyExists,
        tonic::Code::PermissionDenied => Code::PermissionDenied,
        tonic::Code::ResourceExhausted => Code::ResourceExhausted,
        tonic::Code::FailedPrecondition => Code::FailedPrecondition,
        tonic::Code::Aborted => Code::Aborted,
        tonic::Code::OutOfRange => Code::OutOfRange,
        tonic::Code::Unimplemented => Code::Unimplemented,
        tonic::Code::Internal => Code::Internal,
        tonic::Code::Unavailable => Code::Unavailable,
        tonic::Code::DataLoss => Code::DataLoss,
        tonic::Code::Unauthenticated => Code::Unauthenticated,
    }
}

#[cfg(test)]
mod tests;
