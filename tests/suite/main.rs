//! The provider on a real Cluster API: etcd, kube-apiserver, Cluster API's core manager and a workload
//! cluster, with the simulated cloud behind it.

mod adoption;
mod capacity;
mod codes;
mod crash_points;
mod diagnostics;
mod ec2;
mod fallbacks;
mod hanging;
mod health_check;
mod identity;
mod idle;
mod in_place_update;
mod late_create;
mod leadership;
mod lifecycle;
mod memory;
mod moving;
mod not_ready_taint;
mod orphans;
mod pacing;
mod pause;
mod permissions;
mod plugin;
mod process;
mod quickstart;
mod remediation;
mod replicas;
mod scope;
mod secrets;
mod soak;
mod stale_cache;
mod support;
mod topology;
mod update;
mod visibility;
