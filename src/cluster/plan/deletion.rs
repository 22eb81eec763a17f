//! The deletion of an InfraCluster, which waits for its Cluster and the Cluster's machines. Pure.

use super::{Observed, Plan};
use crate::api::cluster_api::Cluster;
use crate::api::conditions::reason;
use crate::api::v1alpha1::InfraCluster;
use crate::api::{CLUSTER_FINALIZER, ObjectMetaExt as _};

/// Plans the deletion of an InfraCluster that has the finalizer.
pub(super) fn deletion(infra: &InfraCluster, observed: &Observed<'_>) -> Plan {
    let living = observed.owner.filter(|owner| needs(owner, infra));
    match (living, observed.machines) {
        (Some(cluster), _) => Plan::Hold {
            reason: reason::CLUSTER_EXISTS,
            message: format!(
                "Cluster `{}` exists and needs this InfraCluster: delete the Cluster. To replace only the \
                    InfraCluster, remove finalizer {CLUSTER_FINALIZER} and apply the InfraCluster again",
                cluster.metadata.name()
            ),
        },
        (None, 0) => Plan::Release,
        (None, machines) => Plan::Hold {
            reason: reason::MACHINES_EXIST,
            message: format!(
                "waiting for the deletion of {machines} InfraMachines of the Cluster: if they do not \
                    disappear, resolve their conditions"
            ),
        },
    }
}

/// Whether a Cluster is not being deleted and refers to the InfraCluster.
fn needs(cluster: &Cluster, infra: &InfraCluster) -> bool {
    let is_living = cluster.metadata.deletion_timestamp.is_none();
    is_living && infra.is_of(cluster)
}
