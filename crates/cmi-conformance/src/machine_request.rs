//! A machine in the request of a case.

use serde_json::{Map, Value};

use super::config::{Config, SecretMap, secrets};
use cmi_driver::{
    Capabilities, JsonPointer, MachineClass, MachineRef, ProviderSpec, SecretValue, USER_DATA,
    USER_DATA_FORMAT, tags,
};

/// A machine in the request of a case: name, class and, when it is known, the id.
#[derive(Clone, Debug)]
pub struct MachineRequest {
    /// The machine's name.
    pub name: String,
    /// Its class.
    pub class: MachineClass,
    tag_path: JsonPointer,
}

impl MachineRequest {
    /// Returns a machine of a cluster, made from the configuration's spec and credentials, with its own
    /// identity.
    pub fn new(
        config: &Config,
        capabilities: &Capabilities,
        cluster: &str,
        name: &str,
        canary: &str,
    ) -> Self {
        let mut class = config.class();
        bootstrap(&mut class, canary);
        let request = Self {
            name: name.to_owned(),
            class,
            tag_path: capabilities.tag_path.clone(),
        };
        request
            .tagged(tags::CLUSTER, cluster)
            .tagged(tags::ROLE, "node")
            .tagged(tags::MACHINE, &format!("{cluster}-{name}"))
    }

    /// Returns the reference to the machine in a driver's request.
    pub fn reference(&self) -> MachineRef {
        MachineRef::new(self.name.clone(), self.class.clone())
    }

    /// Returns the request with another name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Returns the request with this tag added or replaced.
    #[must_use]
    pub fn tagged(mut self, tag: &str, value: &str) -> Self {
        // If the place of the tags holds no object, the driver has to refuse the spec, not the suite.
        if let Ok(tags) = self.class.provider_spec.object_at(&self.tag_path) {
            tags.insert(tag.to_owned(), value.into());
        }
        self
    }

    /// Returns the request without a tag.
    #[must_use]
    pub fn untagged(mut self, tag: &str) -> Self {
        if let Ok(tags) = self.class.provider_spec.object_at(&self.tag_path) {
            tags.remove(tag);
        }
        self
    }

    /// Returns the request for another cluster; the identity stays.
    #[must_use]
    pub fn in_cluster(self, cluster: &str) -> Self {
        self.tagged(tags::CLUSTER, cluster)
    }

    /// Returns the request of another machine object.
    #[must_use]
    pub fn with_identity(self, identity: &str) -> Self {
        self.tagged(tags::MACHINE, identity)
    }

    /// Returns the request with a change of the provider spec, as a JSON merge patch.
    #[must_use]
    pub fn changed(mut self, change: &Value) -> Self {
        let mut spec = Value::Object(std::mem::take(&mut self.class.provider_spec.0));
        json_patch::merge(&mut spec, change);
        if let Value::Object(spec) = spec {
            self.class.provider_spec = ProviderSpec(spec);
        }
        self
    }

    /// Returns the request with the configuration's spec and this request's tags: the same machine, without
    /// the mistakes in the spec of its create.
    #[must_use]
    pub fn with_sample_spec(mut self, config: &Config) -> Self {
        let tags = self.class.provider_spec.get(&self.tag_path).cloned();
        self.class.provider_spec = ProviderSpec(config.provider_spec.clone());
        if let Some(Value::Object(own)) = tags
            && let Ok(tags) = self.class.provider_spec.object_at(&self.tag_path)
        {
            tags.extend(own);
        }
        self
    }

    /// Returns the request without a field of the provider spec.
    #[must_use]
    pub fn without(self, field: &JsonPointer) -> Self {
        let change = field.segments().iter().rev().fold(Value::Null, |inner, segment| {
            Value::Object(Map::from_iter([(segment.clone(), inner)]))
        });
        self.changed(&change)
    }

    /// Returns the request with this value at a place in the provider spec. Missing parent objects are added.
    /// If a parent is not an object, the request is unchanged.
    #[must_use]
    pub fn with_value(mut self, place: &JsonPointer, value: Value) -> Self {
        let Some((key, parents)) = place.segments().split_last() else {
            return self;
        };
        let mut object = &mut self.class.provider_spec.0;
        for parent in parents {
            let inner = object.entry(parent).or_insert_with(|| Value::Object(Map::new()));
            let Some(inner) = inner.as_object_mut() else {
                return self;
            };
            object = inner;
        }
        object.insert(key.clone(), value);
        self
    }

    /// Returns the request with the name of a field in the other case, such as `REGION` instead of `region`.
    /// `None` if the field is missing, or its name has no letters.
    #[must_use]
    pub fn in_other_case(mut self, place: &JsonPointer) -> Option<Self> {
        let (key, parents) = place.segments().split_last()?;
        let mut object = &mut self.class.provider_spec.0;
        for parent in parents {
            object = object.get_mut(parent)?.as_object_mut()?;
        }
        let renamed = other_case(key)?;
        let value = object.remove(key)?;
        object.insert(renamed, value);
        Some(self)
    }

    /// Returns the request with other credentials and the same bootstrap data.
    #[must_use]
    pub fn with_secrets(mut self, map: &SecretMap) -> Self {
        let before = std::mem::replace(&mut self.class.secrets, secrets(map));
        for key in [USER_DATA, USER_DATA_FORMAT] {
            if let Some(value) = before.get(key) {
                // The bootstrap data of the configuration stays.
                let _taken = self.class.secrets.insert(key.to_owned(), value.clone());
            }
        }
        self
    }

    /// Returns the request with other bootstrap data.
    #[must_use]
    pub fn with_user_data(mut self, data: Vec<u8>) -> Self {
        let others = self.class.secrets.iter().filter(|(key, _)| *key != USER_DATA);
        let others = others.map(|(key, value)| (key.to_owned(), value.clone()));
        self.class.secrets = others.chain([(USER_DATA.to_owned(), data.into())]).collect();
        self
    }

    /// Returns a tag's value, or an empty text.
    pub fn tag(&self, tag: &str) -> String {
        self.class
            .provider_spec
            .get(&self.tag_path)
            .and_then(|tags| tags.get(tag))
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    }

    /// Returns the cluster of the machine.
    pub fn cluster(&self) -> String {
        self.tag(tags::CLUSTER)
    }
}

/// Returns a name in upper case or, if it already is in upper case, in lower case; `None` if neither changes
/// it.
pub fn other_case(name: &str) -> Option<String> {
    [name.to_uppercase(), name.to_lowercase()]
        .into_iter()
        .find(|other| other != name)
}

/// Adds bootstrap data with a secret in it that must not come back.
fn bootstrap(class: &mut MachineClass, canary: &str) {
    let data = format!("#cloud-config\nwrite_files: [{{path: /etc/canary, content: {canary}}}]\n");
    let data: SecretValue = data.into_bytes().into();
    for (key, value) in [
        (USER_DATA, data),
        (USER_DATA_FORMAT, b"cloud-config".to_vec().into()),
    ] {
        let _taken = class.secrets.insert(key.to_owned(), value);
    }
}
