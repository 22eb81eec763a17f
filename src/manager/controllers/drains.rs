//! The controller that drains the volumes of Nodes.

use std::collections::HashSet;
use std::sync::Arc;

use kube::Resource as _;
use kube::api::ObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube_fleet::{Controller, Entry};
use tokio_util::sync::CancellationToken;

use super::enqueue::infra_machine_of;
use super::{Controllers, WORKLOAD_CLUSTER_CONCURRENCY};
use crate::api::cluster_api::Machine;
use crate::api::v1alpha1::InfraMachine;
use crate::api::{DeserializeGuard, ObjectMetaExt as _, annotations, fingerprint};
use crate::manager::tasks::Task;
use crate::nodes::volume_drain;
use crate::reconcile::caches::{Caches, machine_owner};

impl Controllers {
    /// Runs the reconciles of Machines whose volumes are drained. Each may ask a driver for the ids of
    /// volumes before an eviction.
    pub(super) fn drain_controller(&self, stopping: &CancellationToken) -> Task {
        let run = Controller::new(
            &self.caches.machines,
            &self.drain_queue,
            self.workers(WORKLOAD_CLUSTER_CONCURRENCY),
        )
        .graceful_shutdown_on(stopping.clone().cancelled_owned())
        .run(
            volume_drain::reconcile,
            |object, error, ctx| ctx.reconciler.error_policy(&*object, error),
            Arc::clone(&self.drain_context),
        );
        Task::new("the volume drain controller", run)
    }

    /// Enqueues a Machine whose volumes are to be drained.
    pub(super) fn on_drain_change(&self) -> impl Fn(&Machine) + Send + 'static {
        let (queue, drain_context) = (self.drain_queue.clone(), Arc::clone(&self.drain_context));
        let cache = self.caches.infra_machines.clone();
        move |machine| {
            // Most Machines have neither. Unpacking the InfraMachine of each would take as long as the rest
            // of the start.
            let is_requested = || {
                let infra = infra_machine_of(machine);
                cache.look_at(&infra, |entry| entry.facts().requests_drain) == Some(true)
            };
            if (volume_drain::has_hook(machine) || is_requested()) && drain_context.concerns(machine) {
                queue.enqueue(ObjectRef::from_obj(machine));
            }
        }
    }

    /// Enqueues all Machines whose volumes are to be drained when this replica begins to lead.
    pub(super) fn enqueue_drains(&self) {
        let on_drain_change = self.on_drain_change();
        for machine in to_drain(&self.caches, |_, _| true) {
            on_drain_change(&machine);
        }
    }
}

/// A fingerprint of the fields that affect the drain of a Machine's volumes. The cache does not show that
/// Cluster API waits for the provider, so every change of a Machine in deletion counts.
pub(super) fn machine_drain_predicate(machine: &Machine) -> u64 {
    let meta = &machine.metadata;
    let version = meta
        .deletion_timestamp
        .as_ref()
        .and(meta.resource_version.as_ref());
    fingerprint((
        volume_drain::has_hook(machine),
        version,
        &machine.spec.infrastructure_ref.name,
    ))
}

/// A fingerprint of the fields that affect the drain of an InfraMachine, without the provider's own writes
/// during the drain. Cluster API creates the InfraMachine with the MachineSet as its owner, and later
/// replaces it by the Machine. The Machine may be cached long before that.
pub(super) fn infra_machine_drain_predicate(object: &DeserializeGuard<InfraMachine>) -> u64 {
    let meta = object.meta();
    let annotation = |key| meta.annotations.as_ref().and_then(|all| all.get(key));
    fingerprint((
        annotation(annotations::VOLUME_DRAIN),
        annotation(annotations::PAUSED),
        machine_owner(meta).map(|owner| &owner.uid),
        meta.deletion_timestamp.is_some(),
    ))
}

/// Whether the Machine that owns an object has the hook.
pub(super) fn has_hook(caches: &Caches, meta: &ObjectMeta) -> bool {
    let reference = machine_owner(meta).map(|owner| ObjectRef::new(&owner.name).within(meta.namespace()));
    let machines = &caches.machines;
    let hook = reference.and_then(|machine| machines.look_at(&machine, |entry| entry.facts().has_drain_hook));
    hook == Some(true)
}

/// The Machines whose volumes may have to be drained, filtered by namespace and Cluster. They have the hook,
/// or share their namespace with an InfraMachine that requests a drain.
pub(super) fn to_drain(caches: &Caches, is_wanted: impl Fn(&str, &str) -> bool) -> Vec<Arc<Machine>> {
    let requesting: HashSet<String> = caches.infra_machines.scan(|all| {
        let requesting = all.filter(|entry| entry.facts().requests_drain);
        requesting
            .map(|entry| entry.key().namespace().to_owned())
            .collect()
    });
    let machines = caches.machines.select(|entry| {
        let (namespace, facts) = (entry.key().namespace(), entry.facts());
        (facts.has_drain_hook || requesting.contains(namespace)) && is_wanted(namespace, &facts.cluster)
    });
    machines.iter().filter_map(Entry::object).collect()
}
