//! Compares the state of VMs in a list with the published status of their machines.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::api::addresses::{AddressRules, published};
use crate::api::v1alpha1::InfraMachineStatus;
use cmi_driver::{Address, ListedMachine, PowerState};

/// How many lists with the same difference lead to a look-up. A look-up may be answered with an older state
/// than the list. A driver whose look-ups always contradict its lists must not be called for ever.
const MAX_LOOK_UPS: u32 = 3;

/// The part of a listed VM that is compared. Whole entries of a large fleet would take much memory.
#[derive(Debug, Default)]
pub struct ListedState {
    addresses: Vec<Address>,
    power_state: Option<PowerState>,
}

impl From<ListedMachine> for ListedState {
    fn from(vm: ListedMachine) -> Self {
        Self {
            addresses: vm.addresses,
            power_state: vm.power_state,
        }
    }
}

/// The compared states of VMs, by the UID of their machines. A machine is unpacked only when its list entry,
/// its object or the rules of its Cluster have changed.
#[derive(Debug, Default)]
pub struct Compared(HashMap<u64, Comparison>);

/// A comparison of a list entry with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Comparison {
    /// The fingerprint of the list entry, the rules and the version of the object.
    fingerprint: u64,
    /// The number of lists in a row that differed from the status.
    differences: u32,
}

impl Compared {
    /// Whether a VM has to be looked up. `differs` compares its list entry with the status of its machine,
    /// whose object has this version.
    pub fn is_due(
        &mut self,
        (uid, version): (u64, u64),
        rules: &AddressRules,
        listed: &ListedState,
        differs: impl FnOnce() -> bool,
    ) -> bool {
        let fingerprint = fingerprint(version, rules, listed);
        let earlier = self.0.get(&uid).copied();
        let differences = match earlier.filter(|earlier| earlier.fingerprint == fingerprint) {
            Some(same) if same.differences == 0 => return false,
            Some(same) => same.differences.saturating_add(1),
            None => u32::from(differs()),
        };
        let comparison = Comparison {
            fingerprint,
            differences,
        };
        self.0.insert(uid, comparison);
        (1..=MAX_LOOK_UPS).contains(&differences)
    }

    /// Forgets all other machines.
    pub fn retain(&mut self, uids: &HashSet<u64>) {
        self.0.retain(|uid, _| uids.contains(uid));
    }
}

/// Whether a look-up with the answer of the list would change the status. An unknown power state differs from
/// none.
pub fn differs(status: Option<&InfraMachineStatus>, listed: &ListedState, rules: &AddressRules) -> bool {
    let Some(status) = status else { return true };
    let power = listed.power_state.map(PowerState::name);
    let addresses = rules.after_answer(&status.addresses, &listed.addresses, listed.power_state);
    published(&addresses) != status.addresses
        || power.is_some_and(|power| status.power_state.as_deref() != Some(power))
}

fn fingerprint(version: u64, rules: &AddressRules, listed: &ListedState) -> u64 {
    let mut hasher = DefaultHasher::new();
    (version, rules, listed.power_state).hash(&mut hasher);
    for address in &listed.addresses {
        (address.kind, &address.address).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use cmi_driver::AddressType;

    fn listed(ips: &[&str], power: PowerState) -> ListedState {
        let address = |ip: &&str| Address {
            kind: AddressType::InternalIP,
            address: (*ip).to_owned(),
        };
        ListedState {
            addresses: ips.iter().map(address).collect(),
            power_state: Some(power),
        }
    }

    fn status(ip: &str) -> InfraMachineStatus {
        let addresses = json!([{"type": "InternalIP", "address": ip}]);
        serde_json::from_value(json!({"addresses": addresses, "powerState": "Running"})).unwrap()
    }

    #[test]
    fn another_address_or_power_state_differs_from_the_status() {
        use PowerState::{Running, Stopped};
        let rules = AddressRules::default();
        let is_different = |listed| differs(Some(&status("10.0.0.1")), &listed, &rules);
        assert!(!is_different(listed(&["10.0.0.1"], Running)));
        assert!(!is_different(listed(&[], Running)), "a silent guest agent");
        assert!(!is_different(listed(&["10.0.0.1", "fe80::1"], Running)));
        assert!(is_different(listed(&["10.0.0.2"], Running)));
        assert!(is_different(listed(&["10.0.0.1", "fd00::1"], Running)));
        assert!(is_different(listed(&["10.0.0.1"], Stopped)));
        let unknown = ListedState {
            power_state: None,
            ..listed(&["10.0.0.1"], Running)
        };
        assert!(!is_different(unknown), "the driver cannot tell");
        assert!(differs(None, &listed(&[], Running), &rules));
    }

    #[test]
    fn a_machine_is_compared_again_only_when_list_or_object_change() {
        let (mut compared, rules) = (Compared::default(), AddressRules::default());
        let (one, two) = (
            listed(&["10.0.0.1"], PowerState::Running),
            listed(&["10.0.0.2"], PowerState::Running),
        );
        let unread = || panic!("the object is unpacked again");
        assert!(!compared.is_due((1, 7), &rules, &one, || false));
        assert!(!compared.is_due((1, 7), &rules, &one, unread));
        assert!(
            compared.is_due((1, 7), &rules, &two, || true),
            "another list entry"
        );
        assert!(
            !compared.is_due((1, 8), &rules, &two, || false),
            "the look-up changed the object"
        );
        assert!(!compared.is_due((1, 8), &rules, &two, unread));
        assert!(compared.is_due((1, 9), &rules, &two, || true), "another object");
    }

    /// A look-up may lag behind the list, and a driver may contradict itself for ever.
    #[test]
    fn a_lasting_difference_leads_to_a_limited_number_of_look_ups() {
        let (mut compared, rules) = (Compared::default(), AddressRules::default());
        let entry = listed(&["10.0.0.2"], PowerState::Running);
        let due: Vec<_> = (0..5)
            .map(|_| compared.is_due((1, 7), &rules, &entry, || true))
            .collect();
        assert_eq!(due, [true, true, true, false, false]);
        compared.retain(&HashSet::new());
        assert!(
            compared.is_due((1, 7), &rules, &entry, || true),
            "a new process begins again"
        );
    }
}
