//! Reads, creates and releases the claims for a machine's static addresses.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource as _;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use serde_json::json;

use super::Context;
use super::object::Object;
use super::outcome::{Blocked, Outcome, RemovalReason};
use super::plan::{Claim, ObservedClaim, refused};
use crate::api::conditions::{self, reason};
use crate::api::ipam::{
    IPAddress, IPAddressClaim, IPAddressClaimSpec, IPAddressSpec, PoolReference, claim_name, owner_of,
};
use crate::api::retry::LONG_WAIT;
use crate::api::v1alpha1::{AddressFromPool, InfraMachine};
use crate::api::{ADDRESS_CLAIM_FINALIZER, ObjectMetaExt as _, labels, wall_clock};
use crate::apiserver::{Error, FIELD_MANAGER, error_message, patch_metadata};
use cmi_driver::StaticAddress;

/// The shortest time until the next check whether an IPAM provider has released an address. Later checks take
/// half of the time since the deletion, because each one looks up the VM. The watch of claims wakes earlier.
const RELEASED_WITHIN: Duration = Duration::from_secs(30);

/// Reads the claims for the pools of a machine, in their order.
///
/// # Errors
/// The API server could not be reached.
pub async fn read(ctx: &Context, machine: &InfraMachine) -> Result<Vec<ObservedClaim>, Error> {
    // Before the claims are read: a change is seen by the watch or by the read.
    ctx.claims_wanted.notify_one();
    let mut claims = Vec::new();
    for (place, pool) in machine.spec.addresses_from_pools.iter().enumerate() {
        let observed = match observe(ctx, machine, place, pool).await {
            Err(Error::Api { source, action }) if is_refused(&source) => {
                ObservedClaim::Refused(format!("{action} failed: {}", error_message(&source)))
            }
            observed => observed?,
        };
        claims.push(observed);
    }
    Ok(claims)
}

async fn observe(
    ctx: &Context,
    machine: &InfraMachine,
    place: usize,
    pool: &AddressFromPool,
) -> Result<ObservedClaim, Error> {
    let namespace = machine.metadata.namespace();
    let name = claim_name(machine, place);
    let claims = Api::<IPAddressClaim>::namespaced(ctx.client.clone(), namespace);
    let Some(claim) = found(claims.get(&name).await, "reading an IPAddressClaim")? else {
        return Ok(ObservedClaim::Absent);
    };
    let owner = owner_of(&claim.metadata).map(|(_, uid)| uid);
    if owner != Some(machine.metadata.uid()) {
        let what = "does not belong to this InfraMachine: if nothing else needs it, remove its finalizers \
            and delete it";
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
    let addresses = Api::<IPAddress>::namespaced(ctx.client.clone(), namespace);
    let Some(found) = found(addresses.get(address).await, "reading an IPAddress")? else {
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

/// Creates the missing claims. A claim that is being deleted loses this provider's finalizer, so that another
/// can take its name.
///
/// # Errors
/// [`Error::Conflict`] when a claim exists by now. The API server could not be reached.
pub async fn claim(ctx: &Context, machine: &InfraMachine, plan: Claim) -> Result<Outcome, Error> {
    for place in plan.terminating {
        release_one(ctx, machine, place, OwnedBy::Uid).await?;
    }
    for place in plan.absent {
        let Some(pool) = machine.spec.addresses_from_pools.get(place) else {
            continue;
        };
        if let Some(refused) = create(ctx, machine, &plan.cluster, place, pool).await? {
            return Ok(refused.into());
        }
    }
    Ok(plan.wait.into())
}

async fn create(
    ctx: &Context,
    machine: &InfraMachine,
    cluster: &str,
    place: usize,
    pool: &AddressFromPool,
) -> Result<Option<Blocked>, Error> {
    let action = "creating an IPAddressClaim";
    let namespace = machine.metadata.namespace();
    let api = Api::<IPAddressClaim>::namespaced(ctx.client.clone(), namespace);
    let parameters = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    let claim = desired(machine, cluster, place, pool);
    match api.create(&parameters, &claim).await {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Some(refused(
            "the API server does not serve IPAddressClaim of ipam.cluster.x-k8s.io/v1beta2: install Cluster \
                API 1.11 or later",
        ))),
        Err(error) => match Error::api(action, error) {
            Error::Api { source, action } if is_refused(&source) => Ok(Some(refused(&format!(
                "{action} failed: {}",
                error_message(&source)
            )))),
            error => Err(error),
        },
    }
}

fn desired(machine: &InfraMachine, cluster: &str, place: usize, pool: &AddressFromPool) -> IPAddressClaim {
    let spec = IPAddressClaimSpec {
        cluster_name: cluster.to_owned(),
        pool_ref: pool.into(),
    };
    let mut claim = IPAddressClaim::new(&claim_name(machine, place), spec);
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    claim.metadata = ObjectMeta {
        namespace: machine.metadata.namespace.clone(),
        labels: Some(
            [
                label(labels::CLUSTER_NAME, cluster),
                label(labels::ADDRESS_CLAIM, ""),
            ]
            .into(),
        ),
        finalizers: Some(vec![ADDRESS_CLAIM_FINALIZER.to_owned()]),
        owner_references: Some(owner_reference(machine)),
        ..claim.metadata
    };
    claim
}

/// Releases the addresses of a machine whose VM is gone, and returns the outcome. While a claim exists,
/// returns a wait instead: an IPAM provider may not release an address of a Cluster that is gone, so the
/// machine outlives its claims. A forced removal does not wait.
///
/// # Errors
/// [`Error::Conflict`] when the machine or a claim has changed since it was read: another machine may have
/// the name by now. The API server refused or could not be reached.
pub async fn released(
    ctx: &Context,
    machine: &InfraMachine,
    object: &Object<'_>,
    outcome: Outcome,
) -> Result<Outcome, Error> {
    let (waits, owned) = match outcome {
        Outcome::Gone => (true, OwnedBy::Name),
        Outcome::RemoveFinalizer(RemovalReason::NeverCreated) => (true, OwnedBy::Uid),
        Outcome::RemoveFinalizer(RemovalReason::Forced) => (false, OwnedBy::Name),
        _ => return Ok(outcome),
    };
    if machine.spec.addresses_from_pools.is_empty() {
        return Ok(outcome);
    }
    object.ensure_newest("releasing the addresses").await?;
    ctx.claims_wanted.notify_one();
    let mut remaining = None;
    for place in 0..machine.spec.addresses_from_pools.len() {
        if !delete_one(ctx, machine, place, owned).await? {
            remaining = remaining.or(Some(claim_name(machine, place)));
        }
    }
    Ok(match remaining.filter(|_| waits) {
        Some(claim) => releasing(machine, &claim).into(),
        None => outcome,
    })
}

/// How a claim names its machine. A restored claim of a machine with a VM may name the UID that the machine
/// had before. Without a VM, another UID is that of an earlier machine, whose VM may still have the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnedBy {
    Name,
    Uid,
}

fn releasing(machine: &InfraMachine, claim: &str) -> Blocked {
    let message =
        format!("the VM is gone; waiting for the IPAM provider to release IPAddressClaim `{claim}`");
    let deleted = machine.metadata.deletion_timestamp.as_ref();
    let waited = deleted.and_then(|deleted| wall_clock::elapsed(deleted.0, wall_clock::now()));
    let next = (waited.unwrap_or_default() / 2).clamp(RELEASED_WITHIN, LONG_WAIT);
    Blocked::new(conditions::DELETING, reason::WAITING_FOR_ADDRESS_RELEASE, message).until(next)
}

/// Deletes a claim of the machine. Returns whether it no longer exists.
async fn delete_one(
    ctx: &Context,
    machine: &InfraMachine,
    place: usize,
    owned: OwnedBy,
) -> Result<bool, Error> {
    let Some(claim) = release_one(ctx, machine, place, owned).await? else {
        return Ok(true);
    };
    let action = "deleting an IPAddressClaim";
    let api = Api::<IPAddressClaim>::namespaced(ctx.client.clone(), machine.metadata.namespace());
    let name = claim_name(machine, place);
    let parameters = DeleteParams::default().preconditions(Preconditions {
        uid: claim.uid,
        resource_version: None,
    });
    if claim.deletion_timestamp.is_none() && found(api.delete(&name, &parameters).await, action)?.is_none() {
        return Ok(true);
    }
    let rest = found(api.get_metadata(&name).await, "reading an IPAddressClaim")?;
    Ok(rest.is_none())
}

/// Removes this provider's finalizer from a claim of the machine, and returns the claim, if there is one.
///
/// # Errors
/// [`Error::Conflict`] when the claim has changed. The API server refused or could not be reached.
async fn release_one(
    ctx: &Context,
    machine: &InfraMachine,
    place: usize,
    owned: OwnedBy,
) -> Result<Option<ObjectMeta>, Error> {
    let action = "removing the finalizer of an IPAddressClaim";
    let name = claim_name(machine, place);
    let api = Api::<IPAddressClaim>::namespaced(ctx.client.clone(), machine.metadata.namespace());
    let Some(claim) = found(api.get_metadata(&name).await, action)? else {
        return Ok(None);
    };
    let claim = claim.metadata;
    let is_ownerless = is_ownerless(&claim);
    let is_own = |(name, uid)| match owned {
        OwnedBy::Name => name == machine.metadata.name(),
        OwnedBy::Uid => uid == machine.metadata.uid(),
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
        body["metadata"]["ownerReferences"] = json!(owner_reference(machine));
    }
    let patched = found(patch_metadata(&api, &name, &body).await, action)?;
    Ok(patched.map(|_| claim))
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

/// Whether the API server refused the request, so that only a change can help.
fn is_refused(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else {
        return false;
    };
    (400..500).contains(&status.code) && ![401, 408, 409, 429].contains(&status.code)
}
