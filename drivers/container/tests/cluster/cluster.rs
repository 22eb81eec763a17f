//! The Cluster in the management cluster: made by clusterctl from the flavour, as a user does.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::Result;
use management_cluster::eventually;

pub use testbed::whole_cluster::cluster::{Cluster, Member, NAME, Wanted};

use crate::{
    lab::{ENDPOINT, Lab, image},
    sandbox::output,
    steps::Steps,
    workload::Workload,
};

/// How long anything may take, on a computer that others use as well.
const DEADLINE: Duration = Duration::from_mins(10);
/// How long the API server may refuse the Cluster.
const APPLIED: Duration = Duration::from_mins(1);

/// A flavour, as the tests use it.
pub struct Flavour {
    name: &'static str,
    /// Its variables, beside those of each Cluster.
    variables: &'static [(&'static str, &'static str)],
    /// The files of a kustomization that changes `demo.yaml`.
    overlay: &'static [(&'static str, &'static str)],
}

/// The flavour for system containers. The VIP moves sooner than by default, 15 s after the last sign of its
/// holder.
pub const CONTAINER: Flavour = Flavour {
    name: "container",
    variables: &[
        ("KUBE_VIP_LEASE_SECONDS", "10"),
        ("KUBE_VIP_RENEW_SECONDS", "7"),
        ("KUBE_VIP_RETRY_SECONDS", "1"),
    ],
    overlay: &[("kustomization.yaml", include_str!("overlay.yaml"))],
};

/// The flavour with a ClusterClass, whose templates are for the simulated driver.
pub const TOPOLOGY: Flavour = Flavour {
    name: "topology",
    variables: &[
        ("CAPCMI_DRIVER", "container"),
        ("POD_CIDR", r#"["10.244.0.0/16"]"#),
    ],
    overlay: &[("kustomization.yaml", include_str!("topology/overlay.yaml"))],
};

/// Makes the Cluster, runs a test on it, and deletes it. Nothing of it may be left on the host.
pub async fn lived_on(
    lab: &mut Lab,
    flavour: &Flavour,
    wanted: Wanted<'_>,
    steps: &mut Steps,
    test: impl AsyncFnOnce(&Lab, &Cluster<'_>, &Workload, &mut Steps) -> Result<()>,
) -> Result<()> {
    let before = lab.traces()?;
    let cluster = create(lab, flavour, wanted).await?;
    let lived = async {
        let workload = cluster.workload().await?;
        steps.done("the API server answers on the VIP");
        let lived = test(lab, &cluster, &workload, steps).await;
        lived.map_err(|error| error.context(workload.describe()))
    };
    let lived = lived.await;
    lived.map_err(|error| error.context(format!("{}\n{}", cluster.describe(), lab.consoles())))?;
    cluster.delete().await?;
    steps.done("the Cluster is deleted");
    lab.ends_as(&before).await?;
    steps.done("nothing is left");
    Ok(())
}

/// Generates and applies the Cluster.
///
/// # Errors
/// When clusterctl or the API server refuses it.
pub async fn create<'a>(lab: &'a Lab, flavour: &Flavour, wanted: Wanted<'_>) -> Result<Cluster<'a>> {
    let cluster = Cluster::new(&lab.management, &lab.namespace, DEADLINE).await?;
    let overlay = lab.folder.join(NAME);
    fs::create_dir(&overlay)?;
    let generated = output(
        lab.management
            .clusterctl()
            .args(["generate", "cluster", NAME])
            .arg(format!("--flavor={}", flavour.name))
            .arg("--infrastructure=capcmi-cmi:v0.1.0")
            .arg(format!("--config={}", release(lab)?.display()))
            .arg(format!("--target-namespace={}", lab.namespace))
            .arg(format!("--kubernetes-version={}", wanted.version))
            .arg(format!("--control-plane-machine-count={}", wanted.control_planes))
            .arg(format!("--worker-machine-count={}", wanted.workers))
            .env("CONTROL_PLANE_ENDPOINT_HOST", ENDPOINT)
            .env("CAPCMI_IMAGE", image(wanted.version))
            .envs(flavour.variables.iter().copied()),
    )?;
    fs::write(overlay.join("demo.yaml"), generated)?;
    for (name, text) in flavour.overlay {
        fs::write(overlay.join(name), text)?;
    }
    // A webhook may not have seen the ClusterClass yet.
    eventually(APPLIED, "an API server that takes the Cluster", async || {
        cluster.kubectl(&["apply", "--server-side", "-k", &overlay.display().to_string()])
    })
    .await?;
    Ok(cluster)
}

/// Writes a clusterctl repository, and returns its configuration.
fn release(lab: &Lab) -> Result<PathBuf> {
    let folder = lab.folder.join("release");
    let kubectl = &lab.management.programs().kubectl;
    output(&mut testbed::make_release(&folder, "v0.1.0", kubectl))?;
    Ok(folder.join("clusterctl-config.yaml"))
}
