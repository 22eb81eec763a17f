//! Groups machines by the list that has their VMs.

use kube_fleet::ByVersion;
use std::collections::HashMap;
use std::sync::Arc;

use crate::api::annotations;
use crate::api::identity;
use crate::api::v1alpha1::InfraMachine;
use crate::driver::listing::ClassRef;
use crate::reconcile::caches::{CachedMachine, Caches};
use cmi_driver::JsonPointer;

/// The machines whose VMs are in one list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// The namespace of the machines.
    pub namespace: String,
    /// The class that is listed.
    pub class: ClassRef,
}

/// The groups of a driver's machines, as known from the last scan. An idle machine is not read again.
#[derive(Debug, Default)]
pub struct Groups(ByVersion<JsonPointer, Group>);

impl Groups {
    /// Returns the provisioned machines of a driver, grouped by list. They are the cache's own entries,
    /// because a copy of a whole fleet would take many times the memory of the cache.
    pub async fn update(
        &mut self,
        caches: &Caches,
        driver: &str,
        tag_path: &JsonPointer,
    ) -> HashMap<Arc<Group>, Vec<CachedMachine>> {
        let machines = caches.infra_machines.select(|entry| {
            let facts = entry.facts();
            facts.is_provisioned && facts.used_driver.as_deref() == Some(driver)
        });
        let mut groups: HashMap<Arc<Group>, Vec<_>> = HashMap::new();
        let read = |machine: &CachedMachine| read(machine, driver, tag_path);
        let of_group = |machine: CachedMachine, group: &Arc<Group>| {
            if !is_paused(caches, &machine) {
                groups.entry(Arc::clone(group)).or_default().push(machine);
            }
        };
        self.0.update(tag_path, machines, read, of_group).await;
        groups
    }
}

/// Whether a machine's Cluster is paused: a list that was made during a pause is too old when the pause ends.
pub fn is_paused(caches: &Caches, machine: &CachedMachine) -> bool {
    let labelled = machine.facts().cluster.as_deref();
    let cluster = labelled.and_then(|name| caches.cluster(machine.key().namespace(), name));
    cluster.is_some_and(|cluster| cluster.is_paused())
}

fn read(machine: &CachedMachine, driver: &str, tag_path: &JsonPointer) -> Option<Group> {
    let object = machine.object()?;
    group(object.0.as_ref().ok()?, driver, tag_path)
}

fn group(machine: &InfraMachine, driver: &str, tag_path: &JsonPointer) -> Option<Group> {
    let made = identity::bound(machine).filter(|made| made.driver == driver)?;
    if !machine.is_provisioned()
        || machine.metadata.deletion_timestamp.is_some()
        || identity::annotation(machine, annotations::PAUSED).is_some()
    {
        return None;
    }
    Some(Group {
        namespace: machine.metadata.namespace.clone()?,
        class: ClassRef::of_made(made, tag_path)?,
    })
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use kube_fleet::store;
    use serde_json::{Value, json};

    use std::collections::BTreeSet;

    use super::*;
    use crate::api::identity::fixtures::{existing, in_state};
    use crate::api::{DeserializeGuard, labels};

    /// A provisioned machine of the Cluster `c`.
    fn id(name: &str) -> String {
        format!("ns/{name}/{name}")
    }

    fn made(name: &str, driver: &str, secret: &str) -> Value {
        let tags = json!({"capcmi.io/machine": name, "kubernetes.io/cluster": "c-1"});
        json!({"driver": driver, "secret": secret, "providerSpec": {"size": "s", "tags": tags}})
    }

    fn record(machine: &mut Value, record: String) {
        machine["metadata"]["annotations"][annotations::VM_RECORD] = record.into();
    }

    fn machine(name: &str, change: impl FnOnce(&mut Value)) -> InfraMachine {
        let mut machine = json!({
            "apiVersion": "infrastructure.capcmi.io/v1alpha1",
            "kind": "InfraMachine",
            "metadata": {"namespace": "ns", "name": name, "uid": name, "labels": {labels::CLUSTER_NAME: "c"},
            "annotations": {
                annotations::VM_RECORD: existing(&id(name), &made(name, "pool", "account")),
            }},
            "spec": {"providerSpec": {}, "providerID": format!("sim://{name}")},
            "status": {"initialization": {"provisioned": true}},
        });
        change(&mut machine);
        serde_json::from_value(machine).unwrap()
    }

    /// The names of the machines that are expected in the lists of the driver `pool`, list by list.
    async fn looked_for(
        cluster: &Value,
        machines: impl IntoIterator<Item = InfraMachine>,
    ) -> Vec<Vec<String>> {
        let (clusters, mut writer) = store();
        let (infra_machines, mut machine_writer) = store();
        writer.apply_watcher_event(&Event::Apply(serde_json::from_value(cluster.clone()).unwrap()));
        for machine in machines {
            machine_writer.apply_watcher_event(&Event::Apply(DeserializeGuard(Ok(machine))));
        }
        let caches = Caches {
            clusters,
            infra_machines,
            ..Caches::empty()
        };
        let (mut groups, tag_path) = (Groups::default(), "/tags".parse().unwrap());
        let first = groups.update(&caches, "pool", &tag_path).await;
        let second = groups.update(&caches, "pool", &tag_path).await;
        let names = |found: HashMap<Arc<Group>, Vec<CachedMachine>>| -> BTreeSet<Vec<String>> {
            let of_group = |group: Vec<CachedMachine>| {
                let mut names: Vec<_> = group
                    .iter()
                    .map(|machine| machine.key().name().to_owned())
                    .collect();
                names.sort();
                names
            };
            found.into_values().map(of_group).collect()
        };
        let (first, second) = (names(first), names(second));
        assert_eq!(first, second, "what is known of the last scan is another answer");
        let mut names: Vec<_> = first.into_iter().collect();
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
                let made = made("other-account", "pool", "b");
                record(machine, existing(&id("other-account"), &made));
            }),
            machine("other-driver", |machine| {
                let made = made("other-driver", "b", "account");
                record(machine, existing(&id("other-driver"), &made));
            }),
            machine("not-up-yet", |machine| machine["status"] = json!({})),
        ];
        assert_eq!(
            looked_for(&cluster(false), machines).await,
            [vec!["a", "b"], vec!["other-account"]]
        );
    }

    /// A VM's missing time does not include the time while its machine is paused.
    #[tokio::test]
    async fn machines_that_are_paused_or_of_a_paused_cluster_are_not_looked_for() {
        let paused = || {
            machine("paused", |machine| {
                machine["metadata"]["annotations"][annotations::PAUSED] = json!("");
            })
        };
        let machines = || [machine("a", |_| {}), paused()];
        assert_eq!(looked_for(&cluster(false), machines()).await, [vec!["a"]]);
        assert_eq!(
            looked_for(&cluster(true), machines()).await,
            Vec::<Vec<String>>::new()
        );
    }

    /// As everywhere, only a machine with a valid identity counts.
    #[tokio::test]
    async fn a_machine_with_a_copied_record_or_without_a_vm_is_not_looked_for() {
        let none = json!({"name": "None"});
        let machines = [
            machine("copied", |machine| {
                record(
                    machine,
                    existing("ns/other/u", &made("copied", "pool", "account")),
                );
            }),
            machine("refused", |machine| {
                let made = made("refused", "pool", "account");
                record(machine, in_state(&id("refused"), &none, &made));
            }),
        ];
        assert_eq!(
            looked_for(&cluster(false), machines).await,
            Vec::<Vec<String>>::new()
        );
    }
}
