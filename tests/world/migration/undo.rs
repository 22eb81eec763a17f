//! `capcmi migrate --undo`.

use anyhow::{Context as _, Result, bail, ensure};
use capcmi::api::annotations::FORCE_DELETE;
use capcmi_cli::migration::plan::UNDOING;
use kube::api::DeleteParams;
use management_cluster::eventually;
use serde_json::json;

use super::left::{Left, NAMES, STOPPED};
use crate::support::DEADLINE;

const UNDO: [&str; 2] = ["--undo", STOPPED];

/// CTL-06: the command is killed after each write, and run again. In the end all objects of the migration are
/// gone and all VMs exist. No other migration can start before that.
#[tokio::test(start_paused = true)]
async fn the_way_back_that_is_cut_off_after_every_write_is_taken_up_again() -> Result<()> {
    let left = Left::new("undo-cut").await?;
    let mut all = left.objects().deployment(&NAMES)?;
    all.push(
        left.objects()
            .machine("alone", &left.objects().plant("alone")?, None),
    );
    left.objects().apply(all).await?;
    let (vms, before) = (left.cloud.holds(3).await?, left.theirs().await?);
    left.done(&[STOPPED]).await?;
    left.runs(3).await?;

    let (mut cut, mut refused) = (0, 0);
    while left.is_cut_off(&UNDO).await? {
        cut += 1;
        ensure!(cut < 60, "it never ends");
        let is_unmarked = left.theirs().await? == before;
        match left.ended(&[STOPPED, "--dry-run"]).await? {
            Err(error) if error.contains("unfinished --undo") => refused += 1,
            // After the last object of a class, no mark of the migration is left.
            Ok(planned) => ensure!(is_unmarked || planned.contains("create"), "{planned}"),
            Err(other) => bail!("{other}"),
        }
    }
    ensure!(
        cut >= 20 && refused >= 10,
        "{cut} writes were cut off, {refused} migrations refused"
    );
    ensure!(left.made().await?.is_empty(), "{:?}", left.made().await?);
    ensure!(left.theirs().await? == before, "{:#?}", left.theirs().await?);
    ensure!(left.cloud.vms()? == vms, "{:?}", left.cloud.vms()?);
    left.changed_no_vm()?;

    left.done(&[STOPPED]).await?;
    left.runs(3).await?;
    ensure!(left.cloud.vms()? == vms, "{:?}", left.cloud.vms()?);
    left.changed_no_vm()
}

/// CTL-06: nothing is undone where machine-controller-manager would lose a VM, or have another than it knows.
#[tokio::test(start_paused = true)]
async fn nothing_is_undone_where_a_machine_is_not_as_the_migration_has_left_it() -> Result<()> {
    let left = Left::new("undo-not").await?;
    left.objects().apply(left.objects().deployment(&NAMES)?).await?;
    left.done(&[STOPPED]).await?;
    left.runs(2).await?;
    let [first, second] = NAMES;

    let undo = async || {
        let before = left.versions().await?;
        let refused = left.refused(&UNDO).await?;
        ensure!(refused.contains("nothing was undone"), "{refused}");
        ensure!(left.versions().await? == before, "something was written");
        untouched(&left).await?;
        Ok(refused)
    };
    // A pause keeps the VM unchanged.
    let paused = json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": ""}}});
    left.patch("InfraMachine", first, paused).await?;
    let tag = |value: &str| json!({"spec": {"providerSpec": {"tags": {"worker": value}}}});
    left.patch("InfraMachine", first, tag("2")).await?;
    let changed = undo().await?;
    ensure!(
        changed.contains(&format!("InfraMachine {first}: spec.providerSpec is"))
            && changed.contains(&format!("InfraMachine {first} is paused")),
        "{changed}"
    );
    left.patch("InfraMachine", first, tag("1")).await?;
    let resumed = json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": null}}});
    left.patch("InfraMachine", first, resumed).await?;

    left.theirs_of("Machine")
        .delete(second, &DeleteParams::default())
        .await?;
    let unknown = undo().await?;
    ensure!(
        unknown.contains(&format!("for InfraMachine {second} does not exist")),
        "{unknown}"
    );

    left.scale("MachineDeployment", "workers", 3).await?;
    left.runs(3).await?;
    let later = undo().await?;
    ensure!(
        later.contains("Cluster API created Machine workers-migrated-"),
        "{later}"
    );

    let vms = left.cloud.vms()?;
    let vm = vms.iter().find(|vm| vm.name == first).context("no VM")?;
    left.cloud.console()?.vanish(vm.id)?;
    let gone = undo().await?;
    ensure!(
        gone.contains(&format!("does not find the VM of Machine {first}")),
        "{gone}"
    );
    Ok(())
}

/// CTL-06: with a MachineDeployment the garbage collector deletes its Machines, and core their VMs: also
/// those of one that had none at the migration. And marks alone are no proof that this is the right
/// management cluster.
#[tokio::test(start_paused = true)]
async fn undo_refuses_later_machines_and_an_empty_management_cluster() -> Result<()> {
    let left = Left::new("undo-empty").await?;
    let mut all = left.objects().class();
    let mut empty = left.objects().set("MachineDeployment", "empty", None);
    empty["spec"]["replicas"] = json!(0);
    all.push(empty);
    left.objects().apply(all).await?;
    left.done(&[STOPPED]).await?;
    left.scale("MachineDeployment", "empty", 1).await?;
    left.runs(1).await?;
    let vms = left.cloud.holds(1).await?;
    let undo = async || {
        let refused = left.refused(&UNDO).await;
        untouched(&left).await?;
        refused
    };
    let later = undo().await?;
    ensure!(
        later.contains("Cluster API created Machine empty-migrated-"),
        "{later}"
    );
    ensure!(left.cloud.vms()? == vms, "{:?}", left.cloud.vms()?);

    left.ours_of("MachineDeployment")
        .delete("empty", &DeleteParams::default())
        .await?;
    left.runs(0).await?;
    let said =
        "MachineDeployment empty is marked as migrated, but nothing of it exists in this management cluster";
    eventually(DEADLINE, "the end of the MachineDeployment", async || {
        let elsewhere = undo().await?;
        ensure!(elsewhere.contains(said), "{elsewhere}");
        Ok(())
    })
    .await
}

/// Nothing of Cluster API says that it is being undone, or is to go without its VM.
async fn untouched(left: &Left) -> Result<()> {
    for object in left.ours().await? {
        let text = serde_json::to_string(&object)?;
        for mark in [UNDOING, FORCE_DELETE] {
            ensure!(!text.contains(mark), "{mark} in {text}");
        }
    }
    Ok(())
}
