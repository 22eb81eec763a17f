//! The output and exit code of `capcmi plan`, compared with real rollouts. It runs as a process, and reads
//! the extensions that Cluster API has discovered.

use std::process::Output;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{InPlace, plan_command, tier};
use crate::support::{Backing, ByHand, Extension, Fleet, World};

/// In place, replaced and refused, with the exit code 1 for what no machine can be made from; for operators
/// and, with the same words, for scripts. A driver that is away is no forecast.
#[tokio::test]
async fn a_plan_forecasts_updates_replacements_and_refusals() -> Result<()> {
    let world = World::new("in-place-plan").await?;
    let in_place = InPlace::of(world, Backing::InProcess, json!({})).await?;
    let (world, cloud) = (&in_place.world, &in_place.cloud);
    let _provider = in_place.provider.start(world).await?;
    in_place.extension.register(world).await?;
    let fleet = deployed(&in_place).await?;
    let before = cloud.holds(1).await?;
    let mut replaced = tier("gold");
    replaced["size"] = json!("medium");
    let mut refused = tier("gold");
    refused["rootFsSize"] = json!("vast");
    for (template, spec) in [
        ("in-place", tier("gold")),
        ("replaced", replaced),
        ("refused", refused),
    ] {
        fleet.template(template, spec).await?;
    }

    for (template, code, field, action) in [
        ("in-place", 0, "/providerSpec/labels/tier", "inPlace"),
        ("replaced", 0, "/providerSpec/size", "replaced"),
        ("refused", 1, "/providerSpec/rootFsSize", "refused"),
    ] {
        let output = planned(&in_place, template, &["--output=json"])?;
        ensure!(output.status.code() == Some(code), "{template}: {output:?}");
        let forecast: Value = serde_json::from_slice(&output.stdout)?;
        let fields = forecast["fields"].as_array().context("no fields")?;
        let found = fields.iter().find(|row| row["field"] == field);
        let found = found.with_context(|| format!("no {field} in {forecast:#}"))?;
        ensure!(
            found["action"] == action && found["template"] == "md-1",
            "{forecast:#}"
        );
        let machines = forecast["machines"].as_array().context("no machines")?;
        ensure!(
            machines.len() == 1
                && machines[0]["machine"] == before[0].name.as_str()
                && machines[0]["action"] == action,
            "{forecast:#}"
        );
        // What stays in place needs no reason.
        let has_reason = |row: &Value| row["why"].as_str().is_some_and(|why| !why.is_empty());
        ensure!(
            action == "inPlace" || has_reason(found) && has_reason(&machines[0]),
            "{forecast:#}"
        );
    }
    let output = planned(&in_place, "in-place", &[])?;
    let unread = "this plan assumes that they are: Deployment capi-system/";
    ensure!(text(&output.stdout).contains(unread), "{output:?}");
    let output = planned(&in_place, "refused", &[])?;
    let (table, error) = (text(&output.stdout), text(&output.stderr));
    ensure!(output.status.code() == Some(1), "{output:?}");
    ensure!(
        table.contains("/providerSpec/rootFsSize") && table.contains("refused"),
        "{table}"
    );
    ensure!(error.contains("cannot create machines from"), "{error}");

    let output = planned(&in_place, "missing", &[])?;
    let error = text(&output.stderr);
    ensure!(
        output.status.code() == Some(1) && error.contains("InfraMachineTemplate missing does not exist"),
        "{output:?}"
    );
    cloud.fail(json!([{"operation": "GetPluginCapabilities", "code": "Unavailable"}]))?;
    let output = planned(&in_place, "in-place", &["--output=json"])?;
    let error = text(&output.stderr);
    ensure!(
        output.status.code() == Some(1) && output.stdout.is_empty(),
        "{output:?}"
    );
    ensure!(
        error.contains("cannot get the capabilities of driver simulated"),
        "{error}"
    );
    cloud.fail(json!([]))?;
    core_gates_count(&in_place).await?;
    ensure!(cloud.vms()? == before, "a plan has changed something");
    Extension::unregister(world).await
}

/// A MachineDeployment without replicas, and a machine as if it had made it.
async fn deployed(in_place: &InPlace) -> Result<Fleet<'_>> {
    let world = &in_place.world;
    world.cluster("md").await?;
    let fleet = Fleet::of(world, "md");
    fleet.template("md-1", tier("bronze")).await?;
    let bootstrap = json!({"spec": {"template": {"spec": {"bootstrap": {
        "dataSecretName": null,
        "configRef": {
            "apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "StandInBootstrapTemplate", "name": "worker",
        },
    }}}}});
    fleet.deployment_with("md-1", 0, &bootstrap).await?;
    let of_it = json!({"cluster.x-k8s.io/cluster-name": "md", "cluster.x-k8s.io/deployment-name": "md"});
    let machine = ByHand::new(world, "md", "g-1")
        .machine("/metadata/labels", of_it)
        .infra("/spec/providerSpec", tier("bronze"))
        .infra(
            "/metadata/annotations",
            json!({"cluster.x-k8s.io/cloned-from-name": "md-1"}),
        );
    machine.create().await?.provisioned().await?;
    Ok(fleet)
}

/// Holds the plan against core's Deployment, which no other case of this management cluster has or reads.
async fn core_gates_count(in_place: &InPlace) -> Result<()> {
    let world = &in_place.world;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "capi-system"}});
    management_cluster::apply(&world.admin, namespace).await?;
    for (gate, said) in [
        ("RuntimeSDK=false,InPlaceUpdates=true", "RuntimeSDK"),
        ("RuntimeSDK=true,InPlaceUpdates=false", "InPlaceUpdates"),
    ] {
        core_with(world, gate).await?;
        let off = text(&planned(in_place, "in-place", &[])?.stdout);
        let expected = format!("replaced   core's feature gate {said} is off");
        ensure!(off.contains(&expected), "{off}");
    }
    core_with(world, "RuntimeSDK=true,InPlaceUpdates=true").await?;
    let on = text(&planned(in_place, "in-place", &[])?.stdout);
    ensure!(!on.contains("feature gate"), "{on}");
    world
        .kubectl(&[
            "delete",
            "deployment",
            "capi-controller-manager",
            "--namespace=capi-system",
        ])
        .map(drop)
}

async fn core_with(world: &World, gates: &str) -> Result<()> {
    let labels = json!({"control-plane": "controller-manager"});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "capi-controller-manager", "namespace": "capi-system"},
        "spec": {
            "replicas": 0, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{
                "name": "manager", "image": "core", "args": [format!("--feature-gates={gates}")],
            }]}},
        },
    });
    management_cluster::apply(&world.admin, deployment)
        .await
        .map(drop)
}

fn planned(in_place: &InPlace, template: &str, flags: &[&str]) -> Result<Output> {
    let mut command = plan_command(&in_place.world, in_place, template)?;
    command.args(flags).output().context("running capcmi plan")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
