//! The Cluster in the management cluster: made by clusterctl from the flavour, as a user does.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::Result;

pub use testbed::whole_cluster::cluster::{Cluster, Member, NAME, Wanted};

use crate::{
    lab::{ENDPOINT, Lab, image},
    sandbox::output,
};

/// How long anything may take, on a computer that others use as well.
const DEADLINE: Duration = Duration::from_mins(10);

/// Variables of the flavour: the VIP moves sooner than by default, 15 s after the last sign of its holder.
const VIP_SECONDS: [(&str, &str); 3] = [
    ("KUBE_VIP_LEASE_SECONDS", "10"),
    ("KUBE_VIP_RENEW_SECONDS", "7"),
    ("KUBE_VIP_RETRY_SECONDS", "1"),
];

/// Generates and applies the Cluster.
///
/// # Errors
/// When clusterctl or the API server refuses it.
pub async fn create<'a>(lab: &'a Lab, wanted: Wanted<'_>) -> Result<Cluster<'a>> {
    let cluster = Cluster::new(&lab.management, &lab.namespace, DEADLINE).await?;
    let overlay = lab.folder.join(NAME);
    fs::create_dir(&overlay)?;
    let generated = output(
        lab.management
            .clusterctl()
            .args(["generate", "cluster", NAME, "--flavor=container"])
            .arg("--infrastructure=capcmi-cmi:v0.1.0")
            .arg(format!("--config={}", release(lab)?.display()))
            .arg(format!("--target-namespace={}", lab.namespace))
            .arg(format!("--kubernetes-version={}", wanted.version))
            .arg(format!("--control-plane-machine-count={}", wanted.control_planes))
            .arg(format!("--worker-machine-count={}", wanted.workers))
            .env("CONTROL_PLANE_ENDPOINT_HOST", ENDPOINT)
            .env("CAPCMI_IMAGE", image(wanted.version))
            .envs(VIP_SECONDS),
    )?;
    fs::write(overlay.join("demo.yaml"), generated)?;
    fs::write(overlay.join("kustomization.yaml"), include_str!("overlay.yaml"))?;
    fs::write(overlay.join("drain-rule.yaml"), include_str!("drain-rule.yaml"))?;
    cluster.kubectl(&["apply", "--server-side", "-k", &overlay.display().to_string()])?;
    Ok(cluster)
}

/// Writes a clusterctl repository, and returns its configuration.
fn release(lab: &Lab) -> Result<PathBuf> {
    let folder = lab.folder.join("release");
    let kubectl = &lab.management.programs().kubectl;
    output(&mut testbed::make_release(&folder, "v0.1.0", kubectl))?;
    Ok(folder.join("clusterctl-config.yaml"))
}
