//! The files in `config/samples` that no other case applies.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use capcmi::api::conditions::reason;
use capcmi::api::v1alpha1::InfraMachineSpec;
use cmi_driver::Operation;
use cmi_simulated::Vm;
use kube::ResourceExt;
use kube::api::{DynamicObject, ListParams};
use management_cluster::eventually;
use management_cluster::kubeadm::KubeadmProviders;
use serde_json::json;

use crate::remediation::{
    event, fall_silent, machine, no_time_is_left, of, permitted, remediation, replaced, restarts, uids,
};
use crate::support::by_hand::small;
use crate::support::fleet::objects;
use crate::support::{Cloud, DEADLINE, Fleet, Provider, World};

/// Applies a sample for the Cluster `my-cluster`, with some words replaced.
fn apply(world: &World, sample: &str, words: &[(&str, &str)]) -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("config/samples")
        .join(sample);
    let mut text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    for (written, wanted) in words {
        ensure!(text.contains(written), "{sample} has no {written}");
        text = text.replace(written, wanted);
    }
    let path = world.folder.join(sample);
    fs::write(&path, text)?;
    let path = path.display().to_string();
    world.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", &path])?;
    Ok(())
}

fn phase(machine: &DynamicObject) -> &str {
    machine.data["status"]["phase"].as_str().unwrap_or_default()
}

/// A machine that waits for a quota must not count as unhealthy, since its replacement would wait as well.
#[tokio::test]
async fn the_sample_health_check_replaces_a_vanished_vm_and_no_waiting_machine() -> Result<()> {
    let world = World::new("sample-check").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({"quota": 4})))
        .start(&world)
        .await?;
    let _kubelets = world.kubelets(&cloud);
    Fleet::create(&world, "md", 5).await?;
    let vms = cloud.holds(4).await?;
    let machines = objects(&world, "cluster.x-k8s.io", "v1beta2", "Machine");
    let list = async || anyhow::Ok(machines.list(&ListParams::default()).await?.items);
    let four_run = async || {
        let all = list().await?;
        let running = all.iter().filter(|machine| phase(machine) == "Running").count();
        ensure!(
            all.len() == 5 && running == 4,
            "{:?}",
            all.iter().map(phase).collect::<Vec<_>>()
        );
        Ok(all)
    };
    let before = eventually(DEADLINE, "four machines that run and one that waits", four_run).await?;
    let waiting = before.iter().find(|machine| phase(machine) != "Running");
    let waiting = waiting.and_then(ResourceExt::uid).context("none waits")?;

    let second = [
        ("my-cluster-md-0", "md"),
        ("my-cluster", "md"),
        ("timeoutSeconds: 300", "timeoutSeconds: 1"),
    ];
    apply(&world, "machine-health-check.yaml", &second)?;
    // A waiting machine has no Node, so no timeout or condition of the check may replace it.
    let checks = objects(&world, "cluster.x-k8s.io", "v1beta2", "MachineHealthCheck");
    for check in checks.list(&ListParams::default()).await?.items {
        let checks = &check.data["spec"]["checks"];
        ensure!(
            checks["nodeStartupTimeoutSeconds"] == 0 && checks["unhealthyMachineConditions"].is_null(),
            "{checks:#}"
        );
    }
    let gone = &vms[0];
    cloud.console()?.vanish(gone.id)?;
    fall_silent(&world, gone).await?;

    let after = eventually(DEADLINE, "a machine in the place of the lost one", async || {
        let all = four_run().await?;
        ensure!(
            all.iter().all(|machine| machine.name_any() != gone.name),
            "it is there"
        );
        Ok(all)
    })
    .await?;
    let is_kept = |uid: &String| after.iter().any(|machine| machine.uid().as_ref() == Some(uid));
    ensure!(is_kept(&waiting), "the machine that waited was replaced");
    let kept = before.iter().filter_map(ResourceExt::uid).filter(is_kept).count();
    ensure!(kept == 4, "{kept} machines are left of those that were there");
    let creates = cloud.count(Operation::CreateMachine, &gone.name)?;
    ensure!(creates == 1, "{creates} creates of the lost VM");
    Ok(())
}

/// The machine is restarted and keeps its VM. If no guest boots again, it is replaced after the sample's
/// number of restarts.
#[tokio::test]
async fn the_sample_remediation_restarts_a_silent_vm_before_it_is_replaced() -> Result<()> {
    let world = World::new("sample-restart").await?;
    permitted(&world).await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({})));
    let _provider = provider.flag("--enable-remediation").start(&world).await?;
    let kubelets = world.kubelets(&cloud);
    // With two machines, a single unhealthy one would exceed the sample's limit.
    let fleet = Fleet::create(&world, "md", 3).await?;
    let before = uids(&fleet.running(3).await?);
    let vms = cloud.holds(3).await?;
    let second = [
        ("my-cluster-md-0", "md"),
        ("my-cluster", "md"),
        ("Unknown, timeoutSeconds: 300}", "Unknown, timeoutSeconds: 1}"),
    ];
    apply(&world, "remediation.yaml", &second)?;
    fall_silent(&world, &vms[0]).await?;
    let name = &vms[0].name;
    restarts(&cloud, name, 1).await?;
    // The case reads the event, since the Machine may become healthy before it has the condition.
    event(&world, name, reason::RESTARTED).await?;
    // The guest boots, and its kubelet registers again.
    eventually(DEADLINE, "a Machine that is healthy again", async || {
        let machine = machine(&world, name).await?;
        ensure!(phase(&machine) == "Running", "{:#}", machine.data["status"]);
        ensure!(
            of(&machine, "HealthCheckSucceeded")["status"] == "True",
            "{:#}",
            machine.data
        );
        ensure!(of(&machine, "OwnerRemediated").is_null(), "{:#}", machine.data);
        ensure!(
            remediation(&world, name).await?.is_none(),
            "the remediation is there"
        );
        Ok(())
    })
    .await?;
    ensure!(uids(&fleet.running(3).await?) == before, "a Machine was replaced");
    let ids = |vms: &[Vm]| vms.iter().map(|vm| vm.id).collect::<Vec<_>>();
    ensure!(ids(&cloud.holds(3).await?) == ids(&vms), "a VM was replaced");

    // No guest boots again.
    drop(kubelets);
    let hopeless = &vms[1].name;
    // A changed template applies to the next remediation.
    let changed = json!({"spec": {"template": {
        "metadata": {"labels": {"round": "2"}}, "spec": {"strategy": {"timeoutSeconds": 299}},
    }}});
    let template = "inframachineremediationtemplate";
    let changed = changed.to_string();
    world.kubectl(&["patch", template, "restart", "--type=merge", "-p", &changed])?;
    fall_silent(&world, &vms[1]).await?;
    restarts(&cloud, hopeless, 1).await?;
    let new = remediation(&world, hopeless).await?.context("no remediation")?;
    let timeout = new
        .spec
        .strategy
        .as_ref()
        .and_then(|strategy| strategy.timeout_seconds);
    ensure!(
        timeout == Some(299) && new.labels().get("round").is_some_and(|round| round == "2"),
        "{new:?}"
    );
    no_time_is_left(&world, hopeless)?;
    replaced(&world, hopeless).await?;
    restarts(&cloud, hopeless, 2).await?;
    event(&world, hopeless, reason::RESTARTS_EXHAUSTED).await?;
    let _kubelets = world.kubelets(&cloud);
    fleet.running(3).await?;
    let after = ids(&cloud.holds(3).await?);
    ensure!(
        after.contains(&vms[0].id) && after.contains(&vms[2].id),
        "other VMs were touched: {after:?}"
    );
    restarts(&cloud, name, 1).await?;
    restarts(&cloud, &vms[2].name, 0).await
}

/// INI-02: if a Node registers with one taint but loses another, it never takes Pods.
#[tokio::test]
async fn the_sample_not_ready_taint_is_registered_and_removed_by_one_key() -> Result<()> {
    let world = World::new("sample-taint").await?;
    let _providers = KubeadmProviders::start(&world.management, &world.namespace).await?;
    apply(&world, "not-ready-taint.yaml", &[("my-cluster-md-0", "md-0")])?;
    let get = async |group: &str, version: &str, kind: &str| {
        let object = objects(&world, group, version, kind).get("md-0").await?;
        anyhow::Ok(object.data["spec"]["template"]["spec"].clone())
    };
    let kubeadm = get("bootstrap.cluster.x-k8s.io", "v1beta2", "KubeadmConfigTemplate").await?;
    let infra = get("infrastructure.capcmi.io", "v1alpha1", "InfraMachineTemplate").await?;
    let infra: InfraMachineSpec = serde_json::from_value(infra)?;
    let removed = infra.not_ready_taint.context("no taint is removed")?;
    let registered = &kubeadm["joinConfiguration"]["nodeRegistration"]["taints"];
    ensure!(
        registered[0]["key"] == removed.key,
        "{registered} and {removed:?}"
    );
    Ok(())
}

/// The autoscaler itself does not run here. The case checks that all objects it reads exist and are readable.
#[tokio::test]
async fn the_sample_autoscaler_from_zero_finds_all_that_it_reads() -> Result<()> {
    let world = World::new("sample-zero").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("md").await?;
    let fleet = Fleet::of(&world, "md");
    fleet.template("md-0", small()).await?;
    apply(
        &world,
        "autoscaler-from-zero.yaml",
        &[("my-cluster-md-0", "md-0"), ("my-cluster", "md")],
    )?;
    let deployments = objects(&world, "cluster.x-k8s.io", "v1beta2", "MachineDeployment");
    let deployment = deployments.get("md-0").await?;
    for (bound, wanted) in [("min", "0"), ("max", "5")] {
        let key = format!("cluster.x-k8s.io/cluster-api-autoscaler-node-group-{bound}-size");
        let found = deployment.annotations().get(&key);
        ensure!(found.is_some_and(|found| found == wanted), "{key}: {found:?}");
    }
    ensure!(
        deployment.data["spec"]["replicas"] == 0,
        "{:#}",
        deployment.data["spec"]
    );
    let templates = objects(
        &world,
        "infrastructure.capcmi.io",
        "v1alpha1",
        "InfraMachineTemplate",
    );
    eventually(DEADLINE, "the capacity of a machine", async || {
        let status = templates.get("md-0").await?.data["status"].clone();
        ensure!(status["capacity"]["cpu"].is_string(), "{status}");
        ensure!(status["nodeInfo"]["architecture"].is_string(), "{status}");
        Ok(())
    })
    .await?;
    let account = "--as=system:serviceaccount:kube-system:cluster-autoscaler";
    eventually(DEADLINE, "the autoscaler's permission", async || {
        for verb in ["get", "list", "watch"] {
            let said = world.kubectl(&["auth", "can-i", verb, "inframachinetemplates", account])?;
            ensure!(said.trim() == "yes", "{verb}: {said}");
        }
        Ok(())
    })
    .await?;
    ensure!(cloud.vms()?.is_empty());
    Ok(())
}
