//! The reasons of conditions and events, each with its section of the runbook.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use cmi_driver::Code;

use crate::markdown;

/// The reason of an event that is the reason of no condition.
const OF_EVENTS: [&str; 1] = ["Deleted"];

pub(crate) fn table() -> Result<String> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| fs::read_to_string(repository.join(path)).with_context(|| path.to_owned());
    let rows = rows(
        &reasons(&read("src/api/conditions.rs")?)?,
        &read("docs/runbook.md")?,
    )?;
    Ok(markdown(&["Reason", "Symptom"], &rows))
}

/// Returns every reason that a condition or an event may have.
fn reasons(conditions: &str) -> Result<BTreeSet<String>> {
    let (_, constants) = conditions
        .split_once("pub mod reason")
        .context("the reasons are gone")?;
    let words = constants.split("&str = \"").skip(1);
    let named = words.filter_map(|rest| Some(rest.split_once('"')?.0));
    let all: BTreeSet<_> = named
        .chain(OF_EVENTS)
        .chain(Code::ALL.map(Code::name))
        .map(str::to_owned)
        .collect();
    ensure!(all.len() > 60, "only {all:?} were found");
    Ok(all)
}

/// Returns each reason with a link to the section of the runbook that has it in its line `Reasons:`.
fn rows(reasons: &BTreeSet<String>, runbook: &str) -> Result<Vec<[String; 2]>> {
    let mut sections = BTreeMap::new();
    for section in runbook.split("\n### ").skip(1) {
        let (title, text) = section.split_once('\n').context("a section without text")?;
        let Some((_, list)) = text.split_once("Reasons: ") else {
            continue;
        };
        let list = list.split("\n\n").next().unwrap_or_default();
        for reason in list.split('`').skip(1).step_by(2) {
            ensure!(
                reasons.contains(reason),
                "`{title}` names {reason}, which is no reason"
            );
            let other = sections.insert(reason.to_owned(), title);
            ensure!(other.is_none(), "{reason} is in two sections of docs/runbook.md");
        }
    }
    let row = |reason: &String| {
        let title = sections.get(reason);
        let title = title.with_context(|| format!("docs/runbook.md has no section for {reason}"))?;
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
    fn a_reason_leads_to_the_section_that_names_it() {
        let rows = rows(&known(&["A", "B"]), RUNBOOK).unwrap();
        assert_eq!(rows[1], ["`B`", "[It waits](#it-waits)"]);
    }

    #[test]
    fn a_reason_without_a_section_and_one_that_is_none_are_refused() {
        let missing = rows(&known(&["A", "B", "D"]), RUNBOOK).unwrap_err();
        assert!(missing.to_string().contains("no section for D"), "{missing}");
        let unknown = rows(&known(&["A"]), RUNBOOK).unwrap_err();
        assert!(unknown.to_string().contains("names B"), "{unknown}");
    }
}
