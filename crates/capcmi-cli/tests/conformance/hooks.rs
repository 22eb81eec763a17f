//! The report names hooks that do nothing, or too much. The driver is not blamed for the case's result.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use capcmi_cli::commands::conformance::simulated::Simulated;
use cmi_conformance::{
    CaseReport, Compliance, Config, Hook, HookCall, Hooks, Layer, Ledger, NoHooks, Progress, Report,
    Selection, Target, Verdict, Waiting, run,
};
use cmi_driver::Operation;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::flaw::Flaw;
use crate::mutant::Mutant;
use crate::served::{RestartingHooks, Server, served};

/// The hooks of a cloud, with one hook replaced.
struct Otherwise {
    hook: Hook,
    does: Does,
    cloud: Arc<dyn Hooks>,
}

/// The behaviour of the replaced hook.
enum Does {
    Nothing,
    /// Always prints this.
    Prints(&'static str),
    /// Fails with this message.
    Fails(&'static str),
    /// Ends the process of the driver.
    Kills(Arc<Server>),
}

#[async_trait]
impl Hooks for Otherwise {
    fn supports(&self, hook: Hook) -> bool {
        self.cloud.supports(hook)
    }

    async fn run(&self, call: &HookCall) -> anyhow::Result<Vec<u8>> {
        if call.hook != self.hook {
            return self.cloud.run(call).await;
        }
        match &self.does {
            Does::Nothing => Ok(Vec::new()),
            Does::Prints(text) => Ok(text.as_bytes().to_vec()),
            Does::Fails(why) => anyhow::bail!("the hook `{}` failed: {why}", call.hook),
            Does::Kills(server) => {
                server.kill().await;
                Ok(Vec::new())
            }
        }
    }
}

/// The waits that a run reports.
#[derive(Default)]
struct Waits(Mutex<Vec<Waiting>>);

impl Progress for Waits {
    fn begins(&self, _ledger: Arc<Ledger>) {}

    fn waits(&self, call: &Waiting) {
        self.0.lock().unwrap().push(call.clone());
    }

    fn ended(&self, _case: &CaseReport, _done: usize, _of: usize) {}
}

async fn tested(target: Target, config: Config, hooks: impl Hooks, only: &[&str]) -> Report {
    tested_and_told(target, config, hooks, only, &()).await
}

async fn tested_and_told(
    target: Target,
    config: Config,
    hooks: impl Hooks,
    only: &[&str],
    progress: &dyn Progress,
) -> Report {
    let selection = Selection::only(only.iter().copied());
    let stop = CancellationToken::new();
    run(target, config, Arc::new(hooks), &selection, progress, stop)
        .await
        .unwrap()
}

async fn with_hook(hook: Hook, does: Does, case: &str) -> CaseReport {
    let simulated = Simulated::new().unwrap();
    let target = Target::in_process("simulated", simulated.driver.clone());
    let cloud = Arc::clone(&simulated.hooks);
    let hooks = Otherwise { hook, does, cloud };
    let report = tested(target, simulated.config.clone(), hooks, &[case]).await;
    report.cases.into_iter().find(|ended| ended.name == case).unwrap()
}

/// CAP-11, CAP-12, CAP-13: independent of the case's result.
#[tokio::test(start_paused = true)]
async fn a_hook_that_does_nothing_is_named_by_each_case_that_needs_it() {
    for (hook, case) in [
        (Hook::Unavailable, "create-unavailable"),
        (Hook::Exhaust, "create-exhausted"),
        (Hook::LoseResponse, "create-lost-response"),
        (Hook::LoseResponse, "delete-lost-response"),
        (Hook::FailInitialize, "initialize-fails"),
        (Hook::Plant, "status-several-vms"),
        (Hook::Plant, "create-finds-a-planted-vm"),
        (Hook::Plant, "list-planted-vm"),
        (Hook::Plant, "delete-planted-vm"),
        (Hook::Plant, "delete-several-vms"),
        (Hook::Lock, "delete-locked"),
        (Hook::Vanish, "status-vanished-vm"),
        (Hook::Vanish, "delete-vanished-vm"),
        (Hook::Uninitialize, "initialize-status"),
        (Hook::Uninitialize, "delete-uninitialized"),
        (Hook::Restore, "create-unavailable"),
        (Hook::Restore, "list-unknown"),
        (Hook::Restore, "create-exhausted"),
        (Hook::Restore, "probe-unhealthy"),
        (Hook::Restore, "probe-starting"),
        (Hook::Unlock, "create-locked"),
        (Hook::Unlock, "delete-locked"),
        (Hook::UserData, "create-user-data"),
        (Hook::UserData, "create-user-data-of-any-bytes"),
        (Hook::Unknown, "create-unknown"),
        (Hook::Internal, "create-internal"),
        (Hook::Slow, "create-deadline"),
        (Hook::Slow, "probe-beside-slow-calls"),
        (Hook::Slow, "restart-amid-a-create"),
        (Hook::Unhealthy, "probe-unhealthy"),
        (Hook::Starting, "probe-starting"),
    ] {
        let ended = with_hook(hook, Does::Nothing, case).await;
        let mut said = ended.warnings.clone();
        said.extend(ended.verdict.reason().map(str::to_owned));
        let names = |text: &String| text.contains(&format!("hook `{hook}`")) && text.contains("done nothing");
        assert!(
            said.iter().any(names),
            "{hook} in {case}: {:?} {said:?}",
            ended.verdict
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_counts_no_change_is_named_and_no_case_passes_by_it() {
    for case in [
        "status-changes-nothing",
        "initialize-changes-once",
        "update-nothing",
        "update-changes-once",
    ] {
        let ended = with_hook(Hook::Mutations, Does::Prints("7"), case).await;
        let Verdict::Inconclusive { reason } = &ended.verdict else {
            panic!("{case}: {:?}", ended.verdict);
        };
        assert!(
            reason.contains("hook `mutations`") && reason.contains("printed 7"),
            "{reason}"
        );
    }
}

/// The in-process driver loses the state that a process would lose, but its server keeps serving.
#[tokio::test(start_paused = true)]
async fn a_restart_that_ends_no_connection_is_named_and_no_case_passes_by_it() {
    let simulated = Simulated::new().unwrap();
    let (target, _server) = served(simulated.driver.clone());
    let cloud = Arc::clone(&simulated.hooks);
    let (hook, does) = (Hook::Restart, Does::Nothing);
    let hooks = Otherwise { hook, does, cloud };
    let cases = [
        "restart-finds-the-vm",
        "restart-changes-nothing-said",
        "wire-restart",
    ];
    let report = tested(target, simulated.config.clone(), hooks, &cases).await;
    for case in &report.cases {
        let Verdict::Inconclusive { reason } = &case.verdict else {
            panic!("{}: {:?}", case.name, case.verdict);
        };
        assert!(
            reason.contains("hook `restart`") && reason.contains("connection") && reason.contains("proxy"),
            "{reason}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_does_not_come_back_is_awaited_by_name_and_named_once() {
    let simulated = Simulated::new().unwrap();
    let (target, server) = served(simulated.driver.clone());
    let cloud = Arc::clone(&simulated.hooks);
    let (hook, does) = (Hook::Restart, Does::Kills(server));
    let hooks = Otherwise { hook, does, cloud };
    let mut config = simulated.config.clone();
    // Longer than the delay before a line reports the wait.
    config.call_seconds = 12.0;
    let waits = Waits::default();
    let cases = ["restart-finds-the-vm", "restart-adopts-the-vm"];
    let report = tested_and_told(target, config, hooks, &cases, &waits).await;
    let waits = waits.0.into_inner().unwrap();
    let is_named = |waiting: &Waiting| {
        waiting.case == "restart-finds-the-vm"
            && waiting.what.contains("to serve again after the hook `restart`")
    };
    assert!(waits.iter().any(is_named), "{waits:?}");
    let reason = |name: &str| {
        let case = report.cases.iter().find(|case| case.name == name).unwrap();
        (
            case.verdict.is_failure(),
            case.verdict.reason().unwrap().to_owned(),
        )
    };
    let (failed, first) = reason("restart-finds-the-vm");
    assert!(
        !failed && first.contains("gone since the hook `restart`") && first.contains("within 12 s"),
        "{first}"
    );
    let (failed, every) = reason("every-restart");
    assert!(failed && first.ends_with(&every), "{every}");
    let (failed, second) = reason("restart-adopts-the-vm");
    assert!(!failed && second.contains("hook `restart`"), "{second}");
}

/// Also when the back end is made to fail: the end of the driver is not an answer.
#[tokio::test(start_paused = true)]
async fn a_driver_that_dies_after_a_hook_is_named_as_gone_with_the_call() {
    for (hook, case, call) in [
        (Hook::Plant, "delete-planted-vm", "DeleteMachine of machine `"),
        (
            Hook::Unavailable,
            "create-unavailable",
            "CreateMachine of machine `",
        ),
        (Hook::Lock, "shut-down-locked", "ShutDownMachine of machine `"),
    ] {
        let simulated = Simulated::new().unwrap();
        let (target, server) = served(simulated.driver.clone());
        let cloud = Arc::clone(&simulated.hooks);
        let does = Does::Kills(server);
        let hooks = Otherwise { hook, does, cloud };
        let mut config = simulated.config.clone();
        config.call_seconds = 3.0;
        let report = tested(target, config, hooks, &[case]).await;
        let reason = report.cases[0].verdict.reason().unwrap();
        assert!(
            report.cases[0].verdict.is_failure()
                && reason.contains(&format!("the driver is gone since {call}")),
            "{hook}: {reason}"
        );
    }
}

/// DRV-GS-11: a rule that the back end makes impossible does not count as untried.
#[tokio::test(start_paused = true)]
async fn with_unique_names_set_a_run_without_a_second_vm_is_full() {
    let hooks = |simulated: &Simulated| Otherwise {
        hook: Hook::Plant,
        does: Does::Fails("there is a VM of this name"),
        cloud: Arc::clone(&simulated.hooks),
    };
    let simulated = Simulated::new().unwrap();
    let target = || Target::in_process("simulated", simulated.driver.clone());
    let several = ["status-several-vms"];
    let report = tested(target(), simulated.config.clone(), hooks(&simulated), &several).await;
    let Verdict::Inconclusive { reason } = &report.cases[0].verdict else {
        panic!("{:?}", report.cases[0].verdict);
    };
    assert!(
        reason.contains("there is a VM of this name") && reason.contains("uniqueNames"),
        "{reason}"
    );

    // No other case requires a second VM.
    let mut config = simulated.config.clone();
    config.unique_names = true;
    config.many_machines = Some(8);
    let hooks = OneVmOfAName(Arc::clone(&simulated.hooks));
    let report = tested(target(), config, hooks, &[]).await;
    let fared = &report.rule("DRV-GS-11").unwrap().verdict;
    assert!(matches!(fared, Verdict::Skipped { .. }), "{fared:?}");
    let top = report.layers.last().unwrap();
    assert_eq!(report.compliance(Layer::Provider), Compliance::Full, "{top:#?}");
}

/// DRV-GS-11: the setting excludes a rule that a configured hook could have tried.
#[tokio::test(start_paused = true)]
async fn unique_names_contradict_a_hook_that_makes_a_second_vm() {
    let simulated = Simulated::new().unwrap();
    let mut without_list = Operation::ALL.to_vec();
    without_list.retain(|operation| *operation != Operation::ListMachines);
    for offered in [Operation::ALL.to_vec(), without_list] {
        let driver = Mutant::offering(offered, simulated.driver.clone(), Flaw::Nothing);
        let target = Target::in_process("simulated", Arc::new(driver));
        let mut config = simulated.config.clone();
        config.unique_names = true;
        let hooks = Otherwise {
            hook: Hook::Vanish,
            does: Does::Nothing,
            cloud: Arc::clone(&simulated.hooks),
        };
        let report = tested(target, config, hooks, &["status-several-vms"]).await;
        let Verdict::Inconclusive { reason } = &report.cases[0].verdict else {
            panic!("{:?}", report.cases[0].verdict);
        };
        assert!(
            reason.contains("`uniqueNames: true`") && reason.contains("hook `plant`"),
            "{reason}"
        );
        assert!(!report.passed);
    }
}

/// Only a run can know this: the driver declares which changes are hot updates.
#[tokio::test(start_paused = true)]
async fn changes_of_an_undeclared_kind_are_named_and_break_no_rule() {
    for (change, setting, case) in [
        (json!({"size": "large"}), "`hotUpdates`", "update-there-and-back"),
        (
            json!({"labels": {"a": "b"}}),
            "`incompatibleChange`",
            "create-other-parameters",
        ),
    ] {
        let simulated = Simulated::new().unwrap();
        let target = Target::in_process("simulated", simulated.driver.clone());
        let mut config = simulated.config.clone();
        config.hot_updates = vec![change.clone()];
        config.incompatible_change = Some(change);
        let report = tested(target, config, NoHooks, &[case]).await;
        let Verdict::Inconclusive { reason } = &report.cases[0].verdict else {
            panic!("{case}: {:?}", report.cases[0].verdict);
        };
        assert!(
            reason.contains(setting) && reason.contains("`hot_updatable`"),
            "{reason}"
        );
        assert!(!report.passed && report.broken().next().is_none(), "{case}");
    }
}

/// The hooks of a cloud with at most one VM per name and cluster.
struct OneVmOfAName(Arc<dyn Hooks>);

#[async_trait]
impl Hooks for OneVmOfAName {
    fn supports(&self, hook: Hook) -> bool {
        self.0.supports(hook)
    }

    async fn run(&self, call: &HookCall) -> anyhow::Result<Vec<u8>> {
        if call.hook == Hook::Plant {
            let mut other = call.clone();
            other.hook = Hook::UserData;
            anyhow::ensure!(self.0.run(&other).await.is_err(), "there is a VM of this name");
        }
        self.0.run(call).await
    }
}

/// The hooks of the simulated driver also restart the server, if there is one.
#[tokio::test(start_paused = true)]
async fn a_restart_that_ends_the_connections_is_one() {
    let simulated = Simulated::new().unwrap();
    let (target, server) = served(simulated.driver.clone());
    let cloud = Arc::clone(&simulated.hooks);
    let cases = ["restart-finds-the-vm", "wire-restart"];
    let hooks = RestartingHooks { cloud, server };
    let report = tested(target, simulated.config.clone(), hooks, &cases).await;
    for case in &report.cases {
        assert_eq!(case.verdict, Verdict::Passed, "{}", case.name);
    }
}
