//! The proxy in front of the real API server.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::TryStreamExt;
use http::StatusCode;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, Error,
    api::{PostParams, WatchEvent, WatchParams},
};
use management_cluster::{
    eventually,
    proxy::{Fault, Gate, ProxiedRequest, Proxy},
};
use serde_json::json;
use tokio::time::timeout;

use crate::shared;

const DEADLINE: Duration = Duration::from_secs(30);

/// A namespace, the proxy, a client through the proxy, and a client without it.
struct Setup {
    _proxy: Proxy,
    proxied: Api<ConfigMap>,
    direct: Api<ConfigMap>,
}

async fn setup(hook: impl Fn(&ProxiedRequest) -> Fault + Send + Sync + 'static) -> Result<Setup> {
    let cluster = shared().await?;
    let namespace = cluster.namespace("proxy").await?;
    let proxy = Proxy::start(cluster, hook).await?;
    let api = |client: Client| Api::namespaced(client, &namespace);
    let proxied = api(proxy.client(cluster.admin_kubeconfig()).await?);
    Ok(Setup {
        _proxy: proxy,
        proxied,
        direct: api(cluster.admin_client().await?),
    })
}

fn config_map(name: &str) -> Result<ConfigMap> {
    Ok(serde_json::from_value(json!({"metadata": {"name": name}}))?)
}

/// Returns when the watch has delivered the `ConfigMap` `name`.
async fn watched(api: &Api<ConfigMap>, name: &str, ready: impl FnOnce()) -> Result<()> {
    let params = WatchParams::default()
        .fields(&format!("metadata.name={name}"))
        .disable_bookmarks()
        .timeout(60);
    let mut events = std::pin::pin!(api.watch(&params, "0").await?);
    ready();
    let event = timeout(DEADLINE, events.try_next())
        .await
        .context("the watch delivers nothing")??;
    ensure!(
        matches!(&event, Some(WatchEvent::Added(_))),
        "the watch delivered {event:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_watch_passes_through_while_it_is_open() -> Result<()> {
    let setup = setup(|_| Fault::None).await?;
    let (opened, open) = tokio::sync::oneshot::channel();
    let watch = watched(&setup.proxied, "seen", || opened.send(()).unwrap_or_default());
    let create = async {
        open.await?;
        let object = config_map("seen")?;
        let created = setup.direct.create(&PostParams::default(), &object).await;
        created.map(drop).context("creating a ConfigMap")
    };
    tokio::try_join!(create, watch)?;
    Ok(())
}

#[tokio::test]
async fn a_write_held_before_reaches_the_server_only_when_the_gate_opens() -> Result<()> {
    let gate = Gate::new();
    let hold = gate.clone();
    let setup = setup(move |request| match request.write {
        Some(1) => Fault::HoldBefore(hold.clone()),
        _ => Fault::None,
    })
    .await?;
    setup
        .proxied
        .create(&PostParams::default(), &config_map("first")?)
        .await?;
    let second = config_map("second")?;
    let params = PostParams::default();
    let write = setup.proxied.create(&params, &second);
    let check = async {
        timeout(DEADLINE, gate.reached()).await?;
        let early = setup.direct.get_opt("second").await?;
        gate.open();
        ensure!(
            early.is_none(),
            "the write was forwarded although it was to be held"
        );
        Ok(())
    };
    let write = async { write.await.map_err(anyhow::Error::from) };
    tokio::try_join!(write, check)?;
    setup.direct.get("second").await?;
    Ok(())
}

#[tokio::test]
async fn a_write_held_after_has_happened_without_the_client_knowing() -> Result<()> {
    let gate = Gate::new();
    let hold = gate.clone();
    let setup = setup(move |request| {
        if request.write.is_some() {
            Fault::HoldAfter(hold.clone())
        } else {
            Fault::None
        }
    })
    .await?;
    let proxied = setup.proxied.clone();
    let map = config_map("done")?;
    let write = tokio::spawn(async move { proxied.create(&PostParams::default(), &map).await });
    timeout(DEADLINE, gate.reached()).await?;
    setup.direct.get("done").await?;
    assert!(!write.is_finished(), "the answer was not held");
    gate.open();
    timeout(DEADLINE, write).await???;
    Ok(())
}

#[tokio::test]
async fn a_write_whose_client_goes_away_at_the_gate_never_happens() -> Result<()> {
    let gate = Gate::new();
    let hold = gate.clone();
    let setup = setup(move |request| match request.write {
        Some(0) => Fault::HoldBefore(hold.clone()),
        _ => Fault::None,
    })
    .await?;
    let proxied = setup.proxied.clone();
    let map = config_map("lost")?;
    let write = tokio::spawn(async move { proxied.create(&PostParams::default(), &map).await });
    timeout(DEADLINE, gate.reached()).await?;
    write.abort();
    assert!(write.await.is_err_and(|error| error.is_cancelled()));
    eventually(
        DEADLINE,
        "the proxy noticing that the client has gone",
        async || {
            ensure!(gate.held() == 0, "{} requests are held", gate.held());
            Ok(())
        },
    )
    .await?;
    gate.open();
    // A later write through the same proxy and server. If the first write had been forwarded, it would be
    // visible by now.
    setup
        .proxied
        .create(&PostParams::default(), &config_map("later")?)
        .await?;
    assert!(setup.direct.get_opt("lost").await?.is_none());
    Ok(())
}

#[tokio::test]
async fn a_refused_write_fails_as_if_the_server_had_refused_it() -> Result<()> {
    let setup = setup(|request| match request.write {
        Some(_) => Fault::Refuse(StatusCode::TOO_MANY_REQUESTS),
        None => Fault::None,
    })
    .await?;
    let refused = setup
        .proxied
        .create(&PostParams::default(), &config_map("refused")?)
        .await;
    assert!(
        matches!(&refused, Err(Error::Api(status)) if status.code == 429),
        "{refused:?}"
    );
    assert!(setup.direct.get_opt("refused").await?.is_none());
    Ok(())
}
