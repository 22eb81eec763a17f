//! A migration as a person reads it.

use std::fmt::Write as _;

use crate::cli::terminal::printable;
use crate::migration::plan::{Migration, Object, Target};
use crate::migration::write::Survey;

/// What is made, and what is there already.
pub(super) fn described(migration: &Migration, survey: &Survey, target: &Target) -> String {
    let vms = migration.groups.iter().flat_map(|group| &group.machines);
    let vms = vms.filter(|object| object.kind == "InfraMachine").count();
    let mut text = format!(
        "Cluster {}/{}, driver {}: {vms} VMs are adopted\n",
        target.namespace, target.cluster, target.driver
    );
    for class in migration
        .classes
        .iter()
        .filter(|class| survey.needs(migration, &class.key))
    {
        headed(
            &mut text,
            &format!("{} {}", class.key.kind, class.key.name),
            class.objects.iter(),
            survey,
        );
    }
    for group in &migration.groups {
        if survey.is_done(group) {
            let _infallible = writeln!(text, "\n{}: migrated before", printable(&group.from));
            for machine in survey.unknown(group) {
                let _infallible = writeln!(
                    text,
                    "  note: Machine {} has no InfraMachine: it was deleted since, or came later and is not \
                        migrated; in files no mark tells",
                    printable(machine)
                );
            }
            continue;
        }
        headed(&mut text, &group.from, group.objects(), survey);
        for note in &group.notes {
            let _infallible = writeln!(text, "  note: {}", printable(note));
        }
    }
    text
}

fn headed<'a>(text: &mut String, from: &str, objects: impl Iterator<Item = &'a Object>, survey: &Survey) {
    let _infallible = writeln!(text, "\n{}", printable(from));
    for object in objects {
        let what = if survey.has(object) {
            "is there"
        } else {
            "create  "
        };
        let note = if object.note.is_empty() {
            String::new()
        } else {
            format!(": {}", object.note)
        };
        let line = format!("{} {}{note}", object.kind, object.name);
        let _infallible = writeln!(text, "  {what} {}", printable(&line));
    }
}
