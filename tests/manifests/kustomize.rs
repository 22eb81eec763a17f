//! `config/default`, built with `kubectl kustomize`.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use anyhow::{Context as _, Result};
use management_cluster::Programs;
use serde_json::{Value, json};

use crate::objects::{find, output, parse, repository, titles};

/// Kinds without a namespace.
const CLUSTER_SCOPED: [&str; 6] = [
    "Namespace",
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];

async fn default() -> Result<Vec<Value>> {
    build(&repository().join("config/default")).await
}

async fn build(folder: &Path) -> Result<Vec<Value>> {
    let programs = Programs::find().await?;
    parse(&output(
        Command::new(programs.kubectl).arg("kustomize").arg(folder),
    )?)
}

#[tokio::test]
async fn every_object_is_labelled_named_and_placed() -> Result<()> {
    let objects = default().await?;
    for (object, title) in objects.iter().zip(titles(&objects)) {
        let metadata = &object["metadata"];
        assert_eq!(
            metadata["labels"]["cluster.x-k8s.io/provider"], "infrastructure-capcmi-cmi",
            "{title}"
        );
        let kind = object["kind"].as_str().unwrap_or_default();
        if CLUSTER_SCOPED.contains(&kind) {
            assert!(metadata["namespace"].is_null(), "{title}");
        } else {
            assert_eq!(metadata["namespace"], "capcmi-system", "{title}");
        }
        let name = metadata["name"].as_str().unwrap_or_default();
        let definition = kind == "CustomResourceDefinition";
        assert!(definition || name.starts_with("capcmi-"), "{title}");
    }
    Ok(())
}

#[tokio::test]
async fn the_pod_is_restricted() -> Result<()> {
    let objects = default().await?;
    let namespace = find(&objects, "Namespace", "capcmi-system")?;
    assert_eq!(
        namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"],
        "restricted"
    );
    let pod = &find(&objects, "Deployment", "capcmi-controller-manager")?["spec"]["template"]["spec"];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["runAsUser"], 65532);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    let containers = pod["containers"].as_array().expect("containers");
    assert_eq!(containers.len(), 1);
    let container = &containers[0];
    assert_eq!(container["name"], "manager");
    let security = &container["securityContext"];
    assert_eq!(security["allowPrivilegeEscalation"], false);
    assert_eq!(security["readOnlyRootFilesystem"], true);
    assert_eq!(security["capabilities"], json!({"drop": ["ALL"]}));
    assert!(
        pod["volumes"]
            .as_array()
            .expect("volumes")
            .iter()
            .all(|volume| volume["hostPath"].is_null())
    );
    Ok(())
}

/// OPS-13: the binary accepts the Deployment's arguments. It runs like in a Pod, but without a cluster, and
/// stops at the missing drivers file.
#[tokio::test]
async fn the_binary_understands_the_arguments_of_the_deployment() -> Result<()> {
    let objects = default().await?;
    let deployment = find(&objects, "Deployment", "capcmi-controller-manager")?;
    let arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        .as_array()
        .cloned();
    let arguments: Vec<String> = serde_json::from_value(json!(arguments))?;
    let run = Command::new(env!("CARGO_BIN_EXE_capcmi-manager"))
        .args(&arguments)
        .output()?;
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!(run.status.code(), Some(2), "{said}");
    assert!(said.contains("/etc/capcmi/drivers.yaml"), "{said}");
    Ok(())
}

#[tokio::test]
async fn selectors_and_references_meet_what_they_mean() -> Result<()> {
    let objects = default().await?;
    let deployment = find(&objects, "Deployment", "capcmi-controller-manager")?;
    let pod = &deployment["spec"]["template"];
    let labels = pod["metadata"]["labels"].as_object().expect("labels");
    let selects = |selector: &Value| {
        let selector = selector.as_object().expect("a selector");
        !selector.is_empty() && selector.iter().all(|(key, value)| labels.get(key) == Some(value))
    };
    let service = find(&objects, "Service", "capcmi-metrics")?;
    let budget = find(&objects, "PodDisruptionBudget", "capcmi-controller-manager")?;
    assert!(selects(&deployment["spec"]["selector"]["matchLabels"]));
    assert!(selects(&service["spec"]["selector"]));
    assert!(selects(&budget["spec"]["selector"]["matchLabels"]));
    assert_eq!(budget["spec"]["maxUnavailable"], 1);
    // The shipped driver keeps its VMs in memory, so there is one replica: another would find no VMs. With
    // `minAvailable`, the budget would then block node drains.
    assert_eq!(deployment["spec"]["replicas"], 1);
    let drivers = find(&objects, "ConfigMap", "capcmi-drivers")?["data"]["drivers.yaml"].as_str();
    let drivers: Value = serde_saphyr::from_str(drivers.expect("a drivers file"))?;
    assert_eq!(
        drivers["drivers"],
        json!([{"name": "simulated", "simulated": {}}])
    );
    assert!(budget["spec"]["minAvailable"].is_null());

    let pod = &pod["spec"];
    let account = pod["serviceAccountName"].as_str().expect("an account");
    find(&objects, "ServiceAccount", account)?;
    find(
        &objects,
        "ConfigMap",
        pod["volumes"][0]["configMap"]["name"].as_str().expect("a name"),
    )?;
    for binding in ["ClusterRoleBinding", "RoleBinding"] {
        for object in objects.iter().filter(|object| object["kind"] == binding) {
            let subject = json!({"kind": "ServiceAccount", "name": account, "namespace": "capcmi-system"});
            assert_eq!(object["subjects"], json!([subject]));
            let role = &object["roleRef"];
            find(
                &objects,
                role["kind"].as_str().expect("kind"),
                role["name"].as_str().expect("name"),
            )?;
        }
    }
    let ports = pod["containers"][0]["ports"].as_array().expect("ports");
    let named = |name: &Value| ports.iter().any(|port| port["name"] == *name);
    assert!(named(&service["spec"]["ports"][0]["targetPort"]));
    for probe in ["livenessProbe", "readinessProbe"] {
        assert!(named(&pod["containers"][0][probe]["httpGet"]["port"]), "{probe}");
    }
    Ok(())
}

/// Pods of an earlier revision do not count: with them, a rollout put both new replicas on one node.
#[tokio::test]
async fn replicas_of_one_revision_spread_over_nodes() -> Result<()> {
    let objects = default().await?;
    let pod = &find(&objects, "Deployment", "capcmi-controller-manager")?["spec"]["template"];
    let constraint = &pod["spec"]["topologySpreadConstraints"][0];
    assert_eq!(constraint["topologyKey"], "kubernetes.io/hostname");
    assert_eq!(constraint["matchLabelKeys"], json!(["pod-template-hash"]));
    let selected = constraint["labelSelector"]["matchLabels"]
        .as_object()
        .expect("labels");
    for (label, value) in selected {
        assert_eq!(pod["metadata"]["labels"][label], *value, "{label}");
    }
    Ok(())
}

/// Counts everything that is bound to the provider, instead of the table in the code.
#[tokio::test]
async fn the_provider_may_do_little() -> Result<()> {
    let objects = default().await?;
    let bound = [
        "capcmi-admission-role",
        "capcmi-manager-role",
        "capcmi-secrets-role",
    ];
    let mut secret_verbs = Vec::new();
    for role in bound {
        for rule in find(&objects, "ClusterRole", role)?["rules"]
            .as_array()
            .expect("rules")
        {
            let words = rule.to_string();
            assert!(!words.contains('*'), "{role} has a wildcard: {words}");
            if words.contains("\"secrets\"") {
                secret_verbs.push(rule["verbs"].clone());
            }
            if words.contains("admissionregistration.k8s.io") {
                let names = rule["resourceNames"].as_array().expect("names of policies");
                assert!(!names.is_empty());
                for name in names {
                    assert!(
                        name.as_str().is_some_and(|name| name.starts_with("capcmi-")),
                        "{name}"
                    );
                }
            }
        }
    }
    assert_eq!(secret_verbs, [json!(["get"])]);
    let bindings = objects
        .iter()
        .filter(|object| object["kind"] == "ClusterRoleBinding");
    let names: Vec<&Value> = bindings.map(|binding| &binding["roleRef"]["name"]).collect();
    assert_eq!(names, bound, "what is bound in all namespaces");
    Ok(())
}

/// `config/default` with components, and with more lines in its kustomization.
pub async fn composed(components: &[&str], more: &str) -> Result<Vec<Value>> {
    let folder = tempfile::tempdir()?;
    // kustomize accepts only relative paths.
    let up = "../".repeat(folder.path().canonicalize()?.components().count() - 1);
    let config = format!("{up}{}/config", repository().canonicalize()?.display());
    let paths: Vec<_> = components
        .iter()
        .map(|name| format!("{config}/components/{name}"))
        .collect();
    fs::write(
        folder.path().join("kustomization.yaml"),
        format!(
            "resources: [{config}/default]\ncomponents: [{}]\n{more}",
            paths.join(", ")
        ),
    )?;
    build(folder.path()).await
}

#[tokio::test]
async fn secrets_can_be_granted_namespace_by_namespace() -> Result<()> {
    let titles = titles(&composed(&["namespaced-secrets"], "").await?);
    assert!(titles.contains(&"ClusterRole capcmi-secrets-role".to_owned()));
    assert!(!titles.contains(&"ClusterRoleBinding capcmi-secrets-rolebinding".to_owned()));
    Ok(())
}

/// The documented example mounts the Secret at the path in the drivers file.
#[tokio::test]
async fn credentials_of_a_driver_are_mounted_where_the_drivers_file_says() -> Result<()> {
    let page = fs::read_to_string(repository().join("docs/how-to/multi-tenancy.md"))?;
    let (_, section) = page
        .split_once("### Credentials of a driver\n")
        .expect("the section");
    let (_, rest) = section
        .split_once("<!-- tested: kustomization -->\n\n```yaml\n")
        .expect("a kustomization");
    let (written, _) = rest.split_once("```").expect("its end");
    let (_, more) = written.split_once("?ref=v0.1.0\n").expect("what follows");
    let objects = composed(&[], more).await?;
    let drivers = find(&objects, "ConfigMap", "capcmi-drivers")?["data"]["drivers.yaml"].as_str();
    let pod = &find(&objects, "Deployment", "capcmi-controller-manager")?["spec"]["template"]["spec"];
    let mounts = pod["containers"][0]["volumeMounts"].as_array().expect("mounts");
    let mount = mounts
        .iter()
        .find(|mount| mount["name"] == "ours-credentials")
        .expect("the mount");
    let path = mount["mountPath"].as_str().expect("a path");
    assert!(drivers.is_some_and(|drivers| drivers.contains(&format!("credentials: {{directory: {path}}}"))));
    assert_eq!(mount["readOnly"], true);
    let volumes = pod["volumes"].as_array().expect("volumes");
    let volume = volumes
        .iter()
        .find(|volume| volume["name"] == "ours-credentials")
        .expect("the volume");
    assert_eq!(volume["secret"]["secretName"], "ours-credentials");
    assert!(volumes.len() > 1, "the volumes that are shipped are gone");
    Ok(())
}

/// The settings in a user's kustomization take effect, even if the next version ships others.
#[tokio::test]
async fn drivers_and_replicas_of_a_kustomization_are_what_is_applied() -> Result<()> {
    let page = fs::read_to_string(repository().join("docs/how-to/install.md"))?;
    let (_, rest) = page
        .split_once("<!-- tested: kustomization -->\n\n```yaml\n")
        .expect("a kustomization");
    let (written, _) = rest.split_once("```").expect("its end");
    let (_, more) = written.split_once("resources:").expect("resources");
    let (_, more) = more
        .trim_start_matches('\n')
        .split_once('\n')
        .expect("what follows");
    let objects = composed(&[], more).await?;
    let drivers = find(&objects, "ConfigMap", "capcmi-drivers")?["data"]["drivers.yaml"].as_str();
    let drivers = drivers.expect("a drivers file");
    assert!(
        drivers.contains("grpc") && !drivers.contains("simulated"),
        "{drivers}"
    );
    let deployment = find(&objects, "Deployment", "capcmi-controller-manager")?;
    assert_eq!(deployment["spec"]["replicas"], 2);
    Ok(())
}

/// The documented example adds to the driver's container, and keeps everything from the component.
#[tokio::test]
async fn a_sidecar_is_given_variables_secrets_and_volumes_of_its_own() -> Result<()> {
    let page = fs::read_to_string(repository().join("docs/drivers/deployment.md"))?;
    let (_, rest) = page
        .split_once("<!-- tested: kustomization -->\n\n```yaml\n")
        .expect("a kustomization");
    let (written, _) = rest.split_once("```").expect("its end");
    let (_, more) = written
        .split_once("components/driver-sidecar?ref=v0.1.0\n")
        .expect("what follows");
    let objects = composed(&["driver-sidecar"], more).await?;
    let pod = &find(&objects, "Deployment", "capcmi-controller-manager")?["spec"]["template"]["spec"];
    let sidecars = pod["initContainers"].as_array().expect("a sidecar");
    assert_eq!(sidecars.len(), 1, "{sidecars:?}");
    let sidecar = &sidecars[0];
    assert_eq!(sidecar["image"], "registry.example.com/my-driver:v0.1.0");
    assert_eq!(sidecar["restartPolicy"], "Always");
    assert_eq!(sidecar["args"], json!(["--region=eu-1"]));
    assert_eq!(sidecar["securityContext"]["readOnlyRootFilesystem"], true);
    assert_eq!(sidecar["resources"]["limits"]["memory"], "512Mi");
    assert_eq!(sidecar["resources"]["requests"]["memory"], "64Mi");
    let names = |list: &Value, key: &str| -> BTreeSet<String> {
        let all = list.as_array().expect("a list").iter();
        all.map(|each| each[key].as_str().expect("a name").to_owned())
            .collect()
    };
    let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
    let variables = set(&["CMI_ENDPOINT", "MY_DRIVER_API", "MY_DRIVER_PROJECT"]);
    assert_eq!(names(&sidecar["env"], "name"), variables);
    let mounts = names(&sidecar["volumeMounts"], "name");
    assert_eq!(mounts, set(&["driver-socket", "my-driver-ca", "my-driver-tmp"]));
    let volumes = names(&pod["volumes"], "name");
    assert!(volumes.is_superset(&mounts), "{volumes:?}");
    let manager = names(&pod["containers"][0]["volumeMounts"], "name");
    assert!(
        manager.contains("driver-socket") && !manager.contains("my-driver-ca"),
        "{manager:?}"
    );
    Ok(())
}

/// Returns the Pods of a driver's kustomizations: the provider's with the driver beside it, and the driver's.
async fn deployed(sidecar: &Path, remote: &Path) -> Result<[Value; 2]> {
    let parts = |path: &Path, last: &str| -> Result<String> {
        let text = fs::read_to_string(repository().join(path))?;
        let (_, more) = text
            .split_once(&format!("components/{last}?ref=v0.1.0\n"))
            .context("components")?;
        Ok(more.to_owned())
    };
    let pod = |objects: &[Value], name: &str| -> Result<Value> {
        Ok(find(objects, "Deployment", name)?["spec"]["template"]["spec"].clone())
    };
    let beside = composed(&["driver-sidecar"], &parts(sidecar, "driver-sidecar")?).await?;
    let components = ["driver-remote", "driver-deployment"];
    let apart = composed(&components, &parts(remote, "driver-deployment")?).await?;
    Ok([
        pod(&beside, "capcmi-controller-manager")?,
        pod(&apart, "capcmi-driver")?,
    ])
}

fn variables(container: &Value) -> BTreeSet<&str> {
    let variables = container["env"].as_array();
    variables
        .into_iter()
        .flatten()
        .filter_map(|variable| variable["name"].as_str())
        .collect()
}

/// The variables of a driver on the kit for Go behind TLS.
const TLS_VARIABLES: [&str; 3] = [
    "CAPCMI_TLS_CERT_FILE",
    "CAPCMI_TLS_KEY_FILE",
    "CAPCMI_CLIENT_CA_FILE",
];

/// The skeletons of `capcmi driver new` deploy a driver in both ways.
#[tokio::test]
async fn the_skeleton_of_a_driver_is_deployed_in_both_ways() -> Result<()> {
    let folder = Path::new("crates/capcmi-cli/src/commands/driver/new/deploy");
    let [beside, apart] = deployed(&folder.join("sidecar.yaml"), &folder.join("remote.yaml")).await?;
    let container = &beside["initContainers"][0];
    assert_eq!(container["image"], "registry.example.com/acme:v0.1.0");
    assert_eq!(container["envFrom"][0]["secretRef"]["name"], "acme");
    assert!(variables(container).is_superset(&["CMI_ENDPOINT", "ACME_FOLDER"].into()));

    let container = &apart["containers"][0];
    assert_eq!(container["image"], "registry.example.com/acme:v0.1.0");
    let variables = variables(container);
    assert!(variables.is_superset(&TLS_VARIABLES.into()));
    assert!(
        !variables.iter().any(|name| name.starts_with("EC2_")),
        "{variables:?}"
    );
    Ok(())
}

#[tokio::test]
async fn the_vsphere_driver_is_deployed_in_both_ways() -> Result<()> {
    let folder = Path::new("drivers/vsphere/deploy");
    let file = |name: &str| folder.join(name).join("kustomization.yaml");
    let [beside, apart] = deployed(&file("sidecar"), &file("remote")).await?;
    for (pod, container) in [
        (&beside, &beside["initContainers"][0]),
        (&apart, &apart["containers"][0]),
    ] {
        assert_eq!(container["image"], "registry.example.com/vsphere-driver:v0.1.0");
        assert!(variables(container).contains("VSPHERE_DRIVER_CONFIG"));
        let mounts = container["volumeMounts"].as_array().expect("mounts");
        assert!(mounts.iter().any(|mount| mount["mountPath"] == "/etc/vsphere"));
        let volumes = pod["volumes"].as_array().expect("volumes");
        assert!(
            volumes
                .iter()
                .any(|volume| volume["configMap"]["name"] == "vsphere-driver")
        );
    }
    assert!(variables(&apart["containers"][0]).is_superset(&TLS_VARIABLES.into()));
    Ok(())
}
