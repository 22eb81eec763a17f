//! Reconciles InfraMachineTemplates. Publishes the description of one machine of a template, so that the
//! autoscaler can scale from zero, or why no machine can be made from the template.
//!
//! A reconcile writes the template's status and nothing else.

mod plan;
mod status;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Client;
use kube::api::Api;

use self::plan::{Plan, plan};
use self::status::{Described, paused, status};
use crate::api::cluster_api;
use crate::api::retry::{Call, LONG_WAIT};
use crate::api::v1alpha1::{InfraMachineTemplate, InfraMachineTemplateStatus};
use crate::api::wall_clock;
use crate::api::{DeserializeGuard, ObjectMetaExt as _};
use crate::apiserver::{Error, publish_status};
use crate::driver::{ConfiguredDrivers, PERMIT_WAIT, ResolveError};
use crate::reconcile::caches::Caches;
use crate::reconcile::driver_query::{Query, QueryResult};
use crate::reconcile::{Action, DRIVER_REFRESH_INTERVAL, Enqueue, Reconciler, Requeue};
use cmi_driver::{Capabilities, DescribeClassRequest, ProviderSpec};

/// The dependencies of a reconcile.
pub struct Context {
    /// The client of the API server.
    pub client: Client,
    /// The caches of all watched kinds.
    pub caches: Caches,
    /// The configured drivers.
    pub drivers: ConfiguredDrivers,
    /// Runs reconciles, and reports their failures and metrics.
    pub reconciler: Reconciler,
    /// Enqueues a template.
    pub enqueue: Enqueue,
}

/// Runs one reconcile of one template.
///
/// # Errors
/// The API server refused or could not be reached.
pub async fn reconcile(
    object: Arc<DeserializeGuard<InfraMachineTemplate>>,
    ctx: Arc<Context>,
) -> Result<Action, Error> {
    let run = ctx
        .reconciler
        .run(&object, |template| reconcile_template(template, &ctx));
    run.await
}

async fn reconcile_template(template: &InfraMachineTemplate, ctx: &Context) -> Result<Requeue, Error> {
    let clusters = ctx.caches.clusters_of_template(&template.metadata);
    match plan(template, &clusters) {
        Plan::NoOp => Ok(Requeue::OnChange),
        Plan::Pause(by) => {
            publish(template, ctx, &paused(template, &by, wall_clock::now())).await?;
            Ok(Requeue::OnChange)
        }
        Plan::Describe => {
            let Some(described) = describe(template, ctx).await? else {
                return Ok(Requeue::After(PERMIT_WAIT));
            };
            publish(template, ctx, &status(template, &described, wall_clock::now())).await?;
            Ok(requeue(&described))
        }
    }
}

async fn publish(
    template: &InfraMachineTemplate,
    ctx: &Context,
    after: &InfraMachineTemplateStatus,
) -> Result<(), Error> {
    let namespace = template.metadata.namespace();
    let api = Api::<InfraMachineTemplate>::namespaced(ctx.client.clone(), namespace);
    publish_status(&api, &template.metadata, template.status.as_ref(), after).await?;
    Ok(())
}

/// Returns when to ask the driver again. A driver that has answered in full is asked again, too: a newer
/// plugin may answer more, or differently.
fn requeue(described: &Described) -> Requeue {
    match described {
        Described::Known(_) | Described::NotSupported => Requeue::After(DRIVER_REFRESH_INTERVAL),
        Described::NotConfigured(_) => Requeue::OnChange,
        // Another version of the driver may accept the spec, or report a capacity that can be published.
        Described::Refused(_) | Described::Incomplete(_) | Described::OfClass | Described::Unusable(_) => {
            Requeue::After(LONG_WAIT)
        }
        // Secrets are not watched.
        Described::NoSecrets(_) => Requeue::BackOff(Duration::ZERO),
        Described::Failed(status) => Requeue::after_failure(Call::DescribeClass, status),
    }
}

/// Asks the driver to describe a machine of the template; `None` when it is busy.
async fn describe(template: &InfraMachineTemplate, ctx: &Context) -> Result<Option<Described>, Error> {
    let wanted = &template.spec.template.spec;
    let query = Query {
        client: &ctx.client,
        drivers: &ctx.drivers,
        object: &template.metadata,
        driver: wanted.driver.as_deref(),
        secret: wanted.secret_ref.as_ref().map(|secret| secret.name.as_str()),
        call: Call::DescribeClass,
        enqueue: &ctx.enqueue,
    };
    let is_of_class = is_of_class(&template.metadata);
    let spec = |capabilities: &Capabilities| {
        if let Some(why) = given_violation(template, capabilities) {
            return Err(Described::Refused(why));
        }
        // A patch of the class may replace a field that the driver refuses, and the Secret may be elsewhere.
        if is_of_class {
            return Err(Described::OfClass);
        }
        match violation(template, capabilities) {
            Some(why) => Err(Described::Incomplete(why)),
            None => Ok(ProviderSpec(wanted.provider_spec.clone())),
        }
    };
    let answer = query.run(spec, |class| DescribeClassRequest { class }).await?;
    Ok(answer.map(|answer| match answer {
        QueryResult::Known(description) => Described::of(description),
        QueryResult::Skipped(why) => why,
        QueryResult::NotSupported => Described::NotSupported,
        // A patch may set the driver, and the Clusters of the class may be in another namespace.
        QueryResult::NotResolved(_)
            if is_of_class
                && wanted
                    .driver
                    .as_deref()
                    .is_none_or(|name| ctx.drivers.named(name).is_some()) =>
        {
            Described::OfClass
        }
        // In a template, the field is below `spec.template`.
        QueryResult::NotResolved(error @ ResolveError::Ambiguous { .. }) => {
            Described::NotConfigured(format!("spec.template.{error}"))
        }
        QueryResult::NotResolved(error) => Described::NotConfigured(error.to_string()),
        QueryResult::NoSecrets(why) => Described::NoSecrets(why),
        QueryResult::Failed(status) => Described::Failed(status),
    }))
}

/// Returns why no machine can be made from the template, for any Machine, with the path of the field; `None`
/// where nothing prevents it.
pub fn violation(template: &InfraMachineTemplate, capabilities: &Capabilities) -> Option<String> {
    violation_by(template, capabilities, Capabilities::spec_error)
}

/// Returns the fault of the template that no patch of a ClusterClass repairs by adding fields.
fn given_violation(template: &InfraMachineTemplate, capabilities: &Capabilities) -> Option<String> {
    violation_by(template, capabilities, Capabilities::given_spec_error)
}

fn violation_by(
    template: &InfraMachineTemplate,
    capabilities: &Capabilities,
    check: impl FnOnce(&Capabilities, &ProviderSpec) -> Option<String>,
) -> Option<String> {
    let spec = &template.spec.template.spec;
    let violations = spec.violations();
    if !violations.is_empty() {
        let all = violations.join("; spec.template.spec.");
        return Some(format!("spec.template.spec.{all}"));
    }
    let refusal = check(capabilities, &ProviderSpec(spec.provider_spec.clone()));
    let refusal = refusal.or_else(|| spec.unsupported(capabilities));
    refusal.map(|why| format!("spec.template.spec.{why}"))
}

/// Whether a ClusterClass owns the template. Its patches change copies of the template, never the template.
fn is_of_class(meta: &ObjectMeta) -> bool {
    let group = |owner: &OwnerReference| {
        owner
            .api_version
            .split_once('/')
            .map(|(group, _)| group.to_owned())
    };
    let mut owners = meta.owner_references.iter().flatten();
    owners.any(|owner| owner.kind == "ClusterClass" && group(owner).as_deref() == Some(cluster_api::GROUP))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cmi_driver::ClassDescription;

    /// A newer plugin may be able to describe classes, without a restart of the provider.
    #[test]
    fn a_driver_that_said_all_it_could_is_asked_again_after_a_while() {
        let known = Described::Known(ClassDescription::default());
        for described in [known, Described::NotSupported] {
            assert_eq!(
                requeue(&described),
                Requeue::After(DRIVER_REFRESH_INTERVAL),
                "{described:?}"
            );
        }
    }
}
