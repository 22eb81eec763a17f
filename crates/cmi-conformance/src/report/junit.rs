//! The report for a CI server.

use quick_junit::{NonSuccessKind, Report as Junit, TestCase, TestCaseStatus, TestSuite};

use super::{CaseReport, Report, Verdict};

/// The report can't be written as XML.
#[derive(Debug, thiserror::Error)]
#[error("writing the report as JUnit XML failed")]
pub struct JunitError(#[from] quick_junit::SerializeError);

/// JUnit XML: one test per case, with its rows as properties, and one for what was left behind.
///
/// # Errors
/// [`JunitError`] when a text can't be put into XML.
pub fn junit(report: &Report) -> Result<String, JunitError> {
    let mut suite = TestSuite::new(format!("conformance of {}", report.target));
    suite.add_test_cases(report.cases.iter().map(test));
    let mut whole = TestCaseStatus::success();
    if !report.leftovers.is_empty() || report.interrupted || !report.tested_something() {
        whole = TestCaseStatus::non_success(NonSuccessKind::Failure);
        whole.set_message(if report.leftovers.is_empty() {
            "the run was ended early, or tested nothing".to_owned()
        } else {
            format!("left behind: {}", report.leftovers.join("; "))
        });
    }
    suite.add_test_case(TestCase::new("the run was whole and left nothing behind", whole));
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
