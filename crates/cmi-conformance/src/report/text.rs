//! The report for an operator.

use std::fmt::Write as _;

use super::ranking::Failures;
use super::{CaseReport, Compliance, LayerReport, Report, Scope, Tally, ranking};
use crate::leftover;
use crate::rules::{self, Layer};

/// The most failures, and inconclusive cases, that the summary names; the table has all.
const MAX_FAILURES: usize = 5;
/// The most rows that a line names; the table has all.
const MAX_ROWS: usize = 12;

/// Returns a case in one line, which is printed during the run.
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

/// Returns the table of rules, and the verdict.
pub fn text(report: &Report) -> String {
    let mut text = format!("Rules of {} ({}):\n\n", report.target, report.driver);
    for rule in &report.rules {
        let _infallible = writeln!(
            text,
            "{:<10} {:<11} {:<10} {}",
            rule.id,
            rule.levels(),
            rule.verdict.to_string(),
            rule.says
        );
        if let Some(reason) = rule.verdict.reason() {
            let _infallible = writeln!(text, "{:>34}{reason}", "");
        }
    }
    let cases = Tally::of(report.cases.iter().map(|case| &case.verdict));
    let rules = Tally::of(report.rules.iter().map(|rule| &rule.verdict));
    let _infallible = write!(text, "\ncases: {cases}\nrules: {rules}\n");
    text += &failures(report);
    for outage in &report.outages {
        let requests: Vec<_> = outage.requests.iter().map(String::as_str).collect();
        let _infallible = writeln!(
            text,
            "the driver went away in one of these requests: {}; to see in which, run again with `parallel: \
             1`; {}",
            requests.join(", "),
            outage.reason
        );
    }
    for line in leftover::lines(&report.leftovers) {
        let _infallible = writeln!(text, "{line}");
    }
    text += &inconclusive(report);
    text += &untried(report);
    text += &verdict(report);
    text
}

/// Returns the failures to fix first.
fn failures(report: &Report) -> String {
    let Failures { binding, advisory } = Failures::of(&report.cases);
    let mut text = String::new();
    if !binding.is_empty() {
        text += "\nfailed, the most telling first:\n";
        let named = |(place, case): &(usize, &&CaseReport)| {
            *place < MAX_FAILURES || ranking::is_dangerous(&case.name)
        };
        let (shown, more): (Vec<_>, Vec<_>) = binding.iter().enumerate().partition(named);
        text.extend(shown.into_iter().map(|(_, case)| failure(case)));
        if !more.is_empty() {
            let _infallible = writeln!(text, "  and {} more, which may follow from these", more.len());
        }
    }
    if !advisory.is_empty() {
        text += "\nbetter mended, though no binding rule is broken:\n";
        text.extend(advisory.into_iter().map(failure));
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text
}

/// Returns the first inconclusive cases.
fn inconclusive(report: &Report) -> String {
    let cases = report.cases.iter().filter(|case| case.verdict.is_inconclusive());
    let count = cases.clone().count();
    if count == 0 {
        return String::new();
    }
    let mut text = "inconclusive, and perhaps broken; mend the causes, and run again:\n".to_owned();
    text.extend(cases.take(MAX_FAILURES).map(failure));
    if count > MAX_FAILURES {
        let _infallible = writeln!(text, "  and {} more", count - MAX_FAILURES);
    }
    text + "\n"
}

fn failure(case: &CaseReport) -> String {
    format!("  {}: {}\n", case.name, case.verdict.reason().unwrap_or_default())
}

/// Returns a line about the rules that a yes does not cover, and the hooks and settings that would try them.
fn untried(report: &Report) -> String {
    let Some(top) = report.layers.last().filter(|top| !top.untried.is_empty()) else {
        return String::new();
    };
    let missing: Vec<_> = top.missing.iter().map(String::as_str).collect();
    format!(
        "binding rules that were not tried in full, and may be broken: {}; to try them, add {}\n",
        top.untried.len(),
        missing.join(", ")
    )
}

/// Returns the last lines.
fn verdict(report: &Report) -> String {
    if report.scope == Scope::Part {
        let tried = format!("{} of {}", report.rules.len(), rules::all().count());
        // A partial run has no verdict. The dependency between the layers is not a reason here.
        let of_whole_runs: Vec<_> = report.layers.iter().map(|layer| takes(layer.layer)).collect();
        let mut reasons: Vec<String> = Vec::new();
        for layer in &report.layers {
            let is_new = |reason: &&String| !reasons.contains(reason) && !of_whole_runs.contains(reason);
            let own = layer.reasons.iter().filter(is_new);
            reasons.extend(own.cloned().collect::<Vec<_>>());
        }
        let found = if reasons.is_empty() {
            "none of them is seen broken".to_owned()
        } else {
            reasons.join("; ")
        };
        return format!("part of the rules: {tried}: {found}; a verdict takes a run without --only\n");
    }
    let lines: Vec<_> = report.layers.iter().map(compliance).collect();
    lines.join("\n") + "\n"
}

/// Returns the verdict on a layer, in one line: `cmi.v1: yes`.
pub fn compliance(layer: &LayerReport) -> String {
    let line = format!("{}: {}", layer.layer, layer.compliance);
    match layer.compliance {
        Compliance::No => format!("{line} ({})", layer.reasons.join("; ")),
        Compliance::Yes | Compliance::Basic | Compliance::Full | Compliance::Part => line,
    }
}

/// Returns the reason for the `No` of a layer whose own rules hold.
pub(super) fn takes(below: Layer) -> String {
    format!("it takes {below}: yes")
}

/// Returns the row ids, or the first of them and the number of the others.
pub fn rows(ids: &[&str]) -> String {
    match ids.split_at_checked(MAX_ROWS) {
        Some((first, more)) if !more.is_empty() => format!("{} and {} more", first.join(", "), more.len()),
        Some(_) | None => ids.join(", "),
    }
}
