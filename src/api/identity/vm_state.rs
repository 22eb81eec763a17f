//! The state of a machine's VM, as stored in the machine's record. Pure.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

/// Whether a machine has a VM, and which call may have changed it. No other stored state allows a call that
/// changes a VM; the status can only delay or stop one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "name", deny_unknown_fields)]
pub enum VmState {
    /// No create has reached the driver, or the name was taken. There is no VM.
    #[default]
    None,
    /// A create was issued, and its VM is not confirmed yet.
    Creating {
        /// When the latest create was issued.
        issued: Timestamp,
        /// Whether an earlier create is also unanswered. Together they may make two VMs.
        #[serde(default, skip_serializing_if = "is_false")]
        several: bool,
    },
    /// Every create was terminally refused, so there is no VM. A create may have made something else before
    /// the refusal, such as a disk.
    Refused,
    /// The driver has confirmed the VM.
    Exists {
        /// When the latest of several creates was issued. A create other than the VM's own may make a second
        /// VM.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unanswered: Option<Timestamp>,
    },
    /// An update was issued and its result is unknown. The VM may have a part of the new spec.
    Updating {
        /// As for [`VmState::Exists`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unanswered: Option<Timestamp>,
    },
    /// The driver has accepted to shut the guest down, for a deletion.
    ShuttingDown {
        /// When the driver first accepted. The grace period starts at this time.
        accepted: Timestamp,
        /// When the latest create that may still make a VM was issued.
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
        /// The time in whole milliseconds. It identifies this create.
        at: Timestamp,
        /// Whether an earlier create may still be carried out.
        others: bool,
    },
    /// A create was terminally refused, or never reached the driver.
    CreateRefused {
        /// When this create was issued.
        issued: Timestamp,
        /// Whether this or an earlier create may have left something other than a VM.
        left_something: bool,
    },
    /// The driver has confirmed the VM. The VM's id is written together with this event.
    Found,
    /// UpdateMachine is about to be called.
    UpdateIssued,
    /// The VM has the wanted spec.
    UpdateDone,
    /// The driver accepted to shut the guest down.
    ShutDownAccepted {
        /// The time of the acceptance.
        at: Timestamp,
    },
}

impl VmState {
    /// Returns the next state. Returns `None` if the event can't happen in this state or changes nothing.
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
            // An existing VM is never created again.
            (
                Self::Exists { .. } | Self::Updating { .. } | Self::ShuttingDown { .. },
                Event::CreateIssued { .. } | Event::CreateRefused { .. } | Event::Found,
            )
            // A refusal does not cover the other creates.
            | (Self::Creating { .. }, Event::CreateRefused { .. })
            // A VM is found or shut down only after a create that may have made it.
            | (
                Self::None | Self::Refused,
                Event::CreateRefused { .. } | Event::Found | Event::ShutDownAccepted { .. },
            )
            // The grace period starts with the first acceptance.
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

    /// Returns whether a VM of the machine may exist.
    pub const fn may_exist(self) -> bool {
        match self {
            Self::None | Self::Refused => false,
            Self::Creating { .. }
            | Self::Exists { .. }
            | Self::Updating { .. }
            | Self::ShuttingDown { .. } => true,
        }
    }

    /// Returns whether the driver has confirmed the VM. Then `spec.providerID` belongs to this provider, and
    /// no create may follow.
    pub const fn is_known(self) -> bool {
        match self {
            Self::None | Self::Refused | Self::Creating { .. } => false,
            Self::Exists { .. } | Self::Updating { .. } | Self::ShuttingDown { .. } => true,
        }
    }

    /// Returns when the latest create that may still make a VM was issued.
    pub const fn unanswered(self) -> Option<Timestamp> {
        match self {
            Self::None | Self::Refused => None,
            Self::Creating { issued, .. } => Some(issued),
            Self::Exists { unanswered }
            | Self::Updating { unanswered }
            | Self::ShuttingDown { unanswered, .. } => unanswered,
        }
    }

    /// Returns the state's name in the record.
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
    /// Returns the current time with the precision of [`VmEvent::CreateIssued`].
    pub fn time_of_create(now: Timestamp) -> Timestamp {
        Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
    }
}
