//! The cause of a failure, the next step and the next attempt, as `kubectl`, the log, `/metrics` and
//! `capcmi describe` show them.

use anyhow::{Context as _, Result, ensure};
use capcmi::api::annotations;
use capcmi::api::conditions;
use kube::ResourceExt;
use management_cluster::eventually;
use serde_json::json;

use crate::support::by_hand::{event, message, says};
use crate::support::metrics::sample;
use crate::support::shown::{column, describe};
use crate::support::{ByHand, Cloud, DEADLINE, Fleet, Provider, Stage, World};

#[tokio::test]
#[expect(
    clippy::too_many_lines,
    reason = "one story, each step of which needs those before it"
)]
async fn a_machine_without_quota_is_explained_wherever_operators_look() -> Result<()> {
    let world = World::new("explain").await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let stage = Stage::set(&world).await?;
    let up = stage.machine("up").create().await?;
    let up = up.provisioned().await?;
    cloud.fail(json!([
        {"operation": "CreateMachine", "machine": "full", "code": "ResourceExhausted",
        "message": "quota of 1"},
    ]))?;
    let full = stage.machine("full").create().await?;
    let refused = full
        .until("a machine without room", |machine| {
            says(machine, conditions::READY, "False", "ResourceExhausted")
        })
        .await?;
    let said = message(&refused, conditions::READY);
    ensure!(
        said.starts_with("CreateMachine: quota of 1; ") && said.contains("annotation"),
        "{said}"
    );
    event(&world, "full", "ResourceExhausted").await?;

    // One line, however often it fails: an operator has it tried again.
    full.patch(json!({"metadata": {"annotations": {"example.com/retry": "1"}}}))
        .await?;
    eventually(DEADLINE, "another try", async || {
        let creates = cloud.count(cmi_driver::Operation::CreateMachine, "full")?;
        ensure!(creates >= 2, "{creates} creates");
        Ok(())
    })
    .await?;
    let log = provider.log()?;
    let machine = format!("{}/full", world.namespace);
    let lines: Vec<_> = log
        .lines()
        .filter(|line| line.contains("machine failed") && line.contains(&machine))
        .collect();
    ensure!(lines.len() == 1, "{lines:?}");
    for part in [
        "WARN",
        "simulated",
        "ResourceExhausted",
        "CreateMachine",
        "quota of 1",
        "next_try=\"20",
    ] {
        ensure!(lines[0].contains(part), "no {part} in {}", lines[0]);
    }

    let text = eventually(DEADLINE, "the machine counted with its reason", async || {
        let text = provider.metrics().await?;
        let namespace = &world.namespace;
        let labels = format!(r#"driver="simulated",namespace="{namespace}",reason="ResourceExhausted""#);
        for (name, expected) in [
            (format!(r#"capcmi_machines{{phase="Pending",{labels}}}"#), 1.0),
            (
                r#"capcmi_driver_breakers{driver="simulated",state="open"}"#.to_owned(),
                1.0,
            ),
            (
                r#"capcmi_driver_calls_total{driver="simulated",operation="DeleteMachine",code="Internal"}"#
                    .to_owned(),
                0.0,
            ),
        ] {
            let value = sample(&text, &name)?;
            ensure!((value - expected).abs() < f64::EPSILON, "{name} is {value}");
        }
        Ok(text)
    })
    .await?;

    let page = describe(&world, &["machine", "full"])?;
    for part in [
        "Phase           Pending",
        "Raise the quota or free capacity",
        "Machine         full",
        "Ready",
        "ResourceExhausted",
        "Next try        20",
        "VM, as the driver reports it now",
        "The driver has no VM of this machine.",
        "InfraMachine/full",
    ] {
        ensure!(page.contains(part), "no `{part}` in\n{page}");
    }
    let page = describe(&world, &["machine", "up"])?;
    let id = up.spec.provider_id.clone().unwrap_or_default();
    ensure!(
        page.contains("Nothing: the machine is in the desired state."),
        "{page}"
    );
    ensure!(
        page.matches(&id).count() >= 2 && page.contains("Power           Running"),
        "{page}"
    );

    let scrape = world.folder.join("metrics.txt");
    std::fs::write(&scrape, &text)?;
    let path = scrape.display().to_string();
    let page = describe(&world, &["driver", "simulated", "--metrics", &path])?;
    for part in [
        "What the driver reports to this command",
        "simulated.capcmi.io",
        "1  Pending      ResourceExhausted",
        "1  Provisioned  Ready",
        "open: 1 classes",
    ] {
        ensure!(page.contains(part), "no `{part}` in\n{page}");
    }
    let counts_it = |line: &str| line.contains("CreateMachine") && line.contains("ResourceExhausted");
    ensure!(page.lines().any(counts_it), "{page}");
    let page = describe(&world, &["driver", "simulated"])?;
    ensure!(page.contains("Unknown from outside"), "{page}");

    // Paused, no call is planned, and no time of one is shown.
    let shown = world.kubectl(&["get", "inframachines", "full", "-o", "wide"])?;
    ensure!(!column(&shown, "NEXT TRY")?.is_empty(), "{shown}");
    full.patch(json!({"metadata": {"annotations": {annotations::PAUSED: ""}}}))
        .await?;
    full.until("a paused machine", |machine| {
        says(machine, conditions::PAUSED, "True", "Paused")
    })
    .await?;
    let shown = world.kubectl(&["get", "inframachines", "full", "-o", "wide"])?;
    ensure!(column(&shown, "PAUSED")? == "True", "{shown}");
    ensure!(column(&shown, "REACHABLE")? == "True", "{shown}");
    ensure!(column(&shown, "NEXT TRY")?.is_empty(), "{shown}");
    let page = describe(&world, &["machine", "full"])?;
    ensure!(
        page.contains("remove the annotation cluster.x-k8s.io/paused"),
        "{page}"
    );

    an_infra_cluster_without_a_driver_is_explained(&world).await?;

    // The log names the machine that is removed by force.
    full.patch(
        json!({"metadata": {"annotations": {annotations::PAUSED: null, annotations::FORCE_DELETE: "true"}}}),
    )
    .await?;
    full.delete().await?;
    full.gone().await?;
    eventually(DEADLINE, "the line of the force delete", async || {
        let log = provider.log()?;
        let is_told = |line: &str| line.contains("without a confirmation") && line.contains(&machine);
        ensure!(
            log.lines().filter(|line| is_told(line)).count() == 1,
            "no such line"
        );
        Ok(())
    })
    .await
}

/// The column and the page of an InfraCluster without a driver. `tests/world` covers its messages and events.
async fn an_infra_cluster_without_a_driver_is_explained(world: &World) -> Result<()> {
    world
        .apply(
            r"
apiVersion: infrastructure.capcmi.io/v1alpha1
kind: InfraCluster
metadata: {name: undriven, namespace: $NS}
spec: {driver: nowhere, controlPlaneEndpoint: {host: 127.0.0.1, port: 6443}}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: undriven, namespace: $NS}
spec:
  infrastructureRef: {apiGroup: infrastructure.capcmi.io, kind: InfraCluster, name: undriven}
",
        )
        .await?;
    ByHand::new(world, "undriven", "waits").create().await?;
    eventually(DEADLINE, "a column that says why", async || {
        let shown = world.kubectl(&["get", "infraclusters", "undriven", "-o", "wide"])?;
        ensure!(
            column(&shown, "MESSAGE")?.starts_with("no driver `nowhere`"),
            "{shown}"
        );
        Ok(())
    })
    .await?;
    let page = describe(world, &["machine", "waits"])?;
    ensure!(
        page.contains("Ready is False, DriverNotConfigured: no driver `nowhere`"),
        "{page}"
    );
    Ok(())
}

/// The chain of owners that Cluster API creates for a MachineDeployment.
#[tokio::test]
#[ignore = "long: the page of such a chain is proven in the fast world; runs in make test-all"]
async fn the_page_of_a_machine_shows_the_owners_that_core_makes() -> Result<()> {
    let world = World::new("explain-owners").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let _kubelets = world.kubelets(&cloud);
    let fleet = Fleet::create(&world, "md", 1).await?;
    let machine = fleet.running(1).await?.remove(0);
    let owners = machine.owner_references();
    let set = owners.iter().find(|owner| owner.kind == "MachineSet");
    let set = &set.context("no MachineSet")?.name;
    let page = describe(&world, &["machine", &machine.name_any()])?;
    for (kind, name) in [
        ("MachineSet", set.as_str()),
        ("MachineDeployment", "md"),
        ("Cluster", "md"),
    ] {
        let is_it = |line: &str| {
            let mut words = line.split([' ', ',']).filter(|word| !word.is_empty());
            words.next() == Some(kind) && words.next() == Some(name)
        };
        ensure!(page.lines().any(is_it), "no {kind} {name} in\n{page}");
    }
    Ok(())
}
