//! Changes of the provider spec: updates of a running VM, unsupported changes, and corrections of a refused
//! spec.

use std::time::Duration;

use anyhow::{Result, ensure};
use capcmi::api::conditions::{self, VIRTUAL_MACHINE_UP_TO_DATE};
use capcmi::api::v1alpha1::OperationType;
use cmi_driver::Operation;
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::support::by_hand::{message, says, small};
use crate::support::{ByHand, Cloud, DEADLINE, Provider, World};

/// UPD-01: one UpdateMachine, and neither a create nor a delete.
#[tokio::test(start_paused = true)]
async fn a_hot_updatable_change_is_one_update_of_the_running_vm() -> Result<()> {
    let world = World::new("hot-update").await?;
    let cloud = Cloud::new(&world);
    let driver = cloud.drivers(json!({}));
    let _provider = Provider::new(driver).start(&world).await?;
    world.cluster("one").await?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    machine.provisioned().await?;
    let before = cloud.holds(1).await?.remove(0);
    machine.respecify("labels", json!({"tier": "gold"})).await?;
    labelled(&cloud, "gold").await?;
    let updated = machine
        .until("a successful update", |machine| {
            last_type(machine) == Some(OperationType::Update)
                && says(machine, VIRTUAL_MACHINE_UP_TO_DATE, "True", "UpToDate")
        })
        .await?;
    ensure!(
        says(&updated, conditions::READY, "True", "Ready"),
        "Ready was touched"
    );
    // The second change proves that the first one is complete.
    machine.respecify("labels", json!({"tier": "silver"})).await?;
    labelled(&cloud, "silver").await?;
    ensure!(cloud.holds(1).await?.remove(0).id == before.id, "another VM");
    for (operation, times) in [
        (Operation::UpdateMachine, 2),
        (Operation::CreateMachine, 1),
        (Operation::DeleteMachine, 0),
    ] {
        let seen = cloud.count(operation, "m")?;
        ensure!(seen == times, "{seen} times {operation}");
    }
    Ok(())
}

/// UPD-03: a failed update may be half done, so a return to the old spec calls the driver too.
#[tokio::test(start_paused = true)]
async fn a_failed_update_is_reverted_at_the_driver() -> Result<()> {
    let world = World::new("update-back").await?;
    let cloud = Cloud::new(&world);
    let driver = cloud.drivers(json!({}));
    let _provider = Provider::new(driver).start(&world).await?;
    world.cluster("one").await?;
    let spec = with(small(), "labels", json!({"tier": "gold"}));
    let machine = ByHand::new(&world, "one", "m")
        .infra("/spec/providerSpec", spec)
        .create()
        .await?;
    machine.provisioned().await?;
    // The VM is changed, and the answer is lost.
    cloud.fail(json!([{"operation": "UpdateMachine", "loseResponse": "Internal"}]))?;
    machine.respecify("labels", json!({"tier": "silver"})).await?;
    labelled(&cloud, "silver").await?;
    let failed = machine
        .until("a failed update", |machine| {
            says(machine, VIRTUAL_MACHINE_UP_TO_DATE, "False", "Internal")
        })
        .await?;
    ensure!(
        says(&failed, conditions::READY, "True", "Ready"),
        "Ready was touched"
    );
    cloud.fail(json!([]))?;
    machine.respecify("labels", json!({"tier": "gold"})).await?;
    labelled(&cloud, "gold").await?;
    machine
        .until("the end of the update", |machine| {
            says(machine, VIRTUAL_MACHINE_UP_TO_DATE, "True", "UpToDate")
        })
        .await?;
    ensure!(cloud.count(Operation::CreateMachine, "m")? == 1);
    Ok(())
}

/// UPD-02: a condition names the field that a running VM cannot change, and the VM stays as it is. A driver
/// without UpdateMachine can change no field.
#[tokio::test(start_paused = true)]
async fn a_change_that_is_not_hot_updatable_leaves_the_vm_alone() -> Result<()> {
    let world = World::new("cold-update").await?;
    let (hot, cold) = (Cloud::named(&world, "hot"), Cloud::named(&world, "cold"));
    let disabled = json!({"disabledCalls": ["UpdateMachine"]});
    let drivers = Cloud::several([
        hot.drivers_with(json!({"name": "hot"}), json!({})),
        cold.drivers_with(json!({"name": "cold"}), disabled),
    ])?;
    let _provider = Provider::new(drivers).start(&world).await?;
    world.cluster("one").await?;
    for (cloud, driver, field, value) in [
        (&hot, "hot", "size", json!("medium")),
        (&cold, "cold", "labels", json!({"tier": "gold"})),
    ] {
        let machine = ByHand::new(&world, "one", driver)
            .infra("/spec/driver", json!(driver))
            .create()
            .await?;
        machine.provisioned().await?;
        let before = cloud.holds(1).await?;
        machine.respecify(field, value).await?;
        let reported = machine
            .until("a refused change", |machine| {
                says(machine, VIRTUAL_MACHINE_UP_TO_DATE, "False", "NotHotUpdatable")
            })
            .await?;
        let reported = message(&reported, VIRTUAL_MACHINE_UP_TO_DATE);
        ensure!(reported.contains(&format!("/{field}")), "{reported}");
        // With the old value, the condition is true again.
        machine
            .respecify(field, small().get(field).cloned().unwrap_or_default())
            .await?;
        let back = machine
            .until("an accepted spec", |machine| {
                says(machine, VIRTUAL_MACHINE_UP_TO_DATE, "True", "UpToDate")
            })
            .await?;
        ensure!(
            says(&back, conditions::READY, "True", "Ready"),
            "Ready was touched"
        );
        ensure!(cloud.vms()? == before, "the VM was touched");
        ensure!(cloud.count(Operation::UpdateMachine, driver)? == 0, "{driver}");
    }
    Ok(())
}

/// CTL-CR-03: a refused create is retried only when the spec changes, and then immediately.
#[tokio::test(start_paused = true)]
async fn a_refused_spec_can_be_corrected() -> Result<()> {
    let world = World::new("correct").await?;
    let cloud = Cloud::new(&world);
    let driver = cloud.drivers(json!({}));
    let _provider = Provider::new(driver).start(&world).await?;
    world.cluster("one").await?;
    cloud.fail(
        json!([{"operation": "CreateMachine", "code": "InvalidArgument", "message": "no /size for you"}]),
    )?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    let refused = machine
        .until("a refused machine", |machine| {
            says(machine, conditions::READY, "False", "InvalidArgument")
        })
        .await?;
    let status = refused.status.unwrap_or_default();
    ensure!(status.failure_reason.as_deref() == Some("InvalidArgument"));
    let failure = status.failure_message.unwrap_or_default();
    ensure!(failure.contains("no /size for you"), "{failure}");
    cloud.fail(json!([]))?;
    tokio::time::sleep(Duration::from_mins(5)).await;
    ensure!(
        cloud.count(Operation::CreateMachine, "m")? == 1,
        "the same spec was tried again"
    );
    machine.respecify("size", json!("medium")).await?;
    let provisioned = machine.provisioned().await?;
    let status = provisioned.status.unwrap_or_default();
    ensure!(status.failure_reason.is_none() && status.failure_message.is_none());
    let sizes: Vec<_> = cloud.vms()?.into_iter().map(|vm| (vm.name, vm.size)).collect();
    ensure!(
        sizes.contains(&("m".to_owned(), "medium".to_owned())),
        "{sizes:?}"
    );
    Ok(())
}

/// CTL-CR-03, DRV-04: the driver's schema is checked before any call.
#[tokio::test(start_paused = true)]
async fn a_spec_that_violates_the_drivers_schema_causes_no_call() -> Result<()> {
    let world = World::new("schema").await?;
    let cloud = Cloud::new(&world);
    let driver = cloud.drivers(json!({}));
    let _provider = Provider::new(driver).start(&world).await?;
    world.cluster("one").await?;
    let machine = ByHand::new(&world, "one", "m")
        .infra("/spec/providerSpec/size", json!("gigantic"))
        .create()
        .await?;
    let refused = machine
        .until("a refused machine", |machine| {
            says(machine, conditions::READY, "False", "InvalidArgument")
        })
        .await?;
    let reported = message(&refused, conditions::READY);
    ensure!(reported.contains("/size"), "{reported}");
    machine.delete().await?;
    machine.gone().await?;
    let calls = cloud.calls_for("m")?;
    ensure!(calls.is_empty(), "{calls:?}");
    Ok(())
}

async fn labelled(cloud: &Cloud, tier: &str) -> Result<()> {
    eventually(DEADLINE, &format!("a VM of tier {tier}"), async || {
        let labels: Vec<_> = cloud.vms()?.into_iter().map(|vm| vm.labels).collect();
        let fits = labels
            .iter()
            .any(|labels| labels.get("tier").is_some_and(|seen| seen == tier));
        ensure!(fits, "{labels:?}");
        Ok(())
    })
    .await
}

fn with(mut spec: Value, field: &str, value: Value) -> Value {
    spec[field] = value;
    spec
}

fn last_type(machine: &capcmi::api::v1alpha1::InfraMachine) -> Option<OperationType> {
    Some(machine.status.as_ref()?.last_operation.as_ref()?.type_)
}
