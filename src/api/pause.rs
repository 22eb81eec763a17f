//! What paused an object (row "Pausing" of the contract).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;

use super::annotations;

/// What paused an object, as its condition says; nothing where it is not paused.
pub fn paused_by<K: Resource<DynamicType = ()>>(object: &K, is_its_cluster_paused: bool) -> Option<String> {
    pause_message(&pause_causes(object, is_its_cluster_paused))
}

/// Each thing that paused an object.
pub fn pause_causes<K: Resource<DynamicType = ()>>(object: &K, is_its_cluster_paused: bool) -> Vec<String> {
    let mut causes = Vec::new();
    if is_its_cluster_paused {
        causes.push("Cluster spec.paused is set to true".to_owned());
    }
    causes.extend(annotation_cause(&K::kind(&()), object.meta()));
    causes
}

/// The annotation that paused an object of a kind, if one has.
pub fn annotation_cause(kind: &str, meta: &ObjectMeta) -> Option<String> {
    let annotations = meta.annotations.as_ref()?;
    annotations
        .contains_key(annotations::PAUSED)
        .then(|| format!("{kind} has the {} annotation", annotations::PAUSED))
}

/// What a condition says of these causes; nothing where there are none.
pub fn pause_message(causes: &[String]) -> Option<String> {
    (!causes.is_empty()).then(|| format!("{}; remove the pause to resume", causes.join("; ")))
}
