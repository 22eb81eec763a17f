//! InfraMachineTemplate: what one machine has, so that the autoscaler can start from zero.
//!
//! Layer 2. Writes the template's status and nothing else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::api::{Api, Patch};
use kube::core::DeserializeGuard;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Client, Resource};
use serde_json::json;

use crate::api::labels;
use crate::api::v1alpha1::{
    Architecture, InfraMachineTemplate, InfraMachineTemplateStatus, NodeInfo, OperatingSystem,
};
use crate::apiserver::{Error, merge_difference, patch_params, secrets};
use crate::driver::{ClassDescription, MachineClass, Operation, ProviderSpec};
use crate::metrics::{Kind, Metrics, Outcome as Measured};
use crate::provider::{Providers, Share, Turn};

/// How soon a driver that could not be asked is asked again.
const RETRY: Duration = Duration::from_mins(1);

/// What every reconcile works with.
pub struct Context {
    /// Writes.
    pub client: Client,
    /// The configured drivers.
    pub providers: Providers,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Has a template reconciled.
    pub wake: Arc<dyn Fn(ObjectRef<DeserializeGuard<InfraMachineTemplate>>) + Send + Sync>,
}

/// What became of the question.
enum Described {
    Known(ClassDescription),
    /// The driver can't say, or which driver is not said.
    Unknown,
    Later(String),
}

/// One reconcile of one template.
pub async fn reconcile(
    guarded: Arc<DeserializeGuard<InfraMachineTemplate>>,
    ctx: Arc<Context>,
) -> Result<Action, Error> {
    let started = Instant::now();
    let result = match &guarded.0 {
        Ok(template) => reconcile_template(template, &ctx).await,
        Err(invalid) => {
            tracing::error!(
                name = invalid.metadata.name,
                error = invalid.error,
                "an InfraMachineTemplate can't be read"
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
        .reconciled(Kind::InfraMachineTemplate, measured, started.elapsed());
    result
}

async fn reconcile_template(template: &InfraMachineTemplate, ctx: &Context) -> Result<Action, Error> {
    let paused = template
        .metadata
        .annotations
        .as_ref()
        .is_some_and(|all| all.contains_key(labels::PAUSED));
    let observed = template
        .status
        .as_ref()
        .is_some_and(|s| s.observed_generation == template.metadata.generation);
    if paused || observed || template.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    match describe(template, ctx).await? {
        Described::Known(description) => publish(template, ctx, description).await?,
        Described::Unknown => {}
        Described::Later(why) => {
            tracing::info!(
                name = template.metadata.name,
                why,
                "the template's capacity is not known yet"
            );
            return Ok(Action::requeue(RETRY));
        }
    }
    Ok(Action::await_change())
}

async fn describe(template: &InfraMachineTemplate, ctx: &Context) -> Result<Described, Error> {
    let spec = &template.spec.template.spec;
    let namespace = template.metadata.namespace.as_deref().unwrap_or_default();
    let Ok(provider) = ctx.providers.resolve(spec.provider.as_deref(), namespace) else {
        return Ok(Described::Unknown);
    };
    let (wake, name) = (
        Arc::clone(&ctx.wake),
        template.metadata.name.as_deref().unwrap_or_default(),
    );
    let reference = ObjectRef::new(name).within(namespace);
    let who = template.metadata.uid.as_deref().unwrap_or_default();
    match provider.try_turn(Share::Upkeep, who, Box::new(move || wake(reference))) {
        Some(turn) => ask(template, ctx, &turn).await,
        None => Ok(Described::Later("the driver is busy".to_owned())),
    }
}

async fn ask(template: &InfraMachineTemplate, ctx: &Context, turn: &Turn<'_>) -> Result<Described, Error> {
    let spec = &template.spec.template.spec;
    let namespace = template.metadata.namespace.as_deref().unwrap_or_default();
    let capabilities = match turn.contact().await {
        Ok(capabilities) => capabilities,
        Err(status) => return Ok(Described::Later(status.message().to_owned())),
    };
    if !capabilities.offers(Operation::DescribeClass) {
        return Ok(Described::Unknown);
    }
    let reference = spec.secret_ref.as_ref().map(|reference| reference.name.as_str());
    let read = secrets::credentials(&ctx.client, namespace, reference, secrets::SECRET_REF).await?;
    let secrets = match read {
        Ok(secrets) => secrets,
        Err(cause) => return Ok(Described::Later(cause.to_string())),
    };
    let class = MachineClass {
        provider_spec: ProviderSpec(spec.provider_spec.clone()),
        secrets,
    };
    Ok(match turn.driver().describe_class(class).await {
        Ok(description) => Described::Known(description),
        Err(status) => Described::Later(status.message().to_owned()),
    })
}

async fn publish(
    template: &InfraMachineTemplate,
    ctx: &Context,
    description: ClassDescription,
) -> Result<(), Error> {
    let action = "writing status";
    let encode = |status| serde_json::to_value(status).map_err(|source| Error::Encode { action, source });
    let before = encode(template.status.clone().unwrap_or_default())?;
    let difference = merge_difference(&before, &encode(status(template, description))?);
    if difference == json!({}) {
        return Ok(());
    }
    let namespace = template.metadata.namespace.as_deref().unwrap_or_default();
    let api: Api<InfraMachineTemplate> = Api::namespaced(ctx.client.clone(), namespace);
    let body =
        json!({"metadata": {"resourceVersion": template.metadata.resource_version}, "status": difference});
    let patched = api
        .patch_status(
            template.metadata.name.as_deref().unwrap_or_default(),
            &patch_params(),
            &Patch::Merge(&body),
        )
        .await;
    patched.map_err(|error| Error::api(action, error))?;
    Ok(())
}

fn status(template: &InfraMachineTemplate, description: ClassDescription) -> InfraMachineTemplateStatus {
    let architecture = match description.architecture.as_deref() {
        Some("amd64") => Some(Architecture::Amd64),
        Some("arm64") => Some(Architecture::Arm64),
        Some("s390x") => Some(Architecture::S390x),
        Some("ppc64le") => Some(Architecture::Ppc64le),
        _ => None,
    };
    let operating_system = match description.operating_system.as_deref() {
        Some("linux") => Some(OperatingSystem::Linux),
        Some("windows") => Some(OperatingSystem::Windows),
        _ => None,
    };
    let known = architecture.is_some() || operating_system.is_some();
    InfraMachineTemplateStatus {
        capacity: description.capacity,
        node_info: known.then_some(NodeInfo {
            architecture,
            operating_system,
        }),
        observed_generation: template.metadata.generation,
    }
}

/// What happens after a reconcile that could not be finished.
#[allow(clippy::needless_pass_by_value)] // the controller's signature
pub fn error_policy(
    guarded: Arc<DeserializeGuard<InfraMachineTemplate>>,
    error: &Error,
    _: Arc<Context>,
) -> Action {
    let name = guarded.meta().name.as_deref().unwrap_or_default();
    tracing::warn!(
        name,
        error = error as &dyn std::error::Error,
        "reconciling an InfraMachineTemplate failed"
    );
    Action::requeue(error.wait(1))
}
