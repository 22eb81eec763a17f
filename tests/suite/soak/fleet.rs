//! The soak's requests to Cluster API, and checks of their results.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use capcmi::api::conditions::{self, READY};
use capcmi::api::v1alpha1::InfraMachine;
use cmi_simulated::Vm;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;

use crate::support::by_hand::infra_machines;
use crate::support::fleet::objects;
use crate::support::{Cloud, Fleet, World};

/// Cluster API's annotation with the template of an object.
const CLONED_FROM: &str = "cluster.x-k8s.io/cloned-from-name";

/// The wanted state of a Cluster with a MachineDeployment.
pub struct Wanted<'a> {
    fleet: Fleet<'a>,
    world: &'a World,
    /// The number of machines.
    pub replicas: u32,
    generation: u32,
}

impl<'a> Wanted<'a> {
    /// Creates the Cluster and its MachineDeployment.
    pub async fn create(world: &'a World, name: &str, replicas: u32) -> Result<Self> {
        let fleet = Fleet::create(world, name, replicas).await?;
        Ok(Self {
            fleet,
            world,
            replicas,
            generation: 1,
        })
    }

    /// Name of the Cluster and of the MachineDeployment.
    pub fn name(&self) -> &str {
        &self.fleet.name
    }

    /// Name of the current template.
    pub fn template(&self) -> String {
        format!("{}-{}", self.fleet.name, self.generation)
    }

    /// Changes the number of machines.
    pub async fn scale(&mut self, replicas: u32) -> Result<()> {
        self.replicas = replicas;
        self.ask().await
    }

    /// Switches to a new template.
    pub async fn roll_out(&mut self) -> Result<()> {
        self.generation += 1;
        self.ask().await
    }

    /// Writes the wanted state. Also used again if an earlier write did not reach the API server.
    pub async fn ask(&self) -> Result<()> {
        let name = self.template();
        let templates = objects(
            self.world,
            "infrastructure.capcmi.io",
            "v1alpha1",
            "InfraMachineTemplate",
        );
        if templates.get_opt(&name).await?.is_none() {
            let spec = json!({"vmPool": "default", "size": "small", "tags": {"template": name}});
            self.fleet.template(&name, spec).await?;
        }
        self.fleet.deployment(&name, self.replicas).await
    }

    /// Checks that the state is as wanted. Returns the VMs of its machines.
    pub async fn is_there(&self, cloud: &Cloud) -> Result<BTreeSet<String>> {
        let wanted = usize::try_from(self.replicas)?;
        let machines = objects(self.world, "cluster.x-k8s.io", "v1beta2", "Machine");
        let machines = machines.list(&of(self.name())).await?.items;
        let phases: Vec<_> = machines
            .iter()
            .map(|machine| machine.data["status"]["phase"].as_str().unwrap_or("none"))
            .collect();
        ensure!(
            phases.len() == wanted && phases.iter().all(|phase| *phase == "Running"),
            "{wanted} Machines of {} are wanted, and there are {phases:?}",
            self.name()
        );
        let infra = self.fleet.infra_machines().await?;
        ensure!(
            infra.len() == wanted,
            "{} InfraMachines of {}, not {wanted}",
            infra.len(),
            self.name()
        );
        let vms = cloud.vms()?;
        let ids: Vec<_> = infra
            .iter()
            .map(|machine| self.is_settled(machine, &vms))
            .collect::<Result<_>>()?;
        let distinct: BTreeSet<_> = ids.iter().cloned().collect();
        ensure!(distinct.len() == ids.len(), "machines share VMs: {ids:?}");
        Ok(distinct)
    }

    /// Checks that an InfraMachine is ready with a VM as wanted. Returns the VM's id.
    fn is_settled(&self, machine: &InfraMachine, vms: &[Vm]) -> Result<String> {
        let name = machine.name_any();
        ensure!(
            machine.metadata.deletion_timestamp.is_none(),
            "{name} is in deletion"
        );
        let from = machine.annotations().get(CLONED_FROM);
        ensure!(from == Some(&self.template()), "{name} is made from {from:?}");
        let status = machine
            .status
            .as_ref()
            .with_context(|| format!("{name} has no status"))?;
        ensure!(
            conditions::is_true(&status.conditions, READY),
            "{name} is not ready: {:?}",
            conditions::get(&status.conditions, READY)
        );
        let id = machine
            .spec
            .provider_id
            .clone()
            .with_context(|| format!("{name} has no providerID"))?;
        let vm = vms.iter().find(|vm| vm.provider_id() == id);
        let vm = vm.with_context(|| format!("there is no VM {id} of {name}"))?;
        let labels = machine
            .spec
            .provider_spec
            .get("labels")
            .cloned()
            .unwrap_or_else(|| json!({}));
        ensure!(
            json!(vm.labels) == labels,
            "the VM of {name} has labels {:?}, not {labels}",
            vm.labels
        );
        Ok(id)
    }

    /// Deletes the Cluster and all its objects.
    pub async fn delete(&self) -> Result<()> {
        let clusters = objects(self.world, "cluster.x-k8s.io", "v1beta2", "Cluster");
        clusters
            .delete(self.name(), &DeleteParams::background())
            .await
            .context("deleting the Cluster")
            .map(drop)
    }
}

/// Deletes a Machine of the namespace, or if `young` one without a providerID. `choose` selects an index
/// below a number. Returns the Machine's name.
pub async fn delete_machine(
    world: &World,
    young: bool,
    choose: impl FnOnce(u32) -> u32,
) -> Result<Option<String>> {
    let machines = objects(world, "cluster.x-k8s.io", "v1beta2", "Machine");
    let alive = machines.list(&ListParams::default()).await?.items;
    let names = alive.iter().filter(|machine| {
        let is_young = machine.data["spec"]["providerID"].is_null();
        machine.metadata.deletion_timestamp.is_none() && (is_young || !young)
    });
    let Some(name) = chosen(names.map(kube::ResourceExt::name_any), choose) else {
        return Ok(None);
    };
    machines
        .delete(&name, &DeleteParams::default())
        .await
        .with_context(|| format!("deleting Machine {name}"))?;
    Ok(Some(name))
}

/// Changes a hot-updatable field of an InfraMachine. `choose` selects an index below a number. Returns the
/// InfraMachine's name.
pub async fn update_machine(
    world: &World,
    tier: u32,
    choose: impl FnOnce(u32) -> u32,
) -> Result<Option<String>> {
    let machines = infra_machines(world);
    let alive = machines.list(&ListParams::default()).await?.items;
    let names = alive
        .iter()
        .filter(|machine| machine.metadata.deletion_timestamp.is_none());
    let Some(name) = chosen(names.map(kube::ResourceExt::name_any), choose) else {
        return Ok(None);
    };
    let patch = Patch::Merge(json!({"spec": {"providerSpec": {"labels": {"tier": format!("tier-{tier}")}}}}));
    machines
        .patch(&name, &PatchParams::default(), &patch)
        .await
        .with_context(|| format!("changing InfraMachine {name}"))?;
    Ok(Some(name))
}

fn chosen(names: impl Iterator<Item = String>, choose: impl FnOnce(u32) -> u32) -> Option<String> {
    let mut names: Vec<_> = names.collect();
    names.sort();
    let count = u32::try_from(names.len()).unwrap_or(u32::MAX);
    names
        .into_iter()
        .nth(usize::try_from(choose(count)).unwrap_or(usize::MAX))
}

/// Checks that the namespace has no objects of any Cluster.
pub async fn nothing_is_left(world: &World) -> Result<()> {
    let kinds = [
        ("cluster.x-k8s.io", "v1beta2", "Cluster"),
        ("cluster.x-k8s.io", "v1beta2", "MachineDeployment"),
        ("cluster.x-k8s.io", "v1beta2", "MachineSet"),
        ("cluster.x-k8s.io", "v1beta2", "Machine"),
        ("infrastructure.capcmi.io", "v1alpha1", "InfraMachine"),
        ("infrastructure.capcmi.io", "v1alpha1", "InfraCluster"),
    ];
    let mut left = Vec::new();
    for (group, version, kind) in kinds {
        let objects = objects(world, group, version, kind)
            .list(&ListParams::default())
            .await?;
        left.extend(objects.iter().map(|object| {
            format!(
                "{kind} {} with finalizers {:?}",
                object.name_any(),
                object.finalizers()
            )
        }));
    }
    ensure!(left.is_empty(), "left: {}", left.join(", "));
    Ok(())
}

fn of(cluster: &str) -> ListParams {
    ListParams::default().labels(&format!("cluster.x-k8s.io/cluster-name={cluster}"))
}
