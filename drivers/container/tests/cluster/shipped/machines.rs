//! Machines of the sample MachineDeployment.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, ensure};
use management_cluster::eventually;

use crate::{lab::repository, workload::Workload};

const DEADLINE: Duration = Duration::from_mins(3);
const NAME: &str = "quickstart";
/// The replicas of the sample.
pub const SAMPLED: usize = 3;

/// The sample in the workload cluster, with machines of a driver.
pub struct Machines<'a> {
    workload: &'a Workload,
    manifest: PathBuf,
}

impl<'a> Machines<'a> {
    /// Applies the sample, and returns when its machines have VMs.
    ///
    /// # Errors
    /// When the API server refuses it, or that takes too long.
    pub async fn make(workload: &'a Workload, folder: &Path, driver: &str) -> Result<Self> {
        let sample = fs::read_to_string(repository().join("config/samples/machine-deployment.yaml"))?;
        let secret = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: quickstart-bootstrap}\n\
                      stringData: {value: '#cloud-config', format: cloud-config}\n";
        let manifest = folder.join(format!("sample-{driver}.yaml"));
        let sample = sample.replace("driver: simulated", &format!("driver: {driver}"));
        fs::write(&manifest, format!("{sample}{secret}"))?;
        workload.apply(&manifest)?;
        let machines = Self { workload, manifest };
        machines.are(SAMPLED).await?;
        Ok(machines)
    }

    /// Scales the MachineDeployment, and returns when so many machines have VMs.
    ///
    /// # Errors
    /// When that takes too long.
    pub async fn scale(&self, replicas: usize) -> Result<()> {
        self.workload.kubectl(&[
            "scale",
            "machinedeployment",
            NAME,
            &format!("--replicas={replicas}"),
        ])?;
        self.are(replicas).await
    }

    /// The ProviderIDs of all machines, sorted.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub fn provider_ids(&self) -> Result<Vec<String>> {
        let ids = self.get("{range .items[*]}{.spec.providerID}{\"\\n\"}{end}")?;
        let mut ids: Vec<_> = ids.lines().map(str::to_owned).collect();
        ids.sort();
        Ok(ids)
    }

    /// Deletes everything, and returns when it is gone.
    ///
    /// # Errors
    /// When that takes too long.
    pub async fn delete(self) -> Result<()> {
        self.workload
            .kubectl(&["delete", "cluster", NAME, "--wait=false"])?;
        eventually(DEADLINE, "the end of the sample", async || {
            let left = self
                .workload
                .kubectl(&["get", "clusters,machines,inframachines", "--output=name"])?;
            ensure!(left.is_empty(), "{left}");
            Ok(())
        })
        .await?;
        let manifest = self.manifest.display().to_string();
        self.workload
            .kubectl(&["delete", "--ignore-not-found", "-f", &manifest])?;
        Ok(())
    }

    async fn are(&self, count: usize) -> Result<()> {
        eventually(DEADLINE, &format!("{count} machines"), async || {
            let made = self.get("{range .items[*]}{.status.initialization.provisioned}{\"\\n\"}{end}")?;
            ensure!(made.lines().count() == count, "{made}");
            ensure!(made.lines().all(|made| made == "true"), "{made}");
            Ok(())
        })
        .await
    }

    fn get(&self, path: &str) -> Result<String> {
        self.workload
            .kubectl(&["get", "inframachines", &format!("--output=jsonpath={path}")])
    }
}
