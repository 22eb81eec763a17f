//! The namespaces that a test runs in, so that it touches nothing of its host.

use std::{
    env,
    ffi::OsStr,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};

/// Set inside of the namespaces, to the folder of the run.
const FOLDER: &str = "CAPCMI_CLUSTER_FOLDER";
/// The beginning of the name of a run's folder.
const RUN: &str = "cluster-";

/// Runs the body of a test in new network, mount and PID namespaces: the test runs itself again in them. All
/// processes in them end with that process, and all mounts and interfaces with the last process. `prepare`
/// runs before, with the network of the host, and returns a folder for the folders of runs. A run that failed
/// keeps its folder until the next run. `remove_leftovers` removes what a killed run with that folder has
/// left elsewhere.
///
/// # Errors
/// When the namespaces can't be made, or the body fails.
pub fn enter(
    test: &str,
    prepare: impl FnOnce() -> Result<PathBuf>,
    remove_leftovers: impl Fn(&Path) -> Result<()>,
    body: impl AsyncFnOnce(&Path) -> Result<()>,
) -> Result<()> {
    if let Some(folder) = env::var_os(FOLDER) {
        return inside(Path::new(&folder), body);
    }
    let below = prepare()?;
    let _turn = take_turn(&below, remove_leftovers)?;
    outside(test, &below)
}

/// Waits until no other run takes place, and removes the leftovers. The next run waits until the returned
/// file is closed: a computer may be too small for two.
fn take_turn(below: &Path, remove_leftovers: impl Fn(&Path) -> Result<()>) -> Result<File> {
    let turn = File::create(below.join("runs.lock")).context("opening the lock of the runs")?;
    turn.lock().context("waiting for another run")?;
    for entry in fs::read_dir(below).with_context(|| below.display().to_string())? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(RUN) {
            let folder = entry.path();
            remove_leftovers(&folder)?;
            fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
        }
    }
    Ok(turn)
}

fn outside(test: &str, below: &Path) -> Result<()> {
    let folder = tempfile::Builder::new().prefix(RUN).tempdir_in(below)?;
    let status = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "unshare"])
        .args([
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        // Reaps the processes whose parents have ended.
        .args(["tini", "--"])
        .arg(env::current_exe()?)
        .args(["--exact", test, "--include-ignored", "--nocapture"])
        .env(FOLDER, folder.path())
        .env("TMPDIR", folder.path())
        .stdin(Stdio::null())
        .status()
        .context("entering new namespaces, which needs root")?;
    if !status.success() {
        println!("logs are kept until the next run in {}", folder.keep().display());
    }
    ensure!(
        status.success(),
        "the test failed inside of its namespaces: {status}"
    );
    Ok(())
}

fn inside(folder: &Path, body: impl AsyncFnOnce(&Path) -> Result<()>) -> Result<()> {
    run("ip", ["link", "set", "lo", "up"])?;
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(body(folder))
}

/// Runs a program and returns its output.
///
/// # Errors
/// When it can't be started or fails; with its standard error.
pub fn run(program: &str, arguments: impl IntoIterator<Item: AsRef<OsStr>>) -> Result<String> {
    output(Command::new(program).args(arguments))
}

/// As [`run`], of a prepared command.
///
/// # Errors
/// As [`run`].
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed: {errors}");
    String::from_utf8(output.stdout).context("the output is no text")
}
