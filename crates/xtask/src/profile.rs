//! The samples of perf: by part of the provider, and as a flame graph.

mod flame_graph;
mod part;
mod samples;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use part::Part;
use samples::{Sample, parse};

/// Prints where the CPU time went, and draws it.
#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// What `perf record` has written.
    file: PathBuf,
    /// Where the flame graph is written.
    #[arg(long, value_name = "FILE")]
    svg: PathBuf,
}

/// Reads the samples, prints the table, and writes the flame graph.
pub fn execute(args: &ProfileArgs) -> Result<()> {
    let output = Command::new("perf")
        .args(["script", "--fields", "comm,pid,time,ip,sym,dso", "--input"])
        .arg(&args.file)
        .output()
        .context("running perf script")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "perf script failed: {errors}");
    let samples = parse(&String::from_utf8_lossy(&output.stdout));
    ensure!(!samples.is_empty(), "{} has no samples", args.file.display());
    print!("{}", table(&samples));
    std::fs::write(&args.svg, flame_graph::draw(&samples))
        .with_context(|| format!("writing {}", args.svg.display()))
}

/// Returns the share of each part, the largest first.
#[allow(clippy::cast_precision_loss)] // shares
fn table(samples: &[Sample]) -> String {
    let mut counts: BTreeMap<Part, usize> = BTreeMap::new();
    for sample in samples {
        *counts.entry(Part::of(sample)).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let share = |count: usize| format!("{:.1} %", count as f64 * 100.0 / samples.len() as f64);
    let rows: Vec<_> = counts
        .into_iter()
        .map(|(part, count)| [part.name().to_owned(), share(count)])
        .collect();
    super::markdown(&["part", "CPU"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_largest_part_first_and_all_of_the_time() {
        let text = "capcmi 1 1.0:\n\t1 hyper::a (/bin/capcmi)\n\n\
                    capcmi 1 1.1:\n\t1 hyper::b (/bin/capcmi)\n\n\
            capcmi 1 1.2:\n\t1 rustls::c (/bin/capcmi)\n\ncapcmi 1 1.3:\n\t1 x (/bin/capcmi)\n\n";
        let table = table(&parse(text));
        let rows: Vec<_> = table.lines().skip(2).collect();
        assert_eq!(
            rows,
            ["| HTTP | 50.0 % |", "| TLS | 25.0 % |", "| other | 25.0 % |"]
        );
    }

    #[test]
    fn a_part_is_known_by_whole_words() {
        let text = "capcmi 1 1.0:\n\t1 alloc::string::String::push_str (/bin/capcmi)\n\n\
            capcmi 1 1.1:\n\t1 <ring::aead::Key>::seal (/bin/capcmi)\n\n";
        let table = table(&parse(text));
        let rows: Vec<_> = table.lines().skip(2).collect();
        assert_eq!(rows, ["| TLS | 50.0 % |", "| other | 50.0 % |"]);
    }
}
