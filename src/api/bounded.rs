//! Limits on the memory that one object may take.
//!
//! Every user with the right to create objects may make them larger than a MiB, and caches hold all of them.
//! 250 such objects would exceed the memory limit of 256 MiB; 10,000 ordinary machines take 20 MiB. So parts
//! without a bound get one: a provider spec where it is read, metadata before they are cached.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::annotations::{BLOCK_MOVE, MANAGED_BY, PAUSED, PROGRESS, RESERVED_ANNOTATIONS};
use super::labels::{CLUSTER_NAME, CONTROL_PLANE, WATCH_FILTER};
use super::{CLUSTER_FINALIZER, MACHINE_FINALIZER};

/// The most bytes that a provider spec may have as JSON; it is kept in an annotation as well.
pub const MAX_PROVIDER_SPEC_BYTES: usize = 64 * 1024;
/// The most values that it may have: each costs a hundred bytes of memory, however short it is.
pub const MAX_PROVIDER_SPEC_VALUES: usize = 4096;

/// The field that replaces a provider spec that was not read.
const NOT_READ: &str = "capcmi.io/not-read";
/// The annotation of a cached object that replaces all dropped annotations. It changes when they change.
const OTHERS: &str = "capcmi.io/others";
/// Labels and annotations with a meaning to the provider or to Cluster API have names of these domains.
const DOMAINS: [&str; 2] = ["capcmi.io", "cluster.x-k8s.io"];
/// The most bytes of a label or annotation with its key.
const MAX_BYTES: usize = 1024;
/// The most bytes of the annotation [`PROGRESS`] with its key: it has a value for each of several tasks.
const MAX_PROGRESS_BYTES: usize = 2 * MAX_BYTES;
/// The most labels, annotations, owners and finalizers that are kept of an object.
pub const MAX_KEPT: usize = 64;

/// Reads a provider spec, unless it is too large.
pub(super) fn provider_spec<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Map<String, Value>, D::Error> {
    let text = Box::<RawValue>::deserialize(deserializer)?;
    match too_large(text.get()) {
        Some(why) => Ok([(NOT_READ.to_owned(), Value::String(why))].into_iter().collect()),
        None => serde_json::from_str(text.get()).map_err(D::Error::custom),
    }
}

/// Returns why a provider spec was not read, or `None` if it was read.
pub fn not_read(spec: &Map<String, Value>) -> Option<&str> {
    spec.get(NOT_READ).and_then(Value::as_str)
}

/// Why the JSON of a provider spec is too large, if it is.
pub fn too_large(json: &str) -> Option<String> {
    if json.len() > MAX_PROVIDER_SPEC_BYTES {
        return Some(format!(
            "has {} bytes; the limit is {MAX_PROVIDER_SPEC_BYTES}",
            json.len()
        ));
    }
    let values = values(json);
    (values > MAX_PROVIDER_SPEC_VALUES)
        .then(|| format!("has {values} values; the limit is {MAX_PROVIDER_SPEC_VALUES}"))
}

/// How many values a JSON text has, itself included, or one more for every list and
/// object in it that is empty.
fn values(json: &str) -> usize {
    let (mut count, mut in_text, mut escaped) = (1, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => count += 1,
            _ => {}
        }
    }
    count
}

/// Whether the provider reads this key, so that it is kept even when its value is too long. Only its
/// presence, or one short value, matters.
fn is_read(key: &str) -> bool {
    [
        OTHERS,
        PAUSED,
        MANAGED_BY,
        CLUSTER_NAME,
        CONTROL_PLANE,
        WATCH_FILTER,
        BLOCK_MOVE,
    ]
    .contains(&key)
}

/// Keeps known labels or annotations while there is room, and passes each dropped or shortened one to
/// `dropped`.
///
/// A key that the provider reads is kept, and its value is shortened: an object with a long reason to be
/// paused is still paused.
fn keep_known(all: &mut BTreeMap<String, String>, mut dropped: impl FnMut(&str, &str)) {
    let mut kept = 0;
    all.retain(|key, value| {
        if RESERVED_ANNOTATIONS.contains(&key.as_str()) {
            return true;
        }
        let most = if key == PROGRESS {
            MAX_PROGRESS_BYTES
        } else {
            MAX_BYTES
        };
        let fits = key.len() + value.len() <= most;
        if is_read(key) {
            if !fits {
                dropped(key, value);
                value.truncate(value.floor_char_boundary(MAX_BYTES - key.len()));
                value.shrink_to_fit();
            }
            return true;
        }
        let keep = kept < MAX_KEPT && fits && is_known(key);
        if keep {
            kept += 1;
        } else {
            dropped(key, value);
        }
        keep
    });
}

/// Keeps the metadata that the provider reads, and bounds them. Other annotations are folded into one, so
/// that their changes are seen. Other labels are dropped.
///
/// Idempotent: bounded metadata do not change.
pub fn bound(meta: &mut ObjectMeta) {
    meta.managed_fields = None;
    let mut others = DefaultHasher::new();
    let mut is_cut = false;
    if let Some(labels) = &mut meta.labels {
        // No plan depends on the labels of others.
        keep_known(labels, |_, _| {});
    }
    if let Some(annotations) = &mut meta.annotations {
        keep_known(annotations, |key, value| {
            is_cut = true;
            key.hash(&mut others);
            value.hash(&mut others);
        });
    }
    if is_cut {
        let others = format!("{:016x}", others.finish());
        meta.annotations
            .get_or_insert_default()
            .insert(OTHERS.to_owned(), others);
    }
    if let Some(owners) = &mut meta.owner_references {
        let mut kept = 0;
        owners.sort_by_key(|owner| owner.controller != Some(true));
        owners.retain(|owner| {
            let size = owner.api_version.len() + owner.kind.len() + owner.name.len() + owner.uid.len();
            kept += 1;
            kept <= MAX_KEPT && size <= MAX_BYTES
        });
        owners.shrink_to_fit();
    }
    if let Some(finalizers) = &mut meta.finalizers {
        if finalizers.len() > MAX_KEPT {
            finalizers.sort_by_key(|name| name != MACHINE_FINALIZER && name != CLUSTER_FINALIZER);
            finalizers.truncate(MAX_KEPT);
        }
        finalizers.shrink_to_fit();
    }
}

/// An object whose metadata are bounded as it is parsed. Of a list of large objects, only one at a time is in
/// memory in full.
#[derive(Clone, Debug)]
pub struct Bounded<K>(pub K);

impl<'de, K: Deserialize<'de> + Resource> Deserialize<'de> for Bounded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = K::deserialize(deserializer)?;
        bound(object.meta_mut());
        Ok(Self(object))
    }
}

/// Whether a key is of a domain whose keys mean something here.
fn is_known(key: &str) -> bool {
    key.split_once('/').is_some_and(|(domain, _)| {
        DOMAINS.iter().any(|known| {
            domain
                .strip_suffix(known)
                .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        })
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
    use serde_json::json;

    use super::*;
    use crate::api::v1alpha1::{InfraMachine, InfraMachineTemplate};
    use crate::api::{DeserializeGuard, annotations, labels};

    fn size(value: &impl serde::Serialize) -> usize {
        serde_json::to_string(value).unwrap().len()
    }

    #[test]
    fn a_provider_spec_that_is_too_large_is_not_read_and_said_to_be_so() {
        let long = json!({"a": "x".repeat(MAX_PROVIDER_SPEC_BYTES)});
        let many = json!({"a": vec![0; MAX_PROVIDER_SPEC_VALUES]});
        let deep: Value = (0..50).fold(json!(1), |inner, _| json!([inner]));
        let largest =
            json!({"a": vec![0; MAX_PROVIDER_SPEC_VALUES - 4], "b": "[,{\\\"[,".repeat(8), "c": deep});
        for (spec, expected) in [(long, "bytes"), (many, "values")] {
            let object = json!({"metadata": {"name": "m"}, "spec": {"providerSpec": spec}});
            for text in [object.to_string(), format!("{object:#}")] {
                let read: InfraMachine = serde_json::from_str(&text).unwrap();
                assert!(size(&read) < 512);
                let violations = read.spec.violations();
                assert!(
                    violations[0].starts_with("providerSpec: has ") && violations[0].contains(expected),
                    "{violations:?}"
                );
            }
            let object =
                json!({"metadata": {"name": "t"}, "spec": {"template": {"spec": {"providerSpec": spec}}}});
            let read: InfraMachineTemplate = serde_json::from_value(object).unwrap();
            assert!(size(&read) < 512);
        }
        let read: InfraMachine =
            serde_json::from_value(json!({"metadata": {}, "spec": {"providerSpec": largest}})).unwrap();
        assert!(
            not_read(&read.spec.provider_spec).is_some(),
            "lists in lists are values, too"
        );
        let fits = json!({"a": vec![0; 4000], "b": "[,{\\\"[,".repeat(2000)});
        let read: InfraMachine =
            serde_json::from_value(json!({"metadata": {}, "spec": {"providerSpec": fits}})).unwrap();
        assert_eq!(read.spec.violations(), Vec::<String>::new());
    }

    /// The most that the API server accepts: 256 KiB of annotations, with labels and owners until the object
    /// is full.
    fn stuffed() -> ObjectMeta {
        let text = "x".repeat(63);
        ObjectMeta {
            name: Some("m".to_owned()),
            annotations: Some(
                [
                    ("note".to_owned(), "x".repeat(200 * 1024)),
                    ("infrastructure.capcmi.io/long".to_owned(), "x".repeat(20 * 1024)),
                    (annotations::PAUSED.to_owned(), String::new()),
                    (annotations::CLUSTER_ID.to_owned(), "c".to_owned()),
                ]
                .into_iter()
                .chain((0..1000).map(|n| (format!("x{n}.cluster.x-k8s.io/a"), text.clone())))
                .collect(),
            ),
            labels: Some((0..5000).map(|n| (format!("l{n}"), text.clone())).collect()),
            owner_references: Some(
                (0..5000)
                    .map(|n| OwnerReference {
                        api_version: "v1".to_owned(),
                        kind: "ConfigMap".to_owned(),
                        name: if n == 7 {
                            "x".repeat(1 << 20)
                        } else {
                            format!("o{n}")
                        },
                        uid: format!("u{n}"),
                        controller: (n == 4999).then_some(true),
                        ..OwnerReference::default()
                    })
                    .collect(),
            ),
            finalizers: Some(
                (0..5000)
                    .map(|n| format!("example.com/{n}"))
                    .chain([MACHINE_FINALIZER.to_owned()])
                    .collect(),
            ),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn of_metadata_what_is_read_is_kept_and_the_rest_costs_nothing() {
        let full = stuffed();
        assert!(size(&full) > 1_000_000);
        let mut bounded = full.clone();
        bound(&mut bounded);
        assert!(size(&bounded) < 32 * 1024, "{}", size(&bounded));
        let annotations = bounded.annotations.as_ref().unwrap();
        for key in [annotations::PAUSED, annotations::CLUSTER_ID] {
            assert_eq!(annotations.get(key), full.annotations.as_ref().unwrap().get(key));
        }
        let finalizers = bounded.finalizers.as_ref().unwrap();
        assert!(finalizers.contains(&MACHINE_FINALIZER.to_owned()) && finalizers.len() == MAX_KEPT);
        let owners = bounded.owner_references.as_ref().unwrap();
        assert_eq!(
            owners[0].controller,
            Some(true),
            "the controller is among those kept"
        );

        let mut again = bounded.clone();
        bound(&mut again);
        assert_eq!(again, bounded);
    }

    #[test]
    fn an_object_is_bounded_where_it_is_read() {
        let text =
            json!({"metadata": stuffed(), "spec": {"providerSpec": {"a": "x".repeat(100_000)}}}).to_string();
        let Bounded(read): Bounded<DeserializeGuard<InfraMachine>> = serde_json::from_str(&text).unwrap();
        assert!(text.len() > 1_000_000 && size(&read.0.unwrap()) < 32 * 1024);
    }

    /// Any annotation leads to a retry of the machine.
    #[test]
    fn a_change_of_a_dropped_annotation_is_seen_unlike_that_of_a_label() {
        let mut seen = std::collections::BTreeSet::new();
        for (annotation, label) in [("a", "a"), ("b", "a"), ("a", "b")] {
            let mut meta = ObjectMeta {
                annotations: Some([("note".to_owned(), annotation.to_owned())].into()),
                labels: Some([("team".to_owned(), label.to_owned())].into()),
                ..ObjectMeta::default()
            };
            bound(&mut meta);
            assert!(meta.labels.unwrap().is_empty());
            seen.insert(meta.annotations);
        }
        assert_eq!(seen.len(), 2);
    }

    /// Keys that sort first must not push out a key that the provider reads.
    #[test]
    fn what_the_provider_reads_is_kept_however_much_stands_beside_it() {
        let crowd = (0..500).map(|n| (format!("a{n}.capcmi.io/x"), String::new()));
        let mut meta = ObjectMeta {
            annotations: Some(
                crowd
                    .clone()
                    .chain([(annotations::PAUSED.to_owned(), String::new())])
                    .collect(),
            ),
            labels: Some(
                crowd
                    .chain([(labels::CLUSTER_NAME.to_owned(), "c".to_owned())])
                    .collect(),
            ),
            ..ObjectMeta::default()
        };
        bound(&mut meta);
        assert!(meta.annotations.unwrap().contains_key(annotations::PAUSED));
        assert!(meta.labels.unwrap().contains_key(labels::CLUSTER_NAME));
    }

    /// A machine that is not seen as paused would be deleted, and a move that is not seen as blocked would
    /// continue.
    #[test]
    fn a_long_value_is_cut_where_the_key_alone_says_what_to_do() {
        let bounded = |last: &str| {
            let value = format!("{}{last}", "é".repeat(100_000));
            let keys = [
                annotations::PAUSED,
                annotations::BLOCK_MOVE,
                annotations::MANAGED_BY,
            ];
            let mut meta = ObjectMeta {
                annotations: Some(keys.map(|key| (key.to_owned(), value.clone())).into()),
                ..ObjectMeta::default()
            };
            bound(&mut meta);
            for key in keys {
                let kept = &meta.annotations.as_ref().unwrap()[key];
                assert!(value.starts_with(kept) && kept.len() > 900, "{key}");
            }
            assert!(size(&meta) < 4 * 1024, "{}", size(&meta));
            let mut again = meta.clone();
            bound(&mut again);
            assert_eq!(again, meta);
            meta
        };
        assert_ne!(bounded("a"), bounded("b"), "a change of what is cut off is seen");
    }

    #[test]
    fn a_small_object_is_kept_as_it_is() {
        let meta = ObjectMeta {
            annotations: Some([(annotations::DELETE_FOR_MOVE.to_owned(), String::new())].into()),
            labels: Some([(labels::CLUSTER_NAME.to_owned(), "c".to_owned())].into()),
            ..ObjectMeta::default()
        };
        let mut bounded = meta.clone();
        bound(&mut bounded);
        assert_eq!(bounded, meta);
        assert!(!is_known("capcmi.io") && !is_known("evilcapcmi.io/a") && is_known("capcmi.io/a"));
    }
}
