//! The controller of InfraMachineRemediations.

use std::borrow::Cow;
use std::sync::Arc;

use kube::Resource as _;
use kube::api::ObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube_fleet::{Controller, Store, Update, WorkQueue, Writer};
use tokio_util::sync::CancellationToken;

use super::cached::slim;
use super::changed_clusters::ChangedClusters;
use super::enqueue::enqueue_object_unless;
use super::{Controllers, enqueue};
use crate::api::cluster_api::Machine;
use crate::api::v1alpha1::InfraMachineRemediation;
use crate::api::{DeserializeGuard, ObjectMetaExt as _, annotations};
use crate::manager::tasks::Task;
use crate::nodes::remediation;
use crate::telemetry::metrics::ControllerName;

/// The cache and queue of remediations, where these are reconciled.
#[derive(Clone)]
pub(super) struct Remediations {
    pub cache: Store<DeserializeGuard<InfraMachineRemediation>>,
    pub queue: WorkQueue<DeserializeGuard<InfraMachineRemediation>>,
}

impl Controllers {
    /// Runs the reconciles of InfraMachineRemediations, as many as of InfraMachines.
    pub(super) fn remediation_controller(
        &self,
        remediations: &Remediations,
        stopping: &CancellationToken,
    ) -> Task {
        let workers = self.workers(self.options.machine_concurrency);
        let run = Controller::new(&remediations.cache, &remediations.queue, workers)
            .with_backlog(|()| true)
            .graceful_shutdown_on(stopping.clone().cancelled_owned())
            .run(
                remediation::reconcile,
                |object, error, ctx| ctx.reconciler.error_policy(&*object, error),
                self.remediation_context(remediations),
            );
        Task::new("the InfraMachineRemediation controller", run)
    }

    fn remediation_context(&self, remediations: &Remediations) -> Arc<remediation::Context> {
        Arc::new(remediation::Context {
            client: self.client.clone(),
            caches: self.caches.clone(),
            remediations: remediations.cache.clone(),
            drivers: self.drivers.clone(),
            events: self.machine_context.events.clone(),
            policies: self.policies(),
            reconciler: self.reconciler(ControllerName::InfraMachineRemediation),
            enqueue: enqueue(&remediations.queue),
        })
    }

    pub(super) fn remediation_watch(
        &self,
        writer: Writer<DeserializeGuard<InfraMachineRemediation>>,
    ) -> Option<Task> {
        let on_remediation = self.on_remediation(self.remediations.as_ref()?.queue.clone());
        let name = "the watch of InfraMachineRemediations";
        Some(self.watch(name, self.filtered(), writer, slim, on_remediation))
    }

    /// Enqueues a remediation as [`Self::on_object`] does, but not for a change of its record of restarts.
    /// The provider writes that record, and a reverted restart is retried only after its back-off.
    pub(super) fn on_remediation(
        &self,
        queue: WorkQueue<DeserializeGuard<InfraMachineRemediation>>,
    ) -> impl Fn(&Update<DeserializeGuard<InfraMachineRemediation>>) + Send + 'static {
        self.forgetting(enqueue_object_unless(queue, own_annotation_of_remediation))
    }
}

impl Remediations {
    /// Enqueues the remediation of a Machine. Every change of the Machine may affect it.
    pub(super) fn enqueue_of_machine(&self, machine: &Machine) {
        let meta = &machine.metadata;
        self.enqueue(meta.name(), meta.namespace.as_deref());
    }

    /// Enqueues the remediation of the Machine that owns an InfraMachine.
    pub(super) fn enqueue_of_owner(&self, infra: &ObjectMeta) {
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

    pub(super) fn enqueue_of_clusters(&self, changed: &ChangedClusters<'_>) {
        for object in self.cache.state() {
            if changed.labels(object.meta()) {
                self.queue.enqueue(ObjectRef::from_obj(&*object));
            }
        }
    }
}

fn own_annotation_of_remediation<'a>(key: &str, value: &'a str) -> Option<Cow<'a, str>> {
    let is_own = [annotations::RESTARTS, annotations::RESTART_ISSUED_AT].contains(&key);
    (!is_own).then_some(Cow::Borrowed(value))
}
