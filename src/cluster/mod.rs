//! InfraCluster: cluster id, failure domains, provisioned.
//!
//! Layer 2. Nothing is allocated for a Cluster, so there is no finalizer and nothing to do when it goes.

mod plan;

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::api::{Api, Patch};
use kube::core::DeserializeGuard;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Client, Resource};
use serde_json::{Value, json};

use self::plan::{Observed, Plan, Zones, plan, status};
use crate::api::cluster_api::{self, Cluster};
use crate::api::labels;
use crate::api::v1alpha1::InfraCluster;
use crate::apiserver::{Error, merge_difference, patch_params, secrets};
use crate::caches::{Caches, ClusterIds};
use crate::driver::{Capabilities, MachineClass, Operation, ProviderSpec, tags};
use crate::metrics::{Kind, Metrics, Outcome as Measured};
use crate::provider::{Providers, ResolveError, Share, Turn};

/// How often failure domains are read anew.
const REFRESH: Duration = Duration::from_mins(10);
/// How soon after a driver could not be asked.
const RETRY: Duration = Duration::from_secs(30);

/// Who waits for a turn of the driver is called when there is one, and looks again after this time should the call get
/// lost.
const TURN_WAIT: Duration = Duration::from_mins(1);

/// What every reconcile works with.
pub struct Context {
    /// Writes.
    pub client: Client,
    /// What is watched.
    pub caches: Caches,
    /// Cluster ids, once found.
    pub cluster_ids: Arc<ClusterIds>,
    /// The configured drivers.
    pub providers: Providers,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Has a cluster reconciled.
    pub wake: Arc<dyn Fn(ObjectRef<DeserializeGuard<InfraCluster>>) + Send + Sync>,
}

/// One reconcile of one InfraCluster.
pub async fn reconcile(
    guarded: Arc<DeserializeGuard<InfraCluster>>,
    ctx: Arc<Context>,
) -> Result<Action, Error> {
    let started = Instant::now();
    let result = match &guarded.0 {
        Ok(cluster) => reconcile_cluster(cluster, &ctx).await,
        Err(invalid) => {
            tracing::error!(
                name = invalid.metadata.name,
                error = invalid.error,
                "an InfraCluster can't be read"
            );
            Ok(Action::await_change())
        }
    };
    let measured = match &result {
        Ok(_) => Measured::Success,
        Err(Error::Conflict { .. }) => Measured::Conflict,
        Err(_) => Measured::Error,
    };
    ctx.metrics
        .reconciled(Kind::InfraCluster, measured, started.elapsed());
    result
}

async fn reconcile_cluster(infra: &InfraCluster, ctx: &Context) -> Result<Action, Error> {
    let owner = owner(infra, &ctx.caches);
    let cluster_id = owner.as_deref().and_then(|owner| ctx.cluster_ids.of(owner));
    let plan = plan(
        infra,
        &Observed {
            owner: owner.as_deref(),
            cluster_id,
        },
    );
    let zones = match &plan {
        Plan::Leave => return Ok(Action::await_change()),
        Plan::Pause(_) => Zones::Unasked,
        Plan::Provision { cluster_id } => match zones(infra, ctx, cluster_id).await? {
            Some(zones) => zones,
            None => return Ok(Action::requeue(TURN_WAIT)),
        },
    };
    publish(infra, ctx, &plan, &zones).await?;
    Ok(match zones {
        Zones::Known(_) => Action::requeue(REFRESH),
        Zones::Unreachable(_) | Zones::NotConfigured(_) | Zones::NoSecrets(_) => Action::requeue(RETRY),
        Zones::Unasked | Zones::None => Action::await_change(),
    })
}

fn owner(infra: &InfraCluster, caches: &Caches) -> Option<Arc<Cluster>> {
    let reference = infra.metadata.owner_references.iter().flatten().find(|owner| {
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        owner.kind == "Cluster" && group == cluster_api::GROUP
    })?;
    let namespace = infra.metadata.namespace.as_deref()?;
    let cluster = caches
        .clusters
        .get(&ObjectRef::new(&reference.name).within(namespace))?;
    (cluster.metadata.uid.as_deref() == Some(reference.uid.as_str())).then_some(cluster)
}

/// Asks the driver for its failure domains, if it has any; `None` when it is busy.
async fn zones(infra: &InfraCluster, ctx: &Context, cluster_id: &str) -> Result<Option<Zones>, Error> {
    let namespace = infra.metadata.namespace.as_deref().unwrap_or_default();
    let provider = match ctx.providers.resolve(infra.spec.provider.as_deref(), namespace) {
        Ok(provider) => provider,
        // Which driver is meant is not said, and need not be: its machines will say.
        Err(ResolveError::Ambiguous { .. }) => return Ok(Some(Zones::None)),
        Err(error) => return Ok(Some(Zones::NotConfigured(error.to_string()))),
    };
    let (wake, name) = (
        Arc::clone(&ctx.wake),
        infra.metadata.name.as_deref().unwrap_or_default(),
    );
    let reference = ObjectRef::new(name).within(namespace);
    let who = infra.metadata.uid.as_deref().unwrap_or_default();
    match provider.try_turn(Share::Upkeep, who, Box::new(move || wake(reference))) {
        Some(turn) => ask(infra, ctx, &turn, cluster_id).await.map(Some),
        None => Ok(None),
    }
}

async fn ask(infra: &InfraCluster, ctx: &Context, turn: &Turn<'_>, cluster_id: &str) -> Result<Zones, Error> {
    let capabilities = match turn.contact().await {
        Ok(capabilities) => capabilities,
        Err(status) => return Ok(Zones::Unreachable(status)),
    };
    if !capabilities.zones || !capabilities.offers(Operation::ListZones) {
        return Ok(Zones::None);
    }
    let namespace = infra.metadata.namespace.as_deref().unwrap_or_default();
    let reference = infra
        .spec
        .secret_ref
        .as_ref()
        .map(|reference| reference.name.as_str());
    let read = secrets::credentials(&ctx.client, namespace, reference, secrets::SECRET_REF).await?;
    let secrets = match read {
        Ok(secrets) => secrets,
        Err(cause) => return Ok(Zones::NoSecrets(cause.to_string())),
    };
    let class = MachineClass {
        provider_spec: cluster_spec(&capabilities, cluster_id),
        secrets,
    };
    Ok(match turn.driver().zones(class).await {
        Ok(zones) => Zones::Known(zones),
        Err(status) => Zones::Unreachable(status),
    })
}

/// All that is known of a class before there is a machine: its cluster.
fn cluster_spec(capabilities: &Capabilities, cluster_id: &str) -> ProviderSpec {
    let mut spec = ProviderSpec::default();
    if let Ok(tag_map) = spec.object_at(&capabilities.tag_path) {
        tag_map.insert(tags::CLUSTER.to_owned(), Value::from(cluster_id));
    }
    spec
}

/// Writes the cluster id first, then the status; neither when it stands there already.
async fn publish(infra: &InfraCluster, ctx: &Context, plan: &Plan, zones: &Zones) -> Result<(), Error> {
    let namespace = infra.metadata.namespace.as_deref().unwrap_or_default();
    let name = infra.metadata.name.as_deref().unwrap_or_default();
    let api: Api<InfraCluster> = Api::namespaced(ctx.client.clone(), namespace);
    let mut version = infra.metadata.resource_version.clone();
    if let Plan::Provision { cluster_id } = plan
        && infra
            .meta()
            .annotations
            .as_ref()
            .and_then(|all| all.get(labels::CLUSTER_ID))
            != Some(cluster_id)
    {
        let body = json!({"metadata": {"resourceVersion": version, "annotations": {labels::CLUSTER_ID: cluster_id}}});
        let action = "writing the cluster id";
        let patched = api.patch(name, &patch_params(), &Patch::Merge(&body)).await;
        version = patched
            .map_err(|error| Error::api(action, error))?
            .metadata
            .resource_version;
    }
    let action = "writing status";
    let encode = |status| serde_json::to_value(status).map_err(|source| Error::Encode { action, source });
    let before = encode(infra.status.clone().unwrap_or_default())?;
    let difference = merge_difference(&before, &encode(status(infra, plan, zones, Timestamp::now()))?);
    if difference != json!({}) {
        let body = json!({"metadata": {"resourceVersion": version}, "status": difference});
        let patched = api
            .patch_status(name, &patch_params(), &Patch::Merge(&body))
            .await;
        patched.map_err(|error| Error::api(action, error))?;
    }
    Ok(())
}

/// What happens after a reconcile that could not be finished.
#[allow(clippy::needless_pass_by_value)] // the controller's signature
pub fn error_policy(guarded: Arc<DeserializeGuard<InfraCluster>>, error: &Error, _: Arc<Context>) -> Action {
    let name = guarded.meta().name.as_deref().unwrap_or_default();
    tracing::warn!(
        name,
        error = error as &dyn std::error::Error,
        "reconciling an InfraCluster failed"
    );
    Action::requeue(error.wait(1))
}
