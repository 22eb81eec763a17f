//! Machines whose Node does not appear: when the provider looks for the cause, and how it shows the cause.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use capcmi::api::conditions::NODE_JOINED;
use capcmi::api::v1alpha1::InfraMachine;
use capcmi::manager::ControllerOptions;
use cmi_driver::Operation;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::support::by_hand::{condition, message, says};
use crate::support::fleet::{found, objects};
use crate::support::trap::name_of;
use crate::support::{ByHand, Cloud, Provider, Stage, World};

/// When the first look is due.
const BOOTSTRAP: Duration = Duration::from_mins(5);
/// The longest pause between two looks, twice.
const TWO_PAUSES: Duration = Duration::from_hours(2);
/// Far longer than all reconciles after a change.
const SHORT: Duration = Duration::from_mins(1);

/// No request before the time of a bootstrap. Then the condition follows the workload cluster, and is removed
/// when the Node joins. It never counts for `Ready`.
#[tokio::test(start_paused = true)]
async fn the_condition_follows_the_cause_until_the_node_is_there() -> Result<()> {
    let world = World::without_core("missing").await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({}))).with(rare_lists);
    let _replica = provider.start(&world).await?;
    let stage = Stage::set(&world).await?;
    let machine = stage.machine("m").create().await?;
    let id = machine
        .provisioned()
        .await?
        .spec
        .provider_id
        .context("no providerID")?;
    sleep(BOOTSTRAP.saturating_sub(SHORT)).await;
    ensure!(
        condition(&machine.get().await?, NODE_JOINED).is_none(),
        "too early"
    );
    ensure!(
        cloud.count(Operation::GetConsole, "m")? == 0,
        "the console was read too early"
    );

    let shown = reported(&machine, "InvalidKubeconfig").await?;
    ensure!(says(&shown, "Ready", "True", "Ready"), "{:?}", shown.status);
    for part in [
        format!("no Node with ProviderID `{id}` is known"),
        "was not tried: Secret `c-kubeconfig`".to_owned(),
        "the console shows nothing of cloud-init; its last lines:\nsimulated firmware".to_owned(),
        "m login: simulated guest is up".to_owned(),
    ] {
        ensure!(
            message(&shown, NODE_JOINED).contains(&part),
            "{}",
            message(&shown, NODE_JOINED)
        );
    }
    world.kubeconfig_secret("c", &World::silent_kubeconfig()).await?;
    let shown = reported(&machine, "WorkloadClusterUnreachable").await?;
    ensure!(
        message(&shown, NODE_JOINED).contains("does not answer: "),
        "{shown:?}"
    );

    world
        .kubeconfig_secret("c", &World::workload_kubeconfig())
        .await?;
    let shown = reported(&machine, "NodeMissing").await?;
    let text = message(&shown, NODE_JOINED);
    let absent = format!("no Node `m` with ProviderID `{id}` has joined; the control plane endpoint");
    ensure!(text.contains(&absent) && text.contains(" answers; "), "{text}");

    let nodes = Api::<Node>::all(world.workload.client("case"));
    node(&nodes, "m", "simulated:///another").await?;
    let shown = reported(&machine, "ProviderIDMismatch").await?;
    let text = message(&shown, NODE_JOINED);
    let both = format!("Node `m` has ProviderID `simulated:///another`, and the VM has `{id}`: correct");
    ensure!(text.contains(&both), "{text}");

    let own = Patch::Merge(json!({"spec": {"providerID": id}}));
    nodes.patch("m", &PatchParams::default(), &own).await?;
    reported(&machine, "NodeNotMatched").await?;
    found(&world, &machine).await?;
    let is_gone = |machine: &InfraMachine| condition(machine, NODE_JOINED).is_none();
    machine.until("no condition about the Node", is_gone).await?;
    ensure!(
        events(&world)
            .await?
            .iter()
            .all(|event| event.reason.as_deref() == Some("Created")
                || event.reason.as_deref() == Some("Provisioned")),
        "{:?}",
        events(&world).await?
    );
    Ok(())
}

/// A fleet whose Nodes never appear costs one write for each machine, and in the end a look every hour.
/// A new process spreads its looks as well, and a paused machine costs none.
#[tokio::test(start_paused = true)]
async fn a_fleet_without_nodes_costs_one_write_and_rare_looks() -> Result<()> {
    const MACHINES: usize = 10;
    let world = World::without_core("missing-fleet").await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({}))).with(rare_lists);
    let mut first = provider.start(&world).await?;
    let stage = Stage::set(&world).await?;
    let mut machines = Vec::new();
    for index in 0..MACHINES {
        machines.push(stage.machine(&format!("m-{index}")).create().await?);
    }
    let paused = machines.pop().context("no machine")?;
    paused.provisioned().await?;
    let pause = json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": ""}}});
    paused.patch(pause).await?;
    for machine in &machines {
        reported(machine, "InvalidKubeconfig").await?;
    }
    let (writes, looks) = (status_writes(&world), looks(&cloud, &machines)?);
    sleep(Duration::from_hours(8)).await;
    ensure!(status_writes(&world) == writes, "an idle fleet was written");
    let per_machine = (self::looks(&cloud, &machines)? - looks) / machines.len();
    // After 10, 20, 40 and 80 minutes, and then each hour.
    ensure!((8..=11).contains(&per_machine), "{per_machine} looks in 8 hours");
    ensure!(
        cloud.count(Operation::GetConsole, &paused.name)? == 0,
        "a paused machine"
    );

    first.terminate().await?;
    let looks = self::looks(&cloud, &machines)?;
    let _second = provider.start(&world).await?;
    sleep(SHORT).await;
    let after_start = self::looks(&cloud, &machines)? - looks;
    ensure!(after_start < MACHINES / 2, "{after_start} looks after a start");
    sleep(Duration::from_hours(1)).await;
    let in_an_hour = self::looks(&cloud, &machines)? - looks;
    ensure!(
        (machines.len()..=2 * machines.len()).contains(&in_an_hour),
        "{in_an_hour} looks"
    );
    ensure!(status_writes(&world) == writes, "a restart wrote");
    Ok(())
}

/// The console is shown without the bootstrap data and the driver's credentials, and not at all where these
/// cannot be read. Without GetConsole, the other facts are shown.
#[tokio::test(start_paused = true)]
async fn the_console_is_shown_without_secrets_or_not_at_all() -> Result<()> {
    // The console of a simulated VM has its name, and these words.
    const NAME: &str = "canary-7f3a9c";
    const WORDS: &str = "simulated guest is up";
    let world = World::without_core("missing-secret").await?;
    let (cloud, mute) = (Cloud::new(&world), Cloud::named(&world, "mute"));
    let mute_drivers = mute.drivers_with(json!({"name": "mute"}), json!({"disabledCalls": ["GetConsole"]}));
    let drivers = Cloud::several([cloud.drivers(json!({})), mute_drivers])?;
    let _provider = Provider::new(drivers).with(rare_lists).start(&world).await?;
    let stage = Stage::set(&world).await?;
    let data = format!("#cloud-config\npassword: {NAME}\n");
    for (name, values) in [
        ("boot-canary", json!({"value": data})),
        ("boot-gone", json!({"value": data})),
        ("credentials", json!({"token": WORDS})),
    ] {
        secret(&world, name, values).await?;
    }
    let machine = |name: &str, boot: &str| {
        let machine = stage
            .machine(name)
            .machine("/spec/bootstrap/dataSecretName", json!(boot));
        machine.infra("/spec/secretRef", json!({"name": "credentials"}))
    };
    let scrubbed = machine(NAME, "boot-canary").create().await?;
    let withheld = machine("withheld", "boot-gone").create().await?;
    let not_offered = machine("mute", "boot-canary").infra("/spec/driver", json!("mute"));
    let not_offered = not_offered.create().await?;
    for machine in [&scrubbed, &withheld, &not_offered] {
        machine.provisioned().await?;
    }
    objects(&world, "", "v1", "Secret")
        .delete("boot-gone", &DeleteParams::default())
        .await?;

    let shown = reported(&scrubbed, "InvalidKubeconfig").await?;
    let text = message(&shown, NODE_JOINED);
    ensure!(text.ends_with("\n[redacted] login: [redacted]"), "{text}");
    ensure!(text.contains("simulated firmware: starting VM"), "{text}");
    for (machine, expected) in [
        (
            &withheld,
            "is not shown: it may contain bootstrap data, and these cannot be read: Secret `boot-gone`",
        ),
        (&not_offered, "the driver cannot read the console"),
    ] {
        let shown = reported(machine, "InvalidKubeconfig").await?;
        let text = message(&shown, NODE_JOINED);
        ensure!(text.contains(expected) && !text.contains('\n'), "{text}");
        ensure!(text.contains("the control plane endpoint"), "{text}");
    }
    let all = format!("{:?}", events(&world).await?);
    ensure!(!all.contains("firmware") && !all.contains("login"), "{all}");
    Ok(())
}

/// Lists are not what these cases are about.
fn rare_lists(options: &mut ControllerOptions) {
    options.inventory_interval = BOOTSTRAP;
}

/// Waits until the condition is False with this reason.
async fn reported(machine: &ByHand, reason: &str) -> Result<InfraMachine> {
    let mut shown = machine.get().await?;
    // A coarse step, since hours pass.
    for _ in 0..TWO_PAUSES.as_secs() / SHORT.as_secs() {
        if says(&shown, NODE_JOINED, "False", reason) {
            return Ok(shown);
        }
        sleep(SHORT).await;
        shown = machine.get().await?;
    }
    bail!("{reason} was awaited: {:?}", condition(&shown, NODE_JOINED))
}

async fn node(nodes: &Api<Node>, name: &str, provider_id: &str) -> Result<()> {
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"providerID": provider_id},
    });
    nodes
        .create(&PostParams::default(), &serde_json::from_value(node)?)
        .await?;
    Ok(())
}

async fn secret(world: &World, name: &str, values: Value) -> Result<()> {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": world.namespace},
        "stringData": values,
    });
    management_cluster::apply(&world.admin, secret).await.map(drop)
}

async fn events(world: &World) -> Result<Vec<Event>> {
    let events: Api<Event> = Api::namespaced(world.admin.clone(), &world.namespace);
    Ok(events.list(&ListParams::default()).await?.items)
}

/// How often the console of a machine was read.
fn looks(cloud: &Cloud, machines: &[ByHand]) -> Result<usize> {
    let counts = machines
        .iter()
        .map(|machine| cloud.count(Operation::GetConsole, &machine.name));
    counts.sum()
}

fn status_writes(world: &World) -> usize {
    let writes = world.management.writes_of("provider");
    let of_status = writes
        .iter()
        .filter(|write| name_of(&write.call) == "PATCH inframachines/status");
    of_status.count()
}
