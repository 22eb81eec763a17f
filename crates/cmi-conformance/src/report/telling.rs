//! Which failure tells most: one in what the other cases see and work by comes before those that follow
//! from it.

use super::CaseReport;

/// The cases that others build upon, the most basic first. A list that holds the VMs of other clusters fails
/// every case that looks at a cluster; a deletion that does nothing every one that expects a VM to be gone.
const FOUNDATIONS: &[&str] = &[
    "create-makes-a-vm",
    "wire-services",
    "wire-required-capabilities",
    "info-names-the-driver",
    "capabilities-stay",
    "list-offered",
    "list-empty",
    "list-other-cluster",
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

/// Sorts before all that it explains.
pub(super) fn of_case(name: &str) -> usize {
    let place = FOUNDATIONS.iter().position(|foundation| *foundation == name);
    place.unwrap_or(FOUNDATIONS.len())
}

/// That of the most telling failure of a rule's cases.
pub(super) fn of_rule(id: &str, cases: &[CaseReport]) -> usize {
    let failed = cases
        .iter()
        .filter(|case| case.verdict.is_failure() && case.proves.contains(&id));
    failed.map(|case| of_case(&case.name)).min().unwrap_or(usize::MAX)
}

/// The cases that failed, the most telling first.
pub(super) fn failures(cases: &[CaseReport]) -> Vec<&CaseReport> {
    let mut failed: Vec<_> = cases.iter().filter(|case| case.verdict.is_failure()).collect();
    failed.sort_by_key(|case| of_case(&case.name));
    failed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases;

    #[test]
    fn each_foundation_is_a_case() {
        for name in FOUNDATIONS {
            assert!(cases::all().any(|case| case.name == *name), "{name}");
        }
    }
}
