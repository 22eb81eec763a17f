//! What names an object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Name, namespace and UID as text. The API server sets the name and the UID of whatever it answers, and the
/// namespace of all that has one: empty is what it never sets, and so an object of nothing.
pub trait ObjectMetaExt {
    /// The name, or `""`.
    fn name(&self) -> &str;
    /// The namespace, or `""` for what has none.
    fn namespace(&self) -> &str;
    /// The UID, or `""`.
    fn uid(&self) -> &str;
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
}
