//! Messages about a machine or a class, of both services, that are made of the same few parts.

use super::field::{self, Field, FieldError, NAME};
use crate::proto::{capcmi::v1 as capcmi, cmi::v1 as cmi};
use cmi_driver::{
    CreateMachineRequest, DeleteMachineRequest, DeleteMachineResponse, DescribeClassRequest,
    GetMachineStatusRequest, InitializeMachineRequest, ListMachinesRequest, ListZonesRequest, MachineClass,
    MachineRef, ProviderSpec, RestartMachineRequest, ShutDownMachineRequest, ShutDownMachineResponse,
    UpdateMachineRequest,
};

/// The names of the fields in `proto/`: each service writes them in its own way.
struct Names {
    machine_name: Field,
    provider_spec: Field,
    secrets: Field,
    provider_id: Field,
    last_known_state: Field,
}

const CMI: Names = Names {
    machine_name: Field("MachineName"),
    provider_spec: Field("ProviderSpec"),
    secrets: Field("Secrets"),
    provider_id: Field("ProviderID"),
    last_known_state: Field("LastKnownState"),
};

const CAPCMI: Names = Names {
    machine_name: Field("machine_name"),
    provider_spec: Field("provider_spec"),
    secrets: Field("secrets"),
    provider_id: Field("provider_id"),
    last_known_state: Field("last_known_state"),
};

/// A part of a driver's type: how it is written into a message, and how it is read from one.
macro_rules! part {
    (write machine: $value:expr => $message:ident) => {
        $message.machine_name = $value.name;
        part!(write class: $value.class => $message);
    };
    (write class: $value:expr => $message:ident) => {
        ($message.provider_spec, $message.secrets) = field::class_fields($value);
    };
    (write provider_id: $value:expr => $message:ident) => {
        $message.provider_id = $value.to_string();
    };
    (write optional_provider_id: $value:expr => $message:ident) => {
        $message.provider_id = field::id_text($value);
    };
    (write last_applied: $value:expr => $message:ident) => {
        $message.last_applied_provider_spec = field::object_bytes($value.0);
    };
    (write state: $value:expr => $message:ident) => {
        $message.last_known_state = field::state_bytes($value.as_ref());
    };
    (read machine: $message:ident, $names:ident) => {
        MachineRef {
            name: $names.machine_name.text($message.machine_name, NAME)?,
            class: part!(read class: $message, $names),
        }
    };
    (read class: $message:ident, $names:ident) => {
        MachineClass {
            provider_spec: ProviderSpec($names.provider_spec.object(&$message.provider_spec)?),
            secrets: $names.secrets.secrets($message.secrets)?,
        }
    };
    (read provider_id: $message:ident, $names:ident) => {
        $names.provider_id.provider_id(&$message.provider_id)?
    };
    (read optional_provider_id: $message:ident, $names:ident) => {
        $names.provider_id.optional_provider_id(&$message.provider_id)?
    };
    (read last_applied: $message:ident, $names:ident) => {
        ProviderSpec(Field("last_applied_provider_spec").object(&$message.last_applied_provider_spec)?)
    };
    (read state: $message:ident, $names:ident) => {
        $names.last_known_state.state($message.last_known_state)?
    };
}

/// Converts both ways: each field of the driver's type is a part of the message.
macro_rules! messages {
    ($($names:ident: $driver:ident = $message:ty { $($field:ident: $part:ident),+ })+) => {$(
        impl From<$driver> for $message {
            fn from(value: $driver) -> Self {
                let mut message = Self::default();
                $(part!(write $part: value.$field => message);)+
                message
            }
        }

        impl TryFrom<$message> for $driver {
            type Error = FieldError;

            fn try_from(message: $message) -> Result<Self, FieldError> {
                Ok(Self {
                    $($field: part!(read $part: message, $names),)+
                })
            }
        }
    )+};
}

messages! {
    CMI: CreateMachineRequest = cmi::CreateMachineRequest { machine: machine, last_known_state: state }
    CMI: DeleteMachineRequest = cmi::DeleteMachineRequest {
        machine: machine, provider_id: optional_provider_id, last_known_state: state
    }
    CMI: DeleteMachineResponse = cmi::DeleteMachineResponse { last_known_state: state }
    CMI: GetMachineStatusRequest = cmi::GetMachineStatusRequest {
        machine: machine, provider_id: optional_provider_id
    }
    CMI: ListMachinesRequest = cmi::ListMachinesRequest { class: class }
    CMI: ShutDownMachineRequest = cmi::ShutDownMachineRequest {
        machine: machine, provider_id: optional_provider_id, last_known_state: state
    }
    CMI: ShutDownMachineResponse = cmi::ShutDownMachineResponse { last_known_state: state }
    CAPCMI: InitializeMachineRequest = capcmi::InitializeMachineRequest {
        machine: machine, provider_id: optional_provider_id, last_known_state: state
    }
    CAPCMI: GetMachineStatusRequest = capcmi::GetMachineRequest {
        machine: machine, provider_id: optional_provider_id
    }
    CAPCMI: UpdateMachineRequest = capcmi::UpdateMachineRequest {
        machine: machine,
        provider_id: provider_id,
        last_applied_provider_spec: last_applied,
        last_known_state: state
    }
    CAPCMI: ListZonesRequest = capcmi::ListZonesRequest { class: class }
    CAPCMI: DescribeClassRequest = capcmi::DescribeClassRequest { class: class }
    CAPCMI: RestartMachineRequest = capcmi::RestartMachineRequest {
        machine: machine, provider_id: provider_id, last_known_state: state
    }
}
