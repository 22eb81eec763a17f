//! What an update of each cache triggers, and what they let be forgotten.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;
use kube::api::ObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};

use super::nodes::NodeChange;
use super::trigger::Trigger;
use super::watch::{CacheUpdate, Change, fingerprint, on_own, uid};
use super::{Controllers, Remediations};
use crate::api::cluster_api::{Cluster, Machine};
use crate::api::v1alpha1::{InfraCluster, InfraMachine};
use crate::api::{self, DeserializeGuard, labels};
use crate::caches::{cluster_owners, machine_owner};
use crate::machine::{self, LookUpHint};
use crate::retry::is_same_trouble;
use crate::volume_drain;

impl Controllers {
    pub(super) fn on_machine(&self) -> impl Fn(&CacheUpdate<Machine>) + Send + 'static {
        let (trigger, ask, look) = (self.machines.clone(), self.ask_about(), self.look_at_node());
        let remediations = self.remediations.clone();
        let look_at_drain = self.look_at_drain();
        move |update| {
            for change in &update.changes {
                if let Some(remediations) = &remediations {
                    remediations.wake_that_of(change.object());
                }
                if change.there().is_some() && change.concerns(what_counts_of_a_drain) {
                    look_at_drain(change.object());
                }
                if let Some(node_change) = NodeChange::of_change(change) {
                    ask(change.object(), node_change);
                }
                if has_node_to_look_at(change) {
                    look(change);
                }
                let infra = &change.object().spec.infrastructure_ref;
                if change.concerns(what_counts_of_a_machine)
                    && infra.api_group == api::GROUP
                    && infra.kind == "InfraMachine"
                {
                    trigger.send(infra_machine_of(change.object()));
                }
            }
        }
    }

    /// Has the driver of a Machine asked about its VM. Whether it answers such questions is for the reconcile
    /// to say: it may not have been asked yet.
    fn ask_about(&self) -> impl Fn(&Machine, NodeChange) + Send + 'static {
        let (trigger, context) = (self.machines.clone(), Arc::clone(&self.context));
        move |machine, node_change| {
            let reference = infra_machine_of(machine);
            let Some(found) = context.caches.infra_machines.get(&reference) else {
                return;
            };
            let is_in_doubt = match &found.0 {
                Ok(infra) => node_change.concerns(infra),
                Err(_) => node_change == NodeChange::Lost,
            };
            if is_in_doubt {
                context.states.hint(uid(&*found), LookUpHint::Signal);
                trigger.send(reference);
            }
        }
    }

    /// What was notified before this replica leads may be long past, or have come before the InfraMachine it
    /// was about: what counts is what is so now.
    pub(super) fn ask_about_nodes(&self) {
        self.context.states.forget_all_but(|_| false);
        let ask = self.ask_about();
        for machine in self.caches.machines.state() {
            if let Some(node_change) = NodeChange::of(&machine) {
                ask(&machine, node_change);
            }
        }
    }

    /// Has the Node of a Machine looked at, where it may have a taint to remove.
    fn look_at_node(&self) -> impl Fn(&Change<Machine>) + Send + 'static {
        let (trigger, taints) = (self.nodes.clone(), Arc::clone(&self.taints));
        move |change| {
            let reference = infra_machine_of(change.object());
            let Some(found) = taints.caches.infra_machines.get(&reference) else {
                return;
            };
            if let Ok(infra) = &found.0
                && infra.spec.not_ready_taint.is_some()
            {
                if matches!(change, Change::Updated { .. }) {
                    taints.changed_nodes.insert(uid(infra));
                }
                trigger.send(reference);
            }
        }
    }

    /// Has the Nodes looked at that were not freed of their taint before this replica led.
    pub(super) fn look_at_tainted_nodes(&self) {
        let awaits_look = |machine: &InfraMachine| self.taints.awaits_look(machine);
        for guarded in self.caches.infra_machines.state() {
            if guarded.0.as_ref().is_ok_and(awaits_look) {
                self.nodes.send(ObjectRef::from_obj(&*guarded));
            }
        }
    }

    /// Has a Machine looked at whose volumes are to be drained.
    fn look_at_drain(&self) -> impl Fn(&Machine) + Send + 'static {
        let (trigger, drains) = (self.drained_machines.clone(), Arc::clone(&self.drains));
        move |machine| {
            if drains.concerns(machine) {
                trigger.send(ObjectRef::from_obj(machine));
            }
        }
    }

    /// The same of all that there are when this replica leads.
    pub(super) fn look_at_drains(&self) {
        let look = self.look_at_drain();
        for machine in self.caches.machines.state() {
            look(&machine);
        }
    }

    pub(super) fn on_cluster(&self) -> impl Fn(&CacheUpdate<Cluster>) + Send + 'static {
        let (machines, clusters) = (self.machines.clone(), self.clusters.clone());
        let (templates, caches) = (self.templates.clone(), self.caches.clone());
        let cluster_ids = Arc::clone(&self.context.cluster_ids);
        let (nodes, taints) = (self.nodes.clone(), Arc::clone(&self.taints));
        let remediations = self.remediations.clone();
        let look_at_drain = self.look_at_drain();
        move |update| {
            if update.listed || update.changes.iter().any(|change| change.there().is_none()) {
                let there = uids(caches.clusters.state().iter().map(|cluster| &cluster.metadata));
                cluster_ids.forget_all_but(|uid| there.contains(uid));
                taints.workload_clusters.forget_all_but(|uid| there.contains(uid));
            }
            let concerned = Concerned::by(&update.changes);
            if concerned.is_empty() {
                return;
            }
            for cluster in &concerned.clusters {
                if let Some(infra) = &cluster.spec.infrastructure_ref
                    && infra.api_group == api::GROUP
                    && infra.kind == "InfraCluster"
                {
                    let namespace = cluster.namespace().unwrap_or_default();
                    clusters.send(ObjectRef::new(&infra.name).within(&namespace));
                }
            }
            for guarded in caches.infra_machine_templates.state() {
                if concerned.owns(guarded.meta()) || concerned.labels(guarded.meta()) {
                    templates.send(ObjectRef::from_obj(&*guarded));
                }
            }
            for guarded in caches.infra_machines.state() {
                if concerned.labels(guarded.meta()) {
                    machines.send(ObjectRef::from_obj(&*guarded));
                    if guarded
                        .0
                        .as_ref()
                        .is_ok_and(|machine| taints.awaits_look(machine))
                    {
                        nodes.send(ObjectRef::from_obj(&*guarded));
                    }
                }
            }
            for machine in caches.machines.state() {
                if concerned.has(&machine) {
                    look_at_drain(&machine);
                }
            }
            if let Some(remediations) = &remediations {
                remediations.wake_those_of(&concerned);
            }
        }
    }

    pub(super) fn on_infra_machine(
        &self,
    ) -> impl Fn(&CacheUpdate<DeserializeGuard<InfraMachine>>) + Send + 'static {
        let (on_own, context) = (on_own(self.machines.clone()), Arc::clone(&self.context));
        let deletion_log = Arc::clone(&self.deletion_log);
        let (nodes, taints) = (self.nodes.clone(), Arc::clone(&self.taints));
        let remediations = self.remediations.clone();
        let look_at_drain = self.look_at_drain();
        move |update| {
            let states = &context.states;
            for change in &update.changes {
                if let Some(remediations) = &remediations {
                    remediations.wake_that_of_owner(change.object().meta());
                }
                if change.concerns(what_a_drain_counts)
                    && let Some(owner) = context.caches.owner_machine(change.object().meta())
                {
                    look_at_drain(&owner);
                }
                let (before, now) = (change.before(), change.there());
                states.ids.changed(
                    before.and_then(|guarded| guarded.0.as_ref().ok()),
                    now.and_then(|guarded| guarded.0.as_ref().ok()),
                );
                match change {
                    Change::Deleted(guarded) => {
                        states.forget(uid(&**guarded));
                        taints.changed_nodes.remove(uid(&**guarded));
                        context.drivers.forget(uid(&**guarded));
                        let cluster = context.caches.labelled_cluster(guarded.meta());
                        let is_frozen = cluster.is_none_or(|cluster| cluster.is_paused());
                        deletion_log.record(guarded, is_frozen, Timestamp::now(), context.policies.epoch());
                    }
                    Change::Added(guarded) | Change::Updated { now: guarded, .. } => {
                        if matches!(change, Change::Added(_)) {
                            deletion_log.remove(guarded);
                        }
                        if let Ok(machine) = &guarded.0 {
                            states.caught_up(uid(machine), machine);
                            if taints.awaits_look(machine) {
                                nodes.send(ObjectRef::from_obj(&**guarded));
                            }
                        }
                    }
                }
            }
            for erased in erased(update) {
                tokio::spawn(machine::remove_vm(Arc::clone(&context), erased.clone()));
            }
            if update.listed {
                let all = context.caches.infra_machines.state();
                let there = uids(all.iter().map(|guarded| guarded.meta()));
                states.forget_all_but(|uid| there.contains(uid));
            }
            on_own(update);
        }
    }

    /// Machines that wait for an InfraCluster say why it is not provisioned; of an outage whose code is
    /// another at each try, the code that it began with.
    pub(super) fn on_infra_cluster(
        &self,
    ) -> impl Fn(&CacheUpdate<DeserializeGuard<InfraCluster>>) + Send + 'static {
        let on_waiting = self.on_waiting(self.clusters.clone());
        let (machines, caches) = (self.machines.clone(), self.caches.clone());
        move |update| {
            on_waiting(update);
            let says_another_reason = |change: &&Change<_>| match change {
                Change::Updated { before, now } => {
                    match (why_not_provisioned(before), why_not_provisioned(now)) {
                        (Some(before), Some(now)) => !is_same_trouble(before, now),
                        (before, now) => before != now,
                    }
                }
                Change::Added(_) | Change::Deleted(_) => false,
            };
            for change in update.changes.iter().filter(says_another_reason) {
                let infra = change.object().meta();
                let (namespace, owners) = (infra.namespace.as_deref(), cluster_owners(infra));
                let names: HashSet<_> = owners.map(|owner| owner.name.as_str()).collect();
                let waits = |meta: &ObjectMeta| {
                    let label = meta.labels.as_ref().and_then(|all| all.get(labels::CLUSTER_NAME));
                    meta.namespace.as_deref() == namespace
                        && label.is_some_and(|name| names.contains(name.as_str()))
                };
                for guarded in caches.infra_machines.state() {
                    if waits(guarded.meta()) {
                        machines.send(ObjectRef::from_obj(&*guarded));
                    }
                }
            }
        }
    }

    /// What is reconciled for itself, and may stand in the queue of a driver until it is gone.
    pub(super) fn on_waiting<K>(&self, trigger: Trigger<K>) -> impl Fn(&CacheUpdate<K>) + Send + 'static
    where
        K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
    {
        let (on_own, drivers) = (on_own(trigger), self.drivers.clone());
        move |update| {
            for change in &update.changes {
                if let Change::Deleted(object) = change {
                    drivers.forget(uid(&**object));
                }
            }
            on_own(update);
        }
    }
}

impl Remediations {
    /// Has the remediation of a Machine reconciled: whatever changes of it may concern that.
    fn wake_that_of(&self, machine: &Machine) {
        let meta = &machine.metadata;
        self.wake(
            meta.name.as_deref().unwrap_or_default(),
            meta.namespace.as_deref(),
        );
    }

    /// The same of the Machine that owns an InfraMachine.
    fn wake_that_of_owner(&self, infra: &ObjectMeta) {
        let owners = infra.owner_references.iter().flatten();
        for owner in owners.filter(|owner| owner.kind == "Machine") {
            self.wake(&owner.name, infra.namespace.as_deref());
        }
    }

    /// A MachineHealthCheck gives a remediation the name of its Machine.
    fn wake(&self, name: &str, namespace: Option<&str>) {
        let reference = ObjectRef::new(name).within(namespace.unwrap_or_default());
        if self.cache.get(&reference).is_some() {
            self.trigger.send(reference);
        }
    }

    fn wake_those_of(&self, concerned: &Concerned<'_>) {
        for guarded in self.cache.state() {
            if concerned.labels(guarded.meta()) {
                self.trigger.send(ObjectRef::from_obj(&*guarded));
            }
        }
    }
}

/// The InfraMachines that the API server let go in spite of their finalizer. A list does not show
/// how what it lacks has gone.
fn erased(update: &CacheUpdate<DeserializeGuard<InfraMachine>>) -> Vec<&InfraMachine> {
    let changes = update.changes.iter().filter(|_| !update.listed);
    let gone = changes.filter_map(|change| match change {
        Change::Deleted(guarded) => guarded.0.as_ref().ok(),
        Change::Added(_) | Change::Updated { .. } => None,
    });
    gone.filter(|last| machine::was_deleted_despite_finalizer(last))
        .collect()
}

fn what_counts_of_a_machine(machine: &Machine) -> u64 {
    let control_plane = machine.labels().contains_key(labels::CONTROL_PLANE);
    let spec = &machine.spec;
    fingerprint((
        &spec.bootstrap.data_secret_name,
        &spec.failure_domain,
        &spec.infrastructure_ref.name,
        control_plane,
    ))
}

/// Of a Node: its name, and that it came back. That it went silent is no reason to look at its taints.
fn has_node_to_look_at(change: &Change<Machine>) -> bool {
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

/// Of a Machine whose volumes are drained, that Cluster API waits for the provider is not cached, so that all
/// that happens to one on its way out counts.
fn what_counts_of_a_drain(machine: &Machine) -> u64 {
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

/// Of an InfraMachine: not what the provider itself writes while it drains. Cluster API makes it with one
/// owner, the MachineSet, and then has the Machine take its place, which may be cached long before that.
fn what_a_drain_counts(guarded: &DeserializeGuard<InfraMachine>) -> u64 {
    let meta = guarded.meta();
    let annotation = |key| meta.annotations.as_ref().and_then(|all| all.get(key));
    fingerprint((
        annotation(labels::VOLUME_DRAIN),
        annotation(labels::PAUSED),
        machine_owner(meta).map(|owner| &owner.uid),
        meta.deletion_timestamp.is_some(),
        guarded.0.as_ref().is_ok_and(volume_drain::awaits_vm),
    ))
}

fn what_counts_of_a_cluster(cluster: &Cluster) -> u64 {
    let deleting = cluster.metadata.deletion_timestamp.is_some();
    let endpoint = cluster.spec.control_plane_endpoint.as_ref();
    fingerprint((
        cluster.is_paused(),
        cluster.infrastructure_is_provisioned(),
        endpoint.map(|endpoint| (&endpoint.host, endpoint.port)),
        deleting,
    ))
}

fn why_not_provisioned(guarded: &DeserializeGuard<InfraCluster>) -> Option<&str> {
    guarded.0.as_ref().ok()?.why_not_provisioned()
}

fn infra_machine_of(machine: &Machine) -> ObjectRef<DeserializeGuard<InfraMachine>> {
    let name = &machine.spec.infrastructure_ref.name;
    ObjectRef::new(name).within(machine.metadata.namespace.as_deref().unwrap_or_default())
}

/// Clusters that changed or are no more: what belongs to them has to be looked at, once for all of them.
struct Concerned<'a> {
    clusters: Vec<&'a Cluster>,
    uids: HashSet<&'a str>,
    /// Namespace and name.
    names: HashSet<(&'a str, &'a str)>,
}

impl<'a> Concerned<'a> {
    fn by(changes: &'a [Change<Cluster>]) -> Self {
        let concerning = changes
            .iter()
            .filter(|change| change.concerns(what_counts_of_a_cluster));
        let clusters: Vec<&Cluster> = concerning.map(|change| &**change.object()).collect();
        let name = |cluster: &&'a Cluster| {
            let meta = &cluster.metadata;
            Some((meta.namespace.as_deref()?, meta.name.as_deref()?))
        };
        Self {
            uids: clusters.iter().map(|cluster| uid(*cluster)).collect(),
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

    fn has(&self, machine: &Machine) -> bool {
        let namespace = machine.metadata.namespace.as_deref();
        namespace.is_some_and(|namespace| {
            self.names
                .contains(&(namespace, machine.spec.cluster_name.as_str()))
        })
    }

    fn labels(&self, meta: &ObjectMeta) -> bool {
        let label = meta.labels.as_ref().and_then(|all| all.get(labels::CLUSTER_NAME));
        label
            .zip(meta.namespace.as_deref())
            .is_some_and(|(name, namespace)| self.names.contains(&(namespace, name.as_str())))
    }
}

fn uids<'a>(all: impl Iterator<Item = &'a ObjectMeta>) -> HashSet<String> {
    all.filter_map(|meta| meta.uid.clone()).collect()
}

#[cfg(test)]
mod tests;
