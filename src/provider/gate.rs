//! The capacity gate: no creates where there is known to be no room.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::driver::retry::LONG_WAIT;
use crate::driver::{Code, JsonPointer, MachineClass, Status, USER_DATA, USER_DATA_FORMAT, tags};

/// The longest that a driver may keep the gate closed by one answer.
const LONGEST: Duration = Duration::from_hours(1);

/// What shares a quota: a provider spec but for whose machine it is, and the credentials.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key([u8; 32]);

/// The keys whose creates are held back, and until when.
#[derive(Debug, Default)]
pub(super) struct CapacityGate {
    closed: Mutex<HashMap<Key, Instant>>,
}

impl Key {
    /// The key of a class, in which the machine's identity stands under `tag_path`.
    pub(super) fn of(class: &MachineClass, tag_path: &JsonPointer) -> Self {
        let mut spec = class.provider_spec.clone();
        spec.remove_tags(tag_path, &tags::RESERVED);
        let mut hash = Sha256::new();
        // Objects are kept in the order of their keys.
        hash_bytes(&mut hash, Value::Object(spec.0).to_string().as_bytes());
        for (key, value) in class.secrets.iter() {
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

impl CapacityGate {
    /// How long the gate stays closed for this key; nothing when it is open.
    pub(super) fn closed_for(&self, key: &Key) -> Option<Duration> {
        let until = *self.lock().get(key)?;
        until
            .checked_duration_since(Instant::now())
            .filter(|left| !left.is_zero())
    }

    /// The answer to a create that is held back.
    pub(super) fn check(&self, key: &Key) -> Result<(), Status> {
        let Some(left) = self.closed_for(key) else {
            return Ok(());
        };
        let message = format!(
            "capacity was exhausted for another machine of this class; creates of the class are held back for {} s",
            left.as_secs().max(1)
        );
        Err(Status::new(Code::ResourceExhausted, message)
            .with_retry_after(left)
            .never_sent())
    }

    /// Takes note of the answer to a create or an initialize: exhausted closes the gate.
    pub(super) fn note_failure(&self, key: &Key, status: &Status) {
        if status.code() != Code::ResourceExhausted {
            return;
        }
        let now = Instant::now();
        let until = now + status.retry_after().unwrap_or(LONG_WAIT).min(LONGEST);
        let mut closed = self.lock();
        closed.retain(|_, until| *until > now);
        closed.insert(key.clone(), until);
    }

    /// A create succeeded: there is room.
    pub(super) fn open(&self, key: &Key) {
        self.lock().remove(key);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Instant>> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::driver::{ProviderSpec, SecretValue};

    fn class(spec: &Value, secrets: &[(&str, &str)]) -> MachineClass {
        MachineClass {
            provider_spec: ProviderSpec(spec.as_object().unwrap().clone()),
            secrets: secrets
                .iter()
                .map(|(key, value)| ((*key).to_owned(), SecretValue::from(value.as_bytes().to_vec())))
                .collect(),
        }
    }

    fn key(spec: &Value, secrets: &[(&str, &str)]) -> Key {
        Key::of(&class(spec, secrets), &"/meta/tags".parse().unwrap())
    }

    #[test]
    fn machines_of_one_class_share_a_key_whatever_their_identity_and_bootstrap_data() {
        let of = |machine: &str, token: &str| {
            key(
                &json!({"size": "s", "meta": {"tags": {"team": "a", "capcmi.io/machine": machine}}}),
                &[("token", "t"), (USER_DATA, token)],
            )
        };
        assert_eq!(of("one", "join-1"), of("two", "join-2"));
    }

    #[test]
    fn another_size_zone_tag_or_credential_is_another_key() {
        let base = json!({"size": "s", "meta": {"tags": {"team": "a"}}});
        let credentials: &[(&str, &str)] = &[("token", "t")];
        let others = [
            key(
                &json!({"size": "l", "meta": {"tags": {"team": "a"}}}),
                credentials,
            ),
            key(
                &json!({"size": "s", "meta": {"tags": {"team": "b"}}}),
                credentials,
            ),
            key(
                &json!({"size": "s", "failureDomain": "z", "meta": {"tags": {"team": "a"}}}),
                credentials,
            ),
            key(&base, &[("token", "u")]),
        ];
        for other in others {
            assert_ne!(key(&base, credentials), other);
        }
    }

    /// CTL-CR-08
    #[tokio::test(start_paused = true)]
    async fn exhausted_closes_the_gate_for_ten_minutes_or_as_long_as_the_driver_says() {
        let gate = CapacityGate::default();
        let (one, two) = (key(&json!({"a": 1}), &[]), key(&json!({"a": 2}), &[]));
        gate.note_failure(&one, &Status::new(Code::ResourceExhausted, "full"));
        let soon = Status::new(Code::ResourceExhausted, "full").with_retry_after(Duration::from_secs(30));
        gate.note_failure(&two, &soon);
        assert_eq!(gate.closed_for(&one), Some(Duration::from_mins(10)));
        let refused = gate.check(&two).unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert_eq!(refused.retry_after(), Some(Duration::from_secs(30)));
        tokio::time::advance(Duration::from_secs(30)).await;
        assert!(gate.check(&two).is_ok());
        tokio::time::advance(Duration::from_mins(10)).await;
        assert!(gate.check(&one).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn other_errors_leave_the_gate_alone_and_a_success_opens_it() {
        let gate = CapacityGate::default();
        let key = key(&json!({}), &[]);
        gate.note_failure(&key, &Status::new(Code::Unavailable, "down"));
        assert_eq!(gate.closed_for(&key), None);
        gate.note_failure(&key, &Status::new(Code::ResourceExhausted, "full"));
        gate.open(&key);
        assert_eq!(gate.closed_for(&key), None);
    }
}
