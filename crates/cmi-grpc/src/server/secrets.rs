//! The secrets that come with a request, to be removed from what its call answers.
//!
//! The client removes them, too. Here it is done before a message that is too long for
//! a header is cut (OPS-11).

use crate::convert::PageRequest;
use cmi_driver::{
    CreateMachineRequest, DeleteMachineRequest, GenerateMachineClassRequest, GetMachineStatusRequest,
    GetVolumeIdsRequest, InitializeMachineRequest, ListMachinesRequest, MachineClass, Secrets,
    ShutDownMachineRequest, UpdateMachineRequest,
};

/// What may come with secrets.
pub(super) trait WithSecrets {
    /// These; none by default.
    fn secrets(&self) -> Secrets {
        Secrets::default()
    }
}

/// Requests that name a class.
macro_rules! of_their_class {
    ($($request:ty),* $(,)?) => {$(
        impl WithSecrets for $request {
            fn secrets(&self) -> Secrets {
                self.class.secrets()
            }
        }
    )*};
}

of_their_class! {
    CreateMachineRequest,
    DeleteMachineRequest,
    GetMachineStatusRequest,
    InitializeMachineRequest,
    ListMachinesRequest,
    ShutDownMachineRequest,
    UpdateMachineRequest,
}

impl WithSecrets for MachineClass {
    fn secrets(&self) -> Secrets {
        self.secrets.clone()
    }
}

impl WithSecrets for PageRequest {
    fn secrets(&self) -> Secrets {
        self.list.secrets()
    }
}

impl WithSecrets for GetVolumeIdsRequest {}

impl WithSecrets for GenerateMachineClassRequest {}
