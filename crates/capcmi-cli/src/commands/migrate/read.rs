//! The objects of machine-controller-manager, from files or a cluster.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use kube::Client;
use kube::api::{DynamicObject, ListParams};
use serde_json::Value;

use crate::migration::plan::secret_key;
use crate::migration::source::{GROUP, Source, VERSION};
use capcmi::apiserver::dynamic;

/// Reads files with one or more documents each.
pub(super) fn files(paths: &[PathBuf], namespace: Option<&str>) -> anyhow::Result<Source> {
    let mut source = Source::default();
    for path in paths {
        file(path, namespace, &mut source).with_context(|| format!("cannot read {}", path.display()))?;
    }
    Ok(source)
}

fn file(path: &Path, namespace: Option<&str>, source: &mut Source) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(path)?;
    // Errors show no snippet of the file, which may contain a Secret. The parser's budget is for untrusted
    // files, but this file is the operator's own: a list of a fleet has millions of nodes.
    let options = serde_saphyr::options! { with_snippet: false, budget: None };
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(&text, options)?;
    for document in documents.into_iter().filter(|document| !document.is_null()) {
        source
            .add(document, namespace)
            .map_err(|problem| anyhow!(problem))?;
    }
    Ok(())
}

/// Reads a namespace, and the classes and Secrets that its machines use.
///
/// Secrets of other namespaces are read only with `others`: the administrator who runs the command may read
/// more than the author of a class.
pub(super) async fn cluster(client: &Client, namespace: &str, others: bool) -> anyhow::Result<Source> {
    let mut source = Source::default();
    for kind in ["Machine", "MachineSet", "MachineDeployment"] {
        let api = dynamic(client, namespace, GROUP, VERSION, kind);
        let all = api.list(&ListParams::default()).await;
        let all = all.with_context(|| {
            format!(
                "cannot list {kind}s of {GROUP} in namespace {namespace}: check that its CRDs are installed"
            )
        })?;
        for object in all {
            add(&mut source, kind, object)?;
        }
    }
    for key in source.used_classes() {
        let api = dynamic(client, namespace, GROUP, VERSION, &key.kind);
        let what = || format!("cannot read {} {namespace}/{}", key.kind, key.name);
        // A missing object is reported with all other problems.
        if let Some(found) = api.get_opt(&key.name).await.with_context(what)? {
            source.add_class(&key.kind, serde_json::to_value(found)?);
        }
    }
    let classes: Vec<Value> = source.classes.values().cloned().map(Value::Object).collect();
    for class in &classes {
        for (field, nested) in [
            ("secretRef", false),
            ("credentialsSecretRef", false),
            ("secretRef", true),
            ("credentialsSecretRef", true),
        ] {
            // A class of a provider's own kind has these fields in its spec.
            let holder = if nested { &class["spec"] } else { class };
            let (mut place, name) = secret_key(holder, field);
            if place.is_empty() {
                namespace.clone_into(&mut place);
            }
            if name.is_empty() || (!others && place != namespace) {
                continue;
            }
            let api = dynamic(client, &place, "", "v1", "Secret");
            let what = || format!("cannot read Secret {place}/{name}");
            if let Some(found) = api.get_opt(&name).await.with_context(what)? {
                add(&mut source, "Secret", found)?;
            }
        }
    }
    Ok(source)
}

fn add(source: &mut Source, kind: &str, object: DynamicObject) -> anyhow::Result<()> {
    let mut value = serde_json::to_value(object)?;
    // The items of a list lack their kind.
    let version = if kind == "Secret" {
        "v1".to_owned()
    } else {
        format!("{GROUP}/{VERSION}")
    };
    value["kind"] = Value::from(kind);
    value["apiVersion"] = Value::from(version);
    source.add(value, None).map_err(|problem| anyhow!(problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machines(text: &str) -> usize {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let source = files(&[file.path().to_owned()], None).unwrap();
        source.machines.len()
    }

    #[test]
    fn large_fleets_are_read_from_a_list_or_from_many_documents() {
        let machine = "{kind: Machine, apiVersion: machine.sapcloud.io/v1alpha1, metadata: {name: m}}";
        let of_list = format!("items:\n{}", format!("- {machine}\n").repeat(30_000));
        assert_eq!(machines(&of_list), 30_000);
        assert_eq!(machines(&format!("---\n{machine}\n").repeat(1_500)), 1_500);
    }
}
