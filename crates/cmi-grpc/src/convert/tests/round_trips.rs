//! What goes onto the wire comes off it as it was, and nothing that comes off it makes us panic.

use std::fmt::Debug;

use proptest::prelude::*;
use prost::Message;

use super::driver_values as any_driver;
use crate::convert::{Declaration, MachinePage, PageRequest};
use crate::proto::{capcmi, cmi};
use cmi_driver::*;

/// Sends a value over the wire, and compares what arrives. Then sends it with broken bytes: whatever arrives,
/// reading it may fail but not panic.
fn goes_through<Wire, Value>(
    value: &Value,
    breaks: &[(prop::sample::Index, u8)],
) -> std::result::Result<(), TestCaseError>
where
    Value: Clone + Debug + PartialEq + TryFrom<Wire>,
    Value::Error: Debug,
    Wire: From<Value> + Message + Default,
{
    let sent = Wire::from(value.clone()).encode_to_vec();
    let received = Wire::decode(sent.as_slice()).unwrap();
    prop_assert_eq!(&Value::try_from(received).unwrap(), value);

    let mut broken = sent;
    for (at, byte) in breaks {
        if !broken.is_empty() {
            let at = at.index(broken.len());
            broken[at] = *byte;
        }
    }
    if let Ok(received) = Wire::decode(broken.as_slice()) {
        let _read_or_refused = Value::try_from(received);
    }
    Ok(())
}

fn breaks() -> impl Strategy<Value = Vec<(prop::sample::Index, u8)>> {
    prop::collection::vec(any::<(prop::sample::Index, u8)>(), 1..8)
}

/// A test for each pair of a driver's type and its message.
macro_rules! go_through {
    ($($name:ident: $value:expr, $driver:ty => $wire:ty;)*) => {
        proptest! {
            #![proptest_config(ProptestConfig::with_cases(48))]
            $(
                #[test]
                fn $name(value in $value, breaks in breaks()) {
                    goes_through::<$wire, $driver>(&value, &breaks)?;
                }
            )*
        }
    };
}

go_through! {
    create_requests: any_driver::create(), CreateMachineRequest => cmi::v1::CreateMachineRequest;
    delete_requests: any_driver::delete(), DeleteMachineRequest => cmi::v1::DeleteMachineRequest;
    status_requests: any_driver::status(), GetMachineStatusRequest => cmi::v1::GetMachineStatusRequest;
    list_requests: any_driver::list(), ListMachinesRequest => cmi::v1::ListMachinesRequest;
    shut_down_requests: any_driver::shut_down(), ShutDownMachineRequest => cmi::v1::ShutDownMachineRequest;
    volume_requests: any_driver::volume_specs(), GetVolumeIdsRequest => cmi::v1::GetVolumeIDsRequest;
    initialize_requests: any_driver::initialize(),
        InitializeMachineRequest => capcmi::v1::InitializeMachineRequest;
    update_requests: any_driver::update(), UpdateMachineRequest => capcmi::v1::UpdateMachineRequest;
    restart_requests: any_driver::restart(), RestartMachineRequest => capcmi::v1::RestartMachineRequest;
    get_requests: any_driver::status(), GetMachineStatusRequest => capcmi::v1::GetMachineRequest;
    page_requests: any_driver::page_request(), PageRequest => capcmi::v1::ListMachinesPagedRequest;
    zone_requests: any_driver::zones_of(), ListZonesRequest => capcmi::v1::ListZonesRequest;
    class_requests: any_driver::described(), DescribeClassRequest => capcmi::v1::DescribeClassRequest;
    migration_requests: any_driver::migration(),
        GenerateMachineClassForMigrationRequest => capcmi::v1::GenerateMachineClassForMigrationRequest;

    machines: any_driver::machine(), Machine => capcmi::v1::Machine;
    statuses: any_driver::plain_machine(), Machine => cmi::v1::GetMachineStatusResponse;
    lists: any_driver::listed(), Vec<ListedMachine> => cmi::v1::ListMachinesResponse;
    pages: any_driver::page(), MachinePage => capcmi::v1::ListMachinesPagedResponse;
    volume_ids: any_driver::volume_ids(), Vec<String> => cmi::v1::GetVolumeIDsResponse;
    zones: any_driver::zones(), Vec<Zone> => capcmi::v1::ListZonesResponse;
    descriptions: any_driver::description(), ClassDescription => capcmi::v1::DescribeClassResponse;
    filled_classes: any_driver::object(),
        serde_json::Map<String, serde_json::Value> => capcmi::v1::GenerateMachineClassForMigrationResponse;
    names_and_versions: any_driver::info(), PluginInfo => cmi::v1::GetPluginInfoResponse;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// CMI-94: the state is binary.
    #[test]
    fn created_machines_with_their_state(
        plain in any_driver::plain_machine(), last_known_state in any_driver::state(), breaks in breaks(),
    ) {
        let machine = Machine { last_known_state: last_known_state.clone(), ..plain };
        goes_through::<cmi::v1::CreateMachineResponse, Machine>(&machine, &breaks)?;
        let deleted = DeleteMachineResponse { last_known_state: last_known_state.clone() };
        goes_through::<cmi::v1::DeleteMachineResponse, _>(&deleted, &breaks)?;
        let shut_down = ShutDownMachineResponse { last_known_state };
        goes_through::<cmi::v1::ShutDownMachineResponse, _>(&shut_down, &breaks)?;
    }

    #[test]
    fn capabilities(value in any_driver::capabilities()) {
        let declared = Declaration::from(&value);
        prop_assert_eq!(Capabilities::try_from(declared).unwrap(), value);
    }

    /// A plugin may send anything.
    #[test]
    fn bytes_of_any_kind_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let plugin = cmi::v1::GetPluginCapabilitiesResponse::decode(bytes.as_slice());
        let extension = capcmi::v1::GetExtensionCapabilitiesResponse::decode(bytes.as_slice());
        if let (Ok(plugin), Ok(extension)) = (plugin, extension) {
            let _read_or_refused = Capabilities::try_from(Declaration { plugin, extension: Some(extension) });
        }
        if let Ok(probe) = cmi::v1::ProbeResponse::decode(bytes.as_slice()) {
            let _always = Readiness::from(probe);
        }
    }
}
