//! A ClusterClass, filled in and rolled out by Cluster API's real topology controller.

use anyhow::{Result, ensure};
use kube::ResourceExt;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use management_cluster::stand_in::{self, StandInController};
use management_cluster::{KUBERNETES_VERSION, apply_yaml, eventually};
use serde_json::{Value, json};

use crate::support::fleet::{bootstrap_secret, objects};
use crate::support::{Cloud, DEADLINE, Fleet, Provider, World, bootstrap};

const CLASS: &str = r"
apiVersion: infrastructure.capcmi.io/v1alpha1
kind: InfraClusterTemplate
metadata: {name: cluster, namespace: $NS}
spec: {template: {spec: {driver: simulated}}}
---
apiVersion: infrastructure.capcmi.io/v1alpha1
kind: InfraMachineTemplate
metadata: {name: worker, namespace: $NS}
spec:
  template:
    spec:
      driver: simulated
      shutdownTimeoutSeconds: 0
      providerSpec: {vmPool: default, size: small, tags: {team: a}}
---
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
        templateRef: {apiVersion: infrastructure.capcmi.io/v1alpha1, kind: InfraMachineTemplate, name: worker}
  variables:
  - {name: size, required: true, schema: {openAPIV3Schema: {type: string}}}
  patches:
  - name: size
    definitions:
    - selector:
        apiVersion: infrastructure.capcmi.io/v1alpha1
        kind: InfraMachineTemplate
        matchResources: {machineDeploymentClass: {names: [worker]}}
      jsonPatches:
      - {op: replace, path: /spec/template/spec/providerSpec/size, valueFrom: {variable: size}}
";

const CLUSTER: &str = r"
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: one, namespace: $NS}
spec:
  topology:
    classRef: {name: class}
    version: $VERSION
    variables: [{name: size, value: small}]
    workers:
      machineDeployments: [{class: worker, name: md, replicas: 2}]
";

/// The topology controller tries a changed template out by a dry run, which the admission policy has to let
/// pass, and makes a new template, which rolls the machines (DRV-07).
#[tokio::test]
async fn a_changed_variable_makes_a_new_template_and_rolls_the_machines() -> Result<()> {
    let world = World::rate_limited("topology").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let _kubelets = world.kubelets(&cloud);
    let _control_planes = StandInController::start(&world.management).await?;
    apply_yaml(&world.admin, bootstrap::KINDS).await?;
    bootstrap_secret(&world, "boot").await?;
    world.apply(CLASS).await?;
    stand_in::connect_workload(&world.management, &world.namespace, "one").await?;
    // Core's webhook may not have seen the class yet.
    eventually(DEADLINE, "a Cluster of the class", async || {
        world
            .apply(&CLUSTER.replace("$VERSION", KUBERNETES_VERSION))
            .await
    })
    .await?;
    let fleet = Fleet::of(&world, "one");
    fleet.running(2).await?;
    let old = worker_template(&world, "small").await?;

    let variables = json!({"spec": {"topology": {"variables": [{"name": "size", "value": "medium"}]}}});
    let clusters = objects(&world, "cluster.x-k8s.io", "v1beta2", "Cluster");
    clusters
        .patch("one", &PatchParams::default(), &Patch::Merge(variables))
        .await?;
    let new = worker_template(&world, "medium").await?;
    ensure!(
        new.name_any() != old.name_any(),
        "the template itself was changed"
    );
    eventually(DEADLINE, "VMs of the new size alone", async || {
        let sizes: Vec<_> = cloud.vms()?.into_iter().map(|vm| vm.size).collect();
        ensure!(sizes == ["medium"; 2], "{sizes:?}");
        Ok(())
    })
    .await?;
    fleet.running(2).await?;
    eventually(DEADLINE, "the end of the old template", async || {
        let names: Vec<_> = worker_templates(&world)
            .await?
            .iter()
            .map(ResourceExt::name_any)
            .collect();
        ensure!(names == [new.name_any()], "{names:?}");
        Ok(())
    })
    .await
}

/// The template that the topology controller has made with this size.
async fn worker_template(world: &World, size: &str) -> Result<DynamicObject> {
    eventually(DEADLINE, &format!("a template of size {size}"), async || {
        let all = worker_templates(world).await?;
        let sizes: Vec<_> = all.iter().map(provider_size).collect();
        let found = all.iter().find(|template| provider_size(template) == size);
        found.cloned().ok_or_else(|| anyhow::anyhow!("{sizes:?}"))
    })
    .await
}

fn provider_size(template: &DynamicObject) -> &Value {
    &template.data["spec"]["template"]["spec"]["providerSpec"]["size"]
}

/// The InfraMachineTemplates of the Cluster; the one of the class is not among them.
async fn worker_templates(world: &World) -> Result<Vec<DynamicObject>> {
    let templates = objects(
        world,
        "infrastructure.capcmi.io",
        "v1alpha1",
        "InfraMachineTemplate",
    );
    let of = ListParams::default().labels("topology.cluster.x-k8s.io/owned");
    Ok(templates.list(&of).await?.items)
}
