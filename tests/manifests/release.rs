//! A clusterctl repository, made by `make release`, and clusterctl on it.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use anyhow::Result;
use management_cluster::Programs;
use serde_json::Value;
use tempfile::TempDir;
use testbed::make_release;

use crate::objects::{output, parse};

/// A release that belongs to a single test.
pub struct Release {
    folder: TempDir,
    programs: Programs,
}

impl Release {
    /// `make release`, with its default image or another one.
    pub async fn make(image: Option<&str>) -> Result<Self> {
        Self::make_with(image.map(|image| format!("IMG={image}"))).await
    }

    /// `make release` with the list of crates, whose tool is built the first time.
    pub async fn make_with_sbom() -> Result<Self> {
        Self::make_with(Some("SBOM=yes".to_owned())).await
    }

    async fn make_with(variable: Option<String>) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let programs = Programs::find().await?;
        output(make_release(folder.path(), "v0.1.0", &programs.kubectl).args(variable))?;
        Ok(Self { folder, programs })
    }

    /// What `make release` says of a version, with kubectl or another program in its place.
    pub async fn try_make(folder: &Path, version: &str, kubectl: Option<&str>) -> Result<Output> {
        let kubectl = match kubectl {
            Some(program) => PathBuf::from(program),
            None => Programs::find().await?.kubectl,
        };
        Ok(make_release(folder, version, &kubectl).output()?)
    }

    /// clusterctl with the configuration of the release, without network, cluster and user's settings.
    pub fn clusterctl(&self) -> Command {
        let mut command = Command::new(&self.programs.clusterctl);
        command
            .env("XDG_CONFIG_HOME", self.folder.path())
            .env("HOME", self.folder.path())
            .env("KUBECONFIG", self.folder.path().join("no-cluster"))
            .env("CLUSTERCTL_DISABLE_VERSIONCHECK", "true")
            .env("GOPROXY", "off")
            .current_dir(self.folder.path());
        command
    }

    /// The folder of the release, which goes with it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// clusterctl's configuration.
    pub fn config(&self) -> PathBuf {
        self.folder.path().join("clusterctl-config.yaml")
    }

    /// What `clusterctl init` would install.
    pub fn generate_provider(&self) -> Result<Vec<Value>> {
        let mut command = self.clusterctl();
        command
            .args([
                "generate",
                "provider",
                "--infrastructure",
                "capcmi-cmi:v0.1.0",
                "--config",
            ])
            .arg(self.config());
        parse(&output(&mut command)?)
    }

    /// The objects of the Cluster demo in the namespace tenant.
    pub fn generate_cluster(&self, flavor: Option<&str>) -> Result<Vec<Value>> {
        parse(&output(&mut self.cluster(flavor))?)
    }

    /// The command that prints them.
    pub fn cluster(&self, flavor: Option<&str>) -> Command {
        let mut command = self.clusterctl();
        command
            .args([
                "generate",
                "cluster",
                "demo",
                "--infrastructure",
                "capcmi-cmi:v0.1.0",
            ])
            .args(["--target-namespace", "tenant", "--kubernetes-version", "v1.36.3"])
            .args([
                "--control-plane-machine-count",
                "3",
                "--worker-machine-count",
                "2",
            ])
            .args(flavor.map(|flavor| format!("--flavor={flavor}")))
            .env("CONTROL_PLANE_ENDPOINT_HOST", "api.demo.test")
            .env("CAPCMI_WORKER_SIZE", "4")
            // Of the flavor libvirt, which has no default for it.
            .env("CAPCMI_IMAGE", "debian-12")
            .arg("--config")
            .arg(self.config());
        command
    }
}
