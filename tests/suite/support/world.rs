//! The management cluster, and one namespace of it.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use kube::Client;
use kube::api::DynamicObject;
use management_cluster::{ManagementCluster, apply_yaml, stand_in};
use serde_json::json;
use tokio::sync::OnceCell;

use super::DEADLINE;

static INSTALLED: OnceCell<()> = OnceCell::const_new();

/// One namespace of the shared management cluster.
pub struct World {
    /// The management cluster.
    pub management: &'static ManagementCluster,
    /// The administrator.
    pub admin: Client,
    /// The namespace of this case.
    pub namespace: String,
    /// Files of this case.
    pub folder: PathBuf,
}

impl World {
    /// A namespace of its own for a case.
    pub async fn new(case: &str) -> Result<Self> {
        let management = ManagementCluster::shared(|| {
            ManagementCluster::builder()
                .manifests(CRDS.as_str())
                .audit_log(true)
        })
        .await?;
        INSTALLED.get_or_try_init(|| install(management)).await?;
        let namespace = management.namespace(case).await?;
        let folder = management.folder().path().join(&namespace);
        std::fs::create_dir_all(&folder).context("making the folder of the case")?;
        Ok(Self {
            management,
            admin: management.admin_client().await?,
            namespace,
            folder,
        })
    }

    /// The same namespace on another management cluster, which lives as long as the process. The namespace itself is not
    /// made.
    pub async fn elsewhere(&self) -> Result<Self> {
        let builder = ManagementCluster::builder().manifests(CRDS.as_str());
        let management: &'static ManagementCluster = Box::leak(Box::new(builder.start().await?));
        install(management).await?;
        let folder = management.folder().path().join(&self.namespace);
        std::fs::create_dir_all(&folder).context("making the folder of the case")?;
        Ok(Self {
            management,
            admin: management.admin_client().await?,
            namespace: self.namespace.clone(),
            folder,
        })
    }

    /// Applies YAML, in which `$NS` stands for the namespace.
    pub async fn apply(&self, yaml: &str) -> Result<Vec<DynamicObject>> {
        apply_yaml(&self.admin, &yaml.replace("$NS", &self.namespace)).await
    }

    /// A Cluster with our InfraCluster, an initialized control plane and the workload cluster.
    pub async fn cluster(&self, name: &str) -> Result<()> {
        self.apply(&format!(
            "apiVersion: infrastructure.capcmi.io/v1alpha1\nkind: InfraCluster\nmetadata: {{name: {name}, namespace: $NS}}\nspec: {{}}\n"
        ))
        .await?;
        let infrastructure =
            json!({"apiGroup": "infrastructure.capcmi.io", "kind": "InfraCluster", "name": name});
        stand_in::create_cluster(
            self.management,
            &self.namespace,
            name,
            json!({"infrastructureRef": infrastructure}),
        )
        .await?;
        Ok(())
    }

    /// kubectl as the administrator.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.management.kubectl();
        run(command.args(["-n", &self.namespace]).args(arguments))
    }
}

/// What the binary prints, so that a case never runs against definitions that are not shipped.
static CRDS: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| {
    run(Command::new(env!("CARGO_BIN_EXE_capcmi")).args(["manifests", "crd"]))
        .expect("printing the definitions")
});

/// Installs `config/default` as an administrator would.
async fn install(management: &ManagementCluster) -> Result<()> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/config/default");
    let manifests = run(management.kubectl().args(["kustomize", folder]))?;
    management.apply_yaml(&manifests).await?;
    let core = management.admin_client().await?;
    management_cluster::eventually(
        DEADLINE,
        "the aggregation of the provider's ClusterRole",
        async || {
            let roles = kube::Api::<k8s_openapi::api::rbac::v1::ClusterRole>::all(core.clone());
            let role = roles.get(management_cluster::AGGREGATED_ROLE).await?;
            let ours = |group: &String| group == "infrastructure.capcmi.io";
            ensure!(
                role.rules
                    .iter()
                    .flatten()
                    .flat_map(|rule| rule.api_groups.iter().flatten())
                    .any(ours),
                "not merged yet"
            );
            Ok(())
        },
    )
    .await
}

/// Runs a command and gives what it printed.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed: {errors}");
    Ok(String::from_utf8(output.stdout)?)
}
