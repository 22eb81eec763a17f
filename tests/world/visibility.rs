//! Conditions and events of machines that are not ready.

use anyhow::{Context, Result, ensure};
use capcmi::api::conditions;
use capcmi::api::v1alpha1::{InfraMachine, OperationState};
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::json;

use crate::support::by_hand::{event, message, says};
use crate::support::{Cloud, Provider, Stage, World};

/// The reference of the Machine that owns a machine.
fn owners(machine: &InfraMachine) -> serde_json::Value {
    json!(machine.metadata.owner_references)
}

#[tokio::test(start_paused = true)]
async fn an_inframachine_that_its_machine_does_not_refer_to_gets_no_vm() -> Result<()> {
    let world = World::new("second").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let stage = Stage::set(&world).await?;
    let first = stage.machine("first").create().await?;
    let owned = first.provisioned().await?;
    let second = stage
        .machine("second")
        .infra("/metadata/ownerReferences", owners(&owned));
    second.create_infra().await?;
    let reported = second
        .until("a machine that says that it is not referred to", |machine| {
            says(machine, conditions::READY, "False", "NotReferenced")
        })
        .await?;
    ensure!(
        reported.finalizers().is_empty() && reported.annotations().is_empty(),
        "{reported:?}"
    );
    event(&world, "second", "NotReferenced").await?;
    cloud.holds(1).await?;
    ensure!(cloud.calls_for("second")?.is_empty(), "the driver was called");
    second.api().delete("second", &DeleteParams::default()).await?;
    second.gone().await?;
    cloud.holds(1).await?;
    Ok(())
}

/// Names have at most 253 characters, those of events included. The API server in memory does not check that.
#[tokio::test(start_paused = true)]
async fn a_machine_with_the_longest_name_gets_its_event() -> Result<()> {
    let world = World::new("longest").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let stage = Stage::set(&world).await?;
    let name = "m".repeat(253);
    let machine = stage.machine(&name).create().await?;
    machine.provisioned().await?;
    let provisioned = event(&world, &name, "Provisioned").await?.name_any();
    ensure!(provisioned.len() <= 253, "{} characters", provisioned.len());
    let is_allowed = |character: char| {
        character.is_ascii_lowercase() || character.is_ascii_digit() || "-.".contains(character)
    };
    ensure!(provisioned.chars().all(is_allowed), "{provisioned}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn slow_calls_and_foreign_finalizers_are_reported() -> Result<()> {
    let world = World::new("long-calls").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let stage = Stage::set(&world).await?;
    cloud.fail(json!([{"operation": "CreateMachine", "latencyMs": 9000}]))?;
    let machine = stage
        .machine("m")
        .infra("/metadata/finalizers", json!(["example.com/kept"]))
        .create()
        .await?;
    let reported = machine
        .until("a create that is under way", |machine| {
            says(machine, conditions::READY, "False", "Creating")
        })
        .await?;
    let last = reported.status.and_then(|status| status.last_operation);
    let last = last.context("no last operation")?;
    ensure!(last.state == OperationState::Processing, "{last:?}");
    ensure!(last.operation.as_deref() == Some("CreateMachine"), "{last:?}");
    machine.provisioned().await?;
    cloud.fail(json!([{"operation": "GetMachineStatus", "latencyMs": 9000}]))?;
    machine.delete().await?;
    machine
        .until("a look-up that is under way", |machine| {
            says(machine, conditions::DELETING, "True", "Deleting")
                && message(machine, conditions::READY).contains("GetMachineStatus")
        })
        .await?;
    cloud.fail(json!([]))?;
    machine
        .until("a deletion that others keep", |machine| {
            says(machine, conditions::DELETING, "True", "WaitingForFinalizers")
                && says(machine, conditions::READY, "False", "WaitingForFinalizers")
        })
        .await?;
    cloud.holds(0).await?;
    machine.patch(json!({"metadata": {"finalizers": []}})).await?;
    machine.gone().await?;
    Ok(())
}
