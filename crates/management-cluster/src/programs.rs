//! Paths of the management cluster's programs, which are built if missing.

mod build;
mod cert_manager;
mod go_module;

use std::{
    env,
    fs::{self, DirEntry},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use self::{
    build::build_missing,
    go_module::{
        CLUSTER_API, CLUSTER_API_OPERATOR, FLUX, GoModule, HEALTH, HELM, IPAM_IN_CLUSTER, KUBEADM_BOOTSTRAP,
        KUBEADM_CONTROL_PLANE, KUBERNETES, MACHINE_CONTROLLER_MANAGER, Package,
    },
};

pub use self::cert_manager::CertManager;
pub use self::go_module::{
    CERT_MANAGER_VERSION, CLUSTER_API_OPERATOR_VERSION, CLUSTER_API_VERSION, FLUX_VERSION, HELM_VERSION,
    IPAM_IN_CLUSTER_VERSION, KUBERNETES_VERSION, MACHINE_CONTROLLER_MANAGER_VERSION,
};

/// Paths of the programs. All of them exist.
#[derive(Debug, Clone)]
pub struct Programs {
    /// etcd
    pub etcd: PathBuf,
    /// kube-apiserver
    pub kube_apiserver: PathBuf,
    /// kube-controller-manager
    pub kube_controller_manager: PathBuf,
    /// kubectl
    pub kubectl: PathBuf,
    /// Cluster API's core manager
    pub core: PathBuf,
    /// clusterctl
    pub clusterctl: PathBuf,
    /// Cluster API's own installation of the core manager as a JSON list of objects, with
    /// all placeholders left in.
    pub core_components: PathBuf,
}

impl Programs {
    /// Finds every program: first in the folder `$KUBEBUILDER_ASSETS`, then in the user's cache. A program in
    /// neither is built into the cache with `go build`. This takes some minutes, once per set of versions,
    /// and is reported on standard error. Any number of processes may call this at the same time.
    ///
    /// # Errors
    /// When `go` is needed and missing or fails, or when the cache cannot be written.
    pub async fn find() -> Result<Self> {
        tokio::task::spawn_blocking(find)
            .await
            .context("the search for the programs was interrupted")?
    }
}

/// Paths of machine-controller-manager's programs. All of them exist. They are separate from [`Programs`], so
/// that only their users wait for their build.
#[derive(Debug, Clone)]
pub(crate) struct MachineControllerManagerPrograms {
    /// machine-controller-manager, which makes MachineSets for MachineDeployments, and Machines for those.
    pub machine_controller_manager: PathBuf,
    /// Its machine controller, which makes VMs of Machines by a driver that it calls over CMI.
    pub machine_controller: PathBuf,
    /// The definitions of its kinds, as a YAML stream.
    pub definitions: PathBuf,
}

impl MachineControllerManagerPrograms {
    /// As [`Programs::find`], always from the cache.
    ///
    /// # Errors
    /// As those of [`Programs::find`].
    pub(crate) async fn find() -> Result<Self> {
        tokio::task::spawn_blocking(find_machine_controller_manager)
            .await
            .context("the search for machine-controller-manager was interrupted")?
    }
}

/// Paths of one of Cluster API's kubeadm providers. Both exist. They are separate from [`Programs`], so that
/// only their users wait for their build.
#[derive(Debug, Clone)]
pub struct KubeadmProgram {
    /// Its manager.
    pub manager: PathBuf,
    /// Its own installation, as [`Programs::core_components`].
    pub components: PathBuf,
}

impl KubeadmProgram {
    /// The bootstrap provider, as [`Programs::find`] finds core, always from the cache.
    ///
    /// # Errors
    /// As those of [`Programs::find`].
    pub async fn bootstrap(programs: &Programs) -> Result<Self> {
        Self::find(programs, &KUBEADM_BOOTSTRAP, "bootstrap/kubeadm/config/default").await
    }

    /// The control plane provider, in the same way.
    ///
    /// # Errors
    /// As those of [`Programs::find`].
    pub async fn control_plane(programs: &Programs) -> Result<Self> {
        Self::find(
            programs,
            &KUBEADM_CONTROL_PLANE,
            "controlplane/kubeadm/config/default",
        )
        .await
    }

    async fn find(
        programs: &Programs,
        package: &'static Package,
        kustomization: &'static str,
    ) -> Result<Self> {
        let kubectl = programs.kubectl.clone();
        let find = move || {
            let folder = cache_folder()?.join(CLUSTER_API.cache_key());
            let program = Self {
                manager: folder.join(package.program),
                components: folder.join(format!("{}-components.json", package.program)),
            };
            build_missing(&CLUSTER_API, &[package], &folder, |sources| {
                let kustomization = (CLUSTER_API_MODULE, kustomization);
                render_components(&kubectl, sources, kustomization, &program.components)
            })?;
            Ok(program)
        };
        tokio::task::spawn_blocking(find)
            .await
            .context("the search for the kubeadm providers was interrupted")?
    }
}

/// Paths of a manager that has a module of its own. Both exist. They are separate from [`Programs`], so that
/// only their users wait for their build.
#[derive(Debug, Clone)]
pub(crate) struct ManagerProgram {
    /// The manager.
    pub manager: PathBuf,
    /// Its own installation, as [`Programs::core_components`].
    pub components: PathBuf,
}

impl ManagerProgram {
    /// The Cluster API operator, as [`Programs::find`], always from the cache.
    ///
    /// # Errors
    /// As those of [`Programs::find`].
    pub(crate) async fn operator(programs: &Programs) -> Result<Self> {
        Self::find(
            programs,
            &CLUSTER_API_OPERATOR,
            "sigs.k8s.io/cluster-api-operator",
        )
        .await
    }

    /// The in-cluster IPAM provider, in the same way.
    ///
    /// # Errors
    /// As those of [`Programs::find`].
    pub(crate) async fn ipam_in_cluster(programs: &Programs) -> Result<Self> {
        const MODULE: &str = "sigs.k8s.io/cluster-api-ipam-provider-in-cluster";
        Self::find(programs, &IPAM_IN_CLUSTER, MODULE).await
    }

    async fn find(programs: &Programs, module: &'static GoModule, path: &'static str) -> Result<Self> {
        let kubectl = programs.kubectl.clone();
        let find = move || {
            let folder = cache_folder()?.join(module.cache_key());
            let program = Self {
                manager: folder.join(module.name),
                components: folder.join("components.json"),
            };
            let packages: Vec<_> = module.packages.iter().collect();
            build_missing(module, &packages, &folder, |sources| {
                let default = (path, "config/default");
                render_components(&kubectl, sources, default, &program.components)
            })?;
            Ok(program)
        };
        tokio::task::spawn_blocking(find)
            .await
            .with_context(|| format!("the search for {} was interrupted", module.name))?
    }
}

/// The path of Helm. It is separate from [`Programs`], so that only its users wait for its build.
///
/// # Errors
/// As those of [`Programs::find`].
pub async fn helm() -> Result<PathBuf> {
    let find = || {
        let folder = cache_folder()?.join(HELM.cache_key());
        build_missing(&HELM, &HELM.packages.iter().collect::<Vec<_>>(), &folder, |_| {
            Ok(())
        })?;
        Ok(folder.join("helm"))
    };
    tokio::task::spawn_blocking(find)
        .await
        .context("the search for Helm was interrupted")?
}

/// The path of the program that computes the health of objects as GitOps tools do: `health flux`, or `health
/// argocd FILE` with the health check in a file. It reads objects as a JSON array and writes an array of
/// `status` and `message`. It is separate from [`Programs`], so that only its users wait for its build.
///
/// # Errors
/// As those of [`Programs::find`].
pub async fn health() -> Result<PathBuf> {
    let find = || {
        let folder = cache_folder()?.join(HEALTH.cache_key());
        let packages: Vec<_> = HEALTH.packages.iter().collect();
        build_missing(&HEALTH, &packages, &folder, |_| Ok(()))?;
        Ok(folder.join("health"))
    };
    tokio::task::spawn_blocking(find)
        .await
        .context("the search for the program health was interrupted")?
}

/// The definition of Flux's Kustomizations, as YAML. It comes from Flux's Go module; no program of it is
/// built.
///
/// # Errors
/// As those of [`Programs::find`].
pub async fn flux_definition() -> Result<String> {
    const MODULE: &str = "github.com/fluxcd/kustomize-controller";
    let find = || {
        let path = cache_folder()?.join(FLUX.cache_key()).join("definition.yaml");
        let folder = path.parent().context("a file of the cache has a folder")?;
        build_missing(&FLUX, &[], folder, |sources| {
            if path.exists() {
                return Ok(());
            }
            let downloaded = Command::new("go")
                .args(["mod", "download", MODULE])
                .current_dir(sources)
                .output()
                .context("downloading Flux's module")?;
            ensure!(
                downloaded.status.success(),
                "go mod download failed: {}",
                String::from_utf8_lossy(&downloaded.stderr)
            );
            let bases = folder_of(MODULE, sources)?.join("config/crd/bases");
            let definition = fs::read(bases.join("kustomize.toolkit.fluxcd.io_kustomizations.yaml"))?;
            store(&path, &definition).context("storing the definition of Flux's Kustomizations")
        })?;
        fs::read_to_string(&path).with_context(|| path.display().to_string())
    };
    tokio::task::spawn_blocking(find)
        .await
        .context("the search for Flux's definition was interrupted")?
}

fn find_machine_controller_manager() -> Result<MachineControllerManagerPrograms> {
    let folder = cache_folder()?.join(MACHINE_CONTROLLER_MANAGER.cache_key());
    let programs = MachineControllerManagerPrograms {
        machine_controller_manager: folder.join("machine-controller-manager"),
        machine_controller: folder.join("machine-controller"),
        definitions: folder.join("definitions.yaml"),
    };
    let packages: Vec<_> = MACHINE_CONTROLLER_MANAGER.packages.iter().collect();
    build_missing(&MACHINE_CONTROLLER_MANAGER, &packages, &folder, |sources| {
        collect_definitions(&programs.definitions, sources)
    })?;
    Ok(programs)
}

/// Puts the definitions that are part of machine-controller-manager's module into one file.
fn collect_definitions(definitions: &Path, sources: &Path) -> Result<()> {
    if definitions.exists() {
        return Ok(());
    }
    let module = folder_of("github.com/gardener/machine-controller-manager", sources)?;
    let mut files: Vec<_> = fs::read_dir(module.join("kubernetes/crds"))
        .context("listing the definitions of machine-controller-manager")?
        .collect::<Result<_, _>>()?;
    files.sort_by_key(DirEntry::file_name);
    let mut all = String::new();
    for file in files {
        all.push_str("---\n");
        all.push_str(&fs::read_to_string(file.path())?);
        all.push('\n');
    }
    store(definitions, all.as_bytes()).context("storing the definitions of machine-controller-manager")
}

fn find() -> Result<Programs> {
    let cache = cache_folder()?;
    let kubernetes = cache.join(KUBERNETES.cache_key());
    let cluster_api = cache.join(CLUSTER_API.cache_key());
    let assets = env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    let place = |folder: &Path, program: &str| {
        let given = assets
            .as_ref()
            .map(|assets| assets.join(program))
            .filter(|given| given.is_file());
        given.unwrap_or_else(|| folder.join(program))
    };
    let programs = Programs {
        etcd: place(&kubernetes, "etcd"),
        kube_apiserver: place(&kubernetes, "kube-apiserver"),
        kube_controller_manager: place(&kubernetes, "kube-controller-manager"),
        kubectl: place(&kubernetes, "kubectl"),
        core: place(&cluster_api, "core"),
        clusterctl: place(&cluster_api, "clusterctl"),
        core_components: cluster_api.join("core-components.json"),
    };
    let not_given = |module: &'static GoModule, folder: &Path| {
        let packages = module.packages.iter();
        packages
            .filter(|package| place(folder, package.program).starts_with(folder))
            .collect::<Vec<_>>()
    };
    build_missing(
        &KUBERNETES,
        &not_given(&KUBERNETES, &kubernetes),
        &kubernetes,
        |_| Ok(()),
    )?;
    build_missing(
        &CLUSTER_API,
        &not_given(&CLUSTER_API, &cluster_api),
        &cluster_api,
        |sources| {
            let components = &programs.core_components;
            let default = (CLUSTER_API_MODULE, "core/config/default");
            render_components(&programs.kubectl, sources, default, components)
        },
    )?;
    Ok(programs)
}

fn cache_folder() -> Result<PathBuf> {
    let absolute = |name| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    let cache = cache.context("neither XDG_CACHE_HOME nor HOME names a folder to keep built programs in")?;
    Ok(cache.join("capcmi").join("programs"))
}

const CLUSTER_API_MODULE: &str = "sigs.k8s.io/cluster-api";

/// Renders the kustomization of a manager that is part of a module, so that names, labels and permissions
/// are those of a release. Kept as JSON, which parses much faster than a megabyte of YAML in an
/// unoptimised test binary.
fn render_components(
    kubectl: &Path,
    sources: &Path,
    (module, kustomization): (&str, &str),
    components: &Path,
) -> Result<()> {
    if components.exists() {
        return Ok(());
    }
    let module = folder_of(module, sources)?;
    let rendered = Command::new(kubectl)
        .arg("kustomize")
        .arg(module.join(kustomization))
        .output()
        .context("running kubectl kustomize")?;
    ensure!(
        rendered.status.success(),
        "kubectl kustomize: {}",
        String::from_utf8_lossy(&rendered.stderr)
    );
    let objects: Vec<serde_json::Value> = serde_saphyr::from_slice_multiple(&rendered.stdout)
        .context("reading what kubectl kustomize rendered")?;
    store(components, &serde_json::to_vec(&objects)?)
        .with_context(|| format!("storing {}", components.display()))
}

/// The folder with the sources of a module that the `go.mod` in `sources` names.
fn folder_of(module: &str, sources: &Path) -> Result<PathBuf> {
    let found = Command::new("go")
        .args(["list", "-m", "-f", "{{.Dir}}", module])
        .current_dir(sources)
        .output()
        .with_context(|| format!("asking go for the folder of {module}"))?;
    ensure!(
        found.status.success(),
        "go list failed: {}",
        String::from_utf8_lossy(&found.stderr)
    );
    Ok(PathBuf::from(String::from_utf8(found.stdout)?.trim_end()))
}

/// Puts a file in place when it is complete.
fn store(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let unfinished = path.with_extension("unfinished");
    fs::write(&unfinished, content)?;
    fs::rename(&unfinished, path)
}
