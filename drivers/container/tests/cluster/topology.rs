//! A Cluster of the shipped ClusterClass on containers: a variable that the driver can apply to a running
//! machine, and a version that takes new machines: `make test-topology`.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::ByteString;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind},
};
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::{
    FIRST, NEXT, VERSION,
    cluster::{self, Cluster, Member, TOPOLOGY, Wanted},
    lab::{self, CERTIFICATES, Endpoint, Lab},
    shipped::certificates,
    steps::Steps,
    workload::Workload,
};

/// The address of the Runtime Extension, for which the certificate of a driver is good as well.
const EXTENSION: &str = "localhost:9443";
/// How long an update in place may take.
const DEADLINE: Duration = Duration::from_mins(3);

pub async fn live(folder: &Path) -> Result<()> {
    let mut steps = Steps::start();
    let mut lab = Lab::start(folder, &[VERSION, NEXT], Endpoint::Socket, &extension(folder)?).await?;
    register(&lab).await?;
    steps.done("management cluster, provider and driver run, and core has found the Runtime Extension");
    cluster::lived_on(&mut lab, &TOPOLOGY, FIRST, &mut steps, live_on).await
}

async fn live_on(lab: &Lab, cluster: &Cluster<'_>, workload: &Workload, steps: &mut Steps) -> Result<()> {
    workload.apply(&lab::repository().join("tests/podnet/podnet.yaml"))?;
    let members = cluster.members(workload, FIRST).await?;
    workload.available("kube-system", "coredns").await?;
    steps.done("the control plane and the worker are Ready");

    let worker = members.iter().find(|member| !member.is_control_plane);
    let worker = worker.context("there is no worker")?;
    cluster.set_variable("workerSize", json!("large")).await?;
    eventually(DEADLINE, "an updated worker", async || {
        is_updated(cluster, worker).await
    })
    .await?;
    let limit = lab.memory_limit(worker)?;
    ensure!(limit == 3072, "the worker has {limit} MiB");
    ensure!(
        cluster.members(workload, FIRST).await? == members,
        "not in place: {members:#?}"
    );
    steps.done("the worker is larger, and the same machine");

    cluster.upgrade_topology(NEXT).await?;
    let wanted = Wanted {
        version: NEXT,
        ..FIRST
    };
    cluster.members(workload, wanted).await?;
    steps.done("all Nodes run the next patch version");
    workload.reach_a_service().await?;
    steps.done("a Pod reached a Service on another Node by name");
    Ok(())
}

/// Core has ended the update of a Machine, and the provider that of its VM.
async fn is_updated(cluster: &Cluster<'_>, member: &Member) -> Result<()> {
    let [machine, infra_machine] = cluster.objects_of(member).await?;
    for (object, type_, status) in [
        (&machine, "Updating", "False"),
        (&infra_machine, "VirtualMachineUpToDate", "True"),
    ] {
        let conditions = object.data["status"]["conditions"].as_array();
        let is_met = |condition: &Value| condition["type"] == type_ && condition["status"] == status;
        ensure!(conditions.into_iter().flatten().any(is_met), "{:#}", object.data);
    }
    ensure!(
        infra_machine.data["spec"]["providerSpec"]["size"] == "large",
        "{:#}",
        infra_machine.data
    );
    Ok(())
}

/// Makes certificates, and returns the flags of a provider with a Runtime Extension.
fn extension(folder: &Path) -> Result<[String; 2]> {
    certificates::make(folder)?;
    let certificates = folder.join(CERTIFICATES);
    for name in ["tls.crt", "tls.key"] {
        fs::copy(
            certificates.join(name.replace("tls", "capcmi-driver")),
            certificates.join(name),
        )?;
    }
    Ok([
        format!(
            "--runtime-extension-address={}",
            EXTENSION.replace("localhost", "127.0.0.1")
        ),
        format!("--runtime-extension-cert-dir={}", certificates.display()),
    ])
}

/// Registers the Runtime Extension for the Cluster's namespace, and waits until core has found its hooks.
async fn register(lab: &Lab) -> Result<()> {
    let authority = fs::read(lab.folder.join(CERTIFICATES).join("ca.crt"))?;
    let config = json!({
        "apiVersion": "runtime.cluster.x-k8s.io/v1beta2", "kind": "ExtensionConfig",
        "metadata": {"name": "capcmi"},
        "spec": {
            "clientConfig": {"url": format!("https://{EXTENSION}"), "caBundle": ByteString(authority)},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": lab.namespace}},
        },
    });
    let admin = lab.management.admin_client().await?;
    management_cluster::apply(&admin, config).await?;
    let kind = GroupVersionKind::gvk("runtime.cluster.x-k8s.io", "v1beta2", "ExtensionConfig");
    let configs = Api::<DynamicObject>::all_with(admin, &ApiResource::from_gvk(&kind));
    eventually(DEADLINE, "the hooks of the extension", async || {
        let config = configs.get("capcmi").await?;
        let hooks = config.data["status"]["handlers"].as_array().map_or(0, Vec::len);
        ensure!(hooks == 3, "{:#}", config.data);
        Ok(())
    })
    .await
}
