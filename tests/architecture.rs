//! Arrows between modules go one way, as `docs/internals/architecture.md` draws them.
//!
//! The sources are read as text: a path that is written is an arrow, whether it stands in a `use`, in a
//! nested group or in the middle of an expression. A new module, or a new arrow, needs an edit of
//! [`MAP`], and so a review.

// A file that can't be read fails the test, wherever it is read.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The paths that a module may name.
struct Rule {
    /// Its name, as `crate::<name>`.
    module: &'static str,
    /// Modules of this crate.
    may: &'static [&'static str],
    /// Paths that it may not name though they are not of this crate, or only part of a module that it may.
    never: &'static [&'static [&'static str]],
}

/// The wire, and concrete drivers.
const WIRE: &[&str] = &["tonic", "prost", "cmi_grpc", "cmi_simulated"];
const KUBERNETES: &[&str] = &["kube", "k8s_openapi"];
const CLIENT: &[&str] = &[
    "kube::Client",
    "kube::Api",
    "kube::client",
    "kube::api",
    "kube::runtime",
    "kube::Config",
];
const fn rule(
    module: &'static str,
    may: &'static [&'static str],
    never: &'static [&'static [&'static str]],
) -> Rule {
    Rule { module, may, never }
}

const MAP: &[Rule] = &[
    // The objects, the identity of a machine, and the meaning of a driver's codes.
    rule("api", &[], &[WIRE, CLIENT]),
    rule("telemetry", &[], &[WIRE, KUBERNETES]),
    // The tools of reconcilers.
    rule("apiserver", &["api"], &[WIRE]),
    rule("driver", &["api", "apiserver", "telemetry"], &[WIRE]),
    rule("admission", &["api", "apiserver", "telemetry"], &[WIRE]),
    rule("reconcile", &["api", "apiserver", "driver", "telemetry"], &[WIRE]),
    rule("in_place", &["api", "apiserver", "driver"], &[WIRE]),
    // Reconcilers. None knows another, or a concrete driver.
    rule("cluster", &["api", "apiserver", "driver", "reconcile"], &[WIRE]),
    rule(
        "machine",
        &[
            "admission",
            "api",
            "apiserver",
            "driver",
            "in_place",
            "reconcile",
            "telemetry",
        ],
        &[WIRE],
    ),
    rule(
        "nodes",
        &["admission", "api", "apiserver", "driver", "in_place", "reconcile"],
        &[WIRE],
    ),
    rule(
        "fleet",
        &[
            "admission",
            "api",
            "apiserver",
            "driver",
            "reconcile",
            "telemetry",
        ],
        &[WIRE],
    ),
    // The process. Its command line alone names a concrete driver.
    rule(
        "manager",
        &[
            "admission",
            "api",
            "apiserver",
            "cluster",
            "driver",
            "fleet",
            "in_place",
            "machine",
            "nodes",
            "reconcile",
            "telemetry",
        ],
        &[],
    ),
];

/// Pure modules inside of modules: rules that are tested without mocks have nothing to call.
const PURE: &[&str] = &[
    "machine/plan.rs",
    "machine/plan",
    "machine/status.rs",
    "machine/status",
    "machine/publish/events.rs",
    "in_place/hot_update.rs",
    "in_place/hot_update/in_place.rs",
    "api/addresses.rs",
    "api/identity.rs",
    "api/identity/adoption.rs",
    "machine/outcome.rs",
    "../crates/capcmi-cli/src/migration/plan.rs",
    "../crates/capcmi-cli/src/migration/plan",
    "../crates/capcmi-cli/src/migration/source.rs",
    "nodes/missing_node/console.rs",
    "nodes/missing_node/plan.rs",
    "nodes/missing_node/status.rs",
    "nodes/not_ready_taint/plan.rs",
    "nodes/not_ready_taint/status.rs",
    "cluster/plan.rs",
    "fleet/inventory/drift.rs",
    "fleet/inventory/hanging_lists.rs",
    "fleet/inventory/plan.rs",
    "fleet/orphans/plan.rs",
    "fleet/orphans/owner.rs",
    "fleet/orphans/deletion_log.rs",
    "fleet/orphans/scope.rs",
    "nodes/remediation/owner.rs",
    "nodes/remediation/plan.rs",
    "nodes/remediation/plan",
    "nodes/remediation/record.rs",
    "in_place/runtime_extension/progress.rs",
    "in_place/runtime_extension/spec_changes.rs",
    "cluster/template/plan.rs",
    "cluster/template/status.rs",
    "nodes/volume_drain/drain_rules.rs",
    "nodes/volume_drain/end.rs",
    "nodes/volume_drain/next_eviction.rs",
    "nodes/volume_drain/opt_in.rs",
    "nodes/volume_drain/plan.rs",
    "nodes/volume_drain/plan",
    "nodes/volume_drain/record.rs",
    "nodes/volume_drain/status.rs",
    "nodes/volume_drain/volumes.rs",
    "api/identity",
    "api/retry.rs",
    "api/wall_clock.rs",
];

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The Rust files at or below a path, with their names relative to it.
fn files(root: &Path) -> Vec<PathBuf> {
    if root.is_dir() {
        let entries = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| files(&path)).collect()
    } else if root.extension().is_some_and(|extension| extension == "rs") {
        vec![root.to_owned()]
    } else {
        Vec::new()
    }
}

/// The top-level modules, each with its files.
fn modules() -> BTreeMap<String, Vec<PathBuf>> {
    let mut modules: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for file in files(&sources()) {
        let first = file.strip_prefix(sources()).unwrap().iter().next().unwrap();
        let name = first.to_str().unwrap().trim_end_matches(".rs").to_owned();
        modules.entry(name).or_default().push(file);
    }
    modules.remove("lib");
    modules.remove("main");
    modules
}

/// Every path in a source text with its groups spelt out: `use a::{b, c::{self, D}}` names
/// `a::b`, `a::c`, `a::c::D`.
fn paths(text: &str) -> BTreeSet<String> {
    let tokens = tokens(text);
    let mut found = BTreeSet::new();
    let mut at = 0;
    while at < tokens.len() {
        if is_name(&tokens[at]) {
            at = path(&tokens, at, "", &mut found);
        } else {
            at += 1;
        }
    }
    found
}

/// Reads the path that begins at `at`, notes it under `prefix`, and says where it ends.
fn path(tokens: &[String], mut at: usize, prefix: &str, found: &mut BTreeSet<String>) -> usize {
    let mut whole = prefix.to_owned();
    while at < tokens.len() && is_name(&tokens[at]) {
        if tokens[at] != "self" || whole.is_empty() {
            if !whole.is_empty() {
                whole.push_str("::");
            }
            whole.push_str(&tokens[at]);
        }
        at += 1;
        if tokens.get(at).is_none_or(|next| next != "::") {
            break;
        }
        at += 1;
        if tokens.get(at).is_some_and(|next| next == "{") {
            return group(tokens, at + 1, &whole, found);
        }
    }
    found.insert(whole);
    at
}

fn group(tokens: &[String], mut at: usize, prefix: &str, found: &mut BTreeSet<String>) -> usize {
    while at < tokens.len() && tokens[at] != "}" {
        at = if is_name(&tokens[at]) {
            path(tokens, at, prefix, found)
        } else {
            at + 1
        };
        // A renamed item is followed by its new name, which is no path.
        if tokens.get(at).is_some_and(|next| next == "as") {
            at += 2;
        }
    }
    at + 1
}

fn is_name(token: &str) -> bool {
    token != "as" && token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Names, `::` and single signs; comments and texts are left out.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if first == '"' {
            length_of_text(rest)
        } else if first.is_alphanumeric() || first == '_' {
            let length = rest
                .find(|c: char| !c.is_alphanumeric() && c != '_')
                .unwrap_or(rest.len());
            tokens.push(rest[..length].to_owned());
            length
        } else if rest.starts_with("::") {
            tokens.push("::".to_owned());
            2
        } else if rest.starts_with("'\"'") {
            3
        } else {
            if !first.is_whitespace() {
                tokens.push(first.to_string());
            }
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    tokens
}

/// How long a text in quotes is, quotes included.
fn length_of_text(quoted: &str) -> usize {
    let mut escaped = false;
    for (at, c) in quoted.char_indices().skip(1) {
        match c {
            '"' if !escaped => return at + 1,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    quoted.len()
}

/// The numbers of the lines that are wider than this.
fn wide_lines(text: &str, width: usize) -> Vec<usize> {
    let lines = text.lines().enumerate();
    lines
        .filter(|(_, line)| line.chars().count() > width)
        .map(|(index, _)| index + 1)
        .collect()
}

fn names(path: &str, forbidden: &str) -> bool {
    path == forbidden
        || path
            .strip_prefix(forbidden)
            .is_some_and(|rest| rest.starts_with("::"))
}

/// The modules of this crate that a path leads to.
fn sibling(path: &str) -> Option<&str> {
    path.strip_prefix("crate::")?.split("::").next()
}

/// What in a text breaks the rule of its module.
fn wrong_arrows(rule: &Rule, modules: &BTreeSet<&str>, text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for path in paths(text) {
        if let Some(other) = sibling(&path).filter(|other| modules.contains(other) && *other != rule.module)
            && !rule.may.contains(&other)
        {
            wrong.push(path.clone());
        }
        if rule
            .never
            .iter()
            .copied()
            .flatten()
            .any(|never| names(&path, never))
        {
            wrong.push(path);
        }
    }
    wrong
}

#[test]
fn every_module_is_on_the_map() {
    let mapped: BTreeSet<_> = MAP.iter().map(|rule| rule.module).collect();
    let unmapped: Vec<_> = modules()
        .into_keys()
        .filter(|name| !mapped.contains(name.as_str()))
        .collect();
    assert!(
        unmapped.is_empty(),
        "say in tests/architecture.rs what these may name: {unmapped:?}"
    );
}

#[test]
fn what_is_on_the_map_is_there() {
    let there = modules();
    let gone: Vec<_> = MAP
        .iter()
        .flat_map(|rule| [&[rule.module], rule.may].concat())
        .filter(|name| !there.contains_key(*name))
        .collect();
    assert!(
        gone.is_empty(),
        "take these out of tests/architecture.rs: {gone:?}"
    );
}

#[test]
fn every_arrow_goes_the_way_of_the_map() {
    let modules = modules();
    let names: BTreeSet<_> = modules.keys().map(String::as_str).collect();
    let mut wrong = Vec::new();
    for rule in MAP {
        for file in modules.get(rule.module).into_iter().flatten() {
            let text = fs::read_to_string(file).unwrap();
            let shown = file.strip_prefix(sources()).unwrap().display();
            wrong.extend(
                wrong_arrows(rule, &names, &text)
                    .into_iter()
                    .map(|path| format!("{shown} names {path}")),
            );
        }
    }
    assert!(
        wrong.is_empty(),
        "arrows that point the wrong way:\n{}",
        wrong.join("\n")
    );
}

/// An unused arrow on the map would let the dependency come back without a review.
#[test]
fn every_arrow_of_the_map_is_taken() {
    let modules = modules();
    let mut unused = Vec::new();
    for rule in MAP {
        let files = modules.get(rule.module).into_iter().flatten();
        let named: BTreeSet<_> = files
            .flat_map(|file| paths(&fs::read_to_string(file).unwrap()))
            .collect();
        for to in rule.may {
            let path = format!("crate::{to}");
            if !named.iter().any(|named| names(named, &path)) {
                unused.push(format!("{} → {to}", rule.module));
            }
        }
    }
    assert!(unused.is_empty(), "take these out of the map: {unused:?}");
}

/// A crate that is added is forbidden to all but `cli`, too. Only the contract and the store are not.
#[test]
fn the_wire_is_every_other_crate_of_the_provider() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let (_, rest) = manifest.split_once("\n[dependencies]\n").unwrap();
    let (dependencies, _) = rest.split_once("\n[").unwrap();
    let mut there = own_crates(dependencies);
    assert!(there.remove("cmi-driver") && there.remove("kube-fleet"));
    let own = WIRE.iter().filter(|name| name.starts_with("cmi_"));
    assert_eq!(
        own.map(|name| name.replace('_', "-")).collect::<BTreeSet<_>>(),
        there
    );
}

/// A module that may name another which may name it back is no layer.
#[test]
fn the_map_itself_has_no_circle() {
    let arrows = MAP
        .iter()
        .map(|rule| (rule.module, rule.may.iter().copied().collect()))
        .collect();
    let circle = circle(arrows);
    assert!(circle.is_empty(), "a circle among {circle:?}");
}

/// Returns the circles of a graph, with all nodes between them. It repeatedly removes nodes without an
/// outgoing or incoming arrow.
fn circle<N: Ord + Clone>(mut arrows: BTreeMap<N, BTreeSet<N>>) -> BTreeMap<N, BTreeSet<N>> {
    loop {
        let before: usize = arrows.values().map(|to| to.len() + 1).sum();
        let named: BTreeSet<_> = arrows.values().flatten().cloned().collect();
        arrows.retain(|from, to| !to.is_empty() && named.contains(from));
        let left: BTreeSet<_> = arrows.keys().cloned().collect();
        for to in arrows.values_mut() {
            to.retain(|to| left.contains(to));
        }
        if arrows.values().map(|to| to.len() + 1).sum::<usize>() == before {
            return arrows;
        }
    }
}

/// A module with its parents, from the top: `machine`, `plan`, `waits`.
type Module = Vec<String>;

/// The modules of a crate with these sources, with their texts; those of tests are left out.
fn texts(sources: &Path) -> BTreeMap<Module, String> {
    const TESTS: [&str; 3] = ["tests", "fakes", "fixtures"];
    let found = files(sources).into_iter().map(|file| {
        let name = file.strip_prefix(sources).unwrap().with_extension("");
        let name: Module = name
            .iter()
            .map(|part| part.to_str().unwrap().to_owned())
            .collect();
        (name, fs::read_to_string(file).unwrap())
    });
    found
        .filter(|(name, _)| !name.iter().any(|part| TESTS.contains(&part.as_str())))
        .collect()
}

/// The module that a path leads to, as it is written in `from`.
fn target(from: &Module, path: &str, texts: &BTreeMap<Module, String>) -> Option<Module> {
    let mut parts: Vec<_> = path.split("::").map(str::to_owned).collect();
    let mut whole = from.clone();
    while let Some(first) = parts.first() {
        match first.as_str() {
            "crate" => whole.clear(),
            "super" => drop(whole.pop()),
            "self" => {}
            _ => break,
        }
        parts.remove(0);
    }
    whole.append(&mut parts);
    while !whole.is_empty() && !texts.contains_key(&whole) {
        whole.pop();
    }
    (!whole.is_empty()).then_some(whole)
}

/// The arrows between modules that have the same parent, each with all that is below it. A module and its
/// parent are one unit to the language, so that there is no arrow between them.
fn arrows_of_siblings(texts: &BTreeMap<Module, String>) -> BTreeMap<Module, BTreeSet<Module>> {
    let mut arrows: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for (from, text) in texts {
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        for to in paths(text).iter().filter_map(|path| target(from, path, texts)) {
            let common = from.iter().zip(&to).take_while(|(from, to)| from == to).count();
            if common < from.len() && common < to.len() {
                let to = to[..=common].to_vec();
                arrows.entry(from[..=common].to_vec()).or_default().insert(to);
            }
        }
    }
    arrows
}

#[test]
fn the_modules_of_a_folder_have_no_circle() {
    let own = ["machine", "fleet", "driver", "manager"];
    let commands = ["commands", "describe", "migration"];
    let cli = sources().join("../crates/capcmi-cli/src");
    for (sources, folders) in [(sources(), &own[..]), (cli, &commands[..])] {
        let arrows = arrows_of_siblings(&texts(&sources));
        for folder in folders {
            let below = arrows
                .keys()
                .filter(|module| module.len() > 1 && module[0] == *folder);
            assert!(below.count() > 2, "the arrows of {folder} are not seen any more");
        }
        let circle = circle(arrows);
        assert!(circle.is_empty(), "a circle among {circle:#?}");
    }
}

#[test]
fn a_circle_is_seen_however_deep_its_modules_are() {
    let module = |name: &str| name.split("::").map(str::to_owned).collect::<Module>();
    let circles = |texts: &[(&str, &str)]| {
        let texts = texts
            .iter()
            .map(|(name, text)| (module(name), (*text).to_owned()));
        let circle = circle(arrows_of_siblings(&texts.collect()));
        circle.keys().map(|module| module.join("::")).collect::<Vec<_>>()
    };
    let there = ("m::a", "use super::b::c::X;");
    for back in ["use crate::m::a::Y;", "fn f() { super::super::a::f() }"] {
        assert_eq!(
            circles(&[there, ("m::b::c", back), ("m::d", "use super::a::Y;")]),
            ["m::a", "m::b"]
        );
    }
    for none in [
        "use super::super::Z;",
        "// super::super::a",
        "#[cfg(test)]\nmod tests {\n    use crate::m::a::Y;\n}",
    ] {
        let texts = [
            there,
            ("m::b", "use self::c::X; pub struct Z;"),
            ("m::b::c", none),
        ];
        assert_eq!(circles(&texts), Vec::<String>::new(), "{none}");
    }
}

#[test]
fn what_is_called_pure_knows_neither_client_nor_runtime() {
    let forbidden = [CLIENT, &["tokio"]].concat();
    for place in PURE {
        let found = files(&sources().join(place));
        assert!(!found.is_empty(), "{place} is not there any more");
        for file in found {
            let text = fs::read_to_string(&file).unwrap();
            let wrong: Vec<_> = paths(&text)
                .into_iter()
                // It is only a point in time.
                .filter(|path| path != "tokio::time::Instant")
                .filter(|path| forbidden.iter().any(|no| names(path, no)))
                .collect();
            assert!(wrong.is_empty(), "{} names {wrong:?}", file.display());
        }
    }
}

/// The crates of this repository that a manifest names.
fn own_crates(manifest: &str) -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = fs::read_dir(root.join("crates")).unwrap();
    let mut own: BTreeSet<_> = crates
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    own.insert("cluster-api-provider-cmi".to_owned());
    let named = manifest
        .lines()
        .filter_map(|line| line.split(['.', ' ', '=']).next());
    named
        .filter(|name| own.contains(*name))
        .map(str::to_owned)
        .collect()
}

/// Drivers and other providers can use them.
#[test]
fn the_contract_and_the_store_know_no_other_crate() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates");
    for name in ["cmi-driver", "kube-fleet"] {
        let manifest = fs::read_to_string(crates.join(name).join("Cargo.toml")).unwrap();
        assert_eq!(own_crates(&manifest), BTreeSet::new(), "{name}");
    }
}

/// A driver that links a C library is a separate program. Its author needs only these two crates.
#[test]
fn a_driver_of_its_own_knows_the_contract_and_the_wire_alone() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &Path| fs::read_to_string(path).unwrap();
    let mut seen = 0;
    for driver in fs::read_dir(root.join("drivers")).unwrap() {
        let manifest = driver.unwrap().path().join("Cargo.toml");
        if !manifest.exists() {
            continue; // a driver in Go
        }
        let manifest = read(&manifest);
        // The end-to-end test may use more.
        let (program, _tests) = manifest.split_once("[dev-dependencies]").unwrap();
        assert_eq!(
            own_crates(program),
            BTreeSet::from(["cmi-driver".to_owned(), "cmi-grpc".to_owned()])
        );
        seen += 1;
    }
    assert!(seen > 0, "no driver is seen any more");
    assert!(own_crates(&read(&root.join("Cargo.toml"))).contains("cmi-simulated"));
    // Tests and lints of all else do without its C library.
    let makefile = read(&root.join("Makefile"));
    let everywhere = makefile.lines().filter(|line| line.contains("--workspace"));
    assert!(
        everywhere
            .into_iter()
            .all(|line| line.contains("$(WITHOUT_LIBVIRT)"))
    );
}

/// rustfmt breaks no comment, no macro and no string.
#[test]
fn no_line_is_wider_than_rustfmt_makes_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let settings = fs::read_to_string(root.join("rustfmt.toml")).unwrap();
    let width = settings
        .lines()
        .find_map(|line| line.strip_prefix("max_width = "));
    let width: usize = width.unwrap().parse().unwrap();
    let mut all = Vec::new();
    for folder in ["src", "crates", "drivers", "tests", "benches", "examples", "fuzz"] {
        for file in files(&root.join(folder)) {
            let text = fs::read_to_string(&file).unwrap();
            let wide = wide_lines(&text, width);
            if !wide.is_empty() {
                all.push(format!("{}, lines {wide:?}", file.display()));
            }
        }
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

/// A field of that name beside the text of the line gives the line in JSON the key twice.
#[test]
fn no_line_of_the_log_has_a_field_named_message() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["src", "crates", "drivers"].map(|folder| files(&root.join(folder)));
    for file in folders.concat() {
        let text = fs::read_to_string(&file).unwrap();
        assert!(!logs_message(&text), "{}", file.display());
    }
    let logs = |fields: &str| logs_message(&format!("tracing::warn!({fields}, \"said\")"));
    assert!(logs("a = f(b), message = x") && logs("message") && logs("%message"));
    assert!(!logs("a = f(b, message), why = message") && !logs("why = status.message()"));
}

/// Whether a macro of tracing is given a field `message`.
fn logs_message(text: &str) -> bool {
    let tokens = tokens(text);
    tokens.windows(5).enumerate().any(|(at, window)| {
        if window[..2] != ["tracing", "::"] || window[3..] != ["!", "("] {
            return false;
        }
        let (mut depth, mut before) = (1, "(");
        for (token, next) in tokens[at + 5..].iter().zip(&tokens[at + 6..]) {
            let begins = ["(", ",", "%", "?"].contains(&before);
            if depth == 1 && token == "message" && begins && ["=", ","].contains(&&**next) {
                return true;
            }
            match &**token {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return false;
            }
            before = token;
        }
        false
    })
}

#[test]
fn a_wide_line_is_seen_by_its_characters() {
    for (text, wide) in [("1234567", vec![]), ("/// 5678\n\"ééééé\"\n12345678", vec![1, 3])] {
        assert_eq!(wide_lines(text, 7), wide, "{text}");
    }
}

/// A guard that lets everything pass guards nothing.
#[test]
fn a_wrong_arrow_is_seen_however_it_is_written() {
    let modules = BTreeSet::from(["driver", "machine", "drivers"]);
    let driver = rule("driver", &[], &[&["kube"]]);
    for text in [
        "use crate::machine::plan;",
        "use crate::machine;",
        "use crate::{driver::Code, machine::{plan, status}};",
        "use crate::{\n    machine as m,\n};",
        "fn f() { let a = crate::machine::plan(1); }",
        "pub(crate) use crate::machine::*;",
        "use kube::Client;",
        "use {std::fmt, kube::{self, Api}};",
        "fn f(c: &::kube::Client) {}",
        "type T = Option<kube::Client>;",
    ] {
        assert!(
            !wrong_arrows(&driver, &modules, text).is_empty(),
            "not seen: {text}"
        );
    }
    for text in [
        "// use crate::machine::plan;",
        "/// See [`crate::machine`].",
        "const A: &str = \"crate::machine::\\\" kube::Client\";",
        "use crate::driver::kube;",
        "use super::machine::plan;",
        "let machine = kubernetes::client();",
        "use crate::machine_class::X;",
    ] {
        assert_eq!(
            wrong_arrows(&driver, &modules, text),
            Vec::<String>::new(),
            "no arrow: {text}"
        );
    }
}
