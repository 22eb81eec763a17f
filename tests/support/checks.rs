//! Checks of InfraMachines whose errors name the difference.

use anyhow::{Context, Result, ensure};
use capcmi::api::conditions;
use capcmi::api::v1alpha1::InfraMachine;

/// Whether the machine is up.
pub fn provisioned(machine: &InfraMachine) -> Result<()> {
    let status = machine.status.as_ref().context("has no status")?;
    ensure!(machine.spec.provider_id.is_some(), "has no providerID");
    ensure!(
        status.initialization.as_ref().and_then(|i| i.provisioned) == Some(true),
        "is not provisioned: {:?}",
        status.last_operation
    );
    condition(machine, conditions::READY, "True", None)
}

/// Whether a condition has this status and, if one is given, this reason.
pub fn condition(machine: &InfraMachine, type_: &str, state: &str, reason: Option<&str>) -> Result<()> {
    let all = machine
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    let found = conditions::get(all, type_).with_context(|| format!("no condition {type_}"))?;
    ensure!(
        found.status == state && reason.is_none_or(|reason| found.reason == reason),
        "{type_} is {} for {}: {}",
        found.status,
        found.reason,
        found.message
    );
    Ok(())
}
