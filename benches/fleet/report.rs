//! The tables, as Markdown that documents can take.

use std::fmt;
use std::time::Duration;

use super::measure::{Requests, Usage};

/// The result of one round of a contestant.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// The number of machines.
    pub size: usize,
    /// The time from the start of the process until all machines were provisioned.
    pub took: Duration,
    /// The usage of the process, or of several together.
    pub usage: Usage,
    /// The usage of the plugin, if there is one.
    pub plugin: Option<Usage>,
    /// The usage of the API server and of etcd.
    pub control_plane: [Usage; 2],
    /// The requests to the API server.
    pub requests: Requests,
    /// The calls of the driver.
    pub driver_calls: Option<u64>,
    /// The costs of the provider while it idles, during a relist, and at a restart.
    pub rest: Vec<Rest>,
}

/// The costs of a process in a window without work.
#[derive(Clone, Copy, Debug)]
pub struct Rest {
    /// `idle`, `relist` or `restart`.
    pub what: &'static str,
    /// The length of the window. At a relist, it ends when a new machine is up; at a restart, when the
    /// provider has looked at all machines.
    pub window: Duration,
    /// The usage of the process in the window, or since its start after a restart. The peak covers the whole
    /// life of an idle provider, and only the relist of a relisting one.
    pub usage: Usage,
    /// The requests to the API server.
    pub requests: Requests,
    /// The calls of the driver.
    pub driver_calls: u64,
}

/// The rounds of a contestant.
#[derive(Clone, Debug)]
pub struct Row {
    /// The name of the floor or provider.
    pub what: String,
    /// The rounds.
    pub runs: Vec<Run>,
}

#[allow(clippy::cast_precision_loss)] // counts of thousands
impl Run {
    fn seconds_each(&self) -> f64 {
        self.took.as_secs_f64() / self.size as f64
    }

    fn cpu_ms_each(&self) -> f64 {
        ms(self.usage.cpu) / self.size as f64
    }
}

impl Row {
    /// Returns the median of a figure over the rounds.
    pub fn median(&self, figure: impl Fn(&Run) -> f64) -> f64 {
        median(self.runs.iter().map(figure).collect())
    }

    /// Returns the median of the ratios to the best floor of the same round, which may be another one for
    /// each figure.
    fn ratio(&self, floors: &[Self], figure: impl Fn(&Run) -> f64) -> f64 {
        let rounds = self.runs.iter().enumerate().map(|(round, own)| {
            let floors = floors.iter().filter_map(|floor| floor.runs.get(round));
            figure(own) / floors.map(&figure).fold(f64::INFINITY, f64::min)
        });
        median(rounds.collect())
    }
}

/// All contestants at one size.
pub struct Report {
    /// The contestants, floors included.
    pub rows: Vec<Row>,
    /// The number of floors, which come first. The other contestants are compared with the best of them.
    pub floors: usize,
}

#[allow(clippy::cast_precision_loss)] // counts of thousands
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let floors = self.rows.get(..self.floors).unwrap_or_default();
        writeln!(
            f,
            "| what | machines | seconds | machines a second | time / floor | CPU ms a machine | CPU / floor \
             | peak MiB | writes a machine | Events a machine | conflicts | Secret reads | \
             driver calls a machine |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|"
        )?;
        for (index, row) in self.rows.iter().enumerate() {
            let size = row.runs.first().map_or(0, |run| run.size) as f64;
            let ratio = |figure: fn(&Run) -> f64| {
                if floors.is_empty() || index < self.floors {
                    "–".to_owned()
                } else {
                    format!("{:.2}", row.ratio(floors, figure))
                }
            };
            let calls = row.runs.iter().all(|run| run.driver_calls.is_some()).then(|| {
                let calls = row.median(|run| run.driver_calls.unwrap_or_default() as f64);
                format!("{:.2}", calls / size)
            });
            writeln!(
                f,
                "| {} | {size} | {:.1} | {:.0} | {} | {:.2} | {} | {:.0} | {:.2} | {:.2} | {} | {} | {} |",
                row.what,
                row.median(|run| run.took.as_secs_f64()),
                1.0 / row.median(Run::seconds_each),
                ratio(Run::seconds_each),
                row.median(Run::cpu_ms_each),
                ratio(Run::cpu_ms_each),
                row.median(|run| run.usage.peak_mib as f64),
                row.median(|run| run.requests.patches as f64) / size,
                row.median(|run| run.requests.events as f64) / size,
                row.median(|run| run.requests.conflicts as f64),
                row.median(|run| run.requests.secrets as f64),
                calls.unwrap_or_else(|| "–".to_owned()),
            )?;
        }
        writeln!(
            f,
            "\n| beside | machines | process | CPU ms a machine | peak MiB |\n|---|---|---|---|---|"
        )?;
        for row in &self.rows {
            processes(f, row)?;
        }
        writeln!(
            f,
            "\n| what | machines | phase | seconds | CPU s | writes | lists | driver calls | resident MiB | \
             peak MiB |\n|---|---|---|---|---|---|---|---|---|---|"
        )?;
        for row in &self.rows {
            rests(f, row)?;
        }
        Ok(())
    }
}

#[allow(clippy::cast_precision_loss)] // counts of thousands
fn processes(f: &mut fmt::Formatter<'_>, row: &Row) -> fmt::Result {
    let size = row.runs.first().map_or(0, |run| run.size) as f64;
    let mut line = |process: &str, usage: &dyn Fn(&Run) -> Usage| {
        writeln!(
            f,
            "| {} | {size} | {process} | {:.2} | {:.0} |",
            row.what,
            row.median(|run| ms(usage(run).cpu)) / size,
            row.median(|run| usage(run).peak_mib as f64),
        )
    };
    line("kube-apiserver", &|run| run.control_plane[0])?;
    line("etcd", &|run| run.control_plane[1])?;
    if row.runs.iter().all(|run| run.plugin.is_some()) {
        line("plugin", &|run| run.plugin.unwrap_or_default())?;
    }
    Ok(())
}

#[allow(clippy::cast_precision_loss)] // counts of thousands
fn rests(f: &mut fmt::Formatter<'_>, row: &Row) -> fmt::Result {
    let Some(first) = row.runs.first() else {
        return Ok(());
    };
    for (index, rest) in first.rest.iter().enumerate() {
        let median = |figure: fn(&Rest) -> f64| row.median(|run| run.rest.get(index).map_or(0.0, figure));
        writeln!(
            f,
            "| {} | {} | {} | {:.0} | {:.2} | {} | {} | {} | {:.0} | {:.0} |",
            row.what,
            first.size,
            rest.what,
            rest.window.as_secs_f64(),
            median(|rest| rest.usage.cpu.as_secs_f64()),
            median(|rest| rest.requests.writes() as f64),
            median(|rest| rest.requests.lists as f64),
            median(|rest| rest.driver_calls as f64),
            median(|rest| rest.usage.resident_mib as f64),
            median(|rest| rest.usage.peak_mib as f64),
        )?;
    }
    Ok(())
}

/// Returns the time in milliseconds.
pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Returns the median, or 0 for no values.
fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    match figures.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => figures[middle],
        _ => f64::midpoint(figures[middle - 1], figures[middle]),
    }
}

/// Returns a percentile.
pub fn percentile(figures: &[f64], percent: usize) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
}
