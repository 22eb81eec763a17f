//! The addresses and power states in a list.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{cases, shut_down};
use crate::answer::{CaseError, CaseResult, ensure};
use crate::{Case, MachineRequest, Need, TestContext};
use cmi_driver::{Address, Code, Operation, PowerState};

const LIST: Need = Need::Call(Operation::ListMachines);
const STATUS: Need = Need::Call(Operation::GetMachineStatus);
const SHUT_DOWN: Need = Need::Call(Operation::ShutDownMachine);
const RESTART: Need = Need::Call(Operation::RestartMachine);
/// How often the VM may change between two look-ups.
const TRIES: u32 = 10;
const BETWEEN_TRIES: Duration = Duration::from_millis(200);

pub(super) const CASES: &[Case] = cases! {
    "list-state": "the list shows addresses and power states as GetMachineStatus does"
        ["CAP-37"], [LIST, STATUS, Need::ListState] => of_running_vms;
    "list-state-stopped": "the list shows that a VM was shut down"
        ["CAP-37"], [LIST, STATUS, SHUT_DOWN, Need::ListState] => of_a_stopped_vm;
    "list-state-started": "the list shows that a VM was started again"
        ["CAP-37"], [LIST, STATUS, SHUT_DOWN, RESTART, Need::ListState] => of_a_started_vm;
};

/// Two VMs, because a driver may confuse their addresses.
async fn of_running_vms(t: TestContext) -> CaseResult {
    let requests = [t.machine_request("a"), t.machine_request("b")];
    for request in &requests {
        t.prepare(request).await?;
    }
    for request in &requests {
        list_agrees(&t, request).await?;
    }
    Ok(())
}

/// The list before the stop shows a running VM. A driver may remember that state.
async fn stopped(t: &TestContext) -> CaseResult<MachineRequest> {
    let request = t.machine_request("a");
    shut_down::running(t, &request).await?;
    list_agrees(t, &request).await?;
    let stopped = async {
        shut_down::until_accepted(t, &request).await?;
        shut_down::until_down(t, &request).await
    };
    stopped.await.map_err(CaseError::in_preparation)?;
    t.settle().await;
    list_agrees(t, &request).await?;
    Ok(request)
}

async fn of_a_stopped_vm(t: TestContext) -> CaseResult {
    stopped(&t).await.map(drop)
}

async fn of_a_started_vm(t: TestContext) -> CaseResult {
    let request = stopped(&t).await?;
    let started = async {
        let id = t.status(&request, None).await?.ok()?.provider_id;
        t.restart(&request, &id).await?.ok_or(&[Code::Aborted])?;
        let otherwise = "the guest does not run again";
        shut_down::until(&t, &request, true, t.config().call_limit(), otherwise).await
    };
    started.await.map_err(CaseError::in_preparation)?;
    t.settle().await;
    list_agrees(&t, &request).await
}

/// Compares the list with a look-up before and a look-up after it. If these differ, the VM has changed.
async fn list_agrees(t: &TestContext, request: &MachineRequest) -> CaseResult {
    for _ in 0..TRIES {
        let before = looked_up(t, request).await?;
        let listed = listed(t, request).await?;
        if looked_up(t, request).await? == before {
            return ensure(listed == before, || {
                format!(
                    "the list shows {listed} for the VM of `{}`, and GetMachineStatus shows {before}",
                    request.name
                )
            });
        }
        t.pause(BETWEEN_TRIES).await;
    }
    let reason = format!("the VM of `{}` changed between all look-ups", request.name);
    Err(CaseError::Inconclusive(reason))
}

/// The state of a VM, in any order of its addresses.
#[derive(PartialEq)]
struct State {
    addresses: BTreeSet<String>,
    power: Option<PowerState>,
}

impl State {
    fn of(addresses: &[Address], power: Option<PowerState>) -> Self {
        let text = |address: &Address| format!("{:?} {}", address.kind, address.address);
        Self {
            addresses: addresses.iter().map(text).collect(),
            power,
        }
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let power = self.power.map_or("no power state", PowerState::name);
        let addresses: Vec<_> = self.addresses.iter().map(String::as_str).collect();
        write!(f, "{power} with [{}]", addresses.join(", "))
    }
}

async fn looked_up(t: &TestContext, request: &MachineRequest) -> CaseResult<State> {
    // Other cases test that GetMachineStatus answers.
    let read = t.status(request, None).await?.ok();
    let machine = read.map_err(CaseError::in_preparation)?;
    Ok(State::of(&machine.addresses, machine.power_state))
}

async fn listed(t: &TestContext, request: &MachineRequest) -> CaseResult<State> {
    let listed = t.list(request).await?.ok().map_err(CaseError::in_preparation)?;
    let vm = listed.iter().find(|vm| vm.machine_name == request.name);
    let vm = vm.ok_or_else(|| {
        CaseError::Inconclusive(format!("preparation failed: the list lacks `{}`", request.name))
    })?;
    Ok(State::of(&vm.addresses, vm.power_state))
}
