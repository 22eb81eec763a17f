//! Administrators and other driver processes interfere with machines.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result};
use capcmi_driver_libvirt::identity::Names as _;
use capcmi_driver_libvirt::metadata::{LOCK_NAMESPACE, NAMESPACE, Record};
use capcmi_driver_libvirt::{Config, LibvirtDriver};
use cmi_driver::{
    Code, Driver as _, InitializeMachineRequest, LastKnownState, ListMachinesRequest, MachineRef, ProviderId,
    RestartMachineRequest, ShutDownMachineRequest, Status, UpdateMachineRequest, tags,
};
use futures::future::join_all;
use serde_json::json;
use virt::domain::Domain;

use crate::lab::machines::{ELEMENT, code, create, create_with, delete, domain, is_up, key, note, status};
use crate::lab::wire::{Fate, Way, procedure};
use crate::lab::{self, CLUSTER, HOSTS, Lab, machine, sha256};

const LIVE_AND_CONFIG: u32 = virt_sys::VIR_DOMAIN_AFFECT_LIVE | virt_sys::VIR_DOMAIN_AFFECT_CONFIG;

fn on_a(name: &str) -> MachineRef {
    machine(name, &json!({"failureDomain": "host-a"}), b"#!/bin/sh\n")
}

fn shut_down(machine: &MachineRef) -> ShutDownMachineRequest {
    ShutDownMachineRequest {
        machine: machine.clone(),
        provider_id: None,
        last_known_state: None,
    }
}

fn restart(machine: &MachineRef, id: &ProviderId) -> RestartMachineRequest {
    RestartMachineRequest {
        machine: machine.clone(),
        provider_id: id.clone(),
        last_known_state: None,
    }
}

/// An update of a machine from the spec in `on_a`.
fn update(name: &str, id: &ProviderId, change: &serde_json::Value) -> UpdateMachineRequest {
    let mut spec = json!({"failureDomain": "host-a", "tags": {
        tags::CLUSTER: CLUSTER, tags::ROLE: "node", tags::MACHINE: format!("{name}-1"), "team": "a"
    }});
    for (key, value) in change.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    UpdateMachineRequest {
        machine: machine(name, &spec, b""),
        provider_id: id.clone(),
        last_applied_provider_spec: on_a(name).class.provider_spec,
        last_known_state: None,
    }
}

fn noted(lab: &Lab, machine: &MachineRef) -> Result<Record> {
    let connect = lab.connect("host-a")?;
    Ok(Record::parse(&domain(&connect, machine)?.get_metadata(
        ELEMENT,
        Some(NAMESPACE),
        0,
    )?)?)
}

/// DRV-CR-09, DRV-DE-09
#[tokio::test]
async fn a_vm_that_an_administrator_has_locked_is_seen_and_not_touched() -> Result<()> {
    let Some(lab) = lab::lab().await? else {
        return Ok(());
    };
    let driver = lab.driver()?;
    let machine = on_a("m");
    let id = create(&driver, &machine).await?.provider_id;
    let connect = lab.connect("host-a")?;
    let there = domain(&connect, &machine)?;
    let lock = |text: Option<&str>| {
        there.set_metadata(
            ELEMENT,
            text,
            text.map(|_| "lock"),
            Some(LOCK_NAMESPACE),
            LIVE_AND_CONFIG,
        )
    };
    for (element, words) in [
        ("<locked>its disk is copied</locked>", "its disk is copied"),
        ("<locked/>", "no reason"),
    ] {
        lock(Some(element))?;
        let refused: Vec<Option<Status>> = vec![
            delete(&driver, &machine, Some(&id)).await.err(),
            driver.shut_down_machine(shut_down(&machine)).await.err(),
            driver.restart_machine(restart(&machine, &id)).await.err(),
            driver.update_machine(update("m", &id, &json!({}))).await.err(),
        ];
        for status in refused {
            let status = status.context("the VM was touched")?;
            assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
            assert!(status.message().contains(words), "{status}");
        }
        assert_eq!(create(&driver, &machine).await?.provider_id, id);
        assert!(is_up(&status(&driver, &machine, None).await?));
    }
    assert!(noted(&lab, &machine)?.tags.is_empty());
    lock(None)?;
    driver.update_machine(update("m", &id, &json!({}))).await?;
    assert_eq!(noted(&lab, &machine)?.tags["team"], "a");

    // An invalid update is refused before anything changes.
    for (change, expected) in [
        (json!({"memoryMib": 129, "tags": {"team": "b"}}), Code::OutOfRange),
        (json!({"cpuShares": 1, "tags": {"team": "b"}}), Code::OutOfRange),
    ] {
        let mut request = update("m", &id, &json!({}));
        for (key, value) in change.as_object().into_iter().flatten() {
            match key.as_str() {
                "tags" => request.machine.class.provider_spec.0["tags"]["team"] = value["team"].clone(),
                _ => drop(
                    request
                        .machine
                        .class
                        .provider_spec
                        .0
                        .insert(key.clone(), value.clone()),
                ),
            }
        }
        let answer = driver.update_machine(request).await;
        assert_eq!(code(&answer), Some(expected), "{change}: {answer:?}");
        assert_eq!(noted(&lab, &machine)?.tags["team"], "a");
    }
    delete(&driver, &machine, Some(&id)).await?;
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

/// DRV-10, DRV-19
#[tokio::test]
async fn a_running_vm_without_a_definition_still_belongs_to_its_machine() -> Result<()> {
    let Some(lab) = lab::lab().await? else {
        return Ok(());
    };
    let driver = lab.driver()?;
    let machine = on_a("m");
    let id = create(&driver, &machine).await?.provider_id;
    let connect = lab.connect("host-a")?;
    domain(&connect, &machine)?.undefine()?;
    assert_eq!(create(&driver, &machine).await?.provider_id, id);
    driver.update_machine(update("m", &id, &json!({}))).await?;
    assert_eq!(noted(&lab, &machine)?.tags["team"], "a");
    // libvirt's log daemon rotates the log without libvirt's knowledge.
    let rotated = format!("capcmi-{}-console.log.0", key(&machine).uuid());
    fs::write(lab.of("host-a").join("machines").join(rotated), "GUEST\n")?;
    delete(&driver, &machine, Some(&id)).await?;
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

/// DRV-19
#[tokio::test]
async fn a_delete_leaves_no_volume_that_a_busy_pool_has_not_seen() -> Result<()> {
    let Some(lab) = lab::lab_of(&HOSTS[..1]).await? else {
        return Ok(());
    };
    let refusals = Arc::new(AtomicU32::new(0));
    let left = Arc::clone(&refusals);
    lab.lay_wire(
        "host-a",
        Arc::new(move |message| {
            let is_refused = message.is(Way::There, &procedure::REFRESH, "")
                && left
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                    .is_ok();
            if is_refused {
                let what = "internal error: pool has asynchronous jobs running.";
                return Fate::Refused(1, what.to_owned());
            }
            Fate::Passes
        }),
    )?;
    let driver = LibvirtDriver::new(Config::parse(&lab.config_over_wires(&["host-a"])?)?);
    let images = lab.of("host-a").join("images");
    // The driver also finds an image that was copied into the pool's folder.
    fs::copy(images.join("base.qcow2"), images.join("other.qcow2"))?;
    let machine = machine("m", &json!({"failureDomain": "host-a", "image": "other"}), b"");
    for (refused, expected) in [(3, None), (u32::MAX, Some(Code::Aborted))] {
        refusals.store(3, Ordering::SeqCst);
        create(&driver, &machine).await?;
        // A rotated console log, and a snapshot.
        for name in ["console.log.0", "root.before"] {
            let name = format!("{}{name}", key(&machine).volume_prefix());
            fs::write(lab.of("host-a").join("machines").join(name), "")?;
        }
        refusals.store(refused, Ordering::SeqCst);
        let deleted = delete(&driver, &machine, None).await;
        assert_eq!(code(&deleted), expected, "{deleted:?}");
        if expected.is_some() {
            assert!(
                domain(&lab.connect("host-a")?, &machine).is_ok(),
                "the repeat finds it"
            );
            refusals.store(0, Ordering::SeqCst);
            delete(&driver, &machine, None).await?;
        }
        assert_eq!(lab.left()?, Vec::<String>::new());
    }
    fs::remove_file(images.join("other.qcow2"))?;
    Ok(())
}

/// DRV-28
#[tokio::test]
async fn a_copy_of_a_vm_is_no_machine_and_is_left_alone() -> Result<()> {
    let Some(lab) = lab::lab_of(&HOSTS[..1]).await? else {
        return Ok(());
    };
    let driver = lab.driver()?;
    let machine = on_a("m");
    let id = create(&driver, &machine).await?.provider_id;
    let listed = async || {
        let class = machine.class.clone();
        let list = driver.list_machines(ListMachinesRequest { class }).await?;
        Ok::<_, Status>(
            list.into_iter()
                .map(|listed| listed.provider_id)
                .collect::<Vec<_>>(),
        )
    };
    // Copied like `virt-clone` does: with a new name, UUID and disk, and the same metadata.
    let connect = lab.connect("host-a")?;
    let xml = domain(&connect, &machine)?.get_xml_desc(virt_sys::VIR_DOMAIN_XML_INACTIVE)?;
    let uuid = key(&machine).uuid();
    let disk = format!("{}root-clone.qcow2", key(&machine).volume_prefix());
    let disk = lab.of("host-a").join("machines").join(disk);
    fs::write(&disk, "")?;
    let copy_as = |name: &str| {
        let xml = xml
            .replace(
                &format!("<name>{}</name>", key(&machine).domain_name()),
                &format!("<name>{name}</name>"),
            )
            .replace(
                &format!("<uuid>{uuid}</uuid>"),
                "<uuid>11111111-2222-3333-4444-555555555555</uuid>",
            )
            .replace("-root.qcow2'", "-root-clone.qcow2'");
        Domain::define_xml(&connect, &xml)
    };
    let copy = copy_as("copy")?;
    assert_eq!(listed().await?, std::slice::from_ref(&id));
    delete(&driver, &machine, Some(&id)).await?;
    assert_eq!(listed().await?, []);
    assert_eq!(copy.get_name()?, "copy");
    assert_eq!(lab.left()?.len(), 2, "the copy and its disk: {:?}", lab.left()?);

    // A copy with the machine's name may use its disks.
    copy.undefine()?;
    let copy = copy_as(&key(&machine).domain_name())?;
    assert_eq!(listed().await?, []);
    let refusals = [
        (create(&driver, &machine).await.err(), Code::AlreadyExists),
        (
            status(&driver, &machine, None).await.err(),
            Code::FailedPrecondition,
        ),
        (
            delete(&driver, &machine, None).await.err(),
            Code::FailedPrecondition,
        ),
    ];
    for (status, expected) in refusals {
        let status = status.context("the copy was taken for the machine")?;
        assert_eq!(status.code(), expected, "{status}");
        assert!(status.message().contains("a copy of the machine's"), "{status}");
    }
    assert_eq!(lab.left()?.len(), 2, "{:?}", lab.left()?);
    copy.undefine()?;
    delete(&driver, &machine, None).await?;
    fs::remove_file(disk)?;
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

/// DRV-DE-07, DRV-DE-16
#[tokio::test]
async fn a_failing_host_delays_a_deletion_only_if_it_has_the_domain() -> Result<()> {
    let Some(lab) = lab::lab().await? else {
        return Ok(());
    };
    lab.lay_wire("host-a", Arc::new(|_| Fate::Passes))?;
    let failing = Arc::new(AtomicU32::new(0));
    let fails = Arc::clone(&failing);
    lab.lay_wire(
        "host-b",
        Arc::new(move |message| {
            if message.is(Way::There, &[fails.load(Ordering::SeqCst)], "") {
                return Fate::Refused(1, "internal error: canary".to_owned());
            }
            Fate::Passes
        }),
    )?;
    let driver = LibvirtDriver::new(Config::parse(&lab.config_over_wires(&HOSTS)?)?);
    let on_a = on_a("m");
    for procedure in [procedure::LOOK_UP[0], procedure::LIST_POOLS[0]] {
        failing.store(procedure, Ordering::SeqCst);
        let id = create(&driver, &on_a).await?.provider_id;
        delete(&driver, &on_a, Some(&id)).await?;
        assert_eq!(lab.left()?, Vec::<String>::new());
    }
    // Now the unexpected host has a VM of the machine.
    failing.store(0, Ordering::SeqCst);
    let on_b = machine("m", &json!({"failureDomain": "host-b"}), b"");
    create(&driver, &on_b).await?;
    failing.store(procedure::UNDEFINE[1], Ordering::SeqCst);
    let kept = delete(&driver, &on_a, None).await;
    assert_eq!(code(&kept), Some(Code::Internal), "{kept:?}");
    failing.store(0, Ordering::SeqCst);
    delete(&driver, &on_a, None).await?;
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

/// DRV-23, INI-18
#[tokio::test]
async fn a_vm_in_deletion_is_neither_adopted_nor_started_elsewhere() -> Result<()> {
    let Some(lab) = lab::lab().await? else {
        return Ok(());
    };
    let driver = lab.driver()?;
    let machine = on_a("m");
    let id = create(&driver, &machine).await?.provider_id;
    let connect = lab.connect("host-a")?;
    let there = domain(&connect, &machine)?;
    note(&there, |record| Record {
        deleting: true,
        started: false,
        ..record
    })?;
    let other = lab.driver()?;
    assert_eq!(code(&create(&other, &machine).await), Some(Code::Aborted));
    assert_eq!(
        code(&other.restart_machine(restart(&machine, &id)).await),
        Some(Code::Aborted)
    );
    there.destroy()?;
    note(&there, |record| Record {
        deleting: true,
        started: false,
        ..record
    })?;
    let request = InitializeMachineRequest {
        machine: machine.clone(),
        provider_id: Some(id.clone()),
        last_known_state: None,
    };
    assert_eq!(
        code(&other.initialize_machine(request).await),
        Some(Code::Aborted)
    );
    assert!(!there.is_active()?);
    delete(&other, &machine, Some(&id)).await?;
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

/// INI-18, INI-21, INI-22
#[tokio::test]
async fn a_vm_whose_first_start_failed_is_started_by_the_next_create() -> Result<()> {
    let Some(lab) = lab::lab().await? else {
        return Ok(());
    };
    let driver = lab.driver()?;
    let machine = on_a("m");
    fs::write(lab.of("host-a").join("failing-starts"), "1")?;
    let failed = create(&driver, &machine).await.unwrap_err();
    assert_eq!(failed.code(), Code::FailedPrecondition, "{failed}");
    assert!(failed.message().contains("no guest may start now"), "{failed}");
    let seen = status(&driver, &machine, None).await.unwrap_err();
    assert_eq!(seen.code(), Code::Uninitialized, "{seen}");
    let id = seen
        .machine()
        .context("code 17 comes with the VM")?
        .provider_id
        .clone();
    let made = create(&driver, &machine).await?;
    assert!(is_up(&made));
    assert_eq!(made.provider_id, id);
    delete(&driver, &machine, Some(&id)).await?;
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

/// The code for "nothing was restarted" would repeat the call without a limit, for a VM that is off.
#[tokio::test]
async fn a_restart_that_stopped_the_vm_never_reports_no_side_effects() -> Result<()> {
    let Some(lab) = lab::lab().await? else {
        return Ok(());
    };
    let next: Arc<Mutex<Option<(Way, u32, Fate)>>> = Arc::default();
    let fates = Arc::clone(&next);
    lab.lay_wire(
        "host-a",
        Arc::new(move |message| {
            let mut next = fates.lock().unwrap();
            let hit = next.take_if(|(way, procedure, _)| message.is(*way, &[*procedure], ""));
            hit.map_or(Fate::Passes, |(_, _, fate)| fate)
        }),
    )?;
    let driver = LibvirtDriver::new(Config::parse(&lab.config_over_wires(&["host-a"])?)?);
    let machine = on_a("m");
    let id = create(&driver, &machine).await?.provider_id;
    let no_room = Fate::Refused(
        38,
        "cannot set up guest memory: Cannot allocate memory".to_owned(),
    );
    // The driver uses these variants of the calls. The second numbers are variants with flags.
    let (start, destroy) = (procedure::START[0], procedure::DESTROY[0]);
    for (way, procedure, fate, expected, is_off) in [
        (
            Way::There,
            procedure::LOOK_UP[0],
            Fate::Lost,
            Code::Unavailable,
            false,
        ),
        (
            Way::There,
            destroy,
            Fate::Refused(88, "denied".to_owned()),
            Code::PermissionDenied,
            false,
        ),
        (Way::There, start, no_room.clone(), Code::FailedPrecondition, true),
        // The VM is off already.
        (Way::There, start, no_room, Code::FailedPrecondition, true),
        (Way::Back, start, Fate::Lost, Code::Unknown, false),
        (Way::Back, destroy, Fate::Lost, Code::Unknown, true),
    ] {
        *next.lock().unwrap() = Some((way, procedure, fate));
        let answer = driver.restart_machine(restart(&machine, &id)).await;
        assert_eq!(code(&answer), Some(expected), "{answer:?}");
        let has_begun_nothing = answer.is_err_and(|status| status.has_no_side_effects());
        assert_eq!(has_begun_nothing, expected == Code::Unavailable, "{expected}");
        assert!(next.lock().unwrap().is_none(), "{procedure} was not called");
        let there = domain(&lab.connect("host-a")?, &machine)?;
        assert_eq!(there.is_active()?, !is_off, "after {procedure} with {expected}");
    }
    driver.restart_machine(restart(&machine, &id)).await?;
    delete(&driver, &machine, Some(&id)).await?;
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

/// DRV-CR-06, DRV-28
#[tokio::test]
async fn concurrent_creates_of_two_objects_of_one_name_make_one_vm() -> Result<()> {
    let Some(lab) = lab::lab().await? else {
        return Ok(());
    };
    let drivers = [lab.driver()?, lab.driver()?];
    let (first, mut second) = (on_a("m"), on_a("m"));
    second.class.provider_spec.0["tags"][tags::MACHINE] = json!("m-2");
    let objects = [&first, &second];
    let at_once = drivers
        .iter()
        .zip(objects)
        .map(|(driver, machine)| create_with(driver, machine, None));
    for answer in join_all(at_once).await {
        assert!(
            matches!(code(&answer), None | Some(Code::Aborted | Code::AlreadyExists)),
            "{answer:?}"
        );
    }
    let connect = lab.connect("host-a")?;
    let mut winners = Vec::new();
    for (driver, machine) in drivers.iter().zip(objects) {
        match create(driver, machine).await {
            Ok(made) => winners.push((driver, machine, made.provider_id)),
            Err(status) => assert_eq!(status.code(), Code::AlreadyExists, "{status}"),
        }
    }
    let [(driver, winner, id)] = winners.as_slice() else {
        panic!("{} have it", winners.len());
    };
    let loser = if *winner == &first { &second } else { &first };
    assert_eq!(connect.list_all_domains(0)?.len(), 1);
    delete(driver, loser, None).await?;
    assert!(is_up(&status(driver, winner, None).await?));
    assert_eq!(in_pool(&lab)?, 3, "the disks of the other one are there");
    delete(driver, winner, Some(id)).await?;
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

fn in_pool(lab: &Lab) -> Result<usize> {
    Ok(fs::read_dir(lab.of("host-a").join("machines"))?.count())
}

/// DRV-10
#[tokio::test]
async fn a_placement_counts_only_on_allowed_hosts_and_one_call_reads_an_image() -> Result<()> {
    let Some(lab) = lab::lab().await? else {
        return Ok(());
    };
    // Large enough that the other calls arrive while one call reads it.
    let image = vec![0; 256 << 20];
    fs::write(lab.of("host-a").join("images/large.raw"), &image)?;
    let driver = lab.driver_with(&json!({
        "vmPools": {"default": {"hosts": ["host-a"], "image": "large"}},
        "images": {"large": {"storagePool": "images", "volume": "large.raw", "format": "raw",
        "sha256": sha256(&image)}},
    }))?;
    let machines = ["a", "b", "c"].map(|name| machine(name, &json!({}), b""));
    // The pool still had this host when the placement record was written.
    let on_b = LastKnownState::new(b"{\"host\":\"host-b\"}".to_vec());
    let at_once = machines
        .iter()
        .map(|machine| create_with(&driver, machine, on_b.clone()));
    let probed = async { driver.probe().await };
    let (answers, ready) = tokio::join!(join_all(at_once), probed);
    ready?;
    let (made, told): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.is_ok());
    assert_eq!((made.len(), told.len()), (1, 2), "{answers:?}");
    for answer in told {
        let status = answer.as_ref().unwrap_err();
        assert_eq!(status.code(), Code::Aborted, "{status}");
        assert!(status.message().contains("is being read"), "{status}");
    }
    for machine in &machines {
        let made = create_with(&driver, machine, on_b.clone()).await?;
        assert_eq!(made.failure_domain.as_deref(), Some("host-a"));
        delete(&driver, machine, Some(&made.provider_id)).await?;
    }
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}
