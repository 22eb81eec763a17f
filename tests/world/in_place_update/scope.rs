//! A provider answers only while it leads, and only about objects that it reconciles.

use std::time::Duration;

use anyhow::{Result, ensure};
use capcmi::api::annotations;
use capcmi::manager::{Election, Timing, holder_identity};
use kube::ResourceExt as _;
use management_cluster::eventually;
use serde_json::json;

use super::{failed_because, patch_of, question, tier};
use crate::support::hooks::{CAN_UPDATE_MACHINE, Hooks, begin_update, has_ended};
use crate::support::{ByHand, Cloud, DEADLINE, Provider, World};
use cmi_driver::Operation;

/// Checks that both hooks fail for this reason, and start no update.
async fn refuses(hooks: &Hooks, machine: &ByHand, why: &str) -> Result<()> {
    let question = question(machine, &tier("gold")).await?;
    failed_because(&hooks.call(CAN_UPDATE_MACHINE, &question).await?, why)?;
    failed_because(&hooks.update(machine).await?, why)?;
    let left = machine.get().await?;
    ensure!(
        !left.annotations().contains_key(annotations::PROGRESS),
        "begun: {left:?}"
    );
    Ok(())
}

/// A standby replica decides nothing and begins nothing.
#[tokio::test(start_paused = true)]
async fn a_replica_answers_only_while_it_leads() -> Result<()> {
    let world = World::new("in-place-leader").await?;
    let cloud = Cloud::new(&world);
    let seconds = Duration::from_secs;
    let timing = Timing::new(seconds(15), seconds(10), seconds(2))?;
    let elected = |replica: &str| {
        Provider::new(cloud.drivers(json!({}))).elected(Election {
            namespace: world.namespace.clone(),
            lease: "capcmi".to_owned(),
            identity: holder_identity(replica),
            timing,
        })
    };
    let first = elected("first").start(&world).await?;
    world.cluster("one").await?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    machine.provisioned().await?;
    let mut second = elected("second").start(&world).await?;
    let hooks = second.hooks().await?;
    tokio::time::sleep(seconds(30)).await;
    let asked = question(&machine, &tier("gold")).await?;
    // As Cluster API does before it asks for the update.
    begin_update(&machine, tier("gold")).await?;
    refuses(&hooks, &machine, "try again").await?;

    drop(first);
    eventually(DEADLINE, "an answer of the new leader", async || {
        let answer = hooks.call(CAN_UPDATE_MACHINE, &asked).await?;
        ensure!(patch_of(&answer)?.is_some(), "{answer}");
        Ok(())
    })
    .await?;
    eventually(DEADLINE, "an update that has ended", async || {
        let answer = hooks.update(&machine).await?;
        ensure!(has_ended(&answer), "{answer}");
        Ok(())
    })
    .await?;
    let calls = cloud.count(Operation::UpdateMachine, "m")?;
    ensure!(calls == 1, "{calls} updates");
    Ok(())
}

/// A provider of one namespace, or of a label, refuses to decide about all other objects: another provider's
/// answer counts there.
#[tokio::test(start_paused = true)]
async fn a_provider_refuses_to_decide_outside_of_its_scope() -> Result<()> {
    let world = World::new("in-place-scope").await?;
    let elsewhere = world.beside("in-place-elsewhere").await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({})));
    let of_namespace = provider
        .clone()
        .with(|options| options.namespace = Some(world.namespace.clone()));
    let of_label = provider.with(|options| options.watch_filter = Some("theirs".to_owned()));
    let mut here = of_namespace.start(&world).await?;
    let mut labelled = of_label.start(&world).await?;
    world.cluster("one").await?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    machine.provisioned().await?;
    let foreign = ByHand::new(&elsewhere, "one", "m");
    foreign.create_infra().await?;
    let why = "label cluster.x-k8s.io/watch-filter=`theirs`";
    refuses(&labelled.hooks().await?, &machine, why).await?;
    let why = format!("only namespace `{}`", world.namespace);
    refuses(&here.hooks().await?, &foreign, &why).await
}
