//! Groups of machines with one owner, and the objects that replace them.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use super::names::set_name;
use super::objects::{SetTemplate, labels_of, machine_objects};
use super::{Converted, Destination, Group, Object, Original, UNFINISHED, key_of, name};
use crate::migration::source::{McmClassKey, McmMachine, McmSetSpec, Source};
use cmi_driver::LastKnownState;

/// Machines with one owner in machine-controller-manager.
pub struct MachineGroup<'a> {
    /// Its machines.
    pub machines: Vec<&'a McmMachine>,
    owner: GroupOwner<'a>,
    /// MachineSets of a MachineDeployment.
    sets: Vec<&'a ObjectMeta>,
}

enum GroupOwner<'a> {
    Deployment(&'a ObjectMeta, &'a McmSetSpec),
    Set(&'a ObjectMeta, &'a McmSetSpec),
    None(&'a ObjectMeta),
}

/// Groups the Machines by the object that keeps their number.
pub fn groups<'a>(source: &'a Source, problems: &mut Vec<String>) -> Vec<MachineGroup<'a>> {
    let owner = |meta: &ObjectMeta, kind: &str| {
        let owners = meta.owner_references.iter().flatten();
        owners
            .filter(|owner| owner.kind == kind)
            .map(|owner| owner.name.clone())
            .next()
    };
    let mut of_set: BTreeMap<String, Vec<&McmMachine>> = BTreeMap::new();
    let mut alone = Vec::new();
    for machine in &source.machines {
        match owner(&machine.metadata, "MachineSet") {
            Some(set) if source.sets.iter().any(|known| name(&known.metadata) == set) => {
                of_set.entry(set).or_default().push(machine);
            }
            Some(set) => problems.push(format!(
                "Machine {} belongs to MachineSet {set}, which does not exist: add it to the input",
                name(&machine.metadata)
            )),
            None => alone.push(machine),
        }
    }
    let mut machine_groups = Vec::new();
    for deployment in &source.deployments {
        let own = name(&deployment.metadata);
        let sets: Vec<_> = source
            .sets
            .iter()
            .filter(|set| owner(&set.metadata, "MachineDeployment").as_ref() == Some(&own))
            .map(|set| &set.metadata)
            .collect();
        let machines = sets
            .iter()
            .filter_map(|set| of_set.remove(&name(set)))
            .flatten()
            .collect();
        let owner = GroupOwner::Deployment(&deployment.metadata, &deployment.spec);
        machine_groups.push(MachineGroup {
            machines,
            owner,
            sets,
        });
    }
    for set in &source.sets {
        let deployment = owner(&set.metadata, "MachineDeployment");
        let is_there = |deployment: &String| {
            source
                .deployments
                .iter()
                .any(|known| name(&known.metadata) == *deployment)
        };
        match deployment {
            Some(deployment) if is_there(&deployment) => {}
            Some(deployment) => problems.push(format!(
                "MachineSet {} belongs to MachineDeployment {deployment}, which does not exist: add it to \
                    the input",
                name(&set.metadata)
            )),
            None => machine_groups.push(MachineGroup {
                machines: of_set.remove(&name(&set.metadata)).unwrap_or_default(),
                owner: GroupOwner::Set(&set.metadata, &set.spec),
                sets: Vec::new(),
            }),
        }
    }
    machine_groups.extend(alone.into_iter().map(|machine| MachineGroup {
        machines: vec![machine],
        owner: GroupOwner::None(&machine.metadata),
        sets: Vec::new(),
    }));
    machine_groups
}

/// Why a machine can't be migrated.
pub fn unfit(machine: &McmMachine) -> Option<&'static str> {
    if machine.metadata.deletion_timestamp.is_some() {
        Some("the Machine is being deleted: let machine-controller-manager finish that first")
    } else if machine.spec.provider_id.is_empty() {
        Some(
            "spec.providerID is not set, so the VM is not known: let machine-controller-manager finish the \
                Machine, or delete it there, first",
        )
    } else if machine.spec.class.name.is_empty() {
        Some("spec.class.name is empty: set the class")
    } else if machine.status.last_known_state.len() > LastKnownState::MAX_BYTES {
        Some("status.lastKnownState has more than 4096 bytes, the limit of the record for a driver")
    } else {
        None
    }
}

impl MachineGroup<'_> {
    fn owner(&self) -> (&'static str, &ObjectMeta) {
        match self.owner {
            GroupOwner::Deployment(meta, _) => ("MachineDeployment", meta),
            GroupOwner::Set(meta, _) => ("MachineSet", meta),
            GroupOwner::None(meta) => ("Machine", meta),
        }
    }

    /// Returns the object that keeps the number of machines, such as `MachineDeployment workers`.
    pub fn from(&self) -> String {
        let (kind, meta) = self.owner();
        format!("{kind} {}", name(meta))
    }

    fn originals(&self) -> Vec<Original> {
        let (kind, owner) = self.owner();
        let owner = (kind != "Machine").then(|| Original::new(kind, owner));
        let machines = self
            .machines
            .iter()
            .map(|machine| Original::new("Machine", &machine.metadata));
        let sets = self.sets.iter().map(|set| Original::new("MachineSet", set));
        owner.into_iter().chain(machines).chain(sets).collect()
    }

    /// Returns the class of the owner that keeps the number of machines.
    pub fn class(&self) -> Option<McmClassKey> {
        match self.owner {
            GroupOwner::Deployment(_, spec) | GroupOwner::Set(_, spec) => Some(key_of(&spec.template.spec)),
            GroupOwner::None(_) => None,
        }
    }

    /// Returns the planned replacement of these originals.
    pub fn group(&self, target: &Destination, classes: &BTreeMap<McmClassKey, Converted>) -> Group {
        let from = self.from();
        let of_machines = self.machines.iter().map(|machine| key_of(&machine.spec));
        let (kind, owner) = self.owner();
        let marker = target.marker_of(kind, owner);
        let mut group = Group {
            classes: of_machines.chain(self.class()).collect(),
            machines: Vec::new(),
            set: None,
            deployment: None,
            notes: self.notes(),
            originals: self.originals(),
            from,
        };
        let mut of_machines = labels_of(target);
        let replicas = self.machines.len();
        if let (Some(key), GroupOwner::Deployment(meta, spec) | GroupOwner::Set(meta, spec)) =
            (self.class(), &self.owner)
            && let Some(class) = classes.get(&key)
        {
            let own = name(meta);
            let is_deployment = matches!(self.owner, GroupOwner::Deployment(..));
            let set = if is_deployment {
                set_name(&own)
            } else {
                own.clone()
            };
            of_machines.insert("cluster.x-k8s.io/set-name".to_owned(), json!(set));
            let mut selector = labels_of(target);
            if is_deployment {
                selector.insert("cluster.x-k8s.io/deployment-name".to_owned(), json!(own));
                of_machines.insert("cluster.x-k8s.io/deployment-name".to_owned(), json!(own));
                of_machines.insert("machine-template-hash".to_owned(), json!("migrated"));
                let kept = SetTemplate {
                    target,
                    marker: &marker,
                    replicas,
                    labels: &selector,
                    key: &key,
                    class,
                    spec,
                };
                let body = kept.deployment(&own);
                group.deployment = Some(Object::new(
                    "MachineDeployment",
                    own.clone(),
                    count(replicas),
                    body,
                ));
            }
            let kept = SetTemplate {
                target,
                marker: &marker,
                replicas,
                labels: &of_machines,
                key: &key,
                class,
                spec,
            };
            let mut body = kept.machine_set(&set);
            if !is_deployment {
                body["metadata"]["annotations"][UNFINISHED] = json!("true");
            }
            group.set = Some(Object::new("MachineSet", set, count(replicas), body));
        }
        for machine in &self.machines {
            if let Some(class) = classes.get(&key_of(&machine.spec)) {
                group
                    .machines
                    .extend(machine_objects(target, machine, class, &of_machines));
            }
        }
        group
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let (GroupOwner::Deployment(_, spec) | GroupOwner::Set(_, spec)) = &self.owner else {
            return notes;
        };
        let there = self.machines.len();
        if i64::try_from(there) != Ok(spec.replicas) {
            notes.push(format!(
                "spec.replicas changes from {} to {there}, the number of machines, so that none is created \
                    or deleted",
                spec.replicas
            ));
        }
        if spec.paused {
            notes.push("the old object was paused; the new one is not".to_owned());
        }
        if !["", "RollingUpdate"].contains(&spec.strategy.type_.as_str()) {
            notes.push(format!("strategy {} becomes RollingUpdate", spec.strategy.type_));
        }
        if spec.template.spec.node_template.is_some() {
            notes.push(
                "nodeTemplate is not migrated: existing Nodes keep its values; set them for new Nodes in \
                    the bootstrap data"
                    .to_owned(),
            );
        }
        notes
    }
}

fn count(replicas: usize) -> String {
    format!("{replicas} replica{}", if replicas == 1 { "" } else { "s" })
}
