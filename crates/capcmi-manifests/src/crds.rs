//! CustomResourceDefinitions from the types in [`capcmi::api`].

use kube::CustomResourceExt;
use serde_json::Value;

use super::{Error, File, normalize, yaml};
use capcmi::api::v1alpha1::{
    InfraCluster, InfraClusterTemplate, InfraMachine, InfraMachineRemediation,
    InfraMachineRemediationTemplate, InfraMachineTemplate,
};

/// One file for each kind, named as controller-gen names them.
pub(super) fn files() -> Result<Vec<File>, Error> {
    let file = |definition: Value| {
        let group = definition["spec"]["group"].as_str().unwrap_or_default();
        let plural = definition["spec"]["names"]["plural"].as_str().unwrap_or_default();
        let name = format!("{group}_{plural}.yaml");
        Ok(File::new(name, &[yaml::document(&definition)?]))
    };
    definitions()?.into_iter().map(file).collect()
}

/// The definitions of all kinds.
///
/// # Errors
/// When a definition can't be written as JSON, which would be a defect of this crate.
pub fn definitions() -> Result<Vec<Value>, Error> {
    let derived = [
        serde_json::to_value(InfraMachine::crd())?,
        serde_json::to_value(InfraMachineTemplate::crd())?,
        serde_json::to_value(InfraCluster::crd())?,
        serde_json::to_value(InfraClusterTemplate::crd())?,
        serde_json::to_value(InfraMachineRemediation::crd())?,
        serde_json::to_value(InfraMachineRemediationTemplate::crd())?,
    ];
    let tidied = |mut definition| {
        normalize::schema(&mut definition);
        definition
    };
    Ok(derived.into_iter().map(tidied).collect())
}

#[cfg(test)]
mod tests;
