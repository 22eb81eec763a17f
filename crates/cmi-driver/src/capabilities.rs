//! A driver's declared calls and behaviour.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::{Operation, ProviderSpec, SpecSchema, Status, tags};

/// A place inside a provider spec, as RFC 6901 writes it: `/network/tags`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JsonPointer(Vec<String>);

/// Text that is no JSON pointer to a field of an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a JSON pointer to a field: start it with `/`")]
pub struct ParseJsonPointerError(String);

impl JsonPointer {
    /// The pointer to a field at the top level.
    pub fn field(name: &str) -> Self {
        Self(vec![name.to_owned()])
    }

    /// The pointer to a field of the object at this place.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        Self(self.0.iter().cloned().chain([name.to_owned()]).collect())
    }

    /// The pointer to the object that holds the field; none at the top level.
    pub fn parent(&self) -> Option<Self> {
        let (_, above) = self.0.split_last()?;
        (!above.is_empty()).then(|| Self(above.to_vec()))
    }

    /// The field names from the outermost to the innermost; never empty.
    pub fn segments(&self) -> &[String] {
        &self.0
    }

    /// Whether `other` is this place or is below it.
    pub fn covers(&self, other: &Self) -> bool {
        other.0.starts_with(&self.0)
    }
}

impl FromStr for JsonPointer {
    type Err = ParseJsonPointerError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let rest = text
            .strip_prefix('/')
            .ok_or_else(|| ParseJsonPointerError(text.to_owned()))?;
        if rest.is_empty() {
            return Err(ParseJsonPointerError(text.to_owned()));
        }
        Ok(Self(
            rest.split('/')
                .map(|segment| segment.replace("~1", "/").replace("~0", "~"))
                .collect(),
        ))
    }
}

impl fmt::Display for JsonPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|s| write!(f, "/{}", s.replace('~', "~0").replace('/', "~1")))
    }
}

/// A driver's declared calls and behaviour.
#[derive(Clone, Debug, PartialEq)]
pub struct Capabilities {
    /// The implemented optional calls. Calls that are not in this set are not made.
    pub operations: BTreeSet<Operation>,
    /// Whether a machine may request a failure domain (provider spec field `failureDomain`).
    pub zones: bool,
    /// How long after a change the back end may still answer with the state before it.
    pub consistency_window: Duration,
    /// The place of a VM's tags in the provider spec.
    pub tag_path: JsonPointer,
    /// The place in the provider spec where the controller puts the static addresses of a machine, as a list
    /// of [`super::StaticAddress`]. The driver places them on the VM, and shows them. `None` for a driver
    /// that can't set addresses. It must not change while there are VMs with static addresses.
    pub address_path: Option<JsonPointer>,
    /// The fields of the provider spec that [`super::Driver::update_machine`] can change on a living VM.
    pub hot_updatable: Vec<JsonPointer>,
    /// JSON Schema of the provider spec, checked before any call.
    pub provider_spec_schema: Option<SpecSchema>,
    /// Whether [`super::Driver::list_machines`] returns the addresses and the power state of each VM, equal
    /// to the answer of [`super::Driver::get_machine_status`]. The provider then looks up only the VMs whose
    /// list entry differs. It lists every minute, so the list should take one pass over the back end.
    pub list_has_state: bool,
}

/// The capabilities that a driver has declared, and the connection generation that declared them. All readers
/// share one copy, since a schema may be large.
#[derive(Clone, Debug)]
pub struct DeclaredCapabilities {
    /// The declared capabilities.
    pub capabilities: Arc<Capabilities>,
    /// The [`super::Driver::connection_generation`] that the capabilities hold for; 0 for a driver in this
    /// process.
    pub connection_generation: u64,
}

impl From<Capabilities> for DeclaredCapabilities {
    /// The capabilities of a driver in this process.
    fn from(capabilities: Capabilities) -> Self {
        Self {
            capabilities: Arc::new(capabilities),
            connection_generation: 0,
        }
    }
}

impl Capabilities {
    /// A driver with create and delete alone: the capabilities of any plugin before it has declared more.
    pub fn minimal() -> Self {
        Self {
            operations: BTreeSet::new(),
            zones: false,
            consistency_window: Duration::ZERO,
            tag_path: JsonPointer::field(tags::FIELD),
            address_path: None,
            hot_updatable: Vec::new(),
            provider_spec_schema: None,
            list_has_state: false,
        }
    }

    /// The same capabilities with further optional calls.
    #[must_use]
    pub fn with_calls(mut self, calls: impl IntoIterator<Item = Operation>) -> Self {
        self.operations.extend(calls);
        self
    }

    /// Whether this call may be made. Required calls and identity calls are always allowed.
    pub fn supports(&self, operation: Operation) -> bool {
        operation.is_required() || self.operations.contains(&operation)
    }

    /// Refuses a call that the driver does not implement, without asking the driver.
    ///
    /// # Errors
    /// UNIMPLEMENTED.
    pub fn check_supported(&self, operation: Operation) -> Result<(), Status> {
        if self.supports(operation) {
            Ok(())
        } else {
            Err(Status::unimplemented(operation))
        }
    }

    /// The place of the tag [`tags::MACHINE`] in a provider spec.
    pub fn machine_tag_path(&self) -> JsonPointer {
        self.tag_path.child(tags::MACHINE)
    }

    /// Whether [`super::Driver::update_machine`] adds the tag [`tags::MACHINE`] to a VM that lacks it.
    ///
    /// `hot_updatable` has to name the tag itself: VMs are found by this tag, so the ability to change other
    /// tags promises nothing about it. See [`super::UpdateMachineRequest`] for the rules of such a driver.
    pub fn adds_machine_tag(&self) -> bool {
        self.supports(Operation::UpdateMachine) && self.hot_updatable.contains(&self.machine_tag_path())
    }

    /// Checks a provider spec against the driver's schema, if it publishes one. Makes no call.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with each invalid field and the reason.
    pub fn check_spec(&self, spec: &ProviderSpec) -> Result<(), Status> {
        self.provider_spec_schema
            .as_ref()
            .map_or(Ok(()), |schema| schema.check(spec))
    }

    /// Returns why no machine can be created from a user's provider spec, regardless of existing VMs: the
    /// spec has a key that is reserved for the controller, or violates the schema.
    pub fn spec_error(&self, spec: &ProviderSpec) -> Option<String> {
        if let Err(reserved) = tags::check_free(spec, self) {
            return Some(reserved.to_string());
        }
        let refused = self.check_spec(spec).err()?;
        Some(refused.message().to_owned())
    }

    /// Returns the fault of an incomplete provider spec that no further field repairs.
    pub fn given_spec_error(&self, spec: &ProviderSpec) -> Option<String> {
        if let Err(reserved) = tags::check_free(spec, self) {
            return Some(reserved.to_string());
        }
        let schema = self.provider_spec_schema.as_ref()?;
        let refused = schema.check_given(spec).err()?;
        Some(refused.message().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_is_written_as_it_was_read() {
        for text in ["/tags", "/network/tags", "/a~1b/c~0d"] {
            assert_eq!(text.parse::<JsonPointer>().unwrap().to_string(), text);
        }
        assert!("tags".parse::<JsonPointer>().is_err());
        assert!("/".parse::<JsonPointer>().is_err());
    }

    #[test]
    fn a_minimal_driver_offers_create_and_delete_and_its_identity_alone() {
        let offered: Vec<_> = Operation::ALL
            .into_iter()
            .filter(|op| Capabilities::minimal().supports(*op))
            .collect();
        assert_eq!(
            offered,
            [
                Operation::CreateMachine,
                Operation::DeleteMachine,
                Operation::Probe,
                Operation::GetPluginInfo,
                Operation::GetPluginCapabilities
            ]
        );
    }
}
