//! Tasks for developers. `cargo run -p xtask -- docs PATH…` writes the generated blocks of the documentation
//! (`make generate`). `cargo run -p xtask -- profile FILE` shows where the CPU time went (`make profile`).

mod api;
mod compliance;
mod errors;
mod flags;
mod metrics;
mod profile;
mod reasons;
mod timeouts;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, Parser};

use compliance::Rows;

/// The start of a generated block, before its name.
const START: &str = "<!-- generated: ";
/// The end of the line with the name.
const START_END: &str = " -->\n";
/// The end of a generated block.
const END: &str = "<!-- end -->";

/// Tasks of developers.
#[derive(Debug, Parser)]
enum Task {
    /// Write the generated blocks of the documentation.
    Docs(DocsArgs),
    /// Say where the CPU time went that perf has sampled, and draw it.
    Profile(profile::ProfileArgs),
}

/// Writes the blocks between `<!-- generated: NAME -->` and `<!-- end -->`.
#[derive(Debug, Args)]
struct DocsArgs {
    /// Fail if a block is out of date, and write nothing.
    #[arg(long)]
    check: bool,
    /// Markdown files, and folders whose Markdown files are meant, also those in folders below.
    #[arg(required = true, value_name = "PATH")]
    files: Vec<PathBuf>,
}

fn main() -> Result<()> {
    match Task::parse() {
        Task::Docs(args) => execute(&args),
        Task::Profile(args) => profile::execute(&args),
    }
}

fn execute(args: &DocsArgs) -> Result<()> {
    let mut outdated = Vec::new();
    for path in &markdown_files(&args.files)? {
        let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let wanted = render(&text).with_context(|| format!("in {}", path.display()))?;
        if text == wanted {
            continue;
        }
        if args.check {
            outdated.push(path.display().to_string());
        } else {
            fs::write(path, wanted).with_context(|| format!("writing {}", path.display()))?;
        }
    }
    ensure!(
        outdated.is_empty(),
        "out of date, run `make generate` and commit: {}",
        outdated.join(", ")
    );
    Ok(())
}

/// Returns these files, and the Markdown files in these folders and the folders below.
fn markdown_files(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            let entries = fs::read_dir(path).with_context(|| format!("listing {}", path.display()))?;
            let entries: Result<Vec<_>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
            let mut entries = entries?;
            entries.retain(|entry| {
                entry.is_dir() || entry.extension().is_some_and(|extension| extension == "md")
            });
            entries.sort();
            files.extend(markdown_files(&entries)?);
        } else {
            files.push(path.clone());
        }
    }
    Ok(files)
}

fn block(name: &str) -> Result<String> {
    Ok(match name {
        "conformance summary" => compliance::summary(),
        "rules of the driver contract" => compliance::table(Rows::Prose(&["DRV", "OPS"])),
        "error codes of the driver contract" => compliance::table(Rows::Codes("DRV")),
        "rules of the interface" => compliance::table(Rows::Prose(&["CMI"])),
        "rules of initialization" => compliance::table(Rows::Prose(&["INI", "UPD"])),
        "rules of this provider" => compliance::table(Rows::Prose(&["CAP"])),
        "dispositions" => errors::dispositions(),
        "usual dispositions" => errors::usual(),
        "dispositions of calls" => errors::calls(),
        "flags" => flags::list(capcmi::manager::cli::command()),
        "metrics" => metrics::table(),
        "timeouts" => timeouts::table(),
        "reasons" => reasons::index()?,
        _ if let Some(names) = name.strip_prefix(reasons::BLOCK) => reasons::explained(names)?,
        _ if let Some(kind) = name.strip_prefix("fields of ") => api::list(kind)?,
        _ => bail!("unknown block `{name}`"),
    })
}

/// Returns the text with its generated blocks up to date.
fn render(text: &str) -> Result<String> {
    let mut rendered = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(START) {
        let (name, after) = after
            .split_once(START_END)
            .with_context(|| format!("a line that starts with `{START}` must end with `-->`"))?;
        let (_, after) = after
            .split_once(END)
            .with_context(|| format!("`{END}` is missing after block `{name}`"))?;
        let block = block(name)?;
        rendered.extend([before, START, name, START_END, "\n", &block, "\n", END]);
        rest = after;
    }
    Ok(rendered + rest)
}

/// Returns a Markdown table. A row has as many cells as there are titles.
fn markdown(titles: &[impl AsRef<str>], rows: &[impl AsRef<[String]>]) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut table = line(titles.iter().map(|title| title.as_ref().to_owned()).collect());
    table += &line(titles.iter().map(|_| "---".to_owned()).collect());
    let escaped = |row: &[String]| row.iter().map(|cell| cell.replace('|', "\\|")).collect();
    table.extend(rows.iter().map(|row| line(escaped(row.as_ref()))));
    table
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The blocks of these pages would otherwise be lost without notice.
    const PLACES: [(&str, &str); 4] = [
        ("docs/reference/codes.md", "dispositions"),
        ("docs/operate/runbook.md", "reasons Paused"),
        ("docs/reference/reasons.md", "reasons"),
        ("docs/internals/compliance.md", "conformance summary"),
    ];

    #[test]
    fn committed_tables_are_what_the_code_prints() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let places = vec![repository.join("README.md"), repository.join("docs")];
        let files = markdown_files(&places).unwrap();
        for (page, name) in PLACES {
            let page = repository.join(page);
            assert!(files.contains(&page), "{} is missing", page.display());
            let text = fs::read_to_string(&page).unwrap();
            let start = [START, name, START_END].concat();
            assert!(text.contains(&start), "{} lacks `{name}`", page.display());
        }
        execute(&DocsArgs {
            check: true,
            files: places,
        })
        .unwrap();
    }

    #[test]
    fn only_text_between_the_marks_is_replaced() {
        let text = "a\n<!-- generated: metrics -->\nold\n<!-- end -->\nb\n";
        let rendered = render(text).unwrap();
        assert!(
            rendered.starts_with("a\n<!-- generated: metrics -->\n\n| "),
            "{rendered}"
        );
        assert!(rendered.ends_with("|\n\n<!-- end -->\nb\n"), "{rendered}");
        assert!(!rendered.contains("old"));
        assert_eq!(render(&rendered).unwrap(), rendered);
    }

    #[test]
    fn a_block_without_an_end_or_a_known_name_is_refused() {
        assert!(render("<!-- generated: metrics -->\n").is_err());
        assert!(render("<!-- generated: x -->\n<!-- end -->").is_err());
    }
}
