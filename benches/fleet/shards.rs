//! Two providers on one management cluster, each with the half of the fleet that its `--watch-filter` shows.

use std::time::Instant;

use anyhow::Result;

use super::cloud::{Cloud, Place};
use super::machines::Fleet;
use super::measure::{ControlPlane, Measured, Requests};
use super::report::{Report, Row, Run};
use super::{Args, bring_up, provider};

/// The values of the label. The providers of the two shards elect their leaders by separate Leases.
const SHARDS: [&str; 2] = ["a", "b"];

/// Measures two halves, and one provider of the whole unless only the halves are requested.
pub async fn measure(args: &Args) -> Result<()> {
    for size in &args.sizes {
        for place in &args.places {
            let row = |what: &str| Row {
                what: format!("{what}, {}", place.provider()),
                runs: Vec::new(),
            };
            let mut whole = row("one provider");
            let mut shards = ["two shards", "shard a", "shard b"].map(row);
            for _ in 0..args.rounds(*size) {
                if !args.shards_alone {
                    let bench = bring_up::Bench::set(*place, *size).await?;
                    let (mut replica, run) = bench.come_up(provider::ELECTED).await?;
                    replica.process.kill();
                    whole.runs.push(run);
                }
                for (row, run) in shards.iter_mut().zip(of_shards(*place, *size).await?) {
                    row.runs.push(run);
                }
            }
            let mut rows = Vec::from(shards);
            if !args.shards_alone {
                rows.insert(0, whole);
            }
            println!("{}", Report { rows, floors: 0 });
        }
    }
    Ok(())
}

/// Measures two providers. Returns the costs of both together, and of each.
async fn of_shards(place: Place, size: usize) -> Result<[Run; 3]> {
    let management = provider::management_cluster().await?;
    let admin = management.admin_client().await?;
    let cloud = Cloud::start(&management, place, false).await?;
    let sizes = [size / 2, size - size / 2];
    let mut fleets = Vec::new();
    for (shard, size) in SHARDS.into_iter().zip(sizes) {
        let fleet = Fleet::found(&management, "shard", Some(shard)).await?;
        fleet.create(&management, "m", size).await?;
        fleets.push(fleet);
    }
    let control_plane = ControlPlane::of(&management)?;
    let (before, requests) = (control_plane.usage()?, Requests::read(&admin).await?);
    let plugin = cloud.plugin.as_ref().map(Measured::usage).transpose()?;
    let mut replicas = Vec::new();
    for (shard, fleet) in SHARDS.into_iter().zip(&fleets) {
        replicas.push(provider::start(&management, shard, &cloud, fleet, provider::ELECTED).await?);
    }
    let started = Instant::now();
    let waits = replicas.iter_mut().zip(fleets.iter().zip(sizes));
    let waits = waits.map(async |(replica, (fleet, size))| {
        replica.has(fleet.provisioned(&admin, size)).await?;
        anyhow::Ok(started.elapsed())
    });
    let took = futures::future::try_join_all(waits).await?;
    bring_up::settled(&admin, &requests, size).await?;
    let control_plane = bring_up::since(control_plane.usage()?, before);
    let requests = Requests::read(&admin).await?.since(&requests);
    let mut both = Run {
        size,
        plugin: match (&cloud.plugin, plugin) {
            (Some(process), Some(before)) => Some(process.usage()?.since(before)),
            _ => None,
        },
        control_plane,
        requests,
        driver_calls: Some(0),
        ..Run::default()
    };
    let mut each = Vec::new();
    for ((replica, size), took) in replicas.iter().zip(sizes).zip(took) {
        let run = Run {
            size,
            took,
            usage: replica.usage()?,
            driver_calls: Some(replica.driver_calls().await?),
            ..Run::default()
        };
        both.took = both.took.max(took);
        both.usage = both.usage.and(run.usage);
        both.driver_calls = both
            .driver_calls
            .zip(run.driver_calls)
            .map(|(all, own)| all + own);
        each.push(run);
    }
    let [a, b] = <[Run; 2]>::try_from(each).map_err(|_| anyhow::anyhow!("there are two shards"))?;
    Ok([both, a, b])
}
