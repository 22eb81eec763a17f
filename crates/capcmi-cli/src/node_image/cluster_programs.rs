//! The programs of a node: container runtime, kubelet, kubeadm, network plugins and container images.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::Root;

const UNITS: [&str; 2] = ["etc/systemd/system", "usr/lib/systemd/system"];
const ENABLED: &str = "etc/systemd/system/multi-user.target.wants";
/// kubeadm writes these files for the kubelet.
const KUBEADM_FILES: [&str; 2] = [
    "/var/lib/kubelet/config.yaml",
    "/var/lib/kubelet/kubeadm-flags.env",
];
/// Pod networks bring their own plugins and use these.
const PLUGINS: [&str; 4] = ["bridge", "host-local", "loopback", "portmap"];
/// The folder that containerd looks into by default, and that of Debian's package.
const PLUGIN_FOLDERS: [&str; 2] = ["opt/cni/bin", "usr/lib/cni"];
const CONTAINERD_CONFIG: &str = "etc/containerd/config.toml";
/// The database of containerd. It has the names of its images as text.
const CONTAINERD_STORE: &str = "var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db";
const IMAGES: [&str; 4] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
];

/// containerd starts with the machine, and its shim and runc are installed.
pub(super) fn containerd(root: &Root) -> Result<String> {
    for name in ["containerd", "containerd-shim-runc-v2", "runc"] {
        root.program(name)?;
    }
    check_enabled(root, "containerd")?;
    Ok("installed and enabled".to_owned())
}

/// kubelet and kubeadm have the same version.
pub(super) fn kubernetes(root: &Root) -> Result<String> {
    let kubelet = version(root)?;
    let kubeadm = output(&root.program("kubeadm")?, &["version", "--output=short"])?;
    ensure!(
        kubelet == kubeadm,
        "kubelet has version {kubelet} and kubeadm has {kubeadm}: install the same version"
    );
    Ok(kubelet)
}

/// The kubelet reads the files of kubeadm.
pub(super) fn kubelet_unit(root: &Root) -> Result<String> {
    check_enabled(root, "kubelet")?;
    let mut unit = String::new();
    for folder in UNITS {
        unit += &root.text(&format!("{folder}/kubelet.service"))?;
        unit += &root.texts(&format!("{folder}/kubelet.service.d"))?;
    }
    for file in KUBEADM_FILES {
        ensure!(
            unit.contains(file),
            "kubelet.service does not name {file}: add kubeadm's drop-in kubelet.service.d/10-kubeadm.conf"
        );
    }
    Ok("enabled, with kubeadm's drop-in".to_owned())
}

/// containerd finds the plugins of Pod networks.
pub(super) fn network_plugins(root: &Root) -> Result<String> {
    for folder in PLUGIN_FOLDERS {
        let names = root.names(folder)?;
        if !PLUGINS
            .iter()
            .all(|plugin| names.iter().any(|name| name == plugin))
        {
            continue;
        }
        let is_default = folder == PLUGIN_FOLDERS[0];
        ensure!(
            is_default || root.text(CONTAINERD_CONFIG)?.contains(folder),
            "the plugins are in /{folder}, but /{CONTAINERD_CONFIG} does not name it: add it to bin_dirs"
        );
        return Ok(format!("in /{folder}"));
    }
    bail!(
        "{} are neither in /{}: install containernetworking-plugins",
        PLUGINS.join(", "),
        PLUGIN_FOLDERS.join(" nor in /")
    )
}

/// The images of the control plane are loaded. Otherwise the machines pull them.
pub(super) fn container_images(root: &Root) -> Result<String> {
    let version = version(root)?;
    let store = root.read(CONTAINERD_STORE)?;
    let is_loaded = |name: &&str| {
        let image = format!("/{name}:{version}");
        store.windows(image.len()).any(|bytes| bytes == image.as_bytes())
    };
    let (loaded, pulled): (Vec<_>, Vec<_>) = IMAGES.iter().copied().partition(is_loaded);
    Ok(match (loaded.is_empty(), pulled.is_empty()) {
        (_, true) => format!("{version} loaded"),
        (true, _) => format!("{version} not loaded: machines will pull them"),
        (false, _) => format!(
            "{version} loaded, except {}: machines will pull them",
            pulled.join(", ")
        ),
    })
}

fn check_enabled(root: &Root, service: &str) -> Result<()> {
    let unit = format!("{service}.service");
    let is_installed = UNITS.map(|folder| root.has(&format!("{folder}/{unit}")));
    let is_installed = is_installed
        .into_iter()
        .collect::<Result<Vec<_>>>()?
        .contains(&true);
    ensure!(
        is_installed,
        "{unit} is not in /{}: install it",
        UNITS.join(", /")
    );
    let is_enabled = root.names(ENABLED)?.contains(&unit);
    ensure!(
        is_enabled,
        "{unit} is not in /{ENABLED}: run systemctl enable {service} in the image"
    );
    Ok(())
}

/// The version of the kubelet, such as v1.36.3.
fn version(root: &Root) -> Result<String> {
    let line = output(&root.program("kubelet")?, &["--version"])?;
    let version = line.strip_prefix("Kubernetes ");
    Ok(version
        .with_context(|| format!("kubelet --version printed {line:?}"))?
        .to_owned())
}

/// Runs a program of the image: only its output has the version.
fn output(program: &Path, arguments: &[&str]) -> Result<String> {
    let run = Command::new(program).args(arguments).output();
    let run = run.with_context(|| {
        format!(
            "cannot run {}: use a computer of its architecture",
            program.display()
        )
    })?;
    let errors = String::from_utf8_lossy(&run.stderr);
    ensure!(
        run.status.success(),
        "{} failed: {}",
        program.display(),
        errors.trim()
    );
    Ok(String::from_utf8_lossy(&run.stdout).trim().to_owned())
}
