//! The default timeout of each call of a driver.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use capcmi::driver::Timeouts;
use cmi_driver::Operation;

use crate::markdown;

/// Returns the calls by their timeouts, the longest first.
pub(crate) fn table() -> String {
    let timeouts = Timeouts::default();
    let mut calls: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for operation in Operation::ALL {
        let same = calls.entry(Reverse(timeouts.of(operation))).or_default();
        same.push(format!("`{}`", Timeouts::key(operation)));
    }
    let rows: Vec<_> = calls
        .into_iter()
        .map(|(Reverse(timeout), calls)| {
            let name = if timeout == timeouts.default {
                "`default`, "
            } else {
                ""
            };
            [format!("{name}{}", written(timeout)), calls.join(", ")]
        })
        .collect();
    markdown(&["Timeout", "Calls"], &rows)
}

/// Formats a timeout as the drivers file takes it.
fn written(timeout: Duration) -> String {
    match timeout.as_secs() {
        seconds if seconds.is_multiple_of(60) => format!("{}m", seconds / 60),
        seconds => format!("{seconds}s"),
    }
}
