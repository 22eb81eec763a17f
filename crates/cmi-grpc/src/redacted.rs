//! `Debug` for the requests that hold secrets: shows names and ids, and only the size of everything else
//! (CMI-13, CMI-47). A message with a field `secrets` gets no derived `Debug`. So it does not compile unless
//! it is implemented here or made of the parts of `convert`.

use std::collections::HashMap;
use std::fmt;

use super::proto::capcmi;

/// Bytes that are shown only as their number.
pub(crate) struct Bytes(pub usize);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} bytes]", self.0)
    }
}

/// Secrets that are shown only as their keys.
pub(crate) struct Keys<'a>(pub &'a HashMap<String, Vec<u8>>);

impl fmt::Debug for Keys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut keys: Vec<_> = self.0.keys().collect();
        keys.sort();
        f.debug_set().entries(keys).finish()
    }
}

impl fmt::Debug for capcmi::v1::ListMachinesPagedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListMachinesPagedRequest")
            .field("page_size", &self.page_size)
            .field("page_token", &self.page_token)
            .field("provider_spec", &Bytes(self.provider_spec.len()))
            .field("secrets", &Keys(&self.secrets))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message;

    use super::*;
    use crate::proto::{DESCRIPTORS, cmi};
    use crate::{extension_rpcs, machine_rpcs};

    const CANARY: &[u8] = b"canary-4711";

    /// Checks that a request with the canary shows the key and not the value. Returns the name of the
    /// message, which is first in `told`.
    fn redacted<M: Message + Default + fmt::Debug>(
        told: &[&str],
        secrets: impl FnOnce(&mut M) -> &mut HashMap<String, Vec<u8>>,
    ) -> String {
        let mut request = M::default();
        secrets(&mut request).insert("token".to_owned(), CANARY.to_vec());
        let shown = format!("{request:?}");
        assert!(shown.contains("token"), "{told:?}: {shown}");
        assert!(
            !shown.contains("canary") && !shown.contains("99, 97, 110"),
            "{told:?}: {shown}"
        );
        told[0].to_owned()
    }

    /// CMI-13, CMI-47, OPS-11
    #[test]
    fn a_request_shows_the_keys_of_its_secrets_and_no_value() {
        let mut all = BTreeSet::new();
        macro_rules! check {
            ($messages:ident.$message:ident $($field:ident)*) => {
                let told = [stringify!($message), $(stringify!($field)),*];
                all.insert(redacted::<$messages::v1::$message>(&told, |request| &mut request.secrets));
            };
        }
        macro_rules! check_rpcs {
            ([$messages:ident] $(
                $driver:ident: $method:ident($request:ident $({ $($field:ident),+ })?)
                    -> $response:ident, $reply:ident, $declared:ident;
            )+) => {$($(
                check!($messages.$request $($field)+);
            )?)+};
        }
        machine_rpcs!(check_rpcs[cmi]);
        extension_rpcs!(check_rpcs[capcmi]);
        check!(cmi.GetMachineStatusRequest);
        check!(cmi.ListMachinesRequest);
        check!(capcmi.GetMachineRequest);
        check!(capcmi.ListMachinesPagedRequest);
        assert_eq!(all, with_secrets());
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
