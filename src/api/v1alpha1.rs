//! `infrastructure.capcmi.io/v1alpha1`.

mod changes;
mod infra_cluster;
mod infra_machine;
mod remediation;
mod template;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::Parts;

pub use changes::{SPEC_CHANGES, SpecChange};
pub use infra_cluster::{
    FailureDomain, InfraCluster, InfraClusterInitialization, InfraClusterSpec, InfraClusterStatus,
    InfraClusterTemplate, InfraClusterTemplateResource, InfraClusterTemplateSpec,
};
pub use infra_machine::{
    AddressFromPool, InfraMachine, InfraMachineInitialization, InfraMachineSpec, InfraMachineStatus,
    LastOperation, MachineAddress, NotReadyTaint, OperationState, OperationType, PowerPolicy,
    SecretReference,
};
pub use remediation::{
    InfraMachineRemediation, InfraMachineRemediationSpec, InfraMachineRemediationStatus,
    InfraMachineRemediationTemplate, InfraMachineRemediationTemplateResource,
    InfraMachineRemediationTemplateSpec, RemediationPhase, RemediationStrategy, RemediationType,
};
pub use template::{
    Architecture, InfraMachineTemplate, InfraMachineTemplateResource, InfraMachineTemplateSpec,
    InfraMachineTemplateStatus, NodeInfo, OperatingSystem, TemplateMetadata,
};

macro_rules! parts {
    ($($kind:ident: $spec:ident, $status:ident;)*) => {$(
        impl Parts for $kind {
            type Spec = $spec;
            type Status = $status;

            fn from_parts(metadata: ObjectMeta, spec: $spec, status: Option<$status>) -> Self {
                Self { metadata, spec, status }
            }
        }
    )*};
}

parts! {
    InfraMachine: InfraMachineSpec, InfraMachineStatus;
    InfraMachineTemplate: InfraMachineTemplateSpec, InfraMachineTemplateStatus;
    InfraCluster: InfraClusterSpec, InfraClusterStatus;
    InfraMachineRemediation: InfraMachineRemediationSpec, InfraMachineRemediationStatus;
}
