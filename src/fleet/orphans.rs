//! Orphans: VMs without an InfraMachine. A scan finds them with lists, classifies them with live reads, and
//! reports them. If enabled, it deletes proven orphans.
//!
//! A scan is lists → live read → [`plan`] → report → delete. It usually ends after the lists, because the
//! caches have an owner for every VM. A stable fleet costs one list for each class, and no request to the API
//! server.

mod cluster_listing;
mod delete;
pub mod deletion_log;
mod live;
pub mod owner;
pub mod plan;
mod report;
mod rotation;
pub mod scope;
mod text_index;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube_fleet::Entry;

use self::cluster_listing::{ClusterListing, REQUESTER, lists};
pub use self::deletion_log::{DeletionLog, ObservedDeletion};
use self::owner::{CommonTexts, Live, LiveMachine, OwnerLookup, Scope, Siblings, owner_of};
use self::plan::{Clock, DeletionPolicy, Finding, classify};
use self::report::{ReportState, record_abandoned_list, report};
use self::rotation::{MAX_LISTS, Rotation};
use self::scope::{MachineClasses, Objects, RetainedClass, WatchedCluster, watched};
use crate::admission::AdmissionPolicies;
use crate::api::labels;
use crate::api::wall_clock;
use crate::apiserver::{Error, Events};
use crate::driver::listing;
use crate::driver::{ConfiguredDriver, ConfiguredDrivers};
use crate::reconcile::caches::Caches;
use crate::telemetry::metrics::{Metrics, OrphanReason};
use cmi_driver::{Capabilities, ListedMachine};

/// The inputs of a scan for orphans.
pub struct Context {
    /// The client for live reads and credentials.
    pub client: Client,
    /// The caches, which determine the lists to make.
    pub caches: Caches,
    /// The configured drivers.
    pub drivers: ConfiguredDrivers,
    /// The metrics that count orphans.
    pub metrics: Arc<Metrics>,
    /// The events that report orphans.
    pub events: Events,
    /// Whether identities are guarded.
    pub policies: Arc<AdmissionPolicies>,
    /// The deletions of machines that this process has observed.
    pub deletion_log: Arc<DeletionLog>,
    /// The only namespace that the provider watches; `None` for all.
    pub namespace: Option<String>,
    /// How to treat orphans.
    pub options: Options,
}

impl Context {
    /// The observed deletion of the InfraMachine with this identity, if it still counts as proof.
    fn observed_deletion(&self, identity: &str) -> Option<ObservedDeletion> {
        self.deletion_log.of(identity, self.policies.epoch())
    }
}

/// How to treat orphans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether proven orphans are deleted.
    pub delete: bool,
    /// The pause between two scans, and the minimum time between two observations of an orphan.
    pub interval: Duration,
    /// The minimum age of a VM that is deleted.
    pub min_age: Duration,
    /// The most deletions of a scan and driver.
    pub max_deletes: usize,
}

impl Default for Options {
    /// Reports every ten minutes, and deletes nothing.
    fn default() -> Self {
        Self {
            delete: false,
            interval: Duration::from_mins(10),
            min_age: Duration::from_hours(1),
            max_deletes: 10,
        }
    }
}

/// The state of the scans of a driver.
#[derive(Default)]
struct ScanState {
    reports: HashMap<Scope, ReportState>,
    rotation: Rotation,
    classes: MachineClasses,
}

/// Scans every driver for orphans once per interval, for ever. Must be called when this replica leads. It
/// begins without observations, and reports and deletes nothing before two of them.
///
/// Each driver has a separate task, which ends with this future.
pub async fn run(ctx: Context) {
    let ctx = Arc::new(ctx);
    let scan_driver = |driver: Arc<ConfiguredDriver>| {
        let ctx = Arc::clone(&ctx);
        async move { scan_periodically(&ctx, &driver).await }
    };
    ctx.drivers.run_for_each(scan_driver).await;
}

async fn scan_periodically(ctx: &Context, driver: &ConfiguredDriver) {
    let mut state = ScanState::default();
    loop {
        // A pause between scans instead of a fixed rate: it is the minimum time between two lists.
        tokio::time::sleep(ctx.options.interval).await;
        scan_driver(ctx, driver, &mut state).await;
        count(ctx, driver, &state);
    }
}

async fn scan_driver(ctx: &Context, driver: &ConfiguredDriver, state: &mut ScanState) {
    let Ok(Some(capabilities)) = listing::capabilities(driver, REQUESTER).await else {
        return;
    };
    let watched = {
        let (objects, retained) = (cached(&ctx.caches), ctx.deletion_log.classes());
        let known = &mut state.classes;
        watched_by(&objects, &ctx.drivers, driver, &capabilities, &retained, known).await
    };
    let scopes: HashSet<_> = watched.iter().map(|watched| &watched.scope).collect();
    state.reports.retain(|scope, _| scopes.contains(scope));
    let due = state.rotation.next(&watched, MAX_LISTS);
    let mut all = Vec::new();
    for watched in &watched {
        let scope = &watched.scope;
        if watched.is_paused {
            state.reports.entry(scope.clone()).or_default().clear();
            continue;
        }
        let is_due = |class| due.contains(&(scope.cluster.clone(), class));
        let listed = lists(&ctx.client, driver, watched, is_due).await;
        for why in &listed.failures {
            let cluster = scope.cluster.to_string();
            tracing::warn!(
                driver = driver.name(),
                cluster,
                why,
                "cannot list VMs: orphans among them are not detected"
            );
        }
        forget_unlistable_classes(ctx, driver, watched, &listed).await;
        all.push(listed);
    }
    // The cache may be behind. It can prove that a VM has an owner, but not that a VM has none.
    let live = if are_owned(&all, &ctx.caches) {
        None
    } else {
        match live::read(&ctx.client, ctx.namespace.as_deref()).await {
            Ok(live) => Some(live),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    driver = driver.name(),
                    error,
                    "cannot look up the owners of VMs: orphans are not detected"
                );
                return;
            }
        }
    };
    let policy = DeletionPolicy {
        delete: ctx.options.delete,
        gap: ctx.options.interval.max(capabilities.consistency_window),
        min_age: ctx.options.min_age,
    };
    let mut deletes = ctx.options.max_deletes;
    for listed in &all {
        let known = state.reports.entry(listed.scope.clone()).or_default();
        match &live {
            Some(live) => classify_and_report(ctx, driver, listed, live, known, (policy, &mut deletes)).await,
            None => known.all_owned(listed),
        }
    }
}

/// Forgets the classes of deleted machines that can no longer be listed, because their Secret is deleted or
/// the driver refuses their spec. Otherwise their lists would fail at every scan.
async fn forget_unlistable_classes(
    ctx: &Context,
    driver: &ConfiguredDriver,
    watched: &WatchedCluster,
    listed: &ClusterListing,
) {
    for (class, why) in &listed.impossible {
        let retained = RetainedClass {
            driver: driver.name().to_owned(),
            cluster: watched.scope.cluster.clone(),
            class: class.clone(),
        };
        if watched.retained.contains(&class.id()) && ctx.deletion_log.forget_class(&retained) {
            record_abandoned_list(ctx, driver, &watched.scope, class, why).await;
        }
    }
}

/// Classifies the VMs of a Cluster, reports the new findings, and deletes proven orphans.
async fn classify_and_report(
    ctx: &Context,
    driver: &ConfiguredDriver,
    listed: &ClusterListing,
    live: &Live,
    known: &mut ReportState,
    (policy, deletes): (DeletionPolicy, &mut usize),
) {
    let clock = Clock {
        requested_at: listed.requested_at,
        now: wall_clock::now(),
    };
    let is_gone = known.is_gone(listed);
    let observed_deletion = |id: &str| ctx.observed_deletion(id).is_some();
    let findings = classify(
        &listed.scope,
        &listed.vms,
        is_gone,
        live,
        observed_deletion,
        &mut known.observations,
        (policy, clock),
    );
    known.record_lists(listed);
    let classified: Vec<_> = listed.vms.iter().zip(&findings).collect();
    report(ctx, driver, &listed.scope, known, &classified).await;
    for (vm, finding) in classified {
        let observation = known.observations.get(vm.provider_id.as_str()).copied();
        if let (Finding::Orphan(keep_reasons), Some(observation)) = (finding, observation)
            && keep_reasons.is_empty()
            && *deletes > 0
        {
            *deletes -= 1;
            delete::delete_orphan(ctx, driver, listed, vm, observation, policy).await;
        }
    }
}

fn count(ctx: &Context, driver: &ConfiguredDriver, state: &ScanState) {
    let mut counts: BTreeMap<(String, OrphanReason), u64> = BTreeMap::new();
    for (scope, known) in &state.reports {
        for (reason, count) in known.counts() {
            let namespace = scope.cluster.namespace().to_owned();
            *counts.entry((namespace, reason)).or_default() += count;
        }
    }
    ctx.metrics.orphans(driver.name(), counts);
}

async fn watched_by(
    objects: &Objects,
    drivers: &ConfiguredDrivers,
    driver: &ConfiguredDriver,
    capabilities: &Capabilities,
    retained: &[RetainedClass],
    known: &mut MachineClasses,
) -> Vec<WatchedCluster> {
    let resolve = |named: Option<&str>, namespace: &str| {
        let resolved = drivers.resolve(named, namespace).ok()?;
        Some(resolved.name().to_owned())
    };
    let tag_path = &capabilities.tag_path;
    let classes = known
        .update(&objects.infra_machines, driver.name(), tag_path)
        .await;
    watched(objects, driver.name(), classes, resolve, tag_path, retained)
}

fn cached(caches: &Caches) -> Objects {
    Objects {
        clusters: caches.clusters.state(),
        infra_clusters: caches.infra_clusters.state(),
        infra_machines: caches.infra_machines.select(|_| true),
        templates: caches.infra_machine_templates.state(),
    }
}

/// Whether the caches have an owner for every VM. Only machines that may own a VM with an unrecorded id are
/// unpacked. They match by UID, or by name, which an adopted VM need not share. The owner of any other VM is
/// found only by the live read.
fn are_owned(all: &[ClusterListing], caches: &Caches) -> bool {
    let machines = &caches.infra_machines;
    let recorded: HashSet<u64> = machines.scan(|all| all.filter_map(Entry::external_id).collect());
    let is_recorded = |vm: &&ListedMachine| recorded.contains(&machines.number(vm.provider_id.as_str()));
    let others = all.iter().flat_map(|listed| &listed.vms);
    let others: Vec<_> = others.filter(|vm| !is_recorded(vm)).collect();
    if others.is_empty() {
        return true;
    }
    let identities = others.iter().filter_map(|vm| vm.machine_id.as_deref());
    let uids: HashSet<u64> = identities.map(|id| machines.number(id)).collect();
    let names: HashSet<&str> = others.iter().map(|vm| vm.machine_name.as_str()).collect();
    let mut common = CommonTexts::default();
    let candidates =
        machines.select(|entry| uids.contains(&entry.uid()) || names.contains(entry.key().name()));
    let candidates = candidates.iter().filter_map(Entry::object);
    let known = Live::new(
        candidates
            .map(|object| LiveMachine::of(&object, &mut common))
            .collect(),
        &caches.infra_clusters.state(),
        &caches.clusters.state(),
        false,
    );
    all.iter().all(|listed| {
        let mut others = listed.vms.iter().filter(|vm| !is_recorded(vm)).peekable();
        if others.peek().is_none() {
            return true;
        }
        let siblings = Siblings::new(&listed.vms);
        others.all(|vm| {
            let owner = owner_of(&listed.scope, vm, &siblings, &known);
            matches!(owner, OwnerLookup::Owned(_))
        })
    })
}

/// A VM as found by one scan.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its Cluster.
    pub scope: Scope,
    /// The VM as the driver lists it.
    pub vm: ListedMachine,
    /// Its classification.
    pub finding: Finding,
}

/// The result of one scan.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// The VMs of all Clusters in this management cluster.
    pub found: Vec<Found>,
    /// Failed parts of the scan, with their causes.
    pub failures: Vec<String>,
}

/// Scans all drivers once, without leadership. Makes only reads.
///
/// # Errors
/// The API server refused or could not be reached.
pub async fn scan(
    client: &Client,
    drivers: &ConfiguredDrivers,
    namespace: Option<&str>,
    watch_filter: Option<&str>,
) -> Result<HashMap<String, Scan>, Error> {
    let selector = watch_filter.map(|value| format!("{}={value}", labels::WATCH_FILTER));
    let objects = live::objects(client, namespace, selector.as_deref()).await?;
    let mut scans = HashMap::new();
    let mut all = Vec::new();
    for driver in drivers.iter() {
        let scan: &mut Scan = scans.entry(driver.name().to_owned()).or_default();
        match listing::capabilities(driver, REQUESTER).await {
            Ok(Some(capabilities)) => {
                let known = &mut MachineClasses::default();
                for watched in watched_by(&objects, drivers, driver, &capabilities, &[], known).await {
                    let mut listed = lists(client, driver, &watched, |_| true).await;
                    scan.failures.append(&mut listed.failures);
                    all.push((driver.name(), listed));
                }
            }
            Ok(None) => scan
                .failures
                .push("the driver does not implement ListMachines".to_owned()),
            Err(status) => scan.failures.push(status.message().to_owned()),
        }
    }
    drop(objects);
    let live = live::read(client, namespace).await?;
    for (driver, listed) in all {
        let siblings = Siblings::new(&listed.vms);
        let found = listed.vms.iter().map(|vm| Found {
            scope: listed.scope.clone(),
            vm: vm.clone(),
            finding: plan::classify_once(&listed.scope, vm, &siblings, &live),
        });
        scans.entry(driver.to_owned()).or_default().found.extend(found);
    }
    Ok(scans)
}

#[cfg(test)]
mod tests;
