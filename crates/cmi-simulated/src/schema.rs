//! The JSON Schema of the provider spec: the same checks as in [`super::spec`], before any call.

use serde_json::{Value, json};

use super::config::SimulatedConfig;
use super::spec::{LABELS, ROOT_FS_SIZE, SIZE, SOURCE_DEST_CHECK, TAGS, VM_POOL};
use cmi_driver::tags::FAILURE_DOMAIN;

/// Returns the schema of a user's spec. It agrees with the validation except for the tags, which the
/// controller adds later.
pub fn of(config: &SimulatedConfig) -> Value {
    let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let mut fields = json!({
        VM_POOL: {"type": "string", "enum": config.pools.keys().collect::<Vec<_>>(),
            "description": "The pool that the VM takes a place of."},
        SIZE: {"type": "string", "enum": config.sizes.keys().collect::<Vec<_>>(),
            "description": "How many CPUs and how much memory."},
        ROOT_FS_SIZE: {"type": "integer", "minimum": 0,
            "description": "Root file system, GB. Default: by size."},
        SOURCE_DEST_CHECK: {"type": "boolean", "description": "Whether the network drops what is not sent \
            from or to the VM's own address. Default: true."},
        TAGS: texts,
        LABELS: texts,
    });
    if !config.zones.is_empty() {
        fields[FAILURE_DOMAIN] = json!({"type": "string", "enum": config.zones,
            "description": "The zone. Default: the cloud chooses."});
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Provider spec of the simulated driver",
        "type": "object",
        "required": [VM_POOL, SIZE],
        "additionalProperties": false,
        "properties": fields,
        "allOf": per_size(config).chain(per_pool(config)).collect::<Vec<_>>(),
    })
}

fn per_size(config: &SimulatedConfig) -> impl Iterator<Item = Value> {
    config.sizes.iter().map(|(name, size)| {
        let range = json!({"minimum": size.min_root_fs_gb, "maximum": size.max_root_fs_gb});
        when(SIZE, name, ROOT_FS_SIZE, &range)
    })
}

fn per_pool(config: &SimulatedConfig) -> impl Iterator<Item = Value> {
    config
        .pools
        .iter()
        .filter(|(_, pool)| pool.zones.is_some())
        .map(|(name, pool)| {
            let zones = json!({"enum": config.zones_of(pool)});
            when(VM_POOL, name, FAILURE_DOMAIN, &zones)
        })
}

fn when(field: &str, value: &str, other: &str, rule: &Value) -> Value {
    json!({
        "if": {"properties": {field: {"const": value}}, "required": [field]},
        "then": {"properties": {other: rule}},
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::super::spec::{Tagged, VmSpec};
    use super::*;
    use cmi_driver::{Code, ProviderSpec};

    fn spec(value: Value) -> ProviderSpec {
        serde_json::from_value(value).unwrap()
    }

    fn code(config: &SimulatedConfig, value: Value) -> Option<Code> {
        let read = VmSpec::read(&spec(value), Tagged::Not).and_then(|spec| spec.within(config).map(|_| ()));
        read.err().map(|status| status.code())
    }

    fn with(change: &Value) -> Value {
        let mut base = Map::from_iter([
            (VM_POOL.to_owned(), json!("default")),
            (SIZE.to_owned(), json!("small")),
        ]);
        for (key, value) in change.as_object().unwrap() {
            if value.is_null() {
                base.remove(key)
            } else {
                base.insert(key.clone(), value.clone())
            };
        }
        Value::Object(base)
    }

    /// DRV-04, DRV-CR-03, DRV-CR-11: the schema refuses the same specs as the driver.
    #[test]
    fn the_schema_and_the_validation_agree() {
        use Code::{InvalidArgument, OutOfRange};
        let config: SimulatedConfig = serde_saphyr::from_str(
            "pools: {default: {subnet: 10.0.0.0/8}, edge: {subnet: 11.0.0.0/8, zones: [zone-b]}}",
        )
        .unwrap();
        let schema = jsonschema::validator_for(&of(&config)).unwrap();
        for (change, expected) in [
            (json!({}), None),
            (json!({ROOT_FS_SIZE: 20}), None),
            (json!({ROOT_FS_SIZE: 20.0}), None),
            (json!({FAILURE_DOMAIN: "zone-a", SOURCE_DEST_CHECK: false}), None),
            (json!({VM_POOL: "edge", FAILURE_DOMAIN: "zone-b"}), None),
            (json!({TAGS: {"a": "b"}, LABELS: {"c": "d"}}), None),
            (json!({VM_POOL: null}), Some(InvalidArgument)),
            (json!({VM_POOL: ""}), Some(InvalidArgument)),
            (json!({VM_POOL: "none"}), Some(InvalidArgument)),
            (json!({VM_POOL: 7}), Some(InvalidArgument)),
            (json!({SIZE: null}), Some(InvalidArgument)),
            (json!({SIZE: "huge"}), Some(InvalidArgument)),
            (json!({ROOT_FS_SIZE: "20"}), Some(InvalidArgument)),
            (json!({ROOT_FS_SIZE: -1}), Some(InvalidArgument)),
            (json!({ROOT_FS_SIZE: 1.5}), Some(InvalidArgument)),
            (json!({ROOT_FS_SIZE: 0}), Some(OutOfRange)),
            (json!({ROOT_FS_SIZE: 1001}), Some(OutOfRange)),
            (json!({ROOT_FS_SIZE: 1e30}), Some(OutOfRange)),
            (json!({FAILURE_DOMAIN: "moon"}), Some(InvalidArgument)),
            (
                json!({VM_POOL: "edge", FAILURE_DOMAIN: "zone-a"}),
                Some(InvalidArgument),
            ),
            (json!({SOURCE_DEST_CHECK: "no"}), Some(InvalidArgument)),
            (json!({TAGS: {"a": 1}}), Some(InvalidArgument)),
            (json!({LABELS: ["a"]}), Some(InvalidArgument)),
            (json!({"image": "x"}), Some(InvalidArgument)),
        ] {
            let value = with(&change);
            assert_eq!(schema.is_valid(&value), expected.is_none(), "schema: {change}");
            assert_eq!(code(&config, value), expected, "{change}");
        }
    }

    #[test]
    fn a_cloud_without_zones_takes_no_failure_domain() {
        let config: SimulatedConfig = serde_saphyr::from_str("zones: []").unwrap();
        let schema = jsonschema::validator_for(&of(&config)).unwrap();
        let value = with(&json!({FAILURE_DOMAIN: "zone-a"}));
        assert!(!schema.is_valid(&value));
        assert_eq!(code(&config, value), Some(Code::InvalidArgument));
    }
}
