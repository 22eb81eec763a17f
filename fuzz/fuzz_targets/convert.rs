//! Any message of any service: it is read or refused. What was read goes back over the wire as it is.
#![no_main]

use std::fmt::Debug;

use cmi_grpc::convert::{Declaration, FieldError, MachinePage, PageRequest};
use cmi_grpc::proto::{capcmi as extended, cmi};
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
        // The sender has to learn which field broke the rule.
        Err(error) => assert!(error.to_string().contains(error.field())),
    }
}

fn read_capabilities(bytes: &[u8]) {
    let plugin = cmi::v1::GetPluginCapabilitiesResponse::decode(bytes).unwrap_or_default();
    let extension = extended::v1::GetExtensionCapabilitiesResponse::decode(bytes).ok();
    if let Ok(capabilities) = Capabilities::try_from(Declaration { plugin, extension }) {
        let again = Capabilities::try_from(Declaration::from(&capabilities));
        assert_eq!(again.expect("what was declared can be read"), capabilities);
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, bytes)) = data.split_first() else {
        return;
    };
    match kind % 26 {
        0 => read::<cmi::v1::CreateMachineRequest, CreateMachineRequest>(bytes),
        1 => read::<cmi::v1::DeleteMachineRequest, DeleteMachineRequest>(bytes),
        2 => read::<cmi::v1::GetMachineStatusRequest, GetMachineStatusRequest>(bytes),
        3 => read::<cmi::v1::ListMachinesRequest, ListMachinesRequest>(bytes),
        4 => read::<cmi::v1::ShutDownMachineRequest, ShutDownMachineRequest>(bytes),
        5 => read::<cmi::v1::GetVolumeIDsRequest, GetVolumeIdsRequest>(bytes),
        6 => read::<extended::v1::InitializeMachineRequest, InitializeMachineRequest>(bytes),
        7 => read::<extended::v1::UpdateMachineRequest, UpdateMachineRequest>(bytes),
        8 => read::<extended::v1::ListMachinesPagedRequest, PageRequest>(bytes),
        9 => read::<
            extended::v1::GenerateMachineClassForMigrationRequest,
            GenerateMachineClassForMigrationRequest,
        >(bytes),
        10 => read::<cmi::v1::CreateMachineResponse, Machine>(bytes),
        11 => read::<cmi::v1::DeleteMachineResponse, DeleteMachineResponse>(bytes),
        12 => read::<cmi::v1::ListMachinesResponse, Vec<ListedMachine>>(bytes),
        13 => read::<extended::v1::ListMachinesPagedResponse, MachinePage>(bytes),
        14 => read::<cmi::v1::GetPluginInfoResponse, PluginInfo>(bytes),
        15 => read::<extended::v1::Machine, Machine>(bytes),
        16 => read::<extended::v1::ListZonesResponse, Vec<Zone>>(bytes),
        17 => read::<extended::v1::DescribeClassResponse, ClassDescription>(bytes),
        18 => read_capabilities(bytes),
        19 => read::<cmi::v1::GetMachineStatusResponse, Machine>(bytes),
        20 => read::<cmi::v1::ShutDownMachineResponse, ShutDownMachineResponse>(bytes),
        21 => read::<cmi::v1::GetVolumeIDsResponse, Vec<String>>(bytes),
        22 => read::<extended::v1::GetMachineRequest, GetMachineStatusRequest>(bytes),
        23 => read::<extended::v1::ListZonesRequest, ListZonesRequest>(bytes),
        24 => read::<extended::v1::DescribeClassRequest, DescribeClassRequest>(bytes),
        _ => read::<extended::v1::RestartMachineRequest, RestartMachineRequest>(bytes),
    }
});
