//! The controller of InfraMachines, its lists and look-ups, and the count of machines.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Resource as _;
use kube_fleet::Controller;
use tokio::task::coop::consume_budget;
use tokio_util::sync::CancellationToken;

use super::Controllers;
use super::enqueue::infra_machine_of;
use super::node_health::NodeChange;
use crate::api::ObjectMetaExt as _;
use crate::api::cluster_api::Machine;
use crate::api::conditions::reason;
use crate::driver::ConfiguredDrivers;
use crate::fleet::inventory::ListResult;
use crate::fleet::{inventory, refresh};
use crate::machine;
use crate::manager::tasks::Task;
use crate::reconcile::caches::CachedMachine;
use crate::reconcile::run_one;
use crate::reconcile::runtime_state::LookUpHint;
use crate::telemetry::metrics::{ControllerName, MachineCount, MachinePhase};

/// The driver label of metrics for a driver that is not configured. A spec may name any driver, and each name
/// would create a series that never ends.
const UNKNOWN_DRIVER: &str = "unknown";

impl Controllers {
    /// Runs the reconciles of InfraMachines.
    pub(super) fn machine_controller(&self, stopping: &CancellationToken) -> Task {
        let run = Controller::new(
            &self.caches.infra_machines,
            &self.infra_machine_queue,
            self.workers(self.options.machine_concurrency),
        )
        .with_backlog(|facts| !facts.is_provisioned)
        .graceful_shutdown_on(stopping.clone().cancelled_owned())
        .run(
            |object, ctx| async move {
                let reconcile = Box::pin(machine::reconcile(&object, &ctx));
                let (metrics, drivers) = (&ctx.metrics, &ctx.drivers);
                run_one(
                    ControllerName::InfraMachine,
                    metrics,
                    drivers,
                    &*object,
                    reconcile,
                )
                .await
            },
            |object, error, ctx| machine::error_policy(&object, error, &ctx),
            Arc::clone(&self.machine_context),
        );
        Task::new("the InfraMachine controller", run)
    }

    /// Returns a function that makes the reconcile ask the driver of a Machine about its VM. The reconcile
    /// decides whether the driver supports that: its capabilities may not be known yet.
    pub(super) fn look_up_hint(&self) -> impl Fn(&Machine, NodeChange) + Send + 'static {
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

    pub(super) async fn run_inventory(&self) {
        let states = Arc::clone(&self.machine_context);
        let (cache, look_up) = (self.caches.infra_machines.clone(), self.look_up());
        let report = move |result: ListResult<'_>| match result {
            ListResult::LookUp(machine, hint) => look_up(machine, hint),
            ListResult::Confirmed(confirmed) => {
                let is_confirmed = |uid: &str| confirmed.contains(&cache.number(uid));
                states.states.drop_list_hints(is_confirmed);
            }
        };
        let interval = self.options.inventory_interval;
        inventory::run(self.inventory_context(), interval, report).await;
    }

    pub(super) async fn run_refresh(&self) {
        let (context, look_up) = (self.inventory_context(), self.look_up());
        let look_up = move |machine: &CachedMachine| look_up(machine, LookUpHint::Signal);
        refresh::run(context, self.options.max_refreshed_machines, look_up).await;
    }

    fn inventory_context(&self) -> inventory::Context {
        inventory::Context {
            client: self.client.clone(),
            caches: self.caches.clone(),
            drivers: self.drivers.clone(),
        }
    }

    /// Returns a function that makes the reconcile of a machine look up its VM.
    fn look_up(&self) -> impl Fn(&CachedMachine, LookUpHint) + Send + Sync + 'static {
        let (queue, context) = (
            self.infra_machine_queue.clone(),
            Arc::clone(&self.machine_context),
        );
        move |machine, hint| {
            if let Some(object) = machine.object() {
                context.states.hint(object.meta().uid(), hint);
                queue.enqueue_key(machine.key().clone());
            }
        }
    }

    /// Counts the machines by phase, driver, namespace and reason, from the cache.
    pub fn machine_counter(&self) -> impl Fn() -> Vec<MachineCount> + Send + Sync + 'static {
        let infra_machines = self.caches.infra_machines.clone();
        let drivers = self.drivers.clone();
        let count = |((phase, driver, namespace, reason), count): ((_, &str, &str, &str), _)| MachineCount {
            phase,
            driver: driver.to_owned(),
            namespace: namespace.to_owned(),
            reason: reason.to_owned(),
            count,
        };
        move || {
            infra_machines.scan(|all| {
                let mut counts = BTreeMap::new();
                for entry in all {
                    let (facts, namespace) = (entry.facts(), entry.key().namespace());
                    let key = match facts.phase {
                        Some(phase) => {
                            let driver = driver_label(&drivers, &facts.shown_driver);
                            (phase, driver, namespace, &*facts.reason)
                        }
                        None => (MachinePhase::Invalid, "", namespace, reason::UNREADABLE),
                    };
                    *counts.entry(key).or_default() += 1;
                }
                counts.into_iter().map(count).collect()
            })
        }
    }
}

/// The name of a driver as a label of metrics; an empty name stays empty.
fn driver_label<'a>(drivers: &ConfiguredDrivers, name: &'a str) -> &'a str {
    if name.is_empty() || drivers.named(name).is_some() {
        name
    } else {
        UNKNOWN_DRIVER
    }
}
