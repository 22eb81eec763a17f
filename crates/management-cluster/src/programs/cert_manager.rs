//! cert-manager, which Cluster API needs when its managers run as Pods.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use super::{build::build_missing, cache_folder, folder_of, go_module::CERT_MANAGER, helm, store};
use crate::programs::CERT_MANAGER_VERSION;

const MODULE: &str = "github.com/cert-manager/cert-manager";

/// Paths of cert-manager's programs and of its installation. All of them exist.
#[derive(Debug, Clone)]
pub struct CertManager {
    /// The controller, the webhook and the injector of authorities, by the last part of their images' names.
    pub programs: [PathBuf; 3],
    /// Its installation as a YAML stream, as its release has it. Its images have the version as their tag.
    pub manifests: PathBuf,
}

impl CertManager {
    /// Finds or builds it, always in the cache.
    ///
    /// # Errors
    /// When `go` is missing or fails, or Helm cannot render the chart.
    pub async fn find() -> Result<Self> {
        let helm = helm().await?;
        tokio::task::spawn_blocking(move || find(&helm))
            .await
            .context("the search for cert-manager was interrupted")?
    }
}

fn find(helm: &Path) -> Result<CertManager> {
    let folder = cache_folder()?.join(CERT_MANAGER.cache_key());
    let manifests = folder.join("cert-manager.yaml");
    let packages: Vec<_> = CERT_MANAGER.packages.iter().collect();
    build_missing(&CERT_MANAGER, &packages, &folder, |sources| {
        if manifests.exists() {
            return Ok(());
        }
        let deploy = folder_of(MODULE, sources)?.join("deploy");
        let rendered = render(helm, &deploy, &sources.join("chart"))?;
        store(&manifests, &rendered).context("storing the installation of cert-manager")
    })?;
    let program = |name: &str| folder.join(name);
    Ok(CertManager {
        programs: ["controller", "webhook", "cainjector"].map(program),
        manifests,
    })
}

/// Renders the chart. In the module it has neither its version nor the definitions, which a release adds.
fn render(helm: &Path, deploy: &Path, chart: &Path) -> Result<Vec<u8>> {
    let templates = chart.join("templates");
    fs::create_dir_all(&templates)?;
    copy(&deploy.join("charts/cert-manager/templates"), &templates)?;
    copy(&deploy.join("crds"), &templates)?;
    fs::copy(
        deploy.join("charts/cert-manager/values.yaml"),
        chart.join("values.yaml"),
    )?;
    let version = CERT_MANAGER_VERSION;
    let about = format!("apiVersion: v1\nname: cert-manager\nversion: {version}\nappVersion: {version}\n");
    fs::write(chart.join("Chart.yaml"), about)?;
    let rendered = Command::new(helm)
        .args(["template", "cert-manager", "--namespace=cert-manager"])
        // A Job that waits until the rest works.
        .arg("--set=startupapicheck.enabled=false")
        .arg(chart)
        .output()
        .context("running helm template")?;
    let errors = String::from_utf8_lossy(&rendered.stderr);
    ensure!(rendered.status.success(), "helm template: {errors}");
    let namespace = b"apiVersion: v1\nkind: Namespace\nmetadata:\n  name: cert-manager\n";
    Ok([namespace.as_slice(), &rendered.stdout].concat())
}

/// Copies the templates of a folder. Files of a module are read-only, and their copies must not be.
fn copy(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let file = entry?.path();
        let name = file.file_name().unwrap_or_default();
        if file
            .extension()
            .is_some_and(|extension| extension == "yaml" || extension == "tpl")
        {
            fs::write(to.join(name), fs::read(&file)?)?;
        }
    }
    Ok(())
}
