//! The lists of the drivers, compared with the machines: VMs that vanished or changed, and VMs without a
//! machine.

pub mod inventory;
pub mod orphans;
pub mod refresh;
