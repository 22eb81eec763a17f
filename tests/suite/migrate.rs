//! Migrations from machine-controller-manager to Cluster API and back.
//!
//! The tests use its Go module: the definitions, the controllers of MachineDeployments and MachineSets, and
//! the machine controller. The machine controller calls the simulated driver over CMI.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, bail, ensure};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use capcmi::api::annotations;
use capcmi_cli::migration::plan::UNDOING;
use cmi_driver::{Operation, tags};
use cmi_simulated::{Phase, PlantedVm, Vm};
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use management_cluster::eventually;
use management_cluster::hollow_kubelet::HollowKubelet;
use management_cluster::machine_controller_manager::MachineControllerManager;
use management_cluster::proxy::{Fault, Gate, ProxiedRequest, Proxy};
use management_cluster::stand_in::StandInController;
use serde_json::{Value, json};

use crate::support::fleet::objects;
use crate::support::plugin::Plugin;
use crate::support::provider::Replica;
use crate::support::{Backing, Cloud, DEADLINE, Fleet, Provider, World};

const GROUP: &str = "machine.sapcloud.io";
/// The back end requires this token, and the Secrets of classes contain it.
const TOKEN: &str = "canary-token-of-a-machine-class";

/// A back end that refuses every call without the token. The Cluster has no credentials.
fn guarded() -> Value {
    json!({"credentials": {"token": TOKEN}, "disabledCalls": ["ListZones"]})
}

/// A namespace with a Cluster, and a MachineDeployment of machine-controller-manager. The VMs of its two
/// machines run and are Nodes.
struct Left {
    world: World,
    cloud: Cloud,
    drivers: PathBuf,
    user_data: String,
}

impl Left {
    async fn new(case: &str) -> Result<(Self, Replica)> {
        let world = World::new(case).await?;
        let cloud = Cloud::new(&world);
        let config = cloud.drivers(guarded());
        let provider = Provider::new(config.clone()).start(&world).await?;
        let drivers = world.folder.join("migrate-drivers.yaml");
        std::fs::write(&drivers, config)?;
        world.cluster("md").await?;
        definitions(&world).await?;
        let user_data = world.management.workload().await?.bootstrap_data()?;
        let left = Self {
            world,
            cloud,
            drivers,
            user_data,
        };
        Ok((left, provider))
    }

    /// A VM as machine-controller-manager has it made.
    fn plant(&self, name: &str) -> Result<String> {
        let mut planted = PlantedVm::new("shoot--old", name, "");
        planted.tags.remove(tags::MACHINE);
        planted.tags.insert("worker".to_owned(), "1".to_owned());
        planted.user_data = self.user_data.clone().into();
        let id = self.cloud.console()?.plant(planted);
        id.map_err(|status| anyhow!("planting a VM: {status}"))
    }

    /// A MachineDeployment with its set, class and Secret, and with two machines.
    fn deployment(&self) -> Result<Vec<Value>> {
        let mut all = self.class();
        all.push(self.set("MachineDeployment", "workers", None));
        all.push(self.set("MachineSet", "workers-1", Some(("MachineDeployment", "workers"))));
        for name in self.names() {
            let id = self.plant(&name)?;
            all.push(self.machine(&name, &id, Some(("MachineSet", "workers-1"))));
        }
        Ok(all)
    }

    /// A class, and its Secret before it.
    fn class(&self) -> Vec<Value> {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": self.metadata("cloud"),
            "data": {
                "userData": BASE64_STANDARD.encode(&self.user_data),
                "token": BASE64_STANDARD.encode(TOKEN),
            },
        });
        let provider_spec = json!({
            "vmPool": "default", "size": "small",
            "tags": {"worker": "1", tags::CLUSTER: "shoot--old", tags::ROLE: "node"},
        });
        let class = json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineClass",
            "metadata": self.metadata("small"),
            "provider": "simulated", "providerSpec": provider_spec,
            "secretRef": {"name": "cloud", "namespace": self.world.namespace},
        });
        vec![secret, class]
    }

    /// A MachineDeployment or MachineSet of two machines of the class.
    fn set(&self, kind: &str, name: &str, owner: Option<(&str, &str)>) -> Value {
        let spec = json!({"class": {"kind": "MachineClass", "name": "small"}});
        let mut set = json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": kind, "metadata": self.metadata(name),
            "spec": {
                "replicas": 2, "selector": {"matchLabels": {"name": "workers"}},
                "template": {"metadata": {"labels": {"name": "workers"}}, "spec": spec},
            },
        });
        if let Some(owner) = owner {
            set["metadata"]["ownerReferences"] = owned_by(owner);
        } else {
            set["spec"]["strategy"] =
                json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
        }
        set
    }

    /// The machines, which are also Nodes beside those of other cases.
    fn names(&self) -> [String; 2] {
        ["a", "b"].map(|name| format!("{}-{name}", self.world.namespace))
    }

    fn machine(&self, name: &str, id: &str, owner: Option<(&str, &str)>) -> Value {
        let mut machine = json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine", "metadata": self.metadata(name),
            "spec": {"providerID": id, "class": {"kind": "MachineClass", "name": "small"}},
        });
        if let Some(owner) = owner {
            machine["metadata"]["ownerReferences"] = owned_by(owner);
        }
        machine
    }

    fn metadata(&self, name: &str) -> Value {
        json!({"name": name, "namespace": self.world.namespace, "labels": {"name": "workers"}})
    }

    async fn apply(&self, objects: Vec<Value>) -> Result<()> {
        let mut uids = BTreeMap::new();
        for mut object in objects {
            // The garbage collector deletes objects whose owner does not exist.
            for owner in object["metadata"]["ownerReferences"]
                .as_array_mut()
                .into_iter()
                .flatten()
            {
                let uid: Option<&String> = uids.get(&(owner["kind"].to_string(), owner["name"].to_string()));
                owner["uid"] = json!(uid.context("an owner that was not made before")?);
            }
            let key = (object["kind"].to_string(), object["metadata"]["name"].to_string());
            let made = management_cluster::apply(&self.world.admin, object).await?;
            uids.insert(key, made.uid().context("no UID")?);
        }
        Ok(())
    }

    /// The Lease of machine-controller-manager, renewed at this time.
    async fn lease(&self, renewed: jiff::Timestamp) -> Result<()> {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": self.metadata("machine-controller"),
            "spec": {"holderIdentity": "mcm", "leaseDurationSeconds": 15,
            "renewTime": format!("{renewed:.6}")},
        });
        management_cluster::apply(&self.world.admin, lease).await?;
        Ok(())
    }

    fn command(&self, kubeconfig: &Path, flags: &[&str]) -> Result<Command> {
        let mut command = Command::new(testbed::program("capcmi")?);
        command
            .args(["migrate", "--cluster", "md", "--namespace", &self.world.namespace])
            .arg("--drivers-config")
            .arg(&self.drivers)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(flags);
        Ok(command)
    }

    /// Runs the command, and returns its output or its error.
    fn migrate(&self, flags: &[&str]) -> Result<Result<String, String>> {
        let output = self
            .command(self.world.management.admin_kubeconfig(), flags)?
            .output()?;
        Ok(printed(&output))
    }

    /// The names of all objects of Cluster API except the Cluster.
    fn made(&self) -> Result<String> {
        let kinds = "machine.cluster.x-k8s.io,machineset.cluster.x-k8s.io,\
            machinedeployment.cluster.x-k8s.io,inframachine,inframachinetemplate";
        self.world.kubectl(&["get", kinds, "-o", "name"])
    }
}

fn printed(output: &Output) -> Result<String, String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!("{:?}: {}", output.status.code(), text(&output.stderr)))
    }
}

fn owned_by((kind, name): (&str, &str)) -> Value {
    json!([{"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": kind, "name": name,
        "uid": "of-another-cluster", "controller": true}])
}

/// Installs the definitions of machine-controller-manager.
async fn definitions(world: &World) -> Result<()> {
    MachineControllerManager::install(&world.management).await?;
    eventually(DEADLINE, "the kinds of machine-controller-manager", async || {
        for kind in ["Machine", "MachineSet", "MachineDeployment", "MachineClass"] {
            objects(world, GROUP, "v1alpha1", kind)
                .list(&ListParams::default())
                .await?;
        }
        Ok(())
    })
    .await
}

/// A namespace with a MachineDeployment, whose two machines machine-controller-manager has created.
struct Run {
    left: Left,
    plugin: Plugin,
    manager: MachineControllerManager,
    vms: Vec<Vm>,
    _provider: Replica,
    _kubelets: HollowKubelet,
}

impl Run {
    async fn new(case: &str) -> Result<Self> {
        let (left, provider) = Left::new(case).await?;
        let plugin = Plugin::start(&left.world, "mcm", &left.cloud.config(guarded())).await?;
        let kubelets = left.world.kubelets(&left.cloud);
        let manager = left.manager(&plugin).await?;
        left.apply(left.class()).await?;
        left.apply(vec![left.set("MachineDeployment", "workers", None)])
            .await?;
        left.running(2).await?;
        let vms = left.cloud.holds(2).await?;
        Ok(Self {
            left,
            plugin,
            manager,
            vms,
            _provider: provider,
            _kubelets: kubelets,
        })
    }

    /// No VM was created, changed or deleted since the start.
    fn untouched(&self) -> Result<()> {
        let vms = self.left.cloud.vms()?;
        ensure!(vms == self.vms, "{vms:?}");
        self.left.only_creates(2)
    }
}

impl Left {
    async fn manager(&self, plugin: &Plugin) -> Result<MachineControllerManager> {
        let world = &self.world;
        MachineControllerManager::start(&world.management, &world.namespace, &plugin.endpoint()).await
    }

    /// Waits until machine-controller-manager has so many machines that run.
    async fn running(&self, count: usize) -> Result<()> {
        let machines = objects(&self.world, GROUP, "v1alpha1", "Machine");
        eventually(
            DEADLINE,
            "Running Machines of machine-controller-manager",
            async || {
                let all = machines.list(&ListParams::default()).await?.items;
                let phases: Vec<_> = all
                    .iter()
                    .map(|machine| machine.data["status"]["currentStatus"]["phase"].clone())
                    .collect();
                ensure!(
                    all.len() == count && phases.iter().all(|phase| phase == "Running"),
                    "{phases:?}"
                );
                Ok(())
            },
        )
        .await
    }

    /// So many VMs were ever made, and no other call may have changed one.
    fn only_creates(&self, made: usize) -> Result<()> {
        let calls = self.cloud.calls()?;
        let changes: Vec<_> = calls
            .iter()
            .filter(|call| call.phase == Phase::Started && call.operation.writes())
            .collect();
        let creates = changes
            .iter()
            .filter(|call| call.operation == Operation::CreateMachine);
        ensure!(creates.count() == made && changes.len() == made, "{changes:?}");
        Ok(())
    }

    /// All objects of machine-controller-manager, without what every write changes.
    fn theirs(&self) -> Result<Vec<Value>> {
        let kinds = ["machineclass", "machinedeployment", "machineset", "machine"]
            .map(|kind| format!("{kind}.{GROUP}"));
        let all = self.world.kubectl(&["get", &kinds.join(","), "-o", "json"])?;
        let mut all: Value = serde_json::from_str(&all)?;
        let mut items = all["items"].as_array_mut().context("no list")?.clone();
        for item in &mut items {
            let metadata = item["metadata"].as_object_mut().context("no metadata")?;
            metadata.remove("resourceVersion");
            metadata.remove("managedFields");
            // The API server leaves an empty object where the last annotation is taken away.
            if metadata.get("annotations").is_some_and(|all| *all == json!({})) {
                metadata.remove("annotations");
            }
        }
        Ok(items)
    }

    /// Runs the command without blocking other tasks.
    async fn run(&self, flags: &[&str]) -> Result<Result<String, String>> {
        let command = self.command(self.world.management.admin_kubeconfig(), flags)?;
        let output = tokio::process::Command::from(command).output().await?;
        Ok(printed(&output))
    }

    /// Runs the command as soon as the Leases of machine-controller-manager, which is stopped, are over.
    async fn when_leases_are_over(&self, flags: &[&str]) -> Result<String> {
        let flags: Vec<_> = flags
            .iter()
            .copied()
            .chain(["--machine-controller-manager-is-stopped"])
            .collect();
        let ended = eventually(DEADLINE, "the end of the Leases", async || {
            match self.run(&flags).await? {
                Err(error) if error.contains("held or changes") => bail!("{error}"),
                ended => Ok(ended),
            }
        });
        ended.await?.map_err(|error| anyhow!(error))
    }
}

/// CTL-06: what machine-controller-manager itself has made, there and back and there again. It finds its
/// machines as it has left them, and goes on with them. In the end nothing of it is left.
#[tokio::test]
async fn machines_migrate_to_cluster_api_and_back_and_again() -> Result<()> {
    let mut run = Run::new("migrate-back").await?;
    let said = ["--machine-controller-manager-is-stopped"];
    let held = run.left.run(&said).await?.err().context("it runs")?;
    ensure!(
        held.starts_with("Some(2)")
            && held.contains("machine-controller")
            && held.contains("held or changes"),
        "{held}"
    );
    run.manager.stop().await?;
    let before = run.left.theirs()?;
    run.left.when_leases_are_over(&[]).await?;
    let fleet = Fleet::of(&run.left.world, "md");
    fleet.running(2).await?;
    ensure!(run.left.theirs()? != before, "nothing is marked");

    let planned = run.left.run(&["--undo", "--dry-run"]).await?;
    let planned = planned.map_err(|error| anyhow!(error))?;
    for part in [
        "2 VMs are released",
        "delete   MachineDeployment workers",
        "delete   InfraMachineTemplate small",
        "Nothing was written",
    ] {
        ensure!(planned.contains(part), "no `{part}` in: {planned}");
    }
    let unknown = run.left.run(&["--undo"]).await?.err().context("it may run")?;
    ensure!(
        unknown.contains("--machine-controller-manager-is-stopped"),
        "{unknown}"
    );
    let undone = run.left.run(&["--undo", said[0]]).await?;
    undone.map_err(|error| anyhow!(error))?;
    ensure!(run.left.made()?.is_empty(), "{}", run.left.made()?);
    ensure!(run.left.theirs()? == before, "{:#?}", run.left.theirs()?);
    let again = run
        .left
        .run(&["--undo", said[0]])
        .await?
        .map_err(|error| anyhow!(error))?;
    ensure!(again.contains("nothing to undo"), "{again}");

    // It looks for orphans every second, by the class.
    let looks = |run: &Run| -> Result<usize> {
        let calls = run.left.cloud.calls()?;
        let lists = calls
            .iter()
            .filter(|call| call.operation == Operation::ListMachines);
        Ok(lists.count())
    };
    let looked = looks(&run)?;
    run.manager = run.left.manager(&run.plugin).await?;
    eventually(DEADLINE, "looks for orphans", async || {
        let more = looks(&run)? - looked;
        ensure!(more >= 6, "{more} starts and ends");
        Ok(())
    })
    .await?;
    run.left.running(2).await?;
    run.untouched()?;

    run.manager.stop().await?;
    run.left.when_leases_are_over(&[]).await?;
    fleet.running(2).await?;
    run.untouched()?;
    what_is_left_goes_without_the_vms_as_the_guide_says(run).await
}

/// After the steps in the guide, machine-controller-manager can return, and Nodes can be deleted. If a class
/// is left, machine-controller-manager deletes every VM.
async fn what_is_left_goes_without_the_vms_as_the_guide_says(mut run: Run) -> Result<()> {
    let held = |node: &Node| node.finalizers().iter().any(|own| own == NODE_FINALIZER);
    let workload = run.left.world.management.workload().await?;
    let all: Api<Node> = Api::all(workload.admin_client().await?);
    for vm in &run.vms {
        eventually(
            DEADLINE,
            "a finalizer of machine-controller-manager",
            async || {
                let node = all.get(&vm.name).await?;
                ensure!(held(&node), "{node:?}");
                Ok(())
            },
        )
        .await?;
    }
    let world = &run.left.world;
    let fleet = Fleet::of(world, "md");
    ensure!(
        fleet.nodes().await?.iter().all(held),
        "{:?}",
        fleet.nodes().await?
    );

    let to = format!("{}/md", world.namespace);
    let names = [
        ("from=shoot--garden--a", format!("from={}", world.namespace)),
        ("to=default/workers", format!("to={to}")),
        (
            "workers.kubeconfig",
            workload.admin_kubeconfig().display().to_string(),
        ),
    ];
    for script in scripts("## Remove the old objects")? {
        let mut script = script.clone();
        for (documented, own) in &names {
            script = script.replace(documented, own);
        }
        let mut shell = shell(world, &script)?;
        let output = shell.output().await?;
        printed(&output).map_err(|error| anyhow!("{error} of {script}"))?;
    }
    ensure!(run.left.theirs()?.is_empty(), "{:#?}", run.left.theirs()?);
    run.untouched()?;
    let nodes = fleet.nodes().await?;
    ensure!(nodes.len() == 2 && !nodes.iter().any(held), "{nodes:?}");

    run.manager = run.left.manager(&run.plugin).await?;
    let log = run.manager.machine_controller_log().to_owned();
    let looks = || -> Result<usize> {
        let log = std::fs::read_to_string(&log)?;
        Ok(log.matches("reconcileClusterMachineSafetyOrphanVMs: End").count())
    };
    let looked = looks()?;
    eventually(DEADLINE, "looks for orphans", async || {
        ensure!(looks()? >= looked + 3, "{} looks", looks()?);
        Ok(())
    })
    .await?;
    run.untouched()?;

    world.kubectl(&[
        "scale",
        "machinedeployment.cluster.x-k8s.io",
        "workers",
        "--replicas=1",
    ])?;
    fleet.running(1).await?;
    let [left] = run
        .left
        .cloud
        .holds(1)
        .await?
        .try_into()
        .map_err(|all| anyhow!("{all:?}"))?;
    for gone in run.vms.iter().filter(|vm| vm.name != left.name) {
        eventually(DEADLINE, "the end of a Node", async || {
            let node = all.get_opt(&gone.name).await?;
            ensure!(node.is_none(), "{node:?}");
            Ok(())
        })
        .await?;
    }

    run.left.apply(run.left.class()).await?;
    run.left.cloud.holds(0).await?;
    Ok(())
}

/// The finalizer that machine-controller-manager puts on Nodes.
const NODE_FINALIZER: &str = "node.machine.sapcloud.io/machine-controller";

/// The shell scripts of a section of the guide.
fn scripts(section: &str) -> Result<Vec<String>> {
    let guide = include_str!("../../docs/how-to/migrate-from-machine-controller-manager.md");
    let (_, rest) = guide
        .split_once(&format!("{section}\n"))
        .context("no such section")?;
    let section = rest.split("\n#").next().unwrap_or_default();
    let scripts: Vec<_> = section
        .split("```sh\n")
        .skip(1)
        .filter_map(|block| Some(block.split_once("```")?.0.to_owned()))
        .collect();
    ensure!(!scripts.is_empty(), "the section has no script");
    Ok(scripts)
}

/// bash with the kubectl of the management cluster.
fn shell(world: &World, script: &str) -> Result<tokio::process::Command> {
    let kubectl = &world.management.programs().kubectl;
    let own = kubectl.parent().context("no folder")?.to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(own).chain(std::env::split_paths(&path)))?;
    let mut shell = tokio::process::Command::new("bash");
    shell
        .arg("-c")
        .arg(script)
        .env("PATH", path)
        .env("KUBECONFIG", world.management.admin_kubeconfig());
    Ok(shell)
}

/// CTL-06: the command is killed after each write, and run again. In the end all objects of the migration are
/// gone and all VMs exist. No other migration can start before that.
#[tokio::test]
async fn the_way_back_that_is_cut_off_after_every_write_is_taken_up_again() -> Result<()> {
    let (left, _provider) = Left::new("undo-cut").await?;
    let _kubelets = left.world.kubelets(&left.cloud);
    let mut all = left.deployment()?;
    let alone = format!("{}-alone", left.world.namespace);
    all.push(left.machine(&alone, &left.plant(&alone)?, None));
    left.apply(all).await?;
    let (vms, before) = (left.cloud.holds(3).await?, left.theirs()?);
    let stopped = ["--machine-controller-manager-is-stopped"];
    left.run(&stopped).await?.map_err(|error| anyhow!(error))?;
    let fleet = Fleet::of(&left.world, "md");
    fleet.running(3).await?;

    let (proxy, next) = Writes::watched(&left).await?;
    let kubeconfig = proxy.kubeconfig(left.world.management.admin_kubeconfig())?;
    let (mut cut, mut refused) = (0, 0);
    let flags = ["--undo", stopped[0]];
    while next.is_cut_off(left.command(&kubeconfig, &flags)?).await? {
        cut += 1;
        ensure!(cut < 60, "it never ends");
        let is_unmarked = left.theirs()? == before;
        match left.run(&[stopped[0], "--dry-run"]).await? {
            Err(error) if error.contains("unfinished --undo") => refused += 1,
            // After the last object of a class, no mark of the migration is left.
            Ok(planned) => ensure!(is_unmarked || planned.contains("create"), "{planned}"),
            Err(other) => bail!("{other}"),
        }
    }
    ensure!(
        cut >= 20 && refused >= 10,
        "{cut} writes were cut off, {refused} migrations refused"
    );
    ensure!(left.made()?.is_empty(), "{}", left.made()?);
    ensure!(left.theirs()? == before, "{:#?}", left.theirs()?);
    ensure!(left.cloud.vms()? == vms, "{:?}", left.cloud.vms()?);
    left.only_creates(0)?;

    left.run(&stopped).await?.map_err(|error| anyhow!(error))?;
    fleet.running(3).await?;
    ensure!(left.cloud.vms()? == vms, "{:?}", left.cloud.vms()?);
    left.only_creates(0)
}

/// CTL-06: nothing is undone where machine-controller-manager would lose a VM, or have another than it knows.
#[tokio::test]
async fn nothing_is_undone_where_a_machine_is_not_as_the_migration_has_left_it() -> Result<()> {
    let (left, _provider) = Left::new("undo-not").await?;
    let _kubelets = left.world.kubelets(&left.cloud);
    left.apply(left.deployment()?).await?;
    let stopped = "--machine-controller-manager-is-stopped";
    left.run(&[stopped]).await?.map_err(|error| anyhow!(error))?;
    let fleet = Fleet::of(&left.world, "md");
    fleet.running(2).await?;
    let [first, second] = left.names();
    let infra = |name: &str| format!("inframachine/{name}");

    let undo = async || {
        let before = versions(&left.world)?;
        let refused = left.run(&["--undo", stopped]).await?.err();
        let refused = refused.context("it was undone")?;
        ensure!(
            refused.starts_with("Some(2)") && refused.contains("nothing was undone"),
            "{refused}"
        );
        ensure!(versions(&left.world)? == before, "something was written");
        untouched(&left.world)?;
        Ok(refused)
    };
    let patch = |patch: &Value| {
        let patch = patch.to_string();
        left.world
            .kubectl(&["patch", &infra(&first), "--type=merge", "-p", &patch])
    };
    // A pause keeps the VM unchanged.
    patch(&json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": ""}}}))?;
    patch(&json!({"spec": {"providerSpec": {"tags": {"worker": "2"}}}}))?;
    let changed = undo().await?;
    ensure!(
        changed.contains(&format!("InfraMachine {first}: spec.providerSpec is"))
            && changed.contains(&format!("InfraMachine {first} is paused")),
        "{changed}"
    );
    patch(&json!({"spec": {"providerSpec": {"tags": {"worker": "1"}}}}))?;
    patch(&json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": null}}}))?;

    left.world.kubectl(&[
        "delete",
        "machine.machine.sapcloud.io",
        &second,
        "--cascade=orphan",
    ])?;
    let unknown = undo().await?;
    ensure!(
        unknown.contains(&format!("for InfraMachine {second} does not exist")),
        "{unknown}"
    );

    left.world.kubectl(&[
        "scale",
        "machinedeployment.cluster.x-k8s.io",
        "workers",
        "--replicas=3",
    ])?;
    fleet.running(3).await?;
    let later = undo().await?;
    ensure!(
        later.contains("Cluster API created Machine workers-migrated-"),
        "{later}"
    );

    let vms = left.cloud.vms()?;
    let vm = vms.iter().find(|vm| vm.name == first).context("no VM")?;
    let vanished = left.cloud.console()?.vanish(vm.id);
    vanished.map_err(|status| anyhow!("{status}"))?;
    let gone = undo().await?;
    ensure!(
        gone.contains(&format!("does not find the VM of Machine {first}")),
        "{gone}"
    );
    Ok(())
}

/// CTL-06: with a MachineDeployment the garbage collector deletes its Machines, and core their VMs: also
/// those of one that had none at the migration. And marks alone are no proof that this is the right
/// management cluster.
#[tokio::test]
async fn undo_refuses_later_machines_and_an_empty_management_cluster() -> Result<()> {
    let (left, _provider) = Left::new("undo-empty").await?;
    let _kubelets = left.world.kubelets(&left.cloud);
    let mut all = left.class();
    let mut empty = left.set("MachineDeployment", "empty", None);
    empty["spec"]["replicas"] = json!(0);
    all.push(empty);
    left.apply(all).await?;
    let stopped = "--machine-controller-manager-is-stopped";
    left.run(&[stopped]).await?.map_err(|error| anyhow!(error))?;
    let deployment = "machinedeployment.cluster.x-k8s.io";
    left.world
        .kubectl(&["scale", deployment, "empty", "--replicas=1"])?;
    let fleet = Fleet::of(&left.world, "md");
    fleet.running(1).await?;
    let vms = left.cloud.holds(1).await?;
    let undo = async || {
        let refused = left.run(&["--undo", stopped]).await?.err();
        untouched(&left.world)?;
        refused.context("it was undone")
    };
    let later = undo().await?;
    ensure!(
        later.contains("Cluster API created Machine empty-migrated-"),
        "{later}"
    );
    ensure!(left.cloud.vms()? == vms, "{:?}", left.cloud.vms()?);

    left.world
        .kubectl(&["delete", deployment, "empty", "--wait=false"])?;
    fleet.gone().await?;
    let said =
        "MachineDeployment empty is marked as migrated, but nothing of it exists in this management cluster";
    eventually(DEADLINE, "the end of the MachineDeployment", async || {
        let elsewhere = undo().await?;
        ensure!(elsewhere.contains(said), "{elsewhere}");
        Ok(())
    })
    .await
}

/// Nothing of Cluster API says that it is being undone, or is to go without its VM.
fn untouched(world: &World) -> Result<()> {
    let kinds = "inframachine,machine.cluster.x-k8s.io,machineset.cluster.x-k8s.io,\
        machinedeployment.cluster.x-k8s.io";
    let all = world.kubectl(&["get", kinds, "-o", "json"])?;
    for mark in [UNDOING, annotations::FORCE_DELETE] {
        ensure!(!all.contains(mark), "{mark} in {all}");
    }
    Ok(())
}

/// Cuts a command off after its next write.
struct Writes(Arc<Mutex<Option<Gate>>>);

impl Writes {
    /// A way to the API server that is cut off.
    async fn watched(left: &Left) -> Result<(Proxy, Self)> {
        let next: Arc<Mutex<Option<Gate>>> = Arc::default();
        let hook = {
            let next = Arc::clone(&next);
            move |request: &ProxiedRequest| {
                if request.write.is_none() {
                    return Fault::None;
                }
                let gate = next.lock().unwrap_or_else(PoisonError::into_inner).take();
                gate.map_or(Fault::None, Fault::HoldAfter)
            }
        };
        let proxy = Proxy::start(&left.world.management, hook).await?;
        Ok((proxy, Self(next)))
    }

    /// Runs a command and kills it when its next write is done. Whether it had one; if not, it has succeeded.
    async fn is_cut_off(&self, command: Command) -> Result<bool> {
        let gate = Gate::new();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(gate.clone());
        let mut process = tokio::process::Command::from(command)
            .kill_on_drop(true)
            .spawn()?;
        tokio::select! {
            () = gate.reached() => {
                process.kill().await?;
                Ok(true)
            }
            ended = process.wait() => {
                ensure!(ended?.success(), "the command has failed");
                Ok(false)
            }
        }
    }
}

/// CTL-06: the whole way, by the objects in a cluster.
#[tokio::test]
async fn a_foreign_machine_deployment_migrates_with_its_vms() -> Result<()> {
    let (left, _provider) = Left::new("migrate").await?;
    let _kubelets = left.world.kubelets(&left.cloud);
    left.apply(left.deployment()?).await?;
    let vms = left.cloud.holds(2).await?;

    warns_of_a_health_check(&left).await?;
    let planned = left.migrate(&["--dry-run"])?.map_err(|error| anyhow!(error))?;
    let [first, _] = left.names();
    for part in [
        "2 VMs are adopted",
        &format!("create   InfraMachine {first}: adopts"),
        "create   MachineDeployment workers: 2 replicas",
        "Nothing was written",
    ] {
        ensure!(planned.contains(part), "no `{part}` in: {planned}");
    }
    ensure!(left.made()?.is_empty(), "a dry run made {}", left.made()?);

    let unknown = left
        .migrate(&[])?
        .err()
        .context("nothing shows that the other controller is stopped")?;
    ensure!(
        unknown.contains("--machine-controller-manager-is-stopped"),
        "{unknown}"
    );
    left.lease(jiff::Timestamp::now()).await?;
    let running = left.migrate(&["--machine-controller-manager-is-stopped"])?;
    let running = running.err().context("the other controller runs")?;
    ensure!(
        running.starts_with("Some(2)") && running.contains("machine-controller"),
        "{running}"
    );
    ensure!(left.made()?.is_empty(), "{}", left.made()?);

    refuses_a_lease_that_is_renewed_or_is_over(&left).await?;
    ensure!(left.made()?.is_empty(), "{}", left.made()?);

    left.migrate(&["--machine-controller-manager-is-stopped"])?
        .map_err(|error| anyhow!(error))?;
    let fleet = Fleet::of(&left.world, "md");
    fleet.running(2).await?;
    ensure!(left.cloud.vms()? == vms, "{:?}", left.cloud.vms()?);
    has_the_credentials_of_the_class(&left).await?;
    let before = versions(&left.world)?;
    let again = left.migrate(&[])?.map_err(|error| anyhow!(error))?;
    ensure!(again.contains("Everything was already migrated"), "{again}");
    ensure!(versions(&left.world)? == before, "the second run wrote something");
    for (kind, name) in [
        ("machine", first.as_str()),
        ("machineclass", "small"),
        ("machinedeployment", "workers"),
    ] {
        let kind = format!("{kind}.{GROUP}");
        let marked = left
            .world
            .kubectl(&["get", &kind, name, "-o", "jsonpath={.metadata.annotations}"])?;
        ensure!(marked.contains("migrated-to"), "{kind} {name}: {marked}");
    }

    refuses_a_machine_that_comes_later(&left).await?;

    // It is a MachineDeployment like any other, and was not rolled.
    let names = |vms: &[cmi_simulated::Vm]| vms.iter().map(|vm| vm.name.clone()).collect::<Vec<_>>();
    left.world.kubectl(&[
        "scale",
        "machinedeployment.cluster.x-k8s.io",
        "workers",
        "--replicas=3",
    ])?;
    fleet.running(3).await?;
    let grown = left.cloud.holds(3).await?;
    ensure!(
        names(&vms).iter().all(|name| names(&grown).contains(name)),
        "{grown:?}"
    );
    left.world.kubectl(&[
        "delete",
        "machinedeployment.cluster.x-k8s.io",
        "workers",
        "--wait=false",
    ])?;
    fleet.gone().await?;
    left.cloud.holds(0).await?;
    makes_nothing_again(&left).await
}

/// A MachineHealthCheck would look at Machines before their VMs are adopted: the plan names it until it is
/// paused, as the plan says.
async fn warns_of_a_health_check(left: &Left) -> Result<()> {
    left.world
        .apply(
            r"
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineHealthCheck
metadata: {name: check, namespace: $NS}
spec:
  clusterName: md
  selector: {matchLabels: {cluster.x-k8s.io/deployment-name: workers}}
  checks:
    unhealthyNodeConditions:
    - {type: Ready, status: Unknown, timeoutSeconds: 300}
",
        )
        .await?;
    let planned = left.migrate(&["--dry-run"])?.map_err(|error| anyhow!(error))?;
    let said = format!(
        "kubectl annotate machinehealthcheck --namespace {} check cluster.x-k8s.io/paused=",
        left.world.namespace
    );
    ensure!(
        planned.contains("MachineHealthCheck check selects Machines of this migration (2)")
            && planned.contains(&said),
        "{planned}"
    );
    let pause = [
        "annotate",
        "machinehealthcheck",
        "check",
        "cluster.x-k8s.io/paused=",
    ];
    left.world.kubectl(&pause)?;
    let planned = left.migrate(&["--dry-run"])?.map_err(|error| anyhow!(error))?;
    ensure!(!planned.contains("MachineHealthCheck"), "{planned}");
    Ok(())
}

/// The Secret of the class was copied, the bootstrap data apart from the credentials, and the machines are
/// made with these: the back end refuses calls without them.
async fn has_the_credentials_of_the_class(left: &Left) -> Result<()> {
    let secrets = Api::<Secret>::namespaced(left.world.admin.clone(), &left.world.namespace);
    let data = secrets.get("small-credentials").await?.data.unwrap_or_default();
    ensure!(
        data.len() == 1 && data["token"].0 == TOKEN.as_bytes(),
        "{:?}",
        data.keys()
    );
    for machine in Fleet::of(&left.world, "md").infra_machines().await? {
        let named = machine.spec.secret_ref.context("no credentials are named")?;
        ensure!(named.name == "small-credentials", "{named:?}");
    }
    Ok(())
}

/// Nothing proves that the other controller is stopped, and a Lease may say that it is not.
async fn refuses_a_lease_that_is_renewed_or_is_over(left: &Left) -> Result<()> {
    // Renewed by a clock that is behind.
    let behind = || jiff::Timestamp::now() - std::time::Duration::from_mins(2);
    let renewing = async {
        let mut ticks = tokio::time::interval(std::time::Duration::from_millis(500));
        loop {
            ticks.tick().await;
            if let Err(error) = left.lease(behind()).await {
                return error;
            }
        }
    };
    left.lease(behind()).await?;
    let admin = left.world.management.admin_kubeconfig();
    let command = left.command(admin, &["--machine-controller-manager-is-stopped"])?;
    let mut command = tokio::process::Command::from(command);
    let renewed = tokio::select! {
        error = renewing => return Err(error),
        output = command.output() => printed(&output?),
    };
    let renewed = renewed.err().context("the Lease is renewed")?;
    ensure!(
        renewed.starts_with("Some(2)") && renewed.contains("held or changes"),
        "{renewed}"
    );

    left.lease(behind()).await?;
    let unsaid = left.migrate(&[])?.err();
    let unsaid = unsaid.context("a Lease that is over proves nothing")?;
    ensure!(
        unsaid.contains("--machine-controller-manager-is-stopped"),
        "{unsaid}"
    );
    Ok(())
}

/// It is neither left out silently nor marked.
async fn refuses_a_machine_that_comes_later(left: &Left) -> Result<()> {
    let uid = "jsonpath={.metadata.uid}";
    let uid = left
        .world
        .kubectl(&["get", "machineset.machine.sapcloud.io", "workers-1", "-o", uid])?;
    let mut late = left.machine("late", "simulated://late", Some(("MachineSet", "workers-1")));
    late["metadata"]["ownerReferences"][0]["uid"] = json!(uid.trim());
    management_cluster::apply(&left.world.admin, late).await?;
    let came = left
        .migrate(&["--machine-controller-manager-is-stopped"])?
        .err()
        .context("a machine came later")?;
    ensure!(
        came.contains("ran after the migration") && came.contains("late"),
        "{came}"
    );
    left.world
        .kubectl(&["delete", "machine.machine.sapcloud.io", "late"])?;
    Ok(())
}

/// A MachineDeployment that was deleted is not made again.
async fn makes_nothing_again(left: &Left) -> Result<()> {
    let is_gone = || {
        let made = left.made()?;
        let mut rest = made
            .lines()
            .filter(|name| !name.starts_with("inframachinetemplate"));
        ensure!(rest.next().is_none(), "{made}");
        Ok(())
    };
    eventually(DEADLINE, "all but the template is gone", async || is_gone()).await?;
    let ended = left.migrate(&["--machine-controller-manager-is-stopped"])?;
    let ended = ended.map_err(|error| anyhow!(error))?;
    ensure!(ended.contains("Everything was already migrated"), "{ended}");
    is_gone()
}

/// Kind, name and resource version of all that a run may write, and that no controller goes on writing.
fn versions(world: &World) -> Result<String> {
    let kinds = "inframachinetemplate,secret,machineclass.machine.sapcloud.io,machine.machine.sapcloud.io,\
        machinedeployment.machine.sapcloud.io,machineset.machine.sapcloud.io";
    let columns = "jsonpath={range .items[*]}{.kind}/{.metadata.name}={.metadata.resourceVersion} {end}";
    world.kubectl(&["get", kinds, "-o", columns])
}

/// CTL-06: the command is killed after each write, and run again. It ends as an undisturbed run does, and no
/// machine is created or deleted. A run with other templates for existing objects is refused.
#[tokio::test]
async fn a_migration_that_is_cut_off_after_every_write_is_taken_up_again() -> Result<()> {
    let (left, _provider) = Left::new("migrate-cut").await?;
    let _kubelets = left.world.kubelets(&left.cloud);
    let mut all = left.deployment()?;
    let empty = all.iter().find(|object| object["kind"] == "MachineDeployment");
    let mut empty = empty.context("no MachineDeployment")?.clone();
    empty["metadata"]["name"] = json!("empty");
    empty["spec"]["replicas"] = json!(0);
    all.push(empty);
    left.apply(all).await?;
    let vms = left.cloud.holds(2).await?;
    let (proxy, next) = Writes::watched(&left).await?;
    let kubeconfig = proxy.kubeconfig(left.world.management.admin_kubeconfig())?;
    let (mut cut, mut refused) = (0, 0);
    let flags = ["--machine-controller-manager-is-stopped"];
    while next.is_cut_off(left.command(&kubeconfig, &flags)?).await? {
        cut += 1;
        ensure!(cut < 40, "it never ends");
        if refused == 0
            && left
                .made()?
                .contains("machinedeployment.cluster.x-k8s.io/workers")
        {
            let flags = [
                "--machine-controller-manager-is-stopped",
                "--bootstrap-secret=other",
            ];
            let other = left.migrate(&flags)?.err().context("other bootstrap data")?;
            ensure!(
                other.contains("MachineDeployment workers") && other.contains("dataSecretName"),
                "{other}"
            );
            refused += 1;
        }
    }
    ensure!(cut >= 10, "only {cut} writes were cut off");
    ensure!(refused == 1, "no MachineDeployment was seen");
    let sets = left
        .world
        .kubectl(&["get", "machineset.cluster.x-k8s.io", "-o", "name"])?;
    ensure!(
        sets.lines().count() == 2 && sets.contains("/empty-migrated"),
        "a MachineDeployment made a MachineSet of its own: {sets}"
    );
    Fleet::of(&left.world, "md").running(2).await?;
    ensure!(left.cloud.vms()? == vms, "{:?}", left.cloud.vms()?);
    let calls = left.cloud.calls()?;
    let changes = calls.iter().filter(|call| {
        matches!(
            call.operation,
            Operation::CreateMachine | Operation::DeleteMachine
        )
    });
    ensure!(changes.count() == 0, "{calls:?}");
    Ok(())
}

/// CTL-06: cut off when the MachineSet is there, moved by clusterctl, and run again at the target, with the
/// old objects where they were left: it ends as if neither had happened.
#[tokio::test]
async fn an_interrupted_migration_continues_after_a_move_by_clusterctl() -> Result<()> {
    let (left, _provider) = Left::new("migrate-move").await?;
    let source = &left.world;
    let target = source.move_target().await?;
    let at_target = Provider::new(left.cloud.drivers(json!({}))).named("target");
    let _at_target = at_target.start(&target).await?;
    let _control_planes = StandInController::start(&target.management).await?;
    let _kubelets = left.world.kubelets(&left.cloud);
    left.apply(left.deployment()?).await?;
    let vms = left.cloud.holds(2).await?;
    let (proxy, next) = Writes::watched(&left).await?;
    let kubeconfig = proxy.kubeconfig(source.management.admin_kubeconfig())?;
    let flags = ["--machine-controller-manager-is-stopped"];
    let set = "machineset.cluster.x-k8s.io/workers-migrated";
    while !left.made()?.contains(set) {
        let is_cut_off = next.is_cut_off(left.command(&kubeconfig, &flags)?).await?;
        ensure!(is_cut_off, "it has ended without the MachineSet");
    }
    Fleet::of(source, "md").running(2).await?;
    source.move_to(&target)?;

    let from = source.management.admin_kubeconfig().display();
    let output = left
        .command(target.management.admin_kubeconfig(), &flags)?
        .arg(format!("--from-kubeconfig={from}"))
        .arg(format!("--from-namespace={}", source.namespace))
        .output()?;
    printed(&output).map_err(|error| anyhow!(error))?;
    let moved = Fleet::of(&target, "md");
    moved.running(2).await?;
    ensure!(left.cloud.vms()? == vms, "{:?}", left.cloud.vms()?);
    for machine in &vms {
        let calls = left.cloud.calls_for(&machine.name)?;
        let changes = calls
            .iter()
            .filter(|call| call.operation != Operation::GetMachineStatus);
        ensure!(changes.count() == 0, "{calls:?}");
    }
    let sets = target.kubectl(&["get", "machineset.cluster.x-k8s.io", "-o", "name"])?;
    ensure!(sets.trim() == set, "{sets}");
    target.kubectl(&[
        "scale",
        "machinedeployment.cluster.x-k8s.io",
        "workers",
        "--replicas=3",
    ])?;
    moved.running(3).await?;
    left.cloud.holds(3).await.map(drop)
}

/// CTL-06, CTL-MG-00..CTL-MG-13: files with a class of the driver's own kind, a MachineSet, and a Machine
/// without an owner.
#[tokio::test]
async fn files_with_a_driver_specific_class_migrate_without_a_deployment() -> Result<()> {
    let (left, _provider) = Left::new("migrate-files").await?;
    let _kubelets = left.world.kubelets(&left.cloud);
    let mut all = left.deployment()?;
    all.retain(|object| object["kind"] != "MachineDeployment");
    let alone = format!("{}-alone", left.world.namespace);
    let alone = left.machine(&alone, &left.plant(&alone)?, None);
    all.push(alone);
    for object in &mut all {
        match object["kind"].as_str() {
            Some("MachineClass") => {
                *object = json!({
                    "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "SimulatedMachineClass",
                    "metadata": object["metadata"],
                    "spec": {
                        "pool": "default", "size": "small", "tags": object["providerSpec"]["tags"],
                        "secretRef": object["secretRef"],
                    },
                });
            }
            Some("MachineSet") => {
                object["metadata"]["ownerReferences"] = json!([]);
                object["spec"]["template"]["spec"]["class"]["kind"] = json!("SimulatedMachineClass");
            }
            Some("Machine") => object["spec"]["class"]["kind"] = json!("SimulatedMachineClass"),
            _ => {}
        }
    }
    let vms = left.cloud.holds(3).await?;
    let file = left.world.folder.join("mcm.json");
    let broken = json!({"apiVersion": "v1", "kind": "List", "items": all[1..]});
    std::fs::write(&file, broken.to_string())?;
    let flags = [
        "-f",
        &file.to_string_lossy(),
        "--machine-controller-manager-is-stopped",
    ];
    let incomplete = left.migrate(&flags)?.err().context("a Secret is missing")?;
    ensure!(
        incomplete.contains("SimulatedMachineClass small")
            && incomplete.contains("/cloud, which does not exist"),
        "{incomplete}"
    );
    ensure!(left.made()?.is_empty(), "{}", left.made()?);

    std::fs::write(
        &file,
        json!({"apiVersion": "v1", "kind": "List", "items": all}).to_string(),
    )?;
    let mut without = guarded();
    without["disabledCalls"] = json!(["ListZones", "GenerateMachineClassForMigration"]);
    std::fs::write(&left.drivers, left.cloud.drivers(without))?;
    let not_offered = left.migrate(&flags)?.err().context("it was not converted")?;
    ensure!(
        not_offered.contains("does not implement GenerateMachineClassForMigration"),
        "{not_offered}"
    );
    let backed = Backing::Plugin.of(&left.world, &left.cloud, guarded()).await?;
    std::fs::write(&left.drivers, &backed.drivers)?;
    left.cloud
        .fail(json!([{"operation": "GenerateMachineClassForMigration", "code": "Internal"}]))?;
    let failed = left.migrate(&flags)?.err().context("it was not converted")?;
    ensure!(
        failed.contains("cannot convert SimulatedMachineClass small"),
        "{failed}"
    );
    let mut failures = left.cloud.calls()?;
    failures.retain(|call| call.code.as_deref() == Some("Internal"));
    ensure!(failures.len() == 1, "the conversion was repeated: {failures:?}");
    ensure!(left.made()?.is_empty(), "{}", left.made()?);
    left.cloud.fail(json!([]))?;
    left.migrate(&flags)?.map_err(|error| anyhow!(error))?;
    let fleet = Fleet::of(&left.world, "md");
    fleet.running(3).await?;
    ensure!(left.cloud.vms()? == vms, "{:?}", left.cloud.vms()?);
    let again = left.migrate(&flags)?.map_err(|error| anyhow!(error))?;
    ensure!(again.contains("Everything was already migrated"), "{again}");
    let sets = objects(&left.world, "cluster.x-k8s.io", "v1beta2", "MachineSet");
    let set = sets.get("workers-1").await?;
    ensure!(
        !set.annotations()
            .contains_key("cluster.x-k8s.io/disable-machine-create"),
        "it makes no Machine for ever: {:?}",
        set.annotations()
    );
    left.world.kubectl(&[
        "scale",
        "machineset.cluster.x-k8s.io",
        "workers-1",
        "--replicas=3",
    ])?;
    fleet.running(4).await?;
    left.cloud.holds(4).await?;
    Ok(())
}
