//! Objects around the rules in [`super::rbac`].

use std::fmt::Write;

use capcmi::admission::policies;
use serde_json::{Map, Value, json};

use super::{
    Error, File, NAME_PREFIX, NAMESPACE, PROVIDER, PROVIDER_LABEL,
    rbac::{self, Rule},
    yaml,
};

/// Every file of `config/rbac` but the kustomization.
pub(super) fn files() -> Result<Vec<File>, Error> {
    Ok(vec![
        File::new("namespace.yaml", &[namespace()?]),
        File::new("service_account.yaml", &[service_account()?]),
        File::new(
            "manager_role.yaml",
            &[
                role("ClusterRole", "manager-role", None, rbac::PROVIDER)?,
                binding("ClusterRole", "manager-role")?,
            ],
        ),
        File::new(
            "secrets_role.yaml",
            &[
                role("ClusterRole", "secrets-role", None, rbac::SECRETS)?,
                binding("ClusterRole", "secrets-role")?,
            ],
        ),
        File::new(
            "leader_election_role.yaml",
            &[
                role("Role", "leader-election-role", None, rbac::LEADER_ELECTION)?,
                binding("Role", "leader-election-role")?,
            ],
        ),
        File::new(
            "admission_role.yaml",
            &[admission_role()?, binding("ClusterRole", "admission-role")?],
        ),
        File::new(
            "aggregated_role.yaml",
            &[
                role(
                    "ClusterRole",
                    "capi-aggregated-role",
                    Some("cluster.x-k8s.io/aggregate-to-manager"),
                    rbac::CLUSTER_API,
                )?,
                role(
                    "ClusterRole",
                    "kubeadm-control-plane-aggregated-role",
                    Some("kubeadm.controlplane.cluster.x-k8s.io/aggregate-to-manager"),
                    rbac::KUBEADM_CONTROL_PLANE,
                )?,
                role(
                    "ClusterRole",
                    "hosted-control-plane-aggregated-role",
                    Some("controlplane.cluster.x-k8s.io/aggregate-to-manager"),
                    rbac::HOSTED_CONTROL_PLANE,
                )?,
            ],
        ),
        File::new(
            "user_roles.yaml",
            &[
                role(
                    "ClusterRole",
                    "view",
                    Some("rbac.authorization.k8s.io/aggregate-to-view"),
                    rbac::VIEW,
                )?,
                role(
                    "ClusterRole",
                    "edit",
                    Some("rbac.authorization.k8s.io/aggregate-to-edit"),
                    rbac::EDIT,
                )?,
            ],
        ),
        File::new("metrics_reader_role.yaml", &[metrics_reader()?]),
    ])
}

/// The file of `config/components/remediation` beside the kustomization.
pub(super) fn remediation_files() -> Result<Vec<File>, Error> {
    let aggregated = |name: &str, to: &str, rules| role("ClusterRole", name, Some(to), rules);
    let documents = [
        role("ClusterRole", "remediation-role", None, rbac::REMEDIATION)?,
        binding("ClusterRole", "remediation-role")?,
        aggregated(
            "capi-remediation-aggregated-role",
            "cluster.x-k8s.io/aggregate-to-manager",
            rbac::REMEDIATION_CLUSTER_API,
        )?,
        aggregated(
            "remediation-view",
            "rbac.authorization.k8s.io/aggregate-to-view",
            rbac::REMEDIATION_VIEW,
        )?,
        aggregated(
            "remediation-edit",
            "rbac.authorization.k8s.io/aggregate-to-edit",
            rbac::REMEDIATION_EDIT,
        )?,
    ];
    Ok(vec![File::new("roles.yaml", &documents)])
}

/// The file of `config/components/volume-drain` beside the kustomization.
pub(super) fn volume_drain_files() -> Result<Vec<File>, Error> {
    let documents = [
        role("ClusterRole", "volume-drain-role", None, rbac::VOLUME_DRAIN)?,
        binding("ClusterRole", "volume-drain-role")?,
    ];
    Ok(vec![File::new("role.yaml", &documents)])
}

/// Returns name, label and, for a namespaced kind, the namespace.
fn metadata(kind: &str, name: &str) -> Value {
    let mut metadata = json!({
        "name": format!("{NAME_PREFIX}{name}"),
        "labels": {PROVIDER_LABEL: PROVIDER},
    });
    if !kind.starts_with("Cluster") {
        metadata["namespace"] = json!(NAMESPACE);
    }
    metadata
}

/// Returns the namespace, with the strictest of the Pod Security Standards, which the provider's Pod meets.
fn namespace() -> Result<String, Error> {
    let restricted = |mode: &str| (format!("pod-security.kubernetes.io/{mode}"), json!("restricted"));
    let mut labels: Map<String, Value> = ["enforce", "audit", "warn"].map(restricted).into_iter().collect();
    labels.insert(PROVIDER_LABEL.to_owned(), json!(PROVIDER));
    yaml::document(&json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": NAMESPACE, "labels": labels},
    }))
}

fn service_account() -> Result<String, Error> {
    yaml::document(&json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata("ServiceAccount", "manager"),
    }))
}

/// A role with the reason above each of its rules.
fn role(kind: &str, name: &str, aggregate_to: Option<&str>, rules: &[Rule]) -> Result<String, Error> {
    let mut metadata = metadata(kind, name);
    if let Some(label) = aggregate_to {
        metadata["labels"][label] = json!("true");
    }
    let mut text = yaml::document(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": metadata,
    }))?;
    text.push_str("rules:\n");
    for rule in rules {
        let list = |items: &[&str]| serde_json::to_string(items);
        let (group, resources, verbs) = (list(&[rule.group])?, list(rule.resources)?, list(rule.verbs)?);
        // Writing to a String can't fail.
        let _ = write!(
            text,
            "# {}\n- apiGroups: {group}\n  resources: {resources}\n  verbs: {verbs}\n",
            rule.why
        );
    }
    Ok(text)
}

/// [`rbac::ADMISSION`] for the policies of this installation alone.
fn admission_role() -> Result<String, Error> {
    let mut names: Vec<String> = policies::all()
        .iter()
        .filter_map(|object| object["metadata"]["name"].as_str().map(str::to_owned))
        .collect();
    names.sort();
    names.dedup();
    let names = serde_json::to_string(&names)?;
    let role = role("ClusterRole", "admission-role", None, rbac::ADMISSION)?;
    Ok(role.replace("  verbs: ", &format!("  resourceNames: {names}\n  verbs: ")))
}

fn binding(role_kind: &str, role: &str) -> Result<String, Error> {
    let kind = format!("{role_kind}Binding");
    yaml::document(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": metadata(&kind, &format!("{role}binding")),
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": role_kind,
            "name": format!("{NAME_PREFIX}{role}"),
        },
        "subjects": [{
            "kind": "ServiceAccount",
            "name": format!("{NAME_PREFIX}manager"),
            "namespace": NAMESPACE,
        }],
    }))
}

fn metrics_reader() -> Result<String, Error> {
    yaml::document(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": metadata("ClusterRole", "metrics-reader"),
        "rules": [{"nonResourceURLs": rbac::METRICS_PATHS, "verbs": ["get"]}],
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verbs_on(rules: &[Rule], resource: &str) -> Vec<&'static str> {
        let granting = rules.iter().filter(|rule| rule.resources.contains(&resource));
        granting.flat_map(|rule| rule.verbs).copied().collect()
    }

    #[test]
    fn secrets_are_read_by_name_and_nothing_else() {
        assert_eq!(verbs_on(rbac::SECRETS, "secrets"), ["get"]);
        for rules in [
            rbac::PROVIDER,
            rbac::LEADER_ELECTION,
            rbac::CLUSTER_API,
            rbac::KUBEADM_CONTROL_PLANE,
            rbac::HOSTED_CONTROL_PLANE,
            rbac::VIEW,
            rbac::EDIT,
        ] {
            assert!(verbs_on(rules, "secrets").is_empty());
        }
    }

    #[test]
    fn no_rule_has_a_wildcard() {
        let all = [
            rbac::PROVIDER,
            rbac::LEADER_ELECTION,
            rbac::CLUSTER_API,
            rbac::KUBEADM_CONTROL_PLANE,
            rbac::HOSTED_CONTROL_PLANE,
            rbac::VIEW,
            rbac::EDIT,
            rbac::VOLUME_DRAIN,
        ];
        for rule in all.into_iter().flatten() {
            let words = [&[rule.group], rule.resources, rule.verbs].concat();
            assert!(words.iter().all(|word| !word.contains('*')), "{rule:?}");
        }
    }

    #[test]
    fn only_the_provider_may_write_identities() {
        let identity = format!("inframachines/{}", rbac::IDENTITY);
        assert_eq!(verbs_on(rbac::PROVIDER, &identity), ["update"]);
        for rules in [
            rbac::CLUSTER_API,
            rbac::KUBEADM_CONTROL_PLANE,
            rbac::HOSTED_CONTROL_PLANE,
            rbac::VIEW,
            rbac::EDIT,
        ] {
            assert!(verbs_on(rules, &identity).is_empty());
        }
    }
}
