//! Cluster API's real controllers make Machines of real VMs. The kube-apiserver is real, this provider runs
//! as a process, and the driver is a plugin over mutual TLS. The guests boot on two real libvirt hosts.
//!
//! Only the kubelet of a guest is a stand-in. The guest serves its bootstrap data, name and ProviderID to its
//! network, and the stand-in registers the Node from them. So a guest that has not read its data has no Node.

// A failure of the lab ends the test.
#![allow(clippy::unwrap_used)]

mod cluster;
mod hosts;
#[path = "../lab/mod.rs"]
mod lab;
mod plugin;
mod template;

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use management_cluster::eventually;
use serde_json::json;

use self::cluster::{Cluster, Vm};
use self::hosts::Hosts;
use self::lab::{DEADLINE, HOSTS};

/// The hosts have room for one guest each: that spreads the machines, and makes an update wait for the room
/// of the machine that it replaces.
///
/// CTL-CR-00, CTL-GS-00, CTL-DL-00, DRV-10, DRV-13, DRV-14
#[tokio::test]
async fn a_machine_deployment_rolls_scales_and_deletes_vms_on_two_hosts() -> Result<()> {
    let Some(lab) = lab::lab().await? else {
        return Ok(());
    };
    let hosts = Hosts::of(&lab);
    let before = hosts.inventory().await?;
    let cluster = Cluster::start(&lab, "whole", &hosts.config_with_room_for_one()?).await?;
    let domains = cluster.failure_domains().await?;
    ensure!(
        domains == HOSTS,
        "the Cluster has the failure domains {domains:?}"
    );

    cluster.template("first", json!({})).await?;
    cluster.deployment("first", 2).await?;
    let first = cluster.running(2).await?;
    on_both_hosts(&first)?;
    for vm in &first {
        let guest = hosts.ask(vm).await?;
        ensure!(
            guest.seed.user_data == cluster.bootstrap_data(),
            "the guest of {} has other user data than its Secret",
            vm.machine
        );
        // The tiny image's 64 MiB.
        ensure!(guest.root_sectors == 64 * 2048, "{} sectors", guest.root_sectors);
    }

    cluster.template("second", json!({"rootFsSize": 2})).await?;
    cluster.roll_out("second").await?;
    let second = cluster.running_of("second", 2).await?;
    on_both_hosts(&second)?;
    for vm in &second {
        ensure!(
            first.iter().all(|old| old.uuid != vm.uuid),
            "{} was not replaced",
            vm.machine
        );
        let sectors = hosts.ask(vm).await?.root_sectors;
        ensure!(sectors == 2_000_000_000 / 512, "{sectors} sectors");
    }
    hosts.have(&second).await?;

    cluster.scale(1).await?;
    let last = cluster.running(1).await?;
    hosts.have(&last).await?;

    cluster.delete().await?;
    // Each guest was asked to stop, and has given its address back.
    eventually(DEADLINE, "hosts as they were", async || {
        let now = hosts.inventory().await?;
        ensure!(now == before, "{now:#?}, and not {before:#?}");
        Ok(())
    })
    .await
}

/// CTL-GS-14, CTL-LM-00
#[tokio::test]
async fn a_health_check_replaces_a_killed_guest_and_keeps_the_other() -> Result<()> {
    let Some(lab) = lab::lab().await? else {
        return Ok(());
    };
    let hosts = Hosts::of(&lab);
    let before = hosts.inventory().await?;
    let cluster = Cluster::start(&lab, "killed", &serde_json::from_str(&lab.config()?)?).await?;
    cluster.template("only", json!({})).await?;
    cluster.deployment("only", 2).await?;
    let vms = cluster.running(2).await?;
    cluster.health_check().await?;
    let (killed, kept) = (&vms[0], &vms[1]);
    let boot_before = hosts.ask(kept).await?.boot_id;

    hosts.kill(killed).await?;
    cluster.lose_node(killed).await?;
    let after = eventually(
        DEADLINE,
        "another machine in the place of the killed one",
        async || {
            let after = cluster.running(2).await?;
            ensure!(
                after.iter().all(|vm| vm.uuid != killed.uuid),
                "{} is there",
                killed.machine
            );
            Ok(after)
        },
    )
    .await?;
    ensure!(after.contains(kept), "{} was replaced as well", kept.machine);
    ensure!(
        hosts.ask(kept).await?.boot_id == boot_before,
        "the guest of {} was restarted",
        kept.machine
    );
    hosts.have(&after).await?;

    cluster.delete().await?;
    eventually(DEADLINE, "hosts as they were", async || {
        let mut now = hosts.inventory().await?;
        // A killed guest cannot release its lease. The lease is free when it expires.
        now.forget_lease(killed);
        ensure!(now == before, "{now:#?}, and not {before:#?}");
        Ok(())
    })
    .await
}

/// Inside of the namespaces of a host of the lab, that host is the libvirt of this computer.
#[tokio::test]
async fn the_quickstart_brings_up_vms_that_boot_and_leaves_libvirt_as_it_was() -> Result<()> {
    let Some(lab) = lab::lab().await? else {
        return Ok(());
    };
    let hosts = Hosts::of(&lab);
    hosts.define_a_domain_of_the_user()?;
    let before = hosts.inventory().await?;
    let quickstart = testbed::program("examples/quickstart")?;
    let quickstart = quickstart.display().to_string();
    let output = hosts
        .on(HOSTS[0], &[&quickstart, "--plain", "--driver=libvirt"])
        .await?;
    let said = String::from_utf8_lossy(&output.stdout);
    let all = format!("{said}{}", String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.code() == Some(0), "{}: {all}", output.status);
    for words in [
        "5 Machines are Running, each with one VM, one Node and one providerID",
        "providerID libvirt://here/",
        "/var/lib/libvirt/capcmi-quickstart/capcmi-",
    ] {
        ensure!(said.contains(words), "it does not say `{words}`: {all}");
    }
    let after = hosts.inventory().await?;
    ensure!(after == before, "{after:#?}, and not {before:#?}: {all}");
    Ok(())
}

/// Each machine is in the failure domain that its ProviderID names, and there is one in each.
fn on_both_hosts(vms: &[Vm]) -> Result<()> {
    for vm in vms {
        ensure!(
            vm.failure_domain == vm.host,
            "{} is in the failure domain {} and on the host {}",
            vm.machine,
            vm.failure_domain,
            vm.host
        );
    }
    let hosts: BTreeSet<_> = vms.iter().map(|vm| vm.host.as_str()).collect();
    ensure!(hosts == BTreeSet::from(HOSTS), "the machines are on {hosts:?}");
    Ok(())
}
