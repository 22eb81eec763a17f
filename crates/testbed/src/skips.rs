//! The cases that a run of the conformance suite skips.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// A driver without credentials has no wrong ones.
pub const NO_CREDENTIALS: &str = "the driver takes no credentials";
/// A driver for VMs that it made itself finds their tags on them.
pub const NO_MACHINE_TAG: &str = "the driver does not add the tag `capcmi.io/machine` (`hot_updatable`)";
/// A list with states would take a request for each VM.
pub const NO_LIST_STATE: &str = "the driver's lists have no state (`list_has_state`)";
/// DHCP or the platform gives the addresses.
pub const NO_ADDRESS_PATH: &str = "the driver cannot set static addresses (`address_path`)";
/// Several VMs of one machine cannot exist.
pub const UNIQUE_NAMES: &str = "the back end takes no second VM of a name (`uniqueNames`)";
/// The platform has no quota.
pub const NO_QUOTA: &str = "the configuration has no `quotaBreakingSpec`";

/// Fails unless a run skipped cases because the driver does not offer exactly these calls, and for exactly
/// these other reasons. A case that ran, but tried less than it could, counts too. `report` is the file of
/// `capcmi conformance --json`.
pub fn skips_only(report: &Value, calls: &[&str], reasons: &[&str]) -> Result<()> {
    let cases = report["cases"].as_array().context("the report has no cases")?;
    let (skipped, run): (Vec<_>, Vec<_>) = cases.iter().partition(|case| case["verdict"] == "skipped");
    let mut found: BTreeSet<String> = skipped
        .iter()
        .map(|case| not_offered(text(&case["reason"])))
        .collect();
    let lacked = run.iter().filter_map(|case| case["missing"].as_array()).flatten();
    found.extend(lacked.map(|missing| format!("tries less without {}", text(missing))));
    let expected: BTreeSet<String> = calls
        .iter()
        .chain(reasons)
        .map(|reason| (*reason).to_owned())
        .collect();
    let (more, fewer): (Vec<_>, Vec<_>) = (
        found.difference(&expected).collect(),
        expected.difference(&found).collect(),
    );
    ensure!(
        more.is_empty() && fewer.is_empty(),
        "cases were skipped for {more:#?}, and none for {fewer:#?}"
    );
    Ok(())
}

/// Returns the call that the driver does not offer, or another reason unchanged.
fn not_offered(reason: &str) -> String {
    let offered = reason.strip_prefix("the driver does not offer ");
    let declared = || {
        Some(
            reason
                .split_once(" is not declared, so the client does not call it")?
                .0,
        )
    };
    offered.or_else(declared).unwrap_or(reason).to_owned()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
