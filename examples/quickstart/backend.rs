//! The back ends that create the machines.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use capcmi::api::v1alpha1::InfraMachine;
use clap::ValueEnum;
use kube::api::Api;
use management_cluster::ManagementCluster;
use management_cluster::hollow_kubelet::HollowKubelet;
use serde_json::{Value, json};
use testbed::{Seed, seeded_guests};

use crate::fleet::Row;
use crate::libvirt::{self, Libvirt};
use crate::scenario::NAMESPACE;
use crate::screen::Screen;

/// The driver that creates the VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DriverKind {
    /// The built-in driver. Its VMs run nothing.
    Simulated,
    /// The driver for hosts with libvirt. Its VMs boot on this computer.
    Libvirt,
    /// The driver for system containers on this computer. They form a whole Cluster. Needs root.
    Container,
}

/// A driver whose machines join a control plane that is a stand-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandInDriver {
    /// See [`DriverKind::Simulated`].
    Simulated,
    /// See [`DriverKind::Libvirt`].
    Libvirt,
}

/// A driver that is ready for the provider.
pub enum Backend {
    /// The simulated driver, with its state file. The quickstart reads its guests from there.
    Simulated(PathBuf),
    /// The libvirt driver as a plugin.
    Libvirt(Libvirt),
}

impl Backend {
    /// Prepares the driver.
    pub async fn start(kind: StandInDriver, screen: &Screen, management: &ManagementCluster) -> Result<Self> {
        match kind {
            StandInDriver::Simulated => Ok(Self::Simulated(management.folder().path().join("cloud.jsonl"))),
            StandInDriver::Libvirt => Libvirt::start(screen, management.folder())
                .await
                .map(Self::Libvirt),
        }
    }

    /// The driver's name in the provider's drivers file and in specs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Simulated(_) => "simulated",
            Self::Libvirt(_) => "libvirt",
        }
    }

    /// The provider's drivers file.
    pub fn drivers(&self) -> Value {
        let driver = match self {
            Self::Simulated(state) => json!({"name": self.name(), "simulated": {"stateFile": state}}),
            Self::Libvirt(libvirt) => json!({"name": self.name(), "grpc": {"endpoint": libvirt.endpoint()}}),
        };
        json!({"drivers": [driver]})
    }

    /// Stand-ins for the kubelets of the guests. A libvirt guest itself reports the data that its kubelet
    /// would know.
    pub async fn kubelets(&self, management: &ManagementCluster) -> Result<HollowKubelet> {
        match self {
            Self::Simulated(state) => Ok(HollowKubelet::start(testbed::guests(state))),
            Self::Libvirt(_) => {
                let client = management.admin_client().await?;
                let machines: Api<InfraMachine> = Api::namespaced(client, NAMESPACE);
                let ask = |_, address: String| async move { Seed::of(&address).await };
                Ok(HollowKubelet::start(seeded_guests(machines, ask)))
            }
        }
    }

    /// Whether one call creates a machine. The libvirt driver rejects the first calls until it has verified
    /// the image.
    pub fn makes_at_once(&self) -> bool {
        matches!(self, Self::Simulated(_))
    }

    /// The paths of the machines' serial consoles.
    pub fn consoles(&self, rows: &[Row]) -> Vec<String> {
        if let Self::Simulated(_) = self {
            return Vec::new();
        }
        let consoles = rows.iter().filter(|row| !row.provider_id.is_empty());
        std::iter::once("Serial consoles, files of root:".to_owned())
            .chain(consoles.map(|row| format!("  {}", libvirt::console(&row.provider_id))))
            .collect()
    }
}

/// A program that `cargo build` puts next to the folder of the examples.
pub fn program(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().with_context(|| format!("looking for {name} beside the quickstart"))?;
    let program = own
        .ancestors()
        .nth(2)
        .map(|folder: &Path| folder.join(name))
        .filter(|program| program.is_file());
    program.with_context(|| format!("{name} is not built: run `make quickstart`"))
}
