//! Two replicas, one lease.

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use capcmi::drivers::simulated::Phase;
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::support::provider::Replica;
use crate::support::{Cloud, DEADLINE, Fleet, Provider, World};

/// A lease in the namespace of the case, which the provider may hold as it may in its own.
const LEASE_ROLE: &str = r"
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: lease, namespace: $NS}
rules: [{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, create, update]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: lease, namespace: $NS}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: lease}
subjects: [{kind: ServiceAccount, name: capcmi-manager, namespace: capcmi-system}]
";

/// A provider that is elected, by a lease in the namespace of the case.
pub async fn elected(world: &World, drivers: String) -> Result<Provider> {
    world.apply(LEASE_ROLE).await?;
    Ok(Provider::new(drivers)
        .flag("--leader-elect")
        .flag(format!("--leader-elect-resource-namespace={}", world.namespace)))
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
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (calls, written) = (started_calls(&cloud)?, writes(&world)?);
    // There is work for it to wake up to.
    fleet.scale(3).await?;
    tokio::time::sleep(Duration::from_secs(6)).await;
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
    let lease = "controller-leader-election-capcmi";
    let robbery = r#"{"spec": {"holderIdentity": "somebody-else"}}"#;
    world.kubectl(&["patch", "lease", lease, "--type=merge", "-p", robbery])?;
    let status = ended(&mut replica).await?;
    ensure!(status.code() == Some(1), "ended with {status}");
    let holder = world.kubectl(&["get", "lease", lease, "-o=jsonpath={.spec.holderIdentity}"])?;
    ensure!(holder == "somebody-else", "it took the lease back: {holder}");
    Ok(())
}
