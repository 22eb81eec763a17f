//! Calls at once, and calls that are given up.

use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use futures::future::{join, join_all};

use super::cases;
use crate::answer::{CaseResult, ensure};
use crate::{Case, MachineRequest, Need, TestContext};
use cmi_driver::{Code, Operation, ProviderId};

/// How many identical calls are made at once.
const AT_ONCE: usize = 8;
/// When a call is given up: at each of its first waits, and some time later.
const GIVE_UP: [GiveUp; 6] = [
    GiveUp::AtWait(1),
    GiveUp::AtWait(2),
    GiveUp::AtWait(3),
    GiveUp::After(Duration::from_millis(1)),
    GiveUp::After(Duration::from_millis(8)),
    GiveUp::After(Duration::from_millis(30)),
];

/// When a call is given up.
#[derive(Clone, Copy, Debug)]
enum GiveUp {
    /// When it waits for the so-manieth time.
    AtWait(usize),
    /// After this time.
    After(Duration),
}

impl GiveUp {
    /// The answer, if the call was faster.
    async fn run<T>(self, call: impl Future<Output = T>) -> Option<T> {
        match self {
            Self::After(time) => tokio::time::timeout(time, call).await.ok(),
            Self::AtWait(mut waits) => {
                let mut call = std::pin::pin!(call);
                poll_fn(|context| match call.as_mut().poll(context) {
                    Poll::Ready(answer) => Poll::Ready(Some(answer)),
                    Poll::Pending => {
                        waits -= 1;
                        if waits == 0 {
                            Poll::Ready(None)
                        } else {
                            Poll::Pending
                        }
                    }
                })
                .await
            }
        }
    }
}

pub(super) const CASES: &[Case] = cases! {
    "create-at-once": "identical requests at once make one VM: each is OK or ABORTED"
        ["DRV-CR-10", "PLG-CR-10", "DRV-12", "CMI-10", "CMI-11", "CMI-34", "CMI-84"], [] => create_at_once;
    "delete-at-once": "deletions at once are OK or ABORTED, and the VM goes"
        ["DRV-DE-10", "PLG-DE-10", "DRV-21", "CMI-10", "CMI-34", "CMI-102"], [] => delete_at_once;
    "shut-down-at-once": "requests to stop at once are OK or ABORTED, and the VM is still there"
        ["PLG-SD-10", "CMI-10"], [Need::Call(Operation::ShutDownMachine)] => shut_down_at_once;
    "create-and-delete-at-once": "a create beside a delete ends, and leaves at most one VM"
        ["CMI-10"], [] => create_and_delete;
    "create-and-status-at-once": "a VM that is read while it is made is there or NOT_FOUND"
        ["CMI-10"], [Need::Call(Operation::GetMachineStatus)] => create_and_status;
    "create-cancelled": "a call that is given up at any point can be repeated, and leaves nothing half done"
        ["DRV-CR-01", "PLG-CR-01", "DRV-12", "CMI-22", "CMI-84"],
        [] => |t| cancelled(t, Operation::CreateMachine);
    "delete-cancelled": "a call that is given up at any point can be repeated, and leaves nothing half done"
        ["DRV-DE-01", "PLG-DE-01", "DRV-21", "CMI-22", "CMI-102"],
        [] => |t| cancelled(t, Operation::DeleteMachine);
    "status-cancelled": "a call that is given up at any point can be repeated, and leaves nothing half done"
        ["DRV-GS-01", "PLG-GS-01"],
        [Need::Call(Operation::GetMachineStatus)] => |t| cancelled(t, Operation::GetMachineStatus);
    "list-cancelled": "a call that is given up at any point can be repeated, and leaves nothing half done"
        ["DRV-LM-01", "PLG-LM-01"],
        [Need::Call(Operation::ListMachines)] => |t| cancelled(t, Operation::ListMachines);
    "shut-down-cancelled":
        "a call that is given up at any point can be repeated, and leaves nothing half done"
        ["PLG-SD-01"],
        [Need::Call(Operation::ShutDownMachine)] => |t| cancelled(t, Operation::ShutDownMachine);
    "volumes-cancelled": "a call that is given up at any point can be repeated, and leaves nothing half done"
        ["DRV-GV-01", "PLG-GV-01"],
        [Need::Call(Operation::GetVolumeIds)] => |t| cancelled(t, Operation::GetVolumeIds);
};

async fn at_once(t: &TestContext, operation: Operation, request: &MachineRequest) -> CaseResult {
    let answers = join_all((0..AT_ONCE).map(|_| t.touch(operation, request))).await;
    for answer in answers {
        answer?.ok_or(&[Code::Aborted])?;
    }
    Ok(())
}

async fn create_at_once(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let mut ids = BTreeSet::new();
    for answer in join_all((0..AT_ONCE).map(|_| t.create(&request))).await {
        let made = answer?.ok_or(&[Code::Aborted])?;
        ids.extend(made.map(|machine| machine.provider_id));
    }
    let id = t.make(&request).await?.provider_id;
    ids.insert(id.clone());
    ensure(ids.len() == 1, || {
        let ids: Vec<_> = ids.iter().map(ProviderId::as_str).collect();
        format!("{AT_ONCE} identical requests made the VMs {}", ids.join(", "))
    })?;
    t.has_exactly(&request, &[(&request, &id)]).await
}

async fn delete_at_once(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let id = t.prepare(&request).await?.provider_id;
    at_once(&t, Operation::DeleteMachine, &request).await?;
    t.remove(&request, Some(&id)).await?;
    t.is_gone(&request).await
}

async fn shut_down_at_once(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let id = t.prepare(&request).await?.provider_id;
    at_once(&t, Operation::ShutDownMachine, &request).await?;
    t.has_exactly(&request, &[(&request, &id)]).await
}

async fn create_and_delete(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let (made, deleted) = join(t.create(&request), t.delete(&request, None)).await;
    made?.ok_or(&[Code::Aborted])?;
    deleted?.ok_or(&[Code::Aborted])?;
    // A back end that is behind does not find it yet.
    t.settle().await;
    t.remove(&request, None).await?;
    t.is_gone(&request).await
}

async fn create_and_status(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let (made, read) = join(t.create(&request), t.status(&request, None)).await;
    let id = match made?.ok_or(&[Code::Aborted])? {
        Some(machine) => machine.provider_id,
        None => t.created(&request).await?.provider_id,
    };
    let read = read?.ok_or(&[Code::NotFound, Code::Aborted, Code::Uninitialized])?;
    ensure(read.is_none_or(|read| read.provider_id == id), || {
        "GetMachineStatus saw another VM than CreateMachine made".to_owned()
    })
}

async fn cancelled(t: TestContext, operation: Operation) -> CaseResult {
    for (number, give_up) in GIVE_UP.into_iter().enumerate() {
        let request = t
            .machine_request(&format!("n{number}"))
            .in_cluster(&format!("{}-{number}", t.machine_request("a").cluster()));
        if !matches!(operation, Operation::CreateMachine | Operation::GetVolumeIds) {
            t.prepare(&request).await?;
        }
        let call = t.touch(operation, &request);
        if let Some(ended) = give_up.run(call).await {
            // It was faster; a repeat has to be sound all the same.
            ended?.ok_or(&[Code::Aborted, Code::Canceled])?;
        }
        if operation == Operation::DeleteMachine {
            t.remove(&request, None).await?;
            t.is_gone(&request).await?;
            continue;
        }
        t.touch(operation, &request).await?.ok_or(&[Code::Aborted])?;
        if operation != Operation::GetVolumeIds {
            let id = t.make(&request).await?.provider_id;
            t.has_exactly(&request, &[(&request, &id)]).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_is_given_up_at_the_wait_that_is_asked_for_and_not_before() {
        let waits_twice = || async {
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            7
        };
        assert_eq!(GiveUp::AtWait(1).run(waits_twice()).await, None);
        assert_eq!(GiveUp::AtWait(2).run(waits_twice()).await, None);
        assert_eq!(GiveUp::AtWait(3).run(waits_twice()).await, Some(7));
    }
}
