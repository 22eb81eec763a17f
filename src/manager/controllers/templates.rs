//! The controller of InfraMachineTemplates.

use std::sync::Arc;

use kube_fleet::Controller;
use tokio_util::sync::CancellationToken;

use super::{Controllers, enqueue};
use crate::cluster::template;
use crate::manager::tasks::Task;
use crate::telemetry::metrics::ControllerName;

impl Controllers {
    /// Runs the reconciles of InfraMachineTemplates.
    pub(super) fn template_controller(&self, stopping: &CancellationToken) -> Task {
        let run = Controller::new(
            &self.caches.infra_machine_templates,
            &self.template_queue,
            self.workers(self.options.template_concurrency),
        )
        .with_backlog(|()| true)
        .graceful_shutdown_on(stopping.clone().cancelled_owned())
        .run(
            template::reconcile,
            |object, error, ctx| ctx.reconciler.error_policy(&*object, error),
            self.template_context(),
        );
        Task::new("the InfraMachineTemplate controller", run)
    }

    fn template_context(&self) -> Arc<template::Context> {
        Arc::new(template::Context {
            client: self.client.clone(),
            caches: self.caches.clone(),
            drivers: self.drivers.clone(),
            reconciler: self.reconciler(ControllerName::InfraMachineTemplate),
            enqueue: enqueue(&self.template_queue),
        })
    }
}
