//! Runs cases: concurrently where they do not disturb each other, and with a cleanup after each.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::answer::{CaseError, CaseResult};
use super::answer_checker::{AnswerChecker, SERVES_AGAIN_RULES, Violation};
use super::case::Case;
use super::cases;
use super::cleanup::{Cleanup, Deleted};
use super::config::{Config, secrets, slow_calls_hang, with_capabilities};
use super::hooks::{Hook, Hooks};
use super::in_flight::{InFlight, Waiting};
use super::ledger::Ledger;
use super::leftover::Leftover;
use super::liveness::Liveness;
use super::need::Need;
use super::report::{CaseReport, Circumstances, Report, Scope, Verdict};
use super::rules::{self, Rule};
use super::target::Target;
use super::test_context::{Shared, TestContext, canary};
use cmi_driver::{Capabilities, Status};

/// The reason when the end of the run ended a case.
const ENDED_EARLY: &str = "the run was ended early";
/// The reason when the driver has become unreachable.
const LOST: &str = "the driver can't be reached any more";
/// The interval between two checks for slow calls.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// The case that all others build upon.
const FIRST: &str = "create-makes-a-vm";
/// How long a case may take to report that the driver is gone, when that ends the run.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// The cases about a plugin's description of itself. They need no VM, and may show why VMs are missing.
const INTRODUCTION: [&str; 6] = [
    "info-names-the-driver",
    "info-has-a-host-name",
    "capabilities-stay",
    "wire-services",
    "wire-required-capabilities",
    "wire-extension-capabilities",
];
/// The calls that distinguish a plugin from any other gRPC server.
const CALLS_OF_A_PLUGIN: [&str; 4] = [
    "/cmi.v1.Identity/GetPluginInfo",
    "/cmi.v1.Identity/GetPluginCapabilities",
    "/cmi.v1.Identity/Probe",
    "/cmi.v1.Machine/CreateMachine",
];
/// The longest time for any of these calls.
const INTRODUCED_WITHIN: Duration = Duration::from_secs(5);
/// How long a running call may take when the run is stopped: the VM that it creates must be known.
const GRACE_PERIOD: Duration = Duration::from_secs(10);

/// Receives the progress of a run.
pub trait Progress: Send + Sync {
    /// The run starts. At any time, the ledger has the VMs that the run may have made and not deleted yet.
    fn begins(&self, _ledger: Arc<Ledger>) {}

    /// A call, or something else that a case waits for, takes long.
    fn waits(&self, _call: &Waiting) {}

    /// A case ended. So far, `done` cases of `of` have ended.
    fn ended(&self, case: &CaseReport, done: usize, of: usize);
}

impl Progress for () {
    fn ended(&self, _case: &CaseReport, _done: usize, _of: usize) {}
}

/// The cases to run.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Rows of the requirements or names of cases; empty for all.
    pub only: Vec<String>,
}

/// The reason why a run could not begin.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No row and no case has this name.
    #[error("`{0}` is neither a tested row nor a case; `--list` shows both")]
    Unknown(String),
    /// The row exists, and nothing tests it.
    #[error("{id} is not tested: {reason}")]
    NotTested {
        /// The row of the requirements.
        id: &'static str,
        /// The reason why nothing tests it.
        reason: &'static str,
    },
    /// Without capabilities, the allowed calls are unknown.
    #[error("cannot get the capabilities of the driver")]
    Capabilities(#[source] Status),
}

impl Selection {
    /// Returns the selection of these rows or cases.
    pub fn only<T: Into<String>>(names: impl IntoIterator<Item = T>) -> Self {
        Self {
            only: names.into_iter().map(Into::into).collect(),
        }
    }

    fn cases(&self) -> Result<Vec<&'static Case>, RunError> {
        for name in &self.only {
            let by_name = cases::all().any(|case| case.name == name);
            match (by_name, rules::find(name).map(|rule| (rule.id, rule.proof))) {
                (true, _) | (false, Some((_, rules::Proof::Cases | rules::Proof::EveryCase))) => {}
                (false, Some((id, rules::Proof::NotTested(reason)))) => {
                    return Err(RunError::NotTested { id, reason });
                }
                (false, None) => return Err(RunError::Unknown(name.clone())),
            }
        }
        let chosen = |case: &&'static Case| {
            let names = |name: &String| case.name == name || case.proves.contains(&name.as_str());
            self.only.is_empty() || self.only.iter().any(names)
        };
        Ok(cases::all().filter(chosen).collect())
    }

    /// Returns the rules in the report: every rule, or the rules that the chosen cases prove and all broken
    /// rules. The rules on every answer are part of each run.
    fn rules(&self, chosen: &[&Case], violations: &[Violation]) -> Vec<&'static Rule> {
        let is_chosen = |id: &str| chosen.iter().any(|case| case.proves.contains(&id));
        let is_broken = |id: &str| violations.iter().any(|found| found.rules.contains(&id));
        rules::all()
            .filter(|rule| self.only.is_empty() || is_chosen(rule.id) || is_broken(rule.id))
            .collect()
    }
}

/// Runs the chosen cases and tests the rules. When `stop` is cancelled, running cases stop, and all their VMs
/// are deleted.
///
/// # Errors
/// [`RunError`] when nothing was run.
pub async fn run(
    target: Target,
    config: Config,
    hooks: Arc<dyn Hooks>,
    selection: &Selection,
    progress: &dyn Progress,
    stop: CancellationToken,
) -> Result<Report, RunError> {
    let chosen = selection.cases()?;
    let (capabilities, refusal) = match target.driver.get_plugin_capabilities().await {
        Ok(declared) => (declared.capabilities, None),
        // The faults in its declaration have their own rows.
        Err(status) if is_plugin(&target).await => (Capabilities::minimal().into(), Some(untaken(&status))),
        Err(status) => return Err(RunError::Capabilities(status)),
    };
    let info = target.driver.get_plugin_info().await.ok();
    let name = target.name.clone();
    let parallel = config.parallel;
    let limit = config.call_limit();
    let stop = stop.child_token();
    let run = run_id();
    let (ledger, in_flight) = (Arc::new(Ledger::default()), Arc::new(InFlight::default()));
    progress.begins(Arc::clone(&ledger));
    let shared = Arc::new(Shared {
        target,
        hooks,
        capabilities,
        answer_checker: AnswerChecker::new(canary(&run), config.public_secret_keys.clone()),
        liveness: Liveness::new(limit, stop.clone()),
        in_flight: Arc::clone(&in_flight),
        ledger,
        conflict: OnceCell::new(),
        stop: stop.clone(),
        run,
        config,
    });

    let of = chosen.len();
    let mut reports = Vec::with_capacity(of);
    let (mut left, mut deleted) = (Vec::new(), Vec::new());
    let sent = secrets(&shared.config.secrets);
    let mut note = |ended: Ended, reports: &mut Vec<CaseReport>| {
        progress.ended(&ended.report, reports.len() + 1, of);
        let metadata = shared.target.take_metadata();
        shared.answer_checker.check_metadata(&sent, metadata);
        reports.push(ended.report);
        deleted.push(ended.deleted);
        left.extend(ended.problem);
    };
    let (first, others): (Vec<_>, Vec<_>) = chosen.iter().copied().partition(|case| case.name == FIRST);
    let mut looks = tokio::time::interval(BETWEEN_LOOKS);
    let say_what_takes_long = || {
        for call in in_flight.overdue() {
            progress.waits(&call);
        }
    };
    for case in first {
        let mut only = std::pin::pin!(one(Arc::clone(&shared), case, refusal.clone()));
        let ended = loop {
            tokio::select! {
                ended = &mut only => break ended,
                _ = looks.tick() => say_what_takes_long(),
            }
        };
        note(ended, &mut reports);
    }
    let hopeless = refusal.clone().or_else(|| reports.iter().find_map(hopeless));
    let (last, others): (Vec<_>, Vec<_>) = others.into_iter().partition(|case| case.looks_back());
    let (disturbing, quiet): (Vec<_>, Vec<_>) = others.into_iter().partition(|case| case.disturbs());
    let run_case = |case: &'static Case| {
        let hopeless = hopeless.clone().filter(|_| !INTRODUCTION.contains(&case.name));
        one(Arc::clone(&shared), case, hopeless)
    };
    let side_by_side = stream::iter(quiet).map(run_case).buffer_unordered(parallel);
    let one_by_one = stream::iter(disturbing.into_iter().chain(last)).then(run_case);
    let mut all = std::pin::pin!(side_by_side.chain(one_by_one));
    loop {
        tokio::select! {
            ended = all.next() => match ended {
                Some(ended) => note(ended, &mut reports),
                None => break,
            },
            _ = looks.tick() => say_what_takes_long(),
        }
    }
    left.extend(cleanup(&shared).confirm(deleted, parallel).await);
    let metadata = shared.target.take_metadata();
    shared.answer_checker.check_metadata(&sent, metadata);
    reports.sort_by_key(|report| chosen.iter().position(|case| case.name == report.name));
    let violations = shared.answer_checker.violations();
    let about = selection.rules(&chosen, &violations);
    reports.extend(violations.into_iter().map(watched));
    Ok(Report::new(
        &name,
        info.as_ref(),
        reports,
        &about,
        Circumstances {
            leftovers: left,
            outages: shared.liveness.outages(),
            interrupted: stop.is_cancelled(),
            scope: if selection.only.is_empty() {
                Scope::Whole
            } else {
                Scope::Part
            },
        },
    ))
}

/// Returns why all other cases would be inconclusive: a driver that creates no VM from the configuration
/// would break every rule.
fn hopeless(first: &CaseReport) -> Option<String> {
    let reason = first.verdict.is_failure().then(|| first.verdict.reason())??;
    Some(format!("all other cases require that `{FIRST}` passes: {reason}"))
}

/// Whether a plugin serves at the endpoint although the client does not accept its answers about itself. Any
/// gRPC server answers UNIMPLEMENTED.
async fn is_plugin(target: &Target) -> bool {
    let Some(wire) = target.wire() else {
        return false;
    };
    let unknown = (tonic::Code::Unimplemented as i32).to_string();
    for path in CALLS_OF_A_PLUGIN {
        let answer = tokio::time::timeout(INTRODUCED_WITHIN, wire.call(path, &[], None)).await;
        let code = answer.ok().and_then(Result::ok).and_then(|answer| answer.code);
        if code.is_some_and(|code| code != unknown) {
            return true;
        }
    }
    false
}

fn untaken(status: &Status) -> String {
    format!("all other cases require that the client accepts the plugin's identity: {status}")
}

/// A case that ended.
struct Ended {
    report: CaseReport,
    /// The machines that the case made, each deleted once.
    deleted: Vec<Deleted>,
    /// The reason why the back end may not be as it was before.
    problem: Option<Leftover>,
}

fn cleanup(shared: &Shared) -> Cleanup<'_> {
    Cleanup {
        driver: &*shared.target.driver,
        capabilities: &shared.capabilities,
        config: &shared.config,
        ledger: &shared.ledger,
        limit: shared.config.call_limit(),
        liveness: &shared.liveness,
    }
}

/// Runs a case in a separate task, so that a panic ends nothing else, and deletes the case's VMs. A case that
/// is known to be hopeless is not run.
async fn one(shared: Arc<Shared>, case: &'static Case, hopeless: Option<String>) -> Ended {
    let started = Instant::now();
    let test_context = TestContext::new(Arc::clone(&shared), case.name);
    let stop = &shared.stop;
    let lacking = missing(&test_context, case);
    let verdict = if stop.is_cancelled() {
        Some(ended_early(&shared, None))
    } else if let Some(lacking) = &lacking {
        Some(Verdict::Skipped {
            reason: lacking.reason.clone(),
        })
    } else {
        let contradiction = || contradiction(&test_context, case);
        let reason = hopeless.or_else(contradiction);
        reason.map(|reason| Verdict::Inconclusive { reason })
    };
    if let Some(verdict) = verdict {
        let mut report = CaseReport::new(case, verdict, Vec::new(), started.elapsed());
        report.missing = lacking.map(|lacking| lacking.can_be_added).unwrap_or_default();
        return Ended {
            report,
            deleted: Vec::new(),
            problem: None,
        };
    }
    let outcome = guarded((case.run)(test_context.clone()), &test_context, &shared).await;
    let problem = if case.disturbs() && test_context.has(Hook::Restore) {
        let restored = test_context.restore().await;
        restored.err().map(|error| Leftover::back_end(error.to_string()))
    } else {
        None
    };
    let made = test_context.tracker().take();
    let deletion = (!made.is_empty()).then(|| shared.in_flight.keep(case.name, "the deletion of its VMs"));
    let deleted = cleanup(&shared).delete(made).await;
    drop(deletion);
    let mut missing = test_context.missing();
    let verdict = match outcome {
        Ok(()) => Verdict::Passed,
        Err(CaseError::Failed(reason)) => {
            let hint = test_context.still_there();
            Verdict::Failed {
                reason: with_hint(reason, hint.or_else(|| test_context.without_effect())),
            }
        }
        Err(CaseError::DriverGone(reason)) => Verdict::Failed { reason },
        Err(CaseError::Inconclusive(reason)) => Verdict::Inconclusive {
            reason: with_hint(reason, test_context.still_there()),
        },
        Err(CaseError::Skipped(reason)) if stop.is_cancelled() => ended_early(&shared, Some(&reason)),
        Err(CaseError::Skipped(reason)) => Verdict::Skipped { reason },
        Err(CaseError::Unconfigured { reason, setting }) => {
            missing.push(Need::Setting(setting).to_string());
            Verdict::Skipped { reason }
        }
    };
    let mut report = CaseReport::new(case, verdict, test_context.warnings(), started.elapsed());
    report.missing = missing;
    Ended {
        report,
        deleted,
        problem,
    }
}

fn with_hint(reason: String, hint: Option<String>) -> String {
    match hint {
        Some(hint) => format!("{reason}; {hint}"),
        None => reason,
    }
}

/// Returns the outcome of a case that may panic or be stopped. The case has ended when this returns.
async fn guarded(
    case: impl Future<Output = CaseResult> + Send + 'static,
    test_context: &TestContext,
    shared: &Shared,
) -> CaseResult {
    let mut task = AbortOnDropHandle::new(tokio::spawn(case));
    tokio::select! {
        biased;
        () = shared.stop.cancelled() => {
            // The case makes no further call, and ends as soon as its running call does.
            let grace_period = if shared.liveness.is_lost() {
                LAST_WORDS
            } else {
                GRACE_PERIOD.min(shared.config.call_limit())
            };
            let mut reason = ENDED_EARLY.to_owned();
            let ended = tokio::time::timeout(grace_period, &mut task).await;
            if let Ok(Ok(Err(gone @ CaseError::DriverGone(_)))) = ended {
                // This case has found the reason for the end of the run.
                return Err(gone);
            }
            if ended.is_err() {
                let calls = test_context.in_flight();
                task.abort();
                let _aborted = task.await;
                for call in calls {
                    reason.extend(["; ", &call.what, " was still under way"]);
                    // Otherwise the cleanup would wait, in each deletion, for a driver that answers nothing
                    // at all.
                    test_context.is_alive(&call.what, "it is frozen").await?;
                }
            }
            Err(CaseError::Skipped(reason))
        }
        joined = &mut task => joined.unwrap_or_else(|error| {
            Err(CaseError::Failed(format!("the case did not end: {error}")))
        }),
    }
}

/// Returns the verdict of a case that the end of the run cut short. If the driver ended the run, the case is
/// inconclusive and not skipped, so that the report shows it.
fn ended_early(shared: &Shared, reason: Option<&str>) -> Verdict {
    if !shared.liveness.is_lost() {
        return Verdict::Skipped {
            reason: reason.unwrap_or(ENDED_EARLY).to_owned(),
        };
    }
    let since = shared.liveness.gone_since();
    let since = since.map(|call| format!(", since {call}")).unwrap_or_default();
    Verdict::Inconclusive {
        reason: format!("{LOST}{since}"),
    }
}

/// The reason why a case can't be run here.
struct Lacking {
    reason: String,
    /// The hooks and settings that would let the case run; empty if it cannot run against this driver at all.
    can_be_added: Vec<String>,
}

/// Returns the unmet needs of a case.
fn missing(test_context: &TestContext, case: &Case) -> Option<Lacking> {
    let unmet: Vec<_> = case
        .needs
        .iter()
        .filter(|need| !is_met(**need, test_context))
        .collect();
    let first = unmet.first()?;
    let reason = match first {
        Need::Call(operation) => format!("the driver does not offer {operation}"),
        Need::Hook(hook) => format!("there is no hook `{hook}`"),
        Need::Setting(setting) if !test_context.config().can_say(*setting) => {
            "the driver takes no credentials".to_owned()
        }
        Need::Setting(setting) => format!("the configuration has no `{setting}`"),
        Need::Endpoint => "the driver has no endpoint".to_owned(),
        Need::SecondVm => "the back end does not allow several VMs with one name (`uniqueNames`)".to_owned(),
        Need::MachineTag => {
            "the driver does not add the tag `capcmi.io/machine` (`hot_updatable`)".to_owned()
        }
        Need::ListState => "the driver's lists have no state (`list_has_state`)".to_owned(),
        Need::AddressPath => "the driver cannot set static addresses (`address_path`)".to_owned(),
    };
    let can_be_added = |need: &&&Need| match need {
        Need::Setting(setting) => test_context.config().can_say(*setting),
        Need::Hook(_) => true,
        Need::Call(_)
        | Need::Endpoint
        | Need::SecondVm
        | Need::MachineTag
        | Need::ListState
        | Need::AddressPath => false,
    };
    let all_can = unmet.iter().all(|need| can_be_added(&need));
    Some(Lacking {
        reason,
        can_be_added: unmet
            .iter()
            .filter(|_| all_can)
            .map(ToString::to_string)
            .collect(),
    })
}

/// Returns why a need of the case contradicts this driver: two settings, or a setting and the driver's
/// declaration, exclude each other, so nothing follows for the rules.
fn contradiction(test_context: &TestContext, case: &Case) -> Option<String> {
    let (config, capabilities) = (test_context.config(), test_context.capabilities());
    case.needs.iter().find_map(|need| match need {
        Need::Setting(setting) => with_capabilities(config, *setting, capabilities),
        // The hooks of a built-in driver are not in the configuration.
        Need::Hook(Hook::Slow) => slow_calls_hang(config),
        _ => None,
    })
}

fn is_met(need: Need, test_context: &TestContext) -> bool {
    match need {
        Need::Call(operation) => test_context.supports(operation),
        Need::Hook(hook) => test_context.has(hook),
        Need::Setting(setting) => test_context.config().says(setting),
        Need::Endpoint => test_context.target().wire().is_some(),
        // If the hook can make a second VM, it shows whether the back end accepts it.
        Need::SecondVm => !test_context.config().unique_names || test_context.has(Hook::Plant),
        Need::MachineTag => test_context.capabilities().adds_machine_tag(),
        Need::ListState => test_context.capabilities().list_has_state,
        Need::AddressPath => test_context.capabilities().address_path.is_some(),
    }
}

fn watched(violation: Violation) -> CaseReport {
    let (name, title) = if violation.rules == SERVES_AGAIN_RULES {
        (
            "every-restart",
            "a driver that was killed and started again serves at its endpoint",
        )
    } else {
        ("every-answer", "what has to hold for every answer of the run")
    };
    CaseReport {
        name: name.to_owned(),
        title: title.to_owned(),
        proves: violation.rules.to_vec(),
        verdict: Verdict::Failed {
            reason: violation.message,
        },
        missing: Vec::new(),
        warnings: Vec::new(),
        took: Duration::ZERO,
    }
}

fn run_id() -> String {
    let id = uuid::Uuid::new_v4().simple().to_string();
    format!("cf{}", &id[..8])
}
