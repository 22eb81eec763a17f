//! Whether a machine requests that its pods with volumes are evicted one after the other. Pure.

use std::time::Duration;

use jiff::SignedDuration;

use crate::api::annotations;
use crate::api::v1alpha1::InfraMachine;

/// How long the drain waits for the volumes of a pod if the annotation has no duration.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_mins(2);
/// The longest duration that the annotation may have.
pub const MAX_TIMEOUT: Duration = Duration::from_hours(1);
/// The most characters of an invalid value in a message.
const MAX_SHOWN: usize = 64;

/// The value of the annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptIn {
    /// No annotation, or `false`.
    No,
    /// Wait this long for the volumes of each pod.
    Yes(Duration),
    /// The value is not a duration; this is its beginning.
    Invalid(String),
}

impl OptIn {
    /// Parses the annotation of a machine.
    pub fn of(infra: &InfraMachine) -> Self {
        let annotations = infra.metadata.annotations.as_ref();
        let Some(value) = annotations.and_then(|all| all.get(annotations::VOLUME_DRAIN)) else {
            return Self::No;
        };
        match value.trim() {
            "false" => Self::No,
            "" | "true" => Self::Yes(DEFAULT_TIMEOUT),
            text => match duration(text) {
                Some(timeout) => Self::Yes(timeout),
                None => Self::Invalid(text.chars().take(MAX_SHOWN).collect()),
            },
        }
    }

    /// How long the drain waits for the volumes of a pod. An invalid duration keeps the requested protection.
    pub fn timeout(&self) -> Option<Duration> {
        match self {
            Self::No => None,
            Self::Yes(timeout) => Some(*timeout),
            Self::Invalid(_) => Some(DEFAULT_TIMEOUT),
        }
    }
}

fn duration(text: &str) -> Option<Duration> {
    let parsed: Duration = text.parse::<SignedDuration>().ok()?.try_into().ok()?;
    (Duration::from_secs(1)..=MAX_TIMEOUT)
        .contains(&parsed)
        .then_some(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1alpha1::InfraMachineSpec;

    fn opt_in(value: &str) -> OptIn {
        let mut infra = InfraMachine::new("m", InfraMachineSpec::default());
        let annotation = (annotations::VOLUME_DRAIN.to_owned(), value.to_owned());
        infra.metadata.annotations = Some([annotation].into());
        OptIn::of(&infra)
    }

    #[test]
    fn a_time_from_a_second_to_an_hour_is_taken_and_two_minutes_without_one() {
        for (value, seconds) in [("", 120), ("true", 120), ("90s", 90), ("1m30s", 90), ("1h", 3600)] {
            assert_eq!(opt_in(value), OptIn::Yes(Duration::from_secs(seconds)), "{value}");
        }
        assert_eq!(opt_in("false"), OptIn::No);
        let without = InfraMachine::new("m", InfraMachineSpec::default());
        assert_eq!(OptIn::of(&without).timeout(), None);
    }

    #[test]
    fn what_is_no_such_time_is_shown_in_part_and_counts_as_two_minutes() {
        for value in ["soon", "0s", "-1m", "2h", "120"] {
            assert_eq!(opt_in(value), OptIn::Invalid(value.to_owned()));
            assert_eq!(opt_in(value).timeout(), Some(DEFAULT_TIMEOUT));
        }
        assert_eq!(opt_in(&"x".repeat(100)), OptIn::Invalid("x".repeat(MAX_SHOWN)));
    }
}
