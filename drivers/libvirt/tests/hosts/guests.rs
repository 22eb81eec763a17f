//! How guests boot, get their bootstrap data and report their addresses.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use capcmi_driver_libvirt::metadata::Record;
use cmi_driver::{
    AddressType, Driver as _, Machine, MachineRef, PowerState, SecretValue, ShutDownMachineRequest,
    USER_DATA_FORMAT,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::lab::machines::{create, delete, domain, key, note, status};
use crate::lab::{self, HOSTS, Lab, eventually, machine, sha256};

const HOST: &str = HOSTS[0];

fn on_host(name: &str, change: &Value, user_data: &[u8]) -> MachineRef {
    let mut spec = json!({"failureDomain": HOST});
    for (field, value) in change.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    machine(name, &spec, user_data)
}

/// The console of a machine after its guest reports that it is done.
async fn booted(lab: &Lab, machine: &MachineRef) -> Result<String> {
    let uuid = key(machine).uuid().to_string();
    eventually("the guest's start", async || {
        let console = lab.console(&uuid)?;
        ensure!(console.contains("GUEST done"), "{console}");
        Ok(console)
    })
    .await
}

fn has(console: &str, words: &str) -> Result<()> {
    ensure!(console.contains(words), "{words} is not in {console}");
    Ok(())
}

fn addresses(machine: &Machine) -> Vec<&str> {
    let internal = machine
        .addresses
        .iter()
        .filter(|address| address.kind == AddressType::InternalIP);
    internal.map(|address| address.address.as_str()).collect()
}

/// DRV-CR-08
#[tokio::test]
async fn disks_with_boot_loaders_boot_with_bios_uefi_and_secure_boot() -> Result<()> {
    let Some(lab) = lab::lab_of(&[HOST]).await? else {
        return Ok(());
    };
    let disk = lab::images()?.join("boot.raw");
    fs::copy(&disk, lab.of(HOST).join("images/boot.raw"))?;
    let sha256 = sha256(&fs::read(&disk)?);
    let image = |firmware: &str| {
        json!({"storagePool": "images", "volume": "boot.raw", "format": "raw", "sha256": sha256,
            "firmware": firmware})
    };
    let driver = lab.driver_with(&json!({"images": {
        "with-bios": image("bios"), "with-uefi": image("efi"), "with-secure-boot": image("efi-secure-boot"),
    }}))?;
    let on = |image: &str| on_host(image, &json!({"image": image, "size": "large"}), b"#!/bin/sh\n");
    let machines = ["with-bios", "with-uefi", "with-secure-boot"].map(on);
    for machine in &machines {
        create(&driver, machine).await?;
    }
    let [bios, uefi, secure_boot] = &machines;
    for (machine, firmware, loader) in [
        (bios, "GUEST firmware=bios", "loader=syslinux"),
        (uefi, "GUEST firmware=efi", "loader=systemd-boot"),
    ] {
        let console = booted(&lab, machine).await?;
        has(&console, firmware)?;
        has(&console, loader)?;
        has(&console, &format!("GUEST seed hostname={} ", machine.name))?;
    }
    // The boot loader on this disk is not signed.
    let uuid = key(secure_boot).uuid().to_string();
    eventually("the firmware's refusal", async || {
        has(&lab.console(&uuid)?, "Access Denied")
    })
    .await?;

    let left = lab.left()?;
    let with_settings = left.iter().filter(|left| left.contains("NVRAM")).count();
    ensure!(with_settings == 2, "{left:?}");
    for machine in &machines {
        delete(&driver, machine, None).await?;
    }
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn the_guest_reads_ignition_name_and_provider_id_from_its_firmware() -> Result<()> {
    let Some(lab) = lab::lab_of(&[HOST]).await? else {
        return Ok(());
    };
    let driver = lab.driver()?;
    let ignition: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
    let mut machine = on_host("ignited", &json!({}), &ignition);
    let format = SecretValue::from(b"ignition".to_vec());
    machine
        .class
        .secrets
        .insert(USER_DATA_FORMAT.to_owned(), format)
        .map_err(anyhow::Error::msg)?;
    let made = create(&driver, &machine).await?;
    let console = booted(&lab, &machine).await?;
    for told in [
        format!("GUEST ignition user-data={} disks=1", sha256(&ignition)),
        format!("GUEST told hostname=ignited provider_id={}", made.provider_id),
    ] {
        has(&console, &told)?;
    }
    delete(&driver, &machine, None).await?;
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

/// The bridge of libvirt's network has DHCP, but libvirt reports no leases for a bridge. The other bridge has
/// no DHCP.
///
/// DRV-14
#[tokio::test]
async fn on_a_bridge_the_guest_agent_reports_the_address() -> Result<()> {
    let Some(lab) = lab::lab_of(&[HOST]).await? else {
        return Ok(());
    };
    let initrd = lab::images()?.join("agent-initrd.gz");
    let mut config: Value = serde_json::from_str(&lab.config()?)?;
    let mut with_agent = config["images"]["tiny"].take();
    with_agent["directBoot"]["initrd"] = json!(initrd);
    let driver = lab.driver_with(&json!({
        "images": {"with-agent": with_agent},
        "vmPools": {
            "bridged": {"storagePool": "machines", "bridge": "virbr0", "image": "with-agent"},
            "silent": {"storagePool": "machines", "bridge": "silent", "image": "tiny"},
        },
    }))?;
    lab.on_host(HOST, &["ip", "link", "add", "silent", "up", "type", "bridge"])?;
    let talks = on_host("talks", &json!({"vmPool": "bridged"}), b"#!/bin/sh\n");
    let silent = on_host("silent", &json!({"vmPool": "silent"}), b"#!/bin/sh\n");
    create(&driver, &talks).await?;
    create(&driver, &silent).await?;

    let seen = eventually("the address of the agent", async || {
        let seen = status(&driver, &talks, None).await?;
        ensure!(!addresses(&seen).is_empty(), "{seen:?}");
        Ok(seen)
    })
    .await?;
    assert_eq!(seen.power_state, Some(PowerState::Running));
    let console = booted(&lab, &talks).await?;
    assert_eq!(addresses(&seen).len(), 1, "{seen:?}");
    has(&console, &format!("GUEST address={} ", addresses(&seen)[0]))?;
    eventually("the guest's stop", async || {
        let request = ShutDownMachineRequest {
            machine: talks.clone(),
            provider_id: None,
            last_known_state: None,
        };
        Ok(driver.shut_down_machine(request).await?)
    })
    .await?;
    has(&booted(&lab, &talks).await?, "GUEST stops by its agent")?;

    // The boot of the other guest may have taken longer than the limit.
    let connect = lab.connect(HOST)?;
    note(&domain(&connect, &silent)?, |record| Record {
        started_at: Some(Timestamp::now()),
        ..record
    })?;
    let seen = status(&driver, &silent, None).await?;
    assert_eq!(
        (seen.power_state, addresses(&seen)),
        (Some(PowerState::Starting), vec![])
    );
    note(&domain(&connect, &silent)?, |record| Record {
        started_at: record.started_at.map(|at| at - SignedDuration::from_mins(11)),
        ..record
    })?;
    let seen = status(&driver, &silent, None).await?;
    assert_eq!(
        (seen.power_state, addresses(&seen)),
        (Some(PowerState::Running), vec![])
    );
    for machine in [&talks, &silent] {
        delete(&driver, machine, None)
            .await
            .context(machine.name.clone())?;
    }
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}
