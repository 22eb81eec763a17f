//! `capcmi driver`: one driver, as a plugin in a process of its own.

mod serve;

use clap::Subcommand;

use super::Failure;

/// Work with one driver.
#[derive(Debug, Subcommand)]
pub(super) enum DriverCommand {
    /// Serve a built-in driver over gRPC until SIGTERM or SIGINT.
    Serve(serve::ServeArgs),
}

pub(super) async fn execute(command: DriverCommand) -> Result<(), Failure> {
    match command {
        DriverCommand::Serve(args) => serve::serve(args).await,
    }
}
