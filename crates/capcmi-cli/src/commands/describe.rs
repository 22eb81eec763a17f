//! `capcmi describe`: one page about a machine or a driver.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use jiff::Timestamp;

use super::{drivers, reading_client};
use crate::describe::{self, Scrape};
use capcmi::driver::ConfiguredDrivers;
use capcmi::manager::cli::terminal::print_line;
use capcmi::manager::cli::{CommandError, ResultExt as _};

/// Print one page about a machine or a driver, with its state and the next step. Changes nothing.
#[derive(Debug, Subcommand)]
pub(super) enum DescribeCommand {
    /// Describe a machine: owners, conditions, last operation, next retry, driver, VM and events.
    Machine(MachineArgs),
    /// Describe a driver: capabilities, machines, Clusters, calls, queue, breakers and orphans.
    Driver(DriverArgs),
}

#[derive(Debug, Args)]
pub(super) struct MachineArgs {
    /// The InfraMachine, or its Machine.
    #[arg(value_name = "NAME")]
    name: String,
    /// Namespace. Default: the namespace of the kubeconfig.
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    sources: Sources,
}

#[derive(Debug, Args)]
pub(super) struct DriverArgs {
    /// The driver, as in spec.driver.
    #[arg(value_name = "NAME")]
    name: String,
    /// Include only machines and Clusters of this namespace. Default: all.
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// File with the /metrics output of the leading replica; `-` for standard input.
    #[arg(long, value_name = "FILE")]
    metrics: Option<PathBuf>,
    #[command(flatten)]
    sources: Sources,
}

/// Sources of the page.
#[derive(Debug, Args)]
struct Sources {
    /// Drivers file, to call the driver from this command. Default: no driver is called.
    #[arg(long, env = "CAPCMI_DRIVERS_CONFIG", value_name = "FILE")]
    drivers_config: Option<PathBuf>,
    /// Kubeconfig. Default: KUBECONFIG, ~/.kube/config or the pod's service account.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

impl Sources {
    fn drivers(&self) -> Result<Option<ConfiguredDrivers>, CommandError> {
        let file = self.drivers_config.as_deref();
        file.map(drivers::load_unelected).transpose()
    }
}

pub(super) async fn execute(command: DescribeCommand) -> Result<(), CommandError> {
    match command {
        DescribeCommand::Machine(args) => machine(args).await,
        DescribeCommand::Driver(args) => driver(args).await,
    }
}

async fn machine(args: MachineArgs) -> Result<(), CommandError> {
    let drivers = args.sources.drivers()?;
    let (client, own) = reading_client(args.sources.kubeconfig).await?;
    let namespace = args.namespace.unwrap_or(own);
    let gathered = describe::gather_machine(&client, drivers.as_ref(), &namespace, &args.name);
    let facts = gathered.await?;
    print_line(describe::machine_page(&facts, Timestamp::now()).trim_end());
    Ok(())
}

async fn driver(args: DriverArgs) -> Result<(), CommandError> {
    let drivers = args.sources.drivers()?;
    let scrape = args.metrics.as_deref().map(scrape).transpose()?;
    let (client, _) = reading_client(args.sources.kubeconfig).await?;
    let namespace = args.namespace.as_deref();
    let gathered = describe::gather_driver(&client, drivers.as_ref(), namespace, &args.name, scrape);
    let facts = gathered.await?;
    print_line(describe::driver_page(&facts, Timestamp::now()).trim_end());
    Ok(())
}

fn scrape(path: &Path) -> Result<Scrape, CommandError> {
    let read = || -> anyhow::Result<Scrape> {
        let text = if path == Path::new("-") {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text)?;
            text
        } else {
            std::fs::read_to_string(path)?
        };
        Ok(Scrape::read(&text)?)
    };
    let what = || format!("cannot use the metrics of {}", path.display());
    read().with_context(what).misconfigured()
}
