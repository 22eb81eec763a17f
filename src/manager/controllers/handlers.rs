//! Handles the updates of each cache: enqueues objects, and removes the state of deleted objects.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use kube::api::ObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use kube_fleet::{Change, Entry, Update, WorkQueue};
use tokio::task::coop::consume_budget;

use super::enqueue::{enqueue_object, enqueue_object_unless};
use super::node_health::NodeChange;
use super::{Controllers, Remediations};
use crate::api::cluster_api::{Cluster, Machine, cluster_name};
use crate::api::identity;
use crate::api::retry::is_same_or_both_transient;
use crate::api::v1alpha1::{InfraCluster, InfraMachine, InfraMachineRemediation};
use crate::api::wall_clock;
use crate::api::{DeserializeGuard, ObjectMetaExt as _, annotations, fingerprint, labels};
use crate::machine::LookUpHint;
use crate::nodes::{not_ready_taint, volume_drain};
use crate::reconcile::caches::{CachedMachine, Caches, cluster_owners, machine_owner};

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

    /// Returns a function that makes the reconcile ask the driver of a Machine about its VM. The reconcile
    /// decides whether the driver supports that: its capabilities may not be known yet.
    fn look_up_hint(&self) -> impl Fn(&Machine, NodeChange) + Send + 'static {
        let (queue, machine_context) = (
            self.infra_machine_queue.clone(),
            Arc::clone(&self.machine_context),
        );
        move |machine, node_change| {
            let (reference, cache) = (infra_machine_of(machine), &machine_context.caches.infra_machines);
            let is_concerned = cache.look_at(&reference, |entry| node_change.concerns(entry.facts()));
            if is_concerned == Some(true)
                && let Some(found) = cache.get(&reference)
            {
                machine_context
                    .states
                    .hint(found.meta().uid(), LookUpHint::Signal);
                queue.enqueue(reference);
            }
        }
    }

    /// Requests a look-up for machines whose Nodes are unhealthy, or report although the VM was found
    /// missing. Called when this replica begins to lead. First clears the runtime state of all machines.
    /// Earlier events may be outdated, or may have come before their InfraMachine, so only the current state
    /// counts.
    pub(super) async fn hint_machines_with_unhealthy_nodes(&self) {
        self.machine_context.states.forget_all_but(|_| false);
        let hint = self.look_up_hint();
        let has_any_vanished = self
            .caches
            .infra_machines
            .scan(|mut all| all.any(|entry| entry.facts().has_vanished));
        // A healthy fleet has no candidates: all Nodes report, and no VM was found missing.
        let candidates = self.caches.machines.select(|entry| {
            let is_healthy = entry.facts().node_is_healthy;
            is_healthy == Some(false) || is_healthy == Some(true) && has_any_vanished
        });
        for entry in &candidates {
            consume_budget().await;
            let Some(machine) = entry.object() else { continue };
            if let Some(node_change) = NodeChange::of(&machine) {
                hint(&machine, node_change);
            }
        }
    }

    /// Enqueues the InfraMachine of a Machine if its Node may have a taint to remove.
    fn on_node_change(&self) -> impl Fn(&Change<Machine>) + Send + 'static {
        let (queue, taint_context) = (self.taint_queue.clone(), Arc::clone(&self.taint_context));
        move |change| {
            let reference = infra_machine_of(change.object());
            let cache = &taint_context.caches.infra_machines;
            if cache.look_at(&reference, |entry| entry.facts().has_taint) == Some(true)
                && let Some(found) = cache.get(&reference)
                && let Ok(infra) = &found.0
                && infra.spec.not_ready_taint.is_some()
            {
                if matches!(change, Change::Updated { .. }) {
                    taint_context.changed_nodes.insert(infra.metadata.uid());
                }
                queue.enqueue(reference);
            }
        }
    }

    /// Enqueues the machines that had no Node, or whose status shows that, when this replica began to lead.
    pub(super) async fn enqueue_missing_nodes(&self) {
        let without_node = self
            .caches
            .machines
            .select(|entry| entry.facts().node_is_healthy.is_none());
        for entry in &without_node {
            consume_budget().await;
            if let Some(machine) = entry.object() {
                self.missing_node_queue.enqueue(infra_machine_of(&machine));
            }
        }
        let reported = self
            .caches
            .infra_machines
            .select(|entry| entry.facts().shows_missing_node);
        for entry in &reported {
            self.missing_node_queue.enqueue_key(entry.key().clone());
        }
    }

    /// Enqueues the machines whose Nodes still had their taint when this replica began to lead.
    pub(super) async fn enqueue_tainted_nodes(&self) {
        let tainted = self.caches.infra_machines.select(|entry| entry.facts().has_taint);
        for entry in &tainted {
            consume_budget().await;
            if awaits_reconcile(&self.taint_context, entry) {
                self.taint_queue.enqueue_key(entry.key().clone());
            }
        }
    }

    /// Enqueues a Machine whose volumes are to be drained.
    fn on_drain_change(&self) -> impl Fn(&Machine) + Send + 'static {
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

    /// Enqueues a remediation as [`Self::on_object`] does, but not for a change of its record of restarts.
    /// The provider writes that record, and a reverted restart is retried only after its back-off.
    pub(super) fn on_remediation(
        &self,
        queue: WorkQueue<DeserializeGuard<InfraMachineRemediation>>,
    ) -> impl Fn(&Update<DeserializeGuard<InfraMachineRemediation>>) + Send + 'static {
        self.forgetting(enqueue_object_unless(queue, own_annotation_of_remediation))
    }

    /// Removes deleted objects from the queues of the drivers.
    fn forgetting<K>(
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

/// Whether the Node of a machine may have a taint to remove.
fn awaits_reconcile(taint_context: &not_ready_taint::Context, entry: &CachedMachine) -> bool {
    entry.object().is_some_and(|object| {
        let machine = object.0.as_ref();
        machine.is_ok_and(|machine| taint_context.awaits_reconcile(machine))
    })
}

impl Remediations {
    /// Enqueues the remediation of a Machine. Every change of the Machine may affect it.
    fn enqueue_of_machine(&self, machine: &Machine) {
        let meta = &machine.metadata;
        self.enqueue(meta.name(), meta.namespace.as_deref());
    }

    /// Enqueues the remediation of the Machine that owns an InfraMachine.
    fn enqueue_of_owner(&self, infra: &ObjectMeta) {
        let owners = infra.owner_references.iter().flatten();
        for owner in owners.filter(|owner| owner.kind == "Machine") {
            self.enqueue(&owner.name, infra.namespace.as_deref());
        }
    }

    /// Enqueues a remediation, if it exists. A MachineHealthCheck gives a remediation the name of its
    /// Machine.
    fn enqueue(&self, name: &str, namespace: Option<&str>) {
        let reference = ObjectRef::new(name).within(namespace.unwrap_or_default());
        if self.cache.get(&reference).is_some() {
            self.queue.enqueue(reference);
        }
    }

    fn enqueue_of_clusters(&self, changed: &ChangedClusters<'_>) {
        for object in self.cache.state() {
            if changed.labels(object.meta()) {
                self.queue.enqueue(ObjectRef::from_obj(&*object));
            }
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

fn own_annotation_of_remediation<'a>(key: &str, value: &'a str) -> Option<Cow<'a, str>> {
    let is_own = [annotations::RESTARTS, annotations::RESTART_ISSUED_AT].contains(&key);
    (!is_own).then_some(Cow::Borrowed(value))
}

/// Whether a Node of the machine is expected.
fn is_provisioned_predicate(object: &DeserializeGuard<InfraMachine>) -> u64 {
    fingerprint(object.0.as_ref().is_ok_and(InfraMachine::is_provisioned))
}

fn node_name_predicate(machine: &Machine) -> u64 {
    let status = machine.status.as_ref();
    fingerprint(status.and_then(|status| status.node_name.as_deref()))
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

/// Whether the Node's name has changed, or the Node came back. A Node that stops reporting is no reason to
/// check its taints.
fn node_predicate(change: &Change<Machine>) -> bool {
    let node = |machine: &Machine| machine.status.clone().unwrap_or_default();
    match change {
        Change::Added(_) => true,
        Change::Updated { before, now } => {
            let (before, now) = (node(before), node(now));
            before.node_name != now.node_name || now.node_is_healthy && !before.node_is_healthy
        }
        Change::Deleted(_) => false,
    }
}

/// A fingerprint of the fields that affect the drain of a Machine's volumes. The cache does not show that
/// Cluster API waits for the provider, so every change of a Machine in deletion counts.
fn machine_drain_predicate(machine: &Machine) -> u64 {
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
fn infra_machine_drain_predicate(object: &DeserializeGuard<InfraMachine>) -> u64 {
    let meta = object.meta();
    let annotation = |key| meta.annotations.as_ref().and_then(|all| all.get(key));
    fingerprint((
        annotation(annotations::VOLUME_DRAIN),
        annotation(annotations::PAUSED),
        machine_owner(meta).map(|owner| &owner.uid),
        meta.deletion_timestamp.is_some(),
    ))
}

fn cluster_predicate(cluster: &Cluster) -> u64 {
    let deleting = cluster.metadata.deletion_timestamp.is_some();
    let endpoint = cluster.spec.control_plane_endpoint.as_ref();
    fingerprint((
        cluster.is_paused(),
        cluster.infrastructure_is_provisioned(),
        endpoint.map(|endpoint| (&endpoint.host, endpoint.port)),
        deleting,
    ))
}

fn why_not_provisioned(object: &DeserializeGuard<InfraCluster>) -> Option<&str> {
    object.0.as_ref().ok()?.why_not_provisioned()
}

fn infra_machine_of(machine: &Machine) -> ObjectRef<DeserializeGuard<InfraMachine>> {
    let name = &machine.spec.infrastructure_ref.name;
    ObjectRef::new(name).within(machine.metadata.namespace())
}

/// Whether the Machine that owns an object has the hook.
fn has_hook(caches: &Caches, meta: &ObjectMeta) -> bool {
    let reference = machine_owner(meta).map(|owner| ObjectRef::new(&owner.name).within(meta.namespace()));
    let machines = &caches.machines;
    let hook = reference.and_then(|machine| machines.look_at(&machine, |entry| entry.facts().has_drain_hook));
    hook == Some(true)
}

/// The Machines whose volumes may have to be drained, filtered by namespace and Cluster. They have the hook,
/// or share their namespace with an InfraMachine that requests a drain.
fn to_drain(caches: &Caches, is_wanted: impl Fn(&str, &str) -> bool) -> Vec<Arc<Machine>> {
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

/// Changed or deleted Clusters. Their objects are enqueued in one pass for all of them.
struct ChangedClusters<'a> {
    clusters: Vec<&'a Cluster>,
    uids: HashSet<&'a str>,
    /// Namespace and name.
    names: HashSet<(&'a str, &'a str)>,
}

impl<'a> ChangedClusters<'a> {
    fn of(changes: &'a [Change<Cluster>]) -> Self {
        let passing = changes.iter().filter(|change| change.passes(cluster_predicate));
        let clusters: Vec<&Cluster> = passing.map(|change| &**change.object()).collect();
        let name = |cluster: &&'a Cluster| {
            let meta = &cluster.metadata;
            Some((meta.namespace.as_deref()?, meta.name.as_deref()?))
        };
        Self {
            uids: clusters.iter().map(|cluster| cluster.metadata.uid()).collect(),
            names: clusters.iter().filter_map(name).collect(),
            clusters,
        }
    }

    fn is_empty(&self) -> bool {
        self.clusters.is_empty()
    }

    fn owns(&self, meta: &ObjectMeta) -> bool {
        cluster_owners(meta).any(|owner| self.uids.contains(owner.uid.as_str()))
    }

    fn names(&self, namespace: &str, cluster: &str) -> bool {
        self.names.contains(&(namespace, cluster))
    }

    fn labels(&self, meta: &ObjectMeta) -> bool {
        cluster_name(meta)
            .zip(meta.namespace.as_deref())
            .is_some_and(|(name, namespace)| self.names.contains(&(namespace, name)))
    }
}

fn uids<'a>(all: impl Iterator<Item = &'a ObjectMeta>) -> HashSet<String> {
    all.filter_map(|meta| meta.uid.clone()).collect()
}

#[cfg(test)]
mod tests;
