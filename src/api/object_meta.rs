//! Name, namespace, UID and finalizers of an object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Name, namespace and UID as text, empty if unset. The API server sets the name and the UID of every object,
/// and the namespace of every namespaced object. So an empty text matches no object.
pub trait ObjectMetaExt {
    /// The name, or `""`.
    fn name(&self) -> &str;
    /// The namespace, or `""` for a cluster-scoped object.
    fn namespace(&self) -> &str;
    /// The UID, or `""`.
    fn uid(&self) -> &str;
    /// Whether the object has this finalizer.
    fn has_finalizer(&self, finalizer: &str) -> bool;
}

impl ObjectMetaExt for ObjectMeta {
    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or_default()
    }

    fn uid(&self) -> &str {
        self.uid.as_deref().unwrap_or_default()
    }

    fn has_finalizer(&self, finalizer: &str) -> bool {
        let mut all = self.finalizers.iter().flatten();
        all.any(|name| name == finalizer)
    }
}
