//! Reads the MachineDeployment, its machines and templates.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::core::{Selector, SelectorExt as _};
use kube::{Client, ResourceExt as _};
use serde_json::Value;

use super::PlanArgs;
use super::core_gate;
use super::forecast::{Gathered, template_of};
use capcmi::api::GROUP;
use capcmi::api::cluster_api;
use capcmi::apiserver::dynamic;

/// Label of a Machine: the MachineDeployment that it belongs to.
const DEPLOYMENT_NAME: &str = "cluster.x-k8s.io/deployment-name";

/// Reads the inputs of a forecast.
pub(super) async fn read(client: &Client, namespace: &str, args: &PlanArgs) -> anyhow::Result<Gathered> {
    let core = |kind| dynamic(client, namespace, cluster_api::GROUP, "v1beta2", kind);
    let ours = |kind| dynamic(client, namespace, GROUP, "v1alpha1", kind);
    let name = &args.machinedeployment;
    let deployment = core("MachineDeployment")
        .get(name)
        .await
        .with_context(|| format!("cannot read MachineDeployment {name} in namespace {namespace}"))?;
    let of_it = ListParams::default().labels(&format!("{DEPLOYMENT_NAME}={name}"));
    let all = core("Machine").list(&of_it).await;
    let infra_machines = ours("InfraMachine");
    let mut machines = Vec::new();
    for machine in all.context("cannot list Machines")?.items {
        let reference = &machine.data["spec"]["infrastructureRef"];
        let is_ours = reference["apiGroup"] == GROUP && reference["kind"] == "InfraMachine";
        let infra = match reference["name"].as_str().filter(|_| is_ours) {
            Some(name) => infra_machines
                .get_opt(name)
                .await
                .with_context(|| format!("cannot read InfraMachine {name}"))?,
            None => None,
        };
        machines.push((machine, infra));
    }
    let from = machines
        .iter()
        .filter_map(|(_, infra)| template_of(infra.as_ref()?));
    let names: BTreeSet<_> = from.chain([args.template.as_str()]).map(str::to_owned).collect();
    let mut templates = BTreeMap::new();
    for template in names {
        let found = ours("InfraMachineTemplate").get_opt(&template).await;
        let found = found.with_context(|| format!("cannot read InfraMachineTemplate {template}"))?;
        match found {
            Some(found) => drop(templates.insert(template, found)),
            None if template == args.template => anyhow::bail!(
                "InfraMachineTemplate {template} does not exist in namespace {namespace}: create it first, \
                    which changes no machine"
            ),
            None => {}
        }
    }
    Ok(Gathered {
        deployment,
        templates,
        machines,
        extensions: extensions(client, namespace).await?,
        core_gate: core_gate::read(client).await,
    })
}

/// Counts the extensions that handle CanUpdateMachineSet for a namespace; `None` where the user may not read
/// them, as an administrator may.
async fn extensions(client: &Client, namespace: &str) -> anyhow::Result<Option<usize>> {
    let kind = GroupVersionKind::gvk("runtime.cluster.x-k8s.io", "v1beta2", "ExtensionConfig");
    let configs = Api::<DynamicObject>::all_with(client.clone(), &ApiResource::from_gvk(&kind));
    let listed = permitted(configs.list(&ListParams::default()).await);
    let Some(listed) = listed.context("cannot list ExtensionConfigs")? else {
        return Ok(None);
    };
    let found = permitted(Api::<Namespace>::all(client.clone()).get(namespace).await);
    let Some(namespace) = found.with_context(|| format!("cannot read namespace {namespace}"))? else {
        return Ok(None);
    };
    let of_it = listed
        .items
        .iter()
        .filter(|config| selects(&config.data["spec"]["namespaceSelector"], namespace.labels()));
    let handlers =
        of_it.flat_map(|config| config.data["status"]["handlers"].as_array().into_iter().flatten());
    let of_the_hook = handlers.filter(|handler| handler["requestHook"]["hook"] == "CanUpdateMachineSet");
    Ok(Some(of_the_hook.count()))
}

/// The result of a read; `None` where the API server does not permit it to the user.
fn permitted<T>(read: kube::Result<T>) -> kube::Result<Option<T>> {
    match read {
        Ok(found) => Ok(Some(found)),
        Err(kube::Error::Api(refusal)) if refusal.code == 403 => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a label selector matches these labels. A missing selector matches all, and an unreadable selector
/// matches none.
fn selects(selector: &Value, labels: &BTreeMap<String, String>) -> bool {
    let selector = serde_json::from_value::<Option<LabelSelector>>(selector.clone());
    match selector.map(|selector| Selector::try_from(selector.unwrap_or_default())) {
        Ok(Ok(selector)) => selector.matches(labels),
        Ok(Err(_)) | Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::json;

    use super::*;

    /// An unreachable API server would look like a missing permission for extensions.
    #[test]
    fn a_right_that_is_missing_is_told_from_a_read_that_failed() {
        let refused = |reason, code| {
            let status = Status::failure("no", reason).with_code(code);
            permitted::<()>(Err(kube::Error::Api(status.boxed())))
        };
        assert!(matches!(refused("Forbidden", 403), Ok(None)));
        assert!(refused("ServiceUnavailable", 503).is_err());
        assert!(matches!(permitted(Ok(1)), Ok(Some(1))));
    }

    #[test]
    fn an_extension_counts_for_the_namespaces_that_it_selects() {
        let labels = BTreeMap::from([("team".to_owned(), "a".to_owned())]);
        for (selector, expected) in [
            (Value::Null, true),
            (json!({}), true),
            (json!({"matchLabels": {"team": "a"}}), true),
            (json!({"matchLabels": {"team": "b"}}), false),
            (
                json!({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}),
                false,
            ),
        ] {
            assert_eq!(selects(&selector, &labels), expected, "{selector}");
        }
    }
}
