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
fn a_passing_part_of_the_rules_exits_with_0_without_a_verdict() {
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
        text.contains("create-again") && text.contains("part of the rules: ") && !text.contains(": yes"),
        "{text}"
    );
    assert!(
        fs::read_to_string(path("j.xml"))
            .unwrap()
            .contains("<testcase name=\"create-again\"")
    );
    let json: serde_json::Value = serde_json::from_str(&fs::read_to_string(path("j.json")).unwrap()).unwrap();
    assert_eq!(
        (
            &json["passed"],
            &json["compliant"],
            json["cases"].as_array().unwrap().len()
        ),
        (&true.into(), &false.into(), 3)
    );
}

#[test]
fn full_compliance_exits_with_0_and_is_printed_last() {
    let output = capcmi(&["--driver", "simulated", "--require", "full"]);
    let text = printed(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.ends_with("cmi.v1: yes\ncapcmi: full\n"), "{text}");
}

/// A two-line configuration cannot test a driver during a back-end outage.
#[test]
fn a_run_without_hooks_is_basic_and_fails_a_required_full() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("suite.yaml");
    let yaml = "providerSpec: {vmPool: default, size: small}\nsecrets: \
        {token: conformance-token-of-an-operator}\n\
                hooks: {restore: [\"true\"]}\n";
    fs::write(&config, yaml).unwrap();
    let config = config.display().to_string();
    let arguments = ["--driver", "simulated", "--config", &config];
    let basic = capcmi(&arguments);
    let text = printed(&basic);
    assert_eq!(basic.status.code(), Some(0), "{text}");
    assert!(text.ends_with("cmi.v1: yes\ncapcmi: basic\n"), "{text}");
    assert!(
        text.contains("may be broken: ") && text.contains("hook `unavailable`"),
        "{text}"
    );
    let xml = folder.path().join("cases.xml");
    let required = ["--require", "full", "--junit", &xml.display().to_string()];
    let full = capcmi(&[&arguments[..], &required].concat());
    assert_eq!(full.status.code(), Some(1), "{}", printed(&full));
    let complaint = String::from_utf8_lossy(&full.stderr).into_owned();
    let xml = fs::read_to_string(xml).unwrap();
    let (_, verdict) = xml.split_once("\"required: capcmi: full\"").unwrap();
    for said in [&complaint, verdict] {
        assert!(
            said.contains("reaches level `capcmi: basic`") && said.contains("`capcmi: full`; missing:"),
            "{said}"
        );
        assert!(said.contains("hook `unavailable`"), "{said}");
    }
    assert!(verdict.contains("<failure"), "{verdict}");
}

/// An unknown value of `--require` prevents the run.
#[test]
fn the_script_for_ci_asks_for_what_its_environment_says() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("driver.yaml"), "{}").unwrap();
    fs::write(
        folder.path().join("suite.yaml"),
        "providerSpec: {vmPool: default, size: small}",
    )
    .unwrap();
    let capcmi = env!("CARGO_BIN_EXE_capcmi");
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/drivers/conformance.sh"
    );
    let output = Command::new("sh")
        .args([script, "suite.yaml", capcmi, "driver", "serve", "simulated"])
        .args(["--config", "driver.yaml"])
        .current_dir(folder.path())
        .env("CAPCMI", capcmi)
        .env(
            "CMI_ENDPOINT",
            format!("unix://{}", folder.path().join("driver.sock").display()),
        )
        .env("REQUIRE", "moon")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("moon") && said.contains("--require"), "{said}");
}

/// A report that can't be written is found out before there is a VM.
#[test]
fn a_report_that_can_not_be_written_ends_the_run_before_it_begins() {
    for flag in ["--junit", "--json"] {
        let output = capcmi(&["--driver", "simulated", flag, "/does/not/exist/report"]);
        assert_eq!(output.status.code(), Some(2), "{flag}");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains("/does/not/exist/report"), "{error}");
        assert_eq!(printed(&output), "", "no case was run");
    }
}

#[test]
fn a_driver_that_breaks_a_rule_exits_with_1_and_the_rule_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("suite.yaml");
    // The author declares a field mandatory that the driver does not require.
    fs::write(
        &config,
        "providerSpec:\n  vmPool: default\n  size: small\n  rootFsSize: 20\nsecrets:\n  token: \
            conformance-token-of-an-operator\nmandatoryFields: [/rootFsSize]\n",
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
fn list_has_rules_with_their_cases_and_cases_with_their_needs() {
    let text = printed(&capcmi(&["--list"]));
    let needs = "(needs hook `lock`, hook `unlock`)";
    for name in ["DRV-10", "create-again", "not tested: ", needs] {
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
    let page = fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/drivers/conformance.md"
    ))
    .unwrap();
    let keys = listed("unknown: 1");
    let hooks = listed("providerSpec: {a: b}\nhooks: {unknown-hook: [a]}");
    assert!(keys.contains(&"mandatoryFields".to_owned()), "{keys:?}");
    assert!(hooks.contains(&"loseResponse".to_owned()), "{hooks:?}");
    for word in keys.iter().chain(&hooks) {
        assert!(
            page.contains(&format!("`{word}`")),
            "docs/drivers/conformance.md lacks {word}"
        );
    }
}

/// The sample output in the documentation is current.
#[test]
fn the_documented_output_counts_all_cases_and_rules() {
    let page = fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/drivers/conformance.md"
    ))
    .unwrap();
    let (_, sample) = page.split_once("```text\n[").unwrap();
    let line = |start: &str| sample.lines().find_map(|line| line.strip_prefix(start)).unwrap();
    let sum = |start: &str| -> usize {
        let words = line(start).split([' ', ',']);
        words.filter_map(|word| word.parse::<usize>().ok()).sum()
    };
    let cases = cmi_conformance::cases::all().count();
    assert!(sample.contains(&format!("/{cases}] FAILED")), "of {cases} cases");
    assert_eq!(sum("cases: "), cases);
    assert_eq!(sum("rules: "), cmi_conformance::rules::all().count());
}

/// The five lines that the documentation begins with.
#[test]
fn the_minimal_configuration_of_the_documentation_is_one() {
    let page = fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/drivers/conformance.md"
    ))
    .unwrap();
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

/// As with `| head`: a reader that is gone is no reason to panic.
#[test]
fn a_command_whose_reader_is_gone_ends_as_if_it_were_there() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_capcmi"));
    let output = command.arg("version").stdout(writer).output().unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && complaints.is_empty(), "{complaints}");
}

#[test]
fn help_names_the_command_as_kubectl_does_for_a_plugin() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = folder.path().join("kubectl-capcmi");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_capcmi"), &plugin).unwrap();
    let output = Command::new(plugin)
        .args(["describe", "--help"])
        .output()
        .unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(help.contains("Usage: kubectl capcmi describe"), "{help}");
}
