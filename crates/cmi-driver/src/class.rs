//! The source of a machine: the provider spec and the secrets.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use serde_path_to_error::{Path, Segment};

use super::{Code, JsonPointer, StaticAddress, Status};

/// Secret key of the bootstrap data.
pub const USER_DATA: &str = "userData";
/// Secret key of the bootstrap data's format: `cloud-config` or `ignition`.
pub const USER_DATA_FORMAT: &str = "userDataFormat";

/// Bytes that are never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(Vec<u8>);

impl SecretValue {
    /// The bytes. Never log them.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for SecretValue {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[redacted, {} bytes]", self.0.len())
    }
}

/// Credentials and bootstrap data by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Secrets(BTreeMap<String, SecretValue>);

impl Secrets {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&SecretValue> {
        self.0.get(key)
    }

    /// Adds a value for a key that has none yet.
    ///
    /// # Errors
    /// The key, when it already has a value.
    pub fn insert(&mut self, key: String, value: SecretValue) -> Result<(), String> {
        match self.0.entry(key) {
            std::collections::btree_map::Entry::Occupied(taken) => Err(taken.key().clone()),
            std::collections::btree_map::Entry::Vacant(free) => {
                free.insert(value);
                Ok(())
            }
        }
    }

    /// All keys and values, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &SecretValue)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }
}

impl FromIterator<(String, SecretValue)> for Secrets {
    fn from_iter<I: IntoIterator<Item = (String, SecretValue)>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

/// The JSON object that describes a VM; the driver defines its content.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct ProviderSpec(pub Map<String, Value>);

impl ProviderSpec {
    /// Returns the value at a place, if present.
    pub fn get(&self, place: &JsonPointer) -> Option<&Value> {
        let (first, rest) = place.segments().split_first()?;
        rest.iter().try_fold(self.0.get(first)?, |value, segment| {
            value.as_object()?.get(segment)
        })
    }

    /// Reads the spec into the driver's own type. The type refuses unknown fields with serde's attribute
    /// `deny_unknown_fields` (DRV-02, DRV-04).
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the JSON pointer of the field.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, Status> {
        serde_path_to_error::deserialize(Value::Object(self.0.clone())).map_err(|error| {
            let place = pointer(error.path());
            let of_spec = if place.is_empty() {
                place
            } else {
                format!("'s {place}")
            };
            let what = format!("the provider spec{of_spec} is invalid: {}", error.into_inner());
            Status::new(Code::InvalidArgument, what)
        })
    }

    /// Removes these tags from the object that holds the tags, so that machines of one class are equal.
    pub fn remove_tags(&mut self, tag_path: &JsonPointer, names: &[&str]) {
        let Some((first, rest)) = tag_path.segments().split_first() else {
            return;
        };
        let tags = rest.iter().try_fold(self.0.get_mut(first), |value, segment| {
            Some(value?.as_object_mut()?.get_mut(segment))
        });
        if let Some(Some(Value::Object(tags))) = tags {
            tags.retain(|tag, _| !names.contains(&tag.as_str()));
        }
    }

    /// Removes the static addresses at any place, and the objects that hold nothing else, so that machines of
    /// one class are equal. The place may be unknown, while its driver is away.
    pub fn remove_static_addresses(&mut self) {
        remove_static_addresses(&mut self.0);
    }

    /// Sets the value at a place. Creates the parents of the place if they do not exist.
    ///
    /// # Errors
    /// The place of the value that is not an object and so prevents this.
    pub fn set(&mut self, place: &JsonPointer, value: Value) -> Result<(), String> {
        let parent = match place.parent() {
            Some(parent) => self.object_at(&parent)?,
            None => &mut self.0,
        };
        if let Some(field) = place.segments().last() {
            parent.insert(field.clone(), value);
        }
        Ok(())
    }

    /// Returns the object at a place. Creates it and its parents if they do not exist.
    ///
    /// # Errors
    /// The place of the value that is not an object and so prevents this.
    pub fn object_at(&mut self, place: &JsonPointer) -> Result<&mut Map<String, Value>, String> {
        let mut object = &mut self.0;
        let mut walked = String::new();
        for segment in place.segments() {
            walked = format!("{walked}/{segment}");
            object = object
                .entry(segment.clone())
                .or_insert_with(|| Value::Object(Map::new()))
                .as_object_mut()
                .ok_or(walked.clone())?;
        }
        Ok(object)
    }
}

/// Returns whether there were any.
fn remove_static_addresses(object: &mut Map<String, Value>) -> bool {
    let is_addresses = |value: &Value| {
        let addresses = Vec::<StaticAddress>::deserialize(value);
        addresses.is_ok_and(|addresses| !addresses.is_empty())
    };
    let mut removed = false;
    object.retain(|_, value| {
        let is_kept = match value {
            Value::Array(_) => !is_addresses(value),
            Value::Object(inner) => {
                let changed = remove_static_addresses(inner);
                removed |= changed;
                !(changed && inner.is_empty())
            }
            _ => true,
        };
        removed |= !is_kept;
        is_kept
    });
    removed
}

/// The JSON pointer to a place that serde has reached; empty for the document as a whole.
fn pointer(path: &Path) -> String {
    let escaped = |name: &str| name.replace('~', "~0").replace('/', "~1");
    path.iter()
        .map(|segment| match segment {
            Segment::Seq { index } => format!("/{index}"),
            Segment::Map { key } | Segment::Enum { variant: key } => format!("/{}", escaped(key)),
            Segment::Unknown => String::new(),
        })
        .collect()
}

/// The source of a machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MachineClass {
    /// The VM's description with tags and failure domain injected.
    pub provider_spec: ProviderSpec,
    /// Credentials, and for a create the bootstrap data.
    pub secrets: Secrets,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(value: &str) -> Secrets {
        [("token".to_owned(), SecretValue::from(value.as_bytes().to_vec()))]
            .into_iter()
            .collect()
    }

    /// OPS-11
    #[test]
    fn debug_shows_no_secret_value() {
        let class = MachineClass {
            secrets: secrets("canary-4711"),
            ..MachineClass::default()
        };
        assert!(!format!("{class:?}").contains("canary"));
    }

    #[test]
    fn a_key_is_taken_once() {
        let mut secrets = secrets("x");
        assert_eq!(
            secrets.insert("token".to_owned(), vec![].into()),
            Err("token".to_owned())
        );
    }

    #[test]
    fn tags_are_removed_from_their_place_and_from_no_other() {
        let spec = serde_json::json!({"a": 1, "tags": {"x": 1}, "meta": {"tags": {"x": 1, "y": 2}}});
        let mut spec = ProviderSpec(spec.as_object().unwrap().clone());
        spec.remove_tags(&"/meta/tags".parse().unwrap(), &["x"]);
        spec.remove_tags(&"/a/tags".parse().unwrap(), &["x"]);
        assert_eq!(
            Value::Object(spec.0),
            serde_json::json!({"a": 1, "tags": {"x": 1}, "meta": {"tags": {"y": 2}}})
        );
    }

    /// DRV-02, DRV-04
    #[test]
    fn a_field_that_cannot_be_read_is_named_by_its_pointer() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Spec {
            disks: Vec<Disk>,
            #[serde(default)]
            tags: BTreeMap<String, String>,
        }
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Disk {
            size: u64,
        }
        let decode = |value: Value| ProviderSpec(value.as_object().unwrap().clone()).decode::<Spec>();
        let read = decode(serde_json::json!({"disks": [{"size": 1}]})).unwrap();
        assert_eq!((read.disks[0].size, read.tags.len()), (1, 0));
        for (spec, start) in [
            (
                serde_json::json!({}),
                "the provider spec is invalid: missing field `disks`",
            ),
            (
                serde_json::json!({"disks": [], "colour": 1}),
                "the provider spec's /colour is invalid: ",
            ),
            (
                serde_json::json!({"disks": [{"size": 1}, {"size": "1"}]}),
                "the provider spec's /disks/1/size is invalid: ",
            ),
            (
                serde_json::json!({"disks": [], "tags": {"a/b.c~d": 1}}),
                "the provider spec's /tags/a~1b.c~0d is invalid: ",
            ),
        ] {
            let status = decode(spec).unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument);
            assert!(status.message().starts_with(start), "{status}");
        }
    }

    #[test]
    fn static_addresses_are_removed_at_any_place() {
        let pool = serde_json::json!({"apiGroup": "g", "kind": "Pool", "name": "p"});
        let addresses = serde_json::json!([{"address": "10.0.0.2", "prefix": 24, "pool": pool}]);
        let spec = serde_json::json!({
            "size": "s", "list": [], "others": [{"address": "10.0.0.2"}], "empty": {},
            "addresses": addresses, "network": {"static": addresses},
            "nic": {"model": "virtio", "ips": addresses},
        });
        let mut spec: ProviderSpec = serde_json::from_value(spec).unwrap();
        spec.remove_static_addresses();
        assert_eq!(
            Value::Object(spec.0),
            serde_json::json!({
                "size": "s", "list": [], "others": [{"address": "10.0.0.2"}], "empty": {},
                "nic": {"model": "virtio"},
            })
        );
    }

    #[test]
    fn a_value_is_set_with_its_parents_or_not_at_all() {
        let mut spec: ProviderSpec = serde_json::from_value(serde_json::json!({"size": "s"})).unwrap();
        spec.set(&"/a".parse().unwrap(), Value::from(1)).unwrap();
        spec.set(&"/network/ips".parse().unwrap(), Value::from(2))
            .unwrap();
        assert_eq!(
            spec.set(&"/size/ips".parse().unwrap(), Value::Null),
            Err("/size".to_owned())
        );
        let expected = serde_json::json!({"size": "s", "a": 1, "network": {"ips": 2}});
        assert_eq!(Value::Object(spec.0), expected);
    }

    #[test]
    fn objects_are_made_on_the_way_and_a_scalar_in_the_way_is_named() {
        let mut spec = ProviderSpec::default();
        spec.object_at(&"/network/tags".parse().unwrap())
            .unwrap()
            .insert("a".into(), "b".into());
        assert_eq!(
            spec.get(&"/network/tags/a".parse().unwrap()),
            Some(&Value::from("b"))
        );
        assert_eq!(
            spec.object_at(&"/network/tags/a".parse().unwrap()),
            Err("/network/tags/a".to_owned())
        );
    }
}
