//! Hosts without enough memory or storage for a machine.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;

use anyhow::{Context as _, Result, ensure};
use capcmi_driver_libvirt::LibvirtDriver;
use capcmi_driver_libvirt::identity::Names as _;
use cmi_driver::{Code, LastKnownState, MachineRef, PowerState};
use futures::future::join_all;
use serde_json::json;
use virt::connect::Connect;
use virt::domain::Domain;
use virt::storage_pool::StoragePool;
use virt::storage_vol::StorageVol;

use crate::lab::machines::{code, create, create_with, delete, domain, key, placed, status, volumes};
use crate::lab::{self, HOSTS, Lab, eventually, machine};

/// The memory of a machine in the lab, MiB.
const MIB: u64 = 128;

/// A driver whose configuration leaves each host memory for this number of machines.
fn driver_of(lab: &Lab, places: u64) -> Result<LibvirtDriver> {
    let total_mib = lab.connect(HOSTS[0])?.get_node_info()?.memory / 1024;
    let reserved = json!({"reservedMemoryMib": total_mib - places * MIB - MIB / 2});
    lab.driver_with(
        &json!({"hosts": HOSTS.map(|host| (host, &reserved)).into_iter().collect::<BTreeMap<_, _>>()}),
    )
}

/// DRV-10, DRV-CR-08
#[tokio::test]
async fn concurrent_creates_are_placed_only_where_memory_is_left() -> Result<()> {
    let Some(lab) = lab::lab().await? else {
        return Ok(());
    };
    // All machines are placed before any is created, and they use all memory.
    let driver = driver_of(&lab, 10)?;
    let anywhere = |number: usize| machine(&format!("anywhere{number}"), &json!({}), b"");
    let machines: Vec<_> = (0..20).map(anywhere).collect();
    let answers = join_all(machines.iter().map(|machine| create_with(&driver, machine, None))).await;
    let mut on = BTreeMap::new();
    for answer in &answers {
        let record = placed(answer).with_context(|| format!("not placed: {answer:?}"))?;
        *on.entry(String::from_utf8(record.as_bytes().to_vec())?)
            .or_insert(0) += 1;
    }
    assert_eq!(on.into_values().collect::<Vec<_>>(), [10, 10]);
    let one_more = create_with(&driver, &anywhere(20), None).await;
    assert_eq!(code(&one_more), Some(Code::ResourceExhausted), "{one_more:?}");
    // Deleting a machine that was only placed frees its memory.
    delete(&driver, &machines[7], None).await?;
    let one_more = create_with(&driver, &anywhere(20), None).await;
    assert!(placed(&one_more).is_some(), "{one_more:?}");

    // Concurrent creates on one host succeed only for as many machines as fit.
    let driver = driver_of(&lab, 2)?;
    let on_a = |number: usize| machine(&format!("on-a{number}"), &json!({"failureDomain": "host-a"}), b"");
    let machines: Vec<_> = (0..6).map(on_a).collect();
    create_warms_up(&driver, &machines[0]).await?;
    let answers = join_all(machines.iter().map(|machine| create_with(&driver, machine, None))).await;
    let made: Vec<_> = machines
        .iter()
        .zip(&answers)
        .filter(|(_, answer)| answer.is_ok())
        .collect();
    assert_eq!(made.len(), 2, "{answers:?}");
    for answer in &answers {
        assert!(
            matches!(code(answer), None | Some(Code::ResourceExhausted)),
            "{answer:?}"
        );
    }
    assert_eq!(lab.connect("host-a")?.list_all_domains(0)?.len(), 2);

    // Another process placed this machine, and may still create it on that host, so it waits for room.
    let late = machine("late", &json!({}), b"");
    let on_a = LastKnownState::new(b"{\"host\":\"host-a\"}".to_vec());
    let answer = create_with(&driver, &late, on_a).await;
    assert_eq!(code(&answer), Some(Code::ResourceExhausted), "{answer:?}");
    // A new placement chooses the other host.
    let answer = create_with(&driver, &late, None).await;
    let record = placed(&answer).with_context(|| format!("{answer:?}"))?;
    let there = create_with(&driver, &late, Some(record)).await?;
    assert_eq!(there.failure_domain.as_deref(), Some("host-b"));
    for machine in machines.iter().chain([&late]) {
        delete(&driver, machine, None).await?;
    }
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

/// DRV-10
#[tokio::test]
async fn without_a_failure_domain_the_host_with_far_more_memory_is_chosen() -> Result<()> {
    let Some(lab) = lab::lab().await? else {
        return Ok(());
    };
    let total_mib = lab.connect(HOSTS[0])?.get_node_info()?.memory / 1024;
    let with_places = |places: u64| json!({"reservedMemoryMib": total_mib - places * MIB});
    let driver = lab.driver_with(&json!({"hosts": {"host-a": with_places(4), "host-b": with_places(17)}}))?;
    let place = async |name: &str| {
        let answer = create_with(&driver, &machine(name, &json!({}), b""), None).await;
        let record = placed(&answer).with_context(|| format!("not placed: {answer:?}"))?;
        Ok::<_, anyhow::Error>(String::from_utf8(record.as_bytes().to_vec())?)
    };
    for name in ["a", "b", "c"] {
        assert_eq!(place(name).await?, r#"{"host":"host-b"}"#, "{name}");
    }
    // A domain without a machine counts as used memory, even when it is off.
    let xml = format!(
        "<domain type='qemu'><name>other</name><memory \
         unit='MiB'>{}</memory><os><type>hvm</type></os></domain>",
        13 * MIB
    );
    let other = Domain::define_xml(&lab.connect("host-b")?, &xml)?;
    for name in ["d", "e"] {
        assert_eq!(place(name).await?, r#"{"host":"host-a"}"#, "{name}");
    }
    other.undefine()?;
    assert_eq!(place("f").await?, r#"{"host":"host-b"}"#);
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

/// Verifies the image. Otherwise the first create verifies it, and the driver refuses the other creates.
async fn create_warms_up(driver: &LibvirtDriver, machine: &MachineRef) -> Result<()> {
    create(driver, machine).await?;
    Ok(delete(driver, machine, None).await?)
}

/// Gives a host a storage pool with this size, KiB.
fn small_pool(lab: &Lab, host: &str, kib: u32) -> Result<()> {
    let folder = lab.of(host).join("tight");
    fs::create_dir(&folder)?;
    let path = folder.display().to_string();
    lab.on_host(
        host,
        &[
            "mount",
            "-t",
            "tmpfs",
            "-o",
            &format!("size={kib}k"),
            "tmpfs",
            &path,
        ],
    )?;
    let connect = lab.connect(host)?;
    let xml = format!("<pool type='dir'><name>tight</name><target><path>{path}</path></target></pool>");
    StoragePool::define_xml(&connect, &xml, 0)?.create(0)?;
    Ok(())
}

/// A driver with the pool `tight`, which uses the storage of [`small_pool`].
fn driver_of_a_small_pool(lab: &Lab) -> Result<LibvirtDriver> {
    lab.driver_with(&json!({"vmPools": {"tight": {
        "storagePool": "tight", "network": "default", "image": "tiny", "hosts": ["host-a"],
    }}}))
}

/// The names of the volumes in the small pool.
fn in_pool(connect: &Connect) -> Result<Vec<String>> {
    let pool = StoragePool::lookup_by_name(connect, "tight")?;
    pool.refresh(0)?;
    let volumes = pool.list_all_volumes(0)?;
    let names = volumes.iter().map(StorageVol::get_name);
    Ok(names.collect::<std::result::Result<_, _>>()?)
}

/// DRV-CR-08
#[tokio::test]
async fn a_full_storage_pool_is_resource_exhausted_until_there_is_room() -> Result<()> {
    let Some(lab) = lab::lab().await? else {
        return Ok(());
    };
    small_pool(&lab, "host-a", 1024)?;
    let tight = lab.of("host-a").join("tight").display().to_string();
    let driver = driver_of_a_small_pool(&lab)?;
    let connect = lab.connect("host-a")?;
    let large = machine("large", &json!({"vmPool": "tight"}), &vec![b'#'; 3 << 20]);
    // There is room for the disk, but not for the seed.
    for _ in 0..2 {
        let refused = create(&driver, &large).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        assert!(refused.message().contains("No space left on device"), "{refused}");
        assert!(refused.message().contains("-seed-"), "{refused}");
        assert_eq!(connect.list_all_domains(0)?.len(), 0);
    }
    delete(&driver, &large, None).await?;
    assert_eq!(in_pool(&connect)?, Vec::<String>::new());
    // There is no room for the disk.
    let filled = format!("head -c 2M /dev/zero > {tight}/filler || true");
    lab.on_host("host-a", &["sh", "-c", &filled])?;
    let refused = create(&driver, &large).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("-root.qcow2"), "{refused}");
    assert_eq!(in_pool(&connect)?, ["filler"]);
    // The create succeeds as soon as there is room.
    lab.on_host("host-a", &["rm", &format!("{tight}/filler")])?;
    let refused = create(&driver, &large).await;
    assert_eq!(code(&refused), Some(Code::ResourceExhausted));
    lab.on_host("host-a", &["mount", "-o", "remount,size=64m", &tight])?;
    let made = create(&driver, &large).await?;
    assert_eq!(status(&driver, &large, None).await?.provider_id, made.provider_id);
    assert_eq!(
        volumes(&connect, &large, "")?.len(),
        0,
        "they are in the other pool"
    );
    assert_eq!(in_pool(&connect)?.len(), 3);
    delete(&driver, &large, Some(&made.provider_id)).await?;
    assert_eq!(in_pool(&connect)?, Vec::<String>::new());
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn a_guest_without_disk_space_has_failed_until_it_is_resumed() -> Result<()> {
    let Some(lab) = lab::lab().await? else {
        return Ok(());
    };
    small_pool(&lab, "host-a", 4096)?;
    let tight = lab.of("host-a").join("tight").display().to_string();
    let driver = driver_of_a_small_pool(&lab)?;
    let writes =
        b"#!/bin/sh\ndd if=/dev/urandom of=/dev/vda bs=1M count=16 conv=fsync && echo GUEST has written\n";
    let machine = machine("writes", &json!({"vmPool": "tight"}), writes);
    let made = create(&driver, &machine).await?;
    let state = async || Ok::<_, anyhow::Error>(status(&driver, &machine, None).await?.power_state);
    eventually("the guest's pause", async || {
        let state = state().await?;
        ensure!(state == Some(PowerState::Failed), "{state:?}");
        Ok(())
    })
    .await?;
    let connect = lab.connect("host-a")?;
    let there = domain(&connect, &machine)?;
    assert!(there.is_active()?);
    lab.on_host("host-a", &["mount", "-o", "remount,size=64m", &tight])?;
    there.resume()?;
    eventually("the rest of the guest's writing", async || {
        let console = format!("{tight}/capcmi-{}-console.log", key(&machine).uuid());
        lab.on_host("host-a", &["grep", "-q", "GUEST has written", &console])
    })
    .await?;
    assert_ne!(state().await?, Some(PowerState::Failed));
    delete(&driver, &machine, Some(&made.provider_id)).await?;
    assert_eq!(in_pool(&connect)?, Vec::<String>::new());
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

/// DRV-10, DRV-11
#[tokio::test]
async fn a_root_volume_of_any_size_is_kept_by_the_next_create() -> Result<()> {
    let Some(lab) = lab::lab().await? else {
        return Ok(());
    };
    let driver = lab.driver()?;
    // 1 GB is not a multiple of 1 KiB, and libvirt rounds sizes up to that.
    let machine = machine("odd", &json!({"failureDomain": "host-a", "rootFsSize": 1}), b"");
    create(&driver, &machine).await?;
    let connect = lab.connect("host-a")?;
    let there = domain(&connect, &machine)?;
    there.destroy()?;
    there.undefine()?;
    let volume = volumes(&connect, &machine, "root")?.pop().context("no disk")?;
    let path = volume.get_path()?;
    // The open file keeps its inode number from being used again.
    let before = File::open(&path)?;
    create(&driver, &machine).await?;
    assert_eq!(
        fs::metadata(&path)?.ino(),
        before.metadata()?.ino(),
        "the disk was made anew"
    );
    delete(&driver, &machine, None).await?;
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}
