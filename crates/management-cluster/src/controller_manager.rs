//! kube-controller-manager, with the controllers that Cluster API and kubelets rely on.

use std::process::Command;

use anyhow::{Context, Result};

use crate::{Programs, api_server::ApiServer, process::Process, run_folder::RunFolder};

const OF_MANAGEMENT: &str = "clusterrole-aggregation-controller,garbage-collector-controller,\
    namespace-controller,\
                             serviceaccount-controller,serviceaccount-token-controller";
const OF_WORKLOAD: &str = "certificatesigningrequest-approving-controller,\
                           certificatesigningrequest-signing-controller,deployment-controller,\
                           garbage-collector-controller,namespace-controller,node-lifecycle-controller,\
                           pod-garbage-collector-controller,replicaset-controller,taint-eviction-controller";

/// Starts the controllers of the management cluster.
pub(crate) fn of_management(
    programs: &Programs,
    folder: &RunFolder,
    api_server: &ApiServer,
) -> Result<Process> {
    let mut command = command(programs, api_server, OF_MANAGEMENT);
    command.arg(format!(
        "--service-account-private-key-file={}",
        api_server.service_account_key.display()
    ));
    Process::start(folder, "kube-controller-manager", &command).context("starting kube-controller-manager")
}

/// Starts the controllers of a workload cluster with real kubelets, whose certificates are signed by them.
pub(crate) fn of_workload(
    programs: &Programs,
    folder: &RunFolder,
    api_server: &ApiServer,
) -> Result<Process> {
    let (certificate, key) = &api_server.signing;
    let mut command = command(programs, api_server, OF_WORKLOAD);
    command
        .arg(format!("--cluster-signing-cert-file={}", certificate.display()))
        .arg(format!("--cluster-signing-key-file={}", key.display()));
    Process::start(folder, "kube-controller-manager-workload", &command)
        .context("starting kube-controller-manager of the workload cluster")
}

fn command(programs: &Programs, api_server: &ApiServer, controllers: &str) -> Command {
    let mut command = Command::new(&programs.kube_controller_manager);
    command
        .arg(format!("--kubeconfig={}", api_server.admin_kubeconfig.display()))
        .arg(format!("--controllers={controllers}"))
        .args([
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
        ]);
    command
}
