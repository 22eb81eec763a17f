//! GetVolumeIDs.

use serde_json::{Value, json};

use super::cases;
use super::requests::as_declared;
use crate::answer::{CaseError, CaseResult, ensure};
use crate::{Case, Need, Setting, TestContext};
use cmi_driver::{Code, Operation};

const VOLUMES: Need = Need::Call(Operation::GetVolumeIds);
const OWN: Need = Need::Setting(Setting::OwnVolumes);
const FOREIGN: Need = Need::Setting(Setting::ForeignVolumes);

pub(super) const CASES: &[Case] = cases! {
    "volumes-offered": "a declared call works, an undeclared call is UNIMPLEMENTED"
        ["DRV-40", "DRV-GV-12", "PLG-GV-12", "CMI-146"], [] => |t| as_declared(t, Operation::GetVolumeIds);
    "volumes-own": "the IDs of own volumes are returned, in order"
        ["DRV-42", "DRV-GV-00", "PLG-GV-00"], [VOLUMES, OWN] => own;
    "volumes-several": "the IDs of several own volumes are returned in order, with repeats and others between"
        ["DRV-43", "CMI-147"], [VOLUMES, OWN] => several;
    "volumes-foreign": "volumes of others get no ID; a volume without a source may be INVALID_ARGUMENT"
        ["DRV-44", "CMI-148"], [VOLUMES, OWN, FOREIGN] => foreign;
    "volumes-none": "an empty list is OK without IDs, or INVALID_ARGUMENT"
        ["DRV-44", "CMI-151"], [VOLUMES] => none;
    "volumes-ten-times": "ten calls return the same answer"
        ["DRV-45", "CMI-149"], [VOLUMES, OWN] => ten_times;
    "volumes-invalid": "an invalid PersistentVolume spec is INVALID_ARGUMENT, and the message explains it"
        ["DRV-GV-03", "PLG-GV-03", "DRV-46", "CMI-152"], [VOLUMES] => invalid;
};

fn specs(t: &TestContext) -> (Vec<Value>, Vec<String>) {
    let own = &t.config().persistent_volumes.own;
    own.iter()
        .map(|volume| (volume.spec.clone(), volume.volume_id.clone()))
        .unzip()
}

fn equal(found: &[String], wanted: &[String]) -> CaseResult {
    ensure(found == wanted, || {
        format!("the volume ids have to be {wanted:?}, and are {found:?}")
    })
}

async fn own(t: TestContext) -> CaseResult {
    let (specs, wanted) = specs(&t);
    equal(&t.volume_ids(specs.clone()).await?.ok()?, &wanted)?;
    let turned = |values: Vec<_>| values.into_iter().rev().collect::<Vec<_>>();
    let ids = t.volume_ids(specs.into_iter().rev().collect()).await?.ok()?;
    equal(&ids, &turned(wanted))
}

/// A single volume does not show that further volumes count, so the case uses two.
async fn several(t: TestContext) -> CaseResult {
    let (specs, wanted) = specs(&t);
    let ([first, second, ..], [one, two, ..]) = (specs.as_slice(), wanted.as_slice()) else {
        return Err(CaseError::Unconfigured {
            reason: "`persistentVolumes.own` has one volume; name a second one".to_owned(),
            setting: Setting::OwnVolumes,
        });
    };
    let foreign = json!({"nfs": {"server": "nfs.example.com", "path": "/"}});
    for (specs, wanted) in [
        (vec![&foreign, first, &foreign, second], vec![one, two]),
        (vec![second, &foreign, &foreign, first, &foreign], vec![two, one]),
    ] {
        let ids = t.volume_ids(specs.into_iter().cloned().collect()).await?.ok()?;
        equal(&ids, &wanted.into_iter().cloned().collect::<Vec<_>>())?;
    }
    let twice = [first, second, first].map(Value::clone).to_vec();
    let ids = t.volume_ids(twice).await?.ok()?;
    // The driver may answer the id once or twice for a volume that is requested twice.
    let choices = [vec![one, two, one], vec![one, two]];
    ensure(
        choices.iter().any(|choice| ids.iter().eq(choice.iter().copied())),
        || format!("the ids of the volumes {one}, {two} and {one} again are {ids:?}"),
    )
}

async fn foreign(t: TestContext) -> CaseResult {
    let (own, wanted) = specs(&t);
    let mut mixed = t.config().persistent_volumes.foreign.clone();
    mixed.extend(own);
    mixed.push(json!({"nfs": {"server": "nfs.example.com", "path": "/"}}));
    equal(&t.volume_ids(mixed.clone()).await?.ok()?, &wanted)?;
    // Kubernetes has no spec without a source: the driver gives it no id, or refuses it.
    mixed.insert(0, json!({}));
    let ids = t.volume_ids(mixed).await?.ok_or(&[Code::InvalidArgument])?;
    ids.map_or(Ok(()), |ids| equal(&ids, &wanted))
}

async fn none(t: TestContext) -> CaseResult {
    equal(&t.volume_ids(Vec::new()).await?.ok()?, &[])
}

async fn ten_times(t: TestContext) -> CaseResult {
    let (specs, wanted) = specs(&t);
    for _ in 0..10 {
        equal(&t.volume_ids(specs.clone()).await?.ok()?, &wanted)?;
    }
    Ok(())
}

async fn invalid(t: TestContext) -> CaseResult {
    for spec in [json!("a text"), json!(7), json!([])] {
        let status = t.volume_ids(vec![spec]).await?.refused(Code::InvalidArgument)?;
        super::secrets::speaks(&status)?;
    }
    Ok(())
}
