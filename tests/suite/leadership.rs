//! Two replicas, one lease.

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use capcmi::manifests::{Part, stream};
use cmi_simulated::Phase;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::support::provider::Replica;
use crate::support::{Cloud, DEADLINE, Fleet, Provider, World, audit};

/// A provider that is elected, by a lease in the namespace of the case: that of the shipped
/// one may be another case's.
pub async fn elected(world: &World, drivers: String) -> Result<Provider> {
    let shipped: Vec<Value> = serde_saphyr::from_multiple(&stream(&[Part::Rbac])?)?;
    let is_for_leases = |object: &&Value| {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        name.starts_with("capcmi-leader-election-")
    };
    let roles: Vec<_> = shipped.iter().filter(is_for_leases).collect();
    ensure!(roles.len() == 2, "a Role and its binding are shipped: {roles:?}");
    for role in roles {
        let mut here = role.clone();
        here["metadata"]["namespace"] = json!(world.namespace);
        management_cluster::apply(&world.admin, here).await?;
    }
    Ok(Provider::new(drivers)
        .flag("--leader-elect")
        .flag(format!("--leader-elect-resource-namespace={}", world.namespace)))
}

/// The leases of the case.
async fn leases(world: &World) -> Result<Vec<Lease>> {
    let leases: Api<Lease> = Api::namespaced(world.admin.clone(), &world.namespace);
    let mut all = leases.list(&ListParams::default()).await?.items;
    all.retain(|lease| lease.name_any().starts_with("controller-leader-election-capcmi"));
    Ok(all)
}

/// The lease of the replicas of a case, which look at its namespace alone.
async fn lease(world: &World) -> Result<Lease> {
    let mut all = leases(world).await?;
    let lease = all.pop().context("there is no lease")?;
    ensure!(all.is_empty(), "replicas of one provider have several leases");
    Ok(lease)
}

/// Waits until the lease has not been renewed for so long.
async fn unrenewed_for(world: &World, long: Duration) -> Result<()> {
    eventually(DEADLINE, "a lease that is not renewed", async || {
        let spec = lease(world).await?.spec.unwrap_or_default();
        let renewed = spec.renew_time.context("it was never renewed")?.0;
        let since = Duration::try_from(Timestamp::now().duration_since(renewed)).unwrap_or_default();
        ensure!(
            since >= long,
            "renewed {since:?} ago by {:?}",
            spec.holder_identity
        );
        Ok(())
    })
    .await
}

/// Waits until the replica leads.
pub async fn leads(replica: &Replica) -> Result<()> {
    eventually(DEADLINE, "leadership", async || {
        ensure!(replica.leads().await?, "it does not lead");
        Ok(())
    })
    .await
}

/// Waits until the replica has ended by itself.
pub async fn ended(replica: &mut Replica) -> Result<ExitStatus> {
    eventually(DEADLINE, "the end of the replica", async || {
        replica
            .process
            .status()?
            .ok_or_else(|| anyhow::anyhow!("it still runs"))
    })
    .await
}

/// Writes of providers to this namespace, but for leases.
fn writes(world: &World) -> Result<usize> {
    let writes = audit::writes(world)?.into_iter();
    Ok(writes.filter(|write| write.resource != "leases").count())
}

fn started_calls(cloud: &Cloud) -> Result<usize> {
    let calls = cloud.calls()?;
    Ok(calls.iter().filter(|call| call.phase == Phase::Started).count())
}

#[tokio::test]
async fn a_leader_that_is_asked_to_end_hands_over_at_once_and_the_next_goes_on() -> Result<()> {
    let world = World::new("handover").await?;
    let cloud = Cloud::new(&world);
    let provider = elected(&world, cloud.drivers(json!({}))).await?;
    let mut first = provider.start(&world).await?;
    leads(&first).await?;
    // Ready, though another leads: a rollout must not wait for leadership.
    let second = provider.clone().named("second").start(&world).await?;
    ensure!(second.metrics().await?.contains("capcmi_leader 0\n"), "two lead");
    let asked = Instant::now();
    let status = first.process.terminate(DEADLINE).await?;
    ensure!(
        status.is_some_and(|status| status.success()),
        "ended with {status:?}"
    );
    leads(&second).await?;
    let took = asked.elapsed();
    ensure!(
        took < Duration::from_secs(12),
        "{took:?}: the lease was not handed over but expired"
    );
    let _kubelets = world.kubelets(&cloud);
    let fleet = Fleet::create(&world, "md", 1).await?;
    fleet.running(1).await?;
    Ok(())
}

/// A process that is stopped does not know it. When it goes on, another may have acted for long.
#[tokio::test]
async fn a_leader_that_was_stopped_longer_than_its_lease_does_nothing_more_and_leaves() -> Result<()> {
    let world = World::new("stopped").await?;
    let cloud = Cloud::new(&world);
    let provider = elected(&world, cloud.drivers(json!({})))
        .await?
        .flag("--leader-elect-lease-duration=5s")
        .flag("--leader-elect-renew-deadline=3s")
        .flag("--leader-elect-retry-period=500ms");
    let mut first = provider.start(&world).await?;
    let _kubelets = world.kubelets(&cloud);
    let fleet = Fleet::create(&world, "md", 1).await?;
    fleet.running(1).await?;
    first.process.signal("STOP")?;
    // Longer than the deadline: one that runs would renew it, or leave.
    unrenewed_for(&world, Duration::from_secs(4)).await?;
    let (calls, written) = (started_calls(&cloud)?, writes(&world)?);
    // There is work for it to wake up to.
    fleet.scale(3).await?;
    unrenewed_for(&world, Duration::from_secs(6)).await?;
    first.process.signal("CONT")?;
    let status = ended(&mut first).await?;
    ensure!(status.code() == Some(1), "ended with {status}");
    ensure!(
        first.log()?.contains("leadership was lost"),
        "it does not say why it ended"
    );
    ensure!(started_calls(&cloud)? == calls, "it called the driver");
    ensure!(writes(&world)? == written, "it wrote");
    let _second = provider.named("second").start(&world).await?;
    fleet.running(3).await?;
    cloud.holds(3).await?;
    Ok(())
}

/// The API server says which replica leads: without it, none does.
#[tokio::test]
async fn a_leader_whose_lease_is_taken_by_force_ends() -> Result<()> {
    let world = World::new("lease-taken").await?;
    let cloud = Cloud::new(&world);
    let mut replica = elected(&world, cloud.drivers(json!({})))
        .await?
        .start(&world)
        .await?;
    leads(&replica).await?;
    let robbery = r#"{"spec": {"holderIdentity": "another-replica"}}"#;
    let name = lease(&world).await?.name_any();
    world.kubectl(&["patch", "lease", &name, "--type=merge", "-p", robbery])?;
    let status = ended(&mut replica).await?;
    ensure!(status.code() == Some(1), "ended with {status}");
    let holder = world.kubectl(&["get", "lease", &name, "-o=jsonpath={.spec.holderIdentity}"])?;
    ensure!(holder == "another-replica", "it took the lease back: {holder}");
    Ok(())
}

/// Each has the objects of its own label to look after: neither may stand by for the other.
#[tokio::test]
async fn two_providers_with_different_watch_filters_in_one_namespace_lead_at_the_same_time() -> Result<()> {
    let world = World::new("filters").await?;
    let cloud = Cloud::new(&world);
    let provider = elected(&world, cloud.drivers(json!({}))).await?;
    let filtered = |value: &str| {
        provider
            .clone()
            .named(value)
            .flag(format!("--watch-filter={value}"))
    };
    let (red, blue) = (filtered("red"), filtered("blue"));
    let (red, blue) = tokio::try_join!(red.start(&world), blue.start(&world))?;
    leads(&red).await?;
    leads(&blue).await?;
    let names: Vec<_> = leases(&world).await?.iter().map(Lease::name_any).collect();
    ensure!(names.len() == 2, "{names:?}");
    Ok(())
}
