//! The counts of a fleet, which no busy computer changes, compared with `counts.json`.

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use super::Args;
use super::bring_up::Bench;
use super::report::Run;

/// The expected counts, beside this file.
const EXPECTED: &str = include_str!("counts.json");

/// Brings a fleet up with the driver at each place, and fails where a count differs from the expected one.
pub async fn check(args: &Args) -> Result<()> {
    let expected: Value = serde_json::from_str(EXPECTED).context("reading counts.json")?;
    for place in &args.places {
        for size in &args.sizes {
            let (run, replica) = Bench::set(*place, *size).await?.run(&[]).await?;
            drop(replica);
            let counted = counts(&run);
            println!("{}, {size} machines: {counted:#}", place.provider());
            ensure!(
                counted == expected,
                "the counts are not those of benches/fleet/counts.json, which has {expected:#}: if that is \
                 meant, change the file, and docs/internals/performance.md with it"
            );
        }
    }
    Ok(())
}

/// Returns the counts of a run, per machine where a count grows with the machines.
fn counts(run: &Run) -> Value {
    let mut counts = Map::new();
    counts.insert("writes a machine".to_owned(), each(run, run.requests.patches));
    counts.insert("Events a machine".to_owned(), each(run, run.requests.events));
    counts.insert(
        "Secret reads a machine".to_owned(),
        each(run, run.requests.secrets),
    );
    let calls = run.driver_calls.unwrap_or_default();
    counts.insert("driver calls a machine".to_owned(), each(run, calls));
    counts.insert("conflicts".to_owned(), json!(run.requests.conflicts));
    for rest in &run.rest {
        counts.insert(format!("writes, {}", rest.what), json!(rest.requests.writes()));
        counts.insert(
            format!("conflicts, {}", rest.what),
            json!(rest.requests.conflicts),
        );
        counts.insert(format!("driver calls, {}", rest.what), json!(rest.driver_calls));
    }
    Value::Object(counts)
}

/// Returns the count per machine: a whole number if possible, otherwise the fraction, which reveals a
/// problem.
#[allow(clippy::cast_precision_loss)] // hundreds
fn each(run: &Run, count: u64) -> Value {
    let size = run.size as u64;
    if count.is_multiple_of(size) {
        json!(count / size)
    } else {
        json!(count as f64 / run.size as f64)
    }
}
