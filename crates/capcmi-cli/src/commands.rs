//! The command line: a module for each command.
//!
//! Exit codes: 0 done, 1 failed, 2 used or configured wrongly (nothing was started).

pub mod conformance;
mod describe;
mod driver;
mod drivers;
mod image;
mod manifests;
pub mod migrate;
mod orphans;
mod plan;
mod plugin_args;
mod table;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use capcmi::manager;
use capcmi::manager::cli::terminal::print_line;
use capcmi::manager::cli::{CommandError, ResultExt as _, api_server, block_on, finish};
use capcmi::telemetry::logs::LogArgs;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use kube::Client;

/// The program's name.
const PROGRAM: &str = "capcmi";

/// Commands for operators of cluster-api-provider-cmi and for authors of its drivers.
#[derive(Debug, Parser)]
// As in Go, the last value of a repeated flag counts.
#[command(
    name = PROGRAM,
    version,
    propagate_version = true,
    args_override_self = true
)]
struct Cli {
    #[command(flatten)]
    log: LogArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Work with one driver.
    #[command(subcommand)]
    Driver(driver::DriverCommand),
    /// Check the drivers file.
    #[command(subcommand)]
    Drivers(drivers::DriversCommand),
    /// Find VMs without an InfraMachine.
    #[command(subcommand)]
    Orphans(orphans::OrphansCommand),
    /// Print the state of a machine or a driver, and the next step.
    #[command(subcommand)]
    Describe(describe::DescribeCommand),
    /// Forecast how a new InfraMachineTemplate changes the machines of a MachineDeployment.
    Plan(Box<plan::PlanArgs>),
    /// Migrate machines of machine-controller-manager to Cluster API, with their VMs.
    Migrate(Box<migrate::MigrateArgs>),
    /// Check the image of a node.
    #[command(subcommand)]
    Image(image::ImageCommand),
    Conformance(Box<conformance::ConformanceArgs>),
    /// Print the manifests of the provider, or write them to files.
    Manifests(manifests::Manifests),
    /// Print the version.
    Version,
}

/// Parses the command line, runs the command, and returns the exit code; an error is printed.
pub fn main() -> ExitCode {
    let mut line = Cli::command();
    if is_plugin() {
        line = line.bin_name("kubectl capcmi");
    }
    let Cli { command, log } = match Cli::from_arg_matches(&line.get_matches()) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    let ended = match command {
        Command::Driver(command) => block_on(&log, driver::execute(command)),
        Command::Drivers(command) => block_on(&log.of_command(), drivers::execute(command)),
        Command::Orphans(command) => block_on(&log.of_command(), orphans::execute(command)),
        Command::Describe(command) => block_on(&log.of_command(), describe::execute(command)),
        Command::Plan(args) => block_on(&log.of_command(), plan::execute(*args)),
        Command::Migrate(args) => block_on(&log.of_command(), migrate::execute(*args)),
        Command::Image(command) => image::execute(command),
        Command::Conformance(args) => block_on(&log, conformance::execute(*args)),
        Command::Manifests(command) => command.run(&mut std::io::stdout()).map_err(CommandError::from),
        Command::Version => {
            print_line(concat!("capcmi ", env!("CARGO_PKG_VERSION")));
            Ok(())
        }
    };
    finish(PROGRAM, ended)
}

/// Returns a client for a command that reads, and the namespace of the kubeconfig.
async fn reading_client(kubeconfig: Option<PathBuf>) -> Result<(Client, String), CommandError> {
    let config = api_server(kubeconfig).await?;
    let namespace = config.default_namespace.clone();
    Ok((manager::reading_client(config).misconfigured()?, namespace))
}

/// Whether kubectl runs the program as its plugin, `kubectl capcmi`.
fn is_plugin() -> bool {
    let program = std::env::args_os().next();
    program.is_some_and(|path| Path::new(&path).file_stem() == Some(OsStr::new("kubectl-capcmi")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    /// OPS-05, CMI-175, CMI-176: the specifications reserve the prefixes, and define one variable.
    #[test]
    fn no_environment_variable_of_our_own_has_a_reserved_prefix() {
        fn check(command: &clap::Command) {
            for argument in command.get_arguments() {
                let name = argument.get_env().map(|name| name.to_string_lossy().into_owned());
                assert!(
                    !name.as_deref().is_some_and(|name| {
                        let is_reserved = name.starts_with("MC_") || name.starts_with("CMI_");
                        is_reserved && name != "CMI_ENDPOINT"
                    }),
                    "{name:?}"
                );
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
        check(&capcmi::manager::cli::command());
    }
}
