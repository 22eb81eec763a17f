//! Decides which differences between two InfraMachine specs need no new machine. Pure.

use std::collections::BTreeSet;
use std::fmt;

use json_patch::jsonptr::{Pointer, PointerBuf};
use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation};
use serde_json::{Map, Value};

use crate::api::v1alpha1::PowerPolicy;
use crate::in_place::hot_update::Changes;
use cmi_driver::{Capabilities, JsonPointer, ProviderSpec};

/// The field that the driver interprets.
const PROVIDER_SPEC: &str = "providerSpec";
/// Fields that only the provider reads, each time that it needs them.
const READ_WHEN_NEEDED: [&str; 3] = ["creationTimeoutSeconds", "powerPolicy", "shutdownTimeoutSeconds"];

/// The differences between two specs.
#[derive(Clone, Debug, PartialEq)]
pub struct SpecChanges(Vec<SpecChange>);

/// A field that differs.
#[derive(Clone, Debug, PartialEq)]
pub struct SpecChange {
    /// The place of the field.
    pub place: Place,
    /// The old value.
    pub old: Option<Value>,
    /// The new value.
    pub new: Option<Value>,
    /// How the change is applied.
    pub strategy: UpdateStrategy,
}

/// A place in the spec, shown as a JSON pointer into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A field of the spec, known to the API or not.
    Field(String),
    /// A place in the provider spec.
    ProviderSpec(JsonPointer),
}

/// How a change is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpdateStrategy {
    /// The machine keeps its VM.
    InPlace,
    /// The machine is replaced, for this reason.
    Replace(String),
    /// No machine can have the new spec, for this reason.
    Refused(String),
}

impl SpecChanges {
    /// Why no machine can have the new spec.
    pub fn refusal(&self) -> Option<&str> {
        self.iter().find_map(|change| match &change.strategy {
            UpdateStrategy::Refused(why) => Some(why.as_str()),
            UpdateStrategy::InPlace | UpdateStrategy::Replace(_) => None,
        })
    }

    /// The differences, and how a driver with these capabilities applies each. An unknown field needs a new
    /// machine.
    pub fn between(old: &Map<String, Value>, new: &Map<String, Value>, capabilities: &Capabilities) -> Self {
        let fields: BTreeSet<_> = old.keys().chain(new.keys()).map(String::as_str).collect();
        let mut changes = Vec::new();
        for field in fields {
            if field == PROVIDER_SPEC {
                changes.extend(of_provider_spec(
                    &provider_spec(old),
                    &provider_spec(new),
                    capabilities,
                ));
            } else if old.get(field) != new.get(field) {
                changes.push(SpecChange {
                    place: Place::Field(field.to_owned()),
                    old: old.get(field).cloned(),
                    new: new.get(field).cloned(),
                    strategy: of_field(field, new.get(field), capabilities),
                });
            }
        }
        Self(changes)
    }

    /// The differences, by place.
    pub fn iter(&self) -> impl Iterator<Item = &SpecChange> {
        self.0.iter()
    }

    /// Whether the two specs are the same.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a VM with the old provider spec can get the new one in place.
    fn keeps_the_vm(&self) -> bool {
        self.iter().all(|change| {
            matches!(change.place, Place::Field(_)) || change.strategy == UpdateStrategy::InPlace
        })
    }

    /// A patch that applies every change that needs no new machine. The old spec is at `prefix` in the
    /// patched object.
    pub fn patch(&self, old: &Map<String, Value>, new: &Map<String, Value>, prefix: &Pointer) -> Patch {
        let mut operations = Vec::new();
        let mut patched = provider_spec(old);
        for change in self
            .iter()
            .filter(|change| change.strategy == UpdateStrategy::InPlace)
        {
            match &change.place {
                Place::Field(field) => operations.push(operation(prefix, field, change.new.clone())),
                Place::ProviderSpec(place) => put(&mut patched.0, place, change.new.as_ref()),
            }
        }
        // Cluster API compares strictly: a field without a value differs from a missing one.
        let patched = if self.keeps_the_vm() {
            new.get(PROVIDER_SPEC).cloned()
        } else {
            Some(Value::Object(patched.0))
        };
        if patched.as_ref() != old.get(PROVIDER_SPEC) {
            operations.push(operation(prefix, PROVIDER_SPEC, patched));
        }
        Patch(operations)
    }
}

/// Sets a field, or removes it without a value.
fn operation(prefix: &Pointer, field: &str, value: Option<Value>) -> PatchOperation {
    let mut path: PointerBuf = prefix.to_buf();
    path.push_back(field);
    match value {
        Some(value) => PatchOperation::Add(AddOperation { path, value }),
        None => PatchOperation::Remove(RemoveOperation { path }),
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(field) => write!(f, "/{field}"),
            Self::ProviderSpec(place) => write!(f, "/{PROVIDER_SPEC}{place}"),
        }
    }
}

impl fmt::Display for SpecChanges {
    /// Formats the first places for a log, each with its strategy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_NAMED: usize = 10;
        for (number, SpecChange { place, strategy, .. }) in self.iter().take(MAX_NAMED).enumerate() {
            let separator = if number == 0 { "" } else { "; " };
            match strategy {
                UpdateStrategy::InPlace => write!(f, "{separator}{place}: in place")?,
                UpdateStrategy::Replace(why) | UpdateStrategy::Refused(why) => {
                    write!(f, "{separator}{place}: {why}")?;
                }
            }
        }
        match self.0.len().checked_sub(MAX_NAMED).filter(|more| *more > 0) {
            Some(more) => write!(f, "; and {more} more"),
            None => Ok(()),
        }
    }
}

fn of_field(field: &str, new: Option<&Value>, capabilities: &Capabilities) -> UpdateStrategy {
    // As for a new machine: see [`crate::api::v1alpha1::InfraMachineSpec::unsupported`].
    let mut calls = PowerPolicy::CALLS.into_iter();
    if field == "powerPolicy"
        && new.is_some()
        && let Some(call) = calls.find(|call| !capabilities.supports(*call))
    {
        return UpdateStrategy::Refused(format!("the driver does not implement {call}"));
    }
    if READ_WHEN_NEEDED.contains(&field) {
        return UpdateStrategy::InPlace;
    }
    UpdateStrategy::Replace(match field {
        "driver" => "the driver of an existing VM cannot change".to_owned(),
        "addressesFromPools" => "a VM keeps its addresses".to_owned(),
        "secretRef" => "a VM keeps its credentials".to_owned(),
        "notReadyTaint" => "a Node registers with its taint only once".to_owned(),
        other => format!("{other} is not known to be updatable"),
    })
}

fn of_provider_spec(old: &ProviderSpec, new: &ProviderSpec, capabilities: &Capabilities) -> Vec<SpecChange> {
    let refused = capabilities.spec_error(new);
    let changes = Changes::between(old, new, capabilities);
    let hot = changes
        .hot
        .into_iter()
        .map(|place| (place, UpdateStrategy::InPlace));
    let cold = changes.not_updatable.into_iter().map(|place| {
        let why = "the driver cannot change it on a running VM".to_owned();
        (place, UpdateStrategy::Replace(why))
    });
    let mut all: Vec<_> = hot
        .chain(cold)
        .map(|(place, strategy)| SpecChange {
            old: at(&old.0, &place).cloned(),
            new: at(&new.0, &place).cloned(),
            place: Place::ProviderSpec(place),
            strategy: refused.clone().map_or(strategy, UpdateStrategy::Refused),
        })
        .collect();
    all.sort_by_cached_key(|change| change.place.to_string());
    all
}

/// The provider spec; a missing one is empty.
fn provider_spec(spec: &Map<String, Value>) -> ProviderSpec {
    let given = spec.get(PROVIDER_SPEC).and_then(Value::as_object);
    ProviderSpec(given.cloned().unwrap_or_default())
}

fn at<'a>(object: &'a Map<String, Value>, place: &JsonPointer) -> Option<&'a Value> {
    let (first, rest) = place.segments().split_first()?;
    rest.iter().try_fold(object.get(first)?, |value, segment| {
        value.as_object()?.get(segment)
    })
}

/// Sets or removes the value at the place of a difference. The place's parents exist in both specs.
fn put(object: &mut Map<String, Value>, place: &JsonPointer, value: Option<&Value>) {
    let Some((last, above)) = place.segments().split_last() else {
        return;
    };
    let mut parent = object;
    for segment in above {
        match parent.get_mut(segment).and_then(Value::as_object_mut) {
            Some(below) => parent = below,
            None => return,
        }
    }
    match value {
        Some(value) => drop(parent.insert(last.clone(), value.clone())),
        None => drop(parent.remove(last)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use cmi_driver::Operation;

    fn capabilities() -> Capabilities {
        Capabilities {
            operations: [
                Operation::GetMachineStatus,
                Operation::RestartMachine,
                Operation::UpdateMachine,
            ]
            .into(),
            hot_updatable: vec![JsonPointer::field("labels")],
            ..Capabilities::minimal()
        }
    }

    fn map(value: &Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    /// Whether no difference needs a new machine.
    fn are_in_place(changes: &SpecChanges) -> bool {
        changes
            .iter()
            .all(|change| change.strategy == UpdateStrategy::InPlace)
    }

    /// The old spec after the patch.
    fn patched(old: &Value, new: &Value) -> Value {
        let changes = SpecChanges::between(&map(old), &map(new), &capabilities());
        let patch = changes.patch(&map(old), &map(new), Pointer::from_static("/spec"));
        let mut object = json!({"spec": old});
        json_patch::patch(&mut object, &patch).unwrap();
        object["spec"].take()
    }

    /// An example of every field, so that a new field must be considered here.
    fn full() -> Value {
        json!({
            "providerID": "sim://1", "driver": "pool", "secretRef": {"name": "a"},
            "creationTimeoutSeconds": 5,
            "shutdownTimeoutSeconds": 6, "powerPolicy": "AlwaysOn", "notReadyTaint": {"key": "a/b"},
            "providerSpec": {"size": "small", "labels": {"tier": "gold"}},
        })
    }

    #[test]
    fn only_what_is_known_to_be_updatable_is_patched() {
        let new = json!({
            "providerID": "sim://2", "driver": "other", "secretRef": {"name": "b"},
            "creationTimeoutSeconds": 7, "powerPolicy": "AlwaysOn",
            "notReadyTaint": {"key": "c/d"}, "new": true,
            "providerSpec": {"size": "large", "labels": {"tier": "silver", "more": "yes"}},
        });
        let mut expected = full();
        expected["creationTimeoutSeconds"] = json!(7);
        expected.as_object_mut().unwrap().remove("shutdownTimeoutSeconds");
        expected["providerSpec"]["labels"] = json!({"tier": "silver", "more": "yes"});
        assert_eq!(patched(&full(), &new), expected);
        let changes = SpecChanges::between(&map(&full()), &map(&new), &capabilities());
        assert!(!are_in_place(&changes));
        let text = changes.to_string();
        assert!(text.contains("/new: new is not known to be updatable"), "{text}");
        assert!(text.contains("/providerSpec/labels/more: in place"), "{text}");
    }

    #[test]
    fn what_can_be_updated_in_full_becomes_exactly_what_is_desired() {
        for (old, new) in [
            (
                json!({"providerSpec": {"labels": {"a": "1"}}}),
                json!({"providerSpec": {}}),
            ),
            (json!({"providerSpec": {"labels": {"a": "1"}}}), json!({})),
            (json!({}), json!({"providerSpec": {"labels": {"a": "1"}}})),
            (
                json!({"providerSpec": {"labels": {"a/b": "1", "c~d": "2"}}}),
                json!({"providerSpec": {"labels": {"a/b": "3"}}}),
            ),
            (json!({"shutdownTimeoutSeconds": 1}), json!({})),
            (json!({}), json!({"powerPolicy": "AlwaysOn"})),
            (json!({"providerSpec": {"a": null}}), json!({"providerSpec": {}})),
            (json!({"providerSpec": {}}), json!({})),
        ] {
            assert_eq!(patched(&old, &new), new, "{old}");
            assert!(are_in_place(&SpecChanges::between(
                &map(&old),
                &map(&new),
                &capabilities()
            )));
        }
        assert!(SpecChanges::between(&map(&full()), &map(&full()), &capabilities()).is_empty());
    }

    #[test]
    fn a_spec_that_no_machine_can_have_is_applied_to_none() {
        let reserved =
            json!({"providerSpec": {"labels": {"a": "1"}, "tags": {"kubernetes.io/cluster": "x"}}});
        let old = json!({"providerSpec": {}});
        assert_eq!(patched(&old, &reserved), old);
        let changes = SpecChanges::between(&map(&old), &map(&reserved), &capabilities());
        let refused = |change: &SpecChange| matches!(change.strategy, UpdateStrategy::Refused(_));
        assert!(changes.iter().all(refused), "{changes}");
        let always_on = map(&json!({"powerPolicy": "AlwaysOn"}));
        let changes = SpecChanges::between(&map(&old), &always_on, &Capabilities::minimal());
        assert!(changes.iter().all(refused), "{changes}");
    }
}
