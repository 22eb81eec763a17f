//! Which machine has which providerID, among all cached machines: a VM has one machine.

use std::collections::HashMap;

use crate::api::fingerprint;
use crate::api::v1alpha1::InfraMachine;
use crate::identity::driver_name;
use parking_lot::Mutex;

/// Which UIDs hold which ProviderID, as hashes to keep the map small for a fleet. A collision only means that
/// an id is not written before its create, or that the VM of a named id is left alone.
#[derive(Debug, Default)]
pub struct ProviderIds {
    holders: Mutex<Holders>,
}

#[derive(Debug, Default)]
struct Holders {
    first: HashMap<u64, Holder>,
    /// The drivers of the UIDs whose id another machine holds as well: an id of another driver, a user's
    /// mistake, or a restored backup.
    others: HashMap<u64, HashMap<u64, u64>>,
}

/// A machine that holds an id, as hashes.
#[derive(Clone, Copy, Debug)]
pub struct Holder {
    uid: u64,
    /// The name of the driver that the id is of; empty where it is not known.
    driver: u64,
}

impl Holder {
    /// Returns the machine of this UID with its driver.
    pub fn new(uid: &str, driver: &str) -> Self {
        Self {
            uid: fingerprint(uid),
            driver: fingerprint(driver),
        }
    }

    fn may_be_of(self, driver: u64) -> bool {
        self.driver == driver || self.driver == fingerprint("")
    }
}

impl ProviderIds {
    /// Lets the machine hold the id if no other machine holds it, of whichever driver, and returns whether it
    /// does. Two configured drivers may have one back end, and the Nodes of one cluster must not share an id;
    /// to refuse an id costs no more than a write.
    pub fn claim(&self, id: &str, machine: Holder) -> bool {
        let mut holders = self.holders.lock();
        holders.first.entry(fingerprint(id)).or_insert(machine).uid == machine.uid
    }

    /// Releases the id: the machine of this UID has it no more, or claimed it and never got it.
    pub fn release(&self, id: &str, uid: &str) {
        self.holders.lock().remove(fingerprint(id), fingerprint(uid));
    }

    /// Whether another machine may have the id of the same driver: then the VM is that machine's. The same id
    /// of another driver is that of another VM.
    ///
    /// A machine whose driver is not known counts for every driver: a VM that is left can be deleted later,
    /// and one that was deleted is lost. Where two configured drivers have one back end, the id was not
    /// claimed while another machine had it, and a driver deletes no VM of another identity (CAP-02).
    pub fn is_anothers(&self, id: &str, machine: Holder) -> bool {
        let id = fingerprint(id);
        let holders = self.holders.lock();
        let others = holders.others.get(&id).into_iter().flatten();
        let others = others.map(|(&uid, &driver)| Holder { uid, driver });
        let mut all = holders.first.get(&id).copied().into_iter().chain(others);
        all.any(|holder| holder.uid != machine.uid && holder.may_be_of(machine.driver))
    }

    /// Records that a machine was added, changed or deleted.
    pub fn changed(&self, before: Option<&InfraMachine>, now: Option<&InfraMachine>) {
        let (before, now) = (before.and_then(held), now.and_then(held));
        if before == now {
            return;
        }
        let mut holders = self.holders.lock();
        if let Some((id, uid, _)) = before {
            holders.remove(fingerprint(id), fingerprint(uid));
        }
        if let Some((id, uid, driver)) = now {
            holders.add(fingerprint(id), Holder::new(uid, driver));
        }
    }
}

impl Holders {
    fn add(&mut self, id: u64, machine: Holder) {
        let first = self.first.entry(id).or_insert(machine);
        if first.uid == machine.uid {
            *first = machine;
        } else {
            let others = self.others.entry(id).or_default();
            others.insert(machine.uid, machine.driver);
        }
    }

    /// Removes a holder. Another machine that has the id as well takes its place.
    fn remove(&mut self, id: u64, uid: u64) {
        let others = self.others.entry(id).or_default();
        others.remove(&uid);
        if self.first.get(&id).is_some_and(|first| first.uid == uid) {
            match others.iter().next().map(|(&uid, &driver)| Holder { uid, driver }) {
                Some(other) => {
                    others.remove(&other.uid);
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

/// Returns the id of a machine, its UID, and its driver. The driver is empty where the provider has not
/// written the id and the spec names none: the only driver of the namespace would be meant, and that may have
/// become another since.
fn held(machine: &InfraMachine) -> Option<(&str, &str, &str)> {
    let id = machine.spec.provider_id.as_deref()?;
    Some((id, machine.metadata.uid.as_deref()?, driver_name(machine)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::fixtures::machine;

    fn at_pool(uid: &str) -> Holder {
        Holder::new(uid, "pool")
    }

    #[test]
    fn an_id_that_a_machine_has_is_no_others_until_that_has_it_no_more() {
        let ids = ProviderIds::default();
        let (without, with) = (machine().build(), machine().provider_id("sim://1").build());
        ids.changed(None, Some(&without));
        ids.changed(Some(&without), Some(&with));
        assert!(!ids.claim("sim://1", at_pool("u-2")));
        assert!(ids.claim("sim://1", at_pool("u-1")), "it is its own");
        assert!(ids.claim("sim://2", at_pool("u-2")));
        let renamed = machine().provider_id("sim://3").build();
        ids.changed(Some(&with), Some(&renamed));
        assert!(ids.claim("sim://1", at_pool("u-2")));
        ids.changed(Some(&renamed), None);
        assert!(ids.claim("sim://3", at_pool("u-2")));
    }

    /// Two that have one all the same: the first keeps it.
    #[test]
    fn a_machine_that_goes_takes_the_id_of_no_other_with_it() {
        let ids = ProviderIds::default();
        assert!(ids.claim("sim://1", at_pool("u-2")));
        let other = machine().provider_id("sim://1").build();
        ids.changed(None, Some(&other));
        ids.changed(Some(&other), None);
        assert!(!ids.claim("sim://1", at_pool("u-3")));
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
        assert!(
            ["u-1", "u-2"]
                .iter()
                .all(|uid| ids.is_anothers("sim://1", at_pool(uid)))
        );
        ids.changed(Some(&first), None);
        assert!(!ids.claim("sim://1", at_pool("u-3")));
        assert!(!ids.is_anothers("sim://1", at_pool("u-2")));
        ids.changed(Some(&second), None);
        assert!(ids.claim("sim://1", at_pool("u-3")));
    }

    /// Two back ends of one kind count from the same number.
    #[test]
    fn an_id_that_a_machine_of_another_driver_has_is_no_others_and_can_not_be_claimed() {
        let ids = ProviderIds::default();
        let mut unknown = machine().provider_id("sim://1").build();
        unknown.metadata.uid = Some("u-2".to_owned());
        let mut elsewhere = unknown.clone();
        elsewhere.spec.driver = Some("elsewhere".to_owned());
        ids.changed(None, Some(&elsewhere));
        assert!(!ids.is_anothers("sim://1", at_pool("u-1")));
        assert!(ids.is_anothers("sim://1", Holder::new("u-1", "elsewhere")));
        assert!(!ids.claim("sim://1", at_pool("u-1")));
        ids.changed(Some(&elsewhere), Some(&unknown));
        assert!(
            ids.is_anothers("sim://1", at_pool("u-1")),
            "it may be that of pool"
        );
        ids.changed(Some(&unknown), Some(&elsewhere));
        let third = machine().provider_id("sim://1").configured_driver("pool").build();
        ids.changed(None, Some(&third));
        assert!(
            ids.is_anothers("sim://1", at_pool("u-3")),
            "of three, one is of pool"
        );
        ids.changed(Some(&elsewhere), None);
        assert!(ids.is_anothers("sim://1", at_pool("u-3")));
        assert!(!ids.is_anothers("sim://1", at_pool("u-1")));
    }
}
