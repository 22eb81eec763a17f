//! Which machine has which providerID, of all that are cached: a VM has one machine.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::api::fingerprint;
use crate::api::v1alpha1::InfraMachine;

/// The holders of the ids, each by its UID. Hashes alone are kept, of fleets as well: one that two ids share
/// only has an id not named beforehand.
#[derive(Debug, Default)]
pub struct ProviderIds {
    holders: Mutex<HashMap<u64, u64>>,
}

impl ProviderIds {
    /// Lets the machine of this UID have the id, if no other machine has it; whether that is so.
    pub fn claim(&self, id: &str, uid: &str) -> bool {
        let uid = fingerprint(uid);
        *self.holders().entry(fingerprint(id)).or_insert(uid) == uid
    }

    /// The machine of this UID has the id no more, or has claimed it and not come to have it.
    pub fn give_back(&self, id: &str, uid: &str) {
        let (id, uid) = (fingerprint(id), fingerprint(uid));
        let mut holders = self.holders();
        if holders.get(&id) == Some(&uid) {
            holders.remove(&id);
        }
    }

    /// Whether another machine than that of this UID has the id.
    pub fn is_anothers(&self, id: &str, uid: &str) -> bool {
        let holders = self.holders();
        holders
            .get(&fingerprint(id))
            .is_some_and(|holder| *holder != fingerprint(uid))
    }

    /// A machine was changed, came or went.
    pub fn changed(&self, before: Option<&InfraMachine>, now: Option<&InfraMachine>) {
        let (before, now) = (before.and_then(held), now.and_then(held));
        if before == now {
            return;
        }
        if let Some((id, uid)) = before {
            self.give_back(id, uid);
        }
        if let Some((id, uid)) = now {
            self.claim(id, uid);
        }
    }

    fn holders(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The id of a machine and its UID.
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
}
