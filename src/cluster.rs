//! InfraCluster: cluster id, failure domains, provisioned.
//!
//! Nothing is allocated for a Cluster, so there is no finalizer and nothing to do when it is deleted.

mod plan;
pub mod template;

use std::sync::Arc;
use std::time::Duration;

use kube::api::{Api, Patch};
use kube::{Client, Resource as _};
use serde_json::{Value, json};

use self::plan::{
    Connectivity, Observed, Plan, Transition, Zones, new_failure, plan, report_connectivity, status,
};
use crate::api::cluster_api::Cluster;
use crate::api::conditions::reason;
use crate::api::retry::Call;
use crate::api::v1alpha1::InfraCluster;
use crate::api::wall_clock;
use crate::api::{DeserializeGuard, ObjectMetaExt as _, annotations, labels};
use crate::apiserver::{Error, Events, NewEvent, patch_params, publish_status};
use crate::driver::{ConfiguredDrivers, PERMIT_WAIT, ResolveError, StableReachability};
use crate::reconcile::caches::{Caches, ClusterIds};
use crate::reconcile::driver_query::{Query, QueryResult};
use crate::reconcile::{Action, DRIVER_REFRESH_INTERVAL, Enqueue, Reconciler, Requeue};
use cmi_driver::{Capabilities, Code, ListZonesRequest, Operation, ProviderSpec, tags};

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
    let cluster_id = owner.as_deref().and_then(|owner| ctx.cluster_ids.of(owner));
    let plan = plan(
        infra,
        &Observed {
            owner: owner.as_deref(),
            cluster_id,
        },
    );
    let zones = match &plan {
        Plan::NoOp => return Ok(Requeue::OnChange),
        Plan::Pause(_) => Zones::NotQueried,
        Plan::Provision { cluster_id, .. } => match zones(infra, ctx, cluster_id).await? {
            Some(zones) => zones,
            None => return Ok(Requeue::After(PERMIT_WAIT)),
        },
    };
    let connectivity = match (&plan, owner.as_deref()) {
        (Plan::Provision { .. }, Some(owner)) => Some(connectivity(infra, owner, ctx)),
        (Plan::Provision { .. } | Plan::Pause(_) | Plan::NoOp, _) => None,
    };
    publish(infra, ctx, &plan, &zones, connectivity.as_ref()).await?;
    Ok(match zones {
        Zones::Known(_) | Zones::None => Requeue::After(DRIVER_REFRESH_INTERVAL),
        Zones::Failed(status) => Requeue::after_failure(Call::ListZones, &status),
        // Secrets are not watched.
        Zones::NoSecrets(_) => Requeue::BackOff(Duration::ZERO),
        Zones::NotQueried | Zones::NotConfigured(_) => Requeue::OnChange,
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

/// Writes the cluster id first, then the status. Skips each where it is unchanged.
async fn publish(
    infra: &InfraCluster,
    ctx: &Context,
    plan: &Plan,
    zones: &Zones,
    connectivity: Option<&Connectivity>,
) -> Result<(), Error> {
    let namespace = infra.metadata.namespace();
    let name = infra.metadata.name();
    let api: Api<InfraCluster> = Api::namespaced(ctx.client.clone(), namespace);
    let mut metadata = infra.metadata.clone();
    let carried = metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(annotations::CLUSTER_ID));
    if let Plan::Provision { cluster_id, .. } = plan
        && carried != Some(cluster_id)
    {
        let body = json!({"metadata": {
            "resourceVersion": metadata.resource_version,
            "annotations": {annotations::CLUSTER_ID: cluster_id},
        }});
        let patched = api.patch(name, &patch_params(), &Patch::Merge(&body)).await;
        metadata = patched
            .map_err(|error| Error::api("writing the cluster id", error))?
            .metadata;
    }
    let now = wall_clock::now();
    let after = status(infra, plan, zones, now);
    let failure =
        new_failure(infra, &after, zones).map(|(reason, message)| (reason.to_owned(), message.to_owned()));
    let (after, transition) = match connectivity {
        Some(connectivity) => report_connectivity(infra, after, zones, connectivity, now),
        None => (after, None),
    };
    publish_status(&api, &metadata, infra.status.as_ref(), &after).await?;
    if let Some((reason, text)) = failure {
        tracing::warn!(
            infra_cluster = format!("{namespace}/{name}"),
            code = reason,
            why = text,
            "cannot list failure domains"
        );
        let event = NewEvent {
            warning: true,
            reason,
            action: Operation::ListZones.name(),
            note: text,
        };
        ctx.events.record(infra, event).await;
    }
    if let Some(transition) = transition {
        ctx.events.record(infra, event(transition)).await;
    }
    Ok(())
}

/// Returns the event for the start or the end of an outage.
fn event(transition: Transition) -> NewEvent {
    let (warning, reason, text) = match transition {
        Transition::Lost(message) => (true, Code::Unavailable.name(), message),
        Transition::Back => (
            false,
            reason::REACHABLE,
            "the driver is reachable again".to_owned(),
        ),
    };
    NewEvent {
        warning,
        reason: reason.to_owned(),
        action: Operation::Probe.name(),
        note: text,
    }
}
