//! Links and names in the documentation must exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use management_cluster::{
    CLUSTER_API_OPERATOR_VERSION, CLUSTER_API_VERSION, FLUX_VERSION, HELM_VERSION, IPAM_IN_CLUSTER_VERSION,
    KUBERNETES_VERSION, ManagementCluster, flux_definition,
};
use serde_json::Value;

use crate::objects::{parse, repository};

/// README.md and the pages next to it, and all pages below docs/.
fn pages() -> Result<Vec<(PathBuf, String)>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(repository())? {
        paths.push(entry?.path());
    }
    paths.retain(|path| is_markdown(path));
    paths.extend(markdown_files(&repository().join("docs"))?);
    paths
        .into_iter()
        .map(|path| Ok((path.clone(), fs::read_to_string(&path)?)))
        .collect()
}

fn is_markdown(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
}

/// The Markdown files in a folder and the folders below.
fn markdown_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            paths.extend(markdown_files(&path)?);
        } else if is_markdown(&path) {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// The words between two marks.
fn between<'a>(text: &'a str, start: &'a str, end: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(start)
        .skip(1)
        .filter_map(move |rest| Some(rest.split_once(end)?.0))
}

/// The source files below a folder, as one text.
fn sources(folder: &Path) -> Result<String> {
    let mut text = String::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            text += &sources(&path)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text += &fs::read_to_string(&path)?;
        }
    }
    Ok(text)
}

/// GitHub's anchor for a heading.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    heading.chars().filter(kept).collect::<String>().replace(' ', "-")
}

/// The anchors of a page's headings.
pub fn headings(page: &str) -> Result<BTreeSet<String>> {
    let text = fs::read_to_string(repository().join(page)).with_context(|| page.to_owned())?;
    Ok(text
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(anchor)
        .collect())
}

/// The text without code, since brackets in code are not links.
fn prose(text: &str) -> String {
    let without_blocks: String = text.split("```").step_by(2).collect();
    without_blocks.split('`').step_by(2).collect()
}

#[test]
fn relative_links_lead_to_files_and_headings() -> Result<()> {
    for (path, text) in pages()? {
        for link in between(&prose(&text), "](", ")").filter(|link| !link.contains("://")) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = path.parent().context("a page has a folder")?.join(file);
            ensure!(target.exists(), "{} links to {link}", path.display());
            if heading.is_empty() {
                continue;
            }
            let target = fs::read_to_string(if file.is_empty() { &path } else { &target })?;
            let mut headings = target.lines().filter(|line| line.starts_with('#')).map(anchor);
            ensure!(
                headings.any(|known| known == heading),
                "{} links to {link}",
                path.display()
            );
        }
    }
    Ok(())
}

#[test]
fn every_page_is_in_the_book() -> Result<()> {
    let summary = fs::read_to_string(repository().join("docs/SUMMARY.md"))?;
    let chapters: BTreeSet<_> = between(&summary, "](", ")").map(str::to_owned).collect();
    let folder = repository().join("docs");
    let mut written = BTreeSet::new();
    for path in markdown_files(&folder)? {
        written.insert(path.strip_prefix(&folder)?.display().to_string());
    }
    written.remove("SUMMARY.md");
    ensure!(
        chapters == written,
        "docs/SUMMARY.md lacks {:?} or has too much: {:?}",
        written.difference(&chapters),
        chapters.difference(&written)
    );
    Ok(())
}

#[test]
fn tests_behind_the_guarantees_exist() -> Result<()> {
    let mut code = String::new();
    for folder in ["src", "crates", "tests"] {
        code += &sources(&repository().join(folder))?;
    }
    for (page, least) in [("docs/internals/guarantees.md", 20), ("README.md", 0)] {
        let text = fs::read_to_string(repository().join(page))?;
        let named: BTreeSet<_> = text.split('`').filter(|word| is_test_name(word)).collect();
        ensure!(named.len() >= least, "{page} names only {named:?}");
        for name in named {
            ensure!(
                code.contains(&format!("fn {name}(")),
                "{page} names {name}, which is no test"
            );
        }
    }
    Ok(())
}

/// Whether a word in backticks is the name of a test. Shorter names are fields and metrics.
fn is_test_name(word: &str) -> bool {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    word.chars().all(is_part) && word.matches('_').count() > 2 && !word.starts_with("capcmi_")
}

/// For example, the functions of the kits that keep the rules of the driver contract.
#[test]
fn declarations_that_pages_link_to_exist() -> Result<()> {
    let mut found = 0;
    for (path, text) in pages()? {
        for link in text.split("[`").skip(1) {
            let Some((name, rest)) = link.split_once("`](") else {
                continue;
            };
            let file = rest.split_once(')').map_or(rest, |(file, _)| file);
            let is_source = [".go", ".py", ".rs"].iter().any(|end| file.ends_with(end));
            if !is_source || file.ends_with(name) {
                continue;
            }
            found += 1;
            let source = path.parent().context("a page has a folder")?.join(file);
            let source = fs::read_to_string(&source).with_context(|| source.display().to_string())?;
            ensure!(
                source
                    .lines()
                    .any(|line| declares(line, name.trim_start_matches("cmi."))),
                "{} says that {file} declares {name}",
                path.display()
            );
        }
    }
    ensure!(found > 40, "only {found} declarations are linked");
    Ok(())
}

/// Whether a line of Rust, Go or Python declares a function or type of this name.
fn declares(line: &str, name: &str) -> bool {
    const KEYWORDS: [&str; 8] = ["fn", "func", "def", "struct", "trait", "enum", "type", "class"];
    // The receiver of a method in Go.
    let receiver = line.strip_prefix("func (").and_then(|rest| rest.split_once(')'));
    let line = receiver.map_or_else(|| line.to_owned(), |(_, rest)| format!("func{rest}"));
    let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.any(|word| KEYWORDS.contains(&word)) && words.next() == Some(name)
}

#[test]
fn files_that_are_named_exist() -> Result<()> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
    let mut found = 0;
    for (path, text) in pages()? {
        let words = text.split(|c| !is_part(c)).map(|word| word.trim_end_matches('.'));
        let files = words.filter(|word| {
            ["src/", "crates/", "tests/"]
                .iter()
                .any(|folder| word.starts_with(folder))
        });
        for file in files {
            found += 1;
            ensure!(
                repository().join(file).exists(),
                "{} names {file}, which is not there",
                path.display()
            );
        }
    }
    ensure!(found > 20, "only {found} files are named");
    Ok(())
}

#[test]
fn every_condition_is_explained() -> Result<()> {
    let page = fs::read_to_string(repository().join("docs/reference/reasons.md"))?;
    let code = fs::read_to_string(repository().join("src/api/conditions.rs"))?;
    let names: BTreeSet<_> = between(&code, ": &str = \"", "\";").collect();
    ensure!(names.len() > 10, "only {names:?} were found");
    for name in names {
        ensure!(
            page.contains(&format!("`{name}`")),
            "docs/reference/reasons.md lacks {name}"
        );
    }
    Ok(())
}

#[test]
fn every_phase_that_machines_are_counted_by_is_explained() -> Result<()> {
    let page = fs::read_to_string(repository().join("docs/reference/metrics.md"))?;
    let values = page
        .lines()
        .skip_while(|line| !line.starts_with("`phase` is one of"));
    let values: String = values.take_while(|line| !line.is_empty()).collect();
    for phase in
        capcmi::telemetry::metrics::MachinePhase::ALL.map(capcmi::telemetry::metrics::MachinePhase::name)
    {
        ensure!(
            values.contains(&format!("`{phase}`")),
            "docs/reference/metrics.md lacks {phase}"
        );
    }
    Ok(())
}

#[test]
fn metrics_that_are_named_exist() -> Result<()> {
    let page = fs::read_to_string(repository().join("docs/reference/metrics.md"))?;
    let known: BTreeSet<_> = between(&page, "| `capcmi_", "`").collect();
    ensure!(!known.is_empty(), "the table of metrics is gone");
    let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
    for (path, text) in pages()? {
        for rest in text.split("capcmi_").skip(1) {
            let name = rest.split(|c| !is_part(c)).next().unwrap_or_default();
            ensure!(known.contains(name), "{} names capcmi_{name}", path.display());
        }
    }
    Ok(())
}

/// The page and the build use the same versions.
#[test]
fn the_documented_versions_are_the_tested_ones() -> Result<()> {
    let page = fs::read_to_string(repository().join("docs/reference/versions.md"))?;
    for (line, version) in [
        ("| v0.1 (main) |", CLUSTER_API_VERSION),
        ("| v0.1 (main) |", KUBERNETES_VERSION),
        ("| clusterctl |", CLUSTER_API_VERSION),
        ("| Cluster API operator |", CLUSTER_API_OPERATOR_VERSION),
        ("| Helm |", HELM_VERSION),
        ("| Flux |", FLUX_VERSION),
        ("| IPAM provider |", IPAM_IN_CLUSTER_VERSION),
        ("| kustomize |", KUBERNETES_VERSION),
    ] {
        let row = page.lines().find(|row| row.starts_with(line));
        let row = row.with_context(|| format!("docs/reference/versions.md has no row `{line}`"))?;
        ensure!(
            row.contains(version),
            "docs/reference/versions.md does not say {version} in: {row}"
        );
    }
    Ok(())
}

/// Flux accepts the page's example without unknown fields, and applies the provider first.
#[tokio::test]
async fn flux_accepts_the_example_of_the_gitops_page() -> Result<()> {
    let cluster = ManagementCluster::builder()
        .core(false)
        .manifests(flux_definition().await?)
        .start()
        .await?;
    let page = fs::read_to_string(repository().join("docs/how-to/gitops.md"))?;
    let (_, section) = page.split_once("\n## Flux\n").context("no section")?;
    let (_, example) = section.split_once("```yaml\n").context("no example")?;
    let (example, _) = example.split_once("```").context("an example without an end")?;
    let objects: Vec<Value> = parse(example)?;
    let names: Vec<_> = objects.iter().map(|object| &object["metadata"]["name"]).collect();
    ensure!(names == ["capcmi", "clusters"], "{names:?}");
    ensure!(
        objects[1]["spec"]["dependsOn"][0]["name"] == "capcmi",
        "{:#}",
        objects[1]
    );
    let path = cluster.folder().path().join("flux.yaml");
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: flux-system}\n---\n";
    fs::write(&path, format!("{namespace}{example}"))?;
    let mut kubectl = cluster.kubectl();
    let arguments = ["apply", "--server-side", "--validate=strict", "-f"];
    let applied = kubectl.args(arguments).arg(&path).output()?;
    let said = String::from_utf8(applied.stderr)?;
    ensure!(applied.status.success() && said.is_empty(), "{said}");
    Ok(())
}

/// The contract names the functions of the kits that keep its rules.
#[test]
fn rules_of_the_contract_name_functions_of_the_kits() -> Result<()> {
    let page = fs::read_to_string(repository().join("docs/drivers/contract.md"))?;
    let (mut go, mut python) = (0, 0);
    for link in between(&page, "[`", ")") {
        let Some((name, path)) = link.split_once("`](../../sdk/") else {
            continue;
        };
        let path = repository().join("sdk").join(path);
        let source = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let found = [
            format!("func {name}("),
            format!(") {name}("),
            format!("func {name}["),
            format!("def {name}("),
        ];
        ensure!(
            found.iter().any(|declaration| source.contains(declaration)),
            "{} has no function {name}",
            path.display()
        );
        if path.starts_with(repository().join("sdk/python")) {
            python += 1;
        } else {
            go += 1;
        }
    }
    ensure!(go > 10 && python > 10, "{go} functions in Go, {python} in Python");
    Ok(())
}

/// `kubectl explain` links from a condition to the table of reasons.
#[test]
fn crds_link_from_conditions_to_the_reasons() -> Result<()> {
    const LINK: &str = "docs/reference/reasons.md#reasons";
    ensure!(
        headings("docs/reference/reasons.md")?.contains("reasons"),
        "the heading is gone"
    );
    let mut seen = 0;
    for entry in fs::read_dir(repository().join("config/crd"))? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        if !text.contains("kind: CustomResourceDefinition") {
            continue;
        }
        let crd: Value = serde_saphyr::from_str(&text).with_context(|| path.display().to_string())?;
        for version in crd["spec"]["versions"].as_array().context("versions")? {
            let status = &version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"];
            let Some(conditions) = status.get("conditions") else {
                continue;
            };
            let said = conditions["description"].as_str().unwrap_or_default();
            ensure!(said.contains(LINK), "{}: {said}", path.display());
            seen += 1;
        }
    }
    ensure!(seen >= 4, "only {seen} kinds with conditions");
    Ok(())
}

/// The page explains all keys of the drivers file, and only those.
#[test]
fn every_key_of_a_driver_is_explained() -> Result<()> {
    explained("simulated: {unknown: 1}", "bootSeconds", |key| format!("`{key}`"))?;
    explained("grpc: {unknown: 1}", "keepaliveSeconds", |key| format!("`{key}"))?;
    explained("grpc: {tls: {unknown: 1}}", "caFile", |key| {
        format!("`tls.{key}`")
    })
}

/// Checks that the page has all keys that are valid in the place of an unknown one, including `among_them`.
/// `written` formats a key like the page.
fn explained(kind: &str, among_them: &str, written: impl Fn(&str) -> String) -> Result<()> {
    let page = fs::read_to_string(repository().join("docs/reference/drivers-file.md"))?;
    let output = Command::new(testbed::program("capcmi")?)
        .args(["drivers", "check", "--offline", "--drivers-config=/dev/stdin"])
        .stdin(drivers_file(kind)?)
        .output()?;
    // The error for an unknown key lists the valid ones.
    let message = String::from_utf8(output.stderr)?;
    let listed = message
        .split_once("expected")
        .with_context(|| format!("no keys in: {message}"))?
        .1;
    let keys: Vec<_> = listed
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| word.chars().any(char::is_uppercase))
        .collect();
    ensure!(keys.contains(&among_them), "no keys in: {message}");
    for key in keys {
        ensure!(
            page.contains(&written(key)),
            "docs/reference/drivers-file.md lacks {key}"
        );
    }
    Ok(())
}

fn drivers_file(kind: &str) -> Result<fs::File> {
    use std::io::{Seek as _, Write as _};
    let mut file = tempfile::tempfile()?;
    write!(file, "drivers: [{{name: a, {kind}}}]")?;
    file.rewind()?;
    Ok(file)
}

/// CMI-18: a plugin author finds the meaning of an unset field next to it.
#[test]
fn every_optional_field_says_what_its_zero_value_means() -> Result<()> {
    for name in ["proto/cmi/v1/cmi.proto", "proto/capcmi/v1/capcmi.proto"] {
        let text = fs::read_to_string(repository().join(name))?;
        let mut optional = 0;
        for (comment, number) in text
            .lines()
            .zip(1..)
            .filter(|(line, _)| line.trim_start().starts_with("// OPTIONAL. "))
        {
            optional += 1;
            let says = ["Empty:", "Absent:", "Zero:", "Unspecified:"]
                .iter()
                .any(|word| comment.contains(word));
            let continued = text
                .lines()
                .nth(number)
                .is_some_and(|line| line.contains("Empty:"));
            ensure!(says || continued, "{name}:{number}: {comment}");
        }
        ensure!(optional > 0, "{name} has no optional field");
    }
    Ok(())
}
