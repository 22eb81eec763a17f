//! What is tested.

use std::fmt;
use std::sync::Arc;

use super::wire::Wire;
use cmi_driver::Driver;

/// The driver under test.
#[derive(Clone)]
pub struct Target {
    /// What it is called in the report: an endpoint, or `simulated`.
    pub name: String,
    /// The driver; behind an endpoint, the client.
    pub driver: Arc<dyn Driver>,
    wire: Option<Arc<dyn Wire>>,
}

impl Target {
    /// A driver in this process.
    pub fn in_process(name: impl Into<String>, driver: Arc<dyn Driver>) -> Self {
        Self {
            name: name.into(),
            driver,
            wire: None,
        }
    }

    /// A plugin: the client of its endpoint, and a bare way to it for what the client would hide.
    pub fn plugin(name: impl Into<String>, driver: Arc<dyn Driver>, wire: Arc<dyn Wire>) -> Self {
        Self {
            name: name.into(),
            driver,
            wire: Some(wire),
        }
    }

    /// The bare way to the plugin; none for a driver in this process.
    pub fn wire(&self) -> Option<&dyn Wire> {
        self.wire.as_deref()
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
