//! Static addresses with Cluster API's in-cluster IPAM provider, and the policies.

use anyhow::{Context, Result, ensure};
use capcmi::api::conditions::READY;
use cmi_simulated::Vm;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use management_cluster::eventually;
use serde_json::json;

use crate::support::by_hand::{message, says};
use crate::support::ipam::{addresses, claims};
use crate::support::pools::{NETWORK, create_pool, pool};
use crate::support::{ByHand, Cloud, DEADLINE, Provider, World};

const ADDRESS: &str = "10.1.0.10";

/// A deletion in the foreground deletes the claims first. Their addresses would be free while the VM runs. A
/// second machine waits for the only address of the pool.
#[tokio::test]
async fn an_address_is_kept_until_the_vm_is_gone() -> Result<()> {
    let world = World::new("addresses").await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({"deleteSeconds": 3})));
    let _provider = provider.start(&world).await?;
    create_pool(&world, "a", &[ADDRESS]).await?;
    world.cluster("one").await?;
    let of_pool =
        |name| ByHand::new(&world, "one", name).infra("/spec/addressesFromPools", json!([pool("a")]));
    let machine = of_pool("m").create().await?;
    has_the_address(&cloud, &machine).await?;
    let second = of_pool("second").create().await?;
    second
        .until("a wait for the pool", |machine| {
            says(machine, READY, "False", "WaitingForAddress")
                && message(machine, READY).contains("an address from InClusterIPPool `a`")
        })
        .await?;

    for pools in [json!(null), json!([pool("b")])] {
        let changed = machine
            .patch(json!({"spec": {"addressesFromPools": pools}}))
            .await;
        let refusal = format!("{:#}", changed.err().context("the pools were changed")?);
        ensure!(
            refusal.contains("spec.addressesFromPools is immutable"),
            "{refusal}"
        );
    }
    let deleted = claims(&world).delete("m-0", &DeleteParams::default()).await;
    let refusal = deleted.err().context("the claim was deleted")?.to_string();
    ensure!(refusal.contains("delete the Machine"), "{refusal}");

    let claim = claims(&world).get("m-0").await?;
    let is_controller = |owner: &OwnerReference| owner.controller == Some(true);
    ensure!(claim.owner_references().iter().any(is_controller), "{claim:?}");
    machine.api().delete("m", &DeleteParams::foreground()).await?;
    eventually(DEADLINE, "the end of the VM", async || {
        // Read in this order: the address may go right after the VM.
        let allocated = addresses(&world).get_opt("m-0").await?;
        let vms = cloud.vms()?;
        if vms.iter().any(|vm| vm.name == "m") {
            let is_kept = allocated.is_some_and(|address| address.metadata.deletion_timestamp.is_none());
            assert!(is_kept, "the address was released while the VM exists");
            assert!(vms.len() == 1, "two VMs have the address: {vms:?}");
        }
        ensure!(vms.iter().all(|vm| vm.name != "m"), "{vms:?}");
        Ok(())
    })
    .await?;
    machine.delete().await?;
    machine.gone().await?;

    has_the_address(&cloud, &second).await?;
    second.delete().await?;
    second.gone().await?;
    eventually(DEADLINE, "released addresses", async || {
        let allocated = addresses(&world).list(&ListParams::default()).await?.items;
        let claimed = claims(&world).list(&ListParams::default()).await?.items;
        ensure!(
            allocated.is_empty() && claimed.is_empty(),
            "{allocated:?}, {claimed:?}"
        );
        Ok(())
    })
    .await
}

/// Waits until the machine has the only VM, with the address of the pool.
async fn has_the_address(cloud: &Cloud, machine: &ByHand) -> Result<()> {
    let status = machine.provisioned().await?.status.context("no status")?;
    ensure!(
        status.addresses.iter().any(|shown| shown.address == ADDRESS),
        "{status:?}"
    );
    let vms = cloud.vms()?;
    let [Vm { static_addresses, .. }] = vms.as_slice() else {
        anyhow::bail!("{vms:?}");
    };
    let (prefix, gateway) = NETWORK;
    let expected = json!([{"address": ADDRESS, "prefix": prefix, "gateway": gateway, "pool": pool("a")}]);
    ensure!(json!(static_addresses) == expected, "{static_addresses:?}");
    Ok(())
}
