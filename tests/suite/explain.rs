//! What an operator asks, who has not read the source: why, what next, and when it is tried again. Asked of
//! `kubectl`, the log, `/metrics` and `capcmi describe`.

use anyhow::{Context as _, Result, ensure};
use capcmi::api::annotations;
use capcmi::api::conditions;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use management_cluster::eventually;
use serde_json::json;

use crate::support::by_hand::{event, message, says};
use crate::support::fleet::objects;
use crate::support::metrics::sample;
use crate::support::shown::{column, describe};
use crate::support::{ByHand, Cloud, DEADLINE, Fleet, Provider, Stage, World};

#[tokio::test]
#[expect(
    clippy::too_many_lines,
    reason = "one story, each step of which needs those before it"
)]
async fn a_machine_without_quota_is_explained_in_kubectl_log_metrics_and_on_a_page() -> Result<()> {
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
        .filter(|line| line.contains("a machine has failed") && line.contains(&machine))
        .collect();
    ensure!(lines.len() == 1, "{lines:?}");
    for part in [
        "WARN",
        "simulated",
        "ResourceExhausted",
        "VirtualMachineCreated",
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
        "VM, as the driver sees it now",
        "The driver sees none of this machine.",
        "InfraMachine/full",
    ] {
        ensure!(page.contains(part), "no `{part}` in\n{page}");
    }
    let page = describe(&world, &["machine", "up"])?;
    let id = up.spec.provider_id.clone().unwrap_or_default();
    ensure!(page.contains("Nothing: it is as it should be."), "{page}");
    ensure!(
        page.matches(&id).count() >= 2 && page.contains("Power           Running"),
        "{page}"
    );

    let scrape = world.folder.join("metrics.txt");
    std::fs::write(&scrape, &text)?;
    let path = scrape.display().to_string();
    let page = describe(&world, &["driver", "simulated", "--metrics", &path])?;
    for part in [
        "What it says of itself",
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
    ensure!(page.contains("Not known from outside"), "{page}");

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
        page.contains("take the annotation cluster.x-k8s.io/paused away"),
        "{page}"
    );

    // Let go by force, that is a line as well.
    full.patch(
        json!({"metadata": {"annotations": {annotations::PAUSED: null, annotations::FORCE_DELETE: "true"}}}),
    )
    .await?;
    full.delete().await?;
    full.gone().await?;
    eventually(DEADLINE, "the line of the force delete", async || {
        let log = provider.log()?;
        let is_told = |line: &str| line.contains("removed by force") && line.contains(&machine);
        ensure!(
            log.lines().filter(|line| is_told(line)).count() == 1,
            "no such line"
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn machines_name_the_infra_cluster_that_they_wait_for_and_it_says_why_in_a_column_and_an_event()
-> Result<()> {
    let world = World::new("explain-cluster").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster_with("c", json!({"driver": "nowhere"})).await?;
    let machine = ByHand::new(&world, "c", "m").create().await?;
    let waiting = "waiting for the InfraCluster `c` to be provisioned, which says DriverNotConfigured";
    machine
        .until("a machine that names what it waits for", |machine| {
            message(machine, conditions::READY).starts_with(waiting)
        })
        .await?;
    let shown = world.kubectl(&["get", "infraclusters", "c", "-o", "wide"])?;
    ensure!(
        column(&shown, "MESSAGE")?.starts_with("there is no driver `nowhere`"),
        "{shown}"
    );
    eventually(DEADLINE, "an event of the InfraCluster", async || {
        let events = world.kubectl(&[
            "get",
            "events",
            "--field-selector",
            "involvedObject.kind=InfraCluster",
        ])?;
        ensure!(events.contains("DriverNotConfigured"), "{events}");
        Ok(())
    })
    .await?;
    let page = describe(&world, &["machine", "m"])?;
    ensure!(
        page.contains("Ready is False, DriverNotConfigured: there is no driver `nowhere`"),
        "{page}"
    );

    let clusters = objects(&world, "infrastructure.capcmi.io", "v1alpha1", "InfraCluster");
    let corrected = Patch::Merge(json!({"spec": {"driver": "simulated"}}));
    clusters.patch("c", &PatchParams::default(), &corrected).await?;
    let provisioned = machine.provisioned().await?;
    ensure!(provisioned.name_any() == "m", "{provisioned:?}");
    Ok(())
}

/// What core makes of a MachineDeployment, and a Machine whose InfraMachine has a name of its own.
#[tokio::test]
async fn the_page_of_a_machine_names_its_owners_by_whichever_name_it_is_asked_for() -> Result<()> {
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

    let other = ByHand::new(&world, "md", "by-hand")
        .infra("/metadata/name", json!("vm-of-by-hand"))
        .machine("/spec/infrastructureRef/name", json!("vm-of-by-hand"));
    other.create().await?;
    let infra_machines = objects(&world, "infrastructure.capcmi.io", "v1alpha1", "InfraMachine");
    eventually(DEADLINE, "a VM of the Machine by hand", async || {
        let provider_id = infra_machines.get("vm-of-by-hand").await?.data["spec"]["providerID"].clone();
        ensure!(provider_id.is_string(), "none yet");
        Ok(())
    })
    .await?;
    for name in ["by-hand", "vm-of-by-hand"] {
        let page = describe(&world, &["machine", name])?;
        for part in ["Machine         by-hand", "vm-of-by-hand"] {
            ensure!(page.contains(part), "no `{part}` of {name} in\n{page}");
        }
    }
    Ok(())
}
