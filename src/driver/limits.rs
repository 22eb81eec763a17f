//! The limits of a driver: which namespaces may call it, how often, and how long a call may take.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Duration;

use cmi_driver::Operation;

/// The time between recording a create in its object and sending the call, apart from the wait for the
/// driver's rate. It does not count towards the create's timeout. The API server has 30 s to answer the
/// write, and the provider may have to fetch the driver's capabilities first.
const CREATE_LEAD_TIME: Duration = Duration::from_mins(1);

/// The namespaces whose machines may use a driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Namespaces {
    /// All namespaces.
    #[default]
    All,
    /// Only these namespaces.
    Only(BTreeSet<String>),
}

/// The limits of the calls to a driver.
#[derive(Clone, Debug)]
pub struct Limits {
    /// How many calls may run at the same time. Creates leave an eighth of them to look-ups and deletions. If
    /// several namespaces may use the driver, one namespace leaves an eighth, and at least one, to the
    /// others.
    pub max_concurrent_calls: NonZeroU32,
    /// How many calls may be started per second on average.
    pub calls_per_second: NonZeroU32,
    /// How many calls may start together after a quiet time.
    pub burst: NonZeroU32,
    /// How long each call may take.
    pub timeouts: Timeouts,
}

/// How long each call may take before it is cancelled.
#[derive(Clone, Debug)]
pub struct Timeouts {
    /// The timeout of calls that are not in `by_operation`.
    pub default: Duration,
    /// The timeouts of calls that differ from the default.
    pub by_operation: BTreeMap<Operation, Duration>,
}

impl Namespaces {
    /// Whether this namespace is included.
    pub fn contain(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.contains(namespace),
        }
    }

    /// Whether there may be more than one namespace.
    pub(super) fn are_several(&self) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.len() > 1,
        }
    }
}

impl Limits {
    /// The longest time from recording a create in its object until the call is abandoned. Each permit has at
    /// most one call that waits for the driver's rate, which bounds that wait.
    pub(super) fn create_given_up_after(&self) -> Duration {
        let calls = Duration::from_secs(u64::from(self.max_concurrent_calls.get()));
        let in_turn = calls / self.calls_per_second.get();
        let timeout = self.timeouts.of(Operation::CreateMachine);
        timeout.saturating_add(in_turn + CREATE_LEAD_TIME)
    }
}

impl Timeouts {
    /// The key of a call's timeout in the drivers file: `createMachine` for CreateMachine.
    pub fn key(operation: Operation) -> String {
        let mut name = operation.name().to_owned();
        if let Some(first) = name.get_mut(..1) {
            first.make_ascii_lowercase();
        }
        name
    }

    /// Returns how long this call may take.
    pub fn of(&self, operation: Operation) -> Duration {
        self.by_operation.get(&operation).copied().unwrap_or(self.default)
    }
}

impl Default for Timeouts {
    /// One minute, but 10 minutes to create or initialize a VM, 5 minutes to delete one, and 10 s for calls
    /// about the driver itself.
    fn default() -> Self {
        Self {
            default: Duration::from_mins(1),
            by_operation: BTreeMap::from([
                (Operation::CreateMachine, Duration::from_mins(10)),
                (Operation::InitializeMachine, Duration::from_mins(10)),
                (Operation::DeleteMachine, Duration::from_mins(5)),
                (Operation::Probe, Duration::from_secs(10)),
                (Operation::GetPluginInfo, Duration::from_secs(10)),
                (Operation::GetPluginCapabilities, Duration::from_secs(10)),
            ]),
        }
    }
}

impl Default for Limits {
    /// 32 concurrent calls, 200 calls per second.
    fn default() -> Self {
        const fn number(n: u32) -> NonZeroU32 {
            match NonZeroU32::new(n) {
                Some(n) => n,
                None => NonZeroU32::MIN,
            }
        }
        Self {
            max_concurrent_calls: number(32),
            calls_per_second: number(200),
            burst: number(200),
            timeouts: Timeouts::default(),
        }
    }
}
