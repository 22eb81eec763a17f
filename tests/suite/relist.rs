//! A provider whose watches expire: it lists everything anew.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use management_cluster::eventually;
use management_cluster::proxy::{Fault, Gate, Proxy};
use serde_json::json;

use crate::idle::lists;
use crate::support::metrics::sample;
use crate::support::provider::{Replica, service_account};
use crate::support::{Cloud, DEADLINE, Provider, Stage, World};

/// More than the reconciles of one machine on its way up.
const MACHINES: u32 = 20;
/// What is watched of machines.
const KINDS: [&str; 2] = ["inframachines", "machines"];

/// What the provider asked of the API server since its watches expired.
#[derive(Default)]
struct Asked {
    lists: Mutex<Vec<String>>,
    watches: Mutex<Vec<String>>,
}

impl Asked {
    /// Whether all kinds were listed, and are watched again.
    fn all(&self) -> Result<()> {
        for (what, asked) in [("listed", &self.lists), ("watched", &self.watches)] {
            let asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
            for kind in KINDS {
                ensure!(
                    asked.iter().any(|path| path.ends_with(&format!("/{kind}"))),
                    "{kind} is not {what}"
                );
            }
        }
        Ok(())
    }
}

/// Reconciles of InfraMachines so far.
async fn reconciles(provider: &Replica) -> Result<f64> {
    let text = provider.metrics().await?;
    sample(
        &text,
        r#"capcmi_reconcile_time_seconds_count{controller="inframachine"}"#,
    )
}

/// An API server that was restarted, or that has forgotten what it was asked to go on from, answers 410: then
/// everything is listed. What is as it was wakes nothing, and what changed meanwhile is seen.
#[tokio::test]
async fn a_list_of_everything_wakes_no_machine_that_is_as_it_was() -> Result<()> {
    let world = World::new("relist").await?;
    let cloud = Cloud::new(&world);
    let stage = Stage::set(&world).await?;
    let (gate, is_expired, asked) = (
        Gate::new(),
        Arc::new(AtomicBool::new(false)),
        Arc::<Asked>::default(),
    );
    let (hook_gate, hook_expired, hook_asked) = (gate.clone(), Arc::clone(&is_expired), Arc::clone(&asked));
    let proxy = Proxy::start(&world.management, move |request| {
        let is_read = request.method == http::Method::GET;
        if !hook_expired.load(Ordering::SeqCst) {
            return if request.is_watch() {
                Fault::Expire(hook_gate.clone())
            } else {
                Fault::None
            };
        }
        for (is_asked, asked) in [
            (request.is_watch(), &hook_asked.watches),
            (
                is_read && (!request.is_watch() || request.is_streamed_list()),
                &hook_asked.lists,
            ),
        ] {
            if is_asked {
                asked.lock().unwrap().push(request.path.clone());
            }
        }
        Fault::None
    })
    .await?;
    let kubeconfig = proxy.kubeconfig(&service_account(&world).await?)?;
    let provider = Provider::new(cloud.drivers(json!({}))).through(kubeconfig);
    let provider = provider.start(&world).await?;
    let names: Vec<_> = (0..MACHINES).map(|index| format!("m-{index}")).collect();
    for name in &names {
        stage.machine(name).create().await?;
    }
    for name in &names {
        stage.machine(name).provisioned().await?;
    }
    // What their last writes have woken.
    eventually(DEADLINE, "quiet", async || {
        let before = reconciles(&provider).await?;
        lists(&cloud, 2).await?;
        let after = reconciles(&provider).await?;
        ensure!(
            (after - before).abs() < f64::EPSILON,
            "{} reconciles",
            after - before
        );
        Ok(())
    })
    .await?;
    let (before, calls) = (reconciles(&provider).await?, cloud.calls()?.len());
    is_expired.store(true, Ordering::SeqCst);
    gate.open();
    eventually(DEADLINE, "lists of everything", async || asked.all()).await?;
    // One that comes now is seen once the lists are complete, and all that was woken before it has been
    // reconciled by then.
    stage.machine("new").create().await?;
    stage.machine("new").provisioned().await?;
    // A reconcile is counted when it ends, after what it has written is seen.
    let woken = eventually(DEADLINE, "the reconcile of the new machine", async || {
        let woken = reconciles(&provider).await? - before;
        ensure!(woken >= 1.0, "it was not counted");
        Ok(woken)
    })
    .await?;
    ensure!(
        woken < f64::from(MACHINES),
        "{woken} reconciles after a list in which nothing had changed"
    );
    let since = cloud.calls()?.split_off(calls);
    let of_old: Vec<_> = since
        .iter()
        .filter(|call| names.contains(&call.machine))
        .collect();
    ensure!(
        of_old.is_empty(),
        "the driver was asked about machines that are as they were: {of_old:?}"
    );
    Ok(())
}

/// What changed while no watch ran wakes the machine that it concerns, and no other.
#[tokio::test]
async fn a_machine_that_changed_while_no_watch_ran_is_seen_in_the_list() -> Result<()> {
    let world = World::new("relist-changed").await?;
    let cloud = Cloud::new(&world);
    let stage = Stage::set(&world).await?;
    let (gate, is_expired, held) = (Gate::new(), Arc::new(AtomicBool::new(false)), Gate::new());
    let (hook_gate, hook_expired, hook_held) = (gate.clone(), Arc::clone(&is_expired), held.clone());
    let proxy = Proxy::start(&world.management, move |request| {
        let is_list = request.path.ends_with("/inframachines") && request.method == http::Method::GET;
        match (hook_expired.load(Ordering::SeqCst), request.is_watch()) {
            (false, true) => Fault::Expire(hook_gate.clone()),
            (true, _) if is_list => Fault::HoldBefore(hook_held.clone()),
            _ => Fault::None,
        }
    })
    .await?;
    let kubeconfig = proxy.kubeconfig(&service_account(&world).await?)?;
    let provider = Provider::new(cloud.drivers(json!({}))).through(kubeconfig);
    let _provider = provider.start(&world).await?;
    let (stays, goes) = (
        stage.machine("stays").create().await?,
        stage.machine("goes").create().await?,
    );
    stays.provisioned().await?;
    goes.provisioned().await?;
    is_expired.store(true, Ordering::SeqCst);
    gate.open();
    tokio::time::timeout(DEADLINE, held.reached())
        .await
        .context("the InfraMachines are not listed")?;
    goes.delete().await?;
    held.open();
    goes.gone().await?;
    cloud.holds(1).await?;
    Ok(())
}
