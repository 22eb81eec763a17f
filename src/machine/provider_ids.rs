//! Which machine has which providerID, among all cached machines: a VM has one machine.

use std::collections::{HashMap, HashSet};

use crate::api::fingerprint;
use crate::api::v1alpha1::InfraMachine;
use parking_lot::Mutex;

/// Which UIDs hold which ProviderID, as hashes to keep the map small for a fleet. A collision only means that
/// an id is not written before its create.
#[derive(Debug, Default)]
pub struct ProviderIds {
    holders: Mutex<Holders>,
}

#[derive(Debug, Default)]
struct Holders {
    first: HashMap<u64, u64>,
    /// The UIDs whose id another machine holds as well: a user's mistake, or a restored backup.
    others: HashMap<u64, HashSet<u64>>,
}

impl ProviderIds {
    /// Lets the machine of this UID hold the id if no other machine holds it, and returns whether it does.
    pub fn claim(&self, id: &str, uid: &str) -> bool {
        let uid = fingerprint(uid);
        *self.holders.lock().first.entry(fingerprint(id)).or_insert(uid) == uid
    }

    /// Releases the id: the machine of this UID has it no more, or claimed it and never got it.
    pub fn release(&self, id: &str, uid: &str) {
        self.holders.lock().remove(fingerprint(id), fingerprint(uid));
    }

    /// Whether a machine other than the one of this UID has the id.
    pub fn is_anothers(&self, id: &str, uid: &str) -> bool {
        let (id, uid) = (fingerprint(id), fingerprint(uid));
        let holders = self.holders.lock();
        let others = holders.others.get(&id).into_iter().flatten();
        holders
            .first
            .get(&id)
            .into_iter()
            .chain(others)
            .any(|holder| *holder != uid)
    }

    /// Records that a machine was added, changed or deleted.
    pub fn changed(&self, before: Option<&InfraMachine>, now: Option<&InfraMachine>) {
        let (before, now) = (before.and_then(held), now.and_then(held));
        if before == now {
            return;
        }
        let mut holders = self.holders.lock();
        if let Some((id, uid)) = before {
            holders.remove(fingerprint(id), fingerprint(uid));
        }
        if let Some((id, uid)) = now {
            holders.add(fingerprint(id), fingerprint(uid));
        }
    }
}

impl Holders {
    fn add(&mut self, id: u64, uid: u64) {
        if *self.first.entry(id).or_insert(uid) != uid {
            self.others.entry(id).or_default().insert(uid);
        }
    }

    /// Removes a holder. Another machine that has the id as well takes its place.
    fn remove(&mut self, id: u64, uid: u64) {
        let others = self.others.entry(id).or_default();
        others.remove(&uid);
        if self.first.get(&id) == Some(&uid) {
            match others.iter().next().copied() {
                Some(other) => {
                    others.remove(&other);
                    self.first.insert(id, other);
                }
                None => drop(self.first.remove(&id)),
            }
        }
        if others.is_empty() {
            self.others.remove(&id);
        }
    }
}

/// Returns the id of a machine and its UID.
fn held(machine: &InfraMachine) -> Option<(&str, &str)> {
    Some((
        machine.spec.provider_id.as_deref()?,
        machine.metadata.uid.as_deref()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::fixtures::machine;

    #[test]
    fn an_id_that_a_machine_has_is_no_others_until_that_has_it_no_more() {
        let ids = ProviderIds::default();
        let (without, with) = (machine().build(), machine().provider_id("sim://1").build());
        ids.changed(None, Some(&without));
        ids.changed(Some(&without), Some(&with));
        assert!(!ids.claim("sim://1", "u-2"));
        assert!(ids.claim("sim://1", "u-1"), "it is its own");
        assert!(ids.claim("sim://2", "u-2"));
        let renamed = machine().provider_id("sim://3").build();
        ids.changed(Some(&with), Some(&renamed));
        assert!(ids.claim("sim://1", "u-2"));
        ids.changed(Some(&renamed), None);
        assert!(ids.claim("sim://3", "u-2"));
    }

    /// Two that have one all the same: the first keeps it.
    #[test]
    fn a_machine_that_goes_takes_the_id_of_no_other_with_it() {
        let ids = ProviderIds::default();
        assert!(ids.claim("sim://1", "u-2"));
        let other = machine().provider_id("sim://1").build();
        ids.changed(None, Some(&other));
        ids.changed(Some(&other), None);
        assert!(!ids.claim("sim://1", "u-3"));
    }

    /// The VM is still another's.
    #[test]
    fn an_id_that_two_have_stays_taken_until_neither_has_it() {
        let ids = ProviderIds::default();
        let first = machine().provider_id("sim://1").build();
        let mut second = first.clone();
        second.metadata.uid = Some("u-2".to_owned());
        ids.changed(None, Some(&first));
        ids.changed(None, Some(&second));
        assert!(["u-1", "u-2"].iter().all(|uid| ids.is_anothers("sim://1", uid)));
        ids.changed(Some(&first), None);
        assert!(!ids.claim("sim://1", "u-3"));
        assert!(!ids.is_anothers("sim://1", "u-2"));
        ids.changed(Some(&second), None);
        assert!(ids.claim("sim://1", "u-3"));
    }
}
