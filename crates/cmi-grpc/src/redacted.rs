//! `Debug` of the requests that hold secrets: names and ids, and of the rest only how much
//! there is (CMI-13, CMI-47).

use std::collections::HashMap;
use std::fmt;

use super::proto::{capcmi, cmi};

/// Bytes of which only the number is shown.
struct Bytes(usize);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} bytes]", self.0)
    }
}

/// Secrets of which only the keys are shown.
struct Keys<'a>(&'a HashMap<String, Vec<u8>>);

impl fmt::Debug for Keys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut keys: Vec<_> = self.0.keys().collect();
        keys.sort();
        f.debug_set().entries(keys).finish()
    }
}

/// Shows the first fields as they are, and of the others how many bytes they have.
macro_rules! redacted_debug {
    ($($message:ty { $($shown:ident),* ; $($counted:ident),* })*) => {$(
        impl fmt::Debug for $message {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($message))
                    $(.field(stringify!($shown), &self.$shown))*
                    $(.field(stringify!($counted), &Bytes(self.$counted.len())))*
                    .field("secrets", &Keys(&self.secrets))
                    .finish()
            }
        }
    )*};
}

/// The messages with a field `secrets`. One that is not here has no `Debug`, which does not compile.
macro_rules! messages_with_secrets {
    ($callback:ident) => {
        $callback! {
            cmi::v1::CreateMachineRequest { machine_name; provider_spec, last_known_state }
            cmi::v1::DeleteMachineRequest { machine_name, provider_id; provider_spec, last_known_state }
            cmi::v1::GetMachineStatusRequest { machine_name, provider_id; provider_spec }
            cmi::v1::ListMachinesRequest { ; provider_spec }
            cmi::v1::ShutDownMachineRequest { machine_name, provider_id; provider_spec, last_known_state }
            capcmi::v1::InitializeMachineRequest {
                machine_name, provider_id; provider_spec, last_known_state
            }
            capcmi::v1::UpdateMachineRequest {
                machine_name, provider_id; last_applied_provider_spec, provider_spec, last_known_state
            }
            capcmi::v1::GetMachineRequest { machine_name, provider_id; provider_spec }
            capcmi::v1::ListMachinesPagedRequest { page_size, page_token; provider_spec }
            capcmi::v1::ListZonesRequest { ; provider_spec }
            capcmi::v1::DescribeClassRequest { ; provider_spec }
            capcmi::v1::RestartMachineRequest {
                machine_name, provider_id; provider_spec, last_known_state
            }
        }
    };
}

messages_with_secrets!(redacted_debug);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message;

    use super::*;
    use crate::proto::DESCRIPTORS;

    const CANARY: &[u8] = b"canary-4711";

    /// How a request that holds the canary, and nothing else, shows itself.
    fn shown<M: Message + Default + fmt::Debug>(
        secrets: impl FnOnce(&mut M) -> &mut HashMap<String, Vec<u8>>,
    ) -> String {
        let mut request = M::default();
        secrets(&mut request).insert("token".to_owned(), CANARY.to_vec());
        format!("{request:?}")
    }

    /// CMI-13, CMI-47, OPS-11
    #[test]
    fn a_request_shows_the_keys_of_its_secrets_and_no_value() {
        macro_rules! all_shown {
            ($($message:ty { $($shown:ident),* ; $($counted:ident),* })*) => {
                [$(shown::<$message>(|request| &mut request.secrets)),*]
            };
        }
        let all = messages_with_secrets!(all_shown);
        for shown in &all {
            assert!(shown.contains("token"), "{shown}");
            assert!(
                !shown.contains("canary") && !shown.contains("99, 97, 110"),
                "{shown}"
            );
        }
        assert_eq!(all.len(), with_secrets().len());
    }

    /// The messages of `proto/` that have a field with secrets.
    fn with_secrets() -> BTreeSet<String> {
        let files = prost_types::FileDescriptorSet::decode(DESCRIPTORS).unwrap();
        let messages = files.file.into_iter().flat_map(|file| file.message_type);
        messages
            .filter(|message| {
                message
                    .field
                    .iter()
                    .any(|field| field.name().eq_ignore_ascii_case("secrets"))
            })
            .map(|message| message.name().to_owned())
            .collect()
    }
}
