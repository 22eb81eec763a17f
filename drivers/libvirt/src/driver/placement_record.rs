//! What the driver has the provider keep of a machine: the host that it was placed on.

use cmi_driver::LastKnownState;
use serde::{Deserialize, Serialize};

/// Where a machine was placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementRecord {
    /// The host, as the configuration names it.
    pub host: String,
}

impl PlacementRecord {
    /// What an earlier call left, if it is of this driver.
    pub fn read(state: &LastKnownState) -> Option<Self> {
        serde_json::from_slice(state.as_bytes()).ok()
    }

    /// What takes the place of a record that counts no more: an empty state would leave it.
    pub fn withdrawn() -> Option<LastKnownState> {
        LastKnownState::new(b"{}".to_vec())
    }

    /// For the provider.
    pub fn write(&self) -> Option<LastKnownState> {
        serde_json::to_vec(self).ok().and_then(LastKnownState::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_what_is_none_is_not_believed() {
        let record = PlacementRecord {
            host: "host-a".to_owned(),
        };
        assert_eq!(PlacementRecord::read(&record.write().unwrap()), Some(record));
        assert_eq!(
            PlacementRecord::read(&PlacementRecord::withdrawn().unwrap()),
            None
        );
        for other in ["x", "{}", "{\"host\":1}"] {
            let state = LastKnownState::new(other.as_bytes().to_vec()).unwrap();
            assert_eq!(PlacementRecord::read(&state), None, "{other}");
        }
    }
}
