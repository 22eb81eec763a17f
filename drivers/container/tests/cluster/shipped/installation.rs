//! The provider in the cluster, as `kubectl apply -k` installs it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;

use crate::{lab::repository, workload::Workload};

/// The namespace of the provider.
pub const NAMESPACE: &str = "capcmi-system";
/// The Deployment of the provider.
pub const MANAGER: &str = "capcmi-controller-manager";
/// The image of the provider, without a tag.
pub const IMAGE: &str = "ghcr.io/capcmi/cluster-api-provider-cmi";
/// The image of a driver, as the documentation names it.
pub const DRIVER_IMAGE: &str = "registry.example.com/my-driver";
/// The tag of that image.
pub const DRIVER_VERSION: &str = "v0.1.0";

/// A kustomization of a user.
#[derive(Debug, Clone, Copy)]
pub struct Kustomization<'a> {
    /// Folders in `config/components`.
    pub components: &'a [&'a str],
    /// The tag of the provider's image.
    pub version: &'a str,
    /// The provider's replicas.
    pub replicas: u8,
    /// Further lines.
    pub more: &'a str,
}

impl Kustomization<'_> {
    /// Applies it.
    ///
    /// # Errors
    /// When kustomize or the API server refuses it.
    pub fn apply(&self, workload: &Workload, folder: &Path) -> Result<()> {
        let folder = tempfile::tempdir_in(folder)?;
        fs::write(
            folder.path().join("kustomization.yaml"),
            self.text(folder.path())?,
        )?;
        let path = folder.path().display().to_string();
        workload.kubectl(&["apply", "--server-side", "-k", &path])?;
        Ok(())
    }

    fn text(&self, folder: &Path) -> Result<String> {
        // kustomize takes relative paths only.
        let up = "../".repeat(folder.canonicalize()?.components().count() - 1);
        let config = repository().join("config").canonicalize()?;
        let config = PathBuf::from(up).join(config.strip_prefix("/")?);
        let components = self.components.iter();
        let components = components.map(|name| format!("- {}/components/{name}\n", config.display()));
        let (version, replicas, more) = (self.version, self.replicas, self.more);
        Ok(format!(
            "resources:\n- {}/default\ncomponents:\n{}images:\n- {{name: {IMAGE}, newTag: {version}}}\n\
             - {{name: driver, newName: {DRIVER_IMAGE}, newTag: {DRIVER_VERSION}}}\n\
             replicas:\n- {{name: {MANAGER}, count: {replicas}}}\n{more}",
            config.display(),
            components.collect::<String>(),
        ))
    }
}
