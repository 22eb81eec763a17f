//! The reasons of conditions and events. The runbook groups them by symptom, and explains each in a generated
//! block.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use capcmi::api::reason::Reason;

const RUNBOOK: &str = "docs/operate/runbook.md";

/// The start of the name of a section's block. The reasons follow, separated by commas.
pub(crate) const BLOCK: &str = "reasons ";

/// Returns a list of these reasons with cause and remedy. Reasons with the same text share an item.
///
/// # Errors
/// A word is not a reason.
pub(crate) fn explained(names: &str) -> Result<String> {
    let mut items: Vec<(String, String)> = Vec::new();
    for name in names.split(',') {
        let reason = Reason::named(name).with_context(|| format!("`{name}` is not a reason"))?;
        let text = with_commands(&reason.explanation());
        match items.iter_mut().find(|(_, known)| *known == text) {
            Some((known, _)) => known.extend([", `", name, "`"]),
            None => items.push((format!("`{name}`"), text)),
        }
    }
    let lines: Vec<_> = items
        .iter()
        .map(|(names, text)| format!("* {names}: {text}\n"))
        .collect();
    Ok(lines.concat())
}

/// Returns the names of all reasons, each with a link to its section of the runbook.
///
/// # Errors
/// See [`links`].
pub(crate) fn index() -> Result<String> {
    let runbook = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(RUNBOOK);
    let runbook = fs::read_to_string(runbook).context(RUNBOOK)?;
    Ok(links(Reason::all(), &runbook)?.join(",\n") + "\n")
}

/// Returns the links of these reasons, sorted by name.
///
/// # Errors
/// A reason is in no section of the runbook or in two.
fn links(reasons: impl Iterator<Item = Reason>, runbook: &str) -> Result<Vec<String>> {
    let sections = sections(runbook)?;
    let mut names: Vec<_> = reasons.map(|reason| reason.name).collect();
    names.sort_unstable();
    let link = |name: &str| {
        let title = sections.get(name);
        let title = title.with_context(|| format!("no section of {RUNBOOK} names `{name}`"))?;
        let anchor = title.to_lowercase().replace(' ', "-");
        Ok(format!("[`{name}`](../operate/runbook.md#{anchor})"))
    };
    names.into_iter().map(link).collect()
}

/// Returns the title of the section of each reason.
fn sections(runbook: &str) -> Result<BTreeMap<&str, &str>> {
    let mut sections = BTreeMap::new();
    for section in runbook.split("\n### ").skip(1) {
        let (title, text) = section.split_once('\n').context("a section has no text")?;
        for block in text.split(crate::START).skip(1) {
            let name = block.split(crate::START_END).next().unwrap_or_default();
            for reason in name
                .strip_prefix(BLOCK)
                .into_iter()
                .flat_map(|names| names.split(','))
            {
                let other = sections.insert(reason, title);
                ensure!(other.is_none(), "two sections of {RUNBOOK} name `{reason}`");
            }
        }
    }
    Ok(sections)
}

/// Formats the command that ends a remedy as code.
fn with_commands(remedy: &str) -> String {
    match remedy.split_once(": kubectl ") {
        Some((text, command)) => format!("{text}: `kubectl {command}`"),
        None => remedy.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTION: &str = "# Runbook\n\n### It waits\n\n<!-- generated: reasons B,A -->\n\
        \n* `B`, `A`: It waits.\n\n<!-- end -->\n\nSet `C`.\n";

    fn reasons<const N: usize>(names: [&'static str; N]) -> impl Iterator<Item = Reason> {
        names.into_iter().map(|name| Reason {
            name,
            cause: "It waits.",
            remedy: None,
        })
    }

    #[test]
    fn item_has_cause_and_remedy_and_its_command_as_code() {
        let item = explained("ResourceExhausted,WaitingForCapacity").unwrap();
        let start = "* `ResourceExhausted`, `WaitingForCapacity`: A quota or a pool";
        assert!(item.starts_with(start), "{item}");
        assert!(
            item.contains(" immediately: `kubectl annotate inframachine NAME"),
            "{item}"
        );
        assert_eq!(item.lines().count(), 1, "{item}");
        assert_eq!(explained("Created,Deleted").unwrap().lines().count(), 2);
        assert!(
            explained("Created,Other")
                .unwrap_err()
                .to_string()
                .contains("`Other`")
        );
    }

    #[test]
    fn index_links_each_reason_to_its_section() {
        let a = "[`A`](../operate/runbook.md#it-waits)";
        let b = "[`B`](../operate/runbook.md#it-waits)";
        assert_eq!(links(reasons(["B", "A"]), SECTION).unwrap(), [a, b]);
        assert_eq!(index().unwrap().lines().count(), Reason::all().count());
    }

    #[test]
    fn a_reason_in_no_section_or_in_two_is_an_error() {
        let missing = links(reasons(["A", "B", "D"]), SECTION).unwrap_err();
        assert!(missing.to_string().contains("names `D`"), "{missing}");
        let twice = links(reasons(["A"]), &SECTION.repeat(2)).unwrap_err();
        assert!(twice.to_string().contains("two sections"), "{twice}");
    }
}
