//! Any value that the driver's types can hold and the wire takes.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::num::NonZeroU32;
use std::time::Duration;

use jiff::Timestamp;
use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Map, Value};

use crate::convert::{MachinePage, PageRequest, PageToken};
use crate::{extension_rpcs, machine_rpcs};
use cmi_driver::*;

/// Any value of a request, a response, or one of their parts.
pub(crate) trait AnyValue: Sized + Debug + 'static {
    fn any() -> BoxedStrategy<Self>;
}

/// Returns the same value each time.
pub(crate) fn sample<T: AnyValue>() -> T {
    let tree = T::any().new_tree(&mut TestRunner::deterministic());
    tree.unwrap().current()
}

macro_rules! any_values {
    ($($type:ty: $strategy:expr;)+) => {$(
        impl AnyValue for $type {
            fn any() -> BoxedStrategy<Self> {
                $strategy.boxed()
            }
        }
    )+};
}

any_values! {
    MachineClass: class();
    MachineRef: (name(), class()).prop_map(|(name, class)| MachineRef::new(name, class));
    ProviderId: provider_id();
    Option<ProviderId>: option::of(provider_id());
    ProviderSpec: object().prop_map(ProviderSpec);
    Option<LastKnownState>: state();
    GetVolumeIdsRequest: volume_specs();
    GenerateMachineClassForMigrationRequest: migration();
    Machine: machine();
    Vec<String>: volume_ids();
    Map<String, Value>: object();
    Vec<Zone>: zones();
    ClassDescription: description();
    Console: vec(any::<u8>(), 0..Console::MAX_BYTES / 64).prop_map(|output| Console::new(&output));
}

/// Implements a strategy with any value in each of these fields.
macro_rules! made_of {
    ($type:ident { $($field:ident),+ }) => {
        impl AnyValue for $type {
            fn any() -> BoxedStrategy<Self> {
                $(let $field = AnyValue::any();)+
                ($($field,)+).prop_map(|($($field,)+)| Self { $($field),+ }).boxed()
            }
        }
    };
}

macro_rules! requests {
    ([] $(
        $driver:ident: $method:ident($request:ident $({ $($field:ident),+ })?)
            -> $response:ident, $reply:ident, $declared:ident;
    )+) => {$($(
        made_of!($driver { $($field),+ });
    )?)+};
}

machine_rpcs!(requests []);
extension_rpcs!(requests []);
made_of!(GetMachineStatusRequest { machine, provider_id });
made_of!(ListMachinesRequest { class });
made_of!(DeleteMachineResponse { last_known_state });
made_of!(ShutDownMachineResponse { last_known_state });

pub(crate) fn name() -> impl Strategy<Value = String> {
    "[a-z0-9.-]{1,253}"
}

pub(crate) fn provider_id() -> impl Strategy<Value = ProviderId> {
    "[!-~]{1,512}".prop_map(|text| text.parse().unwrap())
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        // Quarters are exact: how the last digit of others is rounded is the parser's business.
        any::<i32>().prop_map(|quarters| Value::from(f64::from(quarters) / 4.0)),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map(any::<String>(), inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

pub(crate) fn object() -> impl Strategy<Value = Map<String, Value>> {
    btree_map(any::<String>(), json(), 0..4).prop_map(|map| map.into_iter().collect())
}

fn texts() -> impl Strategy<Value = BTreeMap<String, String>> {
    btree_map("[a-z]{1,20}", any::<String>(), 0..5)
}

fn class() -> impl Strategy<Value = MachineClass> {
    let secrets = btree_map("[A-Za-z0-9._-]{1,20}", vec(any::<u8>(), 0..300), 0..4);
    (object(), secrets).prop_map(|(spec, secrets)| MachineClass {
        provider_spec: ProviderSpec(spec),
        secrets: secrets
            .into_iter()
            .map(|(key, value)| (key, value.into()))
            .collect(),
    })
}

pub(crate) fn state() -> impl Strategy<Value = Option<LastKnownState>> {
    option::of(vec(any::<u8>(), 1..=LastKnownState::MAX_BYTES))
        .prop_map(|bytes| bytes.and_then(LastKnownState::new))
}

fn address() -> impl Strategy<Value = Address> {
    let kinds = [
        AddressType::Hostname,
        AddressType::ExternalIP,
        AddressType::InternalIP,
        AddressType::ExternalDNS,
        AddressType::InternalDNS,
    ];
    (proptest::sample::select(kinds.to_vec()), "[!-~]{1,256}")
        .prop_map(|(kind, address)| Address { kind, address })
}

fn power_state() -> impl Strategy<Value = Option<PowerState>> {
    let states = [
        PowerState::Starting,
        PowerState::Running,
        PowerState::Stopping,
        PowerState::Stopped,
        PowerState::Failed,
    ];
    option::of(proptest::sample::select(states.to_vec()))
}

pub(crate) fn machine() -> impl Strategy<Value = Machine> {
    let failure_domain = option::of("[a-z0-9-]{1,256}");
    (
        provider_id(),
        name(),
        vec(address(), 0..6),
        power_state(),
        failure_domain,
        state(),
    )
        .prop_map(
            |(provider_id, node_name, addresses, power_state, failure_domain, last_known_state)| Machine {
                provider_id,
                node_name,
                addresses,
                power_state,
                failure_domain,
                last_known_state,
            },
        )
}

/// A machine without the fields of the extension.
pub(super) fn plain_machine() -> impl Strategy<Value = Machine> {
    (provider_id(), name()).prop_map(|(provider_id, node_name)| Machine::new(provider_id, node_name))
}

pub(super) fn page_request() -> impl Strategy<Value = PageRequest> {
    let size = option::of(1..=i32::MAX.unsigned_abs());
    (ListMachinesRequest::any(), size, option::of("[!-~]{1,1024}")).prop_map(|(list, size, token)| {
        PageRequest {
            list,
            size: size.and_then(NonZeroU32::new),
            token: token.map(PageToken),
        }
    })
}

pub(super) fn page() -> impl Strategy<Value = MachinePage> {
    (listed_with_facts(), option::of("[!-~]{1,1024}")).prop_map(|(machines, token)| MachinePage {
        machines,
        next: token.map(PageToken),
    })
}

fn volume_specs() -> impl Strategy<Value = GetVolumeIdsRequest> {
    vec(json(), 0..5).prop_map(|pv_specs| GetVolumeIdsRequest { pv_specs })
}

fn volume_ids() -> impl Strategy<Value = Vec<String>> {
    vec("[!-~]{1,512}", 0..5)
}

fn migration() -> impl Strategy<Value = GenerateMachineClassForMigrationRequest> {
    (object(), object(), "[a-z.]{1,128}", "[A-Za-z]{1,128}").prop_map(|(from, into, api_group, kind)| {
        GenerateMachineClassForMigrationRequest {
            provider_specific_machine_class: from,
            machine_class: into,
            class_kind: MachineClassKind { api_group, kind },
        }
    })
}

/// Sorted by provider id, without duplicates.
pub(super) fn listed() -> impl Strategy<Value = Vec<ListedMachine>> {
    btree_map(provider_id(), "[a-z0-9.-]{0,253}", 0..8).prop_map(|machines| {
        let machines = machines.into_iter();
        machines
            .map(|(provider_id, machine_name)| ListedMachine::new(provider_id, machine_name))
            .collect()
    })
}

/// Adds the fields that only a page has.
fn listed_with_facts() -> impl Strategy<Value = Vec<ListedMachine>> {
    let facts = (
        option::of("[!-~]{1,256}"),
        option::of("[!-~]{1,256}"),
        option::of(time()),
        vec(address(), 0..4),
        power_state(),
    );
    (listed(), vec(facts, 8)).prop_map(|(mut machines, facts)| {
        for (machine, facts) in machines.iter_mut().zip(facts) {
            (
                machine.cluster_id,
                machine.machine_id,
                machine.created_at,
                machine.addresses,
                machine.power_state,
            ) = facts;
        }
        machines
    })
}

fn time() -> impl Strategy<Value = Timestamp> {
    (0_i64..253_402_000_000, 0_i32..1_000_000_000)
        .prop_map(|(second, nanosecond)| Timestamp::new(second, nanosecond).unwrap())
}

fn zones() -> impl Strategy<Value = Vec<Zone>> {
    let zone = ("[a-z0-9-]{1,256}", any::<bool>(), texts());
    vec(
        zone.prop_map(|(name, control_plane, attributes)| Zone {
            name,
            control_plane,
            attributes,
        }),
        0..5,
    )
}

fn description() -> impl Strategy<Value = ClassDescription> {
    (texts(), option::of("[a-z0-9]{1,128}"), option::of("[a-z]{1,128}")).prop_map(
        |(capacity, architecture, operating_system)| ClassDescription {
            capacity,
            architecture,
            operating_system,
        },
    )
}

pub(super) fn info() -> impl Strategy<Value = PluginInfo> {
    (
        "[a-z0-9]{1,20}(\\.[A-Z0-9]-?[a-z0-9]{1,10}){0,3}",
        "[!-~]{1,128}",
        texts(),
    )
        .prop_map(|(name, version, manifest)| PluginInfo {
            name,
            version,
            manifest,
        })
}

fn pointer() -> impl Strategy<Value = JsonPointer> {
    "(/[a-z~/]{1,9}){1,4}".prop_map(|text| text.parse().unwrap())
}

pub(super) fn capabilities() -> impl Strategy<Value = Capabilities> {
    let optional: Vec<_> = Operation::ALL
        .into_iter()
        .filter(|operation| !Capabilities::minimal().supports(*operation))
        .collect();
    let all = optional.len();
    let operations = btree_set(proptest::sample::select(optional), 0..=all);
    let window = (0..1_000_000_u64, 0..1_000_000_000_u32);
    let schema = option::of(object().prop_map(Value::Object));
    (
        operations,
        any::<[bool; 2]>(),
        window,
        (pointer(), option::of(pointer())),
        vec(pointer(), 0..4),
        schema,
    )
        .prop_map(
            |(operations, flags, (seconds, nanos), places, hot_updatable, provider_spec_schema)| {
                let (tag_path, address_path) = places;
                let [zones, list_has_state] = flags;
                Capabilities {
                    operations,
                    zones,
                    list_has_state,
                    consistency_window: Duration::new(seconds, nanos),
                    tag_path,
                    address_path,
                    hot_updatable,
                    provider_spec_schema: provider_spec_schema.map(SpecSchema::new),
                }
            },
        )
}
