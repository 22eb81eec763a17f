//! /metrics: which callers may read it, and what it says.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use management_cluster::eventually;
use serde_json::json;

use crate::support::by_hand::{all_become, delete_all};
use crate::support::metrics::{allow, sample, scrape, token_of};
use crate::support::{ByHand, Cloud, DEADLINE, Provider, World};

#[tokio::test]
async fn metrics_are_for_whom_the_api_server_lets_read_them() -> Result<()> {
    let world = World::new("scrape").await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({}))).flag("--insecure-diagnostics=false");
    let provider = provider.start(&world).await?;
    let (stranger, scraper) = (
        token_of(&world, "stranger").await?,
        token_of(&world, "scraper").await?,
    );
    allow(&world, "scraper").await?;
    eventually(DEADLINE, "metrics for a caller that may read them", async || {
        // A fresh token each time: an answer is remembered for a minute.
        let token = token_of(&world, "scraper").await?;
        let (code, body) = scrape(&provider.diagnostics, Some(&token)).await?;
        ensure!(
            code == 200 && body.contains("\ncapcmi_leader 1\n"),
            "{code}: {body}"
        );
        Ok(())
    })
    .await?;
    for (token, expected) in [
        (None, 401),
        (Some("no-token"), 401),
        (Some(stranger.as_str()), 403),
        (Some(scraper.as_str()), 200),
    ] {
        let (code, body) = scrape(&provider.diagnostics, token).await?;
        ensure!(code == expected, "{code}, not {expected}: {body}");
    }
    Ok(())
}

/// What the component `monitoring` reads is what a provider answers.
#[tokio::test]
async fn alerts_and_dashboard_read_metrics_that_a_provider_has() -> Result<()> {
    let world = World::new("monitoring").await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("c").await?;
    ByHand::new(&world, "c", "read")
        .create()
        .await?
        .provisioned()
        .await?;
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
    // What the machine is counted by comes after the write that shows it.
    eventually(DEADLINE, "all metrics that are read", async || {
        let text = provider.metrics().await?;
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

#[tokio::test]
async fn metrics_count_what_happened() -> Result<()> {
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
        crate::codes::provisioned(machine.context("is gone")?)
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
        let text = provider.metrics().await?;
        for (name, expected) in &exact {
            let value = sample(&text, name)?;
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
            r#"capcmi_reconcile_total{controller="infracluster",result="success"}"#.to_owned(),
            r#"capcmi_reconcile_time_seconds_count{controller="inframachine"}"#.to_owned(),
        ] {
            ensure!(sample(&text, &name)? >= 1.0, "{name} is none");
        }
        let took = sample(
            &text,
            r#"capcmi_machine_provisioning_duration_seconds_sum{driver="simulated"}"#,
        )?;
        ensure!(
            (0.0..3.0 * DEADLINE.as_secs_f64()).contains(&took),
            "provisioning took {took} s"
        );
        ensure!(text.trim_end().ends_with("# EOF"), "no end:\n{text}");
        Ok(())
    })
    .await
}
