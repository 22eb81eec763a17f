//! A management cluster with this provider installed as it is shipped, and what the cases need around it.
//!
//! Cases share a management cluster, most of them one whose core is quick (see [`World`]); a few have one of
//! their own. Each has a namespace, a simulated cloud and a provider process of its own, which runs as the
//! shipped ServiceAccount with the shipped roles and looks at that namespace alone. The cloud's driver is
//! part of the provider's process, or a plugin in its own.

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
pub mod lost_machines;
pub mod metrics;
pub mod move_pair;
pub mod oci_registry;
pub mod plugin;
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
pub use move_pair::MovePair;
pub use plugin::Plugin;
pub use provider::Provider;
pub use stage::Stage;
pub use world::World;

use std::time::Duration;

/// How long anything may take that is not known to take longer. Far above what is usual: a busy
/// machine must not fail a case.
pub const DEADLINE: Duration = Duration::from_mins(4);
