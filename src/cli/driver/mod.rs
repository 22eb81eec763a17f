//! `capcmi driver`: one driver, as its author sees it.

mod info;

use clap::Subcommand;

use super::Failure;

/// Look at a driver.
#[derive(Debug, Subcommand)]
pub(super) enum DriverCommand {
    Info(info::InfoArgs),
}

pub(super) async fn execute(command: DriverCommand) -> Result<(), Failure> {
    match command {
        DriverCommand::Info(args) => info::execute(args).await,
    }
}
