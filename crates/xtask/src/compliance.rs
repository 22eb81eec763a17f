//! The rules on drivers and plugins, each with the cases that prove it.

use crate::markdown;
use cmi_conformance::rules::{self, Proof, Rule};
use cmi_conformance::{Case, cases};

/// The rows of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rows {
    /// The rows that are prose.
    Prose(&'static [&'static str]),
    /// The rows of error tables, one for each call and code.
    Codes(&'static str),
}

impl Rows {
    fn have(self, id: &str) -> bool {
        match self {
            Self::Prose(prefixes) => prefixes
                .iter()
                .any(|prefix| rest(id, prefix).is_some_and(is_number)),
            Self::Codes(prefix) => rest(id, prefix).is_some_and(|rest| !is_number(rest)),
        }
    }
}

/// Returns the part of an id after the prefix: `10` of `DRV-10`, `CR-03` of `DRV-CR-03`.
fn rest<'a>(id: &'a str, prefix: &str) -> Option<&'a str> {
    id.strip_prefix(prefix)?.strip_prefix('-')
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

pub(crate) fn table(of: Rows) -> String {
    let rows: Vec<_> = rules::all()
        .filter(|rule| of.have(rule.id))
        .map(|rule| {
            [
                rule.id.to_owned(),
                rule.levels(),
                rule.says.to_owned(),
                proof(rule),
            ]
        })
        .collect();
    markdown(&["Row", "Level", "What it asks for", "Proven by"], &rows)
}

fn proof(rule: &Rule) -> String {
    match rule.proof {
        Proof::NotTested(reason) => format!("not tested: {reason}"),
        Proof::Cases | Proof::EveryCase => {
            let cases: Vec<_> = rules::proofs(rule.id)
                .map(|case| format!("`{}`", case.name))
                .collect();
            cases.join(", ")
        }
    }
}

/// Returns the number of rows, and how many are proven.
pub(crate) fn summary() -> String {
    let count = |fits: fn(&Rule) -> bool| rules::all().filter(|rule| fits(rule)).count();
    format!(
        "{} rows, {} of them binding; {} cases prove {}, and {} are not tested, each for the reason beside \
            it.\n",
        count(|_| true),
        count(Rule::is_binding),
        cases::all().count(),
        count(|rule| rule.proof.is_by_cases()),
        count(|rule| !rule.proof.is_by_cases()),
    )
}

/// Returns the table of the cases: what each shows, and what it can't run without.
pub(crate) fn cases() -> String {
    let rows: Vec<_> = cases::all()
        .map(|case| [format!("`{}`", case.name), case.title.to_owned(), needs(case)])
        .collect();
    markdown(&["Case", "Shows that", "Needs"], &rows)
}

fn needs(case: &Case) -> String {
    let needs: Vec<_> = case.needs.iter().map(ToString::to_string).collect();
    needs.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_in_one_of_the_tables() {
        let tables = [
            Rows::Prose(&["DRV", "OPS"]),
            Rows::Codes("DRV"),
            Rows::Prose(&["CMI"]),
            Rows::Codes("PLG"),
            Rows::Prose(&["INI", "UPD"]),
            Rows::Prose(&["CAP"]),
        ]
        .map(table)
        .concat();
        for rule in rules::all() {
            let found = tables.matches(&format!("| {} |", rule.id)).count();
            assert_eq!(found, 1, "{}", rule.id);
        }
    }
}
