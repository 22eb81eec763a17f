//! What `capcmi plan` prints and how it ends, beside the roll-outs themselves.

use std::process::Output;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{InPlace, plan_command, tier};
use crate::support::Extension;

/// In place, replaced and refused, with the exit code 1 for what no machine can be made from; for people and,
/// with the same words, for scripts. A driver that is away is no forecast.
#[tokio::test]
async fn a_plan_names_what_is_refused_and_is_none_while_the_driver_is_away() -> Result<()> {
    let in_place = InPlace::new("in-place-plan").await?;
    let (world, cloud) = (&in_place.world, &in_place.cloud);
    let _serving = in_place.serve().await?;
    let fleet = in_place.fleet(1).await?;
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
    }
    let output = planned(&in_place, "refused", &[])?;
    let (table, error) = (text(&output.stdout), text(&output.stderr));
    ensure!(output.status.code() == Some(1), "{output:?}");
    ensure!(
        table.contains("/providerSpec/rootFsSize") && table.contains("refused"),
        "{table}"
    );
    ensure!(error.contains("no machine can be made from"), "{error}");

    let output = planned(&in_place, "missing", &[])?;
    let error = text(&output.stderr);
    ensure!(
        output.status.code() == Some(1) && error.contains("no InfraMachineTemplate `missing`"),
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
        error.contains("asking the driver `simulated` what it can change failed"),
        "{error}"
    );
    cloud.fail(json!([]))?;
    ensure!(cloud.vms()? == before, "a plan has changed something");
    Extension::unregister(world).await
}

fn planned(in_place: &InPlace, template: &str, flags: &[&str]) -> Result<Output> {
    let mut command = plan_command(&in_place.world, in_place, template)?;
    command.args(flags).output().context("running capcmi plan")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
