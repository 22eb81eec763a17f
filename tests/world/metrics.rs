//! What `/metrics` has.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use management_cluster::eventually;
use serde_json::json;

use crate::support::by_hand::{all_become, delete_all, is_provisioned};
use crate::support::{ByHand, Cloud, DEADLINE, Provider, World};

/// The component `monitoring` reads metrics that a provider has.
#[tokio::test(start_paused = true)]
async fn alerts_and_dashboard_read_metrics_that_a_provider_has() -> Result<()> {
    let world = World::new("monitoring").await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("c").await?;
    let machine = ByHand::new(&world, "c", "read").create().await?;
    machine.provisioned().await?;
    let component = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/components/monitoring");
    let mut read = Vec::new();
    for file in ["prometheus_rule.yaml", "dashboard.json"] {
        let expressions = std::fs::read_to_string(component.join(file))?;
        for rest in expressions.split("capcmi_").skip(1) {
            let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
            let name = rest.split(|c| !is_part(c)).next().unwrap_or_default();
            read.push((file, format!("capcmi_{name}")));
        }
    }
    ensure!(read.len() > 20, "only {} names were found", read.len());
    // A machine is counted after the write that shows it.
    eventually(DEADLINE, "all metrics that are read", async || {
        let text = provider.metrics();
        for (file, name) in &read {
            let starts = [format!("{name}{{"), format!("{name} "), format!("# HELP {name} ")];
            let has = |line: &str| starts.iter().any(|start| line.starts_with(start));
            ensure!(
                text.lines().any(has),
                "{file} reads {name}, which is not in\n{text}"
            );
        }
        Ok(())
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn metrics_count_calls_machines_and_reconciles() -> Result<()> {
    let world = World::new("metrics").await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("c").await?;
    cloud.fail(
        json!([{"operation": "CreateMachine", "machine": "m-0", "code": "Aborted", "count": 1,
        "retryAfterMs": 100}]),
    )?;
    let names = ["m-0", "m-1", "m-2"].map(str::to_owned);
    let machines = names.clone().map(|name| ByHand::new(&world, "c", name));
    ByHand::create_all(&machines).await?;
    all_become(&world, "three machines", &names, |_, machine| {
        ensure!(is_provisioned(machine.context("is gone")?), "{machine:?}");
        Ok(())
    })
    .await?;
    delete_all(&world, &names[2..]).await?;
    all_become(&world, "the end of one", &names[2..], |_, machine| {
        ensure!(machine.is_none(), "is still there");
        Ok(())
    })
    .await?;
    let call = |name: &str, code: &str| {
        format!(r#"capcmi_driver_calls_total{{driver="simulated",operation="{name}",code="{code}"}}"#)
    };
    let machines = |phase: &str, reason: &str| {
        let namespace = &world.namespace;
        let labels = format!(r#"driver="simulated",namespace="{namespace}",reason="{reason}""#);
        format!(r#"capcmi_machines{{phase="{phase}",{labels}}}"#)
    };
    let exact = [
        (call("CreateMachine", "OK"), 3.0),
        (call("CreateMachine", "Aborted"), 1.0),
        (
            r#"capcmi_driver_call_duration_seconds_count{driver="simulated",operation="CreateMachine"}"#
                .to_owned(),
            4.0,
        ),
        (
            r#"capcmi_machine_provisioning_duration_seconds_count{driver="simulated"}"#.to_owned(),
            3.0,
        ),
        (machines("Provisioned", "Ready"), 2.0),
        (r#"capcmi_machines{phase="Deleting"}"#.to_owned(), 0.0),
        (r#"capcmi_machines{phase="Pending"}"#.to_owned(), 0.0),
        (r#"capcmi_driver_reachable{driver="simulated"}"#.to_owned(), 1.0),
        ("capcmi_leader".to_owned(), 1.0),
    ];
    eventually(DEADLINE, "metrics of what happened", async || {
        let text = provider.metrics();
        for (name, expected) in &exact {
            let value = provider.sample(name)?;
            ensure!(
                (value - expected).abs() < f64::EPSILON,
                "{name} is {value}, not {expected}"
            );
        }
        for name in [
            call("DeleteMachine", "OK"),
            call("GetMachineStatus", "NotFound"),
            r#"capcmi_reconcile_total{controller="inframachine",result="success"}"#.to_owned(),
            r#"capcmi_reconcile_total{controller="inframachine",result="requeue"}"#.to_owned(),
            r#"capcmi_reconcile_total{controller="infracluster",result="requeue"}"#.to_owned(),
            r#"capcmi_reconcile_time_seconds_count{controller="inframachine"}"#.to_owned(),
        ] {
            ensure!(provider.sample(&name)? >= 1.0, "{name} is none");
        }
        let took =
            provider.sample(r#"capcmi_machine_provisioning_duration_seconds_sum{driver="simulated"}"#)?;
        ensure!(
            (0.0..3.0 * DEADLINE.as_secs_f64()).contains(&took),
            "provisioning took {took} s"
        );
        ensure!(text.trim_end().ends_with("# EOF"), "no end:\n{text}");
        Ok(())
    })
    .await
}
