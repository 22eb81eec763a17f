//! A whole Cluster of system containers, made from the flavor as a user does: `--driver container`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use management_cluster::kubeadm::KubeadmProviders;
use management_cluster::{ManagementCluster, Programs};
use testbed::Launched;
use tokio::time::sleep;

use crate::backend::program;
use crate::container::Containers;
use crate::fleet::{Fleet, Row};
use crate::scenario::{NAME, NAMESPACE, start_provider};
use crate::screen::Screen;

const WORKERS: usize = 2;
const MACHINES: usize = 1 + WORKERS;
/// How long the Cluster may take; far more than is usual, for a computer that is busy.
const DEADLINE: Duration = Duration::from_mins(10);
/// How often the Cluster is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// An answer of the workload cluster that takes longer counts as none.
const PATIENCE: Duration = Duration::from_secs(5);
/// The Pod network: the usual ones cannot be built from Go modules.
const POD_NETWORK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/podnet/podnet.yaml");

/// Brings up the Cluster; in a terminal it then stays for good.
pub async fn run(screen: &Screen) -> Result<()> {
    let binary = program("capcmi-manager")?;
    screen.doing("looking for the programs of a management cluster; the first time, they are built");
    Programs::find().await?;
    let started = Instant::now();
    screen.doing("starting etcd, kube-apiserver, kube-controller-manager and Cluster API");
    let management = ManagementCluster::builder()
        .manifests(testbed::definitions()?)
        .start()
        .await?;
    let outcome = bring_up(screen, &management, binary, started).await;
    if outcome.is_err() {
        screen.close();
        management.folder().keep();
    }
    outcome
}

async fn bring_up(
    screen: &Screen,
    management: &ManagementCluster,
    binary: PathBuf,
    started: Instant,
) -> Result<()> {
    screen.doing("installing the provider's manifests: config/default");
    testbed::install(management).await?;
    // Before the provider, and so removed after it.
    let containers = Containers::start(screen, management.folder()).await?;
    screen.doing("starting Cluster API's kubeadm providers, and capcmi under its ServiceAccount");
    let _kubeadm = KubeadmProviders::start(management, NAMESPACE).await?;
    let mut provider = start_provider(management, binary.clone(), &containers.drivers()).await?;
    screen.doing(&format!(
        "clusterctl generate cluster {NAME} --flavor container | kubectl apply"
    ));
    create(management, &containers)?;
    let admin = management.admin_client().await?;
    let access = Access::make(management, &containers, &binary)?;
    screen.open();
    let mut fleet = Fleet::new(&admin, None);
    let workload = joined(screen, &fleet, &mut provider, &admin, &access).await?;
    fleet = Fleet::new(&admin, Some(workload));
    kubectl(
        management,
        &access.cluster,
        &["apply", "--server-side", "-f", POD_NETWORK],
    )?;
    ready(screen, &fleet, &mut provider).await?;
    let up = format!(
        "the Cluster is up after {:.0} s: {MACHINES} Nodes are Ready",
        started.elapsed().as_secs_f64()
    );
    let nodes = kubectl(management, &access.cluster, &["get", "nodes"])?;
    if !screen.is_terminal() {
        screen.doing(&up);
        nodes.lines().for_each(|line| screen.say(line));
        return Ok(());
    }
    screen.note(&access.how_to_use());
    loop {
        // The user may take the Cluster apart.
        if let Ok(rows) = fleet.look().await {
            let ready = rows.iter().filter(|row| row.node_is_ready).count();
            screen.doing(&format!(
                "{up}; now {ready} of {}. Ctrl-C ends and removes everything",
                rows.len()
            ));
            screen.show(rows);
        }
        sleep(LOOK).await;
        check_provider(&mut provider)?;
    }
}

/// Generates and applies the Cluster.
fn create(management: &ManagementCluster, containers: &Containers) -> Result<()> {
    let folder = management.folder().path();
    let release = folder.join("release");
    output(&mut testbed::make_release(
        &release,
        "v0.1.0",
        &management.programs().kubectl,
    ))?;
    let parameters = containers.parameters();
    let generated = output(
        management
            .clusterctl()
            .args(["generate", "cluster", NAME, "--flavor=container"])
            .arg("--infrastructure=capcmi-cmi:v0.1.0")
            .arg(format!(
                "--config={}",
                release.join("clusterctl-config.yaml").display()
            ))
            .arg(format!("--target-namespace={NAMESPACE}"))
            .arg(format!("--kubernetes-version={}", parameters.version))
            .arg("--control-plane-machine-count=1")
            .arg(format!("--worker-machine-count={WORKERS}"))
            .env("CONTROL_PLANE_ENDPOINT_HOST", &parameters.endpoint)
            .env("CAPCMI_IMAGE", &parameters.image),
    )?;
    let manifests = folder.join("cluster.yaml");
    fs::write(&manifests, generated).context("writing the manifests of the Cluster")?;
    let manifests = manifests.display().to_string();
    kubectl(
        management,
        management.admin_kubeconfig(),
        &["apply", "--server-side", "-f", &manifests],
    )?;
    Ok(())
}

/// The files for the user, at paths that are the same in every run.
struct Access {
    folder: PathBuf,
    /// The kubeconfig of the Cluster.
    cluster: PathBuf,
}

impl Access {
    fn make(management: &ManagementCluster, containers: &Containers, manager: &Path) -> Result<Self> {
        let folder = containers.folder().to_owned();
        let programs = folder.join("bin");
        fs::create_dir_all(&programs).context("making the folder of programs")?;
        let link = |target: &Path, name: PathBuf| {
            std::os::unix::fs::symlink(target, &name).with_context(|| format!("making {}", name.display()))
        };
        link(&management.programs().kubectl, programs.join("kubectl"))?;
        link(&manager.with_file_name("capcmi"), programs.join("capcmi"))?;
        link(
            management.admin_kubeconfig(),
            folder.join("management.kubeconfig"),
        )?;
        Ok(Self {
            cluster: folder.join("cluster.kubeconfig"),
            folder,
        })
    }

    fn how_to_use(&self) -> Vec<String> {
        let folder = self.folder.display();
        vec![
            "In another terminal, as root:".to_owned(),
            format!("  export PATH={folder}/bin:$PATH"),
            format!("  export KUBECONFIG={}", self.cluster.display()),
            "  kubectl get nodes,pods -A -o wide".to_owned(),
            "The management cluster, where you scale and upgrade it:".to_owned(),
            format!("  export KUBECONFIG={folder}/management.kubeconfig"),
            "  kubectl get machines,inframachines -o wide".to_owned(),
            "Next: docs/start/first-cluster.md".to_owned(),
        ]
    }
}

/// Shows the machines until the API server of the Cluster answers. Returns its client, and writes its
/// kubeconfig.
async fn joined(
    screen: &Screen,
    fleet: &Fleet,
    provider: &mut Launched,
    admin: &Client,
    access: &Access,
) -> Result<Client> {
    let secrets = Api::<Secret>::namespaced(admin.clone(), NAMESPACE);
    let expiry = Instant::now() + DEADLINE;
    screen.doing("waiting for `kubeadm init` on the first machine");
    loop {
        screen.show(fleet.look().await?);
        if let Some(secret) = secrets.get_opt(&format!("{NAME}-kubeconfig")).await?
            && let Some(value) = secret.data.and_then(|mut data| data.remove("value"))
        {
            fs::write(&access.cluster, &value.0).context("writing the kubeconfig of the Cluster")?;
            if let Ok(client) = answering(&access.cluster).await {
                return Ok(client);
            }
        }
        check_provider(provider)?;
        ensure!(
            Instant::now() < expiry,
            "the Cluster's API server was awaited for {DEADLINE:?}"
        );
        sleep(LOOK).await;
    }
}

/// A client of the API server in this kubeconfig, if that is alive.
async fn answering(kubeconfig: &Path) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.connect_timeout = Some(PATIENCE);
    config.read_timeout = Some(PATIENCE);
    let client = Client::try_from(config)?;
    let answer = client
        .request_text(http::Request::get("/livez").body(Vec::new())?)
        .await?;
    ensure!(answer == "ok", "{answer}");
    Ok(client)
}

/// Shows the machines until each of them is a Ready Node.
async fn ready(screen: &Screen, fleet: &Fleet, provider: &mut Launched) -> Result<()> {
    let expiry = Instant::now() + DEADLINE;
    loop {
        let rows = fleet.look().await?;
        let ready = rows.iter().filter(|row| is_up(row)).count();
        screen.show(rows.clone());
        if screen.is_terminal() {
            screen.doing(&format!("Cluster {NAME}: {ready} of {MACHINES} Nodes are Ready"));
        }
        if ready == MACHINES && rows.len() == MACHINES {
            return Ok(());
        }
        check_provider(provider)?;
        if Instant::now() >= expiry {
            bail!("{MACHINES} Ready Nodes were awaited for {DEADLINE:?}: {rows:#?}");
        }
        sleep(LOOK).await;
    }
}

/// Whether a machine is a Ready Node with its ProviderID.
fn is_up(row: &Row) -> bool {
    row.is_running() && row.node_is_ready && row.node_provider_id == row.provider_id
}

fn check_provider(provider: &mut Launched) -> Result<()> {
    match provider.process.status()? {
        Some(status) => bail!("the provider ended with {status}"),
        None => Ok(()),
    }
}

fn kubectl(management: &ManagementCluster, kubeconfig: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(&management.programs().kubectl);
    output(command.env("KUBECONFIG", kubeconfig).args(arguments))
}

/// Runs a command and returns its output.
fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed: {errors}");
    String::from_utf8(output.stdout).context("the output is no text")
}
