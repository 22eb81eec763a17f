//! Drivers that can do less, later, or only after several tries.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use capcmi::api::conditions;
use capcmi::api::identity;
use capcmi::api::v1alpha1::{InfraMachine, LastOperation, OperationState, OperationType};
use capcmi::api::wall_clock;
use capcmi::telemetry::metrics::MachinePhase;
use cmi_driver::Operation;
use cmi_simulated::{CallLine, Phase, PlantedVm};
use serde_json::json;

use crate::support::by_hand::{message, says};
use crate::support::{ByHand, Cloud, Provider, Stage, World};

/// INI-11, UPD-02, CTL-GS-12, CTL-CR-00: every optional call may be missing, or all of them, as in a CMI
/// plugin with create and delete alone.
#[tokio::test(start_paused = true)]
async fn every_optional_call_may_be_missing() -> Result<()> {
    let world = World::new("minimal").await?;
    let optional = Operation::ALL.into_iter().filter(|call| !call.is_required());
    let optional: Vec<_> = optional.map(Operation::name).collect();
    let cases = [
        ("no-status", json!(["GetMachineStatus"])),
        ("no-initialize", json!(["InitializeMachine"])),
        ("no-list", json!(["ListMachines"])),
        ("no-shut-down", json!(["ShutDownMachine"])),
        ("no-update", json!(["UpdateMachine"])),
        ("no-look", json!(["GetMachineStatus", "ListMachines"])),
        ("create-and-delete", json!(optional)),
    ];
    let clouds: Vec<_> = cases
        .iter()
        .map(|(name, disabled)| (*name, Cloud::named(&world, name), disabled))
        .collect();
    let drivers = clouds.iter().map(|(name, cloud, disabled)| {
        cloud.drivers_with(json!({"name": name}), json!({"disabledCalls": disabled}))
    });
    let file = Cloud::several(drivers)?;
    let _provider = Provider::new(file).start(&world).await?;
    world.cluster("one").await?;
    let mut machines = Vec::new();
    for (name, ..) in &clouds {
        // Where the driver can, this spec takes an initialization, and the deletion a shut-down.
        let machine = ByHand::new(&world, "one", *name)
            .infra("/spec/driver", json!(name))
            .infra("/spec/providerSpec/sourceDestCheck", json!(false))
            .infra("/spec/shutdownTimeoutSeconds", json!(2));
        machines.push(machine.create().await?);
    }
    for (machine, (name, cloud, _)) in machines.iter().zip(&clouds) {
        machine.provisioned().await.with_context(|| (*name).to_owned())?;
        let vms = cloud.holds(1).await?;
        ensure!(!vms[0].source_dest_check, "{name}: not initialized");
        machine.delete().await?;
    }
    for (machine, (name, cloud, disabled)) in machines.iter().zip(&clouds) {
        machine.gone().await.with_context(|| (*name).to_owned())?;
        cloud.holds(0).await?;
        for operation in Operation::ALL {
            let is_disabled = disabled
                .as_array()
                .is_some_and(|all| all.contains(&json!(operation.name())));
            ensure!(
                !is_disabled || cloud.count(operation, name)? == 0,
                "{name}: {operation} was called"
            );
        }
        ensure!(cloud.count(Operation::CreateMachine, name)? == 1, "{name}");
    }
    Ok(())
}

/// CTL-GS-12, CTL-CR-04: a create whose answer was lost is found in the list, and not repeated; and the VM of
/// another that has the name is neither taken over nor asked for again.
#[tokio::test(start_paused = true)]
async fn a_driver_without_look_up_lists_before_a_create() -> Result<()> {
    let world = World::new("lists").await?;
    let cloud = Cloud::new(&world);
    let cannot_look = json!({"disabledCalls": ["GetMachineStatus"]});
    let drivers = cloud.drivers(cannot_look);
    let _provider = Provider::new(drivers).start(&world).await?;
    let stage = Stage::set(&world).await?;
    let planted = PlantedVm::new(&stage.cluster_id, "taken", "another");
    let planted = cloud
        .console()?
        .plant(planted)
        .map_err(|status| anyhow!("planting a VM: {status}"))?;
    cloud.fail(json!([
        {"operation": "CreateMachine", "loseResponse": "DeadlineExceeded", "count": 1, "retryAfterMs": 100},
    ]))?;
    let machine = stage.machine("m").create().await?.provisioned().await?;
    let made: Vec<_> = cloud.vms()?.into_iter().filter(|vm| vm.name == "m").collect();
    ensure!(made.len() == 1 && machine.spec.provider_id == Some(made[0].provider_id()));
    ensure!(cloud.count(Operation::CreateMachine, "m")? == 1);

    let taken = stage.machine("taken").create().await?;
    let reported = taken
        .until("a name that is taken", |machine| {
            says(machine, conditions::READY, "False", "AlreadyExists")
        })
        .await?;
    let reported = message(&reported, conditions::READY);
    ensure!(reported.contains(&planted), "{reported}");
    ensure!(cloud.count(Operation::CreateMachine, "taken")? == 0);
    taken.delete().await?;
    taken.gone().await?;
    cloud.holds(2).await?;
    Ok(())
}

/// INI-03, INI-12..INI-17, INI-19: a VM whose initialization fails is neither created again nor handed over.
/// It is initialized until that succeeds.
#[tokio::test(start_paused = true)]
async fn an_initialization_that_fails_is_repeated_until_it_works() -> Result<()> {
    let world = World::new("initialize").await?;
    let cloud = Cloud::new(&world);
    let drivers = cloud.drivers(json!({}));
    let _provider = Provider::new(drivers).start(&world).await?;
    world.cluster("one").await?;
    let fault = |machine: &str| {
        json!({"operation": "InitializeMachine", "machine": machine, "code": "Uninitialized",
        "message": "the check can't be switched", "retryAfterMs": 200})
    };
    let mut three_times = fault("three");
    three_times["count"] = json!(3);
    cloud.fail(json!([three_times, fault("stuck")]))?;
    let uninitialized =
        |name| ByHand::new(&world, "one", name).infra("/spec/providerSpec/sourceDestCheck", json!(false));
    let three = uninitialized("three").create().await?;
    let stuck = uninitialized("stuck").create().await?;
    three.provisioned().await?;
    ensure!(cloud.count(Operation::InitializeMachine, "three")? == 4);
    ensure!(cloud.count(Operation::CreateMachine, "three")? == 1);

    let reported = stuck
        .until("a failed initialization", |machine| {
            let last = last_operation(machine);
            last.is_some_and(|last| {
                last.type_ == OperationType::Create
                    && last.state == OperationState::Failed
                    && last.code.as_deref() == Some("Uninitialized")
                    && last.attempts >= 2
            })
        })
        .await?;
    let last = last_operation(&reported).context("no last operation")?;
    let text = last.message.as_deref().unwrap_or_default();
    ensure!(text.starts_with("InstanceInitialization"), "{text}");
    ensure!(last.next_retry_time.is_some(), "no next try");
    ensure!(says(
        &reported,
        conditions::VIRTUAL_MACHINE_CREATED,
        "True",
        "Created"
    ));
    ensure!(says(
        &reported,
        conditions::VIRTUAL_MACHINE_INITIALIZED,
        "False",
        "Uninitialized"
    ));
    ensure!(says(&reported, conditions::READY, "False", "Uninitialized"));
    ensure!(
        capcmi::machine::phase(&reported) == MachinePhase::Pending,
        "it was handed over"
    );
    ensure!(
        reported.spec.provider_id.is_some(),
        "the id has to be kept from the first answer"
    );
    cloud.fail(json!([]))?;
    stuck.provisioned().await?;
    ensure!(cloud.count(Operation::CreateMachine, "stuck")? == 1);
    cloud.holds(2).await?;
    Ok(())
}

/// INI-24: a VM that was never initialized can be deleted.
#[tokio::test(start_paused = true)]
async fn a_machine_that_is_not_initialized_can_go() -> Result<()> {
    let world = World::new("uninitialized").await?;
    let cloud = Cloud::new(&world);
    let drivers = cloud.drivers(json!({}));
    let _provider = Provider::new(drivers).start(&world).await?;
    world.cluster("one").await?;
    cloud.fail(json!([{"operation": "InitializeMachine", "code": "Uninitialized"}]))?;
    let machine = ByHand::new(&world, "one", "m")
        .infra("/spec/providerSpec/sourceDestCheck", json!(false))
        .create()
        .await?;
    machine
        .until("a failed initialization", |machine| {
            says(machine, conditions::READY, "False", "Uninitialized")
        })
        .await?;
    machine.delete().await?;
    machine.gone().await?;
    cloud.holds(0).await?;
    Ok(())
}

/// CMI-127: OK of a shut-down may mean that the guest will stop. Its VM is deleted when it has.
#[tokio::test(start_paused = true)]
async fn a_guest_that_accepted_to_stop_gets_its_time() -> Result<()> {
    const STOPS_IN: u64 = 3;
    let world = World::new("accepted").await?;
    let cloud = Cloud::new(&world);
    let slow = json!({"acceptsShutDown": true, "shutDownSeconds": STOPS_IN});
    let drivers = cloud.drivers(slow);
    let _provider = Provider::new(drivers).start(&world).await?;
    world.cluster("one").await?;
    let machine = ByHand::new(&world, "one", "m").infra("/spec/shutdownTimeoutSeconds", json!(60));
    let machine = machine.create().await?;
    machine.provisioned().await?;
    machine.delete().await?;
    machine
        .until("a guest that is being shut down", |machine| {
            says(machine, conditions::DELETING, "True", "ShuttingDown")
        })
        .await?;
    machine.gone().await?;
    cloud.holds(0).await?;
    let calls = cloud.calls()?;
    let first = |operation| calls.iter().find(|line| line.operation == operation);
    let asked = first(Operation::ShutDownMachine).context("the guest was not asked to stop")?;
    let deleted = first(Operation::DeleteMachine).context("the VM was not deleted")?;
    let had = deleted.at.since(asked.at);
    ensure!(had >= Duration::from_secs(STOPS_IN), "the guest had {had:?}");
    Ok(())
}

/// CMI-127: the guest's time runs from when the driver accepted to stop it, and not from the deletion of its
/// object, which may be long ago; where the driver does not tell whether it runs, it gets all of that time.
#[tokio::test(start_paused = true)]
async fn a_guest_gets_its_time_after_an_outage_of_the_provider() -> Result<()> {
    const GRACE: u64 = 6;
    const STOPS_IN: u64 = 3;
    let world = World::new("grace").await?;
    let (seen, blind) = (Cloud::named(&world, "seen"), Cloud::named(&world, "blind"));
    let slow = |disabled: serde_json::Value| {
        json!({"acceptsShutDown": true, "shutDownSeconds": STOPS_IN,
        "disabledCalls": disabled})
    };
    let looks = seen.drivers_with(json!({"name": "seen"}), slow(json!([])));
    let cannot_look = blind.drivers_with(json!({"name": "blind"}), slow(json!(["GetMachineStatus"])));
    let file = Cloud::several([looks, cannot_look])?;
    let provider = Provider::new(file);
    let mut replica = provider.start(&world).await?;
    world.cluster("one").await?;
    let mut machines = Vec::new();
    for name in ["seen", "blind"] {
        let machine = ByHand::new(&world, "one", name)
            .controlled_by_the_case()
            .infra("/spec/driver", json!(name))
            .infra("/spec/shutdownTimeoutSeconds", json!(GRACE));
        let machine = machine.create().await?;
        machine.provisioned().await?;
        machines.push(machine);
    }
    replica.kill();
    for machine in &machines {
        machine.delete().await?;
        machine
            .until("a deletion that is older than the guest's time", |machine| {
                let deleted = machine.metadata.deletion_timestamp.as_ref();
                deleted.is_some_and(|deleted| {
                    wall_clock::now().duration_since(deleted.0).as_secs() > GRACE.cast_signed()
                })
            })
            .await?;
    }
    let _again = provider.start(&world).await?;
    for (machine, cloud, least) in [(&machines[0], &seen, STOPS_IN), (&machines[1], &blind, GRACE)] {
        machine.gone().await?;
        cloud.holds(0).await?;
        let calls = cloud.calls()?;
        let first = |operation| calls.iter().find(|line| line.operation == operation);
        let asked = first(Operation::ShutDownMachine).context("the guest was not asked to stop")?;
        let deleted = first(Operation::DeleteMachine).context("the VM was not deleted")?;
        let had = deleted.at.since(asked.at);
        // Less the granularity of the clocks.
        ensure!(
            had + Duration::from_millis(50) >= Duration::from_secs(least),
            "{}: the guest had {had:?}",
            machine.name
        );
    }
    Ok(())
}

/// INI-08, CTL-CR-04: a cloud that shows its VMs late gets no second one, though the answer to the first
/// create was lost and the wait is shown; and a deletion is confirmed only after the consistency window.
#[tokio::test(start_paused = true)]
async fn an_eventually_consistent_cloud_gets_one_vm_and_keeps_none() -> Result<()> {
    // Longer than the first back-off, so that the look-up misses the VM.
    const HIDDEN: u64 = 8;
    const WINDOW: u64 = 10;
    let world = World::new("window").await?;
    let cloud = Cloud::new(&world);
    let late = json!({"consistencyWindowSeconds": WINDOW, "hideNewSeconds": HIDDEN});
    let drivers = cloud.drivers(late);
    let _provider = Provider::new(drivers).start(&world).await?;
    world.cluster("one").await?;
    cloud.fail(json!([
        {"operation": "CreateMachine", "loseResponse": "DeadlineExceeded", "count": 1},
    ]))?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    machine
        .until("an absence that is not believed yet", |machine| {
            says(machine, conditions::READY, "False", "CreateUnanswered")
        })
        .await?;
    let provisioned = machine.provisioned().await?;
    let vms = cloud.holds(1).await?;
    ensure!(provisioned.spec.provider_id == Some(vms[0].provider_id()));
    ensure!(
        cloud.count(Operation::CreateMachine, "m")? == 1
            && cloud.count(Operation::GetMachineStatus, "m")? > 2,
        "the VM is hidden from the look-up at first; no create may follow that answer before it can't be \
            behind"
    );
    machine.delete().await?;
    machine
        .until("a deletion that is not believed yet", |machine| {
            says(machine, conditions::DELETING, "True", "ConfirmingDeletion")
        })
        .await?;
    machine.gone().await?;
    cloud.holds(0).await?;
    let held = held(&cloud.calls()?)?;
    // Less the granularity of the clocks.
    ensure!(
        held + Duration::from_millis(50) >= Duration::from_secs(WINDOW),
        "held {held:?}"
    );
    Ok(())
}

/// CTL-01, CTL-03, CMI-86, CMI-104: the state in a driver's answer or error is sent with the next call.
#[tokio::test(start_paused = true)]
async fn the_last_known_state_is_kept_and_handed_back() -> Result<()> {
    let world = World::new("state").await?;
    let cloud = Cloud::new(&world);
    let drivers = cloud.drivers(json!({}));
    let _provider = Provider::new(drivers).start(&world).await?;
    world.cluster("one").await?;
    cloud.fail(json!([
        {"operation": "CreateMachine", "code": "Unavailable", "lastKnownState": "order-17", "count": 1,
        "retryAfterMs": 100},
        {"operation": "DeleteMachine", "code": "Unavailable", "lastKnownState": "order-18", "count": 1,
        "retryAfterMs": 100},
    ]))?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    let provisioned = machine.provisioned().await?;
    let kept = identity::last_known_state(&provisioned);
    ensure!(kept.is_some_and(|kept| kept.as_bytes() == b"order-17"));
    machine.delete().await?;
    machine.gone().await?;
    let handed_over: Vec<_> = cloud
        .calls_for("m")?
        .into_iter()
        .filter(|call| {
            matches!(
                call.operation,
                Operation::CreateMachine | Operation::DeleteMachine
            )
        })
        .map(|call| call.last_known_state)
        .collect();
    let expected = [None, Some("order-17"), Some("order-17"), Some("order-18")];
    let seen: Vec<_> = handed_over.iter().map(Option::as_deref).collect();
    ensure!(seen.starts_with(&expected), "{seen:?}");
    // The first create was never answered: the VM that it may have made is deleted as well.
    let again = &seen[expected.len()..];
    ensure!(again.iter().all(|state| *state == Some("order-18")), "{seen:?}");

    cloud.fail(json!([
        {"operation": "CreateMachine", "loseResponse": "Uninitialized", "lastKnownState": "order-19",
        "count": 1},
    ]))?;
    let machine = ByHand::new(&world, "one", "n").create().await?;
    let provisioned = machine.provisioned().await?;
    let kept = identity::last_known_state(&provisioned);
    ensure!(kept.is_some_and(|kept| kept.as_bytes() == b"order-19"));
    let calls = cloud.calls_for("n")?;
    let initialization = calls
        .iter()
        .find(|call| call.operation == Operation::InitializeMachine)
        .context("never initialized")?;
    let handed_over = initialization.last_known_state.as_deref();
    ensure!(handed_over == Some("order-19"), "{handed_over:?}");
    Ok(())
}

/// CTL-CR-03: the failure domain that a Machine asks for is where its VM is; one that
/// can't be had is said clearly.
#[tokio::test(start_paused = true)]
async fn a_machines_failure_domain_is_where_its_vm_is() -> Result<()> {
    let world = World::new("zones").await?;
    let (zones, none) = (Cloud::named(&world, "zones"), Cloud::named(&world, "none"));
    let located = zones.drivers_with(json!({"name": "zones"}), json!({}));
    let zoneless = none.drivers_with(json!({"name": "none"}), json!({"zones": []}));
    let file = Cloud::several([located, zoneless])?;
    let _provider = Provider::new(file).start(&world).await?;
    world.cluster("one").await?;
    let asking = |driver: &str, name: &str, zone: &str| {
        ByHand::new(&world, "one", name)
            .infra("/spec/driver", json!(driver))
            .machine("/spec/failureDomain", json!(zone))
    };
    let placed = asking("zones", "placed", "zone-b").create().await?;
    let unknown = asking("zones", "unknown", "moon").create().await?;
    let without = asking("none", "without", "zone-b").create().await?;
    let status = placed.provisioned().await?.status.unwrap_or_default();
    ensure!(status.failure_domain.as_deref() == Some("zone-b"));
    ensure!(zones.holds(1).await?[0].zone.as_deref() == Some("zone-b"));
    for (machine, expected) in [
        (&unknown, "moon"),
        (&without, "the driver declares no failure domains"),
    ] {
        let reported = machine
            .until("a refused machine", |machine| {
                says(machine, conditions::READY, "False", "InvalidArgument")
            })
            .await?;
        let reported = message(&reported, conditions::READY);
        ensure!(reported.contains(expected), "{reported}");
        machine.delete().await?;
        machine.gone().await?;
    }
    let free = ByHand::new(&world, "one", "free").infra("/spec/driver", json!("none"));
    free.create().await?.provisioned().await?;
    none.holds(1).await?;
    Ok(())
}

/// CMI-37, CTL-GS-12: a driver that offers the look-up, and does not have it.
#[tokio::test(start_paused = true)]
async fn a_look_up_that_is_not_offered_after_all_is_made_once() -> Result<()> {
    let world = World::new("not-offered").await?;
    let cloud = Cloud::new(&world);
    let drivers = cloud.drivers(json!({}));
    let _provider = Provider::new(drivers).start(&world).await?;
    world.cluster("one").await?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    machine.provisioned().await?;
    let before = cloud.count(Operation::GetMachineStatus, "m")?;
    cloud.fail(json!([{"operation": "GetMachineStatus", "code": "Unimplemented"}]))?;
    let vm = cloud.holds(1).await?.remove(0);
    cloud.console()?.vanish(vm.id)?;
    machine
        .until("a vanished VM", |machine| {
            says(machine, conditions::READY, "False", "VirtualMachineVanished")
        })
        .await?;
    let asked = cloud.count(Operation::GetMachineStatus, "m")? - before;
    ensure!(asked == 1, "asked {asked} times for what is not offered");
    Ok(())
}

/// Returns the time between the first and the last NOT_FOUND after the delete.
fn held(calls: &[CallLine]) -> Result<Duration> {
    let deleted = calls
        .iter()
        .position(|line| line.operation == Operation::DeleteMachine)
        .context("no deletion")?;
    let absent: Vec<_> = calls[deleted..]
        .iter()
        .filter(|line| line.operation == Operation::GetMachineStatus && line.phase == Phase::Ended)
        .filter(|line| line.code.as_deref() == Some("NotFound"))
        .map(|line| line.at)
        .collect();
    let (first, last) = (
        absent.first().context("never absent")?,
        absent.last().context("never absent")?,
    );
    Ok(last.since(*first))
}

fn last_operation(machine: &InfraMachine) -> Option<&LastOperation> {
    machine.status.as_ref()?.last_operation.as_ref()
}
