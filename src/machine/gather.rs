//! What one reconcile looks at: caches and memory. The one request is for a driver's capabilities, once.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;

use garde::Validate;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::runtime::reflector::ObjectRef;

use super::Context;
use super::identity::{self, MachineId};
use super::memory::Note;
use super::plan::{Driver, DriverFacts, Observed, Owner};
use crate::api::cluster_api::{self, Cluster, Machine};
use crate::api::labels;
use crate::api::v1alpha1::InfraMachine;
use crate::driver::{Capabilities, Code, Operation, ProviderSpec};
use crate::provider::{Provider, Reachability};

/// What was read, and keeps alive what [`Observed`] borrows.
pub struct Gathered {
    named_owner: bool,
    owner: Option<Arc<Machine>>,
    cluster: Option<Arc<Cluster>>,
    cluster_id: Option<String>,
    driver: Resolved,
    violation: Option<String>,
    note: Note,
    inputs: u64,
    now: Timestamp,
    instant: Instant,
}

/// The configured driver of a machine.
enum Resolved {
    Known(Arc<Provider>, Arc<Capabilities>),
    OutOfContact(Arc<Provider>, Code, String),
    NotConfigured(String),
}

/// Reads the caches.
pub async fn gather(ctx: &Context, machine: &InfraMachine) -> Gathered {
    let reference = owner_reference(machine);
    let owner = reference.and_then(|reference| owner_machine(ctx, machine, reference));
    let cluster = cluster_of(ctx, machine, owner.as_deref());
    let cluster_id = cluster.as_deref().and_then(|cluster| ctx.cluster_ids.of(cluster));
    let driver = resolve(ctx, machine).await;
    let violation = violation(machine, driver.provider());
    Gathered {
        named_owner: reference.is_some(),
        inputs: inputs(machine, owner.as_deref()),
        owner,
        cluster,
        cluster_id,
        driver,
        violation,
        note: ctx
            .memory
            .recall(machine.metadata.uid.as_deref().unwrap_or_default()),
        now: Timestamp::now(),
        instant: Instant::now(),
    }
}

impl Gathered {
    /// The view that a plan is made from.
    pub fn observed(&self) -> Observed<'_> {
        Observed {
            owner: match (&self.owner, self.named_owner) {
                (Some(owner), _) => Owner::Found(owner),
                (None, true) => Owner::Missing,
                (None, false) => Owner::None,
            },
            cluster: self.cluster.as_deref(),
            cluster_id: self.cluster_id.clone(),
            driver: match &self.driver {
                Resolved::Known(provider, capabilities) => Driver::Known(DriverFacts {
                    name: provider.name(),
                    capabilities,
                    reachable: !matches!(*provider.reachable().borrow(), Reachability::Unreachable(_)),
                }),
                Resolved::OutOfContact(_, code, message) => Driver::OutOfContact(*code, message.clone()),
                Resolved::NotConfigured(message) => Driver::NotConfigured(message.clone()),
            },
            violation: self.violation.clone(),
            note: &self.note,
            inputs: self.inputs,
            now: self.now,
            instant: self.instant,
        }
    }

    /// The configured driver, when there is one.
    pub fn provider(&self) -> Option<&Provider> {
        self.driver.provider()
    }

    /// How often the same has failed in a row, this time included.
    pub fn attempts(&self, machine: &InfraMachine) -> u32 {
        let remembered = self
            .note
            .retry
            .as_ref()
            .filter(|retry| retry.inputs == self.inputs)
            .map(|r| r.attempts);
        let published = machine.status.as_ref().and_then(|status| {
            let last = status.last_operation.as_ref()?;
            (status.observed_generation == machine.metadata.generation)
                .then_some(u32::try_from(last.attempts).ok()?)
        });
        remembered.or(published).unwrap_or(0).saturating_add(1)
    }

    /// The call that failed the last time, and its code.
    pub fn last_failure(&self) -> Option<(Operation, Code)> {
        self.note.retry.as_ref()?.failure
    }

    /// Fingerprint of all that may change the outcome of a failed call, in the object as it is after our own writes:
    /// that providerID was written is no reason to try again at once.
    pub fn inputs_of(&self, machine: &InfraMachine) -> u64 {
        inputs(machine, self.owner.as_deref())
    }
}

/// The controller owner of kind Machine, whatever version it is written in.
pub fn owner_reference(machine: &InfraMachine) -> Option<&OwnerReference> {
    machine.metadata.owner_references.iter().flatten().find(|owner| {
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        owner.controller == Some(true) && owner.kind == "Machine" && group == cluster_api::GROUP
    })
}

fn owner_machine(ctx: &Context, machine: &InfraMachine, owner: &OwnerReference) -> Option<Arc<Machine>> {
    let namespace = machine.metadata.namespace.as_deref()?;
    let found = ctx
        .caches
        .machines
        .get(&ObjectRef::new(&owner.name).within(namespace))?;
    // A Machine of the same name that came later is somebody else.
    (found.metadata.uid.as_deref() == Some(owner.uid.as_str())).then_some(found)
}

fn cluster_of(ctx: &Context, machine: &InfraMachine, owner: Option<&Machine>) -> Option<Arc<Cluster>> {
    let labelled = machine
        .metadata
        .labels
        .as_ref()
        .and_then(|all| all.get(labels::CLUSTER_NAME));
    let name = owner
        .map(|owner| owner.spec.cluster_name.as_str())
        .or(labelled.map(String::as_str))?;
    ctx.caches
        .clusters
        .get(&ObjectRef::new(name).within(machine.metadata.namespace.as_deref()?))
}

impl Resolved {
    fn provider(&self) -> Option<&Provider> {
        match self {
            Self::Known(provider, _) | Self::OutOfContact(provider, ..) => Some(provider),
            Self::NotConfigured(_) => None,
        }
    }
}

async fn resolve(ctx: &Context, machine: &InfraMachine) -> Resolved {
    let claimed = MachineId::of(machine).and_then(|_| identity::annotation(machine, labels::DRIVER));
    let name = claimed.or(machine.spec.provider.as_deref());
    let namespace = machine.metadata.namespace.as_deref().unwrap_or_default();
    let provider = match ctx.providers.resolve(name, namespace) {
        Ok(provider) => provider,
        Err(error) => return Resolved::NotConfigured(error.to_string()),
    };
    match provider.contact().await {
        Ok(capabilities) => Resolved::Known(provider, capabilities),
        Err(status) => Resolved::OutOfContact(provider, status.code(), status.message().to_owned()),
    }
}

/// What neither the API server nor the tags can refuse: limits on the whole, and the driver's own schema.
fn violation(machine: &InfraMachine, provider: Option<&Provider>) -> Option<String> {
    if let Err(report) = machine.spec.validate() {
        let fields: Vec<_> = report
            .iter()
            .map(|(path, error)| format!("spec.{path}: {error}"))
            .collect();
        return Some(fields.join("; "));
    }
    let spec = ProviderSpec(machine.spec.provider_spec.clone());
    provider?
        .check_spec(&spec)
        .err()
        .map(|status| status.message().to_owned())
}

fn inputs(machine: &InfraMachine, owner: Option<&Machine>) -> u64 {
    let mut hasher = DefaultHasher::new();
    machine.metadata.generation.hash(&mut hasher);
    machine.metadata.deletion_timestamp.is_some().hash(&mut hasher);
    let annotations = machine.metadata.annotations.iter().flatten();
    annotations
        .filter(|(key, _)| !labels::RESERVED_ANNOTATIONS.contains(&key.as_str()))
        .for_each(|entry| entry.hash(&mut hasher));
    if let Some(owner) = owner {
        owner.spec.failure_domain.hash(&mut hasher);
        owner.spec.bootstrap.data_secret_name.hash(&mut hasher);
    }
    hasher.finish()
}
