//! Enqueues objects for their own changes.

use std::borrow::Cow;

use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use kube_fleet::{Update, WorkQueue};

use crate::api::cluster_api::Machine;
use crate::api::v1alpha1::InfraMachine;
use crate::api::{DeserializeGuard, ObjectMetaExt as _, fingerprint};

/// Enqueues an object when anything but its status changed. Only the provider writes the status.
pub(super) fn enqueue_object<K>(queue: WorkQueue<K>) -> impl Fn(&Update<K>) + Send + 'static
where
    K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
{
    enqueue_object_unless(queue, |_, value| Some(Cow::Borrowed(value)))
}

/// Returns the part of the value of an annotation, by its key, whose change enqueues the object.
type Relevant = for<'a> fn(&str, &'a str) -> Option<Cow<'a, str>>;

/// Enqueues as [`enqueue_object`] does, if the provider also writes some annotations.
pub(super) fn enqueue_object_unless<K>(
    queue: WorkQueue<K>,
    relevant: Relevant,
) -> impl Fn(&Update<K>) + Send + 'static
where
    K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
{
    let wanted = move |object: &K| {
        let annotations = object.meta().annotations.iter().flatten();
        let of_others: Vec<_> = annotations
            .filter_map(|(key, value)| Some((key, relevant(key, value)?)))
            .collect();
        fingerprint((without_annotations(object), of_others))
    };
    move |update| {
        for change in &update.changes {
            if let Some(object) = change.current()
                && change.passes(wanted)
            {
                queue.enqueue(ObjectRef::from_obj(&**object));
            }
        }
    }
}

/// Returns the name of a Machine's InfraMachine.
pub(super) fn infra_machine_of(machine: &Machine) -> ObjectRef<DeserializeGuard<InfraMachine>> {
    let name = &machine.spec.infrastructure_ref.name;
    ObjectRef::new(name).within(machine.metadata.namespace())
}

/// A fingerprint of all but the status and the annotations.
fn without_annotations<K: Resource>(object: &K) -> u64 {
    let meta = object.meta();
    let owners: Vec<_> = meta
        .owner_references
        .iter()
        .flatten()
        .map(|o| (&o.uid, o.controller))
        .collect();
    let deleting = meta.deletion_timestamp.is_some();
    fingerprint((meta.generation, &meta.labels, &meta.finalizers, owners, deleting))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kube_fleet::Change;

    use super::*;
    use crate::api::cluster_api::MachineSpec;

    fn machine(name: &str, uid: &str, version: u32) -> Machine {
        let mut machine = Machine::new(name, MachineSpec::default());
        machine.metadata.namespace = Some("ns".to_owned());
        machine.metadata.uid = Some(uid.to_owned());
        machine.metadata.resource_version = Some(version.to_string());
        machine
    }

    #[tokio::test]
    async fn an_object_is_reconciled_for_all_that_changed_but_its_status() {
        let queue = WorkQueue::default();
        let mut sent = queue.receive();
        let notify = enqueue_object(queue);
        let before = Arc::new(machine("a", "u-a", 1));
        let mut newer = |change: &dyn Fn(&mut Machine)| {
            let mut now = machine("a", "u-a", 2);
            change(&mut now);
            let change = Change::Updated {
                before: Arc::clone(&before),
                now: Arc::new(now),
            };
            notify(&Update {
                changes: vec![change],
                complete: false,
            });
            sent.try_recv().is_ok()
        };
        assert!(!newer(&|_| {}));
        assert!(!newer(
            &|now| now.status = Some(crate::api::cluster_api::MachineStatus::default())
        ));
        assert!(newer(&|now| now.metadata.generation = Some(2)));
        assert!(newer(
            &|now| now.metadata.finalizers = Some(vec!["slow".to_owned()])
        ));
    }
}
