//! The Secrets of a class.

use std::collections::{BTreeMap, BTreeSet};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Map, Value, json};

use super::objects::{labels_of, metadata};
use super::{Destination, Object};
use crate::migration::source::{SecretData, Source, text};
use capcmi::api::labels;

/// The Secret key for bootstrap data in machine-controller-manager.
pub const USER_DATA: &str = "userData";
/// The placeholders that machine-controller-manager replaces in bootstrap data for every machine; nothing
/// else does.
const PLACEHOLDERS: [&str; 4] = [
    "<<BOOTSTRAP_TOKEN>>",
    "<<MACHINE_NAME>>",
    "%3C%3CBOOTSTRAP_TOKEN%3E%3E",
    "%3C%3CMACHINE_NAME%3E%3E",
];

/// The keys of a Secret, joined.
pub fn keys(data: &SecretData) -> String {
    let keys: Vec<_> = data.0.keys().map(String::as_str).collect();
    keys.join(", ")
}

/// The data that machine-controller-manager hands to the driver, merged from both Secrets of the class, and
/// where the Secrets are.
pub fn secrets(source: &Source, target: &Destination, class: &Value) -> Result<(SecretData, String), String> {
    let mut all = SecretData::default();
    let mut places = BTreeSet::new();
    for field in ["secretRef", "credentialsSecretRef"] {
        let own = text(class, &format!("/{field}/name"));
        if own.is_empty() {
            continue;
        }
        let key = secret_key(class, field);
        if !target.secrets_of_other_namespaces && key.0 != text(class, "/metadata/namespace") {
            return Err(format!(
                "{field} names Secret {}/{} in another namespace, which the author may not be allowed to \
                    read: to copy it anyway, set --secrets-of-other-namespaces",
                key.0, key.1
            ));
        }
        let found = source.secrets.get(&key).ok_or_else(|| {
            format!(
                "{field} names Secret {}/{}, which does not exist: add it to the input",
                key.0, key.1
            )
        })?;
        all.0.extend(found.0.clone());
        places.insert(format!("{}/{}", key.0, key.1));
    }
    let places: Vec<_> = places.into_iter().collect();
    Ok((all, places.join(" and ")))
}

/// Namespace and name of a Secret of a class.
pub fn secret_key(class: &Value, field: &str) -> (String, String) {
    let namespace = text(class, &format!("/{field}/namespace"));
    let namespace = if namespace.is_empty() {
        text(class, "/metadata/namespace")
    } else {
        namespace
    };
    (namespace, text(class, &format!("/{field}/name")))
}

/// Returns a Secret with these values, and with the label that makes `clusterctl move` include it.
pub fn secret(target: &Destination, name: &str, from: &str, type_: &str, values: &SecretData) -> Value {
    let mut all = labels_of(target);
    // No object of a Cluster owns the Secret.
    all.insert(labels::MOVE.to_owned(), json!(""));
    let data: Map<_, _> = values
        .0
        .iter()
        .map(|(key, value)| (key.clone(), json!(BASE64_STANDARD.encode(value))))
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": type_,
        "metadata": metadata(target, name, from, &all), "data": data,
    })
}

/// Returns the Secret with the bootstrap data of later machines.
pub fn bootstrap(target: &Destination, name: &str, from: &str, user_data: &[u8]) -> Result<Object, String> {
    let readable = String::from_utf8_lossy(user_data);
    if let Some(placeholder) = PLACEHOLDERS
        .into_iter()
        .find(|placeholder| readable.contains(placeholder))
    {
        return Err(format!(
            "{USER_DATA} contains {placeholder}, which only machine-controller-manager replaces, so new \
                machines would not join: set --bootstrap-secret"
        ));
    }
    let format = if readable.trim_start().starts_with('{') {
        "ignition"
    } else {
        "cloud-config"
    };
    let values = SecretData(BTreeMap::from([
        ("value".to_owned(), user_data.to_vec()),
        ("format".to_owned(), format.into()),
    ]));
    let body = secret(target, name, from, "cluster.x-k8s.io/secret", &values);
    Ok(Object::new("Secret", name.to_owned(), String::new(), body))
}
