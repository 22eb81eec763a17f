//! Pods with persistent volumes are evicted one after the other, before Cluster API drains their Node. The
//! case replaces the kubelet and the attach-detach controller: it ends pods and detaches volumes.

use anyhow::{Result, ensure};
use capcmi::api::annotations;
use capcmi::api::conditions::{VOLUMES_DRAINED, reason};
use capcmi_manifests::{self as manifests, Part};
use cmi_driver::Operation;
use cmi_simulated::Phase;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::support::by_hand::{event, message, says, small};
use crate::support::fleet::objects;
use crate::support::{Backing, ByHand, Cloud, DEADLINE, Fleet, Provider, World};

/// Grants the opt-in's permissions.
pub async fn permitted(world: &World) -> Result<()> {
    let role = manifests::stream(&[Part::VolumeDrain])?;
    world.management.apply_yaml(&role).await.map(drop)
}

/// CTL-05: four volumes. One is a CSI volume of the driver, and only the driver can name the second. It can
/// name neither of the others: a foreign CSI volume, and an in-tree volume that a CSI driver has attached.
/// Core copies the annotation from the MachineDeployment or the InfraMachineTemplate, and deletes the
/// Machine. `tests/world` has the other cases of the volume drain.
#[tokio::test]
async fn core_drains_a_node_once_the_volumes_of_each_evicted_pod_have_left() -> Result<()> {
    let world = World::new("volumes").await?;
    permitted(&world).await?;
    let cloud = Cloud::new(&world);
    let backed = Backing::Plugin.of(&world, &cloud, json!({})).await?;
    let provider = Provider::new(backed.drivers.clone()).flag("--enable-volume-drain");
    let _provider = provider.start(&world).await?;
    let _kubelets = world.kubelets(&cloud);
    world.cluster("md").await?;
    let fleet = Fleet::of(&world, "md");
    fleet.template("md-1", small()).await?;
    fleet.deployment("md-1", 1).await?;
    let template = json!({"spec": {"template": {
        "metadata": {"annotations": {annotations::VOLUME_DRAIN: "30m"}},
        "spec": {"deletion": {"nodeDrainTimeoutSeconds": 0}},
    }}});
    world.kubectl(&[
        "patch",
        "machinedeployment",
        "md",
        "--type=merge",
        "-p",
        &template.to_string(),
    ])?;
    let name = fleet.running(1).await?[0].name_any();
    hook(&world, &name, true).await?;
    opted_in_by_its_template(&world).await?;

    let node = NodeOfCase::new(&world, &name).await?;
    let csi = json!({"csi": {"driver": "simulated.capcmi.io", "volumeHandle": "vol-a"}});
    let flex =
        json!({"flexVolume": {"driver": "simulated.capcmi.io/disk", "options": {"volumeID": "vol-b"}}});
    let foreign = json!({"csi": {"driver": "foreign.example.com", "volumeHandle": "vol-c"}});
    let in_tree = json!({"awsElasticBlockStore": {"volumeID": "aws://eu-west-1a/vol-0e"}});
    let (a, b, c, e) = (
        "kubernetes.io/csi/simulated.capcmi.io^vol-a",
        "flexvolume-simulated.capcmi.io/disk/vol-b",
        "kubernetes.io/csi/foreign.example.com^vol-c",
        "kubernetes.io/csi/ebs.csi.aws.com^vol-0e",
    );
    for (claim, source) in [("a", csi), ("b", flex), ("c", foreign), ("e", in_tree)] {
        node.volume(claim, source).await?;
        node.pod(claim, &[claim], json!({})).await?;
    }
    node.pod("without", &[], json!({})).await?;
    let of_a_daemon = json!({"ownerReferences": [{
        "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": true,
    }]});
    node.volume(
        "d",
        json!({"csi": {"driver": "simulated.capcmi.io", "volumeHandle": "vol-d"}}),
    )
    .await?;
    node.pod("daemon", &["d"], of_a_daemon).await?;
    node.attach(&[a, b, c, e]).await?;

    fleet.scale(0).await?;
    for (pod, volume, rest) in [
        ("a", a, vec![b, c, e]),
        ("b", b, vec![c, e]),
        ("c", c, vec![e]),
        ("e", e, vec![]),
    ] {
        node.leaving(&[pod]).await?;
        node.ends(pod).await?;
        waits_for(&world, &name, &[pod, volume]).await?;
        node.leaving(&[]).await?;
        node.attach(&rest).await?;
    }
    // Cluster API drains the other pods.
    hook(&world, &name, false).await?;
    for pod in ["without", "daemon"] {
        node.ends(pod).await?;
    }
    fleet.gone().await?;
    let asked = cloud.calls()?;
    let asked = asked
        .iter()
        .filter(|call| call.phase == Phase::Started && call.operation == Operation::GetVolumeIds);
    ensure!(asked.count() == 4, "the driver was asked for other volumes");
    event(&world, &name, reason::VOLUMES_DRAINED).await.map(drop)
}

/// A machine gets the hook if its InfraMachineTemplate has the annotation.
async fn opted_in_by_its_template(world: &World) -> Result<()> {
    world.cluster("by-template").await?;
    let fleet = Fleet::of(world, "by-template");
    fleet.template("by-template-1", small()).await?;
    let asks =
        json!({"spec": {"template": {"metadata": {"annotations": {annotations::VOLUME_DRAIN: "30m"}}}}});
    world.kubectl(&[
        "patch",
        "inframachinetemplate",
        "by-template-1",
        "--type=merge",
        "-p",
        &asks.to_string(),
    ])?;
    fleet.deployment("by-template-1", 1).await?;
    let name = fleet.running(1).await?[0].name_any();
    hook(world, &name, true).await?;
    fleet.scale(0).await?;
    fleet.gone().await
}

/// A machine of the Cluster `one` with the annotation, and its Node.
pub async fn drained(world: &World, name: &str, time: &str) -> Result<(ByHand, NodeOfCase)> {
    let machine = ByHand::new(world, "one", name)
        .infra("/metadata/annotations", json!({annotations::VOLUME_DRAIN: time}))
        .create()
        .await?;
    machine.provisioned().await?;
    hook(world, name, true).await?;
    has_node(world, name).await?;
    let node = NodeOfCase::new(world, name).await?;
    Ok((machine, node))
}

/// Waits until Cluster API has found the Node of a Machine, since it drains only known Nodes.
async fn has_node(world: &World, name: &str) -> Result<()> {
    let machines = objects(world, "cluster.x-k8s.io", "v1beta2", "Machine");
    eventually(DEADLINE, "a Machine with a Node", async || {
        let machine = machines.get(name).await?;
        ensure!(
            machine.data["status"]["nodeRef"]["name"].is_string(),
            "{:#}",
            machine.data
        );
        Ok(())
    })
    .await
}

/// Creates two pods with one attached volume each.
pub async fn two_volumes(node: &NodeOfCase) -> Result<[&'static str; 2]> {
    for claim in ["a", "b"] {
        let source =
            json!({"csi": {"driver": "simulated.capcmi.io", "volumeHandle": format!("vol-{claim}")}});
        node.volume(claim, source).await?;
        node.pod(claim, &[claim], json!({})).await?;
    }
    let volumes = [
        "kubernetes.io/csi/simulated.capcmi.io^vol-a",
        "kubernetes.io/csi/simulated.capcmi.io^vol-b",
    ];
    node.attach(&volumes).await?;
    Ok(volumes)
}

/// Waits until the Machine has the hook, or no longer has it.
async fn hook(world: &World, name: &str, is_there: bool) -> Result<()> {
    let machines = objects(world, "cluster.x-k8s.io", "v1beta2", "Machine");
    let what = if is_there { "a hook" } else { "no hook" };
    eventually(DEADLINE, &format!("{what} on the Machine {name}"), async || {
        let machine = machines.get_opt(name).await?;
        let has =
            machine.is_some_and(|machine| machine.annotations().contains_key(annotations::VOLUME_DRAIN_HOOK));
        ensure!(has == is_there, "{has}");
        Ok(())
    })
    .await
}

/// Waits until the condition reports a wait for this.
async fn waits_for(world: &World, name: &str, what: &[&str]) -> Result<()> {
    let machines = crate::support::by_hand::infra_machines(world);
    eventually(DEADLINE, &format!("a wait for {what:?}"), async || {
        let machine = machines.get(name).await?;
        let text = message(&machine, VOLUMES_DRAINED);
        let waits = says(&machine, VOLUMES_DRAINED, "False", reason::WAITING_FOR_VOLUMES);
        ensure!(waits && what.iter().all(|word| text.contains(word)), "{text}");
        Ok(())
    })
    .await
}

/// A Node, with pods in a namespace of the case.
pub struct NodeOfCase {
    client: Client,
    namespace: String,
    name: String,
}

impl NodeOfCase {
    async fn new(world: &World, name: &str) -> Result<Self> {
        let client = world.management.workload().await?.admin_client().await?;
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": world.namespace}});
        management_cluster::apply(&client, namespace).await?;
        Ok(Self {
            client,
            namespace: world.namespace.clone(),
            name: name.to_owned(),
        })
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Creates a PersistentVolume with this source, and a claim that is bound to it.
    async fn volume(&self, claim: &str, source: Value) -> Result<()> {
        let name = format!("{}-{claim}", self.namespace);
        let mut spec = source;
        spec["capacity"] = json!({"storage": "1Gi"});
        spec["accessModes"] = json!(["ReadWriteOnce"]);
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec,
        });
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim, "namespace": self.namespace},
            "spec": {
                "volumeName": name, "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        for object in [volume, claim] {
            management_cluster::apply(&self.client, object).await?;
        }
        Ok(())
    }

    /// Creates a pod on the Node, with these claims and metadata.
    async fn pod(&self, name: &str, claims: &[&str], mut metadata: Value) -> Result<()> {
        metadata["name"] = json!(name);
        metadata["namespace"] = json!(self.namespace);
        let volume = |claim: &&str| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": {
                "nodeName": self.name, "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "c", "image": "none"}],
                "volumes": claims.iter().map(volume).collect::<Vec<_>>(),
            },
        });
        management_cluster::apply(&self.client, pod).await?;
        let runs =
            json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        self.pods()
            .patch_status(name, &PatchParams::default(), &Patch::Merge(runs))
            .await?;
        Ok(())
    }

    /// Reports exactly these volumes as attached.
    pub async fn attach(&self, volumes: &[&str]) -> Result<()> {
        let attached = volumes.iter().map(|name| json!({"name": name, "devicePath": ""}));
        let status = json!({"status": {"volumesAttached": attached.collect::<Vec<_>>()}});
        Api::<Node>::all(self.client.clone())
            .patch_status(&self.name, &PatchParams::default(), &Patch::Merge(status))
            .await?;
        Ok(())
    }

    /// Waits until exactly these pods are terminating.
    pub async fn leaving(&self, names: &[&str]) -> Result<()> {
        eventually(DEADLINE, &format!("{names:?} on their way out"), async || {
            let pods = self.pods().list(&ListParams::default()).await?.items;
            let leaving = pods
                .iter()
                .filter(|pod| pod.metadata.deletion_timestamp.is_some());
            let mut leaving: Vec<_> = leaving.map(ResourceExt::name_any).collect();
            leaving.sort();
            ensure!(leaving == names, "{leaving:?}");
            Ok(())
        })
        .await
    }

    /// Ends a pod, like the kubelet.
    pub async fn ends(&self, name: &str) -> Result<()> {
        let now = DeleteParams::default().grace_period(0);
        self.pods().delete(name, &now).await?;
        Ok(())
    }
}
