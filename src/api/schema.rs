//! Parts of JSON schemas that cannot be derived.

use schemars::{Schema, SchemaGenerator, json_schema};

/// The most fields that an open object may have.
pub const MAX_PROPERTIES: usize = 256;

/// An object with fields that this API does not define.
pub fn open_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true,
        "maxProperties": MAX_PROPERTIES})
}

/// Conditions: one per type, as `metav1.Condition` bounds them.
pub fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 32,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
            "properties": {
                "type": {"type": "string", "maxLength": 316, "minLength": 1},
                "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                "reason": {"type": "string", "maxLength": 256, "minLength": 1},
                "message": {"type": "string", "maxLength": 32768},
                "lastTransitionTime": {"type": "string", "format": "date-time", "maxLength": 64},
                "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
            },
        },
    })
}

/// A moment, as RFC 3339 writes it.
pub fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date-time", "maxLength": 64})
}

/// Labels or annotations of a template.
pub fn string_map(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 128,
        "additionalProperties": {"type": "string", "maxLength": 65536},
    })
}

/// Resource quantities by resource name.
pub fn quantities(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 64,
        "additionalProperties": {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": true,
            "maxLength": 64,
            "pattern": concat!(
                r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))",
                r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
            ),
        },
    })
}

/// The status that the API server shows before the first reconcile. Tools such as kstatus compare
/// `observedGeneration` with the generation, and take an object without status for a finished one.
pub fn unobserved() -> serde_json::Value {
    serde_json::json!({"observedGeneration": -1})
}
