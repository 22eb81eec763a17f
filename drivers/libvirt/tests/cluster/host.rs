//! A host with a network for a virtual IP, and the driver as a service behind TLS.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use management_cluster::{KUBERNETES_VERSION, ManagementCluster, Process};
use serde_json::{Value, json};
use testbed::whole_cluster::sandbox::{output, run};
use tokio::net::TcpStream;

use crate::lab::Lab;
use crate::repository;
use crate::tutorial::{TUTORIAL, Terminal, blocks};
use crate::virtualization::Virtualization;

/// The only host.
pub const HOST: &str = "host-a";
/// The name of the driver's computer in the documentation.
const DRIVER: &str = "driver.example";
const PORT: u16 = 8443;
const DEADLINE: Duration = Duration::from_mins(3);

/// The disk of a node, with its kernel and initial RAM disk.
pub struct NodeImage {
    /// The disk.
    pub disk: PathBuf,
    kernel: PathBuf,
    initrd: PathBuf,
}

impl NodeImage {
    /// Builds the image on the first run. This program's standard error shows the progress.
    pub fn build() -> Result<Self> {
        let mut command = Command::new(repository().join("images/node/build.sh"));
        command
            .args(["qcow2", KUBERNETES_VERSION])
            .stderr(Stdio::inherit());
        let built = command.output()?;
        ensure!(built.status.success(), "{command:?} failed");
        let printed = String::from_utf8(built.stdout)?;
        let disk = PathBuf::from(printed.lines().last().context("the build prints no path")?);
        // The disk was made from this folder.
        let root = disk.with_file_name("rootfs");
        Ok(Self {
            kernel: root.join("vmlinuz").canonicalize()?,
            initrd: root.join("initrd.img").canonicalize()?,
            disk,
        })
    }

    /// Checks the disk with `capcmi image check`. libguestfs boots a kernel. This computer may have none, so
    /// the image gives its own.
    pub fn check(&self) -> Result<()> {
        let version = self.kernel.file_name().unwrap_or_default().to_string_lossy();
        let version = version.trim_start_matches("vmlinuz-");
        let modules = self.disk.with_file_name("rootfs/lib/modules").join(version);
        // libguestfs wants the folder even if the modules are elsewhere.
        fs::create_dir_all("/lib/modules")?;
        let mut command = Command::new(testbed::program("capcmi")?);
        command
            .args(["image", "check"])
            .arg(&self.disk)
            .env("SUPERMIN_KERNEL", &self.kernel)
            .env("SUPERMIN_MODULES", modules)
            .env("LIBGUESTFS_BACKEND", "direct")
            .env("LIBGUESTFS_BACKEND_SETTINGS", "force_tcg");
        println!("{}", output(&mut command)?);
        Ok(())
    }
}

/// Gives the host the network of the tutorial, and connects this network namespace to it.
pub fn connect(lab: &Lab) -> Result<()> {
    let network = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/network.xml");
    let network = network.display().to_string();
    for command in [["net-define", &network], ["net-start", "lan"]] {
        lab.on_host(
            HOST,
            &[&["virsh", "--quiet", "--connect=qemu:///system"], &command[..]].concat(),
        )?;
    }
    let host = lab.libvirtd(HOST)?;
    let cable = [
        "link", "add", "lan", "type", "veth", "peer", "name", "cable", "netns",
    ];
    run("ip", cable.into_iter().chain([host.as_str()]))?;
    lab.on_host(HOST, &["ip", "link", "set", "cable", "master", "virbr1", "up"])?;
    run("ip", ["address", "add", "10.0.0.250/24", "dev", "lan"])?;
    run("ip", ["link", "set", "lan", "up"])?;
    Ok(())
}

/// Starts the driver as its systemd unit does, with certificates that are made as the documentation has it.
pub async fn start_driver(
    management: &ManagementCluster,
    terminal: &Terminal,
    lab: &Lab,
    folder: &Path,
    virtualization: Virtualization,
) -> Result<Process> {
    let certificates = blocks(
        "docs/back-ends/libvirt-hosts.md",
        "The driver as a service behind TLS",
        "sh",
    )?;
    terminal.run(&certificates[0]).await?;
    let config = driver_config(lab, &NodeImage::build()?, virtualization)?;
    fs::write(folder.join("libvirt.yaml"), config.to_string())?;
    let hosts = folder.join("hosts");
    fs::write(&hosts, format!("127.0.0.1 localhost {DRIVER}\n"))?;
    // The mount namespace is the test's own.
    run("mount", ["--bind", &hosts.display().to_string(), "/etc/hosts"])?;

    let unit = include_str!("../../capcmi-driver-libvirt.service").replace("\\\n", " ");
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart="));
    let start = start.context("the unit starts nothing")?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_capcmi-driver-libvirt"));
    let arguments = start.split_whitespace().skip(1);
    command.args(arguments.map(|word| word.replace("/etc/capcmi", &folder.display().to_string())));
    let mut driver = Process::start(management.folder(), "libvirt-driver", &command)?;
    driver
        .wait_until(DEADLINE, async || {
            TcpStream::connect((DRIVER, PORT)).await.is_ok()
        })
        .await?;
    Ok(driver)
}

/// The drivers file of the tutorial.
pub fn drivers() -> Result<String> {
    let kustomization = blocks(TUTORIAL, "Install the provider", "yaml")?;
    let kustomization: Value = serde_saphyr::from_str(&kustomization[0])?;
    let patch = kustomization["patches"][0]["patch"].as_str();
    let config_map: Value = serde_saphyr::from_str(patch.context("no patch")?)?;
    let drivers = config_map["data"]["drivers.yaml"].as_str();
    Ok(drivers.context("no drivers")?.to_owned())
}

/// Writes the drivers file of the tutorial, and the Secret's files that it names.
pub fn write_drivers(folder: &Path) -> Result<PathBuf> {
    let mounted = folder.join("capcmi-driver");
    fs::create_dir(&mounted)?;
    for (key, file) in [
        ("ca.crt", "ca.crt"),
        ("tls.crt", "provider.crt"),
        ("tls.key", "provider.key"),
    ] {
        fs::copy(folder.join(file), mounted.join(key))?;
    }
    let file = folder.join("drivers.yaml");
    let mounted = mounted.display().to_string();
    fs::write(&file, drivers()?.replace("/etc/capcmi-driver", &mounted))?;
    Ok(file)
}

/// The configuration of the driver, with the names in the tutorial and in the template.
fn driver_config(lab: &Lab, image: &NodeImage, virtualization: Virtualization) -> Result<Value> {
    let sum = run("sha256sum", [&image.disk])?;
    let sha256 = sum.split(' ').next().context("sha256sum printed nothing")?;
    fs::copy(&image.disk, lab.of(HOST).join("images/node.qcow2"))?;
    let name = format!("debian-12-{}", KUBERNETES_VERSION.replace('.', "-"));
    let image = json!({
        "storagePool": "images", "volume": "node.qcow2", "format": "qcow2", "sha256": sha256,
        "directBoot": {
            "kernel": image.kernel, "initrd": image.initrd,
            "commandLine": virtualization.command_line(),
        },
    });
    Ok(json!({
        "virtType": virtualization.virt_type(),
        "hosts": {HOST: {"uri": lab.address(HOST), "reservedMemoryMib": 0}},
        "vmPools": {"default": {"storagePool": "machines", "network": "lan", "image": name}},
        "networks": {"lan": {"network": "lan"}},
        "sizes": {
            "small": {"cpus": 2, "memoryMib": 2048},
            "medium": {"cpus": 2, "memoryMib": 3072},
        },
        "images": BTreeMap::from([(name, image)]),
    }))
}

/// The ends of the guests' consoles, for a failure.
pub fn consoles(lab: &Lab) -> String {
    let machines = lab.of(HOST).join("machines").display().to_string();
    let shown = run("sh", ["-c", "tail -n 60 \"$0\"/*-console.log", &machines]);
    shown.unwrap_or_else(|error| format!("{error:#}"))
}

/// The resident memory of each QEMU, MiB.
pub fn memory() -> Result<Vec<u64>> {
    let mut sizes = Vec::new();
    for process in fs::read_dir("/proc")? {
        let process = process?.path();
        // A process can end in the meantime.
        let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
        let status = fs::read_to_string(process.join("status")).unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes = resident.and_then(|size| size.trim().trim_end_matches(" kB").parse::<u64>().ok());
        if let Some(kibibytes) = kibibytes.filter(|_| name.starts_with("qemu-system")) {
            sizes.push(kibibytes >> 10);
        }
    }
    Ok(sizes)
}
