//! The cost of a fleet. N machines wait in the API server when the provider starts. Cluster API's core does
//! not run, so only the provider acts. The same run measures two floors: a bare kube client with the same
//! requests, and the fastest bare client that is known. Each contestant has a fresh management cluster, so
//! all databases have the same age.
//!
//! Run `make bench`, or `cargo bench --bench fleet -- 2000 10000`. This is not a test, since it measures
//! time. `make bench-counts` compares the counts with `counts.json`.

mod bare;
mod bring_up;
mod cloud;
mod counts;
mod drift;
mod floor;
mod http2;
mod latency;
mod machines;
mod measure;
mod profile;
mod provider;
mod report;
mod requests;
mod shards;

use std::num::NonZero;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};

use self::cloud::Place;

/// How many machines the provider and the floor handle concurrently.
const CONCURRENCY: usize = 32;
/// How long a small fleet is measured while it idles, or after a restart of its provider.
const WINDOW: Duration = Duration::from_secs(10);
/// How long a large fleet is measured. The inventory lists all VMs twice in this time.
const LONG_WINDOW: Duration = Duration::from_mins(2);
/// A fleet with this number of machines or more is large.
const LARGE: usize = 10_000;
/// The default number of rounds at a size.
const ROUNDS: usize = 3;
/// The largest size with several rounds: a round of 100,000 takes more than twenty minutes.
const LARGEST_REPEATED: usize = 20_000;

/// The command line: scenario, sizes and places.
#[derive(Debug, Parser)]
#[command(name = "fleet")]
struct Args {
    /// Numbers of machines.
    #[arg(value_name = "MACHINES", default_value = "2000")]
    sizes: Vec<usize>,
    /// The scenario to measure.
    #[arg(long, value_enum, default_value_t = Scenario::BringUp)]
    scenario: Scenario,
    /// Number of rounds; figures are medians. Default: 3, or 1 for more than 20,000 machines.
    #[arg(long, env = "BENCH_ROUNDS")]
    rounds: Option<NonZero<usize>>,
    /// Where the driver runs. Several places are measured one after the other.
    #[arg(
        long = "driver",
        env = "BENCH_DRIVER",
        value_enum,
        value_delimiter = ',',
        default_value = "in-process"
    )]
    places: Vec<Place>,
    /// The most machines for a floor. Floors are compared by their rate.
    #[arg(long, env = "BENCH_FLOOR_MACHINES", default_value_t = 10_000)]
    floor_machines: usize,
    /// Shards scenario: skip the single provider of the whole fleet.
    #[arg(long, env = "BENCH_SHARDS_ALONE")]
    shards_alone: bool,
    /// Latency scenario: creates that wait for a slow driver.
    #[arg(long, env = "BENCH_BACKLOG", default_value_t = 2000)]
    backlog: usize,
    /// Latency scenario: deletions, and as many changes and silent Nodes.
    #[arg(long, env = "BENCH_SAMPLES", default_value_t = 200)]
    samples: usize,
    /// File for perf's CPU profile while the fleet comes up.
    #[arg(long, value_name = "FILE")]
    perf: Option<PathBuf>,
    /// An argument that cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Args {
    /// Returns the number of rounds at a size.
    fn rounds(&self, size: usize) -> usize {
        let default = if size <= LARGEST_REPEATED { ROUNDS } else { 1 };
        self.rounds.map_or(default, NonZero::get)
    }
}

/// A scenario to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// A fleet comes up, idles, is relisted, and its provider is restarted; with floors.
    BringUp,
    /// The same without floors, compared with the expected counts.
    Counts,
    /// 1 % of the VMs change their address each minute.
    Drift,
    /// How soon the driver is called while creates wait for it.
    Latency,
    /// Two providers with half of the fleet each.
    Shards,
    /// The CPU profile while a fleet comes up.
    Profile,
}

/// Returns how long a fleet of this size is measured.
const fn window(machines: usize) -> Duration {
    if machines < LARGE { WINDOW } else { LONG_WINDOW }
}

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("starting the runtime")?;
    if let Some(size) = std::env::var_os(measure::CLOUD) {
        let size = size.to_string_lossy().parse().context("reading the size")?;
        println!("{}", runtime.block_on(measure::be_simulated_cloud(size))?);
        return Ok(());
    }
    if let Some(client) = floor::Client::asked_for()? {
        return runtime.block_on(client.run());
    }
    let args = Args::parse();
    runtime.block_on(async {
        match args.scenario {
            Scenario::BringUp => bring_up::measure(&args).await,
            Scenario::Counts => counts::check(&args).await,
            Scenario::Drift => drift::measure(&args).await,
            Scenario::Latency => latency::measure(&args).await,
            Scenario::Shards => shards::measure(&args).await,
            Scenario::Profile => profile::record(&args).await,
        }
    })
}
