//! `make release`, and its files in the real clusterctl.

use anyhow::{Context, Result, ensure};
use capcmi::api::MACHINE_FINALIZER;
use management_cluster::{ManagementCluster, kubeadm::KubeadmProviders};
use serde_json::{Value, json};

use crate::{
    objects::{find, output, parse, repository, titles},
    release::Release,
};

#[tokio::test]
async fn clusterctl_reads_the_provider() -> Result<()> {
    let release = Release::make(None).await?;
    let objects = release.generate_provider()?;
    for (object, title) in objects.iter().zip(titles(&objects)) {
        let labels = &object["metadata"]["labels"];
        assert_eq!(
            labels["cluster.x-k8s.io/provider"], "infrastructure-capcmi-cmi",
            "{title}"
        );
    }
    let deployment = find(&objects, "Deployment", "capcmi-controller-manager")?;
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(
        container["image"],
        format!(
            "ghcr.io/capcmi/cluster-api-provider-cmi:v{}",
            env!("CARGO_PKG_VERSION")
        )
    );
    assert_eq!(
        container["args"],
        json!([
            "--leader-elect",
            "--diagnostics-address=:8443",
            "--insecure-diagnostics=false",
            "--drivers-config=/etc/capcmi/drivers.yaml",
        ])
    );
    Ok(())
}

#[tokio::test]
async fn clusterctl_fills_in_its_variables_and_the_image_is_the_one_asked_for() -> Result<()> {
    let image = format!("registry.test:5000/capcmi@sha256:{}", "0".repeat(64));
    let release = Release::make(Some(&image)).await?;
    let mut command = release.clusterctl();
    command
        .args([
            "generate",
            "provider",
            "--infrastructure",
            "capcmi-cmi:v0.1.0",
            "--config",
        ])
        .arg(release.config())
        .env("CAPCMI_INSECURE_DIAGNOSTICS", "true")
        .env("CAPCMI_DRIVERS_CONFIGMAP", "our-drivers");
    let objects = parse(&output(&mut command)?)?;
    let spec = &find(&objects, "Deployment", "capcmi-controller-manager")?["spec"];
    let pod = &spec["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(container["args"][2], "--insecure-diagnostics=true");
    assert_eq!(container["image"], image);
    assert_eq!(pod["volumes"][0]["configMap"]["name"], "our-drivers");
    // An upgrade overwrites shipped objects, so the user's ConfigMap must not be one.
    assert!(find(&objects, "ConfigMap", "our-drivers").is_err());
    Ok(())
}

/// clusterctl lists both from the components with unresolved variables.
#[tokio::test]
async fn clusterctl_lists_the_variables_and_the_images_of_the_provider() -> Result<()> {
    let release = Release::make(None).await?;
    let generate = |flag: &str| {
        let mut command = release.clusterctl();
        command
            .args([
                "generate",
                "provider",
                "--infrastructure",
                "capcmi-cmi:v0.1.0",
                flag,
            ])
            .arg("--config")
            .arg(release.config());
        output(&mut command)
    };
    let described = generate("--describe")?;
    let words: Vec<&str> = described.split_whitespace().collect();
    for variable in [
        "CAPCMI_DIAGNOSTICS_ADDRESS",
        "CAPCMI_DRIVERS_CONFIGMAP",
        "CAPCMI_INSECURE_DIAGNOSTICS",
        "ghcr.io/capcmi/cluster-api-provider-cmi:v0.1.0",
    ] {
        ensure!(words.contains(&variable), "no {variable} in:\n{described}");
    }
    let raw = generate("--raw")?;
    ensure!(
        raw.contains("${CAPCMI_DRIVERS_CONFIGMAP:=capcmi-drivers}"),
        "{raw}"
    );
    Ok(())
}

/// clusterctl has no numeric variables. The configuration selects another file instead.
#[tokio::test]
async fn two_replicas_are_a_file_that_the_configuration_names() -> Result<()> {
    let release = Release::make(None).await?;
    let config = std::fs::read_to_string(release.config())?;
    let (one, two) = (
        "/infrastructure-components.yaml",
        "/infrastructure-components-two-replicas.yaml",
    );
    ensure!(config.contains(one), "{config}");
    std::fs::write(release.config(), config.replace(one, two))?;
    let objects = release.generate_provider()?;
    let deployment = find(&objects, "Deployment", "capcmi-controller-manager")?;
    assert_eq!(deployment["spec"]["replicas"], 2);
    Ok(())
}

/// Users keep the provider's variables in it. Without them, an upgrade would return to the defaults.
#[tokio::test]
async fn a_release_leaves_the_configuration_of_its_users_as_it_is() -> Result<()> {
    let release = Release::make(None).await?;
    let own = std::fs::read_to_string(release.config())? + "CAPCMI_DRIVERS_CONFIGMAP: our-drivers\n";
    std::fs::write(release.config(), &own)?;
    let said = Release::try_make(release.folder(), "v0.1.1", None).await?;
    let warned = String::from_utf8_lossy(&said.stderr).into_owned();
    ensure!(said.status.success() && warned.is_empty(), "{warned}");
    assert_eq!(std::fs::read_to_string(release.config())?, own);

    // Without a version, clusterctl uses the newest one.
    let mut command = release.clusterctl();
    command
        .args([
            "generate",
            "provider",
            "--infrastructure",
            "capcmi-cmi",
            "--config",
        ])
        .arg(release.config());
    let objects = parse(&output(&mut command)?)?;
    let pod = &find(&objects, "Deployment", "capcmi-controller-manager")?["spec"]["template"]["spec"];
    assert_eq!(pod["volumes"][0]["configMap"]["name"], "our-drivers");
    assert_eq!(
        pod["containers"][0]["image"],
        "ghcr.io/capcmi/cluster-api-provider-cmi:v0.1.1"
    );
    Ok(())
}

#[tokio::test]
async fn a_configuration_without_the_release_is_kept_and_reported() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("clusterctl-config.yaml");
    std::fs::write(&config, "providers: []\n")?;
    let said = Release::try_make(folder.path(), "v0.1.0", None).await?;
    let warned = String::from_utf8_lossy(&said.stderr).into_owned();
    ensure!(
        said.status.success() && warned.contains("has no provider with the url file://"),
        "{warned}"
    );
    assert_eq!(std::fs::read_to_string(&config)?, "providers: []\n");
    Ok(())
}

/// By default, the Pod mounts the shipped ConfigMap.
#[tokio::test]
async fn clusterctl_installs_the_drivers_that_are_shipped() -> Result<()> {
    let objects = Release::make(None).await?.generate_provider()?;
    let spec = &find(&objects, "Deployment", "capcmi-controller-manager")?["spec"];
    assert_eq!(spec["replicas"], 1);
    let name = &spec["template"]["spec"]["volumes"][0]["configMap"]["name"];
    find(&objects, "ConfigMap", name.as_str().context("a name")?)?;
    Ok(())
}

/// clusterctl would refuse such a release, but only at the installation.
#[tokio::test]
async fn a_release_of_a_series_that_the_metadata_lacks_is_not_written() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for version in ["v0.2.0", "v1.1.0", "v0.11.0"] {
        let made = Release::try_make(folder.path(), version, None).await?;
        let said = String::from_utf8_lossy(&made.stderr).into_owned();
        ensure!(!made.status.success(), "{version} was written");
        ensure!(said.contains("metadata.yaml has no release series"), "{said}");
    }
    ensure!(
        folder.path().read_dir()?.next().is_none(),
        "something was written"
    );
    Ok(())
}

#[tokio::test]
async fn a_failed_release_leaves_nothing_in_the_repository() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let made = Release::try_make(folder.path(), "v0.1.0", Some("false")).await?;
    ensure!(!made.status.success(), "it was made without kubectl");
    let repository = folder.path().join("infrastructure-capcmi-cmi");
    let left: Vec<_> = repository.read_dir()?.collect();
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

/// The Cluster API operator reads both from the ConfigMap that its provider's selector matches.
#[tokio::test]
async fn the_operator_finds_the_components_and_the_metadata_of_the_release() -> Result<()> {
    let release = Release::make(None).await?;
    let folder = release.folder().join("infrastructure-capcmi-cmi/v0.1.0");
    let read = |name: &str| std::fs::read_to_string(folder.join(name));
    let objects = parse(&read("cluster-api-operator.yaml")?)?;
    let provider = find(&objects, "InfrastructureProvider", "capcmi-cmi")?;
    let map = find(&objects, "ConfigMap", "v0.1.0")?;
    assert_eq!(provider["metadata"]["namespace"], map["metadata"]["namespace"]);
    let labels = &map["metadata"]["labels"];
    assert_eq!(
        provider["spec"]["version"],
        labels["provider.cluster.x-k8s.io/version"]
    );
    let selector = &provider["spec"]["fetchConfig"]["selector"]["matchLabels"];
    let selector = selector.as_object().context("a selector")?;
    ensure!(!selector.is_empty() && selector.iter().all(|(key, value)| labels[key] == *value));
    for (key, file) in [
        ("metadata", "metadata.yaml"),
        ("components", "infrastructure-components.yaml"),
    ] {
        let held = map["data"][key].as_str().context("a text")?;
        assert_eq!(held.trim_end(), read(file)?.trim_end());
    }
    Ok(())
}

/// `fetchConfig.oci` of the operator finds the layers by their titles, in the manifest of the tag.
#[tokio::test]
async fn the_operator_package_is_an_oci_layout_with_the_release_files() -> Result<()> {
    let release = Release::make(None).await?;
    let folder = release.folder().join("infrastructure-capcmi-cmi/v0.1.0");
    let package = tempfile::tempdir()?;
    output(
        std::process::Command::new("tar")
            .arg("--extract")
            .arg("--file")
            .arg(folder.join("cluster-api-operator-package.tar"))
            .arg("--directory")
            .arg(package.path()),
    )?;
    let json = |text: &[u8]| -> Result<Value> { Ok(serde_json::from_slice(text)?) };
    let layout = json(&std::fs::read(package.path().join("oci-layout"))?)?;
    assert_eq!(layout["imageLayoutVersion"], "1.0.0");
    // The content of a blob must match its descriptor.
    let blob = |descriptor: &Value| -> Result<Vec<u8>> {
        let digest = descriptor["digest"].as_str().context("a digest")?;
        let hex = digest.strip_prefix("sha256:").context("an algorithm")?;
        let path = package.path().join("blobs/sha256").join(hex);
        let sum = output(std::process::Command::new("sha256sum").arg(&path))?;
        ensure!(sum.starts_with(hex), "{sum}");
        let bytes = std::fs::read(path)?;
        ensure!(descriptor["size"] == bytes.len(), "{descriptor}");
        Ok(bytes)
    };
    let index = json(&std::fs::read(package.path().join("index.json"))?)?;
    let tagged = &index["manifests"][0];
    assert_eq!(
        tagged["annotations"]["org.opencontainers.image.ref.name"],
        "v0.1.0"
    );
    let manifest = json(&blob(tagged)?)?;
    assert_eq!(manifest["mediaType"], tagged["mediaType"]);
    assert_eq!(blob(&manifest["config"])?, b"{}");
    let layers = manifest["layers"].as_array().context("layers")?;
    assert_eq!(layers.len(), 2);
    for (title, file) in [
        ("metadata.yaml", "metadata.yaml"),
        ("components.yaml", "infrastructure-components.yaml"),
    ] {
        let titled = |layer: &&Value| layer["annotations"]["org.opencontainers.image.title"] == title;
        let layer = layers
            .iter()
            .find(titled)
            .with_context(|| format!("no {title}"))?;
        ensure!(blob(layer)? == std::fs::read(folder.join(file))?, "{title}");
    }
    Ok(())
}

/// An in-toto statement with SLSA provenance lists the outputs, the commit and the inputs.
#[tokio::test]
async fn the_provenance_of_a_release_names_its_files_and_its_commit() -> Result<()> {
    let release = Release::make(Some("registry.test/capcmi:v9")).await?;
    let folder = release.folder().join("infrastructure-capcmi-cmi/v0.1.0");
    let statement = std::fs::read(folder.join("provenance.intoto.json"))?;
    let statement: Value = serde_json::from_slice(&statement)?;
    assert_eq!(statement["_type"], "https://in-toto.io/Statement/v1");
    assert_eq!(statement["predicateType"], "https://slsa.dev/provenance/v1");
    let sums = std::fs::read_to_string(folder.join("checksums.txt"))?;
    let subjects = statement["subject"].as_array().context("subjects")?;
    ensure!(subjects.len() == sums.lines().count() - 1, "{subjects:?}");
    for subject in subjects {
        let (name, sum) = (&subject["name"], &subject["digest"]["sha256"]);
        let line = format!(
            "{}  {}",
            sum.as_str().unwrap_or_default(),
            name.as_str().unwrap_or_default()
        );
        ensure!(
            sums.lines().any(|other| other == line),
            "{line} is not in\n{sums}"
        );
    }
    let definition = &statement["predicate"]["buildDefinition"];
    assert_eq!(
        definition["externalParameters"]["image"],
        "registry.test/capcmi:v9"
    );
    assert_eq!(definition["externalParameters"]["version"], "v0.1.0");
    let mut git = std::process::Command::new("git");
    let head = git
        .args(["rev-parse", "HEAD"])
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    // Sources from an archive have no commit.
    if let Ok(commit) = output(head) {
        let source = &definition["resolvedDependencies"][0]["digest"]["gitCommit"];
        assert_eq!(*source, commit.trim());
    }
    Ok(())
}

/// The SBOM is validated with CycloneDX's own tool.
#[tokio::test]
async fn the_sbom_of_a_release_lists_its_crates_with_licences() -> Result<()> {
    let release = Release::make_with_sbom().await?;
    let folder = release.folder().join("infrastructure-capcmi-cmi/v0.1.0");
    let text = std::fs::read_to_string(folder.join("sbom.cdx.json"))?;
    let sbom: Value = serde_json::from_str(&text)?;
    assert_eq!(sbom["bomFormat"], "CycloneDX");
    assert_eq!(sbom["metadata"]["component"]["name"], "cluster-api-provider-cmi");
    let crates = sbom["components"].as_array().context("components")?;
    let find = |name: &str| crates.iter().find(|component| component["name"] == name);
    for name in ["kube", "tonic", "cmi-driver"] {
        let component = find(name).with_context(|| format!("{name} is missing"))?;
        ensure!(
            component["licenses"].is_array() && component["purl"].is_string(),
            "{component}"
        );
    }
    ensure!(find("virt").is_none(), "libvirt's binding is not in the binary");
    ensure!(
        !text.contains(env!("CARGO_MANIFEST_DIR")),
        "a folder of this computer"
    );
    let sums = std::fs::read_to_string(folder.join("checksums.txt"))?;
    ensure!(sums.contains("  sbom.cdx.json"), "{sums}");
    Ok(())
}

#[tokio::test]
async fn the_files_of_a_release_are_those_of_its_checksums() -> Result<()> {
    let release = Release::make(None).await?;
    let folder = release.folder().join("infrastructure-capcmi-cmi/v0.1.0");
    let mut check = std::process::Command::new("sha256sum");
    let said = output(
        check
            .args(["--check", "--strict", "checksums.txt"])
            .current_dir(&folder),
    )?;
    let checked = said.lines().count();
    let files = folder.read_dir()?.count();
    ensure!(
        checked == files - 1,
        "{checked} of {files} files are checked:\n{said}"
    );
    ensure!(said.contains("infrastructure-components.yaml: OK"), "{said}");
    Ok(())
}

#[tokio::test]
async fn clusterctl_makes_a_cluster() -> Result<()> {
    let objects = Release::make(None).await?.generate_cluster(None)?;
    assert_eq!(
        titles(&objects),
        [
            "Cluster demo",
            "InfraCluster demo",
            "KubeadmControlPlane demo-control-plane",
            "InfraMachineTemplate demo-control-plane",
            "MachineDeployment demo-md-0",
            "InfraMachineTemplate demo-md-0",
            "KubeadmConfigTemplate demo-md-0",
        ]
    );
    for (object, title) in objects.iter().zip(titles(&objects)) {
        assert_eq!(object["metadata"]["namespace"], "tenant", "{title}");
    }
    let endpoint = &find(&objects, "InfraCluster", "demo")?["spec"]["controlPlaneEndpoint"];
    assert_eq!(*endpoint, json!({"host": "api.demo.test", "port": 6443}));
    assert_eq!(
        find(&objects, "KubeadmControlPlane", "demo-control-plane")?["spec"]["replicas"],
        3
    );
    let spec = &find(&objects, "InfraMachineTemplate", "demo-md-0")?["spec"]["template"]["spec"];
    // A string that looks like a number.
    assert_eq!(
        *spec,
        json!({
            "driver": "simulated",
            "providerSpec": {"vmPool": "default", "size": "4", "tags": {"cluster": "demo"}},
        })
    );
    Ok(())
}

/// The tests of the libvirt driver check that it accepts these provider specs.
#[tokio::test]
async fn clusterctl_makes_a_cluster_of_vms_on_hosts_with_libvirt() -> Result<()> {
    let release = Release::make(None).await?;
    let objects = release.generate_cluster(Some("libvirt"))?;
    assert_eq!(titles(&objects), titles(&release.generate_cluster(None)?));
    assert_eq!(
        find(&objects, "InfraCluster", "demo")?["spec"]["driver"],
        "libvirt"
    );
    for (name, size) in [("demo-control-plane", "medium"), ("demo-md-0", "4")] {
        let spec = &find(&objects, "InfraMachineTemplate", name)?["spec"]["template"]["spec"];
        let provider_spec = json!({
            "vmPool": "default", "size": size, "image": "debian-12", "rootFsSize": 20,
            "tags": {"cluster": "demo"},
        });
        assert_eq!(*spec, json!({"driver": "libvirt", "providerSpec": provider_spec}));
    }
    // Images differ by Kubernetes version, so there is no default.
    let missing = release
        .cluster(Some("libvirt"))
        .env_remove("CAPCMI_IMAGE")
        .output()?;
    let said = String::from_utf8(missing.stderr)?;
    ensure!(
        !missing.status.success() && said.contains("CAPCMI_IMAGE"),
        "{said}"
    );
    Ok(())
}

/// The provider specs match the container driver.
#[tokio::test]
async fn clusterctl_makes_a_cluster_of_system_containers() -> Result<()> {
    let release = Release::make(None).await?;
    let objects = release.generate_cluster(Some("container"))?;
    assert_eq!(titles(&objects), titles(&release.generate_cluster(None)?));
    for (name, size) in [("demo-control-plane", "medium"), ("demo-md-0", "4")] {
        let spec = &find(&objects, "InfraMachineTemplate", name)?["spec"]["template"]["spec"];
        let provider_spec = json!({
            "vmPool": "default", "size": size, "image": "debian-12", "tags": {"cluster": "demo"},
        });
        assert_eq!(spec["driver"], "container");
        assert_eq!(spec["providerSpec"], provider_spec);
    }
    Ok(())
}

#[tokio::test]
async fn clusterctl_makes_a_cluster_of_a_class_and_brings_the_class_along() -> Result<()> {
    let objects = Release::make(None).await?.generate_cluster(Some("topology"))?;
    let class = find(&objects, "ClusterClass", "capcmi")?;
    let references = [
        &class["spec"]["infrastructure"]["templateRef"],
        &class["spec"]["controlPlane"]["templateRef"],
        &class["spec"]["controlPlane"]["machineInfrastructure"]["templateRef"],
        &class["spec"]["workers"]["machineDeployments"][0]["bootstrap"]["templateRef"],
        &class["spec"]["workers"]["machineDeployments"][0]["infrastructure"]["templateRef"],
    ];
    for reference in references {
        let text = |field: &str| reference[field].as_str().unwrap_or_default();
        let template = find(&objects, text("kind"), text("name"))?;
        assert_eq!(template["apiVersion"], reference["apiVersion"]);
    }
    let topology = &find(&objects, "Cluster", "demo")?["spec"]["topology"];
    assert_eq!(topology["classRef"]["name"], "capcmi");
    let declared: Vec<&Value> = class["spec"]["variables"]
        .as_array()
        .expect("variables")
        .iter()
        .map(|variable| &variable["name"])
        .collect();
    for variable in topology["variables"].as_array().expect("variables") {
        assert!(declared.contains(&&variable["name"]), "{variable}");
        let is_text = variable["value"].is_string();
        assert!(is_text || variable["name"] == "kubeVip", "{variable}");
    }
    Ok(())
}

/// A flavour is a complete file, and must have all changes of the template.
#[tokio::test]
async fn the_flavour_with_a_health_check_is_the_template_and_a_health_check() -> Result<()> {
    let release = Release::make(None).await?;
    let mut objects = release.generate_cluster(Some("machine-health-check"))?;
    let check = objects.pop().context("no object")?;
    assert_eq!(objects, release.generate_cluster(None)?);
    assert_eq!(check["kind"], "MachineHealthCheck");
    let sample = std::fs::read_to_string(repository().join("config/samples/machine-health-check.yaml"))?;
    let sample = parse(&sample.replace("my-cluster", "demo"))?;
    assert_eq!(check["spec"], sample[0]["spec"]);
    Ok(())
}

/// The objects of the flavour for EC2.
fn on_ec2(release: &Release) -> Result<Vec<Value>> {
    let mut command = release.cluster(Some("ec2"));
    command
        .env("AWS_REGION", "eu-central-1")
        .env("EC2_SECRET", "account")
        .env("EC2_IMAGE", "ami-0123456789abcdef0")
        .env("EC2_SUBNETS", "[subnet-0123456789abcdef0]")
        .env("EC2_SECURITY_GROUPS", "[sg-0123456789abcdef0]")
        .env("EC2_WORKER_INSTANCE_TYPE", "m7g.large");
    parse(&output(&mut command)?)
}

#[tokio::test]
async fn the_flavour_for_ec2_is_the_template_with_machines_of_ec2() -> Result<()> {
    let release = Release::make(None).await?;
    let objects = on_ec2(&release)?;
    assert_eq!(titles(&objects), titles(&release.generate_cluster(None)?));
    for name in ["demo-control-plane", "demo-md-0"] {
        let spec = &find(&objects, "InfraMachineTemplate", name)?["spec"]["template"]["spec"];
        let size = ["m7i.large", "m7g.large"][usize::from(name == "demo-md-0")];
        assert_eq!(
            *spec,
            json!({
                "driver": "ec2",
                "secretRef": {"name": "account"},
                "providerSpec": {
                    "region": "eu-central-1", "image": "ami-0123456789abcdef0", "instanceType": size,
                    "subnets": ["subnet-0123456789abcdef0"], "securityGroups": ["sg-0123456789abcdef0"],
                },
            })
        );
    }
    let cluster = &find(&objects, "InfraCluster", "demo")?["spec"];
    assert_eq!(cluster["secretRef"]["name"], "account");
    let wanted =
        json!({"name": "provider-id", "value": "aws:///{{ v1.availability_zone }}/{{ v1.instance_id }}"});
    let arguments: Vec<_> = objects.iter().flat_map(kubelet_arguments).collect();
    ensure!(arguments == [&wanted; 3], "{arguments:?}");
    Ok(())
}

/// Cluster API matches Node and Machine by the ProviderID, and each driver passes it to the guest in another
/// way.
#[tokio::test]
async fn the_kubelet_gets_its_provider_id_as_the_driver_says() -> Result<()> {
    let release = Release::make(None).await?;
    let on_ec2 = r#""aws:///" ~ ds.meta_data.placement.availability_zone ~ "/" ~ ds.meta_data.instance_id"#;
    let flavors = [
        None,
        Some("topology"),
        Some("libvirt"),
        Some("container"),
        Some("external-endpoint"),
    ];
    for flavor in flavors {
        let shipped = parse(&output(&mut release.cluster(flavor))?)?;
        let mut command = release.cluster(flavor);
        let chosen = parse(&output(command.env("CAPCMI_KUBELET_PROVIDER_ID", on_ec2))?)?;
        for (objects, expression) in [(shipped, "ds.meta_data.provider_id"), (chosen, on_ec2)] {
            let arguments: Vec<_> = objects.iter().flat_map(kubelet_arguments).collect();
            let wanted = json!({"name": "provider-id", "value": format!("{{{{ {expression} }}}}")});
            // For the first control-plane machine, the other ones, and workers.
            ensure!(arguments == [&wanted; 3], "{arguments:?}");
        }
    }
    Ok(())
}

/// All arguments of kubelets in a kubeadm object.
fn kubelet_arguments(object: &Value) -> Vec<&Value> {
    match object {
        Value::Object(fields) => match fields.get("kubeletExtraArgs").and_then(Value::as_array) {
            Some(arguments) => arguments.iter().collect(),
            None => fields.values().flat_map(kubelet_arguments).collect(),
        },
        Value::Array(items) => items.iter().flat_map(kubelet_arguments).collect(),
        _ => Vec::new(),
    }
}

/// clusterctl adds a namespace to policies, because it does not know the kind. The API server drops it. The
/// test also fails on a warning, such as about a Pod that is not restricted.
#[tokio::test]
async fn an_api_server_takes_what_clusterctl_makes() -> Result<()> {
    // A separate cluster: the committed files must not replace the printed ones of other tests.
    let cluster = ManagementCluster::builder().core(false).start().await?;
    let release = Release::make(None).await?;
    apply(&cluster, &release, &release.generate_provider()?)?;
    let mut wait = cluster.kubectl();
    output(wait.args([
        "wait",
        "--for=condition=Established",
        "--timeout=1m",
        "crd",
        "--all",
    ]))?;

    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tenant"}});
    apply(&cluster, &release, &[namespace])?;
    let plain = release.generate_cluster(None)?;
    let others = OTHERS.map(|flavor| release.generate_cluster(Some(flavor)));
    let mut others = others.into_iter().collect::<Result<Vec<_>>>()?;
    others.push(on_ec2(&release)?);
    let (ours, kubeadm) = plain
        .into_iter()
        .chain(others.into_iter().flatten())
        .partition::<Vec<_>, _>(|object| {
            let version = object["apiVersion"].as_str().unwrap_or_default();
            version.starts_with("infrastructure.capcmi.io/") || version.starts_with("cluster.x-k8s.io/")
        });
    let checked = release.generate_cluster(Some("machine-health-check"))?;
    let checks = checked
        .into_iter()
        .filter(|object| object["kind"] == "MachineHealthCheck");
    // For a finalizer with an unusual name, the API server would return a warning on each write.
    let finalized = json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachine",
        "metadata": {"name": "finalized", "namespace": "tenant", "finalizers": [MACHINE_FINALIZER]},
        "spec": {"driver": "ec2", "providerSpec": {}},
    });
    let objects: Vec<Value> = [finalized].into_iter().chain(ours).chain(checks).collect();
    apply(&cluster, &release, &objects)?;

    let _providers = KubeadmProviders::start(&cluster, "tenant").await?;
    // All flavours use the same names. A dry run keeps one flavour from being an update of another.
    for object in kubeadm {
        apply_with(&cluster, &release, &[object], &["--dry-run=server"])?;
    }
    Ok(())
}

/// Flavours besides the template that use the same variables.
const OTHERS: [&str; 4] = ["topology", "libvirt", "container", "external-endpoint"];

/// Applies objects, and fails on a warning.
fn apply(cluster: &ManagementCluster, release: &Release, objects: &[Value]) -> Result<()> {
    apply_with(cluster, release, objects, &[])
}

fn apply_with(
    cluster: &ManagementCluster,
    release: &Release,
    objects: &[Value],
    flags: &[&str],
) -> Result<()> {
    let path = release.folder().join("objects.json");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    std::fs::write(&path, list.to_string())?;
    let mut kubectl = cluster.kubectl();
    let answer = kubectl
        .args(["apply", "--server-side", "--force-conflicts", "--validate=strict"])
        .args(flags)
        .arg("-f")
        .arg(path)
        .output()?;
    let said = String::from_utf8(answer.stderr)?;
    ensure!(answer.status.success() && said.is_empty(), "{said}");
    Ok(())
}
