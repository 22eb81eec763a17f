//! The plan of the objects that replace those of machine-controller-manager. Pure.

mod class;
mod groups;
mod names;
mod objects;
mod secrets;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value};

pub use self::secrets::secret_key;

use self::class::class;
use self::groups::{groups, unfit};
use self::names::unfit_names;
use super::source::{McmClassKey, McmMachineSpec, Source, class_key};
use capcmi::api::ObjectMetaExt as _;
use cmi_driver::{Capabilities, MachineClass};

/// Annotation of every object that a migration writes: the original that it replaces.
pub const MIGRATED_FROM: &str = "infrastructure.capcmi.io/migrated-from";
/// Annotation of every migrated original: where its machines are now.
pub const MIGRATED_TO: &str = "infrastructure.capcmi.io/migrated-to";
/// Annotation of the MachineDeployment, or else the MachineSet, of an unfinished group. The last write of the
/// group removes it. A pause or a user's annotation would be ambiguous.
pub const UNFINISHED: &str = "infrastructure.capcmi.io/migration-unfinished";
/// Annotation of the objects that an undo has paused and is about to delete. A migration does not continue
/// while it is set.
pub const UNDOING: &str = "infrastructure.capcmi.io/migration-being-undone";
/// Annotation of Cluster API: a MachineSet adopts Machines and creates none.
pub const DISABLE_MACHINE_CREATE: &str = "cluster.x-k8s.io/disable-machine-create";

/// The choices of the operator.
#[derive(Clone, Debug)]
pub struct Destination {
    /// The namespace of the Cluster.
    pub namespace: String,
    /// The Cluster that the machines become part of.
    pub cluster: String,
    /// The driver that manages the VMs.
    pub driver: String,
    /// The Secret with the bootstrap data of later machines, instead of the bootstrap data of the classes.
    pub bootstrap_secret: Option<String>,
    /// Whether a class may name a Secret of another namespace.
    pub secrets_of_other_namespaces: bool,
}

impl Destination {
    /// The value of [`MIGRATED_TO`].
    pub fn mark(&self) -> String {
        format!("{}/{}", self.namespace, self.cluster)
    }

    /// Returns the value of [`MIGRATED_FROM`]. Names alone would confuse objects with the same name in two
    /// namespaces or Clusters, or at different times.
    fn marker(&self, kind: &str, namespace: &str, name: &str, uid: &str) -> String {
        let uid = if uid.is_empty() {
            String::new()
        } else {
            format!(" {uid}")
        };
        format!("{kind} {namespace}/{name}{uid} to {}", self.cluster)
    }

    fn marker_of(&self, kind: &str, meta: &ObjectMeta) -> String {
        let namespace = meta.namespace();
        let uid = meta.uid();
        self.marker(kind, namespace, &name(meta), uid)
    }
}

/// The object that is replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Original {
    /// Its kind.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// Whether an earlier run has marked it as migrated.
    pub is_marked: bool,
}

impl Original {
    fn new(kind: &'static str, meta: &ObjectMeta) -> Self {
        let mark = meta
            .annotations
            .iter()
            .flatten()
            .find(|(key, _)| *key == MIGRATED_TO);
        Self {
            kind,
            name: name(meta),
            is_marked: mark.is_some(),
        }
    }
}

/// An object to create.
#[derive(Clone, Debug)]
pub struct Object {
    /// Its kind.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// A note for the operator.
    pub note: String,
    /// The whole object.
    pub body: Value,
}

/// Its kind and name.
impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

impl Object {
    fn new(kind: &'static str, name: impl Into<String>, note: impl Into<String>, body: Value) -> Self {
        Self {
            kind,
            name: name.into(),
            note: note.into(),
            body,
        }
    }
}

/// The objects that replace one class.
#[derive(Clone, Debug)]
pub struct Class {
    /// The key of the class.
    pub key: McmClassKey,
    /// Secrets and template.
    pub objects: Vec<Object>,
    /// The class that machine-controller-manager hands to the driver with every call but a create.
    pub mcm_class: MachineClass,
    /// Whether an earlier run has marked it as migrated.
    pub is_marked: bool,
}

/// Machines of one owner.
#[derive(Clone, Debug)]
pub struct Group {
    /// The original owner, as `MachineDeployment workers`.
    pub from: String,
    /// The classes of its machines.
    pub classes: BTreeSet<McmClassKey>,
    /// InfraMachines and Machines.
    pub machines: Vec<Object>,
    /// The MachineSet that adopts the Machines, if any.
    pub set: Option<Object>,
    /// The MachineDeployment that adopts the MachineSet, if any.
    pub deployment: Option<Object>,
    /// The settings that are not carried over, for the operator.
    pub notes: Vec<String>,
    /// The originals to mark as migrated, starting with the owner of the machines, if any.
    pub originals: Vec<Original>,
}

impl Group {
    /// Returns whether the original that keeps the machines, or the single Machine, is marked. Then an
    /// earlier run has created every object, and missing objects were deleted later.
    pub fn is_marked(&self) -> bool {
        self.originals.first().is_some_and(|keeper| keeper.is_marked)
    }

    /// Whether the Machine of machine-controller-manager of this name is marked.
    pub fn has_marked(&self, machine: &str) -> bool {
        let mut originals = self.originals.iter();
        originals.any(|original| original.kind == "Machine" && original.name == machine && original.is_marked)
    }

    /// Returns the object that owns the others and tells whether the group is done.
    pub fn head(&self) -> Option<&Object> {
        self.deployment.as_ref().or(self.set.as_ref())
    }

    /// The objects of one kind: InfraMachines or Machines.
    pub fn of_kind(&self, kind: &'static str) -> impl Iterator<Item = &Object> {
        self.machines.iter().filter(move |object| object.kind == kind)
    }

    /// Returns all objects of the group in creation order: core reads the MachineDeployment of a MachineSet.
    pub fn objects(&self) -> impl Iterator<Item = &Object> {
        self.machines.iter().chain(&self.deployment).chain(&self.set)
    }
}

/// All objects of a migration.
#[derive(Clone, Debug)]
pub struct Migration {
    /// Those that replace the classes.
    pub classes: Vec<Class>,
    /// Those that replace the machines.
    pub groups: Vec<Group>,
}

/// A class, converted for this provider.
struct Converted {
    /// The provider spec without the tags that the provider sets.
    spec: Map<String, Value>,
    /// The tags that the provider sets, as the VMs carry them.
    carried: Map<String, Value>,
    failure_domain: Option<String>,
    credentials: Option<String>,
    bootstrap: String,
}

/// Plans the migration, or returns every problem that prevents it.
///
/// # Errors
/// Each problem names the object, the mistake and the fix.
pub fn plan(
    source: &Source,
    target: &Destination,
    capabilities: &Capabilities,
) -> Result<Migration, Vec<String>> {
    let mut problems = Vec::new();
    let (mut classes, mut converted) = (Vec::new(), BTreeMap::new());
    for key in source.used_classes() {
        match class(source, target, capabilities, &key) {
            Ok((objects, mcm_class, class)) => {
                classes.push(Class {
                    key: key.clone(),
                    objects,
                    mcm_class,
                    is_marked: is_marked(source, &key),
                });
                converted.insert(key, class);
            }
            Err(problem) => problems.push(format!("{} {}: {problem}", key.kind, key.name)),
        }
    }
    problems.extend(marked_by_others(source, target));
    let groups = groups(source, &mut problems);
    let mut names = BTreeSet::new();
    let mut made = Vec::new();
    for group in groups {
        for machine in &group.machines {
            if let Some(problem) = unfit(machine) {
                problems.push(format!("Machine {}: {problem}", name(&machine.metadata)));
            }
            if !names.insert(name(&machine.metadata)) {
                problems.push(format!(
                    "Machine {} exists twice: migrate one namespace at a time",
                    name(&machine.metadata)
                ));
            }
            let (own, of_group) = (key_of(&machine.spec), group.class());
            if of_group.as_ref().is_some_and(|class| *class != own) {
                problems.push(format!(
                    "Machine {} has class {}, but its {} has class {}: a rollout is in progress; let \
                        machine-controller-manager finish it first",
                    name(&machine.metadata),
                    own.name,
                    group.from(),
                    of_group.map(|class| class.name).unwrap_or_default()
                ));
            }
        }
        made.push(group.group(target, &converted));
    }
    let migration = Migration {
        classes,
        groups: made,
    };
    problems.extend(unfit_names(&migration));
    if problems.is_empty() {
        Ok(migration)
    } else {
        Err(problems)
    }
}

fn is_marked(source: &Source, key: &McmClassKey) -> bool {
    let class = source.classes.get(key);
    let mark = class.and_then(|class| class.get("metadata")?.get("annotations")?.get(MIGRATED_TO));
    mark.is_some()
}

/// Originals that were migrated to another Cluster: both Clusters would manage their VMs.
fn marked_by_others(source: &Source, target: &Destination) -> Vec<String> {
    let machines = source.machines.iter().map(|found| ("Machine", &found.metadata));
    let sets = source.sets.iter().map(|found| ("MachineSet", &found.metadata));
    let deployments = source.deployments.iter();
    let deployments = deployments.map(|found| ("MachineDeployment", &found.metadata));
    let mark = target.mark();
    machines
        .chain(sets)
        .chain(deployments)
        .filter_map(|(kind, meta)| {
            let to = meta.annotations.as_ref()?.get(MIGRATED_TO)?;
            (*to != mark).then(|| {
                format!(
                    "{kind} {} was already migrated to Cluster {to}, which owns its VMs: if that was \
                        undone, remove annotation {MIGRATED_TO}",
                    name(meta)
                )
            })
        })
        .collect()
}

fn key_of(spec: &McmMachineSpec) -> McmClassKey {
    class_key(&spec.class.kind, &spec.class.name)
}

fn name(meta: &ObjectMeta) -> String {
    meta.name().to_owned()
}
