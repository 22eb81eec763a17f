//! The rules on drivers and plugins, each with the cases that prove it.

use std::fmt::{self, Write as _};

use crate::markdown;
use cmi_conformance::cases;
use cmi_conformance::rules::{self, Level, Proof, Rule};
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

    /// Returns the text of the rules of a group. Code rows leave out the call, since their ids name it.
    fn text(self, group: &Group) -> String {
        let says = group.says();
        match (self, says.split_once(" answers ")) {
            (Self::Codes(_), Some((_, answer))) => answer.to_owned(),
            _ => says,
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

/// The rules of one row. They have the same text, except that each may name another call.
struct Group {
    rules: Vec<&'static Rule>,
}

impl Group {
    fn first(&self) -> &'static Rule {
        self.rules[0]
    }

    fn takes(&self, rule: &Rule) -> bool {
        let same = |rule: &Rule| (rule.layer, of_any_call(rule.says), rule.proof);
        same(self.first()) == same(rule)
    }

    /// Returns the text of the rules.
    fn says(&self) -> String {
        let says = self.first().says;
        if self.rules.iter().all(|rule| rule.says == says) {
            return says.to_owned();
        }
        of_any_call(says)
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
        let mut others: Vec<(String, Vec<&str>)> = Vec::new();
        for (rule, level) in self.rules.iter().zip(levels).filter(|(_, level)| level != must) {
            match others.iter_mut().find(|(known, _)| *known == level) {
                Some((_, ids)) => ids.push(rule.id),
                None => others.push((level, vec![rule.id])),
            }
        }
        let others: Vec<_> = others
            .into_iter()
            .map(|(level, ids)| format!("{}: {level}", ids.join(", ")))
            .collect();
        Some(others.join("; "))
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
        let mut cases: Vec<&str> = Vec::new();
        for case in self.rules.iter().flat_map(|rule| rules::proofs(rule.id)) {
            if !cases.contains(&case.name) {
                cases.push(case.name);
            }
        }
        list(&cases)
    }
}

/// Returns the text of a rule about a call as one about any call.
fn of_any_call(says: &str) -> String {
    let is_call = |word: &str| Operation::ALL.iter().any(|call| call.name() == word);
    let words = says.split(' ').enumerate();
    let words: Vec<_> = words
        .map(|(place, word)| match (is_call(word), place) {
            (true, 0) => "The call",
            (true, _) => "call",
            (false, _) => word,
        })
        .collect();
    words.join(" ")
}

/// Returns all rules in groups, each at the place of its first rule.
fn groups() -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for rule in rules::all() {
        match groups.iter_mut().find(|group| group.takes(rule)) {
            Some(group) => group.rules.push(rule),
            None => groups.push(Group { rules: vec![rule] }),
        }
    }
    groups
}

/// Returns a table of rules. A row is in the table of its first rule.
pub(crate) fn table(of: Rows) -> String {
    let mut reasons = Vec::new();
    let mut rows = Vec::new();
    for group in groups().iter().filter(|group| of.have(group.first().id)) {
        let mut text = of.text(group);
        if let Some(levels) = group.levels() {
            let _infallible = write!(text, " ({levels})");
        }
        rows.push([group.ids(), text, group.proof(&mut reasons)]);
    }
    let title = match of {
        Rows::Prose(_) => "Rule",
        Rows::Codes(_) => "Answer",
    };
    let mut table = markdown(&["Row", title, "Proven by"], &rows);
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

/// Returns names of cases as code, with commas. Names that differ in the call or in the rest share a word, as
/// in a shell: `{create,delete}-again`.
fn list(names: &[&str]) -> String {
    let mut words: Vec<Word> = Vec::new();
    for word in names.iter().map(|name| Word::new(name)) {
        match words.iter_mut().find(|known| known.differs_in_call(&word)) {
            Some(known) => known.calls.extend(word.calls),
            None => words.push(word),
        }
    }
    let mut shorter: Vec<Word> = Vec::new();
    for word in words {
        match shorter.iter_mut().find(|known| known.differs_in_rest(&word)) {
            Some(known) => known.rests.extend(word.rests),
            None => shorter.push(word),
        }
    }
    let shorter: Vec<_> = shorter.iter().map(ToString::to_string).collect();
    shorter.join(", ")
}

/// The names of cases of these calls with these rests.
struct Word<'a> {
    is_wire: bool,
    /// None if the names begin with no call.
    calls: Vec<&'a str>,
    rests: Vec<&'a str>,
}

impl<'a> Word<'a> {
    fn new(name: &'a str) -> Self {
        let inner = name.strip_prefix(WIRE);
        let (is_wire, name) = (inner.is_some(), inner.unwrap_or(name));
        let call = CALLS.iter().find_map(|call| Some((*call, rest(name, call)?)));
        Self {
            is_wire,
            calls: call.iter().map(|(start, _)| *start).collect(),
            rests: vec![call.map_or(name, |(_, rest)| rest)],
        }
    }

    fn differs_in_call(&self, other: &Self) -> bool {
        let both_have_calls = !self.calls.is_empty() && !other.calls.is_empty();
        both_have_calls && self.is_wire == other.is_wire && self.rests == other.rests
    }

    fn differs_in_rest(&self, other: &Self) -> bool {
        let has_start = self.is_wire || !self.calls.is_empty();
        has_start && self.is_wire == other.is_wire && self.calls == other.calls
    }
}

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let any_of = |parts: &[&str]| match parts {
            [only] => (*only).to_owned(),
            parts => format!("{{{}}}", parts.join(",")),
        };
        let wire = if self.is_wire { WIRE } else { "" };
        let rests = any_of(&self.rests);
        match self.calls.as_slice() {
            [] => write!(f, "`{wire}{rests}`"),
            calls => write!(f, "`{wire}{}-{rests}`", any_of(calls)),
        }
    }
}

/// Returns the number of rows, and how many are proven.
pub(crate) fn summary() -> String {
    let count = |fits: fn(&Rule) -> bool| rules::all().filter(|rule| fits(rule)).count();
    format!(
        "The tables have {} rules, and {} of them are binding. {} cases prove {} rules. The other {} are not \
            tested, for the reason below their table.\n",
        count(|_| true),
        count(Rule::is_binding),
        cases::all().count(),
        count(|rule| rule.proof.is_by_cases()),
        count(|rule| !rule.proof.is_by_cases()),
    )
}

/// The beginning of the names of the cases that need an endpoint.
const WIRE: &str = "wire-";
/// The beginning of the names of the cases about a call.
const CALLS: [&str; 13] = [
    "create",
    "delete",
    "status",
    "list",
    "shut-down",
    "initialize",
    "update",
    "restart-machine",
    "console",
    "zones",
    "class",
    "volumes",
    "migrate",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn tables() -> String {
        let rows = [
            Rows::Prose(&["DRV", "OPS"]),
            Rows::Codes("DRV"),
            Rows::Prose(&["CMI"]),
            Rows::Prose(&["INI", "UPD"]),
            Rows::Prose(&["CAP"]),
        ];
        rows.map(table).concat()
    }

    #[test]
    fn each_rule_is_in_exactly_one_table() {
        let tables = tables();
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
                `create-other-parameters`, `static-addresses-other` |",
            "| DRV-CR-10, DRV-DE-10, CMI-11, CMI-34, PLG-CR-10, PLG-DE-10, PLG-SD-10 | ABORTED or OK while \
                an operation is pending (CMI-11: MAY) | ",
            "OK on success (DRV-GV-00: said) |",
        ] {
            assert!(table.contains(row), "{row}: {table}");
        }
    }

    #[test]
    fn the_tables_name_every_case() {
        let tables = tables();
        let names: Vec<_> = tables.split('`').flat_map(expanded).collect();
        for case in cases::all() {
            assert!(names.iter().any(|name| name == case.name), "{}", case.name);
        }
    }

    /// Returns the names that a word stands for.
    fn expanded(word: &str) -> Vec<String> {
        let braces = word.split_once('{');
        let Some((start, (parts, end))) =
            braces.and_then(|(start, rest)| Some((start, rest.split_once('}')?)))
        else {
            return vec![word.to_owned()];
        };
        let ends = expanded(end);
        let joined = |part: &str| {
            ends.iter()
                .map(|end| format!("{start}{part}{end}"))
                .collect::<Vec<_>>()
        };
        parts.split(',').flat_map(joined).collect()
    }

    #[test]
    fn names_that_differ_in_one_part_share_a_word() {
        for (names, word) in [
            (&["create-again", "delete-again"][..], "`{create,delete}-again`"),
            (
                &["list-a", "list-b", "wire-list-a"][..],
                "`list-{a,b}`, `wire-list-a`",
            ),
            (
                &["create-a", "delete-a", "create-b", "delete-b"][..],
                "`{create,delete}-{a,b}`",
            ),
            (
                &["wire-a", "wire-b", "restart-a", "restart-b"][..],
                "`wire-{a,b}`, `restart-a`, `restart-b`",
            ),
        ] {
            assert_eq!(list(names), word);
        }
    }
}
