//! From the cloud's own machine class, of the time before provider specs, to a machine class.

use serde_json::{Map, Value};

use super::spec::{LABELS, ROOT_FS_SIZE, SIZE, SOURCE_DEST_CHECK, TAGS, VM_POOL};
use cmi_driver::{Code, GenerateMachineClassForMigrationRequest, Result, Status};

/// The kind that is converted.
pub const KIND: &str = "SimulatedMachineClass";
/// The new value of the machine class's field `provider`.
pub const PROVIDER: &str = "simulated";
/// The fields of the old class's `spec`, and the matching fields of a provider spec.
const FIELDS: [(&str, &str); 6] = [
    ("pool", VM_POOL),
    ("size", SIZE),
    ("rootFsSizeGB", ROOT_FS_SIZE),
    ("sourceDestCheck", SOURCE_DEST_CHECK),
    ("tags", TAGS),
    ("labels", LABELS),
];
/// The fields of the old class's `spec` that a machine class has, too.
const REFERENCES: [&str; 2] = ["secretRef", "credentialsSecretRef"];

/// Fills provider, provider spec and secret references; all else in the class stays (DRV-50, DRV-51).
///
/// # Errors
/// INTERNAL when the object is no such class (DRV-MG-13).
pub fn machine_class(request: GenerateMachineClassForMigrationRequest) -> Result<Map<String, Value>> {
    let broken = |problem: String| Status::new(Code::Internal, problem);
    if request.class_kind.kind != KIND {
        return Err(broken(format!(
            "only {KIND} can be converted, not `{}`",
            request.class_kind.kind
        )));
    }
    let old = request
        .provider_specific_machine_class
        .get("spec")
        .and_then(Value::as_object)
        .ok_or_else(|| broken(format!("the {KIND} has no object /spec")))?;
    for required in ["pool", "size"] {
        if !old.get(required).is_some_and(Value::is_string) {
            return Err(broken(format!(
                "/spec/{required} of the {KIND} is missing or no text"
            )));
        }
    }
    let provider_spec: Map<_, _> = FIELDS
        .into_iter()
        .filter_map(|(from, to)| Some((to.to_owned(), old.get(from)?.clone())))
        .collect();
    let mut class = request.machine_class;
    class.insert("provider".to_owned(), PROVIDER.into());
    class.insert("providerSpec".to_owned(), provider_spec.into());
    for reference in REFERENCES {
        if let Some(value) = old.get(reference) {
            class.insert(reference.to_owned(), value.clone());
        }
    }
    Ok(class)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use cmi_driver::MachineClassKind;

    fn request(old: &Value, class: &Value) -> GenerateMachineClassForMigrationRequest {
        GenerateMachineClassForMigrationRequest {
            provider_specific_machine_class: old.as_object().unwrap().clone(),
            machine_class: class.as_object().unwrap().clone(),
            class_kind: MachineClassKind {
                api_group: "machine.sapcloud.io".to_owned(),
                kind: KIND.to_owned(),
            },
        }
    }

    /// DRV-49, DRV-50, DRV-51
    #[test]
    fn an_old_class_fills_the_new_one_and_its_metadata_stays() {
        let old = json!({"spec": {"pool": "default", "size": "small", "rootFsSizeGB": 20,
            "secretRef": {"name": "s"}}});
        let filled = machine_class(request(&old, &json!({"metadata": {"name": "m"}}))).unwrap();
        let expected = json!({
            "metadata": {"name": "m"},
            "provider": "simulated",
            "providerSpec": {"vmPool": "default", "size": "small", "rootFsSize": 20},
            "secretRef": {"name": "s"},
        });
        assert_eq!(Value::from(filled.clone()), expected);
        assert_eq!(
            machine_class(request(&old, &filled.into())).unwrap(),
            *expected.as_object().unwrap()
        );
    }

    /// DRV-MG-13
    #[test]
    fn what_is_no_such_class_is_an_internal_error_that_names_what_is_missing() {
        let status = machine_class(request(&json!({"spec": {"pool": "a"}}), &json!({}))).unwrap_err();
        assert_eq!(status.code(), Code::Internal);
        assert!(status.message().contains("/spec/size"), "{status}");
    }
}
