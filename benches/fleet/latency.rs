//! The time until the first driver call for a machine while creates wait for the driver. Causes are a
//! deletion, a change of the spec, and a Node that goes silent. For a new machine, the cause is a fail-over
//! or a restart of the provider.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cmi_simulated::{Clock as _, WallClock};
use http::Method;
use management_cluster::eventually;
use serde_json::json;

use super::cloud::{Cloud, Place};
use super::http2::Connection;
use super::machines::{Fleet, name, patch};
use super::report::{ms, percentile};
use super::{Args, CONCURRENCY, provider};

/// How long a create of the backlog takes.
const SLOW: Duration = Duration::from_secs(2);
/// How long a call may take. A later one does not count.
const DEADLINE: Duration = Duration::from_mins(3);

/// A change to a machine that is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stimulus {
    Deletion,
    SpecChange,
    SilentNode,
}

impl Stimulus {
    const ALL: [Self; 3] = [Self::Deletion, Self::SpecChange, Self::SilentNode];

    const fn name(self) -> &'static str {
        match self {
            Self::Deletion => "a deletion",
            Self::SpecChange => "a change of the spec",
            Self::SilentNode => "a Node that goes silent",
        }
    }
}

/// A management cluster with machines that are up.
struct Stage {
    cloud: Cloud,
    fleet: Fleet,
    /// Used to open each connection when it is needed: the API server closes connections that are idle for
    /// minutes.
    kubeconfig: PathBuf,
}

/// Measures at all sizes.
pub async fn measure(args: &Args) -> Result<()> {
    for size in &args.sizes {
        for place in &args.places {
            of(*place, *size, args).await?;
        }
    }
    Ok(())
}

async fn of(place: Place, size: usize, args: &Args) -> Result<()> {
    let samples = args.samples.min(size / Stimulus::ALL.len());
    let management = provider::management_cluster().await?;
    let admin = management.admin_client().await?;
    let stage = Stage {
        cloud: Cloud::start(&management, place, true).await?,
        fleet: Fleet::found(&management, "latency", None).await?,
        kubeconfig: management.admin_kubeconfig().to_owned(),
    };
    let Stage { cloud, fleet, .. } = &stage;
    fleet.create(&management, "m", size).await?;
    let mut alone = provider::start(&management, "alone", cloud, fleet, &[]).await?;
    alone.has(fleet.provisioned(&admin, size)).await?;
    // The Nodes of the last third of the machines report.
    let connection = stage.connect().await?;
    fleet.join_nodes(&connection, 2 * samples..3 * samples).await?;

    println!(
        "{}, {size} machines up, {} creates of {SLOW:?} each wait for {CONCURRENCY} calls at a time:\n",
        place.provider(),
        args.backlog
    );
    println!(
        "| from … to the driver's call | samples | p50 ms | p99 ms | longest ms |\n|---|---|---|---|---|"
    );
    cloud.slow_down_creates(SLOW)?;
    fleet.create(&management, "b", args.backlog).await?;
    let made = stage.creates()?;
    let log = stage.cloud.calls_end()?;
    ensure!(
        made < size + args.backlog,
        "the backlog was gone before anything was asked beside it: make it longer"
    );
    let begun = stage.stimulate(samples, args.backlog).await?;
    let waiting = (size + args.backlog).saturating_sub(stage.creates()?);
    for (stimulus, took) in stage.latencies(&begun, log).await? {
        println!(
            "| {} | {} | {:.0} | {:.0} | {:.0} |",
            stimulus.name(),
            took.len(),
            percentile(&took, 50),
            percentile(&took, 99),
            percentile(&took, 100)
        );
    }
    println!("\n{waiting} creates of the backlog had not begun when the last of these was asked for.");

    cloud.slow_down_creates(Duration::ZERO)?;
    let up = size - samples + args.backlog;
    alone.has(fleet.provisioned(&admin, up)).await?;
    alone.process.kill();
    let mut leader = provider::start(&management, "leader", cloud, fleet, provider::ELECTED).await?;
    provider::leads(&mut leader).await?;
    let mut warm = provider::start(&management, "warm", cloud, fleet, provider::ELECTED).await?;
    provider::knows(&mut warm, up).await?;
    let since = WallClock.now().as_millis();
    leader.process.kill();
    let fail_over = warm.has(stage.act_on_new("failed-over", since)).await?;
    provider::leads(&mut warm).await?;
    warm.process.kill();
    let (since, started) = (WallClock.now().as_millis(), Instant::now());
    let mut restarted = provider::start(&management, "restarted", cloud, fleet, &[]).await?;
    let restart = restarted.has(stage.act_on_new("restarted", since)).await?;
    println!(
        "From the kill of the leader to the warm replica's call about a new machine: {:.1} s; from the start \
         of a process to the same: {:.1} s (the whole took {:.1} s).",
        fail_over.as_secs_f64(),
        restart.as_secs_f64(),
        started.elapsed().as_secs_f64(),
    );
    drop(restarted);
    Ok(())
}

impl Stage {
    async fn connect(&self) -> Result<Connection> {
        Connection::open(&self.kubeconfig).await
    }

    /// Applies every stimulus to this number of machines, spread over the duration of the backlog. Returns
    /// the time of each.
    async fn stimulate(&self, samples: usize, backlog: usize) -> Result<BTreeMap<(Stimulus, String), u64>> {
        let creates_at_once = CONCURRENCY - CONCURRENCY / 8;
        let lasts = SLOW * u32::try_from(backlog / creates_at_once).context("a backlog of billions")?;
        // Making the backlog takes a part of that time.
        let pause = lasts.mul_f64(0.6) / u32::try_from(samples.max(1))?;
        let connection = self.connect().await?;
        let mut begun = BTreeMap::new();
        let mut pace = tokio::time::interval(pause.max(Duration::from_millis(10)));
        for index in 0..samples {
            pace.tick().await;
            for position in 0..Stimulus::ALL.len() {
                // The order rotates: the first stimulus may have to wait for work that is done for the
                // others.
                let third = (index + position) % Stimulus::ALL.len();
                let stimulus = Stimulus::ALL[third];
                let index = third * samples + index;
                begun.insert((stimulus, name("m", index)), WallClock.now().as_millis());
                match stimulus {
                    Stimulus::Deletion => {
                        let path = self.infra_machine(index);
                        connection.write(Method::DELETE, &path, &json!({})).await?;
                    }
                    Stimulus::SpecChange => {
                        let labels = json!({"spec": {"providerSpec": {"labels": {"round": "1"}}}});
                        patch(&connection, &self.infra_machine(index), &labels).await?;
                    }
                    Stimulus::SilentNode => self.fleet.node_reports(&connection, index, "Unknown").await?,
                }
            }
        }
        Ok(begun)
    }

    fn infra_machine(&self, index: usize) -> String {
        format!("{}/{}", self.fleet.path_of_infra_machines(), name("m", index))
    }

    /// Returns the number of creates that have begun.
    fn creates(&self) -> Result<usize> {
        let calls = self.cloud.calls_from(0)?;
        let creates = calls
            .iter()
            .filter(|call| call.operation == cmi_driver::Operation::CreateMachine);
        Ok(creates.count())
    }

    /// Waits until each machine has a call after its stimulus, in the log from a byte offset on. Returns the
    /// times between stimulus and first call.
    async fn latencies(
        &self,
        begun: &BTreeMap<(Stimulus, String), u64>,
        log: u64,
    ) -> Result<BTreeMap<Stimulus, Vec<f64>>> {
        eventually(DEADLINE, "calls about all of them", async || {
            let mut calls: HashMap<String, Vec<u64>> = HashMap::new();
            for call in self.cloud.calls_from(log)? {
                calls.entry(call.machine).or_default().push(call.at.as_millis());
            }
            let mut latencies: BTreeMap<Stimulus, Vec<f64>> = BTreeMap::new();
            for ((stimulus, machine), since) in begun {
                let mut own = calls.get(machine).into_iter().flatten();
                let first = own.find(|at| *at >= since);
                let first = first.with_context(|| format!("none about {machine}"))?;
                let took = Duration::from_millis(first - since);
                latencies.entry(*stimulus).or_default().push(ms(took));
            }
            Ok(latencies)
        })
        .await
    }

    /// Waits until a machine has a call after an instant, in the log from a byte offset on. Returns the time
    /// between both.
    async fn call_since(&self, machine: &str, since: u64, log: u64) -> Result<Duration> {
        eventually(DEADLINE, &format!("a call about {machine}"), async || {
            let calls = self.cloud.calls_from(log)?;
            let mut own = calls.iter().filter(|call| call.machine == machine);
            let first = own
                .find(|call| call.at.as_millis() >= since)
                .context("none has come")?;
            Ok(Duration::from_millis(first.at.as_millis() - since))
        })
        .await
    }

    /// Creates a machine. Returns the time between an instant and the machine's first call.
    async fn act_on_new(&self, machine: &str, since: u64) -> Result<Duration> {
        let log = self.cloud.calls_end()?;
        self.fleet.create_one(&self.connect().await?, machine).await?;
        self.call_since(machine, since, log).await
    }
}
