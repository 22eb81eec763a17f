//! Static addresses with the real kinds of Cluster API's IPAM contract, their webhooks, and the policies. The
//! IPAM provider is the tests' own.

use anyhow::{Context, Result, ensure};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use management_cluster::eventually;
use serde_json::json;

use crate::support::ipam::{Ipam, addresses, claims, pool};
use crate::support::{ByHand, Cloud, DEADLINE, Provider, World};

/// A deletion in the foreground deletes the claims first. Their addresses would be free while the VM runs.
#[tokio::test]
async fn an_address_is_kept_until_the_vm_is_gone() -> Result<()> {
    let world = World::new("addresses").await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({"deleteSeconds": 3})));
    let _provider = provider.start(&world).await?;
    let ipam = Ipam::start(&world);
    ipam.add("a", &["10.1.0.10"]);
    world.cluster("one").await?;
    let machine = ByHand::new(&world, "one", "m").infra("/spec/addressesFromPools", json!([pool("a")]));
    let machine = machine.create().await?;
    let up = machine.provisioned().await?;
    let status = up.status.context("no status")?;
    ensure!(
        status.addresses.iter().any(|shown| shown.address == "10.1.0.10"),
        "{status:?}"
    );

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
        if !vms.is_empty() {
            let is_kept = allocated.is_some_and(|address| address.metadata.deletion_timestamp.is_none());
            assert!(is_kept, "the address was released while the VM exists");
        }
        ensure!(vms.is_empty(), "{vms:?}");
        Ok(())
    })
    .await?;
    machine.delete().await?;
    machine.gone().await?;
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
