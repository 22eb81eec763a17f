//! Where two provider specs differ.

use serde_json::Value;

use cmi_driver::{JsonPointer, ProviderSpec};

/// The places in which two specs differ, as deep as both are objects.
pub fn difference(old: &ProviderSpec, new: &ProviderSpec) -> Vec<JsonPointer> {
    let mut found = Vec::new();
    differ(
        &Value::Object(old.0.clone()),
        &Value::Object(new.0.clone()),
        "",
        &mut found,
    );
    found
}

fn differ(old: &Value, new: &Value, path: &str, found: &mut Vec<JsonPointer>) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let keys: std::collections::BTreeSet<_> = old.keys().chain(new.keys()).collect();
            for key in keys {
                let path = format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
                let (old, new) = (
                    old.get(key).unwrap_or(&Value::Null),
                    new.get(key).unwrap_or(&Value::Null),
                );
                differ(old, new, &path, found);
            }
        }
        _ if old != new => found.extend(path.parse()),
        _ => {}
    }
}
