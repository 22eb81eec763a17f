//! The specification rows about the provider. Tests name the rows that they prove, and every other row has a
//! reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::objects::repository;

/// One row, or the rows from the first to the last number of a table: `CTL-CR-01..CTL-CR-16`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rows {
    table: String,
    first: u32,
    last: u32,
}

impl Rows {
    /// The rows in a text. Ids of other tables are ignored.
    fn named_in(text: &str) -> Vec<Self> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
        text.split(|c| !is_part(c))
            .filter_map(|word| Self::parse(word.trim_matches('.')))
            .collect()
    }

    fn parse(word: &str) -> Option<Self> {
        const TABLES: [&str; 8] = ["DRV", "OPS", "CTL", "CMI", "PLG", "CLI", "INI", "UPD"];
        let (first, last) = word.split_once("..").unwrap_or((word, word));
        let (table, first) = first.rsplit_once('-')?;
        let (same, last) = last.trim_start_matches('=').rsplit_once('-')?;
        let is_known = TABLES.contains(&table.split('-').next()?);
        (is_known && same == table).then_some(Self {
            table: table.to_owned(),
            first: first.parse().ok()?,
            last: last.parse().ok()?,
        })
    }

    fn contain(&self, other: &Self) -> bool {
        self.table == other.table && self.first <= other.first && other.last <= self.last
    }
}

/// The rows in the comment above each test.
fn tests(folder: &Path, found: &mut BTreeMap<String, Vec<Rows>>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            tests(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path)?;
            let (mut comment, mut is_test) = (String::new(), false);
            for line in text.lines().map(str::trim) {
                if let Some(words) = line.strip_prefix("///") {
                    comment += words;
                } else if line.starts_with("#[") {
                    is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
                } else {
                    if let Some((name, _)) = line.split_once("fn ").and_then(|(_, rest)| rest.split_once('('))
                        && (is_test || path.iter().any(|part| part == "tests"))
                    {
                        let rows = Rows::named_in(&comment);
                        found.entry(name.to_owned()).or_default().extend(rows);
                    }
                    (comment, is_test) = (String::new(), false);
                }
            }
        }
    }
    Ok(())
}

/// The cells of the tables below a heading, up to the next heading of its level.
fn table<'a>(page: &'a str, heading: &str) -> Result<Vec<Vec<&'a str>>> {
    let (_, rest) = page
        .split_once(&format!("\n{heading}\n"))
        .with_context(|| format!("docs/internals/compliance.md lacks the heading {heading}"))?;
    let level = heading.split(' ').next().unwrap_or_default();
    let end = rest.find(&format!("\n{level} ")).unwrap_or(rest.len());
    let lines = rest.get(..end).unwrap_or_default().lines();
    let cells = |line: &'a str| {
        line.trim_matches('|')
            .split(" | ")
            .map(str::trim)
            .collect::<Vec<_>>()
    };
    let is_row =
        |line: &&str| line.starts_with("| ") && !line.starts_with("| Row") && !line.starts_with("| ---");
    Ok(lines.filter(is_row).map(cells).collect())
}

fn page() -> Result<String> {
    Ok(fs::read_to_string(
        repository().join("docs/internals/compliance.md"),
    )?)
}

#[test]
fn rows_of_the_provider_are_proven_by_tests_that_name_them() -> Result<()> {
    let page = page()?;
    let mut known = BTreeMap::new();
    for folder in ["src", "tests", "crates"] {
        tests(&repository().join(folder), &mut known)?;
    }
    let proven = table(&page, "## The provider")?;
    ensure!(proven.len() > 20, "only {} rows were found", proven.len());
    let mut wrong = Vec::new();
    for cells in proven {
        let [ids, _rule, by] = cells.as_slice() else {
            bail!("a row has three cells: {cells:?}");
        };
        let rows = Rows::named_in(ids);
        let named: Vec<_> = by.split('`').skip(1).step_by(2).collect();
        ensure!(
            !rows.is_empty() && !named.is_empty(),
            "{ids} is proven by nothing"
        );
        for name in named.iter().filter(|name| !known.contains_key(**name)) {
            wrong.push(format!("{ids}: there is no test {name}"));
        }
        for row in rows {
            let names_it = |name: &&str| {
                known
                    .get(*name)
                    .into_iter()
                    .flatten()
                    .any(|rows| rows.contain(&row))
            };
            if !named.iter().any(names_it) {
                wrong.push(format!("{ids}: the comment of none of its tests names {row:?}"));
            }
        }
    }
    ensure!(
        wrong.is_empty(),
        "docs/internals/compliance.md is wrong:\n{}",
        wrong.join("\n")
    );
    Ok(())
}

#[test]
fn every_row_that_a_test_names_is_in_the_tables_and_none_is_there_twice() -> Result<()> {
    let page = page()?;
    let mut listed = BTreeSet::new();
    let ids = page
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    for rows in ids.flat_map(Rows::named_in) {
        ensure!(
            listed.insert(rows.clone()),
            "docs/internals/compliance.md has {rows:?} twice"
        );
    }
    let mut known = BTreeMap::new();
    for folder in ["src", "tests", "crates/capcmi-cli"] {
        tests(&repository().join(folder), &mut known)?;
    }
    for (test, named) in known {
        for rows in named {
            // The first and last number of a range must be rows. The table may have gaps between.
            for number in [rows.first, rows.last] {
                let row = Rows {
                    first: number,
                    last: number,
                    ..rows.clone()
                };
                ensure!(
                    listed.iter().any(|listed| listed.contain(&row)),
                    "docs/internals/compliance.md lacks {row:?}, which the comment of {test} names"
                );
            }
        }
    }
    Ok(())
}
