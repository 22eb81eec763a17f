//! The reasons of conditions and events.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use capcmi::api::reason::Reason;

use crate::markdown;

const RUNBOOK: &str = "docs/operate/runbook.md";

/// The section of the runbook whose reasons need no explanation: the object is as it has to be.
const DESIRED: &str = "Nothing to do";

/// Returns the table of the reasons, with cause, remedy, and a link to the section of the runbook, and the
/// list of the reasons that need none of these. Reasons with the same cause and remedy share a row.
pub(crate) fn table() -> Result<String> {
    let runbook = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(RUNBOOK);
    let runbook = fs::read_to_string(runbook).context(RUNBOOK)?;
    let reasons: Vec<_> = Reason::all().collect();
    let table = markdown(&["Reason", "Cause and remedy"], &rows(&reasons, &runbook)?);
    let desired = desired(&runbook)?;
    Ok(format!(
        "{table}\nNothing is wrong with {}.\n",
        desired.join(", ")
    ))
}

/// Returns the reasons of the section [`DESIRED`], sorted and as code.
fn desired(runbook: &str) -> Result<Vec<String>> {
    let sections = sections(runbook)?.into_iter();
    let names = sections.filter(|(_, title)| *title == DESIRED);
    Ok(names.map(|(name, _)| format!("`{name}`")).collect())
}

/// Returns the rows of the reasons outside the section [`DESIRED`], sorted by the first name.
///
/// # Errors
/// When a reason is in no section of the runbook or in two, or when a section names another word.
fn rows(reasons: &[Reason], runbook: &str) -> Result<Vec<[String; 2]>> {
    let mut sections = sections(runbook)?;
    let mut reasons = reasons.to_vec();
    reasons.sort_by_key(|reason| reason.name);
    let mut rows: Vec<[String; 2]> = Vec::new();
    for reason in reasons {
        let name = reason.name;
        let title = sections.remove(name);
        let title = title.with_context(|| format!("no section of {RUNBOOK} names `{name}`"))?;
        if title == DESIRED {
            continue;
        }
        let anchor = title.to_lowercase().replace(' ', "-");
        let link = format!("[`{name}`](../operate/runbook.md#{anchor})");
        let text = with_commands(&reason.explanation());
        match rows.iter_mut().find(|known| known[1] == text) {
            Some(known) => known[0].extend([", ", link.as_str()]),
            None => rows.push([link, text]),
        }
    }
    let unknown = sections.first_key_value();
    ensure!(
        unknown.is_none(),
        "{RUNBOOK} names a word that is not a reason: {unknown:?}"
    );
    Ok(rows)
}

/// Returns the title of the section of each reason. The section lists the reason in its line `Reasons:`.
fn sections(runbook: &str) -> Result<BTreeMap<&str, &str>> {
    let mut sections = BTreeMap::new();
    for section in runbook.split("\n### ").skip(1) {
        let (title, text) = section.split_once('\n').context("a section has no text")?;
        let Some((_, list)) = text.split_once("Reasons: ") else {
            continue;
        };
        let list = list.split("\n\n").next().unwrap_or_default();
        for reason in list.split('`').skip(1).step_by(2) {
            let other = sections.insert(reason, title);
            ensure!(other.is_none(), "two sections of {RUNBOOK} name `{reason}`");
        }
    }
    Ok(sections)
}

/// Formats the command that ends a remedy as code.
fn with_commands(remedy: &str) -> String {
    match remedy.split_once("kubectl ") {
        Some((text, command)) => format!("{text}`kubectl {command}`"),
        None => remedy.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTION: &str = "# Runbook\n\n### It waits\n\nReasons: `B`,\n`A`.\n\n* **Do:** set `C`.\n";

    fn reasons<const N: usize>(names: [&'static str; N]) -> [Reason; N] {
        names.map(|name| Reason {
            name,
            cause: "It waits.",
            remedy: Some("Run: kubectl get a"),
        })
    }

    #[test]
    fn table_has_each_reason_that_needs_a_remedy_once() {
        let table = table().unwrap();
        let (rows, desired) = table.split_once("\n\n").unwrap();
        let count = rows.matches("](../operate/runbook.md#").count() + desired.matches(", ").count() + 1;
        assert_eq!(count, Reason::all().count());
        assert!(
            rows.contains("`WaitingForCapacity`") && desired.contains("`Provisioned`"),
            "{table}"
        );
    }

    #[test]
    fn reasons_with_the_same_text_share_a_row_and_link_to_their_section() {
        let rows = rows(&reasons(["B", "A"]), SECTION).unwrap();
        let links = "[`A`](../operate/runbook.md#it-waits), [`B`](../operate/runbook.md#it-waits)";
        assert_eq!(rows, [[links, "It waits. Run: `kubectl get a`"]]);
    }

    #[test]
    fn a_missing_and_an_unknown_reason_are_errors() {
        let missing = rows(&reasons(["A", "B", "D"]), SECTION).unwrap_err();
        assert!(missing.to_string().contains("names `D`"), "{missing}");
        let unknown = rows(&reasons(["A"]), SECTION).unwrap_err();
        assert!(unknown.to_string().contains("(\"B\", "), "{unknown}");
    }
}
