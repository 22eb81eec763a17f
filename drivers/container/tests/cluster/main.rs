//! A whole cluster on machines that are system containers, with the real core and kubeadm providers, this
//! provider and the container driver: `make test-cluster`.

mod cluster;
mod etcd;
mod lab;
mod leftovers;
mod reader;
mod shipped;
mod topology;
mod traces;

use std::{collections::BTreeSet, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use management_cluster::eventually;
use serde_json::json;
use testbed::whole_cluster::{sandbox, steps, workload};

use self::{
    cluster::{CONTAINER, Cluster, Member, Wanted},
    lab::{Endpoint, Lab},
    reader::Reader,
    steps::Steps,
    workload::Workload,
};

/// The version that the Cluster starts with.
const VERSION: &str = "v1.36.2";
/// The version that it is upgraded to.
const NEXT: &str = "v1.36.3";
/// The Cluster as it is made.
const FIRST: Wanted<'_> = Wanted {
    control_planes: 1,
    workers: 1,
    ..WHOLE
};
/// The Cluster when it is scaled.
const WHOLE: Wanted<'_> = Wanted {
    version: VERSION,
    control_planes: 3,
    workers: 2,
    without: None,
};
/// How long the VIP may not answer during an upgrade: the lease of kube-vip several times, on a computer that
/// others use as well.
const GAP: Duration = Duration::from_mins(1);
/// How long anything may take, on a computer that others use as well.
const DEADLINE: Duration = Duration::from_mins(3);

#[test]
fn a_cluster_is_scaled_repaired_upgraded_and_deleted() -> Result<()> {
    let name = "a_cluster_is_scaled_repaired_upgraded_and_deleted";
    let prepare = || lab::prepare(&[VERSION, NEXT]);
    sandbox::enter(name, prepare, leftovers::remove, live)
}

#[test]
#[ignore = "long: the provider as Pods, in a cluster that manages itself"]
fn the_provider_runs_as_it_ships() -> Result<()> {
    let name = "the_provider_runs_as_it_ships";
    sandbox::enter(name, shipped::prepare, leftovers::remove, shipped::live)
}

#[test]
#[ignore = "long: a ClusterClass on machines that are updated in place, and replaced"]
fn a_cluster_of_a_class_is_updated_in_place_and_upgraded() -> Result<()> {
    let name = "a_cluster_of_a_class_is_updated_in_place_and_upgraded";
    let prepare = || lab::prepare(&[VERSION, NEXT]);
    sandbox::enter(name, prepare, leftovers::remove, topology::live)
}

async fn live(folder: &Path) -> Result<()> {
    let mut steps = Steps::start();
    let mut lab = Lab::start(folder, &[VERSION, NEXT], Endpoint::Socket, &[]).await?;
    steps.done("management cluster, provider and driver run");
    cluster::lived_on(&mut lab, &CONTAINER, FIRST, &mut steps, live_on).await
}

async fn live_on(lab: &Lab, cluster: &Cluster<'_>, workload: &Workload, steps: &mut Steps) -> Result<()> {
    workload.apply(&lab::repository().join("tests/podnet/podnet.yaml"))?;
    keep_dns_on_workers(workload).await?;
    cluster.members(workload, FIRST).await?;
    steps.done("the control plane and the worker are Ready");

    workload.available("kube-system", "coredns").await?;
    workload.reach_a_service().await?;
    steps.done("a Pod reached a Service on another Node by name");

    cluster.scale(WHOLE.control_planes, WHOLE.workers)?;
    let members = cluster.members(workload, WHOLE).await?;
    etcd_is_of(&members)?;
    steps.done("three control planes and two workers are Ready");
    print_memory()?;

    cluster.check_health().await?;
    let repaired = lose_the_vip(lab, cluster, workload, steps, &members).await?;
    etcd_is_of(&repaired)?;
    cluster.check_health_no_more()?;
    steps.done("another machine has taken the place of the lost one");

    let reader = Reader::start(workload.config().await?);
    cluster.upgrade(NEXT, &lab::image(NEXT)).await?;
    let wanted = Wanted {
        version: NEXT,
        ..WHOLE
    };
    let upgraded = cluster.members(workload, wanted).await?;
    etcd_is_of(&upgraded)?;
    steps.done("all Nodes run the next patch version");
    let reads = reader.stop().await?;
    println!("through the VIP meanwhile: {reads}");
    ensure!(
        reads.longest_gap < GAP,
        "the VIP did not answer for longer than {GAP:?}"
    );
    workload.reach_a_service().await?;
    steps.done("a Pod reached the Service again");
    Ok(())
}

/// Keeps CoreDNS off the control planes. Otherwise core waits 20 s for its end on each, or Pods of a deleted
/// machine get queries for a minute.
async fn keep_dns_on_workers(workload: &Workload) -> Result<()> {
    let role = json!({"key": "node-role.kubernetes.io/control-plane", "operator": "DoesNotExist"});
    let nodes = json!({"nodeSelectorTerms": [{"matchExpressions": [role]}]});
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": nodes}});
    let patch = json!({"spec": {"template": {"spec": {"affinity": affinity}}}}).to_string();
    let deployment = ["patch", "deployment", "coredns", "--namespace=kube-system"];
    // kubeadm makes the Deployment after the API server answers.
    eventually(DEADLINE, "the Deployment of CoreDNS", async || {
        workload.kubectl(&[&deployment[..], &["--patch", &patch]].concat())
    })
    .await?;
    Ok(())
}

/// Cuts the power of the machine with the VIP. Returns the members when it is replaced.
async fn lose_the_vip(
    lab: &Lab,
    cluster: &Cluster<'_>,
    workload: &Workload,
    steps: &mut Steps,
    members: &[Member],
) -> Result<Vec<Member>> {
    let holder = workload.holder_of_vip().await?;
    let lost = members.iter().find(|member| member.node == holder);
    let lost = lost.with_context(|| format!("{holder}, which holds the VIP, is no member: {members:#?}"))?;
    lab.power_off(lost)?;
    eventually(
        DEADLINE,
        "an answer through the VIP of another machine",
        async || {
            workload.is_alive().await?;
            let holder = workload.holder_of_vip().await?;
            ensure!(holder != lost.node, "{holder} still holds the VIP");
            Ok(())
        },
    )
    .await?;
    steps.done("the VIP answers after its holder was lost");
    let wanted = Wanted {
        without: Some(&lost.machine),
        ..WHOLE
    };
    cluster.members(workload, wanted).await
}

/// Each control-plane Node is a voting member of etcd, and nobody else.
fn etcd_is_of(members: &[Member]) -> Result<()> {
    let control_planes = members.iter().filter(|member| member.is_control_plane);
    let wanted: BTreeSet<_> = control_planes.map(|member| member.node.clone()).collect();
    let voters = etcd::members()?;
    ensure!(
        voters == wanted,
        "etcd has the members {voters:?}, and not {wanted:?}"
    );
    Ok(())
}

fn print_memory() -> Result<()> {
    let memory = traces::memory()?;
    let mebibytes: Vec<_> = memory.iter().map(|bytes| bytes >> 20).collect();
    println!("memory of each machine, MiB: {mebibytes:?}");
    Ok(())
}
