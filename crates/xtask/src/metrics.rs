//! The metrics, as a scrape shows them.

use std::time::Duration;

use crate::markdown;
use capcmi::telemetry::metrics::{
    BreakerCount, ControllerName, MachineCount, MachinePhase, Metrics, OrphanReason, PermitCount,
    ReconcileResult,
};
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
            let by = if labels.is_empty() { "" } else { " by " };
            [
                format!("`{name}{suffix}`{by}{labels}"),
                help.trim_end_matches('.').to_owned(),
            ]
        })
        .collect();
    markdown(&["Metric and labels", "Meaning"], &rows)
}

/// Returns the labels of a metric, from the line that has the most.
fn labels(text: &str, name: &str) -> String {
    let line = text
        .lines()
        .filter(|line| line.starts_with(name) && line.contains('{'))
        .max_by_key(|line| line.matches("=\"").count())
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

/// Returns metrics with a value in each family.
fn sample() -> Metrics {
    let metrics = Metrics::new();
    let took = Duration::from_secs(1);
    metrics.reconciled(ControllerName::InfraMachine, ReconcileResult::Success, took);
    metrics.driver_called("driver", Operation::CreateMachine, None, took);
    metrics.provisioned("driver", took);
    metrics.machines(|| {
        vec![MachineCount {
            phase: MachinePhase::Provisioned,
            driver: "driver".to_owned(),
            namespace: "namespace".to_owned(),
            reason: "Ready".to_owned(),
            count: 1,
        }]
    });
    metrics.breakers("driver", BreakerCount::default);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The page names the types by these endings.
    #[test]
    fn the_name_of_a_metric_shows_its_type() {
        let text = sample().encode();
        let types = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let types: Vec<_> = types.collect();
        assert!(types.len() > 10, "{text}");
        for (name, kind) in types {
            let is_histogram = name.ends_with("_seconds");
            assert_eq!(kind == "histogram", is_histogram, "{name} is a {kind}");
            assert!(
                ["counter", "histogram", "info", "gauge"].contains(&kind),
                "{name} is a {kind}"
            );
        }
    }
}
