//! Names of the planned objects.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

use super::Migration;

/// The most characters of the value of a label.
const MAX_LABEL: usize = 63;

/// Reports names that two objects would share, or that are not valid as a label value but must be.
pub fn unfit_names(migration: &Migration) -> Vec<String> {
    let mut problems = Vec::new();
    let mut seen = BTreeMap::new();
    let of_classes = migration.classes.iter().flat_map(|class| {
        let from = format!("{} {}", class.key.kind, class.key.name);
        class.objects.iter().map(move |object| (object, from.clone()))
    });
    // The names of machines are checked where machines are read.
    let of_groups = migration.groups.iter().flat_map(|group| {
        let keepers = group.deployment.iter().chain(&group.set);
        keepers.map(move |object| (object, group.from.clone()))
    });
    for (object, from) in of_classes.chain(of_groups) {
        if let Some(other) = seen.get(&(object.kind, object.name.as_str())) {
            problems.push(format!(
                "{} {} would be created for both {other} and {from}: migrate one namespace at a time, or \
                    rename one of them",
                object.kind, object.name
            ));
        }
        seen.insert((object.kind, object.name.as_str()), from);
        let is_label = ["MachineDeployment", "MachineSet"].contains(&object.kind);
        if is_label && object.name.len() > MAX_LABEL {
            problems.push(format!(
                "{} {}: the name exceeds Cluster API's limit of {MAX_LABEL} characters",
                object.kind, object.name
            ));
        }
    }
    problems
}

/// Returns the name of the MachineSet of a MachineDeployment, which is a label of its machines.
pub fn set_name(deployment: &str) -> String {
    let whole = format!("{deployment}-migrated");
    if whole.len() <= MAX_LABEL {
        return whole;
    }
    let hash = Sha256::digest(deployment);
    let short = hash
        .iter()
        .take(4)
        .fold(0, |all: u32, byte| (all << 8) | u32::from(*byte));
    let end = format!("-{short:08x}-migrated");
    let start: String = deployment.chars().take(MAX_LABEL - end.len()).collect();
    format!("{start}{end}")
}
