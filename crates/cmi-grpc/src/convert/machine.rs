//! Messages of the Machine service with parts that others do not have.

use serde_json::Value;

use super::field::{self, Field, FieldError, NAME};
use crate::proto::cmi::v1;
use cmi_driver::{GetVolumeIdsRequest, ListedMachine, Machine};

/// The most bytes of a list of PersistentVolumeSpecs.
const VOLUME_SPECS: usize = 16 * 1024 * 1024;
/// The most bytes of a volume id.
const VOLUME_ID: usize = 512;

impl From<GetVolumeIdsRequest> for v1::GetVolumeIDsRequest {
    fn from(request: GetVolumeIdsRequest) -> Self {
        Self {
            pv_spec_list: Value::Array(request.pv_specs).to_string().into_bytes(),
        }
    }
}

impl TryFrom<v1::GetVolumeIDsRequest> for GetVolumeIdsRequest {
    type Error = FieldError;

    fn try_from(request: v1::GetVolumeIDsRequest) -> Result<Self, FieldError> {
        Ok(Self {
            pv_specs: Field("PVSpecList").json(&request.pv_spec_list, VOLUME_SPECS, "list")?,
        })
    }
}

impl From<Machine> for v1::CreateMachineResponse {
    fn from(machine: Machine) -> Self {
        Self {
            provider_id: machine.provider_id.to_string(),
            node_name: machine.node_name,
            last_known_state: field::state_bytes(machine.last_known_state.as_ref()),
        }
    }
}

impl TryFrom<v1::CreateMachineResponse> for Machine {
    type Error = FieldError;

    fn try_from(response: v1::CreateMachineResponse) -> Result<Self, FieldError> {
        Ok(Self {
            last_known_state: Field("LastKnownState").state(response.last_known_state)?,
            ..named(&response.provider_id, response.node_name)?
        })
    }
}

impl From<Machine> for v1::GetMachineStatusResponse {
    fn from(machine: Machine) -> Self {
        Self {
            provider_id: machine.provider_id.to_string(),
            node_name: machine.node_name,
        }
    }
}

impl TryFrom<v1::GetMachineStatusResponse> for Machine {
    type Error = FieldError;

    fn try_from(response: v1::GetMachineStatusResponse) -> Result<Self, FieldError> {
        named(&response.provider_id, response.node_name)
    }
}

fn named(provider_id: &str, node_name: String) -> Result<Machine, FieldError> {
    Ok(Machine::new(
        Field("ProviderID").provider_id(provider_id)?,
        Field("NodeName").text(node_name, NAME)?,
    ))
}

impl From<Vec<ListedMachine>> for v1::ListMachinesResponse {
    fn from(machines: Vec<ListedMachine>) -> Self {
        let machines = machines.into_iter();
        Self {
            machine_list: machines
                .map(|machine| (machine.provider_id.to_string(), machine.machine_name))
                .collect(),
        }
    }
}

impl TryFrom<v1::ListMachinesResponse> for Vec<ListedMachine> {
    type Error = FieldError;

    /// Sorted by provider id. Empty without a list (CMI-141).
    fn try_from(response: v1::ListMachinesResponse) -> Result<Self, FieldError> {
        let field = Field("MachineList");
        let mut machines = response
            .machine_list
            .into_iter()
            .map(|(provider_id, machine_name)| {
                let provider_id = field.provider_id(&provider_id)?;
                // Empty when the back end has lost it (DRV-36).
                let machine_name = field.optional_text(machine_name, NAME)?.unwrap_or_default();
                Ok(ListedMachine::new(provider_id, machine_name))
            })
            .collect::<Result<Self, FieldError>>()?;
        machines.sort_unstable_by(|one, other| one.provider_id.cmp(&other.provider_id));
        Ok(machines)
    }
}

impl From<Vec<String>> for v1::GetVolumeIDsResponse {
    fn from(volume_ids: Vec<String>) -> Self {
        Self {
            volume_i_ds: volume_ids,
        }
    }
}

impl TryFrom<v1::GetVolumeIDsResponse> for Vec<String> {
    type Error = FieldError;

    fn try_from(response: v1::GetVolumeIDsResponse) -> Result<Self, FieldError> {
        let ids = response.volume_i_ds.into_iter();
        ids.map(|id| Field("VolumeIDs").text(id, VOLUME_ID)).collect()
    }
}
