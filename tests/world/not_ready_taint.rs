//! The taint that a Node registers with until its VM is initialized.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use capcmi::api::annotations;
use capcmi::api::conditions::{NOT_READY_TAINT_REMOVED, PAUSED};
use capcmi::api::progress::Task;
use capcmi::api::v1alpha1::InfraMachine;
use cmi_driver::Operation;
use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::support::by_hand::{condition, message, says};
use crate::support::fleet::{found, objects};
use crate::support::provider::Replica;
use crate::support::world::kubeconfig;
use crate::support::{ByHand, Cloud, DEADLINE, Point, Provider, Stage, Trap, World};

/// The key that the specification names.
const KEY: &str = "node.machine.sapcloud.io/instance-not-ready";
const OTHER_KEY: &str = "example.com/booting";

fn taint(key: &str, effect: &str) -> Taint {
    Taint {
        key: key.to_owned(),
        effect: effect.to_owned(),
        ..Taint::default()
    }
}

/// INI-02, INI-04, INI-05: the taint that a Node registered with goes when its VM is initialized, once, and
/// nothing else of the Node. A new Node of the same name is freed again.
#[tokio::test(start_paused = true)]
async fn a_node_is_freed_of_its_taint_once_its_vm_is_initialized() -> Result<()> {
    let world = World::new("taint").await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let taints = [
        taint("theirs", "NoSchedule"),
        taint(KEY, "NoSchedule"),
        taint(KEY, "NoExecute"),
    ];
    let _kubelets = world.kubelets_with(&cloud, json!(taints));
    world.cluster("c").await?;
    cloud.fail(json!([{"operation": "InitializeMachine", "code": "Uninitialized", "retryAfterMs": 200}]))?;
    let machine = waits_for_initialization(&world, "m").create().await?;
    let nodes = Api::<Node>::all(world.workload.client("case"));
    failed_initializations(&cloud, "m").await?;
    let before = registered(&nodes, "m").await?;
    ensure!(keys(&before) == ["theirs", KEY, KEY], "{:?}", keys(&before));

    cloud.fail(json!([]))?;
    let freed = freed(&nodes, "m").await?;
    let recorded_machine = recorded(&machine, &freed).await?;
    ensure!(
        message(&recorded_machine, NOT_READY_TAINT_REMOVED) == format!("removed taint {KEY} from Node m"),
        "{:?}",
        condition(&recorded_machine, NOT_READY_TAINT_REMOVED)
    );
    ensure!(keys(&freed) == ["theirs"], "{:?}", keys(&freed));
    removals(&world, 1).await?;

    // One that comes later is another's: it is looked at when the Node comes back, and left alone.
    let tainted = json!([{"op": "add", "path": "/spec/taints/-", "value": taint(KEY, "NoSchedule")}]);
    patch_node(&nodes, "m", tainted).await?;
    healthy(&world, &nodes, "m", "False").await?;
    let looks = looks(&provider);
    healthy(&world, &nodes, "m", "True").await?;
    eventually(DEADLINE, "another look at the Node", async || {
        let now = self::looks(&provider);
        ensure!(now > looks, "{now} looks");
        Ok(())
    })
    .await?;
    let kept = nodes.get("m").await?;
    ensure!(keys(&kept).contains(&KEY), "{:?}", keys(&kept));

    // Another Node of the name.
    nodes.delete("m", &DeleteParams::default()).await?;
    node_healthy(&world, "m", false).await?;
    let mut anew = kept.clone();
    anew.metadata = kube::api::ObjectMeta {
        name: Some("m".to_owned()),
        ..Default::default()
    };
    nodes.create(&PostParams::default(), &anew).await?;
    let conditions = kept.status.and_then(|status| status.conditions);
    let status = Patch::Merge(json!({"status": {"conditions": conditions}}));
    nodes.patch_status("m", &PatchParams::default(), &status).await?;
    let other = self::freed(&nodes, "m").await?;
    ensure!(other.uid() != kept.metadata.uid, "the same Node");
    recorded(&machine, &other).await?;
    removals(&world, 2).await
}

/// INI-05: three failures are each reported and do not delay other machines. A workload cluster accepts
/// connections but never answers, a kubeconfig would make the provider run a program, and a Node belongs to
/// another machine.
#[tokio::test(start_paused = true)]
async fn a_workload_cluster_that_never_answers_is_reported() -> Result<()> {
    let world = World::new("taint-away").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let program = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "touch",
        "args": [world.folder.join("touched")], "interactiveMode": "Never"}});
    let runs = kubeconfig(&json!({"server": "https://127.0.0.1:1"}), &program);
    let nodes = Api::<Node>::all(world.workload.client("case"));

    let stage = Stage::set(&world).await?;
    let machine = |name: &str| tainted(&stage, &format!("{}-{name}", world.namespace));
    world.kubeconfig_secret("c", &World::silent_kubeconfig()).await?;
    let mut waiting = Vec::new();
    for name in ["one", "two", "three", "four"] {
        waiting.push(up(&world, machine(name)).await?);
    }
    for one in &waiting {
        let shown = one
            .until("a workload cluster that does not answer", |machine| {
                says(
                    machine,
                    NOT_READY_TAINT_REMOVED,
                    "False",
                    "WorkloadClusterUnreachable",
                )
            })
            .await?;
        let text = message(&shown, NOT_READY_TAINT_REMOVED);
        ensure!(text.contains("did not answer within 10 s"), "{text}");
    }
    world.kubeconfig_secret("c", &runs).await?;
    for one in &waiting {
        let shown = one
            .until("a kubeconfig that runs a program", |machine| {
                says(machine, NOT_READY_TAINT_REMOVED, "False", "InvalidKubeconfig")
            })
            .await?;
        let text = message(&shown, NOT_READY_TAINT_REMOVED);
        ensure!(text.contains("users[].user.exec is not allowed"), "{text}");
    }
    ensure!(!world.folder.join("touched").exists(), "the program was run");

    // The Nodes: one is another machine's.
    for (number, one) in waiting.iter().enumerate() {
        let provider_id = one.get().await?.spec.provider_id.context("no providerID")?;
        let provider_id = if number == 0 {
            "simulated:///another".to_owned()
        } else {
            provider_id
        };
        node(&nodes, &one.name, &provider_id).await?;
    }
    world
        .kubeconfig_secret("c", &World::workload_kubeconfig())
        .await?;
    for one in &waiting[1..] {
        freed(&nodes, &one.name).await?;
    }
    let foreign = waiting[0]
        .until("the Node of another machine", |machine| {
            says(machine, NOT_READY_TAINT_REMOVED, "False", "ForeignNode")
        })
        .await?;
    let text = message(&foreign, NOT_READY_TAINT_REMOVED);
    ensure!(text.contains("simulated:///another"), "{text}");
    let left = nodes.get(&waiting[0].name).await?;
    ensure!(keys(&left) == [KEY], "{:?}", keys(&left));
    Ok(())
}

/// INI-05: a workload cluster that is dead, with more machines than are looked at together, holds up none of
/// one that answers. Which taint goes is the template's word.
#[tokio::test(start_paused = true)]
async fn a_dead_workload_cluster_does_not_hold_up_another() -> Result<()> {
    let world = World::new("taint-beside").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let (dead, alive) = (Stage::named(&world, "dead").await?, Stage::set(&world).await?);
    world
        .kubeconfig_secret("dead", &World::silent_kubeconfig())
        .await?;
    let names = (0..24).map(|number| format!("{}-dead-{number}", world.namespace));
    let waiting: Vec<_> = names.map(|name| tainted(&dead, &name)).collect();
    ByHand::create_all(&waiting).await?;
    for one in &waiting {
        one.provisioned().await?;
        found(&world, one).await?;
    }
    // The first look is under way, and does not end.
    eventually(DEADLINE, "a look", async || {
        ensure!(!world.silent.recorded().is_empty(), "none yet");
        Ok(())
    })
    .await?;

    let nodes = Api::<Node>::all(world.workload.client("case"));
    world
        .kubeconfig_secret("c", &World::workload_kubeconfig())
        .await?;
    let name = format!("{}-alive", world.namespace);
    let machine = tainted(&alive, &name).infra("/spec/notReadyTaint", json!({"key": OTHER_KEY}));
    let machine = machine.create().await?;
    let provider_id = machine.provisioned().await?.spec.provider_id;
    node(&nodes, &name, &provider_id.context("no providerID")?).await?;
    let both = json!([{"op": "add", "path": "/spec/taints/-", "value": taint(OTHER_KEY, "NoSchedule")}]);
    patch_node(&nodes, &name, both).await?;
    found(&world, &machine).await?;
    let freed = eventually(DEADLINE, "a Node without the other taint", async || {
        let node = nodes.get(&name).await?;
        let taints = node.spec.clone().and_then(|spec| spec.taints).unwrap_or_default();
        ensure!(taints.iter().all(|taint| taint.key != OTHER_KEY), "{taints:?}");
        Ok(node)
    })
    .await?;
    ensure!(keys(&freed) == [KEY], "{:?}", keys(&freed));
    let recorded = machine
        .until("the record of the removal", |machine| {
            says(machine, NOT_READY_TAINT_REMOVED, "True", "NotReadyTaintRemoved")
        })
        .await?;
    let text = message(&recorded, NOT_READY_TAINT_REMOVED);
    ensure!(text.contains(OTHER_KEY), "{text}");
    for one in &waiting {
        let is_removed =
            |machine: &InfraMachine| says(machine, NOT_READY_TAINT_REMOVED, "True", "NotReadyTaintRemoved");
        ensure!(!is_removed(&one.get().await?), "{} was freed", one.name);
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_changed_key_has_its_taint_removed_once() -> Result<()> {
    let world = World::new("taint-key").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let taints = ["theirs", KEY, OTHER_KEY].map(|key| taint(key, "NoSchedule"));
    let _kubelets = world.kubelets_with(&cloud, json!(taints));
    world.cluster("c").await?;
    let machine = ByHand::new(&world, "c", "m").infra("/spec/notReadyTaint", json!({"key": KEY}));
    let machine = machine.create().await?;
    let nodes = Api::<Node>::all(world.workload.client("case"));
    registered(&nodes, "m").await?;
    let has_other = |node: &Node| {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        taints.into_iter().flatten().any(|taint| taint.key == OTHER_KEY)
    };
    let freed = freed(&nodes, "m").await?;
    ensure!(has_other(&freed), "{:?}", freed.spec);

    let changed = machine
        .patch(json!({"spec": {"notReadyTaint": {"key": OTHER_KEY}}}))
        .await?;
    let is_removed = |machine: &InfraMachine| {
        let status = machine.status.as_ref();
        status.is_some_and(|status| status.observed_generation >= changed.metadata.generation)
            && message(machine, NOT_READY_TAINT_REMOVED).contains(OTHER_KEY)
    };
    machine
        .until("the removal of the other taint", is_removed)
        .await?;
    ensure!(!has_other(&nodes.get("m").await?), "the Node has it");
    let other = json!([{"op": "add", "path": "/spec/taints/-", "value": taint(OTHER_KEY, "NoSchedule")}]);
    patch_node(&nodes, "m", other).await?;
    healthy(&world, &nodes, "m", "False").await?;
    healthy(&world, &nodes, "m", "True").await?;
    tokio::time::sleep(Duration::from_hours(1)).await;
    ensure!(has_other(&nodes.get("m").await?), "it was removed twice");
    Ok(())
}

/// A Node whose machine is paused keeps the taint until that ends, while that of another machine is freed.
#[tokio::test(start_paused = true)]
async fn the_node_of_a_paused_machine_keeps_its_taint() -> Result<()> {
    let world = World::new("taint-paused").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let nodes = Api::<Node>::all(world.workload.client("case"));
    let stage = Stage::set(&world).await?;
    world
        .kubeconfig_secret("c", &World::workload_kubeconfig())
        .await?;
    let pause = |value: Value| json!({"metadata": {"annotations": {annotations::PAUSED: value}}});
    let mut machines = Vec::new();
    for name in ["paused", "beside"] {
        let name = format!("{}-{name}", world.namespace);
        let machine = tainted(&stage, &name).create().await?;
        machine.provisioned().await?;
        machines.push(machine);
    }
    let [paused, beside] = &machines[..] else {
        bail!("there are two");
    };
    paused.patch(pause(json!(""))).await?;
    paused
        .until("a machine that is paused", |machine| {
            says(machine, PAUSED, "True", "Paused")
        })
        .await?;
    for machine in &machines {
        let provider_id = machine.get().await?.spec.provider_id;
        node(&nodes, &machine.name, &provider_id.context("no providerID")?).await?;
        found(&world, machine).await?;
    }
    freed(&nodes, &beside.name).await?;
    ensure!(
        keys(&nodes.get(&paused.name).await?) == [KEY],
        "freed while it is paused"
    );
    paused.patch(pause(Value::Null)).await?;
    freed(&nodes, &paused.name).await?;
    Ok(())
}

/// INI-05: killed before it writes the Node, the provider does so when it is back. Killed after that, or
/// around the record of the removal, it finds the taint gone, records that, and does not write the Node a
/// second time.
#[tokio::test(start_paused = true)]
async fn a_removal_survives_a_kill_at_any_point() -> Result<()> {
    let undisturbed = Trap::counting();
    removed_despite_a_kill(&undisturbed, None).await?;
    let writes = undisturbed.writes();
    let of = |name: &str| writes.iter().filter(|write| *write == name).count();
    ensure!(
        of("PATCH nodes") == 1 && of("PATCH inframachines") == 1,
        "{writes:?}"
    );
    for point in undisturbed.points() {
        let killed = removed_despite_a_kill(&Trap::at(point), Some(point)).await;
        killed.with_context(|| format!("killed at {point:?} of the writes {writes:?}"))?;
    }
    Ok(())
}

async fn removed_despite_a_kill(trap: &Trap, point: Option<Point>) -> Result<()> {
    let world = World::new("taint-killed").await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({})))
        .with(|options| options.inventory_interval = std::time::Duration::from_hours(24));
    let mut replica = provider.clone().caught_in(trap).start(&world).await?;
    let nodes = Api::<Node>::all(world.workload.client("case"));
    let stage = Stage::set(&world).await?;
    world
        .kubeconfig_secret("c", &World::workload_kubeconfig())
        .await?;
    let machine = tainted(&stage, "m").create().await?;
    let provider_id = machine.provisioned().await?.spec.provider_id;
    node(&nodes, "m", &provider_id.context("no providerID")?).await?;
    trap.arm();
    found(&world, &machine).await?;
    if point.is_some() {
        let sprung = tokio::time::timeout(DEADLINE, trap.sprung()).await;
        sprung.context("the point is not reached")?;
        replica.kill();
        replica = provider.caught_in(&Trap::counting()).start(&world).await?;
    }
    let freed = freed(&nodes, "m").await?;
    recorded(&machine, &freed).await?;
    replica.terminate().await?;
    let written = world.workload.writes_of("provider");
    ensure!(written.len() == 1, "the Node was written again: {written:?}");
    Ok(())
}

/// INI-05: the Node of a machine whose VM is initialized, and which still has the taint, is freed at the
/// target of a move, once.
#[tokio::test(start_paused = true)]
async fn a_node_with_its_taint_is_freed_after_a_move() -> Result<()> {
    let source = World::new("taint-move").await?;
    let target = source.elsewhere().await?;
    let cloud = Cloud::new(&source);
    let provider = Provider::new(cloud.drivers(json!({})));
    let mut at_source = provider.start(&source).await?;
    let _at_target = provider.start(&target).await?;
    source.cluster("c").await?;
    let machine = waits_for_initialization(&source, "m").create().await?;
    machine.provisioned().await?;
    at_source.kill();
    let _kubelets = source.kubelets_with(&cloud, json!([taint(KEY, "NoSchedule")]));
    let nodes = Api::<Node>::all(source.workload.client("case"));
    let before = registered(&nodes, "m").await?;
    node_healthy(&source, "m", true).await?;
    ensure!(keys(&nodes.get("m").await?) == [KEY], "freed at the source");
    source.move_to(&target).await?;
    let moved = waits_for_initialization(&target, "m");
    let freed = freed(&nodes, "m").await?;
    ensure!(freed.uid() == before.uid(), "another Node");
    ensure!(
        keys(&before) == [KEY] && keys(&freed).is_empty(),
        "{:?}",
        keys(&before)
    );
    recorded(&moved, &freed).await?;
    removals(&target, 1).await?;
    removals(&source, 0).await
}

/// A machine whose VM has to be initialized, and whose Node has the taint. Nothing is made yet.
fn waits_for_initialization(world: &World, name: &str) -> ByHand {
    ByHand::new(world, "c", name)
        .infra("/spec/notReadyTaint", json!({"key": KEY}))
        .infra("/spec/providerSpec/sourceDestCheck", json!(false))
}

/// Waits until the initialization of a VM has failed some times.
async fn failed_initializations(cloud: &Cloud, name: &str) -> Result<()> {
    eventually(DEADLINE, "three failed initializations", async || {
        let failed = cloud.count(Operation::InitializeMachine, name)?;
        ensure!(failed >= 3, "{failed}");
        Ok(())
    })
    .await
}

/// A machine whose Node has the taint. Nothing is made yet.
fn tainted(stage: &Stage, name: &str) -> ByHand {
    stage
        .machine(name)
        .infra("/spec/notReadyTaint", json!({"key": KEY}))
        .infra("/spec/shutdownTimeoutSeconds", json!(0))
}

/// A provisioned machine whose Node Cluster API has found, as the case says in its place.
async fn up(world: &World, machine: ByHand) -> Result<ByHand> {
    let machine = machine.create().await?;
    machine.provisioned().await?;
    found(world, &machine).await?;
    Ok(machine)
}

/// A Node that has registered with the taint.
async fn node(nodes: &Api<Node>, name: &str, provider_id: &str) -> Result<()> {
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "spec": {"providerID": provider_id, "taints": [taint(KEY, "NoSchedule")]},
    });
    nodes
        .create(&PostParams::default(), &serde_json::from_value(node)?)
        .await?;
    Ok(())
}

fn keys(node: &Node) -> Vec<&str> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
    let mut keys: Vec<_> = taints
        .unwrap_or_default()
        .iter()
        .map(|taint| taint.key.as_str())
        .collect();
    // Kubernetes and Cluster API have some of their own.
    keys.retain(|key| [KEY, "theirs"].contains(key));
    keys
}

/// The UID of the Node that was freed, as it is recorded.
fn record(machine: &InfraMachine) -> Option<String> {
    let record: String = Task::NotReadyTaint.progress(&machine.metadata)?;
    Some(record.strip_suffix(KEY)?.strip_suffix('/')?.to_owned())
}

async fn registered(nodes: &Api<Node>, name: &str) -> Result<Node> {
    eventually(DEADLINE, "a Node that has registered", async || {
        Ok(nodes.get(name).await?)
    })
    .await
}

/// Waits until the Node has the taint no more.
async fn freed(nodes: &Api<Node>, name: &str) -> Result<Node> {
    eventually(
        DEADLINE,
        &format!("a Node without the taint ({name})"),
        async || {
            let node = nodes.get(name).await?;
            ensure!(!keys(&node).contains(&KEY), "{:?}", keys(&node));
            Ok(node)
        },
    )
    .await
}

/// Waits until it is recorded that this Node was freed.
async fn recorded(machine: &ByHand, node: &Node) -> Result<InfraMachine> {
    machine
        .until("the record of the removal", |machine| {
            record(machine) == node.metadata.uid
                && says(machine, NOT_READY_TAINT_REMOVED, "True", "NotReadyTaintRemoved")
        })
        .await
}

async fn patch_node(nodes: &Api<Node>, name: &str, patch: Value) -> Result<()> {
    let patch: json_patch::Patch = serde_json::from_value(patch)?;
    nodes
        .patch(name, &PatchParams::default(), &Patch::Json::<()>(patch))
        .await?;
    Ok(())
}

/// Has the kubelet say whether the Node is ready, and waits until Cluster API has seen it.
async fn healthy(world: &World, nodes: &Api<Node>, name: &str, status: &str) -> Result<()> {
    let ready = Patch::Merge(json!({"status": {"conditions": [{"type": "Ready", "status": status}]}}));
    nodes.patch_status(name, &PatchParams::default(), &ready).await?;
    node_healthy(world, name, status == "True").await
}

/// Waits until Cluster API says that the Machine's Node is healthy, or is not.
async fn node_healthy(world: &World, name: &str, is_healthy: bool) -> Result<()> {
    let machines = objects(world, "cluster.x-k8s.io", "v1beta2", "Machine");
    eventually(DEADLINE, "a Machine that knows of its Node", async || {
        let machine = machines.get(name).await?;
        let conditions = machine.data["status"]["conditions"].as_array().cloned();
        let conditions = conditions.unwrap_or_default();
        let seen = conditions
            .iter()
            .find(|condition| condition["type"] == "NodeHealthy");
        ensure!(
            seen.is_some_and(|seen| (seen["status"] == "True") == is_healthy),
            "{seen:?}"
        );
        Ok(())
    })
    .await
}

/// Waits for this many events of a removal, and no more.
async fn removals(world: &World, count: usize) -> Result<()> {
    let events: Api<Event> = Api::namespaced(world.admin.clone(), &world.namespace);
    eventually(DEADLINE, &format!("{count} events of a removal"), async || {
        let all = events.list(&ListParams::default()).await?;
        let reasons: Vec<_> = all.iter().filter_map(|event| event.reason.as_deref()).collect();
        let removals = reasons.iter().filter(|reason| **reason == "NotReadyTaintRemoved");
        ensure!(removals.count() == count, "{reasons:?}");
        Ok(())
    })
    .await
}

/// How often the provider has looked at a Node, or seen that there is no reason to.
fn looks(provider: &Replica) -> u64 {
    let metrics = provider.metrics();
    let counts = metrics
        .lines()
        .filter(|line| line.starts_with("capcmi_reconcile_total{controller=\"not_ready_taint\""))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    counts.sum()
}
