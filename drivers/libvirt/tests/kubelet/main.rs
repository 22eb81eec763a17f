//! Cluster API, this driver, and a guest with a real kubelet: `make e2e-libvirt`.

// A failure of the lab ends the test.
#![allow(clippy::unwrap_used, clippy::panic)]

mod bootstrap;
mod cluster;
mod gateway;
#[path = "../lab/mod.rs"]
mod lab;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use capcmi::api::v1alpha1::InfraMachine;
use cluster::{Cluster, NAME, NodeImage, TAINT};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use lab::Lab;
use lab::record::Record;
use management_cluster::{KUBERNETES_VERSION, eventually};
use serde_json::json;

/// How long steps without a guest may take.
const SOON: Duration = Duration::from_mins(5);
/// How long steps with a guest may take. It is emulated, on processors that other programs use as well.
const GUEST: Duration = Duration::from_mins(25);
/// The image of Pods, which is part of the node image.
const POD_IMAGE: &str = "capcmi.local/hello:1";

/// DRV-13, DRV-14, INI-02: a guest reads its bootstrap data, and joins as the promised Node. Its taint is
/// removed, and it runs a Pod. When its Machine is deleted, the Node is drained, and nothing is left.
#[tokio::test]
#[ignore = "boots Debian with a kubelet, which takes minutes: make e2e-libvirt"]
async fn a_machine_becomes_a_node_that_runs_a_pod_and_leaves_nothing() -> Result<()> {
    let Some(lab) = lab::lab().await? else {
        return Ok(());
    };
    let image = NodeImage::build()?;
    let cluster = Cluster::start(&lab, &image).await?;
    let client = cluster.management.workload().await?.admin_client().await?;
    let nodes = Record::of(Api::<Node>::all(client.clone()));
    let pods = Record::of(Api::<Pod>::namespaced(client.clone(), "default"));
    // The Pod waits for a Node without the taint.
    management_cluster::apply(&client, hello()).await?;
    cluster.make_machine().await?;

    let promised = provisioned(&cluster).await?;
    let provider_id = promised.spec.provider_id.clone().unwrap_or_default();
    let status = promised.status.clone().unwrap_or_default();
    let name = status.node_name.context("no Node is promised")?;
    let uuid = provider_id.rsplit('/').next().unwrap_or_default().to_owned();
    let joined = async {
        let node = ready(&cluster, &lab, &uuid, &name).await?;
        check_node(&node, &provider_id, &uuid, &nodes.named(&name))?;
        same_address(&cluster, &node).await?;
        let pod = running_pod(&cluster, &name).await?;
        show(&cluster).await?;
        anyhow::Ok(pod)
    };
    let pod = joined.await.map_err(|error| with_console(error, &lab, &uuid))?;

    cluster.kubectl(&["delete", "machinedeployment", NAME, "--wait=false"])?;
    gone(&cluster)
        .await
        .map_err(|error| with_console(error, &lab, &uuid))?;
    let (_, last) = pods.named(&pod).pop().context("the Pod was not seen")?;
    let ended = last
        .status
        .unwrap_or_default()
        .container_statuses
        .unwrap_or_default();
    let code = |status: &k8s_openapi::api::core::v1::ContainerStatus| {
        status
            .state
            .as_ref()?
            .terminated
            .as_ref()
            .map(|ended| ended.exit_code)
    };
    // The kubelet ended the Pod after the request to shut down, while the guest still ran.
    ensure!(
        ended.iter().map(code).collect::<Vec<_>>() == [Some(0)],
        "{ended:?}"
    );
    ensure!(
        Api::<Node>::all(client).get_opt(&name).await?.is_none(),
        "the Node {name} is left"
    );
    ensure!(lab.left()?.is_empty(), "{:?}", lab.left()?);
    Ok(())
}

/// A Deployment whose Pod becomes ready when the kubelet reaches it over the Pod network.
fn hello() -> serde_json::Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "hello", "namespace": "default"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "hello"}}, "template": {
            "metadata": {"labels": {"app": "hello"}},
            "spec": {
                "automountServiceAccountToken": false, "enableServiceLinks": false, "dnsPolicy": "Default",
                "containers": [{
                    "name": "hello", "image": POD_IMAGE, "imagePullPolicy": "Never",
                    "readinessProbe": {"httpGet": {"port": 8080}, "timeoutSeconds": 10},
                }],
            },
        }},
    })
}

/// The InfraMachine, after its VM was reported to Cluster API and long before the Node exists.
async fn provisioned(cluster: &Cluster) -> Result<InfraMachine> {
    let machines = infra_machines(cluster).await?;
    eventually(SOON, "a VM", async || {
        let machine = machines.list(&ListParams::default()).await?.items.pop();
        let machine = machine.context("there is no InfraMachine")?;
        ensure!(machine.is_provisioned(), "{:?}", machine.status);
        Ok(machine)
    })
    .await
}

/// The Node, after the Machine is Running and reports its Node as ready.
async fn ready(cluster: &Cluster, lab: &Lab, uuid: &str, name: &str) -> Result<Node> {
    let machines = machines(cluster).await?;
    eventually(GUEST, "a Running Machine", async || {
        let machine = machines.list(&ListParams::default()).await?.items.pop();
        let status = machine.context("there is no Machine")?.data["status"].clone();
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let is_ready =
            |condition: &serde_json::Value| condition["type"] == "NodeReady" && condition["status"] == "True";
        ensure!(
            status["phase"] == "Running"
                && status["nodeRef"]["name"] == name
                && conditions.iter().any(is_ready),
            "{status:#}\nthe guest's console has {} bytes",
            lab.console(uuid).unwrap_or_default().len()
        );
        Ok(())
    })
    .await?;
    let client = cluster.management.workload().await?.admin_client().await?;
    let nodes = Api::<Node>::all(client);
    eventually(SOON, "a Node without its taint", async || {
        let node = nodes.get(name).await?;
        let taints = keys(&node);
        ensure!(!taints.iter().any(|key| key == TAINT), "{taints:?}");
        Ok(node)
    })
    .await
}

/// Checks that the Node belongs to the VM: it has the ProviderID, and its kubelet reads the domain's UUID
/// from the firmware. The Node was created with the taint.
fn check_node(node: &Node, provider_id: &str, uuid: &str, states: &[(Instant, Node)]) -> Result<()> {
    let id = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref());
    ensure!(id == Some(provider_id), "{id:?} is not {provider_id}");
    let (_, first) = states.first().context("the Node was not seen")?;
    ensure!(
        keys(first).iter().any(|key| key == TAINT),
        "it came with {:?}",
        keys(first)
    );
    let info = node.status.as_ref().and_then(|status| status.node_info.clone());
    let info = info.context("the Node says nothing of its machine")?;
    ensure!(
        info.kubelet_version == KUBERNETES_VERSION,
        "{}",
        info.kubelet_version
    );
    ensure!(
        info.container_runtime_version.starts_with("containerd://"),
        "{info:?}"
    );
    ensure!(
        info.system_uuid.eq_ignore_ascii_case(uuid),
        "{} is not {uuid}",
        info.system_uuid
    );
    Ok(())
}

/// Checks that the driver and the kubelet report the same address.
async fn same_address(cluster: &Cluster, node: &Node) -> Result<()> {
    let addresses = node.status.as_ref().and_then(|status| status.addresses.clone());
    let mut addresses = addresses.unwrap_or_default().into_iter();
    let internal = addresses.find(|address| address.type_ == "InternalIP");
    let internal = internal.context("the Node has no address")?.address;
    let machines = infra_machines(cluster).await?;
    eventually(SOON, "the address of the VM", async || {
        let machine = machines.list(&ListParams::default()).await?.items.pop();
        let status = machine.and_then(|machine| machine.status).unwrap_or_default();
        let told = status.addresses.iter().any(|address| address.address == internal);
        ensure!(told, "{:?} are not {internal}", status.addresses);
        Ok(())
    })
    .await
}

fn keys(node: &Node) -> Vec<String> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone());
    taints
        .unwrap_or_default()
        .into_iter()
        .map(|taint| taint.key)
        .collect()
}

/// The name of the Pod, after its readiness probe has succeeded on the Node.
async fn running_pod(cluster: &Cluster, node: &str) -> Result<String> {
    let client = cluster.management.workload().await?.admin_client().await?;
    let deployments = Api::<Deployment>::namespaced(client.clone(), "default");
    let pods = Api::<Pod>::namespaced(client, "default");
    eventually(GUEST, "a Pod that answers", async || {
        let status = deployments.get("hello").await?.status.unwrap_or_default();
        let pod = pods.list(&ListParams::default()).await?.items.pop();
        let pod = pod.context("there is no Pod")?;
        let on = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        ensure!(
            status.available_replicas == Some(1) && on == Some(node),
            "{on:?} {:?}",
            pod.status
        );
        Ok(pod.name_any())
    })
    .await
}

/// Prints the objects from an administrator's view.
async fn show(cluster: &Cluster) -> Result<()> {
    let machines = ["get", "machines,inframachines", "-o", "wide"];
    println!(
        "$ kubectl {}\n{}",
        machines.join(" "),
        cluster.kubectl(&machines)?
    );
    for arguments in [["get", "nodes", "-o", "wide"], ["get", "pods", "-o", "wide"]] {
        let seen = cluster.workload_kubectl(&arguments).await?;
        println!("$ kubectl --kubeconfig workload {}\n{seen}", arguments.join(" "));
    }
    Ok(())
}

/// Waits until no machine is left, and checks that Cluster API has reported the drain.
async fn gone(cluster: &Cluster) -> Result<()> {
    let machines = machines(cluster).await?;
    eventually(GUEST, "the end of the machine", async || {
        let left = machines.list(&ListParams::default()).await?.items;
        let status: Vec<_> = left.iter().map(|machine| &machine.data["status"]).collect();
        ensure!(left.is_empty(), "{status:?}");
        Ok(())
    })
    .await?;
    let events = cluster.kubectl(&["get", "events", "-o", "jsonpath={.items[*].reason}"])?;
    ensure!(events.contains("SuccessfulDrainNode"), "{events}");
    Ok(())
}

async fn infra_machines(cluster: &Cluster) -> Result<Api<InfraMachine>> {
    let admin = cluster.management.admin_client().await?;
    Ok(Api::namespaced(admin, &cluster.namespace))
}

async fn machines(cluster: &Cluster) -> Result<Api<DynamicObject>> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", "Machine"));
    let admin = cluster.management.admin_client().await?;
    Ok(Api::namespaced_with(admin, &cluster.namespace, &resource))
}

/// Adds the end of the guest's console to an error.
fn with_console(error: anyhow::Error, lab: &Lab, uuid: &str) -> anyhow::Error {
    let console = lab.console(uuid).unwrap_or_default();
    let lines: Vec<_> = console.lines().collect();
    let last = lines[lines.len().saturating_sub(60)..].join("\n");
    error.context(format!("the end of the guest's console:\n{last}"))
}
