//! The Helm chart of a release, checked with Helm and an API server.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use management_cluster::{ManagementCluster, helm};
use serde_json::{Value, json};

use crate::kustomize::composed;
use crate::objects::{find, output, parse};
use crate::release::Release;

const CHART: &str = "infrastructure-capcmi-cmi/v0.1.0/cluster-api-provider-cmi-0.1.0.tgz";

/// Helm with the chart of a release.
struct Helm {
    release: Release,
    program: PathBuf,
}

impl Helm {
    async fn new() -> Result<Self> {
        Ok(Self {
            release: Release::make(None).await?,
            program: helm().await?,
        })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let folder = self.release.folder();
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .current_dir(folder)
            .env("HOME", folder)
            .env("XDG_CACHE_HOME", folder)
            .env("XDG_CONFIG_HOME", folder)
            .env("XDG_DATA_HOME", folder)
            .env_remove("KUBECONFIG");
        command
    }

    fn template(&self, values: &[&str]) -> Result<Vec<Value>> {
        let base = [
            "template",
            "capcmi",
            CHART,
            "--namespace",
            "capcmi-system",
            "--kube-version",
            "v1.36.3",
        ];
        parse(&output(self.command(&base).args(values))?)
    }
}

fn by_title(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let title = |object: &Value| format!("{} {}", object["kind"], object["metadata"]["name"]);
    objects
        .into_iter()
        .map(|object| (title(&object), object))
        .collect()
}

/// The chart has the same objects as kubectl and clusterctl, except for the namespace and Helm's labels.
#[tokio::test]
async fn the_chart_has_what_the_kustomization_has() -> Result<()> {
    let helm = Helm::new().await?;
    output(&mut helm.command(&["lint", "--strict", CHART]))?;
    let mut rendered = by_title(helm.template(&[])?);
    let mut shipped = by_title(composed(&[], "").await?);
    shipped
        .remove("\"Namespace\" \"capcmi-system\"")
        .context("no namespace")?;
    for (title, object) in &mut rendered {
        if object["kind"] == "CustomResourceDefinition" {
            let metadata = object["metadata"].as_object_mut().context("metadata")?;
            let kept = metadata.remove("annotations");
            ensure!(
                kept == Some(json!({"helm.sh/resource-policy": "keep"})),
                "{title}: {kept:?}"
            );
        }
        if object["kind"] == "Deployment" {
            let annotations = object["spec"]["template"]["metadata"]["annotations"].as_object_mut();
            let sum = annotations.context("annotations")?.remove("checksum/drivers");
            ensure!(sum.is_some_and(|sum| sum.is_string()), "{title}");
        }
        if object["kind"] == "ConfigMap" {
            let drivers = |object: &Value| -> Result<Value> {
                let text = object["data"]["drivers.yaml"]
                    .as_str()
                    .context("a drivers file")?;
                Ok(serde_saphyr::from_str(text)?)
            };
            let other = shipped.get_mut(title).context("no ConfigMap")?;
            ensure!(drivers(object)? == drivers(other)?, "{object}");
            object["data"] = json!({});
            other["data"] = json!({});
        }
    }
    for (title, object) in &shipped {
        ensure!(
            rendered.get(title) == Some(object),
            "{title} is {:?}",
            rendered.get(title)
        );
    }
    ensure!(rendered.len() == shipped.len(), "{:?}", rendered.keys());
    Ok(())
}

#[tokio::test]
async fn values_of_the_chart_are_where_they_belong_and_others_are_refused() -> Result<()> {
    let helm = Helm::new().await?;
    let drivers = r#"drivers=[{"name":"ours","grpc":{"endpoint":"unix:///run/capcmi/driver.sock"}}]"#;
    let set = [
        "--set",
        "replicas=2,image=registry.test/capcmi:v9",
        "--set-json",
        drivers,
    ];
    let objects = helm.template(&[&set[..], &["--set-json", r#"args=["--v=4"]"#]].concat())?;
    let spec = &find(&objects, "Deployment", "capcmi-controller-manager")?["spec"];
    let container = &spec["template"]["spec"]["containers"][0];
    assert_eq!(spec["replicas"], 2);
    assert_eq!(container["image"], "registry.test/capcmi:v9");
    let arguments = container["args"].as_array().context("args")?;
    assert_eq!(arguments.last(), Some(&json!("--v=4")));
    let file = find(&objects, "ConfigMap", "capcmi-drivers")?["data"]["drivers.yaml"].clone();
    let file: Value = serde_saphyr::from_str(file.as_str().context("a drivers file")?)?;
    assert_eq!(
        file["drivers"][0]["grpc"]["endpoint"],
        "unix:///run/capcmi/driver.sock"
    );
    let sum = |objects: &[Value]| -> Result<Value> {
        let deployment = find(objects, "Deployment", "capcmi-controller-manager")?;
        Ok(deployment["spec"]["template"]["metadata"]["annotations"]["checksum/drivers"].clone())
    };
    ensure!(
        sum(&objects)? != sum(&helm.template(&[])?)?,
        "a change restarts nothing"
    );

    let placed = helm.template(&[
        "--set-json",
        r#"imagePullSecrets=[{"name":"registry"}],nodeSelector={"node-role.kubernetes.io/infra":""}"#,
    ])?;
    let pod = &find(&placed, "Deployment", "capcmi-controller-manager")?["spec"]["template"]["spec"];
    assert_eq!(pod["imagePullSecrets"], json!([{"name": "registry"}]));
    assert_eq!(pod["nodeSelector"], json!({"node-role.kubernetes.io/infra": ""}));

    for wrong in [
        "replica=2",
        "imagePullSecrets[0]=registry",
        "replicas=two",
        "drivers=null",
        "image=",
        "driver.imag=x",
        "volumes[0].secret.secretName=x",
    ] {
        let refused = helm.template(&["--set", wrong]);
        ensure!(refused.is_err(), "{wrong} was taken");
    }
    Ok(())
}

/// A driver runs as the same sidecar as in the component `driver-sidecar`. Values set its variables,
/// arguments, memory, and files from a Secret.
#[tokio::test]
async fn values_add_the_container_of_a_driver_and_the_files_of_secrets() -> Result<()> {
    let helm = Helm::new().await?;
    let values = json!({
        "drivers": [{"name": "plugin", "grpc": {"endpoint": "unix:///run/capcmi/driver.sock"}}],
        "driver": {
            "image": "registry.test/driver:v1", "args": ["--region=eu-1"],
            "env": [{"name": "MY_DRIVER_API", "value": "https://cloud.example.com"}],
            "resources": {"limits": {"memory": "512Mi"}},
            "volumeMounts": [{"name": "ca", "mountPath": "/etc/my-driver", "readOnly": true}],
        },
        "volumes": [
            {"name": "ca", "secret": {"secretName": "my-driver-ca"}},
            {"name": "client", "secret": {"secretName": "capcmi-driver-client"}},
        ],
        "volumeMounts": [{"name": "client", "mountPath": "/etc/capcmi-driver", "readOnly": true}],
    });
    let file = helm.release.folder().join("values.yaml");
    std::fs::write(&file, values.to_string())?;
    let path = file.display().to_string();
    let objects = helm.template(&["--values", &path])?;
    let pod = |objects: &[Value]| -> Result<Value> {
        let deployment = find(objects, "Deployment", "capcmi-controller-manager")?;
        Ok(deployment["spec"]["template"]["spec"].clone())
    };
    let rendered = pod(&objects)?;
    let component = composed(&["driver-sidecar"], "").await?;
    let mut expected = pod(&component)?;
    let driver = &mut expected["initContainers"][0];
    driver["image"] = json!("registry.test/driver:v1");
    driver["args"] = values["driver"]["args"].clone();
    driver["resources"]["limits"]["memory"] = json!("512Mi");
    append(&mut driver["env"], &values["driver"]["env"]);
    append(&mut driver["volumeMounts"], &values["driver"]["volumeMounts"]);
    append(
        &mut expected["containers"][0]["volumeMounts"],
        &values["volumeMounts"],
    );
    append(&mut expected["volumes"], &values["volumes"]);
    assert_eq!(rendered, expected);

    // Without a sidecar, the driver is reached over TLS.
    let objects = helm.template(&["--values", &path, "--set", "driver.image="])?;
    let rendered = pod(&objects)?;
    ensure!(rendered.get("initContainers").is_none(), "{rendered}");
    ensure!(!rendered.to_string().contains("driver-socket"), "{rendered}");
    ensure!(
        rendered.to_string().contains("capcmi-driver-client"),
        "{rendered}"
    );
    Ok(())
}

fn append(list: &mut Value, more: &Value) {
    if let (Some(list), Some(more)) = (list.as_array_mut(), more.as_array()) {
        list.extend(more.iter().cloned());
    }
}

#[tokio::test]
async fn helm_installs_upgrades_and_removes_the_provider_but_keeps_crds() -> Result<()> {
    // A separate cluster: Helm would reject the objects of other tests.
    let cluster = ManagementCluster::builder().core(false).start().await?;
    let helm = Helm::new().await?;
    let run = |arguments: &[&str]| {
        let mut command = helm.command(arguments);
        command.env("KUBECONFIG", cluster.admin_kubeconfig());
        output(command.args(["--namespace", "ours"]))
    };
    let replicas = || {
        let path = "--output=jsonpath={.spec.replicas}";
        let deployment = [
            "get",
            "deployment",
            "capcmi-controller-manager",
            "--namespace=ours",
            path,
        ];
        output(cluster.kubectl().args(deployment))
    };
    run(&["install", "capcmi", CHART, "--create-namespace"])?;
    assert_eq!(replicas()?, "1");
    run(&["upgrade", "capcmi", CHART, "--set", "replicas=2"])?;
    assert_eq!(replicas()?, "2");
    // The permissions belong to the account in Helm's namespace.
    let allowed = output(cluster.kubectl().args([
        "auth",
        "can-i",
        "patch",
        "inframachines.infrastructure.capcmi.io",
        "--as=system:serviceaccount:ours:capcmi-manager",
        "--all-namespaces",
    ]))?;
    assert_eq!(allowed.trim(), "yes");
    run(&["uninstall", "capcmi"])?;
    ensure!(replicas().is_err(), "it is still there");
    let definitions = output(cluster.kubectl().args(["get", "crds", "--output=name"]))?;
    ensure!(
        definitions.contains("inframachines.infrastructure.capcmi.io"),
        "{definitions}"
    );
    Ok(())
}
