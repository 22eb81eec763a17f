//! The provider on a real Cluster API: etcd, kube-apiserver, Cluster API's core manager and a workload cluster, with the
//! simulated cloud behind it.

mod capacity;
mod codes;
mod diagnostics;
mod fallbacks;
mod health_check;
mod identity;
mod idle;
mod leadership;
mod lifecycle;
mod moving;
mod pause;
mod permissions;
mod quickstart;
mod secrets;
mod support;
mod topology;
mod update;
