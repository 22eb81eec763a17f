//! The components that put a driver beside the provider, as `kubectl kustomize` builds them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use capcmi_manifests::rbac::METRICS_PATHS;
use serde_json::{Value, json};

use crate::api_server::would_take;
use crate::kustomize::composed;
use crate::objects::{find, output};

const IMAGE: &str = "images: [{name: driver, newName: registry.example.com/my-driver, newTag: v0.1.0}]\n";

/// The Pod of a Deployment.
fn pod<'a>(objects: &'a [Value], deployment: &str) -> Result<&'a Value> {
    Ok(&find(objects, "Deployment", deployment)?["spec"]["template"]["spec"])
}

/// The object with this name in a list.
fn named<'a>(list: &'a Value, name: &str) -> Result<&'a Value> {
    let mut items = list.as_array().into_iter().flatten();
    items
        .find(|item| item["name"] == name)
        .with_context(|| format!("no {name} in {list}"))
}

/// Where a container sees a volume.
fn mounted<'a>(container: &'a Value, volume: &str) -> Result<&'a Path> {
    let path = named(&container["volumeMounts"], volume)?["mountPath"].as_str();
    Ok(Path::new(path.context("a path")?))
}

/// Where a container finds the credentials of the Pod's ServiceAccount.
const API_ACCESS: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Whether a container sees the token of the ServiceAccount.
fn has_api_access(container: &Value) -> bool {
    let mut mounts = container["volumeMounts"].as_array().into_iter().flatten();
    mounts.any(|mount| mount["name"] == "api-access" || mount["mountPath"] == API_ACCESS)
}

/// The one driver of the drivers file.
fn driver(objects: &[Value]) -> Result<Value> {
    let text = find(objects, "ConfigMap", "capcmi-drivers")?["data"]["drivers.yaml"].as_str();
    let file: Value = serde_saphyr::from_str(text.context("a drivers file")?)?;
    ensure!(
        file["drivers"].as_array().is_some_and(|all| all.len() == 1),
        "{file}"
    );
    Ok(file["drivers"][0].clone())
}

/// Checks a drivers file with the binary.
fn check(driver: &Value) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("drivers.yaml");
    std::fs::write(&path, json!({"drivers": [driver]}).to_string())?;
    let mut command = Command::new(testbed::program("capcmi")?);
    output(
        command
            .args(["drivers", "check", "--offline", "--drivers-config"])
            .arg(&path),
    )?;
    Ok(())
}

fn is_restricted(container: &Value) -> bool {
    let security = &container["securityContext"];
    security["allowPrivilegeEscalation"] == false
        && security["readOnlyRootFilesystem"] == true
        && security["runAsNonRoot"] == true
        && security["capabilities"] == json!({"drop": ["ALL"]})
        && security["seccompProfile"]["type"] == "RuntimeDefault"
}

/// OPS-07, OPS-16, CMI-156, CMI-166, CMI-167, CMI-178, CMI-191: both containers of the Pod know the socket
/// by the same path.
#[tokio::test]
async fn a_sidecar_and_the_provider_meet_at_a_socket() -> Result<()> {
    let objects = composed(&["driver-sidecar"], IMAGE).await?;
    let pod = pod(&objects, "capcmi-controller-manager")?;
    let sidecar = named(&pod["initContainers"], "driver")?;
    let manager = named(&pod["containers"], "manager")?;
    // An init container that restarts is a sidecar: it starts before the manager and ends after it.
    ensure!(sidecar["restartPolicy"] == "Always", "{sidecar}");
    ensure!(sidecar["image"] == "registry.example.com/my-driver:v0.1.0");
    ensure!(is_restricted(sidecar), "{sidecar}");
    let entry = driver(&objects)?;
    let endpoint = &entry["grpc"]["endpoint"];
    ensure!(
        *endpoint == named(&sidecar["env"], "CMI_ENDPOINT")?["value"],
        "{entry}"
    );
    let socket = endpoint.as_str().and_then(|text| text.strip_prefix("unix://"));
    let folder = Path::new(socket.context("a socket")?).parent();
    for container in [sidecar, manager] {
        ensure!(
            Some(mounted(container, "driver-socket")?) == folder,
            "{container}"
        );
    }
    ensure!(named(&pod["volumes"], "driver-socket")?["emptyDir"].is_object());
    // The manager keeps its other mounts.
    ensure!(mounted(manager, "drivers")? == Path::new("/etc/capcmi"));
    check(&entry)?;
    let deployment = find(&objects, "Deployment", "capcmi-controller-manager")?;
    would_take(std::slice::from_ref(deployment)).await
}

/// A driver has no access to the API server, and none of the provider's permissions.
#[tokio::test]
async fn the_token_of_the_provider_is_the_managers_alone() -> Result<()> {
    let objects = composed(&["driver-sidecar"], IMAGE).await?;
    let pod = pod(&objects, "capcmi-controller-manager")?;
    // Kubernetes would mount one into every container.
    ensure!(pod["automountServiceAccountToken"] == false, "{pod}");
    ensure!(!has_api_access(named(&pod["initContainers"], "driver")?));
    let manager = named(&pod["containers"], "manager")?;
    ensure!(mounted(manager, "api-access")? == Path::new(API_ACCESS));
    let volume = &named(&pod["volumes"], "api-access")?["projected"]["sources"];
    for file in ["token", "ca.crt", "namespace"] {
        ensure!(
            volume.to_string().contains(&format!("\"path\":\"{file}\"")),
            "{volume}"
        );
    }
    Ok(())
}

/// OPS-17, CMI-160, CMI-164: with certificates on both sides, from Secrets that are mounted.
#[tokio::test]
async fn a_remote_driver_is_reached_over_mutual_tls() -> Result<()> {
    let objects = composed(&["driver-remote"], "").await?;
    let pod = pod(&objects, "capcmi-controller-manager")?;
    let manager = named(&pod["containers"], "manager")?;
    let volume = named(&pod["volumes"], "driver-client")?;
    ensure!(volume["secret"]["secretName"] == "capcmi-driver-client");
    ensure!(pod["initContainers"].is_null());
    let mut entry = driver(&objects)?;
    ensure!(entry["grpc"]["insecure"].is_null(), "{entry}");
    let folder = mounted(manager, "driver-client")?;
    for (key, file) in [
        ("caFile", "ca.crt"),
        ("certFile", "tls.crt"),
        ("keyFile", "tls.key"),
    ] {
        ensure!(
            entry["grpc"]["tls"][key].as_str().map(Path::new) == Some(&folder.join(file)),
            "{entry}"
        );
    }
    let certificates = tempfile::tempdir()?;
    entry["grpc"]["tls"] = certificate_files(certificates.path())?;
    check(&entry)
}

/// Files as the Secret has them.
fn certificate_files(folder: &Path) -> Result<Value> {
    let key = rcgen::KeyPair::generate()?;
    let certificate = rcgen::CertificateParams::new(vec!["capcmi".to_owned()])?.self_signed(&key)?;
    for (file, content) in [
        ("ca.crt", certificate.pem()),
        ("tls.crt", certificate.pem()),
        ("tls.key", key.serialize_pem()),
    ] {
        std::fs::write(folder.join(file), content)?;
    }
    let path = |file: &str| folder.join(file);
    Ok(json!({"caFile": path("ca.crt"), "certFile": path("tls.crt"), "keyFile": path("tls.key")}))
}

#[tokio::test]
async fn the_service_monitor_selects_the_metrics_of_the_provider() -> Result<()> {
    let objects = composed(&["service-monitor"], "").await?;
    let monitor = &find(&objects, "ServiceMonitor", "capcmi-metrics")?;
    let service = find(&objects, "Service", "capcmi-metrics")?;
    ensure!(monitor["metadata"]["namespace"] == service["metadata"]["namespace"]);
    let selector = monitor["spec"]["selector"]["matchLabels"].as_object();
    for (label, value) in selector.context("a selector")? {
        ensure!(service["metadata"]["labels"][label] == *value, "{label}");
    }
    let [endpoint] = monitor["spec"]["endpoints"]
        .as_array()
        .context("endpoints")?
        .as_slice()
    else {
        bail!("one endpoint: {monitor}");
    };
    named(
        &service["spec"]["ports"],
        endpoint["port"].as_str().context("a port")?,
    )?;
    ensure!(
        endpoint["path"] == METRICS_PATHS[0] && endpoint["scheme"] == "https",
        "{endpoint}"
    );
    Ok(())
}

/// CMI-157: Service, Deployment, policy and the provider's endpoint are about the same Pods and port.
#[tokio::test]
async fn a_driver_in_the_same_cluster_is_where_the_provider_looks_for_it() -> Result<()> {
    let objects = composed(&["driver-remote", "driver-deployment"], IMAGE).await?;
    let service = find(&objects, "Service", "capcmi-driver")?;
    let deployment = find(&objects, "Deployment", "capcmi-driver")?;
    let policy = find(&objects, "NetworkPolicy", "capcmi-driver")?;
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    ensure!(*labels == deployment["spec"]["selector"]["matchLabels"]);
    ensure!(
        *labels == service["spec"]["selector"] && *labels == policy["spec"]["podSelector"]["matchLabels"]
    );
    // The selectors of the provider's own objects do not reach the driver.
    let metrics = find(&objects, "Service", "capcmi-metrics")?;
    ensure!(metrics["spec"]["selector"]["control-plane"] == "capcmi-controller-manager");
    let allowed = &policy["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"];
    let manager = find(&objects, "Deployment", "capcmi-controller-manager")?;
    let provider = &manager["spec"]["template"]["metadata"]["labels"];
    ensure!(provider["control-plane"] == allowed["control-plane"]);

    let entry = driver(&objects)?;
    let place = format!(
        "tls://{}.{}.svc:{}",
        service["metadata"]["name"].as_str().unwrap_or_default(),
        service["metadata"]["namespace"].as_str().unwrap_or_default(),
        service["spec"]["ports"][0]["port"]
    );
    ensure!(entry["grpc"]["endpoint"] == place.as_str(), "{entry}");
    let pod = pod(&objects, "capcmi-driver")?;
    let container = named(&pod["containers"], "driver")?;
    ensure!(container["image"] == "registry.example.com/my-driver:v0.1.0");
    ensure!(is_restricted(container) && pod["automountServiceAccountToken"] == false);
    ensure!(named(&container["env"], "CMI_ENDPOINT")?["value"] == "tls://0.0.0.0:8443");
    ensure!(mounted(container, "tls")? == Path::new("/etc/driver"));
    would_take(&[deployment.clone(), service.clone(), policy.clone()]).await
}

/// RBAC grows with the opt-in alone: the component has the flag and the roles, and nothing else has them.
#[tokio::test]
async fn remediations_are_looked_at_and_permitted_with_their_component_alone() -> Result<()> {
    let args = |objects: &[Value]| -> Result<String> {
        Ok(pod(objects, "capcmi-controller-manager")?["containers"][0]["args"].to_string())
    };
    let role = "capcmi-remediation-role";
    let without = composed(&[], "").await?;
    ensure!(!args(&without)?.contains("--enable-remediation"));
    let names: Vec<_> = without
        .iter()
        .map(|object| object["metadata"]["name"].as_str())
        .collect();
    ensure!(!names.contains(&Some(role)), "{names:?}");
    let definition = "inframachineremediations.infrastructure.capcmi.io";
    find(&without, "CustomResourceDefinition", definition)?;
    let rules: Vec<_> = without
        .iter()
        .filter(|object| object["kind"] == "ClusterRole")
        .collect();
    let grants = |role: &&Value| role["rules"].to_string().contains("inframachineremediations");
    ensure!(!rules.iter().any(grants), "granted without the component");

    let with = composed(&["remediation"], "").await?;
    ensure!(args(&with)?.contains("--enable-remediation"));
    find(&with, "ClusterRole", role)?;
    let binding = find(&with, "ClusterRoleBinding", "capcmi-remediation-rolebinding")?;
    ensure!(binding["subjects"][0]["name"] == "capcmi-manager", "{binding}");
    Ok(())
}

/// The right to write Machines comes with the opt-in alone.
#[tokio::test]
async fn volumes_are_drained_and_machines_written_with_their_component_alone() -> Result<()> {
    let args = |objects: &[Value]| -> Result<String> {
        Ok(pod(objects, "capcmi-controller-manager")?["containers"][0]["args"].to_string())
    };
    let without = composed(&[], "").await?;
    ensure!(!args(&without)?.contains("--enable-volume-drain"));
    let writes_machines = |object: &&Value| {
        let rules = object["rules"].as_array().into_iter().flatten();
        let mut ours = rules.filter(|rule| rule["resources"].to_string().contains("\"machines\""));
        ours.any(|rule| rule["verbs"].to_string().contains("patch"))
    };
    let found: Vec<_> = without.iter().filter(writes_machines).collect();
    ensure!(found.is_empty(), "granted without the component: {found:?}");

    let with = composed(&["volume-drain"], "").await?;
    ensure!(args(&with)?.contains("--enable-volume-drain"));
    ensure!(with.iter().filter(writes_machines).count() == 1);
    let role = find(&with, "ClusterRole", "capcmi-volume-drain-role")?;
    ensure!(role["rules"][0]["verbs"] == json!(["get", "patch"]), "{role}");
    let binding = find(&with, "ClusterRoleBinding", "capcmi-volume-drain-rolebinding")?;
    ensure!(binding["subjects"][0]["name"] == "capcmi-manager", "{binding}");
    Ok(())
}

/// The registration leads to the Service, and that to the port of the flag, behind the certificate that is
/// registered.
#[tokio::test]
async fn only_its_component_serves_and_registers_the_runtime_extension() -> Result<()> {
    let args = |objects: &[Value]| -> Result<String> {
        Ok(pod(objects, "capcmi-controller-manager")?["containers"][0]["args"].to_string())
    };
    let without = composed(&[], "").await?;
    ensure!(!args(&without)?.contains("--runtime-extension-address"));
    ensure!(!without.iter().any(|object| object["kind"] == "ExtensionConfig"));

    let with = composed(&["in-place-updates"], "").await?;
    let flags = args(&with)?;
    let pod = pod(&with, "capcmi-controller-manager")?;
    let manager = named(&pod["containers"], "manager")?;
    let port = named(&manager["ports"], "extension")?["containerPort"].to_string();
    ensure!(
        flags.contains(&format!("--runtime-extension-address=:{port}")),
        "{flags}"
    );
    let folder = mounted(manager, "runtime-extension")?;
    ensure!(
        flags.contains(&format!("--runtime-extension-cert-dir={}", folder.display())),
        "{flags}"
    );
    let secret = named(&pod["volumes"], "runtime-extension")?["secret"]["secretName"].clone();
    let certificate = find(&with, "Certificate", "capcmi-runtime-extension")?;
    ensure!(certificate["spec"]["secretName"] == secret, "{certificate}");
    let roles = |objects: &[Value]| -> Vec<Value> {
        let is_role = |object: &&Value| {
            let kind = object["kind"].as_str().unwrap_or_default();
            kind.contains("Role") || kind == "ServiceAccount"
        };
        objects.iter().filter(is_role).cloned().collect()
    };
    ensure!(roles(&with) == roles(&without), "it takes other permissions");
    let config = find(&with, "ExtensionConfig", "capcmi")?;
    let place = &config["spec"]["clientConfig"]["service"];
    let service = find(&with, "Service", place["name"].as_str().unwrap_or_default())?;
    ensure!(
        service["metadata"]["namespace"] == place["namespace"],
        "{service}"
    );
    ensure!(service["spec"]["ports"][0]["port"] == place["port"], "{service}");
    ensure!(
        service["spec"]["ports"][0]["targetPort"] == "extension",
        "{service}"
    );
    let host = format!(
        "{}.{}.svc",
        place["name"].as_str().unwrap_or_default(),
        place["namespace"].as_str().unwrap_or_default()
    );
    let names = certificate["spec"]["dnsNames"].to_string();
    ensure!(names.contains(&format!("\"{host}\"")), "{names}");
    let authority = "runtime.cluster.x-k8s.io/inject-ca-from-secret";
    ensure!(
        config["metadata"]["annotations"][authority]
            == format!(
                "{}/{}",
                place["namespace"].as_str().unwrap_or_default(),
                secret.as_str().unwrap_or_default()
            ),
        "{config}"
    );
    would_take(&[service.clone(), config.clone()]).await
}
