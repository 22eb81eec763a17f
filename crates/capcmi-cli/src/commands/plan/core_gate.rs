//! Reads whether Cluster API's core manager has enabled the feature gates for in-place updates.

use anyhow::Context as _;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Client;
use kube::api::Api;

/// Where clusterctl and the operator of Cluster API install core.
const NAMESPACE: &str = "capi-system";
const DEPLOYMENT: &str = "capi-controller-manager";
const FLAG: &str = "--feature-gates";
/// The gates that all have to be on.
const GATES: [&str; 2] = ["RuntimeSDK", "InPlaceUpdates"];

/// The state of the gates, as core's Deployment sets them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CoreGate {
    /// All are on.
    On,
    /// This gate is off.
    Off(&'static str),
    /// The state is unknown, for this reason.
    Unknown(String),
}

/// Reads the gates from core's Deployment. An administrator may read it; a user of one namespace may not.
pub(super) async fn read(client: &Client) -> CoreGate {
    let deployments = Api::<Deployment>::namespaced(client.clone(), NAMESPACE);
    let read = deployments.get_opt(DEPLOYMENT).await;
    match read.with_context(|| format!("cannot read Deployment {NAMESPACE}/{DEPLOYMENT}")) {
        Ok(Some(deployment)) => of(&arguments(deployment)),
        Ok(None) => CoreGate::Unknown(format!("Deployment {NAMESPACE}/{DEPLOYMENT} does not exist")),
        Err(error) => CoreGate::Unknown(format!("{error:#}")),
    }
}

fn arguments(deployment: Deployment) -> Vec<String> {
    let pod = deployment.spec.and_then(|spec| spec.template.spec);
    let containers = pod.into_iter().flat_map(|pod| pod.containers);
    containers
        .flat_map(|container| container.command.into_iter().chain(container.args))
        .flatten()
        .collect()
}

/// Reads the gates from arguments. A disabled gate decides, even if the other gate is unknown.
fn of(arguments: &[String]) -> CoreGate {
    let mut unknown = None;
    for gate in GATES {
        match last(arguments, gate).map(|value| (value, boolean(value))) {
            Some((_, Some(true))) => {}
            Some((_, Some(false))) => return CoreGate::Off(gate),
            Some((value, None)) => {
                unknown = Some(format!("Cluster API's core Deployment has {gate}={value}"));
            }
            // The default depends on core's version.
            None => unknown = Some(format!("Cluster API's core Deployment does not set {gate}")),
        }
    }
    unknown.map_or(CoreGate::On, CoreGate::Unknown)
}

/// Returns the value of a gate. If it is repeated, the last value counts, as in the manager.
fn last<'a>(arguments: &'a [String], gate: &str) -> Option<&'a str> {
    let following = arguments
        .iter()
        .skip(1)
        .map(String::as_str)
        .map(Some)
        .chain([None]);
    let flags = arguments.iter().zip(following).filter_map(|(argument, next)| {
        let rest = argument.strip_prefix(FLAG)?;
        if rest.is_empty() {
            next
        } else {
            rest.strip_prefix('=')
        }
    });
    flags
        .flat_map(|gates| gates.split(','))
        .filter_map(|pair| pair.split_once('='))
        .filter(|(name, _)| name.trim() == gate)
        .map(|(_, value)| value.trim())
        .last()
}

/// Parses a value as Go's `strconv.ParseBool` does.
fn boolean(value: &str) -> Option<bool> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(arguments: &[&str]) -> CoreGate {
        of(&arguments.iter().map(|&one| one.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_gate_that_is_off_is_named_and_the_last_value_counts() {
        let on = "--feature-gates=MachinePool=false,RuntimeSDK=true,InPlaceUpdates=true";
        assert_eq!(gate(&["--leader-elect", on]), CoreGate::On);
        assert_eq!(
            gate(&[on, "--feature-gates=InPlaceUpdates=false"]),
            CoreGate::Off("InPlaceUpdates")
        );
        assert_eq!(gate(&["--feature-gates=InPlaceUpdates=0", on]), CoreGate::On);
        assert_eq!(
            gate(&["--feature-gates", "RuntimeSDK=False, InPlaceUpdates=true"]),
            CoreGate::Off("RuntimeSDK")
        );
        assert_eq!(
            gate(&["--feature-gates=InPlaceUpdates=f"]),
            CoreGate::Off("InPlaceUpdates")
        );
    }

    #[test]
    fn a_gate_that_is_not_set_or_has_no_such_value_is_unknown() {
        for arguments in [
            &[][..],
            &["--feature-gates"],
            &["--feature-gates=RuntimeSDK=true"],
            &["--feature-gates=RuntimeSDK=true,InPlaceUpdates=$(GATE)"],
            &["--feature-gates-file=RuntimeSDK=true,InPlaceUpdates=false"],
        ] {
            assert!(matches!(gate(arguments), CoreGate::Unknown(_)), "{arguments:?}");
        }
    }
}
