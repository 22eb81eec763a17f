//! The name of a call.

use std::fmt;

macro_rules! operations {
    ($(
        $(#[$doc:meta])* $operation:ident $name:literal
            $method:ident($request:ident) -> $response:ty, $need:ident, $effect:ident, [$($class:ident).*];
    )+) => {
        /// A call of the driver; the label of metrics and the name in messages.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[derive(serde::Serialize, serde::Deserialize)]
        pub enum Operation {
            $(
                $(#[$doc])*
                #[serde(rename = $name)]
                $operation,
            )+
            /// Asks whether the driver can serve.
            Probe,
            /// Reads name and version.
            GetPluginInfo,
            /// Reads what the driver implements.
            GetPluginCapabilities,
        }

        impl Operation {
            /// Every operation, in the order of a machine's life.
            pub const ALL: [Self; [$($name),+].len() + 3] = [
                $(Self::$operation,)+
                Self::Probe,
                Self::GetPluginInfo,
                Self::GetPluginCapabilities,
            ];

            /// The name as the specifications write it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$operation => $name,)+
                    Self::Probe => "Probe",
                    Self::GetPluginInfo => "GetPluginInfo",
                    Self::GetPluginCapabilities => "GetPluginCapabilities",
                }
            }

            /// Whether every driver implements it. Such a call is never declared.
            pub const fn is_required(self) -> bool {
                match self {
                    $(Self::$operation => is!(required: $need),)+
                    Self::Probe | Self::GetPluginInfo | Self::GetPluginCapabilities => true,
                }
            }

            /// Whether it may change a VM.
            pub const fn writes(self) -> bool {
                match self {
                    $(Self::$operation => is!(writes: $effect),)+
                    Self::Probe | Self::GetPluginInfo | Self::GetPluginCapabilities => false,
                }
            }
        }
    };
}

/// Expands the two-valued columns of the table to a `bool`.
macro_rules! is {
    (required: required) => {
        true
    };
    (required: optional) => {
        false
    };
    (writes: writes) => {
        true
    };
    (writes: reads) => {
        false
    };
}

crate::for_each_call!(operations);

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
