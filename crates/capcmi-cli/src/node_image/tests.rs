//! Each requirement fails for its own reason, on a folder that meets the others.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::{REQUIREMENTS, Root};

const STORE: &str = "var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db";
/// A root file system that meets all requirements, with the programs of `node`.
const FILES: [(&str, &str); 13] = [
    ("usr/bin/cloud-init", ""),
    ("etc/cloud/cloud.cfg", "users: [default]\n"),
    (
        "etc/cloud/cloud.cfg.d/90_dpkg.cfg",
        "datasource_list: [NoCloud, None]\n",
    ),
    ("usr/bin/containerd", ""),
    ("usr/bin/containerd-shim-runc-v2", ""),
    ("usr/sbin/runc", ""),
    ("etc/systemd/system/containerd.service", ""),
    ("usr/lib/systemd/system/kubelet.service", ""),
    (
        "usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf",
        "--config=/var/lib/kubelet/config.yaml\nEnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env\n",
    ),
    ("etc/modules-load.d/kubernetes.conf", "overlay\nbr_netfilter\n"),
    ("etc/sysctl.d/kubernetes.conf", "net.ipv4.ip_forward = 1\n"),
    ("etc/machine-id", ""),
    (
        "etc/fstab",
        "# LABEL=swap none swap sw 0 0\nLABEL=root / ext4 defaults 0 1\n",
    ),
];

fn write(root: &TempDir, path: &str, text: &str) {
    let path = root.path().join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Another process writes the program. A program that this one writes may be busy when it is run: another
/// test may have forked in between.
fn program(root: &TempDir, path: &str, output: &str) {
    write(root, "text", &format!("#!/bin/sh\necho '{output}'\n"));
    let (text, path) = (root.path().join("text"), root.path().join(path));
    let mut install = Command::new("install");
    let installed = install.args(["-D", "-m", "0755"]).args([&text, &path]).status();
    assert!(installed.unwrap().success(), "{}", path.display());
    fs::remove_file(text).unwrap();
}

fn node() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in FILES {
        write(&root, path, text);
    }
    program(&root, "usr/bin/kubelet", "Kubernetes v1.36.3");
    program(&root, "usr/bin/kubeadm", "v1.36.3");
    for plugin in ["bridge", "host-local", "loopback", "portmap"] {
        write(&root, &format!("opt/cni/bin/{plugin}"), "");
    }
    let wants = root.path().join("etc/systemd/system/multi-user.target.wants");
    fs::create_dir_all(&wants).unwrap();
    for unit in ["containerd.service", "kubelet.service"] {
        symlink(Path::new("/etc/systemd/system").join(unit), wants.join(unit)).unwrap();
    }
    root
}

/// The requirements that are not met, with their errors.
fn failures(root: &TempDir) -> Vec<(&'static str, String)> {
    let root = Root::new(root.path());
    let failed = REQUIREMENTS.iter().filter_map(|(name, check)| {
        let error = check(&root).err()?;
        Some((*name, format!("{error:#}")))
    });
    failed.collect()
}

fn container_images(root: &TempDir) -> String {
    super::cluster_programs::container_images(&Root::new(root.path())).unwrap()
}

#[test]
fn a_complete_image_meets_all_requirements() {
    assert_eq!(failures(&node()), []);
}

#[test]
fn each_wrong_file_fails_its_own_requirement() {
    let cases = [
        (
            "cloud-init",
            "etc/cloud/cloud-init.disabled",
            "",
            "remove the file",
        ),
        (
            "cloud-init",
            "etc/cloud/cloud.cfg.d/95_x.cfg",
            "datasource_list: [Ec2]",
            "add NoCloud",
        ),
        (
            "cloud-init",
            "etc/cloud/cloud.cfg.d/95_x.cfg",
            "datasource_list: {",
            "95_x.cfg is no YAML",
        ),
        (
            "kubelet unit",
            "usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf",
            "",
            "add kubeadm's",
        ),
        (
            "kernel",
            "etc/modules-load.d/kubernetes.conf",
            "overlay\n",
            "br_netfilter",
        ),
        (
            "kernel",
            "etc/sysctl.d/kubernetes.conf",
            "net.ipv4.ip_forward = 0\n",
            "ip_forward = 1",
        ),
        (
            "swap",
            "etc/fstab",
            "UUID=1 / ext4 ro 0 1\n/dev/vdb none swap sw 0 0\n",
            "line 2",
        ),
        ("swap", "etc/systemd/system/dev-vdb.swap", "", "dev-vdb.swap"),
        (
            "machine id",
            "etc/machine-id",
            "0123456789abcdef0123456789abcdef\n",
            "empty the file",
        ),
        (
            "SSH host keys",
            "etc/ssh/ssh_host_ed25519_key",
            "",
            "ssh_host_ed25519_key",
        ),
    ];
    for (requirement, path, text, told) in cases {
        let root = node();
        write(&root, path, text);
        let failed = failures(&root);
        let [(name, error)] = failed.as_slice() else {
            panic!("{path}: {failed:?}");
        };
        assert_eq!(*name, requirement, "{path}");
        assert!(error.contains(told), "{path}: {error}");
    }
}

#[test]
fn each_missing_file_fails_its_own_requirement() {
    let cases = [
        ("cloud-init", "usr/bin/cloud-init"),
        ("containerd and runc", "usr/bin/containerd"),
        ("containerd and runc", "etc/systemd/system/containerd.service"),
        (
            "containerd and runc",
            "etc/systemd/system/multi-user.target.wants/containerd.service",
        ),
        ("containerd and runc", "usr/sbin/runc"),
        ("kubelet and kubeadm", "usr/bin/kubeadm"),
        ("kubelet unit", "usr/lib/systemd/system/kubelet.service"),
        ("CNI plugins", "opt/cni/bin/loopback"),
        ("kernel", "etc/modules-load.d/kubernetes.conf"),
    ];
    for (requirement, path) in cases {
        let root = node();
        fs::remove_file(root.path().join(path)).unwrap();
        let failed = failures(&root);
        let names: Vec<_> = failed.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, [requirement], "{path}: {failed:?}");
    }
}

#[test]
fn kubelet_and_kubeadm_are_of_one_version() {
    let root = node();
    program(&root, "usr/bin/kubeadm", "v1.36.2");
    let failed = failures(&root);
    assert!(
        failed[0]
            .1
            .contains("kubelet has version v1.36.3 and kubeadm has v1.36.2"),
        "{failed:?}"
    );
}

#[test]
fn container_images_are_loaded_or_pulled() {
    let root = node();
    assert!(container_images(&root).contains("v1.36.3 not loaded: machines will pull"));
    let names = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];
    let loaded = names
        .map(|name| format!("registry.k8s.io/{name}:v1.36.3\0"))
        .concat();
    write(&root, STORE, &loaded);
    assert!(container_images(&root).contains("loaded, except kube-proxy"));
    write(&root, STORE, &(loaded + "registry.k8s.io/kube-proxy:v1.36.3\0"));
    assert_eq!(container_images(&root), "v1.36.3 loaded");
}

#[test]
fn plugins_of_debian_need_a_setting_of_containerd() {
    let root = node();
    fs::create_dir_all(root.path().join("usr/lib")).unwrap();
    fs::rename(root.path().join("opt/cni/bin"), root.path().join("usr/lib/cni")).unwrap();
    assert!(failures(&root)[0].1.contains("add it to bin_dirs"));
    write(
        &root,
        "etc/containerd/config.toml",
        "bin_dirs = ['/usr/lib/cni']\n",
    );
    assert_eq!(failures(&root), []);
}

#[test]
fn absolute_links_stay_inside_the_image() {
    let root = tempfile::tempdir().unwrap();
    write(&root, "opt/kubelet", "inside");
    symlink("/opt", root.path().join("bin")).unwrap();
    symlink("../../../../opt/kubelet", root.path().join("up")).unwrap();
    symlink("/loop", root.path().join("loop")).unwrap();
    let image = Root::new(root.path());
    assert_eq!(image.text("bin/kubelet").unwrap(), "inside");
    assert_eq!(image.text("up").unwrap(), "inside");
    assert_eq!(image.text("etc/passwd").unwrap(), "");
    let error = image.text("loop").unwrap_err();
    assert!(format!("{error:#}").contains("too many links"), "{error:#}");
}
