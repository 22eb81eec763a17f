//! Pods with persistent volumes, evicted one after the other before Cluster API drains their Node. Each case
//! plays the kubelet and the attach-detach controller: it ends pods and detaches volumes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capcmi::api::annotations;
use capcmi::api::conditions::{PAUSED, VOLUMES_DRAINED, reason};
use cmi_driver::Operation;
use fake_apiserver::{Call, Fate};
use http::Method;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
};
use kube::{Client, ResourceExt};
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::support::by_hand::{condition, event, infra_machines, message, says};
use crate::support::fleet::objects;
use crate::support::kubelet::Kubelets;
use crate::support::provider::Replica;
use crate::support::{ByHand, Cloud, DEADLINE, Point, Provider, Trap, World};

/// Holds a pod until its kubelet says that it has ended.
const KUBELET: &str = "example.com/kubelet";

fn provider(cloud: &Cloud, config: Value) -> Provider {
    Provider::new(cloud.drivers(config))
}

/// The annotation limits the wait for volumes, not the wait for budgets.
#[tokio::test(start_paused = true)]
async fn a_drain_respects_budgets_and_stops_waiting_for_a_stuck_volume() -> Result<()> {
    let world = World::new("volumes-budget").await?;
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

/// The hook comes with the annotation, and goes with it, or when the provider runs without the feature. An
/// annotation that is not a duration keeps the hook.
#[tokio::test(start_paused = true)]
async fn a_machine_has_the_hook_while_it_opts_in_and_the_feature_is_on() -> Result<()> {
    let world = World::new("volumes-opt-in").await?;
    let cloud = Cloud::new(&world);
    let mut replica = provider(&cloud, json!({})).start(&world).await?;
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
        text.contains("\"soon\"") && text.contains("using 120 s"),
        "{text}"
    );
    hook(&world, "o-1", true).await?;
    asking.patch(annotate(json!(null))).await?;
    hook(&world, "o-1", false).await?;
    asking
        .until("a machine that asks for nothing", |machine| {
            condition(machine, VOLUMES_DRAINED).is_none()
        })
        .await?;
    asking.patch(annotate(json!("1m"))).await?;
    hook(&world, "o-1", true).await?;
    hook(&world, "o-2", false).await?;

    replica.terminate().await?;
    let _without = provider(&cloud, json!({}))
        .with(|options| options.volume_drain = false)
        .start(&world)
        .await?;
    hook(&world, "o-1", false).await
}

/// A pause holds a drain: no pod is evicted and no hook is removed before it ends. Another machine's drain
/// continues, which shows that there was enough time.
#[tokio::test(start_paused = true)]
async fn a_paused_drain_continues_where_it_was() -> Result<()> {
    let world = World::new("volumes-paused").await?;
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
    let machines = objects(&world, "cluster.x-k8s.io", "v1beta2", "Machine");
    let of_machine = async |value: Value| {
        let patch = Patch::Merge(pause(value));
        machines.patch("paused", &PatchParams::default(), &patch).await
    };
    of_machine(json!("")).await?;
    for pod in ["b", "d"] {
        node.ends(pod).await?;
    }
    node.attach(&[]).await?;
    beside.gone().await?;
    hook(&world, "paused", true).await?;
    of_machine(Value::Null).await?;
    machine.gone().await
}

/// A drain during which the provider is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    Plain,
    /// A budget comes between the dry run of the second pod's eviction and the eviction.
    Refused,
}

/// Killed before and after each write and each driver call, from the hook to its end, the provider goes on
/// where the drain was, and evicts no pod before its time.
#[tokio::test(start_paused = true)]
async fn a_drain_survives_a_kill_at_any_point() -> Result<()> {
    survives_a_kill_at_any_point(Scenario::Plain).await
}

/// The same, with the record of the refused eviction among the writes.
#[tokio::test(start_paused = true)]
async fn a_drain_with_a_refused_eviction_survives_a_kill_at_any_point() -> Result<()> {
    survives_a_kill_at_any_point(Scenario::Refused).await
}

async fn survives_a_kill_at_any_point(scenario: Scenario) -> Result<()> {
    let undisturbed = Trap::counting();
    let session = Session::new(scenario, &undisturbed).await?;
    session.drain(&undisturbed).await?;
    let (calls, writes, points) = (undisturbed.calls(), undisturbed.writes(), undisturbed.points());
    session.finish().await?;
    let of = |name: &str| writes.iter().filter(|write| *write == name).count();
    let expected = match scenario {
        Scenario::Plain => [
            ("PATCH machines", 2),
            ("PATCH nodes", 1),
            ("POST pods/eviction", 4),
            ("PATCH inframachines", 2),
        ],
        Scenario::Refused => [
            ("PATCH machines", 1),
            ("PATCH nodes", 0),
            ("POST pods/eviction", 4),
            ("PATCH inframachines", 3),
        ],
    };
    let has_all = expected.iter().all(|(name, count)| of(name) >= *count);
    let calls_of = |wanted| calls.iter().filter(|operation| **operation == wanted).count();
    ensure!(
        has_all && calls_of(Operation::GetVolumeIds) >= 2,
        "{calls:?}, {writes:?}"
    );
    for point in points {
        let killed = killed_at(scenario, point).await;
        killed.with_context(|| format!("killed at {point:?} of calls {calls:?} and writes {writes:?}"))?;
    }
    Ok(())
}

async fn killed_at(scenario: Scenario, point: Point) -> Result<()> {
    let trap = Trap::at(point);
    let mut session = Session::new(scenario, &trap).await?;
    let mut first = session.replica.take().context("no provider")?;
    let killed = async {
        let sprung = tokio::time::timeout(DEADLINE, trap.sprung()).await;
        sprung.context("the point is not reached")?;
        first.kill();
        // By then a pod that was evicted has ended, and its volume has not left.
        tokio::time::sleep(POD_ENDS_AFTER * 2).await;
        session.start(&Trap::counting()).await
    };
    let ((), _again) = tokio::try_join!(session.drain(&trap), killed)?;
    session.finish().await
}

const POD_ENDS_AFTER: Duration = Duration::from_secs(1);
const VOLUME_LEAVES_AFTER: Duration = Duration::from_secs(4);

/// One drain of two pods.
struct Session {
    world: World,
    cloud: Cloud,
    machine: ByHand,
    node: NodeOfCase,
    /// Whether the second pod's eviction has yet to be refused.
    refuses: Arc<AtomicBool>,
    replica: Option<Replica>,
    _kubelets: Kubelets,
}

impl Session {
    /// A machine whose Node has two pods, and that does not ask for a drain yet.
    async fn new(scenario: Scenario, trap: &Trap) -> Result<Self> {
        let world = World::new("volumes-killed").await?;
        let cloud = Cloud::new(&world);
        let mut session = Self {
            machine: ByHand::new(&world, "one", "k-1"),
            node: NodeOfCase::new(&world, "k-1"),
            refuses: Arc::new(AtomicBool::new(scenario == Scenario::Refused)),
            replica: None,
            _kubelets: world.kubelets(&cloud),
            world,
            cloud,
        };
        session.replica = Some(session.start(trap).await?);
        session.world.cluster("one").await?;
        session.machine.clone().create().await?;
        session.machine.provisioned().await?;
        has_node(&session.world, "k-1").await?;
        two_volumes(&session.node).await?;
        Ok(session)
    }

    /// Starts a provider whose inventory does not come in between.
    async fn start(&self, trap: &Trap) -> Result<Replica> {
        let refuses = Arc::clone(&self.refuses);
        let provider = provider(&self.cloud, json!({}))
            .with(|options| options.inventory_interval = Duration::from_hours(24))
            .requests_meet(move |call| {
                let is_meant = is_eviction(call) && call.path.contains("/pods/b/");
                if is_meant && refuses.swap(false, Ordering::SeqCst) {
                    Fate::Refused(429, "TooManyRequests")
                } else {
                    Fate::Served
                }
            });
        provider.caught_in(trap).start(&self.world).await
    }

    /// Opts in, deletes the machine, and is the workload cluster until the hook is gone.
    async fn drain(&self, trap: &Trap) -> Result<()> {
        let is_refused = self.refuses.load(Ordering::SeqCst);
        if !is_refused {
            trap.arm();
        }
        let asks = json!({annotations::VOLUME_DRAIN: "30m"});
        self.machine
            .patch(json!({"metadata": {"annotations": asks}}))
            .await?;
        hook(&self.world, "k-1", true).await?;
        self.machine.delete().await?;
        for (pod, rest) in [("a", &VOLUMES[1..]), ("b", &[])] {
            self.node.leaving(&[pod]).await?;
            tokio::time::sleep(POD_ENDS_AFTER).await;
            self.node.ends(pod).await?;
            tokio::time::sleep(VOLUME_LEAVES_AFTER).await;
            let early = self.node.on_their_way_out().await?;
            ensure!(early.is_empty(), "{early:?} before the volume of {pod} has left");
            hook(&self.world, "k-1", true).await?;
            if is_refused {
                // The other scenario covers everything before.
                trap.arm();
            }
            self.node.attach(rest).await?;
        }
        hook(&self.world, "k-1", false).await
    }

    /// Waits for the end of the machine.
    async fn finish(&self) -> Result<()> {
        self.machine.gone().await?;
        self.cloud.holds(0).await.map(drop)
    }
}

fn is_eviction(call: &Call) -> bool {
    call.method == Method::POST && call.path.ends_with("/eviction") && !call.query.contains_key("dryRun")
}

/// An outage of the driver holds the eviction up, and is shown.
#[tokio::test(start_paused = true)]
async fn no_pod_is_evicted_before_the_driver_answers() -> Result<()> {
    let world = World::new("volumes-driver").await?;
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

/// Cluster API skips the pod, so the provider does not evict it either.
#[tokio::test(start_paused = true)]
async fn a_pod_that_a_machine_drain_rule_skips_is_left_alone() -> Result<()> {
    let world = World::new("volumes-rules").await?;
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

/// Without the role the provider could not remove the hook again.
#[tokio::test(start_paused = true)]
async fn a_provider_that_may_not_write_machines_sets_no_hook_and_reports_it() -> Result<()> {
    let world = World::new("volumes-role").await?;
    let cloud = Cloud::new(&world);
    let provider = provider(&cloud, json!({})).requests_meet(|call| {
        if call.is_write() && call.path.contains("/machines/") {
            Fate::Refused(403, "Forbidden")
        } else {
            Fate::Served
        }
    });
    let _provider = provider.start(&world).await?;
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

/// The hook goes after the time that Cluster API's own drain may take.
#[tokio::test(start_paused = true)]
async fn a_workload_cluster_that_never_answers_does_not_keep_the_machine() -> Result<()> {
    let world = World::new("volumes-away").await?;
    let cloud = Cloud::new(&world);
    let _provider = provider(&cloud, json!({})).start(&world).await?;
    let _kubelets = world.kubelets(&cloud);
    world.cluster("one").await?;
    let (machine, _) = drained(&world, "w-1", "30m").await?;
    let machines = objects(&world, "cluster.x-k8s.io", "v1beta2", "Machine");
    let limit = Patch::Merge(json!({"spec": {"deletion": {"nodeDrainTimeoutSeconds": 45}}}));
    machines.patch("w-1", &PatchParams::default(), &limit).await?;
    world
        .kubeconfig_secret("one", &World::silent_kubeconfig())
        .await?;

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

/// The record of the last eviction moves along, and the target waits for its volume.
#[tokio::test(start_paused = true)]
async fn a_drain_continues_where_it_was_after_a_move() -> Result<()> {
    let source = World::new("volumes-move").await?;
    let target = source.elsewhere().await?;
    let cloud = Cloud::new(&source);
    let provider = provider(&cloud, json!({}));
    let _at_source = provider.start(&source).await?;
    let _at_target = provider.start(&target).await?;
    let _kubelets = source.kubelets(&cloud);
    source.cluster("one").await?;
    let (machine, node) = drained(&source, "m-1", "30m").await?;
    let volumes = two_volumes(&node).await?;
    machine.delete().await?;
    node.leaving(&["a"]).await?;
    waits_for(&source, "m-1", &["a"]).await?;

    source.move_to(&target).await?;
    node.ends("a").await?;
    hook(&target, "m-1", true).await?;
    // A move drops the deletion timestamp.
    has_node(&target, "m-1").await?;
    let machines = objects(&target, "cluster.x-k8s.io", "v1beta2", "Machine");
    machines.delete("m-1", &DeleteParams::default()).await?;
    waits_for(&target, "m-1", &["a", volumes[0]]).await?;
    node.leaving(&[]).await?;
    node.attach(&volumes[1..]).await?;
    node.leaving(&["b"]).await?;
    node.ends("b").await?;
    node.attach(&[]).await?;
    hook(&target, "m-1", false).await
}

/// A machine of the Cluster `one` that asks for it, and its Node.
async fn drained(world: &World, name: &str, time: &str) -> Result<(ByHand, NodeOfCase)> {
    let machine = ByHand::new(world, "one", name)
        .infra("/metadata/annotations", json!({annotations::VOLUME_DRAIN: time}))
        .create()
        .await?;
    machine.provisioned().await?;
    hook(world, name, true).await?;
    has_node(world, name).await?;
    let node = NodeOfCase::new(world, name);
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

/// The volumes of [`two_volumes`].
const VOLUMES: [&str; 2] = [
    "kubernetes.io/csi/simulated.capcmi.io^vol-a",
    "kubernetes.io/csi/simulated.capcmi.io^vol-b",
];

/// Two pods with a volume each, which are attached.
async fn two_volumes(node: &NodeOfCase) -> Result<[&'static str; 2]> {
    for claim in ["a", "b"] {
        let source =
            json!({"csi": {"driver": "simulated.capcmi.io", "volumeHandle": format!("vol-{claim}")}});
        node.volume(claim, source).await?;
        node.pod(claim, &[claim], json!({})).await?;
    }
    node.attach(&VOLUMES).await?;
    Ok(VOLUMES)
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
    let machines = infra_machines(world);
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
struct NodeOfCase {
    client: Client,
    namespace: String,
    name: String,
}

impl NodeOfCase {
    fn new(world: &World, name: &str) -> Self {
        Self {
            client: world.workload.client("case"),
            namespace: world.namespace.clone(),
            name: name.to_owned(),
        }
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
        metadata["finalizers"] = json!([KUBELET]);
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
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("policy", "v1", "PodDisruptionBudget"));
        let budgets: Api<DynamicObject> =
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
    async fn attach(&self, volumes: &[&str]) -> Result<()> {
        let attached = volumes.iter().map(|name| json!({"name": name, "devicePath": ""}));
        let status = json!({"status": {"volumesAttached": attached.collect::<Vec<_>>()}});
        Api::<Node>::all(self.client.clone())
            .patch_status(&self.name, &PatchParams::default(), &Patch::Merge(status))
            .await?;
        Ok(())
    }

    /// The pods that are on their way out.
    async fn on_their_way_out(&self) -> Result<Vec<String>> {
        let pods = self.pods().list(&ListParams::default()).await?.items;
        let leaving = pods
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_some());
        Ok(leaving.map(ResourceExt::name_any).collect())
    }

    /// Waits until these pods, and no others, are on their way out.
    async fn leaving(&self, names: &[&str]) -> Result<()> {
        eventually(DEADLINE, &format!("{names:?} on their way out"), async || {
            let leaving = self.on_their_way_out().await?;
            ensure!(leaving == names, "{leaving:?}");
            Ok(())
        })
        .await
    }

    /// The kubelet says that a pod has ended.
    async fn ends(&self, name: &str) -> Result<()> {
        let ended = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        self.pods().patch(name, &PatchParams::default(), &ended).await?;
        self.pods()
            .delete(name, &DeleteParams::default())
            .await
            .map(drop)
            .or_else(|error| match error {
                kube::Error::Api(status) if status.code == 404 => Ok(()),
                error => Err(error.into()),
            })
    }
}
