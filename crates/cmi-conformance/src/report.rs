//! What a run found.

mod junit;
mod text;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::case::Case;
use super::rules::{self, Level, Proof, Rule};
use cmi_driver::PluginInfo;

pub use junit::{JunitError, junit};
pub use text::{line, text};

/// How something ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "camelCase")]
pub enum Verdict {
    /// It holds.
    Passed,
    /// It does not.
    Failed {
        /// In a sentence for the driver's author.
        reason: String,
    },
    /// It could not be judged: what it builds upon does not work.
    Inconclusive {
        /// What does not.
        reason: String,
    },
    /// It could not be tried here.
    Skipped {
        /// What is missing.
        reason: String,
    },
    /// Nothing tests it.
    NotTested {
        /// Why.
        reason: String,
    },
}

/// How a case ended.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CaseReport {
    /// The case's name.
    pub name: String,
    /// What holds when it passes.
    pub title: String,
    /// The rows that it proves.
    pub proves: Vec<&'static str>,
    /// How it ended.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// What is worth a look and breaks no rule.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// How long it took.
    #[serde(rename = "seconds", serialize_with = "seconds")]
    pub took: Duration,
}

/// How a rule fared.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleReport {
    /// The row.
    pub id: &'static str,
    /// How binding it is.
    pub level: Level,
    /// What it asks for.
    pub says: &'static str,
    /// How it fared.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// The cases that were to prove it.
    pub cases: Vec<String>,
}

/// What a run found.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// What was tested.
    pub target: String,
    /// The driver's name and version.
    pub driver: String,
    /// The cases, in the order of the table.
    pub cases: Vec<CaseReport>,
    /// The rules that the run was about, in the order of the specifications.
    pub rules: Vec<RuleReport>,
    /// VMs that could not be deleted.
    pub leftovers: Vec<String>,
    /// Whether it was ended early.
    pub interrupted: bool,
    /// Whether no binding rule was broken, and nothing speaks against believing that.
    pub compliant: bool,
}

/// How many ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// They hold.
    pub passed: usize,
    /// They do not.
    pub failed: usize,
    /// They could not be judged.
    pub inconclusive: usize,
    /// They could not be tried.
    pub skipped: usize,
    /// Nothing tests them.
    pub not_tested: usize,
}

impl Verdict {
    /// Whether it is a failure.
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::Failed { .. })
    }

    /// Whether it could not be judged.
    pub fn is_inconclusive(&self) -> bool {
        matches!(self, Self::Inconclusive { .. })
    }

    /// Why, when there is something to say.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Passed => None,
            Self::Failed { reason }
            | Self::Inconclusive { reason }
            | Self::Skipped { reason }
            | Self::NotTested { reason } => Some(reason),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Passed => "passed",
            Self::Failed { .. } => "FAILED",
            Self::Inconclusive { .. } => "inconclusive",
            Self::Skipped { .. } => "skipped",
            Self::NotTested { .. } => "not tested",
        })
    }
}

impl Tally {
    /// Counts.
    pub fn of<'a>(verdicts: impl Iterator<Item = &'a Verdict>) -> Self {
        verdicts.fold(Self::default(), |mut tally, verdict| {
            match verdict {
                Verdict::Passed => tally.passed += 1,
                Verdict::Failed { .. } => tally.failed += 1,
                Verdict::Inconclusive { .. } => tally.inconclusive += 1,
                Verdict::Skipped { .. } => tally.skipped += 1,
                Verdict::NotTested { .. } => tally.not_tested += 1,
            }
            tally
        })
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )?;
        if self.inconclusive > 0 {
            write!(f, ", {} could not be judged", self.inconclusive)?;
        }
        if self.not_tested > 0 {
            write!(f, ", {} not tested", self.not_tested)?;
        }
        Ok(())
    }
}

impl CaseReport {
    /// A case that ended.
    pub fn new(case: &Case, verdict: Verdict, warnings: Vec<String>, took: Duration) -> Self {
        Self {
            name: case.name.to_owned(),
            title: case.title.to_owned(),
            proves: case.proves.to_vec(),
            verdict,
            warnings,
            took,
        }
    }
}

impl Report {
    /// Judges the rules by the cases.
    pub fn new(
        target: &str,
        info: Option<&PluginInfo>,
        cases: Vec<CaseReport>,
        about: &[&'static Rule],
        leftovers: Vec<String>,
        interrupted: bool,
    ) -> Self {
        let mut by_rule: BTreeMap<&str, Vec<&CaseReport>> = BTreeMap::new();
        for case in &cases {
            for id in &case.proves {
                by_rule.entry(id).or_default().push(case);
            }
        }
        let rules: Vec<_> = about
            .iter()
            .map(|rule| judge(rule, by_rule.get(rule.id).map_or(&[], Vec::as_slice)))
            .collect();
        let broken = rules
            .iter()
            .any(|rule| rule.verdict.is_failure() && rule.level.is_binding());
        let tested = cases.iter().any(|case| case.verdict == Verdict::Passed);
        let inconclusive = cases.iter().any(|case| case.verdict.is_inconclusive());
        Self {
            target: target.to_owned(),
            driver: info.map_or_else(
                || "unknown".to_owned(),
                |info| format!("{} {}", info.name, info.version),
            ),
            compliant: tested && !broken && !inconclusive && leftovers.is_empty() && !interrupted,
            cases,
            rules,
            leftovers,
            interrupted,
        }
    }

    /// How the rule of this id fared, when the run was about it.
    pub fn rule(&self, id: &str) -> Option<&RuleReport> {
        self.rules.iter().find(|rule| rule.id == id)
    }

    /// The rules that are broken.
    pub fn broken(&self) -> impl Iterator<Item = &RuleReport> {
        self.rules.iter().filter(|rule| rule.verdict.is_failure())
    }

    /// Whether anything was tried at all.
    pub fn tested_something(&self) -> bool {
        self.cases
            .iter()
            .any(|case| matches!(case.verdict, Verdict::Passed | Verdict::Failed { .. }))
    }
}

/// A rule is broken when one of its cases failed; it holds when one passed, none failed
/// and each could be judged.
fn judge(rule: &Rule, cases: &[&CaseReport]) -> RuleReport {
    let find = |wanted: fn(&Verdict) -> bool| cases.iter().find(|case| wanted(&case.verdict));
    let because = |case: &CaseReport| format!("{}: {}", case.name, case.verdict.reason().unwrap_or_default());
    let verdict = if let Some(failed) = find(Verdict::is_failure) {
        Verdict::Failed {
            reason: because(failed),
        }
    } else if let Some(inconclusive) = find(Verdict::is_inconclusive) {
        Verdict::Inconclusive {
            reason: because(inconclusive),
        }
    } else if find(|verdict| *verdict == Verdict::Passed).is_some() {
        Verdict::Passed
    } else {
        match rule.proof {
            Proof::NotTested(reason) => Verdict::NotTested {
                reason: reason.to_owned(),
            },
            Proof::Cases => Verdict::Skipped {
                reason: cases
                    .first()
                    .and_then(|case| case.verdict.reason())
                    .unwrap_or("no case that proves it was chosen")
                    .to_owned(),
            },
        }
    };
    RuleReport {
        id: rule.id,
        level: rule.level,
        says: rule.says,
        verdict,
        cases: rules::proofs(rule.id).map(|case| case.name.to_owned()).collect(),
    }
}

fn seconds<S: serde::Serializer>(took: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(took.as_secs_f64())
}

#[cfg(test)]
mod tests;
