//! The condition and the events of a machine's volume drain. Pure.

use jiff::Timestamp;

use super::end::{End, MAX_OUTAGE};
use super::next_eviction::Waiting;
use super::opt_in::{DEFAULT_TIMEOUT, OptIn};
use crate::api::annotations;
use crate::api::conditions::{self, ConditionStatus, Setter, reason};
use crate::api::v1alpha1::{InfraMachine, InfraMachineStatus};
use crate::apiserver::NewEvent;
use crate::nodes::workload_cluster::Unreachable;
use cmi_driver::ErrorChain;

/// The most volumes that a message names.
const MAX_NAMED: usize = 8;

/// The contents of the condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainCondition {
    /// The status: whether all volumes have left.
    pub state: ConditionStatus,
    /// The reason.
    pub reason: String,
    /// The message.
    pub message: String,
    /// Whether a new condition with this reason is a warning.
    pub is_warning: bool,
}

impl DrainCondition {
    fn progress(reason: &str, message: String) -> Self {
        Self {
            state: ConditionStatus::False,
            reason: reason.to_owned(),
            message,
            is_warning: false,
        }
    }

    fn warning(reason: &str, message: String) -> Self {
        Self {
            is_warning: true,
            ..Self::progress(reason, message)
        }
    }
}

/// The condition for an invalid annotation.
pub fn invalid(opt_in: &OptIn) -> Option<DrainCondition> {
    let OptIn::Invalid(value) = opt_in else {
        return None;
    };
    let message = format!(
        "annotation {} has the value {value:?}: set a duration from 1s to 1h, such as 90s or 5m; using {} s",
        annotations::VOLUME_DRAIN,
        DEFAULT_TIMEOUT.as_secs()
    );
    Some(DrainCondition::warning(reason::INVALID_VOLUME_DRAIN, message))
}

/// The condition if the provider may not write the Machine.
pub fn hook_not_permitted(machine: &str, is_to_be_set: bool) -> DrainCondition {
    let message = if is_to_be_set {
        format!(
            "the provider may not write Machines, so {machine} is drained without annotation {}: install \
                config/components/volume-drain",
            annotations::VOLUME_DRAIN
        )
    } else {
        format!(
            "the provider may not write Machines, and the deletion of {machine} waits for its hook: run \
                `kubectl annotate machine {machine} {}-`",
            annotations::VOLUME_DRAIN_HOOK
        )
    };
    DrainCondition::warning(reason::HOOK_NOT_PERMITTED, message)
}

/// The condition while the volumes of an evicted pod have not left.
pub fn waiting(waiting: &Waiting) -> DrainCondition {
    let volumes = named(&waiting.volumes);
    let for_what = match (waiting.is_there, waiting.volumes.is_empty()) {
        (true, true) => "the pod to end".to_owned(),
        (true, false) => format!("the pod to end and {volumes} to be detached"),
        (false, _) => format!("{volumes} to be detached"),
    };
    let message = format!(
        "evicted pod {}: waiting for {for_what}, until {:.0} at the latest; {} more pods with volumes follow",
        waiting.pod, waiting.until, waiting.left
    );
    DrainCondition::progress(reason::WAITING_FOR_VOLUMES, message)
}

/// The condition when a pod is being evicted.
pub fn evicting(pod: &str, left: usize) -> DrainCondition {
    let message = format!("evicting pod {pod}; {left} pods with volumes remain, including this one");
    DrainCondition::progress(reason::WAITING_FOR_VOLUMES, message)
}

/// The condition when no pod can be evicted now.
pub fn blocked(pod: &str, why: &str, left: usize) -> DrainCondition {
    let message =
        format!("cannot evict any of the {left} remaining pods with volumes; the first, {pod}: {why}");
    DrainCondition::progress(reason::WAITING_FOR_DISRUPTION_BUDGET, message)
}

/// The condition when the driver could not be asked for the ids of volumes.
pub fn driver_failed(code: &str, message: &str) -> DrainCondition {
    DrainCondition::progress(code, message.to_owned())
}

/// The condition when the workload cluster is unreachable.
pub fn unreachable(cause: &Unreachable) -> DrainCondition {
    let minutes = MAX_OUTAGE.as_secs() / 60;
    let message = format!(
        "cannot evict pods with volumes; giving up after {minutes} min: {}",
        ErrorChain(cause)
    );
    DrainCondition::warning(cause.reason(), message)
}

/// The event when the drain stops waiting for the volumes of a pod.
pub fn timed_out(waiting: &Waiting) -> NewEvent {
    let what = if waiting.volumes.is_empty() {
        "the pod still exists".to_owned()
    } else {
        format!("{} is still attached", named(&waiting.volumes))
    };
    let note = format!("stopped waiting for pod {}: {what}", waiting.pod);
    NewEvent::warning(reason::VOLUME_DETACH_TIMED_OUT, "EvictPod", note)
}

/// The condition at the end of the drain; `None` if there is nothing to publish.
pub fn ended(end: &End) -> Option<DrainCondition> {
    let left = "Cluster API drains the Node by itself";
    Some(match end {
        End::NotAskedFor | End::NoInfraMachine => return None,
        End::Drained => DrainCondition {
            state: ConditionStatus::True,
            reason: reason::VOLUMES_DRAINED.to_owned(),
            message: "no pod with volumes is left".to_owned(),
            is_warning: false,
        },
        End::Skipped(why) => DrainCondition::progress(reason::VOLUME_DRAIN_SKIPPED, (*why).to_owned()),
        End::TimedOut(limit) => DrainCondition::warning(
            reason::VOLUME_DRAIN_TIMED_OUT,
            format!("pods with volumes remain after {} s: {left}", limit.as_secs()),
        ),
        End::Outage => DrainCondition::warning(
            reason::VOLUME_DRAIN_TIMED_OUT,
            format!(
                "the workload cluster did not answer for {} min: {left}",
                MAX_OUTAGE.as_secs() / 60
            ),
        ),
        End::ForeignNode(found) => {
            let other = found
                .as_ref()
                .map_or_else(|| "no providerID".to_owned(), |id| format!("providerID {id}"));
            DrainCondition::warning(
                reason::FOREIGN_NODE,
                format!("the Node of the Machine has {other}: its pods are not touched"),
            )
        }
    })
}

fn named(volumes: &[String]) -> String {
    let mut text = volumes
        .iter()
        .take(MAX_NAMED)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    if volumes.len() > MAX_NAMED {
        text.push_str(", …");
    }
    text
}

/// Whether a machine's status shows a volume drain.
pub fn is_shown(infra: &InfraMachine) -> bool {
    shown(infra).is_some()
}

fn shown(infra: &InfraMachine) -> Option<&str> {
    let conditions = &infra.status.as_ref()?.conditions;
    conditions::get(conditions, conditions::VOLUMES_DRAINED).map(|shown| shown.reason.as_str())
}

/// The status with this condition, or without it.
pub fn after(infra: &InfraMachine, report: Option<&DrainCondition>, now: Timestamp) -> InfraMachineStatus {
    let mut status = infra.status.clone().unwrap_or_default();
    match report {
        Some(report) => Setter::new(&mut status.conditions, &infra.metadata, now).set(
            conditions::VOLUMES_DRAINED,
            report.state,
            &report.reason,
            &report.message,
        ),
        None => status
            .conditions
            .retain(|condition| condition.type_ != conditions::VOLUMES_DRAINED),
    }
    status
}

/// The event for a condition that is new, and is a warning or the end of the drain.
pub fn event(infra: &InfraMachine, report: &DrainCondition) -> Option<NewEvent> {
    let is_new = shown(infra) != Some(report.reason.as_str());
    let is_end = report.state == ConditionStatus::True || report.reason == reason::VOLUME_DRAIN_SKIPPED;
    (is_new && (report.is_warning || is_end)).then(|| NewEvent {
        warning: report.is_warning,
        reason: report.reason.clone(),
        action: "DrainVolumes",
        note: report.message.clone(),
    })
}
