//! kube-controller-manager, with the controllers that Cluster API relies on.

use std::process::Command;

use anyhow::{Context, Result};

use crate::{Programs, api_server::ApiServer, process::Process, run_folder::RunFolder};

const CONTROLLERS: &str = "clusterrole-aggregation-controller,garbage-collector-controller,\
                           namespace-controller,serviceaccount-controller,serviceaccount-token-controller";

/// Starts the controllers of the management cluster.
pub(crate) fn start(programs: &Programs, folder: &RunFolder, api_server: &ApiServer) -> Result<Process> {
    let mut command = Command::new(&programs.kube_controller_manager);
    command
        .arg(format!("--kubeconfig={}", api_server.admin_kubeconfig.display()))
        .arg(format!("--controllers={CONTROLLERS}"))
        .arg(format!(
            "--service-account-private-key-file={}",
            api_server.service_account_key.display()
        ))
        .args([
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
        ]);
    Process::start(folder, "kube-controller-manager", &command).context("starting kube-controller-manager")
}
