//! Driver answers that can't be written immediately: another client writes the object, or the API server
//! refuses the write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use capcmi::api::conditions;
use capcmi::api::identity;
use capcmi::api::v1alpha1::InfraMachine;
use cmi_driver::Operation;
use fake_apiserver::Fate;
use management_cluster::eventually;
use serde_json::json;

use crate::support::by_hand::{event, says};
use crate::support::{ByHand, Cloud, DEADLINE, Provider, World};

/// CTL-02, CTL-CR-07: a failed call waits although a label was written during the call. Its error is
/// published although it is about an older version of the object.
#[tokio::test(start_paused = true)]
async fn a_label_written_during_a_call_neither_repeats_nor_hides_it() -> Result<()> {
    let world = World::new("conflict").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    cloud.fail(json!([
        {"operation": "CreateMachine", "code": "PermissionDenied", "latencyMs": 2000,
        "lastKnownState": "order-1"},
    ]))?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    create_begun(&cloud).await?;
    let label = json!({"metadata": {"labels": {"example.com/team": "a"}}});
    let written = machine.patch(label).await?;
    let reported = written.status.and_then(|status| status.last_operation);
    ensure!(reported.is_none(), "the label came too late: {reported:?}");
    machine
        .until("the failure", |machine| {
            says(machine, conditions::READY, "False", "PermissionDenied")
        })
        .await?;
    machine
        .patch(json!({"metadata": {"labels": {"example.com/team": "b"}}}))
        .await?;
    // Less than the wait that an operator may end.
    tokio::time::sleep(Duration::from_mins(5)).await;
    machine.delete().await?;
    machine.gone().await?;
    let creates = cloud.count(Operation::CreateMachine, "m")?;
    ensure!(creates == 1, "{creates} creates");
    Ok(())
}

/// The status of a failed create describes the spec that failed. The next try observes the new one.
#[tokio::test(start_paused = true)]
async fn a_spec_written_during_a_call_is_not_observed() -> Result<()> {
    let world = World::new("observed").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    cloud.fail(json!([
        {"operation": "CreateMachine", "code": "PermissionDenied", "latencyMs": 2000,
        "lastKnownState": "order-1"},
    ]))?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    create_begun(&cloud).await?;
    let changed = machine.respecify("size", json!("large")).await?;
    let wanted = changed.metadata.generation;
    let observed = |machine: &InfraMachine| machine.status.as_ref()?.observed_generation;
    let failed = machine
        .until("the failure", |machine| {
            says(machine, conditions::READY, "False", "PermissionDenied")
        })
        .await?;
    ensure!(observed(&failed) < wanted, "observed {:?}", observed(&failed));
    machine
        .until("the new spec", |machine| observed(machine) >= wanted)
        .await?;
    Ok(())
}

/// CTL-02, CTL-CR-07: nor does an API server that does not take the status: the failure is reported as soon
/// as it does, and not only after the whole wait.
#[tokio::test(start_paused = true)]
async fn a_failure_whose_status_is_refused_is_reported_without_a_call() -> Result<()> {
    let world = World::new("unpublished").await?;
    let cloud = Cloud::new(&world);
    let refuses = Arc::new(AtomicBool::new(false));
    let is_next = Arc::clone(&refuses);
    let _provider = Provider::new(cloud.drivers(json!({})))
        .requests_meet(move |call| {
            let is_status = call.is_write() && call.path.ends_with("/inframachines/m/status");
            if is_status && is_next.swap(false, Ordering::SeqCst) {
                Fate::Refused(503, "ServiceUnavailable")
            } else {
                Fate::Served
            }
        })
        .start(&world)
        .await?;
    world.cluster("one").await?;
    cloud.fail(json!([
        {"operation": "CreateMachine", "code": "PermissionDenied", "latencyMs": 2000,
        "lastKnownState": "order-1"},
    ]))?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    create_begun(&cloud).await?;
    refuses.store(true, Ordering::SeqCst);
    let reported = machine
        .until("the failure", |machine| {
            says(machine, conditions::READY, "False", "PermissionDenied")
        })
        .await?;
    ensure!(!refuses.load(Ordering::SeqCst), "the status was taken at once");
    ensure!(identity::last_known_state(&reported).is_some());
    let last = reported.status.and_then(|status| status.last_operation);
    ensure!(
        last.is_some_and(|last| last.attempts == 1 && last.next_retry_time.is_some()),
        "not the first try, or no next one"
    );
    event(&world, "m", "PermissionDenied").await?;
    tokio::time::sleep(Duration::from_mins(5)).await;
    machine.delete().await?;
    machine.gone().await?;
    let creates = cloud.count(Operation::CreateMachine, "m")?;
    ensure!(creates == 1, "{creates} creates");
    Ok(())
}

async fn create_begun(cloud: &Cloud) -> Result<()> {
    eventually(DEADLINE, "a create", async || {
        let begun = cloud.count(Operation::CreateMachine, "m")? > 0;
        ensure!(begun, "not yet");
        Ok(())
    })
    .await
}
