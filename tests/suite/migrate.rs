//! Migrations from machine-controller-manager to Cluster API and back, with the real ones. `tests/world` has
//! the rules.
//!
//! The tests use its Go module: the definitions, the controllers of MachineDeployments and MachineSets, and
//! the machine controller. The machine controller calls the simulated driver over CMI.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, bail, ensure};
use cmi_driver::Operation;
use cmi_simulated::{Phase, Vm};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use management_cluster::eventually;
use management_cluster::hollow_kubelet::HollowKubelet;
use management_cluster::machine_controller_manager::MachineControllerManager;
use management_cluster::proxy::{Fault, Gate, ProxiedRequest, Proxy};
use management_cluster::stand_in::StandInController;
use serde_json::{Value, json};

use crate::support::fleet::objects;
use crate::support::mcm_objects::{GROUP, McmObjects, guarded};
use crate::support::plugin::Plugin;
use crate::support::provider::Replica;
use crate::support::{Cloud, DEADLINE, Fleet, Provider, World};

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

    /// Makes the objects and VMs that it left.
    fn objects(&self) -> McmObjects<'_> {
        McmObjects {
            world: &self.world,
            cloud: &self.cloud,
            user_data: &self.user_data,
        }
    }

    /// The machines, which are also Nodes beside those of other cases.
    fn names(&self) -> [String; 2] {
        ["a", "b"].map(|name| format!("{}-{name}", self.world.namespace))
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
        let objects = left.objects();
        objects.apply(objects.class()).await?;
        objects
            .apply(vec![objects.set("MachineDeployment", "workers", None)])
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

    run.left.objects().apply(run.left.objects().class()).await?;
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

/// CTL-06: cut off when the MachineSet is there, moved by clusterctl, and run again at the target, with the
/// old objects where they were left: it ends as if neither had happened. A Machine without an owner is
/// migrated as well.
#[tokio::test]
async fn an_interrupted_migration_continues_after_a_move_by_clusterctl() -> Result<()> {
    let (left, _provider) = Left::new("migrate-move").await?;
    let source = &left.world;
    let target = source.move_target().await?;
    let at_target = Provider::new(left.cloud.drivers(json!({}))).named("target");
    let _at_target = at_target.start(&target).await?;
    let _control_planes = StandInController::start(&target.management).await?;
    let _kubelets = left.world.kubelets(&left.cloud);
    let objects = left.objects();
    let mut all = objects.deployment(&left.names())?;
    let alone = format!("{}-alone", source.namespace);
    all.push(objects.machine(&alone, &objects.plant(&alone)?, None));
    objects.apply(all).await?;
    let vms = left.cloud.holds(3).await?;
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
    moved.running(3).await?;
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
    moved.running(4).await?;
    left.cloud.holds(4).await.map(drop)
}
