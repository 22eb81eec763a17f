//! Requests a look-up of each machine from time to time, for drivers whose lists have no state of VMs.

use std::sync::Arc;
use std::time::Duration;

use super::inventory::{Context, is_paused};
use crate::driver::ConfiguredDriver;
use crate::driver::listing;
use crate::reconcile::caches::CachedMachine;
use cmi_driver::Operation;

/// The look-ups of a driver's machines are spread over this many minutes.
const SLICES: u64 = 10;
/// The time of a slice.
const SLICE: Duration = Duration::from_mins(1);
/// The name of the task in the driver's permit queue.
const REQUESTER: &str = "refresh";

/// Requests the look-ups, for ever. A driver with more than `max_machines` machines is left out, because each
/// look-up is a driver call.
pub async fn run(
    ctx: Context,
    max_machines: usize,
    look_up: impl Fn(&CachedMachine) + Send + Sync + 'static,
) {
    let (ctx, look_up) = (Arc::new(ctx), Arc::new(look_up));
    let of_driver = |driver: Arc<ConfiguredDriver>| {
        let (ctx, look_up) = (Arc::clone(&ctx), Arc::clone(&look_up));
        async move { refresh_periodically(&ctx, &driver, max_machines, &*look_up).await }
    };
    ctx.drivers.run_for_each(of_driver).await;
}

async fn refresh_periodically(
    ctx: &Context,
    driver: &ConfiguredDriver,
    max_machines: usize,
    look_up: &(impl Fn(&CachedMachine) + Send + Sync),
) {
    for slice in (0..SLICES).cycle() {
        tokio::time::sleep(SLICE).await;
        let machines = running(ctx, driver);
        let is_affordable = (1..=max_machines).contains(&machines.len());
        if !is_affordable || !is_needed(driver).await {
            continue;
        }
        let due = |machine: &&CachedMachine| machine.uid() % SLICES == slice;
        machines.iter().filter(due).for_each(look_up);
    }
}

/// The machines of a driver whose VMs exist, as far as is known.
fn running(ctx: &Context, driver: &ConfiguredDriver) -> Vec<CachedMachine> {
    let mut machines = ctx.caches.infra_machines.select(|entry| {
        let facts = entry.facts();
        facts.is_provisioned && !facts.has_vanished && facts.used_driver.as_deref() == Some(driver.name())
    });
    machines.retain(|machine| !is_paused(&ctx.caches, machine));
    machines
}

/// Whether the driver can look up a VM, and its lists have no state. An unreachable driver needs nothing.
async fn is_needed(driver: &ConfiguredDriver) -> bool {
    let capabilities = listing::declared(driver, REQUESTER).await;
    capabilities.is_ok_and(|capabilities| {
        let lists_state = capabilities.list_has_state && capabilities.supports(Operation::ListMachines);
        capabilities.supports(Operation::GetMachineStatus) && !lists_state
    })
}
