//! The deletions of InfraMachines that this process has observed.

use std::collections::{HashMap, VecDeque};

use jiff::Timestamp;
use kube::Resource as _;
use kube_fleet::NamespacedName;
use parking_lot::Mutex;

use super::scope::RetainedClass;
use crate::admission::EnforcementEpoch;
use crate::api::cluster_api::cluster_name;
use crate::api::identity::{self, MachineId};
use crate::api::v1alpha1::InfraMachine;
use crate::api::{DeserializeGuard, annotations};
use crate::driver::listing::ClassRef;

/// The number of retained deletions. An orphan of an older deletion is reported and not deleted.
const MAX_DELETIONS: usize = 16_384;
/// The most retained classes of a Cluster.
const MAX_CLASSES: usize = 32;
/// The most bytes of all classes, and the bytes of a class without its provider spec.
const MAX_CLASS_BYTES: usize = 8 * 1024 * 1024;
const BESIDE_SPEC: usize = 1024;

/// The deletions of InfraMachines that this process has observed, and the classes of their VMs.
///
/// # Guarantees
/// * Only a user's deletion counts, not the deletion by a move. An object that is merely missing from a list
///   was not deleted. A backup may have been restored, or the watch may have ended.
/// * An object that exists again, as after a restore, is not deleted.
/// * A deletion counts only while identities are protected without a gap. Otherwise the deleted object may
///   have had the forged identity of a living machine.
///
/// The log is in memory only. After a restart, earlier orphans are reported and not deleted.
#[derive(Debug, Default)]
pub struct DeletionLog(Mutex<DeletionRecords>);

#[derive(Debug, Default)]
struct DeletionRecords {
    deletions: HashMap<String, ObservedDeletion>,
    /// The identities in order of deletion.
    order: VecDeque<String>,
    /// The class of the latest deletion comes last.
    classes: VecDeque<RetainedClass>,
}

/// The deletion of an InfraMachine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedDeletion {
    /// The deleted object.
    pub machine: NamespacedName,
    /// When this process observed that the object was deleted.
    pub at: Timestamp,
    /// The epoch of the admission policies at that time.
    pub during: EnforcementEpoch,
}

impl DeletionLog {
    /// Records that an object was deleted, with its last known state. `is_cluster_frozen` tells whether its
    /// Cluster is paused or missing, as in a move. `during` is the epoch of the admission policies, if they
    /// are in force.
    pub fn record(
        &self,
        object: &DeserializeGuard<InfraMachine>,
        is_cluster_frozen: bool,
        at: Timestamp,
        during: Option<EnforcementEpoch>,
    ) {
        let meta = object.meta();
        // The VM of a moved machine now belongs to another management cluster, and force-delete leaves a VM
        // on purpose.
        let keeps_vm = meta.annotations.as_ref().is_some_and(|all| {
            [annotations::DELETE_FOR_MOVE, annotations::FORCE_DELETE]
                .iter()
                .any(|mark| all.contains_key(*mark))
        });
        if is_cluster_frozen {
            return;
        }
        let mut seen = self.0.lock();
        if let Ok(machine) = &object.0
            && let Some(class) = retained_class(machine)
        {
            seen.keep_class(class);
        }
        if meta.deletion_timestamp.is_none() || keeps_vm {
            return;
        }
        if let Some((id, during)) = MachineId::of_metadata(meta).zip(during) {
            let machine = NamespacedName::of(meta);
            seen.insert(id.tag(), ObservedDeletion { machine, at, during });
        }
    }

    /// Removes the deletion of an object that exists, and was unknown before.
    pub fn remove(&self, object: &DeserializeGuard<InfraMachine>) {
        let mut seen = self.0.lock();
        if let Some(id) = MachineId::of_metadata(object.meta())
            && seen.deletions.remove(id.tag()).is_some()
        {
            seen.order.retain(|known| known != id.tag());
        }
    }

    /// The deletion of the InfraMachine with this identity, if it was observed in the epoch `now`.
    pub fn of(&self, identity: &str, now: Option<EnforcementEpoch>) -> Option<ObservedDeletion> {
        let seen = self.0.lock();
        let deletion = seen.deletions.get(identity)?;
        (Some(deletion.during) == now).then(|| deletion.clone())
    }

    /// The classes of deleted machines.
    pub fn classes(&self) -> Vec<RetainedClass> {
        self.0.lock().classes.iter().cloned().collect()
    }

    /// Forgets a class whose list needs an operator first. Returns whether the class was known.
    pub fn forget_class(&self, class: &RetainedClass) -> bool {
        let classes = &mut self.0.lock().classes;
        let before = classes.len();
        classes.retain(|known| known != class);
        classes.len() < before
    }
}

impl DeletionRecords {
    /// Retains a class as the most recent. While there is room for all, one Cluster does not displace the
    /// classes of others.
    fn keep_class(&mut self, class: RetainedClass) {
        self.classes.retain(|known| *known != class);
        let of_cluster = |known: &RetainedClass| known.cluster == class.cluster;
        if self.classes.iter().filter(|known| of_cluster(known)).count() == MAX_CLASSES {
            let oldest = self.classes.iter().position(of_cluster);
            oldest.and_then(|oldest| self.classes.remove(oldest));
        }
        self.classes.push_back(class);
        let bytes = |class: &RetainedClass| class.class.spec.len() + BESIDE_SPEC;
        let mut all: usize = self.classes.iter().map(bytes).sum();
        while all > MAX_CLASS_BYTES
            && let Some(oldest) = self.classes.pop_front()
        {
            all -= bytes(&oldest);
        }
    }

    fn insert(&mut self, id: &str, deletion: ObservedDeletion) {
        if self.deletions.insert(id.to_owned(), deletion).is_some() {
            return;
        }
        self.order.push_back(id.to_owned());
        while self.order.len() > MAX_DELETIONS {
            if let Some(oldest) = self.order.pop_front() {
                self.deletions.remove(&oldest);
            }
        }
    }
}

fn retained_class(machine: &InfraMachine) -> Option<RetainedClass> {
    let made = identity::bound(machine)?;
    let cluster = NamespacedName::new(
        machine.metadata.namespace.as_deref()?,
        cluster_name(&machine.metadata)?,
    );
    let mut spec = made.provider_spec;
    super::scope::remove_identity(&mut spec.0);
    spec.remove_static_addresses();
    let class = ClassRef {
        secret: made.secret,
        spec: serde_json::to_string(&spec).ok()?,
    };
    Some(RetainedClass {
        driver: made.driver,
        cluster,
        class,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::identity::fixtures::existing;
    use crate::api::labels;

    fn record(machine: &str, id: &str, tag: &str) -> String {
        let spec = json!({"size": "s", "tags": {"capcmi.io/machine": tag, "kubernetes.io/cluster": "c-1"}});
        let made = json!({"driver": "pool", "secret": "account", "providerSpec": spec});
        existing(&format!("{machine}/{id}"), &made)
    }

    fn machine(id: &str, change: impl FnOnce(&mut Value)) -> DeserializeGuard<InfraMachine> {
        let mut machine = json!({
            "metadata": {
                "namespace": "ns", "name": "m", "uid": id, "deletionTimestamp": "2026-01-01T00:00:00Z",
                "labels": {labels::CLUSTER_NAME: "c"},
                "annotations": {annotations::VM_RECORD: record("ns/m", id, id)},
            },
            "spec": {"providerSpec": {}},
        });
        change(&mut machine);
        serde_json::from_value::<InfraMachine>(machine)
            .map(|machine| DeserializeGuard(Ok(machine)))
            .unwrap()
    }

    const NOW: Option<EnforcementEpoch> = Some(EnforcementEpoch::nth(1));

    fn log_of(object: &DeserializeGuard<InfraMachine>, is_cluster_frozen: bool) -> DeletionLog {
        let deletion_log = DeletionLog::default();
        deletion_log.record(object, is_cluster_frozen, Timestamp::UNIX_EPOCH, NOW);
        deletion_log
    }

    #[test]
    fn an_object_whose_deletion_was_asked_for_is_recorded() {
        let deletion_log = log_of(&machine("u", |_| {}), false);
        let deletion = deletion_log.of("u", NOW).unwrap();
        assert_eq!(deletion.machine.to_string(), "ns/m");
        assert_eq!(deletion_log.of("other", NOW), None);
    }

    #[test]
    fn missing_moved_copied_and_paused_objects_are_not_recorded() {
        let missing = machine("u", |machine| {
            machine["metadata"]["deletionTimestamp"] = Value::Null;
        });
        let moved = machine("u", |machine| {
            machine["metadata"]["annotations"][annotations::DELETE_FOR_MOVE] = json!("");
        });
        let copied = machine("u", |machine| {
            machine["metadata"]["annotations"][annotations::VM_RECORD] = json!(record("ns/other", "u", "u"));
        });
        for (what, deletion_log) in [
            ("missing", log_of(&missing, false)),
            ("moved", log_of(&moved, false)),
            ("copied", log_of(&copied, false)),
            ("frozen", log_of(&machine("u", |_| {}), true)),
        ] {
            assert_eq!(deletion_log.of("u", NOW), None, "{what}");
        }
    }

    /// A restored backup brings objects back, and the next one may lack them: that is no deletion.
    #[test]
    fn an_object_that_is_there_again_is_removed() {
        let deletion_log = log_of(&machine("u", |_| {}), false);
        deletion_log.remove(&machine("u", |_| {}));
        assert_eq!(deletion_log.of("u", NOW), None);
        assert!(deletion_log.0.lock().order.is_empty());
    }

    /// The deleted object may have been an impostor with the identity of a living machine.
    #[test]
    fn deletions_seen_while_identities_were_unguarded_prove_nothing() {
        let deletion_log = log_of(&machine("u", |_| {}), false);
        assert!(deletion_log.of("u", NOW).is_some());
        assert_eq!(deletion_log.of("u", None), None, "while they are not guarded");
        assert_eq!(
            deletion_log.of("u", Some(EnforcementEpoch::nth(2))),
            None,
            "after that"
        );
        deletion_log.record(&machine("v", |_| {}), false, Timestamp::UNIX_EPOCH, None);
        assert_eq!(deletion_log.of("v", None), None);
        assert_eq!(
            deletion_log.of("v", NOW),
            None,
            "seen while they were not guarded"
        );
        assert!(
            !deletion_log.classes().is_empty(),
            "it is looked for and reported all the same"
        );
    }

    #[test]
    fn the_class_of_the_last_machine_is_still_looked_at() {
        let deletion_log = log_of(&machine("u", |_| {}), false);
        let adopted = machine("w", |machine| {
            let record = record("ns/m", "w", "of-another");
            machine["metadata"]["annotations"][annotations::VM_RECORD] = json!(record);
        });
        for machine in [machine("v", |_| {}), adopted] {
            deletion_log.record(&machine, false, Timestamp::UNIX_EPOCH, NOW);
        }
        let classes = deletion_log.classes();
        let [class] = classes.as_slice() else {
            panic!("{classes:?}")
        };
        assert_eq!(
            (class.driver.as_str(), class.cluster.to_string()),
            ("pool", "ns/c".to_owned())
        );
        assert_eq!(class.class.secret.as_deref(), Some("account"));
        assert_eq!(
            class.class.spec,
            r#"{"size":"s","tags":{"kubernetes.io/cluster":"c-1"}}"#
        );
    }

    #[test]
    fn many_classes_of_a_cluster_push_out_its_own_oldest_and_fill_no_memory() {
        let class = |cluster: &str, number: usize, bytes: usize| RetainedClass {
            driver: "pool".to_owned(),
            cluster: NamespacedName::new("ns", cluster),
            class: ClassRef {
                secret: None,
                spec: format!("{number:0>bytes$}"),
            },
        };
        let mut records = DeletionRecords::default();
        records.keep_class(class("other", 0, 8));
        for number in 0..1_000 {
            records.keep_class(class("c", number, 8));
        }
        assert_eq!(records.classes.len(), 1 + MAX_CLASSES);
        assert!(records.classes.contains(&class("other", 0, 8)));
        assert!(
            records.classes.contains(&class("c", 999, 8)) && !records.classes.contains(&class("c", 0, 8))
        );
        for number in 0..500 {
            records.keep_class(class(&number.to_string(), number, 60_000));
        }
        let bytes: usize = records.classes.iter().map(|class| class.class.spec.len()).sum();
        assert!(bytes <= MAX_CLASS_BYTES, "{bytes}");
    }

    #[test]
    fn a_forgotten_class_returns_with_its_next_deleted_machine() {
        let deletion_log = log_of(&machine("u", |_| {}), false);
        let class = deletion_log.classes().remove(0);
        assert!(deletion_log.forget_class(&class) && !deletion_log.forget_class(&class));
        deletion_log.record(&machine("v", |_| {}), false, Timestamp::UNIX_EPOCH, NOW);
        assert_eq!(deletion_log.classes(), [class]);
    }

    #[test]
    fn the_oldest_ends_are_forgotten_first() {
        let deletion_log = DeletionLog::default();
        for number in 0..=MAX_DELETIONS {
            deletion_log.record(
                &machine(&format!("u-{number}"), |_| {}),
                false,
                Timestamp::UNIX_EPOCH,
                NOW,
            );
        }
        assert_eq!(deletion_log.of("u-0", NOW), None);
        assert!(
            deletion_log.of("u-1", NOW).is_some()
                && deletion_log.of(&format!("u-{MAX_DELETIONS}"), NOW).is_some()
        );
        assert_eq!(deletion_log.0.lock().deletions.len(), MAX_DELETIONS);
    }
}
