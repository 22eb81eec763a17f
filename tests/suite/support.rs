//! A management cluster with this provider, and helpers for the cases.
//!
//! Cases share a management cluster with a quick core (see [`World`]), and a few have a separate one. Each
//! case has a namespace, a simulated cloud and a provider process. The provider uses the shipped
//! ServiceAccount and roles, and watches only that namespace. The cloud's driver runs inside the provider's
//! process, or as a plugin.

pub mod audit;
pub mod authority;
pub mod backing;
pub mod bootstrap;
#[path = "../support/by_hand.rs"]
pub mod by_hand;
#[path = "../support/checks.rs"]
pub mod checks;
#[path = "../support/cloud.rs"]
pub mod cloud;
pub mod credential;
pub mod extension;
pub mod fleet;
#[path = "../support/ipam.rs"]
pub mod ipam;
pub mod lost_machines;
#[path = "../support/mcm_objects.rs"]
pub mod mcm_objects;
pub mod metrics;
pub mod oci_registry;
pub mod plugin;
pub mod pools;
pub mod provider;
pub mod shown;
#[path = "../support/stage.rs"]
pub mod stage;
pub mod world;

pub use authority::Authority;
pub use backing::Backing;
pub use by_hand::ByHand;
pub use cloud::Cloud;
pub use credential::Credential;
pub use extension::Extension;
pub use fleet::Fleet;
pub use lost_machines::LostMachines;
pub use plugin::Plugin;
pub use provider::Provider;
pub use stage::Stage;
pub use world::World;

use std::time::Duration;

/// How long a step may take, unless it is known to take longer. It is far above the usual time, so that a
/// busy machine does not fail a case.
pub const DEADLINE: Duration = Duration::from_mins(4);
