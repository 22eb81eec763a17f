//! The conformance suite against the driver as a plugin, on two real libvirt hosts.

#![allow(clippy::unwrap_used)]

mod lab;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// A plugin that ends with this.
struct Plugin(PathBuf);

impl Drop for Plugin {
    fn drop(&mut self) {
        // The hook has started it anew: its process is in the file.
        let pid = fs::read_to_string(&self.0).unwrap_or_default();
        if let Err(error) = Command::new("kill").arg(pid.trim()).status() {
            eprintln!("the plugin could not be ended: {error}");
        }
    }
}

/// No binding rule is broken, and each is tried for which this test has a hook.
#[tokio::test]
async fn the_driver_keeps_the_rules_of_the_contract() -> Result<()> {
    let Some(lab) = lab::lab().await? else {
        return Ok(());
    };
    let driver = Path::new(env!("CARGO_BIN_EXE_capcmi-driver-libvirt"));
    let programs = driver.parent().context("the driver has no folder")?;
    let capcmi = programs.join("capcmi");
    ensure!(
        capcmi.exists(),
        "{} is missing: cargo build --bin capcmi",
        capcmi.display()
    );
    let folder = lab.folder();
    let at = |name: &str| folder.join(name).display().to_string();
    let config = at("driver.yaml");
    fs::write(&config, lab.config()?)?;
    let endpoint = format!("unix://{}", at("driver.sock"));
    let restart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/drivers/restart.sh");
    let start = [
        restart.display().to_string(),
        at("driver.pid"),
        at("driver.log"),
        driver.display().to_string(),
        "--endpoint".to_owned(),
        endpoint.clone(),
        "--config".to_owned(),
        config.clone(),
    ];
    let hook = programs.join("examples/hook").display().to_string();
    let hook = |name: &str, arguments: &[&str]| {
        let command = [&[hook.as_str(), &config, name], arguments].concat();
        serde_json::json!(command)
    };
    let machine = ["{machine}", "{cluster}"];
    let hooks = serde_json::json!({
        "logs": [at("driver.log")],
        "hooks": {
            "unavailable": hook("unavailable", &[]),
            "exhaust": hook("exhaust", &[]),
            "restore": hook("restore", &[]),
            "plant": hook("plant", &["{machine}", "{cluster}", "{identity}"]),
            "vanish": hook("vanish", &machine),
            "uninitialize": hook("uninitialize", &machine),
            "mutations": hook("mutations", &[]),
            "userData": hook("userData", &machine),
            "restart": start,
        },
    });
    let mut settings: serde_json::Value = serde_saphyr::from_str(include_str!("lab/conformance.yaml"))?;
    let all = settings.as_object_mut().context("the settings are no object")?;
    all.extend(hooks.as_object().cloned().unwrap_or_default());
    fs::write(at("suite.yaml"), settings.to_string())?;

    let started = Command::new(&start[0]).args(&start[1..]).status()?;
    ensure!(started.success(), "the plugin could not be started");
    let _plugin = Plugin(folder.join("driver.pid"));
    let suite = Command::new(capcmi)
        .args([
            "conformance",
            "--wait",
            "30s",
            "--require",
            "basic",
            "--endpoint",
            &endpoint,
        ])
        .args(["--config", &at("suite.yaml")])
        .output()?;
    let said = String::from_utf8_lossy(&suite.stdout);
    println!("{said}");
    let log = fs::read_to_string(at("driver.log"))?;
    ensure!(
        suite.status.success(),
        "{}\nthe driver's log:\n{log}",
        String::from_utf8_lossy(&suite.stderr)
    );
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}
