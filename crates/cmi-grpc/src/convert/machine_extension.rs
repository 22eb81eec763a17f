//! Messages of the MachineExtension service with parts that others do not have.

use serde_json::{Map, Value};

use super::field::{self, Field, FieldError, NAME, PLACE, TEXT};
use crate::proto::capcmi::v1::machine_address::Type as AddressTypeMessage;
use crate::proto::capcmi::v1::{self, PowerState as PowerStateMessage};
use cmi_driver::{
    Address, AddressType, ClassDescription, Console, GenerateMachineClassForMigrationRequest, Machine,
    MachineClassKind, PowerState, Zone,
};

impl From<GenerateMachineClassForMigrationRequest> for v1::GenerateMachineClassForMigrationRequest {
    fn from(request: GenerateMachineClassForMigrationRequest) -> Self {
        let MachineClassKind { api_group, kind } = request.class_kind;
        Self {
            provider_specific_machine_class: field::object_bytes(request.provider_specific_machine_class),
            machine_class: field::object_bytes(request.machine_class),
            class_api_group: api_group,
            class_kind: kind,
        }
    }
}

impl TryFrom<v1::GenerateMachineClassForMigrationRequest> for GenerateMachineClassForMigrationRequest {
    type Error = FieldError;

    fn try_from(request: v1::GenerateMachineClassForMigrationRequest) -> Result<Self, FieldError> {
        Ok(Self {
            provider_specific_machine_class: Field("provider_specific_machine_class")
                .object(&request.provider_specific_machine_class)?,
            machine_class: Field("machine_class").object(&request.machine_class)?,
            class_kind: MachineClassKind {
                api_group: Field("class_api_group").text(request.class_api_group, TEXT)?,
                kind: Field("class_kind").text(request.class_kind, TEXT)?,
            },
        })
    }
}

impl From<Map<String, Value>> for v1::GenerateMachineClassForMigrationResponse {
    fn from(machine_class: Map<String, Value>) -> Self {
        Self {
            machine_class: field::object_bytes(machine_class),
        }
    }
}

impl TryFrom<v1::GenerateMachineClassForMigrationResponse> for Map<String, Value> {
    type Error = FieldError;

    fn try_from(response: v1::GenerateMachineClassForMigrationResponse) -> Result<Self, FieldError> {
        Field("machine_class").object(&response.machine_class)
    }
}

impl From<Machine> for v1::Machine {
    fn from(machine: Machine) -> Self {
        Self {
            provider_id: machine.provider_id.to_string(),
            node_name: machine.node_name,
            addresses: address_messages(machine.addresses),
            power_state: power_state_number(machine.power_state),
            failure_domain: machine.failure_domain.unwrap_or_default(),
            last_known_state: field::state_bytes(machine.last_known_state.as_ref()),
        }
    }
}

impl TryFrom<v1::Machine> for Machine {
    type Error = FieldError;

    fn try_from(machine: v1::Machine) -> Result<Self, FieldError> {
        let power_state = power_state(machine.power_state());
        Ok(Self {
            provider_id: Field("provider_id").provider_id(&machine.provider_id)?,
            node_name: Field("node_name").text(machine.node_name, NAME)?,
            addresses: addresses(Field("addresses.address"), machine.addresses)?,
            power_state,
            failure_domain: Field("failure_domain").optional_text(machine.failure_domain, PLACE)?,
            last_known_state: Field("last_known_state").state(machine.last_known_state)?,
        })
    }
}

pub(super) fn address_messages(addresses: Vec<Address>) -> Vec<v1::MachineAddress> {
    let addresses = addresses.into_iter();
    addresses
        .map(|address| v1::MachineAddress {
            r#type: address_type_message(address.kind).into(),
            address: address.address,
        })
        .collect()
}

/// Leaves out addresses of an unknown type.
pub(super) fn addresses(field: Field, messages: Vec<v1::MachineAddress>) -> Result<Vec<Address>, FieldError> {
    let mut addresses = Vec::new();
    for message in messages {
        if let Some(kind) = address_type(message.r#type()) {
            let address = field.text(message.address, PLACE)?;
            addresses.push(Address { kind, address });
        }
    }
    Ok(addresses)
}

/// The number of a power state in a message.
pub(super) fn power_state_number(state: Option<PowerState>) -> i32 {
    state
        .map_or(PowerStateMessage::Unspecified, power_state_message)
        .into()
}

/// Implements both conversions between an enum of the driver and an enum of `proto/`. The zero value in
/// `proto/` has no counterpart.
macro_rules! enumeration {
    ($write:ident, $read:ident: $driver:ident = $message:ident { $($value:ident = $other:ident),+ }) => {
        fn $write(value: $driver) -> $message {
            match value {
                $($driver::$value => $message::$other,)+
            }
        }

        pub(super) fn $read(value: $message) -> Option<$driver> {
            match value {
                $message::Unspecified => None,
                $($message::$other => Some($driver::$value),)+
            }
        }
    };
}

enumeration! {
    address_type_message, address_type: AddressType = AddressTypeMessage {
        Hostname = Hostname, ExternalIP = ExternalIp, InternalIP = InternalIp,
        ExternalDNS = ExternalDns, InternalDNS = InternalDns
    }
}

enumeration! {
    power_state_message, power_state: PowerState = PowerStateMessage {
        Starting = Starting, Running = Running, Stopping = Stopping, Stopped = Stopped, Failed = Failed
    }
}

impl From<Vec<Zone>> for v1::ListZonesResponse {
    fn from(zones: Vec<Zone>) -> Self {
        let zones = zones.into_iter();
        Self {
            zones: zones
                .map(|zone| v1::list_zones_response::Zone {
                    name: zone.name,
                    control_plane: zone.control_plane,
                    attributes: zone.attributes.into_iter().collect(),
                })
                .collect(),
        }
    }
}

impl TryFrom<v1::ListZonesResponse> for Vec<Zone> {
    type Error = FieldError;

    fn try_from(response: v1::ListZonesResponse) -> Result<Self, FieldError> {
        let zones = response.zones.into_iter();
        zones
            .map(|zone| {
                Ok(Zone {
                    name: Field("zones.name").text(zone.name, PLACE)?,
                    control_plane: zone.control_plane,
                    attributes: Field("zones.attributes").map(zone.attributes)?,
                })
            })
            .collect()
    }
}

impl From<ClassDescription> for v1::DescribeClassResponse {
    fn from(description: ClassDescription) -> Self {
        Self {
            capacity: description.capacity.into_iter().collect(),
            architecture: description.architecture.unwrap_or_default(),
            operating_system: description.operating_system.unwrap_or_default(),
        }
    }
}

impl TryFrom<v1::DescribeClassResponse> for ClassDescription {
    type Error = FieldError;

    fn try_from(response: v1::DescribeClassResponse) -> Result<Self, FieldError> {
        Ok(Self {
            capacity: Field("capacity").map(response.capacity)?,
            architecture: Field("architecture").optional_text(response.architecture, TEXT)?,
            operating_system: Field("operating_system").optional_text(response.operating_system, TEXT)?,
        })
    }
}

impl From<Console> for v1::GetConsoleResponse {
    fn from(console: Console) -> Self {
        Self {
            output: console.as_str().as_bytes().to_vec(),
        }
    }
}

impl TryFrom<v1::GetConsoleResponse> for Console {
    type Error = FieldError;

    fn try_from(response: v1::GetConsoleResponse) -> Result<Self, FieldError> {
        Ok(Self::new(&response.output))
    }
}
