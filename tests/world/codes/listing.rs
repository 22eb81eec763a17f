//! Where the list of VMs can't be had.

use anyhow::{Context, Result, ensure};
use capcmi::api::conditions;
use capcmi::api::v1alpha1::InfraMachine;
use cmi_driver::{Code, Operation};
use cmi_simulated::{CallLine, Phase};
use kube::ResourceExt;
use kube::api::ListParams;
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::support::by_hand::{all_become, infra_machines};
use crate::support::checks::{condition, provisioned};
use crate::support::logs::Logs;
use crate::support::{ByHand, Cloud, DEADLINE, Provider, World};

/// CTL-04, CTL-LM-00..CTL-LM-16, CLI-LM-00..CLI-LM-16, CMI-144: an error touches no machine, even one whose
/// VM is gone; and one driver that can't list does not keep the others from being looked after (CTL-LM-03).
#[tokio::test(start_paused = true)]
async fn a_list_that_fails_changes_no_machine() -> Result<()> {
    let world = World::new("listing").await?;
    let cloud = Cloud::new(&world);
    // On the same cloud, without its faults.
    let sound = json!({"faultsFile": null});
    let drivers = Cloud::several([
        cloud.drivers(json!({})),
        cloud.drivers_with(json!({"name": "another"}), sound),
    ])?;
    let logs = Logs::capture();
    let _provider = Provider::new(drivers).start(&world).await?;
    world.cluster("c").await?;
    let names = ["stays", "vanishes", "elsewhere"].map(str::to_owned);
    let machines = names.clone().map(|name| {
        let driver = if name == "elsewhere" {
            "another"
        } else {
            "simulated"
        };
        ByHand::new(&world, "c", name).infra("/spec/driver", json!(driver))
    });
    ByHand::create_all(&machines).await?;
    all_become(&world, "three machines", &names, |_, machine| {
        provisioned(machine.context("is gone")?)
    })
    .await?;

    cloud.fail(every_code_thrice())?;
    // The first error comes after the last good list.
    eventually(DEADLINE, "the first error", async || {
        ensure!(!failed_lists(&cloud)?.is_empty(), "none yet");
        Ok(())
    })
    .await?;
    let before = versions(&world).await?;
    for vm in cloud.vms()?.iter().filter(|vm| vm.name != "stays") {
        cloud.console()?.vanish(vm.id)?;
    }
    all_become(&world, "the machine of the other driver", &names[2..], vanished).await?;
    eventually(DEADLINE, "every code, three times", async || {
        let failed = failed_lists(&cloud)?.len();
        ensure!(failed >= 3 * Code::ALL.len(), "{failed} lists failed");
        Ok(())
    })
    .await?;
    ensure!(versions(&world).await? == before, "a machine was touched");
    let asked = cloud.calls()?.into_iter().any(|call| {
        call.operation == Operation::GetMachineStatus
            && call.machine == "vanishes"
            && call.code.as_deref() == Some("NotFound")
            && call.at > failed_lists(&cloud).unwrap_or_default()[0].at
    });
    ensure!(!asked, "a VM was asked about");

    cloud.fail(json!([]))?;
    all_become(&world, "the machine whose VM is gone", &names[1..2], vanished).await?;
    let errors = failed_lists(&cloud)?
        .iter()
        .filter(|call| call.code.as_deref() != Some("Unimplemented"))
        .count();
    let warnings = logs.text().matches("cannot list VMs").count();
    ensure!(
        warnings == errors,
        "{warnings} warnings about {errors} errors: UNIMPLEMENTED makes no noise"
    );
    Ok(())
}

fn vanished(_: &str, machine: Option<&InfraMachine>) -> Result<()> {
    let machine = machine.context("is gone")?;
    condition(
        machine,
        conditions::READY,
        "False",
        Some("VirtualMachineVanished"),
    )
}

/// The last code goes on until the faults are lifted.
fn every_code_thrice() -> Value {
    let fault = |code: &Code| json!({"operation": "ListMachines", "count": 3, "code": code.name()});
    let mut faults: Vec<_> = Code::ALL.iter().map(fault).collect();
    faults.push(json!({"operation": "ListMachines", "code": "Unavailable"}));
    json!(faults)
}

fn failed_lists(cloud: &Cloud) -> Result<Vec<CallLine>> {
    let mut calls = cloud.calls()?;
    calls.retain(|call| {
        call.operation == Operation::ListMachines
            && call.phase == Phase::Ended
            && call.code.as_deref() != Some("OK")
    });
    Ok(calls)
}

/// Resource versions of the machines of the driver that can't list.
async fn versions(world: &World) -> Result<Vec<Option<String>>> {
    let all = infra_machines(world).list(&ListParams::default()).await?.items;
    let ours = all
        .into_iter()
        .filter(|machine| machine.name_any() != "elsewhere");
    Ok(ours.map(|machine| machine.metadata.resource_version).collect())
}
