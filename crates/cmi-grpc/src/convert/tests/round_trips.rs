//! Values survive the way onto the wire and back, and no bytes from the wire cause a panic.

use std::fmt::Debug;

use proptest::prelude::*;
use prost::Message;

use super::driver_values::{self as any_driver, AnyValue};
use crate::convert::{Declaration, MachinePage, PageRequest};
use crate::proto::{capcmi, cmi};
use crate::{extension_rpcs, machine_rpcs};
use cmi_driver::*;

/// Sends a value over the wire and compares the received value. Then sends it with broken bytes: reading them
/// may fail but not panic.
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

/// The test of a response, by how it is written.
macro_rules! response_goes_through {
    (plain $driver:ident => $wire:ty) => {
        type Response = <$driver as Request>::Response;
        go_through! { response: Response::any(), Response => $wire; }
    };
    // Trailers carry the fields that the message lacks, and an empty message has no fields.
    (with_trailers $driver:ident => $wire:ty) => {};
    (empty $driver:ident => $wire:ty) => {};
}

macro_rules! rpcs_go_through {
    ([$messages:ident] $(
        $driver:ident: $method:ident($request:ident $({ $($field:ident),+ })?)
            -> $response:ident, $reply:ident, $declared:ident;
    )+) => {$(
        mod $method {
            use super::*;

            go_through! { request: $driver::any(), $driver => $messages::v1::$request; }
            response_goes_through!($reply $driver => $messages::v1::$response);
        }
    )+};
}

machine_rpcs!(rpcs_go_through[cmi]);
extension_rpcs!(rpcs_go_through[capcmi]);

go_through! {
    status_requests: GetMachineStatusRequest::any(),
        GetMachineStatusRequest => cmi::v1::GetMachineStatusRequest;
    get_requests: GetMachineStatusRequest::any(), GetMachineStatusRequest => capcmi::v1::GetMachineRequest;
    list_requests: ListMachinesRequest::any(), ListMachinesRequest => cmi::v1::ListMachinesRequest;
    page_requests: any_driver::page_request(), PageRequest => capcmi::v1::ListMachinesPagedRequest;

    statuses: any_driver::plain_machine(), Machine => cmi::v1::GetMachineStatusResponse;
    lists: any_driver::listed(), Vec<ListedMachine> => cmi::v1::ListMachinesResponse;
    pages: any_driver::page(), MachinePage => capcmi::v1::ListMachinesPagedResponse;
    names_and_versions: any_driver::info(), PluginInfo => cmi::v1::GetPluginInfoResponse;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// CMI-94: the state is binary.
    #[test]
    fn created_machines_with_their_state(
        plain in any_driver::plain_machine(), last_known_state in any_driver::state(), breaks in breaks(),
    ) {
        let machine = Machine { last_known_state, ..plain };
        goes_through::<cmi::v1::CreateMachineResponse, Machine>(&machine, &breaks)?;
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
