//! A KubeadmControlPlane, with Cluster API's own kubeadm providers.

use anyhow::{Context, Result, ensure};
use cmi_driver::Operation;
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Client, ResourceExt as _};
use management_cluster::kubeadm::KubeadmProviders;
use management_cluster::{BOOTSTRAP_KUBECONFIG, KUBERNETES_VERSION, eventually};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{InPlace, ids, settled, tier};
use crate::support::fleet::objects;
use crate::support::{Authority, Backing, DEADLINE, Extension, Fleet, World};

/// UPD-01, UPD-02: like a MachineDeployment, but with other hooks. KubeadmControlPlane calls CanUpdateMachine
/// for each Machine, and writes the new spec into its InfraMachine. Core calls UpdateMachine.
#[tokio::test]
async fn a_kubeadm_control_plane_is_updated_in_place_or_rolled() -> Result<()> {
    // With rate limiting, KubeadmControlPlane would need a second for each of its many steps.
    let world = World::new("in-place-kcp").await?;
    let in_place = InPlace::of(world, Backing::InProcess, json!({})).await?;
    let (world, cloud) = (&in_place.world, &in_place.cloud);
    let _serving = in_place.serve().await?;
    let _providers = KubeadmProviders::start(&world.management, &world.namespace).await?;
    let fleet = Fleet::of(world, "cp");
    fleet.template("cp-1", tier("bronze")).await?;
    let workload = world.management.workload().await?.admin_client().await?;
    let _kubeadm = Kubeadm::start(workload, &world.namespace);
    create(world).await?;
    let machines = fleet.running(REPLICAS).await?;
    is_ready(world).await?;
    let before = ids(&cloud.holds(REPLICAS).await?);

    point_at(&fleet, "cp-2", tier("gold")).await?;
    settled(world, cloud, &fleet, "gold").await?;
    fleet.running(REPLICAS).await?;
    ensure!(ids(&cloud.vms()?) == before, "a VM was replaced");
    for machine in &machines {
        let calls = cloud.count(Operation::UpdateMachine, &machine.name_any())?;
        ensure!(calls == 1, "{calls} updates of {}", machine.name_any());
    }
    is_ready(world).await?;

    let mut larger = tier("gold");
    larger["size"] = json!("medium");
    point_at(&fleet, "cp-3", larger).await?;
    eventually(DEADLINE, "a VM that is larger, in place of another", async || {
        let vms = cloud.vms()?;
        let larger: Vec<_> = vms.iter().filter(|vm| vm.size == "medium").collect();
        ensure!(!larger.is_empty() && vms.len() == REPLICAS, "{vms:?}");
        let is_new = larger.iter().all(|vm| !before.contains(&vm.provider_id()));
        ensure!(is_new, "updated in place: {larger:?}");
        Ok(())
    })
    .await?;
    Extension::unregister(world).await
}

/// With fewer, KubeadmControlPlane creates another Machine instead of updating one.
const REPLICAS: usize = 3;

/// A Cluster with a KubeadmControlPlane. It has the name of the namespace, since its Machines and Nodes
/// derive their names from it. For the kubeadm providers, etcd is external: the VMs run nothing.
async fn create(world: &World) -> Result<()> {
    etcd_certificates(world).await?;
    let workload = world.management.workload().await?;
    let mut secret = workload.kubeconfig_secret(&world.namespace, "cp");
    // Otherwise KubeadmControlPlane would own the Secret, and renew its certificate.
    secret.type_ = Some("Opaque".to_owned());
    let secrets = Api::namespaced(world.admin.clone(), &world.namespace);
    secrets.create(&PostParams::default(), &secret).await?;
    let kubeconfig = workload.bootstrap_kubeconfig()?;
    let metadata = |name: &str| json!({"name": name, "namespace": world.namespace});
    let infra = json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraCluster", "metadata": metadata("cp"),
        "spec": {"controlPlaneEndpoint": {"host": "127.0.0.1", "port": 6443}},
    });
    let control_plane = json!({
        "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KubeadmControlPlane",
        "metadata": metadata(&world.namespace),
        "spec": {
            "replicas": REPLICAS, "version": KUBERNETES_VERSION,
            "rollout": {"strategy": {"rollingUpdate": {"maxSurge": 0}}},
            "machineTemplate": {"spec": {
                "infrastructureRef": {
                    "apiGroup": "infrastructure.capcmi.io", "kind": "InfraMachineTemplate", "name": "cp-1",
                },
                "deletion": {"nodeDeletionTimeoutSeconds": 10, "nodeDrainTimeoutSeconds": 5},
            }},
            "kubeadmConfigSpec": {
                "clusterConfiguration": {"etcd": {"external": {
                    "endpoints": ["https://etcd:2379"], "caFile": "/etc/kubernetes/pki/etcd/ca.crt",
                    "certFile": "/etc/kubernetes/pki/apiserver-etcd-client.crt",
                    "keyFile": "/etc/kubernetes/pki/apiserver-etcd-client.key",
                }}},
                // A real kubeadm would write this file.
                "files": [{"path": BOOTSTRAP_KUBECONFIG, "content": kubeconfig}],
            },
        },
    });
    let cluster = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": metadata("cp"),
        "spec": {
            "infrastructureRef": {
                "apiGroup": "infrastructure.capcmi.io", "kind": "InfraCluster", "name": "cp",
            },
            "controlPlaneRef": {
                "apiGroup": "controlplane.cluster.x-k8s.io", "kind": "KubeadmControlPlane",
                "name": world.namespace,
            },
        },
    });
    for object in [infra, control_plane, cluster] {
        management_cluster::apply(&world.admin, object).await?;
    }
    Ok(())
}

/// The Secrets that an operator creates for an external etcd.
async fn etcd_certificates(world: &World) -> Result<()> {
    let authority = Authority::new()?;
    let files = (
        world.folder.join("etcd-client.crt"),
        world.folder.join("etcd-client.key"),
    );
    authority.vouch_for("apiserver-etcd-client", &files)?;
    let read = |path| std::fs::read_to_string(path).context("reading a certificate of etcd");
    let certificates = [
        ("cp-etcd", json!({"tls.crt": authority.certificate()})),
        (
            "cp-apiserver-etcd-client",
            json!({"tls.crt": read(&files.0)?, "tls.key": read(&files.1)?}),
        ),
    ];
    for (name, data) in certificates {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
            "metadata": {
                "name": name, "namespace": world.namespace,
                "labels": {"cluster.x-k8s.io/cluster-name": "cp"},
            },
            "stringData": data,
        });
        management_cluster::apply(&world.admin, secret).await?;
    }
    Ok(())
}

/// Points the KubeadmControlPlane at a new template.
async fn point_at(fleet: &Fleet<'_>, template: &str, provider_spec: Value) -> Result<()> {
    fleet.template(template, provider_spec).await?;
    let world = fleet.world();
    let reference = json!({"spec": {"machineTemplate": {"spec": {"infrastructureRef": {"name": template}}}}});
    let patched = control_planes(world)
        .patch(
            &world.namespace,
            &PatchParams::default(),
            &Patch::Merge(reference),
        )
        .await;
    patched.map(drop).context("pointing at the new template")
}

/// KubeadmControlPlane replaces a Machine while its control plane is unhealthy, even if its VM could be
/// updated.
async fn is_ready(world: &World) -> Result<()> {
    eventually(
        DEADLINE,
        "a control plane that is ready and up to date",
        async || {
            let status = control_planes(world).get(&world.namespace).await?.data["status"].take();
            ensure!(
                status["readyReplicas"] == REPLICAS && status["upToDateReplicas"] == REPLICAS,
                "{status:#}"
            );
            Ok(())
        },
    )
    .await
}

fn control_planes(world: &World) -> Api<kube::api::DynamicObject> {
    objects(
        world,
        "controlplane.cluster.x-k8s.io",
        "v1beta2",
        "KubeadmControlPlane",
    )
}

/// Writes the objects of kubeadm and of static Pods into the workload cluster, for Nodes with a name prefix.
struct Kubeadm {
    task: JoinHandle<()>,
}

impl Drop for Kubeadm {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Kubeadm {
    fn start(workload: Client, prefix: &str) -> Self {
        let prefix = format!("{prefix}-");
        let follow = async move {
            // After an error, the watch restarts with the current objects.
            let events = watcher::watcher(Api::<Node>::all(workload.clone()), watcher::Config::default());
            let mut events = std::pin::pin!(events.default_backoff());
            loop {
                let told = match events.try_next().await {
                    Ok(Some(Event::Apply(node) | Event::InitApply(node))) if is_of(&node, &prefix) => {
                        joined(&workload, &node).await
                    }
                    Ok(Some(Event::Delete(node))) if is_of(&node, &prefix) => left(&workload, &node).await,
                    Ok(None) => return,
                    Ok(Some(_)) => Ok(()),
                    Err(error) => Err(error.into()),
                };
                if let Err(error) = told {
                    eprintln!("playing kubeadm: {error:#}");
                }
            }
        };
        Self {
            task: tokio::spawn(follow),
        }
    }
}

fn is_of(node: &Node, prefix: &str) -> bool {
    node.name_any().starts_with(prefix)
}

const COMPONENTS: [&str; 3] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];
const ROLE: &str = "node-role.kubernetes.io/control-plane";

/// Sets label and taint before the Pods: KubeadmControlPlane reconciles periodically only while a Pod is
/// missing.
async fn joined(workload: &Client, node: &Node) -> Result<()> {
    let pods = Api::<Pod>::namespaced(workload.clone(), "kube-system");
    let last = pods.get_opt(&static_pod(COMPONENTS[2], node)).await?;
    if last.is_some_and(|pod| {
        pod.status
            .is_some_and(|status| status.phase.as_deref() == Some("Running"))
    }) {
        return Ok(());
    }
    let config_maps = Api::<ConfigMap>::namespaced(workload.clone(), "kube-system");
    if config_maps.get_opt("kubeadm-config").await?.is_none() {
        let configuration = format!(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: \
             {KUBERNETES_VERSION}\n"
        );
        let kubeadm_config = serde_json::from_value(json!({
            "metadata": {"name": "kubeadm-config"}, "data": {"ClusterConfiguration": configuration},
        }))?;
        config_maps
            .create(&PostParams::default(), &kubeadm_config)
            .await?;
    }
    let taints = json!([{"key": ROLE, "effect": "NoSchedule"}]);
    let patch = Patch::Merge(json!({"metadata": {"labels": {ROLE: ""}}, "spec": {"taints": taints}}));
    let nodes = Api::<Node>::all(workload.clone());
    nodes
        .patch(&node.name_any(), &PatchParams::default(), &patch)
        .await?;
    let parameters = PatchParams::apply("kubelet").force();
    for component in COMPONENTS {
        let name = static_pod(component, node);
        let pod: Pod = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "labels": {"tier": "control-plane", "component": component},
                "annotations": {"kubernetes.io/config.mirror": "static"},
            },
            "spec": {"nodeName": node.name_any(), "containers": [{"name": component, "image": component}]},
        }))?;
        pods.patch(&name, &parameters, &Patch::Apply(&pod)).await?;
        let healthy = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        let patch = Patch::Merge(json!({"status": healthy}));
        pods.patch_status(&name, &PatchParams::default(), &patch).await?;
    }
    Ok(())
}

fn static_pod(component: &str, node: &Node) -> String {
    format!("{component}-{}", node.name_any())
}

async fn left(workload: &Client, node: &Node) -> Result<()> {
    let pods = Api::<Pod>::namespaced(workload.clone(), "kube-system");
    for component in COMPONENTS {
        let now = DeleteParams::default().grace_period(0);
        pods.delete(&static_pod(component, node), &now).await?;
    }
    Ok(())
}
