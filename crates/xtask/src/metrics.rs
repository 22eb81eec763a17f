//! The metrics, as a scrape shows them.

use std::time::Duration;

use crate::markdown;
use capcmi::metrics::{Kind, Metrics, OrphanReason, Outcome, PermitCount};
use cmi_driver::Operation;

pub(crate) fn table() -> String {
    let text = sample().encode();
    let words = |line: &'static str| move |text: &&str| text.starts_with(line);
    let of = |start: &'static str, name: &str| {
        text.lines()
            .filter(words(start))
            .find_map(|line| line.strip_prefix(start)?.strip_prefix(name)?.strip_prefix(' '))
            .unwrap_or_default()
            .to_owned()
    };
    let rows: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '))
        .map(|(name, help)| {
            let kind = of("# TYPE ", name);
            let suffix = match kind.as_str() {
                "counter" => "_total",
                "info" => "_info",
                _ => "",
            };
            let labels = labels(&text, &format!("{name}{suffix}"));
            [
                format!("`{name}{suffix}`"),
                kind,
                labels,
                help.trim_end_matches('.').to_owned(),
            ]
        })
        .collect();
    markdown(&["Metric", "Type", "Labels", "Meaning"], &rows)
}

/// The labels of the first line about a metric.
fn labels(text: &str, name: &str) -> String {
    let line = text
        .lines()
        .find(|line| line.starts_with(name) && line.contains('{'))
        .unwrap_or_default();
    let inside = line
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map_or("", |(inside, _)| inside);
    let names: Vec<_> = inside
        .split(',')
        .filter_map(|label| label.split_once('='))
        .filter(|(name, _)| *name != "le")
        .map(|(name, _)| format!("`{name}`"))
        .collect();
    names.join(", ")
}

/// Metrics with something to show in each.
fn sample() -> Metrics {
    let metrics = Metrics::new();
    let took = Duration::from_secs(1);
    metrics.reconciled(Kind::InfraMachine, Outcome::Success, took);
    metrics.driver_called("driver", Operation::CreateMachine, None, took);
    metrics.provisioned("driver", took);
    metrics.machines(|| vec![("Provisioned", 1)]);
    metrics.driver_reachable("driver", true);
    metrics.permits("driver", || {
        ["upkeep", "create"].map(|priority| PermitCount {
            priority,
            in_use: 1,
            waiting: 1,
        })
    });
    metrics.driver_info("driver", "name", "version");
    metrics.orphans(
        "driver",
        [(("namespace".to_owned(), OrphanReason::Orphan), 1)].into(),
    );
    metrics
}
