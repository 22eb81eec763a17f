//! An IPAM provider that follows Cluster API's contract. Its pools are lists in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use capcmi::api::wall_clock;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::World;
use super::fleet::objects;
use super::ipam::{addresses, claims};

/// The API group of the pools, and of the finalizers.
const GROUP: &str = "ipam.example.com";
const RELEASE: &str = "ipam.example.com/release-address";
const PROTECT: &str = "ipam.example.com/protect-address";
const INTERVAL: Duration = Duration::from_millis(100);

/// The IPAM provider of a namespace. It runs until it is dropped.
pub struct Ipam {
    pools: Pools,
    added: Arc<Notify>,
    task: JoinHandle<()>,
}

/// The addresses of each pool.
type Pools = Arc<Mutex<BTreeMap<String, Vec<String>>>>;

/// An entry of `spec.addressesFromPools`.
pub fn pool(name: &str) -> Value {
    json!({"apiGroup": GROUP, "kind": "Pool", "name": name})
}

impl Ipam {
    /// Starts the provider without pools.
    pub fn start(world: &World) -> Self {
        let (pools, added, world) = (Pools::default(), Arc::new(Notify::new()), world.clone());
        let task = tokio::spawn({
            let (pools, added) = (Arc::clone(&pools), Arc::clone(&added));
            async move {
                loop {
                    let written = world.next_write();
                    let ended = round(&world, &pools).await;
                    tokio::time::sleep(INTERVAL).await;
                    match ended {
                        Ok(()) => tokio::select! {
                            () = written => {}
                            () = added.notified() => {}
                        },
                        // The next round repeats a write after a conflict.
                        Err(error) => tracing::debug!("{error:#}"),
                    }
                }
            }
        });
        Self { pools, added, task }
    }

    /// Adds addresses to a pool.
    pub fn add(&self, pool: &str, addresses: &[&str]) {
        let mut pools = self.pools.lock();
        let all = pools.entry(pool.to_owned()).or_default();
        all.extend(addresses.iter().map(ToString::to_string));
        self.added.notify_one();
    }
}

impl Drop for Ipam {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn round(world: &World, pools: &Pools) -> Result<()> {
    for claim in claims(world).list(&ListParams::default()).await? {
        if claim.data["spec"]["poolRef"]["apiGroup"] != GROUP || !is_live(world, &claim).await? {
            continue;
        }
        if claim.metadata.deletion_timestamp.is_some() {
            release(world, &claim).await?;
        } else {
            allocate(world, pools, &claim).await?;
        }
    }
    Ok(())
}

/// Whether the claim's Cluster exists and is not paused.
async fn is_live(world: &World, claim: &DynamicObject) -> Result<bool> {
    let name = claim.data["spec"]["clusterName"].as_str().unwrap_or_default();
    let clusters = objects(world, "cluster.x-k8s.io", "v1beta2", "Cluster");
    let cluster = clusters.get_opt(name).await?;
    Ok(cluster.is_some_and(|cluster| cluster.data["spec"]["paused"] != true))
}

async fn allocate(world: &World, pools: &Pools, claim: &DynamicObject) -> Result<()> {
    let name = claim.name_any();
    let mut finalizers = claim.finalizers().to_vec();
    if !finalizers.iter().any(|finalizer| finalizer == RELEASE) {
        finalizers.push(RELEASE.to_owned());
        set_finalizers(&claims(world), claim, &finalizers).await?;
        return Ok(());
    }
    let known = addresses(world).list(&ListParams::default()).await?;
    if known.iter().all(|address| address.name_any() != name) {
        let pool = claim.data["spec"]["poolRef"]["name"].as_str().unwrap_or_default();
        let all = pools.lock().get(pool).cloned();
        let is_free = |address: &&String| {
            known
                .iter()
                .all(|known| known.data["spec"]["address"] != **address)
        };
        let Some(free) = all.iter().flatten().find(is_free) else {
            let reason = all.as_ref().map_or("PoolNotReady", |_| "PoolExhausted");
            return report(world, claim, "False", reason, None).await;
        };
        // A move may have begun since the addresses were read.
        if !is_live(world, claim).await? {
            return Ok(());
        }
        create(world, claim, free).await?;
    }
    report(world, claim, "True", "Allocated", Some(&name)).await
}

async fn create(world: &World, claim: &DynamicObject, address: &str) -> Result<()> {
    let name = claim.name_any();
    let (prefix, gateway) = match address.rsplit_once('.') {
        Some((network, _)) => (24, format!("{network}.1")),
        None => (64, "fd00::1".to_owned()),
    };
    let owner = json!({
        "apiVersion": "ipam.cluster.x-k8s.io/v1beta2", "kind": "IPAddressClaim", "name": name,
        "uid": claim.metadata.uid, "controller": true, "blockOwnerDeletion": true,
    });
    let address = json!({
        "apiVersion": "ipam.cluster.x-k8s.io/v1beta2", "kind": "IPAddress",
        "metadata": {"name": name, "namespace": world.namespace, "finalizers": [PROTECT],
            "ownerReferences": [owner]},
        "spec": {"claimRef": {"name": name}, "poolRef": claim.data["spec"]["poolRef"], "address": address,
            "prefix": prefix, "gateway": gateway},
    });
    let address = serde_json::from_value(address)?;
    let created = addresses(world).create(&PostParams::default(), &address).await;
    created.map(drop).context("creating an IPAddress")
}

async fn report(
    world: &World,
    claim: &DynamicObject,
    status: &str,
    reason: &str,
    address: Option<&str>,
) -> Result<()> {
    let reported = &claim.data["status"];
    let reference = address.map(|name| json!({"name": name}));
    let is_reported =
        reported["conditions"][0]["reason"] == reason && reported.get("addressRef") == reference.as_ref();
    if is_reported {
        return Ok(());
    }
    let time = wall_clock::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let ready = json!({"type": "Ready", "status": status, "reason": reason, "message": "",
        "lastTransitionTime": time});
    let body = json!({"status": {"conditions": [ready], "addressRef": reference}});
    let patched = claims(world)
        .patch_status(&claim.name_any(), &PatchParams::default(), &Patch::Merge(body))
        .await;
    patched.map(drop).context("reporting on an IPAddressClaim")
}

async fn release(world: &World, claim: &DynamicObject) -> Result<()> {
    let (api, name) = (addresses(world), claim.name_any());
    if let Some(address) = api.get_opt(&name).await? {
        set_finalizers(&api, &address, &[]).await?;
        api.delete(&name, &DeleteParams::default()).await?;
    }
    let mut finalizers = claim.finalizers().to_vec();
    finalizers.retain(|finalizer| finalizer != RELEASE);
    if finalizers.len() < claim.finalizers().len() {
        set_finalizers(&claims(world), claim, &finalizers).await?;
    }
    Ok(())
}

async fn set_finalizers(
    api: &Api<DynamicObject>,
    object: &DynamicObject,
    finalizers: &[String],
) -> Result<()> {
    let version = &object.metadata.resource_version;
    let body = json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}});
    let patched = api
        .patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(body))
        .await;
    patched.map(drop).context("changing finalizers")
}
