//! The driver in `examples/drivers/go`, run as a process.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use management_cluster::RunFolder;

use crate::example_driver::{self, ExampleDriver};

/// The driver's program. The first request builds it.
#[derive(Clone, Debug)]
pub struct Go {
    program: PathBuf,
}

/// A running driver, and the folder that is its back end.
#[derive(Debug)]
pub struct GoDriver {
    /// The process, and where it serves.
    pub served: ExampleDriver,
    /// Where its VMs are.
    pub cloud: PathBuf,
}

/// `examples/drivers/go`.
pub fn go_driver() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/drivers/go")
}

impl Go {
    /// Finds or builds the program.
    ///
    /// # Errors
    /// When there is no `go`, or modules cannot be fetched, or the driver does not compile.
    pub async fn find() -> Result<Self> {
        let folder = example_driver::prepare(&go_driver().join("build.sh")).await?;
        Ok(Self {
            program: folder.join("driver"),
        })
    }

    /// The command that starts the driver with a folder for its back end; it lacks `CMI_ENDPOINT`.
    pub fn command(&self, cloud: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env("GO_DRIVER_CLOUD", cloud)
            .env("CAPCMI_FAULTS", cloud.join("faults"));
        command
    }

    /// Starts the driver at a socket in the folder, and waits until it serves.
    ///
    /// # Errors
    /// When it ends instead, or takes too long.
    pub async fn driver(&self, folder: &RunFolder, name: &str) -> Result<GoDriver> {
        let cloud = folder.path().join(format!("{name}-cloud"));
        let served = example_driver::serve(folder, name, self.command(&cloud)).await?;
        Ok(GoDriver { served, cloud })
    }
}
