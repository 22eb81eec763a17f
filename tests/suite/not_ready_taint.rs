//! The taint with which a Node registers until its VM is initialized.

use std::net::TcpListener;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use capcmi::api::annotations;
use capcmi::api::conditions::{NOT_READY_TAINT_REMOVED, PAUSED};
use capcmi::api::v1alpha1::InfraMachine;
use cmi_driver::Operation;
use http::Method;
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use management_cluster::eventually;
use management_cluster::proxy::{Fault, Gate, ProxiedRequest, Proxy};
use management_cluster::stand_in::StandInController;
use serde_json::{Value, json};

use crate::support::by_hand::{condition, is_provisioned, message, says};
use crate::support::fleet::objects;
use crate::support::provider::{Replica, service_account};
use crate::support::{ByHand, Cloud, DEADLINE, Fleet, Provider, Stage, World};

/// The key that the specification names.
const KEY: &str = "node.machine.sapcloud.io/instance-not-ready";

fn taint(key: &str, effect: &str) -> Taint {
    Taint {
        key: key.to_owned(),
        effect: effect.to_owned(),
        ..Taint::default()
    }
}

/// INI-02, INI-04, INI-05: the taint that a Node registered with goes when its VM is initialized, once, and
/// nothing else of the Node. A Node that registers anew under the name is another one.
#[tokio::test]
async fn a_node_is_freed_of_its_taint_when_its_vm_is_initialized_and_no_sooner() -> Result<()> {
    let world = World::new("taint").await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let _kubelets = world.kubelets(&cloud);
    world.cluster("md").await?;
    registers_with(
        &world,
        &[
            taint("theirs", "NoSchedule"),
            taint(KEY, "NoSchedule"),
            taint(KEY, "NoExecute"),
        ],
    )
    .await?;
    cloud.fail(json!([{"operation": "InitializeMachine", "code": "Uninitialized", "retryAfterMs": 200}]))?;
    let fleet = Fleet::of(&world, "md");
    fleet.template_with("md-1", waits_for_initialization()).await?;
    fleet.deployment("md-1", 1).await?;
    let nodes = Api::<Node>::all(world.management.workload().await?.admin_client().await?);
    let name = failed_initializations(&cloud, &fleet).await?;
    let before = registered(&nodes, &name).await?;
    ensure!(keys(&before) == ["theirs", KEY, KEY], "{:?}", keys(&before));

    cloud.fail(json!([]))?;
    fleet.running(1).await?;
    let freed = freed(&nodes, &name).await?;
    let machine = recorded(&fleet, &freed).await?;
    ensure!(
        message(&machine, NOT_READY_TAINT_REMOVED)
            == format!("the taint {KEY} was removed from the Node {name}"),
        "{:?}",
        condition(&machine, NOT_READY_TAINT_REMOVED)
    );
    ensure!(keys(&freed) == ["theirs"], "{:?}", keys(&freed));
    removals(&world, 1).await?;

    // One that comes later is another's: it is looked at when the Node comes back, and left alone.
    let tainted = json!([{"op": "add", "path": "/spec/taints/-", "value": taint(KEY, "NoSchedule")}]);
    patch_node(&nodes, &name, tainted).await?;
    healthy(&world, &nodes, &name, "False").await?;
    let looks = looks(&provider).await?;
    healthy(&world, &nodes, &name, "True").await?;
    eventually(DEADLINE, "another look at the Node", async || {
        let now = self::looks(&provider).await?;
        ensure!(now > looks, "{now} looks");
        Ok(())
    })
    .await?;
    let kept = nodes.get(&name).await?;
    ensure!(keys(&kept).contains(&KEY), "{:?}", keys(&kept));

    // Another Node of the name.
    nodes.delete(&name, &DeleteParams::default()).await?;
    node_healthy(&world, &name, false).await?;
    let mut anew = kept.clone();
    anew.metadata = kube::api::ObjectMeta {
        name: Some(name.clone()),
        ..Default::default()
    };
    nodes.create(&PostParams::default(), &anew).await?;
    let conditions = kept.status.and_then(|status| status.conditions);
    let status = Patch::Merge(json!({"status": {"conditions": conditions}}));
    nodes
        .patch_status(&name, &PatchParams::default(), &status)
        .await?;
    let other = self::freed(&nodes, &name).await?;
    ensure!(other.uid() != kept.metadata.uid, "the same Node");
    recorded(&fleet, &other).await?;
    removals(&world, 2).await
}

/// INI-05: a workload cluster that takes connections and never answers, a kubeconfig that would have the
/// provider run a program, and a Node of another machine are each shown, and hold up no other machine.
#[tokio::test]
async fn a_workload_cluster_that_never_answers_holds_up_no_other_and_is_shown() -> Result<()> {
    let world = World::new("taint-away").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let (_silent, away) = silent_workload_cluster()?;
    let program = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "touch",
        "args": [world.folder.join("touched")], "interactiveMode": "Never"}});
    let runs = kubeconfig(&json!({"server": "https://127.0.0.1:1"}), &program)?;
    let here = world
        .management
        .workload()
        .await?
        .kubeconfig_secret(&world.namespace, "here");
    let nodes = Api::<Node>::all(world.management.workload().await?.admin_client().await?);

    let stage = Stage::set(&world).await?;
    let machine = |name: &str| tainted(&stage, &format!("{}-{name}", world.namespace));
    secret(&world, &json!({"value": away})).await?;
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
    secret(&world, &json!({"value": runs})).await?;
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
    let value = here
        .data
        .and_then(|mut data| data.remove("value"))
        .context("no kubeconfig")?;
    secret(&world, &json!({"value": String::from_utf8(value.0)?})).await?;
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
    for one in &waiting {
        nodes.delete(&one.name, &DeleteParams::default()).await?;
    }
    Ok(())
}

/// INI-05: a workload cluster that is dead, with more machines than are looked at together, holds up none of
/// one that answers. Which taint goes is the template's word.
#[tokio::test]
async fn a_dead_workload_cluster_holds_up_no_machine_of_one_that_answers() -> Result<()> {
    const OTHER_KEY: &str = "example.com/booting";
    let world = World::new("taint-beside").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let (silent, away) = silent_workload_cluster()?;
    let (dead, alive) = (Stage::named(&world, "dead").await?, Stage::set(&world).await?);
    secret_of(&world, "dead", &json!({"value": away})).await?;
    let names = (0..24).map(|number| format!("{}-dead-{number}", world.namespace));
    let waiting: Vec<_> = names.map(|name| tainted(&dead, &name)).collect();
    ByHand::create_all(&waiting).await?;
    for one in &waiting {
        one.provisioned().await?;
        found(&world, one).await?;
    }
    // The first look is under way, and does not end.
    let reached = tokio::task::spawn_blocking(move || silent.accept().map(|_| silent));
    let silent = tokio::time::timeout(DEADLINE, reached)
        .await
        .context("no look")???;

    let workload = world.management.workload().await?;
    let nodes = Api::<Node>::all(workload.admin_client().await?);
    let here = std::fs::read_to_string(workload.admin_kubeconfig())?;
    secret(&world, &json!({"value": here})).await?;
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
    drop(silent);
    nodes.delete(&name, &DeleteParams::default()).await?;
    Ok(())
}

/// A Node whose machine is paused keeps the taint until that ends, while that of another machine is freed.
#[tokio::test]
async fn a_node_is_not_freed_of_its_taint_while_its_machine_is_paused() -> Result<()> {
    let world = World::new("taint-paused").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let workload = world.management.workload().await?;
    let nodes = Api::<Node>::all(workload.admin_client().await?);
    let stage = Stage::set(&world).await?;
    let here = std::fs::read_to_string(workload.admin_kubeconfig())?;
    secret(&world, &json!({"value": here})).await?;
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
    for machine in &machines {
        nodes.delete(&machine.name, &DeleteParams::default()).await?;
    }
    Ok(())
}

/// What of a removal is written, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    /// The Node without the taint, in the workload cluster.
    Node,
    /// The record in the InfraMachine.
    Record,
}

impl Write {
    fn is(self, request: &ProxiedRequest) -> bool {
        let of_kind = match self {
            Self::Node => request.path.contains("/nodes/"),
            Self::Record => request.path.contains("/inframachines/"),
        };
        of_kind && request.method == Method::PATCH && !request.path.ends_with("/status")
    }
}

/// INI-05: killed before it writes the Node, the provider does so when it is back. Killed after that, or
/// around the record of the removal, it finds the taint gone, records that, and does not write the Node a
/// second time.
#[tokio::test]
async fn killed_around_the_writes_of_a_removal_the_provider_frees_the_node_once() -> Result<()> {
    for write in [Write::Node, Write::Record] {
        for (side, is_written) in [
            (Fault::HoldBefore as fn(Gate) -> Fault, false),
            (Fault::HoldAfter, true),
        ] {
            let is_freed = is_written || write == Write::Record;
            let killed = killed_around(write, side, is_freed).await;
            killed.with_context(|| format!("{write:?}, written: {is_written}"))?;
        }
    }
    Ok(())
}

async fn killed_around(write: Write, side: fn(Gate) -> Fault, is_freed: bool) -> Result<()> {
    let world = World::new("taint-killed").await?;
    let cloud = Cloud::new(&world);
    let (gate, armed) = (Gate::new(), Arc::new(AtomicBool::new(false)));
    // Of a machine that is up, nothing but this is written besides the status.
    let hook = || {
        let fault = Mutex::new(Some(side(gate.clone())));
        let armed = Arc::clone(&armed);
        move |request: &ProxiedRequest| {
            let mut fault = fault.lock().unwrap_or_else(PoisonError::into_inner);
            let sprung = fault.take_if(|_| write.is(request) && armed.load(Ordering::SeqCst));
            sprung.unwrap_or(Fault::None)
        }
    };
    let proxy = Proxy::start(&world.management, hook()).await?;
    let to_nodes = Proxy::of_workload(&world.management, hook()).await?;
    let provider =
        Provider::new(cloud.drivers(json!({}))).through(proxy.kubeconfig(&service_account(&world).await?)?);
    let replica = provider.start(&world).await?;
    let workload = world.management.workload().await?;
    let nodes = Api::<Node>::all(workload.admin_client().await?);
    let stage = Stage::set(&world).await?;
    let kubeconfig = to_nodes.kubeconfig(workload.admin_kubeconfig())?;
    secret(&world, &json!({"value": std::fs::read_to_string(kubeconfig)?})).await?;
    let machine = tainted(&stage, &format!("{}-m", world.namespace))
        .create()
        .await?;
    let provider_id = machine
        .provisioned()
        .await?
        .spec
        .provider_id
        .context("no providerID")?;
    node(&nodes, &machine.name, &provider_id).await?;
    armed.store(true, Ordering::SeqCst);
    found(&world, &machine).await?;
    tokio::time::timeout(DEADLINE, gate.reached())
        .await
        .context("nothing was written")?;
    drop(replica);
    armed.store(false, Ordering::SeqCst);
    let removed = nodes.get(&machine.name).await?;
    ensure!(keys(&removed).is_empty() == is_freed, "{:?}", keys(&removed));

    let _again = provider.named("again").start(&world).await?;
    let recorded = machine
        .until("the record of the removal", |machine| {
            says(machine, NOT_READY_TAINT_REMOVED, "True", "NotReadyTaintRemoved")
        })
        .await?;
    ensure!(
        record(&recorded) == removed.metadata.uid.as_deref(),
        "{:?}",
        recorded.metadata
    );
    let now = nodes.get(&machine.name).await?;
    ensure!(keys(&now).is_empty(), "{:?}", keys(&now));
    ensure!(
        (now.resource_version() == removed.resource_version()) == is_freed,
        "written again"
    );
    nodes.delete(&machine.name, &DeleteParams::default()).await?;
    Ok(())
}

/// INI-05: clusterctl moves no machine whose VM waits for its initialization. The Node of one whose VM was
/// initialized, and which has the taint yet, is freed at the target, once.
#[tokio::test]
async fn a_node_that_has_its_taint_when_clusterctl_moves_the_machine_is_freed_at_the_target() -> Result<()> {
    let source = World::new("taint-move").await?;
    let target = source.elsewhere().await?;
    let cloud = Cloud::new(&source);
    let provider = Provider::new(cloud.drivers(json!({})));
    let at_source = provider.start(&source).await?;
    let _at_target = provider.clone().named("target").start(&target).await?;
    let _control_planes = StandInController::start(&target.management).await?;
    source.cluster("md").await?;
    registers_with(&source, &[taint(KEY, "NoSchedule")]).await?;
    cloud.fail(json!([{"operation": "InitializeMachine", "code": "Uninitialized", "retryAfterMs": 200}]))?;
    let fleet = Fleet::of(&source, "md");
    fleet.template_with("md-1", waits_for_initialization()).await?;
    fleet.deployment("md-1", 1).await?;
    let name = failed_initializations(&cloud, &fleet).await?;
    let refused = source
        .move_to(&target)
        .err()
        .context("a machine was moved that waits")?;
    ensure!(
        format!("{refused:#}").contains("still provisioning the node"),
        "{refused:#}"
    );

    // Initialized; the provider goes away before there is a Node.
    cloud.fail(json!([]))?;
    eventually(DEADLINE, "a VM that is initialized", async || {
        let machine = only(fleet.infra_machines().await?)?;
        ensure!(is_provisioned(&machine), "{:?}", machine.status);
        Ok(())
    })
    .await?;
    drop(at_source);
    let _kubelets = world.kubelets(&cloud);
    let nodes = Api::<Node>::all(source.management.workload().await?.admin_client().await?);
    let before = registered(&nodes, &name).await?;
    fleet.running(1).await?;
    source.move_to(&target)?;
    let moved = Fleet::of(&target, "md");
    let freed = freed(&nodes, &name).await?;
    ensure!(freed.uid() == before.uid(), "another Node");
    ensure!(
        keys(&before) == [KEY] && keys(&freed).is_empty(),
        "{:?}",
        keys(&before)
    );
    recorded(&moved, &freed).await?;
    moved.running(1).await?;
    removals(&target, 1).await?;
    removals(&source, 0).await
}

/// Bootstrap data with which Nodes register with these taints.
async fn registers_with(world: &World, taints: &[Taint]) -> Result<()> {
    let data = world
        .management
        .workload()
        .await?
        .bootstrap_data_with_taints(taints)?;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
        "metadata": {"name": "boot", "namespace": world.namespace},
        "stringData": {"value": data},
    });
    management_cluster::apply(&world.admin, secret).await?;
    Ok(())
}

/// The spec of machines whose VMs have to be initialized, and whose Nodes have the taint.
fn waits_for_initialization() -> Value {
    json!({
        "driver": "simulated", "shutdownTimeoutSeconds": 0, "notReadyTaint": {},
        "providerSpec": {"vmPool": "default", "size": "small", "tags": {}, "sourceDestCheck": false},
    })
}

/// Waits until the initialization of the only VM has failed some times; the machine's name.
async fn failed_initializations(cloud: &Cloud, fleet: &Fleet<'_>) -> Result<String> {
    eventually(DEADLINE, "three failed initializations", async || {
        let machine = only(fleet.infra_machines().await?)?;
        let name = machine.name_any();
        let failed = cloud.count(Operation::InitializeMachine, &name)?;
        ensure!(failed >= 3, "{failed}");
        Ok(name)
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

/// Says in Cluster API's place that the Node of a machine was found.
async fn found(world: &World, machine: &ByHand) -> Result<()> {
    let found = Patch::Merge(json!({"status": {"nodeRef": {"name": machine.name}}}));
    objects(world, "cluster.x-k8s.io", "v1beta2", "Machine")
        .patch_status(&machine.name, &PatchParams::default(), &found)
        .await?;
    Ok(())
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

/// The kubeconfig Secret of the Cluster `c`.
async fn secret(world: &World, data: &Value) -> Result<()> {
    secret_of(world, "c", data).await
}

/// The kubeconfig Secret of a Cluster.
async fn secret_of(world: &World, cluster: &str, data: &Value) -> Result<()> {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
        "metadata": {"name": format!("{cluster}-kubeconfig"), "namespace": world.namespace},
        "stringData": data,
    });
    management_cluster::apply(&world.admin, secret).await?;
    Ok(())
}

/// A workload cluster that takes connections and never answers, and the kubeconfig that leads to it.
fn silent_workload_cluster() -> Result<(TcpListener, String)> {
    let silent = TcpListener::bind("127.0.0.1:0")?;
    let server = format!("https://{}", silent.local_addr()?);
    let away = kubeconfig(&json!({"server": server}), &json!({"token": "t"}))?;
    Ok((silent, away))
}

fn kubeconfig(cluster: &Value, user: &Value) -> Result<String> {
    Ok(serde_json::to_string(&json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }))?)
}

fn only(mut machines: Vec<InfraMachine>) -> Result<InfraMachine> {
    ensure!(machines.len() == 1, "{} machines", machines.len());
    machines.pop().context("no machine")
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
fn record(machine: &InfraMachine) -> Option<&str> {
    let record = machine
        .annotations()
        .get(annotations::NOT_READY_TAINT_REMOVED_FROM)?;
    record.strip_suffix(KEY)?.strip_suffix('/')
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
async fn recorded(fleet: &Fleet<'_>, node: &Node) -> Result<InfraMachine> {
    eventually(DEADLINE, "the record of the removal", async || {
        let machine = only(fleet.infra_machines().await?)?;
        ensure!(
            record(&machine) == node.metadata.uid.as_deref(),
            "{:?}",
            machine.metadata.annotations
        );
        ensure!(
            says(&machine, NOT_READY_TAINT_REMOVED, "True", "NotReadyTaintRemoved"),
            "{:?}",
            machine.status
        );
        Ok(machine)
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
    let ready = Patch::Strategic(json!({"status": {"conditions": [{"type": "Ready", "status": status}]}}));
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
    eventually(DEADLINE, &format!("{count} events of a removal"), async || {
        let events = world.kubectl(&["get", "events.events.k8s.io", "-o", "jsonpath={.items[*].reason}"])?;
        let removals = events
            .split(' ')
            .filter(|reason| *reason == "NotReadyTaintRemoved");
        ensure!(removals.count() == count, "{events}");
        Ok(())
    })
    .await
}

/// How often the provider has looked at a Node, or seen that there is no reason to.
async fn looks(provider: &Replica) -> Result<u64> {
    let metrics = provider.metrics().await?;
    let counts = metrics
        .lines()
        .filter(|line| line.starts_with("capcmi_reconcile_total{controller=\"not_ready_taint\""))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    Ok(counts.sum())
}
