//! A network namespace with a driver, and everything that its machines have.

use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use capcmi_driver_container::identity::{MachineKey, Names as _};
use capcmi_driver_container::state::StateFolder;
use cmi_driver::{
    Driver as _, MachineClass, MachineRef, ProviderSpec, Readiness, SecretValue, USER_DATA, tags,
};
use cmi_grpc::client::{Deadlines, GrpcConfig, GrpcDriver};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

/// The cluster of all machines.
pub const CLUSTER: &str = "lab";
/// The longest time for anything: far above the usual time in an emulated guest on a busy computer.
pub const DEADLINE: Duration = Duration::from_mins(5);
/// Boots take CPU time: one lab at a time is enough for two processors.
static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// A driver in its own network namespace. Its containers end when this is dropped.
pub struct Lab {
    /// The process of the driver.
    plugin: Mutex<Option<Child>>,
    namespace: String,
    folder: TempDir,
    _alone: tokio::sync::MutexGuard<'static, ()>,
}

impl Lab {
    /// Starts the driver.
    pub async fn start() -> Result<Self> {
        let lab = Self::prepared().await?;
        lab.start_driver()?;
        Ok(lab)
    }

    /// Makes everything but the driver.
    pub async fn prepared() -> Result<Self> {
        let alone = ONE_AT_A_TIME.lock().await;
        run("prepare.sh", Command::new(script("prepare.sh")).arg("--check"))?;
        let image = run("image.sh", &mut Command::new(script("image.sh")))?;
        let image = PathBuf::from(image.trim());
        // Beside the image, so that both are on one file system.
        let cache = image.parent().context("the image is in no folder")?;
        let folder = tempfile::Builder::new().prefix("lab-").tempdir_in(cache)?;
        let namespace = format!("capcmi-{}", Uuid::new_v4().simple());
        run("ip", Command::new("ip").args(["netns", "add", &namespace]))?;
        let lab = Self {
            plugin: Mutex::default(),
            namespace,
            folder,
            _alone: alone,
        };
        run("tiny.sh", Command::new(script("tiny.sh")).arg(lab.at("tiny")))?;
        fs::create_dir(lab.at("faults"))?;
        fs::copy(script("runtime.sh"), lab.at("runtime.sh"))?;
        fs::create_dir(lab.at("programs"))?;
        fs::copy(script("timeout.sh"), lab.at("programs/timeout"))?;
        lab.configure(&json!({
            "stateDir": lab.at("state"),
            "hosts": {
                "host-a": {"memoryMib": 100_000}, "host-b": {"memoryMib": 100_000},
                // Less than the smallest size.
                "host-full": {"memoryMib": 64},
            },
            "vmPools": {"default": {"image": "tiny"}},
            "sizes": {
                "small": {"cpus": 1, "memoryMib": 256},
                "large": {"cpus": 2, "memoryMib": 512},
                "huge": {"cpus": 1, "memoryMib": 60_000_000},
            },
            "images": {
                "tiny": lab.at("tiny"), "other": lab.at("tiny"),
                "debian": image, "missing": lab.at("missing"),
            },
            "bridge": {
                "name": "br-lab",
                "address": "192.168.150.1/24",
                "dhcpRange": {"first": "192.168.150.50", "last": "192.168.150.250"},
            },
            "runtime": lab.at("runtime.sh"),
        }))?;
        Ok(lab)
    }

    /// A path in the folder of the lab.
    pub fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The state folder of the driver.
    pub fn state(&self) -> StateFolder {
        StateFolder::new(&self.at("state"))
    }

    /// Writes the configuration of the driver.
    pub fn configure(&self, config: &Value) -> Result<()> {
        Ok(fs::write(self.at("driver.yaml"), config.to_string())?)
    }

    /// The endpoint of the driver.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.at("driver.sock").display())
    }

    /// A command in the network namespace of the driver.
    pub fn inside(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", self.namespace))
            .arg(program);
        command
    }

    /// Starts the driver, and does not wait for it.
    pub fn start_driver(&self) -> Result<()> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.at("driver.log"))?;
        let path = std::env::var("PATH")?;
        let plugin = self
            .inside(env!("CARGO_BIN_EXE_capcmi-driver-container"))
            .env("PATH", format!("{}:{path}", self.at("programs").display()))
            .args(["--endpoint", &self.endpoint(), "--config"])
            .arg(self.at("driver.yaml"))
            // A file that the driver or its programs put in their working folder would stay.
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("starting the driver")?;
        fs::write(self.at("driver.pid"), plugin.id().to_string())?;
        *self.plugin.lock().unwrap() = Some(plugin);
        Ok(())
    }

    /// Waits until the driver accepts connections.
    pub fn serves(&self) -> Result<()> {
        self.waits("a driver that serves", || {
            UnixStream::connect(self.at("driver.sock")).is_ok()
        })
    }

    fn waits(&self, what: &str, is_so: impl Fn() -> bool) -> Result<()> {
        let deadline = std::time::Instant::now() + DEADLINE;
        while !is_so() {
            let is_late = std::time::Instant::now() >= deadline;
            ensure!(!is_late, "the test waited for {what}: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Kills the driver without warning.
    pub fn kill_driver(&self) -> Result<()> {
        if let Some(mut plugin) = self.plugin.lock().unwrap().take() {
            plugin.kill()?;
            plugin.wait()?;
        }
        Ok(())
    }

    /// Asks the driver to end, and waits for it.
    pub fn stop_driver(&self) -> Result<()> {
        if let Some(mut plugin) = self.plugin.lock().unwrap().take() {
            run("kill", Command::new("kill").arg(plugin.id().to_string()))?;
            ensure!(plugin.wait()?.success(), "the driver ended with an error");
        }
        Ok(())
    }

    /// A client of the driver, once the driver is ready.
    pub async fn client(&self) -> Result<GrpcDriver> {
        let config = GrpcConfig {
            endpoint: Some(self.endpoint()),
            ..GrpcConfig::default()
        };
        let client = GrpcDriver::new(&config, Deadlines::new([]))?;
        eventually("a driver that is ready", async || {
            ensure!(client.probe().await? == Readiness::Ready);
            Ok(())
        })
        .await
        .with_context(|| self.log())?;
        Ok(client)
    }

    /// The log of the driver.
    pub fn log(&self) -> String {
        fs::read_to_string(self.at("driver.log")).unwrap_or_default()
    }

    /// Runs runc on the driver's containers.
    pub fn runc(&self, arguments: &[&str]) -> Result<String> {
        let root = self.state().runtime();
        run(
            "runc",
            Command::new("runc").arg("--root").arg(root).args(arguments),
        )
    }

    /// The names of the containers.
    pub fn containers(&self) -> Result<Vec<String>> {
        let list = self.runc(&["list", "--quiet"])?;
        Ok(list.lines().map(str::to_owned).collect())
    }

    /// The folder of a machine.
    pub fn machine(&self, name: &str, cluster: &str) -> PathBuf {
        self.state().machine(&key(name, cluster).folder_name())
    }

    /// The console of a machine of the lab's cluster.
    pub fn console(&self, name: &str) -> Result<String> {
        Ok(fs::read_to_string(
            self.machine(name, CLUSTER).join("console.log"),
        )?)
    }

    /// Everything that machines have: containers, processes, control groups, mounts, interfaces, leases and
    /// folders.
    pub fn left(&self) -> Result<Vec<String>> {
        let mut left = self.containers()?;
        left.extend(self.processes("state/machines")?);
        left.extend(self.control_groups()?);
        left.extend(
            fs::read_to_string("/proc/self/mountinfo")?
                .lines()
                .filter_map(|line| self.mount(line)),
        );
        let links = output(self.inside("ip").args(["-brief", "link"]))?;
        left.extend(
            links
                .lines()
                .filter(|line| line.starts_with("ve"))
                .map(str::to_owned),
        );
        left.extend(
            lines(&self.state().dnsmasq("leases"))
                .into_iter()
                .filter(|line| !line.starts_with("duid")),
        );
        for folder in ["state/machines", "state/scratch"] {
            left.extend(entries(&self.at(folder))?);
        }
        // The driver's programs put nothing anywhere else.
        let known = [
            "driver.log",
            "driver.pid",
            "driver.sock",
            "driver.yaml",
            "faults",
            "programs",
            "runtime.sh",
            "state",
            "tiny",
        ];
        left.extend(
            entries(self.folder.path())?
                .into_iter()
                .filter(|name| !known.contains(&name.as_str())),
        );
        Ok(left)
    }

    /// The processes with a path of the lab in their arguments. conmon has the machine's folder there.
    pub fn processes(&self, path: &str) -> Result<Vec<String>> {
        let path = self.at(path).display().to_string();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")? {
            // A process that has ended has no command line.
            let command = fs::read(entry?.path().join("cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            if command.contains(&path) {
                found.push(command);
            }
        }
        Ok(found)
    }

    /// Ends the driver, its containers and its DHCP server.
    pub fn end(&self) -> Result<()> {
        self.kill_driver()?;
        // A program of the driver may be at work.
        if let Ok(lock) = File::open(self.at("state/lock")) {
            lock.lock()?;
        }
        for container in self.containers()? {
            self.runc(&["delete", "--force", &container])?;
        }
        let pid = self.state().dnsmasq("pid");
        if let Some(process) = lines(&pid).first() {
            run("kill", Command::new("kill").arg(process))?;
            // The DHCP server removes the file at its end.
            self.waits("the end of the DHCP server", || !pid.exists())?;
        }
        Ok(())
    }

    /// The control groups of machines.
    fn control_groups(&self) -> Result<Vec<String>> {
        let beginning = self.state().control_groups();
        let mut found = Vec::new();
        for hierarchy in entries(Path::new("/sys/fs/cgroup"))? {
            let hierarchy = Path::new("/sys/fs/cgroup").join(hierarchy);
            // With version 2, the control group itself.
            found.extend(
                hierarchy
                    .to_str()
                    .filter(|name| name.contains(&beginning))
                    .map(str::to_owned),
            );
            if hierarchy.is_dir() {
                found.extend(
                    entries(&hierarchy)?
                        .into_iter()
                        .filter(|name| name.starts_with(&beginning)),
                );
            }
        }
        Ok(found)
    }

    fn mount(&self, line: &str) -> Option<String> {
        let state = self.at("state").display().to_string();
        line.contains(&format!("{state}/")).then(|| line.to_owned())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let removed = self.end().and_then(|()| {
            run(
                "ip",
                Command::new("ip").args(["netns", "delete", &self.namespace]),
            )
        });
        if let Err(error) = removed {
            eprintln!("the lab could not be removed: {error:#}");
        }
    }
}

/// The names in a folder; none when it does not exist.
fn entries(folder: &Path) -> Result<Vec<String>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect()
}

fn lines(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/containers/lab")
        .join(name)
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed: {said}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn run(what: &str, command: &mut Command) -> Result<String> {
    output(command).with_context(|| format!("running {what}"))
}

/// The key of a machine without identity: its folder is that of every identity.
pub fn key(name: &str, cluster: &str) -> MachineKey {
    MachineKey {
        cluster: cluster.to_owned(),
        name: name.to_owned(),
        identity: String::new(),
    }
}

/// A machine of the cluster, with a change of its spec.
pub fn machine(name: &str, change: &Value, user_data: &[u8]) -> MachineRef {
    let mut spec = json!({"vmPool": "default", "size": "small", "tags": {
        tags::CLUSTER: CLUSTER, tags::ROLE: "node", tags::MACHINE: format!("{name}-1")
    }});
    for (key, value) in change.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    let secret = (USER_DATA.to_owned(), SecretValue::from(user_data.to_vec()));
    let class = MachineClass {
        provider_spec: ProviderSpec(spec.as_object().cloned().unwrap_or_default()),
        secrets: [secret].into_iter().collect(),
    };
    MachineRef::new(name, class)
}

/// Calls `probe` until it is OK, and returns its value.
pub async fn eventually<T>(what: &str, mut probe: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        match probe().await {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() >= deadline => {
                return Err(error.context(format!("the test waited for {what}")));
            }
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}
