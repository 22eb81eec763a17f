//! Tags by which a VM is known to be ours.

/// Tag whose value is the cluster id: a driver acts on no VM that has another one (DRV-20, DRV-28).
pub const CLUSTER: &str = "kubernetes.io/cluster";
/// Tag whose value is `control-plane` or `node`.
pub const ROLE: &str = "kubernetes.io/role";
/// Tag whose value is the identity of one machine object: a VM of the same name with another value is somebody else's.
pub const MACHINE: &str = "capcmi.io/machine";
/// Field of the provider spec that holds the failure domain that a Machine asks for.
pub const FAILURE_DOMAIN: &str = "failureDomain";

/// The tags that the controller sets; a user's spec may not hold them.
pub const RESERVED: [&str; 3] = [CLUSTER, ROLE, MACHINE];
