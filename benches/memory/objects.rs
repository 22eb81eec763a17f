//! The objects of a fleet that is up, as an API server sends them, with their managed fields.

use capcmi::api::annotations;
use serde_json::{Value, json};

/// The number of machines in a Cluster.
const OF_A_CLUSTER: usize = 500;

fn address(index: usize) -> String {
    format!("10.{}.{}.{}", index >> 16 & 255, index >> 8 & 255, index & 255)
}

fn uid(kind: u32, index: usize) -> String {
    format!("{kind:08x}-5a1c-4b7e-9d2f-{index:012x}")
}

fn second(index: usize) -> String {
    let (minute, second) = (index / 60 % 60, index % 60);
    format!("2026-05-04T{:02}:{minute:02}:{second:02}Z", index / 3600 % 24)
}

fn managed_fields() -> Value {
    let fields = |names: &[&str]| -> Value {
        names
            .iter()
            .map(|name| (format!("f:{name}"), json!({})))
            .collect()
    };
    let entry = |manager: &str, names: &[&str]| {
        json!({
            "manager": manager, "operation": "Apply", "apiVersion": "infrastructure.capcmi.io/v1alpha1",
            "time": "2026-05-04T00:00:00Z", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": {"f:annotations": fields(names)}, "f:spec": fields(names)},
        })
    };
    json!([
        entry(
            "capi-machineset",
            &["driver", "providerSpec", "cluster-name", "deployment-name"]
        ),
        entry("capcmi", &["providerID", "vm-record"]),
        entry(
            "capcmi-status",
            &["conditions", "addresses", "ready", "nodeName", "powerState"]
        ),
    ])
}

/// Returns an InfraMachine whose VM is up.
pub fn infra_machine(index: usize) -> Value {
    let (cluster, name) = (index / OF_A_CLUSTER, format!("workers-5d8f9c7b4d-{index:06}"));
    let (namespace, cluster_name) = (format!("team-{cluster:03}"), format!("cluster-{cluster:03}"));
    let spec = json!({
        "vmPool": "general-purpose", "size": "standard-4", "rootFsSize": 53_687_091_200_u64,
        "image": "debian-12-k8s-1.33.4",
        "network": {
            "name": "tenant", "subnets": ["10.0.0.0/16", "10.1.0.0/16"],
            "securityGroups": ["default", "nodes"],
        },
    });
    let mut applied = spec.clone();
    applied["tags"] = json!({
        "kubernetes.io/cluster": uid(1, cluster), "kubernetes.io/role": "node",
        "capcmi.io/machine": uid(2, index),
    });
    let record = json!({
        "version": "v1", "machine": format!("{namespace}/{name}/{}", uid(2, index)),
        "cluster": uid(1, cluster), "state": {"name": "Exists"},
        "madeFrom": {"driver": "pool", "secret": "account", "providerSpec": applied},
    });
    let at = second(index);
    let condition = |type_: &str, status: &str, reason: &str, message: &str| {
        json!({
            "type": type_, "status": status, "reason": reason, "message": message, "observedGeneration": 2,
            "lastTransitionTime": at,
        })
    };
    json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachine",
        "metadata": {
            "name": name, "namespace": namespace, "uid": uid(3, index),
            "resourceVersion": (1_000_000 + index).to_string(),
            "generation": 2, "creationTimestamp": at, "managedFields": managed_fields(),
            "finalizers": ["infrastructure.capcmi.io/inframachine"],
            "labels": labels(&cluster_name),
            "annotations": {
                "cluster.x-k8s.io/cloned-from-groupkind": "InfraMachineTemplate.infrastructure.capcmi.io",
                "cluster.x-k8s.io/cloned-from-name": "workers",
                annotations::VM_RECORD: record.to_string(),
            },
            "ownerReferences": [{
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
                "name": name, "uid": uid(4, index),
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "driver": "pool", "providerSpec": spec, "secretRef": {"name": "account"},
            "providerID": format!("pool:///{}", uid(5, index)),
        },
        "status": {
            "ready": true, "initialization": {"provisioned": true}, "nodeName": name, "powerState": "Running",
            "addresses": [
                {"type": "InternalIP", "address": address(index)},
                {"type": "Hostname", "address": name},
            ],
            "conditions": [
                condition("Ready", "True", "Provisioned", ""),
                condition("Paused", "False", "NotPaused", ""),
                condition("DriverReachable", "True", "Reachable", ""),
                condition("VirtualMachineCreated", "True", "Created", ""),
                condition("VirtualMachineInitialized", "True", "Initialized", ""),
                condition("VirtualMachineUpToDate", "True", "UpToDate", ""),
            ],
            "lastOperation": {
                "type": "Create", "state": "Successful", "operation": "InitializeMachine", "code": "OK",
                "message": "", "lastUpdateTime": at, "attempts": 0,
            },
            "observedGeneration": 2,
        },
    })
}

/// Returns the labels of the Machines and InfraMachines of a MachineDeployment.
fn labels(cluster_name: &str) -> Value {
    json!({
        "cluster.x-k8s.io/cluster-name": cluster_name, "cluster.x-k8s.io/deployment-name": "workers",
        "cluster.x-k8s.io/set-name": "workers-5d8f9c7b4d", "machine-template-hash": "5d8f9c7b4d",
    })
}

/// Returns the Machine of an InfraMachine, whose Node is healthy.
pub fn machine(index: usize) -> Value {
    let (cluster, name) = (index / OF_A_CLUSTER, format!("workers-5d8f9c7b4d-{index:06}"));
    let (namespace, cluster_name) = (format!("team-{cluster:03}"), format!("cluster-{cluster:03}"));
    let at = second(index);
    let types = [
        "Available",
        "Ready",
        "UpToDate",
        "BootstrapConfigReady",
        "InfrastructureReady",
        "NodeHealthy",
        "NodeReady",
        "Paused",
        "Deleting",
    ];
    let conditions: Vec<_> = types
        .iter()
        .map(|type_| {
            json!({
                "type": type_, "status": "True", "reason": type_, "message": "", "observedGeneration": 1,
                "lastTransitionTime": at,
            })
        })
        .collect();
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": {
            "name": name, "namespace": namespace, "uid": uid(4, index),
            "resourceVersion": (2_000_000 + index).to_string(),
            "generation": 1, "creationTimestamp": at, "managedFields": managed_fields(),
            "finalizers": ["machine.cluster.x-k8s.io"],
            "labels": labels(&cluster_name),
            "ownerReferences": [{
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineSet", "name": "workers-5d8f9c7b4d",
                "uid": uid(6, cluster), "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "clusterName": cluster_name, "version": "v1.33.4",
            "providerID": format!("pool:///{}", uid(5, index)),
            "bootstrap": {
                "dataSecretName": name,
                "configRef": {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfig",
                    "name": name},
            },
            "infrastructureRef": {"apiGroup": "infrastructure.capcmi.io",
                "kind": "InfraMachine", "name": name},
            "failureDomain": "zone-a",
        },
        "status": {
            "phase": "Running", "nodeRef": {"name": name}, "conditions": conditions, "observedGeneration": 1,
            "addresses": [{"type": "Hostname", "address": name}],
        },
    })
}
