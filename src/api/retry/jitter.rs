//! Spreads in time what would happen to many objects at once.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Returns a number from 0 to 1 that differs from object to object and from attempt to attempt.
pub fn jitter(uid: &str, attempt: u32) -> f64 {
    let mut hasher = DefaultHasher::new();
    (uid, attempt).hash(&mut hasher);
    f64::from(u16::try_from(hasher.finish() & 0xffff).unwrap_or_default()) / 65536.0
}
