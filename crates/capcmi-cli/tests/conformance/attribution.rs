//! Only a broken rule is a finding. An inconclusive rule is neither broken nor shown to hold.

use std::sync::Arc;
use std::time::Duration;

use capcmi_cli::commands::conformance::simulated::Simulated;
use cmi_conformance::{Config, NoHooks, Report, Selection, Target, Verdict, run};
use cmi_driver::Operation;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::flaw::Flaw::{self, *};
use crate::mutant::Mutant;
use crate::tested;

async fn mutant(flaw: Flaw, only: &[&str]) -> Report {
    let simulated = Simulated::new().unwrap();
    let mutant = Arc::new(Mutant::new(simulated.driver.clone(), flaw));
    tested(&simulated, mutant, only).await
}

/// The simulated driver, with another provider spec.
async fn configured(change: &serde_json::Value, only: &[&str]) -> Report {
    let change = change.as_object().unwrap().clone();
    run_with(MigrateRenames, |config| config.provider_spec.extend(change), only).await
}

/// Runs the suite on a mutant whose configuration differs from the simulated driver's. Without hooks: no
/// fault can be injected into its back end.
async fn run_with(flaw: Flaw, say: impl FnOnce(&mut Config), only: &[&str]) -> Report {
    let simulated = Simulated::new().unwrap();
    let mut config = simulated.config.clone();
    config.shut_down_seconds = 1.0;
    say(&mut config);
    let mutant = Mutant::new(simulated.driver.clone(), flaw);
    let target = Target::in_process("the driver", Arc::new(mutant));
    let selection = Selection::only(only.iter().copied());
    let hooks = Arc::new(NoHooks);
    run(target, config, hooks, &selection, &(), CancellationToken::new())
        .await
        .unwrap()
}

/// DRV-33
#[tokio::test(start_paused = true)]
async fn a_false_capability_alone_fails_and_dependent_rules_are_inconclusive() {
    let report = mutant(Boasts(Operation::ListMachines), &[]).await;
    assert!(report.rule("DRV-33").unwrap().verdict.is_failure());
    let broken: Vec<_> = report.broken().map(|rule| rule.id).collect();
    let other = |id: &&str| !["DRV-33", "CMI-136", "CMI-03"].contains(id) && !id.contains("-LM-");
    let named: Vec<_> = broken.iter().filter(|id| other(id)).collect();
    assert!(named.len() < 16, "{named:?}");
    let Verdict::Inconclusive { reason } = &report.rule("DRV-DE-00").unwrap().verdict else {
        panic!("that a VM is deleted can't be seen without its list");
    };
    assert!(
        reason.contains("preparation failed") && reason.contains("ListMachines"),
        "{reason}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_run_in_which_something_was_inconclusive_is_not_compliant() {
    let report = mutant(Boasts(Operation::ListMachines), &["delete-deletes"]).await;
    assert_eq!(report.broken().count(), 0);
    assert!(!report.passed);
}

/// OPS-11: it is the configuration that is wrong, and no driver leaks into a file that is not there.
#[tokio::test(start_paused = true)]
async fn a_log_that_is_not_where_it_is_looked_for_is_no_leak() {
    let missing = |config: &mut Config| config.logs.push("/nowhere/driver.log".into());
    let report = run_with(Nothing, missing, &["secrets-are-not-logged"]).await;
    let Verdict::Inconclusive { reason } = &report.rule("OPS-11").unwrap().verdict else {
        panic!("{:?}", report.rule("OPS-11"));
    };
    assert!(reason.contains("`logs`: /nowhere/driver.log"), "{reason}");
    assert!(!report.passed);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_tried_when_the_configuration_makes_no_vm() {
    let report = configured(&json!({"vmPool": "a-typo"}), &[]).await;
    let failed: Vec<_> = report
        .cases
        .iter()
        .filter(|case| case.verdict.is_failure())
        .collect();
    let [first] = failed.as_slice() else {
        panic!("{failed:#?}");
    };
    assert_eq!(first.name, "create-makes-a-vm");
    let Verdict::Inconclusive { reason } = &report.rule("DRV-23").unwrap().verdict else {
        panic!("without a VM nothing can be deleted");
    };
    assert!(
        reason.contains("create-makes-a-vm") && reason.contains("a-typo"),
        "{reason}"
    );
    assert!(!report.passed);
}

/// DRV-02: the cluster's tag is mandatory, and is not the author's to name.
#[tokio::test(start_paused = true)]
async fn the_cluster_tag_stays_mandatory_beside_tags_of_the_author() {
    let report = configured(&json!({"tags": {"team": "a"}}), &["create-defaults"]).await;
    assert_eq!(report.rule("DRV-02").unwrap().verdict, Verdict::Passed);
}

/// DRV-GV-14: a driver that needs no back end for a call shows nothing about an outage.
#[tokio::test(start_paused = true)]
async fn volumes_that_need_no_back_end_show_nothing_about_one_that_is_broken() {
    for (code, rule) in [
        (cmi_driver::Code::Unavailable, "DRV-GV-14"),
        (cmi_driver::Code::Unknown, "DRV-GV-02"),
        (cmi_driver::Code::Internal, "DRV-GV-13"),
    ] {
        let report = mutant(Pretends(Operation::GetVolumeIds, code), &[rule]).await;
        let Verdict::Skipped { reason } = &report.rule(rule).unwrap().verdict else {
            panic!("{rule}: {:?}", report.rule(rule));
        };
        assert!(reason.contains("needs no back end"), "{reason}");
    }
}

/// CMI-127: OK of a shut-down means as well that the guest will stop.
#[tokio::test(start_paused = true)]
async fn a_shut_down_may_answer_ok_once_the_guest_accepts_it() {
    let rules = [
        "PLG-SD-00",
        "PLG-SD-10",
        "PLG-SD-12",
        "CMI-126",
        "CMI-127",
        "CMI-128",
        "CMI-129",
    ];
    let report = mutant(ShutDownAccepts, &rules).await;
    for rule in rules {
        assert_eq!(report.rule(rule).unwrap().verdict, Verdict::Passed, "{rule}");
    }
    assert!(report.passed);
}

#[tokio::test(start_paused = true)]
async fn whether_a_guest_stops_is_not_known_without_a_power_state() {
    let report = mutant(StatusWithoutPower, &["PLG-SD-00", "CMI-128"]).await;
    for rule in ["PLG-SD-00", "CMI-128"] {
        let Verdict::Skipped { reason } = &report.rule(rule).unwrap().verdict else {
            panic!("{rule}: {:?}", report.rule(rule));
        };
        assert!(reason.contains("power state"), "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn whether_an_update_changes_anything_is_not_known_without_the_hook() {
    let report = run_with(UpdateDoesNothing, |_| {}, &["UPD-03"]).await;
    let Verdict::Skipped { reason } = &report.rule("UPD-03").unwrap().verdict else {
        panic!("{:?}", report.rule("UPD-03"));
    };
    assert!(reason.contains("mutations"), "{reason}");
}

/// CMI-150: a driver may treat an empty list of volumes as missing.
#[tokio::test(start_paused = true)]
async fn a_driver_that_refuses_an_empty_list_of_volumes_keeps_the_rules() {
    let cases = ["volumes-offered", "volumes-none", "volumes-cancelled"];
    let report = run_with(
        VolumesRefuseNone,
        |config| config.persistent_volumes.own.clear(),
        &cases,
    )
    .await;
    for case in &report.cases {
        assert_eq!(case.verdict, Verdict::Passed, "{}", case.name);
    }
    assert!(report.passed && report.cases.len() == cases.len());
}

/// OPS-11, CMI-165: an account's id is in the credentials and in every provider id.
#[tokio::test(start_paused = true)]
async fn what_is_public_among_the_credentials_may_come_back() {
    let public = |config: &mut Config| config.public_secret_keys.extend(["token".to_owned()]);
    for (leaks, report) in [
        (true, run_with(SecretInAddress, |_| {}, &["CMI-165"]).await),
        (false, run_with(SecretInAddress, public, &["CMI-165"]).await),
    ] {
        assert_eq!(report.rule("CMI-165").unwrap().verdict.is_failure(), leaks);
    }
}

/// The report names VMs that may be left, and the run does not wait for each of them.
#[tokio::test(start_paused = true)]
async fn a_driver_that_is_gone_in_the_middle_ends_the_run() {
    let run = mutant(DiesAfter(60), &[]);
    let report = tokio::time::timeout(Duration::from_mins(1), run).await.unwrap();
    assert!(report.interrupted && !report.passed);
    assert!(!report.leftovers.is_empty());
    let reason = report.cases.last().unwrap().verdict.reason();
    assert!(
        reason.is_some_and(|reason| reason.contains("can't be reached any more")),
        "{reason:?}"
    );
}
