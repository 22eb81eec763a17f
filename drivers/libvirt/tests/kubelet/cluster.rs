//! Cluster API with this driver: a management cluster, the provider, the driver as a plugin, and a Cluster.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use management_cluster::{KUBERNETES_VERSION, ManagementCluster, Process, stand_in};
use serde_json::{Value, json};
use testbed::{Launch, Launched};
use tokio::net::UnixStream;

use crate::bootstrap::cloud_config;
use crate::gateway::Gateway;
use crate::lab::{HOSTS, Lab};

/// Name of the Cluster and of its MachineDeployment.
pub const NAME: &str = "virtual";
/// The taint that a Node registers with until its VM is initialized.
pub const TAINT: &str = "node.machine.sapcloud.io/instance-not-ready";
/// The address of the API server for guests: their host, in libvirt's default network.
const API_SERVER: ([u8; 4], u16) = ([192, 168, 122, 1], 6443);
const DEADLINE: Duration = Duration::from_mins(3);

/// The running parts. Dropping this ends them in the order of the fields.
pub struct Cluster {
    _provider: Launched,
    _plugin: Process,
    _scheduler: Process,
    _controllers: Process,
    _gateways: Vec<Gateway>,
    /// The namespace of the Cluster.
    pub namespace: String,
    /// The management cluster, with the workload cluster beside it.
    pub management: ManagementCluster,
}

impl Cluster {
    /// Starts everything except machines.
    pub async fn start(lab: &Lab, image: &NodeImage) -> Result<Self> {
        let driver = Path::new(env!("CARGO_BIN_EXE_capcmi-driver-libvirt"));
        let management = ManagementCluster::builder()
            .manifests(testbed::definitions()?)
            .start()
            .await?;
        testbed::install(&management).await?;
        let namespace = management.namespace("libvirt").await?;
        let workload = management.workload().await?;
        let controllers = management.workload_controllers().await?;
        let scheduler = start_scheduler(&management).await?;
        let port = SocketAddr::from(API_SERVER);
        let server = workload.url().trim_start_matches("https://").parse()?;
        let mut gateways = Vec::new();
        for host in HOSTS {
            gateways.push(Gateway::open(&network(lab, host)?, port, server)?);
        }
        let plugin = start_plugin(&management, lab, image, driver).await?;
        let drivers = management.folder().path().join("drivers.yaml");
        let endpoint = format!("unix://{}", socket(&management).display());
        let entry = json!({"drivers": [{"name": "libvirt", "grpc": {"endpoint": endpoint}}]});
        fs::write(&drivers, entry.to_string())?;
        let launch = Launch {
            binary: testbed::program("capcmi-manager")?,
            name: "provider".to_owned(),
            drivers,
            kubeconfig: testbed::service_account(&management).await?,
            flags: vec!["--insecure-diagnostics".to_owned()],
        };
        let mut provider = launch.start(&management)?;
        provider.ready(DEADLINE).await?;
        make_cluster(&management, &namespace, port).await?;
        Ok(Self {
            _provider: provider,
            _plugin: plugin,
            _scheduler: scheduler,
            _controllers: controllers,
            _gateways: gateways,
            namespace,
            management,
        })
    }

    /// kubectl on the management cluster.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.management.kubectl();
        run(command.args(["-n", &self.namespace]).args(arguments))
    }

    /// kubectl on the workload cluster.
    pub async fn workload_kubectl(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.management.kubectl();
        command.env("KUBECONFIG", self.management.workload().await?.admin_kubeconfig());
        run(command.args(arguments))
    }

    /// Creates the MachineDeployment with one machine.
    pub async fn make_machine(&self) -> Result<()> {
        let metadata = json!({"name": NAME, "namespace": self.namespace});
        let spec = json!({
            "driver": "libvirt", "notReadyTaint": {"key": TAINT},
            // An emulated guest takes long to shut down.
            "shutdownTimeoutSeconds": 180,
            "providerSpec": {"vmPool": "default", "size": "node", "rootFsSize": 8},
        });
        let template = json!({
            "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachineTemplate",
            "metadata": metadata,
            "spec": {"template": {"spec": spec}},
        });
        let reference =
            json!({"apiGroup": "infrastructure.capcmi.io", "kind": "InfraMachineTemplate", "name": NAME});
        let deployment = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment", "metadata": metadata,
            "spec": {"clusterName": NAME, "replicas": 1, "template": {"spec": {
                "clusterName": NAME, "version": KUBERNETES_VERSION,
                // Without a failure domain, an early deletion waits for a create that may still take effect.
                "failureDomain": HOSTS[0],
                "bootstrap": {"dataSecretName": "bootstrap"},
                "infrastructureRef": reference,
                "deletion": {"nodeDrainTimeoutSeconds": 600, "nodeDeletionTimeoutSeconds": 60},
            }}},
        });
        let admin = self.management.admin_client().await?;
        for object in [template, deployment] {
            management_cluster::apply(&admin, object).await?;
        }
        Ok(())
    }
}

/// The disk of a node, with its kernel and initial RAM disk.
pub struct NodeImage {
    disk: PathBuf,
    kernel: PathBuf,
    initrd: PathBuf,
}

impl NodeImage {
    /// Builds the image on the first run.
    pub fn build() -> Result<Self> {
        let disk = built("build.sh", &["qcow2", KUBERNETES_VERSION])?;
        // The disk was made from this folder.
        let root = disk.with_file_name("rootfs");
        Ok(Self {
            disk,
            kernel: root.join("vmlinuz").canonicalize()?,
            initrd: root.join("initrd.img").canonicalize()?,
        })
    }
}

/// Returns the path that a script of the node image prints last. The script builds the content on the first
/// run. This program's standard error shows the progress.
fn built(script: &str, arguments: &[&str]) -> Result<PathBuf> {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../images/node");
    let mut command = Command::new(scripts.join(script));
    let built = command.args(arguments).stderr(Stdio::inherit()).output()?;
    ensure!(built.status.success(), "{command:?} failed");
    let printed = String::from_utf8(built.stdout)?;
    let path = printed.lines().last();
    Ok(PathBuf::from(
        path.with_context(|| format!("{command:?} printed nothing"))?,
    ))
}

/// Runs a command and returns its output.
fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed: {errors}");
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns the path of a host's network namespace.
fn network(lab: &Lab, host: &str) -> Result<PathBuf> {
    let pid = fs::read_to_string(lab.of(host).join("run/libvirtd.pid"))?;
    Ok(Path::new("/proc").join(pid.trim()).join("ns/net"))
}

/// Starts a scheduler, so that Pods respect the taints of Nodes.
async fn start_scheduler(management: &ManagementCluster) -> Result<Process> {
    let kubeconfig = management.workload().await?.admin_kubeconfig();
    let programs = built("programs.sh", &[&format!("kubernetes/{KUBERNETES_VERSION}")])?;
    let mut command = Command::new(programs.join("kube-scheduler"));
    command
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .args(["--leader-elect=false", "--secure-port=0"]);
    Process::start(management.folder(), "kube-scheduler", &command)
}

fn socket(management: &ManagementCluster) -> PathBuf {
    management.folder().path().join("libvirt.sock")
}

async fn start_plugin(
    management: &ManagementCluster,
    lab: &Lab,
    image: &NodeImage,
    driver: &Path,
) -> Result<Process> {
    let config = management.folder().path().join("libvirt.yaml");
    fs::write(&config, driver_config(lab, image)?.to_string())?;
    let socket = socket(management);
    let mut command = Command::new(driver);
    command
        .arg(format!("--endpoint=unix://{}", socket.display()))
        .arg(format!("--config={}", config.display()));
    let mut plugin = Process::start(management.folder(), "libvirt-driver", &command)?;
    plugin
        .wait_until(DEADLINE, async || UnixStream::connect(&socket).await.is_ok())
        .await?;
    Ok(plugin)
}

/// Configures two hosts with the node image.
fn driver_config(lab: &Lab, image: &NodeImage) -> Result<Value> {
    let sum = run(Command::new("sha256sum").arg(&image.disk))?;
    let sha256 = sum.split(' ').next().context("sha256sum printed nothing")?;
    let mut hosts = BTreeMap::new();
    for host in HOSTS {
        fs::copy(&image.disk, lab.of(host).join("images/node.qcow2"))?;
        let socket = lab.of(host).join("run/libvirt-sock");
        let uri = format!("qemu+unix:///system?socket={}", socket.display());
        hosts.insert(host, json!({"uri": uri, "reservedMemoryMib": 0}));
    }
    let boot = json!({
        "kernel": image.kernel, "initrd": image.initrd,
        "commandLine": "root=/dev/vda rw console=ttyS0 quiet",
    });
    Ok(json!({
        "virtType": "qemu",
        "hosts": hosts,
        "vmPools": {"default": {"storagePool": "machines", "network": "default", "image": "node"}},
        "networks": {"default": {"network": "default"}},
        "sizes": {"node": {"cpus": 2, "memoryMib": 2048}},
        "images": {"node": {
            "storagePool": "images", "volume": "node.qcow2", "format": "qcow2", "sha256": sha256,
            "directBoot": boot,
        }},
    }))
}

/// Creates a Cluster with an existing control plane, and bootstrap data for its machines.
async fn make_cluster(management: &ManagementCluster, namespace: &str, endpoint: SocketAddr) -> Result<()> {
    let admin = management.admin_client().await?;
    let infra = json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraCluster",
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": {
            "driver": "libvirt",
            "controlPlaneEndpoint": {"host": endpoint.ip().to_string(), "port": endpoint.port()},
        },
    });
    management_cluster::apply(&admin, infra).await?;
    let reference = json!({"apiGroup": "infrastructure.capcmi.io", "kind": "InfraCluster", "name": NAME});
    stand_in::create_cluster(
        management,
        namespace,
        NAME,
        json!({"infrastructureRef": reference}),
    )
    .await?;
    let data = cloud_config(management.workload().await?, endpoint, TAINT)?;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
        "metadata": {"name": "bootstrap", "namespace": namespace},
        "stringData": {"value": data, "format": "cloud-config"},
    });
    management_cluster::apply(&admin, secret).await?;
    Ok(())
}
