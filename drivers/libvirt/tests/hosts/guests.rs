//! How guests boot, get their bootstrap data and report their addresses.

use std::fs::{self, File};
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use capcmi_driver_libvirt::LibvirtDriver;
use capcmi_driver_libvirt::identity::Names as _;
use capcmi_driver_libvirt::metadata::Record;
use cmi_driver::{
    Address, AddressType, Driver as _, ListMachinesRequest, Machine, MachineRef, PowerState, SecretValue,
    ShutDownMachineRequest, USER_DATA_FORMAT,
};
use jiff::{SignedDuration, Timestamp};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};
use tokio::runtime;
use tokio::time::Instant;
use virt::network::Network;

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

/// The configuration of the image with QEMU's agent.
fn image_with_agent(lab: &Lab) -> Result<Value> {
    let mut config: Value = serde_json::from_str(&lab.config()?)?;
    let mut image = config["images"]["tiny"].take();
    image["directBoot"]["initrd"] = json!(lab::images()?.join("agent-initrd.gz"));
    Ok(image)
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

/// Nothing on the bridge assigns addresses.
///
/// DRV-14
#[tokio::test]
async fn on_a_bridge_the_guest_agent_reports_the_address() -> Result<()> {
    let Some(lab) = lab::lab_of(&[HOST]).await? else {
        return Ok(());
    };
    let driver = lab.driver_with(&json!({
        "images": {"with-agent": image_with_agent(&lab)?},
        "networks": {"silent": {"bridge": "silent"}},
        "vmPools": {
            "bridged": {"storagePool": "machines", "network": "silent", "image": "with-agent"},
            "silent": {"storagePool": "machines", "network": "silent", "image": "tiny"},
        },
    }))?;
    lab.on_host(HOST, &["ip", "link", "add", "silent", "up", "type", "bridge"])?;
    let user_data = b"#!/bin/sh\nifconfig eth0 10.77.0.5 netmask 255.255.255.0\n";
    let talks = on_host("talks", &json!({"vmPool": "bridged"}), user_data);
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
    assert_eq!(addresses(&seen), ["10.77.0.5"], "{seen:?}");
    booted(&lab, &talks).await?;
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

/// The lab's image has no cloud-init: a script of its guest reads the seed's network configuration.
#[tokio::test]
async fn a_guest_has_the_static_address_of_its_seed_and_no_lease() -> Result<()> {
    let Some(lab) = lab::lab_of(&[HOST]).await? else {
        return Ok(());
    };
    let driver = lab.driver()?;
    let pool = json!({"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "nodes"});
    let given = json!({"address": "192.168.122.250", "prefix": 24, "gateway": "192.168.122.1", "pool": pool});
    let change = json!({"networkAddresses": [given]});
    let machine = on_host(
        "fixed",
        &change,
        b"#!/bin/sh\nping -c 1 192.168.122.1 && echo GUEST pings\n",
    );
    create(&driver, &machine).await?;
    let console = booted(&lab, &machine).await?;
    has(&console, "GUEST address=192.168.122.250 ")?;
    has(&console, "GUEST routes default via 192.168.122.1 ")?;
    has(&console, "GUEST pings")?;

    // The driver would show a lease instead.
    let expected: Vec<IpAddr> = vec!["192.168.122.250".parse()?];
    assert_eq!(
        listed(&driver, &machine).await?,
        (expected, Some(PowerState::Running))
    );
    assert_eq!(
        addresses(&status(&driver, &machine, None).await?),
        ["192.168.122.250"]
    );
    domain(&lab.connect(HOST)?, &machine)?.destroy()?;
    assert_eq!(
        listed(&driver, &machine).await?,
        (vec![], Some(PowerState::Stopped))
    );
    delete(&driver, &machine, None).await?;
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

/// The first interface has IPv4 and IPv6, the second one only IPv6, and the third one an address that only
/// the guest knows. A message to port 98 gives the first interface another lease, and one to port 99 freezes
/// the agent.
const SEVERAL_NETWORKS: &[u8] = b"#!/bin/sh
ifconfig eth1 up
ifconfig eth2 10.77.0.5 netmask 255.255.255.0
for disk in /sys/block/vd[c-z]; do echo GUEST data $(cat $disk/serial) $(cat $disk/size); done
echo GUEST mtu $(cat /sys/class/net/eth2/mtu)
(nc -l -p 98 >/dev/null; udhcpc -i eth0 -n -q -C -x 0x3d:00abcdef) &
(nc -l -p 99 >/dev/null; killall -STOP qemu-ga) &
";

/// The IP addresses and the power state of a machine in the list.
async fn listed(driver: &LibvirtDriver, machine: &MachineRef) -> Result<(Vec<IpAddr>, Option<PowerState>)> {
    let class = machine.class.clone();
    let list = driver.list_machines(ListMachinesRequest { class }).await?;
    let vm = list.into_iter().find(|vm| vm.machine_name == machine.name);
    let vm = vm.context("the list lacks the machine")?;
    let of_ip = |address: &Address| address.kind == AddressType::InternalIP;
    let addresses = vm.addresses.iter().filter(|address| of_ip(address));
    let addresses = addresses.map(|address| address.address.parse());
    Ok((addresses.collect::<std::result::Result<_, _>>()?, vm.power_state))
}

/// The IP addresses that a driver lists that runs on the host: in its network namespace.
async fn listed_on_host(lab: &Lab, machine: &MachineRef) -> Result<Vec<IpAddr>> {
    let namespace = File::open(format!("/proc/{}/ns/net", lab.libvirtd(HOST)?))?;
    let enter = move || {
        let kind = Some(LinkNameSpaceType::Network);
        // The driver then sees no neighbours.
        if let Err(error) = move_into_link_name_space(namespace.as_fd(), kind) {
            eprintln!("the driver could not enter the host's network: {error}");
        }
    };
    let on_host = runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .on_thread_start(enter)
        .enable_all()
        .build()?;
    let (driver, machine) = (lab.driver()?, machine.clone());
    let answer = on_host.spawn(async move { listed(&driver, &machine).await });
    let answer = answer.await?;
    on_host.shutdown_background();
    Ok(answer?.0)
}

fn define_networks(lab: &Lab) -> Result<()> {
    let connect = lab.connect(HOST)?;
    for xml in [
        "<network><name>dual</name><bridge name='virbr-dual' stp='off' delay='0'/>\
         <ip address='192.168.77.1' netmask='255.255.255.0'>\
         <dhcp><range start='192.168.77.2' end='192.168.77.254'/></dhcp></ip>\
         <ip family='ipv6' address='fd00:77::1' prefix='64'/></network>",
        "<network><name>six</name><bridge name='virbr-six' stp='off' delay='0'/>\
         <ip family='ipv6' address='fd00:66::1' prefix='64'/></network>",
    ] {
        Network::define_xml(&connect, xml)?.create()?;
    }
    lab.on_host(HOST, &["ip", "link", "add", "cut", "up", "type", "bridge"])
}

#[tokio::test]
async fn lists_show_all_networks_while_the_agent_is_frozen_and_leases_change() -> Result<()> {
    let Some(lab) = lab::lab_of(&[HOST]).await? else {
        return Ok(());
    };
    define_networks(&lab)?;
    let driver = lab.driver_with(&json!({
        "images": {"with-agent": image_with_agent(&lab)?},
        "networks": {
            "dual": {"network": "dual"},
            "six": {"network": "six"},
            "cut": {"bridge": "cut", "mtu": 1400},
        },
    }))?;
    let change = json!({"image": "with-agent", "networks": ["dual", "six", "cut"],
        "disks": [{"size": 1}, {"size": 2}]});
    let machine = on_host("several", &change, SEVERAL_NETWORKS);
    create(&driver, &machine).await?;
    let console = booted(&lab, &machine).await?;
    has(&console, "GUEST data data-0 1953126")?;
    has(&console, "GUEST data data-1 3906250")?;
    has(&console, "GUEST mtu 1400")?;

    let seen = eventually("the addresses of all networks", async || {
        let (seen, power) = listed(&driver, &machine).await?;
        let count = |network: &str| {
            let all = seen.iter().map(IpAddr::to_string);
            all.filter(|address| address.starts_with(network)).count()
        };
        for network in ["192.168.77.", "fd00:77:", "fd00:66:", "10.77.0.5"] {
            ensure!(count(network) == 1, "{network}: {seen:?}");
        }
        ensure!(
            seen.len() == 4 && power == Some(PowerState::Running),
            "{seen:?} {power:?}"
        );
        Ok(seen)
    })
    .await?;
    let of_status = |machine: &Machine| -> Vec<IpAddr> {
        let all = addresses(machine).into_iter();
        all.filter_map(|address| address.parse().ok()).collect()
    };
    assert_eq!(of_status(&status(&driver, &machine, None).await?), seen);

    let send = |port: &str| {
        let words = format!("echo > /dev/tcp/{}/{port}", seen[0]);
        lab.on_host(HOST, &["bash", "-c", &words])
    };
    send("99")?;
    eventually("the silence of the agent", async || {
        let asked = Instant::now();
        let of_status = of_status(&status(&driver, &machine, None).await?);
        ensure!(asked.elapsed() > Duration::from_secs(1));
        assert_eq!(of_status, seen);
        Ok(())
    })
    .await?;
    let asked = Instant::now();
    assert_eq!(listed(&driver, &machine).await?.0, seen);
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    let (of_another_driver, _) = listed(&lab.driver()?, &machine).await?;
    assert_eq!(of_another_driver, seen[..1], "it knows only the lease");
    lab.on_host(HOST, &["ip", "address", "add", "10.77.0.1/24", "dev", "cut"])?;
    for address in &seen {
        lab.on_host(HOST, &["bash", "-c", &format!("echo > /dev/tcp/{address}/80")])?;
    }
    assert_eq!(
        listed_on_host(&lab, &machine).await?,
        seen,
        "it knows the neighbours"
    );

    send("98")?;
    eventually("the newer lease", async || {
        let (now, _) = listed(&driver, &machine).await?;
        ensure!(now[0] != seen[0] && now[1..] == seen[1..], "{now:?}");
        Ok(())
    })
    .await?;

    let connect = lab.connect(HOST)?;
    domain(&connect, &machine)?.destroy()?;
    assert_eq!(
        listed(&driver, &machine).await?,
        (vec![], Some(PowerState::Stopped))
    );
    delete(&driver, &machine, None).await?;
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}
