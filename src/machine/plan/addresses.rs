//! Static addresses: claims for addresses of pools, and the addresses in the driver's spec.

use std::ops::ControlFlow;

use serde_json::Value;

use super::{Claim, Observed, Plan, refuse};
use crate::api::cluster_api::Machine;
use crate::api::conditions::{self, reason};
use crate::api::identity::{InvalidSpec, VmRecord};
use crate::api::ipam::claim_name;
use crate::api::retry::LONG_WAIT;
use crate::api::v1alpha1::InfraMachine;
use crate::apiserver::claims::ObservedClaim;
use crate::driver::KnownDriver;
use crate::machine::outcome::Blocked;
use cmi_driver::tags::ReservedKey;
use cmi_driver::{Capabilities, ProviderSpec, StaticAddress};

/// Returns the spec with the static addresses that the VM was made with. Once a VM may exist, they never
/// change, and the claims are not read.
pub(super) fn with_recorded_addresses(
    spec: ProviderSpec,
    record: &VmRecord,
    capabilities: &Capabilities,
) -> Result<ProviderSpec, InvalidSpec> {
    let Some(path) = &capabilities.address_path else {
        return Ok(spec);
    };
    match record.bound(false).and_then(|made| made.provider_spec.get(path)) {
        Some(addresses) => with_addresses(spec, capabilities, addresses.clone()),
        None => Ok(spec),
    }
}

/// Returns the spec with the static addresses that were claimed for the machine, or the plan that leads to
/// them.
pub(super) fn with_claimed_addresses(
    machine: &InfraMachine,
    owner: &Machine,
    observed: &Observed,
    driver: &KnownDriver,
    record: &VmRecord,
    spec: ProviderSpec,
) -> ControlFlow<Plan, ProviderSpec> {
    let path = driver.capabilities.address_path.as_ref();
    let is_complete = path.is_some_and(|path| spec.get(path).is_some());
    if machine.spec.addresses_from_pools.is_empty() || is_complete {
        return ControlFlow::Continue(spec);
    }
    let Some(claims) = &observed.claims else {
        return ControlFlow::Break(Plan::ReadClaims);
    };
    if let Some(blocked) = claims.iter().find_map(obstacle) {
        return ControlFlow::Break(blocked.into());
    }
    let Some(missing) = claims.iter().position(|claim| allocated(claim).is_none()) else {
        let addresses: Vec<_> = claims.iter().filter_map(allocated).collect();
        // Addresses and texts always have a JSON form.
        let addresses = serde_json::to_value(addresses).unwrap_or_default();
        return match with_addresses(spec, &driver.capabilities, addresses) {
            Ok(spec) => ControlFlow::Continue(spec),
            Err(invalid) => ControlFlow::Break(refuse(invalid, driver)),
        };
    };
    let wait = waiting(machine, missing, &claims[missing]);
    let places = |wanted: &ObservedClaim| {
        let all = claims.iter().enumerate();
        let all = all.filter(|(_, claim)| *claim == wanted);
        all.map(|(place, _)| place).collect::<Vec<_>>()
    };
    let absent = places(&ObservedClaim::Absent);
    let terminating = places(&ObservedClaim::Terminating);
    if absent.is_empty() && terminating.is_empty() {
        return ControlFlow::Break(wait.into());
    }
    ControlFlow::Break(Plan::Claim(Box::new(Claim {
        record: record.clone(),
        cluster: owner.spec.cluster_name.clone(),
        absent,
        terminating,
        wait,
    })))
}

fn allocated(claim: &ObservedClaim) -> Option<&StaticAddress> {
    let ObservedClaim::Allocated(address) = claim else {
        return None;
    };
    Some(address)
}

fn with_addresses(
    mut spec: ProviderSpec,
    capabilities: &Capabilities,
    addresses: Value,
) -> Result<ProviderSpec, InvalidSpec> {
    if let Some(path) = &capabilities.address_path {
        let set = spec.set(path, addresses);
        set.map_err(|place| InvalidSpec::Reserved(ReservedKey::Addresses(place)))?;
    }
    Ok(spec)
}

/// Returns the wait for a claim that only an operator can help.
fn obstacle(claim: &ObservedClaim) -> Option<Blocked> {
    let ObservedClaim::Invalid(why) = claim else {
        return None;
    };
    Some(Blocked::new(conditions::READY, reason::ADDRESS_CLAIM_INVALID, why).until(LONG_WAIT))
}

/// Returns the wait after the API server refused a request for a claim.
pub fn claim_refused(why: &str) -> Blocked {
    let message = format!("cannot claim an address: {why}");
    Blocked::new(conditions::READY, reason::ADDRESS_CLAIM_REFUSED, message).until(LONG_WAIT)
}

/// Returns the wait for the pool at this place in the spec. Gives the reason of its claim, but not the
/// message, which may change at each attempt while a fleet waits.
fn waiting(machine: &InfraMachine, place: usize, missing: &ObservedClaim) -> Blocked {
    let pools = &machine.spec.addresses_from_pools;
    let pool = pools
        .get(place)
        .map(|pool| format!("{} `{}`", pool.kind, pool.name));
    let (pool, claim) = (pool.unwrap_or_default(), claim_name(machine, place));
    let why = match missing {
        ObservedClaim::Pending(Some(reason)) => format!("reports {reason}: check its conditions"),
        ObservedClaim::Terminating => "is being deleted".to_owned(),
        _ => "has none yet".to_owned(),
    };
    let message = format!("waiting for an address from {pool}: IPAddressClaim `{claim}` {why}");
    Blocked::new(conditions::READY, reason::WAITING_FOR_ADDRESS, message).until(LONG_WAIT)
}
