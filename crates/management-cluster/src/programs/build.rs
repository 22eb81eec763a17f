//! Building Go programs once into a folder of the user's cache.

use std::{
    fs::{self, File},
    io::{ErrorKind, Read, Write, stderr},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};

use super::go_module::{GoModule, Package};

/// How often a running build reports that it still runs.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(15);
/// Names the folder of a build that runs.
const BUILD_PREFIX: &str = ".building-";

/// Builds those of `packages` which `folder` lacks and then calls `finish` with the folder
/// of the module's `go.mod`.
///
/// The lock keeps test binaries that start together from building twice. A program gets its name only when it
/// is complete, so an interrupted build leaves no broken program.
pub(super) fn build_missing(
    module: &GoModule,
    packages: &[&Package],
    folder: &Path,
    finish: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let lock = File::create(folder.join(".lock")).context("creating the lock of the build")?;
    lock.lock().context("waiting for another process's build")?;
    remove_interrupted_builds(folder)?;
    let sources = tempfile::Builder::new().prefix(BUILD_PREFIX).tempdir_in(folder)?;
    fs::write(sources.path().join("go.mod"), module.go_mod)?;
    fs::write(sources.path().join("go.sum"), module.go_sum)?;
    for (path, text) in module.sources {
        let path = sources.path().join(path);
        let parent = path.parent().context("a source file without a folder")?;
        fs::create_dir_all(parent).and_then(|()| fs::write(&path, text))?;
    }
    let missing: Vec<&Package> = packages
        .iter()
        .copied()
        .filter(|package| !folder.join(package.program).is_file())
        .collect();
    if !missing.is_empty() {
        build(module, &missing, sources.path(), folder)
            .with_context(|| format!("building the programs of programs/{}/go.mod", module.name))?;
    }
    finish(sources.path())
}

/// Only the holder of the lock builds here, so any build folder is from a killed build.
fn remove_interrupted_builds(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(BUILD_PREFIX) {
            fs::remove_dir_all(entry.path()).context("removing what an interrupted build has left")?;
        }
    }
    Ok(())
}

fn build(module: &GoModule, packages: &[&Package], sources: &Path, folder: &Path) -> Result<()> {
    let output = sources.join("output");
    fs::create_dir(&output)?;
    let names: Vec<&str> = packages.iter().map(|package| package.program).collect();
    let names = names.join(", ");
    report(&format!(
        "building {names} (only the first time; this takes minutes)"
    ));
    let started = Instant::now();
    let go = Command::new("go")
        .args(["build", "-mod=readonly", "-buildvcs=false"])
        .args(module.build_flags)
        .arg("-o")
        // `go build` treats its output as a folder if there are several packages or if the name ends in a
        // slash.
        .arg(output.join(""))
        .args(packages.iter().map(|package| package.path))
        .current_dir(sources)
        .env("CGO_ENABLED", "0")
        .env("GOWORK", "off")
        // An interrupted Go leaves its own temporary folder behind; this one is removed with the sources.
        .env("GOTMPDIR", sources)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let go = go.map_err(|error| match error.kind() {
        ErrorKind::NotFound => anyhow!(
            "`go` is not on the PATH: install Go (https://go.dev/dl), or point KUBEBUILDER_ASSETS at a \
                folder with {names}"
        ),
        _ => anyhow!(error).context("starting go build"),
    })?;
    wait_with_progress(go, &names, started)?;
    for package in packages {
        let built = output.join(built_name(package));
        fs::rename(&built, folder.join(package.program))
            .with_context(|| format!("storing {}", built.display()))?;
    }
    report(&format!("built {names} in {} s", started.elapsed().as_secs()));
    Ok(())
}

/// `go build` names a program after the last element of its import path that is not a major version.
fn built_name(package: &Package) -> &str {
    let is_version = |element: &str| {
        element
            .strip_prefix('v')
            .is_some_and(|n| n.parse::<u32>().is_ok())
    };
    package
        .path
        .rsplit('/')
        .find(|element| !is_version(element))
        .unwrap_or(package.program)
}

fn wait_with_progress(mut go: Child, names: &str, started: Instant) -> Result<()> {
    let mut messages = go.stderr.take().context("go build has no standard error")?;
    let reader = thread::spawn(move || {
        let mut text = String::new();
        messages.read_to_string(&mut text).map(|_| text)
    });
    let mut reported = started;
    let status = loop {
        if let Some(status) = go.try_wait().context("waiting for go build")? {
            break status;
        }
        if reported.elapsed() >= PROGRESS_INTERVAL {
            reported = Instant::now();
            report(&format!("building {names}: {} s", started.elapsed().as_secs()));
        }
        thread::sleep(Duration::from_millis(100));
    };
    if status.success() {
        return Ok(());
    }
    let messages = reader
        .join()
        .map_err(|_| anyhow!("reading the messages of go build"))??;
    bail!("go build ended with {status}:\n{messages}")
}

/// Writes around `eprintln!`, whose output the test harness would hold back until the test ends.
fn report(line: &str) {
    let _ = writeln!(stderr(), "management-cluster: {line}");
}
