//! Which machines one list answers for.

use std::collections::HashMap;
use std::sync::Arc;

use kube::runtime::reflector::ObjectRef;

use crate::api::cluster_api::Cluster;
use crate::api::labels::{self, Instance};
use crate::api::v1alpha1::InfraMachine;
use crate::caches::Caches;
use crate::driver::{JsonPointer, ProviderSpec, tags};

/// The machines that one list answers for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// Of the machines.
    pub namespace: String,
    /// The Secret with the credentials that they were made with.
    pub secret: Option<String>,
    /// The provider spec without the machine's own tag, as JSON.
    pub class: String,
}

/// The provisioned machines of a driver, by the list that answers for them.
pub fn groups(
    caches: &Caches,
    driver: &str,
    tag_path: &JsonPointer,
) -> HashMap<Group, Vec<Arc<InfraMachine>>> {
    let mut groups: HashMap<Group, Vec<Arc<InfraMachine>>> = HashMap::new();
    for guarded in caches.infra_machines.state() {
        let Ok(machine) = &guarded.0 else { continue };
        // What a list says while hands are off is too old when they are on again.
        if cluster_of(caches, machine).is_some_and(|cluster| cluster.is_paused()) {
            continue;
        }
        if let Some(group) = group(machine, driver, tag_path) {
            groups.entry(group).or_default().push(Arc::new(machine.clone()));
        }
    }
    groups
}

fn cluster_of(caches: &Caches, machine: &InfraMachine) -> Option<Arc<Cluster>> {
    let name = machine.metadata.labels.as_ref()?.get(labels::CLUSTER_NAME)?;
    let reference = ObjectRef::new(name).within(machine.metadata.namespace.as_deref()?);
    caches.clusters.get(&reference)
}

fn group(machine: &InfraMachine, driver: &str, tag_path: &JsonPointer) -> Option<Group> {
    let annotations = machine.metadata.annotations.as_ref()?;
    let provisioned = machine.status.as_ref()?.initialization.as_ref()?.provisioned == Some(true);
    let instance = Instance::from_annotation(annotations.get(labels::INSTANCE)?);
    if !provisioned
        || annotations.get(labels::DRIVER)? != driver
        || instance == Instance::None
        || machine.metadata.deletion_timestamp.is_some()
        || annotations.contains_key(labels::PAUSED)
    {
        return None;
    }
    let mut spec: ProviderSpec =
        serde_json::from_str(annotations.get(labels::APPLIED_PROVIDER_SPEC)?).ok()?;
    spec.remove_tags(tag_path, &[tags::MACHINE]);
    let named = machine.spec.secret_ref.as_ref().map(|secret| &secret.name);
    Some(Group {
        namespace: machine.metadata.namespace.clone()?,
        secret: annotations
            .get(labels::SECRET)
            .or(named)
            .filter(|name| !name.is_empty())
            .cloned(),
        class: serde_json::to_string(&spec).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use kube::runtime::reflector;
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::api::Guarded;

    /// A provisioned machine of the Cluster `c`.
    fn machine(name: &str, change: impl FnOnce(&mut Value)) -> InfraMachine {
        let mut machine = json!({
            "apiVersion": "infrastructure.capcmi.io/v1alpha1",
            "kind": "InfraMachine",
            "metadata": {"namespace": "ns", "name": name, "uid": name, "labels": {labels::CLUSTER_NAME: "c"}, "annotations": {
                labels::DRIVER: "pool",
                labels::INSTANCE: Instance::MayExist.annotation(),
                labels::SECRET: "account",
                labels::APPLIED_PROVIDER_SPEC:
                    format!(r#"{{"size":"s","tags":{{"capcmi.io/machine":"{name}","kubernetes.io/cluster":"c-1"}}}}"#),
            }},
            "spec": {"providerSpec": {}, "providerID": format!("sim://{name}")},
            "status": {"initialization": {"provisioned": true}},
        });
        change(&mut machine);
        serde_json::from_value(machine).unwrap()
    }

    /// The names of the machines that are looked for in the lists of the driver `pool`, list by list.
    fn looked_for(cluster: &Value, machines: impl IntoIterator<Item = InfraMachine>) -> Vec<Vec<String>> {
        let (clusters, mut writer) = reflector::store();
        let (infra_machines, mut machine_writer) = reflector::store();
        writer.apply_watcher_event(&Event::Apply(serde_json::from_value(cluster.clone()).unwrap()));
        for machine in machines {
            machine_writer.apply_watcher_event(&Event::Apply(Guarded(Ok(machine))));
        }
        let caches = Caches {
            clusters,
            infra_machines,
            ..Caches::empty()
        };
        let mut names: Vec<Vec<_>> = groups(&caches, "pool", &"/tags".parse().unwrap())
            .into_values()
            .map(|group| {
                group
                    .iter()
                    .filter_map(|machine| machine.metadata.name.clone())
                    .collect()
            })
            .collect();
        for group in &mut names {
            group.sort();
        }
        names.sort();
        names
    }

    fn cluster(paused: bool) -> Value {
        json!({"metadata": {"namespace": "ns", "name": "c"}, "spec": {"paused": paused}})
    }

    #[test]
    fn one_list_answers_for_all_machines_of_a_class_and_an_account() {
        let machines = [
            machine("a", |_| {}),
            machine("b", |_| {}),
            machine("other-account", |machine| {
                machine["metadata"]["annotations"][labels::SECRET] = json!("b");
            }),
            machine("other-driver", |machine| {
                machine["metadata"]["annotations"][labels::DRIVER] = json!("b");
            }),
            machine("not-up-yet", |machine| machine["status"] = json!({})),
        ];
        assert_eq!(
            looked_for(&cluster(false), machines),
            [vec!["a", "b"], vec!["other-account"]]
        );
    }

    /// While a machine is paused, nobody counts either since when its VM is missing.
    #[test]
    fn machines_that_are_paused_or_of_a_paused_cluster_are_not_looked_for() {
        let paused = || {
            machine("paused", |machine| {
                machine["metadata"]["annotations"][labels::PAUSED] = json!("");
            })
        };
        let machines = || [machine("a", |_| {}), paused()];
        assert_eq!(looked_for(&cluster(false), machines()), [vec!["a"]]);
        assert_eq!(looked_for(&cluster(true), machines()), Vec::<Vec<String>>::new());
    }
}
