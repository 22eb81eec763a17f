//! Adoption of a VM that another controller created. No VM is created, and the VM is not touched until the
//! driver confirms it.

use std::time::Duration;

use super::waits::retry_wait;
use super::{
    Adopt, DriverPlan, Observed, Plan, ProviderIdConflict, known_provider_id, made_from, refers_to_another,
    refuse,
};
use crate::api::annotations;
use crate::api::cluster_api::Machine;
use crate::api::conditions::{self, reason};
use crate::api::identity::{Adoption, InvalidSpec, VmRecord, given_state, given_tags};
use crate::api::retry::LONG_WAIT;
use crate::api::v1alpha1::InfraMachine;
use crate::driver::KnownDriver;
use crate::machine::outcome::{Blocked, Outcome};
use cmi_driver::{Operation, ProviderSpec};

/// The wait between look-ups of an unseen VM that is to be adopted or that a create may still make.
pub const LOOK_UP_INTERVAL: Duration = Duration::from_secs(30);

/// The wait before checking whether the cache holds the current version of the object. Usually a watch event
/// comes first.
const UNTIL_CACHED: Duration = Duration::from_secs(1);

/// Returns the obstacle to an adoption that no driver call can resolve.
pub(super) fn obstacle(
    machine: &InfraMachine,
    observed: &Observed,
    owner: &Machine,
    record: &VmRecord,
) -> Option<Blocked> {
    match Adoption::of(machine) {
        Adoption::None => return None,
        Adoption::TooLate => {
            let message = too_late(machine);
            return Some(Blocked::new(conditions::READY, reason::ADOPTION_INVALID, message));
        }
        Adoption::Asked => {}
    }
    let has_pools = !machine.spec.addresses_from_pools.is_empty();
    let (reason, message, requeue_after) = if has_pools {
        (reason::ADOPTION_INVALID, adopted_addresses(), None)
    } else if let Some(message) = refers_to_another(machine, owner) {
        (reason::NOT_REFERENCED, message, None)
    } else if known_provider_id(machine).is_none() {
        (reason::ADOPTION_INVALID, provider_id_missing(), None)
    } else if let Err(message) = given_tags(machine, &record.cluster, super::role_of(owner)) {
        (reason::ADOPTION_INVALID, message, None)
    } else if let Err(message) = given_state(machine) {
        (reason::ADOPTION_INVALID, message, None)
    } else if let ProviderIdConflict::Named(other) = &observed.conflict {
        (
            reason::ADOPTION_CONTESTED,
            contested(machine, other),
            Some(LOOK_UP_INTERVAL),
        )
    } else {
        return None;
    };
    Some(Blocked::new(conditions::READY, reason, message).until(requeue_after))
}

/// Decides the next action for a machine that adopts a VM. `wanted` is the machine's spec with the tags of
/// the VM.
pub(super) fn plan_adoption(
    machine: &InfraMachine,
    observed: &Observed,
    driver: &KnownDriver,
    record: VmRecord,
    wanted: Result<ProviderSpec, InvalidSpec>,
) -> Plan {
    let Some(provider_id) = known_provider_id(machine) else {
        return Outcome::Unchanged(None).into();
    };
    if !driver.capabilities.supports(Operation::GetMachineStatus) {
        return cannot_look_up(&driver.name).into();
    }
    let look_up = match wanted {
        Ok(wanted) => wanted,
        Err(invalid) => return refuse(invalid, driver),
    };
    if let Some(wait) = retry_wait(observed) {
        return Outcome::Waiting(wait.requeue_after()).into();
    }
    if observed.conflict == ProviderIdConflict::Unknown {
        return Outcome::Unchanged(Some(UNTIL_CACHED)).into();
    }
    // An unreadable state was already reported as an obstacle.
    let state = given_state(machine).ok().flatten();
    let record = record
        .adopting(made_from(machine, driver, look_up.clone()))
        .with_last_known_state(state.as_ref());
    DriverPlan::Adopt(Box::new(Adopt {
        record,
        look_up,
        provider_id,
    }))
    .into()
}

fn too_late(machine: &InfraMachine) -> String {
    // Users can neither change nor remove a providerID.
    let remedy = match machine.spec.provider_id {
        Some(_) => {
            "delete this InfraMachine first and then its Machine, or remove the annotation if \
                spec.providerID is that of its own VM"
        }
        None => "remove the annotation from this one",
    };
    format!(
        "annotation {} asks to adopt a VM, but this InfraMachine may have its own, because a create was \
            issued: create another InfraMachine to adopt the VM, and {remedy}",
        annotations::ADOPT
    )
}

fn adopted_addresses() -> String {
    format!(
        "annotation {} asks to adopt a VM, which keeps its addresses: create the InfraMachine without \
            spec.addressesFromPools",
        annotations::ADOPT
    )
}

fn provider_id_missing() -> String {
    format!(
        "annotation {} asks to adopt a VM, but spec.providerID is not set: set it to the id of the VM, or \
            remove the annotation to create a new VM",
        annotations::ADOPT
    )
}

fn contested(machine: &InfraMachine, other: &str) -> String {
    format!(
        "InfraMachine `{other}` has the same spec.providerID `{}`: delete the InfraMachine that is not to \
            own the VM first, and then its Machine; in the other order, Cluster API drains and deletes the \
            Node of the VM",
        machine.spec.provider_id.as_deref().unwrap_or_default()
    )
}

/// Returns the wait for a driver that can look up a single VM.
pub fn cannot_look_up(driver: &str) -> Blocked {
    let message = format!(
        "driver `{driver}` does not implement GetMachineStatus, which adoption requires: use a driver that \
            does"
    );
    Blocked::new(conditions::READY, reason::ADOPTION_INVALID, message).until(LONG_WAIT)
}
