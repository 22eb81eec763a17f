//! Looks up the VM at the driver.

use std::collections::BTreeSet;

use super::Executor;
use super::initialize::{PresentVm, uninitialized};
use super::vm::another_vm;
use crate::api::identity::MachineId;
use crate::api::retry::{Call, Disposition, VmObservation};
use crate::driver::listing::{only_own, own};
use crate::machine::outcome::Failure;
use cmi_driver::{ListMachinesRequest, ListedMachine, MachineClass, Operation, ProviderId};

/// The result of a look-up.
pub enum LookUpResult {
    /// The VM exists.
    Present(PresentVm),
    /// The driver does not see the VM. This answer may be stale.
    Absent,
    /// The driver can't look up. Its create call returns an existing VM.
    CannotLook,
    /// The look-up failed.
    Failed(Failure),
}

impl Executor<'_, '_, '_> {
    /// Looks the VM up, by id if known. If the driver can't look up, no id is known and a create may follow,
    /// the driver's list is used. A VM that is seen ends an absence.
    pub async fn look_up(
        &mut self,
        known: Option<&ProviderId>,
        call: Call,
        class: MachineClass,
    ) -> LookUpResult {
        let seen = self.query(known, call, class).await;
        if matches!(seen, LookUpResult::Present(_)) {
            self.ctx.states.clear_absence(self.object.uid());
        }
        seen
    }

    async fn query(&mut self, known: Option<&ProviderId>, call: Call, class: MachineClass) -> LookUpResult {
        let capabilities = self.permit.known_capabilities();
        if !capabilities.supports(call.operation()) {
            return match (call, known) {
                (Call::LookUp, None) if capabilities.supports(Operation::ListMachines) => {
                    self.list(Call::List, class).await
                }
                (Call::LookUpAgain, None) if capabilities.supports(Operation::ListMachines) => {
                    self.list(Call::ListAgain, class).await
                }
                _ => LookUpResult::CannotLook,
            };
        }
        let status = match self.read(known, class).await {
            Ok(machine) => {
                return match another_vm(call, known, Some(&machine.provider_id)) {
                    Some(failure) => LookUpResult::Failed(failure),
                    None => LookUpResult::Present(PresentVm::Initialized(machine)),
                };
            }
            Err(status) => status,
        };
        if let Some(failure) = another_vm(call, known, status.machine().map(|machine| &machine.provider_id)) {
            return LookUpResult::Failed(failure);
        }
        let failure = Failure::new(call, status);
        match failure.disposition.observation() {
            Some(VmObservation::Absent) => LookUpResult::Absent,
            Some(VmObservation::Uninitialized) => {
                LookUpResult::Present(PresentVm::ToInitialize(uninitialized(known.cloned(), failure)))
            }
            None if failure.disposition == Disposition::Fallback => LookUpResult::CannotLook,
            None => LookUpResult::Failed(failure),
        }
    }

    /// Looks for the VM in the driver's list of the cluster.
    async fn list(&mut self, call: Call, class: MachineClass) -> LookUpResult {
        match self.listed(call, class).await {
            Ok(Some(machines)) => {
                let id = MachineId::of(self.object.get()).or_else(|| MachineId::derived(self.object.get()));
                let id = id.as_ref().map(MachineId::tag);
                // An entry without an identity counts only if a create was issued for the machine.
                let by_name = call == Call::ListAgain;
                match only_own(&machines, self.object.name(), id, by_name) {
                    Ok(Some(id)) => LookUpResult::Present(PresentVm::listed(id)),
                    Ok(None) => LookUpResult::Absent,
                    Err(status) => LookUpResult::Failed(Failure::new(call, status)),
                }
            }
            Ok(None) => LookUpResult::CannotLook,
            Err(failure) => LookUpResult::Failed(failure),
        }
    }

    /// Returns the VMs of the machine from the driver's list, for a deletion. Entries with a machine id are
    /// matched by that id, all others by name. Returns `None` if the driver turns out not to support lists.
    pub async fn own_in_list(
        &mut self,
        class: MachineClass,
    ) -> Result<Option<BTreeSet<ProviderId>>, Failure> {
        let machines = self.listed(Call::ListAfterDelete, class).await?;
        let id = MachineId::of(self.object.get());
        let id = id.as_ref().map(MachineId::tag);
        let own = |machines: Vec<_>| {
            own(&machines, self.object.name(), id, true)
                .into_iter()
                .cloned()
                .collect()
        };
        Ok(machines.map(own))
    }

    /// Returns the driver's list of the cluster. Returns `None` if the driver turns out not to support lists.
    async fn listed(
        &mut self,
        call: Call,
        class: MachineClass,
    ) -> Result<Option<Vec<ListedMachine>>, Failure> {
        let answer = self.permit.driver().list_machines(ListMachinesRequest { class });
        let failure = match self.object.awaiting(call.operation(), answer).await {
            Ok(machines) => return Ok(Some(machines)),
            Err(status) => Failure::new(call, status),
        };
        if failure.disposition == Disposition::Fallback {
            Ok(None)
        } else {
            Err(failure)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cmi_driver::Code;

    #[test]
    fn a_vm_of_another_id_is_not_taken_for_the_one_that_was_asked_about() {
        let [known, other] = ["sim://1", "sim://2"].map(|id| id.parse().unwrap());
        let call = Call::LookUpAgain;
        assert!(another_vm(call, Some(&known), Some(&known)).is_none());
        assert!(another_vm(call, None, Some(&other)).is_none());
        let failure = another_vm(call, Some(&known), Some(&other)).unwrap();
        assert_eq!(failure.status.code(), Code::Internal);
        assert!(
            failure.machine.is_none(),
            "nothing of the other VM is kept: {failure:?}"
        );
    }
}
