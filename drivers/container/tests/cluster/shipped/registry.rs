//! Container images for the new machines of an upgrade, in place of a registry.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use tokio::time::sleep;

use super::route;
use crate::{NEXT, VERSION, cluster::Cluster, lab::Lab, workload::Workload};

/// The program of kube-proxy in its image.
const KUBE_PROXY: &str = "/usr/local/bin/kube-proxy";
/// The pause between two looks for new machines.
const PAUSE: Duration = Duration::from_secs(1);

/// The images that machines get during an upgrade.
pub struct Registry<'a> {
    lab: &'a Lab,
    /// The machines that were there before.
    old: Vec<String>,
    /// The new machines that have all images.
    new: Vec<String>,
    /// The images of a new machine.
    images: Vec<PathBuf>,
}

impl<'a> Registry<'a> {
    /// Returns a registry that gives the images to all machines but the old ones.
    ///
    /// # Errors
    /// When no old machine gives the image of its kube-proxy.
    pub fn of(lab: &'a Lab, old: Vec<String>, images: &[PathBuf]) -> Result<Self> {
        let proxy = lab.folder.join("kube-proxy-old.tar");
        lab.save(
            old.first().context("no machine")?,
            &kube_proxy(VERSION),
            KUBE_PROXY,
            &proxy,
        )?;
        Ok(Self {
            lab,
            old,
            new: Vec::new(),
            images: [images, &[proxy]].concat(),
        })
    }

    /// Puts the images into each new machine, and never ends. The Pods of a drained machine move there, and
    /// the host has to reach them.
    ///
    /// # Errors
    /// When an old machine does not take the new image of kube-proxy.
    pub async fn serve(&mut self, inside: &Cluster<'_>, workload: &Workload) -> Result<()> {
        loop {
            // The API server moves with the control plane.
            for machine in inside.provider_ids().await.unwrap_or_default() {
                if !self.old.contains(&machine) && !self.new.contains(&machine) {
                    self.fill(machine)?;
                }
            }
            // Until it is Ready, a new Node may have no address or Pods yet.
            route(workload).await.ok();
            sleep(PAUSE).await;
        }
    }

    /// Some seconds after a machine is made, containerd does not answer yet. The next look tries again.
    fn fill(&mut self, machine: String) -> Result<()> {
        let mut images = self.images.iter();
        if images.any(|image| self.lab.load(&machine, image).is_err()) {
            return Ok(());
        }
        if self.new.is_empty() {
            self.update_old(&machine)?;
        }
        self.new.push(machine);
        Ok(())
    }

    fn update_old(&self, from: &str) -> Result<()> {
        let proxy = self.lab.folder.join("kube-proxy-new.tar");
        self.lab.save(from, &kube_proxy(NEXT), KUBE_PROXY, &proxy)?;
        for machine in &self.old {
            self.lab.load(machine, &proxy)?;
        }
        Ok(())
    }
}

/// The image of kube-proxy. All Nodes need the old version until the control plane is upgraded, and then the
/// new version.
fn kube_proxy(version: &str) -> String {
    format!("registry.k8s.io/kube-proxy:{version}")
}
