//! An object of a store, packed or not.

use std::sync::Arc;

use super::packed::Packed;
use crate::{NamespacedName, Stored};

/// An object of a store, as it was when it was taken out. Cloning an entry does not copy the object.
#[derive(Debug)]
pub struct Entry<K: Stored> {
    pub(super) key: NamespacedName,
    pub(super) uid: u64,
    pub(super) version: u64,
    pub(super) external_id: Option<u64>,
    pub(super) facts: Arc<K::Facts>,
    pub(super) form: Form<K>,
    /// The last list that contained the object.
    pub(super) last_list: u32,
}

impl<K: Stored> Clone for Entry<K> {
    fn clone(&self) -> Self {
        Self {
            key: self.key.clone(),
            facts: Arc::clone(&self.facts),
            form: self.form.clone(),
            ..*self
        }
    }
}

#[derive(Debug)]
pub(super) enum Form<K> {
    Unpacked(Arc<K>),
    Packed(Packed),
    /// The object was packed, and has been read since.
    Both(Arc<K>, Packed),
}

impl<K> Clone for Form<K> {
    fn clone(&self) -> Self {
        match self {
            Self::Unpacked(object) => Self::Unpacked(Arc::clone(object)),
            Self::Packed(packed) => Self::Packed(packed.clone()),
            Self::Both(object, packed) => Self::Both(Arc::clone(object), packed.clone()),
        }
    }
}

impl<K: Stored> Entry<K> {
    /// Namespace and name.
    pub fn key(&self) -> &NamespacedName {
        &self.key
    }

    /// The facts for scans.
    pub fn facts(&self) -> &K::Facts {
        &self.facts
    }

    /// A number that stands for the UID. Equal numbers mean equal UIDs while the process runs. With a hundred
    /// thousand UIDs, the chance of a collision is one in four thousand million.
    pub fn uid(&self) -> u64 {
        self.uid
    }

    /// A number that stands for the resource version, in the same way.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// A number that stands for the external id, in the same way.
    pub fn external_id(&self) -> Option<u64> {
        self.external_id
    }

    /// Returns the object; a new copy where it is packed.
    pub fn object(&self) -> Option<Arc<K>> {
        match &self.form {
            Form::Unpacked(object) | Form::Both(object, _) => Some(Arc::clone(object)),
            Form::Packed(packed) => unpack(&self.key, packed),
        }
    }

    /// Whether this is the same version of the same object.
    pub(super) fn is_version(&self, (uid, version): (u64, u64)) -> bool {
        self.uid == uid && self.version == version
    }
}

pub(super) fn unpack<K: Stored>(key: &NamespacedName, packed: &Packed) -> Option<Arc<K>> {
    let text = packed.text().map_err(|error| error.to_string());
    match text.and_then(|text| K::unpack(&text).map_err(|error| error.to_string())) {
        Ok(object) => Some(Arc::new(object)),
        Err(error) => {
            // The text was readable when it was packed, so this is a defect. The object counts as not seen.
            tracing::error!(kind = %K::kind(&()), object = ?key, error, "cannot unpack a stored object");
            None
        }
    }
}
