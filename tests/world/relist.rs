//! A provider whose watches expire, or that can't stream lists: it lists everything again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use capcmi_manifests::rbac;
use fake_apiserver::{Call, Fate, Recorded};
use http::Method;
use serde_json::json;
use tokio::time::sleep;

use crate::support::ipam_provider::{Ipam, pool};
use crate::support::provider::Replica;
use crate::support::{ByHand, Cloud, Provider, Stage, World};

const MACHINES: u32 = 20;
/// Longer than a list and the reconciles after it.
const QUIET: Duration = Duration::from_mins(1);

/// Reconciles of InfraMachines so far.
fn reconciles(provider: &Replica) -> Result<f64> {
    provider.sample(r#"capcmi_reconcile_time_seconds_count{controller="inframachine"}"#)
}

/// The group and the resource of a list, streamed or in pages.
fn listed(recorded: &Recorded) -> Option<(String, String)> {
    let call = &recorded.call;
    let streams = call
        .query
        .get("sendInitialEvents")
        .is_some_and(|value| value == "true");
    let is_list = call.method == Method::GET && (streams || !call.is_watch()) && recorded.code == 200;
    let mut parts: Vec<_> = call.path.split('/').filter(|part| !part.is_empty()).collect();
    let group = match parts.first() {
        Some(&"api") => String::new(),
        _ => parts.get(1)?.to_string(),
    };
    parts.drain(..if group.is_empty() { 2 } else { 3 });
    match parts.as_slice() {
        [resource] | ["namespaces", _, resource] if is_list => Some((group, resource.to_string())),
        _ => None,
    }
}

/// An API server that has forgotten the versions that watches go on from answers 410: then everything is
/// listed. An object that is as it was is not reconciled, and no driver call is made for it.
#[tokio::test(start_paused = true)]
async fn a_list_of_everything_wakes_no_machine_that_is_as_it_was() -> Result<()> {
    for in_pages in [false, true] {
        let world = World::without_core("relist").await?;
        let cloud = Cloud::new(&world);
        let stage = Stage::set(&world).await?;
        if in_pages {
            world.management.list_in_pages_only();
        }
        let provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
        let names: Vec<_> = (0..MACHINES).map(|index| format!("m-{index}")).collect();
        for name in &names {
            stage.machine(name).create().await?;
        }
        for name in &names {
            stage.machine(name).provisioned().await?;
        }
        sleep(QUIET).await;
        let (before, calls) = (reconciles(&provider)?, cloud.calls()?.len());
        let requests = world.management.recorded().len();
        world.management.compact();
        sleep(QUIET).await;
        let since = world.management.recorded().split_off(requests);
        let all: BTreeSet<_> = since.iter().filter_map(listed).map(|(_, kind)| kind).collect();
        for kind in ["clusters", "machines", "inframachines"] {
            ensure!(all.contains(kind), "{kind} were not listed: {all:?}");
        }
        let woken = reconciles(&provider)? - before;
        ensure!(
            woken == 0.0,
            "{woken} reconciles of machines that are as they were"
        );
        // The watches go on.
        stage.machine("new").create().await?;
        stage.machine("new").provisioned().await?;
        let since = cloud.calls()?.split_off(calls);
        let of_old: Vec<_> = since
            .iter()
            .filter(|call| names.contains(&call.machine))
            .collect();
        ensure!(
            of_old.is_empty(),
            "calls about machines that are as they were: {of_old:?}"
        );
    }
    Ok(())
}

/// What changed while no watch ran wakes the machine that it concerns.
#[tokio::test(start_paused = true)]
async fn a_change_while_no_watch_ran_is_seen_in_the_list() -> Result<()> {
    let world = World::without_core("relist-changed").await?;
    let cloud = Cloud::new(&world);
    let stage = Stage::set(&world).await?;
    let is_down = Arc::new(AtomicBool::new(false));
    let fate = {
        let is_down = Arc::clone(&is_down);
        move |call: &Call| {
            let is_read = call.method == Method::GET && call.path.ends_with("/inframachines");
            if is_read && is_down.load(Ordering::SeqCst) {
                return Fate::Refused(503, "ServiceUnavailable");
            }
            Fate::Served
        }
    };
    let provider = Provider::new(cloud.drivers(json!({}))).requests_meet(fate);
    let _provider = provider.start(&world).await?;
    let (stays, goes) = (
        stage.machine("stays").create().await?,
        stage.machine("goes").create().await?,
    );
    stays.provisioned().await?;
    goes.provisioned().await?;
    is_down.store(true, Ordering::SeqCst);
    world.management.compact();
    sleep(QUIET).await;
    goes.delete().await?;
    sleep(QUIET).await;
    ensure!(cloud.vms()?.len() == 2, "the deletion was seen without a watch");
    is_down.store(false, Ordering::SeqCst);
    goes.gone().await?;
    cloud.holds(1).await?;
    Ok(())
}

/// OPS-11: without streamed lists, as before Kubernetes 1.34, everything that is watched is listed. The
/// shipped roles grant these lists.
#[tokio::test(start_paused = true)]
async fn without_streamed_lists_everything_that_is_watched_is_listed() -> Result<()> {
    let world = World::new("pages").await?;
    let cloud = Cloud::new(&world);
    world.management.list_in_pages_only();
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    let ipam = Ipam::start(&world);
    ipam.add("a", &["10.1.0.10"]);
    ByHand::new(&world, "one", "m")
        .infra("/spec/addressesFromPools", json!([pool("a")]))
        .create()
        .await?
        .provisioned()
        .await?;
    let granted = |verbs: &[&str]| {
        let rules = [rbac::PROVIDER, rbac::SECRETS, rbac::REMEDIATION, rbac::ADMISSION];
        let all = rules.into_iter().flatten();
        let of = all.filter(|rule| verbs.iter().all(|verb| rule.verbs.contains(verb)));
        let resources = of.flat_map(|rule| {
            let with_group = |resource: &&str| (rule.group.to_owned(), (*resource).to_owned());
            rule.resources.iter().map(with_group)
        });
        resources.collect::<BTreeSet<_>>()
    };
    let recorded = world.management.recorded();
    let by_provider = recorded.iter().filter(|request| request.client == "provider");
    let used: BTreeSet<_> = by_provider.filter_map(listed).collect();
    let watched = granted(&["list", "watch"]);
    ensure!(!watched.is_empty(), "nothing is watched");
    let unused: Vec<_> = watched.difference(&used).collect();
    ensure!(unused.is_empty(), "granted and not used: {unused:?} of {used:?}");
    let lists = granted(&["list"]);
    let ungranted: Vec<_> = used.difference(&lists).collect();
    ensure!(ungranted.is_empty(), "used and not granted: {ungranted:?}");
    Ok(())
}
