//! The containers of machines: runc, and conmon, which writes their consoles to files.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use cmi_driver::{Code, Result, Status};
use serde::Deserialize;
use uuid::Uuid;

use crate::bundle::{self, PERIOD};
use crate::config::Size;
use crate::errors::{self, status};
use crate::identity::Names as _;
use crate::layers::Layers;
use crate::programs::{self, Programs};
use crate::record::Record;
use crate::state::StateFolder;

/// Mounts the root file system and creates the container.
const START: &str = include_str!("start.sh");
/// The file of a console's output in a machine's folder.
pub const CONSOLE_LOG: &str = "console.log";
/// The real-time signal 4: systemd powers off.
const POWER_OFF: &str = "38";
/// The largest console log, bytes. conmon starts the file again when it is full.
const MAX_CONSOLE: &str = "16777216";
/// How often the driver asks for the list of containers before it gives up.
const LISTS: u32 = 10;
/// How long conmon may take to end after its container.
const CONMON_ENDS_WITHIN: Duration = Duration::from_secs(10);
/// The pause between two looks for conmon.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// The state of a machine's container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// There is none.
    Nothing,
    /// Its first process waits for the start.
    Created,
    /// Its first process has this id.
    Running(u32),
    /// Its first process has ended.
    Stopped,
}

/// The answer of `runc state`, and an element of the answer of `runc list`.
#[derive(Debug, Deserialize)]
struct RuntimeState {
    id: String,
    status: String,
    pid: u32,
}

/// The answer of conmon.
#[derive(Debug, Deserialize)]
struct Created {
    /// The container's first process; negative after a failure.
    pid: i64,
    #[serde(default)]
    message: String,
}

/// The runtime of one state folder.
#[derive(Debug)]
pub struct Runtime<'a> {
    /// The program of the runtime.
    pub program: &'a str,
    /// The folder with the runtime's state.
    pub state: &'a StateFolder,
    /// How programs are run.
    pub programs: &'a Programs,
}

impl Runtime<'_> {
    fn run(&self, arguments: &[&str]) -> Result<String> {
        let root = self.state.runtime();
        let options = ["--root", &root.to_string_lossy(), "--log-format", "text"];
        self.programs.run(self.program, &[&options, arguments].concat())
    }

    /// Returns the state of a container.
    pub fn state(&self, id: Uuid) -> Result<Container> {
        let answer = match self.run(&["state", &id.to_string()]) {
            Err(status) if status.message().contains("does not exist") => return Ok(Container::Nothing),
            answer => answer?,
        };
        let state: RuntimeState = parse("state", &answer)?;
        Ok(match state.status.as_str() {
            "creating" | "created" => Container::Created,
            "running" | "pausing" | "paused" => Container::Running(state.pid),
            _ => Container::Stopped,
        })
    }

    /// Returns the names of all containers.
    pub fn list(&self) -> Result<Vec<String>> {
        let mut answer = self.run(&["list", "--format", "json"]);
        for _ in 1..LISTS {
            // runc fails when another call deletes a container at this moment.
            let Err(status) = &answer else { break };
            if !status.message().contains("no such file or directory") {
                break;
            }
            answer = self.run(&["list", "--format", "json"]);
        }
        let states: Option<Vec<RuntimeState>> = parse("list", &answer?)?;
        Ok(states.into_iter().flatten().map(|state| state.id).collect())
    }

    /// Creates the container of a machine, and returns the id of its first process, which waits for
    /// [`Self::start`].
    pub fn create(&self, record: &Record, folder: &Path) -> Result<u32> {
        let layers = Layers::new(folder);
        let failed = |error| status("writing the configuration of the container", error);
        let config = bundle::config(record, &layers, &self.state.control_groups()).to_string();
        fs::write(folder.join("config.json"), config).map_err(failed)?;
        fs::create_dir_all(folder.join("conmon")).map_err(failed)?;
        let answer = self.programs.run("unshare", &self.arguments(record, folder)?)?;
        let created: Created = parse("create", &answer)?;
        u32::try_from(created.pid).map_err(|_| {
            let what = format!("creating the container failed: {}", created.message.trim());
            Status::new(errors::of_program(&created.message), what)
        })
    }

    /// Returns the arguments of `unshare`: the script, the mount of the root file system, and conmon.
    fn arguments(&self, record: &Record, folder: &Path) -> Result<Vec<String>> {
        let layers = Layers::new(folder);
        let id = record.key().uuid();
        let own = folder.join("conmon");
        let conmon = programs::find("conmon")?;
        let runtime = programs::find(self.program)?;
        let namespace = ["--mount", "--propagation", "private"];
        let script = ["sh", "-ec", START, "start.sh"];
        let mount = [
            format!(
                "lowerdir={},upperdir={},workdir={}",
                record.image_folder.display(),
                layers.upper().display(),
                layers.work().display()
            ),
            layers.root().display().to_string(),
        ];
        let monitor = [
            conmon.display().to_string(),
            "--terminal".to_owned(),
            "--full-attach".to_owned(),
            format!("--cid={id}"),
            format!("--cuuid={id}"),
            format!("--bundle={}", folder.display()),
            format!("--runtime={}", runtime.display()),
            format!("--runtime-arg=--root={}", self.state.runtime().display()),
            format!("--log-path=k8s-file:{}", folder.join(CONSOLE_LOG).display()),
            format!("--log-size-max={MAX_CONSOLE}"),
            format!("--conmon-pidfile={}/pid", own.display()),
            // By default, conmon writes this file into the driver's working folder.
            format!("--container-pidfile={}/container", own.display()),
            format!("--exit-dir={}", own.display()),
        ];
        let start = namespace.iter().chain(&script).map(|word| (*word).to_owned());
        Ok(start.chain(mount).chain(monitor).collect())
    }

    /// Lets the first process of a container run.
    pub fn start(&self, id: Uuid) -> Result<()> {
        self.run(&["start", &id.to_string()]).map(drop)
    }

    /// Asks a container to power off.
    pub fn power_off(&self, id: Uuid) -> Result<()> {
        self.run(&["kill", &id.to_string(), POWER_OFF]).map(drop)
    }

    /// Changes the limits of a container that exists.
    pub fn resize(&self, id: Uuid, size: Size) -> Result<()> {
        let (memory, quota) = (bundle::memory(size).to_string(), bundle::quota(size).to_string());
        let (period, id) = (PERIOD.to_string(), id.to_string());
        let cpu = ["--cpu-quota", &quota, "--cpu-period", &period];
        self.run(&[&["update", "--memory", &memory], &cpu[..], &[&id]].concat())
            .map(drop)
    }

    /// Ends and removes a container, if there is one, with its processes, mounts and control groups.
    pub fn delete(&self, id: Uuid, folder: &Path) -> Result<()> {
        self.run(&["delete", "--force", &id.to_string()])?;
        let deadline = Instant::now() + CONMON_ENDS_WITHIN;
        while has_conmon(id, folder) {
            if Instant::now() >= deadline {
                let what = format!("conmon of container {id} has not ended");
                return Err(Status::new(Code::Aborted, what));
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
        Ok(())
    }
}

/// Whether the machine's conmon runs. It keeps the root file system mounted.
fn has_conmon(id: Uuid, folder: &Path) -> bool {
    let pid = fs::read_to_string(folder.join("conmon/pid")).ok();
    let pid = pid.and_then(|pid| pid.trim().parse().ok());
    pid.is_some_and(|pid| programs::command_line(pid).contains(&format!("--cid={id}")))
}

fn parse<'a, T: Deserialize<'a>>(command: &str, answer: &'a str) -> Result<T> {
    serde_json::from_str(answer).map_err(|error| {
        let what = format!("the runtime's answer to `{command}` cannot be read: {error}");
        Status::new(Code::Internal, what).with_source(error)
    })
}
