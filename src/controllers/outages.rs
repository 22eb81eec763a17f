//! What is reconciled when a driver goes, comes back, or says something else of itself.
//!
//! An outage is news at two speeds. What the probes say has those looked at that can do something now. That the driver is
//! away, or back, is told only when it has lasted: at once of the InfraClusters, and of the machines that are up, of which
//! nothing is to be done, at a pace that the API server and Cluster API do not notice.

use std::collections::HashSet;
use std::time::Duration;

use kube::api::ObjectMeta;
use kube::runtime::reflector::ObjectRef;
use tokio::time::sleep;

use super::{Controllers, reference};
use crate::api::labels;
use crate::api::v1alpha1::InfraMachine;
use crate::caches::uses_driver;
use crate::machine::Reference;
use crate::provider::{Provider, Reachability};

/// The machines that are told in a second that their driver is away, or back.
const TOLD_IN_A_SECOND: u32 = 20;

impl Controllers {
    /// Follows what becomes of the drivers, for ever.
    pub(super) async fn follow_drivers(&self) {
        let all = self.providers.iter().map(|provider| async {
            tokio::join!(
                provider.keep_standing(self.options.driver_unreachable_grace),
                self.follow_standing(provider),
                self.follow_probes(provider),
            )
        });
        futures::future::join_all(all).await;
        // Without a driver there is nothing to follow, and what never ends must not.
        futures::future::pending::<()>().await;
    }

    /// Has it told when a driver is away, or back, for good.
    async fn follow_standing(&self, provider: &Provider) {
        let mut standing = provider.standing();
        while standing.changed().await.is_ok() {
            loop {
                self.reconcile_clusters_of(provider.name());
                tokio::select! {
                    () = self.tell(provider.name()) => break,
                    // What is left to be told is no longer so.
                    changed = standing.changed() => if changed.is_err() { return },
                }
            }
        }
    }

    /// Reconciles the machines of a driver that are up, one after the other.
    async fn tell(&self, driver: &str) {
        let up: Vec<_> = self.machines_of(driver, InfraMachine::is_provisioned).collect();
        for machine in up {
            self.machines.send(machine);
            sleep(Duration::from_secs(1) / TOLD_IN_A_SECOND).await;
        }
    }

    /// Looks at what belongs to a driver that is back, or that became another: it may say something else of its calls, zones
    /// and classes.
    async fn follow_probes(&self, provider: &Provider) {
        let mut news = provider.reachable();
        let mut was = matches!(*news.borrow_and_update(), Reachability::Unreachable(_));
        let mut met = Met::of(provider);
        while news.changed().await.is_ok() {
            let is = matches!(*news.borrow_and_update(), Reachability::Unreachable(_));
            let is_back = std::mem::replace(&mut was, is) && !is;
            let is_another = met.becomes(Met::of(provider));
            if is_another {
                self.reconcile_machines_of(provider.name());
            }
            if is_back || is_another {
                self.reconcile_clusters_of(provider.name());
                self.reconcile_templates_of(provider.name());
            }
        }
    }

    /// Also those that it has not made a VM for: what it says of itself may have kept them from being shown to it.
    pub(super) fn reconcile_machines_of(&self, driver: &str) {
        self.machines_of(driver, |_| true)
            .for_each(|machine| self.machines.send(machine));
    }

    /// The machines of a driver, made by it or not yet.
    fn machines_of(
        &self,
        driver: &str,
        which: impl Fn(&InfraMachine) -> bool,
    ) -> impl Iterator<Item = Reference> {
        self.caches
            .infra_machines
            .state()
            .into_iter()
            .filter_map(move |guarded| {
                let machine = guarded.0.as_ref().ok()?;
                let uses = uses_driver(machine, driver)
                    || self.is_served_by(driver, machine.spec.provider.as_deref(), &machine.metadata);
                (uses && which(machine)).then(|| reference(machine))
            })
    }

    /// The InfraClusters that name a driver, and those of the machines that it made.
    fn reconcile_clusters_of(&self, driver: &str) {
        let machines = self.caches.infra_machines.state();
        let labelled: HashSet<_> = machines
            .iter()
            .filter_map(|guarded| guarded.0.as_ref().ok())
            .filter(|machine| uses_driver(machine, driver))
            .filter_map(|machine| named_cluster(&machine.metadata))
            .collect();
        for guarded in self.caches.infra_clusters.state() {
            if let Ok(infra) = &guarded.0
                && (self.is_served_by(driver, infra.spec.provider.as_deref(), &infra.metadata)
                    || self.caches.owning_clusters(&infra.metadata).any(|owner| {
                        let meta = &owner.metadata;
                        let name = meta.namespace.as_deref().zip(meta.name.as_deref());
                        name.is_some_and(|name| labelled.contains(&name))
                    }))
            {
                self.clusters.send(ObjectRef::from_obj(&*guarded));
            }
        }
    }

    fn reconcile_templates_of(&self, driver: &str) {
        for guarded in self.caches.infra_machine_templates.state() {
            if let Ok(template) = &guarded.0
                && let named = template.spec.template.spec.provider.as_deref()
                && self.is_served_by(driver, named, &template.metadata)
            {
                self.templates.send(ObjectRef::from_obj(&*guarded));
            }
        }
    }

    /// Whether an object that names this driver, or none, gets that one.
    fn is_served_by(&self, driver: &str, named: Option<&str>, meta: &ObjectMeta) -> bool {
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let resolved = self.providers.resolve(named, namespace);
        resolved.is_ok_and(|provider| provider.name() == driver)
    }
}

/// Namespace and name of the Cluster that an object's label names.
fn named_cluster(meta: &ObjectMeta) -> Option<(&str, &str)> {
    let name = meta.labels.as_ref()?.get(labels::CLUSTER_NAME)?;
    Some((meta.namespace.as_deref()?, name))
}

/// Which driver was met, and what it said of itself.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Met {
    incarnation: u64,
    revision: u64,
}

impl Met {
    fn of(provider: &Provider) -> Self {
        Self {
            incarnation: provider.incarnation(),
            revision: provider.revision(),
        }
    }

    /// Whether it is another now, or says something else. The first time says nothing new of what was before.
    fn becomes(&mut self, now: Self) -> bool {
        let before = std::mem::replace(self, now);
        (before.incarnation != 0 && before.incarnation != now.incarnation)
            || (before.revision != 0 && before.revision != now.revision)
    }
}
