//! InitializeMachine.

use super::cases;
use super::requests::reaches_the_plugin;
use super::status::{counted, mutations};
use crate::answer::{CaseResult, ensure, names, same_names};
use crate::{Case, CaseError, Hook, HookCall, Need, TestContext};
use cmi_driver::{Code, Operation};

const INITIALIZE: Need = Need::Call(Operation::InitializeMachine);
const STATUS: Need = Need::Call(Operation::GetMachineStatus);
const FAILURES: u64 = 3;

pub(super) const CASES: &[Case] = cases! {
    "initialize-offered": "a declared call works, an undeclared call is UNIMPLEMENTED"
        ["INI-11", "CAP-05"], [] => offered;
    "initialize-like-create": "the answer matches CreateMachine, with and without the provider ID"
        ["INI-22", "CAP-22"], [INITIALIZE] => like_create;
    "initialize-ten-times": "ten repeated calls are OK and return the same VM"
        ["INI-22"], [INITIALIZE] => ten_times;
    "initialize-changes-once": "an initialized VM is not changed again"
        ["INI-22"], [INITIALIZE, Need::Hook(Hook::Mutations)] => changes_once;
    "initialize-never-made": "an unknown machine is neither initialized nor created"
        ["INI-22"], [INITIALIZE] => never_made;
    "initialize-fails": "a failed initialization is code 17 and can be repeated"
        ["INI-12", "INI-21"], [INITIALIZE, Need::Hook(Hook::FailInitialize)] => fails;
    "initialize-status": "a VM whose initialization was undone is code 17 with its ID, until it is repeated"
        ["INI-18", "INI-23"], [INITIALIZE, STATUS, Need::Hook(Hook::Uninitialize)] => taken_back;
};

async fn offered(t: TestContext) -> CaseResult {
    reaches_the_plugin(&t, Operation::InitializeMachine)?;
    let request = t.machine_request("a");
    // `make` initializes a VM that needs it, and this case is about a failure to do so.
    let made = t.make(&request).await?;
    let answer = t.initialize(&request, None).await?;
    if !t.supports(Operation::InitializeMachine) {
        return answer.refused(Code::Unimplemented).map(|_| ());
    }
    let initialized = answer.ok()?;
    ensure(initialized.provider_id == made.provider_id, || {
        "InitializeMachine answered with another VM".to_owned()
    })
}

async fn like_create(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let made = t.prepare(&request).await?;
    for id in [None, Some(&made.provider_id)] {
        let initialized = t.initialize(&request, id).await?.ok()?;
        same_names(&made, Operation::InitializeMachine, names(&initialized))?;
    }
    Ok(())
}

async fn ten_times(t: TestContext) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    for _ in 0..10 {
        let again = t.initialize(&request, None).await?.ok()?;
        ensure(again.provider_id == id, || {
            "InitializeMachine answered with another VM".to_owned()
        })?;
    }
    t.has_only(&request, &id).await
}

async fn changes_once(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    counted(&t, &request).await?;
    let before = mutations(&t).await?;
    t.initialize(&request, None).await?.ok()?;
    let after = mutations(&t).await?;
    ensure(before == after, || {
        "a VM that was initialized was changed again".to_owned()
    })
}

async fn never_made(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    t.initialize(&request, None).await?.refused(Code::NotFound)?;
    t.has_none(&request).await
}

async fn fails(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let made = t.created(&request).await;
    let id = made.map_err(CaseError::in_preparation)?.provider_id;
    t.run_hook(HookCall::new(Hook::FailInitialize).amount(FAILURES))
        .await?;
    for _ in 0..FAILURES {
        t.initialize(&request, None).await?.refused(Code::Uninitialized)?;
    }
    let initialized = t.initialize(&request, None).await?.ok()?;
    ensure(initialized.provider_id == id, || {
        "the VM is another one since its initialization failed".to_owned()
    })?;
    t.settle().await;
    t.has_only(&request, &id).await
}

async fn taken_back(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let made = t.prepare(&request).await?;
    t.run_hook_on(Hook::Uninitialize, &request).await?;
    let status = t.status(&request, None).await?.refused(Code::Uninitialized)?;
    ensure(status.machine().map(names) == Some(names(&made)), || {
        "code 17 has to come with the id and the node name of the VM".to_owned()
    })?;
    t.initialize(&request, None).await?.ok()?;
    t.status(&request, None).await?.ok().map(|_| ())
}
