//! Writes of the provider.

use std::fmt;

use fake_apiserver::Call;

use super::World;

/// A write that the API server has carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// In plural, with the subresource: `inframachines/status`.
    pub resource: String,
    /// Name of the object.
    pub name: String,
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.resource, self.name)
    }
}

/// The provider's writes in the namespace of the case.
pub fn writes(world: &World) -> Vec<Write> {
    let writes = world.management.writes_of("provider");
    writes
        .iter()
        .filter_map(|write| of(&write.call, &world.namespace))
        .collect()
}

fn of(call: &Call, namespace: &str) -> Option<Write> {
    let (_, rest) = call.path.split_once(&format!("/namespaces/{namespace}/"))?;
    let mut parts = rest.split('/');
    let (resource, name, subresource) = (parts.next()?, parts.next(), parts.next());
    Some(Write {
        resource: subresource.map_or_else(|| resource.to_owned(), |sub| format!("{resource}/{sub}")),
        name: name
            .or_else(|| call.body["metadata"]["name"].as_str())
            .unwrap_or_default()
            .to_owned(),
    })
}
