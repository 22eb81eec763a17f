//! Gathers the facts about a machine.

use kube::Client;
use kube::api::Api;

use super::Error;
use super::bootstrap::{self, BootstrapSource};
use super::events::{self, EventSummary};
use super::owners::{self, Owner};
use super::vm::{self, VmAnswer};
use capcmi::api::cluster_api::{Cluster, Machine, cluster_name};
use capcmi::api::v1alpha1::{InfraCluster, InfraMachine};
use capcmi::api::{DeserializeGuard, ObjectMetaExt as _, labels};
use capcmi::apiserver::error_message;
use capcmi::driver::ConfiguredDrivers;

/// The facts about a machine.
#[derive(Clone, Debug)]
pub struct MachineReport {
    /// The InfraMachine.
    pub machine: InfraMachine,
    /// Its owners, the nearest first.
    pub owners: Vec<Owner>,
    /// Its Cluster, where it can be had, or why not.
    pub cluster: Result<ClusterSummary, String>,
    /// The source of the bootstrap data, while the machine waits for it.
    pub bootstrap: Option<BootstrapSource>,
    /// Its VM.
    pub vm: VmAnswer,
    /// Its newest events and its Machine's, or why they cannot be read.
    pub events: Result<Vec<EventSummary>, String>,
}

/// The facts about a Cluster.
#[derive(Clone, Debug)]
pub struct ClusterSummary {
    /// Its name.
    pub name: String,
    /// Whether it is paused.
    pub paused: bool,
    /// Whether Cluster API considers its infrastructure provisioned.
    pub provisioned: bool,
    /// Its InfraCluster, if it belongs to this provider, or why it cannot be read.
    pub infra: Option<Result<InfraCluster, String>>,
}

/// Gathers the facts about an InfraMachine, given its own name or its Machine's name. With `drivers`, also
/// queries the machine's driver for the VM.
///
/// # Errors
/// The object itself cannot be read.
pub async fn gather(
    client: &Client,
    drivers: Option<&ConfiguredDrivers>,
    namespace: &str,
    name: &str,
) -> Result<MachineReport, Error> {
    let machine = infra_machine(client, namespace, name).await?;
    let owners = owners::of(client, &machine.metadata).await;
    let uids: Vec<_> = machine
        .metadata
        .uid
        .iter()
        .chain(
            machine
                .metadata
                .owner_references
                .iter()
                .flatten()
                .map(|owner| &owner.uid),
        )
        .cloned()
        .collect();
    let events = events::of(client, namespace, &uids).await;
    Ok(MachineReport {
        cluster: cluster(client, &machine).await,
        bootstrap: bootstrap::of(client, &machine).await,
        vm: vm::of(client, drivers, &machine).await,
        events: events.map_err(|error| error_message(&error)),
        owners,
        machine,
    })
}

async fn infra_machine(client: &Client, namespace: &str, name: &str) -> Result<InfraMachine, Error> {
    let api = Api::<DeserializeGuard<InfraMachine>>::namespaced(client.clone(), namespace);
    let get = async |name: &str| {
        let found = api
            .get_opt(name)
            .await
            .map_err(Error::api("reading the InfraMachine"))?;
        let read = |object: DeserializeGuard<InfraMachine>| {
            object.0.map_err(|invalid| Error::Unreadable {
                name: name.to_owned(),
                why: invalid.error,
            })
        };
        found.map(read).transpose()
    };
    if let Some(machine) = get(name).await? {
        return Ok(machine);
    }
    let not_found = |kind| Error::NotFound {
        kind,
        name: name.to_owned(),
        namespace: namespace.to_owned(),
    };
    let machines = Api::<Machine>::namespaced(client.clone(), namespace);
    let found = machines
        .get_opt(name)
        .await
        .map_err(Error::api("reading the Machine"))?;
    let Some(owner) = found else {
        return Err(not_found("InfraMachine or Machine"));
    };
    let reference = owner.spec.infrastructure_ref;
    if !reference.is_to::<InfraMachine>() {
        return Err(Error::Foreign {
            name: name.to_owned(),
            kind: reference.kind,
            infra: reference.name,
        });
    }
    get(&reference.name).await?.ok_or_else(|| Error::NotFound {
        kind: "InfraMachine",
        name: reference.name.clone(),
        namespace: namespace.to_owned(),
    })
}

async fn cluster(client: &Client, machine: &InfraMachine) -> Result<ClusterSummary, String> {
    let namespace = machine.metadata.namespace();
    let Some(name) = cluster_name(&machine.metadata) else {
        return Err(format!("the object has no label {}", labels::CLUSTER_NAME));
    };
    let clusters = Api::<Cluster>::namespaced(client.clone(), namespace);
    let found = clusters.get_opt(name).await;
    let cluster = found
        .map_err(|error| format!("cannot read Cluster `{name}`: {}", error_message(&error)))?
        .ok_or_else(|| format!("Cluster `{namespace}/{name}` does not exist"))?;
    let reference = cluster.spec.infrastructure_ref.as_ref();
    let ours = reference.filter(|infra| infra.is_to::<InfraCluster>());
    let infra = match ours {
        Some(reference) => Some(infra_cluster(client, namespace, &reference.name).await),
        None => None,
    };
    Ok(ClusterSummary {
        name: name.to_owned(),
        paused: cluster.is_paused(),
        provisioned: cluster.infrastructure_is_provisioned(),
        infra,
    })
}

async fn infra_cluster(client: &Client, namespace: &str, name: &str) -> Result<InfraCluster, String> {
    let api = Api::<DeserializeGuard<InfraCluster>>::namespaced(client.clone(), namespace);
    let found = api.get_opt(name).await;
    found
        .map_err(|error| format!("cannot read InfraCluster `{name}`: {}", error_message(&error)))?
        .ok_or_else(|| format!("InfraCluster `{name}` does not exist"))?
        .0
        .map_err(|invalid| format!("cannot read InfraCluster `{name}`: {}", invalid.error))
}
