//! The parts of a test: a network, the container driver, the provider and a management cluster.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use capcmi_driver_container::state::StateFolder;
use management_cluster::{ManagementCluster, Process, eventually, kubeadm::KubeadmProviders};
use serde_json::{Value, json};
use testbed::{Launch, Launched};
use tokio::{
    net::{TcpStream, UnixStream},
    runtime::Runtime,
};

use crate::{
    cluster::Member,
    sandbox::{output, run},
    traces::Traces,
};

/// The driver's TCP port.
const PORT: u16 = 8443;
/// The address of the host in the network of the machines.
const HOST: &str = "192.168.150.1";
/// The VIP of the control plane, outside of the range of DHCP.
pub const ENDPOINT: &str = "192.168.150.100";
/// The state folder of the driver, in the folder of the run.
pub const STATE: &str = "state";
const DEADLINE: Duration = Duration::from_mins(3);
/// Without it, each machine of a control plane costs up to 20 s of waiting.
const SYNC_PERIOD: Duration = Duration::from_secs(3);

/// How the provider reaches the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// By a Unix socket.
    Socket,
    /// By TLS, also from Pods in machines. The certificates are in the folder of the run.
    Tls,
}

/// The folder of the certificates in the folder of the run.
pub const CERTIFICATES: &str = "certificates";

/// The running parts. Dropping this ends them in the order of the fields.
pub struct Lab {
    _provider: Launched,
    _kubeadm: KubeadmProviders,
    driver: Process,
    /// The namespace of the Cluster.
    pub namespace: String,
    /// The management cluster.
    pub management: ManagementCluster,
    /// The folder of the run.
    pub folder: PathBuf,
}

/// Builds the programs and node images, which needs the network. Returns a folder on the images' file system,
/// since machines have links to them.
///
/// # Errors
/// When a build fails.
pub fn prepare(versions: &[&str]) -> Result<PathBuf> {
    testbed::program("capcmi-manager")?;
    Runtime::new()?.block_on(KubeadmProviders::build())?;
    let images: Result<Vec<_>> = versions.iter().map(|version| build_image(version)).collect();
    let images = images?;
    let capcmi = testbed::program("capcmi")?;
    for image in &images {
        output(Command::new(&capcmi).args(["image", "check"]).arg(image))?;
    }
    // IMAGES/DIGEST/VERSION/rootfs
    let folder = images
        .first()
        .and_then(|image| image.ancestors().nth(3).map(Path::to_owned));
    folder.context("the image is in no folder")
}

impl Lab {
    /// Starts all but machines, with these further flags of the provider.
    pub async fn start(
        folder: &Path,
        versions: &[&str],
        endpoint: Endpoint,
        flags: &[String],
    ) -> Result<Self> {
        let management = ManagementCluster::builder()
            .manifests(testbed::definitions()?)
            // Otherwise core looks at a Machine 5 s after it had no ProviderID, not when it has one.
            .rate_limiting(false)
            .sync_period(SYNC_PERIOD)
            .start()
            .await?;
        testbed::install(&management).await?;
        let namespace = management.namespace("cluster").await?;
        let driver = start_driver(&management, folder, versions, endpoint).await?;
        let kubeadm = KubeadmProviders::start(&management, &namespace).await?;
        let provider = start_provider(&management, folder, endpoint, flags).await?;
        Ok(Self {
            _provider: provider,
            _kubeadm: kubeadm,
            driver,
            namespace,
            management,
            folder: folder.to_owned(),
        })
    }
}

impl Lab {
    /// The traces of machines on this host.
    pub fn traces(&self) -> Result<Traces> {
        Traces::find(&self.folder.join(STATE))
    }

    /// Ends the driver, and waits until the host is as it was before.
    pub async fn ends_as(&mut self, before: &Traces) -> Result<()> {
        self.stop_driver().await?;
        eventually(DEADLINE, "a host as before", async || {
            let now = self.traces()?;
            let left = now.since(before);
            ensure!(left.is_empty(), "{left:#?}");
            Ok(())
        })
        .await
    }

    /// The ends of the machines' consoles, for a failure.
    pub fn consoles(&self) -> String {
        let shown = run(
            "sh",
            [
                "-c",
                "tail -n 25 \"$0\"/machines/*/console.log",
                &self.folder.join(STATE).display().to_string(),
            ],
        );
        shown.unwrap_or_else(|error| format!("{error:#}"))
    }

    /// Ends the driver, which then removes its bridge.
    async fn stop_driver(&mut self) -> Result<()> {
        let ended = self.driver.terminate(DEADLINE).await?;
        ensure!(
            ended.is_some_and(|status| status.success()),
            "the driver ended with {ended:?}"
        );
        Ok(())
    }

    /// Puts a container image into the containerd of a machine, which has no registry.
    pub fn load(&self, provider_id: &str, archive: &Path) -> Result<()> {
        let image = fs::File::open(archive).with_context(|| archive.display().to_string())?;
        let mut runc = Command::new("runc");
        let command = ["ctr", "--namespace=k8s.io", "images", "import", "--local", "-"];
        output(
            runc.arg("--root")
                .arg(StateFolder::new(&self.folder.join(STATE)).runtime())
                .args(["exec", container(provider_id)])
                .args(command)
                .stdin(image),
        )?;
        Ok(())
    }

    /// Writes a container image of a machine to an archive. A node image has images without their layers, so
    /// the files of the image become a layer.
    pub fn save(&self, provider_id: &str, image: &str, program: &str, archive: &Path) -> Result<()> {
        let files = tempfile::tempdir_in(&self.folder)?;
        let layer = self.folder.join("layer.tar");
        let script = format!(
            "mkdir /run/saved && ctr --namespace=k8s.io images mount {image} /run/saved >/dev/null && \
             tar -C /run/saved -c . && ctr --namespace=k8s.io images unmount --rm /run/saved >/dev/null && \
             rmdir /run/saved"
        );
        let saved = Command::new("runc")
            .arg("--root")
            .arg(StateFolder::new(&self.folder.join(STATE)).runtime())
            .args(["exec", container(provider_id), "sh", "-c", &script])
            .stdout(fs::File::create(&layer)?)
            .status()?;
        ensure!(saved.success(), "{image} of {provider_id} was not saved");
        let unpacked = files.path().display().to_string();
        run("tar", ["-C", &unpacked, "-xf", &layer.display().to_string()])?;
        let config = json!({"Entrypoint": [program], "User": "0"}).to_string();
        output(
            Command::new(repository().join("images/node/oci.sh"))
                .args([image, &config, &unpacked])
                .arg(archive),
        )?;
        Ok(())
    }

    /// The memory that a machine may use, MiB.
    pub fn memory_limit(&self, member: &Member) -> Result<u64> {
        let runtime = StateFolder::new(&self.folder.join(STATE)).runtime();
        let root = runtime.display().to_string();
        let shown = run(
            "runc",
            [
                "--root",
                &root,
                "events",
                "--stats",
                container(&member.provider_id),
            ],
        )?;
        let shown: Value = serde_json::from_str(&shown).with_context(|| shown.clone())?;
        let limit = shown["data"]["memory"]["usage"]["limit"].as_u64();
        Ok(limit.with_context(|| format!("no limit of memory: {shown}"))? >> 20)
    }

    /// Cuts the power of a machine: its processes end, and its network interface with them.
    pub fn power_off(&self, member: &Member) -> Result<()> {
        let runtime = StateFolder::new(&self.folder.join(STATE)).runtime();
        run(
            "runc",
            [
                "--root",
                &runtime.display().to_string(),
                "kill",
                container(&member.provider_id),
                "KILL",
            ],
        )?;
        Ok(())
    }
}

/// The name of a machine's container.
fn container(provider_id: &str) -> &str {
    provider_id.rsplit('/').next().unwrap_or_default()
}

impl Drop for Lab {
    /// After a failure there are machines, whose cgroups would outlive the namespaces of the test.
    fn drop(&mut self) {
        let runtime = StateFolder::new(&self.folder.join(STATE)).runtime();
        for container in fs::read_dir(&runtime).into_iter().flatten().flatten() {
            let id = container.file_name().to_string_lossy().into_owned();
            let root = runtime.display().to_string();
            if let Err(error) = run("runc", ["--root", &root, "delete", "--force", &id]) {
                println!("machine {id} is left: {error:#}");
            }
        }
    }
}

/// The top folder of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The name of the node image of a Kubernetes version.
pub fn image(version: &str) -> String {
    format!("node-{}", version.replace('.', "-"))
}

/// Builds the node image of a version, if it is missing, and returns the folder of its root file system.
///
/// # Errors
/// When the build fails.
pub fn build_image(version: &str) -> Result<PathBuf> {
    let built = Command::new(repository().join("images/node/build.sh"))
        .args(["rootfs", version])
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(
        built.status.success(),
        "the node image of {version} was not built"
    );
    let said = String::from_utf8(built.stdout)?;
    let path = said
        .lines()
        .last()
        .context("the build of the node image prints no path")?;
    Ok(PathBuf::from(path))
}

async fn start_driver(
    management: &ManagementCluster,
    folder: &Path,
    versions: &[&str],
    endpoint: Endpoint,
) -> Result<Process> {
    let mut images = BTreeMap::new();
    for version in versions {
        images.insert(image(version), build_image(version)?);
    }
    let config = json!({
        "stateDir": folder.join(STATE),
        "hosts": {"here": {}},
        "vmPools": {"default": {"image": images.keys().next()}},
        "sizes": {
            "small": {"cpus": 2, "memoryMib": 2048},
            "medium": {"cpus": 2, "memoryMib": 2048},
            "large": {"cpus": 2, "memoryMib": 3072},
        },
        "images": images,
        "bridge": {
            "name": "br-machines", "address": format!("{HOST}/24"),
            "dhcpRange": {"first": "192.168.150.101", "last": "192.168.150.199"},
        },
    });
    let path = folder.join("driver.yaml");
    fs::write(&path, config.to_string())?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_capcmi-driver-container"));
    command.arg("--config").arg(&path);
    command.args(endpoint.of_driver(folder));
    let mut driver = Process::start(management.folder(), "driver", &command)?;
    driver
        .wait_until(DEADLINE, async || endpoint.is_open(folder).await)
        .await?;
    Ok(driver)
}

async fn start_provider(
    management: &ManagementCluster,
    folder: &Path,
    endpoint: Endpoint,
    flags: &[String],
) -> Result<Launched> {
    let drivers = folder.join("drivers.yaml");
    let entry = json!({"drivers": [{"name": "container", "grpc": endpoint.of_provider(folder)}]});
    fs::write(&drivers, entry.to_string())?;
    let launch = Launch {
        binary: testbed::program("capcmi-manager")?,
        name: "provider".to_owned(),
        drivers,
        kubeconfig: testbed::service_account(management).await?,
        flags: [&["--insecure-diagnostics".to_owned()], flags].concat(),
    };
    let mut provider = launch.start(management)?;
    provider.ready(DEADLINE).await?;
    Ok(provider)
}

impl Endpoint {
    /// The driver's flags.
    fn of_driver(self, folder: &Path) -> Vec<String> {
        let file = |name: &str| folder.join(CERTIFICATES).join(name).display().to_string();
        match self {
            Self::Socket => vec![format!("--endpoint=unix://{}", socket(folder).display())],
            Self::Tls => vec![
                format!("--endpoint=tls://0.0.0.0:{PORT}"),
                format!("--tls-cert-file={}", file("capcmi-driver.crt")),
                format!("--tls-key-file={}", file("capcmi-driver.key")),
                format!("--client-ca-file={}", file("ca.crt")),
            ],
        }
    }

    /// The entry in the provider's drivers file.
    fn of_provider(self, folder: &Path) -> Value {
        let file = |name: &str| folder.join(CERTIFICATES).join(name);
        match self {
            Self::Socket => json!({"endpoint": format!("unix://{}", socket(folder).display())}),
            Self::Tls => json!({
                "endpoint": format!("tls://localhost:{PORT}"),
                "tls": {
                    "caFile": file("ca.crt"),
                    "certFile": file("capcmi-driver-client.crt"),
                    "keyFile": file("capcmi-driver-client.key"),
                },
            }),
        }
    }

    async fn is_open(self, folder: &Path) -> bool {
        match self {
            Self::Socket => UnixStream::connect(socket(folder)).await.is_ok(),
            Self::Tls => TcpStream::connect(("127.0.0.1", PORT)).await.is_ok(),
        }
    }
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("driver.sock")
}
