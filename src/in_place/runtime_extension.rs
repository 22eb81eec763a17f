//! Cluster API's Runtime Extension for updates in place. Cluster API asks whether a machine can get a new
//! spec without a replacement, and requests the update of its VM.
//!
//! The extension itself calls no driver to change a VM. [`hooks`] has the wire format, [`spec_changes`] and
//! [`progress`] decide, and the reconciler of InfraMachines does the update, as after a user's change.
//!
//! # Guarantees
//! * Fail closed: only fields that are known to be updatable are patched, and Cluster API replaces the
//!   machine for any other change. If the driver can't be asked, the answer is a failure, and Cluster API
//!   asks again.
//! * A replica that does not lead calls no driver and writes nothing. It answers only requests that need
//!   neither.

mod hooks;
mod progress;
pub mod spec_changes;

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use http_body_util::LengthLimitError;
use kube::Client;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use self::hooks::{
    CanUpdateMachineObjects, CanUpdateMachineSetObjects, CanUpdateRequest, Hook, Infrastructure, Objects,
    UpdateMachineRequest, discovered, patched, response, updated,
};
use self::progress::{Progress, progress};
use self::spec_changes::SpecChanges;
use crate::api::progress::Task;
use crate::api::v1alpha1::{InfraMachine, InfraMachineSpec};
use crate::api::{GROUP, labels};
use crate::apiserver::leadership::Leadership;
use crate::apiserver::{Error, record_progress};
use crate::driver::{ConfiguredDrivers, DriverState, Reachability, Waker};
use crate::in_place::hot_update::in_place;
use cmi_driver::{Capabilities, ErrorChain};

/// The largest request: two MachineSets and four templates, most of them for bootstrapping.
const MAX_BYTES: usize = 4 * 1024 * 1024;
/// How long a request body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a request may wait for its turn. Cluster API does not wait much longer.
const WAIT_TIMEOUT: Duration = Duration::from_secs(6);
/// Concurrent requests; each may take [`MAX_BYTES`] of memory.
const MAX_REQUESTS: usize = 8;
/// The extension's name in the driver's permit queue.
const REQUESTER: &str = "the Runtime Extension";

/// The context of every request.
#[derive(Clone)]
pub struct Context {
    /// The client that reads InfraMachines and writes the annotation that requests an update.
    pub client: Client,
    /// The configured drivers.
    pub drivers: ConfiguredDrivers,
    /// Whether this replica may write, and ask drivers.
    pub leadership: Leadership,
    /// The only namespace whose objects the extension answers for; `None` for all.
    pub namespace: Option<String>,
    /// The value of the label `cluster.x-k8s.io/watch-filter` of the objects that the extension answers for;
    /// `None` for any.
    pub watch_filter: Option<String>,
}

/// Limits all requests together.
struct Server {
    context: Context,
    requests: Semaphore,
}

/// Serves the hooks at their paths.
pub fn router(context: Context) -> Router {
    let server = Server {
        context,
        requests: Semaphore::new(MAX_REQUESTS),
    };
    Router::new()
        // Without the limit, because Cluster API does not start without this answer.
        .route(&Hook::Discovery.path(), post(discovery))
        .route(&Hook::CanUpdateMachineSet.path(), post(can_update_machine_set))
        .route(&Hook::CanUpdateMachine.path(), post(can_update_machine))
        .route(&Hook::UpdateMachine.path(), post(update_machine))
        .with_state(Arc::new(server))
}

async fn discovery() -> Response {
    Json(discovered()).into_response()
}

async fn can_update_machine_set(State(server): State<Arc<Server>>, body: Body) -> Response {
    let run = async |request| can_update::<CanUpdateMachineSetObjects>(&server.context, &request).await;
    server.serve(body, run).await
}

async fn can_update_machine(State(server): State<Arc<Server>>, body: Body) -> Response {
    let run = async |request| can_update::<CanUpdateMachineObjects>(&server.context, &request).await;
    server.serve(body, run).await
}

async fn update_machine(State(server): State<Arc<Server>>, body: Body) -> Response {
    let run = async |request| update(&server.context, &request).await;
    server.serve(body, run).await
}

impl Server {
    /// Reads a request and answers it.
    async fn serve<Q: DeserializeOwned>(&self, body: Body, run: impl AsyncFnOnce(Q) -> Value) -> Response {
        // The permit is held from before the read until the answer, which limits the memory of all requests.
        let Ok(_permit) = timeout(WAIT_TIMEOUT, self.requests.acquire()).await else {
            return Unread::TooMany.into_response();
        };
        match read(body).await {
            Ok(request) => Json(run(request).await).into_response(),
            Err(unread) => unread.into_response(),
        }
    }
}

/// Reads a request. Go's client sets no content type, so none is required.
async fn read<Q: DeserializeOwned>(body: Body) -> Result<Q, Unread> {
    let body = timeout(BODY_TIMEOUT, to_bytes(body, MAX_BYTES)).await;
    let bytes = body.map_err(|_elapsed| Unread::TooSlow)?.map_err(unread)?;
    serde_json::from_slice(&bytes).map_err(Unread::Unreadable)
}

/// Distinguishes a body that is too large from one that ended too early: axum returns both as one error.
fn unread(error: axum::Error) -> Unread {
    match error.source() {
        Some(source) if source.is::<LengthLimitError>() => Unread::TooLarge,
        Some(_) | None => Unread::Broken(error),
    }
}

/// Why a request could not be read.
#[derive(Debug, thiserror::Error)]
enum Unread {
    #[error("too many concurrent requests: try again")]
    TooMany,
    #[error("did not receive the request within {} s", BODY_TIMEOUT.as_secs())]
    TooSlow,
    #[error("the request has more than {MAX_BYTES} bytes")]
    TooLarge,
    #[error("the request is incomplete")]
    Broken(#[source] axum::Error),
    #[error("cannot parse the request: {}", brief(.0))]
    Unreadable(serde_json::Error),
}

/// Shortens a parser's message: it quotes the input, and a request may be long.
fn brief(error: &serde_json::Error) -> String {
    const MAX_CHARS: usize = 256;
    error.to_string().chars().take(MAX_CHARS).collect()
}

impl IntoResponse for Unread {
    fn into_response(self) -> Response {
        tracing::warn!(error = %ErrorChain(&self), "rejected a runtime hook request");
        let status = match self {
            Self::TooMany => StatusCode::TOO_MANY_REQUESTS,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Broken(_) | Self::Unreadable(_) => StatusCode::BAD_REQUEST,
        };
        (status, format!("{self}\n")).into_response()
    }
}

/// Answers whether the current objects can get the desired spec without a replacement. The answer patches all
/// updatable fields of the current objects. Cluster API replaces the machine if a difference remains.
async fn can_update<T: Objects>(context: &Context, request: &CanUpdateRequest<T>) -> Value {
    let (current, desired) = (request.current.infrastructure(), request.desired.infrastructure());
    if !current.is_ours::<T>() || !desired.is_ours::<T>() {
        // An object of another provider: nothing is patched, and so nothing is updated in place.
        return patched::<T>(&json_patch::Patch::default());
    }
    let (namespace, object) = (&current.metadata.namespace, &current.metadata.name);
    if !request.current.has_bootstrap_config() || !request.desired.has_bootstrap_config() {
        tracing::info!(
            kind = T::KIND, %namespace, %object,
            "no update in place: Cluster API never completes one for Machines without `bootstrap.configRef`"
        );
        return patched::<T>(&json_patch::Patch::default());
    }
    match changes::<T>(context, current, desired).await {
        Ok((changes, patch)) => {
            tracing::info!(kind = T::KIND, %namespace, %object, %changes, "Cluster API asks for an update \
                in place");
            patched::<T>(&patch)
        }
        Err(why) => {
            tracing::warn!(kind = T::KIND, %namespace, %object, %why,
                "cannot tell whether the change is possible in place");
            response(T::HOOK, Err(&why))
        }
    }
}

/// The changes between two specs, or the reason why they cannot be computed.
async fn changes<T: Objects>(
    context: &Context,
    current: &Infrastructure,
    desired: &Infrastructure,
) -> Result<(SpecChanges, json_patch::Patch), String> {
    looks_at(context, current)?;
    let (old, new) = (current.machine_spec::<T>()?, desired.machine_spec::<T>()?);
    // The driver that has the VM, or that the spec names.
    let named = old.get("driver").and_then(Value::as_str);
    let recorded = current.metadata.recorded_driver();
    let name = recorded.as_deref().or(named);
    let capabilities = capabilities(context, name, &current.metadata.namespace).await?;
    let changes = SpecChanges::between(&old, &new, &capabilities);
    // If the answer were that a replacement is needed, Cluster API would start to replace machines, although
    // no new machine can be created.
    if let Some(why) = changes.refusal() {
        return Err(format!("the driver rejects the new spec: {why}"));
    }
    let patch = changes.patch(&old, &new, T::SPEC);
    Ok((changes, patch))
}

/// Checks that this process answers for an object, by its namespace and its watch-filter label.
fn looks_at(context: &Context, object: &Infrastructure) -> Result<(), String> {
    let metadata = &object.metadata;
    if let Some(only) = context
        .namespace
        .as_ref()
        .filter(|only| **only != metadata.namespace)
    {
        return Err(format!(
            "this provider watches only namespace `{only}`: exclude other namespaces by the \
                namespaceSelector of the ExtensionConfig"
        ));
    }
    let wanted = context.watch_filter.as_ref();
    match wanted.filter(|wanted| metadata.labels.watch_filter.as_ref() != Some(wanted)) {
        Some(wanted) => Err(format!(
            "this provider watches only objects with label {}=`{wanted}`",
            labels::WATCH_FILTER
        )),
        None => Ok(()),
    }
}

/// The capabilities of a driver that answers now, or the reason why they are unknown. Never a guess.
async fn capabilities(
    context: &Context,
    name: Option<&str>,
    namespace: &str,
) -> Result<Arc<Capabilities>, String> {
    context
        .leadership
        .check()
        .map_err(|error| format!("{error}: try again, so that another replica may answer"))?;
    let driver = context
        .drivers
        .resolve(name, namespace)
        .map_err(|error| error.to_string())?;
    let name = driver.name();
    let reachability = driver.reachability().borrow().clone();
    match reachability {
        Reachability::Reachable => {}
        Reachability::Unsettled => return Err(format!("driver `{name}` has not answered yet")),
        Reachability::Unreachable(_) => return Err(format!("driver `{name}` is unreachable")),
    }
    match driver.state(REQUESTER, Waker::new(|| ())).await {
        DriverState::Known(known) if known.is_current => Ok(known.capabilities),
        DriverState::Known(_) | DriverState::Pending => {
            Err(format!("waiting for the capabilities of driver `{name}`"))
        }
        DriverState::Unknown(status) => Err(format!(
            "cannot get the capabilities of driver `{name}`: {}",
            status.code()
        )),
    }
}

/// Requests the update of the VM to the desired spec, and answers with its progress.
async fn update(context: &Context, request: &UpdateMachineRequest) -> Value {
    let wanted = &request.desired.infrastructure_machine;
    if !wanted.is_ours::<CanUpdateMachineObjects>() {
        let why = format!("this provider does not update objects of kind `{}`", wanted.kind);
        return updated(Err(&why));
    }
    match try_update(context, wanted).await {
        Ok(progress) => updated(Ok(&progress)),
        Err(error) => {
            let (namespace, name) = (&wanted.metadata.namespace, &wanted.metadata.name);
            tracing::warn!(%namespace, %name, error = %ErrorChain(error.as_ref()),
                "update in place failed");
            updated(Err(&ErrorChain(error.as_ref()).to_string()))
        }
    }
}

async fn try_update(context: &Context, wanted: &Infrastructure) -> anyhow::Result<Progress> {
    looks_at(context, wanted).map_err(anyhow::Error::msg)?;
    let desired: InfraMachineSpec = wanted.spec().map_err(anyhow::Error::msg)?;
    let (namespace, name) = (&wanted.metadata.namespace, &wanted.metadata.name);
    let machines = kube::Api::<InfraMachine>::namespaced(context.client.clone(), namespace);
    let action = "reading the InfraMachine to update";
    // Reads the live object: a stale cache could report a spec as applied before it is.
    let live = machines
        .get(name)
        .await
        .map_err(|error| Error::api(action, error))?;
    let progress = progress(&live, &desired);
    if progress == Progress::NotRequested {
        context
            .leadership
            .check()
            .context("try again, so that the leader may answer")?;
        request_update(&context.client, &live).await?;
        tracing::info!(%namespace, %name, "Cluster API requests an update in place");
    }
    Ok(progress)
}

/// Asks the reconciler to update the VM to the current spec.
async fn request_update(client: &kube::Client, live: &InfraMachine) -> Result<(), Error> {
    let requested = in_place::requested(live);
    match record_progress(
        client,
        live,
        Task::InPlaceUpdate,
        requested,
        "requesting the update",
    )
    .await
    {
        // After a conflict, Cluster API asks again, and the object is then read again.
        Ok(_) | Err(Error::Conflict { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether an object belongs to this provider's group.
fn is_of_group(api_version: &str) -> bool {
    api_version.split('/').next() == Some(GROUP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_that_is_too_large_is_told_from_one_that_did_not_come_whole() {
        let large = read::<Value>(Body::from(vec![b' '; MAX_BYTES + 1])).await;
        let large = large.unwrap_err().into_response();
        assert_eq!(large.status(), StatusCode::PAYLOAD_TOO_LARGE);
        let broken = futures::stream::iter([Ok("{"), Err(std::io::Error::other("reset by peer"))]);
        let broken = read::<Value>(Body::from_stream(broken)).await.unwrap_err();
        assert!(
            ErrorChain(&broken).to_string().ends_with("reset by peer"),
            "{broken}"
        );
        assert_eq!(broken.into_response().status(), StatusCode::BAD_REQUEST);
    }
}
