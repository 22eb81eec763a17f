//! The kinds that a store holds.

use std::fmt::Debug;
use std::hash::Hash;

use kube::Resource;

/// A kind that a store holds.
pub trait Stored: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static {
    /// The facts that scans of a whole fleet read without unpacking objects. Similar objects share them.
    type Facts: Eq + Hash + Debug + Send + Sync + 'static;

    /// Returns the facts for scans.
    fn facts(&self) -> Self::Facts;

    /// Returns an id that distinguishes this object from others with the same facts. Scans find the object by
    /// it.
    fn external_id(&self) -> Option<&str> {
        None
    }

    /// Returns the text of the object at rest. `None` keeps the object unpacked, for example where the text
    /// would not restore it exactly: a reader must see the object that the API server has.
    fn pack(&self) -> Option<Vec<u8>> {
        None
    }

    /// Returns the same number for objects with similar texts, which share a dictionary.
    fn dictionary_group(&self) -> u64 {
        0
    }

    /// Restores an object from its packed text.
    ///
    /// # Errors
    /// The text does not describe an object of this kind.
    fn unpack(_text: &[u8]) -> serde_json::Result<Self> {
        Err(serde::de::Error::custom("objects of this kind are not packed"))
    }
}
