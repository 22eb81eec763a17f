//! Causes of an object's pause (row "Pausing" of the contract).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;

use super::annotations;

/// The message of an object's `Paused` condition; `None` if the object is not paused.
pub fn paused_by<K: Resource<DynamicType = ()>>(object: &K, is_its_cluster_paused: bool) -> Option<String> {
    pause_message(&pause_causes(object, is_its_cluster_paused))
}

/// All causes of an object's pause.
pub fn pause_causes<K: Resource<DynamicType = ()>>(object: &K, is_its_cluster_paused: bool) -> Vec<String> {
    let mut causes = Vec::new();
    if is_its_cluster_paused {
        causes.push("Cluster spec.paused is set to true".to_owned());
    }
    causes.extend(annotation_cause(&K::kind(&()), object.meta()));
    causes
}

/// The annotation that pauses an object, as a message.
pub fn annotation_cause(kind: &str, meta: &ObjectMeta) -> Option<String> {
    let annotations = meta.annotations.as_ref()?;
    annotations
        .contains_key(annotations::PAUSED)
        .then(|| format!("{kind} has the {} annotation", annotations::PAUSED))
}

/// The condition message for these causes; `None` without causes.
pub fn pause_message(causes: &[String]) -> Option<String> {
    (!causes.is_empty()).then(|| format!("{}; remove the pause to resume", causes.join("; ")))
}
