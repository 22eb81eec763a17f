//! Every string, list and map of the API is bounded, so that CEL can be budgeted and no
//! object can flood a cache.

use super::*;

/// The only object whose fields the driver names. The number of its fields is bounded, too.
const OPEN_OBJECT: &str = "providerSpec";

#[test]
fn every_string_list_and_map_has_a_limit() {
    let mut faults = Vec::new();
    for definition in definitions().unwrap() {
        let kind = definition["spec"]["names"]["kind"].as_str().unwrap();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        for part in ["spec", "status"] {
            let schema = &schema["properties"][part];
            if !schema.is_null() {
                look_at(&format!("{kind}.{part}"), schema, &mut faults);
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_walk_finds_what_has_no_limit() {
    let unbounded = serde_json::json!({"type": "object", "properties": {
        "text": {"type": "string"},
        "list": {"type": "array", "items": {"type": "string"}},
        "map": {"type": "object", "additionalProperties": {"type": "string"}},
        "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "maxProperties": 1},
        "either": {"x-kubernetes-int-or-string": true},
        "null": {"type": "boolean", "nullable": true},
        "untyped": {},
    }});
    let mut faults = Vec::new();
    look_at("Kind.spec", &unbounded, &mut faults);
    assert_eq!(faults.len(), 9, "{faults:#?}");
}

fn look_at(path: &str, schema: &Value, faults: &mut Vec<String>) {
    let has = |keyword: &str| !schema[keyword].is_null();
    let mut demand = |holds: bool, what: &str| {
        if !holds {
            faults.push(format!("{path} {what}"));
        }
    };
    demand(!has("nullable"), "is nullable");
    let int_or_string = schema["x-kubernetes-int-or-string"] == true;
    match schema["type"].as_str() {
        Some("string") => demand(
            has("maxLength") || has("enum"),
            "is a string without maxLength or enum",
        ),
        Some("array") => demand(has("maxItems"), "is an array without maxItems"),
        Some("object") if schema["x-kubernetes-preserve-unknown-fields"] == true => {
            demand(has("maxProperties"), "is open without maxProperties");
            demand(
                path.ends_with(OPEN_OBJECT),
                "is open, and only the provider spec may be",
            );
        }
        Some("object") if has("additionalProperties") => {
            demand(has("maxProperties"), "is a map without maxProperties");
        }
        Some("object") => demand(has("properties"), "is an object without fields"),
        Some("integer" | "boolean") => {}
        None if int_or_string => demand(has("maxLength"), "is an int-or-string without maxLength"),
        other => demand(false, &format!("has the type {other:?}")),
    }
    if let Some(fields) = schema["properties"].as_object() {
        for (name, field) in fields {
            look_at(&format!("{path}.{name}"), field, faults);
        }
    }
    for (inner, name) in [("items", "[]"), ("additionalProperties", "{}")] {
        if has(inner) {
            look_at(&format!("{path}{name}"), &schema[inner], faults);
        }
    }
}

#[test]
fn a_definition_can_be_found_and_read_by_cluster_api() {
    for definition in definitions().unwrap() {
        let names = &definition["spec"]["names"];
        let (kind, plural) = (names["kind"].as_str().unwrap(), names["plural"].as_str().unwrap());
        // Cluster API computes the name of the definition from the kind.
        assert_eq!(plural, format!("{}s", kind.to_lowercase()));
        assert_eq!(
            definition["metadata"]["name"],
            format!("{plural}.{}", capcmi::api::GROUP)
        );
        assert_eq!(
            definition["metadata"]["labels"]["cluster.x-k8s.io/v1beta2"],
            capcmi::api::VERSION
        );
        assert_eq!(definition["spec"]["scope"], "Namespaced");
        // clusterctl moves a definition that it did not install only with this label.
        assert_eq!(
            definition["metadata"]["labels"]["clusterctl.cluster.x-k8s.io"],
            ""
        );
    }
}

/// schemars treats an `Option` as mandatory when its schema is written by hand and `serde(default)` is
/// missing.
#[test]
fn only_what_can_never_be_absent_is_required() {
    let mut required = Vec::new();
    for definition in definitions().unwrap() {
        let kind = definition["spec"]["names"]["kind"].as_str().unwrap();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        collect_required(kind, schema, &mut required);
    }
    required.retain(|path| !path.contains(".conditions[]"));
    assert_eq!(
        required,
        [
            "InfraMachine: spec",
            "InfraMachine.spec.addressesFromPools[]: apiGroup kind name",
            "InfraMachine.spec.secretRef: name",
            "InfraMachine.status.addresses[]: address type",
            "InfraMachine.status.lastOperation: lastUpdateTime state type",
            "InfraMachineTemplate: spec",
            "InfraMachineTemplate.spec: template",
            "InfraMachineTemplate.spec.template: spec",
            "InfraMachineTemplate.spec.template.spec.addressesFromPools[]: apiGroup kind name",
            "InfraMachineTemplate.spec.template.spec.secretRef: name",
            "InfraCluster: spec",
            "InfraCluster.spec.controlPlaneEndpoint: host port",
            "InfraCluster.spec.secretRef: name",
            "InfraCluster.status.failureDomains[]: name",
            "InfraClusterTemplate: spec",
            "InfraClusterTemplate.spec: template",
            "InfraClusterTemplate.spec.template: spec",
            "InfraClusterTemplate.spec.template.spec.controlPlaneEndpoint: host port",
            "InfraClusterTemplate.spec.template.spec.secretRef: name",
            "InfraMachineRemediation: spec",
            "InfraMachineRemediationTemplate: spec",
            "InfraMachineRemediationTemplate.spec: template",
            "InfraMachineRemediationTemplate.spec.template: spec",
        ]
    );
}

fn collect_required(path: &str, schema: &Value, required: &mut Vec<String>) {
    if let Some(names) = schema["required"].as_array() {
        let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
        required.push(format!("{path}: {}", names.join(" ")));
    }
    if let Some(fields) = schema["properties"].as_object() {
        for (name, field) in fields {
            collect_required(&format!("{path}.{name}"), field, required);
        }
    }
    if !schema["items"].is_null() {
        collect_required(&format!("{path}[]"), &schema["items"], required);
    }
}
