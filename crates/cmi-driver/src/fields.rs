//! Checks of the fields of a provider spec, with the field's JSON pointer in the error.

use std::collections::BTreeMap;
use std::fmt::Debug;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::{Code, Result, Status};

/// An INVALID_ARGUMENT error about a field of the provider spec.
pub fn invalid(pointer: &str, problem: &str) -> Status {
    Status::new(
        Code::InvalidArgument,
        format!("the provider spec's {pointer} {problem}"),
    )
}

/// An OUT_OF_RANGE error about a field of the provider spec: its value is valid, and no VM can have it
/// (DRV-CR-11).
pub fn out_of_range(pointer: &str, problem: &str) -> Status {
    Status::new(
        Code::OutOfRange,
        format!("the provider spec's {pointer} {problem}"),
    )
}

/// Looks up the name that a field holds.
///
/// # Errors
/// INVALID_ARGUMENT with the known names.
pub fn known<'a, T>(all: &'a BTreeMap<String, T>, name: &str, pointer: &str) -> Result<&'a T> {
    all.get(name).ok_or_else(|| unknown(pointer, name, all.keys()))
}

/// An INVALID_ARGUMENT error about a field that holds an unknown name.
pub fn unknown<T: Debug>(pointer: &str, name: &str, known: impl Iterator<Item = T>) -> Status {
    let known: Vec<_> = known.collect();
    let problem = format!("is `{name}`, which does not exist: use one of {known:?}");
    invalid(pointer, &problem)
}

/// Reads a required string that is not blank, for serde's `deserialize_with`.
///
/// # Errors
/// The value is not a string, or is blank.
pub fn not_blank<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.trim().is_empty() {
        return Err(D::Error::custom("must be a string that is not blank"));
    }
    Ok(text)
}

/// Reads an optional string that is not blank, for serde's `deserialize_with` beside `default`. The field may
/// be absent, but not null.
///
/// # Errors
/// The value is not a string, or is blank.
pub fn not_blank_if_present<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<String>, D::Error> {
    not_blank(deserializer).map(Some)
}
