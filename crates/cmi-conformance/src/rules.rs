//! The rules: one row for each requirement on a driver or a plugin, with its proof.
//!
//! The ids are the requirements' ids: DRV of the driver contract, OPS of its chapter on operation, CMI and
//! PLG of the Common Machine Interface, INI and UPD of post-create initialization. This provider adds the CAP
//! rows. Requirements on the caller have no row here.

/// A table of rules of a layer, one to a line: `"DRV-10" Must "the requirement";`. In `Should / Must`, the
/// second level is this provider's. `untested "why"` marks a rule without a case that proves it. A final
/// `by_every_case` marks a rule that none of its cases proves alone. A prefix after the layer begins each id.
macro_rules! rules {
    ($layer:ident: $($rows:tt)*) => { rules!($layer "": $($rows)*) };
    ($layer:ident $prefix:literal:
        $($id:literal $level:ident $(/ $here:ident)? $says:literal
            $(untested $reason:expr)? $(, $how:ident)?;)*) => {
        &[$(Rule {
            id: concat!($prefix, $id),
            layer: $crate::rules::Layer::$layer,
            level: $crate::rules::Level::$level,
            provider_level: rules!(@here $($here)?),
            says: $says,
            proof: rules!(@proof $($reason)? $($how)?),
        }),*]
    };
    (@here) => { None };
    (@here $here:ident) => { Some($crate::rules::Level::$here) };
    (@proof) => { $crate::rules::Proof::Cases };
    (@proof by_every_case) => { $crate::rules::Proof::EveryCase };
    (@proof $reason:expr) => { $crate::rules::Proof::NotTested($reason) };
}

mod driver;
mod errors;
mod plugin;
mod provider;

use std::fmt;

use serde::Serialize;

use super::case::Case;
use super::cases;

/// A requirement.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The id of its row.
    pub id: &'static str,
    /// The layer that it belongs to.
    pub layer: Layer,
    /// The level that its source gives it.
    pub level: Level,
    /// The level for this provider, where that is more binding.
    pub provider_level: Option<Level>,
    /// The text of the requirement.
    pub says: &'static str,
    /// The proof of the requirement.
    pub proof: Proof,
}

/// The layer of a requirement. A caller of the published calls alone sees the first layer; the second has the
/// further needs of this provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Layer {
    /// The published specification.
    #[serde(rename = "cmi.v1")]
    Published,
    /// This provider's own rules: the identity tag, and the calls of its extension.
    #[serde(rename = "capcmi")]
    Provider,
}

impl Layer {
    /// Every layer; each builds on the previous.
    pub const ALL: [Self; 2] = [Self::Published, Self::Provider];
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The level of a requirement: how binding it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Level {
    /// MUST, SHALL, REQUIRED: a driver that breaks it is not compliant with its layer (DRV-01).
    Must,
    /// SHOULD, in either spelling, or recommended.
    Should,
    /// MAY, OPTIONAL.
    May,
    /// Stated without a keyword.
    Said,
}

/// The proof of a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The cases that name its row.
    Cases,
    /// All cases that name its row: each of them looks at another place, so the requirement holds only if all
    /// have passed.
    EveryCase,
    /// No case proves it, for this reason.
    NotTested(&'static str),
}

impl Proof {
    /// Whether cases prove the requirement.
    pub const fn is_by_cases(self) -> bool {
        match self {
            Self::Cases | Self::EveryCase => true,
            Self::NotTested(_) => false,
        }
    }
}

impl Level {
    /// Returns the name of the level in the report.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Must => "MUST",
            Self::Should => "SHOULD",
            Self::May => "MAY",
            Self::Said => "said",
        }
    }

    /// Whether a driver that breaks a rule of this level is not compliant.
    pub const fn is_binding(self) -> bool {
        matches!(self, Self::Must)
    }
}

impl Rule {
    /// Whether a driver that breaks the rule is not compliant with a layer.
    pub fn binds(&self, layer: Layer) -> bool {
        let by_source = self.layer == layer && self.level.is_binding();
        let by_provider = layer == Layer::Provider && self.provider_level.is_some_and(Level::is_binding);
        by_source || by_provider
    }

    /// Whether the rule belongs to a layer, binding or not.
    pub fn is_of(&self, layer: Layer) -> bool {
        self.layer == layer || self.binds(layer)
    }

    /// Whether a driver that breaks the rule is not compliant with some layer.
    pub fn is_binding(&self) -> bool {
        Layer::ALL.into_iter().any(|layer| self.binds(layer))
    }

    /// Returns the level, and this provider's where that is another: `SHOULD/MUST`.
    pub fn levels(&self) -> String {
        levels(self.level, self.provider_level)
    }
}

/// Returns the level of a source, and this provider's where that is another.
pub(crate) fn levels(source: Level, provider: Option<Level>) -> String {
    match provider {
        None => source.name().to_owned(),
        Some(here) => format!("{}/{}", source.name(), here.name()),
    }
}

/// Why no case proves the rules about start and output of the program.
const STARTS: &str = "calls do not reveal how the program starts or what it prints; `capcmi driver serve` \
    has its own tests";

/// Every rule, in the order of the specifications.
pub fn all() -> impl Iterator<Item = &'static Rule> {
    [
        driver::RULES,
        errors::DRIVER,
        plugin::RULES,
        errors::PLUGIN,
        provider::RULES,
    ]
    .into_iter()
    .flatten()
}

/// Returns the rule with this id.
pub fn find(id: &str) -> Option<&'static Rule> {
    all().find(|rule| rule.id == id)
}

/// Returns the cases that prove a row.
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
                Proof::Cases | Proof::EveryCase => {
                    assert!(proofs(rule.id).next().is_some(), "no case proves {}", rule.id);
                }
                Proof::NotTested(reason) => assert!(reason.len() > 10, "{}: {reason}", rule.id),
            }
        }
    }

    #[test]
    fn the_rules_that_bind_are_most_of_them() {
        assert!(all().filter(|rule| rule.is_binding()).count() > 200);
    }

    #[test]
    fn what_the_provider_asks_for_besides_decides_its_own_layer_alone() {
        let secret = find("OPS-11").unwrap();
        assert!(!secret.binds(Layer::Published) && secret.binds(Layer::Provider));
        assert_eq!(secret.levels(), "SHOULD/MUST");
        let identity = find("CAP-01").unwrap();
        assert!(!identity.binds(Layer::Published) && identity.binds(Layer::Provider));
        assert!(find("DRV-10").unwrap().binds(Layer::Published));
    }
}
