//! An InfraCluster without a Cluster, and one that is deleted too early.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capcmi::api::v1alpha1::InfraCluster;
use capcmi::api::{CLUSTER_FINALIZER, conditions};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use management_cluster::eventually;
use serde_json::json;

use crate::support::fleet::objects;
use crate::support::{ByHand, Cloud, DEADLINE, Provider, World};

fn infra_clusters(world: &World) -> Api<InfraCluster> {
    Api::namespaced(world.admin.clone(), &world.namespace)
}

/// Waits for a condition of an InfraCluster with this reason.
async fn condition(world: &World, name: &str, type_: &str, reason: &str) -> Result<Condition> {
    let api = infra_clusters(world);
    eventually(DEADLINE, &format!("{type_} for {reason}"), async || {
        let all = api.get(name).await?.status.unwrap_or_default().conditions;
        let shown = conditions::get(&all, type_).filter(|shown| shown.reason == reason);
        shown.cloned().with_context(|| format!("{all:?}"))
    })
    .await
}

/// Waits for an event of an InfraCluster with this reason.
async fn event(world: &World, name: &str, reason: &str) -> Result<()> {
    let events: Api<Event> = Api::namespaced(world.admin.clone(), &world.namespace);
    eventually(DEADLINE, &format!("an event {reason}"), async || {
        let all = events.list(&ListParams::default()).await?.items;
        let is_it = |event: &Event| {
            let regarding = event.regarding.clone().unwrap_or_default();
            event.reason.as_deref() == Some(reason) && regarding.name.as_deref() == Some(name)
        };
        ensure!(all.iter().any(is_it), "{all:?}");
        Ok(())
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn an_infra_cluster_that_no_cluster_refers_to_says_so() -> Result<()> {
    let world = World::new("ownerless-cluster").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let infra = json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraCluster",
        "metadata": {"name": "prod", "namespace": world.namespace},
        "spec": {"controlPlaneEndpoint": {"host": "127.0.0.1", "port": 6443}},
    });
    management_cluster::apply(&world.admin, infra).await?;
    let reference = |name: &str| {
        let infra = json!({"apiGroup": "infrastructure.capcmi.io", "kind": "InfraCluster", "name": name});
        json!({"infrastructureRef": infra})
    };
    let cluster = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": {"name": "prod", "namespace": world.namespace}, "spec": reference("prd"),
    });
    management_cluster::apply(&world.admin, cluster).await?;
    tokio::time::sleep(Duration::from_secs(50)).await;
    let early = infra_clusters(&world).get("prod").await?;
    ensure!(
        early.status.is_none() && early.finalizers().is_empty(),
        "{early:?}"
    );
    let shown = condition(&world, "prod", conditions::READY, "WaitingForOwner").await?;
    ensure!(shown.status == "False", "{shown:?}");
    ensure!(
        shown
            .message
            .contains("Cluster `prod` refers to InfraCluster `prd`, which does not exist"),
        "{shown:?}"
    );
    event(&world, "prod", "WaitingForOwner").await?;

    let corrected = Patch::Merge(json!({"spec": reference("prod")}));
    objects(&world, "cluster.x-k8s.io", "v1beta2", "Cluster")
        .patch("prod", &PatchParams::default(), &corrected)
        .await?;
    condition(&world, "prod", conditions::READY, "Ready").await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_changed_endpoint_is_reported_until_it_is_the_clusters_again() -> Result<()> {
    let world = World::new("endpoint").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("c").await?;
    condition(&world, "c", conditions::READY, "Ready").await?;
    let endpoint = |host: &str| json!({"spec": {"controlPlaneEndpoint": {"host": host, "port": 6443}}});
    objects(&world, "cluster.x-k8s.io", "v1beta2", "Cluster")
        .patch("c", &PatchParams::default(), &Patch::Merge(endpoint("127.0.0.1")))
        .await?;
    let api = infra_clusters(&world);
    let change = async |patch| {
        api.patch("c", &PatchParams::default(), &Patch::Merge(patch))
            .await
    };
    let changed = change(endpoint("192.0.2.7")).await?;
    let shown = condition(&world, "c", conditions::READY, "ControlPlaneEndpointChanged").await?;
    ensure!(
        shown.status == "False" && shown.message.contains("127.0.0.1:6443"),
        "{shown:?}"
    );
    ensure!(
        shown.observed_generation == changed.metadata.generation,
        "{shown:?}"
    );
    change(endpoint("127.0.0.1")).await?;
    condition(&world, "c", conditions::READY, "Ready").await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_changed_driver_or_secret_lists_the_failure_domains_again() -> Result<()> {
    let world = World::new("domains").await?;
    let (open, guarded) = (Cloud::named(&world, "open"), Cloud::named(&world, "guarded"));
    let token = json!({"zones": ["north"], "credentials": {"token": "the-right-token"}});
    let drivers = Cloud::several([
        open.drivers_with(json!({"name": "open"}), json!({"zones": ["east", "west"]})),
        guarded.drivers_with(json!({"name": "guarded"}), token),
    ])?;
    let _provider = Provider::new(drivers).start(&world).await?;
    for (name, token) in [("wrong", "the-wrong-token"), ("right", "the-right-token")] {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": name, "namespace": world.namespace}, "stringData": {"token": token},
        });
        management_cluster::apply(&world.admin, secret).await?;
    }
    world
        .cluster_with("c", json!({"driver": "open", "secretRef": {"name": "wrong"}}))
        .await?;
    let api = infra_clusters(&world);
    let change = async |spec| {
        let patch = Patch::Merge(json!({"spec": spec}));
        api.patch("c", &PatchParams::default(), &patch).await
    };
    let has_domains = async |wanted: &[&str]| {
        eventually(DEADLINE, &format!("the failure domains {wanted:?}"), async || {
            let status = api.get("c").await?.status.unwrap_or_default();
            let names: Vec<_> = status.failure_domains.iter().map(|domain| &domain.name).collect();
            ensure!(names == wanted, "{names:?}");
            Ok(())
        })
        .await
    };
    has_domains(&["east", "west"]).await?;
    change(json!({"driver": "guarded"})).await?;
    let up_to_date = conditions::FAILURE_DOMAINS_UP_TO_DATE;
    condition(&world, "c", up_to_date, "Unauthenticated").await?;
    change(json!({"secretRef": {"name": "right"}})).await?;
    has_domains(&["north"]).await
}

#[tokio::test(start_paused = true)]
async fn a_deleted_infra_cluster_stays_until_its_cluster_is_gone() -> Result<()> {
    let world = World::new("deleted-cluster").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("c").await?;
    let machine = ByHand::new(&world, "c", "m").create().await?;
    machine.provisioned().await?;
    let api = infra_clusters(&world);
    ensure!(
        api.get("c").await?.finalizers() == [CLUSTER_FINALIZER],
        "no finalizer"
    );
    api.delete("c", &DeleteParams::default()).await?;
    let held = condition(&world, "c", conditions::DELETING, "ClusterExists").await?;
    ensure!(
        held.status == "True" && held.message.contains("Cluster `c`"),
        "{held:?}"
    );
    event(&world, "c", "ClusterExists").await?;

    // The Machine's finalizer is core's: the machine is left after its Cluster.
    objects(&world, "cluster.x-k8s.io", "v1beta2", "Cluster")
        .patch(
            "c",
            &PatchParams::default(),
            &Patch::Merge(json!({"metadata": {"finalizers": null}})),
        )
        .await?;
    objects(&world, "cluster.x-k8s.io", "v1beta2", "Cluster")
        .delete("c", &DeleteParams::default())
        .await?;
    let held = condition(&world, "c", conditions::DELETING, "MachinesExist").await?;
    ensure!(held.message.contains("1 InfraMachines"), "{held:?}");
    machine.delete().await?;
    machine.gone().await?;
    eventually(DEADLINE, "the end of the InfraCluster", async || {
        ensure!(api.get_opt("c").await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    cloud.holds(0).await?;
    Ok(())
}
