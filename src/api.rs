//! The objects this provider serves, and the slices of Cluster API's objects that it reads.
//!
//! Layer 0: types, defaults and validation, no client. Every type tolerates unknown fields, and none ever
//! writes `null`: Cluster API takes an explicit null in a contract field for an error.

pub mod addresses;
pub mod annotations;
pub mod bounded;
pub mod cluster_api;
pub mod conditions;
mod deserialize_guard;
mod fingerprint;
pub mod identity;
pub mod ipam;
pub mod labels;
mod object_meta;
mod pause;
pub mod progress;
pub mod reason;
pub mod retry;
pub(crate) mod schema;
pub mod v1alpha1;
pub mod wall_clock;

pub use deserialize_guard::{DeserializeGuard, MetadataOnly, Parts, metadata};
pub use fingerprint::fingerprint;
pub use object_meta::ObjectMetaExt;
pub use pause::{annotation_cause, pause_causes, pause_message, paused_by};

/// API group of the kinds that this provider serves.
pub const GROUP: &str = "infrastructure.capcmi.io";
/// The version that is served and stored.
pub const VERSION: &str = "v1alpha1";
/// Finalizer that keeps an InfraMachine until its VM is gone.
pub const MACHINE_FINALIZER: &str = "infrastructure.capcmi.io/inframachine";
/// Finalizer that keeps an IPAddressClaim until the VM that has its address is gone.
pub const ADDRESS_CLAIM_FINALIZER: &str = "infrastructure.capcmi.io/ipaddressclaim";
/// Finalizer that keeps an InfraCluster while its Cluster or a machine of the Cluster exists.
pub const CLUSTER_FINALIZER: &str = "infrastructure.capcmi.io/infracluster";
