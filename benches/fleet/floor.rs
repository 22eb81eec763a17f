//! The floor: what the same requests cost without a provider. Three patches, an Event, a read of the
//! bootstrap Secret, and the watches, at the same concurrency, in a process of its own.

use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result};
use capcmi::api::cluster_api::{Cluster, Machine};
use capcmi::api::v1alpha1::InfraMachine;
use futures::{StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, Config, Resource, ResourceExt as _};
use management_cluster::{ManagementCluster, Process};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::CONCURRENCY;
use super::provider::Measured;

/// Set for the process that is the floor.
pub const MARK: &str = "CAPCMI_BENCH_FLOOR";

/// Starts the floor in a process of its own.
pub async fn start(management: &ManagementCluster, namespace: &str) -> Result<Measured> {
    let kubeconfig = testbed::service_account(management).await?;
    let program = std::env::current_exe().context("finding this program")?;
    let mut command = Command::new(program);
    command.arg(&kubeconfig).arg(namespace).env(MARK, "1");
    let process = Process::start(management.folder(), "floor", &command)?;
    Measured::find(process, namespace, String::new()).await
}

/// What the floor does; ends when it is killed.
pub async fn run(kubeconfig: &str, namespace: &str) -> Result<()> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).context("reading the kubeconfig")?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    let client = Client::try_from(config)?;
    let machines = watch::<Machine>(&client, namespace);
    let _clusters = watch::<Cluster>(&client, namespace);
    let infra = watch::<InfraMachine>(&client, namespace);
    infra.wait_until_ready().await?;
    machines.wait_until_ready().await?;
    futures::stream::iter(infra.state().into_iter().map(Ok))
        .try_for_each_concurrent(CONCURRENCY, |machine| bring_up(client.clone(), machine))
        .await?;
    std::future::pending().await
}

fn watch<K>(client: &Client, namespace: &str) -> Store<K>
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

async fn bring_up(client: Client, machine: Arc<InfraMachine>) -> Result<()> {
    let namespace = machine.namespace().unwrap_or_default();
    let (name, uid) = (machine.name_any(), machine.uid().unwrap_or_default());
    let api = Api::<InfraMachine>::namespaced(client.clone(), &namespace);
    Api::<Secret>::namespaced(client.clone(), &namespace)
        .get("boot")
        .await
        .context("reading the Secret")?;
    let params = PatchParams {
        field_manager: Some("floor".to_owned()),
        ..PatchParams::default()
    };
    let claim = json!({"metadata": {
        "resourceVersion": machine.resource_version(),
        "finalizers": [capcmi::api::MACHINE_FINALIZER],
        "annotations": {
            "infrastructure.capcmi.io/cluster-id": uid,
            "infrastructure.capcmi.io/machine-id": format!("{namespace}/{name}/{uid}"),
            "infrastructure.capcmi.io/instance": "may-exist",
            "infrastructure.capcmi.io/driver": "simulated",
            "infrastructure.capcmi.io/secret": "",
            "infrastructure.capcmi.io/applied-provider-spec": r#"{"size":"small","tags":{"capcmi.io/machine":"00000000-0000-0000-0000-000000000000","kubernetes.io/cluster":"00000000-0000-0000-0000-000000000000","kubernetes.io/role":"node"},"vmPool":"default"}"#,
        },
    }});
    let written = api
        .patch(&name, &params, &Patch::Merge(&claim))
        .await
        .context("patching metadata")?;
    let id = format!("simulated://zone-a/{uid}");
    let identified =
        json!({"metadata": {"resourceVersion": written.resource_version()}, "spec": {"providerID": id}});
    let written = api
        .patch(&name, &params, &Patch::Merge(&identified))
        .await
        .context("patching the spec")?;
    let status = status(&name, written.resource_version().as_deref());
    api.patch_status(&name, &params, &Patch::Merge(&status))
        .await
        .context("patching the status")?;
    let event = Event {
        metadata: kube::api::ObjectMeta {
            name: Some(format!("{name}.{:x}", Timestamp::now().as_nanosecond())),
            ..kube::api::ObjectMeta::default()
        },
        type_: Some("Normal".to_owned()),
        reason: Some("Provisioned".to_owned()),
        action: Some("CreateMachine".to_owned()),
        note: Some(format!("the VM {id} is provisioned")),
        event_time: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(
            Timestamp::now(),
        )),
        regarding: Some(machine.object_ref(&())),
        reporting_controller: Some("infrastructure.capcmi.io/floor".to_owned()),
        reporting_instance: Some("floor".to_owned()),
        ..Event::default()
    };
    Api::<Event>::namespaced(client, &namespace)
        .create(&PostParams::default(), &event)
        .await
        .context("creating the Event")?;
    Ok(())
}

/// A status as large as the provider's.
fn status(name: &str, version: Option<&str>) -> Value {
    let now = Timestamp::now().to_string();
    let condition = |type_: &str, status: &str, reason: &str| {
        json!({"type": type_, "status": status,
        "reason": reason, "message": "", "lastTransitionTime": now, "observedGeneration": 2})
    };
    json!({"metadata": {"resourceVersion": version}, "status": {
        "ready": true, "initialization": {"provisioned": true}, "nodeName": name, "powerState": "Running",
        "failureDomain": "zone-a", "observedGeneration": 2,
        "addresses": [{"type": "InternalIP", "address": "10.100.0.1"}, {"type": "Hostname", "address": name}],
        "lastOperation": {"type": "Create", "state": "Successful", "attempts": 0, "lastUpdateTime": now},
        "conditions": [
            condition("Paused", "False", "NotPaused"), condition("VirtualMachineCreated", "True", "Created"),
            condition("VirtualMachineInitialized", "True", "Initialized"), condition("DriverReachable",
                "True", "Reachable"),
            condition("VirtualMachineUpToDate", "True", "UpToDate"), condition("Ready", "True", "Ready"),
        ],
    }})
}
