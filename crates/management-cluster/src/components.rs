//! Cluster API's own installation of a manager, changed for a manager that runs as a plain process.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use k8s_openapi::ByteString;
use serde_json::{Value, json};

/// The objects that Cluster API installs for a manager, without its Pod.
pub(crate) struct Components {
    /// Namespace, kinds, `ServiceAccount` and permissions.
    pub installation: Vec<Value>,
    /// The registrations of the admission webhooks, which only a running manager can answer.
    pub webhooks: Vec<Value>,
}

impl Components {
    /// Reads the components, with every webhook pointing at a manager that listens on `port` of the loopback
    /// interface with a certificate of `authority`.
    pub(crate) fn read(path: &Path, port: u16, authority: &str) -> Result<Self> {
        let objects = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        let objects: Vec<Value> = serde_json::from_slice(&objects)?;
        let mut components = Self {
            installation: Vec::new(),
            webhooks: Vec::new(),
        };
        for mut object in objects {
            point_at_loopback(&mut object, port, authority);
            match object["kind"].as_str().unwrap_or_default() {
                "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => {
                    components.webhooks.push(object);
                }
                // The Pod, and objects that only a Pod needs.
                "Deployment" | "Service" | "Certificate" | "Issuer" => {}
                _ => components.installation.push(object),
            }
        }
        Ok(components)
    }
}

/// Replaces every `clientConfig` with a Service by one with a URL, at any place.
fn point_at_loopback(value: &mut Value, port: u16, authority: &str) {
    match value {
        Value::Object(fields) => {
            if let Some(path) = fields
                .get("clientConfig")
                .and_then(|config| config["service"]["path"].as_str())
            {
                let url = format!("https://127.0.0.1:{port}{path}");
                let authority = ByteString(authority.as_bytes().to_vec());
                fields.insert(
                    "clientConfig".to_owned(),
                    json!({"url": url, "caBundle": authority}),
                );
            }
            fields
                .values_mut()
                .for_each(|field| point_at_loopback(field, port, authority));
        }
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| point_at_loopback(item, port, authority)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_becomes_a_url_at_any_depth() {
        let service =
            json!({"service": {"name": "webhook-service", "namespace": "system", "path": "/convert"}});
        let mut definition = json!({"spec": {"conversion": {"webhook": {"clientConfig": service}}}});
        point_at_loopback(&mut definition, 4711, "CA");
        let expected = json!({"url": "https://127.0.0.1:4711/convert", "caBundle": "Q0E="});
        assert_eq!(
            definition["spec"]["conversion"]["webhook"]["clientConfig"],
            expected
        );
    }
}
