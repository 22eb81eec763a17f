//! Gardener's machine-controller-manager: its two controllers, as a Gardener cluster runs them.

use std::{path::Path, process::Command, time::Duration};

use anyhow::{Context, Result};
use tokio::net::TcpStream;

use crate::{
    ManagementCluster, port::with_free_ports, process::Process, programs::MachineControllerManagerPrograms,
};

const START_DEADLINE: Duration = Duration::from_mins(4);
/// The grace period of a Pod.
const STOP_GRACE: Duration = Duration::from_secs(30);

/// The two controllers for one namespace of a management cluster, with the workload cluster's Nodes. They
/// elect themselves by Leases, as they do by default.
#[derive(Debug)]
pub struct MachineControllerManager {
    manager: Process,
    machine_controller: Process,
}

impl MachineControllerManager {
    /// Installs the definitions of its kinds, after building its programs if that was not done before.
    ///
    /// # Errors
    /// When the programs can't be built, or the API server refuses.
    pub async fn install(management: &ManagementCluster) -> Result<()> {
        let programs = MachineControllerManagerPrograms::find().await?;
        let definitions = std::fs::read_to_string(&programs.definitions)?;
        let installed = management.apply_yaml(&definitions).await;
        installed.context("installing the definitions of machine-controller-manager")?;
        Ok(())
    }

    /// Starts both controllers; `driver` is where the driver that makes the VMs listens, as gRPC names it.
    ///
    /// # Errors
    /// When one ends or does not serve its health, or when the programs can't be built.
    pub async fn start(management: &ManagementCluster, namespace: &str, driver: &str) -> Result<Self> {
        let programs = MachineControllerManagerPrograms::find().await?;
        let mut manager = Command::new(&programs.machine_controller_manager);
        manager.arg("--machine-safety-overshooting-period=1s");
        let mut machine_controller = Command::new(&programs.machine_controller);
        machine_controller
            .arg(format!("--driver={driver}"))
            .arg("--machine-safety-orphan-vms-period=1s")
            // After this time it marks Nodes that have none of its machines, such as other Nodes in the
            // cluster.
            .arg("--machine-creation-timeout=24h");
        Ok(Self {
            manager: launch(management, namespace, "machine-controller-manager", &mut manager).await?,
            machine_controller: launch(
                management,
                namespace,
                "machine-controller",
                &mut machine_controller,
            )
            .await?,
        })
    }

    /// Stops both controllers. Their Leases stay until they expire.
    ///
    /// # Errors
    /// When one had ended before.
    pub async fn stop(&mut self) -> Result<()> {
        for process in [&mut self.manager, &mut self.machine_controller] {
            process
                .terminate(STOP_GRACE)
                .await
                .context("stopping machine-controller-manager")?;
        }
        Ok(())
    }

    /// The file with the output of the machine controller.
    pub fn machine_controller_log(&self) -> &Path {
        self.machine_controller.log()
    }
}

async fn launch(
    management: &ManagementCluster,
    namespace: &str,
    name: &str,
    command: &mut Command,
) -> Result<Process> {
    let workload = management.workload().await?.admin_kubeconfig();
    command
        .arg(format!(
            "--control-kubeconfig={}",
            management.admin_kubeconfig().display()
        ))
        .arg(format!("--target-kubeconfig={}", workload.display()))
        .arg(format!("--namespace={namespace}"))
        .args([
            "--address=127.0.0.1",
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
            "--v=3",
        ]);
    let process = with_free_ports(async |[port]: [u16; 1]| {
        let mut on_port = Command::new(command.get_program());
        on_port.args(command.get_args()).arg(format!("--port={port}"));
        let log = format!("{namespace}-{name}");
        let mut process = Process::start(management.folder(), &log, &on_port)?;
        let serves = async || TcpStream::connect(("127.0.0.1", port)).await.is_ok();
        process.wait_until(START_DEADLINE, serves).await?;
        Ok(process)
    });
    process.await.with_context(|| format!("starting {name}"))
}
