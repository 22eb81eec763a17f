//! A disk image, whose file systems the programs of libguestfs mount.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context as _, Result, anyhow, ensure};

/// Calls a function with the folder of a disk image's root file system, mounted read-only.
pub(super) fn with_mounted<T>(image: &Path, guestmount: &str, use_it: impl FnOnce(&Path) -> T) -> Result<T> {
    let folder = tempfile::tempdir().context("making a folder to mount the image in")?;
    let mut mount = Command::new(guestmount);
    mount
        .args(["--ro", "--inspector", "--add"])
        .args([image, folder.path()]);
    let mounted = mount
        .output()
        .map_err(|error| explained(error, guestmount, image))?;
    check_exit(&mounted, "mounting the image")?;
    let used = use_it(folder.path());
    let unmounted = Command::new("guestunmount").arg(folder.path()).output();
    check_exit(
        &unmounted.context("starting guestunmount")?,
        "unmounting the image",
    )?;
    Ok(used)
}

fn explained(error: io::Error, guestmount: &str, image: &Path) -> anyhow::Error {
    match error.kind() {
        ErrorKind::NotFound => anyhow!(
            "{guestmount} is not installed, so {} cannot be read: install it (Debian: guestmount, Fedora: \
             libguestfs), or unpack the image and name its folder",
            image.display()
        ),
        _ => anyhow!(error).context(format!("starting {guestmount}")),
    }
}

fn check_exit(output: &Output, action: &str) -> Result<()> {
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{action}: {}", errors.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_guestmount_is_named_with_the_remedy() {
        let mounted = with_mounted(Path::new("node.qcow2"), "/missing/guestmount", |_| ());
        let error = mounted.unwrap_err().to_string();
        assert!(error.contains("/missing/guestmount is not installed"), "{error}");
        assert!(error.contains("unpack the image"), "{error}");
    }
}
