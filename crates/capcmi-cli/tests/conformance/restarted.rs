//! A driver process that the hook `restart` kills and starts again, with the author's `restart.sh` and
//! configuration.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use management_cluster::{RunFolder, eventually};
use serde_json::{Value, json};
use testbed::go_driver;
use tokio::net::UnixStream;

/// The successive processes. The last process ends when this value is dropped.
pub struct Restarted {
    /// `CMI_ENDPOINT`.
    pub endpoint: String,
    log: PathBuf,
    hook: Value,
    pid_file: PathBuf,
}

impl Restarted {
    /// Starts a driver at a socket in the folder, and waits until it serves. Uses the program, the arguments
    /// and the added environment of the command.
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

/// Returns the author's settings from `conformance.yaml` in the folder. Replaces these words of its hooks.
/// The hook `restart` and the logs are of the driver that this run has started.
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
