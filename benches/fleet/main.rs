//! The cost of a fleet: N machines wait in the API server when the provider starts. Cluster API's core does
//! not run, so that only the provider acts. The same run measures two floors: a bare kube client that makes
//! the same requests, and the best bare client that is known. Each contestant has a fresh management cluster,
//! so that no database is older than another's.
//!
//! `make bench`, or `cargo bench --bench fleet -- 2000 10000`. This is no test, since it measures time.
//! `make bench-counts` compares its counts with `counts.json`.

mod bare;
mod bring_up;
mod cloud;
mod counts;
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

/// The number of machines at a time, for the provider and for the floor.
const CONCURRENCY: usize = 32;
/// The time for which a small fleet is watched while it idles, or after its provider was restarted.
const WINDOW: Duration = Duration::from_secs(10);
/// The same for a large fleet: the inventory lists all VMs twice meanwhile.
const LONG_WINDOW: Duration = Duration::from_mins(2);
/// The number of machines from which a fleet is large.
const LARGE: usize = 10_000;
/// The default number of rounds at a size.
const ROUNDS: usize = 3;
/// The largest size with several rounds: a round of 100,000 takes more than twenty minutes.
const LARGEST_REPEATED: usize = 20_000;

/// What is measured, and at which size.
#[derive(Debug, Parser)]
#[command(name = "fleet")]
struct Args {
    /// Numbers of machines.
    #[arg(value_name = "MACHINES", default_value = "2000")]
    sizes: Vec<usize>,
    /// What is measured.
    #[arg(long, value_enum, default_value_t = Scenario::BringUp)]
    scenario: Scenario,
    /// How often; figures are medians. Three times, and once where more than 20,000 machines are measured.
    #[arg(long, env = "BENCH_ROUNDS")]
    rounds: Option<NonZero<usize>>,
    /// Where the driver runs; several are measured one after the other.
    #[arg(
        long = "driver",
        env = "BENCH_DRIVER",
        value_enum,
        value_delimiter = ',',
        default_value = "in-process"
    )]
    places: Vec<Place>,
    /// The most machines of a floor, which is compared by its rate.
    #[arg(long, env = "BENCH_FLOOR_MACHINES", default_value_t = 10_000)]
    floor_machines: usize,
    /// Of the shards scenario, without the one provider of the whole, which is measured by itself, too.
    #[arg(long, env = "BENCH_SHARDS_ALONE")]
    shards_alone: bool,
    /// Creates that wait for a slow driver, of the latency scenario.
    #[arg(long, env = "BENCH_BACKLOG", default_value_t = 2000)]
    backlog: usize,
    /// Deletions, changes and silent Nodes, each, of the latency scenario.
    #[arg(long, env = "BENCH_SAMPLES", default_value_t = 200)]
    samples: usize,
    /// Where perf writes what the CPU does while the fleet comes up.
    #[arg(long, value_name = "FILE")]
    perf: Option<PathBuf>,
    /// What cargo gives to every benchmark.
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

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// A fleet comes up, idles, is listed anew, and its provider is restarted; beside the floors.
    BringUp,
    /// The same, without floors, compared with the counts that are expected.
    Counts,
    /// How soon the driver is called while creates wait for it.
    Latency,
    /// Two providers with half of the fleet each.
    Shards,
    /// Where the CPU goes while a fleet comes up.
    Profile,
}

/// Returns the time for which a fleet of so many machines is watched.
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
            Scenario::Latency => latency::measure(&args).await,
            Scenario::Shards => shards::measure(&args).await,
            Scenario::Profile => profile::record(&args).await,
        }
    })
}
