//! In-place updates that Cluster API manages. Cluster API writes the new spec, and an extension updates the
//! VM.
//!
//! The InfraMachine does not name the extension. This provider's own extension records a request in the
//! progress of the machine, as `<uid>/<generation>/requested`, and the reconciler answers there with `done`.
//! Without a request, the VM is left alone, because another extension may be responsible. A request contains
//! the UID and the generation of the object, so a request for an earlier spec, from a template or from before
//! a move does not count.

use crate::api::annotations::UPDATE_IN_PROGRESS;
use crate::api::progress::Task;
use crate::api::v1alpha1::InfraMachine;

/// The state of a machine's in-place update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InPlaceUpdate {
    /// Cluster API manages no update. This provider applies a changed spec.
    None,
    /// Cluster API manages an update, and has not requested the current spec from this provider.
    NotRequested,
    /// Cluster API has requested the current spec from this provider.
    Requested,
    /// The VM has the requested spec.
    Done,
}

/// The recorded state of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Requested,
    Done,
}

impl Phase {
    const fn text(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::Done => "done",
        }
    }
}

impl InPlaceUpdate {
    /// Returns the state from the object's annotations.
    pub fn of(machine: &InfraMachine) -> Self {
        let annotations = machine.metadata.annotations.as_ref();
        if annotations.is_none_or(|all| !all.contains_key(UPDATE_IN_PROGRESS)) {
            return Self::None;
        }
        let said: Option<String> = Task::InPlaceUpdate.progress(&machine.metadata);
        let says = |phase| said.is_some() && said == value(machine, phase);
        if says(Phase::Done) {
            Self::Done
        } else if says(Phase::Requested) {
            Self::Requested
        } else {
            Self::NotRequested
        }
    }
}

/// Returns the progress that requests the current spec.
pub fn requested(machine: &InfraMachine) -> Option<String> {
    value(machine, Phase::Requested)
}

/// Returns the progress that reports the current spec as applied.
pub fn done(machine: &InfraMachine) -> Option<String> {
    value(machine, Phase::Done)
}

fn value(machine: &InfraMachine, phase: Phase) -> Option<String> {
    let (uid, generation) = (machine.metadata.uid.as_ref()?, machine.metadata.generation?);
    Some(format!("{uid}/{generation}/{}", phase.text()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::annotations::PROGRESS;
    use crate::api::v1alpha1::InfraMachineSpec;

    fn progress(said: &str) -> String {
        json!({"inPlaceUpdate": said}).to_string()
    }

    fn machine(annotations: &[(&str, &str)]) -> InfraMachine {
        let mut machine = InfraMachine::new("m", InfraMachineSpec::default());
        machine.metadata.uid = Some("u".to_owned());
        machine.metadata.generation = Some(3);
        let all = annotations.iter();
        let all = all.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        machine.metadata.annotations = Some(all.collect());
        machine
    }

    #[test]
    fn only_what_was_said_of_this_object_and_its_spec_as_it_is_now_counts() {
        assert_eq!(InPlaceUpdate::of(&machine(&[])), InPlaceUpdate::None);
        for (said, expected) in [
            ("u/3/requested", InPlaceUpdate::Requested),
            ("u/3/done", InPlaceUpdate::Done),
            ("u/2/requested", InPlaceUpdate::NotRequested),
            ("u/2/done", InPlaceUpdate::NotRequested),
            ("before-the-move/3/done", InPlaceUpdate::NotRequested),
            ("", InPlaceUpdate::NotRequested),
        ] {
            let said_so = progress(said);
            let annotations = [(UPDATE_IN_PROGRESS, ""), (PROGRESS, said_so.as_str())];
            assert_eq!(InPlaceUpdate::of(&machine(&annotations)), expected, "{said}");
        }
        let left_over = machine(&[(PROGRESS, &progress("u/3/requested"))]);
        assert_eq!(InPlaceUpdate::of(&left_over), InPlaceUpdate::None);
    }
}
