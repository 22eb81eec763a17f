//! Deletes the templates and Secrets of a class in an undo.

use std::collections::BTreeSet;

use kube::api::{DynamicObject, ListParams};
use kube::{Client, ResourceExt as _};

use super::{delete_found, list};
use crate::migration::error::WriteError;
use crate::migration::plan::{Class, Destination, Object};
use crate::migration::source::text;
use crate::migration::write::{is_made_from, read};
use capcmi::api::identity::VmRecord;

/// Deletes the template and Secrets of a class, except those that other objects use by now.
pub(super) async fn drop_class(
    client: &Client,
    class: &Class,
    target: &Destination,
    print_line: &impl Fn(&str),
) -> Result<(), WriteError> {
    // A template that stays still needs its Secret.
    let (templates, secrets): (Vec<_>, Vec<_>) = class
        .objects
        .iter()
        .partition(|object| object.kind == "InfraMachineTemplate");
    for objects in [templates, secrets] {
        let used = names_in_use(client, target).await?;
        for object in objects {
            drop_unused(client, object, &used, print_line).await?;
        }
    }
    Ok(())
}

async fn drop_unused(
    client: &Client,
    object: &Object,
    used: &BTreeSet<String>,
    print_line: &impl Fn(&str),
) -> Result<(), WriteError> {
    let Some(found) = read(client, object).await? else {
        return Ok(());
    };
    if !is_made_from(&found, object) {
        return Ok(());
    }
    if used.contains(&object.name) {
        print_line(&format!("kept {object}: newer objects use it"));
    } else if delete_found(client, object, &found).await? {
        print_line(&format!("deleted {object}"));
    }
    Ok(())
}

/// Returns the names of the Secrets and templates that are used in the namespace: by machines, their owners,
/// templates and InfraClusters.
async fn names_in_use(client: &Client, target: &Destination) -> Result<BTreeSet<String>, WriteError> {
    let mut used = BTreeSet::new();
    for kind in [
        "Machine",
        "MachineSet",
        "MachineDeployment",
        "InfraMachine",
        "InfraMachineTemplate",
        "InfraCluster",
    ] {
        let all = list(client, target, kind, &ListParams::default()).await?;
        for found in all
            .into_iter()
            .filter(|found| found.metadata.deletion_timestamp.is_none())
        {
            for place in [
                "/spec/template/spec/infrastructureRef/name",
                "/spec/template/spec/bootstrap/dataSecretName",
                "/spec/template/spec/secretRef/name",
                "/spec/bootstrap/dataSecretName",
                "/spec/secretRef/name",
            ] {
                used.insert(text(&found.data, place));
            }
            used.extend(recorded_secret(&found)?);
        }
    }
    Ok(used)
}

/// Returns the Secret that the VM of an object was created with.
fn recorded_secret(object: &DynamicObject) -> Result<Option<String>, WriteError> {
    let record = VmRecord::carried_by(&object.metadata).map_err(|source| WriteError::Record {
        name: object.name_any(),
        source,
    })?;
    Ok(record.and_then(|record| record.made_from?.secret))
}
