//! The report for a CI server.

use quick_junit::{NonSuccessKind, Report as Junit, TestCase, TestCaseStatus, TestSuite};

use super::{CaseReport, Compliance, LayerReport, Report, Verdict};

/// The report can't be written as XML.
#[derive(Debug, thiserror::Error)]
#[error("writing the report as JUnit XML failed")]
pub struct JunitError(#[from] quick_junit::SerializeError);

/// The requirement on a run, and the reason why the run does not meet it.
#[derive(Clone, Copy, Debug)]
pub struct Required<'a> {
    /// The required compliance, such as `capcmi: full`.
    pub what: &'a str,
    /// Why the run does not meet the requirement.
    pub unmet: Option<&'a str>,
}

/// Writes JUnit XML: one test per case, with its rows as properties, one for each layer, one for the
/// remaining VMs, and one for the required level.
///
/// # Errors
/// [`JunitError`] if a text cannot be represented in XML.
pub fn junit(report: &Report, required: Required<'_>) -> Result<String, JunitError> {
    let mut suite = TestSuite::new(format!("conformance of {}", report.target));
    suite.add_test_cases(report.cases.iter().map(test));
    suite.add_test_cases(report.layers.iter().map(layer));
    let mut whole = TestCaseStatus::success();
    let went_away = !report.outages.is_empty();
    if !report.leftovers.is_empty() || went_away || report.interrupted || !report.tested_something() {
        whole = TestCaseStatus::non_success(NonSuccessKind::Failure);
        let left: Vec<_> = report.leftovers.iter().map(ToString::to_string).collect();
        whole.set_message(if went_away {
            "the driver went away".to_owned()
        } else if left.is_empty() {
            "the run was ended early, or tested nothing".to_owned()
        } else {
            format!("left behind: {}", left.join("; "))
        });
    }
    suite.add_test_case(TestCase::new("the run was whole and left nothing behind", whole));
    suite.add_test_case(requirement(required));
    let mut junit = Junit::new("capcmi conformance");
    junit.add_test_suite(suite);
    Ok(junit.to_string()?)
}

fn test(case: &CaseReport) -> TestCase {
    let mut status = match &case.verdict {
        Verdict::Passed => TestCaseStatus::success(),
        Verdict::Failed { .. } => TestCaseStatus::non_success(NonSuccessKind::Failure),
        Verdict::Inconclusive { .. } => TestCaseStatus::non_success(NonSuccessKind::Error),
        Verdict::Skipped { .. } | Verdict::NotTested { .. } => TestCaseStatus::skipped(),
    };
    if let Some(reason) = case.verdict.reason() {
        status.set_message(reason);
    }
    let mut test = TestCase::new(case.name.as_str(), status);
    test.set_classname("conformance").set_time(case.took);
    test.add_property(("title", case.title.as_str()));
    test.add_property(("rules", case.proves.join(" ").as_str()));
    test
}

fn requirement(required: Required<'_>) -> TestCase {
    let mut status = TestCaseStatus::success();
    if let Some(reason) = required.unmet {
        status = TestCaseStatus::non_success(NonSuccessKind::Failure);
        status.set_message(reason);
    }
    let mut test = TestCase::new(format!("required: {}", required.what), status);
    test.set_classname("verdict");
    test
}

fn layer(layer: &LayerReport) -> TestCase {
    let mut status = match layer.compliance {
        Compliance::Yes | Compliance::Basic | Compliance::Full => TestCaseStatus::success(),
        Compliance::No => TestCaseStatus::non_success(NonSuccessKind::Failure),
        Compliance::Part => TestCaseStatus::skipped(),
    };
    if !layer.reasons.is_empty() {
        status.set_message(layer.reasons.join("; "));
    }
    let mut test = TestCase::new(layer.layer.to_string(), status);
    test.set_classname("verdict");
    test.add_property(("compliance", layer.compliance.to_string().as_str()));
    if !layer.missing.is_empty() {
        let missing: Vec<_> = layer.missing.iter().map(String::as_str).collect();
        test.add_property(("not tried without", missing.join(", ").as_str()));
    }
    test
}
