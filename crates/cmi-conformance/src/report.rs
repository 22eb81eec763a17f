//! The report of a run.

mod junit;
mod layers;
mod ranking;
mod text;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::case::Case;
use super::leftover::Leftover;
use super::liveness::Outage;
use super::rules::{self, Layer, Level, Proof, Rule};
use cmi_driver::PluginInfo;

pub use junit::{JunitError, Required, junit};
pub use layers::{Compliance, LayerReport};
pub use text::{compliance, line, rows, text};

/// The verdict on a case or a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "camelCase")]
pub enum Verdict {
    /// The claim holds.
    Passed,
    /// The claim does not hold.
    Failed {
        /// The reason, in a sentence for the driver's author.
        reason: String,
    },
    /// The claim is undecided: something that it builds upon does not work.
    Inconclusive {
        /// The reason: what does not work.
        reason: String,
    },
    /// The claim could not be tried here.
    Skipped {
        /// The missing requirement.
        reason: String,
    },
    /// No case tests the rule.
    NotTested {
        /// The reason.
        reason: String,
    },
}

/// The report of a case.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CaseReport {
    /// The case's name.
    pub name: String,
    /// The claim that holds when the case passes.
    pub title: String,
    /// The rows of the requirements that the case proves.
    pub proves: Vec<&'static str>,
    /// The verdict.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// The missing hooks and settings: without them, the case was skipped or tried less than it could.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// Suspicious observations that break no rule.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The time that the case took.
    #[serde(rename = "seconds", serialize_with = "seconds")]
    pub took: Duration,
}

/// The report of a rule.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleReport {
    /// The id of its row.
    pub id: &'static str,
    /// The layer that it belongs to.
    pub layer: Layer,
    /// The level that its source gives it.
    pub level: Level,
    /// The level for this provider, where that is more binding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_level: Option<Level>,
    /// The text of the requirement.
    pub says: &'static str,
    /// The verdict.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// The cases that were to prove the rule.
    pub cases: Vec<String>,
}

/// The report of a run.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The name of the tested target.
    pub target: String,
    /// The driver's name and version.
    pub driver: String,
    /// The cases, in the order of the table.
    pub cases: Vec<CaseReport>,
    /// The rules that the run was about, in the order of the specifications.
    pub rules: Vec<RuleReport>,
    /// The report of each layer.
    pub layers: Vec<LayerReport>,
    /// VMs that could not be deleted.
    pub leftovers: Vec<Leftover>,
    /// Each outage that began during one of several requests.
    pub outages: Vec<Outage>,
    /// Whether the run was ended early.
    pub interrupted: bool,
    /// The rules that the run was about.
    pub scope: Scope,
    /// Whether no binding rule in the scope of the run is broken, and nothing speaks against believing that.
    pub passed: bool,
    /// Whether the whole run passed, on every layer. A part is never compliant.
    pub compliant: bool,
}

/// The circumstances of a run.
#[derive(Clone, Debug, Default)]
pub struct Circumstances {
    /// VMs that could not be deleted.
    pub leftovers: Vec<Leftover>,
    /// Each outage that began during one of several requests.
    pub outages: Vec<Outage>,
    /// Whether the run was ended early.
    pub interrupted: bool,
    /// The rules that the run was about.
    pub scope: Scope,
}

/// The rules that a run was about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Scope {
    /// All rules.
    #[default]
    Whole,
    /// The chosen rules. The report says nothing about the others.
    Part,
}

/// The number of verdicts of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The claims that hold.
    pub passed: usize,
    /// The claims that do not hold.
    pub failed: usize,
    /// The inconclusive ones.
    pub inconclusive: usize,
    /// The ones that could not be tried.
    pub skipped: usize,
    /// The ones that no case tests.
    pub not_tested: usize,
}

impl Verdict {
    /// Whether the verdict is a failure.
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::Failed { .. })
    }

    /// Whether the verdict is inconclusive.
    pub fn is_inconclusive(&self) -> bool {
        matches!(self, Self::Inconclusive { .. })
    }

    /// Returns the reason, if any.
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
    /// Counts the verdicts.
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
            write!(f, ", {} inconclusive", self.inconclusive)?;
        }
        if self.not_tested > 0 {
            write!(f, ", {} not tested", self.not_tested)?;
        }
        Ok(())
    }
}

impl CaseReport {
    /// Returns the report of a case that ended.
    pub fn new(case: &Case, verdict: Verdict, warnings: Vec<String>, took: Duration) -> Self {
        Self {
            name: case.name.to_owned(),
            title: case.title.to_owned(),
            proves: case.proves.to_vec(),
            verdict,
            missing: Vec::new(),
            warnings,
            took,
        }
    }
}

impl RuleReport {
    /// Returns the level, and this provider's where that is another: `SHOULD/MUST`.
    pub fn levels(&self) -> String {
        rules::levels(self.level, self.provider_level)
    }
}

impl Report {
    /// Judges the rules by the cases, and the layers by the rules.
    pub fn new(
        target: &str,
        info: Option<&PluginInfo>,
        cases: Vec<CaseReport>,
        about: &[&'static Rule],
        circumstances: Circumstances,
    ) -> Self {
        let Circumstances {
            leftovers,
            outages,
            interrupted,
            scope,
        } = circumstances;
        let mut by_rule: BTreeMap<&str, Vec<&CaseReport>> = BTreeMap::new();
        for case in &cases {
            for id in &case.proves {
                by_rule.entry(id).or_default().push(case);
            }
        }
        let rules: Vec<_> = about
            .iter()
            .map(|rule| rule_report(rule, by_rule.get(rule.id).map_or(&[], Vec::as_slice)))
            .collect();
        let caveats = caveats(&cases, &leftovers, !outages.is_empty(), interrupted);
        let layers = layers::reports(&cases, &rules, about, scope, &caveats);
        let passed = layers.iter().all(|layer| layer.compliance != Compliance::No);
        Self {
            target: target.to_owned(),
            driver: info.map_or_else(
                || "unknown".to_owned(),
                |info| format!("{} {}", info.name, info.version),
            ),
            cases,
            rules,
            layers,
            leftovers,
            outages,
            interrupted,
            scope,
            passed,
            compliant: passed && scope == Scope::Whole,
        }
    }

    /// Returns the compliance with a layer.
    pub fn compliance(&self, layer: Layer) -> Compliance {
        let found = self.layers.iter().find(|report| report.layer == layer);
        found.map_or(Compliance::No, |report| report.compliance)
    }

    /// Returns the report of the rule with this id, when the run was about it.
    pub fn rule(&self, id: &str) -> Option<&RuleReport> {
        self.rules.iter().find(|rule| rule.id == id)
    }

    /// Returns the broken rules, the most telling first.
    pub fn broken(&self) -> impl Iterator<Item = &RuleReport> {
        let mut broken: Vec<_> = self
            .rules
            .iter()
            .filter(|rule| rule.verdict.is_failure())
            .collect();
        broken.sort_by_key(|rule| ranking::of_rule(rule.id, &self.cases));
        broken.into_iter()
    }

    /// Whether anything was tried at all.
    pub fn tested_something(&self) -> bool {
        self.cases
            .iter()
            .any(|case| matches!(case.verdict, Verdict::Passed | Verdict::Failed { .. }))
    }
}

/// Returns the reasons to believe no layer although no rule was seen broken.
fn caveats(cases: &[CaseReport], leftovers: &[Leftover], went_away: bool, interrupted: bool) -> Vec<String> {
    let caveats = [
        (went_away, "the driver went away".to_owned()),
        (interrupted, "the run was ended early".to_owned()),
        (
            !leftovers.is_empty(),
            format!("{} VMs may be left behind", leftovers.len()),
        ),
        (
            !cases.iter().any(|case| case.verdict == Verdict::Passed),
            "nothing was shown to hold".to_owned(),
        ),
    ];
    caveats
        .into_iter()
        .filter_map(|(is_one, doubt)| is_one.then_some(doubt))
        .collect()
}

/// Returns why a rule that needs each of its cases was not fully tested: one of the cases did not run.
fn unseen(rule: &Rule, cases: &[&CaseReport]) -> Option<String> {
    if rule.proof != Proof::EveryCase {
        return None;
    }
    rules::proofs(rule.id).find_map(|proof| {
        let Some(case) = cases.iter().find(|case| case.name == proof.name) else {
            return Some(format!("`{}` was not chosen", proof.name));
        };
        let is_skipped = matches!(case.verdict, Verdict::Skipped { .. });
        is_skipped.then(|| case.verdict.reason().unwrap_or_default().to_owned())
    })
}

/// A rule is broken when one of its cases failed; it holds when one passed, none failed
/// and none was inconclusive.
fn rule_report(rule: &Rule, cases: &[&CaseReport]) -> RuleReport {
    let find = |wanted: fn(&Verdict) -> bool| {
        let fitting = cases.iter().filter(|case| wanted(&case.verdict));
        fitting.min_by_key(|case| ranking::of_case(&case.name))
    };
    let because = |case: &CaseReport| format!("{}: {}", case.name, case.verdict.reason().unwrap_or_default());
    let verdict = if let Some(failed) = find(Verdict::is_failure) {
        Verdict::Failed {
            reason: because(failed),
        }
    } else if let Some(inconclusive) = find(Verdict::is_inconclusive) {
        Verdict::Inconclusive {
            reason: because(inconclusive),
        }
    } else if let Some(reason) = unseen(rule, cases) {
        Verdict::Skipped { reason }
    } else if find(|verdict| *verdict == Verdict::Passed).is_some() {
        Verdict::Passed
    } else {
        match rule.proof {
            Proof::NotTested(reason) => Verdict::NotTested {
                reason: reason.to_owned(),
            },
            Proof::Cases | Proof::EveryCase => Verdict::Skipped {
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
        layer: rule.layer,
        level: rule.level,
        provider_level: rule.provider_level,
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
