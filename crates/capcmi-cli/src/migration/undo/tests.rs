//! Tests of the obstacles to undoing a migration.

use std::collections::BTreeMap;

use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::*;
use crate::migration::plan::plan;
use crate::migration::source::Source;
use cmi_driver::Capabilities;

fn migration() -> Migration {
    let mut source = Source::default();
    let class = json!({"kind": "MachineClass", "name": "small"});
    for object in [
        json!({"kind": "MachineClass", "metadata": {"name": "small"}, "providerSpec": {"size": "s"}}),
        json!({
            "kind": "MachineSet", "metadata": {"name": "pool"},
            "spec": {"replicas": 1, "template": {"spec": {"class": class}}},
        }),
        json!({
            "kind": "Machine",
            "metadata": {"name": "m1", "ownerReferences": [{"apiVersion": "", "kind": "MachineSet",
            "name": "pool", "uid": ""}]},
            "spec": {"providerID": "sim://1", "class": class},
        }),
    ] {
        let mut object = object;
        object["apiVersion"] = json!("machine.sapcloud.io/v1alpha1");
        object["metadata"]["namespace"] = json!("shoot");
        source.add(object, None).unwrap();
    }
    let target = Destination {
        namespace: "default".to_owned(),
        cluster: "c".to_owned(),
        driver: "sim".to_owned(),
        bootstrap_secret: Some("boot".to_owned()),
        secrets_of_other_namespaces: false,
    };
    plan(&source, &target, &Capabilities::minimal()).unwrap()
}

/// Returns the unchanged created objects, except for a change of one kind.
fn remains(migration: &Migration, kind: &str, change: impl Fn(&mut Value)) -> MigratedObjects {
    let mut remains = MigratedObjects::default();
    for object in migration.groups.iter().flat_map(Group::objects) {
        let mut live = object.body.clone();
        if object.kind == kind {
            change(&mut live);
        }
        let live: DynamicObject = serde_json::from_value(live).unwrap();
        remains.made.insert((object.kind, object.name.clone()), live);
    }
    remains
}

/// Returns the problems reported after this change.
#[track_caller]
fn said(kind: &str, change: impl Fn(&mut Value)) -> String {
    let migration = migration();
    remains(&migration, kind, change)
        .problems(&migration, &BTreeMap::new())
        .join("\n")
}

#[test]
fn what_is_as_the_migration_has_left_it_can_be_undone() {
    let all = [("m1".to_owned(), Vm::Present)].into();
    let migration = migration();
    let found = remains(&migration, "none", |_| {}).problems(&migration, &all);
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn a_vm_that_is_gone_or_unknown_is_refused() {
    let migration = migration();
    let said = |vm| {
        let all = [("m1".to_owned(), vm)].into();
        remains(&migration, "none", |_| {})
            .problems(&migration, &all)
            .join("\n")
    };
    assert!(said(Vm::Absent).contains("does not find the VM of Machine m1"));
    assert!(said(Vm::Unknown("Unavailable: down".to_owned())).contains("Unavailable: down"));
}

#[test]
fn a_machine_whose_vm_is_not_what_its_class_says_is_refused() {
    let spec = said("InfraMachine", |live| {
        live["spec"]["providerSpec"]["size"] = json!("l");
    });
    assert!(
        spec.contains("InfraMachine m1: spec.providerSpec is {\"size\":\"l\"}"),
        "{spec}"
    );
    let behind = said("InfraMachine", |live| {
        live["status"]["conditions"] = json!([{
            "type": "VirtualMachineUpToDate", "status": "False", "reason": "UpdatePending",
            "message": "later",
        }]);
    });
    assert!(
        behind.contains("an unfinished update (UpdatePending: later)"),
        "{behind}"
    );
    let in_place = said("InfraMachine", |live| {
        live["metadata"]["annotations"][annotations::UPDATE_IN_PROGRESS] = json!("");
    });
    assert!(in_place.contains("in place"), "{in_place}");
}

/// It would wait for the provider in vain, with all else paused.
#[test]
fn a_machine_that_the_provider_does_not_let_go_is_refused() {
    let paused = said("InfraMachine", |live| {
        live["metadata"]["annotations"][annotations::PAUSED] = json!("");
    });
    assert!(paused.contains("InfraMachine m1 is paused"), "{paused}");
    let of_core = said("Machine", |live| {
        live["metadata"]["annotations"][annotations::PAUSED] = json!("");
    });
    assert_eq!(of_core, "");
}

/// The VM of a deleted machine is deleted too, unless an earlier undo has released the machine.
#[test]
fn a_machine_that_is_being_deleted_is_refused_unless_it_was_released() {
    let deleted = |live: &mut Value| {
        live["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    };
    let infra = said("InfraMachine", deleted);
    assert!(
        infra.contains("InfraMachine m1 (with its VM) is being deleted"),
        "{infra}"
    );
    let machine = said("Machine", deleted);
    assert!(machine.contains("Machine m1 is being deleted:"), "{machine}");
    let released = said("InfraMachine", |live| {
        deleted(live);
        live["metadata"]["annotations"][annotations::FORCE_DELETE] = json!("true");
    });
    assert_eq!(released, "");
    let undone = said("Machine", |live| {
        deleted(live);
        live["metadata"]["annotations"][UNDOING] = json!("true");
    });
    assert_eq!(undone, "");
}

#[test]
fn undo_refuses_foreign_and_later_objects_and_missing_originals() {
    let migration = migration();
    let remains = MigratedObjects {
        foreign: vec!["InfraMachine m1".to_owned()],
        later: vec![("m2".to_owned(), "MachineSet pool".to_owned())],
        without_original: vec!["m3".to_owned()],
        ..MigratedObjects::default()
    };
    let said = remains.problems(&migration, &BTreeMap::new()).join("\n");
    for part in [
        "InfraMachine m1 was not created by this migration",
        "Machine m2 for MachineSet pool",
        "InfraMachine m3 does not exist",
    ] {
        assert!(said.contains(part), "no `{part}` in: {said}");
    }
}
