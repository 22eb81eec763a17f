//! The requests to the workload cluster, and the only driver call.

use std::time::Duration;

use jiff::Timestamp;
use kube::api::Api;
use serde_json::{Value, json};

use super::Context;
use super::end::End;
use super::next_eviction::{PreviousEviction, Waiting};
use super::plan::{DrainTarget, Observed};
use super::record::Eviction;
use super::workload::{DrainObservation, DryRun, EvictionResult, Next, evict, observe};
use super::{publish, status, volumes};
use crate::api::cluster_api::Cluster;
use crate::api::retry::{self, Call, Disposition, LONG_WAIT};
use crate::api::v1alpha1::InfraMachine;
use crate::api::wall_clock;
use crate::api::wall_clock::{elapsed, until};
use crate::api::{ObjectMetaExt as _, annotations};
use crate::apiserver::Error;
use crate::driver::PERMIT_WAIT;
use crate::driver::resolution::driver_of;
use crate::nodes::workload_cluster::{self, ConnectionOutcome, Unreachable};
use crate::reconcile::{Requeue, upkeep_permit};
use cmi_driver::{GetVolumeIdsRequest, Operation, Status};

/// The poll interval of a Node while the drain waits for a pod. It grows with the wait.
const MIN_POLL_INTERVAL: Duration = Duration::from_secs(1);
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(10);
/// When to retry the eviction of a pod that a budget protects.
const BLOCKED: Duration = Duration::from_secs(5);
/// When to ask the driver again for the ids of volumes, unless it asks for a longer wait.
const DRIVER_FAILED: Duration = Duration::from_secs(10);
/// The most ids for one PersistentVolume.
const MAX_IDS: usize = 8;

/// Makes Cluster API wait for the provider before it drains the Node of a Machine.
pub async fn set_hook(observed: &Observed, ctx: &Context) -> Result<Requeue, Error> {
    if publish::write_hook(observed, ctx, &json!(annotations::VOLUME_DRAIN_HOOK_OWNER)).await? {
        return Ok(Requeue::OnChange);
    }
    let (_, name, _) = observed.machine_names();
    publish::publish(observed, ctx, Some(&status::hook_not_permitted(name, true))).await?;
    Ok(Requeue::After(LONG_WAIT))
}

/// Removes the hook, so that Cluster API continues. Publishes the end first, because the object may be
/// deleted soon.
pub async fn remove_hook(observed: &Observed, ctx: &Context, end: &End) -> Result<Requeue, Error> {
    let (_, name, uid) = observed.machine_names();
    // Not even a refused status may block the deletion.
    if let Err(error) = publish::publish(observed, ctx, status::ended(end).as_ref()).await {
        tracing::warn!(machine = name, %error, "cannot publish the end of the drain");
    }
    if publish::write_hook(observed, ctx, &Value::Null).await? {
        ctx.outages.end(uid);
        tracing::info!(machine = name, ?end, "drain hook removed");
        return Ok(Requeue::OnChange);
    }
    let report = status::hook_not_permitted(name, false);
    tracing::error!(
        machine = name,
        why = report.message,
        "cannot remove the drain hook"
    );
    publish::publish(observed, ctx, Some(&report)).await?;
    Ok(Requeue::After(LONG_WAIT))
}

/// Takes the next step of a drain, if it is due.
pub async fn drain(
    observed: &Observed,
    ctx: &Context,
    target: &DrainTarget,
    cluster: &Cluster,
) -> Result<Requeue, Error> {
    let Some(infra) = observed.infra() else {
        return Ok(Requeue::OnChange);
    };
    let (_, _, uid) = observed.machine_names();
    let now = wall_clock::now();
    let observe = async |connection: &_| observe(connection, target, &ctx.leadership, now).await;
    let observation = match ctx.workload_clusters.with_connection(cluster, observe).await? {
        ConnectionOutcome::Busy => return Ok(busy_requeue(uid)),
        ConnectionOutcome::Failed { cause, retry_after } => {
            return publish_unreachable(infra, ctx, uid, target, &cause, retry_after).await;
        }
        ConnectionOutcome::Done(observation) => observation,
    };
    ctx.outages.end(uid);
    match observation {
        DrainObservation::Raced => Ok(Requeue::BackOff(Duration::ZERO)),
        DrainObservation::NoNode => {
            remove_hook(observed, ctx, &End::Skipped("the Node does not exist")).await
        }
        DrainObservation::SilentNode => {
            remove_hook(observed, ctx, &End::Skipped("the Node is unreachable")).await
        }
        DrainObservation::ForeignNode(found) => remove_hook(observed, ctx, &End::ForeignNode(found)).await,
        DrainObservation::Done(before) => {
            ensure_current(infra, ctx).await?;
            record_timeout(infra, ctx, before).await;
            remove_hook(observed, ctx, &End::Drained).await
        }
        DrainObservation::Waiting(waiting) => {
            publish::publish(observed, ctx, Some(&status::waiting(&waiting))).await?;
            Ok(Requeue::After(poll_interval(target, &waiting, now)))
        }
        DrainObservation::Blocked { pod, why, left } => {
            publish::publish(observed, ctx, Some(&status::blocked(&pod, &why, left))).await?;
            Ok(Requeue::After(until_deadline(target, BLOCKED)))
        }
        DrainObservation::Next(next) => evict_next(observed, infra, ctx, (target, cluster), next).await,
    }
}

async fn evict_next(
    observed: &Observed,
    infra: &InfraMachine,
    ctx: &Context,
    (target, cluster): (&DrainTarget, &Cluster),
    next: Next,
) -> Result<Requeue, Error> {
    let (_, _, uid) = observed.machine_names();
    let ids = match volume_ids(observed, infra, ctx, &next.specs).await {
        Ids::Known(ids) => ids,
        Ids::Busy => return Ok(Requeue::After(until_deadline(target, PERMIT_WAIT))),
        Ids::Failed(failure) => {
            let message = format!("{}: {}", Operation::GetVolumeIds, failure.message());
            let report = status::driver_failed(failure.code().name(), &message);
            publish::publish(observed, ctx, Some(&report)).await?;
            let asked = retry::requested_delay(&failure).unwrap_or_default();
            return Ok(Requeue::After(until_deadline(target, asked.max(DRIVER_FAILED))));
        }
    };
    let Next { pod, before, .. } = next;
    let attached = volumes::attached(&next.attached, &next.specs, &ids);
    let name = pod.full_name();
    let eviction = Eviction::new(&name, &pod.uid, wall_clock::now(), pod.grace_seconds, &attached);
    let infra = publish::record(infra, ctx, &eviction).await?;
    record_timeout(&infra, ctx, before).await;
    if ctx.leadership.check().is_err() {
        return Ok(Requeue::BackOff(Duration::ZERO));
    }
    let evict = async |connection: &_| evict(connection, &pod, DryRun::No).await;
    let evicted = match ctx.workload_clusters.with_connection(cluster, evict).await? {
        ConnectionOutcome::Busy => return Ok(busy_requeue(uid)),
        ConnectionOutcome::Failed { cause, retry_after } => {
            return publish_unreachable(&infra, ctx, uid, target, &cause, retry_after).await;
        }
        ConnectionOutcome::Done(evicted) => evicted,
    };
    match evicted {
        EvictionResult::Accepted => {
            tracing::info!(pod = name, node = target.node, volumes = ?attached, "evicted");
            publish::publish_on(&infra, ctx, Some(&status::evicting(&name, next.left))).await?;
            Ok(Requeue::After(MIN_POLL_INTERVAL))
        }
        EvictionResult::Refused(why) => {
            let infra = publish::record(&infra, ctx, &eviction.refused()).await?;
            publish::publish_on(&infra, ctx, Some(&status::blocked(&name, &why, next.left))).await?;
            Ok(Requeue::After(until_deadline(target, BLOCKED)))
        }
    }
}

/// Ensures that the InfraMachine is as planned: a stale cache lacks the last eviction.
async fn ensure_current(infra: &InfraMachine, ctx: &Context) -> Result<(), Error> {
    let action = "reading the last evicted pod";
    let namespace = infra.metadata.namespace();
    let name = infra.metadata.name();
    let found = Api::<InfraMachine>::namespaced(ctx.client.clone(), namespace)
        .get_metadata(name)
        .await
        .map_err(|error| Error::api(action, error))?;
    if Eviction::of(&found.metadata) == Eviction::of(&infra.metadata) {
        Ok(())
    } else {
        Err(Error::Conflict { action })
    }
}

/// Records an event for a pod whose volumes did not leave the Node in time.
async fn record_timeout(infra: &InfraMachine, ctx: &Context, before: PreviousEviction) {
    if let PreviousEviction::TimedOut(waiting) = before {
        publish::record_failure(infra, ctx, status::timed_out(&waiting)).await;
    }
}

/// Publishes that the workload cluster is unreachable, and retries within the limits.
async fn publish_unreachable(
    infra: &InfraMachine,
    ctx: &Context,
    uid: &str,
    target: &DrainTarget,
    cause: &Unreachable,
    retry_after: Duration,
) -> Result<Requeue, Error> {
    ctx.outages.begin(uid);
    publish::publish_on(infra, ctx, Some(&status::unreachable(cause))).await?;
    Ok(Requeue::After(until_deadline(target, retry_after)))
}

fn busy_requeue(uid: &str) -> Requeue {
    Requeue::After(workload_cluster::busy_wait(uid))
}

/// Limits a wait to the deadline of the whole drain.
fn until_deadline(target: &DrainTarget, wait: Duration) -> Duration {
    wait.min(until(target.deadline, wall_clock::now()).max(MIN_POLL_INTERVAL))
}

/// When to check an awaited pod again.
fn poll_interval(target: &DrainTarget, waiting: &Waiting, now: Timestamp) -> Duration {
    let begun = target.last.as_ref().map_or(now, |last| last.evicted_at);
    let elapsed = elapsed(begun, now).unwrap_or_default();
    let left = until(waiting.until, now);
    let wait = (elapsed / 4)
        .clamp(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL)
        .min(left.max(MIN_POLL_INTERVAL));
    until_deadline(target, wait)
}

/// The driver's answer about volume ids.
enum Ids {
    /// These ids; empty if the driver knows none. Kubernetes' own names are always compared, too.
    Known(Vec<String>),
    /// Other calls hold the permits of the driver.
    Busy,
    /// The driver failed.
    Failed(Status),
}

/// Asks the driver of a machine for the ids of each volume separately, because it may refuse volumes of other
/// back ends. This is no [`crate::reconcile::driver_query`]: the call has no class, and so no credentials.
async fn volume_ids(observed: &Observed, infra: &InfraMachine, ctx: &Context, specs: &[Value]) -> Ids {
    if specs.is_empty() {
        return Ids::Known(Vec::new());
    }
    let (_, name, _) = observed.machine_names();
    let driver = match driver_of(&ctx.drivers, infra) {
        Ok(driver) => driver,
        Err(error) => {
            tracing::warn!(
                machine = name,
                %error,
                "no driver resolves volume ids; matching volumes by their own names"
            );
            return Ids::Known(Vec::new());
        }
    };
    let Some(permit) = upkeep_permit(&driver, &ctx.enqueue, &observed.machine.metadata) else {
        return Ids::Busy;
    };
    let capabilities = match permit.fetch_capabilities().await {
        Ok(capabilities) => capabilities,
        Err(status) => return Ids::Failed(status),
    };
    let mut ids = Vec::new();
    if !capabilities.supports(Operation::GetVolumeIds) {
        return Ids::Known(ids);
    }
    for spec in specs {
        let request = GetVolumeIdsRequest {
            pv_specs: vec![spec.clone()],
        };
        match permit.driver().get_volume_ids(request).await {
            Ok(found) => ids.extend(found.into_iter().take(MAX_IDS)),
            Err(status) if retry::disposition(Call::VolumeIds, status.code()) == Disposition::Retry => {
                return Ids::Failed(status);
            }
            Err(status) => tracing::warn!(
                machine = name,
                driver = driver.name(),
                code = status.code().name(),
                error = status.message(),
                "the driver does not resolve a volume id; matching the volume by its own name"
            ),
        }
    }
    Ids::Known(ids)
}
