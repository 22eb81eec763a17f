//! Gathers the facts about a driver.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use kube::api::ListParams;
use kube::{Client, Resource};
use kube_fleet::pages;
use serde::de::DeserializeOwned;

use super::Error;
use super::events::{self, EventSummary};
use super::scrape::Scrape;
use crate::introspection::{Introspection, introspect};
use capcmi::api::bounded::Bounded;
use capcmi::api::cluster_api::cluster_name;
use capcmi::api::conditions::reason;
use capcmi::api::identity::driver_name;
use capcmi::api::v1alpha1::{InfraCluster, InfraMachine};
use capcmi::api::{DeserializeGuard, Parts};
use capcmi::apiserver::error_message;
use capcmi::driver::{ConfiguredDrivers, Priority};
use capcmi::machine::{phase, phase_reason};
use cmi_driver::Status;

/// The most InfraClusters that a page shows.
const MAX_CLUSTERS: usize = 20;

/// The facts about a driver.
#[derive(Debug)]
pub struct DriverReport {
    /// The name in `spec.driver`.
    pub name: String,
    /// The driver's entry in the drivers file; `None` if no drivers file was given.
    pub configured: Option<Configured>,
    /// The driver's current description of itself.
    pub answer: DriverAnswer,
    /// The driver's machines by phase and reason.
    pub machines: BTreeMap<(String, String), u64>,
    /// Machines without a driver's name that may belong to this driver, as the only driver of their
    /// namespace.
    pub unnamed: u64,
    /// The InfraClusters that name the driver, or have machines of it.
    pub clusters: Vec<InfraCluster>,
    /// How many of these InfraClusters are not shown.
    pub more_clusters: usize,
    /// The newest events about orphans and duplicates, of any driver.
    pub orphans: Result<Vec<EventSummary>, String>,
    /// The metrics of the running provider.
    pub scrape: Option<Scrape>,
}

/// A driver's entry in the drivers file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Configured {
    /// The driver is not in the file that was given.
    No,
    /// The driver is in the file, with this limit on concurrent calls.
    Yes {
        /// `maxConcurrentCalls`.
        max_concurrent_calls: u32,
    },
}

/// The driver's description of itself.
#[derive(Debug)]
pub enum DriverAnswer {
    /// The driver was not called.
    NotAsked,
    /// The driver does not answer.
    Failed(Status),
    /// The driver's answer.
    Says(Introspection),
}

/// Gathers the facts about a driver, in one namespace or in all. With `drivers`, also calls the driver.
///
/// # Errors
/// The machines cannot be listed.
pub async fn gather(
    client: &Client,
    drivers: Option<&ConfiguredDrivers>,
    namespace: Option<&str>,
    name: &str,
    scrape: Option<Scrape>,
) -> Result<DriverReport, Error> {
    let mut facts = DriverReport {
        name: name.to_owned(),
        configured: configured(drivers, name),
        answer: answer(drivers, name).await,
        machines: BTreeMap::new(),
        unnamed: 0,
        clusters: Vec::new(),
        more_clusters: 0,
        orphans: Ok(Vec::new()),
        scrape,
    };
    let mut of_machines = std::collections::BTreeSet::new();
    let listed = each::<InfraMachine>(client, namespace, |machine| {
        match driver_name(&machine).as_str() {
            "" => facts.unnamed += 1,
            driver if driver == name => {
                let key = (
                    phase(&machine).name().to_owned(),
                    phase_reason(&machine).to_owned(),
                );
                *facts.machines.entry(key).or_default() += 1;
                let cluster = cluster_name(&machine.metadata).map(str::to_owned);
                of_machines.insert((machine.metadata.namespace.clone(), cluster));
            }
            _ => {}
        }
    });
    listed.await.map_err(Error::api("listing the InfraMachines"))?;
    let mut clusters = Vec::new();
    let listed = each::<InfraCluster>(client, namespace, |infra| {
        let cluster = cluster_name(&infra.metadata).map(str::to_owned);
        let has_machines =
            cluster.is_some() && of_machines.contains(&(infra.metadata.namespace.clone(), cluster));
        let own = infra.spec.driver.as_deref();
        if own.map_or(has_machines, |own| own == name) {
            clusters.push(infra);
        }
    });
    listed.await.map_err(Error::api("listing the InfraClusters"))?;
    facts.more_clusters = clusters.len().saturating_sub(MAX_CLUSTERS);
    clusters.truncate(MAX_CLUSTERS);
    facts.clusters = clusters;
    facts.orphans = orphans(client, namespace)
        .await
        .map_err(|error| error_message(&error));
    Ok(facts)
}

fn configured(drivers: Option<&ConfiguredDrivers>, name: &str) -> Option<Configured> {
    Some(match drivers?.named(name) {
        None => Configured::No,
        Some(driver) => Configured::Yes {
            max_concurrent_calls: driver.max_concurrent_calls(),
        },
    })
}

async fn answer(drivers: Option<&ConfiguredDrivers>, name: &str) -> DriverAnswer {
    let Some(driver) = drivers.and_then(|drivers| drivers.named(name)) else {
        return DriverAnswer::NotAsked;
    };
    let permit = driver.acquire(Priority::Upkeep, "capcmi describe").await;
    match introspect(&permit).await {
        Ok(introspection) => DriverAnswer::Says(introspection),
        Err(status) => DriverAnswer::Failed(status),
    }
}

async fn orphans(client: &Client, namespace: Option<&str>) -> Result<Vec<EventSummary>, kube::Error> {
    let mut all = Vec::new();
    for why in [
        reason::VIRTUAL_MACHINE_ORPHANED,
        reason::VIRTUAL_MACHINE_DUPLICATED,
        reason::ORPHAN_SCAN_INCOMPLETE,
    ] {
        all.extend(events::of_reason(client, namespace, why).await?);
    }
    Ok(events::newest(all))
}

/// Every object of a kind that can be read, page by page.
async fn each<K>(client: &Client, namespace: Option<&str>, mut look: impl FnMut(K)) -> Result<(), kube::Error>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Parts
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let path = K::url_path(&(), namespace);
    let looked = pages::each(
        client,
        &path,
        ListParams::default(),
        |Bounded(DeserializeGuard(object)): Bounded<DeserializeGuard<K>>| {
            if let Ok(object) = object {
                look(object);
            }
            ControlFlow::Continue(())
        },
    );
    looked.await?;
    Ok(())
}
