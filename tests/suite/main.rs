//! The provider on a real Cluster API: etcd, kube-apiserver, Cluster API's core manager and a workload cluster, with the
//! simulated cloud behind it.

mod codes;
mod diagnostics;
mod idle;
mod lifecycle;
mod permissions;
mod secrets;
mod support;
