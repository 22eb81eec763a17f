use super::*;
use crate::cases;

/// As many inconclusive cases as the summary names.
const MANY: usize = 5;

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
    report_of(cases, Circumstances::default())
}

fn report_of(cases: Vec<CaseReport>, circumstances: Circumstances) -> Report {
    let about: Vec<_> = rules::all().collect();
    Report::new("x", None, cases, &about, circumstances)
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

/// DRV-01: SHOULD is optional.
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
fn empty_interrupted_and_unclean_runs_are_not_compliant() {
    assert!(!report(vec![case("create-locked", skipped())]).compliant);
    let passed = || vec![case("create-makes-a-vm", Verdict::Passed)];
    let left = Circumstances {
        leftovers: vec![Leftover::back_end("it is not as it was")],
        ..Circumstances::default()
    };
    let early = Circumstances {
        interrupted: true,
        ..Circumstances::default()
    };
    assert!(report(passed()).compliant);
    for circumstances in [left, early] {
        let report = report_of(passed(), circumstances);
        assert!(!report.compliant && !report.passed);
        assert!(
            report
                .layers
                .iter()
                .all(|layer| layer.compliance == Compliance::No)
        );
    }
}

#[test]
fn a_part_of_the_rules_is_never_a_yes() {
    let part = Circumstances {
        scope: Scope::Part,
        ..Circumstances::default()
    };
    let report = report_of(vec![case("create-again", Verdict::Passed)], part);
    assert!(report.passed && !report.compliant);
    let text = text(&report);
    assert!(
        text.contains("part of the rules: ") && !text.contains(": yes"),
        "{text}"
    );
    assert!(
        report
            .layers
            .iter()
            .all(|layer| layer.compliance == Compliance::Part)
    );
}

/// The tag is specific to this provider: a plugin without it keeps the published rules.
#[test]
fn a_broken_provider_rule_does_not_fail_the_published_layer() {
    let report = report(vec![
        case("create-makes-a-vm", Verdict::Passed),
        case("delete-other-identity", failed()),
    ]);
    assert_eq!(report.compliance(Layer::Published), Compliance::Yes);
    assert_eq!(report.compliance(Layer::Provider), Compliance::No);
    assert!(!report.compliant);
    let text = text(&report);
    assert!(
        text.ends_with("cmi.v1: yes\ncapcmi: no (identity tag not kept: CAP-02)\n"),
        "{text}"
    );
}

#[test]
fn what_breaks_a_published_rule_breaks_what_is_built_upon_it() {
    let report = report(vec![
        case("create-makes-a-vm", Verdict::Passed),
        case("create-again", failed()),
    ]);
    let text = text(&report);
    assert!(
        text.ends_with("cmi.v1: no (breaks DRV-10, CMI-82)\ncapcmi: no (it takes cmi.v1: yes)\n"),
        "{text}"
    );
}

/// OPS-11 is a SHOULD in its source.
#[test]
fn a_leaked_secret_fails_the_provider_layer_also_for_a_should() {
    let report = report(vec![
        case("create-makes-a-vm", Verdict::Passed),
        case("secrets-do-not-come-back", failed()),
    ]);
    assert_eq!(report.compliance(Layer::Published), Compliance::Yes);
    let text = text(&report);
    assert!(
        text.contains("SHOULD/MUST") && text.contains("capcmi: no (secrets leak: "),
        "{text}"
    );
}

#[test]
fn missing_hooks_make_a_run_basic_and_missing_calls_do_not() {
    let without_hook = CaseReport {
        missing: vec!["hook `lock`".to_owned()],
        ..case("create-locked", skipped())
    };
    let without_call = case("status-never-made", skipped());
    let passed = || case("create-makes-a-vm", Verdict::Passed);
    let basic = report(vec![passed(), without_hook]);
    assert_eq!(basic.compliance(Layer::Published), Compliance::Yes);
    assert_eq!(basic.compliance(Layer::Provider), Compliance::Basic);
    let text = text(&basic);
    assert!(
        text.contains("hook `lock`") && text.ends_with("capcmi: basic\n"),
        "{text}"
    );
    assert!(basic.compliant);
    assert_eq!(
        report(vec![passed(), without_call]).compliance(Layer::Provider),
        Compliance::Full
    );
}

/// Another case has tried the rule as well, but nothing else shows the effect of the hook.
#[test]
fn a_run_without_a_required_hook_or_setting_is_basic() {
    let lacking = |name: &str, missing: &str| CaseReport {
        missing: vec![missing.to_owned()],
        ..case(name, skipped())
    };
    let tried = || {
        vec![
            case("create-makes-a-vm", Verdict::Passed),
            case("create-quota", Verdict::Passed),
        ]
    };
    let (mut without_hook, mut without_setting) = (tried(), tried());
    for setting in ["`mandatoryFields`", "`invalidSpecs`"] {
        let mut without = tried();
        without.push(CaseReport {
            missing: vec![setting.to_owned()],
            ..case("create-quota", skipped())
        });
        let basic = report(without);
        assert_eq!(basic.compliance(Layer::Provider), Compliance::Basic, "{setting}");
        assert!(text(&basic).contains(setting), "{setting}");
    }
    without_hook.push(lacking("create-exhausted", "hook `exhaust`"));
    without_setting.push(lacking("create-quota", "`quotaBreakingSpec`"));
    let basic = report(without_hook);
    assert_eq!(basic.rule("DRV-CR-08").unwrap().verdict, Verdict::Passed);
    assert_eq!(basic.compliance(Layer::Provider), Compliance::Basic);
    assert!(basic.layers[1].missing.contains("hook `exhaust`"));
    assert_eq!(
        report(without_setting).compliance(Layer::Provider),
        Compliance::Full
    );
}

#[test]
fn the_failure_that_explains_the_others_comes_first() {
    let report = report(vec![
        case("create-makes-a-vm", Verdict::Passed),
        case("create-again", failed()),
        case("delete-deletes", failed()),
        case("list-other-cluster", failed()),
        case("volumes-none", failed()),
    ]);
    let text = text(&report);
    let (_, summary) = text.split_once("the most telling first").unwrap();
    let places = [
        "list-other-cluster",
        "create-again",
        "delete-deletes",
        "volumes-none",
    ]
    .map(|name| summary.find(name).unwrap());
    assert!(places.is_sorted(), "{summary}");
    assert_eq!(report.broken().next().unwrap().id, "DRV-03");
}

/// If a driver reports VMs as gone while its back end is unreachable, a fleet is lost.
#[test]
fn what_costs_vms_is_named_however_much_fails() {
    let mut cases: Vec<_> = [
        "create-makes-a-vm",
        "list-offered",
        "list-empty",
        "list-keys",
        "status-offered",
        "status-never-made",
        "create-ids",
    ]
    .map(|name| case(name, failed()))
    .into();
    cases.push(case("status-unavailable", failed()));
    let text = text(&report(cases));
    let (_, summary) = text.split_once("the most telling first").unwrap();
    assert!(
        summary.contains("status-unavailable: ") && summary.contains("and 2 more"),
        "{summary}"
    );
}

#[test]
fn a_partial_run_names_broken_rules_without_a_verdict() {
    let about: Vec<_> = rules::all().collect();
    let cases = vec![
        case("create-makes-a-vm", Verdict::Passed),
        case("create-again", failed()),
    ];
    let circumstances = Circumstances {
        scope: Scope::Part,
        ..Circumstances::default()
    };
    let report = Report::new("x", None, cases, &about, circumstances);
    let text = text(&report);
    assert!(
        text.contains(": breaks DRV-10, CMI-82; a verdict takes a run without --only\n"),
        "{text}"
    );
    assert!(!report.passed && !text.contains(": yes"), "{text}");
}

#[test]
fn what_breaks_no_binding_rule_is_listed_by_itself() {
    let advisory = CaseReport {
        proves: vec!["DRV-08"],
        ..case("create-two-clusters", failed())
    };
    let text = text(&report(vec![
        case("create-makes-a-vm", Verdict::Passed),
        advisory,
    ]));
    assert!(!text.contains("the most telling first"), "{text}");
    let (_, summary) = text.split_once("no binding rule is broken:\n").unwrap();
    assert!(summary.contains("create-two-clusters: "), "{summary}");
}

/// CI may cut the table and keep the summary.
#[test]
fn the_summary_names_inconclusive_cases_with_their_reasons() {
    let inconclusive = |name| {
        let reason = format!("{name} lacks a VM");
        case(name, Verdict::Inconclusive { reason })
    };
    let all = cases::all().map(|case| case.name).take(MANY + 1);
    let text = text(&report(all.map(inconclusive).collect()));
    let (_, summary) = text.split_once("\ncases: ").unwrap();
    let shows = |name: &str| summary.contains(&format!("\n  {name}: {name} lacks a VM\n"));
    let count = cases::all().take(MANY).filter(|case| shows(case.name)).count();
    assert_eq!(count, MANY, "{summary}");
    assert!(summary.contains("\n  and 1 more\n"), "{summary}");
}

#[test]
fn the_forms_name_cases_reasons_and_the_verdict() {
    let report = report(vec![
        case("create-again", failed()),
        case("create-locked", skipped()),
    ]);
    let required = Required {
        what: "capcmi: basic",
        unmet: Some("x breaks DRV-10"),
    };
    let xml = junit(&report, required).unwrap();
    assert!(
        xml.contains("required: capcmi: basic") && xml.contains("x breaks DRV-10"),
        "{xml}"
    );
    assert!(
        xml.contains("create-again") && xml.contains("&lt;&amp;&gt;") && xml.contains("<skipped"),
        "{xml}"
    );
    let text = text(&report);
    assert!(text.contains("cmi.v1: no") && text.contains("DRV-10"), "{text}");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["cases"][0]["verdict"], "failed");
    assert_eq!(json["compliant"], false);
    assert_eq!(json["layers"][0]["compliance"], "no");
    assert!(xml.contains("\"cmi.v1\"") && xml.contains("\"capcmi\""), "{xml}");
}

/// CMI-186: without a log to search, secrets are not shown to stay out of logs.
#[test]
fn a_rule_that_takes_every_case_does_not_hold_when_one_was_not_run() {
    let passed = || {
        vec![
            case("create-makes-a-vm", Verdict::Passed),
            case("secrets-do-not-come-back", Verdict::Passed),
        ]
    };
    let logged = |verdict| CaseReport {
        missing: vec!["`logs`".to_owned()],
        ..case("secrets-are-not-logged", verdict)
    };
    let mut cases = passed();
    cases.push(logged(skipped()));
    let basic = report(cases);
    for id in ["OPS-11", "CMI-13", "CMI-165", "CMI-186"] {
        assert_eq!(basic.rule(id).unwrap().verdict, skipped(), "{id}");
    }
    assert_eq!(basic.compliance(Layer::Provider), Compliance::Basic);
    assert!(
        basic.layers[1].missing.contains("`logs`"),
        "{:?}",
        basic.layers[1]
    );
    let unchosen = report(passed());
    let verdict = &unchosen.rule("CMI-186").unwrap().verdict;
    assert!(matches!(verdict, Verdict::Skipped { .. }), "{verdict:?}");
    let mut cases = passed();
    cases.push(case("secrets-are-not-logged", Verdict::Passed));
    assert_eq!(report(cases).rule("CMI-186").unwrap().verdict, Verdict::Passed);
}
