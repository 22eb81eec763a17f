//! Machines through a driver in another language: the EC2 driver in Python, which runs as a process. moto
//! simulates EC2.

use std::sync::Arc;

use anyhow::{Result, ensure};
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use management_cluster::eventually;
use management_cluster::hollow_kubelet::HollowKubelet;
use serde_json::{Value, json};
use testbed::{Ec2, ExampleDriver, Python};

use crate::support::fleet::{bootstrap_secret, objects};
use crate::support::{DEADLINE, Fleet, Provider, World};

const SECRET: &str = "canary-secret-of-the-cloud";

/// EC2 and its driver.
struct Amazon {
    ec2: Arc<Ec2>,
    plugin: ExampleDriver,
    subnets: Value,
}

impl Amazon {
    async fn start(world: &World) -> Result<Self> {
        let python = Python::find().await?;
        let folder = world.management.folder();
        let name = |what: &str| format!("{}-{what}", world.namespace);
        let ec2 = Arc::new(python.ec2(folder, &name("ec2")).await?);
        let plugin = python.ec2_driver(folder, &name("driver"), &ec2).await?;
        let subnets = ec2.console("subnets").await?;
        Ok(Self { ec2, plugin, subnets })
    }

    /// The drivers file.
    fn drivers(&self) -> String {
        json!({"drivers": [{"name": "ec2", "grpc": {"endpoint": self.plugin.endpoint}}]}).to_string()
    }

    /// Waits until exactly this number of instances runs.
    async fn runs(&self, count: usize) -> Result<Vec<testbed::Ec2Guest>> {
        eventually(DEADLINE, &format!("{count} instances"), async || {
            let instances = self.ec2.instances().await?;
            ensure!(instances.len() == count, "there are {}", instances.len());
            Ok(instances)
        })
        .await
    }
}

/// A Cluster in the driver's zones, credentials, and a MachineDeployment of VMs that forward packets.
async fn deployed<'a>(world: &'a World, amazon: &Amazon) -> Result<Fleet<'a>> {
    let credentials = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "aws", "namespace": world.namespace},
        "stringData": {"accessKeyId": "AKIAIOSFODNN7EXAMPLE", "secretAccessKey": SECRET},
    });
    management_cluster::apply(&world.admin, credentials).await?;
    world
        .cluster_with("md", json!({"driver": "ec2", "secretRef": {"name": "aws"}}))
        .await?;
    bootstrap_secret(world, "boot").await?;
    let fleet = Fleet::of(world, "md");
    let spec = json!({
        "region": "eu-central-1", "image": "ami-03cf127a", "instanceType": "m5.large",
        "subnets": amazon.subnets, "sourceDestCheck": false, "tags": {"team": "a"},
    });
    let machine = json!({
        "driver": "ec2", "secretRef": {"name": "aws"}, "providerSpec": spec, "shutdownTimeoutSeconds": 30,
    });
    fleet.template_with("md-1", machine).await?;
    fleet.deployment("md-1", 3).await?;
    Ok(fleet)
}

/// DRV-13, DRV-14, INI-03, INI-18, UPD-01, CMI-153: an external driver brings machines up and down like a
/// built-in one.
#[tokio::test]
async fn a_deployment_comes_up_changes_and_goes_through_a_driver_in_python() -> Result<()> {
    let world = World::new("ec2").await?;
    let amazon = Amazon::start(&world).await?;
    let provider = Provider::new(amazon.drivers()).start(&world).await?;
    let _kubelets = HollowKubelet::start(amazon.ec2.guests());
    let fleet = deployed(&world, &amazon).await?;

    fleet.running(3).await?;
    let instances = amazon.runs(3).await?;
    for machine in fleet.infra_machines().await? {
        let id = machine.spec.provider_id.clone().unwrap_or_default();
        let vm = instances.iter().find(|vm| vm.provider_id == id);
        ensure!(
            vm.is_some_and(|vm| vm.tags["capcmi.io/machine-name"] == machine.name_any()),
            "{id} is no VM of {}",
            machine.name_any()
        );
    }
    ensure!(
        instances.iter().all(|vm| !vm.source_dest_check),
        "not initialized: {instances:?}"
    );
    let cluster = objects(&world, "cluster.x-k8s.io", "v1beta2", "Cluster");
    let zones = &cluster.get("md").await?.data["status"]["failureDomains"];
    ensure!(zones.as_array().is_some_and(|zones| zones.len() == 3), "{zones}");

    let name = fleet.infra_machines().await?[0].name_any();
    retag(&world, &name, "b").await?;
    eventually(DEADLINE, "the changed tag", async || {
        let vms = amazon.ec2.instances().await?;
        let tags = vms.iter().map(|vm| vm.tags["team"].as_str());
        ensure!(tags.clone().filter(|tag| *tag == "b").count() == 1, "other tags");
        Ok(())
    })
    .await?;

    fleet.scale(1).await?;
    fleet.running(1).await?;
    amazon.runs(1).await?;
    world.kubectl(&["delete", "machinedeployment", "md", "--wait=false"])?;
    fleet.gone().await?;
    amazon.runs(0).await?;
    for log in [
        provider.log()?,
        std::fs::read_to_string(amazon.plugin.process.log())?,
    ] {
        ensure!(!log.contains(SECRET), "a log has the secret");
    }
    Ok(())
}

/// Changes a tag in the provider spec of an InfraMachine.
async fn retag(world: &World, name: &str, team: &str) -> Result<()> {
    let machines: Api<_> = objects(world, "infrastructure.capcmi.io", "v1alpha1", "InfraMachine");
    let patch = Patch::Merge(json!({"spec": {"providerSpec": {"tags": {"team": team}}}}));
    machines.patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}
