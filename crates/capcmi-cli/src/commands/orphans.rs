//! `capcmi orphans`: VMs that no InfraMachine has.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde::Serialize;

use super::table::{Output, table};
use super::{drivers, reading_client};
use crate::describe::span;
use capcmi::fleet::orphans::plan::Finding;
use capcmi::fleet::orphans::{self, Found, Scan};
use capcmi::manager::cli::CommandError;
use capcmi::manager::cli::terminal::print_line;

/// Look for VMs that no InfraMachine has.
#[derive(Debug, Subcommand)]
pub(super) enum OrphansCommand {
    /// List VMs without an InfraMachine, and second VMs of an InfraMachine, in all Clusters. The list may
    /// include VMs that were just created or are being deleted: list twice before you delete one.
    List(ListArgs),
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// Drivers file.
    #[arg(long, env = "CAPCMI_DRIVERS_CONFIG", value_name = "FILE")]
    drivers_config: PathBuf,
    /// Kubeconfig. Default: KUBECONFIG, ~/.kube/config or the pod's service account.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Include only Clusters of this namespace. Default: all.
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Include only classes of InfraMachines and InfraMachineTemplates whose label
    /// cluster.x-k8s.io/watch-filter has this value.
    #[arg(long, value_name = "VALUE")]
    watch_filter: Option<String>,
    /// Also list VMs that have an InfraMachine.
    #[arg(long)]
    all: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
    output: Output,
}

/// A VM in the output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    finding: &'static str,
    driver: String,
    namespace: String,
    cluster: String,
    cluster_id: String,
    provider_id: String,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    machine_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<Timestamp>,
    /// A note: the owner, or the obstacle to deleting an orphan.
    why: Vec<String>,
}

pub(super) async fn execute(command: OrphansCommand) -> Result<(), CommandError> {
    match command {
        OrphansCommand::List(args) => list(args).await,
    }
}

async fn list(args: ListArgs) -> Result<(), CommandError> {
    let drivers = drivers::load_unelected(&args.drivers_config)?;
    let (client, _) = reading_client(args.kubeconfig).await?;
    let (namespace, filter) = (args.namespace.as_deref(), args.watch_filter.as_deref());
    let scans = orphans::scan(&client, &drivers, namespace, filter).await?;
    let rows = rows(&scans, args.all);
    let failures: Vec<_> = scans
        .iter()
        .flat_map(|(driver, scan)| scan.failures.iter().map(move |why| format!("{driver}: {why}")))
        .collect();
    match args.output {
        // The error lists the failed scans: `No orphans.` would be wrong for them.
        Output::Table if rows.is_empty() && !failures.is_empty() => {}
        Output::Table if rows.is_empty() => print_line(none(args.all)),
        Output::Table => print_line(text(&rows, Timestamp::now()).trim_end()),
        Output::Json => print_line(&serde_json::to_string_pretty(&rows)?),
    }
    if failures.is_empty() {
        return Ok(());
    }
    let failures = failures.join("; ");
    Err(anyhow::anyhow!("the result is incomplete: {failures}").into())
}

/// Returns the text for an empty table.
const fn none(all: bool) -> &'static str {
    if all {
        "The drivers list no VM of the Clusters in this management cluster."
    } else {
        "No orphans."
    }
}

/// Returns the rows, sorted by driver, namespace, Cluster, name and ProviderID.
fn rows(scans: &HashMap<String, Scan>, all: bool) -> Vec<Row> {
    let by_driver: BTreeMap<_, _> = scans.iter().collect();
    let mut rows: Vec<Row> = by_driver
        .into_iter()
        .flat_map(|(driver, scan)| scan.found.iter().filter_map(|found| row(driver, found, all)))
        .collect();
    rows.sort_by(|one, other| {
        let key = |row: &Row| {
            (
                row.driver.clone(),
                row.namespace.clone(),
                row.cluster.clone(),
                row.name.clone(),
                row.provider_id.clone(),
            )
        };
        key(one).cmp(&key(other))
    });
    rows
}

fn row(driver: &str, found: &Found, all: bool) -> Option<Row> {
    let (finding, why) = match &found.finding {
        Finding::Orphan(keep_reasons) => ("orphan", keep_reasons.iter().map(ToString::to_string).collect()),
        Finding::Duplicate(key) => ("duplicate", vec![format!("InfraMachine {key} has another VM")]),
        Finding::Frozen(why) => ("frozen", vec![why.clone()]),
        Finding::Owned(key) if all => ("owned", vec![format!("InfraMachine {key}")]),
        Finding::Owned(_) | Finding::Foreign | Finding::SeenOnce => return None,
    };
    let (scope, vm) = (&found.scope, &found.vm);
    Some(Row {
        finding,
        driver: driver.to_owned(),
        namespace: scope.cluster.namespace().to_owned(),
        cluster: scope.cluster.name().to_owned(),
        cluster_id: scope.cluster_id.clone(),
        provider_id: vm.provider_id.to_string(),
        name: vm.machine_name.clone(),
        machine_id: vm.machine_id.clone(),
        created_at: vm.created_at,
        why,
    })
}

fn text(rows: &[Row], now: Timestamp) -> String {
    let titles = [
        "FINDING",
        "DRIVER",
        "NAMESPACE",
        "CLUSTER",
        "NAME",
        "AGE",
        "PROVIDER ID",
        "IDENTITY",
        "WHY",
    ];
    let mut lines = vec![titles.map(str::to_owned)];
    lines.extend(rows.iter().map(|row| {
        [
            row.finding.to_owned(),
            row.driver.clone(),
            row.namespace.clone(),
            row.cluster.clone(),
            or_unknown(&row.name),
            row.created_at
                .map_or_else(unknown, |made| span(now.duration_since(made).as_secs())),
            row.provider_id.clone(),
            row.machine_id.clone().unwrap_or_else(unknown),
            row.why.join("; "),
        ]
    }));
    table(&lines)
}

fn or_unknown(text: &str) -> String {
    if text.is_empty() {
        unknown()
    } else {
        text.to_owned()
    }
}

fn unknown() -> String {
    "<unknown>".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use capcmi::fleet::orphans::owner::{NamespacedName, Scope};
    use capcmi::fleet::orphans::plan::KeepReason;
    use cmi_driver::ListedMachine;

    fn found(name: &str, finding: Finding) -> Found {
        let cluster = key("c");
        Found {
            scope: Scope {
                cluster,
                uid: "u".to_owned(),
                cluster_id: "c-1".to_owned(),
            },
            vm: ListedMachine {
                machine_id: Some("m".to_owned()),
                created_at: Some(Timestamp::UNIX_EPOCH),
                ..ListedMachine::new(format!("sim://{name}").parse().unwrap(), name)
            },
            finding,
        }
    }

    fn key(name: &str) -> NamespacedName {
        NamespacedName::new("ns", name)
    }

    fn scans() -> HashMap<String, Scan> {
        let found = vec![
            found("left", Finding::Orphan(vec![KeepReason::NoIdentity])),
            found("a", Finding::Duplicate(key("a"))),
            found("owned", Finding::Owned(key("owned"))),
            found("theirs", Finding::Foreign),
        ];
        let scan = Scan {
            found,
            failures: vec![],
        };
        [("pool".to_owned(), scan)].into()
    }

    #[test]
    fn orphans_and_duplicates_are_listed_and_owned_vms_on_request() {
        let names = |all| -> Vec<String> { rows(&scans(), all).into_iter().map(|row| row.name).collect() };
        assert_eq!(names(false), ["a", "left"]);
        assert_eq!(names(true), ["a", "left", "owned"]);
    }

    #[test]
    fn a_table_says_whose_vm_it_was_how_old_it_is_and_why_it_is_kept() {
        let now = Timestamp::from_second(7_200).unwrap();
        let text = text(&rows(&scans(), false), now);
        assert_eq!(
            text,
            "FINDING     DRIVER   NAMESPACE   CLUSTER   NAME   AGE   PROVIDER ID   IDENTITY   WHY\n\
             duplicate   pool     ns          c         a      2h    sim://a       m          \
             InfraMachine ns/a has another VM\n\
             orphan      pool     ns          c         left   2h    sim://left    m          \
             the driver does not list the VM's tag capcmi.io/machine\n"
        );
        assert_eq!([span(61), span(86_400 * 9)], ["61s", "9d"]);
    }
}
