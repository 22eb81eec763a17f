//! The effect of a change of each field of a spec. The reference documentation prints it.

/// A field of a spec, and the effect of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpecChange {
    /// The kind.
    pub kind: &'static str,
    /// The path of the field, or of the object that contains it.
    pub field: &'static str,
    /// The effect of the change, or what refuses it.
    pub effect: &'static str,
}

/// Defines the table: `"field": "effect";`, below the name of each kind.
macro_rules! changes {
    ($($kind:literal { $($field:literal: $effect:literal;)+ })+) => {
        /// The fields of each spec that users edit.
        pub const SPEC_CHANGES: &[SpecChange] = &[
            $($(SpecChange { kind: $kind, field: $field, effect: $effect },)+)+
        ];
    };
}

changes! {
    "InfraMachine" {
        "spec.addressesFromPools": "A change is refused.";
        "spec.creationTimeoutSeconds":
            "A change counts from the creation of the object until the machine is provisioned.";
        "spec.driver":
            "A change until `spec.providerID` is set leads the next create to the new driver. If an earlier \
                create may have made a VM, `VirtualMachineUpToDate` is False with reason `DriverChanged`. A \
                later change is refused.";
        "spec.notReadyTaint.key":
            "After a change, the taint with the new key is removed once, if the Node has it.";
        "spec.powerPolicy":
            "A change applies to a VM that is switched off. If the driver does not implement \
                GetMachineStatus and RestartMachine, `AlwaysOn` is refused.";
        "spec.providerID": "An admission policy refuses a change by a user.";
        "spec.providerSpec":
            "A change retries a failed or waiting create, or updates a running VM. If that is not supported, \
                `VirtualMachineUpToDate` is False with reason `NotHotUpdatable`.";
        "spec.secretRef.name":
            "A change applies to the next call. Once the VM may exist, the old Secret stays in use, and \
                `VirtualMachineUpToDate` is False with reason `SecretChanged`.";
        "spec.shutdownTimeoutSeconds": "A change also applies to a running shutdown.";
    }
    "InfraMachineTemplate" {
        "spec.template.metadata":
            "A change applies to new InfraMachines. A policy refuses identity annotations.";
        "spec.template.spec":
            "A policy refuses a change, except for the dry run of Cluster API's topology controller.";
    }
    "InfraCluster" {
        "spec.controlPlaneEndpoint":
            "Cluster API copies it once. After a later change, `Ready` is False with reason \
                `ControlPlaneEndpointChanged`.";
        "spec.driver":
            "After a change, the failure domains are those of the new driver. Machines have their own \
                `spec.driver`.";
        "spec.secretRef.name": "A change applies to the next request for failure domains.";
    }
    "InfraClusterTemplate" {
        "spec.template.metadata":
            "A change applies to new InfraClusters. A policy refuses identity annotations.";
        "spec.template.spec":
            "A policy refuses a change, except for the dry run of Cluster API's topology controller.";
    }
    "InfraMachineRemediation" {
        "spec.strategy.retryLimit": "A change applies until the phase is `Replacing`.";
        "spec.strategy.timeoutSeconds": "A change also applies to a running restart.";
        "spec.strategy.type": "There is no other value.";
    }
    "InfraMachineRemediationTemplate" {
        "spec.template.metadata": "A change applies to new remediations.";
        "spec.template.spec": "A change applies to new remediations.";
    }
}
