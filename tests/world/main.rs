//! The fast world: the real manager, over an API server in memory and the simulated driver, on tokio's paused
//! clock. Hours pass in milliseconds, and a crash at any write or call is an ordinary case.
//!
//! Rules that need a schema, an admission policy, permissions, a process or Cluster API itself are proven in
//! `tests/suite`.

// A case fails with its error, wherever that occurs.
#![allow(clippy::unwrap_used, clippy::panic)]

mod addresses;
mod adoption;
mod capacity;
mod codes;
mod crash_points;
mod deleted_machine;
mod explain;
mod fallbacks;
mod hanging;
mod health_check;
mod identity;
mod idle;
mod in_place_update;
mod infra_cluster;
mod late_create;
mod leadership;
mod lifecycle;
mod malformed;
mod metrics;
mod migration;
mod missing_node;
mod moving;
mod not_ready_taint;
mod orphans;
mod pacing;
mod pause;
mod relist;
mod remediation;
mod scope;
mod secrets;
mod shards;
mod shutdown;
mod spec_changes;
mod stale_cache;
mod support;
mod terminal;
mod update;
mod visibility;
mod vm_state;
mod volume_drain;
