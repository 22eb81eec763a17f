//! When the fields of a spec may change, and the effect of a change. The reference documentation prints this
//! table.

/// A field of a spec, and the effect of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpecChange {
    /// The kind.
    pub kind: &'static str,
    /// The path of the field, or of the object that contains it.
    pub field: &'static str,
    /// When the field may change.
    pub when: &'static str,
    /// The effect of the change, or what refuses it.
    pub effect: &'static str,
}

/// Defines the table: `"field" changes "when": "effect";`, below the name of each kind.
macro_rules! changes {
    ($($kind:literal { $($field:literal changes $when:literal: $effect:literal;)+ })+) => {
        /// The fields of each spec that users edit.
        pub const SPEC_CHANGES: &[SpecChange] = &[
            $($(SpecChange { kind: $kind, field: $field, when: $when, effect: $effect },)+)+
        ];
    };
}

changes! {
    "InfraMachine" {
        "spec.creationTimeoutSeconds" changes "always":
            "Counts from the creation of the object until the machine is provisioned, also after a move or a \
                restore.";
        "spec.driver" changes "until `spec.providerID` is set":
            "The next create goes to the new driver. While an earlier create may have made a VM, \
                `VirtualMachineUpToDate` is False with reason `DriverChanged`. Later the API server refuses \
                the change.";
        "spec.notReadyTaint.key" changes "always":
            "The taint with the new key is removed once, if the Node has it.";
        "spec.powerPolicy" changes "always":
            "Applies to the next look-up that finds the VM switched off. If the driver does not implement \
                RestartMachine, `AlwaysOn` is refused as an invalid `spec.providerSpec` is.";
        "spec.providerID" changes "never by a user":
            "An admission policy refuses the change.";
        "spec.providerSpec" changes "always":
            "A failed or waiting create is tried again. A running VM is updated where the driver can. \
                Otherwise `VirtualMachineUpToDate` is False with reason `NotHotUpdatable`.";
        "spec.secretRef.name" changes "until the VM may exist":
            "The next call uses the new Secret. Later `VirtualMachineUpToDate` is False with reason \
                `SecretChanged`, and the old Secret stays in use.";
        "spec.shutdownTimeoutSeconds" changes "always":
            "Applies to the next shutdown, and to one that is running.";
    }
    "InfraMachineTemplate" {
        "spec.template.metadata" changes "always":
            "Applies to new InfraMachines. A policy refuses identity annotations.";
        "spec.template.spec" changes "never":
            "A policy refuses the change, except for the dry run of Cluster API's topology controller. \
                Create a new template.";
    }
    "InfraCluster" {
        "spec.controlPlaneEndpoint" changes "until the Cluster has an endpoint":
            "Cluster API copies it once. Later `Ready` is False with reason `ControlPlaneEndpointChanged`.";
        "spec.driver" changes "always":
            "The failure domains are those of the new driver. Machines have their own `spec.driver`.";
        "spec.secretRef.name" changes "always":
            "The next question for failure domains uses the new Secret.";
    }
    "InfraClusterTemplate" {
        "spec.template.metadata" changes "always":
            "Applies to new InfraClusters. A policy refuses identity annotations.";
        "spec.template.spec" changes "never":
            "A policy refuses the change, except for the dry run of Cluster API's topology controller. \
                Create a new template.";
    }
}
