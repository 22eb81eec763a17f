//! GetVolumeIDs.

use serde_json::{Value, json};

use super::cases;
use crate::answer::{CaseResult, ensure};
use crate::{Case, Need, Setting, TestContext};
use cmi_driver::{Code, Operation};

const VOLUMES: Need = Need::Call(Operation::GetVolumeIds);
const OWN: Need = Need::Setting(Setting::OwnVolumes);
const FOREIGN: Need = Need::Setting(Setting::ForeignVolumes);

pub(super) const CASES: &[Case] = cases! {
    "volumes-offered": "the call works when it is declared, and is UNIMPLEMENTED when it is not"
        ["DRV-40", "DRV-GV-12", "PLG-GV-12", "CMI-146"], [] => offered;
    "volumes-own": "the ids of own volumes come out, in order"
        ["DRV-42", "DRV-43", "DRV-GV-00", "PLG-GV-00", "CMI-147"], [VOLUMES, OWN] => own;
    "volumes-foreign": "volumes of others have no id here"
        ["DRV-44", "CMI-148"], [VOLUMES, OWN, FOREIGN] => foreign;
    "volumes-none": "no volumes have no ids, unless an empty list is INVALID_ARGUMENT"
        ["DRV-44", "CMI-151"], [VOLUMES] => none;
    "volumes-ten-times": "ten questions have one answer"
        ["DRV-45", "CMI-149"], [VOLUMES, OWN] => ten_times;
    "volumes-invalid": "what is no PersistentVolume spec is INVALID_ARGUMENT, in a message that says so"
        ["DRV-GV-03", "PLG-GV-03", "DRV-46", "CMI-152"], [VOLUMES] => invalid;
};

fn specs(t: &TestContext) -> (Vec<Value>, Vec<String>) {
    let own = &t.config().persistent_volumes.own;
    own.iter()
        .map(|volume| (volume.spec.clone(), volume.volume_id.clone()))
        .unzip()
}

async fn offered(t: TestContext) -> CaseResult {
    let wanted = t.offers(Operation::GetVolumeIds);
    for _ in 0..3 {
        let answer = t.volume_ids(specs(&t).0).await?;
        if wanted {
            answer.ok()?;
        } else {
            answer.refused(Code::Unimplemented)?;
        }
    }
    Ok(())
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

async fn foreign(t: TestContext) -> CaseResult {
    let (own, wanted) = specs(&t);
    let mut mixed = t.config().persistent_volumes.foreign.clone();
    mixed.push(json!({}));
    mixed.extend(own);
    mixed.push(json!({"nfs": {"server": "nfs.example.com", "path": "/"}}));
    equal(&t.volume_ids(mixed).await?.ok()?, &wanted)
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
