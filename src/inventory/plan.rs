//! What a list of VMs says about the machines that should be in it. Pure.

use std::collections::{HashMap, HashSet};

/// A provisioned machine that is expected in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// UID of the InfraMachine.
    pub uid: String,
    /// Its VM.
    pub provider_id: String,
    /// Whether its VM was found to be gone before.
    pub vanished: bool,
}

/// How often in a row a machine has been missing, by UID.
pub type Sightings = HashMap<String, u32>;

/// How many lists in a row have to lack a VM before the driver is asked about it: one list may have been behind.
pub const ENOUGH: u32 = 2;

/// The machines that the driver has to be asked about: missing often enough, or back although they were gone.
pub fn suspects(expected: &[Expected], listed: &HashSet<String>, sightings: &mut Sightings) -> Vec<String> {
    let mut suspects = Vec::new();
    for machine in expected {
        let present = listed.contains(&machine.provider_id);
        if present {
            sightings.remove(&machine.uid);
        }
        match (present, machine.vanished) {
            (true, true) => suspects.push(machine.uid.clone()),
            (true, false) | (false, true) => {}
            (false, false) => {
                let missing = sightings.entry(machine.uid.clone()).or_default();
                *missing = missing.saturating_add(1);
                if *missing >= ENOUGH {
                    suspects.push(machine.uid.clone());
                }
            }
        }
    }
    suspects
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(vanished: bool) -> Vec<Expected> {
        vec![Expected {
            uid: "u".to_owned(),
            provider_id: "p".to_owned(),
            vanished,
        }]
    }

    /// CTL-LM-00
    #[test]
    fn a_machine_is_asked_about_when_two_lists_in_a_row_lack_it() {
        let (mut sightings, empty, full) =
            (Sightings::new(), HashSet::new(), HashSet::from(["p".to_owned()]));
        assert!(suspects(&expected(false), &empty, &mut sightings).is_empty());
        assert!(
            suspects(&expected(false), &full, &mut sightings).is_empty(),
            "seen again: the count starts anew"
        );
        assert!(suspects(&expected(false), &empty, &mut sightings).is_empty());
        assert_eq!(suspects(&expected(false), &empty, &mut sightings), ["u"]);
    }

    #[test]
    fn a_vm_that_is_back_is_asked_about_at_once_and_one_that_stays_away_no_more() {
        let mut sightings = Sightings::new();
        assert_eq!(
            suspects(&expected(true), &HashSet::from(["p".to_owned()]), &mut sightings),
            ["u"]
        );
        assert!(suspects(&expected(true), &HashSet::new(), &mut sightings).is_empty());
    }
}
