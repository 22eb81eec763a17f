//! The fields of the API, from the CustomResourceDefinitions.

use anyhow::{Context as _, Result};
use serde_json::Value;

use capcmi::api::v1alpha1::SPEC_CHANGES;
use capcmi_manifests as manifests;

/// The place in a template below which the fields are those of another kind.
const TEMPLATED: &str = "spec.template";
/// The list of conditions, which are the same in every Kubernetes object.
const CONDITIONS: &str = "status.conditions";
/// The fields of every kind, which the page explains once.
const OF_EVERY_KIND: [&str; 4] = ["spec", "status", CONDITIONS, "status.observedGeneration"];

/// A field of a kind.
struct Field<'a> {
    path: String,
    schema: &'a Value,
    is_required: bool,
}

impl Field<'_> {
    /// Whether a row would repeat the text of the page or of the rows below.
    fn is_described_elsewhere(&self) -> bool {
        let is_group = self.path.starts_with("status.") && !self.schema["properties"].is_null();
        is_group || self.path == TEMPLATED || OF_EVERY_KIND.contains(&self.path.as_str())
    }
}

/// Returns a list of every field of a kind, with the facts in its schema and the effect of a change.
pub(crate) fn list(kind: &str) -> Result<String> {
    let definitions = manifests::definitions()?;
    let definition = definitions
        .iter()
        .find(|definition| definition["spec"]["names"]["kind"] == kind)
        .with_context(|| format!("no kind is called `{kind}`"))?;
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let mut fields = Vec::new();
    collect("", schema, &mut fields);
    let templated = SPEC_CHANGES
        .iter()
        .filter(|change| change.kind == kind && change.field.starts_with(TEMPLATED))
        .map(|change| format!("* `{}` (object): {}\n", change.field, change.effect));
    Ok(fields
        .iter()
        .filter(|field| !field.is_described_elsewhere())
        .map(|field| item(kind, field))
        .chain(templated)
        .collect())
}

/// Collects the fields below one, in the order of their names, except below fields that are described
/// elsewhere.
fn collect<'a>(path: &str, schema: &'a Value, fields: &mut Vec<Field<'a>>) {
    if path == CONDITIONS || path == TEMPLATED {
        return;
    }
    let (path, schema) = match &schema["items"] {
        Value::Null => (path.to_owned(), schema),
        items => (format!("{path}[]"), items),
    };
    let required = schema["required"].as_array();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        fields.push(Field {
            path: path.clone(),
            schema: field,
            is_required: required.is_some_and(|names| names.iter().any(|required| required == name)),
        });
        collect(&path, field, fields);
    }
}

fn item(kind: &str, field: &Field) -> String {
    let schema = field.schema;
    let mut facts = vec![type_of(schema)];
    // Nobody but the provider writes a status, so its limits are not a reader's concern.
    if !field.path.starts_with("status.") {
        facts.extend(field.is_required.then(|| "required".to_owned()));
        facts.extend(limits(schema));
    }
    facts.extend(values(schema));
    let mut meaning = vec![schema["description"].as_str().unwrap_or_default()];
    let changes = SPEC_CHANGES.iter();
    let changes = changes.filter(|change| change.kind == kind && change.field == field.path);
    meaning.extend(changes.map(|change| change.effect));
    format!(
        "* `{}` ({}): {}\n",
        field.path,
        facts.join(", "),
        meaning.join(" ")
    )
}

fn type_of(schema: &Value) -> String {
    let map = &schema["additionalProperties"];
    if !schema["items"].is_null() {
        format!("[]{}", type_of(&schema["items"]))
    } else if !map.is_null() {
        format!("map[string]{}", type_of(map))
    } else if schema["x-kubernetes-int-or-string"] == true {
        // The only values of this type are quantities of resources.
        "quantity".to_owned()
    } else if schema["format"] == "date-time" {
        "time".to_owned()
    } else {
        schema["type"].as_str().unwrap_or_default().to_owned()
    }
}

fn limits(schema: &Value) -> Vec<String> {
    let mut limits = Vec::new();
    for (least, most, what) in [
        ("minLength", "maxLength", " characters"),
        ("minItems", "maxItems", " items"),
        ("minProperties", "maxProperties", " fields"),
        ("minimum", "maximum", ""),
    ] {
        limits.extend(match (schema[least].as_i64(), schema[most].as_i64()) {
            (Some(least), Some(most)) => Some(format!("{least}–{most}{what}")),
            (None, Some(most)) => Some(format!("at most {most}{what}")),
            (Some(1), None) => Some("not empty".to_owned()),
            (Some(least), None) => Some(format!("at least {least}{what}")),
            (None, None) => None,
        });
    }
    limits.extend(schema["pattern"].as_str().map(|pattern| format!("`{pattern}`")));
    match &schema["default"] {
        Value::Null => {}
        default => limits.push(format!("default `{default}`")),
    }
    limits
}

fn values(schema: &Value) -> Option<String> {
    let values = schema["enum"].as_array()?;
    let values: Vec<_> = values.iter().filter_map(Value::as_str).collect();
    Some(format!("one of `{}`", values.join("`, `")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_shown_with_its_limits_and_what_it_means() {
        let list = list("InfraMachine").unwrap();
        let item = |field: &str| {
            let start = format!("* `{field}` ");
            list.lines().find(|line| line.starts_with(&start)).unwrap()
        };
        let name = item("spec.secretRef.name");
        assert!(
            name.starts_with("* `spec.secretRef.name` (string, required, 1–253 characters, `^[a-z0-9]")
                && name.contains("`): Name of the Secret. A change "),
            "{name}"
        );
        assert!(item("spec.creationTimeoutSeconds").contains(" (integer, 1–86400): "));
        assert!(item("status.addresses").contains(" ([]object): "));
        assert!(item("status.addresses[].type").contains("one of `Hostname`, `ExternalIP`"));
        assert!(item("status.lastOperation.nextRetryTime").contains(" (time): "));
    }

    #[test]
    fn a_template_says_what_a_change_of_it_does() {
        for kind in ["InfraMachineTemplate", "InfraClusterTemplate"] {
            let list = list(kind).unwrap();
            for item in [
                "* `spec.template.spec` (object): A policy",
                "* `spec.template.metadata` (object): A change",
            ] {
                assert!(list.contains(item), "{kind}: {list}");
            }
        }
    }

    #[test]
    fn every_field_says_what_it_is() {
        for kind in [
            "InfraMachine",
            "InfraMachineTemplate",
            "InfraCluster",
            "InfraClusterTemplate",
            "InfraMachineRemediation",
            "InfraMachineRemediationTemplate",
        ] {
            for line in list(kind).unwrap().lines() {
                assert!(!line.contains(" ()"), "no type: {line}");
                assert!(!line.ends_with(": "), "no meaning: {line}");
            }
        }
    }

    #[test]
    fn every_field_of_a_spec_says_when_it_may_change() {
        for kind in [
            "InfraMachine",
            "InfraMachineTemplate",
            "InfraCluster",
            "InfraClusterTemplate",
            "InfraMachineRemediation",
            "InfraMachineRemediationTemplate",
        ] {
            let listed: Vec<_> = SPEC_CHANGES.iter().filter(|change| change.kind == kind).collect();
            let definitions = manifests::definitions().unwrap();
            let definition = definitions.iter().find(|it| it["spec"]["names"]["kind"] == kind);
            let schema = &definition.unwrap()["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            let spec = &schema["properties"]["spec"];
            let mut fields = Vec::new();
            collect("spec", spec, &mut fields);
            let is_listed = |path: &str| {
                let below = |field: &str| {
                    path.strip_prefix(field)
                        .filter(|rest| rest.starts_with(['.', '[']))
                };
                let covers = |field: &str| path == field || below(field).is_some();
                listed.iter().filter(|change| covers(change.field)).count() == 1
            };
            for field in &fields {
                let is_group = listed
                    .iter()
                    .any(|change| change.field.starts_with(&format!("{}.", field.path)));
                assert!(is_group || is_listed(&field.path), "{kind}: {}", field.path);
            }
            for change in &listed {
                let exists = fields.iter().any(|field| change.field.starts_with(&field.path));
                assert!(exists, "{kind}: {}", change.field);
            }
        }
    }

    #[test]
    fn what_is_no_kind_is_refused() {
        assert!(list("Machine").is_err());
    }
}
