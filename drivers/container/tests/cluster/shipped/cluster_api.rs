//! Cluster API as Pods in the cluster: its images, and clusterctl's repository, both made of Go modules.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use management_cluster::{
    CERT_MANAGER_VERSION, CLUSTER_API_VERSION, CertManager, KubeadmProgram, ManagementCluster,
};
use serde_json::{Value, json};

use super::image::static_image;
use crate::{sandbox::output, workload::Workload};

/// A provider of Cluster API's own release.
struct Provider {
    /// Its name and type for clusterctl.
    name: &'static str,
    kind: &'static str,
    /// Its folder and file in a repository.
    label: &'static str,
    components: &'static str,
    /// Its image.
    image: &'static str,
}

const CORE: Provider = Provider {
    name: "cluster-api",
    kind: "CoreProvider",
    label: "cluster-api",
    components: "core-components.yaml",
    image: "cluster-api-controller",
};
const BOOTSTRAP: Provider = Provider {
    name: "kubeadm",
    kind: "BootstrapProvider",
    label: "bootstrap-kubeadm",
    components: "bootstrap-components.yaml",
    image: "kubeadm-bootstrap-controller",
};
const CONTROL_PLANE: Provider = Provider {
    name: "kubeadm",
    kind: "ControlPlaneProvider",
    label: "control-plane-kubeadm",
    components: "control-plane-components.yaml",
    image: "kubeadm-control-plane-controller",
};

const METADATA: &str = "
apiVersion: clusterctl.cluster.x-k8s.io/v1alpha3
kind: Metadata
releaseSeries:
- {major: 1, minor: 14, contract: v1beta2}
";

/// A repository for `clusterctl init`, and the images that it names.
pub struct Repository {
    config: PathBuf,
    /// Archives of the images.
    pub images: Vec<PathBuf>,
}

impl Repository {
    /// Makes the repository in a folder. Programs that are missing are built, which needs the network.
    ///
    /// # Errors
    /// When something can't be built or written.
    pub async fn make(management: &ManagementCluster, folder: &Path) -> Result<Self> {
        let programs = management.programs();
        let bootstrap = KubeadmProgram::bootstrap(programs).await?;
        let control_plane = KubeadmProgram::control_plane(programs).await?;
        let mut repository = Self {
            config: folder.join("clusterctl.yaml"),
            images: Vec::new(),
        };
        let mut config = json!({"providers": []});
        for (provider, program, components) in [
            (&CORE, &programs.core, &programs.core_components),
            (&BOOTSTRAP, &bootstrap.manager, &bootstrap.components),
            (&CONTROL_PLANE, &control_plane.manager, &control_plane.components),
        ] {
            let place = folder.join(provider.label).join(CLUSTER_API_VERSION);
            let entry = provider.publish(&place, components)?;
            config["providers"].as_array_mut().context("a list")?.push(entry);
            repository
                .images
                .push(static_image(&provider.image(), "/manager", program, folder)?);
        }
        config["cert-manager"] = repository.publish_cert_manager(folder).await?;
        fs::write(&repository.config, config.to_string())?;
        Ok(repository)
    }

    async fn publish_cert_manager(&mut self, folder: &Path) -> Result<Value> {
        let cert_manager = CertManager::find().await?;
        for program in &cert_manager.programs {
            let name = program.file_name().unwrap_or_default().to_string_lossy();
            let image = format!("quay.io/jetstack/cert-manager-{name}:{CERT_MANAGER_VERSION}");
            let path = format!("/app/cmd/{name}/{name}");
            self.images.push(static_image(&image, &path, program, folder)?);
        }
        let place = folder.join("cert-manager").join(CERT_MANAGER_VERSION);
        fs::create_dir_all(&place)?;
        let manifests = place.join("cert-manager.yaml");
        fs::copy(&cert_manager.manifests, &manifests)?;
        Ok(json!({"url": manifests, "version": CERT_MANAGER_VERSION}))
    }

    /// `clusterctl init` of Cluster API with the kubeadm providers, and returns when their Pods are ready.
    ///
    /// # Errors
    /// When clusterctl fails.
    pub fn init(&self, management: &ManagementCluster, workload: &Workload) -> Result<String> {
        let config = format!("--config={}", self.config.display());
        let version = CLUSTER_API_VERSION;
        output(
            management
                .clusterctl()
                .args([
                    "init",
                    "--infrastructure=-",
                    "--wait-providers",
                    "--wait-provider-timeout=300",
                ])
                .arg(config)
                .arg(format!("--kubeconfig={}", workload.kubeconfig().display()))
                .arg(format!("--core=cluster-api:{version}"))
                .arg(format!("--bootstrap=kubeadm:{version}"))
                .arg(format!("--control-plane=kubeadm:{version}")),
        )
    }
}

impl Provider {
    fn image(&self) -> String {
        format!("registry.k8s.io/cluster-api/{}:{CLUSTER_API_VERSION}", self.image)
    }

    /// Writes the provider's release to its place, and returns its entry for clusterctl.
    fn publish(&self, place: &Path, components: &Path) -> Result<Value> {
        let mut objects: Vec<Value> = serde_json::from_slice(&fs::read(components)?)?;
        for object in objects.iter_mut().filter(|object| object["kind"] == "Deployment") {
            // As a release does. In the module is the image of its main branch.
            let container = &mut object["spec"]["template"]["spec"]["containers"][0];
            container["image"] = json!(self.image());
            container["imagePullPolicy"] = json!("IfNotPresent");
        }
        let stream: Vec<_> = objects.iter().map(ToString::to_string).collect();
        fs::create_dir_all(place)?;
        fs::write(place.join(self.components), stream.join("\n---\n"))?;
        fs::write(place.join("metadata.yaml"), METADATA)?;
        let url = format!("file://{}", place.join(self.components).display());
        Ok(json!({"name": self.name, "type": self.kind, "url": url}))
    }
}
