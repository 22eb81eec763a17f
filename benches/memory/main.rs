//! The memory cost of a machine, by part. An API server within the process answers the watches of the caches
//! with a fleet that is up.
//!
//! Run `make bench-memory`, or `cargo bench --bench memory -- 10000 100000`. Each part is measured in a
//! separate process, so that it can't reuse freed memory of another part.

mod api_server;
mod objects;

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capcmi::apiserver::leadership::Leadership;
use capcmi::driver::ConfiguredDrivers;
use capcmi::manager::controllers::{Controllers, Options, OrphanOptions};
use capcmi::telemetry::metrics::Metrics;
use tikv_jemallocator::Jemalloc;

use self::api_server::ApiServer;

/// The provider's allocator.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// The environment variable that tells a process of this program which part it measures.
const PART: &str = "CAPCMI_MEMORY_PART";
/// The longest time that a list of everything may take.
const DEADLINE: Duration = Duration::from_mins(30);

/// The content of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Nothing,
    InfraMachines,
    Machines,
    Both,
    /// Both kinds, and the watches expire once, so that everything is relisted.
    Relist,
}

impl Part {
    const ALL: [(&str, Self); 5] = [
        ("nothing", Self::Nothing),
        ("InfraMachines", Self::InfraMachines),
        ("Machines", Self::Machines),
        ("both", Self::Both),
        ("both, listed anew", Self::Relist),
    ];

    fn has_infra_machines(self) -> bool {
        matches!(self, Self::InfraMachines | Self::Both | Self::Relist)
    }

    fn has_machines(self) -> bool {
        matches!(self, Self::Machines | Self::Both | Self::Relist)
    }
}

/// Resident memory in KiB.
#[derive(Clone, Copy)]
struct Resident {
    now: u64,
    peak: u64,
}

fn main() -> Result<()> {
    let sizes: Result<Vec<usize>, _> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .map(|argument| argument.parse())
        .collect();
    let sizes = sizes.context("arguments are numbers of machines")?;
    if let Some(name) = std::env::var_os(PART) {
        let name = name.to_string_lossy();
        let part = Part::ALL.into_iter().find(|(known, _)| *known == name);
        let (_, part) = part.context("no such part")?;
        let size = sizes.first().copied().context("no size")?;
        let runtime = tokio::runtime::Runtime::new().context("starting the runtime")?;
        let resident = runtime.block_on(measure(part, size))?;
        println!("{} {}", resident.now, resident.peak);
        return Ok(());
    }
    println!("| machines | in the API server | resident MiB | peak MiB | bytes a machine | at the peak |");
    println!("|---|---|---|---|---|---|");
    for size in if sizes.is_empty() { &[10_000][..] } else { &sizes } {
        let mut base = None;
        for (name, _) in Part::ALL {
            let measured = in_a_process(name, *size)?;
            let base = *base.get_or_insert(measured);
            let bytes = |now: u64, then: u64| now.saturating_sub(then) * 1024 / *size as u64;
            println!(
                "| {size} | {name} | {} | {} | {} | {} |",
                measured.now / 1024,
                measured.peak / 1024,
                bytes(measured.now, base.now),
                bytes(measured.peak, base.peak),
            );
        }
    }
    Ok(())
}

fn in_a_process(part: &str, size: usize) -> Result<Resident> {
    let output = Command::new(std::env::current_exe()?)
        .arg(size.to_string())
        .env(PART, part)
        .output()
        .context("starting a process")?;
    let (text, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    ensure!(output.status.success(), "{part}: {errors}");
    let mut numbers = text.split_whitespace().map(str::parse);
    let mut next = || numbers.next().context("a process said nothing");
    Ok(Resident {
        now: next()??,
        peak: next()??,
    })
}

async fn measure(part: Part, size: usize) -> Result<Resident> {
    let server = ApiServer::new(part, size);
    let options = Options {
        namespace: None,
        watch_filter: None,
        machine_concurrency: 32,
        cluster_concurrency: 4,
        template_concurrency: 4,
        inventory_interval: Duration::from_hours(1),
        max_refreshed_machines: 0,
        driver_unreachable_grace: Duration::from_mins(1),
        orphans: OrphanOptions::default(),
        remediation: true,
        volume_drain: true,
        reporter: "memory".to_owned(),
    };
    let (controllers, watches) = Controllers::new(
        server.client(),
        capcmi::nodes::workload_cluster::network(),
        options,
        ConfiguredDrivers::default(),
        Arc::new(Metrics::new()),
        Leadership::unelected(),
    );
    for watch in watches {
        tokio::spawn(watch.run);
    }
    let synced = tokio::time::timeout(DEADLINE, controllers.synced(|_| {}));
    synced.await.context("the caches did not fill in time")??;
    if part == Part::Relist {
        tokio::time::timeout(DEADLINE, server.list_anew())
            .await
            .context("no list anew in time")?;
    }
    let peak = field("VmHWM:")?;
    // The allocator gives back the memory of the answers in this time.
    tokio::time::sleep(Duration::from_secs(3)).await;
    Ok(Resident {
        now: field("VmRSS:")?,
        peak,
    })
}

/// Reads a field of the kernel's status of this process, in KiB.
fn field(name: &str) -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("reading /proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let text = line.with_context(|| format!("no {name}"))?.trim();
    text.trim_end_matches(" kB").parse().context("reading memory")
}
