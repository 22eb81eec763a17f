//! The ends of InfraMachines that this process has seen.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use kube::Resource as _;

use super::classes::{EndedClass, EndedClasses};
use super::plan::{Key, labelled};
use super::scope::Class;
use crate::admission::Unbroken;
use crate::api::v1alpha1::InfraMachine;
use crate::api::{DeserializeGuard, labels};
use crate::identity::{self, MachineId};

/// How many ends are remembered; an orphan of an older one is reported and not deleted.
const MOST_ENDS: usize = 16_384;

/// The ends of InfraMachines that this process has seen, and the classes of their VMs.
///
/// # Guarantees
/// * An end counts where a deletion was asked for, and not by a move. An object that is missing
///   from a list, because a backup was restored or because the watch broke off before the
///   deletion was seen, has not ended.
/// * An object that is there again, as after a restore, has not ended.
/// * An end counts only as long as identities are guarded without a break since it was seen: what ended may
///   have carried the forged identity of a machine that lives.
///
/// It does not outlive the process: after a restart orphans of before are reported and not deleted.
#[derive(Debug, Default)]
pub struct Endings(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    ended: HashMap<String, Ended>,
    /// The identities in the order in which their ends were seen.
    order: VecDeque<String>,
    classes: EndedClasses,
}

/// The end of an InfraMachine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The object.
    pub machine: Key,
    /// When it was seen to be gone.
    pub at: Timestamp,
    /// The stretch in which identities were guarded then.
    pub during: Unbroken,
}

impl Endings {
    /// An object is gone; as it was known. `is_cluster_frozen` says that its Cluster is paused or not there,
    /// as in a move; `during`, whether identities are guarded.
    pub fn gone(
        &self,
        object: &DeserializeGuard<InfraMachine>,
        is_cluster_frozen: bool,
        at: Timestamp,
        during: Option<Unbroken>,
    ) {
        let meta = object.meta();
        // The VM of one that was moved is another's now, and force-delete leaves a VM on purpose.
        let is_to_stay = meta.annotations.as_ref().is_some_and(|all| {
            [labels::DELETE_FOR_MOVE, labels::FORCE_DELETE]
                .iter()
                .any(|mark| all.contains_key(*mark))
        });
        if is_cluster_frozen {
            return;
        }
        let mut seen = self.lock();
        if let Ok(machine) = &object.0
            && let Some(class) = ended_class(machine)
        {
            seen.classes.keep(class);
        }
        if meta.deletion_timestamp.is_none() || is_to_stay {
            return;
        }
        if let Some((id, during)) = MachineId::of_metadata(meta).zip(during) {
            let machine = Key::of(meta);
            seen.keep_end(id.tag(), Ended { machine, at, during });
        }
    }

    /// An object is there that was not known.
    pub fn came(&self, object: &DeserializeGuard<InfraMachine>) {
        let mut seen = self.lock();
        if let Some(id) = MachineId::of_metadata(object.meta())
            && seen.ended.remove(id.tag()).is_some()
        {
            seen.order.retain(|known| known != id.tag());
        }
    }

    /// The end of the InfraMachine of this identity, if it was seen in the stretch that holds `now`.
    pub fn of(&self, identity: &str, now: Option<Unbroken>) -> Option<Ended> {
        let seen = self.lock();
        let ended = seen.ended.get(identity)?;
        (Some(ended.during) == now).then(|| ended.clone())
    }

    /// The classes of machines that ended.
    pub fn classes(&self) -> Vec<EndedClass> {
        self.lock().classes.iter().cloned().collect()
    }

    /// The list of a class was made.
    pub fn listed(&self, class: &EndedClass) {
        self.lock().classes.listed(class);
    }

    /// The list of a class can't be made until a person acts. Whether that is now
    /// believed, and the class forgotten.
    pub fn unlistable(&self, class: &EndedClass) -> bool {
        self.lock().classes.unlistable(class)
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn keep_end(&mut self, id: &str, end: Ended) {
        if self.ended.insert(id.to_owned(), end).is_some() {
            return;
        }
        self.order.push_back(id.to_owned());
        while self.order.len() > MOST_ENDS {
            if let Some(oldest) = self.order.pop_front() {
                self.ended.remove(&oldest);
            }
        }
    }
}

fn ended_class(machine: &InfraMachine) -> Option<EndedClass> {
    let driver = identity::recorded_driver(machine)?.to_owned();
    let cluster = Key {
        namespace: machine.metadata.namespace.clone()?,
        name: labelled(&machine.metadata)?,
    };
    let mut spec = identity::applied_spec(machine)?;
    if let Some(id) = MachineId::of(machine) {
        super::scope::remove_identity(&mut spec.0, id.tag());
    }
    let class = Class {
        secret: identity::credentials(machine).map(str::to_owned),
        spec: serde_json::to_string(&spec).ok()?,
    };
    Some(EndedClass {
        driver,
        cluster,
        class,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn machine(id: &str, change: impl FnOnce(&mut Value)) -> DeserializeGuard<InfraMachine> {
        let mut machine = json!({
            "metadata": {
                "namespace": "ns", "name": "m", "uid": id, "deletionTimestamp": "2026-01-01T00:00:00Z",
                "labels": {labels::CLUSTER_NAME: "c"},
                "annotations": {
                    labels::MACHINE_ID: format!("ns/m/{id}"), labels::DRIVER: "pool", labels::SECRET: "account",
                    labels::APPLIED_PROVIDER_SPEC: format!(r#"{{"size":"s","tags":{{"capcmi.io/machine":"{id}","kubernetes.io/cluster":"c-1"}}}}"#),
                },
            },
            "spec": {"providerSpec": {}},
        });
        change(&mut machine);
        serde_json::from_value::<InfraMachine>(machine)
            .map(|machine| DeserializeGuard(Ok(machine)))
            .unwrap()
    }

    const NOW: Option<Unbroken> = Some(Unbroken::nth(1));

    fn gone(object: &DeserializeGuard<InfraMachine>, is_cluster_frozen: bool) -> Endings {
        let endings = Endings::default();
        endings.gone(object, is_cluster_frozen, Timestamp::UNIX_EPOCH, NOW);
        endings
    }

    #[test]
    fn an_object_whose_deletion_was_asked_for_has_ended() {
        let endings = gone(&machine("u", |_| {}), false);
        let ended = endings.of("u", NOW).unwrap();
        assert_eq!(ended.machine.to_string(), "ns/m");
        assert_eq!(endings.of("other", NOW), None);
    }

    #[test]
    fn an_object_that_is_missing_or_moved_or_of_a_paused_cluster_has_not_ended() {
        let missing = machine("u", |machine| {
            machine["metadata"]["deletionTimestamp"] = Value::Null;
        });
        let moved = machine("u", |machine| {
            machine["metadata"]["annotations"][labels::DELETE_FOR_MOVE] = json!("");
        });
        let copied = machine("u", |machine| {
            machine["metadata"]["annotations"][labels::MACHINE_ID] = json!("ns/other/u");
        });
        for (what, endings) in [
            ("missing", gone(&missing, false)),
            ("moved", gone(&moved, false)),
            ("copied", gone(&copied, false)),
            ("frozen", gone(&machine("u", |_| {}), true)),
        ] {
            assert_eq!(endings.of("u", NOW), None, "{what}");
        }
    }

    /// A restored backup brings objects back, and the next one may not have them: that is no end.
    #[test]
    fn an_object_that_is_there_again_has_not_ended() {
        let endings = gone(&machine("u", |_| {}), false);
        endings.came(&machine("u", |_| {}));
        assert_eq!(endings.of("u", NOW), None);
        assert!(endings.lock().order.is_empty());
    }

    /// It may have been an impostor that ended, with the identity of a machine that lives.
    #[test]
    fn an_end_that_was_seen_before_identities_were_found_unguarded_proves_nothing_after_it() {
        let endings = gone(&machine("u", |_| {}), false);
        assert!(endings.of("u", NOW).is_some());
        assert_eq!(endings.of("u", None), None, "while they are not guarded");
        assert_eq!(endings.of("u", Some(Unbroken::nth(2))), None, "after that");
        endings.gone(&machine("v", |_| {}), false, Timestamp::UNIX_EPOCH, None);
        assert_eq!(endings.of("v", None), None);
        assert_eq!(endings.of("v", NOW), None, "seen while they were not guarded");
        assert!(
            !endings.classes().is_empty(),
            "it is looked for and told all the same"
        );
    }

    #[test]
    fn the_class_of_the_last_machine_is_still_looked_at() {
        let endings = gone(&machine("u", |_| {}), false);
        endings.gone(&machine("v", |_| {}), false, Timestamp::UNIX_EPOCH, NOW);
        let classes = endings.classes();
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
    fn the_oldest_ends_are_forgotten_first() {
        let endings = Endings::default();
        for number in 0..=MOST_ENDS {
            endings.gone(
                &machine(&format!("u-{number}"), |_| {}),
                false,
                Timestamp::UNIX_EPOCH,
                NOW,
            );
        }
        assert_eq!(endings.of("u-0", NOW), None);
        assert!(endings.of("u-1", NOW).is_some() && endings.of(&format!("u-{MOST_ENDS}"), NOW).is_some());
        assert_eq!(endings.lock().ended.len(), MOST_ENDS);
    }
}
