//! What every code of every call leads to, written down once more and not taken from
//! the provider's own table.

use anyhow::{Context, Result, ensure};
use capcmi::api::conditions;
use capcmi::api::v1alpha1::{InfraMachine, OperationState, OperationType};
use cmi_driver::{Code, Operation};

/// A driver call at the point of a machine's life where it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// GetMachineStatus before any create.
    LookUp,
    /// GetMachineStatus after a create whose answer was lost.
    LookUpAgain,
    Create,
    Initialize,
    /// GetMachineStatus of a VM that is provisioned.
    Recheck,
    Update,
    ShutDown,
    Delete,
    /// GetMachineStatus after the delete.
    Confirm,
}

/// One code of one call.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub call: Call,
    pub code: Code,
}

/// What a code leads to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// Tried again after 5 s, 10 s, … up to 5 min.
    Backoff,
    /// Tried again after 10 min.
    Long,
    /// Not before the driver is another one.
    NotSupported,
    /// Tried again when the driver says.
    Asked(u32),
    /// Not before the spec changes.
    Terminal,
    /// The call is not needed: the machine is provisioned.
    Provisioned,
    /// The call is not needed: the machine is deleted.
    Gone,
    /// The VM may be there: the deletion goes on, without an error.
    Deleting,
    /// The VM is gone without a deletion.
    Vanished,
    /// The VM stays as it was; whether the answer was the driver's, or none came.
    Kept(bool),
}

impl Call {
    pub const ALL: [Self; 9] = [
        Self::LookUp,
        Self::LookUpAgain,
        Self::Create,
        Self::Initialize,
        Self::Recheck,
        Self::Update,
        Self::ShutDown,
        Self::Delete,
        Self::Confirm,
    ];

    /// Starts the names of its machines.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::LookUp => "gs",
            Self::LookUpAgain => "gi",
            Self::Create => "cr",
            Self::Initialize => "in",
            Self::Recheck => "rc",
            Self::Update => "up",
            Self::ShutDown => "sd",
            Self::Delete => "de",
            Self::Confirm => "gd",
        }
    }

    pub const fn operation(self) -> Operation {
        match self {
            Self::LookUp | Self::LookUpAgain | Self::Recheck | Self::Confirm => Operation::GetMachineStatus,
            Self::Create => Operation::CreateMachine,
            Self::Initialize => Operation::InitializeMachine,
            Self::Update => Operation::UpdateMachine,
            Self::ShutDown => Operation::ShutDownMachine,
            Self::Delete => Operation::DeleteMachine,
        }
    }

    const fn is_part_of(self) -> OperationType {
        match self {
            Self::LookUp | Self::LookUpAgain | Self::Create | Self::Initialize | Self::Recheck => {
                OperationType::Create
            }
            Self::Update => OperationType::Update,
            Self::ShutDown | Self::Delete | Self::Confirm => OperationType::Delete,
        }
    }
}

/// How long the cloud asks to be left alone when creates are exhausted, so that the case
/// need not wait for 10 min.
const EXHAUSTED_SECONDS: u32 = 20;

impl Case {
    pub fn all() -> Vec<Self> {
        let of = |call| Code::ALL.map(|code| Self { call, code });
        Call::ALL.into_iter().flat_map(of).collect()
    }

    pub fn name(self) -> String {
        format!("{}-{:02}", self.call.prefix(), self.code.number())
    }

    /// The driver's message.
    pub fn message(self) -> String {
        format!("scripted for {}", self.name())
    }

    #[expect(
        clippy::match_same_arms,
        reason = "the rows of the specification are easier to check in groups"
    )]
    pub fn next(self) -> Next {
        use Call::{Confirm, Create, Delete, Initialize, LookUp, LookUpAgain, Recheck, ShutDown, Update};
        match (self.call, self.code) {
            (Recheck, Code::NotFound) => Next::Vanished,
            (Recheck, Code::Unavailable | Code::DeadlineExceeded) => Next::Kept(false),
            (Recheck, _) => Next::Kept(true),
            (ShutDown, Code::Aborted) => Next::Deleting,
            (
                _,
                Code::Canceled | Code::Unknown | Code::DeadlineExceeded | Code::Aborted | Code::Unavailable,
            ) => Next::Backoff,
            (Create | Initialize, Code::ResourceExhausted) => Next::Asked(EXHAUSTED_SECONDS),
            // A shut-down is best effort: only what passes by itself is waited for.
            (ShutDown, Code::Uninitialized) => Next::Backoff,
            (ShutDown, _) => Next::Gone,
            (
                _,
                Code::PermissionDenied
                | Code::Unauthenticated
                | Code::FailedPrecondition
                | Code::Internal
                | Code::DataLoss
                | Code::ResourceExhausted,
            ) => Next::Long,
            // A look-up that refuses the spec refuses the create, unless a VM may be there.
            (LookUp, Code::InvalidArgument) => Next::Terminal,
            (Create, Code::InvalidArgument | Code::AlreadyExists | Code::OutOfRange) => Next::Terminal,
            (_, Code::InvalidArgument | Code::AlreadyExists | Code::OutOfRange) => Next::Long,
            (LookUp | LookUpAgain, Code::NotFound) | (LookUp, Code::Unimplemented) => Next::Provisioned,
            // Offered and not answered: it says nothing about a VM that may exist.
            (LookUpAgain | Confirm, Code::Unimplemented) => Next::NotSupported,
            (Initialize, Code::Unimplemented) => Next::Provisioned,
            (LookUpAgain, Code::Uninitialized) => Next::Provisioned,
            (Confirm, Code::NotFound) => Next::Gone,
            // The VM is there, whatever the delete said; and whether it was ever initialized does not matter.
            (Delete, Code::NotFound) | (Confirm, Code::Uninitialized) => Next::Deleting,
            (Create | Delete, Code::Unimplemented) => Next::NotSupported,
            (Create | Initialize | Update, Code::NotFound) => Next::Backoff,
            (Update, Code::Unimplemented) => Next::NotSupported,
            (LookUp | Create | Initialize | Update | Delete, Code::Uninitialized) => Next::Backoff,
        }
    }

    /// The call that fails in the end, and its code. A driver that says "uninitialized" gets an
    /// initialization, and there is no VM to initialize (INI-19, INI-24).
    pub fn failure(self) -> (Operation, Code) {
        match (self.call, self.code) {
            (Call::LookUp | Call::Create, Code::Uninitialized) => {
                (Operation::InitializeMachine, Code::NotFound)
            }
            (call, code) => (call.operation(), code),
        }
    }

    /// Whether the status says so.
    pub fn is_shown(self, machine: Option<&InfraMachine>) -> Result<()> {
        let next = self.next();
        if next == Next::Gone {
            return machine.map_or(Ok(()), |_| Err(anyhow::anyhow!("is still there")));
        }
        let machine = machine.context("is gone")?;
        let status = machine.status.as_ref().context("has no status")?;
        let refused = status.failure_reason.is_some() || status.failure_message.is_some();
        ensure!(
            refused == (next == Next::Terminal),
            "failureReason {:?}",
            status.failure_reason
        );
        match next {
            Next::Gone
            | Next::Backoff
            | Next::Long
            | Next::NotSupported
            | Next::Asked(_)
            | Next::Terminal => self.failed_as_it_should(machine),
            Next::Provisioned => provisioned(machine),
            Next::Deleting => condition(machine, conditions::DELETING, "True", None),
            Next::Vanished => condition(
                machine,
                conditions::READY,
                "False",
                Some("VirtualMachineVanished"),
            ),
            Next::Kept(_) => {
                provisioned(machine)?;
                // Of a machine that is up an outage is reported when it lasts, and the probes are answered.
                condition(machine, conditions::DRIVER_REACHABLE, "True", Some("Reachable"))
            }
        }
    }

    fn failed_as_it_should(self, machine: &InfraMachine) -> Result<()> {
        let status = machine.status.clone().unwrap_or_default();
        let (operation, code) = self.failure();
        let last = status.last_operation.clone().context("no last operation")?;
        ensure!(
            last.operation.as_deref() == Some(operation.name()) && last.code.as_deref() == Some(code.name()),
            "last operation {:?} {:?}",
            last.operation,
            last.code
        );
        ensure!(
            last.state == OperationState::Failed && last.type_ == self.call.is_part_of(),
            "{last:?}"
        );
        let message = last.message.clone().unwrap_or_default();
        ensure!(
            message.contains(&self.message()) || operation != self.call.operation(),
            "message `{message}`"
        );
        let failed = match operation {
            Operation::UpdateMachine => conditions::VIRTUAL_MACHINE_UP_TO_DATE,
            Operation::InitializeMachine => conditions::VIRTUAL_MACHINE_INITIALIZED,
            _ if last.type_ == OperationType::Delete => conditions::DELETING,
            _ => conditions::VIRTUAL_MACHINE_CREATED,
        };
        let state = if failed == conditions::DELETING {
            "True"
        } else {
            "False"
        };
        condition(machine, failed, state, Some(code.name()))?;
        let shown = conditions::get(&status.conditions, failed).map(|condition| condition.message.as_str());
        ensure!(shown == Some(message.as_str()), "{failed} says {shown:?}");
        let ready = match last.type_ {
            OperationType::Update => ("True", "Ready"),
            OperationType::Create => ("False", code.name()),
            OperationType::Delete => ("False", "Deleting"),
        };
        condition(machine, conditions::READY, ready.0, Some(ready.1))?;
        if operation == Operation::InitializeMachine {
            ensure!(
                message.starts_with("InstanceInitialization"),
                "message `{message}`"
            );
        }
        if self.next() == Next::Terminal {
            ensure!(
                status.failure_reason.as_deref() == Some(code.name())
                    && status.failure_message.as_deref() == Some(message.as_str()),
                "{:?}: {:?}",
                status.failure_reason,
                status.failure_message
            );
        }
        self.waits_as_it_should(&last)
    }

    fn waits_as_it_should(self, operation: &capcmi::api::v1alpha1::LastOperation) -> Result<()> {
        // Times may be kept in whole seconds.
        const ROUNDING: f64 = 1.0;
        let next = operation.next_retry_time.as_ref();
        let wait = next.map(|next| next.0.duration_since(operation.last_update_time.0).as_secs_f64());
        let (least, most) = match self.next() {
            Next::Backoff => {
                let full = (5.0 * 2f64.powi(operation.attempts.max(1) - 1)).min(300.0);
                (0.8 * full, full)
            }
            // A lower bound of the back-off, and a tenth more by jitter.
            Next::Asked(seconds) => {
                let full = (5.0 * 2f64.powi(operation.attempts.max(1) - 1)).min(300.0);
                (f64::from(seconds), full.max(1.1 * f64::from(seconds)))
            }
            Next::Terminal | Next::NotSupported => {
                ensure!(wait.is_none(), "is tried again after {wait:?} s");
                return Ok(());
            }
            _ => (540.0, 600.0),
        };
        let wait = wait.context("is never tried again")?;
        ensure!(
            (least - ROUNDING..=most + ROUNDING).contains(&wait),
            "waits {wait} s after attempt {}, not {least} to {most}",
            operation.attempts
        );
        Ok(())
    }
}

/// Whether the machine is up.
pub fn provisioned(machine: &InfraMachine) -> Result<()> {
    let status = machine.status.as_ref().context("has no status")?;
    ensure!(machine.spec.provider_id.is_some(), "has no providerID");
    ensure!(
        status.initialization.as_ref().and_then(|i| i.provisioned) == Some(true),
        "is not provisioned: {:?}",
        status.last_operation
    );
    condition(machine, conditions::READY, "True", None)
}

/// Whether a condition has this status and, if one is given, this reason.
pub fn condition(machine: &InfraMachine, type_: &str, state: &str, reason: Option<&str>) -> Result<()> {
    let all = machine
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    let found = conditions::get(all, type_).with_context(|| format!("no condition {type_}"))?;
    ensure!(
        found.status == state && reason.is_none_or(|reason| found.reason == reason),
        "{type_} is {} for {}: {}",
        found.status,
        found.reason,
        found.message
    );
    Ok(())
}
