//! Creates whose answer was lost: a back end may carry them out after the caller has gone.

use anyhow::{Context, Result, ensure};
use capcmi::api::annotations;
use capcmi::api::conditions::{DELETING, READY};
use capcmi::api::v1alpha1::InfraMachine;
use cmi_driver::Operation;
use kube::ResourceExt;
use serde_json::json;

use crate::support::backing::with_every_backing;
use crate::support::by_hand::{message, says};
use crate::support::{Backing, ByHand, Cloud, Plugin, Provider, World};

with_every_backing!(
    a_vm_that_is_made_after_its_machine_was_deleted_is_deleted_as_well,
    a_spec_that_changes_after_a_create_that_may_still_be_carried_out_makes_no_second_vm,
    a_create_that_was_answered_holds_no_deletion_up,
);

/// CTL-CR-01, CTL-CR-04: a call that was given up need not stop the back end. Neither a DeleteMachine that
/// was answered OK, nor a look-up that saw nothing, nor a restart lets the machine go before.
async fn a_vm_that_is_made_after_its_machine_was_deleted_is_deleted_as_well(backing: Backing) -> Result<()> {
    let world = World::new("late").await?;
    let cloud = Cloud::new(&world);
    let entry = json!({"timeouts": {"createMachine": "1s"}, "createSettleTime": "45s"});
    let driver = backing.with(&world, &cloud, entry, json!({})).await?;
    let provider = Provider::new(&driver.drivers);
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
    ensure!(
        unanswered
            .annotations()
            .contains_key(annotations::CREATE_ISSUED_AT)
    );
    machine.delete().await?;
    let looking = |machine: &InfraMachine| says(machine, DELETING, "True", "CreateUnanswered");
    let waiting = machine.until("the wait for the create", looking).await?;
    let text = message(&waiting, DELETING);
    ensure!(text.contains("until 20"), "it does not say until when: {text}");
    ensure!(cloud.vms()?.is_empty(), "the create was not late");

    replica.process.kill();
    let _again = provider.named("again").start(&world).await?;
    machine.gone().await?;
    cloud.holds(0).await?;
    // The VM was ordered, came later, and was deleted: a deletion of what is not there changes nothing.
    let changes = cloud.console()?.mutations()?;
    ensure!(changes == 3, "the cloud changed {changes} times");
    ensure!(cloud.count(Operation::CreateMachine, "m")? == 1);
    Ok(())
}

/// CTL-CR-00: the VM of the spec before comes late, and is the machine's own.
async fn a_spec_that_changes_after_a_create_that_may_still_be_carried_out_makes_no_second_vm(
    backing: Backing,
) -> Result<()> {
    let world = World::new("changed").await?;
    let cloud = Cloud::new(&world);
    let entry = json!({"timeouts": {"createMachine": "1s"}, "createSettleTime": "1h"});
    let driver = backing.with(&world, &cloud, entry, json!({})).await?;
    let _provider = Provider::new(&driver.drivers).start(&world).await?;
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
    let applied = found.annotations().get(annotations::APPLIED_PROVIDER_SPEC);
    ensure!(
        applied.is_some_and(|applied| !applied.contains("large")),
        "the VM is noted as one of the changed spec: {applied:?}"
    );
    Ok(())
}

/// CTL-CR-03, CTL-CR-08: a machine that waits for a quota does not wait for a create as well, and what was
/// made before a refusal goes.
async fn a_create_that_was_answered_holds_no_deletion_up(backing: Backing) -> Result<()> {
    let world = World::new("answered").await?;
    let cloud = Cloud::new(&world);
    let driver = backing
        .with(&world, &cloud, json!({"createSettleTime": "1h"}), json!({}))
        .await?;
    let _provider = Provider::new(&driver.drivers).start(&world).await?;
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

/// CTL-CR-14: connection refused: no VM can be, and what the plugin thinks of the spec when
/// it is back decides alone.
#[tokio::test]
async fn a_create_that_never_reached_the_plugin_makes_no_vm_possible() -> Result<()> {
    let world = World::new("unsent").await?;
    let cloud = Cloud::new(&world);
    let config = cloud.config(json!({"disabledCalls": ["GetMachineStatus", "ListMachines"]}));
    let mut plugin = Plugin::absent(&world, "simulated", &config)?;
    plugin.listen(&world).await?;
    let _provider = Provider::new(plugin.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    ByHand::new(&world, "one", "first")
        .create()
        .await?
        .provisioned()
        .await?;
    plugin.kill();
    let machine = ByHand::new(&world, "one", "m").create().await?;
    let unsent = machine
        .until("a create that was not sent", |machine| {
            says(machine, READY, "False", "Unavailable")
        })
        .await?;
    let noted = unsent
        .annotations()
        .get(annotations::VM_EXISTENCE)
        .map(String::as_str);
    ensure!(noted != Some("may-exist"), "{noted:?}");
    ensure!(!unsent.annotations().contains_key(annotations::CREATE_ISSUED_AT));
    cloud.fail(json!([
        {"operation": "CreateMachine", "machine": "m", "code": "InvalidArgument"},
        {"operation": "DeleteMachine", "machine": "m", "code": "InvalidArgument"},
    ]))?;
    plugin.listen(&world).await?;
    machine
        .patch(json!({"metadata": {"annotations": {"example.com/retry": "1"}}}))
        .await?;
    machine
        .until("a refused spec", |machine| {
            says(machine, READY, "False", "InvalidArgument")
        })
        .await?;
    machine.delete().await?;
    machine.gone().await?;
    Ok(())
}
