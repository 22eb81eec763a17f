//! The cached form of every kind: the kept fields, the facts that scans read, and the packed form of idle
//! objects.
//!
//! Kinds with many objects in a Cluster are packed. The other kinds have few objects, and are scanned
//! unpacked.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube_fleet::Stored;
use serde::{Deserialize, Serialize};

use crate::api::cluster_api::{Cluster, Machine, MachineSpec, MachineStatus, cluster_name};
use crate::api::identity;
use crate::api::v1alpha1::{InfraCluster, InfraMachine, InfraMachineRemediation, InfraMachineTemplate};
use crate::api::{DeserializeGuard, annotations, bounded, fingerprint, labels};
use crate::machine;
use crate::nodes::{missing_node, volume_drain};
use crate::reconcile::caches::{InfraMachineFacts, MachineFacts};

impl Stored for DeserializeGuard<InfraMachine> {
    type Facts = InfraMachineFacts;

    fn facts(&self) -> InfraMachineFacts {
        let owned = |text: Option<&str>| text.map(Box::from);
        let of_metadata = InfraMachineFacts {
            cluster: owned(cluster_name(self.meta())),
            ..InfraMachineFacts::default()
        };
        let Ok(infra) = &self.0 else { return of_metadata };
        let record = identity::record(infra);
        let made = record.as_ref().and_then(|record| record.made_from.as_ref());
        InfraMachineFacts {
            own_cluster_id: record.as_ref().map(|record| record.cluster.as_str().into()),
            used_driver: owned(made.map(|made| made.driver.as_str())),
            named_driver: owned(infra.spec.driver.as_deref()),
            shown_driver: identity::driver_name(infra).into_boxed_str(),
            phase: Some(machine::phase(infra)),
            reason: machine::phase_reason(infra).into(),
            has_vanished: infra.has_vanished(),
            is_provisioned: infra.is_provisioned(),
            has_taint: infra.spec.not_ready_taint.is_some(),
            shows_missing_node: missing_node::is_reported(infra),
            requests_drain: volume_drain::is_requested(self),
            ..of_metadata
        }
    }

    fn external_id(&self) -> Option<&str> {
        self.0.as_ref().ok()?.spec.provider_id.as_deref()
    }

    /// Returns `None` for an unreadable object, and for an object that does not survive a round trip through
    /// text. Text loses fractions of seconds, and the last bit of a few numbers.
    fn pack(&self) -> Option<Vec<u8>> {
        let infra = self.0.as_ref().ok()?;
        let text = serde_json::to_vec(infra).ok()?;
        let read = Self::unpack(&text).ok()?.0.ok()?;
        let is_same =
            read.metadata == infra.metadata && read.spec == infra.spec && read.status == infra.status;
        is_same.then_some(text)
    }

    /// Groups the machines of one template, if the template is known.
    fn dictionary_group(&self) -> u64 {
        let Ok(infra) = &self.0 else { return 0 };
        fingerprint((
            &infra.metadata.namespace,
            cluster_name(&infra.metadata),
            serde_json::to_string(&infra.spec.provider_spec).unwrap_or_default(),
            infra.is_provisioned(),
        ))
    }

    fn unpack(text: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(text)
    }
}

/// A packed Machine. Its status is serialized in another form than the API server sends.
#[derive(Deserialize, Serialize)]
struct PackedMachine<M, S, T> {
    metadata: M,
    spec: S,
    /// Its Node, and whether that is healthy.
    status: Option<(T, bool)>,
}

impl Stored for Machine {
    type Facts = MachineFacts;

    fn facts(&self) -> MachineFacts {
        let status = self.status.as_ref();
        let node = status.filter(|status| status.node_name.is_some());
        MachineFacts {
            cluster: self.spec.cluster_name.as_str().into(),
            node_is_healthy: node.map(|node| node.node_is_healthy),
            has_drain_hook: volume_drain::has_hook(self),
        }
    }

    /// Returns `None` for a Machine that does not survive a round trip through text, as for an InfraMachine.
    fn pack(&self) -> Option<Vec<u8>> {
        let status = self.status.as_ref();
        let text = serde_json::to_vec(&PackedMachine {
            metadata: &self.metadata,
            spec: &self.spec,
            status: status.map(|status| (&status.node_name, status.node_is_healthy)),
        })
        .ok()?;
        let read = Self::unpack(&text).ok()?;
        let is_same = read.metadata == self.metadata && read.spec == self.spec && read.status == self.status;
        is_same.then_some(text)
    }

    fn dictionary_group(&self) -> u64 {
        fingerprint((
            &self.metadata.namespace,
            &self.spec.cluster_name,
            self.status.is_some(),
        ))
    }

    fn unpack(text: &[u8]) -> serde_json::Result<Self> {
        let packed: PackedMachine<ObjectMeta, MachineSpec, Option<Box<str>>> = serde_json::from_slice(text)?;
        Ok(Self {
            metadata: packed.metadata,
            spec: packed.spec,
            status: packed.status.map(|(node_name, node_is_healthy)| MachineStatus {
                node_name,
                node_is_healthy,
            }),
        })
    }
}

/// Implements [`Stored`] for kinds that are not packed.
macro_rules! kept_as_they_are {
    ($($kind:ty),+) => {$(
        impl Stored for $kind {
            type Facts = ();

            fn facts(&self) {}
        }
    )+};
}

kept_as_they_are!(
    Cluster,
    DeserializeGuard<InfraCluster>,
    DeserializeGuard<InfraMachineTemplate>,
    DeserializeGuard<InfraMachineRemediation>
);

/// Removes unused fields of an object before it is cached, managed fields first, and bounds the rest.
pub(super) fn slim<K: Resource>(object: &mut K) {
    bounded::bound(object.meta_mut());
}

/// Shrinks an InfraMachine before it is cached. The JSON parser leaves spare capacity in every list: a fifth
/// of the object.
pub(super) fn slim_infra_machine(object: &mut DeserializeGuard<InfraMachine>) {
    slim(object);
    let Ok(machine) = &mut object.0 else { return };
    if let Some(status) = &mut machine.status {
        status.conditions.shrink_to_fit();
        status.addresses.shrink_to_fit();
    }
}

/// Removes unused fields of a Machine before it is cached. Of its labels only the control-plane label stays;
/// a map of one label costs half a KiB. Of its annotations only the provider's hook stays.
pub(super) fn slim_machine(machine: &mut Machine) {
    let meta = machine.meta_mut();
    let labels = meta.labels.take();
    let control_plane = labels.and_then(|mut all| all.remove_entry(labels::CONTROL_PLANE));
    meta.labels = control_plane.map(|entry| [entry].into());
    let annotations = meta.annotations.take();
    let hook = annotations.and_then(|mut all| all.remove_entry(annotations::VOLUME_DRAIN_HOOK));
    // Only the presence of the hook counts.
    meta.annotations = hook.map(|(key, _)| [(key, String::new())].into());
    meta.finalizers = None;
    meta.owner_references = None;
    meta.managed_fields = None;
}

#[cfg(test)]
mod tests;
