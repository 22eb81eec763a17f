//! The rules: one row for each requirement on a driver or a plugin, with what proves it.
//!
//! The ids are those of the requirements: DRV of the driver contract, OPS of its chapter on operation, CMI
//! and PLG of the Common Machine Interface, INI and UPD of post-create initialization. What concerns the
//! caller's side has no row here.

/// A table of rules, one to a line: `"DRV-10" Must "what it asks for";`, and with
/// `untested "why"` what no case proves.
macro_rules! rules {
    ($($id:literal $level:ident $says:literal $(untested $reason:expr)?;)*) => {
        &[$(Rule {
            id: $id,
            level: $crate::rules::Level::$level,
            says: $says,
            proof: rules!(@proof $($reason)?),
        }),*]
    };
    (@proof) => { $crate::rules::Proof::Cases };
    (@proof $reason:expr) => { $crate::rules::Proof::NotTested($reason) };
}

mod driver;
mod driver_errors;
mod plugin;
mod plugin_errors;
mod post_create;

use serde::Serialize;

use super::case::Case;
use super::cases;

/// A requirement.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Its row.
    pub id: &'static str,
    /// How binding it is.
    pub level: Level,
    /// What it asks for.
    pub says: &'static str,
    /// What proves it.
    pub proof: Proof,
}

/// How binding a requirement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Level {
    /// MUST, SHALL, REQUIRED: a driver that breaks it is not compliant (DRV-01).
    Must,
    /// SHOULD, in either spelling, or recommended.
    Should,
    /// MAY, OPTIONAL.
    May,
    /// Said without a keyword.
    Said,
}

/// What proves a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The cases that name its row.
    Cases,
    /// Nothing, for this reason.
    NotTested(&'static str),
}

impl Level {
    /// As the report has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Must => "MUST",
            Self::Should => "SHOULD",
            Self::May => "MAY",
            Self::Said => "said",
        }
    }

    /// Whether a driver that breaks it is not compliant.
    pub const fn is_binding(self) -> bool {
        matches!(self, Self::Must)
    }
}

/// Every rule, in the order of the specifications.
pub fn all() -> impl Iterator<Item = &'static Rule> {
    [
        driver::RULES,
        driver_errors::RULES,
        plugin::RULES,
        plugin_errors::RULES,
        post_create::RULES,
    ]
    .into_iter()
    .flatten()
}

/// The rule of a row.
pub fn find(id: &str) -> Option<&'static Rule> {
    all().find(|rule| rule.id == id)
}

/// The cases that prove a row.
pub fn proofs(id: &str) -> impl Iterator<Item = &'static Case> {
    cases::all().filter(move |case| case.proves.contains(&id))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_rule_is_there_once_and_is_proven_or_says_why_not() {
        let mut ids = BTreeSet::new();
        for rule in all() {
            assert!(ids.insert(rule.id), "{} is there twice", rule.id);
            match rule.proof {
                Proof::Cases => assert!(proofs(rule.id).next().is_some(), "no case proves {}", rule.id),
                Proof::NotTested(reason) => assert!(reason.len() > 10, "{}: {reason}", rule.id),
            }
        }
    }

    #[test]
    fn the_rules_that_bind_are_most_of_them() {
        assert!(all().filter(|rule| rule.level.is_binding()).count() > 200);
    }
}
