//! Installing the shipped manifests.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capcmi::admission::as_installed;
use capcmi_manifests::{Part, stream};
use k8s_openapi::api::rbac::v1::ClusterRole;
use management_cluster::{AGGREGATED_ROLE, ManagementCluster, eventually};

const DEADLINE: Duration = Duration::from_secs(90);

/// The definitions, for [`management_cluster::ManagementClusterBuilder::manifests`]: a garbage collector that
/// starts before them notices them only after half a minute.
///
/// # Errors
/// When they can't be printed, which would be a fault of the provider.
pub fn definitions() -> Result<String> {
    stream(&[Part::Crd]).context("printing the definitions")
}

/// Installs `config/default` as an administrator would, with kustomize, and waits until Cluster API may use
/// the kinds. The admission policies are installed as well, as if a provider had run before.
///
/// # Errors
/// When kustomize or the API server refuses something.
pub async fn install(management: &ManagementCluster) -> Result<()> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/default");
    let output = management
        .kubectl()
        .args(["kustomize", folder])
        .output()
        .context("running kubectl kustomize")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "kubectl kustomize {folder} failed: {errors}"
    );
    let manifests = String::from_utf8(output.stdout).context("what kustomize printed is no text")?;
    management.apply_yaml(&manifests).await?;
    for policy in as_installed().context("printing the admission policies")? {
        management.apply_yaml(&policy.to_string()).await?;
    }
    permitted(management).await
}

/// Waits until Cluster API may use the kinds of the provider, which are installed.
///
/// # Errors
/// When the permissions are not there in time.
pub async fn permitted(management: &ManagementCluster) -> Result<()> {
    let cluster_roles = kube::Api::<ClusterRole>::all(management.admin_client().await?);
    let what = "the aggregation of the provider's ClusterRole";
    eventually(DEADLINE, what, async || {
        let rules = cluster_roles
            .get(AGGREGATED_ROLE)
            .await?
            .rules
            .unwrap_or_default();
        let mut groups = rules.iter().flat_map(|rule| rule.api_groups.iter().flatten());
        ensure!(
            groups.any(|group| group == "infrastructure.capcmi.io"),
            "not merged yet"
        );
        Ok(())
    })
    .await
}
