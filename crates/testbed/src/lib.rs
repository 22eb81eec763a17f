//! The provider as it is shipped, on a management cluster of plain processes: one way to install
//! it, to run it as its ServiceAccount, to let guests boot in a cloud, and to watch a whole Cluster;
//! for the tests, the quickstart and the benchmark.

mod example_driver;
mod go;
mod guests;
mod http;
mod install;
mod mcm;
mod program;
mod provider;
mod python;
mod release;
mod seeded;
mod skips;
pub mod whole_cluster;

pub use self::{
    example_driver::ExampleDriver,
    go::{Go, GoDriver, go_driver},
    guests::guests,
    http::get,
    install::{definitions, install, permitted},
    mcm::mcm_driver,
    program::program,
    provider::{Launch, Launched, NAMESPACE, SERVICE_ACCOUNT, free_address, service_account},
    python::{Ec2, Ec2Guest, Python, python_drivers, python_kit},
    release::make_release,
    seeded::{Seed, seeded_guests},
    skips::{
        NO_ADDRESS_PATH, NO_CREDENTIALS, NO_LIST_STATE, NO_MACHINE_TAG, NO_QUOTA, UNIQUE_NAMES, skips_only,
    },
};
