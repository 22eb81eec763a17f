//! Machines that boot, and computers that lack something.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use cmi_driver::{
    AddressType, Code, CreateMachineRequest, DeleteMachineRequest, Driver as _, GetConsoleRequest,
    GetMachineStatusRequest, Machine, MachineRef, PowerState, RestartMachineRequest, ShutDownMachineRequest,
};
use cmi_grpc::client::GrpcDriver;
use serde_json::json;

use crate::lab::{CLUSTER, Lab, eventually, machine};

/// Bootstrap data that print name and machine id on the console at their end.
const USER_DATA: &[u8] = b"#cloud-config\nruncmd:\n- cat /proc/sys/kernel/panic >/root/panic\n\
    - echo \"boot of $(hostname) $(cat /etc/machine-id)\" >/dev/console\n";

pub async fn create(driver: &GrpcDriver, machine: &MachineRef) -> cmi_driver::Result<Machine> {
    let request = CreateMachineRequest {
        machine: machine.clone(),
        last_known_state: None,
    };
    driver.create_machine(request).await
}

async fn status(driver: &GrpcDriver, machine: &MachineRef) -> cmi_driver::Result<Machine> {
    let request = GetMachineStatusRequest {
        machine: machine.clone(),
        provider_id: None,
    };
    driver.get_machine_status(request).await
}

pub async fn delete(driver: &GrpcDriver, machine: &MachineRef) -> cmi_driver::Result<()> {
    let request = DeleteMachineRequest {
        machine: machine.clone(),
        provider_id: None,
        last_known_state: None,
    };
    driver.delete_machine(request).await.map(drop)
}

/// Waits until the machine runs, and returns its IP addresses.
pub async fn running(driver: &GrpcDriver, machine: &MachineRef) -> Result<Vec<String>> {
    eventually("a machine with an address", async || {
        let seen = status(driver, machine).await?;
        ensure!(seen.power_state == Some(PowerState::Running), "{seen:?}");
        let addresses = seen.addresses.into_iter();
        let addresses = addresses.filter(|address| address.kind == AddressType::InternalIP);
        Ok(addresses.map(|address| address.address).collect())
    })
    .await
}

/// Waits until cloud-init has run.
pub async fn booted(lab: &Lab, name: &str, times: usize) -> Result<()> {
    let words = format!("boot of {name} ");
    eventually("the bootstrap data", async || {
        let console = lab.console(name)?;
        ensure!(console.matches(&words).count() >= times, "{console}");
        Ok(())
    })
    .await
}

/// The provider looks for these words of cloud-init in a console (`NodeJoined`).
#[tokio::test(flavor = "multi_thread")]
async fn the_console_shows_how_cloud_init_ended() -> Result<()> {
    let lab = Lab::start().await?;
    let driver = lab.client().await?;
    let user_data = b"#cloud-config\nruncmd:\n- exit 3\n";
    let machine = machine("fails", &json!({"image": "debian"}), user_data);
    let made = create(&driver, &machine).await?;
    let request = GetConsoleRequest {
        machine: machine.clone(),
        provider_id: made.provider_id.clone(),
    };
    eventually("the end of cloud-init", async || {
        let console = driver.get_console(request.clone()).await?;
        let words = [
            " running 'init-local'",
            "Failed to run module scripts-user",
            " finished at ",
        ];
        let missing = words.iter().find(|words| !console.as_str().contains(**words));
        ensure!(missing.is_none(), "{missing:?} is not in {}", console.as_str());
        Ok(())
    })
    .await?;
    delete(&driver, &machine).await?;
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

/// DRV-14
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_boots_powers_off_and_restarts() -> Result<()> {
    let lab = Lab::start().await?;
    let driver = lab.client().await?;
    let machine = machine("boots", &json!({"image": "debian"}), USER_DATA);
    let made = create(&driver, &machine).await?;
    let addresses = running(&driver, &machine).await?;
    booted(&lab, "boots", 1).await?;
    ensure!(
        addresses.len() == 1 && addresses[0].starts_with("192.168.150."),
        "{addresses:?}"
    );
    let uuid = made.provider_id.as_str().rsplit('/').next().context("no UUID")?;
    let console = lab.console("boots")?;
    ensure!(
        console.contains(&uuid.replace('-', "")),
        "another machine id: {console}"
    );
    let request = GetConsoleRequest {
        machine: machine.clone(),
        provider_id: made.provider_id.clone(),
    };
    let answered = driver.get_console(request).await?;
    let shown = answered
        .as_str()
        .lines()
        .any(|line| line.starts_with("boot of boots "));
    ensure!(shown, "{}", answered.as_str());
    // The first line of the console is still there after many more.
    ensure!(console.contains("running in system mode"), "{console}");
    let written = fs::read_to_string(lab.machine("boots", CLUSTER).join("upper/root/panic"))?;
    ensure!(
        written == "10\n",
        "the kubelet would change kernel.panic of the computer from {written}"
    );
    let limit = lab.runc(&["exec", uuid, "cat", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]);
    let limit = limit.or_else(|_| lab.runc(&["exec", uuid, "cat", "/sys/fs/cgroup/memory.max"]))?;
    ensure!(limit.trim() == (256 * 1024 * 1024).to_string(), "{limit}");
    let quota = lab.runc(&["exec", uuid, "cat", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"]);
    let quota = quota.or_else(|_| lab.runc(&["exec", uuid, "cat", "/sys/fs/cgroup/cpu.max"]))?;
    ensure!(quota.split_whitespace().next() == Some("100000"), "{quota}");

    let shut_down = ShutDownMachineRequest {
        machine: machine.clone(),
        provider_id: None,
        last_known_state: None,
    };
    eventually("a machine that powers off", async || {
        Ok(driver.shut_down_machine(shut_down.clone()).await?)
    })
    .await?;
    let off = status(&driver, &machine).await?;
    ensure!(off.power_state == Some(PowerState::Stopped), "{off:?}");
    eventually("an interface that goes with its machine", async || {
        let links = lab.inside("ip").args(["-brief", "link"]).output()?;
        ensure!(
            !String::from_utf8_lossy(&links.stdout).contains("ve"),
            "{links:?}"
        );
        Ok(())
    })
    .await?;

    let restart = RestartMachineRequest {
        machine: machine.clone(),
        provider_id: made.provider_id,
        last_known_state: None,
    };
    driver.restart_machine(restart).await?;
    ensure!(running(&driver, &machine).await?.len() == 1);
    delete(&driver, &machine).await?;
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_has_the_address_of_its_spec() -> Result<()> {
    let lab = Lab::start().await?;
    let driver = lab.client().await?;
    let given = json!({"image": "debian", "address": "192.168.150.20"});
    let first = machine("first", &given, USER_DATA);
    create(&driver, &first).await?;
    ensure!(running(&driver, &first).await? == ["192.168.150.20"]);
    let refused = create(&driver, &machine("second", &given, USER_DATA))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    ensure!(refused.message().contains("`first`"), "{refused}");
    delete(&driver, &first).await?;
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_image_is_named_and_leaves_nothing() -> Result<()> {
    let lab = Lab::start().await?;
    let driver = lab.client().await?;
    let missing = machine("missing", &json!({"image": "missing"}), USER_DATA);
    let refused = create(&driver, &missing).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    ensure!(
        refused.message().contains("/missing has no /sbin/init"),
        "{refused}"
    );
    ensure!(refused.has_no_side_effects());
    let absent = status(&driver, &missing).await.unwrap_err();
    assert_eq!(absent.code(), Code::NotFound);
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

/// A file system of one MiB on the state folder.
struct Full<'a>(&'a Lab);

impl Full<'_> {
    fn mount(&self, options: &str) -> Result<()> {
        let at = self.0.at("state");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(at)
            .status()?;
        ensure!(mounted.success());
        Ok(())
    }
}

impl Drop for Full<'_> {
    fn drop(&mut self) {
        let ended = self.0.end();
        let unmounted = Command::new("umount")
            .arg("--lazy")
            .arg(self.0.at("state"))
            .status();
        if ended.is_err() || !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("a file system is left at {}", self.0.at("state").display());
        }
    }
}

/// DRV-CR-08
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_leaves_nothing_and_room_helps() -> Result<()> {
    let lab = Lab::prepared().await?;
    fs::create_dir(lab.at("state"))?;
    let full = Full(&lab);
    full.mount("size=1m")?;
    lab.start_driver()?;
    let driver = lab.client().await?;
    let large = machine("large", &json!({}), &vec![b'#'; 1 << 20]);
    let refused = create(&driver, &large).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    ensure!(refused.has_no_side_effects());
    let scratch = fs::read_dir(lab.at("state/scratch"))?.count();
    assert_eq!(scratch, 0, "a half-made folder is left");
    assert_eq!(status(&driver, &large).await.unwrap_err().code(), Code::NotFound);
    full.mount("remount,size=64m")?;
    create(&driver, &large).await?;
    // The DHCP server writes at the deletion, too.
    running(&driver, &large).await?;
    let filled = Command::new("dd")
        .args(["if=/dev/zero", "bs=64k"])
        .arg(format!("of={}", lab.at("state/fill").display()))
        .output()?;
    ensure!(!filled.status.success(), "there is still room");
    delete(&driver, &large).await?;
    ensure!(lab.containers()?.is_empty());
    let machines = fs::read_dir(lab.at("state/machines"))?.count();
    assert_eq!(machines, 0, "a full disk keeps a machine");
    Ok(())
}
