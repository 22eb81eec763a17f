//! Errors on the wire, and the trailing metadata for information without a field in gRPC.
//!
//! `proto/capcmi/v1/capcmi.proto` describes at its top the keys, their meaning, and which of them are dropped
//! first when there is no room for all. When sent, all of the metadata stays below the default limit of every
//! gRPC library, so that an error never costs the stream. When received, every key is optional and may be
//! garbage: unusable values are ignored, and the code and message are kept.

use std::time::Duration;

use prost::Message as _;
use tonic::metadata::{Ascii, Binary, MetadataKey, MetadataMap, MetadataValue};

use super::proto::capcmi::v1;
use cmi_driver::{Code, LastKnownState, Machine, ProviderId, Status};

/// Name of a machine code that is not canonical.
pub const MACHINE_CODE: &str = "capcmi-machine-code";
/// The state that the plugin gets back with the next call on the machine.
pub const LAST_KNOWN_STATE: &str = "capcmi-last-known-state-bin";
/// The machine of an error, or the fields of a machine that a response of `cmi.v1` lacks.
pub const RESPONSE: &str = "capcmi-response-bin";
/// The delay in milliseconds that the plugin requests before the next call.
pub const RETRY_AFTER: &str = "capcmi-retry-after-ms";
/// Whether the plugin has begun nothing: `true`.
pub const NOTHING_BEGUN: &str = "capcmi-nothing-begun";

/// The most bytes of all headers of an answer, as HTTP/2 counts them. This is the default limit of gRPC for
/// Java and of gRPC's C core (Python, Ruby, C++).
pub const MAX_METADATA: usize = 8 * 1024;
/// The share of `:status`, `content-type`, `date`, `grpc-status` and the name of `grpc-message`, which take
/// 256 bytes, and of the headers that a proxy adds.
const FOR_OTHERS: usize = 384;
/// The overhead that HTTP/2 counts for a header, in addition to its name and its value.
const PER_HEADER: usize = 32;
/// The most bytes of the machine in [`RESPONSE`] that are read.
const MAX_RESPONSE: usize = 6 * 1024;
/// The size of [`RESPONSE`] with only an id, a name and a power state.
const NAMES: usize = RESPONSE.len() + PER_HEADER + base64_len(ProviderId::MAX_BYTES + 253 + 16);
/// The most bytes of a message in the header, which takes up to three bytes for each.
const MAX_MESSAGE: usize = 2 * 1024;
/// The bytes of the field's number and type before each address of a machine.
const ADDRESS_KEY: usize = 1;
/// The value of a flag that is set.
const YES: &str = "true";
/// The end of a message that was cut.
const CUT: &str = " [...]";

/// Metadata, and how many more bytes of headers a client takes.
struct Outgoing {
    metadata: MetadataMap,
    room: usize,
}

impl Outgoing {
    fn new() -> Self {
        Self {
            metadata: MetadataMap::new(),
            room: MAX_METADATA - FOR_OTHERS,
        }
    }

    fn text(&mut self, key: &'static str, value: &str) {
        self.take(key.len() + PER_HEADER + value.len());
        insert(&mut self.metadata, key, value);
    }

    fn bytes(&mut self, key: &'static str, value: &[u8]) {
        self.take(key.len() + PER_HEADER + base64_len(value.len()));
        insert_bytes(&mut self.metadata, key, value);
    }

    /// The message, without its end where the rest of an error needs the room.
    fn message(&mut self, message: &str) -> String {
        let message = cut(message, self.room.saturating_sub(NAMES).min(MAX_MESSAGE));
        self.take(message.chars().map(size_in_header).sum());
        message
    }

    /// The machine, without some of its addresses, and then without its failure domain, where
    /// these find no room. Its names always do, unless they break the rules of their fields: then
    /// no client would read them.
    fn machine(&mut self, mut machine: v1::Machine) {
        let most = self.room.saturating_sub(RESPONSE.len() + PER_HEADER) / 4 * 3;
        let addresses = std::mem::take(&mut machine.addresses);
        let mut size = machine.encoded_len();
        let fits = |address: &v1::MachineAddress| {
            let length = address.encoded_len();
            size += ADDRESS_KEY + prost::length_delimiter_len(length) + length;
            size <= most
        };
        machine.addresses = addresses.into_iter().take_while(fits).collect();
        if machine.encoded_len() > most {
            machine.failure_domain.clear();
        }
        if machine.encoded_len() <= most {
            self.bytes(RESPONSE, &machine.encode_to_vec());
        }
    }

    fn take(&mut self, bytes: usize) {
        self.room = self.room.saturating_sub(bytes);
    }
}

/// The status of a server's answer. Its details stay empty (CMI-41) and its code is canonical (CMI-24).
///
/// The state travels once, be it the error's or that of its machine.
pub fn to_grpc(status: &Status) -> tonic::Status {
    let mut outgoing = Outgoing::new();
    if status.code() == Code::Uninitialized {
        outgoing.text(MACHINE_CODE, status.code().name());
    }
    if let Some(wait) = status.retry_after() {
        outgoing.text(RETRY_AFTER, &wait.as_millis().to_string());
    }
    let machine = status.machine().cloned();
    if status.has_no_side_effects() && machine.is_none() {
        outgoing.text(NOTHING_BEGUN, YES);
    }
    let its_state = machine
        .as_ref()
        .and_then(|machine| machine.last_known_state.as_ref());
    if let Some(state) = status.last_known_state().or(its_state) {
        outgoing.bytes(LAST_KNOWN_STATE, state.as_bytes());
    }
    let message = outgoing.message(status.message());
    if let Some(machine) = machine {
        outgoing.machine(v1::Machine {
            last_known_state: Vec::new(),
            ..machine.into()
        });
    }
    tonic::Status::with_metadata(canonical(status.code()), message, outgoing.metadata)
}

/// Reads an error from a plugin or from gRPC itself.
///
/// NOT_FOUND beside a machine contradicts itself. Believed, it would lead to a second VM, so it is INTERNAL.
///
/// The message is not cut; the limit on headers bounds it. The caller removes secrets before it shows the
/// message (OPS-11), and would not find half of a secret.
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
    // Where a machine exists, something was begun.
    let no_side_effects = machine.is_none() && text(metadata, NOTHING_BEGUN) == Some(YES);
    let mut read = Status::new(code, status.message());
    if let Some(state) = bytes(metadata, LAST_KNOWN_STATE).and_then(LastKnownState::new) {
        read = read.with_last_known_state(state);
    }
    if let Some(machine) = machine {
        read = read.with_machine(machine);
    }
    if let Some(wait) = text(metadata, RETRY_AFTER).and_then(milliseconds) {
        read = read.with_retry_after(wait);
    }
    if no_side_effects {
        read = read.with_no_side_effects();
    }
    if std::error::Error::source(&status).is_some() {
        read = read.with_source(status);
    }
    read
}

/// Nothing of such an answer is believed, and no part of it is passed on.
fn contradiction(machine: &Machine, message: &str) -> Status {
    let why = format!(
        "the plugin's answer is contradictory: NOT_FOUND with machine {}: {message}",
        machine.provider_id
    );
    Status::new(Code::Internal, why)
}

/// The metadata beside the OK of CreateMachine and of GetMachineStatus: everything that their responses have
/// no fields for.
pub fn beside(machine: Machine) -> MetadataMap {
    let mut outgoing = Outgoing::new();
    outgoing.machine(machine.into());
    outgoing.metadata
}

/// Completes the machine of a response with the metadata of its OK.
///
/// Metadata about another machine is ignored.
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

fn machine(metadata: &MetadataMap) -> Option<Machine> {
    let bytes = bytes(metadata, RESPONSE).filter(|bytes| bytes.len() <= MAX_RESPONSE)?;
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

/// Returns as much of the message as fits. Does not cut within a word: the client searches the message for
/// secrets, and would not find half of one.
fn cut(message: &str, most: usize) -> String {
    let mut room = most;
    for (at, c) in message.char_indices() {
        let size = size_in_header(c);
        if size > room {
            let kept = message.floor_char_boundary(at.saturating_sub(3 * CUT.len()));
            let words = message[..kept].trim_end_matches(|c: char| c.is_ascii_graphic());
            return format!("{}{CUT}", words.trim_end());
        }
        room -= size;
    }
    message.to_owned()
}

/// Returns the length of this many bytes in base64 without padding.
const fn base64_len(bytes: usize) -> usize {
    (bytes * 4).div_ceil(3)
}

/// Returns the most bytes that a character takes in the percent-encoded `grpc-message`.
fn size_in_header(c: char) -> usize {
    if c.is_ascii_alphanumeric() {
        1
    } else {
        3 * c.len_utf8()
    }
}

/// Returns the canonical code for a machine code.
fn canonical(code: Code) -> tonic::Code {
    match code {
        // The VM exists, but must be initialized before it can be used.
        Code::Uninitialized => tonic::Code::FailedPrecondition,
        code => tonic::Code::from_i32(code.number().into()),
    }
}

/// Returns the machine code for a canonical code. tonic reads unknown numbers as UNKNOWN, and an error with
/// OK is meaningless.
fn machine_code(code: tonic::Code) -> Code {
    let number = u8::try_from(i32::from(code)).unwrap_or_default();
    Code::try_from(number).unwrap_or(Code::Unknown)
}

#[cfg(test)]
mod tests;
