//! The real `clusterctl move` includes a remediation, with core's own controllers. `tests/world` tests the
//! restarts, and `samples` tests that a MachineHealthCheck causes them.

use anyhow::{Context, Result, ensure};
use capcmi::admission::manifests::{self, Part};
use capcmi::api::v1alpha1::{InfraMachineRemediation, RemediationPhase};
use cmi_driver::Operation;
use cmi_simulated::Vm;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::support::fleet::{copy_bootstrap_secret, objects};
use crate::support::{Cloud, DEADLINE, Fleet, MovePair, Provider, World};

/// Grants the opt-in's permissions to the provider and to core.
pub async fn permitted(world: &World) -> Result<()> {
    let roles = manifests::stream(&[Part::Remediation])?;
    world.management.apply_yaml(&roles).await.map(drop)
}

/// Cluster, check, template and remediation move together. At the target, the machine is still unhealthy, but
/// the provider does not restart it again. It is replaced when its Node's time is over.
#[tokio::test]
async fn a_moved_health_check_counts_the_restarts_of_before() -> Result<()> {
    let pair = MovePair::start("check-move", Part::Remediation, |cloud| {
        Provider::new(cloud.drivers(json!({}))).flag("--enable-remediation")
    })
    .await?;
    let MovePair {
        source,
        target,
        cloud,
        ..
    } = &pair;
    let kubelets = source.kubelets(cloud);
    let fleet = Fleet::create(source, "md", 2).await?;
    fleet.running(2).await?;
    let vms = cloud.holds(2).await?;
    health_check(source, &json!({"retryLimit": 1, "timeoutSeconds": 3600})).await?;
    // No guest boots again.
    drop(kubelets);
    fall_silent(source, &vms[0]).await?;
    let name = &vms[0].name;
    restarting_once(source, name).await?;

    source.move_to(target)?;
    restarting_once(target, name).await?;
    may_be_checked(target).await?;
    // Cluster API's first check came before it could read Nodes. A change triggers the next check, which is
    // due only in ten minutes.
    target.kubectl(&["annotate", "machinehealthcheck", "check", "look=again"])?;
    // Cluster API does not mark a Machine again while its remediation exists, so the case reads the check's
    // own count.
    let checks = objects(target, "cluster.x-k8s.io", "v1beta2", "MachineHealthCheck");
    eventually(DEADLINE, "a check that finds one of two sick", async || {
        let status = checks.get("check").await?.data["status"].clone();
        ensure!(
            status["expectedMachines"] == 2 && status["currentHealthy"] == 1,
            "{status:#}"
        );
        Ok(())
    })
    .await?;
    let sick = machine(target, name).await?;
    let found = remediation(target, name).await?.context("no remediation")?;
    let owners = found.metadata.owner_references.unwrap_or_default();
    ensure!(
        owners
            .iter()
            .any(|owner| Some(&owner.uid) == sick.metadata.uid.as_ref()),
        "{owners:?}"
    );
    restarts(cloud, name, 1).await?;

    copy_bootstrap_secret(source, target, "boot").await?;
    no_time_is_left(target, name)?;
    replaced(target, name).await?;
    restarts(cloud, name, 1).await?;
    let _kubelets = source.kubelets(cloud);
    Fleet::of(target, "md").running(2).await?;
    ensure!(
        cloud.holds(2).await?.iter().any(|vm| vm.id == vms[1].id),
        "the other VM was touched"
    );
    restarts(cloud, &vms[1].name, 0).await
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

/// Waits until a remediation reports one restart of the VM.
async fn restarting_once(world: &World, name: &str) -> Result<()> {
    eventually(DEADLINE, "a restart that is shown", async || {
        let found = remediation(world, name).await?.context("no remediation")?;
        let status = found.status.context("no status")?;
        ensure!(
            status.phase == Some(RemediationPhase::Restarting) && status.retry_count == Some(1),
            "{status:?}"
        );
        Ok(())
    })
    .await
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

/// Creates a MachineHealthCheck on silent Nodes, with this strategy for restarts. Waits until it has checked
/// two machines.
async fn health_check(world: &World, strategy: &Value) -> Result<()> {
    may_be_checked(world).await?;
    let template = json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachineRemediationTemplate",
        "metadata": {"name": "restart", "namespace": world.namespace},
        "spec": {"template": {"spec": {"strategy": strategy}}},
    });
    let check = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineHealthCheck",
        "metadata": {"name": "check", "namespace": world.namespace},
        "spec": {
            "clusterName": "md",
            "selector": {"matchLabels": {"cluster.x-k8s.io/deployment-name": "md"}},
            "checks": {"unhealthyNodeConditions": [{"type": "Ready", "status": "Unknown",
            "timeoutSeconds": 1}]},
            "remediation": {"templateRef": {
                "apiVersion": "infrastructure.capcmi.io/v1alpha1",
                "kind": "InfraMachineRemediationTemplate", "name": "restart",
            }},
        },
    });
    for object in [template, check] {
        management_cluster::apply(&world.admin, object).await?;
    }
    let checks = objects(world, "cluster.x-k8s.io", "v1beta2", "MachineHealthCheck");
    eventually(DEADLINE, "a health check that has looked", async || {
        let status = checks.get("check").await?.data["status"].clone();
        ensure!(status["expectedMachines"] == 2, "{status:#}");
        Ok(())
    })
    .await
}

/// Waits until Cluster API can read the Nodes of the Cluster.
async fn may_be_checked(world: &World) -> Result<()> {
    let clusters = objects(world, "cluster.x-k8s.io", "v1beta2", "Cluster");
    eventually(DEADLINE, "a Cluster that may be health checked", async || {
        let cluster = clusters.get("md").await?;
        for type_ in ["ControlPlaneInitialized", "InfrastructureReady"] {
            ensure!(of(&cluster, type_)["status"] == "True", "{:#}", cluster.data);
        }
        Ok(())
    })
    .await
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
