//! `capcmi image`: checks a node image before a machine boots from it.

mod disk;

use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use clap::{Args, Subcommand};

use self::disk::with_mounted;
use super::table::table;
use crate::node_image::{REQUIREMENTS, Root};
use capcmi::manager::cli::terminal::print_line;
use capcmi::manager::cli::{CommandError, ResultExt as _};
use cmi_driver::ErrorChain;

/// Look after node images.
#[derive(Debug, Subcommand)]
pub(super) enum ImageCommand {
    /// Check whether an image has the parts of a Kubernetes node. Use it only on images that you trust: it
    /// runs their kubelet and kubeadm to get the versions.
    Check(CheckArgs),
}

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// A folder with a root file system, or a disk image such as a qcow2 file. A disk image needs guestmount.
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
}

pub(super) fn execute(command: ImageCommand) -> Result<(), CommandError> {
    match command {
        ImageCommand::Check(args) => check(args),
    }
}

fn check(CheckArgs { image }: CheckArgs) -> Result<(), CommandError> {
    let metadata = image.metadata();
    let metadata = metadata
        .with_context(|| format!("reading the image {}", image.display()))
        .misconfigured()?;
    if metadata.is_dir() {
        return report(&Root::new(&image));
    }
    with_mounted(&image, "guestmount", |folder| report(&Root::new(folder))).misconfigured()?
}

/// Prints the result of each check.
fn report(root: &Root) -> Result<(), CommandError> {
    let mut lines = vec![["RESULT", "REQUIREMENT", "FINDING"].map(str::to_owned)];
    for (name, check) in REQUIREMENTS {
        let (result, finding) = match check(root) {
            Ok(found) => ("ok", found),
            Err(error) => ("failed", ErrorChain(error.as_ref()).to_string()),
        };
        lines.push([result.to_owned(), name.to_owned(), finding]);
    }
    print_line(table(&lines).trim_end());
    let failed = lines.iter().filter(|[result, ..]| result == "failed").count();
    match failed {
        0 => Ok(()),
        _ => Err(anyhow!("{failed} of {} requirements are not met", REQUIREMENTS.len()).into()),
    }
}
