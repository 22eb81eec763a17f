//! The verdict of a run on each layer: the published specification, and this provider's own rules on top of
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use super::{CaseReport, RuleReport, Scope, Verdict, ranking, text};
use crate::Need;
use crate::rules::{Layer, Rule};

/// The compliance with a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Compliance {
    /// No binding rule is broken, as far as this run tried them.
    Yes,
    /// As `Yes`, but the run could not try some rules for want of a hook or a setting.
    Basic,
    /// As `Yes`, and the run tried, with every hook, each binding rule that the driver's calls allow.
    Full,
    /// A binding rule is broken, or there is a reason not to believe that none is.
    No,
    /// Only a part of the rules was chosen, and none of them is broken. The verdict says nothing about the
    /// others.
    Part,
}

impl fmt::Display for Compliance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The report of a layer.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LayerReport {
    /// The layer.
    pub layer: Layer,
    /// The compliance with the layer.
    pub compliance: Compliance,
    /// The reasons why the layer is `No`.
    pub reasons: Vec<String>,
    /// The binding rows that are broken, the most telling first.
    pub broken: Vec<&'static str>,
    /// The binding rows that were not tried in full, and can be.
    pub untried: Vec<&'static str>,
    /// The hooks and settings that would let the run try those rows.
    pub missing: BTreeSet<String>,
}

/// Returns the reports of all layers; each builds on the previous.
pub(super) fn reports(
    cases: &[CaseReport],
    rules: &[RuleReport],
    about: &[&'static Rule],
    scope: Scope,
    caveats: &[String],
) -> Vec<LayerReport> {
    let mut layers: Vec<LayerReport> = Vec::new();
    for layer in Layer::ALL {
        let below = layers.last();
        layers.push(of(layer, below, cases, rules, about, scope, caveats));
    }
    layers
}

fn of(
    layer: Layer,
    below: Option<&LayerReport>,
    cases: &[CaseReport],
    rules: &[RuleReport],
    about: &[&'static Rule],
    scope: Scope,
    caveats: &[String],
) -> LayerReport {
    let binding: Vec<_> = about
        .iter()
        .zip(rules)
        .filter(|(rule, _)| rule.binds(layer))
        .map(|(_, report)| report)
        .collect();
    let mut broken: Vec<_> = binding.iter().filter(|rule| rule.verdict.is_failure()).collect();
    broken.sort_by_key(|rule| ranking::of_rule(rule.id, cases));
    let mut reasons = faults(broken.iter().map(|rule| rule.id));
    if let Some(below) = below.filter(|below| below.compliance == Compliance::No) {
        reasons.push(text::takes(below.layer));
    } else {
        let is_ours = |id: &str| about.iter().any(|rule| rule.id == id && rule.is_of(layer));
        let unclear = cases
            .iter()
            .filter(|case| case.verdict.is_inconclusive() && case.proves.iter().any(|id| is_ours(id)));
        match unclear.count() {
            0 => {}
            count => reasons.push(format!("{count} cases were inconclusive")),
        }
        reasons.extend_from_slice(caveats);
    }
    let untried: Vec<_> = binding
        .iter()
        .filter(|rule| !lacks(rule, cases).is_empty())
        .collect();
    let missing: BTreeSet<String> = untried.iter().flat_map(|rule| lacks(rule, cases)).collect();
    let mut untried: Vec<_> = untried.into_iter().map(|rule| rule.id).collect();
    if let Some(below) = below {
        untried.splice(0..0, below.untried.iter().copied());
    }
    let missing = missing
        .into_iter()
        .chain(below.into_iter().flat_map(|below| below.missing.clone()));
    let compliance = match (reasons.is_empty(), layer) {
        (false, _) => Compliance::No,
        (true, _) if scope == Scope::Part => Compliance::Part,
        (true, Layer::Published) => Compliance::Yes,
        (true, Layer::Provider) if untried.is_empty() => Compliance::Full,
        (true, Layer::Provider) => Compliance::Basic,
    };
    LayerReport {
        layer,
        compliance,
        reasons,
        broken: broken.into_iter().map(|rule| rule.id).collect(),
        missing: missing.collect(),
        untried,
    }
}

/// Returns the missing hooks and settings of a rule that the driver's author can add. If some cases have
/// tried the rule, the needs of the skipped cases count only if they have no substitute (see
/// [`Need::has_no_substitute`]). The missing needs of a case that ran always count: it could test more.
fn lacks(rule: &RuleReport, cases: &[CaseReport]) -> BTreeSet<String> {
    let of_rule = cases.iter().filter(|case| case.proves.contains(&rule.id));
    match rule.verdict {
        Verdict::Skipped { .. } => of_rule.flat_map(|case| case.missing.clone()).collect(),
        _ => of_rule
            .filter(|case| {
                let was_run = !matches!(case.verdict, Verdict::Skipped { .. });
                was_run
                    || case
                        .missing
                        .iter()
                        .all(|missing| Need::has_no_substitute(missing))
            })
            .flat_map(|case| case.missing.clone())
            .collect(),
    }
}

/// Returns the broken rows, grouped by fault if that is more informative than their ids.
fn faults(broken: impl Iterator<Item = &'static str>) -> Vec<String> {
    let mut order: Vec<Option<&'static str>> = Vec::new();
    let mut by_fault: BTreeMap<Option<&'static str>, Vec<&'static str>> = BTreeMap::new();
    for id in broken {
        let fault = fault(id);
        if !order.contains(&fault) {
            order.push(fault);
        }
        by_fault.entry(fault).or_default().push(id);
    }
    let written = |fault: Option<&str>, ids: &[&str]| match fault {
        Some(fault) => format!("{fault}: {}", text::rows(ids)),
        None => format!("breaks {}", text::rows(ids)),
    };
    let sorted = order
        .into_iter()
        .filter_map(|fault| Some((fault, by_fault.remove(&fault)?)));
    sorted.map(|(fault, ids)| written(fault, &ids)).collect()
}

/// Returns the fault of a driver that breaks a row of this provider.
fn fault(id: &str) -> Option<&'static str> {
    match id {
        "CAP-01" | "CAP-02" | "CAP-03" | "CAP-04" => Some("identity tag not kept"),
        "OPS-11" | "CMI-13" | "CMI-165" | "CMI-186" => Some("secrets leak"),
        "UPD-02" | "UPD-03" => Some("UpdateMachine does not update"),
        _ => None,
    }
}
