//! Creates whose answer was lost: a back end may still carry them out.

use anyhow::{Context, Result, ensure};
use capcmi::api::conditions::{DELETING, READY};
use capcmi::api::identity;
use capcmi::api::v1alpha1::InfraMachine;
use cmi_driver::Operation;
use serde_json::json;

use crate::support::by_hand::{message, says};
use crate::support::{ByHand, Cloud, Provider, World};

/// CTL-CR-01, CTL-CR-04: a back end may carry on with a call that timed out. The machine stays until then,
/// even after a successful DeleteMachine, an empty look-up or a restart.
#[tokio::test(start_paused = true)]
async fn a_vm_made_after_the_deletion_of_its_machine_is_deleted() -> Result<()> {
    let world = World::new("late").await?;
    let cloud = Cloud::new(&world);
    let entry = json!({"timeouts": {"createMachine": "1s"}, "createSettleTime": "45s"});
    let driver = cloud.drivers_with(entry, json!({}));
    let provider = Provider::new(driver);
    let mut replica = provider.start(&world).await?;
    world.cluster("one").await?;
    cloud.fail(json!([
        {"operation": "CreateMachine", "carryOutAfterMs": 30_000, "hang": "after", "count": 1},
    ]))?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    let unanswered = machine
        .until("a create that took too long", |machine| {
            says(machine, READY, "False", "DeadlineExceeded")
        })
        .await?;
    ensure!(identity::vm_state(&unanswered).unanswered().is_some());
    machine.delete().await?;
    let looking = |machine: &InfraMachine| says(machine, DELETING, "True", "CreateUnanswered");
    let waiting = machine.until("the wait for the create", looking).await?;
    let text = message(&waiting, DELETING);
    ensure!(text.contains("until 20"), "it does not say until when: {text}");
    ensure!(cloud.vms()?.is_empty(), "the create was not late");

    replica.kill();
    let _again = provider.start(&world).await?;
    machine.gone().await?;
    cloud.holds(0).await?;
    // Ordered, created, deleted: the earlier DeleteMachine found no VM and changed nothing.
    let changes = cloud.console()?.mutations()?;
    ensure!(changes == 3, "the cloud changed {changes} times");
    ensure!(cloud.count(Operation::CreateMachine, "m")? == 1);
    Ok(())
}

/// CTL-CR-00: the VM of the previous spec appears late and belongs to the machine.
#[tokio::test(start_paused = true)]
async fn a_spec_change_during_an_unanswered_create_makes_no_second_vm() -> Result<()> {
    let world = World::new("changed").await?;
    let cloud = Cloud::new(&world);
    let entry = json!({"timeouts": {"createMachine": "1s"}, "createSettleTime": "1h"});
    let driver = cloud.drivers_with(entry, json!({}));
    let _provider = Provider::new(driver).start(&world).await?;
    world.cluster("one").await?;
    cloud.fail(json!([
        {"operation": "CreateMachine", "carryOutAfterMs": 30_000, "hang": "after", "count": 1},
    ]))?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    machine
        .until("a create that took too long", |machine| {
            says(machine, READY, "False", "DeadlineExceeded")
        })
        .await?;
    machine
        .patch(json!({"spec": {"providerSpec": {"size": "large"}}}))
        .await?;
    machine
        .until("the wait for the create", |machine| {
            says(machine, READY, "False", "CreateUnanswered")
        })
        .await?;
    let found = machine
        .until("the VM of the spec before", |machine| {
            machine.spec.provider_id.is_some()
        })
        .await?;
    cloud.holds(1).await?;
    ensure!(cloud.count(Operation::CreateMachine, "m")? == 1);
    let applied = identity::applied_spec(&found);
    ensure!(
        applied.is_some_and(|applied| applied.0["size"] != "large"),
        "the VM is recorded as one of the changed spec"
    );
    Ok(())
}

/// CTL-CR-03, CTL-CR-08: a refused create needs no wait before the deletion. The provider has the driver
/// delete the VM that the create may have left.
#[tokio::test(start_paused = true)]
async fn an_answered_create_does_not_delay_the_deletion() -> Result<()> {
    let world = World::new("answered").await?;
    let cloud = Cloud::new(&world);
    let driver = cloud.drivers_with(json!({"createSettleTime": "1h"}), json!({}));
    let _provider = Provider::new(driver).start(&world).await?;
    world.cluster("one").await?;
    cloud.fail(json!([
        {"operation": "CreateMachine", "machine": "full", "code": "ResourceExhausted"},
        {"operation": "CreateMachine", "machine": "wrong*", "code": "InvalidArgument"},
        {"operation": "CreateMachine", "machine": "taken", "code": "AlreadyExists"},
        {"operation": "DeleteMachine", "machine": "wrong-to-the-end", "code": "InvalidArgument"},
    ]))?;
    for (name, reason, deletes) in [
        ("full", "ResourceExhausted", true),
        ("wrong", "InvalidArgument", true),
        ("wrong-to-the-end", "InvalidArgument", true),
        ("taken", "AlreadyExists", false),
    ] {
        let class = json!({"class": name});
        let machine = ByHand::new(&world, "one", name).infra("/spec/providerSpec/tags", class);
        let machine = machine.create().await?;
        machine
            .until("a create that was refused", |machine| {
                says(machine, READY, "False", reason)
            })
            .await?;
        machine.delete().await?;
        machine.gone().await.with_context(|| name.to_owned())?;
        let asked = cloud.count(Operation::DeleteMachine, name)?;
        ensure!((asked > 0) == deletes, "{name}: {asked} calls to delete it");
    }
    Ok(())
}
