//! The page about GitOps, with the libraries that Flux and Argo CD use to decide whether an object is
//! healthy.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use cmi_simulated::Condition;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams};
use management_cluster::{apply_yaml, eventually, health};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::remediation::{machine, permitted, request};
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
kind: InfraCluster
metadata: {name: without-cluster, namespace: $NS}
spec: {driver: simulated, controlPlaneEndpoint: {host: 192.0.2.3, port: 6443}}
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

const CLUSTERS: &str = r"
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
metadata: {name: without-driver, namespace: $NS}
spec: {driver: nowhere, controlPlaneEndpoint: {host: 192.0.2.2, port: 6443}}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: without-driver, namespace: $NS}
spec:
  infrastructureRef: {apiGroup: infrastructure.capcmi.io, kind: InfraCluster, name: without-driver}
---
apiVersion: infrastructure.capcmi.io/v1alpha1
kind: InfraCluster
metadata: {name: without-endpoint, namespace: $NS}
spec: {driver: simulated}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: without-endpoint, namespace: $NS}
spec:
  infrastructureRef: {apiGroup: infrastructure.capcmi.io, kind: InfraCluster, name: without-endpoint}
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

/// All kinds.
const KINDS: [&str; 6] = [
    "InfraCluster",
    "InfraClusterTemplate",
    "InfraMachine",
    "InfraMachineRemediation",
    "InfraMachineRemediationTemplate",
    "InfraMachineTemplate",
];
/// The kinds without a status.
const WITHOUT_STATUS: [&str; 2] = ["InfraClusterTemplate", "InfraMachineRemediationTemplate"];

/// The stages of objects, as the page names them.
mod stage {
    pub const NEW: &str = "new to the provider";
    pub const CHANGED: &str = "changed since the provider last saw it";
    pub const NO_STATUS: &str = "always: they have no status";
    pub const NO_CLUSTER: &str = "no Cluster refers to it";
    pub const NO_DRIVER: &str = "its driver is missing";
    pub const NO_ENDPOINT: &str = "its endpoint is missing";
    pub const PROVISIONED: &str = "provisioned";
    pub const VALID: &str = "valid";
    pub const LACKS_FIELDS: &str = "valid, with missing fields";
    pub const INVALID: &str = "a field has an invalid value";
    pub const WAITS: &str = "it waits";
    pub const NOT_CREATED: &str = "its creation has failed";
    pub const VM_GONE: &str = "its VM is gone";
    pub const VM_FAILED: &str = "its VM has failed";
    pub const UP: &str = "its VM is up";
    pub const CANNOT_FOLLOW: &str = "its VM cannot follow a changed spec";
    pub const RESTARTED: &str = "it has restarted the VM";
    pub const LEFT_TO_OWNER: &str = "it leaves the Machine to its owner";
    pub const PAUSED: &str = "paused";
    pub const DELETED: &str = "in deletion";
}

/// A finalizer that delays a deletion.
const HOLD: &str = "example.com/hold";

/// Kind and name of an object, and its stage.
type Expected = (&'static str, &'static str, &'static str);

#[derive(Debug, Deserialize)]
struct Health {
    status: String,
    message: String,
}

/// The health that the page promises for a kind at a stage.
struct Promise {
    flux: String,
    argocd: String,
    is_seen: Cell<bool>,
}

/// The promises of the page, by kind and stage. A row has one for each of its kinds and stages.
fn promises(page: &str) -> Result<BTreeMap<(String, String), Promise>> {
    let (_, table) = page
        .split_once("| Kind | Stage | Flux | Argo CD |\n")
        .context("the page has no table")?;
    let mut promises = BTreeMap::new();
    for line in table.lines().skip(1).take_while(|line| line.starts_with('|')) {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [kinds, stages, flux, argocd] = cells[..] else {
            bail!("not four cells: {line}");
        };
        let has_status = |kind: &&str| !WITHOUT_STATUS.contains(kind);
        let kinds: Vec<_> = match kinds {
            "any" => KINDS.to_vec(),
            "any with a status" => KINDS.into_iter().filter(has_status).collect(),
            listed => listed.split(", ").collect(),
        };
        for (kind, stage) in kinds
            .iter()
            .flat_map(|kind| stages.split("; ").map(move |stage| (kind, stage)))
        {
            let promise = Promise {
                flux: flux.trim_matches('`').to_owned(),
                argocd: argocd.trim_matches('`').to_owned(),
                is_seen: Cell::new(false),
            };
            let other = promises.insert(((*kind).to_owned(), stage.to_owned()), promise);
            ensure!(other.is_none(), "promised twice: {kind}: {stage}");
        }
    }
    Ok(promises)
}

/// The tools, as the page sets them up, and its promises.
struct Tools {
    program: PathBuf,
    check: PathBuf,
    promises: BTreeMap<(String, String), Promise>,
}

impl Tools {
    async fn new(world: &World) -> Result<Self> {
        let page = include_str!("../../docs/how-to/gitops.md");
        let (_, check) = page.split_once("```lua\n").context("the page has no check")?;
        let (check, _) = check.split_once("```").context("the check has no end")?;
        let path = world.folder.join("health.lua");
        std::fs::write(&path, check)?;
        for kind in WITHOUT_STATUS {
            let key = format!("resource.customizations.health.infrastructure.capcmi.io_{kind}`");
            ensure!(!page.contains(&key), "Argo CD would wait for {kind} for ever");
        }
        Ok(Self {
            program: health().await?,
            check: path,
            promises: promises(page)?,
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

    /// Fails unless each object has the health that the page promises.
    fn check(&self, all: &[DynamicObject], expected: &[Expected]) -> Result<()> {
        let (flux, argocd) = (self.flux(all)?, self.argocd(all)?);
        for (place, (kind, name, stage)) in expected.iter().enumerate() {
            let promise = self.promises.get(&((*kind).to_owned(), (*stage).to_owned()));
            let promise =
                promise.with_context(|| format!("the page promises nothing for {kind}: {stage}"))?;
            let seen = (&flux[place], &argocd[place]);
            ensure!(
                seen.0.status == promise.flux || promise.flux == "as before the pause",
                "Flux, {kind} {name}: {seen:?}"
            );
            // Argo CD counts a kind without a check as healthy. The check itself waits for a status.
            let by_check = match *stage {
                stage::NO_STATUS => {
                    ensure!(promise.argocd == "Healthy", "{kind} has no check");
                    "Progressing"
                }
                _ => promise.argocd.as_str(),
            };
            ensure!(seen.1.status == by_check, "Argo CD, {kind} {name}: {seen:?}");
            promise.is_seen.set(true);
        }
        Ok(())
    }

    /// Waits until these objects have the health that the page promises.
    async fn see(&self, world: &World, what: &str, expected: &[Expected]) -> Result<()> {
        eventually(DEADLINE, what, async || {
            let mut all = Vec::new();
            for (kind, name, _) in expected {
                all.push(infra(world, kind).get(name).await?);
            }
            self.check(&all, expected)
        })
        .await
    }

    fn every_promise_was_seen(&self) -> Result<()> {
        let unseen = self.promises.iter().filter(|(_, promise)| !promise.is_seen.get());
        let unseen: Vec<_> = unseen.map(|(of, _)| of).collect();
        ensure!(unseen.is_empty(), "not tested: {unseen:?}");
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

/// An InfraCluster reports only after a minute that it has no Cluster, and the test waits for that.
#[tokio::test]
async fn flux_and_argo_cd_see_the_health_that_the_page_promises() -> Result<()> {
    let world = World::rate_limited("gitops").await?;
    permitted(&world).await?;
    let tools = Tools::new(&world).await?;
    apply_yaml(&world.admin, bootstrap::KINDS).await?;
    world.apply(OBJECTS).await?;
    let new = [
        ("InfraCluster", "c", stage::NEW),
        ("InfraMachine", "alone", stage::NEW),
        ("InfraMachineRemediation", "alone", stage::NEW),
        ("InfraMachineTemplate", "complete", stage::NEW),
        ("InfraMachineTemplate", "wrong", stage::NEW),
        ("InfraClusterTemplate", "cluster", stage::NO_STATUS),
        ("InfraMachineRemediationTemplate", "restart", stage::NO_STATUS),
    ];
    tools.see(&world, "objects without a provider", &new).await?;

    world.apply(CLASS).await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({})))
        .flag("--enable-remediation")
        .start(&world)
        .await?;
    templates(&world, &tools).await?;
    world.apply(CLUSTERS).await?;
    machines(&world, &tools, &cloud).await?;
    remediations(&world, &tools).await?;
    clusters(&world, &tools).await?;
    changed_objects(&world, &tools).await?;
    paused_objects(&world, &tools).await?;
    deleted_objects(&world, &tools).await?;
    tools.every_promise_was_seen()
}

async fn templates(world: &World, tools: &Tools) -> Result<()> {
    let valid = [
        ("InfraClusterTemplate", "cluster", stage::NO_STATUS),
        ("InfraMachineRemediationTemplate", "restart", stage::NO_STATUS),
        ("InfraMachineTemplate", "complete", stage::VALID),
        ("InfraMachineTemplate", "of-class", stage::LACKS_FIELDS),
        ("InfraMachineTemplate", "incomplete", stage::LACKS_FIELDS),
    ];
    tools
        .see(world, "templates that the provider has seen", &valid)
        .await?;
    has_condition(
        world,
        ("InfraMachineTemplate", "wrong"),
        "Ready",
        "InvalidArgument",
    )
    .await?;
    let wrong = ("InfraMachineTemplate", "wrong", stage::INVALID);
    tools.see(world, "an invalid template", &[wrong]).await?;
    has_condition(
        world,
        ("InfraMachineTemplate", "incomplete"),
        "Complete",
        "Incomplete",
    )
    .await?;
    // Cluster API may set the owner later.
    eventually(DEADLINE, "a template that belongs to its class", async || {
        let shown = conditions(world, "InfraMachineTemplate", "of-class").await?;
        let is_ready = shown.iter().any(|condition| condition["type"] == "Ready");
        ensure!(
            is_ready && shown.iter().all(|condition| condition["type"] != "Complete"),
            "{shown:?}"
        );
        Ok(())
    })
    .await
}

async fn machines(world: &World, tools: &Tools, cloud: &Cloud) -> Result<()> {
    let [up, gone, failed, restarted, invalid, waits] =
        ["up", "gone", "failed", "restarted", "invalid", "waits"].map(|name| ByHand::new(world, "c", name));
    let later =
        json!({"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "StandInBootstrap", "name": "later"});
    let invalid = invalid.infra("/spec/providerSpec/size", json!(7));
    let waits = waits.machine("/spec/bootstrap", json!({"configRef": later}));
    ByHand::create_all(&[
        up.clone(),
        gone.clone(),
        failed.clone(),
        restarted.clone(),
        invalid,
        waits,
    ])
    .await?;
    for machine in [&up, &gone, &failed, &restarted] {
        machine.provisioned().await?;
    }
    for vm in cloud.vms()? {
        match vm.name.as_str() {
            "gone" => cloud.console()?.vanish(vm.id)?,
            "failed" => cloud.console()?.set_condition(vm.id, Condition::Crashed)?,
            _ => {}
        }
    }
    let look = json!({"metadata": {"annotations": {"infrastructure.capcmi.io/refresh": "now"}}});
    for machine in [&gone, &failed] {
        machine.patch(look.clone()).await?;
    }
    for (name, reason) in [
        ("gone", "VirtualMachineVanished"),
        ("failed", "VirtualMachineFailed"),
        ("invalid", "InvalidArgument"),
        ("waits", "WaitingForBootstrapData"),
    ] {
        has_condition(world, ("InfraMachine", name), "Ready", reason).await?;
    }
    let all = [
        ("InfraMachine", "up", stage::UP),
        ("InfraMachine", "gone", stage::VM_GONE),
        ("InfraMachine", "failed", stage::VM_FAILED),
        ("InfraMachine", "invalid", stage::NOT_CREATED),
        ("InfraMachine", "waits", stage::WAITS),
    ];
    tools.see(world, "machines", &all).await?;
    let wait = ["wait", "--for=condition=Ready", "--timeout=60s"];
    let ready = [
        "infracluster/c",
        "inframachine/up",
        "inframachinetemplate/of-class",
        "inframachinetemplate/complete",
    ];
    world.kubectl(&[&wait[..], &ready].concat())?;
    up.respecify("size", json!("large")).await?;
    let up = ("InfraMachine", "up");
    has_condition(world, up, "VirtualMachineUpToDate", "NotHotUpdatable").await?;
    let cannot_follow = (up.0, up.1, stage::CANNOT_FOLLOW);
    tools
        .see(world, "a VM that cannot follow its spec", &[cannot_follow])
        .await
}

/// The provider restarts a VM when a remediation names it. A deleted Machine is left to its owner.
async fn remediations(world: &World, tools: &Tools) -> Result<()> {
    let of = |name| ("InfraMachineRemediation", name);
    has_condition(world, of("alone"), "Ready", "WaitingForOwner").await?;
    let machines = objects(world, "cluster.x-k8s.io", "v1beta2", "Machine");
    hold(&machines, "up").await?;
    machines.delete("up", &DeleteParams::default()).await?;
    for name in ["restarted", "up"] {
        let remediation = request(world, &machine(world, name).await?, &json!({}));
        management_cluster::apply(&world.admin, remediation).await?;
    }
    has_condition(world, of("restarted"), "Ready", "Restarted").await?;
    has_condition(world, of("up"), "Ready", "LeftToOwner").await?;
    let all = [
        ("InfraMachineRemediation", "alone", stage::WAITS),
        ("InfraMachineRemediation", "restarted", stage::RESTARTED),
        ("InfraMachineRemediation", "up", stage::LEFT_TO_OWNER),
    ];
    tools.see(world, "remediations", &all).await?;
    release(&machines, "up").await
}

async fn clusters(world: &World, tools: &Tools) -> Result<()> {
    for (name, reason) in [
        ("without-cluster", "WaitingForOwner"),
        ("without-driver", "DriverNotConfigured"),
        ("without-endpoint", "WaitingForControlPlaneEndpoint"),
    ] {
        has_condition(world, ("InfraCluster", name), "Ready", reason).await?;
    }
    let all = [
        ("InfraCluster", "c", stage::PROVISIONED),
        ("InfraCluster", "without-cluster", stage::NO_CLUSTER),
        ("InfraCluster", "without-driver", stage::NO_DRIVER),
        ("InfraCluster", "without-endpoint", stage::NO_ENDPOINT),
    ];
    tools.see(world, "InfraClusters", &all).await
}

/// Objects as the API server returns them between a change and the next reconcile.
async fn changed_objects(world: &World, tools: &Tools) -> Result<()> {
    for (kind, name) in [
        ("InfraCluster", "c"),
        ("InfraMachine", "restarted"),
        ("InfraMachineRemediation", "restarted"),
        ("InfraMachineTemplate", "complete"),
    ] {
        let mut object = infra(world, kind).get(name).await?;
        ensure!(
            tools.flux(&[object.clone()])?[0].status == "Current",
            "{kind} {name}"
        );
        object.metadata.generation = object.metadata.generation.map(|generation| generation + 1);
        tools.check(&[object], &[(kind, name, stage::CHANGED)])?;
    }
    Ok(())
}

async fn paused_objects(world: &World, tools: &Tools) -> Result<()> {
    let paused = json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": ""}}});
    for (kind, name) in [
        ("InfraMachineTemplate", "complete"),
        ("InfraMachine", "invalid"),
        ("InfraMachine", "restarted"),
        ("InfraMachineRemediation", "restarted"),
        ("InfraCluster", "c"),
    ] {
        let before = tools.flux(&[infra(world, kind).get(name).await?])?;
        patch(&infra(world, kind), name, paused.clone()).await?;
        tools
            .see(world, "a paused object", &[(kind, name, stage::PAUSED)])
            .await?;
        let after = tools.flux(&[infra(world, kind).get(name).await?])?;
        ensure!(before[0].status == after[0].status, "{before:?} {after:?}");
    }
    Ok(())
}

async fn deleted_objects(world: &World, tools: &Tools) -> Result<()> {
    for (kind, name) in [
        ("InfraCluster", "without-cluster"),
        ("InfraClusterTemplate", "cluster"),
        ("InfraMachine", "alone"),
        ("InfraMachineRemediation", "alone"),
        ("InfraMachineRemediationTemplate", "restart"),
        ("InfraMachineTemplate", "incomplete"),
    ] {
        let api = infra(world, kind);
        hold(&api, name).await?;
        api.delete(name, &DeleteParams::default()).await?;
        tools
            .see(world, "a deleted object", &[(kind, name, stage::DELETED)])
            .await?;
        let deleted = tools.argocd(&[api.get(name).await?])?;
        ensure!(deleted[0].message == "being deleted", "{deleted:?}");
        release(&api, name).await?;
    }
    Ok(())
}

/// Delays the deletion of an object.
async fn hold(api: &Api<DynamicObject>, name: &str) -> Result<()> {
    with_finalizers(api, name, |all| all.push(HOLD.to_owned())).await
}

/// Lets the deletion of an object continue.
async fn release(api: &Api<DynamicObject>, name: &str) -> Result<()> {
    with_finalizers(api, name, |all| all.retain(|finalizer| finalizer != HOLD)).await
}

/// Changes the finalizers of an object. Controllers have some, too.
async fn with_finalizers(
    api: &Api<DynamicObject>,
    name: &str,
    change: impl Fn(&mut Vec<String>),
) -> Result<()> {
    eventually(DEADLINE, "changed finalizers", async || {
        let object = api.get(name).await?;
        let version = &object.metadata.resource_version;
        let mut all = object.metadata.finalizers.clone().unwrap_or_default();
        change(&mut all);
        let finalizers = json!({"metadata": {"resourceVersion": version, "finalizers": all}});
        patch(api, name, finalizers).await
    })
    .await
}

/// Waits for a condition of an object, given by kind and name, with this reason.
async fn has_condition(world: &World, (kind, name): (&str, &str), type_: &str, reason: &str) -> Result<()> {
    eventually(
        DEADLINE,
        &format!("{type_} for {reason} of {kind} {name}"),
        async || {
            let shown = conditions(world, kind, name).await?;
            let is_it = |shown: &Value| shown["type"] == type_ && shown["reason"] == reason;
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

async fn patch(api: &Api<DynamicObject>, name: &str, patch: Value) -> Result<()> {
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}
