//! ShutDownMachine.

use std::time::Duration;

use super::case;
use crate::conformance::answer::{Outcome, ensure};
use crate::conformance::{Case, Need, Order, Trial};
use crate::driver::{Code, Operation, PowerState};

const SHUT_DOWN: Need = Need::Call(Operation::ShutDownMachine);
const BETWEEN_CALLS: Duration = Duration::from_millis(20);

pub(super) const CASES: &[Case] = &[
    case!(
        "shut-down-offered",
        "the call works when it is declared, and is UNIMPLEMENTED when it is not",
        proves: ["PLG-SD-12", "CMI-126"],
        needs: [],
        offered
    ),
    case!(
        "shut-down-stops",
        "the guest stops, and its VM is still there",
        proves: ["PLG-SD-00", "CMI-127", "CMI-132"],
        needs: [SHUT_DOWN],
        stops
    ),
    case!(
        "shut-down-again",
        "to stop what is stopped is OK",
        proves: ["CMI-127", "CMI-129"],
        needs: [SHUT_DOWN],
        |t| again(t, 1)
    ),
    case!(
        "shut-down-ten-times",
        "to stop ten more times is OK",
        proves: ["CMI-129"],
        needs: [SHUT_DOWN],
        |t| again(t, 10)
    ),
    case!(
        "shut-down-other-cluster",
        "a VM of the same name in another cluster goes on",
        proves: ["CMI-128"],
        needs: [SHUT_DOWN, Need::Call(Operation::GetMachineStatus)],
        other_cluster
    ),
];

/// Repeats while the guest is stopping.
async fn until_stopped(t: &Trial, order: &Order) -> Outcome {
    let until = tokio::time::Instant::now() + t.config().call_limit();
    while t.shut_down(order).await?.ok_or(&[Code::Aborted])?.is_none() {
        ensure(tokio::time::Instant::now() < until, || {
            format!("ShutDownMachine of `{}` still answers ABORTED", order.name)
        })?;
        tokio::time::sleep(BETWEEN_CALLS).await;
    }
    Ok(())
}

async fn offered(t: Trial) -> Outcome {
    let order = t.order("a");
    t.prepare(&order).await?;
    if t.offers(Operation::ShutDownMachine) {
        return until_stopped(&t, &order).await;
    }
    for _ in 0..3 {
        t.shut_down(&order).await?.refused(Code::Unimplemented)?;
    }
    Ok(())
}

async fn stops(t: Trial) -> Outcome {
    let order = t.order("a");
    let id = t.prepare(&order).await?.provider_id;
    until_stopped(&t, &order).await?;
    t.has_exactly(&order, &[(&order, &id)]).await?;
    if !t.offers(Operation::GetMachineStatus) {
        return Ok(());
    }
    let state = t.status(&order, None).await?.ok()?.power_state;
    ensure(
        !matches!(state, Some(PowerState::Running | PowerState::Starting)),
        || "ShutDownMachine answered OK, and the guest runs".to_owned(),
    )
}

async fn again(t: Trial, times: usize) -> Outcome {
    let order = t.order("a");
    let id = t.prepare(&order).await?.provider_id;
    until_stopped(&t, &order).await?;
    for _ in 0..times {
        t.shut_down(&order).await?.ok()?;
    }
    t.has_exactly(&order, &[(&order, &id)]).await
}

async fn other_cluster(t: Trial) -> Outcome {
    let here = t.order("a");
    let there = here.clone().in_cluster(&t.other_cluster());
    t.prepare(&there).await?;
    // There is nothing to stop: OK and NOT_FOUND both say so.
    t.shut_down(&here).await?.ok_or(&[Code::NotFound])?;
    let state = t.status(&there, None).await?.ok()?.power_state;
    ensure(
        !matches!(state, Some(PowerState::Stopping | PowerState::Stopped)),
        || "the guest of the other cluster's VM was stopped".to_owned(),
    )
}
