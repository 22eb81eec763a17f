//! The rules for single fields.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use serde_json::{Map, Value};

use cmi_driver::{
    Code, LastKnownState, MachineClass, Operation, ProviderId, ProviderIdError, SecretValue, Secrets, Status,
};

/// The default limit on the bytes of a string (CMI-14).
pub(super) const TEXT: usize = 128;
/// The default limit on the bytes of a `map<string, string>`, keys and values together (CMI-14).
pub(super) const MAP: usize = 4 * 1024;
/// The most bytes of a machine's or node's name in Kubernetes.
pub(super) const NAME: usize = 253;
/// The most bytes of a failure domain or an address in Cluster API.
pub(super) const PLACE: usize = 256;
/// The most bytes of a JSON object: no object of Kubernetes is larger.
pub(super) const OBJECT: usize = 1024 * 1024;
/// Nanoseconds of a second.
const NANOSECONDS: i32 = 1_000_000_000;
/// The most bytes of all secrets of a request, keys and values together.
const SECRETS: usize = 2 * 1024 * 1024;

/// A field of a message that breaks a rule of `proto/`.
///
/// It names the field as the file does, and shows nothing of its value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("field {field} {problem}")]
pub struct FieldError {
    field: &'static str,
    problem: FieldProblem,
}

/// The mistake in a field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldProblem {
    /// A REQUIRED field has its zero value.
    #[error("is required")]
    Missing,
    /// It is longer than the file allows.
    #[error("has {bytes} bytes; the limit is {most}")]
    TooLong {
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        most: usize,
    },
    /// It is no JSON, or another kind of JSON.
    #[error("is not a JSON {expected}, at line {line}, column {column}")]
    NotJson {
        /// The expected kind.
        expected: &'static str,
        /// Where that is seen, from 1.
        line: usize,
        /// Where that is seen, from 0.
        column: usize,
    },
    /// It is text or a number that does not follow the rule.
    #[error("{0}")]
    Malformed(&'static str),
}

impl FieldError {
    /// The field, as the file names it.
    pub fn field(&self) -> &'static str {
        self.field
    }

    /// Returns the mistake in the field.
    pub fn problem(&self) -> &FieldProblem {
        &self.problem
    }

    /// The server's answer to a request with this field (CMI-28, CMI-30).
    pub fn in_request(&self) -> Status {
        Status::new(Code::InvalidArgument, self.to_string())
    }

    /// The client's error for a response with this field: whether the call was done is not known.
    pub fn in_response(&self, operation: Operation) -> Status {
        Status::new(
            Code::Internal,
            format!("invalid answer of the plugin to {operation}: {self}"),
        )
    }
}

/// Reads one field. The error contains its name.
#[derive(Clone, Copy)]
pub(super) struct Field(pub &'static str);

impl Field {
    pub(super) fn wrong(self, problem: FieldProblem) -> FieldError {
        FieldError {
            field: self.0,
            problem,
        }
    }

    fn within(self, bytes: usize, most: usize) -> Result<(), FieldError> {
        if bytes > most {
            return Err(self.wrong(FieldProblem::TooLong { bytes, most }));
        }
        Ok(())
    }

    /// Text that may not be left out.
    pub(super) fn text(self, text: String, most: usize) -> Result<String, FieldError> {
        self.optional_text(text, most)?
            .ok_or_else(|| self.wrong(FieldProblem::Missing))
    }

    /// Text, or nothing when it is empty.
    pub(super) fn optional_text(self, text: String, most: usize) -> Result<Option<String>, FieldError> {
        self.within(text.len(), most)?;
        Ok((!text.is_empty()).then_some(text))
    }

    pub(super) fn provider_id(self, text: &str) -> Result<ProviderId, FieldError> {
        text.parse().map_err(|error| match error {
            ProviderIdError::Empty => self.wrong(FieldProblem::Missing),
            ProviderIdError::TooLong(bytes) => self.wrong(FieldProblem::TooLong {
                bytes,
                most: ProviderId::MAX_BYTES,
            }),
        })
    }

    pub(super) fn state(self, bytes: Vec<u8>) -> Result<Option<LastKnownState>, FieldError> {
        self.within(bytes.len(), LastKnownState::MAX_BYTES)?;
        Ok(LastKnownState::new(bytes))
    }

    /// JSON of any kind.
    pub(super) fn json<T: serde::de::DeserializeOwned>(
        self,
        bytes: &[u8],
        most: usize,
        expected: &'static str,
    ) -> Result<T, FieldError> {
        if bytes.is_empty() {
            return Err(self.wrong(FieldProblem::Missing));
        }
        self.within(bytes.len(), most)?;
        // The parser's own words may repeat a value.
        serde_json::from_slice(bytes).map_err(|error| {
            self.wrong(FieldProblem::NotJson {
                expected,
                line: error.line(),
                column: error.column(),
            })
        })
    }

    pub(super) fn object(self, bytes: &[u8]) -> Result<Map<String, Value>, FieldError> {
        self.json(bytes, OBJECT, "object")
    }

    pub(super) fn map(self, map: HashMap<String, String>) -> Result<BTreeMap<String, String>, FieldError> {
        self.within(map.iter().map(|(key, value)| key.len() + value.len()).sum(), MAP)?;
        Ok(map.into_iter().collect())
    }

    /// A time since 1970, to the nanosecond.
    pub(super) fn timestamp(
        self,
        message: Option<prost_types::Timestamp>,
    ) -> Result<Option<Timestamp>, FieldError> {
        let Some(prost_types::Timestamp { seconds, nanos }) = message else {
            return Ok(None);
        };
        let wrong = || self.wrong(FieldProblem::Malformed("is not a time between 1970 and 9999"));
        if seconds < 0 || !(0..NANOSECONDS).contains(&nanos) {
            return Err(wrong());
        }
        Timestamp::new(seconds, nanos).map(Some).map_err(|_| wrong())
    }

    pub(super) fn secrets(self, secrets: HashMap<String, Vec<u8>>) -> Result<Secrets, FieldError> {
        let bytes = secrets.iter().map(|(key, value)| key.len() + value.len()).sum();
        self.within(bytes, SECRETS)?;
        if !secrets.keys().all(|key| is_secret_key(key)) {
            return Err(self.wrong(FieldProblem::Malformed(
                "has an invalid key: use letters, digits, `-`, `_` and `.`",
            )));
        }
        let values = secrets.into_iter();
        Ok(values
            .map(|(key, value)| (key, SecretValue::from(value)))
            .collect())
    }
}

/// CMI-43
fn is_secret_key(key: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !key.is_empty() && key.chars().all(is_inner)
}

/// The message that [`Field::timestamp`] reads; a time before 1970 is written as 1970.
pub(super) fn timestamp_message(at: Timestamp) -> prost_types::Timestamp {
    let at = at.max(Timestamp::UNIX_EPOCH);
    prost_types::Timestamp {
        seconds: at.as_second(),
        nanos: at.subsec_nanosecond(),
    }
}

/// The two fields of a class.
pub(super) fn class_fields(class: MachineClass) -> (Vec<u8>, HashMap<String, Vec<u8>>) {
    let secrets = class.secrets.iter();
    let secrets = secrets.map(|(key, value)| (key.to_owned(), value.expose().to_vec()));
    let secrets = secrets.collect();
    (object_bytes(class.provider_spec.0), secrets)
}

pub(super) fn object_bytes(object: Map<String, Value>) -> Vec<u8> {
    Value::Object(object).to_string().into_bytes()
}

pub(super) fn state_bytes(state: Option<&LastKnownState>) -> Vec<u8> {
    state.map_or_else(Vec::new, |state| state.as_bytes().to_vec())
}
