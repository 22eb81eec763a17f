//! Every machine code of every driver call that a machine needs, all at once: what the status says, when the
//! call is repeated, and that no VM is lost or doubled.
//!
//! GetVolumeIDs is no call of a machine's life: `volume_drain.rs` has it. Nor is the conversion of classes,
//! which a command calls: `migrate.rs`.

mod circuit_breaker;
mod conflict;
mod listing;
mod table;

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use capcmi::api::v1alpha1::InfraMachine;
use cmi_driver::{Code, Operation};
use cmi_simulated::{CallLine, Phase};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;
use management_cluster::eventually;
use serde_json::{Value, json};

use self::table::{Call, Case, Next};
pub use self::table::{condition, provisioned};
use crate::support::backing::{Backed, with_every_backing};
use crate::support::by_hand::{all_become, delete_all, patch_all};
use crate::support::{Backing, ByHand, Cloud, DEADLINE, Provider, World};

with_every_backing!(every_code_of_every_call_is_shown_waited_for_and_healed,);

/// Machines that come to their first failures together. All at once, core's patches of them conflict with one
/// another in an API server that falls behind, and are repeated until it does nothing else.
const AT_ONCE: usize = 20;

/// The name that the second driver is configured under; its VMs stay on their way
/// up, so they are asked after.
const SLOW: &str = "slow";

/// CTL-02, CTL-CR-01..CTL-CR-16, CTL-DE-02..CTL-DE-16, CTL-GS-02..CTL-GS-16, INI-12..INI-20, INI-24, UPD-01:
/// every code of every call. Of a plugin: CLI-CR-01..CLI-CR-16, CLI-DE-02..CLI-DE-16, CLI-GS-02..CLI-GS-16,
/// CLI-SD-02..CLI-SD-16, which is what CMI-25, CMI-29, CMI-31, CMI-39 and CMI-97 ask of a client.
async fn every_code_of_every_call_is_shown_waited_for_and_healed(backing: Backing) -> Result<()> {
    let world = World::new("codes").await?;
    let cloud = Cloud::new(&world);
    let (usual, slow) = two_drivers(backing, &world, &cloud).await?;
    let drivers = Cloud::several([usual.drivers.clone(), slow.drivers.clone()])?;
    let _provider = Provider::new(drivers).start(&world).await?;
    world.cluster("c").await?;
    let cases = Case::all();
    cloud.fail(json!(first_faults(&cases)))?;
    for some in cases.chunks(AT_ONCE) {
        come_to_their_first_failures(&world, some).await?;
    }

    cloud.fail(json!(cases.iter().map(|case| fault(*case)).collect::<Vec<_>>()))?;
    let label = json!({"spec": {"providerSpec": {"labels": {"a": "b"}}}});
    patch_all(&world, &names(&cases, |case| case.call == Call::Update), &label).await?;
    patch_all(
        &world,
        &names(&cases, |case| case.call == Call::LookUpAgain),
        &touch(1),
    )
    .await?;
    delete_all(&world, &names(&cases, is_deleted)).await?;
    all_become(
        &world,
        "all failures",
        &names(&cases, |_| true),
        |name, machine| named(&cases, name)?.is_shown(machine),
    )
    .await?;
    each_is_reported_once_and_repeated_in_time(&world, &cloud, &cases).await?;

    cloud.fail(json!([]))?;
    patch_all(
        &world,
        &names(&cases, |case| is_there(case) && case.next() != Next::Terminal),
        &touch(2),
    )
    .await?;
    patch_all(
        &world,
        &names(&cases, |case| case.next() == Next::Terminal),
        &label,
    )
    .await?;
    all_become(
        &world,
        "the end of all failures",
        &names(&cases, |_| true),
        |name, machine| {
            let case = named(&cases, name)?;
            match machine {
                _ if case.next() == Next::Vanished => Ok(()),
                None => ensure_that(is_deleted(case), "is gone"),
                Some(machine) => {
                    ensure_that(!is_deleted(case), "is still there")?;
                    let reason = machine
                        .status
                        .as_ref()
                        .and_then(|status| status.failure_reason.clone());
                    ensure!(reason.is_none(), "failureReason {reason:?} stays");
                    provisioned(machine)
                }
            }
        },
    )
    .await?;
    every_machine_has_one_vm(&world, &cloud, &cases).await
}

/// Makes the machines of these cases; those whose call comes later come up first.
async fn come_to_their_first_failures(world: &World, cases: &[Case]) -> Result<()> {
    let machines: Vec<_> = cases.iter().map(|case| machine(world, *case)).collect();
    ByHand::create_all(&machines).await?;
    all_become(
        world,
        "the first failures",
        &names(cases, |_| true),
        |name, machine| {
            let case = named(cases, name)?;
            match case.call {
                Call::LookUp | Call::Create | Call::Initialize => case.is_shown(machine),
                Call::LookUpAgain => lost_its_create(machine),
                Call::Recheck | Call::Update | Call::ShutDown | Call::Delete | Call::Confirm => {
                    provisioned(machine.context("is gone")?)
                }
            }
        },
    )
    .await
}

async fn each_is_reported_once_and_repeated_in_time(
    world: &World,
    cloud: &Cloud,
    cases: &[Case],
) -> Result<()> {
    // The clock: the third try of a transient failure comes after 12 s at least.
    eventually(DEADLINE, "third tries", async || {
        for case in [(Call::Create, Code::Unavailable), (Call::Recheck, Code::Unknown)] {
            let (call, code) = case;
            let tries = failures(cloud, &Case { call, code }.name(), call.operation(), code)?;
            ensure!(tries.len() > 2, "{} tries of {call:?}", tries.len());
        }
        Ok(())
    })
    .await?;
    // What is wrong stays wrong: a warning too many does not go away.
    eventually(DEADLINE, "one warning for each failure", async || {
        let events = warnings(world).await?;
        let objections: Vec<_> = cases
            .iter()
            .flat_map(|case| {
                let checks = [no_hot_loop(*case, cloud), one_warning(*case, &events)];
                let errors = checks.into_iter().filter_map(Result::err);
                errors.map(|error| format!("{}: {error:#}", case.name()))
            })
            .collect();
        ensure!(objections.is_empty(), "{}", objections.join("\n"));
        Ok(())
    })
    .await
}

async fn two_drivers(backing: Backing, world: &World, cloud: &Cloud) -> Result<(Backed, Backed)> {
    let limits = json!({"callsPerSecond": 1000, "burst": 1000, "maxConcurrentCalls": 64});
    let mut slow = limits.clone();
    slow["name"] = json!(SLOW);
    let usual = backing.with(world, cloud, limits, json!({})).await?;
    let slow = backing
        .with(world, cloud, slow, json!({"bootSeconds": 3600}))
        .await?;
    Ok((usual, slow))
}

fn machine(world: &World, case: Case) -> ByHand {
    let machine = ByHand::new(world, "c", case.name());
    // Something to initialize: a VM that says that it is initialized is believed,
    // whatever InitializeMachine said.
    let machine = if case.call == Call::Initialize {
        machine.infra("/spec/providerSpec/sourceDestCheck", json!(false))
    } else {
        machine
    };
    match (case.call, case.code) {
        (Call::Recheck, _) => machine.infra("/spec/driver", json!(SLOW)),
        (Call::ShutDown, _) => machine.infra("/spec/shutdownTimeoutSeconds", json!(3600)),
        // A class of its own: exhaustion holds back the others of its class.
        (Call::Create | Call::Initialize, Code::ResourceExhausted) => {
            machine.infra("/spec/providerSpec/tags/class", json!(case.name()))
        }
        _ => machine,
    }
}

fn fault(case: Case) -> Value {
    let mut fault = json!({
        "operation": case.call.operation(), "machine": format!("{}*", case.name()),
        "code": case.code.name(), "message": case.message(),
    });
    if let Next::Asked(seconds) = case.next() {
        fault["retryAfterMs"] = json!(seconds * 1000);
    }
    fault
}

/// Those of the calls that come before a machine is up; those that need one have to wait until it is.
fn first_faults(cases: &[Case]) -> Vec<Value> {
    let early = |case: &&Case| matches!(case.call, Call::LookUp | Call::Create | Call::Initialize);
    let lost = json!({
        "operation": "CreateMachine", "machine": "gi-*", "loseResponse": "Unavailable",
        "retryAfterMs": 3_600_000,
    });
    let faults = cases.iter().filter(early).map(|case| fault(*case));
    faults.chain([lost]).collect()
}

fn lost_its_create(machine: Option<&InfraMachine>) -> Result<()> {
    let status = machine.and_then(|machine| machine.status.as_ref());
    let last = status.and_then(|status| status.last_operation.as_ref());
    let last = last.context("no last operation")?;
    ensure!(
        last.operation.as_deref() == Some("CreateMachine"),
        "last operation {last:?}"
    );
    Ok(())
}

fn names(cases: &[Case], which: impl Fn(Case) -> bool) -> Vec<String> {
    let wanted = cases.iter().filter(|case| which(**case));
    wanted.map(|case| case.name()).collect()
}

fn named(cases: &[Case], name: &str) -> Result<Case> {
    let found = cases.iter().find(|case| case.name() == name);
    found.copied().with_context(|| format!("no case {name}"))
}

fn is_deleted(case: Case) -> bool {
    matches!(case.call, Call::ShutDown | Call::Delete | Call::Confirm)
}

fn is_there(case: Case) -> bool {
    case.next() != Next::Gone
}

fn touch(time: u32) -> Value {
    json!({"metadata": {"annotations": {"example.com/touched": time.to_string()}}})
}

fn ensure_that(holds: bool, otherwise: &'static str) -> Result<()> {
    ensure!(holds, otherwise);
    Ok(())
}

/// When a call on a machine failed with this code.
fn failures(cloud: &Cloud, machine: &str, operation: Operation, code: Code) -> Result<Vec<CallLine>> {
    let mut calls = cloud.calls()?;
    calls.retain(|call| {
        call.machine == machine
            && call.phase == Phase::Ended
            && call.operation == operation
            && call.code.as_deref() == Some(code.name())
    });
    Ok(calls)
}

/// All calls on a machine, for a message: what led to a repeat is seen nowhere else.
fn calls(cloud: &Cloud, machine: &str) -> Result<String> {
    let mut calls = cloud.calls()?;
    calls.retain(|call| call.machine == machine);
    let lines = calls.iter().map(|call| {
        let end = call.code.as_deref().unwrap_or("begins");
        format!("{} {}: {end}", call.at.as_millis(), call.operation.name())
    });
    Ok(lines.collect::<Vec<_>>().join(", "))
}

/// Repeats come not before the back-off is over, and where there is a long wait or none, not at all.
fn no_hot_loop(case: Case, cloud: &Cloud) -> Result<()> {
    const TIMER_SLACK_MS: u64 = 50;
    let (operation, code) = case.failure();
    let tries = failures(cloud, &case.name(), operation, code)?;
    match case.next() {
        Next::Backoff => {
            for (pair, attempt) in tries.windows(2).zip(0u32..) {
                let pause = pair[1].at.as_millis() - pair[0].at.as_millis();
                let least = (4000 << attempt.min(6)) - TIMER_SLACK_MS;
                ensure!(
                    pause >= least,
                    "repeated after {pause} ms, not {least}, by these calls: {}",
                    calls(cloud, &case.name())?
                );
            }
        }
        Next::Long | Next::NotSupported | Next::Terminal => {
            ensure!(tries.len() == 1, "{} tries", tries.len());
        }
        _ => {}
    }
    Ok(())
}

/// The warnings about each machine: action and reason.
async fn warnings(world: &World) -> Result<BTreeMap<String, Vec<(String, String)>>> {
    let events = Api::<Event>::namespaced(world.admin.clone(), &world.namespace);
    let mut found = BTreeMap::<_, Vec<_>>::new();
    for event in events.list(&ListParams::default()).await?.items {
        let regarding = event.regarding.unwrap_or_default();
        if event.type_.as_deref() == Some("Warning") && regarding.kind.as_deref() == Some("InfraMachine") {
            let what = (event.action.unwrap_or_default(), event.reason.unwrap_or_default());
            found
                .entry(regarding.name.unwrap_or_default())
                .or_default()
                .push(what);
        }
    }
    Ok(found)
}

/// A failure is reported once, however often it is repeated.
fn one_warning(case: Case, all: &BTreeMap<String, Vec<(String, String)>>) -> Result<()> {
    let (operation, code) = case.failure();
    let warning = |operation: &str, reason: &str| (operation.to_owned(), reason.to_owned());
    let mut expected = match case.next() {
        Next::Backoff | Next::Long | Next::NotSupported | Next::Asked(_) | Next::Terminal => {
            vec![warning(operation.name(), code.name())]
        }
        Next::Vanished => vec![warning(operation.name(), "VirtualMachineVanished")],
        // An outage is reported of the InfraCluster, and when it lasts.
        Next::Kept(true) if !matches!(case.code, Code::Unimplemented | Code::Uninitialized) => {
            vec![warning(operation.name(), code.name())]
        }
        Next::Kept(_) | Next::Provisioned | Next::Gone | Next::Deleting => Vec::new(),
    };
    if case.call == Call::LookUpAgain {
        expected.insert(0, warning("CreateMachine", "Unavailable"));
    }
    let mut found = all.get(&case.name()).cloned().unwrap_or_default();
    found.sort();
    expected.sort();
    ensure!(found == expected, "warnings {found:?}, not {expected:?}");
    Ok(())
}

/// Nothing was lost and nothing doubled (CTL-CR-00).
async fn every_machine_has_one_vm(world: &World, cloud: &Cloud, cases: &[Case]) -> Result<()> {
    let vms = cloud.vms()?;
    all_become(
        world,
        "one VM for each machine",
        &names(cases, |_| true),
        |name, machine| {
            let ids: Vec<_> = vms
                .iter()
                .filter(|vm| vm.name == name)
                .map(cmi_simulated::Vm::provider_id)
                .collect();
            let id = machine.and_then(|machine| machine.spec.provider_id.clone());
            ensure!(
                ids == id.iter().cloned().collect::<Vec<_>>(),
                "VMs {ids:?}, providerID {id:?}"
            );
            Ok(())
        },
    )
    .await
}
