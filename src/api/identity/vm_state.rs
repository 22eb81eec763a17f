//! The state of a machine's VM, as the machine's record has it. Pure.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

/// Whether a machine has a VM, and which call may have changed it. This is the only state of a machine that
/// is written down; everything else follows from it and from the driver's answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "name", deny_unknown_fields)]
pub enum VmState {
    /// No create has reached the driver, or the name was taken: there is nothing.
    #[default]
    None,
    /// A create was issued, and its VM is not known yet.
    Creating {
        /// When the latest create was issued.
        issued: Timestamp,
        /// Whether an earlier create has no answer either: the two may make two VMs.
        #[serde(default, skip_serializing_if = "is_false")]
        several: bool,
    },
    /// Every create was refused for good, so there is no VM. A create may have made something else before the
    /// refusal, such as a disk.
    Refused,
    /// The driver has confirmed the VM.
    Exists {
        /// When the latest of several creates was issued: another one than the VM's may make a second VM.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unanswered: Option<Timestamp>,
    },
    /// An update was issued whose end is unknown: the VM may have a part of the new spec.
    Updating {
        /// As for [`VmState::Exists`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unanswered: Option<Timestamp>,
    },
    /// The driver has accepted to shut the guest down, for a deletion.
    ShuttingDown {
        /// When the driver accepted the first time: the guest's time runs from then.
        accepted: Timestamp,
        /// When a create was issued that may still make a VM.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unanswered: Option<Timestamp>,
    },
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference.
fn is_false(value: &bool) -> bool {
    !value
}

/// An event in the life of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmEvent {
    /// CreateMachine is about to be called.
    CreateIssued {
        /// When, in whole milliseconds. The time distinguishes this create from others.
        at: Timestamp,
        /// Whether an earlier create may still be carried out.
        others: bool,
    },
    /// The driver refused a create for good, or the create never reached the driver.
    CreateRefused {
        /// When this create was issued.
        issued: Timestamp,
        /// Whether this or an earlier create may have left something other than a VM.
        left_something: bool,
    },
    /// The driver has confirmed the VM, and its id is written with this event.
    Found,
    /// UpdateMachine is about to be called.
    UpdateIssued,
    /// The VM has the wanted spec.
    UpdateDone,
    /// The driver accepted to shut the guest down.
    ShutDownAccepted {
        /// When.
        at: Timestamp,
    },
}

impl VmState {
    /// Returns the next state; nothing where the event can't happen in this state or changes nothing.
    pub fn after(self, event: VmEvent) -> Option<Self> {
        use VmEvent as Event;
        match (self, event) {
            (
                Self::None | Self::Refused | Self::Creating { .. },
                Event::CreateIssued { at, others },
            ) => Some(Self::Creating {
                issued: at,
                several: others,
            }),
            (
                Self::Creating { issued, several: false },
                Event::CreateRefused {
                    issued: refused,
                    left_something,
                },
            ) if issued == refused => Some(if left_something { Self::Refused } else { Self::None }),
            (Self::Creating { issued, several }, Event::Found) => Some(Self::Exists {
                unanswered: several.then_some(issued),
            }),
            (Self::Exists { unanswered }, Event::UpdateIssued) => Some(Self::Updating { unanswered }),
            (Self::Updating { unanswered }, Event::UpdateDone) => Some(Self::Exists { unanswered }),
            (
                Self::Creating { issued, .. },
                Event::ShutDownAccepted { at },
            ) => Some(Self::ShuttingDown {
                accepted: at,
                unanswered: Some(issued),
            }),
            (
                Self::Exists { unanswered } | Self::Updating { unanswered },
                Event::ShutDownAccepted { at },
            ) => Some(Self::ShuttingDown {
                accepted: at,
                unanswered,
            }),
            // A VM that exists is never created again.
            (
                Self::Exists { .. } | Self::Updating { .. } | Self::ShuttingDown { .. },
                Event::CreateIssued { .. } | Event::CreateRefused { .. } | Event::Found,
            )
            // A refusal says nothing of the other creates.
            | (Self::Creating { .. }, Event::CreateRefused { .. })
            // A VM is found and shut down only where a create may have made it.
            | (
                Self::None | Self::Refused,
                Event::CreateRefused { .. } | Event::Found | Event::ShutDownAccepted { .. },
            )
            // The guest's time runs from the first acceptance.
            | (Self::ShuttingDown { .. }, Event::ShutDownAccepted { .. })
            | (
                Self::None
                | Self::Creating { .. }
                | Self::Refused
                | Self::Updating { .. }
                | Self::ShuttingDown { .. },
                Event::UpdateIssued,
            )
            | (
                Self::None
                | Self::Creating { .. }
                | Self::Refused
                | Self::Exists { .. }
                | Self::ShuttingDown { .. },
                Event::UpdateDone,
            ) => None,
        }
    }

    /// Whether a VM of the machine may exist.
    pub const fn may_exist(self) -> bool {
        match self {
            Self::None | Self::Refused => false,
            Self::Creating { .. }
            | Self::Exists { .. }
            | Self::Updating { .. }
            | Self::ShuttingDown { .. } => true,
        }
    }

    /// Whether the driver has confirmed the VM, so that `spec.providerID` is the provider's and no create
    /// may follow.
    pub const fn is_known(self) -> bool {
        match self {
            Self::None | Self::Refused | Self::Creating { .. } => false,
            Self::Exists { .. } | Self::Updating { .. } | Self::ShuttingDown { .. } => true,
        }
    }

    /// Returns when the latest create was issued that may still make a VM.
    pub const fn unanswered(self) -> Option<Timestamp> {
        match self {
            Self::None | Self::Refused => None,
            Self::Creating { issued, .. } => Some(issued),
            Self::Exists { unanswered }
            | Self::Updating { unanswered }
            | Self::ShuttingDown { unanswered, .. } => unanswered,
        }
    }

    /// Returns the state's name, as the record has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Creating { .. } => "Creating",
            Self::Refused => "Refused",
            Self::Exists { .. } => "Exists",
            Self::Updating { .. } => "Updating",
            Self::ShuttingDown { .. } => "ShuttingDown",
        }
    }
}

impl VmEvent {
    /// Returns the time of now as [`VmEvent::CreateIssued`] has it.
    pub fn time_of_create(now: Timestamp) -> Timestamp {
        Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
    }
}
