//! What paused an object (row "Pausing" of the contract).

use kube::Resource;

use super::labels;

/// What paused an object, as its condition says; nothing where it is not paused.
pub fn paused_by<K: Resource<DynamicType = ()>>(object: &K, is_its_cluster_paused: bool) -> Option<String> {
    let mut by = Vec::new();
    if is_its_cluster_paused {
        by.push("Cluster spec.paused is set to true".to_owned());
    }
    let annotations = object.meta().annotations.as_ref();
    if annotations.is_some_and(|all| all.contains_key(labels::PAUSED)) {
        by.push(format!("{} has the {} annotation", K::kind(&()), labels::PAUSED));
    }
    (!by.is_empty()).then(|| format!("{}; take that back to have it go on", by.join(", ")))
}
