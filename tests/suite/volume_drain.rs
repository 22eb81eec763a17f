//! Pods with persistent volumes, evicted one after the other before Cluster API drains their Node. The cases
//! are kubelet and attach-detach controller of the workload cluster: pods end, and volumes leave, when they
//! say so.

use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use capcmi::api::annotations;
use capcmi::api::conditions::{PAUSED, VOLUMES_DRAINED, reason};
use capcmi::manifests::{self, Part};
use cmi_driver::Operation;
use cmi_simulated::Phase;
use http::Method;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use management_cluster::eventually;
use management_cluster::proxy::{Fault, Gate, ProxiedRequest, Proxy};
use serde_json::{Value, json};

use crate::support::backing::with_every_backing;
use crate::support::by_hand::{event, message, says, small};
use crate::support::fleet::objects;
use crate::support::provider::service_account;
use crate::support::{Backing, ByHand, Cloud, DEADLINE, Fleet, MovePair, Provider, World};

with_every_backing!(each_pod_is_evicted_when_the_volume_of_the_one_before_has_left_the_node);

/// What the opt-in grants.
pub async fn permitted(world: &World) -> Result<()> {
    let role = manifests::stream(&[Part::VolumeDrain])?;
    world.management.apply_yaml(&role).await.map(drop)
}

fn provider(cloud: &Cloud, config: Value) -> Provider {
    with(&cloud.drivers(config))
}

/// With this drivers file.
fn with(drivers: &str) -> Provider {
    Provider::new(drivers).flag("--enable-volume-drain")
}

/// CTL-05: a CSI volume of the driver's, one that only the driver can name, and two that it can't, of which
/// one is of before CSI and attached by the CSI driver that has taken over. The annotation comes from the
/// MachineDeployment, and core deletes the Machine.
async fn each_pod_is_evicted_when_the_volume_of_the_one_before_has_left_the_node(
    backing: Backing,
) -> Result<()> {
    let world = World::new("volumes").await?;
    permitted(&world).await?;
    let cloud = Cloud::new(&world);
    let backed = backing.of(&world, &cloud, json!({})).await?;
    let _provider = with(&backed.drivers).start(&world).await?;
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
    // Cluster API drains what is left.
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

/// CTL-05: the annotation may come from the InfraMachineTemplate as well; core copies it to the InfraMachines
/// that it makes.
#[tokio::test]
async fn a_template_has_the_volumes_of_its_machines_drained() -> Result<()> {
    let world = World::new("volumes-template").await?;
    permitted(&world).await?;
    let cloud = Cloud::new(&world);
    let _provider = provider(&cloud, json!({})).start(&world).await?;
    let _kubelets = world.kubelets(&cloud);
    world.cluster("md").await?;
    let fleet = Fleet::of(&world, "md");
    fleet.template("md-1", small()).await?;
    let asks =
        json!({"spec": {"template": {"metadata": {"annotations": {annotations::VOLUME_DRAIN: "30m"}}}}});
    world.kubectl(&[
        "patch",
        "inframachinetemplate",
        "md-1",
        "--type=merge",
        "-p",
        &asks.to_string(),
    ])?;
    fleet.deployment("md-1", 1).await?;
    let name = fleet.running(1).await?[0].name_any();
    hook(&world, &name, true).await?;
    let node = NodeOfCase::new(&world, &name).await?;
    let volumes = two_volumes(&node).await?;

    fleet.scale(0).await?;
    node.leaving(&["a"]).await?;
    node.ends("a").await?;
    waits_for(&world, &name, &["a", volumes[0]]).await?;
    node.leaving(&[]).await?;
    node.attach(&volumes[1..]).await?;
    node.leaving(&["b"]).await?;
    node.ends("b").await?;
    node.attach(&[]).await?;
    fleet.gone().await?;
    cloud.holds(0).await.map(drop)
}

/// The budget decides, and not the time of the annotation; that decides about volumes.
#[tokio::test]
async fn a_budget_is_respected_and_a_volume_that_does_not_leave_is_waited_for_so_long() -> Result<()> {
    let world = World::new("volumes-budget").await?;
    permitted(&world).await?;
    let cloud = Cloud::new(&world);
    let without = json!({"disabledCalls": ["GetVolumeIDs"]});
    let _provider = provider(&cloud, without).start(&world).await?;
    let _kubelets = world.kubelets(&cloud);
    world.cluster("one").await?;
    let (machine, node) = drained(&world, "b-1", "2s").await?;
    let volumes = ["a", "b"].map(|claim| format!("kubernetes.io/csi/d.example.com^{claim}"));
    let volumes = [volumes[0].as_str(), volumes[1].as_str()];
    for claim in ["a", "b"] {
        node.volume(
            claim,
            json!({"csi": {"driver": "d.example.com", "volumeHandle": claim}}),
        )
        .await?;
        let details = json!({"labels": {"app": claim}});
        node.pod(claim, &[claim], details).await?;
    }
    node.attach(&volumes).await?;
    node.budget("a", 0).await?;

    machine.delete().await?;
    node.leaving(&["b"]).await?;
    node.ends("b").await?;
    node.attach(&volumes[..1]).await?;
    let blocked = machine
        .until("a pod that its budget protects", |machine| {
            says(
                machine,
                VOLUMES_DRAINED,
                "False",
                reason::WAITING_FOR_DISRUPTION_BUDGET,
            )
        })
        .await?;
    let text = message(&blocked, VOLUMES_DRAINED);
    ensure!(
        text.contains("/a: 429") && text.contains("disruption budget"),
        "{text}"
    );
    node.leaving(&[]).await?;

    node.budget("a", 1).await?;
    node.leaving(&["a"]).await?;
    node.ends("a").await?;
    // Its volume never leaves.
    hook(&world, &machine.name, false).await?;
    let late = event(&world, &machine.name, reason::VOLUME_DETACH_TIMED_OUT).await?;
    ensure!(
        late.note.as_deref().is_some_and(|note| note.contains(volumes[0])),
        "{late:?}"
    );
    node.attach(&[]).await?;
    machine.gone().await
}

/// Nothing happens without the annotation; and what was begun ends when it goes, when it is no time, or when
/// the provider runs without the feature.
#[tokio::test]
async fn a_machine_has_the_hook_as_long_as_it_asks_for_it_and_the_feature_is_on() -> Result<()> {
    let world = World::new("volumes-opt-in").await?;
    permitted(&world).await?;
    let cloud = Cloud::new(&world);
    let with = provider(&cloud, json!({}));
    let replica = with.start(&world).await?;
    let _kubelets = world.kubelets(&cloud);
    world.cluster("one").await?;
    let (asking, _) = drained(&world, "o-1", "1m").await?;
    let silent = ByHand::new(&world, "one", "o-2").create().await?;
    silent.provisioned().await?;
    let annotate = |value: Value| json!({"metadata": {"annotations": {annotations::VOLUME_DRAIN: value}}});
    asking.patch(annotate(json!("soon"))).await?;
    let shown = asking
        .until("what is wrong with the annotation", |machine| {
            says(machine, VOLUMES_DRAINED, "False", reason::INVALID_VOLUME_DRAIN)
        })
        .await?;
    let text = message(&shown, VOLUMES_DRAINED);
    ensure!(
        text.contains("\"soon\"") && text.contains("120 s are taken"),
        "{text}"
    );
    hook(&world, "o-1", true).await?;
    asking.patch(annotate(json!(null))).await?;
    hook(&world, "o-1", false).await?;
    asking
        .until("a machine that asks for nothing", |machine| {
            crate::support::by_hand::condition(machine, VOLUMES_DRAINED).is_none()
        })
        .await?;
    asking.patch(annotate(json!("1m"))).await?;
    hook(&world, "o-1", true).await?;
    hook(&world, "o-2", false).await?;

    drop(replica);
    let _without = Provider::new(cloud.drivers(json!({})))
        .named("without")
        .start(&world)
        .await?;
    hook(&world, "o-1", false).await
}

/// Killed after an eviction, the provider waits for the volume of a pod that was gone when it came back.
#[tokio::test]
async fn killed_after_an_eviction_the_provider_goes_on_to_wait_for_the_volume() -> Result<()> {
    let world = World::new("volumes-killed").await?;
    permitted(&world).await?;
    let cloud = Cloud::new(&world);
    let provider = provider(&cloud, json!({}));
    let replica = provider.start(&world).await?;
    let _kubelets = world.kubelets(&cloud);
    world.cluster("one").await?;
    let (machine, node) = drained(&world, "k-1", "30m").await?;
    let volumes = two_volumes(&node).await?;
    machine.delete().await?;
    node.leaving(&["a"]).await?;
    drop(replica);
    node.ends("a").await?;

    let _again = provider.named("again").start(&world).await?;
    waits_for(&world, "k-1", &["a", volumes[0]]).await?;
    node.leaving(&[]).await?;
    node.attach(&volumes[1..]).await?;
    node.leaving(&["b"]).await?;
    node.ends("b").await?;
    node.attach(&[]).await?;
    machine.gone().await
}

/// A pause holds a drain where it is: no pod is evicted and no hook taken away before it ends. The drain of
/// another machine goes on, by which it is seen that there was time for it.
#[tokio::test]
async fn a_drain_that_is_paused_goes_on_where_it_was_when_that_ends() -> Result<()> {
    let world = World::new("volumes-paused").await?;
    permitted(&world).await?;
    let cloud = Cloud::new(&world);
    let _provider = provider(&cloud, json!({})).start(&world).await?;
    let _kubelets = world.kubelets(&cloud);
    world.cluster("one").await?;
    let (machine, node) = drained(&world, "paused", "30m").await?;
    let (beside, node_beside) = drained(&world, "beside", "30m").await?;
    let volumes = two_volumes(&node).await?;
    for pod in ["c", "d"] {
        node_beside.pod(pod, &[pod], json!({})).await?;
    }
    machine.delete().await?;
    node.leaving(&["a"]).await?;

    let pause = |value: Value| json!({"metadata": {"annotations": {annotations::PAUSED: value}}});
    machine.patch(pause(json!(""))).await?;
    machine
        .until("a machine that is paused", |machine| {
            says(machine, PAUSED, "True", "Paused")
        })
        .await?;
    node.ends("a").await?;
    node.attach(&volumes[1..]).await?;
    beside.delete().await?;
    node.leaving(&["c"]).await?;
    node.ends("c").await?;
    node.leaving(&["d"]).await?;
    machine.patch(pause(Value::Null)).await?;
    node.leaving(&["b", "d"]).await?;

    // The Machine's own annotation, which holds Cluster API as well.
    let of_machine = |value: Value| {
        let patch = pause(value).to_string();
        let kind = "machines.cluster.x-k8s.io";
        world.kubectl(&["patch", kind, "paused", "--type=merge", "-p", &patch])
    };
    of_machine(json!(""))?;
    for pod in ["b", "d"] {
        node.ends(pod).await?;
    }
    node.attach(&[]).await?;
    beside.gone().await?;
    hook(&world, "paused", true).await?;
    of_machine(Value::Null)?;
    machine.gone().await
}

/// Killed before and after each write to Machine and InfraMachine, the provider goes on where the drain was,
/// and evicts no pod before its time.
#[tokio::test]
async fn killed_around_any_write_of_a_drain_the_provider_goes_on_where_it_was() -> Result<()> {
    let world = World::new("volumes-writes").await?;
    permitted(&world).await?;
    let cloud = Cloud::new(&world);
    let trap = Arc::new(Mutex::new(None::<(&'static str, Fault)>));
    let hook_of_proxy = {
        let trap = Arc::clone(&trap);
        move |request: &ProxiedRequest| {
            let is_write = request.method == Method::PATCH && !request.path.ends_with("/status");
            let mut trap = trap.lock().unwrap_or_else(PoisonError::into_inner);
            let sprung = trap.take_if(|(kind, _)| is_write && request.path.contains(*kind));
            sprung.map_or(Fault::None, |(_, fault)| fault)
        }
    };
    let proxy = Proxy::start(&world.management, hook_of_proxy).await?;
    let kubeconfig = proxy.kubeconfig(&service_account(&world).await?)?;
    let provider = provider(&cloud, json!({})).through(kubeconfig);
    let _kubelets = world.kubelets(&cloud);
    // Starts it, and kills it around its next write to an object of the kind.
    let killed = async |name: &str, kind: &'static str, side: fn(Gate) -> Fault| -> Result<()> {
        let gate = Gate::new();
        *trap.lock().unwrap_or_else(PoisonError::into_inner) = Some((kind, side(gate.clone())));
        let replica = provider.clone().named(name).start(&world).await?;
        let reached = tokio::time::timeout(DEADLINE, gate.reached()).await;
        reached.with_context(|| format!("{name}: no write to {kind}"))?;
        drop(replica);
        Ok(())
    };
    let (machines, infra_machines) = ("/machines/", "/inframachines/");
    world.cluster("one").await?;
    let asks = json!({annotations::VOLUME_DRAIN: "30m"});
    let first = provider.clone().named("first").start(&world).await?;
    let machine = ByHand::new(&world, "one", "p-1").create().await?;
    machine.provisioned().await?;
    has_node(&world, "p-1").await?;
    drop(first);
    machine.patch(json!({"metadata": {"annotations": asks}})).await?;
    let node = NodeOfCase::new(&world, "p-1").await?;
    let volumes = two_volumes(&node).await?;

    killed("before-hook", machines, Fault::HoldBefore).await?;
    hook(&world, "p-1", false).await?;
    killed("after-hook", machines, Fault::HoldAfter).await?;
    hook(&world, "p-1", true).await?;
    machine.delete().await?;
    for (name, side, is_written) in [
        ("before-record", Fault::HoldBefore as fn(Gate) -> Fault, false),
        ("after-record", Fault::HoldAfter, true),
    ] {
        killed(name, infra_machines, side).await?;
        node.leaving(&[]).await?;
        let record = machine
            .get()
            .await?
            .annotations()
            .contains_key(annotations::VOLUME_DRAIN_EVICTION);
        ensure!(record == is_written, "{name}: {record}");
    }
    let evicts = provider.clone().named("evicts").start(&world).await?;
    node.leaving(&["a"]).await?;
    drop(evicts);
    node.ends("a").await?;

    let waits = provider.clone().named("waits").start(&world).await?;
    waits_for(&world, "p-1", &["a", volumes[0]]).await?;
    node.leaving(&[]).await?;
    node.attach(&volumes[1..]).await?;
    node.leaving(&["b"]).await?;
    waits_for(&world, "p-1", &["b", "to end"]).await?;
    drop(waits);
    node.ends("b").await?;
    node.attach(&[]).await?;
    killed("before-release", machines, Fault::HoldBefore).await?;
    hook(&world, "p-1", true).await?;
    killed("after-release", machines, Fault::HoldAfter).await?;
    hook(&world, "p-1", false).await?;
    let _last = provider.clone().named("last").start(&world).await?;
    machine.gone().await
}

/// What is written while a pod is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DrainWrite {
    /// The Node takes no new pods.
    Cordon,
    /// The eviction itself.
    Eviction,
    /// Which pod is evicted, or that its eviction was refused.
    Record,
}

impl DrainWrite {
    fn is(self, request: &ProxiedRequest) -> bool {
        match self {
            Self::Cordon => request.method == Method::PATCH && request.path.contains("/nodes/"),
            Self::Eviction => {
                request.method == Method::POST
                    && request.path.ends_with("/eviction")
                    && !request.query.contains("dryRun")
            }
            Self::Record => {
                request.method == Method::PATCH
                    && request.path.contains("/inframachines/")
                    && !request.path.ends_with("/status")
            }
        }
    }
}

/// Killed around what it writes to the workload cluster, while it waits for the driver, and around the record
/// of a refused eviction, the provider goes on where the drain was, and evicts no other pod meanwhile.
#[tokio::test]
async fn killed_around_cordon_call_and_eviction_the_provider_goes_on_where_the_drain_was() -> Result<()> {
    let world = World::new("volumes-evictions").await?;
    permitted(&world).await?;
    let cloud = Cloud::new(&world);
    let trap = Arc::new(Mutex::new(None::<(DrainWrite, Fault)>));
    let set = |write, fault| {
        *trap.lock().unwrap_or_else(PoisonError::into_inner) = Some((write, fault));
    };
    let hook_of_proxy = || {
        let trap = Arc::clone(&trap);
        move |request: &ProxiedRequest| {
            let mut trap = trap.lock().unwrap_or_else(PoisonError::into_inner);
            let sprung = trap.take_if(|(write, _)| write.is(request));
            sprung.map_or(Fault::None, |(_, fault)| fault)
        }
    };
    let proxy = Proxy::start(&world.management, hook_of_proxy()).await?;
    let to_nodes = Proxy::of_workload(&world.management, hook_of_proxy()).await?;
    let provider = provider(&cloud, json!({})).through(proxy.kubeconfig(&service_account(&world).await?)?);
    let _kubelets = world.kubelets(&cloud);
    world.cluster("one").await?;
    let workload = world.management.workload().await?;
    let kubeconfig = std::fs::read_to_string(to_nodes.kubeconfig(workload.admin_kubeconfig())?)?;
    let first = provider.clone().named("first").start(&world).await?;
    let (machine, node) = drained(&world, "e-1", "30m").await?;
    drop(first);
    // Core has its connection: what goes this way is the provider's.
    let secret = json!({"stringData": {"value": kubeconfig}}).to_string();
    world.kubectl(&["patch", "secret", "one-kubeconfig", "--type=merge", "-p", &secret])?;
    let volumes = ["a", "b"].map(|claim| format!("kubernetes.io/csi/d.example.com^{claim}"));
    let volumes = [volumes[0].as_str(), volumes[1].as_str()];
    for claim in ["a", "b"] {
        let source = json!({"csi": {"driver": "d.example.com", "volumeHandle": claim}});
        node.volume(claim, source).await?;
        node.pod(claim, &[claim], json!({"labels": {"app": claim}}))
            .await?;
    }
    node.attach(&volumes).await?;
    let started = async |name: &str| provider.clone().named(name).start(&world).await;
    let reached = async |gate: &Gate, what: &str| {
        let reached = tokio::time::timeout(DEADLINE, gate.reached()).await;
        reached.with_context(|| format!("{what}: it was never written"))
    };
    // Starts the provider, and kills it around its next write of this kind.
    let killed = async |name: &str, write: DrainWrite, side: fn(Gate) -> Fault| -> Result<()> {
        let gate = Gate::new();
        set(write, side(gate.clone()));
        let replica = started(name).await?;
        reached(&gate, name).await?;
        drop(replica);
        Ok(())
    };

    machine.delete().await?;
    killed("before-cordon", DrainWrite::Cordon, Fault::HoldBefore).await?;
    ensure!(!node.is_cordoned().await?, "it was cordoned");
    killed("after-cordon", DrainWrite::Cordon, Fault::HoldAfter).await?;
    ensure!(node.is_cordoned().await?, "it was not cordoned");

    cloud.fail(json!([{"operation": "GetVolumeIDs", "hang": "before"}]))?;
    let asks = started("in-call").await?;
    eventually(DEADLINE, "a driver that is asked", async || {
        let is_asked = |call: &cmi_simulated::CallLine| call.operation == Operation::GetVolumeIds;
        ensure!(cloud.calls()?.iter().any(is_asked), "it was not asked");
        Ok(())
    })
    .await?;
    drop(asks);
    cloud.fail(json!([]))?;
    node.leaving(&[]).await?;

    killed("before-eviction", DrainWrite::Eviction, Fault::HoldBefore).await?;
    node.leaving(&[]).await?;
    killed("after-eviction", DrainWrite::Eviction, Fault::HoldAfter).await?;
    node.leaving(&["a"]).await?;
    node.ends("a").await?;
    let waits = started("waits").await?;
    waits_for(&world, "e-1", &["a", volumes[0]]).await?;
    node.leaving(&[]).await?;
    drop(waits);
    node.attach(&volumes[1..]).await?;

    // A budget that comes between the dry run and the eviction.
    for (name, side) in [
        ("before-refused", Fault::HoldBefore as fn(Gate) -> Fault),
        ("after-refused", Fault::HoldAfter),
    ] {
        node.budget("b", 1).await?;
        let (evicts, records) = (Gate::new(), Gate::new());
        set(DrainWrite::Eviction, Fault::HoldBefore(evicts.clone()));
        let replica = started(name).await?;
        reached(&evicts, name).await?;
        node.budget("b", 0).await?;
        set(DrainWrite::Record, side(records.clone()));
        evicts.open();
        reached(&records, name).await?;
        drop(replica);
        node.leaving(&[]).await?;
    }
    node.budget("b", 1).await?;
    let _last = started("last").await?;
    node.leaving(&["b"]).await?;
    node.ends("b").await?;
    node.attach(&[]).await?;
    machine.gone().await
}

/// An outage of the driver holds the eviction up, and is shown.
#[tokio::test]
async fn a_driver_that_is_away_is_asked_again_before_a_pod_is_evicted() -> Result<()> {
    let world = World::new("volumes-driver").await?;
    permitted(&world).await?;
    let cloud = Cloud::new(&world);
    let _provider = provider(&cloud, json!({})).start(&world).await?;
    let _kubelets = world.kubelets(&cloud);
    world.cluster("one").await?;
    let (machine, node) = drained(&world, "d-1", "30m").await?;
    two_volumes(&node).await?;
    cloud.fail(json!([{"operation": "GetVolumeIDs", "code": "Unavailable"}]))?;
    machine.delete().await?;
    machine
        .until("a driver that is away", |machine| {
            says(machine, VOLUMES_DRAINED, "False", "Unavailable")
        })
        .await?;
    node.leaving(&[]).await?;
    cloud.fail(json!([{"operation": "GetVolumeIDs", "code": "Internal"}]))?;
    for pod in ["a", "b"] {
        node.leaving(&[pod]).await?;
        node.ends(pod).await?;
        if pod == "b" {
            node.attach(&[]).await?;
        } else {
            node.attach(&["kubernetes.io/csi/simulated.capcmi.io^vol-b"])
                .await?;
        }
    }
    machine.gone().await
}

/// Cluster API skips it, and so it is no pod to be evicted here.
#[tokio::test]
async fn a_pod_that_a_machine_drain_rule_skips_is_left_alone() -> Result<()> {
    let world = World::new("volumes-rules").await?;
    permitted(&world).await?;
    let cloud = Cloud::new(&world);
    let _provider = provider(&cloud, json!({})).start(&world).await?;
    let _kubelets = world.kubelets(&cloud);
    world.cluster("one").await?;
    let rule = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDrainRule",
        "metadata": {"name": "keep", "namespace": world.namespace},
        "spec": {
            "drain": {"behavior": "Skip"},
            "pods": [{"selector": {"matchLabels": {"app": "kept"}}}],
        },
    });
    management_cluster::apply(&world.admin, rule).await?;
    let (machine, node) = drained(&world, "s-1", "30m").await?;
    for (claim, app) in [("a", "kept"), ("b", "other")] {
        node.volume(
            claim,
            json!({"csi": {"driver": "d.example.com", "volumeHandle": claim}}),
        )
        .await?;
        node.pod(claim, &[claim], json!({"labels": {"app": app}})).await?;
    }
    machine.delete().await?;
    node.leaving(&["b"]).await?;
    node.ends("b").await?;
    hook(&world, "s-1", false).await?;
    node.leaving(&[]).await
}

/// Where the role is missing, nothing waits that could not be let go, and it is said.
#[tokio::test]
async fn without_the_right_to_write_machines_no_hook_is_set_and_the_condition_says_why() -> Result<()> {
    let here = World::new("volumes-role").await?;
    let world = here.elsewhere().await?;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": world.namespace}});
    management_cluster::apply(&world.admin, namespace).await?;
    let cloud = Cloud::new(&world);
    let _provider = provider(&cloud, json!({})).start(&world).await?;
    world.cluster("one").await?;
    let machine = ByHand::new(&world, "one", "r-1")
        .infra("/metadata/annotations", json!({annotations::VOLUME_DRAIN: "1m"}))
        .create()
        .await?;
    let shown = machine
        .until("a provider that may not write Machines", |machine| {
            says(machine, VOLUMES_DRAINED, "False", reason::HOOK_NOT_PERMITTED)
        })
        .await?;
    let text = message(&shown, VOLUMES_DRAINED);
    ensure!(text.contains("config/components/volume-drain"), "{text}");
    machine.delete().await?;
    machine.gone().await
}

/// As long as Cluster API's own drain may take, and no longer.
#[tokio::test]
async fn a_workload_cluster_that_never_answers_does_not_keep_the_machine() -> Result<()> {
    let world = World::new("volumes-away").await?;
    permitted(&world).await?;
    let cloud = Cloud::new(&world);
    let _provider = provider(&cloud, json!({})).start(&world).await?;
    let _kubelets = world.kubelets(&cloud);
    world.cluster("one").await?;
    let (machine, _) = drained(&world, "w-1", "30m").await?;
    let machines = objects(&world, "cluster.x-k8s.io", "v1beta2", "Machine");
    let limit = Patch::Merge(json!({"spec": {"deletion": {"nodeDrainTimeoutSeconds": 45}}}));
    machines.patch("w-1", &PatchParams::default(), &limit).await?;
    let silent = TcpListener::bind("127.0.0.1:0")?;
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("https://{}", silent.local_addr()?)}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    let secret = json!({"stringData": {"value": kubeconfig.to_string()}}).to_string();
    world.kubectl(&["patch", "secret", "one-kubeconfig", "--type=merge", "-p", &secret])?;

    machine.delete().await?;
    machine
        .until("a workload cluster that does not answer", |machine| {
            says(machine, VOLUMES_DRAINED, "False", "WorkloadClusterUnreachable")
        })
        .await?;
    hook(&world, "w-1", false).await?;
    event(&world, "w-1", reason::VOLUME_DRAIN_TIMED_OUT)
        .await
        .map(drop)
}

/// Which pod was evicted moves along, and is waited for at the target.
#[tokio::test]
async fn a_drain_goes_on_where_it_was_after_clusterctl_has_moved_the_machine() -> Result<()> {
    let pair = MovePair::start("volumes-move", Part::VolumeDrain, |cloud| {
        provider(cloud, json!({}))
    })
    .await?;
    let MovePair {
        source,
        target,
        cloud,
        ..
    } = &pair;
    let _kubelets = world.kubelets(&cloud);
    source.cluster("one").await?;
    let (machine, node) = drained(source, "m-1", "30m").await?;
    let volumes = two_volumes(&node).await?;
    machine.delete().await?;
    node.leaving(&["a"]).await?;
    waits_for(source, "m-1", &["a"]).await?;

    source.move_to(target)?;
    node.ends("a").await?;
    hook(target, "m-1", true).await?;
    // clusterctl moves what is deleted as if it were not.
    has_node(target, "m-1").await?;
    let machines = objects(target, "cluster.x-k8s.io", "v1beta2", "Machine");
    machines.delete("m-1", &DeleteParams::default()).await?;
    waits_for(target, "m-1", &["a", volumes[0]]).await?;
    node.leaving(&[]).await?;
    node.attach(&volumes[1..]).await?;
    node.leaving(&["b"]).await?;
    node.ends("b").await?;
    node.attach(&[]).await?;
    hook(target, "m-1", false).await
}

/// A machine of the Cluster `one` that asks for it, and its Node.
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

/// Waits until Cluster API has found the Node of a Machine: it drains none that it does not know.
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

/// Two pods with a volume each, which are attached.
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

/// Waits until the Machine has the hook, or has it no more.
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

/// Waits until the condition says that it is waited for this.
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

/// A Node, with pods of a namespace of the case's.
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

    /// A PersistentVolume with this source, and the claim that it is bound to.
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

    /// A pod that runs on the Node, with these claims and metadata.
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

    /// A budget for the pods with a label, as its controller has counted.
    async fn budget(&self, app: &str, allowed: i32) -> Result<()> {
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": app, "namespace": self.namespace},
            "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": app}}},
        });
        let made = management_cluster::apply(&self.client, budget).await?;
        let resource = kube::api::ApiResource::from_gvk(&kube::api::GroupVersionKind::gvk(
            "policy",
            "v1",
            "PodDisruptionBudget",
        ));
        let budgets: Api<kube::api::DynamicObject> =
            Api::namespaced_with(self.client.clone(), &self.namespace, &resource);
        let status = json!({"status": {
            "observedGeneration": made.metadata.generation, "disruptionsAllowed": allowed,
            "currentHealthy": 1, "desiredHealthy": 1 - allowed, "expectedPods": 1,
        }});
        budgets
            .patch_status(app, &PatchParams::default(), &Patch::Merge(status))
            .await
            .context("counting what a budget allows")?;
        Ok(())
    }

    /// Says that these volumes are attached, and no others.
    pub async fn attach(&self, volumes: &[&str]) -> Result<()> {
        let attached = volumes.iter().map(|name| json!({"name": name, "devicePath": ""}));
        let status = json!({"status": {"volumesAttached": attached.collect::<Vec<_>>()}});
        Api::<Node>::all(self.client.clone())
            .patch_status(&self.name, &PatchParams::default(), &Patch::Merge(status))
            .await?;
        Ok(())
    }

    /// Whether it takes no new pods.
    async fn is_cordoned(&self) -> Result<bool> {
        let node = Api::<Node>::all(self.client.clone()).get(&self.name).await?;
        Ok(node.spec.and_then(|spec| spec.unschedulable).unwrap_or_default())
    }

    /// Waits until these pods, and no others, are on their way out.
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

    /// The kubelet says that a pod has ended.
    pub async fn ends(&self, name: &str) -> Result<()> {
        let now = DeleteParams::default().grace_period(0);
        self.pods().delete(name, &now).await?;
        Ok(())
    }
}
