//! UpdateMachine.

use std::collections::BTreeSet;

use serde_json::Value;

use super::cases;
use super::requests::reaches_the_plugin;
use super::status::{counted, mutations};
use crate::answer::{CaseError, CaseResult, ensure};
use crate::config::changed_places;
use crate::{Case, Hook, MachineRequest, Need, Setting, TestContext};
use cmi_driver::{Code, JsonPointer, Operation, ProviderId};

const UPDATE: Need = Need::Call(Operation::UpdateMachine);
const HOT_UPDATES: Need = Need::Setting(Setting::HotUpdates);

pub(super) const CASES: &[Case] = cases! {
    "update-offered": "a declared call works, an undeclared call is UNIMPLEMENTED"
        ["UPD-02", "CAP-05"], [] => offered;
    "update-there-and-back":
        "each change is applied and reverted on the same VM, also after a partial update, and can be repeated"
        ["UPD-02"], [UPDATE, HOT_UPDATES] => there_and_back;
    "update-changes-once": "the back end records each change and its reversal once, and no repeats"
        ["UPD-03"], [UPDATE, HOT_UPDATES, Need::Hook(Hook::Mutations)] => changes_once;
    "update-any-state":
        "the VM reaches the requested spec from any partial state, regardless of the last applied spec"
        ["UPD-03"], [UPDATE, HOT_UPDATES, Need::Hook(Hook::Mutations)] => any_state;
    "update-written": "the VM gets each requested value, and the old one after the reversal"
        ["UPD-03", "CAP-23"], [UPDATE, HOT_UPDATES, Need::Hook(Hook::VmSpec)] => written;
    "update-keeps-the-owner": "an update does not change the tags in a list"
        ["CAP-33"], [UPDATE, HOT_UPDATES, Need::Call(Operation::ListMachines)] => keeps_the_owner;
    "update-keeps-the-rest": "an update keeps settings that it does not name"
        ["CAP-33"], [UPDATE, HOT_UPDATES, Need::Hook(Hook::VmSpec)] => keeps_the_rest;
    "update-nothing": "an update without a change changes nothing"
        ["UPD-03"], [UPDATE, Need::Hook(Hook::Mutations)] => nothing;
    "update-status": "an updated VM is found, and initialized, by its new spec"
        ["UPD-02"], [UPDATE, HOT_UPDATES, Need::Call(Operation::GetMachineStatus)] => found_by_the_new_spec;
    "update-never-made": "an unknown machine is neither updated nor created"
        ["UPD-02"], [UPDATE] => never_made;
    "update-other-cluster": "a VM of the same name in another cluster is not updated"
        ["UPD-03"], [UPDATE, HOT_UPDATES, Need::Hook(Hook::Mutations)] => other_cluster;
};

async fn offered(t: TestContext) -> CaseResult {
    reaches_the_plugin(&t, Operation::UpdateMachine)?;
    let (request, id) = t.prepare_vm("a").await?;
    let answer = t.update(&request, &request, &id).await?;
    if t.supports(Operation::UpdateMachine) {
        answer.ok()
    } else {
        answer.refused(Code::Unimplemented).map(|_| ())
    }
}

/// Returns the request with each hot update, and the change.
fn updated(t: &TestContext, request: &MachineRequest) -> CaseResult<Vec<(MachineRequest, Value)>> {
    let updates = t.config().hot_updates.iter();
    updates
        .map(|change| {
            let wanted = request.clone().changed(change);
            ensure(wanted.class.provider_spec != request.class.provider_spec, || {
                format!("the change {change} changes nothing")
            })?;
            Ok((wanted, change.clone()))
        })
        .collect()
}

/// Returns a hot update and its reversal, each with a description of its effect.
fn there_and_back_by<'a>(
    request: &'a MachineRequest,
    wanted: &'a MachineRequest,
    change: &Value,
) -> [(&'a MachineRequest, &'a MachineRequest, String); 2] {
    let back = format!("what takes the change {change} back");
    [
        (request, wanted, format!("the change {change}")),
        (wanted, request, back),
    ]
}

async fn there_and_back(t: TestContext) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    for (wanted, _) in updated(&t, &request)? {
        for _ in 0..2 {
            t.update(&request, &wanted, &id).await?.ok()?;
        }
        // The request takes back an update that is half done, although its spec was the last that was applied
        // in full.
        t.update(&request, &request, &id).await?.ok()?;
        is_the_same(&t, &request, &id).await?;
    }
    t.has_only(&request, &id).await
}

/// The answers of UpdateMachine do not show its effect: a driver that does nothing gives the same answers.
async fn changes_once(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let id = counted(&t, &request).await?;
    for (wanted, change) in updated(&t, &request)? {
        for (from, to, what) in there_and_back_by(&request, &wanted, &change) {
            is_made_once(&t, from, to, &id, &what).await?;
        }
        is_the_same(&t, &request, &id).await?;
    }
    t.has_only(&request, &id).await
}

/// Updates twice: the first update has something to do, the second has not.
async fn is_made_once(
    t: &TestContext,
    from: &MachineRequest,
    to: &MachineRequest,
    id: &ProviderId,
    what: &str,
) -> CaseResult {
    let before = mutations(t).await?;
    t.update(from, to, id).await?.ok()?;
    let made = mutations(t).await?;
    ensure(made > before, || {
        format!("UpdateMachine answered OK, and the back end has not seen {what}")
    })?;
    t.settle().await;
    t.update(from, to, id).await?.ok()?;
    ensure(mutations(t).await? == made, || {
        format!("the VM was changed again although {what} had been made")
    })
}

pub(super) async fn is_the_same(t: &TestContext, request: &MachineRequest, id: &ProviderId) -> CaseResult {
    let again = t.create(request).await?.ok()?;
    ensure(again.provider_id == *id, || {
        "the VM is another one since it was updated".to_owned()
    })
}

/// Whether a spec sets a value that the other lacks or that differs there. A spec that only lacks fields of
/// the other requests a removal. A driver may ignore that, if it cannot tell its own values from others.
fn sets_something(spec: &Value, beside: Option<&Value>) -> bool {
    match (spec, beside) {
        (Value::Object(fields), Some(Value::Object(others))) => fields
            .iter()
            .any(|(key, value)| sets_something(value, others.get(key))),
        _ => Some(spec) != beside,
    }
}

fn spec(request: &MachineRequest) -> Value {
    Value::Object(request.class.provider_spec.0.clone())
}

/// Makes one hot update after the other without reverting any. On the first VM, the requests say that their
/// spec is already applied. On a second VM, their last applied spec is an older one: the previous update may
/// have been cut off without its caller's knowledge. A value of an earlier update may stay on the VM, and
/// then it is not a change.
async fn any_state(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let id = counted(&t, &request).await?;
    let mut has = request.clone();
    for (wanted, change) in updated(&t, &request)? {
        if !sets_something(&spec(&wanted), Some(&spec(&has))) {
            continue;
        }
        let what = format!(
            "the change {change}, by a request that has the same spec as the last that was applied and as \
                the one that is wanted"
        );
        is_made_once(&t, &wanted, &wanted, &id, &what).await?;
        has = has.changed(&spec(&wanted));
    }
    let (request, id) = t.prepare_vm("b").await?;
    let (mut has, mut last) = (request.clone(), request.clone());
    for (wanted, change) in updated(&t, &request)? {
        if sets_something(&spec(&wanted), Some(&spec(&has))) {
            let what = format!("the change {change}, by a request whose last applied spec is an older one");
            is_made_once(&t, &request, &wanted, &id, &what).await?;
            has = has.changed(&spec(&wanted));
            last = wanted;
        }
    }
    is_the_same(&t, &last, &id).await
}

/// Returns the values that the VM has, as the back end shows them.
pub(super) async fn vm_spec(t: &TestContext, request: &MachineRequest) -> CaseResult<Value> {
    let printed = t.run_hook_on(Hook::VmSpec, request).await?;
    match serde_json::from_slice(&printed) {
        Ok(Value::Object(spec)) => Ok(Value::Object(spec)),
        _ => Err(CaseError::Inconclusive(format!(
            "the hook `vmSpec` has to print a JSON object, and printed `{}`",
            String::from_utf8_lossy(&printed).trim()
        ))),
    }
}

fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| "nothing".to_owned(), Value::to_string)
}

/// Fails unless the VM has the value that an update requested at this place.
pub(super) fn is_written(place: &str, asked: &Value, has: &Value) -> CaseResult {
    ensure(has.pointer(place) == Some(asked), || {
        format!(
            "UpdateMachine answered OK, {place} of the provider spec was {asked}, and the VM has {} there, \
             says the hook `vmSpec`",
            shown(has.pointer(place))
        )
    })
}

/// Only the back end shows the value. A driver that writes a wrong value and compares the spec with its own
/// value also makes the change exactly once.
async fn written(t: TestContext) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    let before = vm_spec(&t, &request).await?;
    for (wanted, change) in updated(&t, &request)? {
        t.update(&request, &wanted, &id).await?.ok()?;
        t.settle().await;
        let (has, asked) = (vm_spec(&t, &request).await?, spec(&wanted));
        let places: Vec<_> = changed_places(&change).iter().map(ToString::to_string).collect();
        for place in &places {
            // After a removal, the value that the VM has is the back end's own choice.
            let Some(asked) = asked.pointer(place) else {
                continue;
            };
            is_written(place, asked, &has)?;
        }
        t.update(&wanted, &request, &id).await?.ok()?;
        t.settle().await;
        let has = vm_spec(&t, &request).await?;
        for place in &places {
            ensure(has.pointer(place) == before.pointer(place), || {
                format!(
                    "{place} of the VM was {} before the change {change}, and is {} since UpdateMachine took \
                     it back, says the hook `vmSpec`",
                    shown(before.pointer(place)),
                    shown(has.pointer(place))
                )
            })?;
        }
    }
    Ok(())
}

/// Returns the cluster and the machine object of a VM from the list.
async fn owner(
    t: &TestContext,
    request: &MachineRequest,
    id: &ProviderId,
) -> CaseResult<[Option<String>; 2]> {
    let listed = t.list(request).await?.ok().map_err(CaseError::in_preparation)?;
    let found = listed.into_iter().find(|vm| vm.provider_id == *id);
    Ok(found.map_or([None, None], |vm| [vm.cluster_id, vm.machine_id]))
}

/// A VM without its owner's tags belongs to no machine: the driver no longer finds it, or it counts as an
/// orphan.
async fn keeps_the_owner(t: TestContext) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    let before = owner(&t, &request, &id).await?;
    if before == [None, None] {
        return Err(CaseError::Skipped(
            "the list tells neither cluster nor machine of a VM".to_owned(),
        ));
    }
    for (wanted, change) in updated(&t, &request)? {
        for (from, to, what) in there_and_back_by(&request, &wanted, &change) {
            t.update(from, to, &id).await?.ok()?;
            t.settle().await;
            let after = owner(&t, &request, &id).await?;
            ensure(after == before, || {
                format!(
                    "the list told cluster and machine of the VM `{id}` as {before:?} before UpdateMachine \
                     made {what}, and tells {after:?} after it"
                )
            })?;
        }
    }
    Ok(())
}

/// Returns the values of a VM beside these places: the tags, and the fields of each object with such a place.
fn beside(has: &Value, places: &[JsonPointer], tag_path: &JsonPointer) -> Vec<(String, Value)> {
    let above = places.iter().filter_map(JsonPointer::parent);
    let objects: BTreeSet<_> = above.chain([tag_path.clone()]).collect();
    let entries = objects.iter().flat_map(|object| {
        let fields = has.pointer(&object.to_string()).and_then(Value::as_object);
        let fields = fields.into_iter().flatten();
        fields.map(|(key, value)| (object.child(key), value.clone()))
    });
    entries
        .filter(|(entry, _)| {
            !places
                .iter()
                .any(|place| place.covers(entry) || entry.covers(place))
        })
        .map(|(entry, value)| (entry.to_string(), value))
        .collect()
}

/// Values that are in neither the new nor the last spec belong to others: the back end or its operator.
async fn keeps_the_rest(t: TestContext) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    for (wanted, change) in updated(&t, &request)? {
        let places = changed_places(&change);
        let before = vm_spec(&t, &request).await?;
        let rest = beside(&before, &places, &t.capabilities().tag_path);
        for (from, to, what) in there_and_back_by(&request, &wanted, &change) {
            t.update(from, to, &id).await?.ok()?;
            t.settle().await;
            let has = vm_spec(&t, &request).await?;
            for (place, value) in &rest {
                ensure(has.pointer(place) == Some(value), || {
                    format!(
                        "{place} of the VM was {value} before UpdateMachine made {what}, which does not name \
                         it, and is {} after it, says the hook `vmSpec`",
                        shown(has.pointer(place))
                    )
                })?;
            }
        }
    }
    Ok(())
}

async fn nothing(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let id = counted(&t, &request).await?;
    let before = mutations(&t).await?;
    t.update(&request, &request, &id).await?.ok()?;
    let after = mutations(&t).await?;
    ensure(before == after, || {
        "a VM was changed by an update to the spec that it was made from".to_owned()
    })
}

async fn found_by_the_new_spec(t: TestContext) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    let mut has = request.clone();
    for (wanted, _) in updated(&t, &request)? {
        t.update(&has, &wanted, &id).await?.ok()?;
        t.settle().await;
        let read = t.status(&wanted, Some(&id)).await?.ok()?;
        ensure(read.provider_id == id, || {
            format!(
                "the VM was `{id}`, and is `{}` since it was updated",
                read.provider_id
            )
        })?;
        has = wanted;
    }
    t.update(&has, &request, &id).await?.ok()?;
    t.settle().await;
    t.status(&request, Some(&id)).await?.ok().map(drop)
}

async fn never_made(t: TestContext) -> CaseResult {
    let (request, other) = (t.machine_request("a"), t.machine_request("b"));
    // The id is of the driver's own kind, and its VM is gone.
    let id = t.prepare_gone(&other).await?;
    t.update(&request, &request, &id).await?.refused(Code::NotFound)?;
    t.has_none(&request).await
}

async fn other_cluster(t: TestContext) -> CaseResult {
    let there = t.machine_request("a");
    let here = there.clone().in_cluster(&t.other_cluster());
    let id = counted(&t, &there).await?;
    let before = mutations(&t).await?;
    for (wanted, change) in updated(&t, &here)? {
        // The driver may refuse a foreign id, or find no VM by it.
        t.update(&here, &wanted, &id).await?.refused_with(&[
            Code::NotFound,
            Code::InvalidArgument,
            Code::PermissionDenied,
        ])?;
        ensure(mutations(&t).await? == before, || {
            format!("the change {change} was made to the VM `{id}` of another cluster")
        })?;
    }
    t.survives(&there, &id).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn neighbours_of_a_change_are_the_tags_and_the_fields_beside_it() {
        let has = json!({
            "size": "small",
            "labels": {"purpose": "a", "made-by": "the cloud"},
            "tags": {"team": "b"},
        });
        let change = json!({"labels": {"purpose": "c"}, "size": "large"});
        let rest = beside(&has, &changed_places(&change), &JsonPointer::field("tags"));
        let expected = [("/labels/made-by", "the cloud"), ("/tags/team", "b")];
        assert_eq!(
            rest,
            expected.map(|(place, value)| (place.to_owned(), json!(value)))
        );
    }

    #[test]
    fn a_removal_sets_nothing_and_another_value_does() {
        let has = json!({"size": "small", "labels": {"a": "1", "b": "2"}});
        for (spec, sets) in [
            (json!({"size": "small", "labels": {"a": "1"}}), false),
            (json!({"size": "small"}), false),
            (json!({"labels": {"a": "2"}}), true),
            (json!({"labels": {"c": "1"}}), true),
            (json!({"labels": null}), true),
        ] {
            assert_eq!(sets_something(&spec, Some(&has)), sets, "{spec}");
        }
    }
}
