//! Undoes a migration: deletes the created objects, and leaves the VMs unchanged.

mod class;
mod release;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Preconditions};
use kube::core::ObjectList;
use kube::{Client, ResourceExt as _};

pub use self::release::{pause, release};

use super::error::WriteError;
use super::plan::{Destination, Group, MIGRATED_FROM, Migration, Object, UNDOING};
use super::source::{condition, text};
use super::write::{self, OF_INFRA_MACHINES, differences_at, is_made_from, marker, read};
use capcmi::api::identity::{InvalidRecord, VmRecord};
use capcmi::api::{self, annotations, cluster_api, conditions, labels};
use capcmi::apiserver::dynamic;
use cmi_driver::ProviderSpec;

/// The answer of the driver about the VM of a Machine of machine-controller-manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vm {
    /// The driver sees the VM.
    Present,
    /// The driver does not see the VM.
    Absent,
    /// The driver could not answer: why not.
    Unknown(String),
}

/// The objects that remain of a migration.
#[derive(Debug, Default)]
pub struct MigratedObjects {
    /// The objects that the migration created, by kind and name.
    made: BTreeMap<(&'static str, String), DynamicObject>,
    /// Other objects with names that the migration needs.
    foreign: Vec<String>,
    /// Machines that Cluster API created for migrated groups, each with its group.
    later: Vec<(String, String)>,
    /// MachineSets of a migrated MachineDeployment that create Machines, with the group.
    rolled_out: Vec<(String, String)>,
    /// InfraMachines of the migration whose Machine of machine-controller-manager no longer exists.
    without_original: Vec<String>,
}

impl MigratedObjects {
    /// Finds the objects that a migration created, and their current state.
    ///
    /// # Errors
    /// The API server's.
    pub async fn of(
        client: &Client,
        migration: &Migration,
        target: &Destination,
    ) -> Result<Self, WriteError> {
        let mut remains = Self::default();
        let of_groups = migration.groups.iter().flat_map(Group::objects);
        let of_classes = migration.classes.iter().flat_map(|class| &class.objects);
        for object in of_groups.chain(of_classes) {
            match read(client, object).await? {
                Some(found) if is_made_from(&found, object) => {
                    remains.made.insert((object.kind, object.name.clone()), found);
                }
                Some(_) => remains.foreign.push(object.to_string()),
                None => {}
            }
        }
        let of_cluster =
            ListParams::default().labels(&format!("{}={}", labels::CLUSTER_NAME, target.cluster));
        let list = async |kind| list(client, target, kind, &of_cluster).await;
        for set in list("MachineSet").await? {
            let name = set.name_any();
            let makes_machines = set.data["spec"]["replicas"] != 0;
            if let Some(group) = remains.group_of(migration, &set)
                && !is_planned(group.set.as_slice(), "MachineSet", &name)
                && makes_machines
            {
                remains.rolled_out.push((name, group.from.clone()));
            }
        }
        for machine in list("Machine").await? {
            let name = machine.name_any();
            if let Some(group) = remains.group_of(migration, &machine)
                && !is_planned(&group.machines, "Machine", &name)
            {
                remains.later.push((name, group.from.clone()));
            }
        }
        let begins = machines_begin(migration);
        for infra in list("InfraMachine").await? {
            let name = infra.name_any();
            let from = infra.annotations().get(MIGRATED_FROM);
            let is_known = migration
                .groups
                .iter()
                .any(|group| is_planned(&group.machines, "InfraMachine", &name));
            let is_of_same_namespace = from
                .and_then(|from| from.split_once('/'))
                .is_some_and(|(begin, _)| begins.contains(begin));
            if !is_known && is_of_same_namespace {
                remains.without_original.push(name);
            }
        }
        Ok(remains)
    }

    /// Returns the group of a Cluster API object, by its labels or by its owner: core uses the labels, and
    /// the garbage collector uses the owner.
    fn group_of<'a>(&self, migration: &'a Migration, found: &DynamicObject) -> Option<&'a Group> {
        let owners = found.owner_references();
        let is_owned = |owner: &Object| {
            let uid = self.get(owner).and_then(|owner| owner.metadata.uid.as_ref());
            uid.is_some_and(|uid| owners.iter().any(|owner| owner.uid == *uid))
        };
        let is_labelled =
            |owner: &Object, label: &str| found.labels().get(label).is_some_and(|name| *name == owner.name);
        let mut groups = migration.groups.iter();
        groups.find(|group| {
            let deployment = group.deployment.iter();
            let of_deployment =
                deployment.map(|owner| is_owned(owner) || is_labelled(owner, DEPLOYMENT_NAME));
            let of_set = group
                .set
                .iter()
                .map(|owner| is_owned(owner) || is_labelled(owner, SET_NAME));
            of_deployment.chain(of_set).any(|is_member| is_member)
        })
    }

    /// Whether the object exists.
    pub fn has(&self, object: &Object) -> bool {
        self.get(object).is_some()
    }

    fn get(&self, object: &Object) -> Option<&DynamicObject> {
        self.made.get(&(object.kind, object.name.clone()))
    }

    /// Returns the applied provider spec of an existing InfraMachine. The provider finds the VM by its tags.
    ///
    /// # Errors
    /// The record cannot be read.
    pub fn applied_spec(&self, object: &Object) -> Result<Option<ProviderSpec>, InvalidRecord> {
        let Some(found) = self.get(object) else {
            return Ok(None);
        };
        let record = VmRecord::of_metadata(&found.metadata)?;
        Ok(record
            .and_then(|record| record.made_from)
            .map(|made| made.provider_spec))
    }

    /// Whether neither an object of the migration nor a mark of it is left.
    pub fn is_nothing(&self, migration: &Migration) -> bool {
        let of_groups = migration.groups.iter().flat_map(|group| &group.originals);
        let has_mark = of_groups.into_iter().any(|original| original.is_marked)
            || migration.classes.iter().any(|class| class.is_marked);
        self.made.is_empty() && !has_mark
    }

    /// Returns the differences from the migrated state that would stop machine-controller-manager from taking
    /// over, or would leak a VM.
    pub fn problems(&self, migration: &Migration, vms: &BTreeMap<String, Vm>) -> Vec<String> {
        let mut all = Vec::new();
        for object in &self.foreign {
            all.push(format!(
                "{object} was not created by this migration: rename or delete it"
            ));
        }
        for (machine, group) in &self.later {
            all.push(format!(
                "Cluster API created Machine {machine} for {group}, and machine-controller-manager does not \
                    know its VM: scale down, or delete the Machine, first; otherwise the VM is left behind \
                    or deleted as an orphan"
            ));
        }
        for (set, group) in &self.rolled_out {
            all.push(format!(
                "MachineSet {set} of {group} is from a rollout after the migration, and \
                    machine-controller-manager does not know its machines: set the MachineDeployment to the \
                    template of the migration, and wait for the end of the rollout"
            ));
        }
        for group in &migration.groups {
            let is_marked = group.originals.iter().any(|original| original.is_marked);
            if is_marked && !group.objects().any(|object| self.has(object)) {
                all.push(format!(
                    "{} is marked as migrated, but nothing of it exists in this management cluster: check \
                        that it is the right one; if its machines were deleted in Cluster API, remove the \
                        finalizers of machine-controller-manager's objects and delete them",
                    group.from
                ));
            }
        }
        for infra in &self.without_original {
            all.push(format!(
                "the Machine of machine-controller-manager for InfraMachine {infra} does not exist, so its \
                    VM would be left behind or deleted as an orphan: delete its Machine of Cluster API, or \
                    keep it by removing annotation {MIGRATED_FROM} from both"
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
                Vm::Present => {}
                Vm::Absent => all.push(format!(
                    "the driver does not find the VM of Machine {name} of machine-controller-manager: if it \
                        was deleted, remove the finalizers of that Machine and delete it"
                )),
                Vm::Unknown(why) => all.push(format!(
                    "cannot tell whether the VM of Machine {name} exists: {why}"
                )),
            }
        }
        all
    }
}

/// Describes how an object has changed since the migration created it.
fn changed(object: &Object, found: &DynamicObject) -> Vec<String> {
    let what = object.to_string();
    let annotations = found.annotations();
    let is_ours = annotations.contains_key(UNDOING)
        || annotations
            .get(annotations::FORCE_DELETE)
            .is_some_and(|forced| forced == "true");
    let mut all = Vec::new();
    if found.metadata.deletion_timestamp.is_some() && !is_ours {
        let vm = if object.kind == "InfraMachine" {
            " (with its VM)"
        } else {
            ""
        };
        all.push(format!("{what}{vm} is being deleted: wait for that first"));
    }
    if object.kind != "InfraMachine" {
        return all;
    }
    if annotations.contains_key(annotations::PAUSED) {
        all.push(format!(
            "{what} is paused, so the provider does not release its VM: remove annotation {}",
            annotations::PAUSED
        ));
    }
    let differ = differences_at(&OF_INFRA_MACHINES, object, &found.data);
    all.extend(differ.into_iter().map(|difference| {
        format!(
            "{difference}, but machine-controller-manager knows the VM as of the migration: revert the \
                change and let the provider update the VM, or replace the Machine"
        )
    }));
    let up_to_date = condition(&found.data, conditions::VIRTUAL_MACHINE_UP_TO_DATE);
    if let Some(behind) = up_to_date.filter(|up_to_date| up_to_date["status"] == "False") {
        all.push(format!(
            "{what} has an unfinished update ({}: {}): wait for it first",
            text(behind, "/reason"),
            text(behind, "/message")
        ));
    }
    if annotations.contains_key(annotations::UPDATE_IN_PROGRESS) {
        all.push(format!(
            "Cluster API updates {what} in place: wait for that first"
        ));
    }
    all
}

/// How often a deletion is tried that the API server refuses.
const REFUSED_TRIES: u32 = 10;
/// The time between two such tries.
const REFUSED_INTERVAL: Duration = Duration::from_millis(500);
/// Label of Cluster API: the MachineDeployment that an object belongs to.
const DEPLOYMENT_NAME: &str = "cluster.x-k8s.io/deployment-name";
/// Label of Cluster API: the MachineSet that an object belongs to.
const SET_NAME: &str = "cluster.x-k8s.io/set-name";

fn is_planned(planned: &[Object], kind: &str, name: &str) -> bool {
    planned
        .iter()
        .any(|object| object.kind == kind && object.name == name)
}

/// The prefixes of the markers of InfraMachines that came from a Machine of the namespaces of this migration.
fn machines_begin(migration: &Migration) -> BTreeSet<String> {
    let of_groups = migration.groups.iter().flat_map(Group::objects);
    let markers = of_groups.map(|object| marker(&object.body));
    let namespaces = markers.filter_map(|marker| {
        let (_, rest) = marker.split_once(' ')?;
        Some(rest.split_once('/')?.0.to_owned())
    });
    namespaces
        .map(|namespace| format!("Machine {namespace}"))
        .collect()
}

/// The objects of a kind of Cluster API or of this provider in the namespace of the Cluster.
async fn list(
    client: &Client,
    target: &Destination,
    kind: &str,
    params: &ListParams,
) -> Result<ObjectList<DynamicObject>, WriteError> {
    let (group, version) = if kind.starts_with("Infra") {
        (api::GROUP, api::VERSION)
    } else {
        (cluster_api::GROUP, "v1beta2")
    };
    let api = dynamic(client, &target.namespace, group, version, kind);
    let all = api.list(params).await;
    all.map_err(|error| WriteError::api(format!("listing the {kind}s"), error))
}

/// The API of objects of this kind and namespace.
fn api_of(client: &Client, object: &Object) -> Api<DynamicObject> {
    write::api(client, &object.body)
}

/// Deletes the object that was found, and no successor of its name; returns whether it still existed.
///
/// The API server refuses the deletion of a Secret until it has seen that the machines which need it are
/// gone.
async fn delete_found(client: &Client, object: &Object, found: &DynamicObject) -> Result<bool, WriteError> {
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: found.uid(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let api = api_of(client, object);
    let mut tries = 0;
    loop {
        tries += 1;
        match api.delete(&object.name, &params).await {
            Ok(_) => return Ok(true),
            Err(kube::Error::Api(refused)) if refused.code == 404 => return Ok(false),
            Err(kube::Error::Api(refused)) if refused.code == 403 && tries < REFUSED_TRIES => {
                tokio::time::sleep(REFUSED_INTERVAL).await;
            }
            Err(error) => return Err(WriteError::api(format!("deleting {object}"), error)),
        }
    }
}
