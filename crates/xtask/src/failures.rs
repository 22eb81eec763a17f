//! The signs of each failure, as the cases of `tests/suite/failures.rs` have recorded them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::markdown;

/// The failures of objects that machines share. `capcmi describe` has no page for these.
#[cfg(test)]
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
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "only the tests of the provider read it")
    )]
    metrics: Vec<String>,
    /// The advice of `capcmi describe`, from the table of reasons.
    #[cfg_attr(not(test), expect(dead_code, reason = "the reference of reasons has it"))]
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
        #[expect(dead_code, reason = "the condition DriverReachable is in the table")]
        reachable: String,
        #[expect(dead_code, reason = "the condition Paused is in the table")]
        paused: String,
        #[expect(dead_code, reason = "only the tests of the provider read it")]
        next_try: bool,
    },
    Gone,
    Unanswered,
}

/// Returns the table of the failures in a part of a machine's life, or of shared objects.
pub(crate) fn table(when: &str) -> Result<String> {
    let mut records: Vec<_> = read()?.into_iter().filter(|record| record.when == when).collect();
    ensure!(!records.is_empty(), "no failure was recorded {when}");
    records.sort_by(|one, other| one.failure.cmp(&other.failure));
    let rows: Vec<_> = records
        .iter()
        .map(|record| {
            [
                record.failure.clone(),
                cell(&conditions(record)),
                cell(&events(record)),
            ]
        })
        .collect();
    Ok(markdown(&["Failure", "Conditions", "Event"], &rows))
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

/// Returns the conditions that show a failure, each with its reason and message. A message that is already
/// there is left out.
fn conditions(record: &Record) -> Vec<String> {
    let mut lines = Vec::new();
    let mut known = "";
    match &record.kubectl {
        Shown::Gone => lines.push("The object is gone.".to_owned()),
        Shown::Unanswered => {
            lines.push("kubectl has no answer. Log:".to_owned());
            lines.extend(record.log.iter().map(|line| quoted(line)));
        }
        Shown::Row {
            ready,
            reason,
            message,
            ..
        } if !ready.is_empty() => {
            known = message;
            lines.push(match message.as_str() {
                "" => quoted(&format!("Ready={ready}")),
                _ => quoted(&format!("Ready={ready} {reason}: {message}")),
            });
        }
        Shown::Row { .. } => {}
    }
    for condition in &record.conditions {
        let (start, message) = condition.split_once(": ").unwrap_or((condition, ""));
        let is_known = !known.is_empty() && message == known;
        lines.push(quoted(if is_known { start } else { condition }));
        known = if known.is_empty() { message } else { known };
    }
    lines
}

/// Returns the events of a failure. An event with the message of a condition has only its reason here.
fn events(record: &Record) -> Vec<String> {
    let shown = conditions(record).join(" ");
    let text = |event: &String| match event.split_once(": ") {
        Some((reason, message)) if shown.contains(message) => quoted(reason),
        _ => quoted(event),
    };
    record.events.iter().map(text).collect()
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
    fn a_failure_of_a_machine_has_a_cause_and_advice() {
        for record in read().unwrap() {
            let shown = conditions(&record).join(" ");
            let title = &record.failure;
            if record.when == SHARED {
                assert!(
                    record.next.is_empty(),
                    "{title}: `capcmi describe` has no page for it"
                );
                assert!(
                    !record.events.is_empty() || shown.contains(": "),
                    "{title}: {shown}"
                );
            } else if matches!(record.kubectl, Shown::Row { .. }) {
                assert!(shown.contains(": "), "{title}: {shown}");
                assert!(!record.next.is_empty(), "{title}");
                assert!(!record.metrics.is_empty(), "{title}");
            } else {
                assert!(!record.log.is_empty(), "{title}");
            }
        }
    }

    #[test]
    fn a_message_is_printed_once_in_a_row() {
        for record in read().unwrap() {
            let Shown::Row { message, .. } = &record.kubectl else {
                continue;
            };
            let row = [cell(&conditions(&record)), cell(&events(&record))].concat();
            let count = row.matches(message.as_str()).count();
            assert!(message.is_empty() || count == 1, "{}: {row}", record.failure);
        }
    }

    #[test]
    fn a_text_with_backticks_is_formatted_as_code() {
        assert_eq!(quoted("no `x`"), "`` no `x` ``");
        assert_eq!(cell(&[]), "none");
    }
}
