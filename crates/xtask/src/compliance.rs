//! The rules on drivers and plugins, each with the cases that prove it.

use std::fmt::Write as _;

use crate::markdown;
use cmi_conformance::rules::{self, Level, Proof, Rule};
use cmi_conformance::{Case, Need, cases};
use cmi_driver::Operation;

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

    /// Returns the text of a rule. Code rows leave out the call, since their ids name it.
    fn text(self, rule: &Rule) -> &'static str {
        let answer = rule.says.split_once(" answers ").map(|(_, answer)| answer);
        match self {
            Self::Codes(_) => answer.unwrap_or(rule.says),
            Self::Prose(_) => rule.says,
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

/// The rules of one row. They have the same text and share the cases that prove them. Some rules have more
/// cases.
struct Group {
    rules: Vec<&'static Rule>,
    /// The cases of each rule.
    cases: Vec<Vec<&'static str>>,
}

impl Group {
    fn first(&self) -> &'static Rule {
        self.rules[0]
    }

    fn takes(&self, rule: &Rule, cases: &[&str]) -> bool {
        let first = self.first();
        let same = |rule: &Rule| (rule.layer, rule.says, rule.proof);
        let within = |some: &[&str], all: &[&str]| some.iter().all(|case| all.contains(case));
        let similar = within(&self.cases[0], cases) || within(cases, &self.cases[0]);
        same(first) == same(rule) && similar
    }

    fn ids(&self) -> String {
        let ids: Vec<_> = self.rules.iter().map(|rule| rule.id).collect();
        ids.join(", ")
    }

    /// Returns the levels that are not MUST.
    fn levels(&self) -> Option<String> {
        let levels: Vec<_> = self.rules.iter().map(|rule| rule.levels()).collect();
        let must = Level::Must.name();
        if levels.iter().all(|level| *level == levels[0]) {
            return (levels[0] != must).then(|| levels[0].clone());
        }
        let rules = self.rules.iter().zip(levels);
        let others = rules.filter(|(_, level)| level != must);
        let others: Vec<_> = others
            .map(|(rule, level)| format!("{}: {level}", source(rule)))
            .collect();
        Some(others.join(", "))
    }

    /// Returns the cases that prove the rules, or the letter of the reason that none does.
    fn proof(&self, reasons: &mut Vec<&'static str>) -> String {
        if let Proof::NotTested(reason) = self.first().proof {
            let known = reasons.iter().position(|known| *known == reason);
            let index = known.unwrap_or_else(|| {
                reasons.push(reason);
                reasons.len() - 1
            });
            let letter = letters().nth(index).unwrap_or_default();
            return format!("not tested ({letter})");
        }
        let is_common = |case: &&str| self.cases.iter().all(|cases| cases.contains(case));
        let (common, _): (Vec<_>, Vec<_>) = self.cases[0].iter().partition(|case| is_common(case));
        let mut proof = list(&common);
        for (rule, cases) in self.rules.iter().zip(&self.cases) {
            let mut more = cases.clone();
            more.retain(|case| !is_common(case));
            if !more.is_empty() {
                let _infallible = write!(proof, "; {} also {}", source(rule), list(&more));
            }
        }
        proof
    }
}

/// Returns the prefix of a rule's id, which tells it from the others of a group.
fn source(rule: &Rule) -> &'static str {
    rule.id.split_once('-').map_or(rule.id, |(prefix, _)| prefix)
}

/// Returns all rules in groups, each at the place of its first rule.
fn groups() -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for rule in rules::all() {
        let cases: Vec<_> = rules::proofs(rule.id).map(|case| case.name).collect();
        if let Some(group) = groups.iter_mut().find(|group| group.takes(rule, &cases)) {
            group.rules.push(rule);
            group.cases.push(cases);
        } else {
            groups.push(Group {
                rules: vec![rule],
                cases: vec![cases],
            });
        }
    }
    groups
}

/// Returns a table of rules. A row is in the table of its first rule.
pub(crate) fn table(of: Rows) -> String {
    let mut reasons = Vec::new();
    let mut rows = Vec::new();
    let mut some_are_elsewhere = false;
    for group in groups() {
        if of.have(group.first().id) {
            let mut text = of.text(group.first()).to_owned();
            if let Some(levels) = group.levels() {
                let _infallible = write!(text, " ({levels})");
            }
            rows.push([group.ids(), text, group.proof(&mut reasons)]);
        } else {
            some_are_elsewhere |= group.rules.iter().any(|rule| of.have(rule.id));
        }
    }
    let title = match of {
        Rows::Prose(_) => "Rule",
        Rows::Codes(_) => "Answer",
    };
    let mut table = markdown(&["Row", title, "Proven by"], &rows);
    if some_are_elsewhere {
        table += "\nThe tables of the driver contract contain the other rows.\n";
    }
    for (letter, reason) in letters().zip(reasons) {
        let _infallible = write!(table, "\n({letter}) {}.\n", capitalized(reason));
    }
    table
}

fn letters() -> impl Iterator<Item = char> {
    'a'..='z'
}

fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(characters).collect()
}

/// Returns names as code, with commas.
fn list(names: &[&str]) -> String {
    let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

/// Returns the number of rows, and how many are proven.
pub(crate) fn summary() -> String {
    let count = |fits: fn(&Rule) -> bool| rules::all().filter(|rule| fits(rule)).count();
    format!(
        "The tables have {} rows, and {} of them are binding. {} cases prove {} rows. The other {} are not \
            tested, for the reason below their table. A row without a level is a MUST.\n",
        count(|_| true),
        count(Rule::is_binding),
        cases::all().count(),
        count(|rule| rule.proof.is_by_cases()),
        count(|rule| !rule.proof.is_by_cases()),
    )
}

/// The beginning of the names of cases, and the optional call that they need.
const CALLS: [(&str, Operation); 10] = [
    ("status", Operation::GetMachineStatus),
    ("list", Operation::ListMachines),
    ("shut-down", Operation::ShutDownMachine),
    ("initialize", Operation::InitializeMachine),
    ("update", Operation::UpdateMachine),
    ("restart-machine", Operation::RestartMachine),
    ("zones", Operation::ListZones),
    ("class", Operation::DescribeClass),
    ("volumes", Operation::GetVolumeIds),
    ("migrate", Operation::GenerateMachineClassForMigration),
];
/// The beginning of the names of the cases that need an endpoint.
const WIRE: &str = "wire-";
/// The end of the names of the cases that also run when their call is not declared.
const OFFERED: &str = "-offered";

/// Returns the table of the cases, with their claims and needs.
pub(crate) fn cases() -> String {
    let mut groups: Vec<(Vec<&str>, &str, String)> = Vec::new();
    for case in cases::all() {
        let needs = needs(case);
        let same = groups
            .iter_mut()
            .find(|group| group.1 == case.title && group.2 == needs);
        match same {
            Some((names, ..)) => names.push(case.name),
            None => groups.push((vec![case.name], case.title, needs)),
        }
    }
    let rows: Vec<_> = groups
        .into_iter()
        .map(|(names, title, needs)| [list(&names), title.to_owned(), needs])
        .collect();
    let calls = CALLS
        .map(|(start, call)| format!("| `{start}-` | {call} |\n"))
        .concat();
    format!(
        "Some names imply a need:\n\n| Name | Needs |\n| --- | --- |\n| `{WIRE}` | an endpoint |\n{calls}\n\
            The prefix of a call can follow `{WIRE}`. Cases that end with `{OFFERED}` run without the \
            call.\n\n{}",
        markdown(&["Case", "Shows that", "Also needs"], &rows)
    )
}

/// Returns the call that the name of a case implies.
fn implied(case: &Case) -> Option<Operation> {
    let name = case.name.strip_prefix(WIRE).unwrap_or(case.name);
    let mut calls = CALLS.iter();
    let found = calls.find(|(start, _)| rest(name, start).is_some());
    found.filter(|_| !name.ends_with(OFFERED)).map(|(_, call)| *call)
}

/// Returns the needs that the name of a case does not imply.
fn needs(case: &Case) -> String {
    let is_implied = |need: &Need| match need {
        Need::Call(call) => implied(case) == Some(*call),
        Need::Endpoint => case.name.starts_with(WIRE),
        _ => false,
    };
    let needs: Vec<_> = case
        .needs
        .iter()
        .filter(|need| !is_implied(need))
        .map(ToString::to_string)
        .collect();
    needs.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_is_in_exactly_one_table() {
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
        let ids: Vec<_> = tables
            .lines()
            .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
            .flat_map(|cell| cell.split(", "))
            .collect();
        for rule in rules::all() {
            let found = ids.iter().filter(|id| **id == rule.id).count();
            assert_eq!(found, 1, "{}", rule.id);
        }
    }

    #[test]
    fn rules_with_the_same_text_share_a_row() {
        let table = table(Rows::Codes("DRV"));
        for row in [
            "| DRV-CR-06, PLG-CR-06 | ALREADY_EXISTS if the VM of this name does not match | \
                `create-other-parameters` |",
            "| DRV-CR-04, PLG-CR-04 | DEADLINE_EXCEEDED after its deadline, and can be repeated | \
                `create-deadline`; PLG also `wire-create-deadline` |",
            "| DRV-GV-00, PLG-GV-00 | OK on success (DRV: said) |",
        ] {
            assert!(table.contains(row), "{row}: {table}");
        }
    }

    #[test]
    fn the_table_has_every_case_once() {
        let table = cases();
        for case in cases::all() {
            assert_eq!(
                table.matches(&format!("`{}`", case.name)).count(),
                1,
                "{}",
                case.name
            );
        }
    }

    #[test]
    fn cases_have_the_needs_that_their_names_imply() {
        for case in cases::all() {
            if let Some(call) = implied(case) {
                assert!(case.needs.contains(&Need::Call(call)), "{}", case.name);
            }
            let is_wire = case.name.starts_with(WIRE);
            assert!(!is_wire || case.needs.contains(&Need::Endpoint), "{}", case.name);
        }
    }
}
