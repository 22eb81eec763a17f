//! A hash that stands for a value when only equality matters.

use std::hash::{DefaultHasher, Hash, Hasher};

/// The same number for the same value, as long as this process runs.
pub fn fingerprint(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
