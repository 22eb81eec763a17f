//! The programs of this workspace.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow, ensure};

/// Returns the path of a program after building it if it is out of date: `capcmi`, `capcmi-manager`, or an
/// example, `examples/quickstart` or `examples/folder`.
///
/// Before cargo runs a test, it builds only the programs of the same package.
///
/// # Errors
/// When cargo can't build them.
pub fn program(name: &str) -> Result<PathBuf> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    let folder = folder.as_ref().map_err(|error| anyhow!("{error}"))?;
    Ok(folder.join(name))
}

/// Builds the programs beside the running one, with its profile, and returns their folder.
fn build() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    // target/PROFILE/deps/NAME, or target/PROFILE/examples/NAME.
    let folder = own.parent().and_then(Path::parent);
    let folder = folder.context("this program is in no target folder")?;
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // The packages of `make test`, and an example, which has cargo enable the features of dev-dependencies:
    // another selection has other features, and builds dependencies again.
    cargo
        .args(["build", "--quiet", "--locked", "--profile", profile])
        .args(["--workspace", "--exclude", "capcmi-driver-libvirt"])
        .args([
            "--bin",
            "capcmi",
            "--bin",
            "capcmi-manager",
            "--example",
            "quickstart",
            "--example",
            "folder",
        ])
        .arg("--target-dir")
        .arg(folder.parent().unwrap_or(folder))
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    // Cargo sets these for a test, and build scripts that read them would run again.
    for (name, _) in std::env::vars_os() {
        let is_of_the_test =
            |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        if name.to_str().is_some_and(is_of_the_test) {
            cargo.env_remove(name);
        }
    }
    let built = cargo.status().context("starting cargo")?;
    ensure!(built.success(), "building the programs: {built}");
    Ok(folder.to_owned())
}
