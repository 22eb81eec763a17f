//! The cost of a fleet that is up while 1 % of its VMs change their address each minute.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cmi_driver::{Address, AddressType};
use cmi_simulated::VmId;

use super::Args;
use super::bring_up::Bench;
use super::cloud::Cloud;
use super::measure::Requests;

/// How long addresses change.
const MINUTES: usize = 3;
const MINUTE: Duration = Duration::from_mins(1);
/// After the last change, until it is published: lists are made each minute.
const UNTIL_PUBLISHED: Duration = Duration::from_secs(90);

/// The share of a core that the provider may take.
const MAX_SHARE: f64 = 0.05;

/// Measures drifting fleets of all sizes, with the driver at each place.
pub async fn measure(args: &Args) -> Result<()> {
    for place in &args.places {
        for size in &args.sizes {
            let bench = Bench::set(*place, *size).await?;
            let (replica, _) = bench.come_up(&[]).await?;
            bench.join().await?;
            // The first list compares all machines.
            tokio::time::sleep(UNTIL_PUBLISHED).await;
            let (requests, usage) = (bench.requests().await?, replica.usage()?);
            let (calls, begun) = (replica.driver_calls().await?, Instant::now());
            let changes = change_addresses(&bench.cloud, *size).await?;
            tokio::time::sleep(UNTIL_PUBLISHED).await;
            let cpu = replica.usage()?.since(usage).cpu;
            let requests = bench.requests().await?.since(&requests);
            let share = cpu.as_secs_f64() / begun.elapsed().as_secs_f64();
            println!(
                "{}, {size} machines: {changes} changes, {} writes, {} Events, {} driver calls, {:.2} % of a \
                    core",
                place.provider(),
                requests.writes(),
                requests.events,
                replica.driver_calls().await?.saturating_sub(calls),
                100.0 * share
            );
            let writes = usize::try_from(requests.writes()).context("counting writes")?;
            ensure!(writes == changes, "{changes} changes cost {writes} writes");
            ensure!(share < MAX_SHARE, "the provider takes {share} of a core");
        }
    }
    Ok(())
}

/// Gives 1 % of the VMs another address in each minute, and returns the number of changes.
async fn change_addresses(cloud: &Cloud, size: usize) -> Result<usize> {
    let console = cloud.console()?;
    let vms: Vec<VmId> = console.vms()?.iter().map(|vm| vm.id).collect();
    let each_minute = (size / 100).max(1);
    let drifting = &vms[..vms.len().min(MINUTES * each_minute)];
    for (index, id) in drifting.iter().enumerate() {
        let host = u8::try_from(index % 250).context("counting addresses")?;
        let address = Address {
            kind: AddressType::InternalIP,
            address: format!("172.16.{}.{host}", index / 250),
        };
        console.set_addresses(*id, vec![address])?;
        tokio::time::sleep(MINUTE / u32::try_from(each_minute)?).await;
    }
    Ok(drifting.len())
}

impl Bench {
    /// Reads the counters of the API server.
    async fn requests(&self) -> Result<Requests> {
        Requests::read(&self.management.admin_client().await?).await
    }
}
