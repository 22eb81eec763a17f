//! The state of the machines.

use anyhow::{Context, Result};
use capcmi::api::conditions;
use capcmi::api::v1alpha1::InfraMachine;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use management_cluster::node::is_ready;
use serde_json::json;

use crate::scenario::{NAME, NAMESPACE};

/// The machines of the sample's Cluster.
pub struct Fleet {
    machines: Api<DynamicObject>,
    deployments: Api<DynamicObject>,
    infra_machines: Api<InfraMachine>,
    /// Of the workload cluster, once it can be reached.
    nodes: Option<Api<Node>>,
}

/// A row of the table: one machine. Values that are not known yet are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Name of the Machine.
    pub machine: String,
    /// Name of the InfraMachine.
    pub infra_machine: String,
    /// The InfraMachine's `spec.providerID`.
    pub provider_id: String,
    /// The VM's first address.
    pub address: String,
    /// The Node that Cluster API has found.
    pub node: String,
    /// The `spec.providerID` of that Node in the workload cluster.
    pub node_provider_id: String,
    /// Whether the Node reports that it is Ready.
    pub node_is_ready: bool,
    /// The Machine's phase.
    pub phase: String,
    /// Reason of the InfraMachine's condition `Ready`.
    pub condition: String,
    /// Seconds since the Machine was created.
    pub age: i64,
}

impl Row {
    /// Whether Cluster API reports the Machine as Running and knows its Node.
    pub fn is_running(&self) -> bool {
        self.phase == "Running" && !self.node.is_empty()
    }
}

impl Fleet {
    /// The machines, given clients of the management and the workload cluster.
    pub fn new(management: &Client, workload: Option<Client>) -> Self {
        let core = |kind: &str| {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", kind));
            Api::namespaced_with(management.clone(), NAMESPACE, &resource)
        };
        Self {
            machines: core("Machine"),
            deployments: core("MachineDeployment"),
            infra_machines: Api::namespaced(management.clone(), NAMESPACE),
            nodes: workload.map(Api::all),
        }
    }

    /// Reads the machines, the oldest first.
    pub async fn look(&self) -> Result<Vec<Row>> {
        let ours = ListParams::default().labels(&format!("cluster.x-k8s.io/cluster-name={NAME}"));
        let machines = self.machines.list(&ours).await.context("listing Machines")?;
        let infra_machines = self
            .infra_machines
            .list(&ours)
            .await
            .context("listing InfraMachines")?;
        let nodes = match &self.nodes {
            Some(nodes) => {
                nodes
                    .list(&ListParams::default())
                    .await
                    .context("listing Nodes")?
                    .items
            }
            None => Vec::new(),
        };
        let mut rows: Vec<_> = machines
            .items
            .iter()
            .map(|machine| row(machine, &infra_machines.items, &nodes))
            .collect();
        rows.sort_by(|a, b| (-a.age, &a.machine).cmp(&(-b.age, &b.machine)));
        Ok(rows)
    }

    /// Changes the number of machines.
    pub async fn scale(&self, replicas: usize) -> Result<()> {
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        self.deployments
            .patch(NAME, &PatchParams::default(), &patch)
            .await
            .context("scaling the MachineDeployment")?;
        Ok(())
    }
}

fn row(machine: &DynamicObject, infra_machines: &[InfraMachine], nodes: &[Node]) -> Row {
    let text = |pointer: &str| {
        let value = machine.data.pointer(pointer);
        value
            .and_then(|value| value.as_str())
            .unwrap_or_default()
            .to_owned()
    };
    let created = machine.metadata.creation_timestamp.as_ref();
    let mut row = Row {
        machine: machine.name_any(),
        infra_machine: text("/spec/infrastructureRef/name"),
        node: text("/status/nodeRef/name"),
        phase: text("/status/phase"),
        age: created.map_or(0, |created| Timestamp::now().as_second() - created.0.as_second()),
        ..Row::default()
    };
    if let Some(infra) = infra_machines
        .iter()
        .find(|infra| infra.name_any() == row.infra_machine)
    {
        row.provider_id = infra.spec.provider_id.clone().unwrap_or_default();
        let status = infra.status.as_ref();
        let ready = status.and_then(|status| conditions::get(&status.conditions, conditions::READY));
        row.condition = ready.map(|ready| ready.reason.clone()).unwrap_or_default();
        let address = status.and_then(|status| status.addresses.first());
        row.address = address.map(|address| address.address.clone()).unwrap_or_default();
    }
    if let Some(node) = nodes.iter().find(|node| node.name_any() == row.node) {
        let spec = node.spec.as_ref();
        row.node_provider_id = spec.and_then(|spec| spec.provider_id.clone()).unwrap_or_default();
        row.node_is_ready = is_ready(node);
    }
    row
}
