//! Every machine code of every driver call that a machine needs: the status, the exact time of each repeat,
//! and that no VM is lost or doubled.
//!
//! `crates/cmi-grpc` proves that each code arrives from a plugin as it was said. `volume_drain.rs` has
//! GetVolumeIDs. The conversion of classes is the call of a command.

mod circuit_breaker;
mod conflict;
mod listing;
mod table;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capcmi::api::v1alpha1::InfraMachine;
use cmi_driver::Code;
use cmi_simulated::{CallLine, Phase};
use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use self::table::{Call, Case, Next};
use crate::support::by_hand::{infra_machines, patch_all};
use crate::support::checks::provisioned;
use crate::support::provider::Replica;
use crate::support::{ByHand, Cloud, Provider, Stage, World};

/// How long the failures last: an exponential back-off comes to its longest wait, and a long wait comes
/// twice.
const OUTAGE: Duration = Duration::from_mins(21);
/// Nothing that is not a wait of the provider takes longer.
const SETTLED_WITHIN: Duration = Duration::from_mins(1);
/// The slack of a wait: a reconcile that comes a millisecond early is repeated 100 ms later.
const REQUEUE: Duration = Duration::from_millis(110);
/// The time for late creates of drivers without a look-up, which are asked for their list as long as that
/// lasts.
const CREATE_SETTLE_TIME: Duration = Duration::from_mins(25);

/// CTL-02, CTL-CR-01..CTL-CR-16, CLI-CR-01..CLI-CR-16, CMI-25, CMI-29, CMI-31, CMI-35, CMI-39, CMI-97
#[tokio::test(start_paused = true)]
async fn every_code_of_create_follows_the_table() -> Result<()> {
    every_code_leads_to_its_row(Call::Create, None).await
}

/// CTL-02, CTL-CR-01..CTL-CR-16: the driver knows when its outage or limit ends.
#[tokio::test(start_paused = true)]
async fn a_wait_that_the_driver_asks_for_is_kept() -> Result<()> {
    every_code_leads_to_its_row(Call::Create, Some(20)).await
}

/// INI-12..INI-20, INI-24
#[tokio::test(start_paused = true)]
async fn every_code_of_initialize_follows_the_table() -> Result<()> {
    every_code_leads_to_its_row(Call::Initialize, None).await
}

/// CTL-GS-02..CTL-GS-16, CLI-GS-02..CLI-GS-16, INI-18, INI-19
#[tokio::test(start_paused = true)]
async fn every_code_of_the_first_look_up_follows_the_table() -> Result<()> {
    every_code_leads_to_its_row(Call::LookUp, None).await
}

/// CTL-GS-02..CTL-GS-16, CLI-GS-02..CLI-GS-16, INI-19
#[tokio::test(start_paused = true)]
async fn every_code_of_a_look_up_for_a_lost_create_follows_the_table() -> Result<()> {
    every_code_leads_to_its_row(Call::LookUpAgain, None).await
}

/// CTL-GS-02..CTL-GS-16, CLI-GS-02..CLI-GS-16
#[tokio::test(start_paused = true)]
async fn every_code_of_a_look_up_of_a_vm_that_is_up_follows_the_table() -> Result<()> {
    every_code_leads_to_its_row(Call::Recheck, None).await
}

/// UPD-01
#[tokio::test(start_paused = true)]
async fn every_code_of_update_follows_the_table() -> Result<()> {
    every_code_leads_to_its_row(Call::Update, None).await
}

/// CLI-SD-02..CLI-SD-16
#[tokio::test(start_paused = true)]
async fn every_code_of_shut_down_follows_the_table() -> Result<()> {
    every_code_leads_to_its_row(Call::ShutDown, None).await
}

/// CTL-DE-02..CTL-DE-16, CLI-DE-02..CLI-DE-16
#[tokio::test(start_paused = true)]
async fn every_code_of_delete_follows_the_table() -> Result<()> {
    every_code_leads_to_its_row(Call::Delete, None).await
}

/// CTL-GS-02..CTL-GS-16, CLI-GS-02..CLI-GS-16, INI-24
#[tokio::test(start_paused = true)]
async fn every_code_of_a_look_up_after_delete_follows_the_table() -> Result<()> {
    every_code_leads_to_its_row(Call::Confirm, None).await
}

/// CTL-LM-01..CTL-LM-16, CTL-GS-12
#[tokio::test(start_paused = true)]
async fn every_code_of_a_list_before_create_follows_the_table() -> Result<()> {
    every_code_leads_to_its_row(Call::List, None).await
}

/// CTL-LM-01..CTL-LM-16, CTL-GS-12
#[tokio::test(start_paused = true)]
async fn every_code_of_a_list_for_a_lost_create_follows_the_table() -> Result<()> {
    every_code_leads_to_its_row(Call::ListAgain, None).await
}

/// CTL-LM-01..CTL-LM-16, CTL-GS-12
#[tokio::test(start_paused = true)]
async fn every_code_of_a_list_after_delete_follows_the_table() -> Result<()> {
    every_code_leads_to_its_row(Call::ListAfterDelete, None).await
}

async fn every_code_leads_to_its_row(call: Call, asked: Option<u32>) -> Result<()> {
    let run = Run::begin(call, asked).await?;
    run.shown("the failures").await?;
    let next_tries = run.next_tries().await?;
    tokio::time::sleep(OUTAGE).await;
    run.shown("the same failures, much later").await?;
    let events = warnings(&run.world).await?;
    for case in &run.cases {
        let checked = run.was_repeated_in_time(*case, next_tries.get(&case.name()));
        checked.with_context(|| format!("{case:?}"))?;
        reported_once(*case, &events).with_context(|| format!("{case:?}"))?;
    }

    run.fail(|_| json!([]))?;
    if call == Call::ListAfterDelete {
        tokio::time::sleep(CREATE_SETTLE_TIME).await;
    }
    let is_refused = |case: Case| case.next() == Next::Terminal;
    patch_all(&run.world, &run.names(|case| !is_refused(case)), &touch(2)).await?;
    patch_all(&run.world, &run.names(is_refused), &label()).await?;
    run.all_become("the end of all failures", |case, machine| match machine {
        _ if case.next() == Next::Vanished => Ok(()),
        None => ensure_that(call.is_of_deletion(), "is gone"),
        Some(machine) => {
            ensure_that(!call.is_of_deletion(), "is still there")?;
            let reason = machine
                .status
                .as_ref()
                .and_then(|status| status.failure_reason.clone());
            ensure!(reason.is_none(), "failureReason {reason:?} stays");
            provisioned(machine)
        }
    })
    .await?;
    run.every_machine_has_one_vm().await
}

/// Machines whose calls all fail, each with another code.
struct Run {
    world: World,
    /// One cloud, or one for each case: a list is about no machine.
    clouds: Vec<Cloud>,
    cases: Vec<Case>,
    _provider: Replica,
}

impl Run {
    /// Brings the machines to the call, and has it fail.
    async fn begin(call: Call, asked: Option<u32>) -> Result<Self> {
        let world = World::new("codes").await?;
        let cases = Case::of(call, asked);
        let (clouds, drivers) = clouds(&world, call, &cases)?;
        let provider = Provider::new(drivers).with(|options| {
            options.inventory_interval = Duration::from_hours(24);
            options.orphans.interval = Duration::from_hours(24);
        });
        let run = Self {
            _provider: provider.start(&world).await?,
            clouds,
            cases,
            world,
        };
        let stage = Stage::set(&run.world).await?;
        // The first lists of the inventory are over.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let machines: Vec<_> = run.cases.iter().map(|case| machine(&stage, *case)).collect();
        let faults = |cases: &[Case]| json!(cases.iter().map(|case| fault(*case)).collect::<Vec<_>>());
        match call {
            Call::LookUp | Call::List | Call::Create | Call::Initialize => {
                run.fail(faults)?;
                ByHand::create_all(&machines).await?;
                return Ok(run);
            }
            Call::LookUpAgain | Call::ListAgain | Call::ListAfterDelete => {
                run.fail(|_| {
                    json!([{
                        "operation": "CreateMachine", "loseResponse": "Unavailable",
                        "retryAfterMs": 3_600_000,
                    }])
                })?;
                ByHand::create_all(&machines).await?;
                run.all_become("lost creates", |_, machine| lost_its_create(machine))
                    .await?;
            }
            Call::Recheck | Call::Update | Call::ShutDown | Call::Delete | Call::Confirm => {
                ByHand::create_all(&machines).await?;
                let is_up = |_, machine: Option<&_>| provisioned(machine.context("is gone")?);
                run.all_become("machines", is_up).await?;
            }
        }
        run.fail(faults)?;
        let all = run.names(|_| true);
        match call {
            Call::LookUpAgain | Call::ListAgain => patch_all(&run.world, &all, &touch(1)).await?,
            Call::Update => patch_all(&run.world, &all, &label()).await?,
            _ => {}
        }
        if call.is_of_deletion() {
            for machine in &machines {
                machine.delete().await?;
            }
        }
        Ok(run)
    }

    /// Sets the faults of each cloud.
    fn fail(&self, faults: impl Fn(&[Case]) -> Value) -> Result<()> {
        let each = self.cases.len() / self.clouds.len();
        for (cloud, cases) in self.clouds.iter().zip(self.cases.chunks(each)) {
            cloud.fail(faults(cases))?;
        }
        Ok(())
    }

    fn names(&self, which: impl Fn(Case) -> bool) -> Vec<String> {
        let wanted = self.cases.iter().filter(|case| which(**case));
        wanted.map(|case| case.name()).collect()
    }

    /// Waits until `check` has no objection to any of the machines. A machine may be gone.
    async fn all_become(
        &self,
        what: &str,
        check: impl Fn(Case, Option<&InfraMachine>) -> Result<()>,
    ) -> Result<()> {
        let api = infra_machines(&self.world);
        for second in 0.. {
            let all = api.list(&ListParams::default()).await?.items;
            let objections = self.cases.iter().filter_map(|case| {
                let machine = all.iter().find(|machine| machine.name_any() == case.name());
                let error = check(*case, machine).err()?;
                Some(format!("{case:?}: {error:#}"))
            });
            let objections: Vec<_> = objections.collect();
            if objections.is_empty() {
                return Ok(());
            }
            ensure!(
                second < SETTLED_WITHIN.as_secs(),
                "{what} were awaited:\n{}",
                objections.join("\n")
            );
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        Ok(())
    }

    async fn shown(&self, what: &str) -> Result<()> {
        self.all_become(what, Case::is_shown).await
    }

    /// The attempts of each machine, and when the status says that the next comes.
    async fn next_tries(&self) -> Result<BTreeMap<String, (usize, Timestamp)>> {
        let mut tries = BTreeMap::new();
        for machine in infra_machines(&self.world).list(&ListParams::default()).await? {
            let last = machine.status.and_then(|status| status.last_operation);
            if let Some(last) = last
                && let Some(next) = last.next_retry_time
            {
                let attempts = usize::try_from(last.attempts)?;
                tries.insert(machine.metadata.name.context("no name")?, (attempts, next.0));
            }
        }
        Ok(tries)
    }

    /// When the call of a case failed with its code.
    fn failures(&self, case: Case) -> Result<Vec<CallLine>> {
        let (operation, code) = case.failure();
        let place = self.cases.iter().position(|other| other.code == case.code);
        let cloud = &self.clouds[place.unwrap_or_default() % self.clouds.len()];
        let mut calls = cloud.calls()?;
        calls.retain(|call| {
            (call.machine == case.name() || case.call.lists())
                && call.phase == Phase::Ended
                && call.operation == operation
                && call.code.as_deref() == Some(code.name())
        });
        Ok(calls)
    }

    /// Nothing was lost and nothing doubled (CTL-CR-00).
    async fn every_machine_has_one_vm(&self) -> Result<()> {
        let mut vms = Vec::new();
        for cloud in &self.clouds {
            vms.extend(cloud.vms()?);
        }
        self.all_become("one VM for each machine", |case, machine| {
            let ids: Vec<_> = vms
                .iter()
                .filter(|vm| vm.name == case.name())
                .map(cmi_simulated::Vm::provider_id)
                .collect();
            let id = machine.and_then(|machine| machine.spec.provider_id.clone());
            ensure!(
                ids == id.iter().cloned().collect::<Vec<_>>(),
                "VMs {ids:?}, providerID {id:?}"
            );
            Ok(())
        })
        .await
    }

    /// How many attempts there have been when the call fails first: of a machine that comes up, a create that
    /// was lost is one.
    fn begun_attempts(case: Case) -> i32 {
        let is_second = case.call.follows_a_lost_create() && !case.call.is_of_deletion();
        if is_second { 2 } else { 1 }
    }

    /// Each repeat comes when its wait is over, and when the status has said that it comes.
    fn was_repeated_in_time(&self, case: Case, shown: Option<&(usize, Timestamp)>) -> Result<()> {
        let tries = self.failures(case)?;
        let pauses: Vec<_> = tries
            .windows(2)
            .map(|pair| pair[1].at.since(pair[0].at))
            .collect();
        if matches!(case.next(), Next::Terminal | Next::NotSupported | Next::Unasked) {
            ensure!(tries.len() == 1, "{} tries", tries.len());
        }
        let repeats = matches!(
            case.next(),
            Next::Backoff | Next::Long | Next::Kept | Next::Reported
        );
        if !repeats {
            return Ok(());
        }
        let begun = Self::begun_attempts(case);
        let mut expected = Duration::ZERO;
        for (pause, attempt) in pauses.iter().zip(begun..) {
            let (least, most) = case.wait(attempt).context("is repeated")?;
            ensure!(
                (least..=most + REQUEUE).contains(pause),
                "repeated {pause:?} after attempt {attempt}, not {least:?} to {most:?}: {pauses:?}"
            );
            expected = most;
        }
        let since_last = tries
            .last()
            .map(|last| self.world.cloud_clock().now().since(last.at));
        ensure!(
            pauses.len() > 1 && since_last.is_some_and(|since| since <= 2 * expected),
            "is repeated no more: {pauses:?}, and {since_last:?} ago"
        );
        if let Some((attempts, next)) = shown.filter(|_| !case.waits_with_its_class()) {
            let attempt = usize::try_from(begun)?;
            let place = attempts
                .checked_sub(attempt)
                .context("attempts that were not made")?;
            let made_at = tries.get(place + 1).and_then(|call| call.at.timestamp());
            let made_at = made_at.context("no next try")?;
            let late = made_at.duration_since(*next).as_secs_f64();
            // The status has whole seconds.
            ensure!(
                (-1.0..=1.0).contains(&late),
                "the next try came at {made_at}, and the status says {next}"
            );
        }
        Ok(())
    }
}

/// The clouds of the cases, and the drivers file with them.
fn clouds(world: &World, call: Call, cases: &[Case]) -> Result<(Vec<Cloud>, String)> {
    if call.lists() {
        let clouds: Vec<_> = cases
            .iter()
            .map(|case| Cloud::named(world, &case.name()))
            .collect();
        let drivers = cases.iter().zip(&clouds).map(|(case, cloud)| {
            let cannot_look = json!({"disabledCalls": ["GetMachineStatus"]});
            let mut entry = json!({"name": case.name()});
            if call == Call::ListAfterDelete {
                entry["createSettleTime"] = json!(format!("{}s", CREATE_SETTLE_TIME.as_secs()));
            }
            cloud.drivers_with(entry, cannot_look)
        });
        let drivers = Cloud::several(drivers)?;
        return Ok((clouds, drivers));
    }
    // Of machines that are up only those are looked up again whose VMs still boot.
    let boot = if call == Call::Recheck { 86_400 } else { 0 };
    let cloud = Cloud::new(world);
    let drivers = cloud.drivers(json!({"bootSeconds": boot}));
    Ok((vec![cloud], drivers))
}

fn machine(stage: &Stage, case: Case) -> ByHand {
    let machine = stage
        .machine(&case.name())
        .infra("/spec/creationTimeoutSeconds", json!(86_400));
    let machine = if case.call.lists() {
        machine.infra("/spec/driver", json!(case.name()))
    } else {
        machine
    };
    match case.call {
        // Something to initialize: a VM that says that it is initialized is believed, whatever
        // InitializeMachine said. Exhaustion holds back a class, so each machine has another one.
        Call::Initialize => machine
            .infra("/spec/providerSpec/sourceDestCheck", json!(false))
            .infra("/spec/providerSpec/tags/class", json!(case.name())),
        Call::Create => machine.infra("/spec/providerSpec/tags/class", json!(case.name())),
        Call::ShutDown => machine.infra("/spec/shutdownTimeoutSeconds", json!(86_400)),
        _ => machine.infra("/spec/shutdownTimeoutSeconds", json!(0)),
    }
}

fn fault(case: Case) -> Value {
    let mut fault = json!({
        "operation": case.call.operation(), "code": case.code.name(), "message": case.message(),
    });
    if !case.call.lists() {
        fault["machine"] = json!(case.name());
    }
    if let Some(seconds) = case.asked {
        fault["retryAfterMs"] = json!(seconds * 1000);
    }
    fault
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

fn touch(time: u32) -> Value {
    json!({"metadata": {"annotations": {"example.com/touched": time.to_string()}}})
}

fn label() -> Value {
    json!({"spec": {"providerSpec": {"labels": {"a": "b"}}}})
}

fn ensure_that(holds: bool, otherwise: &'static str) -> Result<()> {
    ensure!(holds, otherwise);
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
fn reported_once(case: Case, all: &BTreeMap<String, Vec<(String, String)>>) -> Result<()> {
    let (operation, code) = case.failure();
    let warning = |operation: &str, reason: &str| (operation.to_owned(), reason.to_owned());
    let mut expected = match case.next() {
        Next::Backoff | Next::Long | Next::NotSupported | Next::Terminal | Next::Reported => {
            vec![warning(operation.name(), code.name())]
        }
        Next::Vanished => vec![warning(operation.name(), "VirtualMachineVanished")],
        // An outage is reported of the InfraCluster, and when it lasts.
        Next::Kept if !matches!(case.code, Code::Unavailable | Code::DeadlineExceeded) => {
            vec![warning(operation.name(), code.name())]
        }
        Next::Kept | Next::Unasked | Next::Initialized | Next::Provisioned | Next::Gone | Next::Deleting => {
            Vec::new()
        }
    };
    if case.call.follows_a_lost_create() {
        expected.insert(0, warning("CreateMachine", "Unavailable"));
    }
    let mut found = all.get(&case.name()).cloned().unwrap_or_default();
    found.sort();
    expected.sort();
    ensure!(found == expected, "warnings {found:?}, not {expected:?}");
    Ok(())
}
