//! Parses any error of a plugin, including garbage in its metadata. The result has a code and a message, and
//! fits into the headers of a client in any language. A text that is too long is cut, but a second round trip
//! cuts nothing more.
//!
//! It also parses the text form of errors, which must survive a round trip unchanged.
#![no_main]

use cmi_grpc::trailers::{self, LAST_KNOWN_STATE, MACHINE_CODE, MAX_METADATA, RESPONSE, RETRY_AFTER};
use cmi_driver::{Machine, Status};
use http::{HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;
use tonic::metadata::MetadataMap;

const KEYS: [&str; 4] = [MACHINE_CODE, LAST_KNOWN_STATE, RESPONSE, RETRY_AFTER];

/// The input is a code, followed by lines: the message, and a value for each key.
fn error(data: &[u8]) -> Option<tonic::Status> {
    let (code, rest) = data.split_first()?;
    let mut lines = rest.split(|byte| *byte == b'\n');
    let message = String::from_utf8_lossy(lines.next()?).into_owned();
    let mut headers = HeaderMap::new();
    for (key, value) in KEYS.into_iter().zip(lines) {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.append(HeaderName::from_static(key), value);
        }
    }
    let metadata = MetadataMap::from_headers(headers);
    Some(tonic::Status::with_metadata(
        i32::from(*code).into(),
        message,
        metadata,
    ))
}

fn header_bytes(status: tonic::Status) -> usize {
    let response = status.into_http::<()>();
    let headers = response.headers().iter();
    headers
        .map(|(name, value)| name.as_str().len() + value.len() + 32)
        .sum()
}

/// The parts of a machine that are never cut.
fn names(machine: &Machine) -> (&str, &str) {
    (machine.provider_id.as_str(), &machine.node_name)
}

fuzz_target!(|data: &[u8]| {
    if let Some(error) = error(data) {
        let read = trailers::from_grpc(error);
        assert!(!read.message().trim().is_empty());
        let sent = trailers::to_grpc(&read);
        assert!(header_bytes(sent.clone()) < MAX_METADATA);
        let once = trailers::from_grpc(sent);
        assert_eq!(once.code(), read.code());
        assert!(once.message() == read.message() || once.message().ends_with(" [...]"));
        assert_eq!(once.retry_after(), read.retry_after());
        assert_eq!(once.machine().map(names), read.machine().map(names));
        let its_state = read.machine().and_then(|machine| machine.last_known_state.as_ref());
        assert_eq!(once.last_known_state(), read.last_known_state().or(its_state));
        let twice = trailers::from_grpc(trailers::to_grpc(&once));
        assert_eq!(twice.message(), once.message());
        assert_eq!(twice.machine(), once.machine());
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(read) = text.parse::<Status>()
    {
        let again: Status = read.to_string().parse().expect("what was written can be read");
        assert_eq!((again.code(), again.message()), (read.code(), read.message()));
    }
});
