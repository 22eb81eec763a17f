//! The management cluster and the provider of a run.

use std::time::Duration;

use anyhow::Result;
use management_cluster::ManagementCluster;
use testbed::{Launch, Launched};

use super::CONCURRENCY;
use super::cloud::Cloud;
use super::machines::Fleet;
use super::measure::{self, Measured};

/// The longest time that a start may take.
const DEADLINE: Duration = Duration::from_mins(5);

/// The flags of a provider with leader election, by a Lease where the shipped roles allow one.
pub const ELECTED: &[&str] = &[
    "--leader-elect",
    "--leader-elect-resource-namespace=capcmi-system",
];

/// Starts a management cluster without Cluster API's core, and installs the shipped manifests.
pub async fn management_cluster() -> Result<ManagementCluster> {
    let manifests = capcmi_manifests::stream(&capcmi_manifests::Part::ALL)?;
    ManagementCluster::builder()
        .core(false)
        .manifests(&manifests)
        .start()
        .await
}

/// Starts the provider of a fleet with its ServiceAccount, and waits until it runs.
pub async fn start(
    management: &ManagementCluster,
    name: &str,
    cloud: &Cloud,
    fleet: &Fleet,
    flags: &[&str],
) -> Result<Measured> {
    let scope = match &fleet.watch_filter {
        Some(value) => format!("--watch-filter={value}"),
        None => format!("--namespace={}", fleet.namespace),
    };
    let launch = Launch {
        binary: env!("CARGO_BIN_EXE_capcmi-manager").into(),
        name: name.to_owned(),
        drivers: cloud.drivers.clone(),
        kubeconfig: testbed::service_account(management).await?,
        flags: [
            scope,
            format!("--inframachine-concurrency={CONCURRENCY}"),
            "--insecure-diagnostics".to_owned(),
        ]
        .into_iter()
        .chain(flags.iter().map(|&flag| flag.to_owned()))
        .collect(),
    };
    let Launched {
        process,
        health,
        diagnostics,
    } = launch.start(management)?;
    Measured::find(process, &format!("--health-addr={health}"), diagnostics).await
}

/// Waits until a restarted provider has reconciled so many machines.
pub async fn looked_at(replica: &mut Measured, machines: usize) -> Result<()> {
    counts(replica, machines, measure::reconciles).await
}

/// Waits until a provider, which need not lead, has so many machines in its caches that are up.
pub async fn knows(replica: &mut Measured, machines: usize) -> Result<()> {
    counts(replica, machines, measure::provisioned).await
}

async fn counts(
    replica: &mut Measured,
    wanted: usize,
    count: impl AsyncFn(&str) -> Result<u64>,
) -> Result<()> {
    let Measured {
        process, diagnostics, ..
    } = replica;
    process
        .wait_until(DEADLINE, async || {
            let counted = count(diagnostics).await;
            counted.is_ok_and(|counted| usize::try_from(counted).is_ok_and(|counted| counted >= wanted))
        })
        .await
}

/// Waits until a provider leads.
pub async fn leads(replica: &mut Measured) -> Result<()> {
    let Measured {
        process, diagnostics, ..
    } = replica;
    process
        .wait_until(DEADLINE, async || {
            testbed::get(diagnostics, "/metrics")
                .await
                .is_ok_and(|(_, text)| text.lines().any(|line| line == "capcmi_leader 1"))
        })
        .await
}
