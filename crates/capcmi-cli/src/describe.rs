//! A one-page description of a machine or a driver, for an operator who is troubleshooting.
//!
//! The facts are gathered first; rendering them is pure. If a part cannot be read, the page gives the reason
//! and still shows everything else.

mod advice;
mod bootstrap;
mod driver;
mod driver_page;
mod event_table;
mod events;
mod machine;
mod machine_page;
mod owners;
mod page;
mod scrape;
#[cfg(test)]
mod tests;
mod vm;

pub use driver::{Configured, DriverAnswer, DriverReport, gather as gather_driver};
pub use driver_page::page as driver_page;
pub use machine::{MachineReport, gather as gather_machine};
pub use machine_page::page as machine_page;
pub use page::{columns, span};
pub use scrape::{InvalidScrape, Scrape};

/// Why the page cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such object.
    #[error("{kind} `{namespace}/{name}` does not exist")]
    NotFound {
        /// The kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
        /// Where.
        namespace: String,
    },
    /// The Machine's VM is another provider's.
    #[error("Machine `{name}` refers to {kind} `{infra}`, which belongs to another provider")]
    Foreign {
        /// The Machine.
        name: String,
        /// The kind that it refers to.
        kind: String,
        /// The name of the referenced object.
        infra: String,
    },
    /// The object does not fit its definition.
    #[error(
        "cannot read InfraMachine `{name}`: {why}; correct the field, or delete the object and its VM with \
            it"
    )]
    Unreadable {
        /// Its name.
        name: String,
        /// Where and why.
        why: String,
    },
    /// The API server refused or could not be reached.
    #[error("{action} failed")]
    Api {
        /// The attempted request.
        action: &'static str,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
}

impl Error {
    fn api(action: &'static str) -> impl Fn(kube::Error) -> Self {
        move |error| Self::Api {
            action,
            source: Box::new(error),
        }
    }
}
