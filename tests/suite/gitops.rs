//! The page about GitOps, with the libraries that Flux and Argo CD use to decide whether an object is
//! healthy.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use management_cluster::{apply_yaml, eventually, health};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::fleet::objects;
use crate::support::{Cloud, DEADLINE, Provider, World, bootstrap};

/// The objects of a repository for GitOps: a template for each use, and an InfraCluster before its Cluster.
const OBJECTS: &str = r"
apiVersion: infrastructure.capcmi.io/v1alpha1
kind: InfraCluster
metadata: {name: c, namespace: $NS}
spec: {driver: simulated, controlPlaneEndpoint: {host: 127.0.0.1, port: 6443}}
---
apiVersion: infrastructure.capcmi.io/v1alpha1
kind: InfraClusterTemplate
metadata: {name: cluster, namespace: $NS}
spec: {template: {spec: {driver: simulated}}}
---
apiVersion: infrastructure.capcmi.io/v1alpha1
kind: InfraMachineRemediationTemplate
metadata: {name: restart, namespace: $NS}
spec: {template: {spec: {}}}
---
apiVersion: infrastructure.capcmi.io/v1alpha1
kind: InfraMachineTemplate
metadata: {name: complete, namespace: $NS}
spec: {template: {spec: {driver: simulated, providerSpec: {vmPool: default, size: small, tags: {}}}}}
---
apiVersion: infrastructure.capcmi.io/v1alpha1
kind: InfraMachineTemplate
metadata: {name: of-class, namespace: $NS}
spec: {template: {spec: {secretRef: {name: of-another-namespace}, providerSpec: {size: small}}}}
---
apiVersion: infrastructure.capcmi.io/v1alpha1
kind: InfraMachineTemplate
metadata: {name: incomplete, namespace: $NS}
spec: {template: {spec: {driver: simulated, providerSpec: {size: small}}}}
---
apiVersion: infrastructure.capcmi.io/v1alpha1
kind: InfraMachineTemplate
metadata: {name: wrong, namespace: $NS}
spec: {template: {spec: {driver: simulated, providerSpec: {size: 7}}}}
";

const CLASS: &str = r"
apiVersion: controlplane.cluster.x-k8s.io/v1alpha1
kind: StandInControlPlaneTemplate
metadata: {name: control-plane, namespace: $NS}
spec: {template: {spec: {}}}
---
apiVersion: bootstrap.cluster.x-k8s.io/v1alpha1
kind: StandInBootstrapTemplate
metadata: {name: worker, namespace: $NS}
spec: {template: {spec: {}}}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: ClusterClass
metadata: {name: class, namespace: $NS}
spec:
  infrastructure:
    templateRef: {apiVersion: infrastructure.capcmi.io/v1alpha1, kind: InfraClusterTemplate, name: cluster}
  controlPlane:
    templateRef:
      apiVersion: controlplane.cluster.x-k8s.io/v1alpha1
      kind: StandInControlPlaneTemplate
      name: control-plane
  workers:
    machineDeployments:
    - class: worker
      bootstrap:
        templateRef:
          {apiVersion: bootstrap.cluster.x-k8s.io/v1alpha1, kind: StandInBootstrapTemplate, name: worker}
      infrastructure:
        templateRef:
          {apiVersion: infrastructure.capcmi.io/v1alpha1, kind: InfraMachineTemplate, name: of-class}
";

/// Kinds and names in [`OBJECTS`].
const NAMES: [(&str, &str); 7] = [
    ("InfraCluster", "c"),
    ("InfraClusterTemplate", "cluster"),
    ("InfraMachineRemediationTemplate", "restart"),
    ("InfraMachineTemplate", "complete"),
    ("InfraMachineTemplate", "of-class"),
    ("InfraMachineTemplate", "incomplete"),
    ("InfraMachineTemplate", "wrong"),
];

#[derive(Debug, Deserialize)]
struct Health {
    status: String,
    message: String,
}

/// The tools, as the page sets them up.
struct Tools {
    program: PathBuf,
    check: PathBuf,
}

impl Tools {
    async fn new(world: &World) -> Result<Self> {
        let page = include_str!("../../docs/how-to/gitops.md");
        let (_, check) = page.split_once("```lua\n").context("the page has no check")?;
        let (check, _) = check.split_once("```").context("the check has no end")?;
        let path = world.folder.join("health.lua");
        std::fs::write(&path, check)?;
        Ok(Self {
            program: health().await?,
            check: path,
        })
    }

    fn flux(&self, objects: &[DynamicObject]) -> Result<Vec<Health>> {
        run(Command::new(&self.program).arg("flux"), objects)
    }

    fn argocd(&self, objects: &[DynamicObject]) -> Result<Vec<Health>> {
        run(
            Command::new(&self.program).arg("argocd").arg(&self.check),
            objects,
        )
    }

    /// Waits until these objects, in the order of [`NAMES`], have the health that the page promises.
    async fn see(&self, world: &World, stage: &str, expected: [(&str, &str); 7]) -> Result<()> {
        eventually(DEADLINE, stage, async || {
            let mut all = Vec::new();
            for (kind, name) in NAMES {
                all.push(infra(world, kind).get(name).await?);
            }
            let (flux, argocd) = (self.flux(&all)?, self.argocd(&all)?);
            for (place, (flux_status, argocd_status)) in expected.into_iter().enumerate() {
                let (kind, name) = NAMES[place];
                let seen = (&flux[place], &argocd[place]);
                ensure!(seen.0.status == flux_status, "Flux, {kind} {name}: {seen:?}");
                // Argo CD uses no check for kinds without a status, which are healthy.
                ensure!(
                    all[place].data["status"].is_null() || seen.1.status == argocd_status,
                    "Argo CD, {kind} {name}: {seen:?}"
                );
            }
            Ok(())
        })
        .await
    }
}

fn run(command: &mut Command, objects: &[DynamicObject]) -> Result<Vec<Health>> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let input = child.stdin.take().context("no standard input")?;
    serde_json::to_writer(input, objects)?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{command:?} failed");
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn infra(world: &World, kind: &str) -> Api<DynamicObject> {
    objects(world, "infrastructure.capcmi.io", "v1alpha1", kind)
}

#[tokio::test]
async fn flux_and_argo_cd_see_the_health_that_the_page_promises() -> Result<()> {
    const WAITS: (&str, &str) = ("InProgress", "Progressing");
    const HEALTHY: (&str, &str) = ("Current", "Healthy");
    let world = World::rate_limited("gitops").await?;
    let tools = Tools::new(&world).await?;
    apply_yaml(&world.admin, bootstrap::KINDS).await?;
    world.apply(OBJECTS).await?;
    let unseen = [WAITS, HEALTHY, HEALTHY, WAITS, WAITS, WAITS, WAITS];
    tools.see(&world, "objects without a provider", unseen).await?;

    world.apply(CLASS).await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let templates = [WAITS, HEALTHY, HEALTHY, HEALTHY, HEALTHY, HEALTHY, WAITS];
    tools
        .see(&world, "templates that the provider has seen", templates)
        .await?;
    let shown = conditions(&world, "InfraMachineTemplate", "incomplete").await?;
    let complete = shown.iter().find(|condition| condition["type"] == "Complete");
    ensure!(
        complete.is_some_and(|shown| shown["reason"] == "Incomplete"),
        "{shown:?}"
    );
    // Cluster API may set the owner later.
    eventually(DEADLINE, "a template that belongs to its class", async || {
        let shown = conditions(&world, "InfraMachineTemplate", "of-class").await?;
        let is_ready = shown.iter().any(|condition| condition["type"] == "Ready");
        ensure!(
            is_ready && shown.iter().all(|condition| condition["type"] != "Complete"),
            "{shown:?}"
        );
        Ok(())
    })
    .await?;
    let wait = ["wait", "--for=condition=Ready", "--timeout=60s"];
    world.kubectl(
        &[
            &wait[..],
            &["inframachinetemplate/of-class", "inframachinetemplate/complete"],
        ]
        .concat(),
    )?;

    let cluster = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": {"name": "c", "namespace": world.namespace},
        "spec": {"infrastructureRef": {"apiGroup": "infrastructure.capcmi.io", "kind": "InfraCluster",
            "name": "c"}},
    });
    management_cluster::apply(&world.admin, cluster).await?;
    let all = [HEALTHY, HEALTHY, HEALTHY, HEALTHY, HEALTHY, HEALTHY, WAITS];
    tools.see(&world, "an InfraCluster with its Cluster", all).await?;

    patch(
        &world,
        "InfraCluster",
        "c",
        json!({"spec": {"driver": "nowhere"}}),
    )
    .await?;
    let mut one = infra(&world, "InfraCluster").get("c").await?;
    one.metadata.generation = Some(7);
    for seen in [
        &tools.flux(&[one.clone()])?[0].status,
        &tools.argocd(&[one])?[0].status,
    ] {
        ensure!(
            ["InProgress", "Progressing"].contains(&seen.as_str()),
            "a change counts as seen: {seen}"
        );
    }
    let paused = json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": ""}}});
    patch(&world, "InfraMachineTemplate", "complete", paused).await?;
    eventually(DEADLINE, "a paused template", async || {
        let template = infra(&world, "InfraMachineTemplate").get("complete").await?;
        let seen = &tools.argocd(&[template])?[0];
        ensure!(seen.status == "Suspended", "{seen:?}");
        Ok(())
    })
    .await?;
    world.kubectl(&["delete", "infracluster", "c", "--wait=false"])?;
    let deleted = [infra(&world, "InfraCluster").get("c").await?];
    let (flux, argocd) = (tools.flux(&deleted)?, tools.argocd(&deleted)?);
    ensure!(flux[0].status == "Terminating", "{flux:?}");
    ensure!(argocd[0].message == "being deleted", "{argocd:?}");
    Ok(())
}

async fn conditions(world: &World, kind: &str, name: &str) -> Result<Vec<Value>> {
    let object = infra(world, kind).get(name).await?;
    let shown = object.data["status"]["conditions"].as_array();
    Ok(shown.cloned().unwrap_or_default())
}

async fn patch(world: &World, kind: &str, name: &str, patch: Value) -> Result<()> {
    let api = infra(world, kind);
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}
