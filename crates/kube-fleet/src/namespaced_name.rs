//! The key of an object of a kind.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use kube::Resource;
use kube::core::ObjectMeta;
use kube::runtime::reflector::ObjectRef;

/// Namespace and name of an object. Cloning it copies nothing.
///
/// Its text is `namespace/name`, with nothing before the slash where the kind has no namespace.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespacedName(Arc<str>);

impl NamespacedName {
    /// The name of an object in a namespace. Neither holds a slash.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self(format!("{namespace}/{name}").into())
    }

    /// The key of an object with these metadata.
    pub fn of(meta: &ObjectMeta) -> Self {
        Self::new(
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
        )
    }

    /// The object's namespace.
    pub fn namespace(&self) -> &str {
        self.0.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// The object's name.
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or("", |(_, name)| name)
    }

    /// A reference to the object.
    pub fn reference<K: Resource<DynamicType = ()>>(&self) -> ObjectRef<K> {
        ObjectRef::new(self.name()).within(self.namespace())
    }
}

impl<K: Resource<DynamicType = ()>> From<&ObjectRef<K>> for NamespacedName {
    fn from(reference: &ObjectRef<K>) -> Self {
        Self::new(
            reference.namespace.as_deref().unwrap_or_default(),
            &reference.name,
        )
    }
}

impl fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Borrow<str> for NamespacedName {
    fn borrow(&self) -> &str {
        &self.0
    }
}
