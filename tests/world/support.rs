//! The world of a case, and its parts.
//!
//! `World`, `Cloud`, `ByHand`, `Stage` and `Provider` have the names and the methods that they have in
//! `tests/suite`, so that a case moves from one to the other by its imports.

pub mod admission;
pub mod audit;
#[path = "../support/by_hand.rs"]
#[allow(dead_code)] // the suite uses the rest
pub mod by_hand;
#[path = "../support/checks.rs"]
pub mod checks;
#[path = "../support/cloud.rs"]
#[allow(dead_code)] // the suite uses the rest
pub mod cloud;
pub mod core;
pub mod driver;
pub mod fleet;
pub mod hooks;
#[path = "../support/ipam.rs"]
pub mod ipam;
pub mod ipam_provider;
pub mod kubelet;
pub mod logs;
#[path = "../support/mcm_objects.rs"]
pub mod mcm_objects;
pub mod moving;
pub mod plugin;
pub mod provider;
pub mod sets;
#[path = "../support/stage.rs"]
#[allow(dead_code)] // the suite uses the rest
pub mod stage;
pub mod trap;
pub mod world;

pub use by_hand::ByHand;
pub use cloud::Cloud;
pub use plugin::Plugin;
pub use provider::Provider;
pub use stage::Stage;
pub use trap::{Point, Side, Trap};
pub use world::World;

use std::time::Duration;

/// How long anything may take that is not known to take longer, on the paused clock.
pub const DEADLINE: Duration = Duration::from_mins(30);
