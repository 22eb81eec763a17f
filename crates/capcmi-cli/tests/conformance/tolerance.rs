//! Drivers that use a freedom of the contract pass, and their mutants are still found.

use std::sync::Arc;
use std::time::Duration;

use capcmi_cli::commands::conformance::simulated::Simulated;
use cmi_conformance::{NoHooks, Report, Selection, Target, Verdict, run};
use cmi_driver::{Driver, Operation};
use tokio_util::sync::CancellationToken;

use crate::flaw::Flaw::{self, *};
use crate::mutant::Mutant;
use crate::variants::Variant;
use crate::{for_each, tested, tested_patiently};

/// The calls that a driver need not have, and has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Required,
    Full,
}

impl Shape {
    fn supports(self) -> Vec<Operation> {
        let required = cmi_driver::Capabilities::minimal();
        let all = Operation::ALL.into_iter();
        all.filter(|operation| self == Self::Full || required.supports(*operation))
            .collect()
    }
}

fn is_compliant_and_leaves_nothing(simulated: &Simulated, report: &Report) {
    let broken: Vec<_> = report.broken().collect();
    let inconclusive: Vec<_> = report
        .cases
        .iter()
        .filter(|case| case.verdict.is_inconclusive())
        .collect();
    assert!(
        broken.is_empty() && inconclusive.is_empty(),
        "{broken:#?} {inconclusive:#?}"
    );
    assert!(report.passed, "{:?}", report.leftovers);
    assert_eq!(simulated.driver.console().vms().unwrap(), []);
}

/// CMI-10, CMI-34, DRV-CR-10: the second call on a machine gets the same VM, or ABORTED, even if the caller
/// of the first has stopped waiting.
#[tokio::test(start_paused = true)]
async fn a_driver_whose_calls_run_on_and_keep_others_away_is_compliant() {
    let simulated = Simulated::new().unwrap();
    let driver = Arc::new(Variant::runs_on(simulated.driver.clone()));
    let report = tested_patiently(&simulated, driver, &[]).await;
    is_compliant_and_leaves_nothing(&simulated, &report);
}

/// DRV-CR-11: a refused spec leaves no VM behind.
#[tokio::test(start_paused = true)]
async fn a_driver_that_refuses_a_spec_in_delete_as_in_create_is_compliant() {
    let simulated = Simulated::new().unwrap();
    let driver = Arc::new(Variant::checks_what_it_deletes(simulated.driver.clone()));
    let report = tested_patiently(&simulated, driver, &[]).await;
    is_compliant_and_leaves_nothing(&simulated, &report);
}

/// DRV-44, CMI-148, CMI-154: in Kubernetes a volume has a source.
#[tokio::test(start_paused = true)]
async fn a_driver_that_refuses_a_volume_without_a_source_is_compliant() {
    let simulated = Simulated::new().unwrap();
    let driver = Mutant::new(simulated.driver.clone(), VolumesRefuseNoSource);
    let report = tested_patiently(&simulated, Arc::new(driver), &["DRV-44", "CMI-148"]).await;
    is_compliant_and_leaves_nothing(&simulated, &report);
}

/// Within the consistency window, neither a look-up nor a deletion finds a new VM.
#[tokio::test(start_paused = true)]
async fn a_driver_whose_view_is_behind_is_compliant_and_the_run_leaves_nothing() {
    let simulated = Simulated::new().unwrap();
    let window = Duration::from_millis(60);
    let driver = Arc::new(Variant::behind(simulated.driver.clone(), window));
    let report = tested_patiently(&simulated, driver, &[]).await;
    is_compliant_and_leaves_nothing(&simulated, &report);
}

/// A deletion immediately afterwards finds nothing, and answers OK.
#[tokio::test(start_paused = true)]
async fn a_vm_that_was_made_a_moment_ago_is_not_left_where_the_view_is_behind() {
    let simulated = Simulated::new().unwrap();
    let window = Duration::from_secs(1);
    let driver = Arc::new(Variant::behind(simulated.driver.clone(), window));
    let report = tested_patiently(&simulated, driver, &["create-and-status-at-once"]).await;
    is_compliant_and_leaves_nothing(&simulated, &report);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_ended_early_leaves_nothing_where_the_view_is_behind() {
    let simulated = Simulated::new().unwrap();
    let stop = CancellationToken::new();
    let (driver, stopping) = (simulated.driver.clone(), stop.clone());
    let watch = tokio::spawn(async move {
        while driver.calls().count(Operation::CreateMachine) < 20 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stopping.cancel();
    });
    let variant = Variant::behind(simulated.driver.clone(), Duration::from_secs(1));
    let everything = Selection::default();
    let report = run(
        Target::in_process("behind", Arc::new(variant)),
        simulated.config.clone(),
        Arc::new(NoHooks),
        &everything,
        &(),
        stop,
    );
    let report = tokio::time::timeout(Duration::from_mins(1), report)
        .await
        .unwrap()
        .unwrap();
    watch.await.unwrap();
    assert!(
        report.interrupted && report.leftovers.is_empty(),
        "{:?}",
        report.leftovers
    );
    assert_eq!(simulated.driver.console().vms().unwrap(), []);
}

/// DRV-CR-09, DRV-GS-09: a protected instance of EC2 can be neither stopped nor terminated. A create that
/// finds it does neither.
#[tokio::test(start_paused = true)]
async fn a_driver_may_read_and_adopt_a_locked_vm() {
    let simulated = Simulated::new().unwrap();
    let driver = Variant::reads_locked(simulated.driver.clone(), simulated.driver.console());
    let cases = ["create-locked", "status-locked"];
    let report = tested_patiently(&simulated, Arc::new(driver), &cases).await;
    is_compliant_and_leaves_nothing(&simulated, &report);
    for rule in ["DRV-CR-09", "DRV-GS-09"] {
        assert_eq!(report.rule(rule).unwrap().verdict, Verdict::Passed, "{rule}");
    }
}

/// With a quick back end, cases create many VMs without the author's request.
#[tokio::test(flavor = "multi_thread")]
async fn a_quota_of_a_few_vms_is_no_fault_of_the_driver() {
    let simulated = Simulated::new().unwrap();
    simulated.driver.console().set_quota(Some(12)).unwrap();
    for case in ["create-at-once", "list-all"] {
        let report = tested_patiently(&simulated, simulated.driver.clone(), &[case]).await;
        is_compliant_and_leaves_nothing(&simulated, &report);
        let [tested] = report.cases.as_slice() else {
            panic!("{:?}", report.cases);
        };
        assert_eq!(tested.verdict, Verdict::Passed);
    }
}

/// Returns a driver with only create and delete, or with all calls, whose ids are made from names.
fn named(shape: Shape, simulated: &Simulated, flaw: Flaw) -> Arc<dyn Driver> {
    let mutant = Arc::new(Mutant::offering(shape.supports(), simulated.driver.clone(), flaw));
    Arc::new(Variant::named(mutant, simulated.driver.console()))
}

/// DRV-13, CMI-85, CMI-92: a provider id may be the machine's name, and then a new VM has the id of its
/// predecessor.
#[tokio::test(start_paused = true)]
async fn a_driver_whose_ids_are_made_of_names_is_compliant() {
    for shape in [Shape::Full, Shape::Required] {
        let simulated = Simulated::new().unwrap();
        let report = tested_patiently(&simulated, named(shape, &simulated, Nothing), &[]).await;
        is_compliant_and_leaves_nothing(&simulated, &report);
        let again = report
            .cases
            .iter()
            .find(|case| case.name == "create-after-delete");
        assert!(again.unwrap().warnings[0].contains("of the one that is gone"));
    }
}

/// A case that recreates a VM must not hide that it was gone.
const MUTANTS: &[(Shape, Flaw, &str)] = &[
    (Shape::Full, DeleteAnyId, "DRV-20"),
    (Shape::Full, DeleteAnyIdOfCluster, "CMI-101"),
    (Shape::Full, DeleteAnyIdentity, "CAP-02"),
    (Shape::Full, DeleteAnyCluster, "DRV-20"),
    (Shape::Full, DeleteAnother, "CMI-79"),
    (Shape::Full, DeleteDoesNothing, "DRV-23"),
    (Shape::Required, DeleteAnyId, "CMI-101"),
    (Shape::Required, DeleteAnyIdOfCluster, "DRV-20"),
    (Shape::Required, DeleteAnyIdentity, "CAP-02"),
    (Shape::Required, DeleteAnyCluster, "DRV-20"),
    (Shape::Required, DeleteAnother, "CMI-79"),
    (Shape::Required, DeleteDoesNothing, "DRV-23"),
    (Shape::Required, DeleteTooEarly, "DRV-23"),
];

async fn survives(shape: Shape, flaw: Flaw, rule: &'static str) -> Option<String> {
    let simulated = Simulated::new().unwrap();
    let report = tested(&simulated, named(shape, &simulated, flaw), &[rule]).await;
    let found = report.rule(rule).unwrap();
    (!found.verdict.is_failure()).then(|| format!("{shape:?} {flaw:?}: {rule} {}", found.verdict))
}

#[test]
fn a_mutant_whose_ids_are_made_of_names_is_found_out() {
    let ended = for_each(MUTANTS, |(shape, flaw, rule)| survives(*shape, *flaw, rule));
    let survivors: Vec<_> = ended.into_iter().flatten().collect();
    assert!(survivors.is_empty(), "{}", survivors.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn a_driver_whose_ids_are_made_of_names_passes_where_its_mutants_fail() {
    for shape in [Shape::Full, Shape::Required] {
        let simulated = Simulated::new().unwrap();
        let rules: Vec<_> = MUTANTS.iter().map(|(.., rule)| *rule).collect();
        let report = tested_patiently(&simulated, named(shape, &simulated, Nothing), &rules).await;
        for rule in rules {
            assert_eq!(
                report.rule(rule).unwrap().verdict,
                Verdict::Passed,
                "{shape:?}: {rule}"
            );
        }
    }
}
