//! Migrations from machine-controller-manager to Cluster API and back, over the objects that it leaves.
//!
//! `tests/suite` runs machine-controller-manager itself, `clusterctl` and Cluster API.

mod left;
mod undo;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams};
use management_cluster::eventually;
use serde_json::{Value, json};

use self::left::{Left, NAMES, STOPPED};
use crate::support::DEADLINE;
use crate::support::by_hand::infra_machines;
use crate::support::mcm_objects::{TOKEN, guarded};

/// CTL-06: the whole way, by the objects in a cluster.
#[tokio::test(start_paused = true)]
async fn a_foreign_machine_deployment_migrates_with_its_vms() -> Result<()> {
    let left = Left::new("migrate").await?;
    left.objects().apply(left.objects().deployment(&NAMES)?).await?;
    let vms = left.cloud.holds(2).await?;

    warns_of_a_health_check(&left).await?;
    let planned = left.done(&["--dry-run"]).await?;
    let [first, _] = NAMES;
    for part in [
        "2 VMs are adopted",
        &format!("create   InfraMachine {first}: adopts"),
        "create   MachineDeployment workers: 2 replicas",
        "Nothing was written",
    ] {
        ensure!(planned.contains(part), "no `{part}` in: {planned}");
    }
    let made = left.made().await?;
    ensure!(made.is_empty(), "a dry run made {made:?}");

    let unknown = left.refused(&[]).await?;
    ensure!(unknown.contains(STOPPED), "{unknown}");
    left.lease(left::now()).await?;
    let running = left.refused(&[STOPPED]).await?;
    ensure!(running.contains("machine-controller"), "{running}");
    refuses_a_lease_that_is_renewed_or_is_over(&left).await?;
    ensure!(left.made().await?.is_empty(), "{:?}", left.made().await?);

    left.done(&[STOPPED]).await?;
    left.runs(2).await?;
    ensure!(left.cloud.vms()? == vms, "{:?}", left.cloud.vms()?);
    has_the_credentials_of_the_class(&left).await?;
    let before = left.versions().await?;
    let again = left.done(&[]).await?;
    ensure!(again.contains("Everything was already migrated"), "{again}");
    ensure!(left.versions().await? == before, "the second run wrote something");
    for (kind, name) in [
        ("Machine", first),
        ("MachineClass", "small"),
        ("MachineDeployment", "workers"),
    ] {
        let original = left.theirs_of(kind).get(name).await?;
        let marked = original
            .annotations()
            .keys()
            .any(|key| key.contains("migrated-to"));
        ensure!(marked, "{kind} {name}: {:?}", original.annotations());
    }

    refuses_a_machine_that_comes_later(&left).await?;

    // It is a MachineDeployment like any other, and was not rolled.
    let names = |vms: &[cmi_simulated::Vm]| vms.iter().map(|vm| vm.name.clone()).collect::<Vec<_>>();
    left.scale("MachineDeployment", "workers", 3).await?;
    left.runs(3).await?;
    let grown = left.cloud.holds(3).await?;
    ensure!(
        names(&vms).iter().all(|name| names(&grown).contains(name)),
        "{grown:?}"
    );
    left.ours_of("MachineDeployment")
        .delete("workers", &DeleteParams::default())
        .await?;
    left.runs(0).await?;
    left.cloud.holds(0).await?;
    makes_nothing_again(&left).await
}

/// A MachineHealthCheck would look at Machines before their VMs are adopted: the plan names it until it is
/// paused, as the plan says.
async fn warns_of_a_health_check(left: &Left) -> Result<()> {
    left.world
        .apply(
            r"
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineHealthCheck
metadata: {name: check, namespace: $NS}
spec:
  clusterName: md
  selector: {matchLabels: {cluster.x-k8s.io/deployment-name: workers}}
",
        )
        .await?;
    let planned = left.done(&["--dry-run"]).await?;
    let said = format!(
        "kubectl annotate machinehealthcheck --namespace {} check cluster.x-k8s.io/paused=",
        left.world.namespace
    );
    ensure!(
        planned.contains("MachineHealthCheck check selects Machines of this migration (2)")
            && planned.contains(&said),
        "{planned}"
    );
    let paused = json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": ""}}});
    left.patch("MachineHealthCheck", "check", paused).await?;
    let planned = left.done(&["--dry-run"]).await?;
    ensure!(!planned.contains("MachineHealthCheck"), "{planned}");
    Ok(())
}

/// The Secret of the class was copied, the bootstrap data apart from the credentials, and the machines are
/// made with these: the back end refuses calls without them.
async fn has_the_credentials_of_the_class(left: &Left) -> Result<()> {
    let secrets = Api::<Secret>::namespaced(left.world.admin.clone(), &left.world.namespace);
    let data = secrets.get("small-credentials").await?.data.unwrap_or_default();
    ensure!(
        data.len() == 1 && data["token"].0 == TOKEN.as_bytes(),
        "{:?}",
        data.keys()
    );
    for machine in infra_machines(&left.world).list(&ListParams::default()).await? {
        let named = machine.spec.secret_ref.context("no credentials are named")?;
        ensure!(named.name == "small-credentials", "{named:?}");
    }
    Ok(())
}

/// Nothing proves that the other controller is stopped, and a Lease may say that it is not.
async fn refuses_a_lease_that_is_renewed_or_is_over(left: &Left) -> Result<()> {
    // Renewed by a clock that is behind.
    let behind = || left::now() - std::time::Duration::from_mins(2);
    let renewing = async {
        let mut ticks = tokio::time::interval(std::time::Duration::from_millis(500));
        loop {
            ticks.tick().await;
            if let Err(error) = left.lease(behind()).await {
                return error;
            }
        }
    };
    left.lease(behind()).await?;
    let renewed = tokio::select! {
        error = renewing => return Err(error),
        refused = left.refused(&[STOPPED]) => refused?,
    };
    ensure!(renewed.contains("held or changes"), "{renewed}");

    left.lease(behind()).await?;
    let unsaid = left.refused(&[]).await?;
    ensure!(unsaid.contains(STOPPED), "{unsaid}");
    Ok(())
}

/// It is neither left out silently nor marked.
async fn refuses_a_machine_that_comes_later(left: &Left) -> Result<()> {
    let uid = left.theirs_of("MachineSet").get("workers-1").await?.uid();
    let mut late = left
        .objects()
        .machine("late", "simulated://late", Some(("MachineSet", "workers-1")));
    late["metadata"]["ownerReferences"][0]["uid"] = json!(uid);
    management_cluster::apply(&left.world.admin, late).await?;
    let came = left.failed(&[STOPPED]).await?;
    ensure!(
        came.contains("ran after the migration") && came.contains("late"),
        "{came}"
    );
    left.theirs_of("Machine")
        .delete("late", &DeleteParams::default())
        .await?;
    Ok(())
}

/// A MachineDeployment that was deleted is not made again.
async fn makes_nothing_again(left: &Left) -> Result<()> {
    let is_gone = async || {
        let mut made = left.made().await?;
        made.retain(|name| !name.starts_with("InfraMachineTemplate"));
        ensure!(made.is_empty(), "{made:?}");
        Ok(())
    };
    eventually(DEADLINE, "all but the template is gone", is_gone).await?;
    let ended = left.done(&[STOPPED]).await?;
    ensure!(ended.contains("Everything was already migrated"), "{ended}");
    is_gone().await
}

/// CTL-06: the command is killed after each write, and run again. It ends as an undisturbed run does, and no
/// machine is created or deleted. A run with other templates for existing objects is refused.
#[tokio::test(start_paused = true)]
async fn a_migration_that_is_cut_off_after_every_write_is_taken_up_again() -> Result<()> {
    let left = Left::new("migrate-cut").await?;
    let mut all = left.objects().deployment(&NAMES)?;
    let empty = all.iter().find(|object| object["kind"] == "MachineDeployment");
    let mut empty = empty.context("no MachineDeployment")?.clone();
    empty["metadata"]["name"] = json!("empty");
    empty["spec"]["replicas"] = json!(0);
    all.push(empty);
    left.objects().apply(all).await?;
    let vms = left.cloud.holds(2).await?;
    let (mut cut, mut refused) = (0, 0);
    while left.is_cut_off(&[STOPPED]).await? {
        cut += 1;
        ensure!(cut < 40, "it never ends");
        let made = left.made().await?;
        if refused == 0 && made.iter().any(|name| name == "MachineDeployment/workers") {
            let other = left.failed(&[STOPPED, "--bootstrap-secret=other"]).await?;
            ensure!(
                other.contains("MachineDeployment workers") && other.contains("dataSecretName"),
                "{other}"
            );
            refused += 1;
        }
    }
    ensure!(cut >= 10, "only {cut} writes were cut off");
    ensure!(refused == 1, "no MachineDeployment was seen");
    left.runs(2).await?;
    let mut sets = left.made().await?;
    sets.retain(|name| name.starts_with("MachineSet/"));
    ensure!(
        sets == ["MachineSet/empty-migrated", "MachineSet/workers-migrated"],
        "a MachineDeployment made a MachineSet of its own: {sets:?}"
    );
    ensure!(left.cloud.vms()? == vms, "{:?}", left.cloud.vms()?);
    left.changed_no_vm()
}

/// CTL-06, CTL-MG-00..CTL-MG-13: files with a class of the driver's own kind, a MachineSet, and a Machine
/// without an owner.
#[tokio::test(start_paused = true)]
async fn files_with_a_driver_specific_class_migrate_without_a_deployment() -> Result<()> {
    let mut left = Left::new("migrate-files").await?;
    let mut all = left.objects().deployment(&NAMES)?;
    all.retain(|object| object["kind"] != "MachineDeployment");
    all.push(
        left.objects()
            .machine("alone", &left.objects().plant("alone")?, None),
    );
    all.iter_mut().for_each(of_own_kind);
    let vms = left.cloud.holds(3).await?;
    let file = left.world.folder.join("mcm.json");
    let write = |items: &[Value]| {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        std::fs::write(&file, list.to_string())
    };
    write(&all[1..])?;
    let flags = ["-f", &file.to_string_lossy(), STOPPED];
    let incomplete = left.refused(&flags).await?;
    ensure!(
        incomplete.contains("SimulatedMachineClass small")
            && incomplete.contains("/cloud, which does not exist"),
        "{incomplete}"
    );
    ensure!(left.made().await?.is_empty(), "{:?}", left.made().await?);

    write(&all)?;
    let mut without = guarded();
    without["disabledCalls"] = json!(["ListZones", "GenerateMachineClassForMigration"]);
    left.drivers = left.cloud.drivers(without);
    let not_offered = left.refused(&flags).await?;
    ensure!(
        not_offered.contains("does not implement GenerateMachineClassForMigration"),
        "{not_offered}"
    );
    left.drivers = left.cloud.drivers(guarded());
    left.cloud
        .fail(json!([{"operation": "GenerateMachineClassForMigration", "code": "Internal"}]))?;
    let failed = left.failed(&flags).await?;
    ensure!(
        failed.contains("cannot convert SimulatedMachineClass small"),
        "{failed}"
    );
    let mut failures = left.cloud.calls()?;
    failures.retain(|call| call.code.as_deref() == Some("Internal"));
    ensure!(failures.len() == 1, "the conversion was repeated: {failures:?}");
    ensure!(left.made().await?.is_empty(), "{:?}", left.made().await?);
    left.cloud.fail(json!([]))?;
    left.done(&flags).await?;
    left.runs(3).await?;
    ensure!(left.cloud.vms()? == vms, "{:?}", left.cloud.vms()?);
    let again = left.done(&flags).await?;
    ensure!(again.contains("Everything was already migrated"), "{again}");
    let set = left.ours_of("MachineSet").get("workers-1").await?;
    ensure!(
        !set.annotations()
            .contains_key("cluster.x-k8s.io/disable-machine-create"),
        "it makes no Machine for ever: {:?}",
        set.annotations()
    );
    left.scale("MachineSet", "workers-1", 3).await?;
    left.runs(4).await?;
    left.cloud.holds(4).await?;
    Ok(())
}

/// Gives an object a class of the driver's own kind, and no MachineDeployment.
fn of_own_kind(object: &mut Value) {
    match object["kind"].as_str() {
        Some("MachineClass") => {
            *object = json!({
                "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "SimulatedMachineClass",
                "metadata": object["metadata"],
                "spec": {
                    "pool": "default", "size": "small", "tags": object["providerSpec"]["tags"],
                    "secretRef": object["secretRef"],
                },
            });
        }
        Some("MachineSet") => {
            object["metadata"]["ownerReferences"] = json!([]);
            object["spec"]["template"]["spec"]["class"]["kind"] = json!("SimulatedMachineClass");
        }
        Some("Machine") => object["spec"]["class"]["kind"] = json!("SimulatedMachineClass"),
        _ => {}
    }
}
