//! Compares a list of VMs with the machines that should be in it. Pure.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::reconcile::runtime_state::LookUpHint;

/// A provisioned machine that is expected in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The hash of the InfraMachine's UID: see [`kube_fleet::Entry::uid`].
    pub uid: u64,
    /// The hash of its VM's id: the ids of a hundred thousand VMs take ten MiB.
    pub provider_id: u64,
    /// Whether its VM was found missing before.
    pub vanished: bool,
}

/// The machines whose VMs are missing, by UID.
pub type Absences = HashMap<u64, Absence>;

/// How long and how often lists have lacked a VM.
#[derive(Clone, Copy, Debug)]
pub struct Absence {
    since: Instant,
    /// The number of lists in a row.
    lists: u32,
}

/// A list of VMs.
#[derive(Clone, Copy, Debug)]
pub struct List<'a> {
    /// The hashed ids of all VMs.
    pub ids: &'a HashSet<u64>,
    /// When the list was requested. All expected machines were provisioned before.
    pub requested_at: Instant,
    /// How long the driver may still show an earlier state.
    pub window: Duration,
}

/// How many lists in a row must lack a VM: a single list may be outdated.
const MIN_ABSENCES: u32 = 2;

/// Returns the result of a list for the expected machines, by UID: how it contradicts the machine's status,
/// if it does. Omits a machine whose VM may be absent only because the driver is behind. This is the final
/// word if the driver cannot be asked about a single VM.
pub fn compare(
    expected: &[Expected],
    list: List<'_>,
    absences: &mut Absences,
) -> Vec<(u64, Option<LookUpHint>)> {
    let mut results = Vec::new();
    for machine in expected {
        let is_listed = list.ids.contains(&machine.provider_id);
        if is_listed || machine.vanished {
            absences.remove(&machine.uid);
            let is_back = is_listed && machine.vanished;
            results.push((machine.uid, is_back.then_some(LookUpHint::Back)));
        } else if is_missing(machine.uid, list, absences) {
            results.push((machine.uid, Some(LookUpHint::Missing)));
        }
    }
    results
}

/// Whether a VM has been absent for longer than the driver may be behind. The VM existed when the first list
/// without it was requested, so that list only starts the count.
fn is_missing(uid: u64, list: List<'_>, absences: &mut Absences) -> bool {
    let absence = absences.entry(uid).or_insert(Absence {
        since: list.requested_at,
        lists: 0,
    });
    absence.lists = absence.lists.saturating_add(1);
    absence.lists >= MIN_ABSENCES && list.requested_at.saturating_duration_since(absence.since) >= list.window
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(12);

    fn id(text: &str) -> u64 {
        text.bytes().map(u64::from).sum()
    }

    /// A machine that is expected in a sequence of lists.
    struct Case {
        start: Instant,
        window: Duration,
        absences: Absences,
    }

    fn case(window: Duration) -> Case {
        Case {
            start: Instant::now(),
            window,
            absences: Absences::new(),
        }
    }

    impl Case {
        /// The result of a list that is requested `seconds` after the start.
        fn says(&mut self, seconds: u64, ids: &[&str], vanished: bool) -> Option<(u64, Option<LookUpHint>)> {
            let expected = [Expected {
                uid: 1,
                provider_id: id("p"),
                vanished,
            }];
            let ids = ids.iter().map(|text| id(text)).collect();
            let list = List {
                ids: &ids,
                requested_at: self.start + Duration::from_secs(seconds),
                window: self.window,
            };
            compare(&expected, list, &mut self.absences).pop()
        }
    }

    /// CTL-LM-00
    #[test]
    fn a_vm_is_missing_when_two_lists_in_a_row_lack_it() {
        let mut case = case(Duration::ZERO);
        assert_eq!(case.says(0, &[], false), None);
        assert_eq!(
            case.says(1, &["p"], false),
            Some((1, None)),
            "seen again: the count starts anew"
        );
        assert_eq!(case.says(2, &[], false), None);
        assert_eq!(case.says(3, &[], false), Some((1, Some(LookUpHint::Missing))));
    }

    /// INI-08: a driver shows a new VM late, and may not support asking about a single VM.
    #[test]
    fn a_vm_is_not_missing_while_the_driver_may_be_behind() {
        let mut case = case(WINDOW);
        for seconds in [0, 1, 2, 11] {
            assert_eq!(case.says(seconds, &[], false), None, "{seconds} s");
        }
        assert_eq!(case.says(12, &[], false), Some((1, Some(LookUpHint::Missing))));
        assert_eq!(case.says(13, &["p"], false), Some((1, None)));
        assert_eq!(case.says(14, &[], false), None, "the window starts anew");
        assert_eq!(case.says(25, &[], false), None);
        assert_eq!(case.says(26, &[], false), Some((1, Some(LookUpHint::Missing))));
    }

    #[test]
    fn a_returned_vm_is_reported_by_the_first_list_that_has_it() {
        let mut case = case(WINDOW);
        assert_eq!(case.says(0, &["p"], true), Some((1, Some(LookUpHint::Back))));
        assert_eq!(case.says(60, &[], true), Some((1, None)));
    }
}
