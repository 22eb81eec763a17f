//! CPU shares, which the control groups of the host give to a guest.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use capcmi_driver_libvirt::LibvirtDriver;
use cmi_driver::{Code, Driver as _, MachineRef, ProviderId, RestartMachineRequest, UpdateMachineRequest};
use serde_json::{Value, json};
use virt::domain::Domain;

use crate::lab::machines::{code, create, delete, domain, is_up, status};
use crate::lab::{self, HOSTS, Lab, machine};

const HOST: &str = HOSTS[0];
const LIVE: u32 = virt_sys::VIR_DOMAIN_AFFECT_LIVE;
const CONFIG: u32 = virt_sys::VIR_DOMAIN_AFFECT_CONFIG;
/// The folder for the control groups of guests.
const GROUPS_OF_GUESTS: &str = "/sys/fs/cgroup/cpu/machine";

fn on_host(name: &str, change: &Value) -> MachineRef {
    let mut spec = json!({"failureDomain": HOST});
    for (field, value) in change.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    machine(name, &spec, b"")
}

/// Updates a machine from one spec to another.
async fn update(
    driver: &LibvirtDriver,
    id: &ProviderId,
    from: &MachineRef,
    to: &MachineRef,
) -> cmi_driver::Result<()> {
    let request = UpdateMachineRequest {
        machine: to.clone(),
        provider_id: id.clone(),
        last_applied_provider_spec: from.class.provider_spec.clone(),
        last_known_state: None,
    };
    driver.update_machine(request).await
}

/// The shares of the running domain, or of its definition.
fn shares(domain: &Domain, affected: u32) -> Result<u64> {
    let read = domain.get_scheduler_parameters_flags(affected)?;
    read.cpu_shares.context("libvirt says no shares")
}

/// The kernel's shares for the QEMU of a guest.
fn given_by_the_kernel(lab: &Lab, domain: &Domain) -> Result<u64> {
    let pid = lab.of(HOST).join(format!("run/qemu/{}.pid", domain.get_name()?));
    let groups = fs::read_to_string(format!("/proc/{}/cgroup", fs::read_to_string(pid)?.trim()))?;
    let of_qemu = groups.lines().find_map(|line| line.split_once(":cpu:"));
    let (_, of_qemu) = of_qemu.context("QEMU has no control group for processors")?;
    // The groups of the virtual CPUs are next to it.
    let of_guest = Path::new(of_qemu).parent().context("no group of the guest")?;
    let shares = format!("/sys/fs/cgroup/cpu{}/cpu.shares", of_guest.display());
    Ok(fs::read_to_string(shares)?.trim().parse()?)
}

/// UPD-01
#[tokio::test]
async fn cpu_shares_of_a_running_guest_need_control_groups() -> Result<()> {
    let Some(lab) = lab::lab_of(&[HOST]).await? else {
        return Ok(());
    };
    let driver = lab.driver()?;
    let (plain, with_shares) = (on_host("m", &json!({})), on_host("m", &json!({"cpuShares": 512})));
    let id = create(&driver, &plain).await?.provider_id;
    let there = domain(&lab.connect(HOST)?, &plain)?;
    let refused = update(&driver, &id, &plain, &with_shares).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("CPU shares"), "{refused}");
    there.destroy()?;
    for _ in 0..2 {
        update(&driver, &id, &plain, &with_shares).await?;
        assert_eq!(shares(&there, CONFIG)?, 512);
    }
    let taken_away = update(&driver, &id, &with_shares, &plain).await;
    assert_eq!(code(&taken_away), Some(Code::InvalidArgument), "{taken_away:?}");
    delete(&driver, &plain, Some(&id)).await?;
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

/// UPD-01
#[tokio::test]
async fn cpu_shares_change_in_a_running_guest_and_survive_a_restart() -> Result<()> {
    let Some(lab) = lab::lab_of(&[HOST]).await? else {
        return Ok(());
    };
    let has_groups = Path::new(GROUPS_OF_GUESTS).exists();
    if !lab.use_control_groups(HOST).await? {
        eprintln!("SKIPPED, since this computer has no control groups of version 1 for processors");
        return Ok(());
    }
    changes_shares_of_a_guest_that_runs(&lab).await?;
    if !has_groups {
        fs::remove_dir(GROUPS_OF_GUESTS)?;
    }
    Ok(())
}

async fn changes_shares_of_a_guest_that_runs(lab: &Lab) -> Result<()> {
    let driver = lab.driver()?;
    let plain = on_host("m", &json!({}));
    let with = |shares: u64| on_host("m", &json!({"cpuShares": shares}));
    let id = create(&driver, &plain).await?.provider_id;
    let there = domain(&lab.connect(HOST)?, &plain)?;
    assert_eq!(shares(&there, LIVE)?, 1024, "what a guest has without");
    let mut last = plain.clone();
    for wanted in [512, 2, 10_000] {
        for _ in 0..2 {
            update(&driver, &id, &last, &with(wanted)).await?;
            let found = (shares(&there, LIVE)?, shares(&there, CONFIG)?);
            assert_eq!(found, (wanted, wanted));
            assert_eq!(given_by_the_kernel(lab, &there)?, wanted);
        }
        last = with(wanted);
    }
    let request = RestartMachineRequest {
        machine: last.clone(),
        provider_id: id.clone(),
        last_known_state: None,
    };
    driver.restart_machine(request).await?;
    assert!(is_up(&status(&driver, &last, None).await?));
    assert_eq!(given_by_the_kernel(lab, &there)?, 10_000);
    delete(&driver, &last, Some(&id)).await?;
    // A new machine has its shares from the start.
    let machine = with(300);
    create(&driver, &machine).await?;
    let there = domain(&lab.connect(HOST)?, &machine)?;
    assert_eq!(given_by_the_kernel(lab, &there)?, 300);
    delete(&driver, &machine, None).await?;
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}
