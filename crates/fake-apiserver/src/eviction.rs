//! Evictions of pods, within their PodDisruptionBudgets.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::selector::Selector;
use crate::store::{Key, Part, Refusal, Store};

/// Deletes a pod if its budget allows a disruption, and counts it. The budget's controller is the test.
pub(crate) fn evict(
    store: &mut Store,
    pod: &Key,
    preconditions: &Value,
    now: Timestamp,
    dry_run: bool,
) -> Result<(), Refusal> {
    let labels = store.get(pod)?["metadata"]["labels"].clone();
    let all = Selector::default();
    let budgets: Vec<(Key, Value)> = match store
        .kinds
        .iter()
        .position(|kind| kind.kind == "PodDisruptionBudget")
    {
        Some(kind) => store
            .list(kind, &pod.namespace, &all)
            .filter(|(_, budget)| protects(budget, &labels))
            .map(|(key, budget)| (key.clone(), budget.as_ref().clone()))
            .collect(),
        None => Vec::new(),
    };
    if budgets.len() > 1 {
        let message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does \
            not support.";
        return Err(Refusal::new(500, "InternalError", message.to_owned()));
    }
    // A refused deletion uses up no budget.
    store.delete(pod, preconditions, now, true)?;
    for (key, mut budget) in budgets {
        let allowed = budget["status"]["disruptionsAllowed"]
            .as_i64()
            .unwrap_or_default();
        if allowed < 1 {
            let message = "Cannot evict pod as it would violate the pod's disruption budget.";
            return Err(Refusal::new(429, "TooManyRequests", message.to_owned()));
        }
        budget["status"]["disruptionsAllowed"] = json!(allowed - 1);
        store.replace(&key, Part::Status, budget, now, dry_run)?;
    }
    store.delete(pod, preconditions, now, dry_run).map(drop)
}

/// Whether the labels of a pod match the `matchLabels` of a budget.
fn protects(budget: &Value, labels: &Value) -> bool {
    let wanted = budget["spec"]["selector"]["matchLabels"].as_object();
    wanted.is_some_and(|wanted| wanted.iter().all(|(key, value)| labels[key] == *value))
}
