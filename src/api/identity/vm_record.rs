//! The record of a machine. It holds everything that the provider must know about the VM after a crash, a
//! move or a restore. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{MachineId, VmEvent, VmState};
use crate::api::annotations::VM_RECORD;
use crate::api::v1alpha1::InfraMachine;
use cmi_driver::{LastKnownState, ProviderSpec};

#[cfg(test)]
mod tests;

/// The record, stored as JSON in the annotation [`VM_RECORD`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VmRecord {
    version: Version,
    /// The identity of the machine.
    pub machine: MachineId,
    /// The machine's cluster id at the driver.
    pub cluster: String,
    /// Whether a VM exists, and which call may have changed it.
    pub state: VmState,
    /// How the VM was made. `None` only in [`VmState::None`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_from: Option<MadeFrom>,
    /// The driver's last known state.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "base64")]
    pub last_known_state: Option<LastKnownState>,
    /// Whether this provider adopted a VM that another controller created.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopted: bool,
    /// When the driver was last called to start a VM that was switched off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_start: Option<Timestamp>,
}

/// The version of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Version {
    #[serde(rename = "v1")]
    V1,
}

/// How a VM was made. Later calls need the same values, even after the object's spec has changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MadeFrom {
    /// The configured driver.
    pub driver: String,
    /// The Secret with the credentials. `None` if the VM was made without credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// The provider spec, with tags, that the VM was made from or last updated to.
    pub provider_spec: ProviderSpec,
}

/// Why a machine's record allows no driver call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRecord {
    /// The annotation does not hold a record.
    #[error("annotation {VM_RECORD} cannot be read: {0}")]
    Unreadable(String),
    /// The record was copied from another object.
    #[error("annotation {VM_RECORD} is the record of InfraMachine `{0}`")]
    Foreign(String),
    /// The object has this provider's finalizer and no record.
    #[error("annotation {VM_RECORD} is missing")]
    Missing,
}

impl VmRecord {
    /// Returns the record of a machine that never had a record. Returns `None` for an object without a UID,
    /// which the API server never stores.
    pub fn new(machine: &InfraMachine, cluster_id: &str) -> Option<Self> {
        Some(Self {
            version: Version::V1,
            machine: MachineId::derived(machine)?,
            cluster: cluster_id.to_owned(),
            state: VmState::None,
            made_from: None,
            last_known_state: None,
            adopted: false,
            last_start: None,
        })
    }

    /// Reads the record of a machine.
    ///
    /// # Errors
    /// The annotation is unreadable, or Cluster API has copied it from another object.
    pub fn of(machine: &InfraMachine) -> Result<Option<Self>, InvalidRecord> {
        Self::of_metadata(&machine.metadata)
    }

    /// Like [`VmRecord::of`], for an object whose spec may be unreadable.
    ///
    /// # Errors
    /// As for [`VmRecord::of`].
    pub fn of_metadata(metadata: &ObjectMeta) -> Result<Option<Self>, InvalidRecord> {
        match Self::carried_by(metadata)? {
            Some(record) if !record.machine.is_of(metadata) => {
                Err(InvalidRecord::Foreign(record.machine.full_name()))
            }
            record => Ok(record),
        }
    }

    /// Reads the record in an object's annotation, which may be a copy from another object.
    ///
    /// # Errors
    /// The annotation is unreadable.
    pub fn carried_by(metadata: &ObjectMeta) -> Result<Option<Self>, InvalidRecord> {
        let annotations = metadata.annotations.as_ref();
        let Some(text) = annotations.and_then(|all| all.get(VM_RECORD)) else {
            return Ok(None);
        };
        Self::parse(text).map(Some)
    }

    /// Reads a record from the value of the annotation.
    ///
    /// # Errors
    /// The text is not a record.
    pub fn parse(text: &str) -> Result<Self, InvalidRecord> {
        let record: Self =
            serde_json::from_str(text).map_err(|error| InvalidRecord::Unreadable(error.to_string()))?;
        if record.made_from.is_none() && record.state != VmState::None {
            let missing = format!("madeFrom is missing in state {}", record.state.name());
            return Err(InvalidRecord::Unreadable(missing));
        }
        Ok(record)
    }

    /// Returns the value of the annotation.
    ///
    /// # Errors
    /// The record can't be serialized as JSON.
    pub fn annotation(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    /// Returns the record after an event. The record is unchanged if the event does not apply.
    #[must_use]
    pub fn after(self, event: VmEvent) -> Self {
        match self.state.after(event) {
            Some(VmState::None) => Self {
                state: VmState::None,
                made_from: None,
                ..self
            },
            Some(state) => Self { state, ..self },
            None => self,
        }
    }

    /// Returns the record with the origin of a VM that this provider creates, finds or adopts.
    #[must_use]
    pub fn made_from(self, made_from: MadeFrom) -> Self {
        Self {
            made_from: Some(made_from),
            ..self
        }
    }

    /// Returns the record with the driver's last known state, if the answer contained a state.
    #[must_use]
    pub fn with_last_known_state(self, state: Option<&LastKnownState>) -> Self {
        Self {
            last_known_state: state.cloned().or(self.last_known_state),
            ..self
        }
    }

    /// Returns the record of an adopted VM after the driver has confirmed it.
    #[must_use]
    pub fn adopting(self, made_from: MadeFrom) -> Self {
        Self {
            state: VmState::Exists { unanswered: None },
            made_from: Some(made_from),
            adopted: true,
            ..self
        }
    }

    /// Returns how the VM was made, while this binds later calls. It does while a VM may exist, and during
    /// the cleanup after a refused create.
    pub fn bound(&self, is_deleted: bool) -> Option<&MadeFrom> {
        let binds = self.state.may_exist() || is_deleted && self.state == VmState::Refused;
        self.made_from.as_ref().filter(|_| binds)
    }
}

/// Serializes the driver's state as base64.
mod base64 {
    use super::{Deserialize, Deserializer, LastKnownState, Serializer};
    use serde::de::Error as _;

    #[allow(clippy::ref_option)] // serde passes a reference to the field.
    pub fn serialize<S: Serializer>(
        state: &Option<LastKnownState>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match state {
            Some(state) => serializer.serialize_str(&super::encoded(state)),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<LastKnownState>, D::Error> {
        let text = String::deserialize(deserializer)?;
        super::decoded(&text).map(Some).map_err(D::Error::custom)
    }
}

/// Returns the value of the annotation without the driver's state. Returns `None` if there is no state.
pub fn without_last_known_state(text: &str) -> Option<String> {
    const KEY: &str = "lastKnownState";
    if !text.contains(KEY) {
        return None;
    }
    let mut record: serde_json::Value = serde_json::from_str(text).ok()?;
    record.as_object_mut()?.remove(KEY)?;
    Some(record.to_string())
}

/// Returns a driver's state as base64.
pub fn encoded(state: &LastKnownState) -> String {
    use ::base64::prelude::{BASE64_STANDARD, Engine as _};
    BASE64_STANDARD.encode(state.as_bytes())
}

/// Decodes a driver's state from base64.
///
/// # Errors
/// Describes why the text is not base64.
pub fn decoded(text: &str) -> Result<LastKnownState, String> {
    use ::base64::prelude::{BASE64_STANDARD, Engine as _};
    let bytes = BASE64_STANDARD.decode(text).map_err(|error| error.to_string())?;
    LastKnownState::new(bytes).ok_or_else(|| "the driver's state is empty or too long".to_owned())
}
