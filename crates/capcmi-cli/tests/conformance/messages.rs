//! The messages of a run lead to the mistake, and name everything.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use capcmi_cli::commands::conformance::simulated::Simulated;
use cmi_conformance::{Hook, HookCall, Hooks, Report, Selection, Target, Verdict, report, run};
use cmi_driver::{Code, Operation};
use cmi_grpc::server::{Listener, serve};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio_util::sync::CancellationToken;

use crate::flaw::Flaw;
use crate::mutant::Mutant;
use crate::{tested, tested_with};

/// Hooks that succeed and do nothing.
struct Idle;

#[async_trait]
impl Hooks for Idle {
    fn supports(&self, _hook: Hook) -> bool {
        true
    }

    async fn run(&self, _call: &HookCall) -> anyhow::Result<Vec<u8>> {
        Ok(Vec::new())
    }
}

fn reasons(report: &Report, of: fn(&Verdict) -> bool) -> Vec<&str> {
    let cases = report.cases.iter().filter(|case| of(&case.verdict));
    cases.filter_map(|case| case.verdict.reason()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_hook_after_which_the_driver_answers_ok_is_named() {
    let simulated = Simulated::new().unwrap();
    let target = Target::in_process("simulated", simulated.driver.clone());
    let only = Selection::only(["create-unavailable"]);
    let (config, stop) = (simulated.config.clone(), CancellationToken::new());
    let report = run(target, config, Arc::new(Idle), &only, &(), stop)
        .await
        .unwrap();
    let [reason] = reasons(&report, Verdict::is_failure).try_into().unwrap();
    assert!(
        reason.contains("hook `unavailable`") && reason.contains("may have done nothing"),
        "{reason}"
    );
}

/// DRV-30: the worst possible fault.
#[tokio::test(start_paused = true)]
async fn an_outage_answered_as_not_found_fails_with_its_consequence() {
    let simulated = Simulated::new().unwrap();
    let flaw = Flaw::Says(Operation::GetMachineStatus, Code::Unavailable, Code::NotFound);
    let mutant = Arc::new(Mutant::new(simulated.driver.clone(), flaw));
    let report = tested(&simulated, mutant, &["status-unavailable"]).await;
    let failed = reasons(&report, Verdict::is_failure);
    let [reason] = failed.as_slice() else {
        panic!("{failed:?}");
    };
    for words in ["after the hook `unavailable`: ", "another would be made"] {
        assert!(reason.contains(words), "{reason}");
    }
}

/// Runs this many cases at a time. The simulated driver dies at the first name with a dot.
async fn dies_of_dots(parallel: usize) -> Report {
    let simulated = Simulated::new().unwrap();
    let mutant = Arc::new(Mutant::new(simulated.driver.clone(), Flaw::DiesOfDots));
    tested_with(&simulated, mutant, &[], |config| config.parallel = parallel).await
}

#[tokio::test(start_paused = true)]
async fn a_crash_during_a_single_request_is_reported_once_with_it() {
    let report = dies_of_dots(1).await;
    let failed = report.cases.iter().filter(|case| case.verdict.is_failure());
    let [case] = failed.collect::<Vec<_>>().try_into().unwrap();
    assert_eq!(case.name, "create-dotted-name");
    let reason = case.verdict.reason().unwrap();
    assert!(
        reason.starts_with("the driver is gone since CreateMachine of machine `") && reason.contains("-a.b`"),
        "{reason}"
    );
    let unclear = reasons(&report, Verdict::is_inconclusive);
    assert!(unclear.len() > 20, "{unclear:#?}");
    assert!(!report.passed);
}

/// The failing request is unknown: no case and no row is blamed.
#[tokio::test(start_paused = true)]
async fn a_crash_during_several_requests_names_them_and_breaks_no_rule() {
    let report = dies_of_dots(8).await;
    let failed = reasons(&report, Verdict::is_failure);
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(!report.passed);
    let text = report::text(&report);
    let lines = text
        .lines()
        .filter(|line| line.contains("run again with `parallel: 1`"));
    let [line] = lines.collect::<Vec<_>>().try_into().unwrap();
    assert!(
        line.starts_with("the driver went away in one of these requests: ") && line.contains("-a.b`"),
        "{line}"
    );
    assert!(line.contains("`create-dotted-name`"), "{line}");
    let unclear = reasons(&report, Verdict::is_inconclusive);
    let refers = |reason: &&str| reason.contains("since one of the requests that a line at the end names");
    assert!(unclear.len() > 20 && unclear.iter().all(refers), "{unclear:#?}");
    let left = text.lines().filter(|line| line.starts_with("left behind"));
    let left: Vec<_> = left.collect();
    assert!(left.len() <= 2, "{left:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_is_named_with_its_machine_and_the_limit() {
    let simulated = Simulated::new().unwrap();
    let flaw = Flaw::Hangs(Operation::GetMachineStatus);
    let mutant = Mutant::new(simulated.driver.clone(), flaw);
    let report = tested(&simulated, Arc::new(mutant), &["status-like-create"]).await;
    let [reason] = reasons(&report, Verdict::is_failure).try_into().unwrap();
    assert!(
        reason.contains("GetMachineStatus of machine `") && reason.contains("did not answer within 2 s"),
        "{reason}"
    );
}

/// The deletions hang, so the run cannot end without the signal.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_the_command_after_it_has_named_what_may_be_left() {
    let simulated = Simulated::new().unwrap();
    let flaw = Flaw::Hangs(Operation::DeleteMachine);
    let mutant = Arc::new(Mutant::new(simulated.driver.clone(), flaw));
    let listener = Listener::bind(&"tcp://127.0.0.1:0".parse().unwrap(), None)
        .await
        .unwrap();
    let endpoint = listener.endpoint().unwrap().to_string();
    let stop = CancellationToken::new();
    let _served = stop.clone().drop_guard();
    tokio::spawn(serve(
        mutant,
        listener,
        stop.cancelled_owned(),
        Duration::from_secs(1),
    ));
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("suite.yaml");
    std::fs::write(
        &config,
        include_str!("../../src/commands/conformance/simulated.yaml"),
    )
    .unwrap();
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_capcmi"))
        .args(["conformance", "--endpoint", &endpoint, "--config"])
        .arg(&config)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let made = async {
        while simulated.driver.console().vms().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), made).await.unwrap();
    let pid = command.id().unwrap().to_string();
    let signal = |name: &str| {
        let sent = std::process::Command::new("kill").args([name, &pid]).status();
        assert!(sent.unwrap().success());
    };
    let mut errors = BufReader::new(command.stderr.take().unwrap());
    let mut first = String::new();
    signal("-HUP");
    let said = errors.read_line(&mut first);
    tokio::time::timeout(Duration::from_mins(1), said)
        .await
        .unwrap()
        .unwrap();
    assert!(first.contains("stopping early"), "{first}");
    signal("-TERM");
    let ended = tokio::time::timeout(Duration::from_mins(1), command.wait()).await;
    assert_eq!(ended.unwrap().unwrap().code(), Some(130));
    let mut named = String::new();
    errors.read_to_string(&mut named).await.unwrap();
    for vm in simulated.driver.console().vms().unwrap() {
        assert!(
            named.contains(&vm.name) && named.contains(vm.cluster()),
            "{named}"
        );
    }
}

/// The report names the first cut, and the missing items of a list instead of all its items.
#[tokio::test(start_paused = true)]
async fn what_is_missing_is_named_and_not_all_there_is() {
    let simulated = Simulated::new().unwrap();
    let mutant = Mutant::new(simulated.driver.clone(), Flaw::CutsNames(20));
    let report = tested(&simulated, Arc::new(mutant), &["create-similar-names"]).await;
    let [reason] = reasons(&report, Verdict::is_failure).try_into().unwrap();
    assert!(reason.contains("after the first 20 alone"), "{reason}");

    let simulated = Simulated::new().unwrap();
    let mutant = Mutant::new(simulated.driver.clone(), Flaw::ListOneLongPage);
    let report = tested(&simulated, Arc::new(mutant), &["list-all"]).await;
    let [reason] = reasons(&report, Verdict::is_failure).try_into().unwrap();
    assert!(
        reason.contains("VMs, and has ") && reason.contains("it lacks [") && reason.len() < 600,
        "{reason}"
    );
}
