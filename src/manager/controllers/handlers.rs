//! Handles the updates of each cache: enqueues objects, and removes the state of deleted objects.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use kube::api::ObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use kube_fleet::{Change, Entry, Update, WorkQueue};

use super::Controllers;
use super::changed_clusters::ChangedClusters;
use super::drains::{has_hook, infra_machine_drain_predicate, machine_drain_predicate, to_drain};
use super::enqueue::{enqueue_object, enqueue_object_unless, infra_machine_of};
use super::missing_nodes::{is_provisioned_predicate, node_name_predicate};
use super::node_health::NodeChange;
use super::taints::{awaits_reconcile, node_predicate};
use crate::api::cluster_api::{Cluster, Machine};
use crate::api::identity;
use crate::api::retry::is_same_or_both_transient;
use crate::api::v1alpha1::{InfraCluster, InfraMachine};
use crate::api::wall_clock;
use crate::api::{DeserializeGuard, ObjectMetaExt as _, annotations, fingerprint, labels};
use crate::nodes::volume_drain;
use crate::reconcile::caches::cluster_owners;
use crate::reconcile::runtime_state::LookUpHint;

impl Controllers {
    pub(super) fn on_machine(&self) -> impl Fn(&Update<Machine>) + Send + 'static {
        let infra_machine_queue = self.infra_machine_queue.clone();
        let (hint, on_node_change) = (self.look_up_hint(), self.on_node_change());
        let remediations = self.remediations.clone();
        let on_drain_change = self.on_drain_change();
        let missing_node_queue = self.missing_node_queue.clone();
        move |update| {
            for change in &update.changes {
                if let Some(remediations) = &remediations {
                    remediations.enqueue_of_machine(change.object());
                }
                if matches!(change, Change::Updated { .. }) && change.passes(node_name_predicate) {
                    missing_node_queue.enqueue(infra_machine_of(change.object()));
                }
                if change.current().is_some() && change.passes(machine_drain_predicate) {
                    on_drain_change(change.object());
                }
                if let Some(node_change) = NodeChange::of_change(change) {
                    hint(change.object(), node_change);
                }
                if node_predicate(change) {
                    on_node_change(change);
                }
                let infra = &change.object().spec.infrastructure_ref;
                if change.passes(machine_predicate) && infra.is_to::<InfraMachine>() {
                    infra_machine_queue.enqueue(infra_machine_of(change.object()));
                }
            }
        }
    }

    pub(super) fn on_cluster(&self) -> impl Fn(&Update<Cluster>) + Send + 'static {
        let infra_machine_queue = self.infra_machine_queue.clone();
        let infra_cluster_queue = self.infra_cluster_queue.clone();
        let (template_queue, caches) = (self.template_queue.clone(), self.caches.clone());
        let cluster_ids = Arc::clone(&self.machine_context.cluster_ids);
        let (taint_queue, taint_context) = (self.taint_queue.clone(), Arc::clone(&self.taint_context));
        let remediations = self.remediations.clone();
        let on_drain_change = self.on_drain_change();
        move |update| {
            if update.complete || update.changes.iter().any(|change| change.current().is_none()) {
                let there = uids(caches.clusters.state().iter().map(|cluster| &cluster.metadata));
                cluster_ids.forget_all_but(|uid| there.contains(uid));
                taint_context
                    .workload_clusters
                    .forget_all_but(|uid| there.contains(uid));
            }
            let changed = ChangedClusters::of(&update.changes);
            if changed.is_empty() {
                return;
            }
            for cluster in &changed.clusters {
                if let Some(infra) = &cluster.spec.infrastructure_ref
                    && infra.is_to::<InfraCluster>()
                {
                    let namespace = cluster.namespace().unwrap_or_default();
                    infra_cluster_queue.enqueue(ObjectRef::new(&infra.name).within(&namespace));
                }
            }
            for object in caches.infra_machine_templates.state() {
                if changed.owns(object.meta()) || changed.labels(object.meta()) {
                    template_queue.enqueue(ObjectRef::from_obj(&*object));
                }
            }
            let labelled = caches.infra_machines.select(|entry| {
                let cluster = entry.facts().cluster.as_deref();
                cluster.is_some_and(|cluster| changed.names(entry.key().namespace(), cluster))
            });
            for entry in labelled {
                infra_machine_queue.enqueue_key(entry.key().clone());
                if entry.facts().has_taint && awaits_reconcile(&taint_context, &entry) {
                    taint_queue.enqueue_key(entry.key().clone());
                }
            }
            for machine in to_drain(&caches, |namespace, cluster| changed.names(namespace, cluster)) {
                on_drain_change(&machine);
            }
            if let Some(remediations) = &remediations {
                remediations.enqueue_of_clusters(&changed);
            }
        }
    }

    pub(super) fn on_infra_machine(
        &self,
    ) -> impl Fn(&Update<DeserializeGuard<InfraMachine>>) + Send + 'static {
        // A driver may return another last known state with each call. If such a change enqueued the machine,
        // each call would immediately lead to the next call.
        let enqueue_object =
            enqueue_object_unless(self.infra_machine_queue.clone(), own_annotation_of_infra_machine);
        let machine_context = Arc::clone(&self.machine_context);
        let deletion_log = Arc::clone(&self.deletion_log);
        let (taint_queue, taint_context) = (self.taint_queue.clone(), Arc::clone(&self.taint_context));
        let missing_node_queue = self.missing_node_queue.clone();
        let missing_node_context = Arc::clone(&self.missing_node_context);
        let remediations = self.remediations.clone();
        let on_drain_change = self.on_drain_change();
        move |update| {
            let states = &machine_context.states;
            for change in &update.changes {
                if let Some(remediations) = &remediations {
                    remediations.enqueue_of_owner(change.object().meta());
                }
                if change.passes(infra_machine_drain_predicate)
                    && (volume_drain::is_requested(change.object())
                        || has_hook(&machine_context.caches, change.object().meta()))
                    && let Some(owner) = machine_context.caches.owner_machine(change.object().meta())
                {
                    on_drain_change(&owner);
                }
                if change.current().is_some() && change.passes(is_provisioned_predicate) {
                    missing_node_queue.enqueue(ObjectRef::from_obj(change.object()));
                }
                match change {
                    Change::Deleted(object) => {
                        missing_node_context.schedule.forget(object.meta().uid());
                        states.forget(object.meta().uid());
                        taint_context.changed_nodes.remove(object.meta().uid());
                        machine_context.drivers.forget(object.meta().uid());
                        let cluster = machine_context.caches.labelled_cluster(object.meta());
                        let is_frozen = cluster.is_none_or(|cluster| cluster.is_paused());
                        deletion_log.record(
                            object,
                            is_frozen,
                            wall_clock::now(),
                            machine_context.policies.epoch(),
                        );
                    }
                    Change::Added(object) | Change::Updated { now: object, .. } => {
                        if requests_refresh(change) {
                            states.hint(object.meta().uid(), LookUpHint::Signal);
                        }
                        if matches!(change, Change::Added(_)) {
                            deletion_log.remove(object);
                        }
                        if let Ok(machine) = &object.0 {
                            states.caught_up(machine.metadata.uid(), machine);
                            if taint_context.awaits_reconcile(machine) {
                                taint_queue.enqueue(ObjectRef::from_obj(&**object));
                            }
                        }
                    }
                }
            }
            if update.complete {
                let cache = &machine_context.caches.infra_machines;
                let there: HashSet<u64> = cache.scan(|all| all.map(Entry::uid).collect());
                states.forget_all_but(|uid| there.contains(&cache.number(uid)));
            }
            enqueue_object(update);
        }
    }

    /// Enqueues an InfraCluster as [`Self::on_object`] does. Also enqueues its machines when it is not
    /// provisioned for another reason, because waiting machines publish that reason. A change from one
    /// transient code to another enqueues no machine: in an outage the code may change at each try, and each
    /// change would cost a write per machine.
    pub(super) fn on_infra_cluster(
        &self,
    ) -> impl Fn(&Update<DeserializeGuard<InfraCluster>>) + Send + 'static {
        let on_object = self.on_object(self.infra_cluster_queue.clone());
        let (infra_machine_queue, caches) = (self.infra_machine_queue.clone(), self.caches.clone());
        move |update| {
            on_object(update);
            let says_another_reason = |change: &&Change<_>| match change {
                Change::Updated { before, now } => {
                    match (why_not_provisioned(before), why_not_provisioned(now)) {
                        (Some(before), Some(now)) => !is_same_or_both_transient(before, now),
                        (before, now) => before != now,
                    }
                }
                Change::Added(_) | Change::Deleted(_) => false,
            };
            for change in update.changes.iter().filter(says_another_reason) {
                let infra = change.object().meta();
                let (namespace, owners) = (infra.namespace.as_deref(), cluster_owners(infra));
                let names: HashSet<_> = owners.map(|owner| owner.name.as_str()).collect();
                let waiting = caches.infra_machines.select(|entry| {
                    let cluster = entry.facts().cluster.as_deref();
                    Some(entry.key().namespace()) == namespace
                        && cluster.is_some_and(|cluster| names.contains(cluster))
                });
                for entry in waiting {
                    infra_machine_queue.enqueue_key(entry.key().clone());
                }
            }
        }
    }

    /// Enqueues objects that have their own reconciles. A deleted object leaves the queues of the drivers.
    pub(super) fn on_object<K>(&self, queue: WorkQueue<K>) -> impl Fn(&Update<K>) + Send + 'static
    where
        K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
    {
        self.forgetting(enqueue_object(queue))
    }

    /// Removes deleted objects from the queues of the drivers.
    pub(super) fn forgetting<K>(
        &self,
        enqueue_object: impl Fn(&Update<K>) + Send + 'static,
    ) -> impl Fn(&Update<K>) + Send + 'static
    where
        K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
    {
        let drivers = self.drivers.clone();
        move |update| {
            for change in &update.changes {
                if let Change::Deleted(object) = change {
                    drivers.forget(object.meta().uid());
                }
            }
            enqueue_object(update);
        }
    }
}

/// Whether a user has asked for a look-up. A process that starts knows no earlier value, and compares the
/// first list instead.
fn requests_refresh(change: &Change<DeserializeGuard<InfraMachine>>) -> bool {
    let requested = |object: &DeserializeGuard<InfraMachine>| {
        let annotations = object.meta().annotations.as_ref()?;
        annotations.get(annotations::REFRESH).cloned()
    };
    match change {
        Change::Updated { before, now } => {
            let now = requested(now);
            now.is_some() && now != requested(before)
        }
        Change::Added(_) | Change::Deleted(_) => false,
    }
}

/// Returns the part of an annotation whose change enqueues an InfraMachine: all of it, except for the
/// driver's last known state in the record.
#[allow(clippy::unnecessary_wraps)] // A `Relevant`.
fn own_annotation_of_infra_machine<'a>(key: &str, value: &'a str) -> Option<Cow<'a, str>> {
    if key != annotations::VM_RECORD {
        return Some(Cow::Borrowed(value));
    }
    let without_state = identity::without_last_known_state(value);
    Some(without_state.map_or(Cow::Borrowed(value), Cow::Owned))
}

fn machine_predicate(machine: &Machine) -> u64 {
    let control_plane = machine.labels().contains_key(labels::CONTROL_PLANE);
    let spec = &machine.spec;
    fingerprint((
        &spec.bootstrap.data_secret_name,
        &spec.failure_domain,
        &spec.infrastructure_ref.name,
        control_plane,
        machine.metadata.deletion_timestamp.is_some(),
    ))
}

fn why_not_provisioned(object: &DeserializeGuard<InfraCluster>) -> Option<&str> {
    object.0.as_ref().ok()?.why_not_provisioned()
}

fn uids<'a>(all: impl Iterator<Item = &'a ObjectMeta>) -> HashSet<String> {
    all.filter_map(|meta| meta.uid.clone()).collect()
}

#[cfg(test)]
mod tests;
