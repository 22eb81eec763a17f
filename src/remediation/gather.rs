//! What one reconcile looks at: caches, and the Machine as it is at the API server.

use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::runtime::reflector::ObjectRef;

use super::Context;
use super::owner::{RemediatedMachine, owner_reference};
use super::plan::{Observed, Owner};
use crate::api::ObjectMetaExt as _;
use crate::api::cluster_api::{Cluster, Machine};
use crate::api::v1alpha1::{InfraMachine, InfraMachineRemediation};
use crate::apiserver::Error;
use crate::configured_driver::{ConfiguredDriver, DriverState, ResolveError};
use crate::driver_resolution::driver_of;
use crate::reconciler::waker;

/// What was read, and keeps alive what [`Observed`] borrows.
pub struct Gathered {
    /// The remediation, as the cache has it now.
    pub remediation: InfraMachineRemediation,
    named_owner: bool,
    machine: Option<RemediatedMachine>,
    cluster: Option<Arc<Cluster>>,
    infra: Option<InfraMachine>,
    driver: Option<Result<(Arc<ConfiguredDriver>, DriverState), ResolveError>>,
    now: Timestamp,
    /// A moment after all was read but the driver's state.
    pub read_before: Instant,
}

/// Reads.
pub async fn gather(queued: &InfraMachineRemediation, ctx: &Context) -> Result<Gathered, Error> {
    let remediation = cached(queued, ctx);
    let namespace = remediation.metadata.namespace().to_owned();
    let reference = owner_reference(&remediation.metadata);
    let machine = match reference {
        Some(reference) => machine_of(ctx, &namespace, &reference.name, &reference.uid).await?,
        None => None,
    };
    let cluster = machine
        .as_ref()
        .and_then(|machine| ctx.caches.cluster(&namespace, &machine.spec.cluster_name));
    let infra = machine
        .as_ref()
        .and_then(|machine| infra_of(ctx, &namespace, machine));
    let read_before = Instant::now();
    let driver = match &infra {
        Some(infra) => Some(resolve(ctx, &remediation, infra).await),
        None => None,
    };
    Ok(Gathered {
        named_owner: reference.is_some(),
        remediation,
        machine,
        cluster,
        infra,
        driver,
        now: Timestamp::now(),
        read_before,
    })
}

impl Gathered {
    /// The view that a plan is made from.
    pub fn observed(&self) -> Observed<'_> {
        Observed {
            owner: match (&self.machine, self.named_owner) {
                (Some(machine), _) => Owner::Found(machine),
                (None, true) => Owner::Missing,
                (None, false) => Owner::None,
            },
            cluster: self.cluster.as_deref(),
            infra: self.infra.as_ref(),
            driver: self
                .driver
                .as_ref()
                .map(|found| found.as_ref().map(|(_, state)| state)),
            now: self.now,
        }
    }

    /// The Machine, when it is there.
    pub fn machine(&self) -> Option<&RemediatedMachine> {
        self.machine.as_ref()
    }

    /// The InfraMachine with the driver that has its VM, when both are there.
    pub fn infra_and_driver(&self) -> Option<(&InfraMachine, &ConfiguredDriver)> {
        let (driver, _) = self.driver.as_ref()?.as_ref().ok()?;
        Some((self.infra.as_ref()?, driver))
    }

    /// The namespace of all that was read.
    pub fn namespace(&self) -> &str {
        self.remediation.metadata.namespace()
    }
}

/// What the cache holds now: since it was queued, our own last write may have arrived.
fn cached(queued: &InfraMachineRemediation, ctx: &Context) -> InfraMachineRemediation {
    let found = ctx.remediations.current(&queued.metadata);
    let current = found.as_deref().and_then(|object| object.0.as_ref().ok());
    current.unwrap_or(queued).clone()
}

/// The Machine of this name and UID, if it is there: one of the same name that came later is another.
pub async fn machine_of(
    ctx: &Context,
    namespace: &str,
    name: &str,
    uid: &str,
) -> Result<Option<RemediatedMachine>, Error> {
    let action = "reading the Machine that is remediated";
    let api = machines(ctx, namespace);
    let found = api
        .get_opt(name)
        .await
        .map_err(|error| Error::api(action, error))?;
    let Some(found) = found.filter(|found| found.metadata.uid.as_deref() == Some(uid)) else {
        return Ok(None);
    };
    serde_json::to_value(found)
        .and_then(serde_json::from_value)
        .map(Some)
        .map_err(|source| Error::Encode { action, source })
}

/// Machines with all that they hold.
pub fn machines(ctx: &Context, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(ctx.client.clone(), namespace, &ApiResource::erase::<Machine>(&()))
}

fn infra_of(ctx: &Context, namespace: &str, machine: &RemediatedMachine) -> Option<InfraMachine> {
    let name = &machine.spec.infrastructure_ref.name;
    let found = ctx
        .caches
        .infra_machines
        .get(&ObjectRef::new(name).within(namespace))?;
    found.0.as_ref().ok().cloned()
}

async fn resolve(
    ctx: &Context,
    remediation: &InfraMachineRemediation,
    infra: &InfraMachine,
) -> Result<(Arc<ConfiguredDriver>, DriverState), ResolveError> {
    let driver = driver_of(&ctx.drivers, infra)?;
    let key = remediation.metadata.uid();
    let state = driver
        .state(key, waker(&ctx.enqueue, &remediation.metadata))
        .await;
    Ok((driver, state))
}
