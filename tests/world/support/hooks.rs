//! The hooks of the Runtime Extension, called as Cluster API calls them.

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::body::{Body, to_bytes};
use capcmi::api::annotations;
use http::Request;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::ByHand;

const GROUP_VERSION: &str = "hooks.runtime.cluster.x-k8s.io/v1alpha1";
pub const CAN_UPDATE_MACHINE_SET: &str = "canupdatemachineset/can-update-machine-set";
pub const CAN_UPDATE_MACHINE: &str = "canupdatemachine/can-update-machine";
pub const UPDATE_MACHINE: &str = "updatemachine/update-machine";

/// The hooks of one provider.
#[derive(Clone)]
pub struct Hooks(Router);

impl Hooks {
    /// The hooks that these routes serve.
    pub fn new(router: Router) -> Self {
        Self(router)
    }

    /// Calls a hook.
    pub async fn call(&self, hook: &str, request: &Value) -> Result<Value> {
        let request =
            Request::post(format!("/{GROUP_VERSION}/{hook}")).body(Body::from(request.to_string()))?;
        let response = self.0.clone().oneshot(request).await?;
        ensure!(response.status().is_success(), "{hook}: {}", response.status());
        let body = to_bytes(response.into_body(), usize::MAX).await?;
        serde_json::from_slice(&body).with_context(|| format!("reading the answer of {hook}"))
    }

    /// Calls UpdateMachine with the spec that the InfraMachine has.
    pub async fn update(&self, machine: &ByHand) -> Result<Value> {
        let infra = serde_json::to_value(machine.get().await?)?;
        let request = json!({"desired": {"machine": {}, "infrastructureMachine": infra}});
        self.call(UPDATE_MACHINE, &request).await
    }
}

/// Begins an update as core does: it marks the InfraMachine, and writes the new provider spec.
pub async fn begin_update(machine: &ByHand, provider_spec: Value) -> Result<()> {
    let mut begun = in_progress(json!(""));
    begun["spec"] = json!({"providerSpec": provider_spec});
    machine.patch(begun).await.map(drop)
}

/// Whether this is the answer that the update has ended.
pub fn has_ended(answer: &Value) -> bool {
    answer["status"] == "Success" && answer["retryAfterSeconds"] == 0
}

/// A patch of the mark of an update in progress; null removes it.
#[allow(clippy::needless_pass_by_value)] // a literal, which reads better without a reference
pub fn in_progress(value: Value) -> Value {
    json!({"metadata": {"annotations": {annotations::UPDATE_IN_PROGRESS: value}}})
}
