//! The shipped ClusterClass with Cluster API's real topology controller, which tries
//! changes out by a dry run.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capcmi::api::{GROUP, VERSION};
use capcmi_manifests as manifests;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams},
    core::GroupVersionKind,
};
use management_cluster::{ManagementCluster, eventually};
use serde_json::{Value, json};

use crate::{
    objects::{find, output, parse},
    release::Release,
};

const DEADLINE: Duration = Duration::from_mins(4);

/// The kinds of the kubeadm providers, by group: without a controller, but core can make them.
const KUBEADM: [(&str, &str); 4] = [
    ("controlplane.cluster.x-k8s.io", "KubeadmControlPlane"),
    ("controlplane.cluster.x-k8s.io", "KubeadmControlPlaneTemplate"),
    ("bootstrap.cluster.x-k8s.io", "KubeadmConfig"),
    ("bootstrap.cluster.x-k8s.io", "KubeadmConfigTemplate"),
];

/// Other values than by default.
const KUBE_VIP: [(&str, &str); 5] = [
    // With quotes, which the class adds and the flavor does not.
    ("KUBE_VIP_INTERFACE", r#""enp1s0""#),
    ("KUBE_VIP_IMAGE", "registry.test/kube-vip:v1"),
    ("KUBE_VIP_LEASE_SECONDS", "60"),
    ("KUBE_VIP_RENEW_SECONDS", "40"),
    ("KUBE_VIP_RETRY_SECONDS", "8"),
];

#[tokio::test]
async fn a_class_is_filled_in_and_follows_its_variables() -> Result<()> {
    let cluster = start().await?;
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: tenant}\n";
    cluster.apply_yaml(namespace).await?;
    let release = Release::make(None).await?;
    for object in release.generate_cluster(Some("topology"))? {
        // Core's webhook may not have seen the class yet.
        let apply = async || cluster.apply_yaml(&object.to_string()).await.map(|_| ());
        eventually(DEADLINE, "the API server taking an object", apply).await?;
    }
    let templates = namespaced(&cluster, GROUP, VERSION, "InfraMachineTemplate").await?;
    let spec = json!({"driver": "simulated", "providerSpec": {"vmPool": "default", "size": "4", "tags": {}}});
    eventually(DEADLINE, "the workers' template", async || {
        has_spec(&templates, &spec).await
    })
    .await?;

    let control_planes = namespaced(&cluster, KUBEADM[0].0, "v1beta2", "KubeadmControlPlane").await?;
    let template = release.generate_cluster(None)?;
    has_kubeadm_config_of(&template, &control_planes).await?;

    let infra_clusters = namespaced(&cluster, GROUP, VERSION, "InfraCluster").await?;
    let made = infra_clusters.list(&ListParams::default()).await?;
    ensure!(
        made.items
            .iter()
            .any(|object| object.data["spec"]["driver"] == "simulated"),
        "{made:?}"
    );

    let clusters = namespaced(&cluster, "cluster.x-k8s.io", "v1beta2", "Cluster").await?;
    let mut variables = clusters.get("demo").await?.data["spec"]["topology"]["variables"].clone();
    set(&mut variables, "workerSize", json!("large"))?;
    set_variables(&clusters, &variables).await?;
    let spec =
        json!({"driver": "simulated", "providerSpec": {"vmPool": "default", "size": "large", "tags": {}}});
    eventually(DEADLINE, "a new template with the new size", async || {
        has_spec(&templates, &spec).await
    })
    .await?;

    let of_flavor = |flavor| parse(&output(release.cluster(flavor).envs(KUBE_VIP))?);
    let changed = of_flavor(Some("topology"))?;
    let changed = &find(&changed, "Cluster", "demo")?["spec"]["topology"]["variables"];
    set_variables(&clusters, changed).await?;
    let template = of_flavor(None)?;
    eventually(
        DEADLINE,
        "a control plane with the changed kube-vip",
        async || has_kubeadm_config_of(&template, &control_planes).await,
    )
    .await?;

    let without = variables.as_array_mut().context("no variables")?;
    without.retain(|variable| variable["name"] != "kubeVip");
    set_variables(&clusters, &variables).await?;
    let external = release.generate_cluster(Some("external-endpoint"))?;
    eventually(DEADLINE, "a control plane without kube-vip", async || {
        has_kubeadm_config_of(&external, &control_planes).await
    })
    .await
}

/// Sets a variable that the Cluster has.
fn set(variables: &mut Value, name: &str, value: Value) -> Result<()> {
    let mut all = variables.as_array_mut().into_iter().flatten();
    let variable = all.find(|variable| variable["name"] == name);
    variable.with_context(|| format!("no {name}"))?["value"] = value;
    Ok(())
}

async fn set_variables(clusters: &Api<DynamicObject>, variables: &Value) -> Result<()> {
    let patch = Patch::Merge(json!({"spec": {"topology": {"variables": variables}}}));
    clusters.patch("demo", &PatchParams::default(), &patch).await?;
    Ok(())
}

/// The control plane of the class is configured as that of a flavor.
async fn has_kubeadm_config_of(flavor: &[Value], control_planes: &Api<DynamicObject>) -> Result<()> {
    let wanted = find(flavor, "KubeadmControlPlane", "demo-control-plane")?;
    let made = control_planes.list(&ListParams::default()).await?.items;
    let made = &made.first().context("no control plane")?.data["spec"]["kubeadmConfigSpec"];
    let wanted = &wanted["spec"]["kubeadmConfigSpec"];
    ensure!(made == wanted, "{made} is not {wanted}");
    Ok(())
}

async fn start() -> Result<ManagementCluster> {
    let kubeadm: Vec<String> = KUBEADM
        .iter()
        .map(|(group, kind)| definition(group, kind).to_string())
        .collect();
    ManagementCluster::builder()
        .manifests(manifests::stream(&manifests::Part::ALL)?)
        .manifests(kubeadm.join("\n---\n"))
        .start()
        .await
}

fn definition(group: &str, kind: &str) -> Value {
    let (singular, open) = (
        kind.to_lowercase(),
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
    );
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{singular}s.{group}"),
        "labels": {"cluster.x-k8s.io/v1beta2": "v1beta2"}},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"kind": kind, "listKind": format!("{kind}List"), "plural": format!("{singular}s"),
            "singular": singular},
            "versions": [{
                "name": "v1beta2", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": open,
                "status": open}}},
            }],
        },
    })
}

async fn namespaced(
    cluster: &ManagementCluster,
    group: &str,
    version: &str,
    kind: &str,
) -> Result<Api<DynamicObject>> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Ok(Api::namespaced_with(
        cluster.admin_client().await?,
        "tenant",
        &resource,
    ))
}

async fn has_spec(templates: &Api<DynamicObject>, spec: &Value) -> Result<()> {
    let all = templates.list(&ListParams::default()).await?.items;
    let specs: Vec<&Value> = all
        .iter()
        .map(|template| &template.data["spec"]["template"]["spec"])
        .collect();
    ensure!(specs.contains(&spec), "{specs:?}");
    Ok(())
}
