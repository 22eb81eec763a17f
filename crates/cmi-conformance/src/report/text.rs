//! The report for a person.

use std::fmt::Write as _;

use super::{CaseReport, Report, RuleReport, Tally, Verdict};

/// A case, in a line: what is printed while a run goes on.
pub fn line(case: &CaseReport, done: usize, of: usize) -> String {
    let width = of.to_string().len();
    let mut line = format!(
        "[{done:>width$}/{of}] {:<8} {:<34} {}",
        case.verdict.to_string(),
        case.name,
        case.title
    );
    if let Some(reason) = case.verdict.reason() {
        let _infallible = write!(line, "\n{:>25}{reason}", "");
    }
    for warning in &case.warnings {
        let _infallible = write!(line, "\n{:>25}warning: {warning}", "");
    }
    line
}

/// The table of rules, and the verdict.
pub fn text(report: &Report) -> String {
    let mut text = format!("Rules of {} ({}):\n\n", report.target, report.driver);
    for rule in &report.rules {
        let _infallible = writeln!(
            text,
            "{:<10} {:<8} {:<10} {}",
            rule.id,
            rule.level.name(),
            rule.verdict.to_string(),
            rule.says
        );
        if let Some(reason) = rule.verdict.reason() {
            let _infallible = writeln!(text, "{:>31}{reason}", "");
        }
    }
    let cases = Tally::of(report.cases.iter().map(|case| &case.verdict));
    let rules = Tally::of(report.rules.iter().map(|rule| &rule.verdict));
    let _infallible = write!(text, "\ncases: {cases}\nrules: {rules}\n");
    let untried = |rule: &&RuleReport| {
        rule.level.is_binding() && matches!(rule.verdict, Verdict::Skipped { .. } | Verdict::NotTested { .. })
    };
    let untried = report.rules.iter().filter(untried).count();
    if untried > 0 {
        let _infallible = writeln!(
            text,
            "binding rules that could not be tried, and may be broken: {untried}"
        );
    }
    for left in &report.leftovers {
        let _infallible = writeln!(text, "left behind: {left}");
    }
    for reason in doubts(report) {
        let _infallible = writeln!(text, "{reason}");
    }
    let answer = if report.compliant { "yes" } else { "no" };
    let _infallible = writeln!(text, "compliant: {answer}");
    text
}

/// Why the answer is no though no rule was seen broken.
fn doubts(report: &Report) -> Vec<&'static str> {
    let mut doubts = Vec::new();
    if report.interrupted {
        doubts.push("the run was ended early");
    }
    if report.cases.iter().any(|case| case.verdict.is_inconclusive()) {
        doubts.push("what could not be judged may be broken: mend what the reasons name, and run again");
    }
    if !report.cases.iter().any(|case| case.verdict == Verdict::Passed) {
        doubts.push("nothing was shown to hold");
    }
    doubts
}
