//! Which machines one list answers for.

use std::collections::HashMap;
use std::sync::Arc;

use crate::api::v1alpha1::InfraMachine;
use crate::api::{DeserializeGuard, labels};
use crate::caches::Caches;
use crate::identity;
use cmi_driver::{JsonPointer, tags};

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

/// After so many machines others get their turn: there may be ten thousand, and to read what each
/// was made from takes time.
const AT_ONCE: usize = 256;

/// The provisioned machines of a driver, by the list that answers for them. They are the cache's own: a copy
/// of a whole fleet would double what it takes.
pub async fn groups(
    caches: &Caches,
    driver: &str,
    tag_path: &JsonPointer,
) -> HashMap<Group, Vec<Arc<DeserializeGuard<InfraMachine>>>> {
    let mut groups: HashMap<Group, Vec<_>> = HashMap::new();
    for (index, guarded) in caches.infra_machines.state().into_iter().enumerate() {
        if index % AT_ONCE == AT_ONCE - 1 {
            tokio::task::yield_now().await;
        }
        let Ok(machine) = &guarded.0 else { continue };
        // What a list says during a pause is too old when that ends.
        let cluster = caches.labelled_cluster(&machine.metadata);
        if cluster.is_some_and(|cluster| cluster.is_paused()) {
            continue;
        }
        if let Some(group) = group(machine, driver, tag_path) {
            groups.entry(group).or_default().push(guarded);
        }
    }
    groups
}

fn group(machine: &InfraMachine, driver: &str, tag_path: &JsonPointer) -> Option<Group> {
    if !machine.is_provisioned()
        || identity::recorded_driver(machine) != Some(driver)
        || machine.metadata.deletion_timestamp.is_some()
        || identity::annotation(machine, labels::PAUSED).is_some()
    {
        return None;
    }
    let mut spec = identity::applied_spec(machine)?;
    spec.remove_tags(tag_path, &[tags::MACHINE]);
    Some(Group {
        namespace: machine.metadata.namespace.clone()?,
        secret: identity::credentials(machine).map(str::to_owned),
        class: serde_json::to_string(&spec).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt as _;
    use kube::runtime::reflector;
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::api::labels::Instance;

    /// A provisioned machine of the Cluster `c`.
    fn machine(name: &str, change: impl FnOnce(&mut Value)) -> InfraMachine {
        let mut machine = json!({
            "apiVersion": "infrastructure.capcmi.io/v1alpha1",
            "kind": "InfraMachine",
            "metadata": {"namespace": "ns", "name": name, "uid": name, "labels": {labels::CLUSTER_NAME: "c"},
            "annotations": {
                labels::DRIVER: "pool",
                labels::MACHINE_ID: format!("ns/{name}/{name}"),
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
    async fn looked_for(
        cluster: &Value,
        machines: impl IntoIterator<Item = InfraMachine>,
    ) -> Vec<Vec<String>> {
        let (clusters, mut writer) = reflector::store();
        let (infra_machines, mut machine_writer) = reflector::store();
        writer.apply_watcher_event(&Event::Apply(serde_json::from_value(cluster.clone()).unwrap()));
        for machine in machines {
            machine_writer.apply_watcher_event(&Event::Apply(DeserializeGuard(Ok(machine))));
        }
        let caches = Caches {
            clusters,
            infra_machines,
            ..Caches::empty()
        };
        let groups = groups(&caches, "pool", &"/tags".parse().unwrap()).await;
        let known = caches.infra_machines.state();
        let is_the_caches = |grouped: &Arc<_>| known.iter().any(|known| Arc::ptr_eq(known, grouped));
        assert!(groups.values().flatten().all(is_the_caches), "a fleet was copied");
        let mut names: Vec<Vec<_>> = groups
            .into_values()
            .map(|group| group.iter().map(|machine| machine.name_any()).collect())
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

    #[tokio::test]
    async fn one_list_answers_for_all_machines_of_a_class_and_an_account() {
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
            looked_for(&cluster(false), machines).await,
            [vec!["a", "b"], vec!["other-account"]]
        );
    }

    /// While a machine is paused, the time for which its VM is missing is not counted either.
    #[tokio::test]
    async fn machines_that_are_paused_or_of_a_paused_cluster_are_not_looked_for() {
        let paused = || {
            machine("paused", |machine| {
                machine["metadata"]["annotations"][labels::PAUSED] = json!("");
            })
        };
        let machines = || [machine("a", |_| {}), paused()];
        assert_eq!(looked_for(&cluster(false), machines()).await, [vec!["a"]]);
        assert_eq!(
            looked_for(&cluster(true), machines()).await,
            Vec::<Vec<String>>::new()
        );
    }

    /// The same rules as wherever else the identity of a machine counts.
    #[tokio::test]
    async fn a_machine_that_lost_its_note_is_looked_for_and_one_with_a_copied_identity_is_not() {
        let machines = [
            machine("noteless", |machine| {
                let annotations = machine["metadata"]["annotations"].as_object_mut().unwrap();
                annotations.remove(labels::INSTANCE);
            }),
            machine("copied", |machine| {
                machine["metadata"]["annotations"][labels::MACHINE_ID] = json!("ns/other/u");
            }),
            machine("refused", |machine| {
                machine["metadata"]["annotations"][labels::INSTANCE] = json!(Instance::None.annotation());
            }),
        ];
        assert_eq!(looked_for(&cluster(false), machines).await, [vec!["noteless"]]);
    }
}
