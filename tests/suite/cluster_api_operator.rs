//! The real Cluster API operator installs, upgrades and removes the provider from a release's file.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use kube::api::DynamicObject;
use management_cluster::{CLUSTER_API_VERSION, ClusterApiOperator, eventually};
use serde_json::{Value, json};

use crate::support::by_hand::small;
use crate::support::oci_registry::OciRegistry;
use crate::support::world::run;
use crate::support::{Cloud, DEADLINE, Fleet, Provider, World};

/// The provider's namespace in docs/how-to/install.md.
const NAMESPACE: &str = "capcmi-system";
const PROVIDER: &str = "infrastructureprovider/capcmi-cmi";
const DEPLOYMENT: &str = "capcmi-controller-manager";

/// The operator's installation of Cluster API. A Deployment is enough here, since core runs as a process.
const CORE: &str = "
apiVersion: v1
kind: ConfigMap
metadata:
  name: core
  namespace: capi-system
  labels: {provider.cluster.x-k8s.io/version: $CORE, core: of-the-case}
data:
  metadata: |
    apiVersion: clusterctl.cluster.x-k8s.io/v1alpha3
    kind: Metadata
    releaseSeries:
    - {major: 1, minor: 14, contract: v1beta2}
  components: |
    apiVersion: apps/v1
    kind: Deployment
    metadata: {name: capi-controller-manager, namespace: capi-system}
    spec:
      selector: {matchLabels: {app: capi}}
      template:
        metadata: {labels: {app: capi}}
        spec:
          containers: [{name: manager, image: registry.example.com/core:$CORE}]
---
apiVersion: operator.cluster.x-k8s.io/v1alpha2
kind: CoreProvider
metadata: {name: cluster-api, namespace: capi-system}
spec:
  version: $CORE
  fetchConfig: {selector: {matchLabels: {core: of-the-case}}}
";

/// Runs the operator's commands in docs/how-to/install.md while machines exist. Core and the provider are
/// processes instead of Pods, so the case itself sets their Deployments to available.
#[tokio::test]
async fn the_operator_installs_upgrades_and_removes_the_provider() -> Result<()> {
    let world = World::without_provider("operator").await?;
    let _operator = ClusterApiOperator::start(&world.management).await?;
    let releases = world.folder.join("out");
    install(&world, &releases, "v0.1.0")?;
    condition(&world, PROVIDER, NAMESPACE, "PreflightCheckPassed", "False").await?;

    world.apply(&CORE.replace("$CORE", CLUSTER_API_VERSION)).await?;
    let core = "coreprovider/cluster-api";
    condition(&world, core, "capi-system", "ProviderInstalled", "True").await?;
    available(&world, "capi-system", "capi-controller-manager")?;
    condition(&world, core, "capi-system", "Ready", "True").await?;
    installed(&world, "v0.1.0").await?;
    available(&world, NAMESPACE, DEPLOYMENT)?;
    condition(&world, PROVIDER, NAMESPACE, "Ready", "True").await?;

    testbed::permitted(&world.management).await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({})));
    let old = provider.start(&world).await?;
    let _kubelets = world.kubelets(&cloud);
    world
        .apply("{apiVersion: v1, kind: Namespace, metadata: {name: $NS}}")
        .await?;
    world.cluster("md").await?;
    let fleet = Fleet::of(&world, "md");
    fleet.template("md-1", small()).await?;
    fleet.deployment("md-1", 2).await?;
    let machines = uids(&fleet.running(2).await?);
    let vms = cloud.holds(2).await?;

    install(&world, &releases, "v0.1.1")?;
    installed(&world, "v0.1.1").await?;
    drop(old);
    let _upgraded = provider.named("upgraded").start(&world).await?;
    ensure!(
        uids(&fleet.running(2).await?) == machines,
        "Machines were replaced"
    );
    ensure!(cloud.vms()? == vms, "VMs were touched");

    let two = json!({"spec": {"deployment": {"replicas": 2}}}).to_string();
    of_namespace(&world, &["patch", PROVIDER, "--type=merge", "--patch", &two])?;
    eventually(DEADLINE, "a Deployment of two replicas", async || {
        let deployment = deployment(&world)?;
        ensure!(deployment["spec"]["replicas"] == 2, "{}", deployment["spec"]);
        Ok(())
    })
    .await?;

    of_namespace(&world, &["delete", PROVIDER, "--wait=false"])?;
    eventually(DEADLINE, "the end of the Deployment", async || {
        let left = of_namespace(
            &world,
            &["get", "deployments,infrastructureproviders", "--output=name"],
        )?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    })
    .await?;
    ensure!(uids(&fleet.running(2).await?) == machines, "Machines went along");
    ensure!(cloud.vms()? == vms, "VMs were touched");
    installs_from_a_registry(&world, &releases).await
}

/// The operator installs a release's package from a registry, as in docs/how-to/install.md. The registry and
/// the file have the same content.
async fn installs_from_a_registry(world: &World, releases: &Path) -> Result<()> {
    let layout = world.folder.join("layout");
    std::fs::create_dir(&layout)?;
    let package = releases.join("infrastructure-capcmi-cmi/v0.1.0/cluster-api-operator-package.tar");
    let mut unpack = Command::new("tar");
    run(unpack
        .arg("--extract")
        .arg("--file")
        .arg(package)
        .arg("--directory")
        .arg(&layout))?;
    let registry = OciRegistry::serve(&layout, "capcmi-components").await?;

    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/how-to/install.md"))?;
    let mut examples = page.split("```yaml\n").skip(1);
    let example = examples.find(|example| example.contains("fetchConfig: {oci:"));
    let (example, _) = example
        .and_then(|example| example.split_once("```"))
        .context("docs/how-to/install.md has no InfrastructureProvider from a registry")?;
    let place = format!("http://{}/", registry.address);
    world
        .apply(&example.replace("registry.example.com/", &place))
        .await?;
    installed(world, "v0.1.0").await
}

/// Makes a release, and applies its file for the operator.
fn install(world: &World, releases: &Path, version: &str) -> Result<()> {
    let kubectl = &world.management.programs().kubectl;
    run(&mut testbed::make_release(releases, version, kubectl))?;
    let file = releases.join(format!(
        "infrastructure-capcmi-cmi/{version}/cluster-api-operator.yaml"
    ));
    let file = file.display().to_string();
    of_namespace(world, &["apply", "--server-side", "--filename", &file]).map(drop)
}

/// kubectl in the namespace of the provider.
fn of_namespace(world: &World, arguments: &[&str]) -> Result<String> {
    let namespace = format!("--namespace={NAMESPACE}");
    world.kubectl(&[&[namespace.as_str()], arguments].concat())
}

fn deployment(world: &World) -> Result<Value> {
    let text = of_namespace(world, &["get", "deployment", DEPLOYMENT, "--output=json"])?;
    serde_json::from_str(&text).context("reading the Deployment")
}

/// Waits until the operator has installed this version.
async fn installed(world: &World, version: &str) -> Result<()> {
    eventually(DEADLINE, &format!("the provider {version}"), async || {
        let text = of_namespace(world, &["get", PROVIDER, "--output=json"])?;
        let provider: Value = serde_json::from_str(&text)?;
        ensure!(
            provider["status"]["installedVersion"] == version,
            "{:#}",
            provider["status"]
        );
        let deployment = deployment(world)?;
        let image = &deployment["spec"]["template"]["spec"]["containers"][0]["image"];
        ensure!(
            *image == format!("ghcr.io/capcmi/cluster-api-provider-cmi:{version}"),
            "{image}"
        );
        Ok(())
    })
    .await
}

/// Waits until a provider of the operator has this condition.
async fn condition(world: &World, provider: &str, namespace: &str, type_: &str, status: &str) -> Result<()> {
    eventually(
        DEADLINE,
        &format!("{provider} with {type_}={status}"),
        async || {
            let text = world.kubectl(&["get", provider, "--namespace", namespace, "--output=json"])?;
            let provider: Value = serde_json::from_str(&text)?;
            let conditions = provider["status"]["conditions"].as_array();
            let mut all = conditions.into_iter().flatten();
            ensure!(
                all.any(|condition| condition["type"] == type_ && condition["status"] == status),
                "{:#}",
                provider["status"]
            );
            Ok(())
        },
    )
    .await
}

/// Sets the condition that a Deployment has when its Pods run.
fn available(world: &World, namespace: &str, deployment: &str) -> Result<()> {
    let status = json!({"status": {"conditions": [
        {"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"},
    ]}});
    let namespace = format!("--namespace={namespace}");
    world
        .kubectl(&[
            "patch",
            "deployment",
            deployment,
            &namespace,
            "--subresource=status",
            "--type=merge",
            "--patch",
            &status.to_string(),
        ])
        .map(drop)
}

fn uids(machines: &[DynamicObject]) -> Vec<Option<String>> {
    let mut uids: Vec<_> = machines.iter().map(ResourceExt::uid).collect();
    uids.sort();
    uids
}
