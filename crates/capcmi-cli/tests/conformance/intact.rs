//! The simulated driver keeps every rule.

use std::collections::BTreeSet;
use std::sync::Arc;

use capcmi_cli::commands::conformance::simulated::Simulated;
use cmi_conformance::rules;
use cmi_conformance::{Report, Selection, Target, Verdict, run};
use cmi_driver::Operation;
use cmi_simulated::{SimulatedConfig, SimulatedDriver};
use tokio_util::sync::CancellationToken;

use crate::tested_patiently;

async fn whole(simulated: &Simulated) -> Report {
    tested_patiently(simulated, simulated.driver.clone(), &[]).await
}

/// The ids of the rules that fared so.
fn rows(report: &Report, fared: impl Fn(&Verdict) -> bool) -> BTreeSet<&'static str> {
    let rules = report.rules.iter().filter(|rule| fared(&rule.verdict));
    rules.map(|rule| rule.id).collect()
}

#[tokio::test(start_paused = true)]
async fn the_simulated_driver_keeps_every_rule_and_no_vm_is_left() {
    let simulated = Simulated::new().unwrap();
    let report = whole(&simulated).await;
    let broken: Vec<_> = report.broken().collect();
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(
        report.passed && report.leftovers.is_empty(),
        "{:?}",
        report.leftovers
    );
    assert_eq!(simulated.driver.console().vms().unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_run_in_process_tests_every_rule_except_the_wire_and_untested_rules() {
    let simulated = Simulated::new().unwrap();
    let report = whole(&simulated).await;
    let untested: BTreeSet<_> = rules::all()
        .filter(|rule| !rule.proof.is_by_cases())
        .map(|rule| rule.id)
        .collect();
    assert_eq!(
        rows(&report, |verdict| matches!(verdict, Verdict::NotTested { .. })),
        untested
    );
    for rule in &report.rules {
        if let Verdict::Skipped { reason } = &rule.verdict {
            assert!(reason.contains("endpoint"), "{}: {reason}", rule.id);
        }
    }
}

/// DRV-26, DRV-33, DRV-40, DRV-48: a driver with create and delete alone is compliant.
#[tokio::test(start_paused = true)]
async fn calls_that_a_driver_does_not_offer_are_skipped_with_a_reason() {
    let simulated = Simulated::new().unwrap();
    let required = cmi_driver::Capabilities::minimal();
    let config = SimulatedConfig {
        delete_seconds: 0.02,
        disabled_calls: Operation::ALL
            .into_iter()
            .filter(|operation| !required.supports(*operation))
            .collect(),
        ..SimulatedConfig::default()
    };
    let driver = Arc::new(SimulatedDriver::new(config).unwrap());
    let mut config = simulated.config.clone();
    (
        config.bad_secrets,
        config.restricted_secrets,
        config.quota_breaking_spec,
        config.full_failure_domain,
    ) = (Vec::new(), None, None, None);
    let report = run(
        Target::in_process("minimal", driver.clone()),
        config,
        Arc::new(cmi_conformance::NoHooks),
        &Selection::default(),
        &(),
        CancellationToken::new(),
    )
    .await
    .unwrap();
    let broken: Vec<_> = report.broken().collect();
    assert!(report.passed, "{broken:#?}");
    assert_eq!(report.rule("DRV-26").unwrap().verdict, Verdict::Passed);
    let Verdict::Skipped { reason } = &report.rule("DRV-34").unwrap().verdict else {
        panic!("a driver without ListMachines can't be asked for a whole list");
    };
    assert!(reason.contains("does not offer ListMachines"), "{reason}");
    assert_eq!(driver.console().vms().unwrap(), []);
}
