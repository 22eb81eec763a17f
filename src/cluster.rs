//! InfraCluster: cluster id, failure domains, provisioned.
//!
//! Nothing is allocated for a Cluster. The finalizer only keeps the InfraCluster while its Cluster needs it.

mod plan;
mod publish;
pub mod template;

use std::sync::Arc;
use std::time::Duration;

use kube::{Client, Resource as _};
use serde_json::Value;

use self::plan::{Claim, Connectivity, Observed, Plan, Zones, plan};
use self::publish::{publish, release};
use crate::api::cluster_api::Cluster;
use crate::api::retry::Call;
use crate::api::v1alpha1::InfraCluster;
use crate::api::wall_clock;
use crate::api::{CLUSTER_FINALIZER, DeserializeGuard, ObjectMetaExt as _, labels};
use crate::apiserver::{Error, Events};
use crate::driver::{ConfiguredDrivers, PERMIT_WAIT, ResolveError, StableReachability};
use crate::reconcile::caches::{Caches, ClusterIds};
use crate::reconcile::driver_query::{Query, QueryResult};
use crate::reconcile::{Action, DRIVER_REFRESH_INTERVAL, Enqueue, Reconciler, Requeue};
use cmi_driver::{Capabilities, ListZonesRequest, ProviderSpec, tags};

/// How often an InfraCluster that waits for other objects looks at them again.
const WAIT_INTERVAL: Duration = Duration::from_secs(20);

/// The dependencies of a reconcile.
pub struct Context {
    /// The client for writes.
    pub client: Client,
    /// The caches of all watched kinds.
    pub caches: Caches,
    /// The ids of Clusters at drivers.
    pub cluster_ids: Arc<ClusterIds>,
    /// The configured drivers.
    pub drivers: ConfiguredDrivers,
    /// The publisher of events.
    pub events: Events,
    /// Counts failures and metrics.
    pub reconciler: Reconciler,
    /// Enqueues an InfraCluster.
    pub enqueue: Enqueue,
    /// The value of the label `cluster.x-k8s.io/watch-filter` on the InfraClusters to reconcile; `None` for
    /// all. The cache also has the others: the Cluster of a reconciled machine may use them.
    pub watch_filter: Option<String>,
}

impl Context {
    fn is_for_another_provider(&self, infra: &DeserializeGuard<InfraCluster>) -> bool {
        let value = labels::watch_filter(infra.meta());
        self.watch_filter.as_deref().is_some_and(|own| value != Some(own))
    }
}

/// Runs one reconcile of one InfraCluster.
///
/// # Errors
/// The API server refused or could not be reached.
pub async fn reconcile(
    object: Arc<DeserializeGuard<InfraCluster>>,
    ctx: Arc<Context>,
) -> Result<Action, Error> {
    if ctx.is_for_another_provider(&object) {
        // The object may have belonged to this provider before, and may wait for a driver.
        ctx.drivers.forget(object.meta().uid());
        return Ok(Action::await_change());
    }
    let run = ctx
        .reconciler
        .run(&object, |infra| reconcile_cluster(infra, &ctx));
    run.await
}

async fn reconcile_cluster(infra: &InfraCluster, ctx: &Context) -> Result<Requeue, Error> {
    let owner = ctx.caches.owning_clusters(&infra.metadata).next();
    let plan = plan(infra, &observe(infra, owner.as_deref(), ctx));
    match &plan {
        Plan::NoOp => Ok(Requeue::OnChange),
        Plan::AwaitOwner(rest) => Ok(Requeue::After(*rest)),
        Plan::Release => release(infra, ctx).await,
        Plan::Pause(_) => {
            publish(infra, ctx, &plan, &Zones::NotQueried, None).await?;
            Ok(Requeue::OnChange)
        }
        Plan::ReportMissingOwner(_) | Plan::Hold { .. } => {
            publish(infra, ctx, &plan, &Zones::NotQueried, None).await?;
            Ok(Requeue::After(WAIT_INTERVAL))
        }
        Plan::Provision { cluster_id, .. } => {
            let Some(zones) = zones(infra, ctx, cluster_id).await? else {
                return Ok(Requeue::After(PERMIT_WAIT));
            };
            let connectivity = owner.map(|owner| connectivity(infra, &owner, ctx));
            publish(infra, ctx, &plan, &zones, connectivity.as_ref()).await?;
            Ok(requeue(&zones))
        }
    }
}

/// Returns when to ask the driver again.
fn requeue(zones: &Zones) -> Requeue {
    match zones {
        Zones::Known(_) | Zones::None => Requeue::After(DRIVER_REFRESH_INTERVAL),
        Zones::Failed(status) => Requeue::after_failure(Call::ListZones, status),
        // Secrets are not watched.
        Zones::NoSecrets(_) => Requeue::BackOff(Duration::ZERO),
        Zones::NotQueried | Zones::NotConfigured(_) => Requeue::OnChange,
    }
}

/// Reads the objects that the plan depends on, from the caches.
fn observe<'a>(infra: &InfraCluster, owner: Option<&'a Cluster>, ctx: &Context) -> Observed<'a> {
    let may_be_held =
        infra.metadata.deletion_timestamp.is_some() && infra.metadata.has_finalizer(CLUSTER_FINALIZER);
    Observed {
        owner,
        cluster_id: owner.and_then(|owner| ctx.cluster_ids.of(owner)),
        claim: owner.map_or_else(|| claim(infra, &ctx.caches), |_| Claim::None),
        machines: if may_be_held {
            ctx.caches.count_machines_of(&infra.metadata)
        } else {
            0
        },
        now: wall_clock::now(),
    }
}

/// Returns how the Clusters beside an InfraCluster refer to it.
fn claim(infra: &InfraCluster, caches: &Caches) -> Claim {
    let namespace = infra.metadata.namespace();
    let clusters = caches.clusters_with_infra(namespace);
    if let Some(cluster) = clusters.iter().find(|cluster| infra.is_of(cluster)) {
        return Claim::By(cluster.metadata.name().to_owned());
    }
    let mistaken = clusters
        .iter()
        .find(|cluster| caches.infra_cluster_of(cluster).is_none());
    mistaken.map_or(Claim::None, |cluster| Claim::Mistaken {
        cluster: cluster.metadata.name().to_owned(),
        name: InfraCluster::name_in(cluster).unwrap_or_default().to_owned(),
    })
}

/// Whether the drivers are reachable that the InfraCluster names or that made the Cluster's machines.
fn connectivity(infra: &InfraCluster, owner: &Cluster, ctx: &Context) -> Connectivity {
    let namespace = infra.metadata.namespace();
    let mut names = ctx.caches.drivers_of(owner);
    if let Ok(driver) = ctx.drivers.resolve(infra.spec.driver.as_deref(), namespace) {
        names.insert(driver.name().to_owned());
    }
    let mut lost = Vec::new();
    let mut is_settled = !names.is_empty();
    for driver in names.iter().filter_map(|name| ctx.drivers.named(name)) {
        match &*driver.stable_reachability().borrow() {
            StableReachability::Reachable => {}
            StableReachability::Unsettled => is_settled = false,
            StableReachability::Unreachable(why) => {
                lost.push(format!("cannot reach driver `{}`: {why}", driver.name()));
            }
        }
    }
    match (lost.is_empty(), is_settled) {
        (false, _) => Connectivity::Lost(lost.join("; ")),
        (true, true) => Connectivity::Kept,
        (true, false) => Connectivity::Unsettled,
    }
}

/// Asks the driver for its failure domains, if it has any; `None` when it is busy.
async fn zones(infra: &InfraCluster, ctx: &Context, cluster_id: &str) -> Result<Option<Zones>, Error> {
    let query = Query {
        client: &ctx.client,
        drivers: &ctx.drivers,
        object: &infra.metadata,
        driver: infra.spec.driver.as_deref(),
        secret: infra.spec.secret_ref.as_ref().map(|secret| secret.name.as_str()),
        call: Call::ListZones,
        enqueue: &ctx.enqueue,
    };
    let spec = |capabilities: &Capabilities| {
        let has_zones = capabilities.zones.then_some(());
        has_zones
            .map(|()| cluster_spec(capabilities, cluster_id))
            .ok_or(())
    };
    let answer = query.run(spec, |class| ListZonesRequest { class }).await?;
    Ok(answer.map(|answer| match answer {
        QueryResult::Known(zones) => Zones::Known(zones),
        QueryResult::Skipped(()) | QueryResult::NotSupported => Zones::None,
        // The InfraCluster names no driver, and need not: its machines will.
        QueryResult::NotResolved(ResolveError::Ambiguous { .. }) => Zones::NotQueried,
        QueryResult::NotResolved(error) => Zones::NotConfigured(error.to_string()),
        QueryResult::NoSecrets(why) => Zones::NoSecrets(why),
        QueryResult::Failed(status) => Zones::Failed(status),
    }))
}

/// Returns the spec of a class before there is a machine: only its cluster is known.
fn cluster_spec(capabilities: &Capabilities, cluster_id: &str) -> ProviderSpec {
    let mut spec = ProviderSpec::default();
    if let Ok(tag_map) = spec.object_at(&capabilities.tag_path) {
        tag_map.insert(tags::CLUSTER.to_owned(), Value::from(cluster_id));
    }
    spec
}
