//! Enqueues objects when their driver becomes unreachable, comes back or is replaced.
//!
//! A probe that changes the state enqueues the objects that need a reconcile now. Machines in a back-off
//! because of the driver are retried when it is back, in batches that double. The reachability itself is
//! published only after it was stable for a while: on InfraClusters immediately, and on provisioned machines
//! slowly, to spare the API server and Cluster API.

use std::collections::HashSet;
use std::time::Duration;

use kube::Resource as _;
use kube::api::ObjectMeta;
use kube::runtime::reflector::ObjectRef;
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, sleep, sleep_until};

use super::Controllers;
use crate::api::ObjectMetaExt as _;
use crate::api::conditions;
use crate::api::v1alpha1::InfraMachine;
use crate::driver::{ConfiguredDriver, Reachability, StableReachability};
use crate::machine::Reference;
use crate::reconcile::caches::CachedMachine;

/// The minimum time between two rounds of retries of a driver's waiting machines, because each round of
/// failures costs status writes.
const RETRY_PAUSE: Duration = Duration::from_mins(5);
/// The maximum number of machines that are retried in a second when their driver is back.
const MAX_RETRIED: usize = 128;
/// How many machines per second publish a change of their driver's reachability.
const PUBLISHED_IN_A_SECOND: u32 = 20;

impl Controllers {
    /// Follows the probes of all drivers. Never ends.
    pub(super) async fn follow_drivers(&self) {
        let all = self.drivers.iter().map(|driver| async {
            tokio::join!(self.follow_reachability(driver), self.follow_probes(driver),)
        });
        futures::future::join_all(all).await;
        // Without a driver there is nothing to follow, but this future must not end.
        futures::future::pending::<()>().await;
    }

    /// Publishes that a driver is unreachable, or reachable again, once the state is stable.
    async fn follow_reachability(&self, driver: &ConfiguredDriver) {
        let mut reachability = driver.stable_reachability();
        while reachability.changed().await.is_ok() {
            loop {
                let now = reachability.borrow_and_update().clone();
                self.reconcile_clusters_of(driver.name());
                tokio::select! {
                    () = self.publish_on_machines(driver.name(), &now) => break,
                    // The state to publish has changed.
                    changed = reachability.changed() => if changed.is_err() { return },
                }
            }
        }
    }

    /// Reconciles, one after the other, a driver's provisioned machines that do not publish its state yet.
    async fn publish_on_machines(&self, driver: &str, now: &StableReachability) {
        let behind = self.machines_of(driver, |machine| has_to_publish(machine, now));
        for machine in behind.await {
            self.infra_machine_queue.enqueue(machine);
            sleep(Duration::from_secs(1) / PUBLISHED_IN_A_SECOND).await;
        }
    }

    /// Reconciles the objects of a driver that is back or was replaced. The new plugin may support other
    /// calls, zones and classes.
    async fn follow_probes(&self, driver: &ConfiguredDriver) {
        let mut update = driver.reachability();
        let mut was = matches!(*update.borrow_and_update(), Reachability::Unreachable(_));
        let mut generation = driver.connection_generation();
        let mut retries = Retries::default();
        loop {
            tokio::select! {
                changed = update.changed() => if changed.is_err() { return },
                () = retries.next() => {
                    self.retry(retries.batch());
                    continue;
                }
            }
            let is = matches!(*update.borrow_and_update(), Reachability::Unreachable(_));
            let is_back = std::mem::replace(&mut was, is) && !is;
            let before = std::mem::replace(&mut generation, driver.connection_generation());
            // The first plugin is not a change.
            let is_another = before != 0 && before != generation;
            if is_another {
                self.reconcile_machines_of(driver.name());
            }
            if is {
                retries.stop();
            } else if is_back {
                retries.begin(self.waiting_for(driver.name()), Instant::now());
            }
            if is_back || is_another {
                self.reconcile_clusters_of(driver.name());
                self.reconcile_templates_of(driver.name());
            }
        }
    }

    /// The machines that wait for a condition outside of their spec, such as an outage of their driver.
    fn waiting_for(&self, driver: &str) -> Vec<Reference> {
        let cache = &self.caches.infra_machines;
        let waiting = self
            .machine_context
            .states
            .waiting_for_transient(|uid| cache.number(uid));
        let machines = self.all_machines_of(driver).into_iter();
        machines
            .filter(|machine| waiting.contains(&machine.uid()))
            .map(|machine| machine.key().reference())
            .collect()
    }

    /// Ends the back-off of machines, and enqueues them.
    fn retry(&self, machines: Vec<Reference>) {
        for machine in machines {
            if let Some(found) = self.caches.infra_machines.get(&machine) {
                let uid = found.meta().uid();
                self.machine_context.states.end_transient_wait(uid);
                self.infra_machine_queue.enqueue(machine);
            }
        }
    }

    /// Enqueues all machines of a driver, also machines without a VM: their spec may have been refused
    /// because of the driver's earlier capabilities, without a call.
    pub(super) fn reconcile_machines_of(&self, driver: &str) {
        for machine in self.all_machines_of(driver) {
            self.infra_machine_queue.enqueue_key(machine.key().clone());
        }
    }

    /// The machines of a driver, with or without a VM.
    pub(super) async fn machines_of(
        &self,
        driver: &str,
        which: impl Fn(&InfraMachine) -> bool,
    ) -> Vec<Reference> {
        let mut found = Vec::new();
        for entry in self.all_machines_of(driver) {
            consume_budget().await;
            let object = entry.object();
            if object.is_some_and(|object| object.0.as_ref().is_ok_and(&which)) {
                found.push(entry.key().reference());
            }
        }
        found
    }

    fn all_machines_of(&self, driver: &str) -> Vec<CachedMachine> {
        self.caches.infra_machines.select(|entry| {
            let facts = entry.facts();
            facts.phase.is_some()
                && (facts.used_driver.as_deref() == Some(driver)
                    || self.is_served_by(driver, facts.named_driver.as_deref(), entry.key().namespace()))
        })
    }

    /// Enqueues the InfraClusters that name a driver, and the InfraClusters of its machines.
    fn reconcile_clusters_of(&self, driver: &str) {
        let labelled: HashSet<(String, Box<str>)> = self.caches.infra_machines.scan(|all| {
            let used = all.filter(|entry| entry.facts().used_driver.as_deref() == Some(driver));
            let labelled = used.filter_map(|entry| {
                let cluster = entry.facts().cluster.clone()?;
                Some((entry.key().namespace().to_owned(), cluster))
            });
            labelled.collect()
        });
        for object in self.caches.infra_clusters.state() {
            if let Ok(infra) = &object.0
                && (self.is_served_by(
                    driver,
                    infra.spec.driver.as_deref(),
                    namespace_of(&infra.metadata),
                ) || self.caches.owning_clusters(&infra.metadata).any(|owner| {
                    let meta = &owner.metadata;
                    let name = meta.namespace.clone().zip(meta.name.as_deref().map(Box::from));
                    name.is_some_and(|name| labelled.contains(&name))
                }))
            {
                self.infra_cluster_queue.enqueue(ObjectRef::from_obj(&*object));
            }
        }
    }

    fn reconcile_templates_of(&self, driver: &str) {
        for object in self.caches.infra_machine_templates.state() {
            if let Ok(template) = &object.0
                && let named = template.spec.template.spec.driver.as_deref()
                && self.is_served_by(driver, named, namespace_of(&template.metadata))
            {
                self.template_queue.enqueue(ObjectRef::from_obj(&*object));
            }
        }
    }

    /// Whether an object that names this driver, or none, is served by the given driver.
    fn is_served_by(&self, driver: &str, named: Option<&str>, namespace: &str) -> bool {
        let resolved = self.drivers.resolve(named, namespace);
        resolved.is_ok_and(|resolved| resolved.name() == driver)
    }
}

/// Whether a machine is provisioned and its status does not show the current state. The machines of a
/// starting fleet, or after a change of the leader, show it already.
fn has_to_publish(machine: &InfraMachine, now: &StableReachability) -> bool {
    let status = machine.status.as_ref();
    let conditions = status.map(|status| status.conditions.as_slice());
    machine.is_provisioned()
        && match now {
            StableReachability::Unsettled => false,
            StableReachability::Reachable => {
                !conditions::is_true(conditions.unwrap_or_default(), conditions::DRIVER_REACHABLE)
            }
            StableReachability::Unreachable(_) => true,
        }
}

fn namespace_of(meta: &ObjectMeta) -> &str {
    meta.namespace()
}

/// The machines to retry after an outage, in batches of one, two, four …, a second apart.
#[derive(Default)]
struct Retries {
    left: Vec<Reference>,
    size: usize,
    at: Option<Instant>,
    /// When the last retries began. A driver with repeated outages does not end every back-off.
    began: Option<Instant>,
}

impl Retries {
    fn begin(&mut self, machines: Vec<Reference>, now: Instant) {
        self.left = machines;
        self.size = 1;
        self.at = Some(self.began.map_or(now, |began| now.max(began + RETRY_PAUSE)));
    }

    /// Drops the retries: the driver is unreachable again.
    fn stop(&mut self) {
        self.left.clear();
        self.at = None;
    }

    /// Waits for the time of the next batch. Never returns without a batch.
    async fn next(&self) {
        match self.at {
            Some(at) => sleep_until(at).await,
            None => futures::future::pending().await,
        }
    }

    fn batch(&mut self) -> Vec<Reference> {
        if self.size == 1 {
            self.began = self.at;
        }
        let batch = self.left.split_off(self.left.len().saturating_sub(self.size));
        self.size = (self.size * 2).min(MAX_RETRIED);
        let next = self.at.map(|at| at + Duration::from_secs(1));
        self.at = next.filter(|_| !self.left.is_empty());
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::conditions::ConditionStatus;
    use crate::api::v1alpha1::{InfraMachineInitialization, InfraMachineSpec, InfraMachineStatus};

    #[test]
    fn only_machines_that_show_another_reachability_are_reconciled() {
        let machine = |shown: Option<ConditionStatus>| {
            let mut status = InfraMachineStatus {
                initialization: Some(InfraMachineInitialization {
                    provisioned: Some(true),
                }),
                ..InfraMachineStatus::default()
            };
            if let Some(shown) = shown {
                let (type_, now) = (conditions::DRIVER_REACHABLE, jiff::Timestamp::UNIX_EPOCH);
                conditions::set(&mut status.conditions, type_, shown, "Test", "", Some(1), now);
            }
            let mut machine = InfraMachine::new("m", InfraMachineSpec::default());
            machine.status = Some(status);
            machine
        };
        let unreachable = StableReachability::Unreachable("down".into());
        for (shown, back, away) in [
            (None, true, true),
            (Some(ConditionStatus::False), true, true),
            (Some(ConditionStatus::True), false, true),
        ] {
            let machine = machine(shown);
            assert_eq!(has_to_publish(&machine, &StableReachability::Reachable), back);
            assert_eq!(has_to_publish(&machine, &unreachable), away);
        }
        assert!(!has_to_publish(
            &InfraMachine::new("m", InfraMachineSpec::default()),
            &unreachable
        ));
    }

    #[test]
    fn retries_after_an_outage_double_and_are_five_minutes_apart() {
        let machines = || (0..20).map(|n| Reference::new(&format!("m-{n}"))).collect();
        let (mut retries, start) = (Retries::default(), Instant::now());
        retries.begin(machines(), start);
        let mut sizes = Vec::new();
        let mut times = Vec::new();
        while let Some(at) = retries.at {
            times.push(at.duration_since(start).as_secs());
            sizes.push(retries.batch().len());
        }
        assert_eq!((sizes, times), (vec![1, 2, 4, 8, 5], vec![0, 1, 2, 3, 4]));
        retries.begin(machines(), start + Duration::from_secs(10));
        assert_eq!(retries.at, Some(start + RETRY_PAUSE));
        retries.stop();
        assert_eq!(retries.at, None);
        retries.begin(machines(), start + Duration::from_secs(20));
        assert_eq!(
            retries.at,
            Some(start + RETRY_PAUSE),
            "retries that were never made put nothing off"
        );
        let mut began = Vec::new();
        for minute in 2..20 {
            let now = start + Duration::from_mins(minute);
            retries.begin(machines(), now);
            if retries.at == Some(now) {
                retries.batch();
                began.push(minute);
            }
            retries.stop();
        }
        assert_eq!(began, [5, 10, 15]);
    }
}
