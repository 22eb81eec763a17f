//! Fields of the provider spec with values of a wrong type, or null.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{cases, family};
use crate::answer::{Answer, CaseError, CaseResult, ensure};
use crate::answer_checker::Texts;
use crate::{Case, Need, TestContext};
use cmi_driver::{
    Code, DescribeClassRequest, JsonPointer, ListZonesRequest, MachineClass, Operation, Request, tags,
};

/// A tag that no driver knows.
const OTHER_TAG: &str = "conformance.example.com/purpose";

const TITLE: &str = "null or a value of the wrong type is INVALID_ARGUMENT or treated as unset";

pub(super) const MACHINE_CALLS: &[Case] = family! {
    "-field-types": TITLE [] => field_types;
    "create" CreateMachine ["DRV-04", "DRV-CR-03", "PLG-CR-03", "CMI-30", "CMI-48"];
    "delete" DeleteMachine ["DRV-04", "DRV-DE-03", "PLG-DE-03", "CMI-30", "CMI-48"];
    "status" GetMachineStatus ["DRV-04", "DRV-GS-03", "PLG-GS-03", "CMI-30", "CMI-48"];
    "list" ListMachines ["DRV-04", "DRV-LM-03", "PLG-LM-03", "CMI-30", "CMI-48"];
    "shut-down" ShutDownMachine ["PLG-SD-03", "CMI-30", "CMI-48"];
};

pub(super) const CASES: &[Case] = cases! {
    "initialize-field-types": TITLE
        ["CAP-21"], [Need::Call(Operation::InitializeMachine)]
        => |t| field_types_of_a_vm(t, Operation::InitializeMachine);
    "update-field-types":
        "null or a value of the wrong type is INVALID_ARGUMENT or treated as unset, in updatable fields too"
        ["CAP-21"], [Need::Call(Operation::UpdateMachine)]
        => |t| field_types_of_a_vm(t, Operation::UpdateMachine);
    "restart-machine-field-types": TITLE
        ["CAP-21"], [Need::Call(Operation::RestartMachine)]
        => |t| field_types_of_a_vm(t, Operation::RestartMachine);
    "console-field-types": TITLE
        ["CAP-21"], [Need::Call(Operation::GetConsole)]
        => |t| field_types_of_a_vm(t, Operation::GetConsole);
    "zones-field-types": TITLE
        ["CAP-28"], [Need::Call(Operation::ListZones)]
        => |t| of_a_class(t, |class| ListZonesRequest { class });
    "class-field-types": TITLE
        ["CAP-28"], [Need::Call(Operation::DescribeClass)]
        => |t| of_a_class(t, |class| DescribeClassRequest { class });
    "volumes-field-types":
        "null or a value of the wrong type in a volume is INVALID_ARGUMENT, or the volume is skipped"
        ["DRV-GV-03", "PLG-GV-03", "DRV-46", "CMI-152"], [Need::Call(Operation::GetVolumeIds)]
        => volumes;
};

/// Returns every known place of the provider spec with the value that it has, or may have. The changes of the
/// configuration and the driver's schema add fields that the sample lacks, and the provider adds its tags.
/// The place of the tags and the tag of the cluster are left to other cases. Each place occurs once, with the
/// first value found: an invalid spec may hold a value of another type.
fn places(t: &TestContext) -> Vec<(JsonPointer, Value)> {
    let config = t.config();
    let mut all = Vec::new();
    walk("", &config.provider_spec, &mut all);
    let optional = [&config.incompatible_change, &config.quota_breaking_spec];
    let changes = config
        .out_of_range_specs
        .iter()
        .chain(optional.into_iter().flatten());
    changes.for_each(|change| walk_change(change, &mut all));
    all.extend(properties(t));
    config
        .invalid_specs
        .iter()
        .for_each(|change| walk_change(change, &mut all));
    let tag_path = &t.capabilities().tag_path;
    let tags = [tags::ROLE, tags::MACHINE, OTHER_TAG].map(|tag| tag_path.child(tag).to_string());
    all.extend(tags.map(|tag| (tag, json!("a text"))));
    let mut known = BTreeSet::new();
    all.retain(|(place, _)| known.insert(place.clone()));
    let parsed = all
        .into_iter()
        .filter_map(|(place, value)| Some((place.parse().ok()?, value)));
    let cluster = tag_path.child(tags::CLUSTER);
    parsed
        .filter(|(place, _): &(JsonPointer, Value)| !place.covers(tag_path) && !place.covers(&cluster))
        .collect()
}

/// Returns every place that a hot update sets, with the value.
fn hot_places(t: &TestContext) -> Vec<(JsonPointer, Value)> {
    let mut all = Vec::new();
    for change in &t.config().hot_updates {
        walk_change(change, &mut all);
    }
    let tags = &t.capabilities().tag_path;
    let parsed = all
        .into_iter()
        .filter_map(|(place, value)| Some((place.parse().ok()?, value)));
    // A change removes a field by a null.
    parsed
        .filter(|(place, value): &(JsonPointer, Value)| !place.covers(tags) && !value.is_null())
        .collect()
}

/// Returns the fields of the schema that the driver publishes, each with a value of its type.
fn properties(t: &TestContext) -> Vec<(String, Value)> {
    let schema = t.capabilities().provider_spec_schema.as_ref();
    let properties = schema.and_then(|schema| schema.as_json()["properties"].as_object());
    let properties = properties.into_iter().flatten();
    properties
        .map(|(key, property)| (below("", key), value_of(property)))
        .collect()
}

/// Returns a value of the type that a schema names, or null where it names none.
fn value_of(property: &Value) -> Value {
    let said = &property["type"];
    let types = said.as_array().into_iter().flatten().chain([said]);
    let types = types.filter_map(Value::as_str);
    match types.into_iter().find(|name| *name != "null") {
        Some("object") => json!({}),
        Some("array") => json!([]),
        Some("string") => json!(""),
        Some("boolean") => json!(true),
        Some("integer" | "number") => json!(1),
        Some(_) | None => Value::Null,
    }
}

fn below(above: &str, key: &str) -> String {
    format!("{above}/{}", key.replace('~', "~0").replace('/', "~1"))
}

fn walk_change(change: &Value, all: &mut Vec<(String, Value)>) {
    if let Value::Object(change) = change {
        walk("", change, all);
    }
}

fn walk(above: &str, object: &Map<String, Value>, all: &mut Vec<(String, Value)>) {
    for (key, value) in object {
        let place = below(above, key);
        if let Value::Object(inner) = value {
            walk(&place, inner, all);
        }
        all.push((place, value.clone()));
    }
}

/// Returns values that are wrong for a field with this sample, even if its driver converts numbers, texts and
/// single-element lists.
fn wrong_values(sample: &Value) -> Vec<Value> {
    let object = json!({"conformance": "a text"});
    match sample {
        Value::Null | Value::String(_) | Value::Number(_) | Value::Bool(_) => {
            vec![Value::Null, object, json!(["a text", "another"])]
        }
        Value::Array(_) => vec![Value::Null, object, json!(true)],
        Value::Object(_) => vec![Value::Null, json!("a text"), json!(["a text"]), json!(7)],
    }
}

/// The codes that a call may answer in addition to OK. A VM that was never created is NOT_FOUND.
const TAKEN_OR_REFUSED: [Code; 4] = [
    Code::InvalidArgument,
    Code::OutOfRange,
    Code::NotFound,
    Code::Aborted,
];

/// Further codes that a call about an existing VM may answer: the spec may request another VM, or more than
/// there is room for.
const REFUSED_OF_A_VM: [Code; 4] = [
    Code::AlreadyExists,
    Code::FailedPrecondition,
    Code::ResourceExhausted,
    Code::Uninitialized,
];

/// Checks an answer. A wrong mandatory field must be refused. Any other may be ignored, or refused with one
/// of these codes.
fn check<T>(answer: Answer<T>, is_mandatory: bool, fine: &[Code]) -> CaseResult {
    if is_mandatory {
        answer.refused(Code::InvalidArgument).map(drop)
    } else {
        answer.ok_or(fine).map(drop)
    }
}

async fn field_types(t: TestContext, operation: Operation) -> CaseResult {
    let mandatory = t.config().mandatory();
    let mut number = 0;
    for (place, sample) in places(&t) {
        for value in wrong_values(&sample) {
            number += 1;
            let what = format!("by a provider spec with {value} as {place}");
            let request = t.machine_request(&format!("n{number}")).with_value(&place, value);
            let answer = t.invoke(operation, &request, None).await?;
            let is_accepted = matches!(answer.code(), None | Some(Code::Aborted));
            let checked = check(answer, mandatory.contains(&place), &TAKEN_OR_REFUSED);
            checked.map_err(|error| error.after(&what))?;
            if is_accepted && operation == Operation::CreateMachine {
                t.settle().await;
                if place == t.capabilities().tag_path.child(tags::MACHINE) {
                    let owned = of_no_machine(&t).await;
                    owned.map_err(|error| error.after(&what))?;
                }
                let removed = t.remove(&request, None).await;
                removed.map_err(|error| error.after(&what))?;
            }
        }
    }
    t.settle().await;
    t.has_none(&t.machine_request("n1")).await
}

/// Fails if the list reports an owner for a VM whose tag names none: a null that is read as text is the name
/// of an owner that does not exist.
async fn of_no_machine(t: &TestContext) -> CaseResult {
    if !t.supports(Operation::ListMachines) {
        return Ok(());
    }
    let listed = t.list(&t.machine_request("n1")).await?;
    let listed = listed.ok().map_err(CaseError::in_preparation)?;
    let told = listed.into_iter().filter_map(|vm| vm.machine_id);
    let owners: Vec<_> = told.filter(|owner| !owner.is_empty()).collect();
    ensure(owners.is_empty(), || {
        format!("the list says that the VM is of the machine object {owners:?}")
    })
}

/// The codes that a call about no machine may answer in addition to OK. Fields that CreateMachine requires
/// may be absent: a Cluster asks for its failure domains before it has a machine.
const REFUSED_OF_A_CLASS: [Code; 2] = [Code::InvalidArgument, Code::OutOfRange];

/// Returns the sample class with each wrong value, and a description of the mistake.
fn wrong_classes(t: &TestContext) -> Vec<(String, MachineClass)> {
    let mut all = Vec::new();
    for (place, sample) in places(t) {
        for value in wrong_values(&sample) {
            let what = format!("by a provider spec with {value} as {place}");
            let mut request = t.machine_request("a");
            request.class = t.sample();
            all.push((what, request.with_value(&place, value).class));
        }
    }
    all
}

async fn of_a_class<Q>(t: TestContext, request: fn(MachineClass) -> Q) -> CaseResult
where
    Q: Request<Response: Texts>,
{
    for (what, class) in wrong_classes(&t) {
        let answer = t.ask(request(class)).await?;
        let checked = check(answer, false, &REFUSED_OF_A_CLASS);
        checked.map_err(|error| error.after(&what))?;
    }
    Ok(())
}

/// Common volume sources, for a driver whose own sources the configuration does not name.
fn sources() -> Vec<Value> {
    vec![
        json!({"csi": {"driver": "csi.example.com", "volumeHandle": "volume-1"}}),
        json!({"nfs": {"server": "nfs.example.com", "path": "/"}}),
    ]
}

async fn volumes(t: TestContext) -> CaseResult {
    let own = t.config().persistent_volumes.own.iter();
    let own: Vec<_> = own
        .map(|volume| (volume.spec.clone(), Some(volume.volume_id.clone())))
        .collect();
    let others = sources().into_iter().map(|spec| (spec, None));
    for (spec, id) in own.into_iter().chain(others) {
        let mut all = Vec::new();
        walk_change(&spec, &mut all);
        for (place, sample) in all {
            for value in wrong_values(&sample) {
                let what = format!("by a volume of which {place} is {value}");
                let mut wrong = spec.clone();
                if let Some(field) = wrong.pointer_mut(&place) {
                    *field = value;
                }
                let answer = t.volume_ids(vec![wrong]).await?;
                let answered = answer.ok_or(&[Code::InvalidArgument]);
                let ids = answered.map_err(|error| error.after(&what))?.unwrap_or_default();
                // The driver may ignore this value and answer with the id anyway.
                ensure(ids.iter().all(|found| Some(found) == id.as_ref()), || {
                    format!("the ids are {ids:?} {what}")
                })?;
            }
        }
    }
    Ok(())
}

/// Sends the wrong values in a call about an existing VM, which must stay unchanged. A spec may request
/// another VM, and a VM may be in a state that the call does not accept.
async fn field_types_of_a_vm(t: TestContext, operation: Operation) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    let (mut sample, mut places) = (request.clone(), places(&t));
    if operation == Operation::UpdateMachine {
        for change in &t.config().hot_updates {
            sample = sample.changed(change);
        }
        let known: Vec<_> = places.iter().map(|(place, _)| place.clone()).collect();
        let hot = hot_places(&t).into_iter();
        places.extend(hot.filter(|(place, _)| !known.contains(place)));
    }
    let mandatory = t.config().mandatory();
    for (place, value) in places {
        for value in wrong_values(&value) {
            let what = format!("by a provider spec with {value} as {place}");
            let wrong = sample.clone().with_value(&place, value);
            let answer = t.invoke(operation, &wrong, Some(&id)).await?;
            let fine = [&TAKEN_OR_REFUSED[..], &REFUSED_OF_A_VM[..]].concat();
            let checked = check(answer, mandatory.contains(&place), &fine);
            checked.map_err(|error| error.after(&what))?;
        }
    }
    // An update that was accepted has left its values behind.
    let is_updated =
        operation == Operation::UpdateMachine && t.update(&sample, &sample, &id).await?.result.is_ok();
    let last = if is_updated { &sample } else { &request };
    t.settle().await;
    t.has_only(last, &id).await
}
