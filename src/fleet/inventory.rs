//! Finds missing and changed VMs with one list per driver and class at an interval, instead of a call per
//! machine.
//!
//! It deletes and writes nothing. It passes the result of a list to the reconciler of a machine, which asks
//! the driver about the VM.

mod drift;
mod groups;
mod hanging_lists;
mod plan;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube_fleet::Entry;
use tokio::time::Instant;

use self::drift::{Compared, ListedState, differs};
pub use self::groups::is_paused;
use self::groups::{Group, Groups};
use self::hanging_lists::HangingLists;
use self::plan::{Absences, Expected, List, compare};
use crate::api::addresses::AddressRules;
use crate::driver::listing::{self, ListError};
use crate::driver::{ConfiguredDriver, ConfiguredDrivers};
use crate::reconcile::caches::{CachedMachine, Caches};
use crate::reconcile::runtime_state::LookUpHint;
use cmi_driver::{ListedMachine, Operation};

/// The inputs of a scan of the drivers' VMs.
pub struct Context {
    /// The client that reads credentials.
    pub client: Client,
    /// The machines.
    pub caches: Caches,
    /// The configured drivers.
    pub drivers: ConfiguredDrivers,
}

/// The name of a scan in the driver's permit queue.
const REQUESTER: &str = "inventory";

/// Lists the VMs of every driver once per interval, for ever. The lists are spread over half of the interval.
/// Calls `report` with the results that are certain.
///
/// The drivers are listed independently, so a hanging driver does not block the scans of the others. Each
/// scan is a task that ends with this future: reconciles must not wait for a walk through a whole fleet.
pub async fn run(ctx: Context, interval: Duration, report: impl Fn(ListResult<'_>) + Send + Sync + 'static) {
    let (ctx, report) = (Arc::new(ctx), Arc::new(report));
    let list_driver = |driver: Arc<ConfiguredDriver>| {
        let (ctx, report) = (Arc::clone(&ctx), Arc::clone(&report));
        async move { scan_periodically(&ctx, &driver, interval, &*report).await }
    };
    ctx.drivers.run_for_each(list_driver).await;
}

async fn scan_periodically(
    ctx: &Context,
    driver: &ConfiguredDriver,
    interval: Duration,
    report: &(impl Fn(ListResult<'_>) + Send + Sync),
) {
    let mut known = ListState::default();
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // The first tick is immediate, but a restart is no reason to list.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        scan(ctx, driver, &mut known, interval, report).await;
    }
}

/// A driver's state that is kept from one scan to the next.
#[derive(Default)]
struct ListState {
    absences: Absences,
    compared: Compared,
    groups: Groups,
}

/// The result of a list for its machines.
pub enum ListResult<'a> {
    /// The list contradicts the status of a machine, whose VM has to be looked up for this reason.
    LookUp(&'a CachedMachine, LookUpHint),
    /// The list confirms the recorded state of these machines, by UID.
    Confirmed(&'a HashSet<u64>),
}

/// The lists of an interval start in its first part (1/`SPREAD`). The rest is for slow lists.
const SPREAD: u32 = 2;

async fn scan(
    ctx: &Context,
    driver: &ConfiguredDriver,
    known: &mut ListState,
    interval: Duration,
    report: &(impl Fn(ListResult<'_>) + Send + Sync),
) {
    let Ok(Some(capabilities)) = listing::capabilities(driver, REQUESTER).await else {
        return;
    };
    let (caches, tag_path) = (&ctx.caches, &capabilities.tag_path);
    let groups = known.groups.update(caches, driver.name(), tag_path).await;
    let window = capabilities.consistency_window;
    let alive: HashSet<_> = groups.values().flatten().map(Entry::uid).collect();
    known.absences.retain(|uid, _| alive.contains(uid));
    known.compared.retain(&alive);
    let shows_state = capabilities.list_has_state && capabilities.supports(Operation::GetMachineStatus);
    // Spread the lists of a driver over time.
    let pause = interval / SPREAD / u32::try_from(groups.len()).unwrap_or(u32::MAX).max(1);
    let mut hanging = HangingLists::default();
    for (index, (group, mut machines)) in groups.into_iter().enumerate() {
        if hanging.are_too_many(&group.namespace) {
            continue;
        }
        if index > 0 {
            tokio::time::sleep(pause).await;
            leave_out_changed(caches, &mut machines, &mut known.absences);
        }
        // A failing class must not block the others (CTL-LM-03).
        let requested_at = Instant::now();
        let Some(vms) = list(ctx, driver, &group).await else {
            hanging.record(&group.namespace, requested_at.elapsed());
            continue;
        };
        let ids = vms.keys().copied().collect();
        let list = List {
            ids: &ids,
            requested_at,
            window,
        };
        let expected: Vec<_> = machines.iter().filter_map(expected).collect();
        let presences: HashMap<_, _> = compare(&expected, list, &mut known.absences)
            .into_iter()
            .collect();
        let mut confirmed = HashSet::new();
        for machine in &machines {
            match presences.get(&machine.uid()).copied() {
                None => {}
                Some(None) => {
                    confirmed.insert(machine.uid());
                    if shows_state && is_changed(caches, machine, &vms, &mut known.compared) {
                        report(ListResult::LookUp(machine, LookUpHint::Signal));
                    }
                }
                Some(Some(hint)) => {
                    tracing::info!(
                        name = machine.key().name(),
                        ?hint,
                        "the driver's list differs from the status; looking up the VM"
                    );
                    report(ListResult::LookUp(machine, hint));
                }
            }
        }
        report(ListResult::Confirmed(&confirmed));
    }
}

/// Removes machines that changed since the scan began, because they may no longer belong in the list. The
/// next scan covers them. The list may have such a machine's VM, so the lists before and after it are not two
/// in a row that lack the VM.
fn leave_out_changed(caches: &Caches, machines: &mut Vec<CachedMachine>, absences: &mut Absences) {
    machines.retain(|machine| {
        let is_left = caches.infra_machines.is_current(machine) && !groups::is_paused(caches, machine);
        if !is_left {
            absences.remove(&machine.uid());
        }
        is_left
    });
}

/// Whether the list shows another state of a VM than the status of its machine.
fn is_changed(
    caches: &Caches,
    machine: &CachedMachine,
    vms: &HashMap<u64, ListedState>,
    compared: &mut Compared,
) -> bool {
    let vm = machine.external_id().and_then(|id| vms.get(&id));
    let Some(vm) = vm.filter(|_| !machine.facts().has_vanished) else {
        return false;
    };
    let labelled = machine.facts().cluster.as_deref();
    let cluster = labelled.and_then(|name| caches.cluster(machine.key().namespace(), name));
    let rules = cluster.map_or_else(AddressRules::default, |cluster| AddressRules::of(&cluster));
    let differs = || {
        let object = machine.object();
        let infra = object.as_deref().and_then(|object| object.0.as_ref().ok());
        infra.is_some_and(|infra| differs(infra.status.as_ref(), vm, &rules))
    };
    compared.is_due((machine.uid(), machine.version()), &rules, vm, differs)
}

/// The VMs of a class by their hashed ids. `None` if the list fails; a failed list proves nothing.
async fn list(ctx: &Context, driver: &ConfiguredDriver, group: &Group) -> Option<HashMap<u64, ListedState>> {
    let listed = listing::list(&ctx.client, driver, REQUESTER, &group.namespace, &group.class);
    match listed.await {
        Ok(machines) => {
            let number =
                |machine: &ListedMachine| ctx.caches.infra_machines.number(machine.provider_id.as_str());
            Some(machines.into_iter().map(|vm| (number(&vm), vm.into())).collect())
        }
        // If the driver turns out not to support lists, the feature is off, without a warning (CTL-LM-12).
        Err(ListError::NotSupported) => None,
        Err(error) => {
            tracing::warn!(
                driver = driver.name(),
                why = error.message(),
                "cannot list VMs; retrying at the next interval"
            );
            None
        }
    }
}

fn expected(machine: &CachedMachine) -> Option<Expected> {
    Some(Expected {
        uid: machine.uid(),
        provider_id: machine.external_id()?,
        vanished: machine.facts().has_vanished,
    })
}

#[cfg(test)]
mod tests {
    use kube_fleet::store;
    use serde_json::json;

    use super::*;
    use crate::api::DeserializeGuard;
    use crate::api::v1alpha1::InfraMachine;

    fn machine(version: &str) -> Arc<DeserializeGuard<InfraMachine>> {
        let machine = json!({
            "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachine",
            "metadata": {"namespace": "ns", "name": "m", "uid": "u", "resourceVersion": version},
            "spec": {"providerSpec": {}, "providerID": "sim://m"},
            "status": {"initialization": {"provisioned": true}},
        });
        Arc::new(serde_json::from_value(machine).unwrap())
    }

    /// The skipped list may have shown the VM.
    #[test]
    fn lists_lack_a_vm_in_a_row_only_where_none_between_them_was_left_out() {
        let (infra_machines, mut writer) = store();
        writer.apply(machine("1"));
        let caches = Caches {
            infra_machines,
            ..Caches::empty()
        };
        let mut absences = Absences::new();
        let lacks = |machines: &[CachedMachine], absences: &mut Absences| {
            let expected: Vec<_> = machines.iter().filter_map(expected).collect();
            let list = List {
                ids: &HashSet::new(),
                requested_at: Instant::now(),
                window: Duration::ZERO,
            };
            compare(&expected, list, absences)
                .pop()
                .map(|(_, presence)| presence)
        };
        let scan = || caches.infra_machines.select(|_| true);
        assert_eq!(lacks(&scan(), &mut absences), None);

        let mut second = scan();
        writer.apply(machine("2"));
        leave_out_changed(&caches, &mut second, &mut absences);
        assert!(second.is_empty());

        let mut third = scan();
        leave_out_changed(&caches, &mut third, &mut absences);
        assert_eq!(
            lacks(&third, &mut absences),
            None,
            "the first after the one that was left out"
        );
        assert_eq!(lacks(&third, &mut absences), Some(Some(LookUpHint::Missing)));
    }
}
