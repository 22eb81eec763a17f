//! What a fleet costs: N machines wait in the API server when the provider starts; Cluster API's core does
//! not run, so that only the provider acts. In the same run, the floor: a bare client that makes the same
//! requests at the same concurrency against the same API server.
//!
//! `make bench`, or `cargo bench --bench fleet -- 2000 10000`. Not a test: it measures time.

mod floor;
mod machines;
mod measure;
mod provider;
mod report;

use std::time::Duration;

use anyhow::{Context, Result};
use management_cluster::ManagementCluster;

use self::measure::{Requests, Usage};
use self::report::{Report, Run};

/// Machines at a time, for the provider and for the floor.
const CONCURRENCY: usize = 32;
/// How long the idle fleet and the restarted provider are watched.
const WINDOW: Duration = Duration::from_secs(10);

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
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    if let [kubeconfig, namespace] = arguments.as_slice()
        && std::env::var_os(floor::MARK).is_some()
    {
        return runtime.block_on(floor::run(kubeconfig, namespace));
    }
    let sizes: Result<Vec<usize>, _> = arguments.iter().map(|argument| argument.parse()).collect();
    let sizes = sizes.context("arguments are numbers of machines")?;
    runtime.block_on(bench(if sizes.is_empty() { &[2000] } else { &sizes }))
}

async fn bench(sizes: &[usize]) -> Result<()> {
    println!("{}", Report::HEADER);
    for size in sizes {
        // A management cluster of its own: a database that grows from run to run would
        // slow the later ones down.
        let management = provider::management_cluster().await?;
        let floor = measure_floor(&management, *size).await?;
        println!(
            "{}",
            Report {
                what: "floor",
                size: *size,
                run: &floor,
                floor: None
            }
        );
        let (run, phases) = measure_provider(&management, *size).await?;
        println!(
            "{}",
            Report {
                what: "capcmi",
                size: *size,
                run: &run,
                floor: Some(&floor)
            }
        );
        println!("{phases}");
        println!("{}", measure::simulated_cloud(*size)?);
    }
    Ok(())
}

async fn measure_floor(management: &ManagementCluster, size: usize) -> Result<Run> {
    let admin = management.admin_client().await?;
    let namespace = machines::create(management, "floor", size).await?;
    let before = Requests::read(&admin).await?;
    let mut floor = floor::start(management, &namespace).await?;
    let started = std::time::Instant::now();
    machines::provisioned(&admin, &namespace, size).await?;
    let took = started.elapsed();
    let usage = Usage::of(floor.pid)?;
    floor.process.kill();
    let requests = Requests::read(&admin).await?.since(&before);
    machines::remove(&admin, &namespace).await?;
    Ok(Run {
        took,
        usage,
        requests,
        driver_calls: None,
    })
}

async fn measure_provider(management: &ManagementCluster, size: usize) -> Result<(Run, String)> {
    let admin = management.admin_client().await?;
    let namespace = machines::create(management, "capcmi", size).await?;
    let before = Requests::read(&admin).await?;
    let mut replica = provider::start(management, &namespace).await?;
    let started = std::time::Instant::now();
    machines::provisioned(&admin, &namespace, size).await?;
    let took = started.elapsed();
    let usage = Usage::of(replica.pid)?;
    let requests = Requests::read(&admin).await?.since(&before);
    let driver_calls = Some(replica.driver_calls().await?);
    let idle = watch(&admin, replica.pid, "idle").await?;
    replica.process.kill();
    let replica = provider::start(management, &namespace).await?;
    let restart = watch(&admin, replica.pid, "restart").await?;
    let calls = replica.driver_calls().await?;
    let phases = format!("{idle}\n{restart}, {calls} driver calls");
    Ok((
        Run {
            took,
            usage,
            requests,
            driver_calls,
        },
        phases,
    ))
}

/// What a process costs in a window in which nothing has to be done.
async fn watch(admin: &kube::Client, pid: u32, what: &str) -> Result<String> {
    let (requests, usage) = (Requests::read(admin).await?, Usage::of(pid)?);
    tokio::time::sleep(WINDOW).await;
    let (after, now) = (Requests::read(admin).await?.since(&requests), Usage::of(pid)?);
    let cpu = if what == "restart" {
        now.cpu
    } else {
        now.cpu.saturating_sub(usage.cpu)
    };
    let seconds = WINDOW.as_secs();
    Ok(format!(
        "  {what}: {:.2} s CPU in {seconds} s, {} writes, {} lists, peak {} MiB",
        cpu.as_secs_f64(),
        after.writes(),
        after.lists,
        now.peak_mib
    ))
}
