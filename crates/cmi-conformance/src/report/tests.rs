use super::*;
use crate::cases;

fn case(name: &str, verdict: Verdict) -> CaseReport {
    let case = cases::all().find(|case| case.name == name).unwrap();
    CaseReport::new(case, verdict, Vec::new(), Duration::from_millis(5))
}

fn failed() -> Verdict {
    Verdict::Failed {
        reason: "two VMs <&> were made".to_owned(),
    }
}

fn skipped() -> Verdict {
    Verdict::Skipped {
        reason: "there is no hook `lock`".to_owned(),
    }
}

fn report(cases: Vec<CaseReport>) -> Report {
    let about: Vec<_> = rules::all().collect();
    Report::new("x", None, cases, &about, Vec::new(), false)
}

#[test]
fn a_binding_rule_that_is_broken_makes_a_driver_not_compliant() {
    let report = report(vec![
        case("create-again", failed()),
        case("create-makes-a-vm", Verdict::Passed),
    ]);
    assert!(report.rule("DRV-10").unwrap().verdict.is_failure());
    assert_eq!(report.rule("DRV-CR-00").unwrap().verdict, Verdict::Passed);
    assert!(!report.compliant);
}

/// DRV-01: SHOULD is not needed.
#[test]
fn a_rule_that_should_hold_and_does_not_leaves_a_driver_compliant() {
    let report = report(vec![
        case("create-makes-a-vm", Verdict::Passed),
        CaseReport {
            proves: vec!["DRV-08"],
            ..case("create-two-clusters", failed())
        },
    ]);
    assert_eq!(report.broken().count(), 1);
    assert!(report.compliant);
}

#[test]
fn a_rule_whose_cases_were_all_skipped_says_what_was_missing() {
    let report = report(vec![
        case("create-makes-a-vm", Verdict::Passed),
        case("create-locked", skipped()),
    ]);
    assert_eq!(report.rule("DRV-CR-09").unwrap().verdict, skipped());
}

#[test]
fn a_run_that_tested_nothing_or_left_something_or_was_ended_early_is_not_compliant() {
    assert!(!report(vec![case("create-locked", skipped())]).compliant);
    let about: Vec<_> = rules::all().collect();
    let passed = || vec![case("create-makes-a-vm", Verdict::Passed)];
    assert!(Report::new("x", None, passed(), &about, Vec::new(), false).compliant);
    assert!(!Report::new("x", None, passed(), &about, vec!["a".to_owned()], false).compliant);
    assert!(!Report::new("x", None, passed(), &about, Vec::new(), true).compliant);
}

#[test]
fn the_forms_name_cases_reasons_and_the_verdict() {
    let report = report(vec![
        case("create-again", failed()),
        case("create-locked", skipped()),
    ]);
    let xml = junit(&report).unwrap();
    assert!(
        xml.contains("create-again") && xml.contains("&lt;&amp;&gt;") && xml.contains("<skipped"),
        "{xml}"
    );
    let text = text(&report);
    assert!(
        text.contains("compliant: no") && text.contains("DRV-10"),
        "{text}"
    );
    assert!(text.contains("could not be tried"), "{text}");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["cases"][0]["verdict"], "failed");
    assert_eq!(json["compliant"], false);
}
