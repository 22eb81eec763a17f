//! A release, as clusterctl reads it.

use std::path::Path;
use std::process::Command;

/// `make release` of a version, into a folder. Without a list of crates, because building its tool takes two
/// minutes: append `SBOM=yes` for the list.
pub fn make_release(folder: &Path, version: &str, kubectl: &Path) -> Command {
    let mut make = Command::new("make");
    make.arg("release")
        .arg(format!("VERSION={version}"))
        .arg(format!("RELEASE_DIR={}", folder.display()))
        .arg(format!("KUBECTL={}", kubectl.display()))
        .arg("SBOM=no")
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    make
}
