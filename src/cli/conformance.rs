//! `capcmi conformance`: whether a driver keeps the rules, one by one.

pub mod simulated;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use tokio_util::sync::CancellationToken;

use super::plugin_args::PluginArgs;
use super::{CommandError, signals};
use crate::configured_driver::Timeouts;
use cmi_conformance::rules::{self, Proof};
use cmi_conformance::{
    Case, CaseReport, CommandHooks, Config, Connect, ConnectionWire, Hooks, NoHooks, Progress, Report, Rule,
    Selection, Target, cases, report, run,
};
use cmi_grpc::client::Connector;

/// Test a driver against the rules of the driver contract, one by one.
///
/// Exit code 0: compliant, 1: not, 2: used or configured wrongly, and nothing was tested.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("tested").required(true).args(["endpoint", "driver", "list"]))]
pub(super) struct ConformanceArgs {
    #[command(flatten)]
    plugin: PluginArgs,
    /// A built-in driver, in this process.
    #[arg(long, value_enum)]
    driver: Option<BuiltIn>,
    /// What the suite has to know of the driver, as YAML. Built-in drivers bring their own.
    #[arg(long, value_name = "FILE", required_unless_present_any = ["driver", "list"])]
    config: Option<PathBuf>,
    /// Run only the cases that prove these rows, or have these names.
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    only: Vec<String>,
    /// Print the rules and the cases that prove them, and test nothing.
    #[arg(long)]
    list: bool,
    /// Write the cases as JUnit XML, too.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write cases and rules as JSON, too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The drivers that can be tested in this process.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum BuiltIn {
    /// The simulated cloud, with every hook.
    Simulated,
}

/// A line per case, as it ends.
struct Lines;

impl Progress for Lines {
    fn ended(&self, case: &CaseReport, done: usize, of: usize) {
        println!("{}", report::line(case, done, of));
    }
}

/// What is tested, and with what.
struct Subject {
    target: Target,
    config: Config,
    hooks: Arc<dyn Hooks>,
}

pub(super) async fn execute(args: ConformanceArgs) -> Result<(), CommandError> {
    if args.list {
        println!("{}", list());
        return Ok(());
    }
    let subject = subject(&args)?;
    args.plugin.awaited().await?;
    let stop = CancellationToken::new();
    let asked = signals::asked_to_stop().map_err(CommandError::failed)?;
    let signalled = stop.clone();
    let waiting = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move {
        asked.await;
        eprintln!("capcmi: ending early; what was made is deleted, a second signal does not wait for that");
        signalled.cancel();
    }));
    let selection = Selection { only: args.only };
    let Subject {
        target,
        config,
        hooks,
    } = subject;
    let report = run(target, config, hooks, &selection, &Lines, stop)
        .await
        .map_err(CommandError::misconfigured)?;
    drop(waiting);
    print!("\n{}", report::text(&report));
    if let Some(path) = &args.junit {
        let xml = report::junit(&report).map_err(CommandError::failed)?;
        write(path, &xml).map_err(CommandError::Failed)?;
    }
    if let Some(path) = &args.json {
        let json = serde_json::to_string_pretty(&report).map_err(CommandError::failed)?;
        write(path, &json).map_err(CommandError::Failed)?;
    }
    if report.compliant {
        Ok(())
    } else {
        Err(CommandError::Failed(anyhow::anyhow!(verdict(&report))))
    }
}

fn verdict(report: &Report) -> String {
    let broken: Vec<_> = report.broken().map(|rule| rule.id).collect();
    if broken.is_empty() {
        format!("{} was not shown to be compliant", report.target)
    } else {
        format!("{} breaks {}", report.target, broken.join(", "))
    }
}

fn subject(args: &ConformanceArgs) -> Result<Subject, CommandError> {
    let configured = args
        .config
        .as_deref()
        .map(read)
        .transpose()
        .map_err(CommandError::Misconfigured)?;
    match args.driver {
        Some(BuiltIn::Simulated) => {
            let simulated = simulated::Simulated::new().map_err(CommandError::Failed)?;
            let hooks = configured.as_ref().and_then(commands);
            Ok(Subject {
                target: Target::in_process("simulated", simulated.driver.clone()),
                config: configured.unwrap_or(simulated.config),
                hooks: hooks.unwrap_or(simulated.hooks),
            })
        }
        None => {
            let config = configured.ok_or_else(|| {
                CommandError::Misconfigured(anyhow::anyhow!("--config is missing: what makes a VM there?"))
            })?;
            plugin(&args.plugin, config)
        }
    }
}

/// A plugin behind an endpoint: the client that the provider calls it with, and a bare connection.
fn plugin(args: &PluginArgs, config: Config) -> Result<Subject, CommandError> {
    let timeouts = Timeouts {
        default: config.call_limit(),
        by_operation: BTreeMap::new(),
    };
    let wire = Arc::new(ConnectionWire::new(connect(args.connector()?)));
    let name = args.endpoint.clone().unwrap_or_default();
    Ok(Subject {
        target: Target::plugin(name, args.driver(&timeouts)?, wire),
        hooks: commands(&config).unwrap_or_else(|| Arc::new(NoHooks)),
        config,
    })
}

/// How a bare connection is made, in the terms of the suite.
pub fn connect(connector: Connector) -> Connect {
    let connector = Arc::new(connector);
    Box::new(move || {
        let connector = Arc::clone(&connector);
        Box::pin(async move { Ok(connector.connect().await?) })
    })
}

/// The commands of a configuration; none when it names none.
fn commands(config: &Config) -> Option<Arc<dyn Hooks>> {
    let hooks = config.hooks.clone();
    (!hooks.is_empty()).then(|| Arc::new(CommandHooks::new(hooks)) as Arc<dyn Hooks>)
}

fn read(path: &Path) -> anyhow::Result<Config> {
    let yaml = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    Config::read(&yaml).with_context(|| format!("in {}", path.display()))
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// The rules with their cases, and the cases with what they show.
fn list() -> String {
    let rule = |rule: &Rule| {
        let proof = match rule.proof {
            Proof::Cases => {
                let cases: Vec<_> = rules::proofs(rule.id).map(|case| case.name).collect();
                cases.join(", ")
            }
            Proof::NotTested(reason) => format!("not tested: {reason}"),
        };
        let (id, level, says) = (rule.id, rule.level.name(), rule.says);
        format!("{id:<10} {level:<7} {says}\n{:19}{proof}", "")
    };
    let case = |case: &Case| format!("{:<32} {}", case.name, case.title);
    let lines: Vec<_> = rules::all()
        .map(rule)
        .chain([String::new()])
        .chain(cases::all().map(case))
        .collect();
    lines.join("\n")
}
