//! The computer's virtualization.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};

/// How guests run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Virtualization {
    /// With KVM.
    Kvm,
    /// By QEMU's emulation.
    Emulation,
}

impl Virtualization {
    /// Chooses KVM if the lab's guest boots with it. A device `/dev/kvm` and libvirt's capabilities do not
    /// prove that.
    pub fn find(guest: &Path) -> Result<Self> {
        let mut command = Command::new("timeout");
        command
            .args(["--signal=KILL", "20", "qemu-system-x86_64", "-machine", "q35"])
            .args(["-accel", "kvm", "-cpu", "max", "-m", "256", "-no-reboot"])
            .args(["-display", "none", "-monitor", "none", "-serial", "stdio"])
            .args(["-append", "console=ttyS0 panic=-1 quiet", "-kernel"])
            .arg(guest.join("vmlinuz"))
            .arg("-initrd")
            .arg(guest.join("initrd.gz"));
        let tried = command.stdin(Stdio::null()).output();
        let tried = tried.context("starting QEMU to try KVM")?;
        let console = String::from_utf8_lossy(&tried.stdout);
        Ok(if console.contains("GUEST without bootstrap data") {
            Self::Kvm
        } else {
            Self::Emulation
        })
    }

    /// The `virtType` of the driver's configuration.
    pub fn virt_type(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Emulation => "qemu",
        }
    }

    /// The command line of the guests' kernel. Emulated disks need not survive a loss of power, and
    /// mitigations of processor bugs only cost time.
    pub fn command_line(self) -> &'static str {
        match self {
            Self::Kvm => "root=/dev/vda rw console=ttyS0 quiet",
            Self::Emulation => "root=/dev/vda rw console=ttyS0 quiet rootflags=barrier=0 mitigations=off",
        }
    }

    /// How long a step with guests may take, on processors that other programs use as well.
    pub fn deadline(self) -> Duration {
        match self {
            Self::Kvm => Duration::from_mins(10),
            Self::Emulation => Duration::from_mins(25),
        }
    }

    /// The template's variables for slow machines: kube-vip keeps the virtual IP while the API server stalls.
    pub fn variables(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Kvm => &[],
            Self::Emulation => &[
                ("KUBE_VIP_LEASE_SECONDS", "120"),
                ("KUBE_VIP_RENEW_SECONDS", "100"),
                ("KUBE_VIP_RETRY_SECONDS", "10"),
            ],
        }
    }
}
