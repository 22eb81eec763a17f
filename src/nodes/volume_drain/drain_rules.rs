//! MachineDrainRules, which tell Cluster API to skip, order or wait for pods. Pods that a rule may select are
//! left to Cluster API. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt as _};
use serde::Deserialize;

/// The fields of a MachineDrainRule that the provider reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct MachineDrainRule {
    spec: Spec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    drain: Drain,
    machines: Vec<Selected>,
    pods: Vec<Selected>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Drain {
    behavior: String,
    order: i32,
}

/// A selection of Machines or pods. The label selectors of their Cluster or namespace are not evaluated, so a
/// rule may select more pods here than in Cluster API. Those pods are also left to Cluster API.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Selected {
    selector: Option<LabelSelector>,
}

type Labels = BTreeMap<String, String>;

impl Selected {
    fn may_be(&self, labels: &Labels) -> bool {
        let selector = self.selector.clone().map(Selector::try_from);
        selector.is_none_or(|selector| selector.map_or(true, |selector| selector.matches(labels)))
    }
}

/// The rules that may apply to one Machine.
#[derive(Clone, Debug, Default)]
pub struct DrainRules(Vec<MachineDrainRule>);

impl DrainRules {
    /// The rules that may apply to a Machine with these labels, except for rules that only have pods evicted.
    pub fn of_machine(all: Vec<MachineDrainRule>, labels: &Labels) -> Self {
        let mut all = all;
        all.retain(|MachineDrainRule { spec }| {
            let is_default = spec.drain.behavior == "Drain" && spec.drain.order == 0;
            !is_default && may_be_one_of(&spec.machines, labels)
        });
        Self(all)
    }

    /// A rule for all pods, used when the rules are unknown.
    pub fn unknown() -> Self {
        Self(vec![MachineDrainRule::default()])
    }

    /// Whether a rule may select a pod with these labels.
    pub fn may_concern(&self, labels: &Labels) -> bool {
        self.0.iter().any(|rule| may_be_one_of(&rule.spec.pods, labels))
    }
}

/// Whether a selection may include an object with these labels. Without a selector it includes all of them.
fn may_be_one_of(selected: &[Selected], labels: &Labels) -> bool {
    selected.is_empty() || selected.iter().any(|selected| selected.may_be(labels))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[allow(clippy::needless_pass_by_value)] // a literal, which reads better without a reference
    fn concerns(spec: Value, pod: &str) -> bool {
        let labels = |value: &str| Labels::from([("app".to_owned(), value.to_owned())]);
        let rule = serde_json::from_value(json!({"metadata": {"name": "r"}, "spec": spec})).unwrap();
        DrainRules::of_machine(vec![rule], &labels("machine")).may_concern(&labels(pod))
    }

    #[test]
    fn a_pod_with_a_skip_or_order_rule_is_left_to_cluster_api() {
        let app = |value: &str| json!([{"selector": {"matchLabels": {"app": value}}}]);
        let skip = json!({"behavior": "Skip"});
        assert!(concerns(json!({"drain": skip}), "db"), "all pods of all Machines");
        assert!(concerns(json!({"drain": skip, "pods": app("db")}), "db"));
        assert!(!concerns(json!({"drain": skip, "pods": app("db")}), "web"));
        assert!(!concerns(json!({"drain": skip, "machines": app("other")}), "db"));
        assert!(concerns(json!({"drain": skip, "machines": app("machine")}), "db"));
        let elsewhere = json!([{"namespaceSelector": {"matchLabels": {"a": "b"}}}]);
        assert!(
            concerns(json!({"drain": skip, "pods": elsewhere}), "db"),
            "it may be"
        );
        assert!(concerns(
            json!({"drain": {"behavior": "Drain", "order": 5}}),
            "db"
        ));
        assert!(
            !concerns(json!({"drain": {"behavior": "Drain"}}), "db"),
            "as without a rule"
        );
        assert!(concerns(json!({"drain": {"behavior": "WaitCompleted"}}), "db"));
    }

    #[test]
    fn every_pod_is_left_to_cluster_api_where_the_rules_are_not_known() {
        assert!(DrainRules::unknown().may_concern(&Labels::new()));
        assert!(!DrainRules::default().may_concern(&Labels::new()));
    }
}
