//! Objects for tests.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::ObjectMeta;
use kube::runtime::reflector::ObjectRef;

use crate::Stored;

impl Stored for ConfigMap {
    /// The resource version.
    type Facts = usize;

    fn facts(&self) -> usize {
        let version = self.metadata.resource_version.as_deref();
        version
            .and_then(|version| version.parse().ok())
            .unwrap_or_default()
    }

    fn pack(&self) -> Option<Vec<u8>> {
        serde_json::to_vec(self).ok()
    }

    fn unpack(text: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(text)
    }
}

pub(crate) fn config_map(name: &str, uid: &str, version: usize) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("ns".to_owned()),
            uid: Some(uid.to_owned()),
            resource_version: Some(version.to_string()),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    }
}

pub(crate) fn reference(name: &str) -> ObjectRef<ConfigMap> {
    ObjectRef::new(name).within("ns")
}
