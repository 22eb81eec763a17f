use std::sync::Arc;

use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use kube_fleet::store;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::api::identity::fixtures::existing;

fn infra_machine(change: impl FnOnce(&mut Value)) -> DeserializeGuard<InfraMachine> {
    let mut object = json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachine",
        "metadata": {
            "name": "m", "namespace": "ns", "uid": "u", "resourceVersion": "7", "generation": 3,
            "creationTimestamp": "2026-05-04T10:11:12Z", "deletionTimestamp": "2026-05-04T10:11:13Z",
            "labels": {labels::CLUSTER_NAME: "c"},
            "annotations": {
                annotations::VM_RECORD: existing("ns/m/u", &json!({"driver": "pool", "providerSpec": {}})),
                "a": "\u{0} \"ü",
            },
            "finalizers": ["f"],
            "ownerReferences": [
                {"apiVersion": "v", "kind": "Machine", "name": "m", "uid": "o", "controller": true},
            ],
        },
        "spec": {
            "providerID": "sim://m", "driver": "pool", "secretRef": {"name": "s"},
            "shutdownTimeoutSeconds": 0,
            "providerSpec": {"a": 0.1, "b": [f64::MAX, -0.0, null, u64::MAX], "c": {}},
            "notReadyTaint": {"key": "example.com/k"},
        },
        "status": {
            "ready": true, "initialization": {"provisioned": true}, "powerState": "Running",
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "r", "message": "", "observedGeneration": 3,
                "lastTransitionTime": "2026-05-04T10:11:12Z",
            }],
            "lastOperation": {
                "type": "Create", "state": "Processing", "lastUpdateTime": "2026-05-04T10:11:12Z",
                "attempts": 3, "nextRetryTime": "2026-05-04T10:11:13Z",
            },
        },
    });
    change(&mut object);
    read(&object)
}

/// As in the cache: read from text, and slimmed.
fn read(object: &Value) -> DeserializeGuard<InfraMachine> {
    let mut infra = serde_json::from_str(&object.to_string()).unwrap();
    slim_infra_machine(&mut infra);
    infra
}

/// All fields, compared more exactly than `==` does: `-0.0` differs from `0.0`.
fn all_of(infra: &DeserializeGuard<InfraMachine>) -> String {
    let infra = infra.0.as_ref().unwrap();
    format!("{:?} {:?} {:?}", infra.metadata, infra.spec, infra.status)
}

#[test]
fn an_infra_machine_comes_out_as_it_was_packed() {
    let changes: [fn(&mut Value); 5] = [
        |_| {},
        |object| object["status"] = Value::Null,
        |object| object["status"] = json!({}),
        |object| object["metadata"]["annotations"] = json!({}),
        |object| object["spec"] = json!({"providerSpec": {"deep": {"a": [[[{"b": "x"}]]]}}}),
    ];
    for change in changes {
        let infra = infra_machine(change);
        let out = DeserializeGuard::<InfraMachine>::unpack(&infra.pack().unwrap()).unwrap();
        assert_eq!(all_of(&out), all_of(&infra));
    }
}

/// Times are written to the second. The provider writes no fractions, but reads them.
#[test]
fn an_infra_machine_that_its_text_would_change_is_kept_as_it_is() {
    let infra = infra_machine(|object| {
        object["status"]["lastOperation"]["nextRetryTime"] = json!("2026-05-04T10:11:13.25Z");
    });
    assert!(infra.pack().is_none());
    let (cache, mut writer) = store();
    for event in [Event::Init, Event::InitApply(infra.clone()), Event::InitDone] {
        writer.apply_watcher_event(&event);
    }
    let out = cache.get(&ObjectRef::from_obj(&infra)).unwrap();
    assert_eq!(all_of(&out), all_of(&infra));
}

#[test]
fn an_infra_machine_that_cannot_be_read_is_kept_as_it_is() {
    let object = infra_machine(|object| object["spec"] = json!({"providerSpec": 1}));
    assert!(object.0.is_err() && object.pack().is_none());
    assert_eq!(object.facts().cluster.as_deref(), Some("c"));
}

#[test]
fn a_cached_infra_machine_has_no_room_for_what_does_not_come() {
    let mut object: DeserializeGuard<InfraMachine> = serde_json::from_value(json!({
        "metadata": {"name": "a", "finalizers": ["f"], "managedFields": [{"manager": "m"}],
        "ownerReferences": [
            {"apiVersion": "v", "kind": "k", "name": "n", "uid": "u"},
        ]},
        "spec": {"providerSpec": {}},
        "status": {
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "conditions": [{
                "type": "t", "status": "True", "reason": "r", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        },
    }))
    .unwrap();
    slim_infra_machine(&mut object);
    let machine = object.0.unwrap();
    let status = machine.status.unwrap();
    let capacities = [
        machine.metadata.finalizers.unwrap().capacity(),
        machine.metadata.owner_references.unwrap().capacity(),
        status.addresses.capacity(),
        status.conditions.capacity(),
    ];
    assert_eq!(capacities, [1; 4]);
    assert!(machine.metadata.managed_fields.is_none());
}

#[test]
fn a_machine_comes_out_as_it_was_packed() {
    for status in [
        json!(null),
        json!({"nodeRef": {"name": "n"}}),
        json!({
            "conditions": [{"type": "NodeHealthy", "status": "True"}], "nodeRef": {"name": "n"},
        }),
    ] {
        let mut machine: Machine = serde_json::from_value(json!({
            "metadata": {"name": "m", "namespace": "ns", "uid": "u", "resourceVersion": "7",
                "labels": {labels::CONTROL_PLANE: ""}, "deletionTimestamp": "2026-05-04T10:11:13Z",
                "annotations": {annotations::VOLUME_DRAIN_HOOK: "x"}},
            "spec": {
                "clusterName": "c", "bootstrap": {"dataSecretName": "b"}, "failureDomain": "z",
                "infrastructureRef": {"apiGroup": "g", "kind": "k", "name": "i"},
            },
            "status": status,
        }))
        .unwrap();
        slim_machine(&mut machine);
        let out = Machine::unpack(&machine.pack().unwrap()).unwrap();
        assert_eq!(out.metadata, machine.metadata);
        assert_eq!((out.spec, out.status), (machine.spec, machine.status));
    }
}

/// Far more machines than the cache keeps unpacked.
#[test]
fn machines_that_were_put_to_rest_are_read_as_they_were_written() {
    let (cache, mut writer) = store::<DeserializeGuard<InfraMachine>>();
    let named =
        |number: usize| infra_machine(|object| object["metadata"]["name"] = json!(format!("m-{number}")));
    for number in 0..2000 {
        writer.apply(Arc::new(named(number)));
    }
    for number in 0..2000 {
        let written = named(number);
        let read = cache.get(&ObjectRef::from_obj(&written)).unwrap();
        assert_eq!(read.name_any(), written.name_any());
        assert_eq!(all_of(&read), all_of(&written));
    }
}

fn text() -> impl Strategy<Value = String> {
    proptest::collection::vec(any::<char>(), 0..6).prop_map(String::from_iter)
}

/// Any JSON.
fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            fields(inner).prop_map(Value::from),
        ]
    })
}

fn fields(value: impl Strategy<Value = Value>) -> impl Strategy<Value = serde_json::Map<String, Value>> {
    proptest::collection::btree_map(text(), value, 0..4).prop_map(|fields| fields.into_iter().collect())
}

/// Absent, null, empty, or with something in it.
fn texts() -> impl Strategy<Value = Option<Value>> {
    prop_oneof![
        Just(None),
        Just(Some(Value::Null)),
        fields(text().prop_map(Value::from)).prop_map(|fields| Some(Value::from(fields))),
    ]
}

fn time() -> impl Strategy<Value = String> {
    let fraction =
        prop_oneof![3 => Just(String::new()), 1 => (0..1_000_000_u32).prop_map(|n| format!(".{n:06}"))];
    (0..60_u32, fraction).prop_map(|(second, fraction)| format!("2026-05-04T10:11:{second:02}{fraction}Z"))
}

prop_compose! {
    fn status()(
        times in (time(), time(), proptest::option::of(time())),
        message in proptest::option::of(text()),
        is_ready in any::<Option<bool>>(),
        number in any::<i32>(),
        fields in 0..4_u8,
    ) -> Option<Value> {
        let (changed, updated, retry) = times;
        let condition = json!({
            "type": "Ready", "status": "True", "reason": "r", "message": message.clone().unwrap_or_default(),
            "lastTransitionTime": changed,
        });
        let operation = json!({
            "type": "Update", "state": "Failed", "lastUpdateTime": updated, "attempts": number,
            "nextRetryTime": retry, "message": message,
        });
        match fields {
            0 => None,
            1 => Some(Value::Null),
            2 => Some(json!({"addresses": [], "conditions": [], "nodeName": message})),
            _ => Some(json!({
                "ready": is_ready.unwrap_or_default(), "initialization": {"provisioned": is_ready},
                "conditions": [condition], "lastOperation": operation, "observedGeneration": number,
            })),
        }
    }
}

prop_compose! {
    /// InfraMachines as an API server may send them, also with fields that no reader knows.
    fn object()(
        provider_spec in fields(json()),
        (labels, annotations) in (texts(), texts()),
        (provider_id, driver) in (proptest::option::of(text()), proptest::option::of(text())),
        deletion in proptest::option::of(time()),
        taint in proptest::option::of(proptest::option::of(text())),
        unknown in json(),
        status in status(),
    ) -> Value {
        let mut object = json!({
            "metadata": {"uid": "u", "resourceVersion": "1", "unknown": unknown.clone()},
            "spec": {"providerSpec": provider_spec, "driver": driver, "unknown": unknown},
        });
        let metadata = &mut object["metadata"];
        if let Some(labels) = labels {
            metadata["labels"] = labels;
        }
        if let Some(annotations) = annotations {
            metadata["annotations"] = annotations;
        }
        metadata["deletionTimestamp"] = json!(deletion);
        if let Some(provider_id) = provider_id {
            object["spec"]["providerID"] = json!(provider_id);
        }
        if let Some(key) = taint {
            object["spec"]["notReadyTaint"] = key.map_or_else(|| json!({}), |key| json!({"key": key}));
        }
        if let Some(status) = status {
            object["status"] = status;
        }
        object
    }
}

fn objects() -> impl Strategy<Value = Vec<Value>> {
    proptest::collection::vec(object(), 1..5)
}

/// Whether a number has a fraction somewhere in it.
fn has_fractions(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64(),
        Value::Array(values) => values.iter().any(has_fractions),
        Value::Object(fields) => fields.values().any(has_fractions),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

proptest! {
    /// Any content, in any combination.
    #[test]
    fn what_was_listed_comes_out_of_the_cache_as_it_was(objects in objects()) {
        let (cache, mut writer) = store();
        writer.apply_watcher_event(&Event::Init);
        let mut all = Vec::new();
        for (number, mut object) in objects.into_iter().enumerate() {
            object["metadata"]["name"] = json!(format!("m-{number}"));
            object["metadata"]["namespace"] = json!("ns");
            let infra = read(&object);
            prop_assert!(infra.0.is_ok(), "{object}");
            let is_exact = !has_fractions(&object) && !object.to_string().contains('.');
            prop_assert!(infra.pack().is_some() || !is_exact, "{object} is not packed");
            writer.apply_watcher_event(&Event::InitApply(infra.clone()));
            all.push(infra);
        }
        writer.apply_watcher_event(&Event::InitDone);
        for infra in all {
            let out = cache.get(&ObjectRef::from_obj(&infra)).unwrap();
            prop_assert_eq!(all_of(&out), all_of(&infra));
        }
    }
}
