//! Where capacity is exhausted.

use anyhow::{Context, Result, ensure};
use capcmi::api::conditions;
use capcmi::api::retry::LONG_WAIT;
use cmi_driver::Operation;
use cmi_simulated::{CallLine, Phase};
use management_cluster::eventually;
use serde_json::json;
use tokio::time::Instant;

use crate::support::by_hand::{all_become, delete_all};
use crate::support::checks::{condition, provisioned};
use crate::support::{ByHand, Cloud, DEADLINE, Provider, World};

/// How long the cloud asks to be left alone. Long enough for the steps of the case.
const CLOSED_MS: u64 = 40_000;

/// CTL-CR-08: the same class and credential waits, everything else goes on.
#[tokio::test(start_paused = true)]
async fn exhaustion_holds_back_creates_of_its_class_and_credential() -> Result<()> {
    let world = World::new("gate").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("c").await?;
    world
        .apply(
            "apiVersion: v1\nkind: Secret\nmetadata: {name: other, namespace: $NS}\nstringData: \
            {token: other}\n",
        )
        .await?;
    let is_up = |_: &str, machine: Option<&_>| provisioned(machine.context("is gone")?);
    let named = |name: &str| vec![name.to_owned()];
    let by_hand = |name: &str| ByHand::new(&world, "c", name);
    // Its account is another: its deletion leaves no capacity for this account.
    let before = by_hand("before").infra("/spec/secretRef", json!({"name": "other"}));
    before.create().await?;
    all_become(&world, "a machine", &named("before"), is_up).await?;

    let full = json!([{"operation": "CreateMachine", "machine": "full", "code": "ResourceExhausted",
        "count": 1, "retryAfterMs": CLOSED_MS}]);
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
    let held_back = |_: &str, machine: Option<&_>| {
        let machine = machine.context("is gone")?;
        condition(machine, conditions::READY, "False", Some("WaitingForCapacity"))
    };
    all_become(&world, "a wait of the same class", &named("same"), held_back).await?;
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

/// What ends the cause ends the waits, one machine first: a VM of the class that is deleted, an annotation
/// that an operator sets after a restart, and a create that succeeds.
#[tokio::test(start_paused = true)]
async fn capacity_that_is_back_ends_the_waits_for_it() -> Result<()> {
    const WAITING: usize = 6;
    let world = World::new("room").await?;
    let cloud = Cloud::new(&world);
    let provider =
        Provider::new(cloud.drivers(json!({}))).with(|options| options.inventory_interval = LONG_WAIT);
    let mut first = provider.start(&world).await?;
    world.cluster("c").await?;
    let is_up = |_: &str, machine: Option<&_>| provisioned(machine.context("is gone")?);
    let first_vm = vec!["before".to_owned()];
    let by_hand = |name: &str| ByHand::new(&world, "c", name);
    by_hand("before").create().await?;
    all_become(&world, "a machine of the class", &first_vm, is_up).await?;

    // A driver that does not say when there will be room: ten minutes.
    let full = json!([{"operation": "CreateMachine", "machine": "m-*", "code": "ResourceExhausted"}]);
    cloud.fail(full)?;
    let names: Vec<_> = (0..WAITING).map(|n| format!("m-{n}")).collect();
    let machines: Vec<_> = names.iter().map(|name| by_hand(name)).collect();
    ByHand::create_all(&machines).await?;
    let waits = |_: &str, machine: Option<&_>| {
        let machine = machine.context("is gone")?;
        condition(machine, conditions::READY, "False", Some("WaitingForCapacity"))
            .or_else(|_| condition(machine, conditions::READY, "False", Some("ResourceExhausted")))
    };
    all_become(&world, "a wait for capacity", &names, waits).await?;

    // The quota is raised while no provider runs: of all that were refused, one finds out.
    first.terminate().await?;
    let before = creates(&cloud)?;
    let mut second = provider.start(&world).await?;
    eventually(DEADLINE, "a machine that finds out", async || {
        ensure!(creates(&cloud)? > before, "no create after the restart");
        Ok(())
    })
    .await?;
    // A machine that is deleted leaves room: another finds out, though it is not ten minutes later.
    let before = creates(&cloud)?;
    delete_all(&world, &first_vm).await?;
    eventually(DEADLINE, "another that finds out", async || {
        ensure!(creates(&cloud)? > before, "no create after the deletion");
        Ok(())
    })
    .await?;
    let tries = creates(&cloud)?;
    ensure!(tries <= 2 * WAITING, "{tries} creates");

    // There is room, and an operator asks for a try: the others come by themselves.
    cloud.fail(json!([]))?;
    let retry = json!({"metadata": {"annotations": {"example.com/retry": "now"}}});
    machines[0].patch(retry).await?;
    all_become(&world, "machines that were called", &names, is_up).await?;
    second.terminate().await?;
    cloud.holds(WAITING).await?;
    Ok(())
}

/// The refused machine waits together with the machines that were not tried.
#[tokio::test(start_paused = true)]
async fn refused_machine_retries_when_a_vm_of_its_class_is_deleted() -> Result<()> {
    let world = World::new("refused").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("c").await?;
    let is_up = |_: &str, machine: Option<&_>| provisioned(machine.context("is gone")?);
    let (before, refused) = (vec!["before".to_owned()], vec!["refused".to_owned()]);
    ByHand::new(&world, "c", "before").create().await?;
    all_become(&world, "a machine of the class", &before, is_up).await?;
    cloud.fail(json!([{"operation": "CreateMachine", "code": "ResourceExhausted", "count": 1}]))?;
    ByHand::new(&world, "c", "refused").create().await?;
    let exhausted = |_: &str, machine: Option<&_>| {
        let machine = machine.context("is gone")?;
        condition(machine, conditions::READY, "False", Some("ResourceExhausted"))
    };
    all_become(&world, "exhaustion", &refused, exhausted).await?;
    let start = Instant::now();
    delete_all(&world, &before).await?;
    all_become(&world, "a create after the deletion", &refused, is_up).await?;
    let waited = start.elapsed();
    ensure!(waited < LONG_WAIT / 2, "{waited:?}");
    cloud.holds(1).await?;
    Ok(())
}

fn creates(cloud: &Cloud) -> Result<usize> {
    Ok(cloud.calls()?.iter().filter(|call| is_create(call)).count())
}

fn is_create(call: &CallLine) -> bool {
    call.operation == Operation::CreateMachine && call.phase == Phase::Started
}
