//! The CPU time of the provider while a fleet comes up, as perf samples it.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use management_cluster::eventually;

use super::bring_up::Bench;
use super::{Args, provider};

/// The samples a second. The rate is not in step with anything that happens every hundredth of a second.
const FREQUENCY: &str = "499";
const DEADLINE: Duration = Duration::from_mins(1);

/// Records into the requested file.
pub async fn record(args: &Args) -> Result<()> {
    let file = args
        .perf
        .as_ref()
        .context("give --perf=FILE, where perf has to write")?;
    let (size, place) = (
        args.sizes.first().copied().context("how many machines?")?,
        args.places.first().copied().context("which driver?")?,
    );
    let bench = Bench::set(place, size).await?;
    let admin = bench.management.admin_client().await?;
    let mut replica = provider::start(&bench.management, "capcmi", &bench.cloud, &bench.fleet, &[]).await?;
    let mut perf = Command::new("perf")
        // A virtual machine may have no counter but the clock.
        .args(["record", "--quiet", "--event=cpu-clock", "--call-graph=fp"])
        .args(["--freq", FREQUENCY, "--pid", &replica.pid.to_string(), "--output"])
        .arg(file)
        .stdin(Stdio::null())
        .spawn()
        .context("starting perf: Debian has it in the package linux-perf")?;
    bench.fleet.provisioned(&admin, size).await?;
    let usage = replica.usage()?;
    let asked = Command::new("kill")
        .args(["-INT", &perf.id().to_string()])
        .status();
    ensure!(
        asked.context("asking perf to end")?.success(),
        "perf ended before the fleet was up"
    );
    eventually(DEADLINE, "the end of perf", async || {
        perf.try_wait()?.context("it still writes").map(drop)
    })
    .await?;
    replica.process.kill();
    println!(
        "{}, {size} machines: {:.2} ms of CPU each",
        place.provider(),
        super::report::ms(usage.cpu) / f64::from(u32::try_from(size)?)
    );
    Ok(())
}
