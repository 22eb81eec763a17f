//! The admission policies are the provider's to keep: installed with its own permissions, left alone by
//! clusterctl, and trusted only where they were never gone.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use capcmi::{
    admission::{AdmissionPolicies, Enforcement, UNCONFIRMED, policies},
    telemetry::metrics::Metrics,
};
use capcmi_manifests::{self as manifests, Part};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
    core::GroupVersionKind,
};
use management_cluster::ManagementCluster;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    api_server::{object, refusal},
    objects::output,
    release::Release,
};

const IDENTITY: &str = "infrastructure.capcmi.io/vm-record";
const POLICY: &str = "ValidatingAdmissionPolicy";
const BINDING: &str = "ValidatingAdmissionPolicyBinding";

/// A management cluster with definitions and permissions, and without policies.
async fn unguarded() -> Result<ManagementCluster> {
    let stream = manifests::stream(&[Part::Crd, Part::Rbac])?;
    let builder = ManagementCluster::builder().core(false).manifests(stream);
    builder.start().await
}

/// The provider's ServiceAccount, with the permissions that are shipped.
async fn provider(cluster: &ManagementCluster) -> Result<Client> {
    let kubeconfig = cluster
        .kubeconfig_for_service_account(manifests::NAMESPACE, "capcmi-manager")
        .await?;
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// A process of the provider that has just been started.
fn policies(client: &Client) -> AdmissionPolicies {
    AdmissionPolicies::new(client.clone(), Arc::new(Metrics::new()))
}

fn of(client: &Client, kind: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
    Api::all_with(client.clone(), &ApiResource::from_gvk(&kind))
}

/// Name, UID and resource version of every policy and binding of the provider.
async fn versions(client: &Client) -> Result<Vec<String>> {
    let mut versions = Vec::new();
    for object in policies::all() {
        let kind = object["kind"].as_str().context("a kind")?;
        let name = object["metadata"]["name"].as_str().context("a name")?;
        let found = of(client, kind).get(name).await?;
        let version = found.resource_version().unwrap_or_default();
        versions.push(format!("{kind} {name} {version}"));
    }
    Ok(versions)
}

#[track_caller]
fn in_force(enforcement: &Enforcement) -> Result<()> {
    ensure!(*enforcement == Enforcement::InForce, "{enforcement:?}");
    Ok(())
}

fn unconfirmed(enforcement: &Enforcement) -> Result<()> {
    let Enforcement::NotInForce(why) = enforcement else {
        anyhow::bail!("forged identities would be trusted");
    };
    let command =
        format!("kubectl annotate validatingadmissionpolicy capcmi-reserved-annotations {UNCONFIRMED}-");
    ensure!(why.contains(&command), "{why}");
    Ok(())
}

#[tokio::test]
async fn the_provider_can_install_its_own_policies_and_change_no_others() -> Result<()> {
    let cluster = unguarded().await?;
    let (admin, client) = (cluster.admin_client().await?, provider(&cluster).await?);
    let first = policies(&client);
    in_force(&first.enforcement_since(Instant::now()).await)?;
    let installed = versions(&admin).await?;
    for object in policies::all() {
        let kind = object["kind"].as_str().context("a kind")?;
        let name = object["metadata"]["name"].as_str().context("a name")?;
        let found = of(&admin, kind).get(name).await?;
        // clusterctl deletes objects with its label.
        ensure!(
            !found.labels().contains_key("clusterctl.cluster.x-k8s.io"),
            "{found:?}"
        );
        ensure!(!found.annotations().contains_key(UNCONFIRMED), "{found:?}");
    }
    // The next start, and every check: nothing is written.
    in_force(&policies(&client).enforcement_since(Instant::now()).await)?;
    in_force(&first.enforcement_since(Instant::now()).await)?;
    ensure!(versions(&admin).await? == installed, "written again");

    // Refused to a user without the right to write identities.
    let namespace = cluster.namespace("tenant").await?;
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "tenant", "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tenant"}],
    });
    cluster.apply_yaml(&binding.to_string()).await?;
    let forged = object(
        "InfraMachine",
        "m",
        &json!({"annotations": {IDENTITY: "x"}, "namespace": namespace}),
        &json!({}),
    );
    let path = cluster.folder().path().join("forged.json");
    std::fs::write(&path, forged.to_string())?;
    let mut kubectl = cluster.kubectl();
    let refused = kubectl
        .args(["--as=tenant", "create", "-f"])
        .arg(&path)
        .output()?;
    let said = String::from_utf8(refused.stderr)?;
    ensure!(
        !refused.status.success() && said.contains("capcmi-reserved-annotations"),
        "{said}"
    );

    // By name alone, also where they are made.
    let mut other = policies::all().remove(0);
    other["metadata"]["name"] = json!("another");
    let params = PatchParams::apply("tests").force();
    let message = refusal(
        of(&client, POLICY)
            .patch("another", &params, &Patch::Apply(&other))
            .await,
    )?;
    ensure!(message.contains("forbidden"), "{message}");
    Ok(())
}

#[tokio::test]
async fn unguarded_identities_are_not_trusted_until_they_are_confirmed() -> Result<()> {
    let cluster = unguarded().await?;
    let (admin, client) = (cluster.admin_client().await?, provider(&cluster).await?);
    let running = policies(&client);
    in_force(&running.enforcement_since(Instant::now()).await)?;
    // Without identities, none can be forged: the binding is put back.
    of(&admin, BINDING)
        .delete("capcmi-provider-id", &DeleteParams::default())
        .await?;
    in_force(&running.enforcement_since(Instant::now()).await)?;

    let namespace = cluster.namespace("machines").await?;
    let machine = object(
        "InfraMachine",
        "m",
        &json!({"annotations": {IDENTITY: "x"}, "namespace": namespace}),
        &json!({}),
    );
    cluster.apply_yaml(&machine.to_string()).await?;
    in_force(&running.enforcement_since(Instant::now()).await)?;
    let confirm = async || {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {UNCONFIRMED: null}}}));
        of(&admin, POLICY)
            .patch("capcmi-reserved-annotations", &PatchParams::default(), &patch)
            .await
    };

    // Gone for a while: put back, and noted so that a restart keeps it.
    of(&admin, BINDING)
        .delete("capcmi-provider-id", &DeleteParams::default())
        .await?;
    unconfirmed(&running.enforcement_since(Instant::now()).await)?;
    of(&admin, BINDING).get("capcmi-provider-id").await?;
    unconfirmed(&policies(&client).enforcement_since(Instant::now()).await)?;
    confirm().await?;
    in_force(&running.enforcement_since(Instant::now()).await)?;

    // Taken away and put back between two checks.
    let name = "capcmi-reserved-annotations";
    of(&admin, POLICY).delete(name, &DeleteParams::default()).await?;
    cluster.apply_yaml(&manifests::stream(&[Part::Policy])?).await?;
    unconfirmed(&running.enforcement_since(Instant::now()).await)?;
    confirm().await?;
    in_force(&running.enforcement_since(Instant::now()).await)?;

    // Made to let everything through, and found so by a start.
    let audit = Patch::Merge(json!({"spec": {"validationActions": ["Audit"]}}));
    of(&admin, BINDING)
        .patch(name, &PatchParams::default(), &audit)
        .await?;
    let restarted = policies(&client);
    unconfirmed(&restarted.enforcement_since(Instant::now()).await)?;
    let actions = of(&admin, BINDING).get(name).await?.data["spec"]["validationActions"].clone();
    ensure!(actions == json!(["Deny"]), "{actions}");
    confirm().await?;
    in_force(&restarted.enforcement_since(Instant::now()).await)?;

    // Made to refuse nothing, and found so by a start.
    let void = Patch::Merge(json!({"spec": {"validations": [{"expression": "true"}]}}));
    of(&admin, POLICY)
        .patch(name, &PatchParams::default(), &void)
        .await?;
    unconfirmed(&policies(&client).enforcement_since(Instant::now()).await)?;
    let expected = policies::all()
        .into_iter()
        .find(|object| object["metadata"]["name"] == name)
        .context("the policy")?;
    let found = of(&admin, POLICY).get(name).await?;
    ensure!(
        found.data["spec"]["validations"][0]["expression"]
            == expected["spec"]["validations"][0]["expression"]
    );
    Ok(())
}

/// The policies of an older version, which refuse less than those of this one, and with a policy less.
fn older_policies() -> Vec<Value> {
    let mut policies = policies::all();
    policies.retain(|object| object["metadata"]["name"] != "capcmi-finalizer");
    for policy in policies.iter_mut().filter(|object| object["kind"] == POLICY) {
        policy["spec"]["validations"][0]["message"] = json!("refused by an older version");
    }
    policies
}

#[tokio::test]
async fn the_newer_policies_stay_in_force_beside_an_older_provider() -> Result<()> {
    let cluster = unguarded().await?;
    let (admin, client) = (cluster.admin_client().await?, provider(&cluster).await?);
    let older = || -> Result<AdmissionPolicies> {
        Ok(policies(&client).of_version(&"0.0.1".parse()?, older_policies()))
    };
    let (old, new) = (older()?, policies(&client));
    in_force(&old.enforcement_since(Instant::now()).await)?;
    let namespace = cluster.namespace("machines").await?;
    let metadata = json!({"annotations": {IDENTITY: "x"}, "namespace": namespace});
    let machine = object("InfraMachine", "m", &metadata, &json!({}));
    cluster.apply_yaml(&machine.to_string()).await?;
    in_force(&old.enforcement_since(Instant::now()).await)?;

    // The newer one comes, while the older one runs: it takes the policies over, and there they stay.
    in_force(&new.enforcement_since(Instant::now()).await)?;
    let installed = versions(&admin).await?;
    for _ in 0..3 {
        in_force(&old.enforcement_since(Instant::now()).await)?;
        in_force(&new.enforcement_since(Instant::now()).await)?;
    }
    // Both start anew; at last the newer one is gone, as when an upgrade is taken back.
    in_force(&policies(&client).enforcement_since(Instant::now()).await)?;
    in_force(&older()?.enforcement_since(Instant::now()).await)?;
    ensure!(versions(&admin).await? == installed, "they were written again");
    let spec = of(&admin, POLICY).get("capcmi-reserved-annotations").await?.data["spec"].clone();
    let said = spec["validations"][0]["message"].as_str().unwrap_or_default();
    ensure!(!said.contains("older"), "{spec}");

    // If others change the newer one's, that is a gap, which the newer one notes for both.
    let narrowed = json!({"spec": {"matchConditions": [{"name": "none", "expression": "false"}]}});
    of(&admin, POLICY)
        .patch(
            "capcmi-provider-id",
            &PatchParams::default(),
            &Patch::Merge(&narrowed),
        )
        .await?;
    unconfirmed(&new.enforcement_since(Instant::now()).await)?;
    unconfirmed(&old.enforcement_since(Instant::now()).await)?;
    Ok(())
}

/// What `clusterctl upgrade` does before it installs the new version, too.
#[tokio::test]
async fn clusterctl_deletes_the_provider_and_leaves_the_policies() -> Result<()> {
    let cluster = unguarded().await?;
    let admin = cluster.admin_client().await?;
    let release = Release::make(None).await?;
    let components = json!({"apiVersion": "v1", "kind": "List", "items": release.generate_provider()?});
    let path = release.folder().join("components.json");
    std::fs::write(&path, components.to_string())?;
    let mut kubectl = cluster.kubectl();
    output(
        kubectl
            .args(["apply", "--server-side", "--force-conflicts", "-f"])
            .arg(&path),
    )?;
    in_force(
        &policies(&provider(&cluster).await?)
            .enforcement_since(Instant::now())
            .await,
    )?;
    let installed = versions(&admin).await?;

    let delete = || {
        let mut clusterctl = release.clusterctl();
        clusterctl
            .args(["delete", "--infrastructure", "capcmi-cmi", "--config"])
            .arg(release.config())
            .arg("--kubeconfig")
            .arg(cluster.admin_kubeconfig());
        clusterctl
    };
    // Installs the definition of its inventory, and finds nothing in it.
    let first = delete().output()?;
    let said = String::from_utf8(first.stderr)?;
    ensure!(said.contains("failed to identify the namespace"), "{said}");
    let inventory = json!({
        "apiVersion": "clusterctl.cluster.x-k8s.io/v1alpha3", "kind": "Provider",
        "metadata": {
            "name": "infrastructure-capcmi-cmi", "namespace": manifests::NAMESPACE,
            "labels": {"clusterctl.cluster.x-k8s.io": "",
            "cluster.x-k8s.io/provider": "infrastructure-capcmi-cmi",
                "clusterctl.cluster.x-k8s.io/core": "inventory"},
        },
        "providerName": "capcmi-cmi", "type": "InfrastructureProvider", "version": "v0.1.0",
    });
    cluster.apply_yaml(&inventory.to_string()).await?;
    output(&mut delete())?;
    let deployments: Value = serde_json::from_str(&output(cluster.kubectl().args([
        "get",
        "deployments",
        "-A",
        "-l",
        "cluster.x-k8s.io/provider=infrastructure-capcmi-cmi",
        "-o",
        "json",
    ]))?)?;
    ensure!(
        deployments["items"] == json!([]),
        "clusterctl deleted nothing: {deployments}"
    );
    ensure!(versions(&admin).await? == installed, "the policies were touched");
    Ok(())
}
