//! `capcmi conformance`: tests, rule by rule, whether a driver conforms.

mod output;
mod signals;
pub mod simulated;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::plugin_args::PluginArgs;
use capcmi::driver::Timeouts;
use capcmi::manager::cli::terminal::print_line;
use capcmi::manager::cli::{CommandError, ResultExt as _};
use cmi_conformance::rules::{self, Proof};
use cmi_conformance::{
    AnswerMetadata, Case, CaseReport, CommandHooks, Compliance, Config, Connect, ConnectionWire, Hooks,
    Layer, Ledger, NoHooks, Progress, Report, Rule, Selection, Target, Waiting, cases, report, run,
};
use cmi_grpc::client::Connector;
use output::ReportFile;
use signals::Signals;

/// The client's timeout exceeds the suite's by this much, so that the suite is first to report a call that
/// hangs.
const CLIENT_GRACE: Duration = Duration::from_secs(5);

/// Test a driver against the published rules (cmi.v1) and this provider's own (capcmi), one by one.
///
/// Exit code 0: compliant as far as --require asks, 1: not, 2: used or configured wrongly, and nothing was
/// tested.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("tested").required(true).args(["endpoint", "driver", "list"]))]
pub(super) struct ConformanceArgs {
    #[command(flatten)]
    plugin: PluginArgs,
    /// A built-in driver, in this process.
    #[arg(long, value_enum)]
    driver: Option<BuiltIn>,
    /// YAML file that describes the driver to the suite. Built-in drivers bring their own.
    #[arg(long, value_name = "FILE", required_unless_present_any = ["driver", "list"])]
    config: Option<PathBuf>,
    /// Run only the cases with these names, or that prove these rows.
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    only: Vec<String>,
    /// Level for exit code 0: the published rules, this provider's rules as far as the configuration allows
    /// to test them, or all of them.
    #[arg(long, value_enum, default_value_t = Required::Basic, conflicts_with = "only")]
    require: Required,
    /// Print the rules and the cases that prove them, without testing.
    #[arg(long)]
    list: bool,
    /// Also write the cases as JUnit XML.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Also write cases and rules as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What exit code 0 takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Required {
    /// `cmi.v1: yes`.
    #[value(name = "cmi.v1")]
    Published,
    /// `capcmi: basic`, or `full`.
    Basic,
    /// `capcmi: full`.
    Full,
}

impl Required {
    /// The level in the words of the last lines of the report.
    const fn name(self) -> &'static str {
        match self {
            Self::Published => "cmi.v1: yes",
            Self::Basic => "capcmi: basic",
            Self::Full => "capcmi: full",
        }
    }

    /// Returns why the exit code is not 0; `None` where the level is met.
    fn unmet(self, report: &Report) -> Option<String> {
        let is_met = match self {
            Self::Published => report.compliance(Layer::Published) == Compliance::Yes,
            Self::Basic => report.passed,
            Self::Full => report.compliance(Layer::Provider) == Compliance::Full,
        };
        (!is_met).then(|| self.verdict(report))
    }

    fn verdict(self, report: &Report) -> String {
        let target = &report.target;
        let broken: Vec<_> = report.broken().map(|rule| rule.id).collect();
        let top = report.layers.last().filter(|_| report.passed);
        match top {
            // No binding rule is broken, but the required level needs more tests than the run made.
            Some(top) => format!(
                "{target} reaches level `{}`, but --require asks for `{}`; missing: {}",
                report::compliance(top),
                self.name(),
                top.missing
                    .iter()
                    .map(String::as_str)
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
            None if broken.is_empty() => format!("{target} is not proven compliant"),
            None => format!("{target} violates {}", report::rows(&broken)),
        }
    }
}

/// The drivers that can be tested in this process.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum BuiltIn {
    /// The simulated cloud, with every hook.
    Simulated,
}

/// Prints a line for each case when it ends, and for a call that takes long.
#[derive(Default)]
struct Lines {
    /// The ledger of VMs that the run may have made; set when the run starts.
    ledger: Arc<OnceLock<Arc<Ledger>>>,
}

impl Progress for Lines {
    fn begins(&self, ledger: Arc<Ledger>) {
        // A run begins once.
        let _first = self.ledger.set(ledger);
    }

    fn waits(&self, call: &Waiting) {
        let (time, limit) = (call.time.as_secs(), call.limit.as_secs_f64());
        print_line(&format!(
            "{:>17}{call} running for {time} s; the limit is {limit} s",
            "... "
        ));
    }

    fn ended(&self, case: &CaseReport, done: usize, of: usize) {
        print_line(&report::line(case, done, of));
    }
}

/// The target of a run, with its configuration and hooks.
struct Subject {
    target: Target,
    config: Config,
    hooks: Arc<dyn Hooks>,
}

pub(super) async fn execute(args: ConformanceArgs) -> Result<(), CommandError> {
    if args.list {
        print_line(&list());
        return Ok(());
    }
    let subject = subject(&args)?;
    let open = |path: &Option<PathBuf>| path.as_deref().map(ReportFile::open).transpose();
    let junit = open(&args.junit).misconfigured()?;
    let json = open(&args.json).misconfigured()?;
    args.plugin.awaited().await?;
    let (stop, lines) = (CancellationToken::new(), Lines::default());
    let signals = Signals::listen()?;
    let signalled = signals.end(stop.clone(), Arc::clone(&lines.ledger));
    let waiting = AbortOnDropHandle::new(tokio::spawn(signalled));
    let selection = Selection { only: args.only };
    let Subject {
        target,
        config,
        hooks,
    } = subject;
    let report = run(target, config, hooks, &selection, &lines, stop)
        .await
        .misconfigured()?;
    drop(waiting);
    print_line(&format!("\n{}", report::text(&report).trim_end()));
    let unmet = args.require.unmet(&report);
    if let Some(file) = junit {
        let required = report::Required {
            what: args.require.name(),
            unmet: unmet.as_deref(),
        };
        file.write(&report::junit(&report, required)?)?;
    }
    if let Some(file) = json {
        file.write(&serde_json::to_string_pretty(&report)?)?;
    }
    match unmet {
        None => Ok(()),
        Some(reason) => Err(anyhow::anyhow!(reason).into()),
    }
}

fn subject(args: &ConformanceArgs) -> Result<Subject, CommandError> {
    let configured = args.config.as_deref().map(read).transpose().misconfigured()?;
    match args.driver {
        Some(BuiltIn::Simulated) => {
            let simulated = simulated::Simulated::new()?;
            let hooks = configured.as_ref().and_then(commands);
            Ok(Subject {
                target: Target::in_process("simulated", simulated.driver.clone()),
                config: configured.unwrap_or(simulated.config),
                hooks: hooks.unwrap_or(simulated.hooks),
            })
        }
        None => {
            let config = configured.context("--config is required: it describes the VMs to create");
            plugin(&args.plugin, config.misconfigured()?)
        }
    }
}

/// A plugin behind an endpoint: the client that the provider calls it with, and a bare connection.
fn plugin(args: &PluginArgs, config: Config) -> Result<Subject, CommandError> {
    let timeouts = Timeouts {
        default: config.call_limit() + CLIENT_GRACE,
        by_operation: BTreeMap::new(),
    };
    let wire = Arc::new(ConnectionWire::new(connect(args.connector()?)));
    let name = args.endpoint.clone().unwrap_or_default();
    let metadata = Arc::new(AnswerMetadata::default());
    let driver = args.driver(&timeouts)?.with_metadata_observer(metadata.clone());
    Ok(Subject {
        target: Target::plugin(name, Arc::new(driver), wire, metadata),
        hooks: commands(&config).unwrap_or_else(|| Arc::new(NoHooks)),
        config,
    })
}

/// Returns the function that opens the bare connections of the suite.
pub fn connect(connector: Connector) -> Connect {
    let connector = Arc::new(connector);
    Box::new(move || {
        let connector = Arc::clone(&connector);
        Box::pin(async move { Ok(connector.connect().await?) })
    })
}

/// Returns the hooks that run the commands of a configuration; `None` when it names none.
fn commands(config: &Config) -> Option<Arc<dyn Hooks>> {
    let hooks = config.hooks.clone();
    (!hooks.is_empty()).then(|| Arc::new(CommandHooks::new(hooks)) as Arc<dyn Hooks>)
}

fn read(path: &Path) -> anyhow::Result<Config> {
    let yaml = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Config::read(&yaml).with_context(|| format!("cannot parse {}", path.display()))
}

/// Lists the rules with the cases that prove them, and the cases with their titles and needs.
fn list() -> String {
    let rule = |rule: &Rule| {
        let proof = match rule.proof {
            Proof::Cases | Proof::EveryCase => {
                let cases: Vec<_> = rules::proofs(rule.id).map(|case| case.name).collect();
                cases.join(", ")
            }
            Proof::NotTested(reason) => format!("not tested: {reason}"),
        };
        let (id, layer, levels, says) = (rule.id, rule.layer, rule.levels(), rule.says);
        format!("{id:<10} {layer:<7} {levels:<11} {says}\n{:31}{proof}", "")
    };
    let case = |case: &Case| {
        let needs: Vec<_> = case.needs.iter().map(ToString::to_string).collect();
        let needs = match needs.join(", ").as_str() {
            "" => String::new(),
            needs => format!(" (needs {needs})"),
        };
        format!("{:<32} {}{needs}", case.name, case.title)
    };
    let lines: Vec<_> = rules::all()
        .map(rule)
        .chain([String::new()])
        .chain(cases::all().map(case))
        .collect();
    lines.join("\n")
}
