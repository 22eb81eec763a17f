//! Objects that can't be read, as another version of the schema may let them in.

use anyhow::{Result, ensure};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::support::by_hand::event;
use crate::support::fleet::objects;
use crate::support::{Cloud, Provider, Stage, World};

/// An unreadable machine neither stops the others nor stays for ever, and its VM does not stay either.
#[tokio::test(start_paused = true)]
async fn a_malformed_machine_stops_no_other_and_is_deleted_with_its_vm() -> Result<()> {
    let world = World::without_core("malformed").await?;
    let cloud = Cloud::new(&world);
    let stage = Stage::set(&world).await?;
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    for name in ["good", "spoiled"] {
        stage.machine(name).create().await?;
    }
    for name in ["good", "spoiled"] {
        stage.machine(name).provisioned().await?;
    }
    let spoil = Patch::Merge(json!({"spec": {"shutdownTimeoutSeconds": "soon"}}));
    objects(&world, "infrastructure.capcmi.io", "v1alpha1", "InfraMachine")
        .patch("spoiled", &PatchParams::default(), &spoil)
        .await?;
    stage
        .machine("never-good")
        .infra("/spec/shutdownTimeoutSeconds", json!("soon"))
        .create()
        .await?;
    stage.machine("later").create().await?;
    stage.machine("later").provisioned().await?;
    cloud.holds(3).await?;
    for name in ["never-good", "spoiled"] {
        let reported = event(&world, name, "Unreadable").await?;
        let note = reported.note.unwrap_or_default();
        ensure!(note.contains("soon"), "the event does not have the value: {note}");
    }
    for name in ["never-good", "spoiled"] {
        stage.machine(name).delete().await?;
        stage.machine(name).gone().await?;
    }
    let names: Vec<_> = cloud.holds(2).await?.into_iter().map(|vm| vm.name).collect();
    ensure!(names == ["good", "later"], "the VMs are now {names:?}");
    Ok(())
}
