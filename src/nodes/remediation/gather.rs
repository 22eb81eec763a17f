//! The inputs of one reconcile: the caches, and the Machine from the API server.

use std::sync::Arc;

use kube::api::{Api, ApiResource, DynamicObject};
use kube::runtime::reflector::ObjectRef;
use tokio::time::Instant;

use super::Context;
use super::owner::{RemediatedMachine, owner_reference};
use super::plan::{Observed, Owner};
use crate::api::ObjectMetaExt as _;
use crate::api::cluster_api::Machine;
use crate::api::v1alpha1::{InfraMachine, InfraMachineRemediation};
use crate::api::wall_clock;
use crate::apiserver::Error;
use crate::driver::ConfiguredDriver;
use crate::driver::resolution::driver_of;
use crate::reconcile::waker;

/// The inputs of one reconcile.
pub struct Gathered {
    /// The remediation, as cached now.
    pub remediation: InfraMachineRemediation,
    /// The inputs of the plan.
    pub observed: Observed,
    /// The configured driver of the VM, if any.
    driver: Option<Arc<ConfiguredDriver>>,
    /// A time after all reads, except for the read of the driver's state.
    pub read_before: Instant,
}

/// Reads the inputs of a reconcile.
pub async fn gather(queued: &InfraMachineRemediation, ctx: &Context) -> Result<Gathered, Error> {
    let remediation = cached(queued, ctx);
    let namespace = remediation.metadata.namespace().to_owned();
    let owner = match owner_reference(&remediation.metadata) {
        Some(reference) => match machine_of(ctx, &namespace, &reference.name, &reference.uid).await? {
            Some(machine) => Owner::Found(Box::new(machine)),
            None => Owner::Missing,
        },
        None => Owner::None,
    };
    let machine = owner.machine();
    let cluster = machine.and_then(|machine| ctx.caches.cluster(&namespace, &machine.spec.cluster_name));
    let infra = machine.and_then(|machine| infra_of(ctx, &namespace, machine));
    let read_before = Instant::now();
    let (driver, state) = match infra.as_ref().map(|infra| driver_of(&ctx.drivers, infra)) {
        Some(Ok(driver)) => {
            let waker = waker(&ctx.enqueue, &remediation.metadata);
            let state = driver.state(remediation.metadata.uid(), waker).await;
            (Some(driver), Some(Ok(state)))
        }
        Some(Err(unresolved)) => (None, Some(Err(unresolved))),
        None => (None, None),
    };
    Ok(Gathered {
        remediation,
        observed: Observed {
            owner,
            cluster,
            infra,
            driver: state,
            now: wall_clock::now(),
        },
        driver,
        read_before,
    })
}

impl Gathered {
    /// The InfraMachine and the driver of its VM, if both exist.
    pub fn infra_and_driver(&self) -> Option<(&InfraMachine, &ConfiguredDriver)> {
        Some((self.observed.infra.as_ref()?, self.driver.as_deref()?))
    }

    /// The namespace of the remediation and of all other inputs.
    pub fn namespace(&self) -> &str {
        self.remediation.metadata.namespace()
    }
}

/// The cached remediation. It may have this provider's last write, which came after the remediation was
/// queued.
fn cached(queued: &InfraMachineRemediation, ctx: &Context) -> InfraMachineRemediation {
    let found = ctx.remediations.current(&queued.metadata);
    let current = found.as_deref().and_then(|object| object.0.as_ref().ok());
    current.unwrap_or(queued).clone()
}

/// The Machine with this name and UID, if it exists. A Machine with the same name but another UID is not
/// returned.
pub async fn machine_of(
    ctx: &Context,
    namespace: &str,
    name: &str,
    uid: &str,
) -> Result<Option<RemediatedMachine>, Error> {
    let action = "reading the remediated Machine";
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

/// The API of Machines with all of their fields.
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
