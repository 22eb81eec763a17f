//! The provider on a real Cluster API: etcd, kube-apiserver, Cluster API's core manager and a workload
//! cluster, with the simulated cloud behind it.

mod addresses;
mod adoption;
mod cluster_api_operator;
mod clusterctl;
mod connection;
mod crash_points;
mod diagnostics;
mod ec2;
mod explain;
mod failures;
mod gitops;
mod health_check;
mod identity;
mod idle;
mod in_place_update;
mod late_create;
mod leadership;
mod lifecycle;
mod mcm;
mod memory;
mod migrate;
mod moving;
mod not_ready_taint;
mod orphans;
mod permissions;
mod plugin;
mod process;
mod quickstart;
mod remediation;
mod samples;
mod secrets;
mod soak;
mod support;
mod topology;
mod volume_drain;
