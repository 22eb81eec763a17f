//! Two replicas, one lease.

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use capcmi::drivers::simulated::Phase;
use capcmi::manifests::{Part, stream};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::support::provider::Replica;
use crate::support::{Cloud, DEADLINE, Fleet, Provider, World};

/// The Lease.
const LEASE: &str = "controller-leader-election-capcmi";

/// A provider that is elected, by a lease in the namespace of the case: that of the shipped one may be another case's.
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

/// Waits until the lease has not been renewed for so long.
async fn unrenewed_for(world: &World, long: Duration) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(world.admin.clone(), &world.namespace);
    eventually(DEADLINE, "a lease that is not renewed", async || {
        let spec = leases.get(LEASE).await?.spec.unwrap_or_default();
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
        ensure!(
            replica.metrics().await?.contains("capcmi_leader 1\n"),
            "it does not lead"
        );
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

/// Writes of providers to this namespace, but for leases and events.
fn writes(world: &World) -> Result<usize> {
    let log = std::fs::read_to_string(world.management.audit_log())?;
    let is_write = |line: &&str| {
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            return false;
        };
        event["user"]["username"] == "system:serviceaccount:capcmi-system:capcmi-manager"
            && event["objectRef"]["namespace"] == world.namespace.as_str()
            && event["objectRef"]["resource"] != "leases"
            && ["create", "update", "patch", "delete"]
                .iter()
                .any(|verb| event["verb"] == *verb)
    };
    Ok(log.lines().filter(is_write).count())
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
    let _kubelets = cloud.kubelets();
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
    let _kubelets = cloud.kubelets();
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

/// The API server is the judge of who leads: without it, nobody does.
#[tokio::test]
async fn a_leader_whose_lease_is_taken_by_force_ends() -> Result<()> {
    let world = World::new("robbed").await?;
    let cloud = Cloud::new(&world);
    let mut replica = elected(&world, cloud.drivers(json!({})))
        .await?
        .start(&world)
        .await?;
    leads(&replica).await?;
    let robbery = r#"{"spec": {"holderIdentity": "somebody-else"}}"#;
    world.kubectl(&["patch", "lease", LEASE, "--type=merge", "-p", robbery])?;
    let status = ended(&mut replica).await?;
    ensure!(status.code() == Some(1), "ended with {status}");
    let holder = world.kubectl(&["get", "lease", LEASE, "-o=jsonpath={.spec.holderIdentity}"])?;
    ensure!(holder == "somebody-else", "it took the lease back: {holder}");
    Ok(())
}
