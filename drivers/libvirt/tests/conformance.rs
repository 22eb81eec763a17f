//! The conformance suite against the driver as a plugin, on three real libvirt hosts.

#![allow(clippy::unwrap_used)]

mod lab;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lab::wire::{Fate, Message, Way, procedure};
use testbed::{NO_CREDENTIALS, NO_MACHINE_TAG, skips_only};

/// The host that reserves all of its memory.
const FULL: &str = "host-full";

/// The calls that the driver does not offer.
const NOT_OFFERED: [&str; 2] = ["GetVolumeIDs", "GenerateMachineClassForMigration"];

/// A plugin process, given by its PID file. Dropping this ends it.
struct Plugin(PathBuf);

impl Drop for Plugin {
    fn drop(&mut self) {
        // A hook may have restarted the plugin, so the file has the current PID.
        let pid = fs::read_to_string(&self.0).unwrap_or_default();
        if let Err(error) = Command::new("kill").arg(pid.trim()).status() {
            eprintln!("the plugin could not be ended: {error}");
        }
    }
}

/// The fate of a message on the wire to the host with this folder, as a hook has set it.
///
/// `fault` contains `slow MILLISECONDS` or `refuse NUMBER WORDS`. The other files are the marks `lost-create`
/// and `lost-delete`.
fn fate(folder: &Path, message: Message<'_>) -> Fate {
    for (lost, answer) in [
        ("lost-create", procedure::START),
        ("lost-delete", procedure::UNDEFINE),
    ] {
        // After the lost create the VM exists; after the lost delete it does not.
        if message.is(Way::Back, &answer, "") && fs::remove_file(folder.join(lost)).is_ok() {
            return Fate::Lost;
        }
    }
    let fault = fs::read_to_string(folder.join("fault")).unwrap_or_default();
    let mut words = fault.splitn(3, ' ');
    let is_a_call = message.way == Way::There && !procedure::CONNECTING.contains(&message.procedure);
    match (words.next(), words.next().map(str::parse), words.next()) {
        (Some("slow"), Some(Ok(milliseconds)), _) if is_a_call => {
            Fate::Late(Duration::from_millis(milliseconds))
        }
        (Some("refuse"), Some(Ok(number)), Some(words)) if is_a_call => {
            Fate::Refused(u32::try_from(number).unwrap(), words.to_owned())
        }
        _ => Fate::Passes,
    }
}

/// No binding rule is broken, and the suite covers every rule that the driver's calls allow.
#[tokio::test]
async fn the_driver_keeps_the_rules_of_the_contract() -> Result<()> {
    let Some(lab) = lab::lab_of(&[lab::HOSTS[0], lab::HOSTS[1], FULL]).await? else {
        return Ok(());
    };
    let driver = Path::new(env!("CARGO_BIN_EXE_capcmi-driver-libvirt"));
    let programs = driver.parent().context("the driver has no folder")?;
    let capcmi = testbed::program("capcmi")?;
    let folder = lab.folder();
    let at = |name: &str| folder.join(name).display().to_string();
    let (config, hosts) = (at("driver.yaml"), at("hosts.yaml"));
    for host in lab.names() {
        let folder = lab.of(host);
        lab.lay_wire(host, Arc::new(move |message| fate(&folder, message)))?;
    }
    let mut full: serde_json::Value = serde_json::from_str(&lab.config_over_wires(&lab.names())?)?;
    full["hosts"][FULL]["reservedMemoryMib"] = serde_json::json!(1_000_000_000);
    fs::write(&config, full.to_string())?;
    // The hooks connect to the hosts directly, without the wires.
    fs::write(&hosts, lab.config()?)?;
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
        let command = [&[hook.as_str(), &hosts, name], arguments].concat();
        serde_json::json!(command)
    };
    let machine = ["{machine}", "{cluster}"];
    let socket = at("driver.sock");
    let start_again = [
        &[socket.as_str()],
        start.each_ref().map(String::as_str).as_slice(),
    ]
    .concat();
    let hooks = serde_json::json!({
        "logs": [at("driver.log")],
        "hooks": {
            "unavailable": hook("unavailable", &[]),
            "unknown": hook("unknown", &[]),
            "internal": hook("internal", &[]),
            "slow": hook("slow", &["{amount}"]),
            "loseResponse": hook("loseResponse", &[]),
            "failInitialize": hook("failInitialize", &["{amount}"]),
            "unhealthy": hook("unhealthy", &[]),
            "starting": hook("starting", &start_again),
            "lock": hook("lock", &machine),
            "unlock": hook("unlock", &machine),
            "exhaust": hook("exhaust", &[]),
            "restore": hook("restore", &[]),
            "plant": hook("plant", &["{machine}", "{cluster}", "{identity}"]),
            "vanish": hook("vanish", &machine),
            "uninitialize": hook("uninitialize", &machine),
            "mutations": hook("mutations", &[]),
            "userData": hook("userData", &machine),
            "vmSpec": hook("vmSpec", &machine),
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
            "full",
            "--endpoint",
            &endpoint,
        ])
        .args(["--config", &at("suite.yaml"), "--json", &at("report.json")])
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
    let report = fs::read_to_string(at("report.json"))?;
    skips_only(
        &serde_json::from_str(&report)?,
        &NOT_OFFERED,
        &[NO_CREDENTIALS, NO_MACHINE_TAG],
    )
}
