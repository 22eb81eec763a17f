//! The simulated driver: a small cloud with VMs that boot, stop and go.

mod clock;
mod cloud;
mod console;
mod journal;
mod subnet;
mod vm;

pub use clock::{Clock, Instant, TimerClock, WallClock};
pub use cloud::{Cloud, Entry, Event};
pub use console::{CloudConsole, PlantedVm};
pub use journal::{CloudView, Decision, Journal, JournalError};
pub use subnet::{ParseSubnetError, Subnet};
pub use vm::{Condition, ParseVmIdError, UserData, Vm, VmId};
