//! Status and list, with their flaws.

use cmi_driver::{
    Address, AddressType, Code, Driver as _, GetMachineStatusRequest, ListMachinesRequest, ListedMachine,
    Machine, PowerState, Result, Status, tags,
};

use super::{Mutant, again, listed, machine, tag};
use crate::flaw::Flaw;

impl Mutant {
    pub(super) async fn status(&self, request: GetMachineStatusRequest) -> Result<Machine> {
        let (name, class) = (request.machine.name.clone(), request.machine.class.clone());
        let cluster = tag(&class, tags::CLUSTER);
        let known = request.provider_id.as_ref().map(|id| id.as_str().to_owned());
        let found = match self.flaw {
            Flaw::StatusAnyCluster => self.vms(|vm| vm.name == name),
            Flaw::StatusAnyId => self.vms(|vm| Some(vm.provider_id()) == known),
            Flaw::StatusAnyIdOfCluster => {
                self.vms(|vm| Some(vm.provider_id()) == known && vm.cluster() == cluster)
            }
            Flaw::StatusAnyIdentity => self.vms(|vm| vm.name == name && vm.cluster() == cluster),
            Flaw::StatusByBeginning => self.vms(|vm| vm.cluster() == cluster && vm.name.starts_with(&name)),
            Flaw::StatusFindsAnother => self.vms(|vm| vm.cluster() == cluster),
            _ => Vec::new(),
        };
        if let Some(vm) = found.first() {
            return Ok(machine(vm));
        }
        if self.has(Flaw::StatusRemembersAbsence) {
            let mut absent = self.memory.lock().unwrap();
            let key = super::key(&class, &name);
            let exists = !self
                .vms(|vm| vm.name == name && vm.cluster() == cluster)
                .is_empty();
            if !exists {
                absent.insert(key.clone(), "simulated://zone-a/absent".parse().unwrap());
            }
            if absent.contains_key(&key) {
                return Err(Status::new(Code::NotFound, "the cache has no such VM"));
            }
        }
        if self.has(Flaw::RestartHides) && self.is_old(&class, &name) {
            return Err(Status::new(Code::NotFound, "nothing is known of such a VM"));
        }
        if self.has(Flaw::UpdateLosesTheVm) && class.provider_spec.0.contains_key("labels") {
            return Err(Status::new(
                Code::NotFound,
                "no VM has been made from such a spec",
            ));
        }
        if self.has(Flaw::StatusWantsMachineTag) && self.is_unknown_to(&class, request.provider_id.as_ref()) {
            return Err(Status::new(Code::NotFound, "no VM has these tags"));
        }
        if self.has(Flaw::StatusForgets) && self.turn() % 3 == 2 {
            return Err(Status::new(Code::NotFound, "there was one, I think"));
        }
        if self.has(Flaw::StatusWrites) {
            self.console.set_quota(None)?;
        }
        let mut read = match self.inner.get_machine_status(request).await {
            Ok(read) => read,
            Err(status) => {
                return match (self.flaw, status.code(), status.machine()) {
                    (Flaw::StatusNamesNone, Code::OutOfRange, _) => {
                        Err(status.with_message("there are several VMs of it"))
                    }
                    (Flaw::StatusForgetsMachine, Code::Uninitialized, _) => {
                        Err(Status::new(Code::Uninitialized, status.message()))
                    }
                    (Flaw::StatusOverlooksInitialization, Code::Uninitialized, Some(machine)) => {
                        Ok(machine.clone())
                    }
                    _ => Err(status),
                };
            }
        };
        match self.flaw {
            Flaw::RestartNewIds if self.is_old(&class, &name) => read.provider_id = again(&read.provider_id),
            Flaw::StatusOtherId => read.provider_id = format!("{}-b", read.provider_id).parse().unwrap(),
            Flaw::StatusOtherNodeName => read.node_name += "-b",
            Flaw::StatusWithoutPower => read.power_state = None,
            Flaw::ShutDownAccepts if read.power_state == Some(PowerState::Stopping) => {
                read.power_state = Some(PowerState::Running);
            }
            _ => {}
        }
        Ok(read)
    }

    pub(super) async fn list(&self, request: ListMachinesRequest) -> Result<Vec<ListedMachine>> {
        let cluster = tag(&request.class, tags::CLUSTER);
        match self.flaw {
            Flaw::ListLeaks => return Ok(self.vms(|_| true).iter().map(listed).collect()),
            Flaw::ListEverything if cluster.is_empty() => {
                return Ok(self.vms(|_| true).iter().map(listed).collect());
            }
            _ => {}
        }
        let request_class = request.class.clone();
        let mut list = match self.inner.list_machines(request).await {
            Err(status) if self.has(Flaw::ListRemembers) && status.code() == Code::Unavailable => {
                let last = self.listed.lock().unwrap().get(&cluster).cloned();
                last.ok_or(status)?
            }
            answer => answer?,
        };
        if self.has(Flaw::ListRemembers) {
            self.listed.lock().unwrap().insert(cluster.clone(), list.clone());
        }
        match self.flaw {
            Flaw::ListOnePage => list.truncate(5),
            Flaw::ListOneLongPage => list.truncate(100),
            Flaw::ListOnePageOf200 => list.truncate(200),
            Flaw::UpdateDropsTheOwner => {
                let updated = self.memory.lock().unwrap();
                for vm in &mut list {
                    if updated.contains_key(vm.provider_id.as_str()) {
                        vm.machine_id = None;
                    }
                }
            }
            Flaw::RestartNewIds => {
                for vm in &mut list {
                    if self.is_old(&request_class, &vm.machine_name) {
                        vm.provider_id = again(&vm.provider_id);
                    }
                }
            }
            Flaw::RestartHides => list.retain(|vm| !self.is_old(&request_class, &vm.machine_name)),
            Flaw::ListKeepsDeleted => {
                let late = self.memory.lock().unwrap().get(&cluster).cloned();
                list.extend(late.map(|provider_id| ListedMachine::new(provider_id, "late")));
            }
            Flaw::ListSwapsNames if list.len() > 1 => {
                let name = std::mem::take(&mut list[0].machine_name);
                list[0].machine_name = std::mem::replace(&mut list[1].machine_name, name);
            }
            Flaw::ListSwapsOwners if list.len() > 1 => {
                let owner = list[0].machine_id.take();
                list[0].machine_id = std::mem::replace(&mut list[1].machine_id, owner);
            }
            Flaw::ListKnowsOneCluster => {
                let one = Some("the-cluster".to_owned());
                for vm in &mut list {
                    vm.cluster_id.clone_from(&one);
                }
            }
            Flaw::ListSwapsAddresses if list.len() > 1 => {
                let addresses = std::mem::take(&mut list[0].addresses);
                list[0].addresses = std::mem::replace(&mut list[1].addresses, addresses);
            }
            Flaw::ListNoNames => list.iter_mut().for_each(|vm| vm.machine_name.clear()),
            Flaw::ListEmptyNotFound if list.is_empty() => {
                return Err(Status::new(Code::NotFound, "there is no VM at all"));
            }
            _ => self.change_states(&mut list),
        }
        Ok(list)
    }

    /// The flaws of the states in a list.
    fn change_states(&self, list: &mut [ListedMachine]) {
        match self.flaw {
            Flaw::ListWithoutState => {
                for vm in list {
                    vm.addresses.clear();
                    vm.power_state = None;
                }
            }
            Flaw::ListRemembersState | Flaw::ListRemembersAddresses => {
                let mut first = self.listed.lock().unwrap();
                for vm in list {
                    let seen = first.entry(vm.provider_id.to_string());
                    let seen = &seen.or_insert_with(|| vec![vm.clone()])[0];
                    vm.addresses.clone_from(&seen.addresses);
                    if self.flaw == Flaw::ListRemembersState {
                        vm.power_state = seen.power_state;
                    }
                }
            }
            Flaw::ListKeepsStopped => {
                let mut stopped = self.listed.lock().unwrap();
                for vm in list {
                    let id = vm.provider_id.to_string();
                    if vm.power_state == Some(PowerState::Stopped) {
                        stopped.insert(id.clone(), Vec::new());
                    }
                    if stopped.contains_key(&id) {
                        vm.power_state = Some(PowerState::Stopped);
                    }
                }
            }
            Flaw::ListLosesAddresses => {
                let is_ip = |address: &Address| address.kind == AddressType::InternalIP;
                let mut without = self.listed.lock().unwrap();
                for vm in list {
                    let id = vm.provider_id.to_string();
                    if !vm.addresses.iter().any(is_ip) {
                        without.insert(id.clone(), Vec::new());
                    }
                    if without.contains_key(&id) {
                        vm.addresses.retain(|address| !is_ip(address));
                    }
                }
            }
            _ => {}
        }
    }
}
