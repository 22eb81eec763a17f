//! Events, as both pages show them.

use jiff::Timestamp;

use super::events::EventSummary;
use super::page::{Page, ago};

/// Adds a row for each event.
pub(super) fn event_table(page: &mut Page, events: &[EventSummary], now: Timestamp) {
    let rows: Vec<_> = events
        .iter()
        .map(|event| {
            [
                event.at.map_or_else(String::new, |at| ago(at, now)),
                event.type_.clone(),
                event.about.clone(),
                event.reason.clone(),
                event.text.clone(),
            ]
        })
        .collect();
    page.table(&rows);
}
