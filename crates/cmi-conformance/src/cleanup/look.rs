//! Checks whether the deleted VMs are gone.

use std::collections::{BTreeMap, BTreeSet};

use futures::stream::{self, StreamExt as _};

use super::repeat::Repeat;
use super::{Cleanup, Cleared, leftover};
use crate::leftover::Leftover;
use crate::tracker::Tracked;
use cmi_driver::{Code, GetMachineStatusRequest, ListMachinesRequest, ListedMachine, Operation};

impl Cleanup<'_> {
    /// Returns the VMs that the machines of the cases still have, as far as the driver shows them.
    pub(super) async fn look(&self, cases: &[Cleared], parallel: usize) -> BTreeSet<Leftover> {
        let looks = cases.iter().map(|case| self.look_at(case));
        let seen: Vec<_> = stream::iter(looks).buffered(parallel).collect().await;
        seen.into_iter().flatten().collect()
    }

    async fn look_at(&self, case: &Cleared) -> BTreeSet<Leftover> {
        if self.capabilities.supports(Operation::ListMachines) {
            self.listed(case).await
        } else if self.capabilities.supports(Operation::GetMachineStatus) {
            self.found(case.gone.iter()).await
        } else {
            BTreeSet::new()
        }
    }

    /// Returns all VMs in the clusters, which only this run uses.
    async fn listed(&self, case: &Cleared) -> BTreeSet<Leftover> {
        let mut clusters: BTreeMap<String, Vec<&Tracked>> = BTreeMap::new();
        for tracked in &case.gone {
            clusters
                .entry(tracked.request.cluster())
                .or_default()
                .push(tracked);
        }
        let mut seen = BTreeSet::new();
        for (cluster, all) in clusters {
            let Some(one) = all.iter().find(|tracked| tracked.was_made).or(all.first()) else {
                continue;
            };
            let class = &self.looked_for(one).class;
            let list = || {
                let class = class.clone();
                self.driver.list_machines(ListMachinesRequest { class })
            };
            match self
                .repeat(Operation::ListMachines, Repeat::Transient, list)
                .await
            {
                Ok(vms) => {
                    let is_known = |vm: &&ListedMachine| {
                        let key = (cluster.clone(), vm.machine_name.clone());
                        case.left.contains_key(&key)
                    };
                    let others = vms.iter().filter(|vm| !is_known(vm));
                    seen.extend(others.map(|vm| still_listed(&cluster, vm)));
                }
                Err((Some(Code::InvalidArgument), _)) if !one.was_made => {}
                // GetMachineStatus may still answer for each machine.
                Err(_) if self.capabilities.supports(Operation::GetMachineStatus) => {
                    seen.extend(self.found(all.into_iter()).await);
                }
                Err((_, reason)) => {
                    seen.insert(Leftover::cluster(&cluster, reason));
                }
            }
        }
        seen
    }

    async fn found(&self, case: impl Iterator<Item = &Tracked>) -> BTreeSet<Leftover> {
        let mut seen = BTreeSet::new();
        for tracked in case {
            let request = self.looked_for(tracked);
            let status = || {
                self.driver.get_machine_status(GetMachineStatusRequest {
                    machine: request.reference(),
                    provider_id: None,
                })
            };
            let operation = Operation::GetMachineStatus;
            match self.repeat(operation, Repeat::Transient, status).await {
                Ok(vm) => {
                    seen.insert(Leftover {
                        provider_id: Some(vm.provider_id.to_string()),
                        ..leftover(tracked, "it is there after its deletion")
                    });
                }
                Err((Some(Code::NotFound), _)) => {}
                Err((Some(Code::InvalidArgument), _)) if !tracked.was_made => {}
                Err((_, reason)) => {
                    seen.insert(leftover(tracked, reason));
                }
            }
        }
        seen
    }
}

fn still_listed(cluster: &str, vm: &ListedMachine) -> Leftover {
    let reason = "it is listed after its deletion";
    Leftover::of(cluster, &vm.machine_name, Some(&vm.provider_id), reason)
}
