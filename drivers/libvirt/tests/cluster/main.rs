//! A whole Cluster of VMs, made by the commands of the tutorial: `make e2e-libvirt`.

// A failure of the lab ends the test.
#![allow(clippy::unwrap_used, clippy::panic)]

mod host;
#[path = "../lab/mod.rs"]
mod lab;
mod tutorial;
mod virtualization;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use capcmi::api::v1alpha1::InfraMachine;
use host::{HOST, NodeImage};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use lab::Lab;
use lab::record::Record;
use management_cluster::kubeadm::KubeadmProviders;
use management_cluster::node::is_ready;
use management_cluster::{KUBERNETES_VERSION, ManagementCluster, eventually};
use testbed::Launch;
use testbed::whole_cluster::cluster::{Cluster, Member, Wanted};
use testbed::whole_cluster::sandbox::{self, output};
use testbed::whole_cluster::steps::Steps;
use testbed::whole_cluster::workload::Workload;
use tokio::runtime::Runtime;
use tutorial::{TUTORIAL, Terminal, blocks};
use virtualization::Virtualization;

/// The taint that a worker registers with until its VM is initialized.
const TAINT: &str = "node.machine.sapcloud.io/instance-not-ready";
/// The namespace of a kubeconfig without another one.
const NAMESPACE: &str = "default";
/// The Cluster of the tutorial.
const WHOLE: Wanted<'_> = Wanted {
    version: KUBERNETES_VERSION,
    control_planes: 1,
    workers: 1,
    without: None,
};
/// How long steps without a guest may take.
const SOON: Duration = Duration::from_mins(5);

/// DRV-13, DRV-14, INI-02: guests read their bootstrap data, and join as the promised Nodes. When a Machine
/// is deleted, its Node is drained. When the Cluster is deleted, nothing is left.
#[test]
#[ignore = "boots two VMs with Kubernetes, which takes minutes: make e2e-libvirt"]
fn the_tutorial_makes_and_deletes_a_cluster_of_vms() -> Result<()> {
    let name = "the_tutorial_makes_and_deletes_a_cluster_of_vms";
    sandbox::enter(name, prepare, |_| Ok(()), live)
}

/// Shows without VMs that the test finds its commands.
#[test]
fn the_tutorial_has_the_commands_of_the_test() -> Result<()> {
    for (section, count) in [
        ("Start the driver", 1),
        ("Create the Cluster", 2),
        ("Add a Pod network", 1),
        ("Delete it", 1),
    ] {
        let found = blocks(TUTORIAL, section, "sh")?.len();
        ensure!(found == count, "{section} has {found} blocks of commands");
    }
    let drivers = host::drivers()?;
    ensure!(drivers.contains("/etc/capcmi-driver/tls.crt"), "{drivers}");
    Ok(())
}

/// Builds everything that needs the network. Returns the folder of node images, where whole clusters of
/// other drivers run as well: a computer may be too small for two.
fn prepare() -> Result<PathBuf> {
    testbed::program("capcmi-manager")?;
    Runtime::new()?.block_on(KubeadmProviders::build())?;
    lab::guest()?;
    let image = NodeImage::build()?;
    image.check()?;
    // IMAGES/DIGEST/VERSION/disk.qcow2
    let folder = image.disk.ancestors().nth(3).map(Path::to_owned);
    folder.context("the image is in no folder")
}

async fn live(folder: &Path) -> Result<()> {
    let mut steps = Steps::start();
    let Some(lab) = lab::lab_of(&[HOST]).await? else {
        return Ok(());
    };
    host::connect(&lab)?;
    let virtualization = Virtualization::find(&lab::guest()?)?;
    let before = traces(&lab)?;
    steps.done(&format!("the host runs, with {virtualization:?}"));

    let management = ManagementCluster::builder()
        .manifests(testbed::definitions()?)
        .start()
        .await?;
    let lived = live_with(&lab, &management, folder, virtualization, &mut steps).await;
    lived.map_err(|error| {
        management.folder().keep();
        error.context(host::consoles(&lab))
    })?;
    ensure!(traces(&lab)? == before, "{:#?} are left", traces(&lab)?);
    steps.done("nothing is left");
    Ok(())
}

async fn live_with(
    lab: &Lab,
    management: &ManagementCluster,
    folder: &Path,
    virtualization: Virtualization,
    steps: &mut Steps,
) -> Result<()> {
    testbed::install(management).await?;
    let deadline = virtualization.deadline();
    let terminal = Terminal::open(management, folder, virtualization.variables(), deadline)?;
    let _driver = host::start_driver(management, &terminal, lab, folder, virtualization).await?;
    let shown = terminal
        .run(&blocks(TUTORIAL, "Start the driver", "sh")?[0])
        .await?;
    let is_ready = |line: &str| line.split_whitespace().eq(["ready", "yes"]);
    ensure!(shown.lines().any(is_ready), "the driver is not ready");
    let _kubeadm = KubeadmProviders::start(management, NAMESPACE).await?;
    let launch = Launch {
        binary: testbed::program("capcmi-manager")?,
        name: "provider".to_owned(),
        drivers: host::write_drivers(folder)?,
        kubeconfig: testbed::service_account(management).await?,
        flags: vec!["--insecure-diagnostics".to_owned()],
    };
    let mut provider = launch.start(management)?;
    provider.ready(SOON).await?;
    let kubectl = &management.programs().kubectl;
    output(&mut testbed::make_release(&folder.join("out"), "v0.1.0", kubectl))?;
    steps.done("management cluster, provider and driver run");

    let cluster = Cluster::new(management, NAMESPACE, deadline).await?;
    let lived = live_in(lab, &cluster, &terminal, virtualization, steps).await;
    lived.map_err(|error| error.context(cluster.describe()))
}

async fn live_in(
    lab: &Lab,
    cluster: &Cluster<'_>,
    terminal: &Terminal,
    virtualization: Virtualization,
    steps: &mut Steps,
) -> Result<()> {
    let creation = blocks(TUTORIAL, "Create the Cluster", "sh")?;
    let (generate, apply) = creation.split_first().context("no commands")?;
    terminal.run(generate).await?;
    change_manifest(terminal, virtualization).await?;
    for commands in apply {
        terminal.run(commands).await?;
    }
    let started = Instant::now();
    let workload = cluster.workload().await?;
    steps.done("the API server answers on the VIP");
    let lived = live_on(cluster, &workload, terminal, started, steps).await;
    lived.map_err(|error| error.context(workload.describe()))?;

    terminal.run(&blocks(TUTORIAL, "Delete it", "sh")?[0]).await?;
    cluster.is_gone().await?;
    steps.done("the Cluster is deleted");
    ensure!(lab.left()?.is_empty(), "{:?}", lab.left()?);
    Ok(())
}

async fn live_on(
    cluster: &Cluster<'_>,
    workload: &Workload,
    terminal: &Terminal,
    started: Instant,
    steps: &mut Steps,
) -> Result<()> {
    let nodes = Record::of(Api::<Node>::all(workload.client()));
    let pods = Record::of(Api::<Pod>::namespaced(workload.client(), "default"));
    let podnet = repository().join("tests/podnet/podnet.yaml");
    terminal
        .run(&format!("cp {} YOUR-CNI.yaml\n", podnet.display()))
        .await?;
    for commands in blocks(TUTORIAL, "Add a Pod network", "sh")? {
        terminal.run(&commands).await?;
    }
    let members = cluster.members(workload, WHOLE).await?;
    for member in &members {
        let states = nodes.named(&member.node);
        let ready = states.iter().find(|(_, node)| is_ready(node));
        let (at, _) = ready.with_context(|| format!("{} was not seen as Ready", member.node))?;
        let after = at.saturating_duration_since(started).as_secs_f64();
        println!("{after:>6.1} s after `kubectl apply`: Ready: {}", member.node);
        check_node(cluster, member, &states).await?;
    }
    steps.done("the control plane and the worker are Ready");

    let worker = members.iter().find(|member| !member.is_control_plane);
    let worker = worker.context("there is no worker")?;
    check_taint(workload, &nodes.named(&worker.node)).await?;
    workload.available("kube-system", "coredns").await?;
    steps.done("CoreDNS is available, and the worker has lost its taint");
    workload.reach_a_service().await?;
    steps.done("a Pod reached a Service on another Node by name");
    println!("memory of each QEMU, MiB: {:?}", host::memory()?);

    cluster.scale(1, 0)?;
    cluster.members(workload, Wanted { workers: 0, ..WHOLE }).await?;
    let events = cluster.kubectl(&["get", "events", "-o", "jsonpath={.items[*].reason}"])?;
    ensure!(events.contains("SuccessfulDrainNode"), "{events}");
    check_end(&pods.named_like("hello-"), worker)?;
    steps.done("the worker was drained and deleted");
    Ok(())
}

/// Puts the test's settings into the generated manifest.
async fn change_manifest(terminal: &Terminal, virtualization: Virtualization) -> Result<()> {
    for (folder, text) in [
        ("overlay", include_str!("overlay.yaml")),
        ("emulation", include_str!("emulation.yaml")),
    ] {
        let folder = terminal.folder().join(folder);
        fs::create_dir(&folder)?;
        fs::write(folder.join("kustomization.yaml"), text)?;
    }
    let folder = match virtualization {
        Virtualization::Kvm => "overlay",
        // It is based on the other one.
        Virtualization::Emulation => "emulation",
    };
    let commands = format!("mv demo.yaml overlay/demo.yaml\nkubectl kustomize {folder} --output demo.yaml\n");
    terminal.run(&commands).await?;
    Ok(())
}

/// Checks that the Node belongs to the VM, and has the promised name: its kubelet reads the domain's UUID
/// from the firmware.
async fn check_node(cluster: &Cluster<'_>, member: &Member, states: &[(Instant, Node)]) -> Result<()> {
    let machines = Api::<InfraMachine>::namespaced(cluster.client(), NAMESPACE);
    let promised = machines.get(&member.machine).await?.status.unwrap_or_default();
    ensure!(
        promised.node_name.as_ref() == Some(&member.node),
        "{:?} was promised, and {} joined",
        promised.node_name,
        member.node
    );
    let info = states
        .last()
        .and_then(|(_, node)| node.status.as_ref()?.node_info.clone());
    let info = info.context("the Node says nothing of its machine")?;
    ensure!(
        info.container_runtime_version.starts_with("containerd://"),
        "{info:?}"
    );
    let uuid = member.provider_id.rsplit('/').next().unwrap_or_default();
    ensure!(
        info.system_uuid.eq_ignore_ascii_case(uuid),
        "{} is not {uuid}",
        info.system_uuid
    );
    Ok(())
}

/// Checks that the Node was created with the taint, and waits until the provider has removed it.
async fn check_taint(workload: &Workload, states: &[(Instant, Node)]) -> Result<()> {
    let (_, first) = states.first().context("the Node was not seen")?;
    ensure!(has_taint(first), "it came with {:?}", first.spec);
    let name = first.metadata.name.as_deref().unwrap_or_default();
    let nodes = Api::<Node>::all(workload.client());
    eventually(SOON, "a Node without its taint", async || {
        let node = nodes.get(name).await?;
        ensure!(!has_taint(&node), "{:?}", node.spec);
        Ok(())
    })
    .await
}

fn has_taint(node: &Node) -> bool {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.into_iter().any(|taint| taint.key == TAINT)
}

/// Checks that the worker's kubelet ended the Pod in time, before its VM was gone.
fn check_end(states: &[(Instant, Pod)], worker: &Member) -> Result<()> {
    let is_on_worker = |pod: &&Pod| {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        node == Some(worker.node.as_str())
    };
    let last = states.iter().map(|(_, pod)| pod).rfind(is_on_worker);
    let last = last.context("the Pod was not seen")?.status.clone();
    let containers = last.unwrap_or_default().container_statuses.unwrap_or_default();
    let ended = containers.iter().map(|container| {
        let terminated = container.state.as_ref()?.terminated.as_ref();
        terminated.map(|ended| ended.exit_code)
    });
    ensure!(ended.eq([Some(0)]), "{containers:?}");
    Ok(())
}

/// The networks and images of the host, and everything that machines have left on it.
fn traces(lab: &Lab) -> Result<Vec<String>> {
    let mut traces = lab.left()?;
    let mut connect = lab.connect(HOST)?;
    for network in connect.list_all_networks(0)? {
        traces.push(format!("network {}", network.get_name()?));
    }
    connect.close()?;
    traces.sort();
    Ok(traces)
}

/// The top folder of the repository.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
