//! The driver on real libvirt hosts, with booting guests.

// A failure of the lab ends the test.
#![allow(clippy::unwrap_used, clippy::panic)]

mod confined;
mod crashes;
mod guests;
mod interference;
#[path = "../lab/mod.rs"]
mod lab;
mod remote;
mod room;
mod shares;

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use capcmi_driver_libvirt::identity::Names as _;
use capcmi_driver_libvirt::metadata::{NAMESPACE, PREFIX, Record};
use cmi_driver::{
    AddressType, Code, Driver, GetConsoleRequest, InitializeMachineRequest, LastKnownState,
    ListMachinesRequest, Machine, MachineRef, PowerState, RestartMachineRequest, ShutDownMachineRequest,
    UpdateMachineRequest,
};
use futures::future::join_all;
use lab::machines::{
    ELEMENT, code, create, create_with, delete, domain, is_up, key, note, placed, status, volumes,
};
use lab::{CLUSTER, HOSTS, Lab, eventually, machine, sha256};
use serde_json::json;
use tokio::time::{Instant, timeout};
use virt::storage_pool::StoragePool;

/// DRV-10, DRV-13, DRV-14, UPD-01
#[tokio::test]
async fn a_guest_boots_with_its_seed_and_is_updated_restarted_stopped_and_gone() -> Result<()> {
    let Some(lab) = lab::lab().await? else {
        return Ok(());
    };
    let driver = lab.driver()?;
    let mut user_data = b"#!/bin/sh\necho GUEST ran its user data\nexit 0\n".to_vec();
    user_data.extend((0..200_000_u32).map(|at| u8::try_from(at * 31 % 251).unwrap()));
    let machine = machine("boots", &json!({"rootFsSize": 2}), &user_data);
    let made = create(&driver, &machine).await?;
    let uuid = key(&machine).uuid().to_string();
    let console = eventually("the guest's start", async || {
        let console = lab.console(&uuid)?;
        ensure!(console.contains("GUEST done"), "{console}");
        Ok(console)
    })
    .await?;
    let request = GetConsoleRequest {
        machine: machine.clone(),
        provider_id: made.provider_id.clone(),
    };
    let answered = driver.get_console(request).await?;
    assert!(answered.as_str().contains("GUEST done"), "{}", answered.as_str());
    for line in [
        format!(
            "GUEST seed hostname=boots provider_id={} user-data={}",
            made.provider_id,
            sha256(&user_data)
        ),
        "GUEST ran its user data".to_owned(),
        format!("mac={}", key(&machine).macs(1)[0]),
        // 2 GB in sectors of 512 bytes, though the image has 64 MiB.
        "GUEST disk=3906250 sectors".to_owned(),
    ] {
        assert!(console.contains(&line), "{line} is not in {console}");
    }
    let seen = status(&driver, &machine, Some(&made.provider_id)).await?;
    let addresses: Vec<_> = seen
        .addresses
        .iter()
        .filter(|address| address.kind == AddressType::InternalIP)
        .collect();
    assert_eq!(addresses.len(), 1, "{seen:?}");
    assert!(
        console.contains(&format!("GUEST address={} ", addresses[0].address)),
        "{console}"
    );
    assert_eq!(seen.node_name, "boots");
    assert_eq!(seen.power_state, Some(PowerState::Running));

    // The host shows the update.
    let host = seen.failure_domain.clone().context("no failure domain")?;
    let changed = lab::machine(
        "boots",
        &json!({"rootFsSize": 2, "memoryMib": 100, "tags": {
            "kubernetes.io/cluster": CLUSTER, "kubernetes.io/role": "node", "capcmi.io/machine": "boots-1",
            "team": "<a & b>"
        }}),
        b"",
    );
    let update = || UpdateMachineRequest {
        machine: changed.clone(),
        provider_id: made.provider_id.clone(),
        last_applied_provider_spec: machine.class.provider_spec.clone(),
        last_known_state: None,
    };
    driver.update_machine(update()).await?;
    driver.update_machine(update()).await?;
    let connect = lab.connect(&host)?;
    let there = domain(&connect, &machine)?;
    let record = Record::parse(&there.get_metadata(ELEMENT, Some(NAMESPACE), 0)?)?;
    assert_eq!(record.tags["team"], "<a & b>");
    eventually("the balloon", async || {
        let memory = there.get_info()?.memory;
        ensure!(memory == 100 * 1024, "the guest has {memory} KiB");
        Ok(())
    })
    .await?;

    // The guest shuts down on request, starts again as the same VM, and is deleted completely.
    let request = || ShutDownMachineRequest {
        machine: machine.clone(),
        provider_id: Some(made.provider_id.clone()),
        last_known_state: None,
    };
    eventually("the guest's stop", async || {
        Ok(driver.shut_down_machine(request()).await?)
    })
    .await?;
    let stopped = status(&driver, &machine, None).await?;
    assert_eq!(stopped.power_state, Some(PowerState::Stopped));
    // A domain that an administrator has renamed still belongs to its machine.
    there.rename("renamed", 0)?;
    assert_eq!(create(&driver, &machine).await?.provider_id, made.provider_id);
    let restart = RestartMachineRequest {
        machine: machine.clone(),
        provider_id: made.provider_id.clone(),
        last_known_state: None,
    };
    driver.restart_machine(restart).await?;
    let again = status(&driver, &machine, None).await?;
    assert_eq!((is_up(&again), &again.provider_id), (true, &made.provider_id));
    delete(&driver, &machine, Some(&made.provider_id)).await?;
    assert_eq!(code(&status(&driver, &machine, None).await), Some(Code::NotFound));
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

/// The parts of a machine that exist after its driver process was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeftAt {
    Root,
    HalfSeed,
    Volumes,
    Defined,
    Started,
    VolumesGone,
}

impl LeftAt {
    const ALL: [Self; 6] = [
        Self::Root,
        Self::HalfSeed,
        Self::Volumes,
        Self::Defined,
        Self::Started,
        Self::VolumesGone,
    ];

    /// Takes a machine back to this point.
    fn leave(self, lab: &Lab, machine: &MachineRef, host: &str) -> Result<()> {
        let connect = lab.connect(host)?;
        let domain = domain(&connect, machine)?;
        if self == Self::Started {
            return note(&domain, |record| Record {
                started: false,
                ..record
            });
        }
        domain.destroy()?;
        match self {
            Self::Defined => {
                return note(&domain, |record| Record {
                    started: false,
                    ..record
                });
            }
            Self::VolumesGone => {
                for volume in volumes(&connect, machine, "")? {
                    volume.delete(0)?;
                }
                return note(&domain, |record| Record {
                    deleting: true,
                    ..record
                });
            }
            Self::Root | Self::HalfSeed | Self::Volumes | Self::Started => domain.undefine()?,
        }
        match self {
            Self::Root => {
                for word in ["seed", "console"] {
                    for volume in volumes(&connect, machine, word)? {
                        volume.delete(0)?;
                    }
                }
            }
            Self::HalfSeed => {
                for volume in volumes(&connect, machine, "console")? {
                    volume.delete(0)?;
                }
                let seed = volumes(&connect, machine, "seed")?
                    .pop()
                    .context("no seed")?
                    .get_path()?;
                let size = fs::metadata(&seed)?.len();
                fs::write(&seed, vec![0; usize::try_from(size)?])?;
            }
            Self::Volumes | Self::Defined | Self::Started | Self::VolumesGone => {}
        }
        Ok(())
    }

    /// Whether the domain exists, so that the machine counts as existing.
    const fn has_domain(self) -> bool {
        matches!(self, Self::Defined | Self::Started | Self::VolumesGone)
    }
}

/// DRV-10, DRV-19, INI-18, INI-22
#[tokio::test]
async fn a_create_finishes_and_a_delete_removes_leftovers_of_a_kill() -> Result<()> {
    let Some(lab) = lab::lab().await? else {
        return Ok(());
    };
    for (index, left_at) in LeftAt::ALL.into_iter().enumerate() {
        let what = format!("{left_at:?}");
        let host = HOSTS[index % 2];
        let machine = machine(
            &format!("left{index}"),
            &json!({"failureDomain": host}),
            b"#!/bin/sh\n",
        );
        let made = create(&lab.driver()?, &machine).await.context(what.clone())?;
        left_at.leave(&lab, &machine, host).context(what.clone())?;
        let seen = status(&lab.driver()?, &machine, None).await;
        let expected = match left_at {
            LeftAt::Defined => Some(Code::Uninitialized),
            LeftAt::Started | LeftAt::VolumesGone => None,
            LeftAt::Root | LeftAt::HalfSeed | LeftAt::Volumes => Some(Code::NotFound),
        };
        assert_eq!(code(&seen), expected, "{what}: {seen:?}");
        if left_at != LeftAt::VolumesGone {
            let again = create(&lab.driver()?, &machine).await.context(what.clone())?;
            assert_eq!(again.provider_id, made.provider_id, "{what}");
            let uuid = key(&machine).uuid().to_string();
            eventually(&format!("the guest's start after {what}"), async || {
                let console = lab.console(&uuid)?;
                ensure!(console.contains("GUEST seed hostname=left"), "{console}");
                Ok(())
            })
            .await?;
            left_at.leave(&lab, &machine, host).context(what.clone())?;
        }
        if left_at == LeftAt::Defined {
            let request = InitializeMachineRequest {
                machine: machine.clone(),
                provider_id: Some(made.provider_id.clone()),
                last_known_state: None,
            };
            let started = lab.driver()?.initialize_machine(request).await?;
            assert!(is_up(&started), "{started:?}");
            left_at.leave(&lab, &machine, host)?;
        }
        assert!(!lab.left()?.is_empty(), "{what}: nothing was left to remove");
        let id = left_at.has_domain().then_some(&made.provider_id);
        delete(&lab.driver()?, &machine, id).await.context(what.clone())?;
        assert_eq!(lab.left()?, Vec::<String>::new(), "{what}");
        assert_eq!(
            code(&status(&lab.driver()?, &machine, None).await),
            Some(Code::NotFound),
            "{what}"
        );
    }
    Ok(())
}

/// DRV-30, DRV-10
#[tokio::test]
async fn a_host_that_is_down_is_unavailable_and_leads_to_no_second_vm() -> Result<()> {
    let Some(lab) = lab::lab().await? else {
        return Ok(());
    };
    let driver = lab.driver()?;
    let on = |name: &str, host: &str| machine(name, &json!({"failureDomain": host}), b"");
    let anywhere = |name: &str| machine(name, &json!({}), b"");
    let (first, second) = (on("a", "host-a"), anywhere("b"));
    let id = create(&driver, &first).await?.provider_id;
    let on_b = LastKnownState::new(b"{\"host\":\"host-b\"}".to_vec());
    let placed = create_with(&driver, &second, on_b).await?;
    assert_eq!(placed.failure_domain.as_deref(), Some("host-b"));

    lab.stop("host-a")?;
    eventually("the loss of the host", async || {
        let seen = status(&driver, &first, Some(&id)).await;
        ensure!(code(&seen) == Some(Code::Unavailable), "{seen:?}");
        Ok(())
    })
    .await?;
    for driver in [&driver, &lab.driver()?] {
        for id in [None, Some(&id)] {
            assert_eq!(code(&status(driver, &first, id).await), Some(Code::Unavailable));
            assert_eq!(code(&delete(driver, &first, id).await), Some(Code::Unavailable));
        }
        let list = ListMachinesRequest {
            class: first.class.clone(),
        };
        assert_eq!(code(&driver.list_machines(list).await), Some(Code::Unavailable));
        // No host is known for it, so it may be on the host that is down.
        assert_eq!(
            code(&create(driver, &anywhere("a")).await),
            Some(Code::Unavailable)
        );
        assert_eq!(
            code(&create(driver, &anywhere("new")).await),
            Some(Code::Unavailable)
        );
        // Machines that are known to be on the other host keep working.
        assert_eq!(create(driver, &second).await?.provider_id, placed.provider_id);
        assert_eq!(
            create(driver, &on("c", "host-b"))
                .await?
                .failure_domain
                .as_deref(),
            Some("host-b")
        );
        delete(driver, &on("c", "host-b"), None).await?;
        driver.probe().await?;
    }
    lab.resume("host-a")?;
    // The guest kept running during the outage.
    let back = eventually("the host", async || Ok(status(&driver, &first, Some(&id)).await?)).await?;
    assert!(is_up(&back), "{back:?}");
    let made = create(&driver, &anywhere("new")).await?;
    assert!(made.last_known_state.is_some());

    // The host hangs while guests run.
    lab.signal("host-a", "STOP")?;
    let started = Instant::now();
    let hung = timeout(Duration::from_mins(1), status(&driver, &first, Some(&id))).await;
    let elsewhere = status(&driver, &second, Some(&placed.provider_id)).await;
    lab.signal("host-a", "CONT")?;
    assert_eq!(
        code(&hung?),
        Some(Code::Unavailable),
        "after {:?}",
        started.elapsed()
    );
    elsewhere?;
    eventually("the host", async || Ok(status(&driver, &first, Some(&id)).await?)).await?;
    for machine in [&first, &second, &anywhere("new")] {
        delete(&driver, machine, None).await?;
    }
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

/// libvirt closes a connection with a message, and waits for the host's answer.
#[tokio::test]
async fn a_driver_ends_without_waiting_for_a_host_that_hangs() -> Result<()> {
    let Some(lab) = lab::lab_of(&HOSTS[..1]).await? else {
        return Ok(());
    };
    let driver = lab.driver()?;
    driver.probe().await?;
    lab.signal("host-a", "STOP")?;
    let started = Instant::now();
    drop(driver);
    let took = started.elapsed();
    lab.signal("host-a", "CONT")?;
    assert!(took < Duration::from_secs(1), "after {took:?}");
    Ok(())
}

/// Two drivers create the same machine concurrently. It must exist exactly once.
async fn made_by_two(lab: &Lab, machine: &MachineRef, state: Option<LastKnownState>) -> Result<Machine> {
    let drivers = [lab.driver()?, lab.driver()?];
    let at_once = drivers
        .iter()
        .map(|driver| create_with(driver, machine, state.clone()));
    for answer in join_all(at_once).await {
        let code = code(&answer);
        ensure!(matches!(code, None | Some(Code::Aborted)), "{answer:?}");
    }
    let mut ids = BTreeSet::new();
    for driver in &drivers {
        let made = create_with(driver, machine, state.clone()).await?;
        assert!(is_up(&made), "{made:?}");
        ids.insert(made.provider_id.to_string());
    }
    let mut domains = 0;
    for host in HOSTS {
        let connect = lab.connect(host)?;
        let Ok(domain) = domain(&connect, machine) else {
            continue;
        };
        domains += 1;
        ensure!(domain.is_active()?);
        for word in ["root", "seed", "console"] {
            let found = volumes(&connect, machine, word)?;
            ensure!(
                found.len() == 1 && fs::exists(found[0].get_path()?)?,
                "{word}: {found:?}"
            );
        }
    }
    assert_eq!((ids.len(), domains), (1, 1), "{ids:?}");
    Ok(status(&drivers[0], machine, None).await?)
}

/// DRV-10, DRV-11
#[tokio::test]
async fn two_drivers_that_make_the_same_machine_at_once_make_one_and_harm_none() -> Result<()> {
    let Some(lab) = lab::lab().await? else {
        return Ok(());
    };
    for name in ["1001", "no", "true"] {
        let machine = machine(name, &json!({"failureDomain": "host-a"}), b"#!/bin/sh\n");
        made_by_two(&lab, &machine, None).await.context(name)?;
        let uuid = key(&machine).uuid().to_string();
        // The guest keeps working on the disks that it was started with.
        eventually("the guest's start", async || {
            let console = lab.console(&uuid)?;
            ensure!(
                console.contains(&format!("GUEST seed hostname={name} ")) && console.contains("GUEST done"),
                "{console}"
            );
            Ok(())
        })
        .await?;
        delete(&lab.driver()?, &machine, None).await?;
    }
    // Without a failure domain, both drivers return a placement, and neither creates the machine before the
    // caller has stored the record.
    let (one, other) = (lab.driver()?, lab.driver()?);
    let anywhere = machine("anywhere", &json!({}), b"#!/bin/sh\n");
    let first = create_with(&one, &anywhere, None).await;
    let state = placed(&first).context("the first driver did not place the machine")?;
    let second = placed(&create_with(&other, &anywhere, None).await);
    assert_eq!(second.as_ref(), Some(&state), "they chose two hosts");
    assert_eq!(lab.left()?, Vec::<String>::new());
    let made = made_by_two(&lab, &anywhere, Some(state.clone())).await?;
    let host = made.failure_domain.context("no failure domain")?;
    assert_eq!(state.as_bytes(), format!("{{\"host\":\"{host}\"}}").as_bytes());
    delete(&one, &anywhere, None).await?;
    // A caller that never returns the placement record gets its machine, too.
    let answer = create_with(&one, &anywhere, None).await;
    assert!(placed(&answer).is_some(), "{answer:?}");
    create_with(&one, &anywhere, None).await?;
    delete(&one, &anywhere, None).await?;
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

/// A UUID alone does not make a domain the machine's, and its disks are not deleted.
///
/// DRV-28
#[tokio::test]
async fn a_vm_whose_note_was_taken_away_keeps_its_disks() -> Result<()> {
    let Some(lab) = lab::lab().await? else {
        return Ok(());
    };
    let driver = lab.driver()?;
    let machine = machine("m", &json!({"failureDomain": "host-a"}), b"#!/bin/sh\n");
    create(&driver, &machine).await?;
    let connect = lab.connect("host-a")?;
    let there = domain(&connect, &machine)?;
    let noted = there.get_metadata(ELEMENT, Some(NAMESPACE), 0)?;
    let record = Record::parse(&noted)?;
    there.set_metadata(ELEMENT, None, Some(PREFIX), Some(NAMESPACE), 0)?;
    assert_eq!(
        code(&delete(&driver, &machine, None).await),
        Some(Code::FailedPrecondition)
    );
    assert_eq!(code(&create(&driver, &machine).await), Some(Code::AlreadyExists));
    // If it were reported as absent, its Machine would be replaced while the VM runs.
    assert_eq!(
        code(&status(&driver, &machine, None).await),
        Some(Code::FailedPrecondition)
    );
    assert!(there.is_active()?);
    assert_eq!(volumes(&connect, &machine, "")?.len(), 3);
    let element = record.to_element()?;
    there.set_metadata(ELEMENT, Some(&element), Some(PREFIX), Some(NAMESPACE), 0)?;
    delete(&driver, &machine, None).await?;
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

/// DRV-CR-08
#[tokio::test]
async fn what_a_host_has_not_is_an_error_that_names_it_and_leaves_nothing() -> Result<()> {
    let Some(lab) = lab::lab().await? else {
        return Ok(());
    };
    let driver = lab.driver()?;
    let images = lab.of("host-a").join("images");
    let other = machine("m", &json!({"image": "other", "failureDomain": "host-a"}), b"");
    // The provider looks for an existing VM before it creates one.
    let elsewhere = machine("m", &json!({"failureDomain": "moon"}), b"");
    let Err(refusal) = status(&driver, &elsewhere, None).await else {
        bail!("a machine was found on a host that there is not");
    };
    ensure!(
        refusal.code() == Code::InvalidArgument && refusal.message().contains("/failureDomain"),
        "{refusal}"
    );
    let refused = async |expected: Code, words: &str, machine: &MachineRef| -> Result<()> {
        let Err(status) = create(&driver, machine).await else {
            bail!("a machine was made in spite of {words}");
        };
        ensure!(
            status.code() == expected && status.message().contains(words),
            "{status}, and not {words}"
        );
        ensure!(lab.left()?.is_empty(), "{words}: {:?} is left", lab.left()?);
        Ok(())
    };
    refused(
        Code::FailedPrecondition,
        "image `other` is missing on host `host-a`",
        &other,
    )
    .await?;
    let whole = fs::read(images.join("base.qcow2"))?;
    fs::write(images.join("other.qcow2"), &whole[..whole.len() / 2])?;
    refused(Code::FailedPrecondition, "instead of the configured", &other).await?;
    fs::copy(images.join("base.qcow2"), images.join("other.qcow2"))?;
    create(&driver, &other).await?;
    delete(&driver, &other, None).await?;
    fs::write(images.join("other.qcow2"), [whole.as_slice(), b"x"].concat())?;
    refused(Code::FailedPrecondition, "instead of the configured", &other).await?;

    let plain = machine("m", &json!({"failureDomain": "host-a"}), b"");
    let huge = machine("m", &json!({"failureDomain": "host-a", "size": "huge"}), b"");
    refused(Code::ResourceExhausted, "needs 60000000 MiB", &huge).await?;
    let small = machine("m", &json!({"failureDomain": "host-a", "rootFsSize": 101}), b"");
    refused(Code::OutOfRange, "/rootFsSize", &small).await?;
    let connect = lab.connect("host-a")?;
    let network = virt::network::Network::lookup_by_name(&connect, "default")?;
    network.destroy()?;
    refused(
        Code::FailedPrecondition,
        "network `default` is not active",
        &plain,
    )
    .await?;
    network.create()?;
    StoragePool::lookup_by_name(&connect, "machines")?.destroy()?;
    refused(
        Code::FailedPrecondition,
        "storage pool `machines` is not active",
        &plain,
    )
    .await?;
    assert_eq!(
        code(&delete(&driver, &plain, None).await),
        Some(Code::FailedPrecondition)
    );
    StoragePool::lookup_by_name(&connect, "machines")?.create(0)?;
    create(&driver, &plain).await?;
    delete(&driver, &plain, None).await?;
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}
