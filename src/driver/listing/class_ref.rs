//! The reference to a class that is listed.

use cmi_driver::{JsonPointer, tags};

use crate::api::fingerprint;
use crate::api::identity::{self, MadeFrom};
use crate::api::v1alpha1::InfraMachine;

/// A class by reference: a provider spec, and where its credentials are. One list shows all VMs of a class.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClassRef {
    /// The Secret with the credentials, in the namespace of the machines; `None` for the provider's own.
    pub secret: Option<String>,
    /// The provider spec with the tags of cluster and role, without a machine's own values, as JSON.
    pub spec: String,
}

/// The id of a [`ClassRef`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClassId(u64);

impl ClassRef {
    /// Returns the class of a machine whose provider spec was applied; `None` for another machine.
    pub fn of_machine(machine: &InfraMachine, tag_path: &JsonPointer) -> Option<Self> {
        Self::of_made(identity::record(machine)?.made_from?, tag_path)
    }

    /// Returns the class of a VM that was made like this.
    pub fn of_made(made: MadeFrom, tag_path: &JsonPointer) -> Option<Self> {
        let mut spec = made.provider_spec;
        spec.remove_tags(tag_path, &[tags::MACHINE]);
        spec.remove_static_addresses();
        Some(Self {
            secret: made.secret,
            spec: serde_json::to_string(&spec).ok()?,
        })
    }

    /// The id of the class, for comparison alone: the class itself may be long.
    pub fn id(&self) -> ClassId {
        ClassId(fingerprint(self))
    }
}
