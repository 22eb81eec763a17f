//! Creates that were issued and whose answer is unknown: the back end may still carry them out. Pure.

use std::time::Duration;

use jiff::Timestamp;

use super::runtime_state::AnsweredCreate;
use crate::api::annotations;
use crate::api::v1alpha1::InfraMachine;
use crate::identity;
use crate::wall_clock::elapsed;

/// How many unanswered creates are remembered. When an older one is dropped, at least two must be left after
/// the latest is answered: a single one would be taken for the create that made the VM.
const KEPT: usize = 3;

/// The unanswered creates of a machine, by the time at which they were issued.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnansweredCreates {
    /// The earliest first.
    issued: Vec<Timestamp>,
}

impl UnansweredCreates {
    /// Reads the annotation; nothing where it is missing or can't be read.
    pub fn of(machine: &InfraMachine) -> Option<Self> {
        let text = identity::annotation(machine, annotations::CREATE_ISSUED_AT)?;
        let mut issued = text
            .split(',')
            .map(|time| time.trim().parse())
            .collect::<Result<Vec<Timestamp>, _>>()
            .ok()?;
        issued.sort_unstable();
        Some(Self { issued })
    }

    /// The value of the annotation; nothing where every create is answered.
    pub fn annotation(&self) -> Option<String> {
        let times: Vec<_> = self.issued.iter().rev().map(ToString::to_string).collect();
        (!times.is_empty()).then(|| times.join(","))
    }

    /// When the latest create was issued.
    pub fn latest(&self) -> Option<Timestamp> {
        self.issued.last().copied()
    }

    /// Adds a create that is issued now. Its time is kept in whole milliseconds and distinguishes it from the
    /// others.
    #[must_use]
    pub fn with(mut self, now: Timestamp) -> (Self, Timestamp) {
        let issued = Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now);
        self.issued.retain(|other| *other != issued);
        self.issued.push(issued);
        self.issued.sort_unstable();
        let surplus = self.issued.len().saturating_sub(KEPT);
        self.issued.drain(..surplus);
        (self, issued)
    }

    /// Removes the create that was answered.
    #[must_use]
    pub fn without(mut self, answered: Option<AnsweredCreate>) -> Self {
        self.issued
            .retain(|issued| answered.is_none_or(|answered| answered.issued != *issued));
        self
    }

    /// Removes the creates that are too old to be carried out any more. A create that is in the future
    /// because a clock was set back stays.
    #[must_use]
    pub fn within(mut self, settle: Duration, now: Timestamp) -> Self {
        self.issued
            .retain(|issued| elapsed(*issued, now).is_none_or(|elapsed| elapsed < settle));
        self
    }

    /// Keeps the creates that may have made another VM than the one that exists: the create that made this VM
    /// is over, whichever it was.
    #[must_use]
    pub fn beside_the_vm(self, answered: Option<AnsweredCreate>) -> Self {
        let made_by_answered = answered.is_some_and(|answered| answered.made);
        let left = self.without(answered);
        if left.issued.len() == 1 && !made_by_answered {
            return Self::default();
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::fixtures::{at, machine};

    fn issued(seconds: &[i64]) -> UnansweredCreates {
        let each = seconds.iter().map(|second| at(*second));
        each.fold(UnansweredCreates::default(), |all, time| all.with(time).0)
    }

    fn answer(second: i64, made: bool) -> AnsweredCreate {
        let issued = at(second);
        AnsweredCreate { issued, made }
    }

    #[test]
    fn the_annotation_is_read_back_as_it_was_written() {
        for seconds in [&[1][..], &[1, 2]] {
            let text = issued(seconds).annotation().unwrap();
            let read =
                UnansweredCreates::of(&machine().annotated(annotations::CREATE_ISSUED_AT, &text).build());
            assert_eq!(read, Some(issued(seconds)), "{text}");
        }
        assert_eq!(issued(&[1]).annotation().unwrap(), at(1).to_string());
        assert_eq!(UnansweredCreates::default().annotation(), None);
        for unreadable in ["", "soon", "2026-01-01T00:00:00Z,soon"] {
            let machine = machine()
                .annotated(annotations::CREATE_ISSUED_AT, unreadable)
                .build();
            assert_eq!(UnansweredCreates::of(&machine), None, "{unreadable}");
        }
    }

    #[test]
    fn the_latest_are_kept_and_two_are_never_taken_for_one() {
        assert_eq!(issued(&[1, 2, 3, 4]), issued(&[2, 3, 4]));
        assert_eq!(issued(&[3]).latest(), Some(at(3)));
        let (one, _) = UnansweredCreates::default().with(at(1));
        let (_, time) = one.with(at(1) + Duration::from_nanos(7));
        assert_eq!(time, at(1), "two times differ in what is written");
    }

    #[test]
    fn what_was_answered_or_is_too_old_will_not_be_carried_out() {
        assert_eq!(issued(&[1, 2]).without(Some(answer(2, false))), issued(&[1]));
        assert_eq!(issued(&[1, 2]).without(None), issued(&[1, 2]));
        let settle = Duration::from_secs(10);
        assert_eq!(issued(&[1, 2]).within(settle, at(11)), issued(&[2]));
        assert_eq!(issued(&[100]).within(settle, at(11)), issued(&[100]));
    }

    /// A lost answer and a second create: the one that made the VM is over, and the other may make one more.
    #[test]
    fn a_vm_that_is_there_ends_the_wait_for_its_own_create_and_no_other() {
        assert_eq!(
            issued(&[1]).beside_the_vm(None),
            issued(&[]),
            "it was found: its create is over"
        );
        assert_eq!(issued(&[1]).beside_the_vm(Some(answer(1, true))), issued(&[]));
        assert_eq!(issued(&[1, 2]).beside_the_vm(Some(answer(2, true))), issued(&[1]));
        assert_eq!(
            issued(&[1, 2]).beside_the_vm(Some(answer(2, false))),
            issued(&[]),
            "the second was refused"
        );
        assert_eq!(
            issued(&[1, 2]).beside_the_vm(None),
            issued(&[1, 2]),
            "either may have made it"
        );
        let refused_at_last = issued(&[1, 2, 3, 4]).beside_the_vm(Some(answer(4, false)));
        assert_eq!(
            refused_at_last,
            issued(&[2, 3]),
            "the one that is not kept may have made it, and these one more"
        );
    }
}
