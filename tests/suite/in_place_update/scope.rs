//! Which provider answers: the one that leads, about what it looks at.

use anyhow::{Result, ensure};
use capcmi::api::annotations;
use cmi_driver::Operation;
use kube::ResourceExt as _;
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::leadership::{elected, leads};
use crate::support::{ByHand, Cloud, DEADLINE, Extension, Provider, World};

const CAN_UPDATE: &str = "canupdatemachine/can-update-machine";
const UPDATE: &str = "updatemachine/update-machine";

/// What Cluster API asks of a machine whose labels are to change: the hooks, and their requests.
async fn questions(machine: &ByHand) -> Result<[(&'static str, Value); 2]> {
    let current = serde_json::to_value(machine.get().await?)?;
    let mut desired = current.clone();
    desired["spec"]["providerSpec"]["labels"] = json!({"tier": "gold"});
    let of = |infra: &Value| json!({"machine": {}, "infrastructureMachine": infra});
    let can_update = json!({"current": of(&current), "desired": of(&desired)});
    Ok([
        (CAN_UPDATE, can_update),
        (UPDATE, json!({"desired": of(&desired)})),
    ])
}

/// Asks both, each of which fails for this reason.
async fn refuses(extension: &Extension, machine: &ByHand, why: &str) -> Result<()> {
    for (hook, question) in questions(machine).await? {
        let answer = extension.call(hook, &question).await?;
        let message = answer["message"].as_str().unwrap_or_default();
        ensure!(
            answer["status"] == "Failure" && message.contains(why),
            "{hook}: {answer}"
        );
    }
    Ok(())
}

/// A replica that stands by decides nothing and begins nothing. When it leads, it does.
#[tokio::test]
async fn a_replica_that_does_not_lead_says_neither_yes_nor_no_and_begins_no_update() -> Result<()> {
    let world = World::new("in-place-leader").await?;
    let cloud = Cloud::new(&world);
    let provider = elected(&world, cloud.drivers(json!({}))).await?;
    let first = provider.start(&world).await?;
    leads(&first).await?;
    let extension = Extension::new(&world)?;
    let second = extension.of(provider).named("second").start(&world).await?;
    world.cluster("one").await?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    machine.provisioned().await?;
    let [(can_update, question), _] = questions(&machine).await?;
    // As Cluster API does before it asks for the update.
    let begun = json!({
        "metadata": {"annotations": {annotations::UPDATE_IN_PROGRESS: ""}},
        "spec": {"providerSpec": {"labels": {"tier": "gold"}}},
    });
    machine.patch(begun).await?;
    refuses(&extension, &machine, "ask again").await?;
    let left = machine.get().await?;
    ensure!(
        !left.annotations().contains_key(annotations::IN_PLACE_UPDATE),
        "begun: {left:?}"
    );

    drop(first);
    leads(&second).await?;
    let [_, (update, request)] = questions(&machine).await?;
    eventually(DEADLINE, "an answer of the one that leads", async || {
        let answer = extension.call(can_update, &question).await?;
        ensure!(
            answer["status"] == "Success" && answer["infrastructureMachinePatch"].is_object(),
            "{answer}"
        );
        Ok(())
    })
    .await?;
    eventually(DEADLINE, "an update that has ended", async || {
        let answer = extension.call(update, &request).await?;
        ensure!(
            answer["status"] == "Success" && answer["retryAfterSeconds"] == 0,
            "{answer}"
        );
        Ok(())
    })
    .await?;
    let calls = cloud.count(Operation::UpdateMachine, "m")?;
    ensure!(calls == 1, "{calls} updates");
    Ok(())
}

/// A provider that looks at one namespace, or at a label, says so about all else: another provider's answer
/// counts there.
#[tokio::test]
async fn about_what_a_provider_does_not_look_at_it_decides_nothing() -> Result<()> {
    let world = World::new("in-place-scope").await?;
    let other = World::new("in-place-elsewhere").await?;
    let cloud = Cloud::new(&world);
    let here = Extension::new(&world)?;
    let labelled = Extension::new(&other)?;
    let namespaced = here.of(Provider::new(cloud.drivers(json!({}))));
    let _here = namespaced.start(&world).await?;
    let filtered = Provider::new(cloud.drivers(json!({}))).everywhere("theirs");
    let _labelled = labelled.of(filtered).named("labelled").start(&world).await?;
    world.cluster("one").await?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    machine.provisioned().await?;
    refuses(
        &labelled,
        &machine,
        "label cluster.x-k8s.io/watch-filter is `theirs`",
    )
    .await?;
    let foreign = ByHand::new(&other, "one", "m");
    foreign.create_infra().await?;
    refuses(
        &here,
        &foreign,
        &format!("the namespace `{}` alone", world.namespace),
    )
    .await?;
    for (machine, name) in [(&machine, "m"), (&foreign, "m of the other namespace")] {
        let left = machine.get().await?;
        ensure!(
            !left.annotations().contains_key(annotations::IN_PLACE_UPDATE),
            "{name}: begun"
        );
    }
    Ok(())
}
