//! Prints a migration for an operator.

use std::fmt::Write as _;

use crate::migration::health_checks::{HealthCheck, HealthChecks};
use crate::migration::plan::{Destination, Migration, Object};
use crate::migration::write::MigrationProgress;
use capcmi::api::annotations;
use capcmi::manager::cli::terminal::printable;

/// Lists the objects to create, the existing objects, and possible obstacles to the migration.
pub(super) fn described(
    migration: &Migration,
    progress: &MigrationProgress,
    target: &Destination,
    checks: &HealthChecks,
) -> String {
    let groups = migration.groups.iter();
    let vms = groups.flat_map(|group| group.of_kind("InfraMachine")).count();
    let mut text = format!(
        "Cluster {}/{}, driver {}: {vms} VMs are adopted\n",
        target.namespace, target.cluster, target.driver
    );
    let line = |object: &Object| {
        let what = if progress.has(object) {
            "exists  "
        } else {
            "create  "
        };
        let colon = if object.note.is_empty() { "" } else { ": " };
        format!("{what} {object}{colon}{}", object.note)
    };
    let classes = migration.classes.iter();
    for class in classes.filter(|class| progress.needs(migration, &class.key)) {
        let from = format!("{} {}", class.key.kind, class.key.name);
        headed(&mut text, &from, class.objects.iter(), line);
    }
    for group in &migration.groups {
        if progress.is_done(group) {
            let _infallible = writeln!(text, "\n{}: already migrated", printable(&group.from));
            for machine in progress.unknown(group) {
                let _infallible = writeln!(
                    text,
                    "  note: Machine {} has no InfraMachine: it was deleted, or created after the \
                        migration; files do not show which",
                    printable(machine)
                );
            }
            continue;
        }
        headed(&mut text, &group.from, group.objects(), line);
        for note in &group.notes {
            let _infallible = writeln!(text, "  note: {}", printable(note));
        }
    }
    write_health_checks(&mut text, checks, target);
    text
}

/// Writes the advice about MachineHealthChecks.
fn write_health_checks(text: &mut String, checks: &HealthChecks, target: &Destination) {
    let all = match checks {
        HealthChecks::Known(all) => all,
        HealthChecks::Unknown(why) => {
            let _infallible = writeln!(
                text,
                "\nnote: keep MachineHealthChecks from selecting these Machines until they are Running; \
                    cannot check whether one does: {}",
                printable(why)
            );
            return;
        }
    };
    for HealthCheck { name, machines } in all {
        let name = printable(name);
        let _infallible = writeln!(
            text,
            "\nwarning: MachineHealthCheck {name} selects Machines of this migration ({machines}) and is \
                not paused: it may delete one, and drain its Node, before its VM is adopted. Pause it, and \
                remove the annotation when all Machines are Running:\n  kubectl annotate machinehealthcheck \
                --namespace {} {name} {}=",
            printable(&target.namespace),
            annotations::PAUSED
        );
    }
}

/// Writes a heading for `from`, and a line for each object that takes, or has taken, its place.
pub(super) fn headed<'a>(
    text: &mut String,
    from: &str,
    objects: impl Iterator<Item = &'a Object>,
    line: impl Fn(&Object) -> String,
) {
    let _infallible = writeln!(text, "\n{}", printable(from));
    for object in objects {
        let _infallible = writeln!(text, "  {}", printable(&line(object)));
    }
}

/// Formats problems as the end of an error, one in each line.
pub(super) fn listed(problems: &[String]) -> String {
    let lines = problems
        .iter()
        .map(|problem| format!("\n  {}", printable(problem)));
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(checks: &HealthChecks) -> String {
        let target = Destination {
            namespace: "ns".to_owned(),
            cluster: "c".to_owned(),
            driver: "d".to_owned(),
            bootstrap_secret: None,
            secrets_of_other_namespaces: false,
        };
        let mut text = String::new();
        write_health_checks(&mut text, checks, &target);
        text
    }

    #[test]
    fn health_checks_are_printed_with_commands_or_as_unknown() {
        assert_eq!(printed(&HealthChecks::Known(Vec::new())), "");
        let check = |name: &str| HealthCheck {
            name: name.to_owned(),
            machines: 2,
        };
        let known = printed(&HealthChecks::Known(vec![check("a"), check("b")]));
        for name in ["a", "b"] {
            let command = format!("--namespace ns {name} cluster.x-k8s.io/paused=\n");
            assert!(known.contains(&command), "{known}");
        }
        let unknown = printed(&HealthChecks::Unknown("for\nbidden".to_owned()));
        assert!(
            unknown.trim().lines().count() == 1 && unknown.contains("bidden"),
            "{unknown}"
        );
    }
}
