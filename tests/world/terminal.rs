//! The way back from a create that failed for good: a changed spec or annotation, once for each change.

use std::time::Duration;

use anyhow::{Result, ensure};
use capcmi::api::conditions;
use cmi_driver::{Operation, tags};
use cmi_simulated::PlantedVm;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::support::by_hand::{message, says};
use crate::support::{ByHand, Cloud, Provider, Stage, World};

/// Longer than any wait between automatic retries.
const LONG: Duration = Duration::from_hours(2);

fn annotate(value: &str) -> Value {
    json!({"metadata": {"annotations": {"example.com/retry": value}}})
}

/// Waits until the machine reports a refusal, and returns the message.
async fn refused(machine: &ByHand, reason: &str) -> Result<String> {
    let refused = machine
        .until("a refused machine", |machine| {
            says(machine, conditions::READY, "False", reason)
        })
        .await?;
    ensure!(
        refused
            .status
            .as_ref()
            .and_then(|status| status.failure_reason.as_deref())
            == Some(reason),
        "no failureReason"
    );
    Ok(message(&refused, conditions::READY).to_owned())
}

/// CTL-CR-06: no automatic retry, and no VM beside the one that has the name.
#[tokio::test(start_paused = true)]
async fn a_taken_name_is_tried_once_for_each_changed_annotation() -> Result<()> {
    let world = World::without_core("taken-name").await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({})));
    let replica = provider.start(&world).await?;
    let stage = Stage::set(&world).await?;
    let mut foreign = PlantedVm::new(&stage.cluster_id, "m", "another-machine");
    foreign.tags.insert(tags::ROLE.to_owned(), "node".to_owned());
    let foreign = cloud.console()?.plant(foreign)?;
    let machine = stage.machine("m").create().await?;
    let advice = refused(&machine, "AlreadyExists").await?;
    ensure!(
        advice.contains("change any annotation of this object to retry"),
        "{advice}"
    );
    let creates = || cloud.count(Operation::CreateMachine, "m");
    tokio::time::sleep(LONG).await;
    ensure!(creates()? == 1, "{} creates without a change", creates()?);

    for round in 2..=3 {
        machine.patch(annotate(&round.to_string())).await?;
        tokio::time::sleep(LONG).await;
        ensure!(
            creates()? == round,
            "{} creates after {} changes",
            creates()?,
            round - 1
        );
        refused(&machine, "AlreadyExists").await?;
    }
    drop(replica);
    let replica = provider.start(&world).await?;
    tokio::time::sleep(LONG).await;
    ensure!(creates()? == 3, "{} creates after a restart", creates()?);
    // A change counts also while no provider runs.
    drop(replica);
    machine.patch(annotate("unseen")).await?;
    for _ in 0..2 {
        let _provider = provider.start(&world).await?;
        tokio::time::sleep(LONG).await;
        ensure!(creates()? == 4, "{} creates after an unseen change", creates()?);
    }
    let _provider = provider.start(&world).await?;
    let vm = cloud.holds(1).await?.remove(0);
    ensure!(vm.provider_id() == foreign, "another VM");

    cloud.console()?.vanish(vm.id)?;
    machine.patch(annotate("gone")).await?;
    let up = machine.provisioned().await?;
    ensure!(
        up.status
            .as_ref()
            .is_some_and(|status| status.failure_reason.is_none()),
        "the failure stays"
    );
    ensure!(creates()? == 5, "{} creates", creates()?);
    cloud.holds(1).await?;
    Ok(())
}

/// The retry is not lost while creates of the class are suspended.
#[tokio::test(start_paused = true)]
async fn a_requested_retry_waits_for_capacity() -> Result<()> {
    let world = World::without_core("retry-capacity").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let stage = Stage::set(&world).await?;
    let no_room = json!({"operation": "CreateMachine", "machine": "other", "code": "ResourceExhausted"});
    let invalid = json!({"operation": "CreateMachine", "machine": "m", "code": "InvalidArgument"});
    cloud.fail(json!([no_room, invalid]))?;
    let machine = stage.machine("m").create().await?;
    refused(&machine, "InvalidArgument").await?;
    let other = stage.machine("other").create().await?;
    other
        .until("no capacity", |machine| {
            says(machine, conditions::READY, "False", "ResourceExhausted")
        })
        .await?;
    machine.patch(annotate("1")).await?;
    machine
        .until("a wait for capacity", |machine| {
            says(machine, conditions::READY, "False", "WaitingForCapacity")
        })
        .await?;
    cloud.fail(json!([]))?;
    tokio::time::sleep(LONG).await;
    machine.provisioned().await?;
    let creates = cloud.count(Operation::CreateMachine, "m")?;
    ensure!(creates == 2, "{creates} creates");
    Ok(())
}

/// CTL-CR-03, CTL-CR-11
#[tokio::test(start_paused = true)]
async fn a_refused_spec_is_tried_once_for_each_change() -> Result<()> {
    let world = World::without_core("refused-spec").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let stage = Stage::set(&world).await?;
    for (name, code) in [("invalid", "InvalidArgument"), ("range", "OutOfRange")] {
        cloud
            .fail(json!([{"operation": "CreateMachine", "machine": name, "code": code, "message": "no"}]))?;
        let machine = stage.machine(name).create().await?;
        let advice = refused(&machine, code).await?;
        ensure!(
            advice.contains("spec.providerSpec") && advice.contains("annotation"),
            "{advice}"
        );
        tokio::time::sleep(LONG).await;
        let creates = || cloud.count(Operation::CreateMachine, name);
        ensure!(creates()? == 1, "{} creates without a change", creates()?);
        machine.patch(annotate("1")).await?;
        tokio::time::sleep(LONG).await;
        ensure!(creates()? == 2, "{} creates after a change", creates()?);
        cloud.fail(json!([]))?;
        machine.respecify("labels", json!({"round": "1"})).await?;
        machine.provisioned().await?;
        machine.api().delete(name, &DeleteParams::default()).await?;
    }
    Ok(())
}
