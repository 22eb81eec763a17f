//! `capcmi conformance` as a driver's author runs it.

use std::fs;
use std::process::{Command, Output};

fn capcmi(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_capcmi"))
        .arg("conformance")
        .args(arguments)
        .output()
        .unwrap()
}

fn printed(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn a_compliant_driver_exits_with_0_and_its_reports_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let output = capcmi(&[
        "--driver",
        "simulated",
        "--only",
        "DRV-10,create-locked",
        "--junit",
        &path("j.xml"),
        "--json",
        &path("j.json"),
    ]);
    let text = printed(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(
        text.contains("create-again") && text.contains("compliant: yes"),
        "{text}"
    );
    assert!(
        fs::read_to_string(path("j.xml"))
            .unwrap()
            .contains("<testcase name=\"create-again\"")
    );
    let json: serde_json::Value = serde_json::from_str(&fs::read_to_string(path("j.json")).unwrap()).unwrap();
    assert_eq!(
        (&json["compliant"], json["cases"].as_array().unwrap().len()),
        (&true.into(), 2)
    );
}

#[test]
fn a_driver_that_breaks_a_rule_exits_with_1_and_the_rule_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("suite.yaml");
    // The author says that a field is mandatory which the driver does not ask for.
    fs::write(
        &config,
        "providerSpec:\n  vmPool: default\n  size: small\nsecrets:\n  token: conformance-token-of-an-operator\nmandatoryFields: [/rootFsSize]\n",
    )
    .unwrap();
    let config = config.display().to_string();
    let output = capcmi(&[
        "--driver",
        "simulated",
        "--only",
        "create-mandatory-fields",
        "--config",
        &config,
    ]);
    assert_eq!(output.status.code(), Some(1), "{}", printed(&output));
    assert!(String::from_utf8_lossy(&output.stderr).contains("DRV-04"));
}

#[test]
fn what_is_asked_for_wrongly_exits_with_2() {
    for arguments in [
        &["--driver", "simulated", "--only", "DRV-99"][..],
        &["--driver", "simulated", "--config", "/does/not/exist"],
        &["--driver", "moon"],
        &[],
    ] {
        assert_eq!(capcmi(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn the_list_names_every_rule_with_its_cases_or_the_reason_why_there_is_none() {
    let text = printed(&capcmi(&["--list"]));
    for name in ["DRV-10", "create-again", "not tested: "] {
        assert!(text.contains(name), "{name}");
    }
}

/// The names that an error lists after `expected`, up to the end of its line.
fn listed(yaml: &str) -> Vec<String> {
    let error = cmi_conformance::Config::read(yaml).unwrap_err().to_string();
    let (_, names) = error.split_once("expected one of ").unwrap();
    let line = names.lines().next().unwrap();
    line.split(", ")
        .map(|name| name.trim_matches('`').to_owned())
        .collect()
}

#[test]
fn every_key_of_the_configuration_and_every_hook_is_documented() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/conformance.md")).unwrap();
    let keys = listed("unknown: 1");
    let hooks = listed("providerSpec: {a: b}\nhooks: {unknown-hook: [a]}");
    assert!(keys.contains(&"mandatoryFields".to_owned()), "{keys:?}");
    assert!(hooks.contains(&"loseResponse".to_owned()), "{hooks:?}");
    for word in keys.iter().chain(&hooks) {
        assert!(
            page.contains(&format!("`{word}`")),
            "docs/conformance.md lacks {word}"
        );
    }
}

/// The five lines that the documentation begins with.
#[test]
fn the_minimal_configuration_of_the_documentation_is_one() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/conformance.md")).unwrap();
    let yaml = page
        .split("```yaml\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    assert_eq!(yaml.lines().count(), 5);
    cmi_conformance::Config::read(yaml).unwrap();
}
