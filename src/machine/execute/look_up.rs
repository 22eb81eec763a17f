//! Looks up the VM at the driver.

use std::collections::{BTreeMap, BTreeSet};

use super::Executor;
use super::initialize::{PresentVm, uninitialized};
use super::vm::another_vm;
use crate::api::identity::MachineId;
use crate::api::retry::{Call, Disposition, VmObservation};
use crate::machine::outcome::Failure;
use cmi_driver::{
    self, Code, ListMachinesRequest, ListedMachine, MachineClass, Operation, ProviderId, Status,
};

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
                among(
                    machines,
                    self.object.name(),
                    id.as_ref().map(MachineId::tag),
                    call,
                )
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
        let own = id.as_ref().map(MachineId::tag);
        Ok(machines.map(|machines| own_among(machines, self.object.name(), own)))
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

fn own_among(machines: Vec<ListedMachine>, name: &str, own: Option<&str>) -> BTreeSet<ProviderId> {
    let is_own = |machine: &ListedMachine| match &machine.machine_id {
        Some(id) => own == Some(id),
        None => machine.machine_name == name,
    };
    let own = machines.into_iter().filter(is_own);
    own.map(|machine| machine.provider_id).collect()
}

/// Searches a list for the machine of this name, whose identity is `own`. An entry without an identity
/// matches by name, but only if a create was issued for the machine.
fn among(machines: Vec<ListedMachine>, name: &str, own: Option<&str>, call: Call) -> LookUpResult {
    let is_own = |machine: &ListedMachine| match &machine.machine_id {
        Some(id) => own == Some(id),
        None => call == Call::ListAgain,
    };
    let (own, others): (BTreeMap<_, _>, BTreeMap<_, _>) = machines
        .into_iter()
        .filter(|machine| machine.machine_name == name)
        .map(|machine| (machine.provider_id.clone(), is_own(&machine)))
        .partition(|(_, is_own)| *is_own);
    let ids = |vms: &BTreeMap<ProviderId, bool>| {
        vms.keys()
            .map(|id| format!("`{id}`"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let failed = |code, message| LookUpResult::Failed(Failure::new(call, Status::new(code, message)));
    match (own.first_key_value(), others.is_empty()) {
        (None, true) => LookUpResult::Absent,
        (Some((id, _)), _) if own.len() == 1 => LookUpResult::Present(PresentVm::listed(id.clone())),
        (Some(_), _) => failed(
            Code::OutOfRange,
            format!("the driver lists several VMs of machine `{name}`: {}", ids(&own)),
        ),
        (None, false) => failed(
            Code::AlreadyExists,
            format!(
                "the driver lists VM {} with name `{name}`, which belongs to another machine: delete that \
                    VM, or replace the machine by one with another name",
                ids(&others)
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn machines(of: &[(&str, &str, Option<&str>)]) -> Vec<ListedMachine> {
        let listed = |(id, name, machine_id): &(&str, &str, Option<&str>)| ListedMachine {
            machine_id: machine_id.map(str::to_owned),
            ..ListedMachine::new(id.parse().unwrap(), *name)
        };
        of.iter().map(listed).collect()
    }

    fn outcome_of(of: &[(&str, &str, Option<&str>)], call: Call) -> Result<Option<ProviderId>, Code> {
        match among(machines(of), "m", Some("u-1"), call) {
            LookUpResult::Absent => Ok(None),
            LookUpResult::Present(vm) => Ok(vm.id().cloned()),
            LookUpResult::Failed(failure) => Err(failure.status.code()),
            LookUpResult::CannotLook => panic!("no answer of a list"),
        }
    }

    /// CTL-GS-12
    #[test]
    fn a_list_without_the_name_leads_to_a_create_and_one_with_it_never() {
        let one: ProviderId = "sim://1".parse().unwrap();
        for call in [Call::List, Call::ListAgain] {
            assert_eq!(
                outcome_of(&[("sim://2", "m-2", None), ("sim://3", "", None)], call),
                Ok(None)
            );
            let own = ("sim://1", "m", Some("u-1"));
            assert_eq!(
                outcome_of(&[own, own, ("sim://2", "m", Some("u-2"))], call),
                Ok(Some(one.clone()))
            );
            let another = [("sim://1", "m", Some("u-2"))];
            assert_eq!(
                outcome_of(&another, call),
                Err(Code::AlreadyExists),
                "it says whose it is"
            );
            let twice = [own, ("sim://2", "m", Some("u-1"))];
            assert_eq!(outcome_of(&twice, call), Err(Code::OutOfRange));
        }
        let untagged = [("sim://1", "m", None)];
        assert_eq!(
            outcome_of(&untagged, Call::ListAgain),
            Ok(Some(one)),
            "a create was issued for it"
        );
        assert_eq!(
            outcome_of(&untagged, Call::List),
            Err(Code::AlreadyExists),
            "no create was issued: it is another's"
        );
    }

    #[test]
    fn a_deletion_selects_listed_vms_by_tag_and_untagged_ones_by_name() {
        let own = own_among(
            machines(&[
                ("sim://1", "m", Some("u-1")),
                ("sim://2", "", Some("u-1")),
                ("sim://3", "m", None),
                ("sim://4", "m", Some("u-2")),
                ("sim://5", "n", None),
            ]),
            "m",
            Some("u-1"),
        );
        let own: Vec<_> = own.iter().map(ProviderId::as_str).collect();
        assert_eq!(own, ["sim://1", "sim://2", "sim://3"]);
    }
}
