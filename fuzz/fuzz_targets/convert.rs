//! Parses any message of any service. A message that is accepted must survive a round trip unchanged.
#![no_main]

use std::fmt::Debug;

use cmi_grpc::convert::{Declaration, FieldError, MachinePage, PageRequest};
use cmi_grpc::proto::{capcmi, cmi};
use cmi_driver::*;
use libfuzzer_sys::fuzz_target;
use prost::Message;

fn read<Wire, Value>(bytes: &[u8])
where
    Wire: From<Value> + Message + Default,
    Value: Clone + Debug + PartialEq + TryFrom<Wire, Error = FieldError>,
{
    let Ok(message) = Wire::decode(bytes) else {
        return;
    };
    match Value::try_from(message) {
        Ok(value) => {
            let again = Wire::decode(Wire::from(value.clone()).encode_to_vec().as_slice());
            let again = Value::try_from(again.expect("what was written can be decoded"));
            assert_eq!(again.expect("what was written can be read"), value);
        }
        // The error must name the field, so that the sender can fix it.
        Err(error) => assert!(error.to_string().contains(error.field())),
    }
}

fn read_capabilities(bytes: &[u8]) {
    let plugin = cmi::v1::GetPluginCapabilitiesResponse::decode(bytes).unwrap_or_default();
    let extension = capcmi::v1::GetExtensionCapabilitiesResponse::decode(bytes).ok();
    if let Ok(capabilities) = Capabilities::try_from(Declaration { plugin, extension }) {
        let again = Capabilities::try_from(Declaration::from(&capabilities));
        assert_eq!(again.expect("what was declared can be read"), capabilities);
    }
}

/// The reader of a response. An empty response has no content to read.
macro_rules! response {
    (empty $driver:ident $message:ty) => { |_bytes| {} };
    ($reply:ident $driver:ident $message:ty) => { read::<$message, <$driver as Request>::Response> };
}

macro_rules! readers {
    ([$service:ident] $(
        $driver:ident: $method:ident($request:ident $({ $($field:ident),+ })?)
            -> $response:ident, $reply:ident, $declared:ident;
    )+) => {
        &[$(
            read::<$service::v1::$request, $driver>,
            response!($reply $driver $service::v1::$response),
        )+]
    };
}

/// A seed's first byte is the number of a reader, so lists that may grow come last.
const READERS: [&[fn(&[u8])]; 3] = [
    &[
        read_capabilities,
        read::<cmi::v1::GetPluginInfoResponse, PluginInfo>,
        read::<cmi::v1::GetMachineStatusRequest, GetMachineStatusRequest>,
        read::<cmi::v1::GetMachineStatusResponse, Machine>,
        read::<cmi::v1::ListMachinesRequest, ListMachinesRequest>,
        read::<cmi::v1::ListMachinesResponse, Vec<ListedMachine>>,
        read::<capcmi::v1::GetMachineRequest, GetMachineStatusRequest>,
        read::<capcmi::v1::Machine, Machine>,
        read::<capcmi::v1::ListMachinesPagedRequest, PageRequest>,
        read::<capcmi::v1::ListMachinesPagedResponse, MachinePage>,
    ],
    cmi_grpc::machine_rpcs!(readers [cmi]),
    cmi_grpc::extension_rpcs!(readers [capcmi]),
];

fuzz_target!(|data: &[u8]| {
    let Some((&kind, bytes)) = data.split_first() else {
        return;
    };
    let all = READERS.iter().copied().flatten();
    if let Some(read) = all.cycle().nth(kind.into()) {
        read(bytes);
    }
});
