//! The patches that the server applies.

use json_patch::Patch as JsonPatch;
use serde_json::Value;

use crate::store::Refusal;

/// How a patch changes an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strategy {
    /// JSON merge patch. Strategic merge patches count as one: no list is merged by key.
    Merge,
    /// JSON patch.
    Json,
    /// Server-side apply. Fields that the same manager applied before and no longer does are removed;
    /// conflicts between managers are not detected.
    Apply,
}

impl Strategy {
    pub(crate) fn of(content_type: &str) -> Option<Self> {
        match content_type.split(';').next().unwrap_or_default().trim() {
            "application/merge-patch+json" | "application/strategic-merge-patch+json" => Some(Self::Merge),
            "application/json-patch+json" => Some(Self::Json),
            "application/apply-patch+yaml" => Some(Self::Apply),
            _ => None,
        }
    }
}

pub(crate) fn json(object: &mut Value, patch: &Value) -> Result<(), Refusal> {
    let patch: JsonPatch = serde_json::from_value(patch.clone())
        .map_err(|error| Refusal::bad_request(format!("the JSON patch cannot be read: {error}")))?;
    json_patch::patch(object, &patch)
        .map_err(|error| Refusal::invalid(format!("the JSON patch does not apply: {error}")))
}

/// Removes the fields of `object` that were applied before and are not applied now.
pub(crate) fn remove_unapplied(object: &mut Value, before: &Value, now: &Value) {
    let (Some(fields), Some(before)) = (object.as_object_mut(), before.as_object()) else {
        return;
    };
    for (name, applied) in before {
        match now.get(name) {
            Some(still) => {
                if let Some(field) = fields.get_mut(name) {
                    remove_unapplied(field, applied, still);
                }
            }
            None => drop(fields.remove(name)),
        }
    }
}
