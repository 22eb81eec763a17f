//! The order of failures in a report. A failure of a basic case comes before the failures that follow from
//! it.

use super::CaseReport;
use crate::rules::{self, Rule};

/// The cases that others build upon, the most basic first. If a list contains VMs of other clusters, every
/// case that lists a cluster fails. If a deletion has no effect, every case that expects a VM to be gone
/// fails.
const FOUNDATIONS: &[&str] = &[
    "create-makes-a-vm",
    "wire-services",
    "wire-required-capabilities",
    "info-names-the-driver",
    "capabilities-stay",
    "list-offered",
    "list-other-cluster",
    "list-empty",
    "list-keys",
    "status-offered",
    "status-never-made",
    "status-other-cluster",
    "status-like-create",
    "create-ids",
    "create-again",
    "create-two-clusters",
    "delete-deletes",
    "delete-never-made",
    "delete-just-its-vm",
    "initialize-offered",
];

/// The cases whose failure costs VMs or secrets: a driver must not be used before they pass. They are named
/// even if many other cases fail.
const DANGERS: &[&str] = &[
    "status-unavailable",
    "list-unavailable",
    "status-other-cluster",
    "list-other-cluster",
    "delete-just-its-vm",
    "delete-other-cluster",
    "delete-other-machine-id",
    "create-again",
    "create-at-once",
    "create-given-up-then-deleted",
    "create-given-up-while-slow",
    "restart-finds-the-vm",
    "secrets-do-not-come-back",
    "secrets-are-not-logged",
];

/// Whether a failure of the case costs VMs or secrets.
pub(super) fn is_dangerous(name: &str) -> bool {
    DANGERS.contains(&name)
}

/// Returns the rank of a case: it precedes all cases whose failures it explains.
pub(super) fn of_case(name: &str) -> usize {
    let place = FOUNDATIONS.iter().position(|foundation| *foundation == name);
    place.unwrap_or(FOUNDATIONS.len())
}

/// Returns the rank of the most telling failure among a rule's cases.
pub(super) fn of_rule(id: &str, cases: &[CaseReport]) -> usize {
    let failed = cases
        .iter()
        .filter(|case| case.verdict.is_failure() && case.proves.contains(&id));
    failed.map(|case| of_case(&case.name)).min().unwrap_or(usize::MAX)
}

/// The cases that failed, the most telling first.
#[derive(Debug, Default)]
pub(super) struct Failures<'a> {
    /// The failed cases that make the driver non-compliant.
    pub binding: Vec<&'a CaseReport>,
    /// The failed cases that break no binding rule.
    pub advisory: Vec<&'a CaseReport>,
}

impl<'a> Failures<'a> {
    pub(super) fn of(cases: &'a [CaseReport]) -> Self {
        let mut failed: Vec<_> = cases.iter().filter(|case| case.verdict.is_failure()).collect();
        failed.sort_by_key(|case| of_case(&case.name));
        let (binding, advisory) = failed.into_iter().partition(|case| is_binding(case));
        Self { binding, advisory }
    }
}

/// Whether the case proves a binding rule.
fn is_binding(case: &CaseReport) -> bool {
    let mut proven = case.proves.iter().filter_map(|id| rules::find(id));
    proven.any(Rule::is_binding)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases;

    #[test]
    fn each_foundation_and_each_danger_is_a_case() {
        for name in FOUNDATIONS.iter().chain(DANGERS) {
            assert!(cases::all().any(|case| case.name == *name), "{name}");
        }
    }
}
