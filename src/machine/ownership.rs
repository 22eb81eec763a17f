//! Finalizer and identity, which make a machine this provider's before anything is done for it. Pure.

use crate::api::MACHINE_FINALIZER;
use crate::api::v1alpha1::InfraMachine;
use crate::api::{VmExistence, annotations};
use crate::identity::{self, MachineId};
use cmi_driver::{ProviderId, ProviderSpec};

/// Finalizer and identity, as they have to be before a side effect (write 1).
#[derive(Clone, Debug, PartialEq)]
pub struct Ownership {
    /// The identity of the machine.
    pub machine_id: MachineId,
    /// The id of the cluster that the machine belongs to.
    pub cluster_id: String,
    /// Whether a create may have been issued.
    pub vm_existence: VmExistence,
    /// The driver that is about to make the VM.
    pub driver: Option<String>,
    /// The Secret with the credentials that the VM is about to be made with, an empty name for none.
    pub secret: Option<String>,
    /// The spec that the VM is about to be made from.
    pub applied: Option<ProviderSpec>,
    /// The id of an adopted VM, once the driver has confirmed it.
    pub adopted: Option<ProviderId>,
}

impl Ownership {
    /// Returns the ownership of a machine before its create; `None` for an object without a UID, which no API
    /// server has.
    pub fn of(machine: &InfraMachine, cluster_id: &str) -> Option<Self> {
        let recorded = MachineId::of(machine);
        let recorded_under =
            identity::annotation(machine, annotations::CLUSTER_ID).filter(|_| recorded.is_some());
        Some(Self {
            cluster_id: recorded_under.unwrap_or(cluster_id).to_owned(),
            machine_id: recorded.or_else(|| MachineId::derived(machine))?,
            // Ownership that is only restored must not say less than it did: a VM may exist.
            vm_existence: identity::vm_existence(machine),
            driver: None,
            secret: None,
            applied: None,
            adopted: None,
        })
    }

    /// Returns the ownership, where the machine lacks finalizer or identity.
    pub fn if_missing(self, machine: &InfraMachine) -> Option<Box<Self>> {
        (MachineId::of(machine).is_none() || !has_finalizer(machine)).then(|| Box::new(self))
    }
}

/// Whether a machine that may have a VM has lost its finalizer: after a restore from a backup, or when the
/// object was replaced. If it were deleted like this, the object would go and the VM stay.
pub fn has_lost_finalizer(machine: &InfraMachine) -> bool {
    let may_have_vm =
        identity::vm_existence(machine) == VmExistence::MayExist || machine.spec.provider_id.is_some();
    !has_finalizer(machine) && MachineId::of(machine).is_some() && may_have_vm
}

/// Whether the finalizer of this provider holds the object when it is deleted.
pub fn has_finalizer(machine: &InfraMachine) -> bool {
    let all = machine.metadata.finalizers.as_deref().unwrap_or_default();
    all.iter().any(|name| name == MACHINE_FINALIZER)
}
