//! The requirements of a node image, checked on its root file system.

mod cluster_programs;
mod guest;
mod root;
#[cfg(test)]
mod tests;

pub use self::root::Root;

use anyhow::Result;

/// The name and the check of a requirement. The check returns its finding. An error names the fault, the
/// place and the remedy.
pub type Requirement = (&'static str, fn(&Root) -> Result<String>);

/// All requirements.
pub const REQUIREMENTS: [Requirement; 10] = [
    ("cloud-init", guest::cloud_init),
    ("containerd and runc", cluster_programs::containerd),
    ("kubelet and kubeadm", cluster_programs::kubernetes),
    ("kubelet unit", cluster_programs::kubelet_unit),
    ("CNI plugins", cluster_programs::network_plugins),
    ("container images", cluster_programs::container_images),
    ("kernel", guest::kernel),
    ("swap", guest::swap),
    ("machine id", guest::machine_id),
    ("SSH host keys", guest::host_keys),
];
