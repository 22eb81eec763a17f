//! The keys of circuit breakers.

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use cmi_driver::{JsonPointer, MachineClass, Secrets, USER_DATA, USER_DATA_FORMAT, tags};

/// A class of VMs that share a quota: a provider spec without the machine's identity, and the credentials.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClassKey {
    spec: [u8; 32],
    pub credentials: CredentialsKey,
}

/// The account that credentials belong to, as a hash of the credentials.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CredentialsKey([u8; 32]);

impl ClassKey {
    /// Returns the key of a class. The machine's identity is below `tag_path` in the provider spec.
    pub fn of(class: &MachineClass, tag_path: &JsonPointer) -> Self {
        let mut spec = class.provider_spec.clone();
        spec.remove_tags(tag_path, &tags::RESERVED);
        spec.remove_static_addresses();
        // The keys of an object are ordered, so the text is stable.
        let spec = Sha256::digest(Value::Object(spec.0).to_string().as_bytes()).into();
        let credentials = CredentialsKey::of(&class.secrets);
        Self { spec, credentials }
    }
}

impl CredentialsKey {
    pub fn of(secrets: &Secrets) -> Self {
        let mut hash = Sha256::new();
        for (key, value) in secrets.iter() {
            if key != USER_DATA && key != USER_DATA_FORMAT {
                hash_bytes(&mut hash, key.as_bytes());
                hash_bytes(&mut hash, value.expose());
            }
        }
        Self(hash.finalize().into())
    }
}

fn hash_bytes(hash: &mut Sha256, bytes: &[u8]) {
    hash.update(bytes.len().to_le_bytes());
    hash.update(bytes);
}
