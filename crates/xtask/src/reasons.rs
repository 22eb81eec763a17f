//! The reasons of conditions and events.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use capcmi::api::reason::Reason;

use crate::markdown;

/// Returns the table of all reasons with cause and remedy.
pub(crate) fn table() -> String {
    let mut reasons: Vec<_> = Reason::all().collect();
    reasons.sort_by_key(|reason| reason.name);
    let rows: Vec<_> = reasons.into_iter().map(row).collect();
    markdown(&["Reason", "Cause", "Remedy"], &rows)
}

fn row(reason: Reason) -> [String; 3] {
    let remedy = reason.remedy.unwrap_or("none");
    [
        format!("`{}`", reason.name),
        reason.cause.to_owned(),
        with_commands(remedy),
    ]
}

/// Formats the command that ends a remedy as code.
fn with_commands(remedy: &str) -> String {
    match remedy.split_once("kubectl ") {
        Some((text, command)) => format!("{text}`kubectl {command}`"),
        None => remedy.to_owned(),
    }
}

/// Returns the table of all reasons, each with its section of the runbook.
pub(crate) fn table_by_symptom() -> Result<String> {
    let runbook = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/runbook.md");
    let runbook = fs::read_to_string(runbook).context("docs/runbook.md")?;
    let names = Reason::all().map(|reason| reason.name.to_owned()).collect();
    Ok(markdown(&["Reason", "Symptom"], &rows(&names, &runbook)?))
}

/// Returns each reason with a link to the section of the runbook that has it in its line `Reasons:`.
fn rows(reasons: &BTreeSet<String>, runbook: &str) -> Result<Vec<[String; 2]>> {
    let mut sections = BTreeMap::new();
    for section in runbook.split("\n### ").skip(1) {
        let (title, text) = section.split_once('\n').context("a section has no text")?;
        let Some((_, list)) = text.split_once("Reasons: ") else {
            continue;
        };
        let list = list.split("\n\n").next().unwrap_or_default();
        for reason in list.split('`').skip(1).step_by(2) {
            ensure!(
                reasons.contains(reason),
                "section `{title}` names `{reason}`, which is not a reason"
            );
            let other = sections.insert(reason.to_owned(), title);
            ensure!(other.is_none(), "two sections of docs/runbook.md name `{reason}`");
        }
    }
    let row = |reason: &String| {
        let title = sections.get(reason);
        let title = title.with_context(|| format!("no section of docs/runbook.md names `{reason}`"))?;
        let anchor = title.to_lowercase().replace(' ', "-");
        Ok([format!("`{reason}`"), format!("[{title}](#{anchor})")])
    };
    reasons.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNBOOK: &str = "# Runbook\n\n### It waits\n\nReasons: `A`,\n`B`.\n\n* **Do:** set `C`.\n";

    fn known(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn table_has_cause_and_remedy_of_each_reason() {
        let table = table();
        assert_eq!(table.lines().count(), 2 + Reason::all().count());
        assert!(table.starts_with("| Reason | Cause | Remedy |\n"), "{table}");
        assert!(
            table.contains("| `Created` | The VM exists. | none |\n"),
            "{table}"
        );
        let row = table
            .lines()
            .find(|line| line.starts_with("| `ResourceExhausted` |"));
        let row = row.unwrap();
        assert!(row.contains(": `kubectl annotate inframachine NAME "), "{row}");
        assert!(row.ends_with("--overwrite` |"), "{row}");
    }

    #[test]
    fn a_reason_leads_to_the_section_that_names_it() {
        let rows = rows(&known(&["A", "B"]), RUNBOOK).unwrap();
        assert_eq!(rows[1], ["`B`", "[It waits](#it-waits)"]);
    }

    #[test]
    fn a_reason_without_a_section_and_one_that_is_none_are_refused() {
        let missing = rows(&known(&["A", "B", "D"]), RUNBOOK).unwrap_err();
        assert!(missing.to_string().contains("names `D`"), "{missing}");
        let unknown = rows(&known(&["A"]), RUNBOOK).unwrap_err();
        assert!(unknown.to_string().contains("names `B`"), "{unknown}");
    }
}
