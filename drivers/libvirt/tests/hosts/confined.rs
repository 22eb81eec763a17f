//! What confines QEMU on a host, which the hosts of the lab do without.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use capcmi_driver_libvirt::identity::Names as _;
use cmi_driver::{MachineRef, SecretValue, USER_DATA_FORMAT, UpdateMachineRequest};
use serde_json::json;
use virt::connect::Connect;
use virt::domain::Domain;

use crate::lab::machines::{code, create, delete, domain, key, status, volumes};
use crate::lab::{self, machine};

/// What libvirt has write the profile of each guest where there is AppArmor.
const HELPER: &str = "/usr/lib/libvirt/virt-aa-helper";

fn on_a(name: &str) -> MachineRef {
    machine(name, &json!({"failureDomain": "host-a"}), b"#!/bin/sh\n")
}

/// What AppArmor would let the QEMU of a guest open. It is written where messages are.
fn profile(domain: &Domain) -> Result<String> {
    let uuid = format!("libvirt-{}", domain.get_uuid_string()?);
    let mut helper = Command::new(HELPER)
        .args(["--dryrun", "--replace", "--uuid", &uuid])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context(HELPER)?;
    let xml = domain.get_xml_desc(virt_sys::VIR_DOMAIN_XML_SECURE)?;
    let mut input = helper.stdin.take().context("no input")?;
    input.write_all(xml.as_bytes())?;
    drop(input);
    let ran = helper.wait_with_output()?;
    ensure!(ran.status.success(), "{HELPER}: {}", ran.status);
    Ok(String::from_utf8(ran.stderr)?)
}

fn path(connect: &Connect, machine: &MachineRef, word: &str) -> Result<String> {
    let volume = volumes(connect, machine, word)?.pop();
    Ok(volume.with_context(|| format!("no {word}"))?.get_path()?)
}

#[tokio::test]
async fn the_profile_of_app_armor_has_every_file_that_qemu_opens() -> Result<()> {
    let Some(lab) = lab::lab().await? else {
        return Ok(());
    };
    let driver = lab.driver()?;
    let (seeded, mut ignited) = (on_a("seeded"), on_a("ignited"));
    let format = SecretValue::from(b"ignition".to_vec());
    ignited
        .class
        .secrets
        .insert(USER_DATA_FORMAT.to_owned(), format)
        .map_err(anyhow::Error::msg)?;
    let connect = lab.connect("host-a")?;
    for (machine, word) in [(&seeded, "seed"), (&ignited, "ignition")] {
        create(&driver, machine).await?;
        let profile = profile(&domain(&connect, machine)?)?;
        let image = lab.of("host-a").join("images/base.qcow2");
        for (path, rights) in [
            (path(&connect, machine, "root")?, "rwk"),
            (path(&connect, machine, word)?, "r"),
            (image.display().to_string(), "r"),
        ] {
            let line = format!("\"{path}\" {rights}");
            ensure!(profile.contains(&line), "{line} is not in {profile}");
        }
        delete(&driver, machine, None).await?;
    }
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

/// DRV-10, DRV-19
#[tokio::test]
async fn vms_with_disks_named_by_pool_are_found_updated_and_deleted() -> Result<()> {
    let Some(lab) = lab::lab().await? else {
        return Ok(());
    };
    let driver = lab.driver()?;
    let machine = on_a("m");
    let id = create(&driver, &machine).await?.provider_id;
    let connect = lab.connect("host-a")?;
    let there = domain(&connect, &machine)?;
    there.destroy()?;
    let xml = there.get_xml_desc(virt_sys::VIR_DOMAIN_XML_INACTIVE)?;
    let folder = lab.of("host-a").join("machines").display().to_string();
    let xml = xml.replace("<disk type='file'", "<disk type='volume'").replace(
        &format!("<source file='{folder}/"),
        "<source pool='machines' volume='",
    );
    ensure!(xml.matches("<source pool='machines'").count() == 2, "{xml}");
    Domain::define_xml(&connect, &xml)?.create()?;
    assert_eq!(create(&driver, &machine).await?.provider_id, id);
    assert_eq!(status(&driver, &machine, Some(&id)).await?.provider_id, id);
    let mut changed = machine.clone();
    changed.class.provider_spec.0["tags"]["team"] = json!("a");
    let update = UpdateMachineRequest {
        machine: changed,
        provider_id: id.clone(),
        last_applied_provider_spec: machine.class.provider_spec.clone(),
        last_known_state: None,
    };
    cmi_driver::Driver::update_machine(&driver, update).await?;
    assert_eq!(key(&machine).uuid().to_string(), there.get_uuid_string()?);
    delete(&driver, &machine, Some(&id)).await?;
    assert!(code(&status(&driver, &machine, None).await).is_some());
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}
