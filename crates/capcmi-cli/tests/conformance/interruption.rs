//! A run that ends early, and a run that tested nothing.

use std::sync::Arc;
use std::time::Duration;

use capcmi_cli::commands::conformance::simulated::Simulated;
use cmi_conformance::{NoHooks, RunError, Selection, Target, Verdict, run};
use cmi_driver::Operation;
use tokio_util::sync::CancellationToken;

use crate::variants::Variant;

#[tokio::test(start_paused = true)]
async fn a_run_that_is_ended_early_deletes_what_it_made_and_is_not_compliant() {
    let simulated = Simulated::new().unwrap();
    let stop = CancellationToken::new();
    let (driver, stopping) = (simulated.driver.clone(), stop.clone());
    let watch = tokio::spawn(async move {
        // By now, many VMs exist and many calls are running.
        while driver.calls().count(Operation::CreateMachine) < 20 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stopping.cancel();
    });
    let everything = Selection::default();
    let run = run(
        Target::in_process("simulated", simulated.driver.clone()),
        simulated.config.clone(),
        Arc::clone(&simulated.hooks),
        &everything,
        &(),
        stop,
    );
    // No further case starts, and the finished cases are cleaned up concurrently.
    let report = tokio::time::timeout(Duration::from_mins(1), run)
        .await
        .unwrap()
        .unwrap();
    watch.await.unwrap();
    assert!(report.interrupted && !report.passed);
    assert!(report.leftovers.is_empty(), "{:?}", report.leftovers);
    assert_eq!(simulated.driver.console().vms().unwrap(), []);
}

/// Otherwise the VM of the abandoned create would be left and not named.
#[tokio::test(start_paused = true)]
async fn a_create_that_is_under_way_when_the_run_is_ended_is_waited_for() {
    let simulated = Simulated::new().unwrap();
    let few = ["create-ids", "create-again", "delete-deletes", "delete-again"];
    let latency = Duration::from_secs(2);
    let driver = Arc::new(Variant::late(simulated.driver.clone(), latency));
    let stop = CancellationToken::new();
    let (running, stopping) = (Arc::clone(&driver), stop.clone());
    let watch = tokio::spawn(async move {
        while running.under_way() < few.len() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stopping.cancel();
    });
    let only = Selection::only(few);
    let run = run(
        Target::in_process("late", driver.clone()),
        simulated.config.clone(),
        Arc::new(NoHooks),
        &only,
        &(),
        stop,
    );
    let report = tokio::time::timeout(Duration::from_mins(2), run).await;
    let report = report.unwrap().unwrap();
    watch.await.unwrap();
    while driver.under_way() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(
        report.interrupted && report.leftovers.is_empty(),
        "{:?}",
        report.leftovers
    );
    assert_eq!(simulated.driver.console().vms().unwrap(), []);
}

#[tokio::test]
async fn a_run_in_which_everything_is_skipped_is_not_compliant() {
    let simulated = Simulated::new().unwrap();
    let report = run(
        Target::in_process("simulated", simulated.driver.clone()),
        simulated.config.clone(),
        Arc::new(NoHooks),
        &Selection::only(["create-locked", "wire-services"]),
        &(),
        CancellationToken::new(),
    )
    .await
    .unwrap();
    assert!(!report.passed);
    assert!(
        report
            .cases
            .iter()
            .all(|case| matches!(case.verdict, Verdict::Skipped { .. }))
    );
}

#[tokio::test]
async fn a_row_that_does_not_exist_or_is_not_tested_can_not_be_asked_for() {
    let simulated = Simulated::new().unwrap();
    for (name, wanted) in [
        ("DRV-99", "DRV-99"),
        ("CMI-01", "neither a tested row nor a case"),
        ("DRV-35", "not tested"),
    ] {
        let error: RunError = run(
            Target::in_process("simulated", simulated.driver.clone()),
            simulated.config.clone(),
            Arc::new(NoHooks),
            &Selection::only([name]),
            &(),
            CancellationToken::new(),
        )
        .await
        .unwrap_err();
        assert!(error.to_string().contains(wanted), "{error}");
    }
}
