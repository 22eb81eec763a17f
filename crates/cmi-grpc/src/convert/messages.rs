//! Messages about a machine or a class, for both services. They share the same few parts.

use std::fmt;

use super::field::{self, Field, FieldError, NAME};
use crate::proto::{capcmi::v1 as capcmi, cmi::v1 as cmi};
use crate::redacted::{Bytes, Keys};
use crate::{extension_rpcs, machine_rpcs};
use cmi_driver::{MachineClass, MachineRef, ProviderId, ProviderSpec};

/// The names of the fields in `proto/`, which differ between the services.
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

/// The id of a VM, which is optional in some requests.
trait Id: Sized {
    fn read(field: Field, text: &str) -> Result<Self, FieldError>;
    fn write(self) -> String;
}

impl Id for ProviderId {
    fn read(field: Field, text: &str) -> Result<Self, FieldError> {
        field.provider_id(text)
    }

    fn write(self) -> String {
        self.to_string()
    }
}

impl Id for Option<ProviderId> {
    fn read(field: Field, text: &str) -> Result<Self, FieldError> {
        (!text.is_empty()).then(|| field.provider_id(text)).transpose()
    }

    fn write(self) -> String {
        self.map_or_else(String::new, ProviderId::write)
    }
}

/// A field of a driver's type: how to write it into a message, how to read it from a message, and how to show
/// it in the message's `Debug` (CMI-13, CMI-47).
macro_rules! part {
    (write machine: $value:expr => $message:ident) => {
        $message.machine_name = $value.name;
        part!(write class: $value.class => $message);
    };
    (write class: $value:expr => $message:ident) => {
        ($message.provider_spec, $message.secrets) = field::class_fields($value);
    };
    (write provider_id: $value:expr => $message:ident) => {
        $message.provider_id = $value.write();
    };
    (write last_applied_provider_spec: $value:expr => $message:ident) => {
        $message.last_applied_provider_spec = field::object_bytes($value.0);
    };
    (write last_known_state: $value:expr => $message:ident) => {
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
        Id::read($names.provider_id, &$message.provider_id)?
    };
    (read last_applied_provider_spec: $message:ident, $names:ident) => {
        ProviderSpec(Field("last_applied_provider_spec").object(&$message.last_applied_provider_spec)?)
    };
    (read last_known_state: $message:ident, $names:ident) => {
        $names.last_known_state.state($message.last_known_state)?
    };

    (show machine: $message:expr => $shown:ident) => {
        $shown.field("machine_name", &$message.machine_name);
        part!(show class: $message => $shown);
    };
    (show class: $message:expr => $shown:ident) => {
        $shown.field("provider_spec", &Bytes($message.provider_spec.len()));
        $shown.field("secrets", &Keys(&$message.secrets));
    };
    (show provider_id: $message:expr => $shown:ident) => {
        $shown.field("provider_id", &$message.provider_id);
    };
    (show last_applied_provider_spec: $message:expr => $shown:ident) => {
        let bytes = Bytes($message.last_applied_provider_spec.len());
        $shown.field("last_applied_provider_spec", &bytes);
    };
    (show last_known_state: $message:expr => $shown:ident) => {
        $shown.field("last_known_state", &Bytes($message.last_known_state.len()));
    };
}

/// Converts both ways.
macro_rules! message {
    ($names:ident: $driver:ident = $messages:ident.$message:ident { $($field:ident),+ }) => {
        impl From<cmi_driver::$driver> for $messages::$message {
            fn from(value: cmi_driver::$driver) -> Self {
                let mut message = Self::default();
                $(part!(write $field: value.$field => message);)+
                message
            }
        }

        impl TryFrom<$messages::$message> for cmi_driver::$driver {
            type Error = FieldError;

            fn try_from(message: $messages::$message) -> Result<Self, FieldError> {
                Ok(Self {
                    $($field: part!(read $field: message, $names),)+
                })
            }
        }
    };
}

/// Converts both ways, and shows no secret.
macro_rules! request {
    ($names:ident: $driver:ident = $messages:ident.$message:ident { $($field:ident),+ }) => {
        message!($names: $driver = $messages.$message { $($field),+ });

        impl fmt::Debug for $messages::$message {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut shown = f.debug_struct(stringify!($message));
                $(part!(show $field: self => shown);)+
                shown.finish()
            }
        }
    };
}

macro_rules! requests {
    ([$names:ident: $messages:ident] $(
        $driver:ident: $method:ident($request:ident $({ $($field:ident),+ })?)
            -> $response:ident, $reply:ident, $declared:ident;
    )+) => {$($(
        request!($names: $driver = $messages.$request { $($field),+ });
    )?)+};
}

machine_rpcs!(requests [CMI: cmi]);
extension_rpcs!(requests [CAPCMI: capcmi]);
request!(CMI: GetMachineStatusRequest = cmi.GetMachineStatusRequest { machine, provider_id });
request!(CMI: ListMachinesRequest = cmi.ListMachinesRequest { class });
request!(CAPCMI: GetMachineStatusRequest = capcmi.GetMachineRequest { machine, provider_id });
message!(CMI: DeleteMachineResponse = cmi.DeleteMachineResponse { last_known_state });
message!(CMI: ShutDownMachineResponse = cmi.ShutDownMachineResponse { last_known_state });
