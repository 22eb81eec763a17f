//! Helpers for remediations. `tests/world` has the rules, `samples` a MachineHealthCheck that causes
//! restarts, and `moving` a move.

use anyhow::{Result, ensure};
use capcmi::api::v1alpha1::InfraMachineRemediation;
use capcmi_manifests::{self as manifests, Part};
use cmi_driver::Operation;
use cmi_simulated::Vm;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::support::fleet::objects;
use crate::support::{Cloud, DEADLINE, World};

/// Grants the opt-in's permissions to the provider and to core.
pub async fn permitted(world: &World) -> Result<()> {
    let roles = manifests::stream(&[Part::Remediation])?;
    world.management.apply_yaml(&roles).await.map(drop)
}

/// Ends the time for the Node of a remediation's Machine.
pub fn no_time_is_left(world: &World, name: &str) -> Result<()> {
    let over = json!({"spec": {"strategy": {"timeoutSeconds": 1}}}).to_string();
    let kind = "inframachineremediation";
    world
        .kubectl(&["patch", kind, name, "--type=merge", "-p", &over])
        .map(drop)
}

/// A remediation, as a MachineHealthCheck creates it.
pub fn request(world: &World, machine: &DynamicObject, spec: &Value) -> Value {
    let name = machine.name_any();
    json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachineRemediation",
        "metadata": {
            "name": name, "namespace": world.namespace,
            "labels": {"cluster.x-k8s.io/cluster-name": machine.data["spec"]["clusterName"]},
            "ownerReferences": [{
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": name,
                "uid": machine.uid(),
            }],
        },
        "spec": spec,
    })
}

/// Waits until a VM was restarted this number of times.
pub async fn restarts(cloud: &Cloud, machine: &str, times: usize) -> Result<()> {
    eventually(DEADLINE, "the restarts", async || {
        let calls = cloud.count(Operation::RestartMachine, machine)?;
        ensure!(
            calls == times,
            "{machine} was restarted {calls} times, and not {times}"
        );
        Ok(())
    })
    .await
}

/// Waits until a Machine is gone.
pub async fn replaced(world: &World, name: &str) -> Result<()> {
    let machines = objects(world, "cluster.x-k8s.io", "v1beta2", "Machine");
    eventually(DEADLINE, "the end of the Machine", async || {
        let found = machines.get_opt(name).await?;
        ensure!(
            found.is_none(),
            "{:#}",
            found.map(|machine| machine.data).unwrap_or_default()
        );
        Ok(())
    })
    .await
}

/// Waits for the event with the reason why a Machine is left to its owner.
pub async fn event(world: &World, name: &str, reason: &str) -> Result<()> {
    let events = objects(world, "events.k8s.io", "v1", "Event");
    eventually(DEADLINE, "an event that says why", async || {
        let all = events.list(&kube::api::ListParams::default()).await?.items;
        let is_it = |event: &DynamicObject| {
            let data = &event.data;
            data["regarding"]["kind"] == "InfraMachineRemediation"
                && data["regarding"]["name"] == name
                && data["reason"] == reason
        };
        ensure!(all.iter().any(is_it), "none of {} events", all.len());
        Ok(())
    })
    .await
}

/// Sets the condition that the node lifecycle controller reports for a silent kubelet.
pub async fn fall_silent(world: &World, vm: &Vm) -> Result<()> {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let silent = json!({"status": {"conditions": [{
        "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "",
        "lastTransitionTime": now,
    }]}});
    let workload = world.management.workload().await?.admin_client().await?;
    Api::<Node>::all(workload)
        .patch_status(&vm.name, &PatchParams::default(), &Patch::Strategic(silent))
        .await?;
    Ok(())
}

pub async fn remediation(world: &World, name: &str) -> Result<Option<InfraMachineRemediation>> {
    let api: Api<InfraMachineRemediation> = Api::namespaced(world.admin.clone(), &world.namespace);
    Ok(api.get_opt(name).await?)
}

pub async fn machine(world: &World, name: &str) -> Result<DynamicObject> {
    let machines = objects(world, "cluster.x-k8s.io", "v1beta2", "Machine");
    Ok(machines.get(name).await?)
}

pub fn uids(machines: &[DynamicObject]) -> Vec<String> {
    let mut all: Vec<_> = machines.iter().filter_map(ResourceExt::uid).collect();
    all.sort();
    all
}

/// A condition of a Cluster API object.
pub fn of(object: &DynamicObject, type_: &str) -> Value {
    let all = object.data["status"]["conditions"].as_array();
    all.into_iter()
        .flatten()
        .find(|condition| condition["type"] == type_)
        .cloned()
        .unwrap_or_default()
}
