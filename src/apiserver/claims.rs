//! The claims for the static addresses of an InfraMachine, one for each pool of its spec.

use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use kube::{Client, Resource as _};
use serde_json::json;

use super::{Error, FIELD_MANAGER, patch_metadata};
use crate::api::ipam::{
    IPAddress, IPAddressClaim, IPAddressClaimSpec, IPAddressSpec, PoolReference, claim_name, owner_of,
};
use crate::api::v1alpha1::{AddressFromPool, InfraMachine};
use crate::api::{ADDRESS_CLAIM_FINALIZER, ObjectMetaExt as _, labels};
use cmi_driver::StaticAddress;

/// The claim for one pool of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObservedClaim {
    /// There is no claim.
    Absent,
    /// The claim is being deleted. Its address is no longer allocated, or will not be.
    Terminating,
    /// There is no address yet, for the reason that the claim reports, if any.
    Pending(Option<String>),
    /// The address is allocated.
    Allocated(StaticAddress),
    /// The claim or its address can't be used, for this reason.
    Invalid(String),
}

/// How a claim names its machine. A restored claim of a machine with a VM may name the UID that the machine
/// had before. Without a VM, another UID is that of an earlier machine, whose VM may still have the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnedBy {
    /// By its name.
    Name,
    /// By its UID.
    Uid,
}

/// The claims of one machine. A claim is named by the place of its pool in the spec.
pub struct Claims<'a> {
    machine: &'a InfraMachine,
    api: Api<IPAddressClaim>,
    addresses: Api<IPAddress>,
}

impl<'a> Claims<'a> {
    /// The claims of this machine.
    pub fn of(client: &Client, machine: &'a InfraMachine) -> Self {
        let namespace = machine.metadata.namespace();
        Self {
            machine,
            api: Api::namespaced(client.clone(), namespace),
            addresses: Api::namespaced(client.clone(), namespace),
        }
    }

    /// Reads the claims for the pools of the machine, in their order.
    ///
    /// # Errors
    /// The API server refused or could not be reached.
    pub async fn read(&self) -> Result<Vec<ObservedClaim>, Error> {
        let mut observed = Vec::new();
        for (place, pool) in self.machine.spec.addresses_from_pools.iter().enumerate() {
            observed.push(self.observe(place, pool).await?);
        }
        Ok(observed)
    }

    async fn observe(&self, place: usize, pool: &AddressFromPool) -> Result<ObservedClaim, Error> {
        let name = claim_name(self.machine, place);
        let Some(claim) = found(self.api.get(&name).await, "reading an IPAddressClaim")? else {
            return Ok(ObservedClaim::Absent);
        };
        let owner = owner_of(&claim.metadata).map(|(_, uid)| uid);
        if owner != Some(self.machine.metadata.uid()) {
            let what = "does not belong to this InfraMachine: if nothing else needs it, remove its \
                finalizers and delete it";
            return Ok(ObservedClaim::Invalid(format!("IPAddressClaim `{name}` {what}")));
        }
        if claim.metadata.deletion_timestamp.is_some() {
            return Ok(ObservedClaim::Terminating);
        }
        if claim.spec.pool_ref != PoolReference::from(pool) {
            let what = "is for another pool: delete it";
            return Ok(ObservedClaim::Invalid(format!("IPAddressClaim `{name}` {what}")));
        }
        let status = claim.status.unwrap_or_default();
        let pending = ObservedClaim::Pending(status.why_not_ready().map(str::to_owned));
        let address = &status.address_ref.name;
        if address.is_empty() {
            return Ok(pending);
        }
        let Some(found) = found(self.addresses.get(address).await, "reading an IPAddress")? else {
            return Ok(pending);
        };
        // It may be allocated for another claim as soon as it is gone.
        if found.metadata.deletion_timestamp.is_some() {
            return Ok(pending);
        }
        if found.spec.claim_ref.name != name {
            let what = format!("IPAddress `{address}` was not allocated for IPAddressClaim `{name}`");
            return Ok(ObservedClaim::Invalid(what));
        }
        Ok(match static_address(&found.spec, pool) {
            Some(allocated) => ObservedClaim::Allocated(allocated),
            None => ObservedClaim::Invalid(format!(
                "spec of IPAddress `{address}` has no valid address, prefix or gateway"
            )),
        })
    }

    /// Creates the claim for the pool at this place.
    ///
    /// # Errors
    /// [`Error::Conflict`] when the claim exists by now, [`Error::Gone`] when its kind is not served. The API
    /// server refused or could not be reached.
    pub async fn create(&self, cluster: &str, place: usize) -> Result<(), Error> {
        let Some(pool) = self.machine.spec.addresses_from_pools.get(place) else {
            return Ok(());
        };
        let parameters = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let claim = desired(self.machine, cluster, place, pool);
        let created = self.api.create(&parameters, &claim).await;
        let created = created.map_err(|error| Error::api("creating an IPAddressClaim", error));
        created.map(drop)
    }

    /// Deletes all claims of the machine. Returns the name of one that still exists.
    ///
    /// # Errors
    /// As [`Claims::release`].
    pub async fn delete(&self, owned: OwnedBy) -> Result<Option<String>, Error> {
        let mut remaining = None;
        for place in 0..self.machine.spec.addresses_from_pools.len() {
            if !self.delete_one(place, owned).await? {
                remaining = remaining.or(Some(claim_name(self.machine, place)));
            }
        }
        Ok(remaining)
    }

    /// Returns whether the claim no longer exists.
    async fn delete_one(&self, place: usize, owned: OwnedBy) -> Result<bool, Error> {
        let Some(claim) = self.release(place, owned).await? else {
            return Ok(true);
        };
        let name = claim_name(self.machine, place);
        if claim.deletion_timestamp.is_none() {
            let parameters = DeleteParams::default().preconditions(Preconditions {
                uid: claim.uid,
                resource_version: None,
            });
            found(
                self.api.delete(&name, &parameters).await,
                "deleting an IPAddressClaim",
            )?;
        }
        let rest = found(self.api.get_metadata(&name).await, "reading an IPAddressClaim")?;
        Ok(rest.is_none())
    }

    /// Removes this provider's finalizer from a claim of the machine, and returns the claim, if there is one.
    ///
    /// # Errors
    /// [`Error::Conflict`] when the claim has changed. The API server refused or could not be reached.
    pub async fn release(&self, place: usize, owned: OwnedBy) -> Result<Option<ObjectMeta>, Error> {
        let action = "removing the finalizer of an IPAddressClaim";
        let name = claim_name(self.machine, place);
        let Some(claim) = found(self.api.get_metadata(&name).await, action)? else {
            return Ok(None);
        };
        let claim = claim.metadata;
        let is_ownerless = is_ownerless(&claim);
        let is_own = |(name, uid)| match owned {
            OwnedBy::Name => name == self.machine.metadata.name(),
            OwnedBy::Uid => uid == self.machine.metadata.uid(),
        };
        if !is_ownerless && !owner_of(&claim).is_some_and(is_own) {
            return Ok(None);
        }
        let mut finalizers = claim.finalizers.clone().unwrap_or_default();
        let before = finalizers.len();
        finalizers.retain(|finalizer| finalizer != ADDRESS_CLAIM_FINALIZER);
        if finalizers.len() == before {
            return Ok(Some(claim));
        }
        let version = &claim.resource_version;
        let mut body = json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}});
        if is_ownerless {
            body["metadata"]["ownerReferences"] = json!(owner_reference(self.machine));
        }
        let patched = found(patch_metadata(&self.api, &name, &body).await, action)?;
        Ok(patched.map(|_| claim))
    }
}

fn static_address(spec: &IPAddressSpec, pool: &AddressFromPool) -> Option<StaticAddress> {
    let address: IpAddr = spec.address.parse().ok()?;
    let most = if address.is_ipv6() { 128 } else { 32 };
    let gateway = Some(spec.gateway.as_str()).filter(|gateway| !gateway.is_empty());
    Some(StaticAddress {
        address,
        prefix: u8::try_from(spec.prefix).ok().filter(|prefix| *prefix <= most)?,
        gateway: gateway.map(str::parse).transpose().ok()?,
        network: pool.network.clone(),
        pool: pool.into(),
    })
}

fn desired(machine: &InfraMachine, cluster: &str, place: usize, pool: &AddressFromPool) -> IPAddressClaim {
    let spec = IPAddressClaimSpec {
        cluster_name: cluster.to_owned(),
        pool_ref: pool.into(),
    };
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let labels = [
        label(labels::CLUSTER_NAME, cluster),
        label(labels::ADDRESS_CLAIM, ""),
    ];
    let mut claim = IPAddressClaim::new(&claim_name(machine, place), spec);
    claim.metadata.namespace.clone_from(&machine.metadata.namespace);
    claim.metadata.labels = Some(labels.into());
    claim.metadata.finalizers = Some(vec![ADDRESS_CLAIM_FINALIZER.to_owned()]);
    claim.metadata.owner_references = Some(owner_reference(machine));
    claim
}

/// Whether this provider has made the claim, and a restore has left out its owner.
fn is_ownerless(claim: &ObjectMeta) -> bool {
    let all = claim.labels.as_ref();
    let is_made_here = all.is_some_and(|all| all.contains_key(labels::ADDRESS_CLAIM));
    is_made_here && claim.owner_references.iter().flatten().next().is_none()
}

/// The garbage collector deletes a claim after its machine.
fn owner_reference(machine: &InfraMachine) -> Vec<OwnerReference> {
    let owner = machine.controller_owner_ref(&());
    let blocking = owner.map(|owner| OwnerReference {
        block_owner_deletion: Some(true),
        ..owner
    });
    blocking.into_iter().collect()
}

/// Returns `None` for an object that does not exist, or whose kind is not served.
fn found<T>(answer: kube::Result<T>, action: &'static str) -> Result<Option<T>, Error> {
    match answer.map_err(|error| Error::api(action, error)) {
        Ok(found) => Ok(Some(found)),
        Err(Error::Gone { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
