//! The taint that a Node registers with until its VM is initialized.

use anyhow::{Context, Result, ensure};
use capcmi::api::conditions::NOT_READY_TAINT_REMOVED;
use capcmi::api::progress::Task;
use capcmi::api::v1alpha1::InfraMachine;
use cmi_driver::Operation;
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt;
use kube::api::Api;
use management_cluster::eventually;
use management_cluster::stand_in::StandInController;
use serde_json::{Value, json};

use crate::support::by_hand::{condition, is_provisioned, message, says};
use crate::support::{Cloud, DEADLINE, Fleet, Provider, World};

/// The key that the specification names.
const KEY: &str = "node.machine.sapcloud.io/instance-not-ready";

fn taint(key: &str, effect: &str) -> Taint {
    Taint {
        key: key.to_owned(),
        effect: effect.to_owned(),
        ..Taint::default()
    }
}

/// INI-02, INI-04, INI-05: the taint that a Node registered with goes when its VM is initialized, and nothing
/// else of the Node, also where Kubernetes and Cluster API write to it. `tests/world` has the rest.
#[tokio::test]
async fn a_real_node_is_freed_of_its_taint_once_its_vm_is_initialized() -> Result<()> {
    let world = World::new("taint").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
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
        message(&machine, NOT_READY_TAINT_REMOVED) == format!("removed taint {KEY} from Node {name}"),
        "{:?}",
        condition(&machine, NOT_READY_TAINT_REMOVED)
    );
    ensure!(keys(&freed) == ["theirs"], "{:?}", keys(&freed));
    removals(&world, 1).await
}

/// INI-05: clusterctl moves no machine whose VM waits for its initialization. The Node of one whose VM was
/// initialized, and which has the taint yet, is freed at the target, once.
#[tokio::test]
#[ignore = "long: clusterctl itself, and two control planes; runs in make test-all"]
async fn clusterctl_moves_a_machine_whose_node_has_its_taint() -> Result<()> {
    let source = World::new("taint-move").await?;
    let target = source.move_target().await?;
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
    let _kubelets = source.kubelets(&cloud);
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

/// Writes bootstrap data whose Nodes register with these taints.
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
async fn recorded(fleet: &Fleet<'_>, node: &Node) -> Result<InfraMachine> {
    eventually(DEADLINE, "the record of the removal", async || {
        let machine = only(fleet.infra_machines().await?)?;
        ensure!(
            record(&machine) == node.metadata.uid,
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
