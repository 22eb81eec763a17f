//! Checks of the displayed state.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use testbed::Launched;

use crate::fleet::Row;

/// Checks that every machine is Running, with a unique VM that is also the Node's.
pub fn rows(rows: &[Row], count: usize) -> Result<()> {
    ensure!(
        rows.len() == count,
        "there are {} Machines, not {count}",
        rows.len()
    );
    for row in rows {
        ensure!(
            row.is_running(),
            "{} is {} and not Running",
            row.machine,
            row.phase
        );
        ensure!(!row.provider_id.is_empty(), "{} has no providerID", row.machine);
        ensure!(
            row.provider_id == row.node_provider_id,
            "{} has the providerID {}, and its Node {} has {:?}",
            row.machine,
            row.provider_id,
            row.node,
            row.node_provider_id
        );
    }
    let ids: BTreeSet<_> = rows.iter().map(|row| &row.provider_id).collect();
    ensure!(ids.len() == count, "Machines share VMs: {ids:?}");
    Ok(())
}

/// Checks that the earlier machines still exist with the same VMs.
pub fn kept(before: &[Row], after: &[Row]) -> Result<()> {
    for row in before {
        let same = |other: &&Row| other.machine == row.machine && other.provider_id == row.provider_id;
        ensure!(
            after.iter().any(|other| same(&other)),
            "{} was replaced or has another VM than {}",
            row.machine,
            row.provider_id
        );
    }
    Ok(())
}

/// Checks that the provider still runs, and has called CreateMachine once for each VM. More calls are allowed
/// unless `at_once` is set.
pub async fn provider(provider: &mut Launched, machines: usize, at_once: bool) -> Result<()> {
    let status = provider.process.status()?;
    ensure!(status.is_none(), "the provider ended with {status:?}");
    let (code, metrics) = testbed::get(&provider.diagnostics, "/metrics").await?;
    ensure!(code == 200, "/metrics answered {code}");
    let creates: usize = metrics
        .lines()
        .filter(|line| line.starts_with("capcmi_driver_calls_total{"))
        .filter(|line| line.contains(r#"operation="CreateMachine""#))
        .map(|line| line.rsplit(' ').next().unwrap_or_default().parse::<usize>())
        .sum::<Result<_, _>>()
        .context("reading the number of creates")?;
    ensure!(
        creates == machines || (creates > machines && !at_once),
        "{machines} machines took {creates} calls of CreateMachine"
    );
    Ok(())
}
