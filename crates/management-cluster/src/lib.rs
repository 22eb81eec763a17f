//! A real Cluster API management cluster as plain processes: etcd, kube-apiserver, kube-controller-manager
//! and Cluster API's core manager, built from their published Go modules, without containers.
//!
//! The crate also has a workload cluster that machines join ([`Workload`]), and its kubelets
//! ([`hollow_kubelet`]). Control planes come without machines ([`stand_in`]) or with machines ([`kubeadm`]).
//! A proxy fails and delays requests on purpose ([`proxy`]). [`ClusterApiOperator`] installs providers.
//! [`machine_controller_manager`] runs another controller of machines, for migrations to Cluster API.

mod api_server;
mod apply;
mod authority;
mod cluster;
mod cluster_api_operator;
mod components;
mod controller_manager;
mod core_manager;
mod etcd;
mod eventually;
pub mod hollow_kubelet;
mod ipam_in_cluster;
pub mod kubeadm;
mod kubeconfig;
pub mod machine_controller_manager;
mod manager;
pub mod node;
mod port;
mod process;
mod programs;
pub mod proxy;
mod release;
mod run_folder;
mod service_account;
pub mod stand_in;
mod webhooks;
mod workload;

pub use self::{
    apply::{apply, apply_yaml},
    cluster::{ManagementCluster, ManagementClusterBuilder},
    cluster_api_operator::ClusterApiOperator,
    core_manager::AGGREGATED_ROLE,
    eventually::eventually,
    kubeconfig::client,
    process::Process,
    programs::{
        CERT_MANAGER_VERSION, CLUSTER_API_OPERATOR_VERSION, CLUSTER_API_VERSION, CertManager, FLUX_VERSION,
        HELM_VERSION, IPAM_IN_CLUSTER_VERSION, KUBERNETES_VERSION, KubeadmProgram,
        MACHINE_CONTROLLER_MANAGER_VERSION, Programs, flux_definition, health, helm,
    },
    run_folder::RunFolder,
    workload::{BOOTSTRAP_KUBECONFIG, KUBELET_CONFIG, Workload},
};
