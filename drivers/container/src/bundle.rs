//! The configuration of a machine's container, in the form of the OCI runtime specification.

use std::path::Path;

use serde_json::{Value, json};

use crate::config::Size;
use crate::layers::Layers;
use crate::record::Record;

/// The first program of a machine.
const INIT: &str = include_str!("init.sh");
/// The period of the kernel's CPU quota, in microseconds.
pub const PERIOD: u64 = 100_000;
/// The capabilities of a machine: all but those for modules, the clock, a reboot of the computer, and limits
/// above its own.
const CAPABILITIES: &[&str] = &[
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_NICE",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];

/// The microseconds of CPU time in a period.
pub fn quota(size: Size) -> u64 {
    u64::from(size.cpus) * PERIOD
}

/// The memory in bytes.
pub fn memory(size: Size) -> u64 {
    size.memory_mib * 1024 * 1024
}

/// Returns the configuration of a machine's container.
pub fn config(record: &Record, layers: &Layers) -> Value {
    let key = record.key();
    let namespaces = ["pid", "mount", "uts", "ipc", "cgroup", "network"];
    json!({
        "ociVersion": "1.0.2",
        "hostname": key.hostname(),
        "root": {"path": layers.root()},
        "process": {
            // systemd writes its messages to the console.
            "terminal": true,
            "user": {"uid": 0, "gid": 0},
            "cwd": "/",
            "args": ["/bin/sh", "-ec", INIT],
            "env": [
                "container=capcmi",
                // The machine's id, so that it does not change with a restart.
                format!("container_uuid={}", key.uuid()),
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            ],
            "capabilities": {
                "bounding": CAPABILITIES, "effective": CAPABILITIES, "permitted": CAPABILITIES,
            },
        },
        "mounts": mounts(&layers.store()),
        "linux": {
            "namespaces": namespaces.map(|kind| json!({"type": kind})),
            "cgroupsPath": format!("/capcmi-{}", key.uuid()),
            "rootfsPropagation": "shared",
            "maskedPaths": ["/proc/kcore"],
            "readonlyPaths": ["/proc/sysrq-trigger"],
            "resources": {
                // The containers in the machine get parts of what the machine has.
                "devices": [{"allow": true, "access": "rwm"}],
                "memory": {"limit": memory(record.size())},
                "cpu": {"quota": quota(record.size()), "period": PERIOD},
            },
        },
    })
}

fn mounts(store: &Path) -> Value {
    let mount = |at: &str, kind: &str, options: &[&str]| json!({"destination": at, "type": kind, "source": kind, "options": options});
    let bind = |at: &str, source: &Path| json!({"destination": at, "type": "bind", "source": source, "options": ["bind"]});
    json!([
        mount("/proc", "proc", &["nosuid", "nodev", "noexec"]),
        // systemd does not start udev where this is read-only.
        mount("/sys", "sysfs", &["nosuid", "nodev", "noexec", "ro"]),
        mount("/sys/fs/cgroup", "cgroup", &["nosuid", "nodev", "noexec"]),
        mount("/dev", "tmpfs", &["nosuid", "mode=755", "size=64m"]),
        mount(
            "/dev/pts",
            "devpts",
            &[
                "nosuid",
                "noexec",
                "newinstance",
                "ptmxmode=0666",
                "mode=0620",
                "gid=5"
            ]
        ),
        mount("/dev/shm", "tmpfs", &["nosuid", "nodev", "mode=1777"]),
        mount("/dev/mqueue", "mqueue", &["nosuid", "nodev", "noexec"]),
        bind("/dev/kmsg", Path::new("/dev/kmsg")),
        mount("/run", "tmpfs", &["nosuid", "nodev", "mode=755"]),
        bind("/var/lib/containerd", store),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn the_size_bounds_cpu_time_and_memory() {
        let config = config(&record(), &Layers::new(Path::new("/s/m")));
        let resources = &config["linux"]["resources"];
        assert_eq!(resources["memory"]["limit"], 2_147_483_648_u64);
        assert_eq!(resources["cpu"], json!({"quota": 100_000, "period": 100_000}));
        assert_eq!(config["root"]["path"], "/s/m/root");
    }

    #[test]
    fn a_machine_has_no_right_over_the_whole_computer() {
        for right in [
            "CAP_SYS_MODULE",
            "CAP_SYS_TIME",
            "CAP_SYS_BOOT",
            "CAP_SYS_RESOURCE",
        ] {
            assert!(!CAPABILITIES.contains(&right), "{right}");
        }
    }
}
