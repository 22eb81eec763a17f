//! The objects of machine-controller-manager that a migration reads. Pure.

use std::collections::BTreeMap;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// The API group of machine-controller-manager.
pub const GROUP: &str = "machine.sapcloud.io";
/// The API version that is read.
pub const VERSION: &str = "v1alpha1";
/// The kind of a class with an unconverted provider spec.
pub const CLASS: &str = "MachineClass";

/// The objects of machine-controller-manager.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// Machines. Each has a VM.
    pub machines: Vec<McmMachine>,
    /// MachineSets.
    pub sets: Vec<McmMachineSet>,
    /// MachineDeployments.
    pub deployments: Vec<McmMachineDeployment>,
    /// Classes of every kind, by kind and name.
    pub classes: BTreeMap<McmClassKey, Map<String, Value>>,
    /// Secrets, by namespace and name.
    pub secrets: BTreeMap<(String, String), SecretData>,
}

/// The decoded values of a Secret. Debug output leaves them out.
#[derive(Clone, Default)]
pub struct SecretData(pub BTreeMap<String, Vec<u8>>);

impl std::fmt::Debug for SecretData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// A reference to a class.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct McmClassKey {
    /// `MachineClass`, or the kind of a provider's own class.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its group, where it is named.
    pub api_group: String,
}

/// A Machine.
#[derive(Clone, Debug, Deserialize)]
pub struct McmMachine {
    /// Name, namespace, owners.
    pub metadata: ObjectMeta,
    /// The fields of its spec that are used.
    #[serde(default)]
    pub spec: McmMachineSpec,
    /// The fields of its status that are used.
    #[serde(default)]
    pub status: McmMachineStatus,
}

/// The fields of a Machine's status that are used.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct McmMachineStatus {
    /// The state that the driver wants back with the next call; empty where it wants none.
    pub last_known_state: String,
}

/// The fields of a Machine's spec, and of that in the template of a set, that are used.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct McmMachineSpec {
    /// The class.
    pub class: McmClassKey,
    /// The id of the VM.
    #[serde(rename = "providerID")]
    pub provider_id: String,
    /// The template of the Node's labels, annotations and taints; not carried over.
    pub node_template: Option<Value>,
}

/// The template of a set.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct McmTemplate {
    /// The spec of its machines.
    pub spec: McmMachineSpec,
}

/// A MachineSet.
#[derive(Clone, Debug, Deserialize)]
pub struct McmMachineSet {
    /// Name, namespace, owners.
    pub metadata: ObjectMeta,
    /// The fields of its spec that are used.
    #[serde(default)]
    pub spec: McmSetSpec,
}

/// A MachineDeployment.
#[derive(Clone, Debug, Deserialize)]
pub struct McmMachineDeployment {
    /// Name and namespace.
    pub metadata: ObjectMeta,
    /// The fields of its spec that are used.
    #[serde(default)]
    pub spec: McmSetSpec,
}

/// The fields of the spec of a MachineSet or MachineDeployment that are used.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct McmSetSpec {
    /// The number of machines.
    pub replicas: i64,
    /// The template of its machines.
    pub template: McmTemplate,
    /// How it is rolled.
    pub strategy: McmStrategy,
    /// The time that a machine must be ready.
    pub min_ready_seconds: i64,
    /// Whether it is left alone.
    pub paused: bool,
}

/// How a MachineDeployment is rolled.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct McmStrategy {
    /// `RollingUpdate`, `Recreate` or `InPlaceUpdate`.
    #[serde(rename = "type")]
    pub type_: String,
    /// How many at a time.
    pub rolling_update: Option<McmRollingUpdate>,
}

/// How many machines are replaced at a time.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct McmRollingUpdate {
    /// A number or a share.
    pub max_surge: Option<Value>,
    /// A number or a share.
    pub max_unavailable: Option<Value>,
}

impl Source {
    /// Adds an object, or each object of a list. Ignores objects of other kinds and, if a namespace is given,
    /// objects of other namespaces.
    ///
    /// # Errors
    /// The unreadable part.
    pub fn add(&mut self, object: Value, namespace: Option<&str>) -> Result<(), String> {
        let kind = text(&object, "/kind");
        if let Some(items) = object.get("items").and_then(Value::as_array) {
            let of_list = kind.strip_suffix("List").unwrap_or_default().to_owned();
            for item in items {
                let mut item = item.clone();
                if let Some(fields) = item.as_object_mut() {
                    let version = object.get("apiVersion").cloned().unwrap_or_default();
                    fields.entry("kind").or_insert_with(|| of_list.clone().into());
                    fields.entry("apiVersion").or_insert(version);
                }
                self.add(item, namespace)?;
            }
            return Ok(());
        }
        let place = text(&object, "/metadata/namespace");
        if namespace.is_some_and(|wanted| wanted != place) {
            return Ok(());
        }
        let group = text(&object, "/apiVersion");
        let group = group.split_once('/').map_or("", |(group, _)| group);
        match (group, kind.as_str()) {
            (GROUP, "Machine") => self.machines.push(read(object, &kind)?),
            (GROUP, "MachineSet") => self.sets.push(read(object, &kind)?),
            (GROUP, "MachineDeployment") => self.deployments.push(read(object, &kind)?),
            ("", "Secret") => {
                let key = (place, text(&object, "/metadata/name"));
                self.secrets.insert(key, secret(&object)?);
            }
            (GROUP, kind) if kind.ends_with("Class") => self.add_class(kind, object),
            _ => {}
        }
        Ok(())
    }

    /// Adds a class of any kind.
    pub fn add_class(&mut self, kind: &str, object: Value) {
        let name = text(&object, "/metadata/name");
        if let Value::Object(fields) = object {
            self.classes.insert(class_key(kind, &name), fields);
        }
    }

    /// Whether a MachineSet is empty and belongs to a former template of a MachineDeployment.
    fn is_old(&self, set: &McmMachineSet) -> bool {
        let owner = |meta: &ObjectMeta, kind: &str| {
            let mut owners = meta.owner_references.iter().flatten();
            owners
                .find(|owner| owner.kind == kind)
                .map(|owner| owner.name.clone())
        };
        let mut machines = self.machines.iter();
        owner(&set.metadata, "MachineDeployment").is_some()
            && !machines.any(|machine| owner(&machine.metadata, "MachineSet") == set.metadata.name)
    }

    /// Returns the classes that machines, sets and deployments refer to. Old sets of a deployment create no
    /// machine, and their classes may be gone.
    pub fn used_classes(&self) -> Vec<McmClassKey> {
        let of_machines = self.machines.iter().map(|machine| &machine.spec.class);
        let sets = self.sets.iter().filter(|set| !self.is_old(set));
        let of_sets = sets.map(|set| &set.spec.template.spec.class);
        let of_deployments = self.deployments.iter().map(|set| &set.spec.template.spec.class);
        let all = of_machines.chain(of_sets).chain(of_deployments);
        let mut used: Vec<_> = all
            .filter(|class| !class.name.is_empty())
            .map(|class| class_key(&class.kind, &class.name))
            .collect();
        used.sort();
        used.dedup();
        used
    }
}

/// Returns the key of a class, without the API group of the reference.
pub fn class_key(kind: &str, name: &str) -> McmClassKey {
    let kind = if kind.is_empty() { CLASS } else { kind };
    McmClassKey {
        kind: kind.to_owned(),
        name: name.to_owned(),
        api_group: String::new(),
    }
}

/// Returns the text at a JSON pointer in an object; empty if absent.
pub fn text(object: &Value, pointer: &str) -> String {
    let found = object.pointer(pointer).and_then(Value::as_str);
    found.unwrap_or_default().to_owned()
}

/// A condition of an object.
pub fn condition<'a>(object: &'a Value, type_: &str) -> Option<&'a Value> {
    let conditions = object.pointer("/status/conditions")?.as_array()?;
    conditions.iter().find(|condition| condition["type"] == type_)
}

fn read<T: DeserializeOwned>(object: Value, kind: &str) -> Result<T, String> {
    let name = text(&object, "/metadata/name");
    serde_json::from_value(object).map_err(|error| format!("cannot read {kind} {name}: {error}"))
}

fn secret(object: &Value) -> Result<SecretData, String> {
    let name = text(object, "/metadata/name");
    let mut values = BTreeMap::new();
    for (key, value) in object
        .get("data")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let encoded = value.as_str().unwrap_or_default();
        let decoded = BASE64_STANDARD
            .decode(encoded)
            .map_err(|_| format!("Secret {name}: data.{key} is not valid base64"))?;
        values.insert(key.clone(), decoded);
    }
    let plain = object.get("stringData").and_then(Value::as_object);
    for (key, value) in plain.into_iter().flatten() {
        values.insert(key.clone(), value.as_str().unwrap_or_default().into());
    }
    Ok(SecretData(values))
}
