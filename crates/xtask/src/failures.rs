//! The signs of each failure, as the cases of `tests/suite/failures.rs` have recorded them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::markdown;

/// The failures of objects that machines share. `capcmi describe` has no page for these.
const SHARED: &str = "of InfraClusters and templates";

/// The record of a case.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Record {
    failure: String,
    when: String,
    kubectl: Shown,
    conditions: Vec<String>,
    events: Vec<String>,
    log: Vec<String>,
    metrics: Vec<String>,
    next: Vec<String>,
}

/// The output of kubectl about the object.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
enum Shown {
    #[serde(rename_all = "camelCase")]
    Row {
        ready: String,
        reason: String,
        message: String,
        reachable: String,
        paused: String,
        next_try: bool,
    },
    Gone,
    Unanswered,
}

/// Returns the table of the failures in a part of a machine's life, or of those of shared objects.
pub(crate) fn table(when: &str) -> Result<String> {
    let mut records: Vec<_> = read()?.into_iter().filter(|record| record.when == when).collect();
    ensure!(!records.is_empty(), "no failure was recorded {when}");
    records.sort_by(|one, other| one.failure.cmp(&other.failure));
    let rows = records.iter().map(row);
    if when == SHARED {
        let titles = ["Failure", "`kubectl get -o wide`", "Events", "Log", "Metrics"];
        let rows: Vec<_> = rows
            .map(|[title, kubectl, events, log, metrics, _]| [title, kubectl, events, log, metrics])
            .collect();
        return Ok(markdown(&titles, &rows));
    }
    let titles = [
        "Failure",
        "`kubectl get inframachines -o wide`",
        "Events",
        "Log",
        "Metrics",
        "What to do next",
    ];
    Ok(markdown(&titles, &rows.collect::<Vec<_>>()))
}

fn read() -> Result<Vec<Record>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/suite/failures/records");
    let files = fs::read_dir(&folder).context("listing the records of failures")?;
    let paths: Result<Vec<PathBuf>, _> = files.map(|file| file.map(|file| file.path())).collect();
    paths?
        .iter()
        .map(|path| {
            let text = fs::read_to_string(path)?;
            serde_json::from_str(&text).with_context(|| path.display().to_string())
        })
        .collect()
}

fn row(record: &Record) -> [String; 6] {
    [
        record.failure.clone(),
        cell(&shown(record)),
        cell(&code(&record.events)),
        cell(&code(&record.log)),
        cell(&code(&record.metrics)),
        cell(&record.next),
    ]
}

fn shown(record: &Record) -> Vec<String> {
    let mut lines = Vec::new();
    match &record.kubectl {
        Shown::Gone => lines.push("The object is gone.".to_owned()),
        Shown::Unanswered => lines.push("kubectl has no answer either.".to_owned()),
        Shown::Row {
            ready,
            reason,
            message,
            reachable,
            paused,
            next_try,
        } => {
            let columns = [
                ("READY", ready),
                ("REASON", reason),
                ("MESSAGE", message),
                ("REACHABLE", reachable),
                ("PAUSED", paused),
            ];
            let is_said = |(title, value): &(&str, &String)| {
                // A machine without a fault shows these as well.
                let usual = [("REACHABLE", "True"), ("PAUSED", "False")];
                !value.is_empty() && !usual.contains(&(title, value.as_str()))
            };
            let said = columns.iter().filter(|column| is_said(column));
            lines.extend(said.map(|(title, value)| format!("{title} {}", quoted(value))));
            if *next_try {
                lines.push("NEXT TRY has a time".to_owned());
            }
        }
    }
    lines.extend(record.conditions.iter().map(|condition| {
        let (name, text) = condition.split_once(' ').unwrap_or((condition, ""));
        format!("`kubectl describe`: {name} {}", quoted(text))
    }));
    lines
}

fn code(lines: &[String]) -> Vec<String> {
    lines.iter().map(|line| quoted(line)).collect()
}

/// Formats the text as code in Markdown, also where it has backticks.
fn quoted(text: &str) -> String {
    if text.contains('`') {
        format!("`` {text} ``")
    } else {
        format!("`{text}`")
    }
}

/// Joins lines into one cell of a table.
fn cell(lines: &[String]) -> String {
    if lines.is_empty() {
        return "none".to_owned();
    }
    lines.join("<br>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_a_machine_says_why_and_what_to_do() {
        for record in read().unwrap() {
            let said = shown(&record).join(" ");
            let title = &record.failure;
            if record.when == SHARED {
                assert!(
                    !record.events.is_empty() || said.contains("MESSAGE"),
                    "{title}: {said}"
                );
                assert!(record.next.is_empty(), "{title}: the table has no place for it");
            } else if matches!(record.kubectl, Shown::Row { .. }) {
                assert!(said.contains(": ") || said.contains("MESSAGE"), "{title}: {said}");
                assert!(!record.next.is_empty(), "{title}");
                assert!(!record.metrics.is_empty(), "{title}");
            } else {
                assert!(!record.log.is_empty(), "{title}");
            }
        }
    }

    #[test]
    fn a_text_with_backticks_is_code_all_the_same() {
        assert_eq!(quoted("no `x`"), "`` no `x` ``");
        assert_eq!(cell(&[]), "none");
    }
}
