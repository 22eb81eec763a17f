//! Reads the input of one reconcile from caches and runtime state. The only request is for a driver's
//! capabilities, once for all machines. If the plan needs them, [`super::claims`] reads the claims of static
//! addresses.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource as _;
use tokio::time::Instant;

use super::Context;
use super::plan::{Observed, Owner, ProviderIdConflict, restored};
use crate::api::addresses::AddressRules;
use crate::api::cluster_api::{Cluster, Machine};
use crate::api::identity::Adoption;
use crate::api::v1alpha1::{InfraMachine, InfraMachineSpec};
use crate::api::wall_clock;
use crate::api::{ObjectMetaExt as _, annotations, fingerprint};
use crate::driver::resolution::driver_of;
use crate::driver::{ConfiguredDriver, DriverState, ResolveError};
use crate::reconcile::caches::machine_owner;
use cmi_driver::{Operation, ProviderSpec};

#[cfg(test)]
mod tests;

/// The input of one reconcile.
pub struct Gathered {
    /// The input of a plan. The result of a call is stored together with this input: if the driver reconnects
    /// during the call, a different driver may have answered.
    pub observed: Observed,
    /// The configured driver, if any.
    configured_driver: Option<Arc<ConfiguredDriver>>,
}

/// Reads the caches and the runtime state.
pub async fn gather(ctx: &Context, machine: &InfraMachine) -> Gathered {
    let owner = ctx.caches.owner_machine(&machine.metadata);
    let cluster = cluster_of(ctx, &machine.metadata, owner.as_deref());
    let cluster_id = cluster.as_deref().and_then(|cluster| ctx.cluster_ids.of(cluster));
    let (configured_driver, driver) = match driver_of(&ctx.drivers, machine) {
        Ok(configured) => {
            let state = configured.state(machine.metadata.uid(), ctx.waker(machine)).await;
            (Some(configured), Ok(state))
        }
        Err(unresolved) => (None, Err(unresolved)),
    };
    let connection_generation = configured_driver
        .as_ref()
        .map_or(0, |driver| driver.connection_generation());
    let (now, instant) = (wall_clock::now(), Instant::now());
    let inputs = inputs(machine, owner.as_deref());
    let uid = machine.metadata.uid();
    let state = ctx
        .states
        .get_or_restore(uid, || restored(machine, now, instant, inputs));
    let infra_cluster = cluster
        .as_deref()
        .and_then(|cluster| ctx.caches.infra_cluster_of(cluster))
        .and_then(|infra| Some(infra.0.as_ref().ok()?.why_not_provisioned()?.to_owned()));
    Gathered {
        observed: Observed {
            owner: match owner {
                Some(owner) => Owner::Found(owner),
                None if machine_owner(&machine.metadata).is_some() => Owner::Missing,
                None => Owner::None,
            },
            cluster,
            infra_cluster,
            cluster_id,
            violation: violation(machine, &driver),
            driver,
            conflict: conflict(ctx, machine),
            claims: None,
            state,
            inputs,
            connection_generation,
            now,
            instant,
        },
        configured_driver,
    }
}

impl Gathered {
    /// The number of the newest hint before the call.
    pub fn hint(&self) -> u64 {
        self.observed.state.hint_number()
    }

    /// The configured driver, if any.
    pub fn configured_driver(&self) -> Option<&ConfiguredDriver> {
        self.configured_driver.as_deref()
    }

    /// Returns the number of consecutive failures with the same inputs, including the current failure.
    pub fn attempts(&self, machine: &InfraMachine) -> u32 {
        let remembered = self.observed.failure().map(|failure| failure.attempts);
        let published = machine.status.as_ref().and_then(|status| {
            let last = status.last_operation.as_ref()?;
            (status.observed_generation == machine.metadata.generation)
                .then_some(u32::try_from(last.attempts).ok()?)
        });
        remembered.or(published).unwrap_or(0).saturating_add(1)
    }

    /// The rules for the addresses of the machine.
    pub fn address_rules(&self) -> AddressRules {
        let cluster = self.observed.cluster.as_deref();
        cluster.map_or_else(AddressRules::default, AddressRules::of)
    }

    /// The name of the Secret with the bootstrap data, if known.
    pub fn bootstrap_secret(&self) -> Option<&str> {
        match &self.observed.owner {
            Owner::Found(owner) => owner.spec.bootstrap.data_secret_name.as_deref(),
            Owner::Missing | Owner::None => None,
        }
    }

    /// Returns whether the driver is known to support looking up a single VM.
    pub fn can_ask(&self) -> bool {
        match &self.observed.driver {
            Ok(DriverState::Known(known)) => known.capabilities.supports(Operation::GetMachineStatus),
            Ok(DriverState::Unknown(_) | DriverState::Pending) | Err(_) => false,
        }
    }
}

/// Returns the Cluster of a machine. The owner Machine names the Cluster. Without a Machine, the label names
/// it.
fn cluster_of(ctx: &Context, meta: &ObjectMeta, owner: Option<&Machine>) -> Option<Arc<Cluster>> {
    match owner {
        Some(owner) => ctx
            .caches
            .cluster(meta.namespace.as_deref()?, &owner.spec.cluster_name),
        None => ctx.caches.labelled_cluster(meta),
    }
}

/// Looks for another InfraMachine, in any namespace, that names the VM which this machine is to adopt.
///
/// While two objects name the same VM, neither adopts it. A cache that holds a version of an object also
/// holds every earlier write. The later object therefore always sees the earlier object, even if the cache is
/// slow or the leader changes. A version that is not in the cache yet, such as our own last write, gives no
/// such guarantee.
fn conflict(ctx: &Context, machine: &InfraMachine) -> ProviderIdConflict {
    let Some(wanted) = machine.spec.provider_id.as_ref() else {
        return ProviderIdConflict::None;
    };
    if Adoption::of(machine) != Adoption::Asked {
        return ProviderIdConflict::None;
    }
    let is_cached = ctx.caches.infra_machine(&machine.metadata).is_some_and(|cached| {
        let meta = cached.meta();
        meta.uid == machine.metadata.uid && meta.resource_version == machine.metadata.resource_version
    });
    match ctx.caches.other_with_provider_id(machine, wanted) {
        Some(other) => ProviderIdConflict::Named(other),
        None if is_cached => ProviderIdConflict::None,
        None => ProviderIdConflict::Unknown,
    }
}

/// Returns the violations that neither the API server nor the tag check can refuse: limits of the whole spec,
/// and the driver's own schema. The schema of a lost driver is not checked, because the next driver may have
/// another schema.
fn violation(machine: &InfraMachine, driver: &Result<DriverState, ResolveError>) -> Option<String> {
    let violations = machine.spec.violations();
    if !violations.is_empty() {
        return Some(format!("spec.{}; {CORRECT}", violations.join("; spec.")));
    }
    match driver {
        Ok(DriverState::Known(known)) if known.is_current => {
            let spec = ProviderSpec(machine.spec.provider_spec.clone());
            let refused = known.capabilities.check_spec(&spec).err();
            let refused = refused.map(|status| format!("{}; {CORRECT}", status.message()));
            refused.or_else(|| Some(format!("spec.{}", machine.spec.unsupported(&known.capabilities)?)))
        }
        Ok(DriverState::Known(_) | DriverState::Unknown(_) | DriverState::Pending) | Err(_) => None,
    }
}

/// Tells an operator how to end a refusal.
const CORRECT: &str = "correct the field to try again";

/// Returns a hash of the inputs. Excludes everything that this provider writes, including the generation,
/// because its own writes are no reason to retry.
fn inputs(machine: &InfraMachine, owner: Option<&Machine>) -> u64 {
    let InfraMachineSpec {
        provider_id: _,
        driver,
        provider_spec,
        addresses_from_pools,
        secret_ref,
        creation_timeout_seconds,
        shutdown_timeout_seconds,
        power_policy,
        not_ready_taint: _,
    } = &machine.spec;
    let secret = secret_ref.as_ref().map(|secret| &secret.name);
    let spec = (driver, provider_spec, addresses_from_pools, secret);
    let policies = (creation_timeout_seconds, shutdown_timeout_seconds, power_policy);
    let is_ours = |key: &str| annotations::OWN_ANNOTATIONS.contains(&key) || key == annotations::BLOCK_MOVE;
    let annotations = machine.metadata.annotations.iter().flatten();
    let annotations: Vec<_> = annotations.filter(|(key, _)| !is_ours(key)).collect();
    let owner = owner.map(|owner| (&owner.spec.failure_domain, &owner.spec.bootstrap.data_secret_name));
    let is_deleted = machine.metadata.deletion_timestamp.is_some();
    fingerprint((spec, policies, is_deleted, annotations, owner))
}
