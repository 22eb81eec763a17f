//! Where capacity is exhausted.

use anyhow::{Context, Result, ensure};
use capcmi::api::conditions;
use capcmi::driver::Operation;
use capcmi::drivers::simulated::{CallLine, Phase};
use serde_json::json;

use super::table::{condition, provisioned};
use crate::support::by_hand::{all_become, delete_all};
use crate::support::{ByHand, Cloud, Provider, World};

/// How long the cloud asks to be left alone. Long enough for all that has to happen meanwhile.
const CLOSED_MS: u64 = 40_000;

/// CTL-CR-08: the same class and credential waits, everything else goes on.
#[tokio::test]
async fn exhausted_capacity_holds_back_creates_of_its_class_and_credential_alone() -> Result<()> {
    let world = World::new("gate").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("c").await?;
    world
        .apply("apiVersion: v1\nkind: Secret\nmetadata: {name: other, namespace: $NS}\nstringData: {token: other}\n")
        .await?;
    let is_up = |_: &str, machine: Option<&_>| provisioned(machine.context("is gone")?);
    let named = |name: &str| vec![name.to_owned()];
    let by_hand = |name: &str| ByHand::new(&world, "c", name);
    by_hand("before").create().await?;
    all_become(&world, "a machine of the class", &named("before"), is_up).await?;

    let full = json!([{"operation": "CreateMachine", "machine": "full", "code": "ResourceExhausted", "count": 1, "retryAfterMs": CLOSED_MS}]);
    cloud.fail(full)?;
    by_hand("full").create().await?;
    let exhausted = |_: &str, machine: Option<&_>| {
        let machine = machine.context("is gone")?;
        condition(machine, conditions::READY, "False", Some("ResourceExhausted"))
    };
    all_become(&world, "exhaustion", &named("full"), exhausted).await?;
    let others = [
        by_hand("same"),
        by_hand("larger").infra("/spec/providerSpec/size", json!("large")),
        by_hand("credential").infra("/spec/secretRef", json!({"name": "other"})),
    ];
    ByHand::create_all(&others).await?;
    delete_all(&world, &named("before")).await?;
    all_become(&world, "a wait of the same class", &named("same"), exhausted).await?;
    let free = ["larger", "credential"].map(str::to_owned);
    all_become(&world, "machines of another class or credential", &free, is_up).await?;
    all_become(&world, "a delete", &named("before"), |_, machine| {
        ensure!(machine.is_none(), "is still there");
        Ok(())
    })
    .await?;

    let held = ["full", "same"].map(str::to_owned);
    all_become(&world, "creates after the wait", &held, is_up).await?;
    let creates: Vec<_> = cloud.calls()?.into_iter().filter(is_create).collect();
    let first = |name: &str| {
        let call = creates.iter().find(|call| call.machine == name);
        call.map(|call| call.at.as_millis())
            .with_context(|| format!("no create of {name}"))
    };
    let opens = first("full")? + CLOSED_MS;
    ensure!(first("same")? >= opens, "a create was not held back");
    for name in ["larger", "credential"] {
        ensure!(first(name)? < opens, "{name} was held back");
    }
    cloud.holds(4).await?;
    Ok(())
}

fn is_create(call: &CallLine) -> bool {
    call.operation == Operation::CreateMachine && call.phase == Phase::Started
}
