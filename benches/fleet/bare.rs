//! The best bare client that is known: HTTP/2 on one connection, 64 concurrent requests, answers unparsed,
//! and watches on another connection, unparsed as well. It guards no write and keeps nothing: no provider can
//! do with less.

use anyhow::{Context, Result};
use futures::TryStreamExt as _;
use http::Method;
use serde::Deserialize;

use super::floor::Client;
use super::http2::Connection;
use super::requests::Target;

/// The number of concurrent requests.
const AT_ONCE: usize = 64;

#[derive(Deserialize)]
struct Page {
    metadata: PageMetadata,
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct PageMetadata {
    #[serde(default, rename = "continue")]
    more: String,
}

#[derive(Deserialize)]
struct Item {
    metadata: ItemMetadata,
}

#[derive(Deserialize)]
struct ItemMetadata {
    name: String,
    uid: String,
}

/// Brings up all machines of a namespace.
pub async fn run(floor: &Client) -> Result<()> {
    let (writes, watches) = (
        Connection::open(&floor.kubeconfig).await?,
        Connection::open(&floor.kubeconfig).await?,
    );
    for kind in [
        "cluster.x-k8s.io/v1beta2/machines",
        "cluster.x-k8s.io/v1beta2/clusters",
        "infrastructure.capcmi.io/v1alpha1/inframachines",
    ] {
        tokio::spawn(watch(watches.clone(), floor.namespace.clone(), kind));
    }
    let targets = targets(&writes, &floor.namespace).await?;
    futures::stream::iter(targets.into_iter().map(Ok))
        .try_for_each_concurrent(AT_ONCE, |target| {
            let writes = writes.clone();
            async move { bring_up(&writes, &target).await }
        })
        .await
}

/// Watches all objects of a kind and their changes, and drops the data. The API server ends a watch that
/// reads too slowly. Like any client's, the next watch resumes at the end of the last one, and does not get
/// all objects again.
async fn watch(connection: Connection, namespace: String, kind: &str) {
    let (group, plural) = kind.rsplit_once('/').unwrap_or_default();
    let path = format!("/apis/{group}/namespaces/{namespace}/{plural}?watch=1&allowWatchBookmarks=true");
    let mut from = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan".to_owned();
    loop {
        let ended = match connection.read_to_tail(&format!("{path}&{from}")).await {
            Ok(tail) => last_version(&tail).map(str::to_owned),
            Err(error) => {
                eprintln!("watching {plural}: {error:#}");
                std::process::exit(1);
            }
        };
        eprintln!("a watch of {plural} ended at {ended:?}, and is resumed");
        if let Some(version) = ended {
            from = format!("resourceVersion={version}");
        }
    }
}

/// Returns the resource version of the last event, from the last bytes of a watch.
fn last_version(tail: &[u8]) -> Option<&str> {
    const KEY: &str = r#""resourceVersion":""#;
    let text = std::str::from_utf8(tail).ok()?;
    let start = text.rfind(KEY)? + KEY.len();
    text[start..].split_once('"').map(|(version, _)| version)
}

async fn targets(connection: &Connection, namespace: &str) -> Result<Vec<Target>> {
    let path = format!(
        "/apis/infrastructure.capcmi.io/v1alpha1/namespaces/{namespace}/inframachines?limit=500&continue="
    );
    let (mut targets, mut more) = (Vec::new(), String::new());
    loop {
        let page = connection.metadata(&format!("{path}{more}")).await?;
        let page: Page = serde_json::from_slice(&page).context("reading a page")?;
        targets.extend(page.items.into_iter().map(|item| Target {
            namespace: namespace.to_owned(),
            name: item.metadata.name,
            uid: item.metadata.uid,
        }));
        more = page.metadata.more;
        if more.is_empty() {
            return Ok(targets);
        }
    }
}

async fn bring_up(connection: &Connection, target: &Target) -> Result<()> {
    let namespace = &target.namespace;
    let path = format!(
        "/apis/infrastructure.capcmi.io/v1alpha1/namespaces/{namespace}/inframachines/{}",
        target.name
    );
    let by = "fieldManager=floor";
    connection
        .read(&format!("/api/v1/namespaces/{namespace}/secrets/boot"))
        .await?;
    for patch in [target.ownership(None), target.identified(None)] {
        connection
            .write(Method::PATCH, &format!("{path}?{by}"), &patch)
            .await?;
    }
    connection
        .write(
            Method::PATCH,
            &format!("{path}/status?{by}"),
            &target.status(None),
        )
        .await?;
    let events = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
    connection.write(Method::POST, &events, &target.event()).await
}
