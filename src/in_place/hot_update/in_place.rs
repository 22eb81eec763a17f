//! In-place updates that Cluster API manages. Cluster API writes the new spec, and an extension updates the
//! VM.
//!
//! The InfraMachine does not name the extension. This provider's own extension requests the update with an
//! annotation, and the reconciler answers in the same annotation. Without a request, the VM is left alone,
//! because another extension may be responsible. The annotation contains the UID and the generation of the
//! object. An annotation for an earlier spec, from a template or from before a move therefore requests
//! nothing.

use crate::api::annotations;
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

/// The progress of an update in the annotation.
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
        let annotation = |key: &str| machine.metadata.annotations.as_ref()?.get(key);
        if annotation(annotations::UPDATE_IN_PROGRESS).is_none() {
            return Self::None;
        }
        let said = annotation(annotations::IN_PLACE_UPDATE);
        let says = |phase| said.is_some() && said == value(machine, phase).as_ref();
        if says(Phase::Done) {
            Self::Done
        } else if says(Phase::Requested) {
            Self::Requested
        } else {
            Self::NotRequested
        }
    }
}

/// Returns the annotation value that requests the current spec.
pub fn requested(machine: &InfraMachine) -> Option<String> {
    value(machine, Phase::Requested)
}

/// Returns the annotation value that reports the current spec as applied.
pub fn done(machine: &InfraMachine) -> Option<String> {
    value(machine, Phase::Done)
}

fn value(machine: &InfraMachine, phase: Phase) -> Option<String> {
    let (uid, generation) = (machine.metadata.uid.as_ref()?, machine.metadata.generation?);
    Some(format!("{uid}/{generation}/{}", phase.text()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1alpha1::InfraMachineSpec;

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
            let annotations = [
                (annotations::UPDATE_IN_PROGRESS, ""),
                (annotations::IN_PLACE_UPDATE, said),
            ];
            assert_eq!(InPlaceUpdate::of(&machine(&annotations)), expected, "{said}");
        }
        let left_over = machine(&[(annotations::IN_PLACE_UPDATE, "u/3/requested")]);
        assert_eq!(InPlaceUpdate::of(&left_over), InPlaceUpdate::None);
    }
}
