//! The drivers in Python keep every rule, seen from outside: the command, against processes of their own.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use management_cluster::RunFolder;
use serde_json::{Value, json};
use testbed::{Python, python_drivers};

/// What the author of a driver wrote of it.
fn configuration(driver: &str) -> Result<Value> {
    let path = python_drivers().join(driver).join("conformance.yaml");
    let yaml = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    serde_saphyr::from_str(&yaml).with_context(|| path.display().to_string())
}

/// Runs the suite as an author does, and gives its report.
pub async fn judged(folder: &RunFolder, endpoint: &str, config: &Value, only: &[&str]) -> Result<Value> {
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("suite.yaml"), config.to_string())?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_capcmi"));
    command
        .args(["conformance", "--endpoint", endpoint, "--config"])
        .arg(path("suite.yaml"))
        .args((!only.is_empty()).then(|| format!("--only={}", only.join(","))))
        .arg("--json")
        .arg(path("report.json"));
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(0), "{}: {said}", output.status);
    Ok(serde_json::from_str(&std::fs::read_to_string(path(
        "report.json",
    ))?)?)
}

/// How many rules with a verdict the report has.
pub fn rules(report: &Value, verdict: &str) -> usize {
    let rules = report["rules"].as_array().into_iter().flatten();
    rules.filter(|rule| rule["verdict"] == verdict).count()
}

#[tokio::test]
async fn the_minimal_driver_in_python_is_compliant() -> Result<()> {
    let folder = RunFolder::create()?;
    let driver = Python::find().await?.minimal(&folder, "minimal").await?;
    let report = judged(&folder, &driver.endpoint, &configuration("minimal")?, &[]).await?;
    ensure!(report["compliant"] == true, "{report}");
    ensure!(
        rules(&report, "passed") > 80,
        "{} passed",
        rules(&report, "passed")
    );
    Ok(())
}

#[tokio::test]
async fn the_ec2_driver_in_python_is_compliant_also_when_ec2_fails() -> Result<()> {
    let folder = RunFolder::create()?;
    let python = Python::find().await?;
    let ec2 = python.ec2(&folder, "ec2").await?;
    let driver = python.ec2_driver(&folder, "driver", &ec2).await?;
    let mut config = configuration("ec2")?;
    config["providerSpec"]["subnets"] = ec2.console("subnets").await?;
    config["hooks"] = hooks(python.interpreter(), &ec2.address);
    // The driver's page is a thousand, which moto needs an hour for; the driver's own
    // tests have pages of five.
    config["manyMachines"] = json!(6);
    config["logs"] = json!([driver.process.log()]);
    let report = judged(&folder, &driver.endpoint, &config, &[]).await?;
    ensure!(report["compliant"] == true, "{report}");
    ensure!(
        rules(&report, "passed") > 120,
        "{} passed",
        rules(&report, "passed")
    );
    Ok(())
}

/// What the console of EC2 can do of the suite's hooks.
fn hooks(interpreter: &Path, ec2: &str) -> Value {
    let script = python_drivers().join("ec2/tests/hook.py");
    let names = [
        "unavailable",
        "unknown",
        "slow",
        "loseResponse",
        "failInitialize",
        "exhaust",
        "restore",
        "plant",
        "vanish",
        "uninitialize",
        "mutations",
        "userData",
    ];
    let hooks = names.map(|name| {
        let command = json!([
            interpreter,
            script,
            format!("http://{ec2}"),
            name,
            "{machine}",
            "{cluster}",
            "{identity}",
            "{amount}"
        ]);
        (name.to_owned(), command)
    });
    hooks.into_iter().collect()
}
