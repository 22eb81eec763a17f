//! A MachineHealthCheck on `InfrastructureReady`, with core's own controllers. `tests/world` proves the
//! status that it reads.

use anyhow::{Context, Result, ensure};
use capcmi::api::conditions::{DRIVER_REACHABLE, READY};
use capcmi::api::v1alpha1::InfraMachine;
use cmi_driver::Operation;
use cmi_simulated::Condition;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams};
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::remediation::{fall_silent, machine, of, replaced};
use crate::support::by_hand::{condition, says};
use crate::support::fleet::objects;
use crate::support::{Cloud, DEADLINE, Fleet, Provider, World};

/// DRV-30, CTL-GS-14, CMI-74: a driver that cannot be reached reports nothing about its VMs, so no machine is
/// replaced. A machine whose VM has crashed is replaced: its silent Node has the driver asked.
#[tokio::test]
#[allow(clippy::too_many_lines)] // one story
async fn an_outage_replaces_no_machine_and_a_crash_replaces_one() -> Result<()> {
    let world = World::new("outage").await?;
    let cloud = Cloud::new(&world);
    let short = json!({"timeouts": {
        "default": "2s", "probe": "1s", "getPluginInfo": "1s", "getPluginCapabilities": "1s",
        "createMachine": "2s", "initializeMachine": "2s", "deleteMachine": "2s",
    }});
    let _provider = Provider::new(cloud.drivers_with(short, json!({})))
        .start(&world)
        .await?;
    let _kubelets = world.kubelets(&cloud);
    let fleet = Fleet::create(&world, "md", 3).await?;
    let machines = fleet.running(3).await?;
    let before = fleet.infra_machines().await?;
    let vms = cloud.holds(3).await?;
    health_check(&world).await?;

    let identity = ["Probe", "GetPluginInfo", "GetPluginCapabilities"];
    let fault = json!({"code": "Unavailable"});
    let mut faults = vec![fault.clone()];
    faults.extend(identity.map(|operation| {
        let mut fault = fault.clone();
        fault["operation"] = json!(operation);
        fault
    }));
    cloud.fail(Value::Array(faults))?;
    // For longer than the health check waits.
    eventually(DEADLINE, "an outage that all machines show", async || {
        for machine in fleet.infra_machines().await? {
            let shown = condition(&machine, DRIVER_REACHABLE).context("no DriverReachable")?;
            let since = Timestamp::now().as_second() - shown.last_transition_time.0.as_second();
            ensure!(shown.status == "False" && since >= 7, "{shown:?}");
        }
        Ok(())
    })
    .await?;
    // One machine has another reason to be replaced, which proves that the health check is at work.
    let victim = machines[0].name_any();
    annotate(&world, &victim, "cluster.x-k8s.io/remediate-machine").await?;
    eventually(DEADLINE, "the remediation of one machine", async || {
        let machine = machine(&world, &victim).await?;
        ensure!(
            machine.metadata.deletion_timestamp.is_some(),
            "{:#}",
            machine.data
        );
        Ok(())
    })
    .await?;
    // The new machine waits for the driver longer than the health check does.
    end_health_check(&world).await?;
    for old in before.iter().filter(|old| old.name_any() != victim) {
        let now = infra(&world, &old.name_any()).await?;
        ensure!(
            now.metadata.deletion_timestamp.is_none(),
            "{} is deleted",
            now.name_any()
        );
        let ready = |machine| condition(machine, READY).cloned();
        ensure!(ready(&now) == ready(old), "{:?}", ready(&now));
        let machine = machine(&world, &old.name_any()).await?;
        ensure!(machine.metadata.deletion_timestamp.is_none());
        ensure!(
            of(&machine, "InfrastructureReady")["status"] == "True",
            "{:#}",
            machine.data
        );
    }
    ensure!(cloud.vms()? == vms, "VMs were touched");

    cloud.fail(json!([]))?;
    let after = fleet.running(3).await?;
    let kept = |all: &[DynamicObject]| {
        let mut uids: Vec<_> = all
            .iter()
            .filter(|machine| machine.name_any() != victim)
            .filter_map(ResourceExt::uid)
            .collect();
        uids.sort();
        uids
    };
    let (old, new) = (kept(&machines), kept(&after));
    ensure!(
        old.len() == 2 && old.iter().all(|uid| new.contains(uid)),
        "{old:?} {new:?}"
    );
    eventually(DEADLINE, "a driver that is back", async || {
        let all = fleet.infra_machines().await?;
        ensure!(
            all.iter()
                .all(|machine| says(machine, DRIVER_REACHABLE, "True", "Reachable"))
        );
        Ok(())
    })
    .await?;

    health_check(&world).await?;
    let vms = cloud.holds(3).await?;
    let crashed = &vms[0];
    cloud.console()?.set_condition(crashed.id, Condition::Crashed)?;
    fall_silent(&world, crashed).await?;
    replaced(&world, &crashed.name).await?;
    fleet.running(3).await?;
    let now = cloud.holds(3).await?;
    ensure!(
        vms[1..].iter().all(|vm| now.contains(vm)),
        "the other VMs were touched: {now:?}"
    );
    let creates = cloud.count(Operation::CreateMachine, &crashed.name)?;
    ensure!(creates == 1, "{creates} creates: it was made again in silence");
    Ok(())
}

/// Makes a MachineHealthCheck on the Machine's InfrastructureReady condition, and returns when it has looked
/// at the machines. Its timeout lets a machine come up on a computer under load.
async fn health_check(world: &World) -> Result<()> {
    let clusters = objects(world, "cluster.x-k8s.io", "v1beta2", "Cluster");
    eventually(DEADLINE, "a Cluster that may be health checked", async || {
        let cluster = clusters.get("md").await?;
        for type_ in ["ControlPlaneInitialized", "InfrastructureReady"] {
            ensure!(of(&cluster, type_)["status"] == "True", "{:#}", cluster.data);
        }
        Ok(())
    })
    .await?;
    world
        .apply(
            r#"
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineHealthCheck
metadata: {name: check, namespace: $NS}
spec:
  clusterName: md
  selector: {matchLabels: {cluster.x-k8s.io/deployment-name: md}}
  checks:
    unhealthyMachineConditions:
    - {type: InfrastructureReady, status: "False", timeoutSeconds: 5}
    - {type: InfrastructureReady, status: Unknown, timeoutSeconds: 5}
"#,
        )
        .await?;
    let checks = objects(world, "cluster.x-k8s.io", "v1beta2", "MachineHealthCheck");
    eventually(DEADLINE, "a health check that has looked", async || {
        let status = checks.get("check").await?.data["status"].clone();
        ensure!(
            status["expectedMachines"].as_i64().unwrap_or_default() >= 2,
            "{status:#}"
        );
        Ok(())
    })
    .await
}

async fn end_health_check(world: &World) -> Result<()> {
    let checks = objects(world, "cluster.x-k8s.io", "v1beta2", "MachineHealthCheck");
    checks.delete("check", &DeleteParams::default()).await?;
    Ok(())
}

async fn infra(world: &World, name: &str) -> Result<InfraMachine> {
    Ok(Api::namespaced(world.admin.clone(), &world.namespace)
        .get(name)
        .await?)
}

async fn annotate(world: &World, name: &str, key: &str) -> Result<()> {
    let machines = objects(world, "cluster.x-k8s.io", "v1beta2", "Machine");
    let patch = Patch::Merge(json!({"metadata": {"annotations": {key: ""}}}));
    machines.patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}
