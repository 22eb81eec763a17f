//! `capcmi driver`: one driver, as its author sees it.

mod info;
mod new;
mod serve;

use clap::Subcommand;

use capcmi::manager::cli::CommandError;

/// Work with one driver.
#[derive(Debug, Subcommand)]
pub(super) enum DriverCommand {
    /// Print name, version and capabilities of a driver.
    Info(info::InfoArgs),
    /// Write the skeleton of a driver: code, tests, image, deployment and CI.
    New(new::NewArgs),
    /// Serve a built-in driver over gRPC until SIGTERM or SIGINT.
    Serve(serve::ServeArgs),
}

pub(super) async fn execute(command: DriverCommand) -> Result<(), CommandError> {
    match command {
        DriverCommand::Info(args) => info::execute(args).await,
        DriverCommand::New(args) => new::execute(args),
        DriverCommand::Serve(args) => serve::serve(args).await,
    }
}
