//! The table.

use std::fmt;
use std::time::Duration;

use super::measure::{Requests, Usage};

/// What a run came to.
pub struct Run {
    /// From the start of the process until all machines were provisioned.
    pub took: Duration,
    /// Of the process.
    pub usage: Usage,
    /// At the API server.
    pub requests: Requests,
    /// On the driver.
    pub driver_calls: Option<u64>,
}

/// A line of the table.
pub struct Report<'a> {
    /// Floor or provider.
    pub what: &'a str,
    /// Machines.
    pub size: usize,
    /// What it came to.
    pub run: &'a Run,
    /// What it is compared with.
    pub floor: Option<&'a Run>,
}

impl Report<'_> {
    /// The first two lines of the table.
    pub const HEADER: &'static str = "\
| what | machines | seconds | machines a second | CPU ms a machine | peak MiB | writes a machine | Events a machine | conflicts | Secret reads | driver calls a machine | time / floor |\n\
|---|---|---|---|---|---|---|---|---|---|---|---|";
}

#[allow(clippy::cast_precision_loss)] // counts of thousands
impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (run, size) = (self.run, self.size as f64);
        let seconds = run.took.as_secs_f64();
        let calls = run
            .driver_calls
            .map_or_else(|| "–".to_owned(), |calls| format!("{:.2}", calls as f64 / size));
        let ratio = self.floor.map_or_else(
            || "–".to_owned(),
            |floor| format!("{:.2}", seconds / floor.took.as_secs_f64()),
        );
        write!(
            f,
            "| {} | {} | {seconds:.1} | {:.0} | {:.2} | {} | {:.2} | {:.2} | {} | {} | {calls} | {ratio} |",
            self.what,
            self.size,
            size / seconds,
            run.usage.cpu.as_secs_f64() * 1000.0 / size,
            run.usage.peak_mib,
            run.requests.patches as f64 / size,
            run.requests.events as f64 / size,
            run.requests.conflicts,
            run.requests.secrets,
        )
    }
}
