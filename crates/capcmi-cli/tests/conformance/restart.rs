//! Kills and restarts a plugin process with the program from the documentation: the plugin keeps its VMs and
//! its address.

use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// The program that ends a driver and starts it again.
const RESTART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/drivers/restart.sh");
const CASES: &str = "restart-finds-the-vm,restart-adopts-the-vm,restart-deletes-the-vm,\
                     restart-changes-nothing-said,wire-restart";

/// A plugin of the simulated driver, which runs until this value is dropped.
struct Plugin {
    folder: TempDir,
}

impl Plugin {
    /// With this configuration, at a Unix socket.
    fn start(config: &str) -> Self {
        let plugin = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        let state_file = plugin.path("cloud").display().to_string();
        let config = config.replace("STATE_FILE", &state_file);
        std::fs::write(plugin.path("driver.yaml"), config).unwrap();
        let started = Command::new(RESTART)
            .args(plugin.command())
            .env("CMI_ENDPOINT", plugin.endpoint())
            .status();
        assert!(started.unwrap().success());
        plugin
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn endpoint(&self) -> String {
        format!("unix://{}", self.path("driver.sock").display())
    }

    /// Returns the command line for the program that restarts the plugin.
    fn command(&self) -> Vec<String> {
        let text = |path: &Path| path.display().to_string();
        vec![
            text(&self.path("pid")),
            text(&self.path("log")),
            env!("CARGO_BIN_EXE_capcmi").to_owned(),
            "driver".to_owned(),
            "serve".to_owned(),
            "simulated".to_owned(),
            "--config".to_owned(),
            text(&self.path("driver.yaml")),
        ]
    }

    /// Runs the cases as an author does.
    fn tested(&self) -> Output {
        let mut restart = vec![RESTART.to_owned()];
        restart.extend(self.command());
        self.tested_with(&restart, 20)
    }

    /// The same with this hook, which must end within this time.
    fn tested_with(&self, restart: &[String], call_seconds: u32) -> Output {
        let suite = serde_json::json!({
            "providerSpec": {"vmPool": "default", "size": "small"},
            "callSeconds": call_seconds,
            "hooks": {"restart": restart},
        });
        std::fs::write(self.path("suite.yaml"), suite.to_string()).unwrap();
        Command::new(env!("CARGO_BIN_EXE_capcmi"))
            .args(["conformance", "--wait", "20s", "--only", CASES, "--endpoint"])
            .arg(self.endpoint())
            .arg("--config")
            .arg(self.path("suite.yaml"))
            .env("CMI_ENDPOINT", self.endpoint())
            .output()
            .unwrap()
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        if let Ok(pid) = std::fs::read_to_string(self.path("pid")) {
            let _ended = Command::new("kill").args(["-KILL", pid.trim()]).status();
        }
    }
}

/// CMI-59, CMI-79, CMI-84, CMI-157: also where the socket of the killed process is left.
#[test]
fn a_plugin_with_a_state_file_keeps_the_rules_about_restarts() {
    let plugin = Plugin::start("{stateFile: STATE_FILE, deleteSeconds: 0.02, bootSeconds: 0}");
    let output = plugin.tested();
    let text = String::from_utf8_lossy(&output.stdout);
    for case in CASES.split(',') {
        let passed = |line: &str| line.contains(case) && line.contains("passed");
        assert!(text.lines().any(passed), "{case}: {text}");
    }
    assert!(plugin.path("driver.sock").exists());
}

#[test]
fn a_plugin_that_keeps_its_vms_in_memory_is_found_out() {
    let plugin = Plugin::start("{deleteSeconds: 0.02, bootSeconds: 0}");
    let output = plugin.tested();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for (case, verdict) in [
        ("restart-finds-the-vm", "FAILED"),
        ("restart-adopts-the-vm", "FAILED"),
        ("restart-changes-nothing-said", "passed"),
        ("wire-restart", "passed"),
    ] {
        let so = |line: &str| line.contains(case) && line.contains(verdict);
        assert!(text.lines().any(so), "{case}: {text}");
    }
}

/// CMI-157, CMI-182: such a driver exits immediately, because its address is in use.
#[test]
fn a_plugin_that_keeps_a_stale_socket_breaks_only_the_socket_rules() {
    let plugin = Plugin::start("{stateFile: STATE_FILE, deleteSeconds: 0.02, bootSeconds: 0}");
    let refusing = r#"[ ! -S "${CMI_ENDPOINT#unix://}" ] || { echo in use; exit 1; }; exec "$@""#;
    let mut restart = vec![RESTART.to_owned()];
    let mut command = plugin.command();
    let program = command.split_off(2);
    restart.extend(command);
    restart.extend(["sh", "-c", refusing, "sh"].map(str::to_owned));
    restart.extend(program);
    let output = plugin.tested_with(&restart, 3);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let failed = |line: &&str| line.contains(" FAILED ") && !line.starts_with('[');
    let rows: Vec<_> = text.lines().filter(failed).collect();
    let ids: Vec<_> = rows.iter().filter_map(|row| row.split(' ').next()).collect();
    assert_eq!(ids, ["CMI-157", "CMI-182"], "{text}");
    for words in [
        "it did not serve again within 3 s",
        "does it remove the socket that it left?",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}
