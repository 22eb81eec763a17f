//! The way back: what a migration has made is deleted, and the VMs stay as they are.

mod release;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use kube::api::{Api, DynamicObject, ListParams};
use kube::{Client, ResourceExt as _};
use serde_json::Value;

pub use self::release::{pause, release};

use super::error::WriteError;
use super::plan::{Group, MIGRATED_FROM, Migration, Object, Target, UNDOING};
use super::source::text;
use super::write::{api, differences_at, marker, read};
use crate::api::conditions;
use crate::api::labels;

/// What machine-controller-manager would take the VM for, which has to be what it is.
const OF_VMS: [&str; 4] = [
    "/spec/driver",
    "/spec/providerID",
    "/spec/providerSpec",
    "/spec/secretRef/name",
];

/// What the driver says of the VM of a Machine of machine-controller-manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vm {
    /// It sees it.
    There,
    /// It does not see it.
    Absent,
    /// It could not say, in words.
    Unknown(String),
}

/// What is left of a migration.
#[derive(Debug, Default)]
pub struct Remains {
    /// What the migration has made, by kind and name.
    made: BTreeMap<(&'static str, String), DynamicObject>,
    /// Objects of the needed names that it has not made.
    foreign: Vec<String>,
    /// Machines that Cluster API has made for what was migrated, with the group.
    later: Vec<(String, String)>,
    /// InfraMachines of the migration whose Machine of machine-controller-manager is not there any more.
    without_original: Vec<String>,
}

impl Remains {
    /// Looks for what a migration has made and what became of it.
    ///
    /// # Errors
    /// The API server's.
    pub async fn of(client: &Client, migration: &Migration, target: &Target) -> Result<Self, WriteError> {
        let mut remains = Self::default();
        let of_groups = migration.groups.iter().flat_map(Group::objects);
        let of_classes = migration.classes.iter().flat_map(|class| &class.objects);
        for object in of_groups.chain(of_classes) {
            match read(client, object).await? {
                Some(found) if found.annotations().get(MIGRATED_FROM) == Some(&marker(&object.body)) => {
                    remains.made.insert((object.kind, object.name.clone()), found);
                }
                Some(_) => remains.foreign.push(format!("{} {}", object.kind, object.name)),
                None => {}
            }
        }
        let Some(kinds) = Kinds::of(migration) else {
            return Ok(remains);
        };
        let of_cluster =
            ListParams::default().labels(&format!("{}={}", labels::CLUSTER_NAME, target.cluster));
        let list = async |body: &Value, what: &str| {
            let all = api(client, body).list(&of_cluster).await;
            all.map_err(|error| WriteError::api(format!("listing the {what} of the Cluster"), error))
        };
        for machine in list(kinds.machine, "Machines").await? {
            if let Some(group) = migration.groups.iter().find(|group| keeps(group, &machine))
                && !is_planned(group, "Machine", &machine.name_any())
            {
                remains.later.push((machine.name_any(), group.from.clone()));
            }
        }
        for infra in list(kinds.infra_machine, "InfraMachines").await? {
            let name = infra.name_any();
            let from = infra.annotations().get(MIGRATED_FROM);
            let is_known = migration
                .groups
                .iter()
                .any(|group| is_planned(group, "InfraMachine", &name));
            if !is_known && from.is_some_and(|from| kinds.is_of_same_namespace(from)) {
                remains.without_original.push(name);
            }
        }
        Ok(remains)
    }

    /// Whether it is there.
    pub fn has(&self, object: &Object) -> bool {
        self.get(object).is_some()
    }

    fn get(&self, object: &Object) -> Option<&DynamicObject> {
        self.made.get(&(object.kind, object.name.clone()))
    }

    /// The provider spec with its tags by which the provider knows the VM of an InfraMachine that is there.
    pub fn applied_spec(&self, object: &Object) -> Option<&str> {
        let applied = self.get(object)?.annotations().get(labels::APPLIED_PROVIDER_SPEC);
        applied.map(String::as_str)
    }

    /// Whether nothing of the migration is there, nor a mark of it.
    pub fn is_nothing(&self, migration: &Migration) -> bool {
        let of_groups = migration.groups.iter().flat_map(|group| &group.originals);
        let has_mark = of_groups.into_iter().any(|original| original.is_marked)
            || migration.classes.iter().any(|class| class.is_marked);
        self.made.is_empty() && !has_mark
    }

    /// What is not as the migration has left it, so that machine-controller-manager could not go on with it,
    /// or that a VM would be lost for.
    pub fn problems(&self, migration: &Migration, vms: &BTreeMap<String, Vm>) -> Vec<String> {
        let mut all = Vec::new();
        for object in &self.foreign {
            all.push(format!(
                "{object} was not made by this migration: rename or delete it"
            ));
        }
        for (machine, group) in &self.later {
            all.push(format!(
                "Cluster API has made Machine {machine} for {group}, and machine-controller-manager does not know its VM, which would be left, or deleted as an orphan: scale down, or delete it, first"
            ));
        }
        for infra in &self.without_original {
            all.push(format!(
                "the Machine of machine-controller-manager that InfraMachine {infra} was made for is not there any more, so its VM would be left, or deleted as an orphan: delete its Machine of Cluster API, or leave it by taking the annotation {MIGRATED_FROM} away from both"
            ));
        }
        for group in &migration.groups {
            for object in group.objects() {
                if let Some(found) = self.get(object) {
                    all.extend(changed(object, found));
                }
            }
        }
        for (name, vm) in vms {
            match vm {
                Vm::There => {}
                Vm::Absent => all.push(format!(
                    "the driver does not see the VM of Machine {name} of machine-controller-manager: if it was deleted since, take the finalizers of that Machine away and delete it"
                )),
                Vm::Unknown(why) => all.push(format!(
                    "the driver does not say whether the VM of Machine {name} is there: {why}"
                )),
            }
        }
        all
    }
}

/// What became of an object that the migration has made.
fn changed(object: &Object, found: &DynamicObject) -> Vec<String> {
    let what = format!("{} {}", object.kind, object.name);
    let annotations = found.annotations();
    let is_ours = annotations.contains_key(UNDOING)
        || annotations
            .get(labels::FORCE_DELETE)
            .is_some_and(|forced| forced == "true");
    let mut all = Vec::new();
    if found.metadata.deletion_timestamp.is_some() && !is_ours {
        let vm = if object.kind == "InfraMachine" {
            ", and its VM with it"
        } else {
            ""
        };
        all.push(format!("{what} is being deleted{vm}: let that end first"));
    }
    if object.kind != "InfraMachine" {
        return all;
    }
    if annotations.contains_key(labels::PAUSED) {
        all.push(format!(
            "{what} is paused, so the provider would not let go of its VM: take the annotation {} away",
            labels::PAUSED
        ));
    }
    let differ = differences_at(&OF_VMS, object, &found.data);
    all.extend(differ.into_iter().map(|difference| {
        format!(
            "{difference}: machine-controller-manager has the VM as it was at the migration; change it back, and let the provider update the VM, or replace the Machine"
        )
    }));
    let conditions = found.data.pointer("/status/conditions").and_then(Value::as_array);
    let behind = conditions.into_iter().flatten().find(|condition| {
        condition["type"] == conditions::VIRTUAL_MACHINE_UP_TO_DATE && condition["status"] == "False"
    });
    if let Some(behind) = behind {
        all.push(format!(
            "{what} has an update that is not done ({}: {}): let it end first",
            text(behind, "/reason"),
            text(behind, "/message")
        ));
    }
    if annotations.contains_key(labels::UPDATE_IN_PROGRESS) {
        all.push(format!(
            "{what} is being updated in place by Cluster API: let that end first"
        ));
    }
    all
}

/// Whether a Machine of Cluster API belongs to a MachineSet or MachineDeployment that was migrated.
fn keeps(group: &Group, machine: &DynamicObject) -> bool {
    let label = |key: &str| machine.labels().get(key);
    let of = |head: &Option<Object>, key| head.as_ref().is_some_and(|head| label(key) == Some(&head.name));
    of(&group.deployment, "cluster.x-k8s.io/deployment-name") || of(&group.set, "cluster.x-k8s.io/set-name")
}

fn is_planned(group: &Group, kind: &str, name: &str) -> bool {
    let mut machines = group.machines.iter();
    machines.any(|object| object.kind == kind && object.name == name)
}

/// What says how the objects of machines are listed.
struct Kinds<'a> {
    infra_machine: &'a Value,
    machine: &'a Value,
    /// How the annotations of machines begin, of all namespaces that they come from.
    begins: BTreeSet<String>,
}

impl<'a> Kinds<'a> {
    /// Nothing where there are no machines.
    fn of(migration: &'a Migration) -> Option<Self> {
        let machines = || migration.groups.iter().flat_map(|group| &group.machines);
        let first = |kind: &str| machines().find(|object| object.kind == kind);
        Some(Self {
            infra_machine: &first("InfraMachine")?.body,
            machine: &first("Machine")?.body,
            begins: machines()
                .filter_map(|object| Some(marker(&object.body).split_once('/')?.0.to_owned()))
                .collect(),
        })
    }

    fn is_of_same_namespace(&self, from: &str) -> bool {
        from.split_once('/')
            .is_some_and(|(begin, _)| self.begins.contains(begin))
    }
}

/// The API of the objects that are like this one.
fn api_of(client: &Client, object: &Object) -> Api<DynamicObject> {
    api(client, &object.body)
}
