//! Alerts and dashboard, checked by Prometheus.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::documentation::headings;
use crate::kustomize::composed;
use crate::objects::{find, output, parse, repository};

/// The prefix of each `runbook_url`.
const RUNBOOK: &str = "https://github.com/capcmi/cluster-api-provider-cmi/blob/main/docs/operate/runbook.md#";

/// Grafana's variables, with sample values.
const VARIABLES: [(&str, &str); 2] = [("$__rate_interval", "5m"), ("$driver", ".*")];

/// The rules of the component, in the form of a Prometheus rule file.
async fn rules() -> Result<Value> {
    let objects = composed(&["monitoring"], "").await?;
    Ok(find(&objects, "PrometheusRule", "capcmi")?["spec"].clone())
}

/// The alerts of these rules.
fn alerts(rules: &Value) -> Result<Vec<&Value>> {
    let groups = rules["groups"].as_array().context("groups")?;
    let alerts: Vec<_> = groups
        .iter()
        .flat_map(|group| group["rules"].as_array().into_iter().flatten())
        .collect();
    ensure!(alerts.len() > 5, "only {alerts:?}");
    Ok(alerts)
}

/// The dashboard, as Grafana's sidecar reads it out of the ConfigMap.
async fn dashboard() -> Result<Value> {
    let objects = composed(&["monitoring"], "").await?;
    let map = find(&objects, "ConfigMap", "capcmi-dashboard")?;
    ensure!(map["metadata"]["labels"]["grafana_dashboard"] == "1", "{map}");
    let text = map["data"]["capcmi.json"].as_str().context("a dashboard")?;
    Ok(serde_json::from_str(text)?)
}

/// The expressions of all panels.
fn queries(dashboard: &Value) -> Result<Vec<String>> {
    let panels = dashboard["panels"].as_array().context("panels")?;
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let queries = targets.map(|target| {
        let query = target["expr"].as_str().context("an expression")?.to_owned();
        Ok(VARIABLES
            .iter()
            .fold(query, |query, (name, value)| query.replace(name, value)))
    });
    queries.collect()
}

/// Runs promtool in a folder with these rules, as rules.yaml.
fn promtool(rules: &Value, arguments: &[&str]) -> Result<String> {
    let folder: TempDir = tempfile::tempdir()?;
    fs::write(folder.path().join("rules.yaml"), rules.to_string())?;
    let tests = repository().join("tests/manifests/alerts/rules.test.yaml");
    fs::copy(tests, folder.path().join("rules.test.yaml"))?;
    let path = output(&mut Command::new(repository().join("hack/promtool.sh")))?;
    output(
        Command::new(PathBuf::from(path.trim()))
            .args(arguments)
            .current_dir(folder.path()),
    )
}

/// The check also renders the texts of the alerts, which are templates.
#[tokio::test]
async fn prometheus_takes_the_alerts() -> Result<()> {
    let said = promtool(&rules().await?, &["check", "rules", "rules.yaml"])?;
    ensure!(said.contains("SUCCESS"), "{said}");
    Ok(())
}

/// tests/manifests/alerts/rules.test.yaml lists the series and the alerts that they trigger.
#[tokio::test]
async fn each_alert_fires_when_it_should_and_not_before() -> Result<()> {
    let mut rules = rules().await?;
    // These tests cover when an alert fires, not its text.
    for group in rules["groups"].as_array_mut().context("groups")? {
        for rule in group["rules"].as_array_mut().context("rules")? {
            rule.as_object_mut().context("a rule")?.remove("annotations");
        }
    }
    promtool(&rules, &["test", "rules", "rules.test.yaml"])?;

    let tests = fs::read_to_string(repository().join("tests/manifests/alerts/rules.test.yaml"))?;
    let tests = parse(&tests)?;
    let cases = tests[0]["tests"].as_array().context("tests")?.iter();
    let cases = cases.flat_map(|test| test["alert_rule_test"].as_array().into_iter().flatten());
    let mut fires: BTreeMap<&str, [bool; 2]> = BTreeMap::new();
    for case in cases {
        let expected = case["exp_alerts"].as_array().context("exp_alerts")?;
        let seen = fires
            .entry(case["alertname"].as_str().context("alertname")?)
            .or_default();
        seen[usize::from(expected.is_empty())] = true;
    }
    for alert in alerts(&rules)? {
        let name = alert["alert"].as_str().context("a name")?;
        ensure!(
            fires.get(name) == Some(&[true, true]),
            "{name} is not tested both ways: that it fires and that it does not"
        );
    }
    Ok(())
}

#[tokio::test]
async fn each_alert_has_a_severity_and_a_section_of_the_runbook() -> Result<()> {
    let rules = rules().await?;
    let sections = headings("docs/operate/runbook.md")?;
    for alert in alerts(&rules)? {
        let severity = &alert["labels"]["severity"];
        ensure!(
            ["critical", "warning"].iter().any(|known| severity == known),
            "{alert}"
        );
        let words = &alert["annotations"];
        ensure!(
            words["summary"].is_string() && words["description"].is_string(),
            "{alert}"
        );
        let url = words["runbook_url"].as_str().context("a runbook_url")?;
        let section = url.strip_prefix(RUNBOOK).with_context(|| url.to_owned())?;
        ensure!(
            alert["alert"].as_str().map(str::to_lowercase).as_deref() == Some(section),
            "{url}"
        );
        ensure!(
            sections.contains(section),
            "docs/operate/runbook.md has no section {section}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn prometheus_takes_the_queries_of_the_dashboard() -> Result<()> {
    let queries = queries(&dashboard().await?)?;
    ensure!(queries.len() > 10, "only {queries:?}");
    let records: Vec<_> = (0..)
        .zip(&queries)
        .map(|(number, query)| json!({"record": format!("panel:{number}"), "expr": query}))
        .collect();
    let rules = json!({"groups": [{"name": "dashboard", "rules": records}]});
    let said = promtool(&rules, &["check", "rules", "rules.yaml"])?;
    ensure!(said.contains(&format!("{} rules found", queries.len())), "{said}");
    Ok(())
}

/// The table is generated from the code. A case of the suite compares it with a running provider.
#[tokio::test]
async fn alerts_and_dashboard_read_metrics_that_there_are() -> Result<()> {
    let page = fs::read_to_string(repository().join("docs/reference/metrics.md"))?;
    let known: BTreeSet<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `capcmi_")?.split('`').next())
        .collect();
    ensure!(known.len() > 10, "the table of metrics is gone");
    let rules = rules().await?;
    let mut expressions = queries(&dashboard().await?)?;
    for alert in alerts(&rules)? {
        expressions.push(alert["expr"].as_str().context("an expression")?.to_owned());
    }
    for expression in expressions {
        for rest in expression.split("capcmi_").skip(1) {
            let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
            let name = rest.split(|c| !is_part(c)).next().unwrap_or_default();
            let name = name.strip_suffix("_bucket").unwrap_or(name);
            ensure!(known.contains(name), "there is no capcmi_{name}: {expression}");
        }
    }
    Ok(())
}
