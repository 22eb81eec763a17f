//! Objects as YAML, the same for the same input.

use serde::Serialize;
use serde_json::Value;

use super::Error;

/// One document. The detour over JSON sorts the keys, which puts `apiVersion`, `kind` and `metadata` first.
pub fn document(object: &impl Serialize) -> Result<String, Error> {
    let value: Value = serde_json::to_value(object)?;
    let mut text = serde_saphyr::to_string(&value)?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}
