//! Finds VMs that vanished: one list per driver and class at an interval, instead of a call per machine.
//!
//! Nothing is deleted and nothing is written here: what lists say of a machine is only handed to its
//! reconciler, which asks the driver about it.

mod groups;
mod plan;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::{Client, Resource as _};
use tokio::task::JoinSet;

use self::groups::{Group, groups};
pub use self::plan::Presence;
use self::plan::{Absences, Expected, List, judge};
use crate::api::v1alpha1::InfraMachine;
use crate::caches::Caches;
use crate::configured_driver::{ConfiguredDriver, ConfiguredDrivers};
use crate::listing::{self, ListError};

/// Surveys the drivers: what a survey works with.
pub struct Surveyor {
    /// Reads credentials.
    pub client: Client,
    /// The machines.
    pub caches: Caches,
    /// The configured drivers.
    pub drivers: ConfiguredDrivers,
}

/// The key under which a survey waits for its permits.
const REQUESTER: &str = "inventory";

/// Surveys for ever, every driver once per interval; reports what its lists say of every
/// machine that they are sure of.
///
/// Each driver is surveyed by itself: one that hangs does not hold up the surveys of the others. Each
/// survey is a task, which ends with this future: to go through a whole fleet takes time that
/// reconciles must not wait for.
pub async fn run(
    surveyor: Surveyor,
    interval: Duration,
    report: impl Fn(&InfraMachine, Presence) + Send + Sync + 'static,
) {
    let (surveyor, report) = (Arc::new(surveyor), Arc::new(report));
    let mut surveys = JoinSet::new();
    for driver in surveyor.drivers.iter().map(Arc::clone) {
        let (surveyor, report) = (Arc::clone(&surveyor), Arc::clone(&report));
        surveys.spawn(async move { keep_surveying(&surveyor, &driver, interval, &*report).await });
    }
    while let Some(ended) = surveys.join_next().await {
        if let Err(error) = ended
            && let Ok(panic) = error.try_into_panic()
        {
            std::panic::resume_unwind(panic);
        }
    }
    // Without a driver there is nothing to do, and what never ends must not.
    futures::future::pending::<()>().await;
}

async fn keep_surveying(
    surveyor: &Surveyor,
    driver: &ConfiguredDriver,
    interval: Duration,
    report: &(impl Fn(&InfraMachine, Presence) + Send + Sync),
) {
    let mut absences = Absences::new();
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // The first tick comes at once, and a restart is no reason to list.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        survey(surveyor, driver, &mut absences, report).await;
    }
}

async fn survey(
    surveyor: &Surveyor,
    driver: &ConfiguredDriver,
    absences: &mut Absences,
    report: &(impl Fn(&InfraMachine, Presence) + Send + Sync),
) {
    let Ok(Some(capabilities)) = listing::capabilities(driver, REQUESTER).await else {
        return;
    };
    let groups = groups(&surveyor.caches, driver.name(), &capabilities.tag_path).await;
    let window = capabilities.consistency_window;
    let alive: HashSet<_> = groups
        .values()
        .flatten()
        .filter_map(|machine| machine.meta().uid.clone())
        .collect();
    absences.retain(|uid, _| alive.contains(uid));
    for (group, machines) in groups {
        // One class that fails must not keep the others from being looked after (CTL-LM-03).
        let asked = Instant::now();
        let Some(ids) = list(surveyor, driver, &group).await else {
            continue;
        };
        let list = List {
            ids: &ids,
            asked,
            window,
        };
        let machines: Vec<_> = machines
            .iter()
            .filter_map(|machine| machine.0.as_ref().ok())
            .collect();
        let expected: Vec<_> = machines.iter().copied().filter_map(expected).collect();
        let presences: HashMap<_, _> = judge(&expected, list, absences).into_iter().collect();
        for machine in machines {
            let uid = machine.metadata.uid.as_deref().unwrap_or_default();
            let Some(presence) = presences.get(uid).copied() else {
                continue;
            };
            if presence != Presence::Unchanged {
                tracing::info!(
                    name = machine.metadata.name,
                    ?presence,
                    "the driver's list says otherwise; asking about the VM"
                );
            }
            report(machine, presence);
        }
    }
}

/// The ids of all VMs of a class; `None` when they can't be had, and nothing follows from that.
async fn list(surveyor: &Surveyor, driver: &ConfiguredDriver, group: &Group) -> Option<HashSet<String>> {
    let secret = group.secret.as_deref();
    let listed = listing::list(
        &surveyor.client,
        driver,
        REQUESTER,
        &group.namespace,
        secret,
        &group.class,
    );
    match listed.await {
        Ok(machines) => {
            let ids = machines
                .into_iter()
                .map(|machine| machine.provider_id.to_string());
            Some(ids.collect())
        }
        // A driver that turns out not to list has the feature off, without noise (CTL-LM-12).
        Err(ListError::NotOffered) => None,
        Err(ListError::Failed(why) | ListError::Impossible(why)) => {
            tracing::warn!(
                driver = driver.name(),
                why,
                "VMs can't be listed; trying again at the next interval"
            );
            None
        }
    }
}

fn expected(machine: &InfraMachine) -> Option<Expected> {
    Some(Expected {
        uid: machine.metadata.uid.clone()?,
        provider_id: machine.spec.provider_id.clone()?,
        vanished: machine.has_vanished(),
    })
}
