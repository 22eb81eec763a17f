//! The provider as it ships: its image and its manifests, in a cluster that it made and that manages itself
//! with it: `make test-shipped`.

pub mod certificates;
mod cluster_api;
mod image;
mod installation;
mod machines;
mod provider;
mod registry;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use management_cluster::{CLUSTER_API_VERSION, CertManager};
use testbed::Go;
use tokio::runtime::Runtime;

use self::{
    cluster_api::Repository,
    image::Stage,
    installation::{DRIVER_IMAGE, DRIVER_VERSION, IMAGE, Kustomization, MANAGER, NAMESPACE},
    machines::{Machines, SAMPLED},
    provider::Provider,
    registry::Registry,
};
use crate::{
    FIRST, NEXT, VERSION,
    cluster::{self, CONTAINER, Cluster, Member, Wanted},
    lab::{self, Endpoint, Lab, repository},
    sandbox::run,
    steps::Steps,
    workload::Workload,
};

/// The Cluster that the provider runs in.
const HOME: Wanted<'_> = FIRST;
/// The releases of the provider. Both have the same program.
const RELEASE: &str = "v0.1.0";
const NEXT_RELEASE: &str = "v0.1.1";

/// The range of Services in the flavour.
const SERVICES: &str = "10.128.0.0/12";
/// Patches that give the driver in Go its folder of VMs and its names for the files of TLS.
const GO_SIDECAR: &str = include_str!("go-sidecar.yaml");
const GO_DEPLOYMENT: &str = include_str!("go-deployment.yaml");

/// Builds everything that needs the network.
pub fn prepare() -> Result<PathBuf> {
    Runtime::new()?.block_on(async {
        Go::find().await?;
        CertManager::find().await
    })?;
    lab::prepare(&[VERSION, NEXT])
}

pub async fn live(folder: &Path) -> Result<()> {
    let mut steps = Steps::start();
    certificates::make(folder)?;
    let mut lab = Lab::start(folder, &[VERSION, NEXT], Endpoint::Tls, &[]).await?;
    let before = lab.traces()?;
    let cluster = cluster::create(&lab, &CONTAINER, HOME).await?;
    let lived = live_in(&lab, &cluster, &mut steps).await;
    lived.map_err(|error| error.context(format!("{}\n{}", cluster.describe(), lab.consoles())))?;
    cluster.delete().await?;
    lab.ends_as(&before).await?;
    steps.done("the Cluster is deleted, and nothing is left");
    Ok(())
}

async fn live_in(lab: &Lab, cluster: &Cluster<'_>, steps: &mut Steps) -> Result<()> {
    let workload = cluster.workload().await?;
    let lived = live_on(lab, cluster, &workload, steps).await;
    let described = |error: anyhow::Error| {
        error.context(format!(
            "{}\n{}",
            workload.describe(),
            Provider::of(&workload).log()
        ))
    };
    lived.map_err(described)
}

async fn live_on(lab: &Lab, cluster: &Cluster<'_>, workload: &Workload, steps: &mut Steps) -> Result<()> {
    workload.apply(&repository().join("tests/podnet/podnet.yaml"))?;
    let members = cluster.members(workload, HOME).await?;
    workload.available("kube-system", "coredns").await?;
    steps.done("a cluster of two Nodes runs");

    let cluster_api = Repository::make(&lab.management, &lab.folder).await?;
    let images = [cluster_api.images.as_slice(), &own_images(lab).await?].concat();
    load(lab, &members, &images)?;
    steps.done("the Nodes have all images");
    cluster_api.init(&lab.management, workload)?;
    steps.done("clusterctl init: cert-manager and Cluster API run as Pods");
    route(workload).await?;

    default_installation(lab, workload, steps).await?;
    sidecar(lab, workload, steps).await?;
    deployment_over_tls(lab, workload, steps).await?;
    manage_itself(lab, cluster, workload, &images, steps).await
}

/// Puts images into machines.
fn load<'a>(lab: &Lab, members: impl IntoIterator<Item = &'a Member>, images: &[PathBuf]) -> Result<()> {
    for member in members {
        for image in images {
            lab.load(&member.provider_id, image)?;
        }
    }
    Ok(())
}

/// The images of the provider, in two releases, and of a driver.
async fn own_images(lab: &Lab) -> Result<Vec<PathBuf>> {
    let node = lab::build_image(NEXT)?;
    let manager = testbed::program("capcmi-manager")?;
    let go = Go::find().await?;
    let driver = PathBuf::from(go.command(Path::new("/")).get_program());
    let write = |dockerfile: &str, built: (&str, &Path), name: &str| {
        let archive = lab.folder.join(format!("{}.tar", name.replace(['/', ':'], "-")));
        let stage = Stage::read(&repository().join(dockerfile))?;
        stage.write(name, &node, &BTreeMap::from([built]), &archive)?;
        Ok(archive)
    };
    let provider = ("/capcmi-manager", manager.as_path());
    [
        write("Dockerfile", provider, &format!("{IMAGE}:{RELEASE}")),
        write("Dockerfile", provider, &format!("{IMAGE}:{NEXT_RELEASE}")),
        write(
            "examples/drivers/go/Dockerfile",
            ("/driver", &driver),
            &format!("{DRIVER_IMAGE}:{DRIVER_VERSION}"),
        ),
    ]
    .into_iter()
    .collect()
}

/// Lets the host reach Pods and Services, and Pods the host: the Pod network of the tests translates no
/// addresses.
async fn route(workload: &Workload) -> Result<()> {
    for node in workload.nodes().await? {
        let name = node.name_any();
        let pods = node.spec.and_then(|spec| spec.pod_cidr);
        let addresses = node
            .status
            .and_then(|status| status.addresses)
            .unwrap_or_default();
        let internal = addresses.iter().find(|address| address.type_ == "InternalIP");
        let gateway = &internal
            .with_context(|| format!("{name} has no address"))?
            .address;
        for network in [pods.context("a Node has no Pods")?.as_str(), SERVICES] {
            run("ip", ["route", "replace", network, "via", gateway])?;
        }
    }
    Ok(())
}

/// `kubectl apply -k config/default`: the simulated driver.
async fn default_installation(lab: &Lab, workload: &Workload, steps: &mut Steps) -> Result<()> {
    let provider = Provider::of(workload);
    SHIPPED.apply(workload, &lab.folder)?;
    let pods = provider.rolled_out(MANAGER).await?;
    ensure!(
        provider.leader().await? == pods[0].name_any(),
        "the Pod is no leader"
    );
    steps.done("the default Deployment is available and leads");
    privileged_pods_are_refused(workload)?;
    metrics_need_permission(workload, &provider).await?;
    steps.done("Pod Security and the metrics port let nobody else in");
    let machines = Machines::make(workload, &lab.folder, "simulated").await?;
    machines.delete().await?;
    steps.done("three simulated machines came and went");
    Ok(())
}

const SHIPPED: Kustomization<'_> = Kustomization {
    components: &[],
    version: RELEASE,
    replicas: 1,
    more: "",
};

/// The namespace enforces the level `restricted`.
fn privileged_pods_are_refused(workload: &Workload) -> Result<()> {
    let namespace = format!("--namespace={NAMESPACE}");
    let refused = workload.kubectl(&[
        "run",
        "any",
        "--image=any",
        "--privileged",
        "--dry-run=server",
        &namespace,
    ]);
    let refusal = refused.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(refusal.contains("violates PodSecurity \"restricted"), "{refusal}");
    Ok(())
}

/// 401 without a token, 403 for a ServiceAccount without the role, and metrics with it. The accounts differ,
/// since the provider keeps a refusal for a minute.
async fn metrics_need_permission(workload: &Workload, provider: &Provider<'_>) -> Result<()> {
    let refusal = async |token: Option<&str>| {
        let refused = provider.metrics(token).await;
        refused.err().map(|error| error.to_string()).unwrap_or_default()
    };
    let stranger = token(workload, "stranger")?;
    let refused = [refusal(None).await, refusal(Some(&stranger)).await];
    ensure!(
        refused[0].contains("401") && refused[1].contains("403"),
        "{refused:?}"
    );
    let scraper = token(workload, "scraper")?;
    let role = "--clusterrole=capcmi-metrics-reader";
    let account = "--serviceaccount=default:scraper";
    workload.kubectl(&["create", "clusterrolebinding", "scraper", role, account])?;
    let metrics = provider.metrics(Some(&scraper)).await?;
    ensure!(metrics.contains("\ncapcmi_leader 1\n"), "{metrics}");
    Ok(())
}

/// A token of a new ServiceAccount.
fn token(workload: &Workload, account: &str) -> Result<String> {
    workload.kubectl(&["create", "serviceaccount", account])?;
    let token = workload.kubectl(&["create", "token", account])?;
    Ok(token.trim_end().to_owned())
}

/// The component driver-sidecar, with the driver in Go.
async fn sidecar(lab: &Lab, workload: &Workload, steps: &mut Steps) -> Result<()> {
    let with_sidecar = Kustomization {
        components: &["driver-sidecar"],
        more: GO_SIDECAR,
        ..SHIPPED
    };
    with_sidecar.apply(workload, &lab.folder)?;
    Provider::of(workload).rolled_out(MANAGER).await?;
    let machines = Machines::make(workload, &lab.folder, "plugin").await?;
    machines.delete().await?;
    steps.done("a sidecar made and deleted three machines");
    Ok(())
}

/// The components driver-remote and driver-deployment, with two replicas of the provider.
async fn deployment_over_tls(lab: &Lab, workload: &Workload, steps: &mut Steps) -> Result<()> {
    let provider = Provider::of(workload);
    certificates::apply(workload, &lab.folder)?;
    let remote = Kustomization {
        components: &["driver-remote", "driver-deployment"],
        replicas: 2,
        more: GO_DEPLOYMENT,
        ..SHIPPED
    };
    remote.apply(workload, &lab.folder)?;
    provider.rolled_out("capcmi-driver").await?;
    provider.rolled_out(MANAGER).await?;
    let machines = Machines::make(workload, &lab.folder, "plugin").await?;
    steps.done("a driver over TLS made three machines for two replicas");

    let lost = provider.leader().await?;
    provider.delete_now(&lost)?;
    machines.scale(SAMPLED + 1).await?;
    ensure!(provider.leader().await? != lost, "{lost} still leads");
    steps.done("the other replica made a machine after the leader was deleted");

    let made = machines.provider_ids()?;
    let upgraded = Kustomization {
        version: NEXT_RELEASE,
        ..remote
    };
    upgraded.apply(workload, &lab.folder)?;
    let pods = provider.rolled_out(MANAGER).await?;
    ensure!(pods.iter().all(|pod| has_image(pod, NEXT_RELEASE)), "{pods:#?}");
    ensure!(machines.provider_ids()? == made, "machines were replaced");
    machines.scale(SAMPLED).await?;
    steps.done("the upgraded provider deleted a machine");

    change_drivers_file(lab, workload, &provider, upgraded).await?;
    machines.delete().await?;
    steps.done("an invalid drivers file stopped the rollout, a valid one ended it");
    Ok(())
}

fn has_image(pod: &Pod, version: &str) -> bool {
    let spec = pod.spec.iter().flat_map(|spec| &spec.containers);
    let image = format!("{IMAGE}:{version}");
    spec.into_iter()
        .all(|container| container.image.as_ref() == Some(&image))
}

/// A new Pod ends with an invalid file, and the old ones continue. A valid file lets the rollout end.
async fn change_drivers_file(
    lab: &Lab,
    workload: &Workload,
    provider: &Provider<'_>,
    valid: Kustomization<'_>,
) -> Result<()> {
    let leader = provider.leader().await?;
    let invalid = format!("{GO_DEPLOYMENT}{}", include_str!("invalid-drivers.yaml"));
    Kustomization {
        more: &invalid,
        ..valid
    }
    .apply(workload, &lab.folder)?;
    provider.restart(MANAGER)?;
    provider.ended_with(2).await?;
    ensure!(provider.leader().await? == leader, "{leader} leads no more");
    valid.apply(workload, &lab.folder)?;
    provider.restart(MANAGER)?;
    provider.rolled_out(MANAGER).await?;
    Ok(())
}

/// The Cluster moves into itself, is scaled there, upgrades its provider and itself, and moves back.
async fn manage_itself(
    lab: &Lab,
    cluster: &Cluster<'_>,
    workload: &Workload,
    images: &[PathBuf],
    steps: &mut Steps,
) -> Result<()> {
    let provider = Provider::of(workload);
    workload.kubectl(&[
        "delete",
        "deployment,service,networkpolicy",
        "capcmi-driver",
        &format!("--namespace={NAMESPACE}"),
    ])?;
    workload.apply(&folder().join("host-driver.yaml"))?;
    let remote = Kustomization {
        components: &["driver-remote"],
        replicas: 2,
        more: include_str!("host-drivers.yaml"),
        ..SHIPPED
    };
    remote.apply(workload, &lab.folder)?;
    provider.restart(MANAGER)?;
    provider.rolled_out(MANAGER).await?;
    steps.done("the provider in the cluster reaches the driver of its machines");

    prepare_management(lab)?;
    let inside = cluster.in_itself(workload);
    cluster.move_to(&inside)?;
    let before = inside.members(workload, HOME).await?;
    steps.done("clusterctl move: the cluster manages itself");

    let scaled = Wanted { workers: 2, ..HOME };
    inside.scale(scaled.control_planes, scaled.workers)?;
    let members = inside.members(workload, scaled).await?;
    steps.done("a second worker joined from the inside");

    // The upgrade and the drain can bring any Pod to the new worker.
    load(
        lab,
        members.iter().filter(|member| !before.contains(member)),
        images,
    )?;
    route(workload).await?;
    let upgraded = Kustomization {
        version: NEXT_RELEASE,
        ..remote
    };
    upgraded.apply(workload, &lab.folder)?;
    provider.rolled_out(MANAGER).await?;
    inside.scale(HOME.control_planes, HOME.workers)?;
    inside.members(workload, HOME).await?;
    steps.done("the upgraded provider deleted a worker from the inside");

    let upgraded = upgrade_itself(lab, &inside, workload, images).await?;
    steps.done("the cluster upgraded itself to the next patch version");

    inside.move_to(cluster)?;
    cluster.members(workload, upgraded).await?;
    steps.done("clusterctl move: back");
    Ok(())
}

/// Upgrades Kubernetes from the inside: control plane and worker, whose Pods do the upgrade. Returns the
/// members that the Cluster has then.
async fn upgrade_itself<'a>(
    lab: &Lab,
    inside: &Cluster<'_>,
    workload: &Workload,
    images: &[PathBuf],
) -> Result<Wanted<'a>> {
    let wanted = Wanted {
        version: NEXT,
        ..HOME
    };
    let mut registry = Registry::of(lab, inside.provider_ids().await?, images)?;
    inside.upgrade(NEXT, &lab::image(NEXT)).await?;
    tokio::select! {
        members = inside.members(workload, wanted) => members.map(drop)?,
        failed = registry.serve(inside, workload) => failed?,
    }
    Ok(wanted)
}

/// What clusterctl would have noted in a management cluster that it installed: labels of definitions, and an
/// inventory of providers.
fn prepare_management(lab: &Lab) -> Result<()> {
    let kubectl = |arguments: &[&str]| crate::sandbox::output(lab.management.kubectl().args(arguments));
    let label = "clusterctl.cluster.x-k8s.io=";
    kubectl(&["label", "crd", "--all", "--overwrite", label])?;
    let inventory = lab.folder.join("inventory.yaml");
    let text = fs::read_to_string(folder().join("inventory.yaml"))?;
    fs::write(&inventory, text.replace("$VERSION", CLUSTER_API_VERSION))?;
    // Installs the definition of the inventory, which is empty at first.
    let plan = lab.management.clusterctl().args(["upgrade", "plan"]).output()?;
    ensure!(!plan.status.success(), "an inventory is there already");
    kubectl(&["apply", "--server-side", "-f", &inventory.display().to_string()])?;
    Ok(())
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/shipped")
}
