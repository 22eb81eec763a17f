//! Updates of which the driver has done a part when it fails.

use anyhow::{Result, ensure};
use cmi_driver::Operation;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::{InPlace, ids, moved_in_the_middle, retemplate, says_of_its_update, tier, updated};
use crate::support::{Cloud, Extension, Fleet, by_hand};

/// UPD-03: one of two changed places of the VM has its new value when the driver fails. The spec of before,
/// which is the one that was applied last, takes that back, and the same spec again brings the rest.
#[tokio::test]
async fn a_vm_that_is_half_updated_comes_to_the_spec_of_before_and_to_the_one_that_was_asked_for()
-> Result<()> {
    let in_place = InPlace::new("in-place-half").await?;
    let cloud = &in_place.cloud;
    let _serving = in_place.serve().await?;
    let fleet = in_place.fleet(1).await?;
    retemplate(&fleet, "silver", both("silver")).await?;
    updated(&in_place, &fleet, "silver").await?;
    let before = cloud.holds(1).await?;
    labelled(cloud, "silver", "silver")?;

    // Back to the spec of before: core moves no Machine whose update goes on, so the InfraMachine is changed.
    half_updated(&in_place, &fleet, "gold").await?;
    let name = before[0].name.as_str();
    let back = Patch::Merge(json!({"spec": {"providerSpec": {"labels": both("silver")["labels"]}}}));
    by_hand::infra_machines(&in_place.world)
        .patch(name, &PatchParams::default(), &back)
        .await?;
    cloud.fail(json!([]))?;
    updated(&in_place, &fleet, "silver").await?;
    labelled(cloud, "silver", "silver")?;

    // On to the spec that was asked for.
    half_updated(&in_place, &fleet, "golden").await?;
    cloud.fail(json!([]))?;
    updated(&in_place, &fleet, "golden").await?;
    labelled(cloud, "golden", "golden")?;
    ensure!(ids(&cloud.holds(1).await?) == ids(&before), "the VM was replaced");
    let machines = fleet.running(1).await?;
    let deletes = cloud.count(Operation::DeleteMachine, &machines[0].name_any())?;
    ensure!(deletes == 0, "{deletes} deletions");
    Extension::unregister(&in_place.world).await
}

/// UPD-03: the VM that has one of two new values when `clusterctl move` comes has both at the target.
#[tokio::test]
async fn a_vm_that_is_half_updated_when_it_is_moved_comes_to_the_new_spec_at_the_target() -> Result<()> {
    let half = json!([
        {"operation": "UpdateMachine", "half": "Aborted", "count": 1},
        {"operation": "UpdateMachine", "code": "Aborted"},
    ]);
    moved_in_the_middle("in-place-half-move", half, "Aborted", both).await
}

/// The spec of [`tier`] with a second label, which the driver changes after the first.
fn both(name: &str) -> Value {
    let mut spec = tier(name);
    spec["labels"]["zoning"] = json!(name);
    spec
}

/// Updates the silver VM to another tier, of which the driver does a part and then fails until it is told
/// otherwise.
async fn half_updated(in_place: &InPlace, fleet: &Fleet<'_>, name: &str) -> Result<()> {
    in_place.cloud.fail(json!([
        {"operation": "UpdateMachine", "half": "Aborted", "count": 1},
        {"operation": "UpdateMachine", "code": "Aborted"},
    ]))?;
    retemplate(fleet, name, both(name)).await?;
    says_of_its_update(&in_place.world, "Aborted: UpdateMachine").await?;
    labelled(&in_place.cloud, name, "silver")
}

/// Holds the labels of the only VM against these.
fn labelled(cloud: &Cloud, tier: &str, zoning: &str) -> Result<()> {
    let vms = cloud.vms()?;
    let expected = [("tier", tier), ("zoning", zoning)];
    let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
    ensure!(vms.len() == 1 && vms[0].labels == expected.into(), "{vms:?}");
    Ok(())
}
