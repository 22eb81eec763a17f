//! Tests the driver against a scripted plugin: a test chooses every byte on a real socket.

mod codes;
mod faults;
mod handshakes;
mod lists;
mod pings;
mod plugin;
mod secure;

use std::time::Duration;

use super::config::Timeouts;
use super::target::Target;
use super::*;
use cmi_driver::{
    CreateMachineRequest, DeleteMachineRequest, Driver, GetMachineStatusRequest, ListMachinesRequest,
    MachineClass, MachineRef, Readiness,
};
use plugin::Plugin;

/// Long enough for a busy machine.
const LONG: Duration = Duration::from_secs(30);
/// Short enough to wait for, and long enough for an answer.
const SHORT: Duration = Duration::from_secs(1);

fn driver_of(target: Target, timeout: Duration) -> GrpcDriver {
    GrpcDriver {
        channel: Channel::new(
            target,
            Timeouts {
                connect: timeout,
                keepalive: LONG,
                keepalive_answer: LONG,
            },
        ),
        deadlines: Deadlines::new(Operation::ALL.map(|operation| (operation, timeout))),
        max_session_age: MAX_SESSION_AGE,
    }
}

fn driver(plugin: &Plugin) -> GrpcDriver {
    driver_of(Target::Unix(plugin.socket()), LONG)
}

fn hasty_driver(plugin: &Plugin) -> GrpcDriver {
    driver_of(Target::Unix(plugin.socket()), SHORT)
}

fn create() -> CreateMachineRequest {
    CreateMachineRequest {
        machine: MachineRef::new("m", MachineClass::default()),
        last_known_state: None,
    }
}

fn delete() -> DeleteMachineRequest {
    DeleteMachineRequest {
        machine: MachineRef::new("m", MachineClass::default()),
        provider_id: None,
        last_known_state: None,
    }
}

fn look_up() -> GetMachineStatusRequest {
    GetMachineStatusRequest {
        machine: MachineRef::new("m", MachineClass::default()),
        provider_id: None,
    }
}

fn list() -> ListMachinesRequest {
    ListMachinesRequest {
        class: MachineClass::default(),
    }
}

/// Repeats the attempt until it succeeds.
async fn eventually<T>(mut attempt: impl AsyncFnMut() -> Result<T>) -> T {
    let deadline = Instant::now() + LONG;
    loop {
        match attempt().await {
            Ok(value) => return value,
            Err(status) => assert!(Instant::now() < deadline, "{status}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
