//! Records for tests.

use serde_json::{Value, json};

/// Returns the annotation value for a machine, `<namespace>/<name>/<id>`, with an existing VM.
pub fn existing(machine: &str, made_from: &Value) -> String {
    in_state(machine, &json!({"name": "Exists"}), made_from)
}

/// Like [`existing`], for a VM in another state.
pub fn in_state(machine: &str, state: &Value, made_from: &Value) -> String {
    let record = json!({
        "version": "v1", "machine": machine, "cluster": "c-1", "state": state, "madeFrom": made_from,
    });
    record.to_string()
}
