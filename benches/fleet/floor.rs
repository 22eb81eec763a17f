//! The floors: the cost of the same requests without a provider, in a process of their own. The requests are
//! patches, an Event, a read of the bootstrap Secret, and the watches.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use capcmi::api::cluster_api::{Cluster, Machine};
use capcmi::api::v1alpha1::InfraMachine;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Config, Resource, ResourceExt as _};
use management_cluster::{ManagementCluster, Process};
use serde::de::DeserializeOwned;

use super::measure::Measured;
use super::requests::Target;
use super::{CONCURRENCY, bare};

/// The client of a floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The client of kube over HTTP/1 with typed caches, as in the provider.
    Kube,
    /// The best bare client that is known.
    Bare,
}

impl Kind {
    /// Both kinds.
    pub const ALL: [Self; 2] = [Self::Kube, Self::Bare];

    /// Returns the name in the table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kube => "kube client, HTTP/1",
            Self::Bare => "bare client, HTTP/2",
        }
    }

    const fn mark(self) -> &'static str {
        match self {
            Self::Kube => "kube",
            Self::Bare => "bare",
        }
    }
}

/// The client of a floor, with its arguments.
#[derive(Debug)]
pub struct Client {
    kind: Kind,
    /// The kubeconfig for the API server.
    pub kubeconfig: PathBuf,
    /// The namespace of the machines.
    pub namespace: String,
}

/// The environment variable that marks the process of a floor.
const MARK: &str = "CAPCMI_BENCH_FLOOR";

impl Client {
    /// Returns the floor that this process has to be, if it has to be one.
    pub fn asked_for() -> Result<Option<Self>> {
        let Some(mark) = std::env::var_os(MARK) else {
            return Ok(None);
        };
        let kind = Kind::ALL.into_iter().find(|kind| mark == kind.mark());
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let [kubeconfig, namespace] = arguments.as_slice() else {
            bail!("a floor takes a kubeconfig and a namespace");
        };
        Ok(Some(Self {
            kind: kind.context("there is no such floor")?,
            kubeconfig: kubeconfig.into(),
            namespace: namespace.clone(),
        }))
    }

    /// Runs the floor until the process is killed.
    pub async fn run(self) -> Result<()> {
        match self.kind {
            Kind::Kube => run(&self).await?,
            Kind::Bare => bare::run(&self).await?,
        }
        std::future::pending().await
    }
}

/// Starts a floor in a separate process.
pub async fn start(management: &ManagementCluster, kind: Kind, namespace: &str) -> Result<Measured> {
    let kubeconfig = testbed::service_account(management).await?;
    let program = std::env::current_exe().context("finding this program")?;
    let mut command = Command::new(program);
    command.arg(&kubeconfig).arg(namespace).env(MARK, kind.mark());
    let process = Process::start(management.folder(), "floor", &command)?;
    Measured::find(process, namespace, String::new()).await
}

async fn run(floor: &Client) -> Result<()> {
    let kubeconfig = Kubeconfig::read_from(&floor.kubeconfig).context("reading the kubeconfig")?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    let client = kube::Client::try_from(config)?;
    let machines = watch::<Machine>(&client, &floor.namespace);
    let _clusters = watch::<Cluster>(&client, &floor.namespace);
    let infra = watch::<InfraMachine>(&client, &floor.namespace);
    infra.wait_until_ready().await?;
    machines.wait_until_ready().await?;
    futures::stream::iter(infra.state().into_iter().map(Ok))
        .try_for_each_concurrent(CONCURRENCY, |machine| bring_up(client.clone(), machine))
        .await
}

fn watch<K>(client: &kube::Client, namespace: &str) -> Store<K>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let (store, writer) = reflector::store();
    let stream = watcher(
        Api::<K>::namespaced(client.clone(), namespace),
        watcher::Config::default(),
    )
    .modify(|object| object.meta_mut().managed_fields = None)
    .reflect(writer);
    tokio::spawn(stream.for_each(|_| futures::future::ready(())));
    store
}

async fn bring_up(client: kube::Client, machine: Arc<InfraMachine>) -> Result<()> {
    let target = Target {
        namespace: machine.namespace().unwrap_or_default(),
        name: machine.name_any(),
        uid: machine.uid().unwrap_or_default(),
    };
    let api = Api::<InfraMachine>::namespaced(client.clone(), &target.namespace);
    Api::<Secret>::namespaced(client.clone(), &target.namespace)
        .get("boot")
        .await
        .context("reading the Secret")?;
    let params = PatchParams {
        field_manager: Some("floor".to_owned()),
        ..PatchParams::default()
    };
    let ownership = target.ownership(machine.resource_version().as_deref());
    let owned = api
        .patch(&target.name, &params, &Patch::Merge(&ownership))
        .await
        .context("patching metadata")?;
    let identified = target.identified(owned.resource_version().as_deref());
    let written = api
        .patch(&target.name, &params, &Patch::Merge(&identified))
        .await
        .context("patching the spec")?;
    let status = target.status(written.resource_version().as_deref());
    api.patch_status(&target.name, &params, &Patch::Merge(&status))
        .await
        .context("patching the status")?;
    Api::<Event>::namespaced(client, &target.namespace)
        .create(&PostParams::default(), &target.event())
        .await
        .context("creating the Event")?;
    Ok(())
}
