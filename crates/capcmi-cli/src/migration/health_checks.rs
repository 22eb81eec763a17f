//! MachineHealthChecks of the target. A MachineHealthCheck that sees a Machine before its VM is adopted may
//! have it deleted.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{DynamicObject, ListParams};
use kube::core::{Selector, SelectorExt as _};
use kube::{Client, ResourceExt as _};
use serde::Deserialize;

use super::error::WriteError;
use super::plan::{Destination, Migration};
use super::write::MigrationProgress;
use capcmi::api::{annotations, cluster_api};
use capcmi::apiserver::dynamic;

/// The MachineHealthChecks that are active on Machines of groups that are not done.
#[derive(Debug, PartialEq, Eq)]
pub enum HealthChecks {
    /// Every active MachineHealthCheck; usually none.
    Known(Vec<HealthCheck>),
    /// The API server did not list them: why not.
    Unknown(String),
}

/// A MachineHealthCheck that is not paused and selects Machines.
#[derive(Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// Its name, in the namespace of the Cluster.
    pub name: String,
    /// How many of the Machines it selects.
    pub machines: usize,
}

type Labels = BTreeMap<String, String>;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    cluster_name: String,
    selector: LabelSelector,
}

/// Lists the active MachineHealthChecks. An operator may lack the permission, and a management cluster may
/// not serve this version of the kind. No write depends on the result, so both cases are reported and are not
/// errors.
///
/// # Errors
/// The API server cannot be reached, or fails.
pub async fn health_checks(
    client: &Client,
    migration: &Migration,
    progress: &MigrationProgress,
    target: &Destination,
) -> Result<HealthChecks, WriteError> {
    let machines = machines(migration, progress);
    if machines.is_empty() {
        return Ok(HealthChecks::Known(Vec::new()));
    }
    let kind = "MachineHealthCheck";
    let api = dynamic(client, &target.namespace, cluster_api::GROUP, "v1beta2", kind);
    match api.list(&ListParams::default()).await {
        Ok(all) => {
            let at_work = all.iter().filter_map(|check| at_work(check, &machines, target));
            Ok(HealthChecks::Known(at_work.collect()))
        }
        Err(kube::Error::Api(refused)) if [403, 404].contains(&refused.code) => {
            Ok(HealthChecks::Unknown(refused.message.clone()))
        }
        Err(error) => Err(WriteError::api("listing MachineHealthChecks", error)),
    }
}

/// Returns the labels of the Machines whose VMs may not be adopted yet.
fn machines(migration: &Migration, progress: &MigrationProgress) -> Vec<Labels> {
    let left = migration.groups.iter().filter(|group| !progress.is_done(group));
    left.flat_map(|group| group.of_kind("Machine"))
        .map(|object| Labels::deserialize(&object.body["metadata"]["labels"]).unwrap_or_default())
        .collect()
}

/// Returns the report of a MachineHealthCheck that is active on any of these Machines. An unreadable selector
/// counts as one for all Machines.
fn at_work(check: &DynamicObject, machines: &[Labels], target: &Destination) -> Option<HealthCheck> {
    if check.annotations().contains_key(annotations::PAUSED) {
        return None;
    }
    let spec = Spec::deserialize(&check.data["spec"]);
    if spec
        .as_ref()
        .is_ok_and(|spec| spec.cluster_name != target.cluster)
    {
        return None;
    }
    let selector = spec.ok().and_then(|spec| Selector::try_from(spec.selector).ok());
    let selects = |labels: &&Labels| selector.as_ref().is_none_or(|selector| selector.matches(labels));
    let machines = machines.iter().filter(selects).count();
    (machines > 0).then(|| HealthCheck {
        name: check.name_any(),
        machines,
    })
}
