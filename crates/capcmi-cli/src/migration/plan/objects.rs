//! The objects of Cluster API and of this provider that replace machines.

use serde_json::{Map, Value, json};

use super::{Converted, DISABLE_MACHINE_CREATE, Destination, MIGRATED_FROM, Object, UNFINISHED, name};
use crate::migration::source::{McmClassKey, McmMachine, McmSetSpec};
use capcmi::api::identity;
use capcmi::api::{self, annotations, labels};
use cmi_driver::LastKnownState;

/// The label of every object of the Cluster.
pub fn labels_of(target: &Destination) -> Map<String, Value> {
    Map::from_iter([(labels::CLUSTER_NAME.to_owned(), json!(target.cluster))])
}

/// The metadata of a planned object.
pub fn metadata(target: &Destination, name: &str, from: &str, all: &Map<String, Value>) -> Value {
    json!({
        "name": name, "namespace": target.namespace, "labels": all, "annotations": {MIGRATED_FROM: from},
    })
}

/// The template of a MachineSet or a MachineDeployment.
pub struct SetTemplate<'a> {
    /// The choices of the operator.
    pub target: &'a Destination,
    /// The value of [`MIGRATED_FROM`].
    pub marker: &'a str,
    /// How many machines there are.
    pub replicas: usize,
    /// The labels of its machines.
    pub labels: &'a Map<String, Value>,
    /// The class of its machines.
    pub key: &'a McmClassKey,
    /// The converted class.
    pub class: &'a Converted,
    /// The spec of the original.
    pub spec: &'a McmSetSpec,
}

impl SetTemplate<'_> {
    /// The MachineSet that adopts the Machines.
    pub fn machine_set(&self, name: &str) -> Value {
        let mut body = self.body("MachineSet", name, self.labels);
        // The cache of core's MachineSet controller may still lack some Machines, and the controller would
        // create a replacement for each.
        body["metadata"]["annotations"][DISABLE_MACHINE_CREATE] = json!("true");
        body
    }

    /// The MachineDeployment that adopts the MachineSet.
    pub fn deployment(&self, name: &str) -> Value {
        let mut body = self.body("MachineDeployment", name, &labels_of(self.target));
        // An unpaused MachineDeployment would create a second MachineSet before it sees the one with the
        // Machines.
        body["metadata"]["annotations"][annotations::PAUSED] = json!("true");
        body["metadata"]["annotations"][UNFINISHED] = json!("true");
        if let Some(rolling) = &self.spec.strategy.rolling_update {
            let given = [
                ("maxSurge", &rolling.max_surge),
                ("maxUnavailable", &rolling.max_unavailable),
            ];
            let limits: Map<_, _> = given
                .into_iter()
                .filter_map(|(field, most)| Some((field.to_owned(), most.clone()?)))
                .collect();
            body["spec"]["rollout"] = json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": limits}});
        }
        body
    }

    fn body(&self, kind: &str, name: &str, own: &Map<String, Value>) -> Value {
        json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind,
            "metadata": metadata(self.target, name, self.marker, own),
            "spec": {
                "clusterName": self.target.cluster, "replicas": self.replicas,
                "selector": {"matchLabels": self.labels}, "template": self.template(),
            },
        })
    }

    /// The template of a MachineSet and of its MachineDeployment: where they differ, core rolls all machines.
    fn template(&self) -> Value {
        let mut machine = json!({
            "clusterName": self.target.cluster,
            "bootstrap": {"dataSecretName": self.class.bootstrap},
            "infrastructureRef": {"apiGroup": api::GROUP, "kind": "InfraMachineTemplate",
            "name": self.key.name},
        });
        if let Some(zone) = &self.class.failure_domain {
            machine["failureDomain"] = json!(zone);
        }
        if self.spec.min_ready_seconds > 0 {
            machine["minReadySeconds"] = json!(self.spec.min_ready_seconds);
        }
        json!({"metadata": {"labels": self.labels}, "spec": machine})
    }
}

/// The InfraMachine that adopts the VM, and then the Machine that owns it.
pub fn machine_objects(
    target: &Destination,
    machine: &McmMachine,
    class: &Converted,
    all: &Map<String, Value>,
) -> [Object; 2] {
    let own = name(&machine.metadata);
    let from = target.marker_of("Machine", &machine.metadata);
    let id = &machine.spec.provider_id;
    let mut infra = json!({
        "apiVersion": format!("{}/{}", api::GROUP, api::VERSION), "kind": "InfraMachine",
        "metadata": metadata(target, &own, &from, all),
        "spec": {"driver": target.driver, "providerID": id, "providerSpec": class.spec},
    });
    // In core's format, so that core knows the template of the machine.
    infra["metadata"]["annotations"]["cluster.x-k8s.io/cloned-from-name"] = json!(machine.spec.class.name);
    infra["metadata"]["annotations"]["cluster.x-k8s.io/cloned-from-groupkind"] =
        json!(format!("InfraMachineTemplate.{}", api::GROUP));
    let mut carried = class.carried.clone();
    // A driver that finds its VMs by its state would not find this VM without it.
    let state = machine.status.last_known_state.as_bytes();
    if let Some(state) = LastKnownState::new(state.to_vec()) {
        carried.insert("lastKnownState".to_owned(), json!(identity::encoded(&state)));
    }
    infra["metadata"]["annotations"][annotations::ADOPT] = json!(Value::Object(carried).to_string());
    if let Some(credentials) = &class.credentials {
        infra["spec"]["secretRef"] = json!({"name": credentials});
    }
    let mut body = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": metadata(target, &own, &from, all),
        "spec": {
            "clusterName": target.cluster, "bootstrap": {"dataSecretName": class.bootstrap},
            "infrastructureRef": {"apiGroup": api::GROUP, "kind": "InfraMachine", "name": own},
        },
    });
    if let Some(zone) = &class.failure_domain {
        body["spec"]["failureDomain"] = json!(zone);
    }
    [
        Object::new("InfraMachine", own.clone(), format!("adopts {id}"), infra),
        Object::new("Machine", own, String::new(), body),
    ]
}
