//! What an event of each kind triggers, and what it lets be forgotten.

use std::collections::HashSet;
use std::sync::Arc;

use kube::api::ObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};

use super::Controllers;
use super::nodes::{Nodes, is_silent};
use super::watch::{Changes, fingerprint, on_own};
use crate::api::cluster_api::{Cluster, Machine};
use crate::api::v1alpha1::InfraMachine;
use crate::api::{self, Guarded, labels};
use crate::machine::Suspicion;

impl Controllers {
    pub(super) fn on_machine(&self) -> impl FnMut(&Event<Machine>) + Send + 'static {
        let (trigger, mut changes) = (self.machines.clone(), Changes::default());
        let (mut nodes, ask) = (Nodes::default(), self.ask_about());
        move |event| {
            if let Some(machine) = nodes.lost(event) {
                ask(machine);
            }
            let Some(machine) = changes.changed(event, |machine| {
                let control_plane = machine.labels().contains_key(labels::CONTROL_PLANE);
                let spec = &machine.spec;
                fingerprint((
                    &spec.bootstrap.data_secret_name,
                    &spec.failure_domain,
                    &spec.infrastructure_ref.name,
                    control_plane,
                ))
            }) else {
                return;
            };
            let infra = &machine.spec.infrastructure_ref;
            if infra.api_group == api::GROUP && infra.kind == "InfraMachine" {
                trigger.send(ObjectRef::new(&infra.name).within(&machine.namespace().unwrap_or_default()));
            }
        }
    }

    /// Has the driver of a Machine asked about its VM. Whether it answers such questions is for the reconcile to say: it may
    /// not have been asked yet.
    fn ask_about(&self) -> impl Fn(&Machine) + Send + 'static {
        let (trigger, context) = (self.machines.clone(), Arc::clone(&self.context));
        move |machine| {
            let infra = &machine.spec.infrastructure_ref;
            let reference = ObjectRef::new(&infra.name).within(&machine.namespace().unwrap_or_default());
            let found = context.caches.infra_machines.get(&reference);
            if let Some(uid) = found.as_ref().and_then(|found| found.meta().uid.as_ref()) {
                context.memory.suspect(uid, Suspicion::Sign);
                trigger.send(reference);
            }
        }
    }

    /// What was told before this replica leads may be long past, or have come before the InfraMachine it was about: what
    /// counts is what is so now.
    pub(super) fn ask_about_silent_nodes(&self) {
        self.context.memory.forget_all_but(|_| false);
        let ask = self.ask_about();
        let machines = self.caches.machines.state();
        machines
            .iter()
            .filter(|machine| is_silent(machine))
            .for_each(|machine| ask(machine));
    }

    pub(super) fn on_cluster(&self) -> impl FnMut(&Event<Cluster>) + Send + 'static {
        let (machines, clusters, mut changes) =
            (self.machines.clone(), self.clusters.clone(), Changes::default());
        let infra_machines = self.caches.infra_machines.clone();
        let (templates, caches) = (self.templates.clone(), self.caches.clone());
        let (known, cluster_ids) = (
            self.caches.clusters.clone(),
            Arc::clone(&self.context.cluster_ids),
        );
        move |event| {
            if matches!(event, Event::Delete(_) | Event::InitDone) {
                let there = uids(known.state().iter().map(|cluster| &cluster.metadata));
                cluster_ids.forget_all_but(|uid| there.contains(uid));
            }
            let Some(cluster) = changes.changed(event, |cluster| {
                let deleting = cluster.metadata.deletion_timestamp.is_some();
                fingerprint((
                    cluster.is_paused(),
                    cluster.infrastructure_is_provisioned(),
                    deleting,
                ))
            }) else {
                return;
            };
            let namespace = cluster.namespace().unwrap_or_default();
            if let Some(infra) = &cluster.spec.infrastructure_ref
                && infra.api_group == api::GROUP
                && infra.kind == "InfraCluster"
            {
                clusters.send(ObjectRef::new(&infra.name).within(&namespace));
            }
            for guarded in caches.infra_machine_templates.state() {
                let mut its = caches.clusters_of_template(guarded.meta()).into_iter();
                if its.any(|of| of.metadata.uid == cluster.metadata.uid) {
                    templates.send(ObjectRef::from_obj(&*guarded));
                }
            }
            for guarded in infra_machines.state() {
                let labelled = guarded
                    .meta()
                    .labels
                    .as_ref()
                    .and_then(|all| all.get(labels::CLUSTER_NAME));
                if labelled == cluster.metadata.name.as_ref()
                    && guarded.meta().namespace == cluster.metadata.namespace
                {
                    machines.send(ObjectRef::from_obj(&*guarded));
                }
            }
        }
    }

    pub(super) fn on_infra_machine(&self) -> impl FnMut(&Event<Guarded<InfraMachine>>) + Send + 'static {
        let (mut on_own, context) = (on_own(self.machines.clone()), Arc::clone(&self.context));
        let known = self.caches.infra_machines.clone();
        move |event| {
            let memory = &context.memory;
            match event {
                Event::Delete(guarded) => memory.forget(guarded.meta().uid.as_deref().unwrap_or_default()),
                Event::Apply(guarded) | Event::InitApply(guarded) => {
                    if let Ok(machine) = &guarded.0 {
                        memory.caught_up(machine.metadata.uid.as_deref().unwrap_or_default(), machine);
                    }
                }
                Event::InitDone => {
                    let there = uids(known.state().iter().map(|guarded| guarded.meta()));
                    memory.forget_all_but(|uid| there.contains(uid));
                }
                Event::Init => {}
            }
            on_own(event);
        }
    }
}

fn uids<'a>(all: impl Iterator<Item = &'a ObjectMeta>) -> HashSet<String> {
    all.filter_map(|meta| meta.uid.clone()).collect()
}
