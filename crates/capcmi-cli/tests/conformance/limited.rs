//! Mutants that offer few calls, or serve over gRPC: the suite sees less of them, and still names the broken
//! rule.

use std::sync::Arc;

use capcmi_cli::commands::conformance::simulated::Simulated;
use cmi_conformance::{NoHooks, Report, Selection, Target, Verdict, run};
use cmi_driver::{Capabilities, Operation};
use tokio_util::sync::CancellationToken;

use crate::flaw::Flaw::{self, *};
use crate::for_each;
use crate::mutant::Mutant;
use crate::served::{Server, served};

/// The calls that the driver offers, and whether it serves over gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Only the required calls.
    Required,
    /// Adds GetMachineStatus, and InitializeMachine, which completes its VMs.
    WithStatus,
    /// All calls, through gRPC.
    Plugin,
}

impl Shape {
    fn supports(self, operation: Operation) -> bool {
        match self {
            Self::Required => Capabilities::minimal().supports(operation),
            Self::WithStatus => match operation {
                Operation::GetMachineStatus | Operation::InitializeMachine => true,
                _ => Capabilities::minimal().supports(operation),
            },
            Self::Plugin => true,
        }
    }
}

const MUTANTS: &[(Shape, Flaw, &str)] = &[
    (Shape::Required, CreateRacesUnseen, "DRV-CR-10"),
    (Shape::Required, CreateRacesUnseen, "PLG-CR-10"),
    (Shape::Required, CreateRacesUnseen, "CMI-84"),
    (Shape::Required, CreateForgets, "DRV-10"),
    (Shape::Required, CreateAdoptsAnything, "DRV-CR-06"),
    (Shape::Required, CreateMakesThenChecks, "DRV-CR-03"),
    (Shape::Required, CreateMakesOutOfRange, "DRV-CR-11"),
    (Shape::Required, CreateMakesBeyondQuota, "DRV-CR-08"),
    (Shape::Required, DeleteDoesNothing, "DRV-18"),
    (Shape::Required, DeleteDoesNothing, "DRV-DE-00"),
    (Shape::Required, DeleteDoesNothing, "DRV-23"),
    (Shape::Required, DeleteTooEarly, "DRV-23"),
    (Shape::Required, DeleteAnyCluster, "DRV-20"),
    (Shape::Required, DeleteAnyIdOfCluster, "DRV-20"),
    (Shape::Required, DeleteAnother, "CMI-79"),
    (Shape::Required, SecretOfUserData, "OPS-11"),
    (Shape::WithStatus, CreateRacesUnseen, "DRV-CR-10"),
    (Shape::WithStatus, CreateMakesThenChecks, "DRV-CR-03"),
    (Shape::WithStatus, CreateMakesOutOfRange, "DRV-CR-11"),
    (Shape::WithStatus, CreateMakesBeyondQuota, "DRV-CR-08"),
    (Shape::WithStatus, DeleteDoesNothing, "DRV-18"),
    (Shape::WithStatus, StatusAnyCluster, "DRV-28"),
    (Shape::WithStatus, StatusAnyIdOfCluster, "DRV-27"),
    (Shape::Plugin, InfoBadName, "CMI-53"),
    (Shape::Plugin, InfoLongName, "CMI-51"),
    (Shape::Plugin, InfoHugeManifest, "CMI-56"),
    (Shape::Plugin, InfoEmptyLabel, "CMI-51"),
    (Shape::Plugin, InfoLongVersion, "CMI-14"),
    (Shape::Plugin, SchemaRefusesTheSample, "CAP-07"),
    (Shape::Plugin, ZonesTwice, "CAP-08"),
    (Shape::Plugin, ZonesNameless, "CAP-08"),
    (Shape::Plugin, DescribesGarbage, "CAP-10"),
    (Shape::Plugin, ShutDownDoesNothing, "PLG-SD-00"),
    (Shape::Plugin, CreateRacesUnseen, "DRV-CR-10"),
    (Shape::Plugin, DeleteDoesNothing, "DRV-18"),
    (Shape::Plugin, ListLeaks, "CMI-49"),
    (Shape::Plugin, StatusAnyIdentity, "CAP-03"),
];

/// Returns a mutant as the suite meets it, and its server.
fn target(shape: Shape, mutant: Arc<Mutant>) -> (Target, Option<Arc<Server>>) {
    if shape != Shape::Plugin {
        return (Target::in_process("the driver", mutant), None);
    }
    let (target, served) = served(mutant);
    (target, Some(served))
}

/// Without hooks: no fault can be caused in its back end.
async fn tested(shape: Shape, flaw: Flaw, only: &[&str]) -> Report {
    let simulated = Simulated::new().unwrap();
    let offered = Operation::ALL
        .into_iter()
        .filter(|operation| shape.supports(*operation));
    let mutant = Mutant::offering(offered, simulated.driver.clone(), flaw);
    let (target, _served) = target(shape, Arc::new(mutant));
    let mut config = simulated.config.clone();
    config.call_seconds = 5.0;
    config.shut_down_seconds = 1.0;
    let selection = Selection::only(only.iter().copied());
    run(
        target,
        config,
        Arc::new(NoHooks),
        &selection,
        &(),
        CancellationToken::new(),
    )
    .await
    .unwrap()
}

async fn survives(shape: Shape, flaw: Flaw, rule: &'static str) -> Option<String> {
    let report = tested(shape, flaw, &[rule]).await;
    let found = report.rule(rule).unwrap();
    (!found.verdict.is_failure()).then(|| {
        let reason = found.verdict.reason().unwrap_or("-");
        format!("{shape:?} {flaw:?}: {rule} {} ({reason})", found.verdict)
    })
}

#[test]
fn the_rule_that_a_narrow_mutant_breaks_is_named() {
    let ended = for_each(MUTANTS, |(shape, flaw, rule)| survives(*shape, *flaw, rule));
    let survivors: Vec<_> = ended.into_iter().flatten().collect();
    assert!(
        survivors.is_empty(),
        "{} survived:\n{}",
        survivors.len(),
        survivors.join("\n")
    );
}

/// Without a flaw, the driver passes: so the mutants fail due to their flaws.
#[tokio::test(start_paused = true)]
async fn a_driver_without_a_flaw_passes_where_narrow_mutants_fail() {
    for shape in [Shape::Required, Shape::WithStatus, Shape::Plugin] {
        let of_shape = MUTANTS.iter().filter(|(of, ..)| *of == shape);
        let rules: Vec<_> = of_shape.map(|(.., rule)| *rule).collect();
        let report = tested(shape, Nothing, &rules).await;
        for rule in rules {
            let verdict = &report.rule(rule).unwrap().verdict;
            assert_eq!(*verdict, Verdict::Passed, "{shape:?}: {rule}");
        }
        assert!(report.passed, "{shape:?}: {:?}", report.leftovers);
    }
}
