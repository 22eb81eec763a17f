//! Real libvirt hosts, with guests that boot in seconds. Cargo would compile a file `lab.rs` as a test
//! program.

// Each test program uses only a part.
#![allow(dead_code)]

pub mod machines;
pub mod record;
pub mod wire;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use capcmi_driver_libvirt::{Config, LibvirtDriver};
use cmi_driver::{MachineClass, MachineRef, ProviderSpec, SecretValue, USER_DATA, tags};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep};
use virt::connect::Connect;

use wire::Fates;

/// The hosts of a lab, unless a test needs others.
pub const HOSTS: [&str; 2] = ["host-a", "host-b"];
/// The cluster of all machines.
pub const CLUSTER: &str = "lab";
/// The folder of a host's socket, inside the host's folder.
const DIRECTLY: &str = "run";
/// The folder of the wire's socket, inside the host's folder.
const OVER_A_WIRE: &str = "wire";
/// How long a step may take. Emulated guests on a busy machine usually take much less.
pub const DEADLINE: Duration = Duration::from_mins(4);
/// Guests are emulated: two processors can run only one lab at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// Running hosts. Dropping this ends them and their guests.
pub struct Lab {
    hosts: BTreeMap<&'static str, Child>,
    guest: PathBuf,
    folder: TempDir,
    _alone: MutexGuard<'static, ()>,
}

/// The lab, or `None` if libvirt is missing. `make test-libvirt` installs libvirt, and then requires it.
pub async fn lab() -> Result<Option<Lab>> {
    lab_of(&HOSTS).await
}

/// A lab with these hosts.
pub async fn lab_of(hosts: &[&'static str]) -> Result<Option<Lab>> {
    let prepared = Command::new(scripts().join("prepare.sh"))
        .arg("--check")
        .output()?;
    if !prepared.status.success() {
        let missing = String::from_utf8_lossy(&prepared.stderr).into_owned();
        ensure!(std::env::var_os("CAPCMI_LIBVIRT_TESTS").is_none(), "{missing}");
        eprintln!("SKIPPED, since there is no libvirt to test with: {missing}");
        return Ok(None);
    }
    Lab::start(hosts).await.map(Some)
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab")
}

impl Lab {
    async fn start(hosts: &[&'static str]) -> Result<Self> {
        let alone = ONE_AT_A_TIME.lock().await;
        let guest = guest()?;
        // The path of a socket must be short.
        let folder = tempfile::Builder::new().prefix("capcmi-lv").tempdir_in("/tmp")?;
        let mut lab = Self {
            hosts: BTreeMap::new(),
            guest,
            folder,
            _alone: alone,
        };
        for host in hosts {
            let log = File::create(lab.folder.path().join(format!("{host}.log")))?;
            let child = Command::new("setpriv")
                .args(["--pdeathsig", "TERM", "--"])
                .arg(scripts().join("host.sh"))
                .arg("up")
                .arg(lab.of(host))
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .spawn()
                .context("starting a host failed")?;
            lab.hosts.insert(host, child);
        }
        for host in hosts {
            lab.ready(host)?;
            fs::copy(
                lab.guest.join("base.qcow2"),
                lab.of(host).join("images/base.qcow2"),
            )?;
        }
        Ok(lab)
    }

    fn ready(&self, host: &str) -> Result<()> {
        let ready = Command::new(scripts().join("host.sh"))
            .arg("ready")
            .arg(self.of(host))
            .output()?;
        let log = self.folder.path().join(format!("{host}.log"));
        ensure!(
            ready.status.success(),
            "{host} did not start: {}{}",
            fs::read_to_string(log)?,
            String::from_utf8_lossy(&ready.stderr)
        );
        Ok(())
    }

    /// The folder of a host.
    pub fn of(&self, host: &str) -> PathBuf {
        self.folder.path().join(host)
    }

    /// The URI of a host's libvirtd.
    pub fn address(&self, host: &str) -> String {
        self.uri(host, DIRECTLY)
    }

    /// The URI of a host's libvirtd, or of its wire.
    fn uri(&self, host: &str, at: &str) -> String {
        let socket = self.of(host).join(at).join("libvirt-sock");
        format!("qemu+unix:///system?socket={}", socket.display())
    }

    /// The names of the hosts.
    pub fn names(&self) -> Vec<&'static str> {
        self.hosts.keys().copied().collect()
    }

    /// A second connection beside the driver's, like an administrator's.
    pub fn connect(&self, host: &str) -> Result<Connect> {
        Connect::open(Some(&self.uri(host, DIRECTLY))).with_context(|| format!("connecting to {host} failed"))
    }

    /// A folder for a test's files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The configuration of the driver.
    pub fn config(&self) -> Result<String> {
        self.config_of(&self.names(), DIRECTLY)
    }

    /// Lays a wire to a host. Drivers with the configuration [`Lab::config_over_wires`] use it.
    pub fn lay_wire(&self, host: &str, fates: Fates) -> Result<()> {
        let at = |place: &str| self.of(host).join(place).join("libvirt-sock");
        wire::lay(at(DIRECTLY), &at(OVER_A_WIRE), fates)
    }

    /// The configuration of a driver that reaches these hosts over their wires.
    pub fn config_over_wires(&self, hosts: &[&str]) -> Result<String> {
        self.config_of(hosts, OVER_A_WIRE)
    }

    fn config_of(&self, hosts: &[&str], at: &str) -> Result<String> {
        let sha256 = sha256(&fs::read(self.guest.join("base.qcow2"))?);
        let hosts: BTreeMap<_, _> = hosts
            .iter()
            .map(|host| (*host, json!({"uri": self.uri(host, at), "reservedMemoryMib": 0})))
            .collect();
        let image = |volume: &str, sha256: &str| {
            json!({"storagePool": "images", "volume": volume, "format": "qcow2", "sha256": sha256,
                "directBoot": {
                "kernel": self.guest.join("vmlinuz"), "initrd": self.guest.join("initrd.gz"),
                "commandLine": "console=ttyS0 panic=-1 quiet",
            }})
        };
        Ok(json!({
            "virtType": "qemu",
            "hosts": hosts,
            "vmPools": {"default": {"storagePool": "machines", "network": "default", "image": "tiny",
            "maxDiskGb": 100}},
            "networks": {"default": {"network": "default"}},
            "sizes": {
                "small": {"cpus": 1, "memoryMib": 128},
                "large": {"cpus": 2, "memoryMib": 192},
                "huge": {"cpus": 1, "memoryMib": 60_000_000},
            },
            "images": {"tiny": image("base.qcow2", &sha256), "other": image("other.qcow2", &sha256)},
        })
        .to_string())
    }

    /// A driver for these hosts, without any state from another driver.
    pub fn driver(&self) -> Result<LibvirtDriver> {
        self.driver_with(&json!({}))
    }

    /// A driver with a merge patch on its configuration.
    pub fn driver_with(&self, change: &Value) -> Result<LibvirtDriver> {
        let mut config = serde_json::from_str(&self.config()?)?;
        merge(&mut config, change);
        Ok(LibvirtDriver::new(Config::parse(&config.to_string())?))
    }

    /// Runs a program in the namespaces of a host.
    pub fn on_host(&self, host: &str, command: &[&str]) -> Result<()> {
        let ran = Command::new("nsenter")
            .args(["--mount", "--net", "--target", &self.libvirtd(host)?, "--"])
            .args(command)
            .output()?;
        ensure!(
            ran.status.success(),
            "{command:?} on {host}: {}",
            String::from_utf8_lossy(&ran.stderr)
        );
        Ok(())
    }

    /// The process id of a host's libvirtd.
    pub fn libvirtd(&self, host: &str) -> Result<String> {
        let pid = fs::read_to_string(self.of(host).join("run/libvirtd.pid"))?;
        Ok(pid.trim().to_owned())
    }

    /// Sends a signal to a host's libvirtd.
    pub fn signal(&self, host: &str, signal: &str) -> Result<()> {
        let sent = Command::new("kill")
            .args(["-s", signal, &self.libvirtd(host)?])
            .status()?;
        ensure!(sent.success(), "libvirtd of {host} got no {signal}");
        Ok(())
    }

    /// Kills a host's libvirtd, and keeps it down.
    pub fn stop(&self, host: &str) -> Result<()> {
        fs::write(self.of(host).join("down"), "")?;
        self.signal(host, "KILL")
    }

    /// Starts a host's libvirtd again.
    pub fn resume(&self, host: &str) -> Result<()> {
        fs::remove_file(self.of(host).join("down"))?;
        self.ready(host)
    }

    /// Makes a host's libvirtd put guests into control groups. Returns false if this computer has no CPU
    /// control groups of version 1.
    pub async fn use_control_groups(&self, host: &str) -> Result<bool> {
        if !Path::new("/sys/fs/cgroup/cpu/cpu.shares").exists() {
            return Ok(false);
        }
        // Otherwise libvirt would prefer the version 2 hierarchy.
        if Path::new("/sys/fs/cgroup/unified/cgroup.procs").exists() {
            self.on_host(host, &["umount", "/sys/fs/cgroup/unified"])?;
        }
        let file = self.of(host).join("etc/qemu.conf");
        let config = fs::read_to_string(&file)?;
        let changed = config.replace("cgroup_controllers = [ ]", "cgroup_controllers = [ \"cpu\" ]");
        ensure!(
            changed != config,
            "{} has no control groups to change",
            file.display()
        );
        fs::write(&file, changed)?;
        let before = self.libvirtd(host)?;
        self.signal(host, "KILL")?;
        eventually("another libvirtd", async || {
            ensure!(self.libvirtd(host)? != before);
            Ok(())
        })
        .await?;
        self.ready(host)?;
        Ok(true)
    }

    /// Everything that machines have left on the hosts.
    pub fn left(&self) -> Result<Vec<String>> {
        let mut left = Vec::new();
        for host in self.names() {
            left.extend(self.left_on(host)?);
        }
        Ok(left)
    }

    /// Everything that machines have left on a host: domains, files, UEFI variables and running guests.
    pub fn left_on(&self, host: &str) -> Result<Vec<String>> {
        let mut left = Vec::new();
        let mut connect = self.connect(host)?;
        for domain in connect.list_all_domains(0)? {
            left.push(format!("{host}: domain {}", domain.get_name()?));
        }
        connect.close()?;
        for file in fs::read_dir(self.of(host).join("machines"))? {
            left.push(format!("{host}: {}", file?.file_name().to_string_lossy()));
        }
        let nvram = self.of(host).join("lib/qemu/nvram");
        // libvirt creates the folder with its first file.
        for file in nvram
            .exists()
            .then(|| fs::read_dir(nvram))
            .transpose()?
            .into_iter()
            .flatten()
        {
            left.push(format!("{host}: NVRAM {}", file?.file_name().to_string_lossy()));
        }
        let folder = self.of(host).display().to_string();
        for process in fs::read_dir("/proc")? {
            let process = process?.path();
            // The process may have ended by now.
            let command = fs::read(process.join("cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command);
            if command.contains("qemu-system") && command.contains(&folder) {
                left.push(format!("{host}: QEMU, process {}", process.display()));
            }
        }
        Ok(left)
    }

    /// The console of a machine's guest, on any host.
    pub fn console(&self, uuid: &str) -> Result<String> {
        for host in self.names() {
            let path = self.of(host).join(format!("machines/capcmi-{uuid}-console.log"));
            if path.exists() {
                return Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned());
            }
        }
        bail!("no host has a console of {uuid}")
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for (host, child) in &mut self.hosts {
            let asked = Command::new("kill").arg(child.id().to_string()).status();
            if let Err(error) = asked.and_then(|_| child.wait()) {
                eprintln!("{host} could not be ended: {error}");
            }
        }
    }
}

/// The guest, built once for each version of its script.
pub fn guest() -> Result<PathBuf> {
    let script = scripts().join("guest.sh");
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = cache
        .or_else(home)
        .context("neither XDG_CACHE_HOME nor HOME is set")?;
    let version = sha256(&fs::read(&script)?);
    let folder = cache.join("capcmi/libvirt-guest").join(&version[..16]);
    if folder.join("made").exists() {
        return Ok(folder);
    }
    let made = Command::new(script).arg(&folder).output()?;
    ensure!(
        made.status.success(),
        "no guest: {}",
        String::from_utf8_lossy(&made.stderr)
    );
    fs::write(folder.join("made"), "")?;
    Ok(folder)
}

/// The guest's folder with the results of `images.sh`, built once for each version of that script.
pub fn images() -> Result<PathBuf> {
    let (folder, script) = (guest()?, scripts().join("images.sh"));
    let made = folder.join(format!("made-{}", &sha256(&fs::read(&script)?)[..16]));
    if !made.exists() {
        let ran = Command::new(script).arg(&folder).output()?;
        ensure!(
            ran.status.success(),
            "no images: {}",
            String::from_utf8_lossy(&ran.stderr)
        );
        fs::write(made, "")?;
    }
    Ok(folder)
}

/// Applies a JSON merge patch that removes nothing.
fn merge(value: &mut Value, change: &Value) {
    match change {
        Value::Object(fields) if value.is_object() => {
            for (key, field) in fields {
                merge(&mut value[key], field);
            }
        }
        other => *value = other.clone(),
    }
}

/// The SHA-256 in the format of `sha256sum`.
pub fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest
        .iter()
        .fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// A machine in the lab's cluster, with changes of its spec.
pub fn machine(name: &str, change: &serde_json::Value, user_data: &[u8]) -> MachineRef {
    let mut spec = json!({"vmPool": "default", "size": "small", "tags": {
        tags::CLUSTER: CLUSTER, tags::ROLE: "node", tags::MACHINE: format!("{name}-1")
    }});
    for (key, value) in change.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    let secret = (USER_DATA.to_owned(), SecretValue::from(user_data.to_vec()));
    let provider_spec = ProviderSpec(spec.as_object().cloned().unwrap_or_default());
    MachineRef::new(
        name,
        MachineClass {
            provider_spec,
            secrets: [secret].into_iter().collect(),
        },
    )
}

/// Repeats `probe` until it succeeds, and returns its value.
pub async fn eventually<T>(what: &str, mut probe: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        match probe().await {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() >= deadline => {
                return Err(error.context(format!("{what} was awaited")));
            }
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}
