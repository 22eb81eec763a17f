//! One of Cluster API's managers as a plain process.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Result, ensure};
use bytes::Bytes;
use http_body_util::Empty;
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::{Api, Client};

use crate::eventually::eventually;

pub(crate) const START_DEADLINE: Duration = Duration::from_mins(4);

/// No delays that only spare a busy API server.
const FLAGS: &[&str] = &[
    "--leader-elect=false",
    "--kube-api-qps=1000",
    "--kube-api-burst=2000",
    "--clustercache-client-qps=1000",
    "--clustercache-client-burst=2000",
];
/// Every feature that the provider takes part in.
const FEATURE_GATES: &str = "ClusterTopology=true,RuntimeSDK=true,InPlaceUpdates=true";

/// How often and how soon a manager reconciles.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Whether it runs with `ReconcilerRateLimiting`.
    pub rate_limiting: bool,
    /// The time between two reconciles of an unchanged object. `None` is the default of the manager.
    pub sync_period: Option<Duration>,
}

/// Where a manager listens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ports {
    pub webhook: u16,
    pub health: u16,
    pub diagnostics: u16,
}

/// Where a manager finds its files, and where it listens.
#[derive(Debug)]
pub(crate) struct Place {
    /// The credential of its `ServiceAccount`.
    pub kubeconfig: PathBuf,
    /// The folder with its `tls.crt` and `tls.key`, which it may use for other files.
    pub folder: PathBuf,
    pub ports: Ports,
}

impl Place {
    /// Returns the command that runs a manager, with the flags that all managers have. The name of the flag
    /// for the health port differs between them.
    pub(crate) fn command(&self, manager: &Path, health_flag: &str) -> Command {
        let Ports {
            webhook,
            health,
            diagnostics,
        } = self.ports;
        let mut command = Command::new(manager);
        command
            .arg(format!("--kubeconfig={}", self.kubeconfig.display()))
            .arg(format!("--webhook-cert-dir={}", self.folder.display()))
            .arg(format!("--webhook-port={webhook}"))
            .arg(format!("{health_flag}=127.0.0.1:{health}"))
            .arg(format!("--diagnostics-address=127.0.0.1:{diagnostics}"))
            .arg("--insecure-diagnostics");
        command
    }
}

/// Returns the command that runs core or a kubeadm provider.
pub(crate) fn command(manager: &Path, at: &Place, pace: Pace) -> Command {
    let mut command = at.command(manager, "--health-addr");
    command.args(FLAGS).arg(format!(
        "--feature-gates={FEATURE_GATES},ReconcilerRateLimiting={}",
        pace.rate_limiting
    ));
    if let Some(period) = pace.sync_period {
        command.arg(format!("--sync-period={}s", period.as_secs()));
    }
    command
}

/// Waits until an aggregated role has rules. Without its permissions a manager would back off.
pub(crate) async fn wait_for_role(client: &Client, name: &str) -> Result<()> {
    let roles: Api<ClusterRole> = Api::all(client.clone());
    eventually(
        START_DEADLINE,
        &format!("the aggregation of {name}"),
        async || {
            let role = roles.get(name).await?;
            ensure!(!role.rules.unwrap_or_default().is_empty(), "{name} has no rules");
            Ok(())
        },
    )
    .await
}

pub(crate) async fn is_ready(port: u16) -> bool {
    let Ok(uri) = format!("http://127.0.0.1:{port}/readyz").parse() else {
        return false;
    };
    let client: HttpClient<HttpConnector, Empty<Bytes>> =
        HttpClient::builder(TokioExecutor::new()).build_http();
    client
        .get(uri)
        .await
        .is_ok_and(|answer| answer.status().is_success())
}
