//! The page about GitOps, with the libraries that Flux and Argo CD use to decide whether an object is
//! healthy.

use std::cell::Cell;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams};
use management_cluster::{apply_yaml, eventually, health};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::remediation::permitted;
use crate::support::fleet::objects;
use crate::support::{ByHand, Cloud, DEADLINE, Provider, World, bootstrap};

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
kind: InfraMachine
metadata: {name: alone, namespace: $NS}
spec: {driver: simulated}
---
apiVersion: infrastructure.capcmi.io/v1alpha1
kind: InfraMachineRemediation
metadata: {name: alone, namespace: $NS}
spec: {}
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

const CLUSTER: &str = r"
apiVersion: v1
kind: Secret
metadata: {name: boot, namespace: $NS}
stringData: {value: '#cloud-config', format: cloud-config}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: c, namespace: $NS}
spec:
  infrastructureRef: {apiGroup: infrastructure.capcmi.io, kind: InfraCluster, name: c}
---
apiVersion: infrastructure.capcmi.io/v1alpha1
kind: InfraCluster
metadata: {name: nowhere, namespace: $NS}
spec: {driver: nowhere, controlPlaneEndpoint: {host: 192.0.2.2, port: 6443}}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: nowhere, namespace: $NS}
spec:
  infrastructureRef: {apiGroup: infrastructure.capcmi.io, kind: InfraCluster, name: nowhere}
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

/// The stages of objects, as the page names them.
mod stage {
    pub const UNSEEN: &str = "the provider has not seen it, or its last change";
    pub const NO_STATUS: &str = "always: they have no status";
    pub const NO_CLUSTER: &str = "no Cluster refers to it, or its driver or endpoint is missing";
    pub const PROVISIONED: &str = "provisioned";
    pub const VALID: &str = "valid, also if a ClusterClass still has to add fields";
    pub const INVALID: &str = "a field has an invalid value";
    pub const NO_VM: &str = "it waits, its creation has failed, or its VM is gone or has failed";
    pub const UP: &str = "its VM is up, also if the VM cannot follow a changed spec";
    pub const WAITS: &str = "it waits";
    pub const REMEDIATED: &str = "it has restarted the VM, or leaves the Machine to its owner";
    pub const PAUSED: &str = "paused";
    pub const DELETED: &str = "in deletion";
}

/// The finalizer that delays the deletion of a Machine.
const HOLD: &str = "example.com/hold";

/// Kind and name of an object, and its stage.
type Expected = (&'static str, &'static str, &'static str);

#[derive(Debug, Deserialize)]
struct Health {
    status: String,
    message: String,
}

/// A row of the page's table.
struct Row {
    kinds: String,
    stage: String,
    flux: String,
    argocd: String,
    is_seen: Cell<bool>,
}

impl Row {
    fn of(line: &str) -> Option<Self> {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [kinds, stage, flux, argocd] = cells[..] else {
            return None;
        };
        Some(Self {
            kinds: kinds.to_owned(),
            stage: stage.to_owned(),
            flux: flux.trim_matches('`').to_owned(),
            argocd: argocd.trim_matches('`').to_owned(),
            is_seen: Cell::new(false),
        })
    }
}

/// The tools, as the page sets them up, and what it promises.
struct Tools {
    program: PathBuf,
    check: PathBuf,
    rows: Vec<Row>,
}

impl Tools {
    async fn new(world: &World) -> Result<Self> {
        let page = include_str!("../../docs/how-to/gitops.md");
        let (_, check) = page.split_once("```lua\n").context("the page has no check")?;
        let (check, _) = check.split_once("```").context("the check has no end")?;
        let path = world.folder.join("health.lua");
        std::fs::write(&path, check)?;
        let (_, table) = page
            .split_once("| Kind | Stage | Flux | Argo CD |\n")
            .context("the page has no table")?;
        let lines = table.lines().skip(1).take_while(|line| line.starts_with('|'));
        Ok(Self {
            program: health().await?,
            check: path,
            rows: lines.filter_map(Row::of).collect(),
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

    /// The row for a kind and a stage.
    fn row(&self, kind: &str, stage: &str) -> Result<&Row> {
        let is_of = |row: &&Row| {
            let mut kinds = row.kinds.split(", ");
            row.stage == stage && (row.kinds.starts_with("any") || kinds.any(|listed| listed == kind))
        };
        let row = self.rows.iter().find(is_of);
        let row = row.with_context(|| format!("the page does not promise the health of {kind}: {stage}"))?;
        row.is_seen.set(true);
        Ok(row)
    }

    /// Waits until these objects have the health that the page promises.
    async fn see(&self, world: &World, what: &str, expected: &[Expected]) -> Result<()> {
        eventually(DEADLINE, what, async || {
            let mut all = Vec::new();
            for (kind, name, _) in expected {
                all.push(infra(world, kind).get(name).await?);
            }
            let (flux, argocd) = (self.flux(&all)?, self.argocd(&all)?);
            for (place, (kind, name, stage)) in expected.iter().enumerate() {
                let row = self.row(kind, stage)?;
                let seen = (&flux[place], &argocd[place]);
                ensure!(
                    seen.0.status == row.flux || row.flux == "as before the pause",
                    "Flux, {kind} {name}: {seen:?}"
                );
                // Argo CD uses no check for kinds without a status, which are healthy.
                ensure!(
                    all[place].data["status"].is_null() || seen.1.status == row.argocd,
                    "Argo CD, {kind} {name}: {seen:?}"
                );
            }
            Ok(())
        })
        .await
    }

    fn every_row_was_seen(&self) -> Result<()> {
        let mut unseen = self.rows.iter().filter(|row| !row.is_seen.get());
        let first = unseen.next().map(|row| format!("{}: {}", row.kinds, row.stage));
        ensure!(first.is_none(), "not tested: {first:?}");
        Ok(())
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
#[allow(clippy::too_many_lines)] // one story
async fn flux_and_argo_cd_see_the_health_that_the_page_promises() -> Result<()> {
    const TEMPLATES: [Expected; 5] = [
        ("InfraClusterTemplate", "cluster", stage::NO_STATUS),
        ("InfraMachineRemediationTemplate", "restart", stage::NO_STATUS),
        ("InfraMachineTemplate", "complete", stage::VALID),
        ("InfraMachineTemplate", "of-class", stage::VALID),
        ("InfraMachineTemplate", "incomplete", stage::VALID),
    ];
    let world = World::rate_limited("gitops").await?;
    permitted(&world).await?;
    let tools = Tools::new(&world).await?;
    apply_yaml(&world.admin, bootstrap::KINDS).await?;
    world.apply(OBJECTS).await?;
    let unseen = [
        ("InfraCluster", "c", stage::UNSEEN),
        ("InfraMachine", "alone", stage::UNSEEN),
        ("InfraMachineRemediation", "alone", stage::UNSEEN),
        ("InfraMachineTemplate", "complete", stage::UNSEEN),
        ("InfraMachineTemplate", "wrong", stage::UNSEEN),
        TEMPLATES[0],
        TEMPLATES[1],
    ];
    tools.see(&world, "objects without a provider", &unseen).await?;

    world.apply(CLASS).await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({})))
        .flag("--enable-remediation")
        .start(&world)
        .await?;
    tools
        .see(&world, "templates that the provider has seen", &TEMPLATES)
        .await?;
    let waiting = [
        ("InfraMachineTemplate", "wrong", stage::INVALID),
        ("InfraMachineRemediation", "alone", stage::WAITS),
    ];
    for (kind, name, _) in waiting {
        has_condition(&world, kind, name, "Ready", "False").await?;
    }
    tools.see(&world, "objects that wait", &waiting).await?;
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

    world.apply(CLUSTER).await?;
    let up = ByHand::new(&world, "c", "up").create().await?;
    let invalid = ByHand::new(&world, "c", "invalid").infra("/spec/providerSpec/size", json!(7));
    invalid.create().await?;
    has_condition(&world, "InfraMachine", "invalid", "Ready", "False").await?;
    has_condition(&world, "InfraCluster", "nowhere", "Ready", "False").await?;
    let machines = [
        ("InfraCluster", "c", stage::PROVISIONED),
        ("InfraMachine", "up", stage::UP),
        ("InfraMachine", "invalid", stage::NO_VM),
        ("InfraCluster", "nowhere", stage::NO_CLUSTER),
    ];
    tools.see(&world, "Clusters and machines", &machines).await?;
    let wait = ["wait", "--for=condition=Ready", "--timeout=60s"];
    let ready = [
        "infracluster/c",
        "inframachine/up",
        "inframachinetemplate/of-class",
        "inframachinetemplate/complete",
    ];
    world.kubectl(&[&wait[..], &ready].concat())?;
    up.respecify("size", json!("large")).await?;
    has_condition(&world, "InfraMachine", "up", "VirtualMachineUpToDate", "False").await?;
    tools
        .see(&world, "a VM that cannot follow its spec", &machines[1..2])
        .await?;

    a_machine_is_left_to_its_owner(&world, &tools).await?;
    let nowhere = json!({"spec": {"driver": "nowhere"}});
    patch(&world, "InfraCluster", "c", nowhere).await?;
    let mut one = infra(&world, "InfraCluster").get("c").await?;
    one.metadata.generation = Some(7);
    let unseen = tools.row("InfraCluster", stage::UNSEEN)?;
    ensure!(tools.flux(&[one.clone()])?[0].status == unseen.flux);
    ensure!(tools.argocd(&[one])?[0].status == unseen.argocd);
    let paused = json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": ""}}});
    for (kind, name) in [("InfraMachineTemplate", "complete"), ("InfraMachine", "invalid")] {
        let before = tools.flux(&[infra(&world, kind).get(name).await?])?;
        patch(&world, kind, name, paused.clone()).await?;
        tools
            .see(&world, "a paused object", &[(kind, name, stage::PAUSED)])
            .await?;
        let after = tools.flux(&[infra(&world, kind).get(name).await?])?;
        ensure!(before[0].status == after[0].status, "{before:?} {after:?}");
    }
    world.kubectl(&["delete", "infracluster", "c", "--wait=false"])?;
    let deleted = ("InfraCluster", "c", stage::DELETED);
    tools.see(&world, "a deleted InfraCluster", &[deleted]).await?;
    let deleted = tools.argocd(&[infra(&world, "InfraCluster").get("c").await?])?;
    ensure!(deleted[0].message == "being deleted", "{deleted:?}");
    tools.every_row_was_seen()
}

/// A remediation ends when the Machine is deleted, which a finalizer delays.
async fn a_machine_is_left_to_its_owner(world: &World, tools: &Tools) -> Result<()> {
    let machines = objects(world, "cluster.x-k8s.io", "v1beta2", "Machine");
    let machine = with_finalizers(&machines, |all| all.push(HOLD.to_owned())).await?;
    let remediation = json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachineRemediation",
        "metadata": {
            "name": "up", "namespace": world.namespace,
            "ownerReferences": [{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": "up",
                "uid": machine.metadata.uid}],
        },
        "spec": {},
    });
    management_cluster::apply(&world.admin, remediation).await?;
    machines.delete("up", &DeleteParams::default()).await?;
    let left = ("InfraMachineRemediation", "up", stage::REMEDIATED);
    tools
        .see(world, "a Machine that is left to its owner", &[left])
        .await?;
    with_finalizers(&machines, |all| all.retain(|name| name != HOLD)).await?;
    Ok(())
}

/// Changes the finalizers of the Machine. Core has one, too.
async fn with_finalizers(
    machines: &Api<DynamicObject>,
    change: impl Fn(&mut Vec<String>),
) -> Result<DynamicObject> {
    eventually(DEADLINE, "another finalizer", async || {
        let machine = machines.get("up").await?;
        let version = &machine.metadata.resource_version;
        let mut all = machine.metadata.finalizers.clone().unwrap_or_default();
        change(&mut all);
        let patch = json!({"metadata": {"resourceVersion": version, "finalizers": all}});
        let params = PatchParams::default();
        Ok(machines.patch("up", &params, &Patch::Merge(patch)).await?)
    })
    .await
}

async fn has_condition(world: &World, kind: &str, name: &str, type_: &str, status: &str) -> Result<()> {
    eventually(
        DEADLINE,
        &format!("{type_}={status} of {kind} {name}"),
        async || {
            let shown = conditions(world, kind, name).await?;
            let is_it = |shown: &Value| shown["type"] == type_ && shown["status"] == status;
            ensure!(shown.iter().any(is_it), "{shown:?}");
            Ok(())
        },
    )
    .await
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
