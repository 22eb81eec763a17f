//! Determines the subject of a call, and checks whether the call is allowed.

use serde_json::Value;

use super::commands::VmSelector;
use super::spec::{TAGS, Tagged, VmSpec};
use super::vm::{ParseVmIdError, VmId};
use super::{Call, SimulatedDriver, Subject, access};
use cmi_driver::{
    Code, LastKnownState, MachineClass, MachineRef, Operation, ProviderId, Result, Status, is_dns_subdomain,
    tags,
};

impl Call {
    /// A call about nothing.
    pub(super) fn bare(operation: Operation) -> Self {
        Self {
            operation,
            subject: Subject::default(),
            selector: None,
        }
    }

    /// A call about a class.
    pub(super) fn of_class(operation: Operation, class: &MachineClass) -> Self {
        let cluster = tag(class, tags::CLUSTER);
        Self {
            operation,
            subject: Subject {
                cluster,
                ..Subject::default()
            },
            selector: None,
        }
    }

    /// A call about a machine. Its subject is known before it is checked, for faults and the log.
    pub(super) fn of_machine(
        operation: Operation,
        MachineRef { name, class }: &MachineRef,
        state: Option<LastKnownState>,
    ) -> Self {
        let cluster = tag(class, tags::CLUSTER);
        Self {
            operation,
            selector: Some(VmSelector {
                name: name.clone(),
                cluster: cluster.clone(),
                machine: tag(class, tags::MACHINE),
                id: None,
            }),
            subject: Subject {
                machine: name.clone(),
                cluster,
                last_known_state: state,
            },
        }
    }
}

fn tag(class: &MachineClass, name: &str) -> String {
    let tags = class.provider_spec.0.get(TAGS);
    tags.and_then(|tags| tags.get(name))
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

impl SimulatedDriver {
    /// Runs the work of a call about a machine, if its request is right.
    pub(super) async fn run_on<T, F>(
        &self,
        operation: Operation,
        machine: &MachineRef,
        provider_id: Option<&ProviderId>,
        state: Option<LastKnownState>,
        work: impl FnOnce(VmSelector, VmSpec) -> F + Send,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        let call = Call::of_machine(operation, machine, state);
        self.run(call, async {
            let (selector, spec) = self.selector(operation, machine, provider_id)?;
            work(selector, spec).await
        })
        .await
    }

    /// Checks credentials, name, provider id and spec of a call about a machine.
    fn selector(
        &self,
        operation: Operation,
        MachineRef { name, class }: &MachineRef,
        provider_id: Option<&ProviderId>,
    ) -> Result<(VmSelector, VmSpec)> {
        access::check(self.config.credentials.as_ref(), &class.secrets, operation)?;
        if !is_dns_subdomain(name) {
            return Err(Status::new(
                Code::InvalidArgument,
                format!(
                    "the machine name `{name}` is no DNS subdomain: 1 to 253 lower case letters, digits, `-` \
                        and `.`, with a letter or digit at both ends"
                ),
            ));
        }
        let id: Option<VmId> = provider_id
            .map(|id| id.as_str().parse())
            .transpose()
            .map_err(|error: ParseVmIdError| Status::new(Code::InvalidArgument, error.to_string()))?;
        let spec = VmSpec::read(&class.provider_spec, Tagged::Machine)?;
        let selector = VmSelector {
            name: name.clone(),
            cluster: spec.cluster().to_owned(),
            machine: spec.machine().to_owned(),
            id,
        };
        Ok((selector, spec))
    }

    /// Checks credentials and spec of a call about a class.
    pub(super) fn class_spec(
        &self,
        operation: Operation,
        class: &MachineClass,
        tagged: Tagged,
    ) -> Result<VmSpec> {
        access::check(self.config.credentials.as_ref(), &class.secrets, operation)?;
        VmSpec::read(&class.provider_spec, tagged)
    }
}
