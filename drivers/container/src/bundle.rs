//! The configuration of a machine's container, in the form of the OCI runtime specification.

use std::path::Path;

use serde_json::{Value, json};

use crate::config::Size;
use crate::identity::Names as _;
use crate::layers::Layers;
use crate::record::Record;

/// The first program of a machine.
const INIT: &str = include_str!("init.sh");
/// The period of the kernel's CPU quota, in microseconds.
pub const PERIOD: u64 = 100_000;
/// The capabilities of a machine, without `CAP_`: all but those for modules, the clock, a reboot of the
/// computer, and limits above its own.
const CAPABILITIES: &str = "\
    CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE \
    NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_RAWIO SYS_CHROOT \
    SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_NICE SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL \
    SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF \
    CHECKPOINT_RESTORE";

/// The microseconds of CPU time in a period.
pub fn quota(size: Size) -> u64 {
    u64::from(size.cpus) * PERIOD
}

/// The memory in bytes.
pub fn memory(size: Size) -> u64 {
    size.memory_mib * 1024 * 1024
}

/// Returns the configuration of a machine's container. Names of control groups have the given beginning.
pub fn config(record: &Record, layers: &Layers, control_groups: &str) -> Value {
    let key = record.key();
    let capabilities: Vec<_> = CAPABILITIES
        .split(' ')
        .map(|name| format!("CAP_{name}"))
        .collect();
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
                "bounding": capabilities, "effective": capabilities, "permitted": capabilities,
            },
        },
        "mounts": mounts(&layers.store()),
        "linux": {
            "namespaces": namespaces.map(|kind| json!({"type": kind})),
            "cgroupsPath": format!("/{control_groups}{}", key.uuid()),
            "rootfsPropagation": "shared",
            "maskedPaths": ["/proc/kcore"],
            "readonlyPaths": ["/proc/sysrq-trigger"],
            "resources": {
                // Containers in the machine get parts of its resources.
                "devices": [{"allow": true, "access": "rwm"}],
                "memory": {"limit": memory(record.size())},
                "cpu": {"quota": quota(record.size()), "period": PERIOD},
            },
        },
    })
}

fn mounts(store: &Path) -> Value {
    let mount = |at: &str, kind: &str, options: &str| {
        let options: Vec<_> = options.split(',').collect();
        json!({"destination": at, "type": kind, "source": kind, "options": options})
    };
    let bind = |at: &str, source: &Path| {
        let options = ["bind"];
        json!({"destination": at, "type": "bind", "source": source, "options": options})
    };
    json!([
        mount("/proc", "proc", "nosuid,nodev,noexec"),
        // systemd does not start udev where this is read-only.
        mount("/sys", "sysfs", "nosuid,nodev,noexec,ro"),
        mount("/sys/fs/cgroup", "cgroup", "nosuid,nodev,noexec"),
        mount("/dev", "tmpfs", "nosuid,mode=755,size=64m"),
        mount(
            "/dev/pts",
            "devpts",
            "nosuid,noexec,newinstance,ptmxmode=0666,mode=0620,gid=5"
        ),
        mount("/dev/shm", "tmpfs", "nosuid,nodev,mode=1777"),
        mount("/dev/mqueue", "mqueue", "nosuid,nodev,noexec"),
        bind("/dev/kmsg", Path::new("/dev/kmsg")),
        mount("/run", "tmpfs", "nosuid,nodev,mode=755"),
        bind("/var/lib/containerd", store),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn the_size_bounds_cpu_time_and_memory() {
        let config = config(&record(), &Layers::new(Path::new("/s/m")), "capcmi-1-");
        let resources = &config["linux"]["resources"];
        assert_eq!(resources["memory"]["limit"], 2_147_483_648_u64);
        assert_eq!(resources["cpu"], json!({"quota": 100_000, "period": 100_000}));
        assert_eq!(config["root"]["path"], "/s/m/root");
        let group = config["linux"]["cgroupsPath"].as_str().unwrap();
        assert!(group.starts_with("/capcmi-1-"), "{group}");
    }

    #[test]
    fn a_machine_has_no_right_over_the_whole_computer() {
        for right in ["SYS_MODULE", "SYS_TIME", "SYS_BOOT", "SYS_RESOURCE"] {
            assert!(CAPABILITIES.split(' ').all(|granted| granted != right), "{right}");
        }
    }
}
