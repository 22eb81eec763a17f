//! `infrastructure.capcmi.io/v1alpha1`.

mod infra_cluster;
mod infra_machine;
mod template;

pub use infra_cluster::{
    FailureDomain, InfraCluster, InfraClusterInitialization, InfraClusterSpec, InfraClusterStatus,
    InfraClusterTemplate, InfraClusterTemplateResource, InfraClusterTemplateSpec,
};
pub use infra_machine::{
    InfraMachine, InfraMachineInitialization, InfraMachineSpec, InfraMachineStatus, LastOperation,
    MachineAddress, OperationState, OperationType, SecretReference,
};
pub use template::{
    Architecture, InfraMachineTemplate, InfraMachineTemplateResource, InfraMachineTemplateSpec,
    InfraMachineTemplateStatus, NodeInfo, OperatingSystem, TemplateMetadata,
};
