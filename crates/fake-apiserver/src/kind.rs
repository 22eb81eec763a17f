//! The kinds that a server has.

use serde_json::{Value, json};

/// A kind of objects, as discovery describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The API group; empty for the core group.
    pub group: String,
    /// The only version that is served.
    pub version: String,
    /// The name of the kind, such as `Machine`.
    pub kind: String,
    /// The name in paths, such as `machines`.
    pub plural: String,
    /// Whether objects belong to a namespace.
    pub is_namespaced: bool,
    /// Whether the status is a subresource: writes of the object then leave it alone.
    pub has_status: bool,
}

impl Kind {
    /// A namespaced kind with a status subresource. `api_version` is `group/version`, or `v1` for the core
    /// group.
    pub fn new(api_version: &str, kind: &str, plural: &str) -> Self {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Self {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
            is_namespaced: true,
            has_status: true,
        }
    }

    /// The same kind, cluster-scoped.
    #[must_use]
    pub fn cluster_scoped(mut self) -> Self {
        self.is_namespaced = false;
        self
    }

    /// The same kind, without a status subresource.
    #[must_use]
    pub fn without_status(mut self) -> Self {
        self.has_status = false;
        self
    }

    /// `group/version`, or `v1` for the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// The entries of an `APIResourceList` for the kind and for its status subresource.
    pub(crate) fn discovery(&self) -> Vec<Value> {
        let entry = |name: String| {
            json!({
                "name": name, "singularName": self.kind.to_lowercase(), "namespaced": self.is_namespaced,
                "kind": self.kind,
                "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
            })
        };
        let mut entries = vec![entry(self.plural.clone())];
        if self.has_status {
            entries.push(entry(format!("{}/status", self.plural)));
        }
        entries
    }
}
