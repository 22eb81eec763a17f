//! `capcmi plan`: the effects of a new template on the machines of a MachineDeployment.

mod core_gate;
mod forecast;
mod print;
mod read;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;

use self::forecast::{Action, Gathered, forecast, spec_of};
use self::print::text;
use self::read::read;
use super::table::Output;
use super::{drivers, reading_client};
use capcmi::driver::{ConfiguredDrivers, Priority};
use capcmi::manager::cli::CommandError;
use capcmi::manager::cli::terminal::print_line;
use cmi_driver::Capabilities;

/// Print the effects of another InfraMachineTemplate on a MachineDeployment, field by field and machine by
/// machine: updated in place, replaced, or refused, and why. Changes nothing. Does not check other changes of
/// the MachineDeployment, such as its bootstrap configuration or version.
#[derive(Debug, Args)]
pub(super) struct PlanArgs {
    /// The new InfraMachineTemplate.
    #[arg(long, value_name = "NAME")]
    template: String,
    /// The MachineDeployment.
    #[arg(long, value_name = "NAME")]
    machinedeployment: String,
    /// Namespace of both. Default: the namespace of the kubeconfig.
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Drivers file. The template's driver is called for its capabilities.
    #[arg(long, env = "CAPCMI_DRIVERS_CONFIG", value_name = "FILE")]
    drivers_config: PathBuf,
    /// Kubeconfig. Default: KUBECONFIG, ~/.kube/config or the pod's service account.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
    output: Output,
}

pub(super) async fn execute(args: PlanArgs) -> Result<(), CommandError> {
    let drivers = drivers::load_unelected(&args.drivers_config)?;
    let (client, own) = reading_client(args.kubeconfig.clone()).await?;
    let namespace = args.namespace.clone().unwrap_or(own);
    let gathered = read(&client, &namespace, &args).await?;
    let capabilities = capabilities(&drivers, &gathered, &namespace, &args.template).await?;
    let forecast = forecast(&gathered, &args.template, &capabilities);
    match args.output {
        Output::Table => print_line(text(&forecast).trim_end()),
        Output::Json => print_line(&serde_json::to_string_pretty(&forecast)?),
    }
    let mut actions = forecast.fields.iter().map(|field| field.action);
    if forecast.refused.is_some() || actions.any(|action| action == Action::Refused) {
        return Err(anyhow::anyhow!(
            "cannot create machines from InfraMachineTemplate {}: see above",
            args.template
        )
        .into());
    }
    Ok(())
}

/// Asks the driver of the new template for its capabilities.
async fn capabilities(
    drivers: &ConfiguredDrivers,
    gathered: &Gathered,
    namespace: &str,
    template: &str,
) -> anyhow::Result<Arc<Capabilities>> {
    let spec = gathered.templates.get(template).and_then(spec_of);
    let name = spec.and_then(|spec| spec.get("driver")?.as_str());
    let driver = drivers
        .resolve(name, namespace)
        .with_context(|| format!("cannot resolve the driver of InfraMachineTemplate {template}"))?;
    let permit = driver.acquire(Priority::Upkeep, "capcmi plan").await;
    permit
        .fetch_capabilities()
        .await
        .with_context(|| format!("cannot get the capabilities of driver {}", driver.name()))
}
