//! The state that the provider stores for the driver with each machine: the host that the machine was placed
//! on.

use cmi_driver::{Code, LastKnownState, Result, Status};
use serde::{Deserialize, Serialize};

/// Where a machine was placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementRecord {
    /// The host, as the configuration names it.
    pub host: String,
}

impl PlacementRecord {
    /// Reads the state of an earlier call, if this driver wrote it.
    pub fn read(state: &LastKnownState) -> Option<Self> {
        serde_json::from_slice(state.as_bytes()).ok()
    }

    /// Returns the state that replaces a record which is no longer valid: an empty state would leave the old
    /// record in place.
    pub fn withdrawn() -> Option<LastKnownState> {
        LastKnownState::new(b"{}".to_vec())
    }

    /// Encodes the record as the state that the provider stores.
    ///
    /// # Errors
    /// INTERNAL: without the record, a machine might be made on two hosts.
    pub fn write(&self) -> Result<LastKnownState> {
        let failed = || Status::new(Code::Internal, "cannot encode the placement record");
        let json = serde_json::to_vec(self).map_err(|error| failed().with_source(error))?;
        LastKnownState::new(json).ok_or_else(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than the provider keeps.
    #[test]
    fn a_record_that_can_not_be_kept_is_an_error() {
        let record = PlacementRecord {
            host: "h".repeat(LastKnownState::MAX_BYTES),
        };
        assert_eq!(record.write().unwrap_err().code(), Code::Internal);
    }

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
