//! The progress of an update in place. Pure.

use std::time::Duration;

use crate::api::conditions::{self, ConditionStatus, reason};
use crate::api::v1alpha1::{InfraMachine, InfraMachineSpec};
use crate::in_place::hot_update::InPlaceUpdate;

/// The poll interval for an update that takes only moments.
const SHORT_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The poll interval for an update that takes longer, or waits for an operator.
const LONG_POLL_INTERVAL: Duration = Duration::from_secs(10);

/// The progress of an update in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The VM has the desired spec, as recorded by the reconciler for this object and this spec.
    Done,
    /// The reconciler has not been asked for the update yet.
    NotRequested,
    /// The update is in progress.
    Updating {
        /// The cause of the wait. The text is the same for the same cause.
        message: String,
        /// When to poll again.
        retry_after: Duration,
    },
}

/// The progress of a machine's update to a spec.
pub fn progress(live: &InfraMachine, desired: &InfraMachineSpec) -> Progress {
    if live.metadata.deletion_timestamp.is_some() {
        return in_progress("the machine is being deleted", LONG_POLL_INTERVAL);
    }
    if live.spec != *desired {
        return in_progress(
            "the InfraMachine does not have the desired spec yet",
            SHORT_POLL_INTERVAL,
        );
    }
    match InPlaceUpdate::of(live) {
        InPlaceUpdate::Done => Progress::Done,
        InPlaceUpdate::NotRequested => Progress::NotRequested,
        InPlaceUpdate::None => in_progress(
            "the InfraMachine is not marked for an update in place",
            SHORT_POLL_INTERVAL,
        ),
        InPlaceUpdate::Requested => match hindrance(live) {
            Some(message) => in_progress(&message, LONG_POLL_INTERVAL),
            None => in_progress("the VM update is queued", SHORT_POLL_INTERVAL),
        },
    }
}

/// The cause of a delayed update, by the status conditions.
fn hindrance(live: &InfraMachine) -> Option<String> {
    let shown = &live.status.as_ref()?.conditions;
    if conditions::is_true(shown, conditions::PAUSED) {
        return Some("the InfraMachine is paused".to_owned());
    }
    let ready = conditions::get(shown, conditions::READY);
    if let Some(ready) = ready.filter(|ready| ready.reason == reason::VIRTUAL_MACHINE_VANISHED) {
        return Some(ready.message.clone());
    }
    [
        conditions::VIRTUAL_MACHINE_UP_TO_DATE,
        conditions::DRIVER_REACHABLE,
    ]
    .into_iter()
    .filter_map(|type_| conditions::get(shown, type_))
    .find(|shown| {
        shown.status == ConditionStatus::False.as_str()
            && shown.observed_generation == live.metadata.generation
            && shown.reason != reason::WAITING_FOR_UPDATE_REQUEST
    })
    .map(|shown| format!("{}: {}", shown.reason, shown.message))
}

fn in_progress(message: &str, retry_after: Duration) -> Progress {
    Progress::Updating {
        message: message.to_owned(),
        retry_after,
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    use super::*;
    use crate::api::annotations;

    /// A machine that Cluster API updates in place, at generation 3.
    fn machine(said: &str) -> InfraMachine {
        let mut machine = InfraMachine::new("m", spec("gold"));
        machine.metadata.uid = Some("u".to_owned());
        machine.metadata.generation = Some(3);
        let annotations = [
            (annotations::UPDATE_IN_PROGRESS, String::new()),
            (annotations::PROGRESS, json!({"inPlaceUpdate": said}).to_string()),
        ];
        let annotations = annotations.map(|(key, value)| (key.to_owned(), value));
        machine.metadata.annotations = Some(annotations.into());
        // The old status is `UpToDate` and already has the new generation as observed.
        machine.status.get_or_insert_default().observed_generation = Some(3);
        shows(machine, ConditionStatus::True, reason::UP_TO_DATE, 3)
    }

    fn shows(mut machine: InfraMachine, state: ConditionStatus, reason: &str, observed: i64) -> InfraMachine {
        conditions::set(
            &mut machine.status.get_or_insert_default().conditions,
            conditions::VIRTUAL_MACHINE_UP_TO_DATE,
            state,
            reason,
            "why",
            Some(observed),
            Timestamp::UNIX_EPOCH,
        );
        machine
    }

    fn spec(tier: &str) -> InfraMachineSpec {
        InfraMachineSpec {
            provider_spec: json!({"labels": {"tier": tier}}).as_object().unwrap().clone(),
            ..InfraMachineSpec::default()
        }
    }

    fn message(progress: Progress) -> String {
        match progress {
            Progress::Updating { message, .. } => message,
            other => panic!("{other:?}"),
        }
    }

    /// A status may have the observed generation of a spec that was never compared with the VM, for example
    /// while the driver is unknown.
    #[test]
    fn only_the_reconcilers_report_for_this_spec_means_done() {
        let of = |machine: &InfraMachine| progress(machine, &spec("gold"));
        assert_eq!(of(&machine("u/3/done")), Progress::Done);
        for said in ["u/2/done", "another/3/done", ""] {
            assert_eq!(of(&machine(said)), Progress::NotRequested, "{said}");
        }
        let other = progress(&machine("u/3/done"), &spec("silver"));
        assert_eq!(
            message(other),
            "the InfraMachine does not have the desired spec yet"
        );
        let mut deleted = machine("u/3/done");
        deleted.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        assert_eq!(message(of(&deleted)), "the machine is being deleted");
    }

    #[test]
    fn what_holds_it_up_is_said_and_what_held_another_spec_up_is_not() {
        let requested = || machine("u/3/requested");
        let said = |machine| message(progress(&machine, &spec("gold")));
        assert_eq!(said(requested()), "the VM update is queued");
        let refused = |observed| {
            shows(
                requested(),
                ConditionStatus::False,
                reason::NOT_HOT_UPDATABLE,
                observed,
            )
        };
        assert_eq!(said(refused(3)), "NotHotUpdatable: why");
        assert_eq!(said(refused(2)), "the VM update is queued");
        let waiting = shows(
            requested(),
            ConditionStatus::False,
            reason::WAITING_FOR_UPDATE_REQUEST,
            3,
        );
        assert_eq!(said(waiting), "the VM update is queued");
    }
}
