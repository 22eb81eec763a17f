//! `capcmi driver info`: prints the name, readiness and capabilities of a driver.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use crate::commands::plugin_args::PluginArgs;
use capcmi::driver::Timeouts;
use capcmi::manager::cli::drivers_file::DriverConfig;
use capcmi::manager::cli::terminal::print_line;
use capcmi::manager::cli::{CommandError, ResultExt as _, drivers};
use cmi_driver::{Capabilities, Code, Driver, Operation, PluginInfo, Readiness, Status};
use cmi_grpc::client::Connector;

/// Print name, version, readiness and capabilities of a driver, and the JSON Schema of its provider spec.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("driver").required(true).args(["endpoint", "drivers_config"]))]
pub(in crate::commands) struct InfoArgs {
    #[command(flatten)]
    plugin: PluginArgs,
    /// Drivers file. Every driver in it is called.
    #[arg(long, value_name = "FILE")]
    drivers_config: Option<PathBuf>,
    /// Call only this driver of the file.
    #[arg(
        id = "driver_name",
        long = "driver",
        value_name = "NAME",
        requires = "drivers_config"
    )]
    driver: Option<String>,
}

/// A driver to ask.
struct ChosenDriver {
    /// The name of the driver in the file, or the plugin's endpoint.
    name: String,
    driver: Arc<dyn Driver>,
    /// The connector of a plugin; `None` for a built-in driver.
    connector: Option<Connector>,
}

/// The answers of a driver.
struct DriverInfo {
    info: PluginInfo,
    readiness: Readiness,
    capabilities: Arc<Capabilities>,
    extension: Extension,
}

/// The calls of the extension that a driver declares.
enum Extension {
    /// The driver is built in: its capabilities have all that it can do.
    BuiltIn,
    NotServed,
    /// The driver declares these calls.
    Declares(Vec<String>),
}

pub(in crate::commands) async fn execute(args: InfoArgs) -> Result<(), CommandError> {
    args.plugin.awaited().await?;
    let mut failed = Vec::new();
    for driver in chosen(&args)? {
        match fetch(&driver).await {
            Ok(driver_info) => print_line(format!("{}:\n{driver_info}", driver.name).trim_end()),
            Err(status) => {
                print_line(&format!(
                    "{}: {}: {}",
                    driver.name,
                    status.code(),
                    status.message()
                ));
                failed.push(driver.name);
            }
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(anyhow::anyhow!("no answer from {}", failed.join(", ")).into())
}

/// Returns the drivers to ask.
fn chosen(args: &InfoArgs) -> Result<Vec<ChosenDriver>, CommandError> {
    if let Some(endpoint) = &args.plugin.endpoint {
        return Ok(vec![ChosenDriver {
            name: endpoint.clone(),
            driver: Arc::new(args.plugin.driver(&Timeouts::default())?),
            connector: Some(args.plugin.connector()?),
        }]);
    }
    let file = args.drivers_config.clone().unwrap_or_default();
    let mut all = drivers::configured(&file)?;
    if let Some(wanted) = &args.driver {
        all.retain(|driver| driver.settings.name == *wanted);
        if all.is_empty() {
            let what = anyhow::anyhow!("{} has no driver {wanted}", file.display());
            return Err(CommandError::Misconfigured(what));
        }
    }
    all.into_iter()
        .map(|DriverConfig { settings, kind }| {
            Ok(ChosenDriver {
                connector: kind.connector().misconfigured()?,
                driver: drivers::build(&file, &settings, kind)?,
                name: settings.name,
            })
        })
        .collect()
}

/// Asks the driver for all answers, in the order of the CMI specification.
async fn fetch(chosen: &ChosenDriver) -> cmi_driver::Result<DriverInfo> {
    let driver = chosen.driver.as_ref();
    Ok(DriverInfo {
        info: driver.get_plugin_info().await?,
        capabilities: driver.get_plugin_capabilities().await?.capabilities,
        readiness: Readiness::from_probe(driver.probe().await)?,
        extension: extension(chosen.connector.as_ref()).await?,
    })
}

async fn extension(connector: Option<&Connector>) -> cmi_driver::Result<Extension> {
    let Some(connector) = connector else {
        return Ok(Extension::BuiltIn);
    };
    match connector.extension_calls().await {
        Ok(None) => Ok(Extension::NotServed),
        Ok(Some(calls)) => Ok(Extension::Declares(calls)),
        Err(error) => Err(Status::new(Code::Unavailable, error.to_string()).with_source(error)),
    }
}

impl std::fmt::Display for DriverInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Capabilities {
            operations: _,
            zones,
            consistency_window,
            tag_path,
            address_path,
            hot_updatable,
            provider_spec_schema,
            list_has_state,
        } = &*self.capabilities;
        let calls = Operation::ALL.into_iter();
        let calls: Vec<_> = calls
            .filter(|call| self.capabilities.supports(*call))
            .map(Operation::name)
            .collect();
        let places: Vec<_> = hot_updatable.iter().map(ToString::to_string).collect();
        let ready = match self.readiness {
            Readiness::Ready => "yes",
            Readiness::NotReady => "not yet",
        };
        let extension = match &self.extension {
            Extension::BuiltIn => None,
            Extension::NotServed => Some("not served".to_owned()),
            Extension::Declares(calls) => Some(or_none(calls.join(", "))),
        };
        let rows = [
            ("name", self.info.name.clone()),
            ("version", self.info.version.clone()),
            ("ready", ready.to_owned()),
            ("calls", calls.join(", ")),
        ];
        let more = [
            ("zones", yes_or_no(*zones).to_owned()),
            (
                "consistency window",
                format!("{} s", consistency_window.as_secs_f64()),
            ),
            ("tags at", tag_path.to_string()),
            (
                "addresses at",
                or_none(address_path.as_ref().map(ToString::to_string).unwrap_or_default()),
            ),
            ("hot-updatable", or_none(places.join(", "))),
            ("state in lists", yes_or_no(*list_has_state).to_owned()),
        ];
        let extension = extension.map(|calls| ("extension", calls));
        for (what, value) in rows.into_iter().chain(extension).chain(more) {
            writeln!(f, "  {what:<20}{value}")?;
        }
        for (key, value) in &self.info.manifest {
            writeln!(f, "  {:<20}{value}", format!("manifest {key}"))?;
        }
        match provider_spec_schema {
            None => writeln!(f, "  {:<20}none", "provider spec"),
            Some(schema) => writeln!(
                f,
                "  {:<20}{}",
                "provider spec",
                indented(&format!("{:#}", schema.as_json()))
            ),
        }
    }
}

fn or_none(text: String) -> String {
    if text.is_empty() { "none".to_owned() } else { text }
}

fn yes_or_no(is_so: bool) -> &'static str {
    if is_so { "yes" } else { "no" }
}

/// Indents all lines but the first to the column of the values.
fn indented(text: &str) -> String {
    text.lines()
        .enumerate()
        .fold(String::new(), |mut all, (n, line)| {
            let separator = if n == 0 { "" } else { "\n                      " };
            // Writing to a String does not fail.
            let _ = write!(all, "{separator}{line}");
            all
        })
}
