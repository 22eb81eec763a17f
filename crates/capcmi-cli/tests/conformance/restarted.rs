//! A driver in a process of its own that the hook `restart` kills and starts again, as its author has it:
//! with `restart.sh`, and with the author's configuration.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use management_cluster::{RunFolder, eventually};
use serde_json::{Value, json};
use testbed::go_driver;
use tokio::net::UnixStream;

/// The processes, one after the other. The last one ends with this.
pub struct Restarted {
    /// `CMI_ENDPOINT`.
    pub endpoint: String,
    /// What they log.
    log: PathBuf,
    /// The hook.
    hook: Value,
    pid_file: PathBuf,
}

impl Restarted {
    /// Starts a driver at a socket in the folder, and waits until it serves. Of the command, the program, its
    /// arguments and what it adds to the environment count.
    pub async fn start(folder: &RunFolder, name: &str, command: &Command) -> Result<Self> {
        let path = |suffix: &str| folder.path().join(format!("{name}.{suffix}"));
        let text = |path: PathBuf| path.display().to_string();
        let socket = path("sock");
        let endpoint = format!("unix://{}", socket.display());
        let (pid_file, log) = (path("pid"), path("log"));
        let mut line = vec![
            text(go_driver().join("../restart.sh")),
            text(pid_file.clone()),
            text(log.clone()),
            "env".to_owned(),
            format!("CMI_ENDPOINT={endpoint}"),
        ];
        for (key, value) in command.get_envs() {
            let value = value.context("a variable is set")?;
            line.push(format!("{}={}", key.display(), value.display()));
        }
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        line.extend(words.map(|word| word.display().to_string()));
        let restarted = Self {
            endpoint,
            log,
            hook: json!(line),
            pid_file,
        };
        let started = tokio::process::Command::new(&line[0]).args(&line[1..]).status();
        ensure!(started.await?.success(), "it was not started");
        eventually(Duration::from_mins(2), "the driver serves", async || {
            Ok(UnixStream::connect(&socket).await?)
        })
        .await?;
        Ok(restarted)
    }
}

impl Drop for Restarted {
    fn drop(&mut self) {
        if let Ok(pid) = std::fs::read_to_string(&self.pid_file) {
            let _ended = Command::new("kill").args(["-KILL", pid.trim()]).status();
        }
    }
}

/// What the driver's author wrote of it, in `conformance.yaml` of its folder. These words of its hooks are
/// others in this run; the hook `restart` is for a driver that it has started, and so are the logs.
pub fn configuration(folder: &Path, words: &[(&str, &str)], restarted: Option<&Restarted>) -> Result<Value> {
    let path = folder.join("conformance.yaml");
    let yaml = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let mut config: Value = serde_saphyr::from_str(&yaml).with_context(|| path.display().to_string())?;
    let hooks = config["hooks"].as_object_mut().context("there are hooks")?;
    hooks.remove("restart").context("there is a hook `restart`")?;
    for command in hooks.values_mut() {
        let command = command.as_array_mut().context("a hook is a list")?;
        for (theirs, here) in words {
            let mut found = command.iter_mut().filter(|word| *word == theirs);
            let word = found.next().with_context(|| format!("a hook has {theirs}"))?;
            *word = json!(here);
        }
    }
    let log = restarted.map(|driver| {
        hooks.insert("restart".to_owned(), driver.hook.clone());
        &driver.log
    });
    config["logs"] = json!(Vec::from_iter(log));
    Ok(config)
}
