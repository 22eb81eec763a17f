//! Plugins to call, and ways to call them.

mod process;
mod raw;
mod scripted;
mod served;

use std::collections::HashMap;
use std::time::Duration;

use cmi_driver::tags;
use cmi_grpc::proto::cmi::v1;
use serde_json::json;

pub use process::Plugin;
pub use raw::Connection;
pub use scripted::Scripted;
pub use served::{Served, connect, simulated};

/// How long anything may take here that takes no time.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// A provider spec of the simulated driver.
pub fn provider_spec(cluster: &str, machine: &str) -> Vec<u8> {
    let spec = json!({
        "vmPool": "default",
        "size": "small",
        "tags": {tags::CLUSTER: cluster, tags::ROLE: "node", tags::MACHINE: machine},
    });
    spec.to_string().into_bytes()
}

/// A request for a machine of the simulated driver.
pub fn create(name: &str) -> v1::CreateMachineRequest {
    v1::CreateMachineRequest {
        machine_name: name.to_owned(),
        provider_spec: provider_spec("c", name),
        secrets: HashMap::from([("userData".to_owned(), b"#cloud-config".to_vec())]),
        last_known_state: Vec::new(),
    }
}
