//! The fake driver of machine-controller-manager behind `sdk/go/mcmbridge`, run as a process.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use management_cluster::RunFolder;

use crate::example_driver;
use crate::go::GoDriver;

/// Builds the driver if necessary, starts it at a socket in the folder, and waits until it serves.
///
/// # Errors
/// When there is no `go`, or modules cannot be fetched, or the driver does not compile or ends.
pub async fn mcm_driver(folder: &RunFolder, name: &str) -> Result<GoDriver> {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk/go/mcmbridge");
    let program = example_driver::prepare(&module.join("internal/fakecloud/build.sh")).await?;
    let cloud = folder.path().join(format!("{name}-cloud"));
    let mut command = Command::new(program.join("driver"));
    command.env("FAKE_CLOUD", &cloud);
    let served = example_driver::serve(folder, name, command).await?;
    Ok(GoDriver { served, cloud })
}
