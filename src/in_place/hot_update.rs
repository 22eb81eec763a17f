//! Decides which changes of a provider spec an existing VM supports. The same rule applies to a changed
//! InfraMachine, to Cluster API's question before an update, and to an operator's question.

pub mod in_place;

use serde_json::{Map, Value};

pub use in_place::InPlaceUpdate;

use cmi_driver::{Capabilities, JsonPointer, Operation, ProviderSpec};

/// The differences between two provider specs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Fields that the driver can change on an existing VM (UPD-01).
    pub hot: Vec<JsonPointer>,
    /// Fields that the driver can't change, or does not declare as changeable (UPD-02).
    pub not_updatable: Vec<JsonPointer>,
}

impl Changes {
    /// Returns the changes that bring a VM from the old spec to the new spec.
    pub fn between(old: &ProviderSpec, new: &ProviderSpec, capabilities: &Capabilities) -> Self {
        let can_update = capabilities.supports(Operation::UpdateMachine);
        let (hot, not_updatable) = difference(&old.0, &new.0).into_iter().partition(|place| {
            let mut allowed = capabilities.hot_updatable.iter();
            can_update && allowed.any(|allowed| allowed.covers(place))
        });
        Self { hot, not_updatable }
    }

    /// Returns whether the two specs are the same.
    pub fn is_empty(&self) -> bool {
        self.hot.is_empty() && self.not_updatable.is_empty()
    }
}

/// Returns the fields that differ between two objects. Descends into a field while both values are objects.
pub fn difference(old: &Map<String, Value>, new: &Map<String, Value>) -> Vec<JsonPointer> {
    let mut found = Vec::new();
    differ(old, new, "", &mut found);
    found
}

fn differ(old: &Map<String, Value>, new: &Map<String, Value>, path: &str, found: &mut Vec<JsonPointer>) {
    let keys: std::collections::BTreeSet<_> = old.keys().chain(new.keys()).collect();
    for key in keys {
        let path = format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
        match (old.get(key), new.get(key)) {
            (Some(Value::Object(old)), Some(Value::Object(new))) => differ(old, new, &path, found),
            // Drivers treat a null field as absent.
            (old, new) if old.unwrap_or(&Value::Null) == new.unwrap_or(&Value::Null) => {}
            _ => found.extend(path.parse()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(value: &Value) -> ProviderSpec {
        ProviderSpec(value.as_object().unwrap().clone())
    }

    fn changes(old: &Value, new: &Value, capabilities: &Capabilities) -> (Vec<String>, Vec<String>) {
        let changes = Changes::between(&spec(old), &spec(new), capabilities);
        let text = |places: Vec<JsonPointer>| places.iter().map(ToString::to_string).collect();
        (text(changes.hot), text(changes.not_updatable))
    }

    fn labels_only() -> Capabilities {
        Capabilities {
            operations: [Operation::UpdateMachine].into(),
            hot_updatable: vec![JsonPointer::field("labels")],
            ..Capabilities::minimal()
        }
    }

    /// UPD-01, UPD-02
    #[test]
    fn a_change_is_hot_where_the_driver_declares_its_place_or_one_above_it() {
        let old = json!({"labels": {"a": "1", "b/c": "2"}, "disk": {"size": 1, "kind": "ssd"}, "same": null});
        let new = json!({"labels": {"a": "1", "b/c": "3"}, "disk": {"size": 2, "kind": "ssd"}, "zone": "x"});
        assert_eq!(
            changes(&old, &new, &labels_only()),
            (
                vec!["/labels/b~1c".to_owned()],
                vec!["/disk/size".to_owned(), "/zone".to_owned()]
            )
        );
        assert!(Changes::between(&spec(&new), &spec(&new), &labels_only()).is_empty());
    }

    #[test]
    fn without_the_update_call_no_change_is_hot() {
        let declared = Capabilities {
            operations: [].into(),
            ..labels_only()
        };
        let (old, new) = (json!({}), json!({"labels": {"a": "1"}}));
        assert_eq!(
            changes(&old, &new, &declared),
            (vec![], vec!["/labels".to_owned()])
        );
        assert_eq!(
            changes(&old, &new, &labels_only()),
            (vec!["/labels".to_owned()], vec![])
        );
    }
}
