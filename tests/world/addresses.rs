//! Static addresses by Cluster API's IPAM contract.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capcmi::api::conditions::{DELETING, READY};
use capcmi::api::identity;
use capcmi::api::v1alpha1::InfraMachine;
use capcmi::api::{ADDRESS_CLAIM_FINALIZER, annotations};
use cmi_driver::Operation;
use fake_apiserver::{Call, Fate};
use http::Method;
use kube::ResourceExt;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::support::by_hand::{is_provisioned, message, says};
use crate::support::ipam::{addresses, claims};
use crate::support::ipam_provider::{Ipam, pool};
use crate::support::provider::Replica;
use crate::support::{ByHand, Cloud, DEADLINE, Point, Provider, Stage, Trap, World};

/// Far below the interval of a machine that waits without a wake-up.
const SOON: Duration = Duration::from_secs(10);

/// A machine with pools, before its creation.
struct Life {
    world: World,
    cloud: Cloud,
    provider: Provider,
    machine: ByHand,
}

impl Life {
    async fn of(case: &str, pools: Value, config: Value) -> Result<Self> {
        let world = World::new(case).await?;
        let cloud = Cloud::new(&world);
        // No list of VMs interferes.
        let provider = Provider::new(cloud.drivers(config));
        let provider = provider.with(|options| options.inventory_interval = Duration::from_hours(24));
        let machine = Stage::set(&world).await?.machine("m");
        Ok(Self {
            machine: machine.infra("/spec/addressesFromPools", pools),
            world,
            cloud,
            provider,
        })
    }

    /// A machine with one pool.
    async fn plain(case: &str) -> Result<Self> {
        Self::of(case, json!([pool("a")]), json!({})).await
    }

    /// Starts the provider, and creates the machine.
    async fn begin(&self) -> Result<Replica> {
        let replica = self.provider.start(&self.world).await?;
        self.machine.clone().create().await?;
        Ok(replica)
    }

    async fn waits_for(&self, reason: &str) -> Result<InfraMachine> {
        let waits = |machine: &InfraMachine| says(machine, READY, "False", reason);
        let machine = self.machine.until(reason, waits).await?;
        ensure!(self.creates()? == 0, "it was created");
        Ok(machine)
    }

    /// Checks that a change of a claim has woken the machine.
    async fn is_up_soon(&self) -> Result<InfraMachine> {
        tokio::time::sleep(SOON).await;
        let machine = self.machine.get().await?;
        ensure!(is_provisioned(&machine), "{:?}", machine.status);
        Ok(machine)
    }

    fn creates(&self) -> Result<usize> {
        self.cloud.count(Operation::CreateMachine, "m")
    }

    async fn claims(&self) -> Result<Vec<DynamicObject>> {
        Ok(claims(&self.world).list(&ListParams::default()).await?.items)
    }

    /// The allocated addresses.
    async fn allocated(&self) -> Result<Vec<String>> {
        let all = addresses(&self.world).list(&ListParams::default()).await?;
        let address =
            |allocated: &DynamicObject| allocated.data["spec"]["address"].as_str().map(str::to_owned);
        Ok(all.iter().filter_map(address).collect())
    }

    /// Waits until machine, VM, claims and addresses are gone.
    async fn all_gone(&self) -> Result<()> {
        self.machine.gone().await?;
        self.no_claims().await?;
        ensure!(self.cloud.vms()?.is_empty(), "{:?}", self.cloud.vms()?);
        Ok(())
    }

    /// Waits until claims and addresses are gone.
    async fn no_claims(&self) -> Result<()> {
        eventually(DEADLINE, "the end of claims and addresses", async || {
            let (claims, allocated) = (self.claims().await?, self.allocated().await?);
            ensure!(
                claims.is_empty() && allocated.is_empty(),
                "{claims:?}, {allocated:?}"
            );
            Ok(())
        })
        .await
    }

    /// Checks that the machine has one VM with this address, and that no other address is allocated.
    async fn has_one_vm_with(&self, address: &str) -> Result<()> {
        let machine = self.machine.provisioned().await?;
        let vms = self.cloud.vms()?;
        ensure!(vms.len() == 1, "{vms:?}");
        let of_vm: Vec<_> = vms[0]
            .static_addresses
            .iter()
            .map(|given| given.address.to_string())
            .collect();
        ensure!(
            of_vm == [address] && self.allocated().await? == of_vm,
            "{of_vm:?}"
        );
        let record = identity::record(&machine).context("no record")?;
        let spec = record.made_from.context("no applied spec")?.provider_spec;
        ensure!(spec.0["networkAddresses"][0]["address"] == address, "{spec:?}");
        ensure!(self.claims().await?.len() == 1, "{:?}", self.claims().await?);
        Ok(())
    }
}

fn shown_ips(machine: &InfraMachine) -> Vec<String> {
    let addresses = machine.status.iter().flat_map(|status| &status.addresses);
    let ips = addresses.filter(|address| address.type_ == "InternalIP");
    ips.map(|address| address.address.clone()).collect()
}

/// Whether the call writes the machine, and not its status.
fn is_write(call: &Call) -> bool {
    call.method == Method::PATCH && call.path.ends_with("/inframachines/m")
}

#[tokio::test(start_paused = true)]
async fn a_vm_is_created_with_the_addresses_of_its_pools() -> Result<()> {
    let mut second = pool("b");
    second["network"] = json!("storage");
    let life = Life::of("pools", json!([pool("a"), second]), json!({})).await?;
    let _replica = life.begin().await?;
    let waiting = life.waits_for("WaitingForAddress").await?;
    ensure!(
        message(&waiting, READY).contains("Pool `a`"),
        "{}",
        message(&waiting, READY)
    );
    let all = life.claims().await?;
    ensure!(all.len() == 2, "{all:?}");
    for (claim, pool) in all.iter().zip(["a", "b"]) {
        let owner = claim.owner_references().first().context("no owner")?;
        ensure!(owner.uid == waiting.uid().unwrap_or_default(), "{owner:?}");
        ensure!(
            owner.controller == Some(true) && owner.block_owner_deletion == Some(true),
            "{owner:?}"
        );
        ensure!(
            claim
                .labels()
                .get("cluster.x-k8s.io/cluster-name")
                .map(String::as_str)
                == Some("c")
        );
        ensure!(
            claim
                .finalizers()
                .iter()
                .any(|name| name == ADDRESS_CLAIM_FINALIZER),
            "{claim:?}"
        );
        let expected = json!({"clusterName": "c", "poolRef": crate::support::ipam_provider::pool(pool)});
        ensure!(claim.data["spec"] == expected, "{:?}", claim.data);
    }
    let ipam = Ipam::start(&life.world);
    ipam.add("a", &["10.1.0.10"]);
    ipam.add("b", &["10.2.0.10"]);
    let machine = life.is_up_soon().await?;
    ensure!(
        shown_ips(&machine) == ["10.1.0.10", "10.2.0.10"],
        "{:?}",
        machine.status
    );
    let vms = life.cloud.vms()?;
    let second = serde_json::to_value(&vms[0].static_addresses[1])?;
    let expected = json!({"address": "10.2.0.10", "prefix": 24, "gateway": "10.2.0.1", "network": "storage",
        "pool": pool("b")});
    ensure!(second == expected, "{second}");
    ensure!(life.creates()? == 1, "{} creates", life.creates()?);

    let requests = || {
        let all = life.world.management.recorded();
        let of_ipam = |request: &&fake_apiserver::Recorded| {
            request.client == "provider" && request.call.path.contains("/ipam.") && !request.call.is_watch()
        };
        all.iter().filter(of_ipam).count()
    };
    let before = requests();
    tokio::time::sleep(Duration::from_mins(9)).await;
    ensure!(requests() == before, "{} requests at rest", requests() - before);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_exhausted_pool_is_reported_until_it_grows() -> Result<()> {
    let life = Life::plain("exhausted").await?;
    let ipam = Ipam::start(&life.world);
    ipam.add("a", &[]);
    let _replica = life.begin().await?;
    let exhausted = |machine: &InfraMachine| message(machine, READY).contains("reports PoolExhausted");
    life.machine.until("an exhausted pool", exhausted).await?;
    life.waits_for("WaitingForAddress").await?;
    ipam.add("a", &["10.1.0.10"]);
    life.is_up_soon().await?;
    life.has_one_vm_with("10.1.0.10").await
}

#[tokio::test(start_paused = true)]
async fn a_refused_claim_is_reported_and_tried_again() -> Result<()> {
    for (code, reason, expected) in [
        (
            403,
            "Forbidden",
            "creating an IPAddressClaim failed: the test refuses it",
        ),
        (404, "NotFound", "does not serve IPAddressClaim"),
    ] {
        let mut life = Life::plain("refused").await?;
        let ipam = Ipam::start(&life.world);
        ipam.add("a", &["10.1.0.10"]);
        let refuses = Arc::new(AtomicBool::new(true));
        let is_refused = Arc::clone(&refuses);
        life.provider = life.provider.requests_meet(move |call: &Call| {
            let is_claim = call.method == Method::POST && call.path.ends_with("/ipaddressclaims");
            if is_claim && is_refused.load(Ordering::SeqCst) {
                Fate::Refused(code, reason)
            } else {
                Fate::Served
            }
        });
        let _replica = life.begin().await?;
        let waiting = life.waits_for("AddressClaimRefused").await?;
        ensure!(
            message(&waiting, READY).contains(expected),
            "{}",
            message(&waiting, READY)
        );
        refuses.store(false, Ordering::SeqCst);
        life.has_one_vm_with("10.1.0.10").await?;
    }
    Ok(())
}

/// The API server answers each write of an outdated machine with a conflict.
#[tokio::test(start_paused = true)]
async fn an_outdated_machine_makes_no_claim() -> Result<()> {
    let mut life = Life::plain("outdated").await?;
    let ipam = Ipam::start(&life.world);
    ipam.add("a", &["10.1.0.10"]);
    let stage = Arc::new(AtomicU8::new(0));
    let now = Arc::clone(&stage);
    life.provider = life.provider.requests_meet(move |call: &Call| {
        let is_claim = call.method == Method::POST && call.path.ends_with("/ipaddressclaims");
        match now.load(Ordering::SeqCst) {
            0 if is_claim => Fate::Refused(403, "Forbidden"),
            1 if is_write(call) => Fate::Refused(409, "Conflict"),
            _ => Fate::Served,
        }
    });
    let _replica = life.begin().await?;
    life.waits_for("AddressClaimRefused").await?;
    stage.store(1, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_mins(30)).await;
    ensure!(life.claims().await?.is_empty(), "{:?}", life.claims().await?);
    stage.store(2, Ordering::SeqCst);
    life.has_one_vm_with("10.1.0.10").await
}

/// Another machine may have the name, and with it the claims, by then.
#[tokio::test(start_paused = true)]
async fn an_outdated_machine_releases_no_address() -> Result<()> {
    let mut life = Life::plain("outdated-at-its-end").await?;
    let ipam = Ipam::start(&life.world);
    ipam.add("a", &["10.1.0.10"]);
    let is_outdated = Arc::new(AtomicBool::new(true));
    let (still, console) = (Arc::clone(&is_outdated), life.cloud.console()?.clone());
    let was_made = AtomicBool::new(false);
    life.provider = life.provider.requests_meet(move |call: &Call| {
        let exists = console.vms().is_ok_and(|vms| !vms.is_empty());
        was_made.fetch_or(exists, Ordering::SeqCst);
        let is_gone = was_made.load(Ordering::SeqCst) && !exists;
        if is_gone && is_write(call) && still.load(Ordering::SeqCst) {
            Fate::Refused(409, "Conflict")
        } else {
            Fate::Served
        }
    });
    let _replica = life.begin().await?;
    life.has_one_vm_with("10.1.0.10").await?;
    life.machine.delete().await?;
    eventually(DEADLINE, "the end of the VM", async || {
        ensure!(life.cloud.vms()?.is_empty(), "{:?}", life.cloud.vms()?);
        Ok(())
    })
    .await?;
    tokio::time::sleep(Duration::from_mins(30)).await;
    let claim = claims(&life.world).get("m-0").await?;
    let is_held = claim
        .finalizers()
        .iter()
        .any(|name| name == ADDRESS_CLAIM_FINALIZER);
    ensure!(is_held, "{claim:?}");
    is_outdated.store(false, Ordering::SeqCst);
    life.all_gone().await
}

/// An IPAM provider may not release an address of a Cluster that no longer exists.
#[tokio::test(start_paused = true)]
async fn a_machine_outlives_its_claims() -> Result<()> {
    let life = Life::plain("release").await?;
    let ipam = Ipam::start(&life.world);
    ipam.add("a", &["10.1.0.10"]);
    let _replica = life.begin().await?;
    life.has_one_vm_with("10.1.0.10").await?;
    drop(ipam);
    life.machine.delete().await?;
    let waits = |machine: &InfraMachine| says(machine, DELETING, "True", "WaitingForAddressRelease");
    let waiting = life.machine.until("the IPAM provider", waits).await?;
    ensure!(life.cloud.vms()?.is_empty(), "{:?}", life.cloud.vms()?);
    ensure!(
        message(&waiting, DELETING).contains("IPAddressClaim `m-0`"),
        "{waiting:?}"
    );
    let before = life.cloud.count(Operation::DeleteMachine, "m")?;
    tokio::time::sleep(Duration::from_mins(30)).await;
    life.machine.get().await?;
    let repeats = life.cloud.count(Operation::DeleteMachine, "m")? - before;
    ensure!((3..=15).contains(&repeats), "{repeats} deletions in half an hour");
    let _ipam = Ipam::start(&life.world);
    life.all_gone().await
}

/// Backup tools may leave out owners.
#[tokio::test(start_paused = true)]
async fn a_restored_claim_without_owner_goes_with_its_machine() -> Result<()> {
    let life = Life::plain("restored").await?;
    let ipam = Ipam::start(&life.world);
    ipam.add("a", &["10.1.0.10"]);
    let _replica = life.begin().await?;
    life.has_one_vm_with("10.1.0.10").await?;
    let orphaned = Patch::Merge(json!({"metadata": {"ownerReferences": []}}));
    claims(&life.world)
        .patch("m-0", &PatchParams::default(), &orphaned)
        .await?;
    life.machine.delete().await?;
    life.all_gone().await
}

/// The second claim is of an earlier machine with this name. Its VM may still run.
#[tokio::test(start_paused = true)]
async fn a_claim_of_another_object_is_never_touched() -> Result<()> {
    let earlier = json!([{"apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachine",
        "name": "m", "uid": "of-an-earlier-machine", "controller": true}]);
    for owners in [json!([]), earlier] {
        let life = Life::plain("foreign").await?;
        let claim = json!({
            "apiVersion": "ipam.cluster.x-k8s.io/v1beta2", "kind": "IPAddressClaim",
            "metadata": {"name": "m-0", "finalizers": [ADDRESS_CLAIM_FINALIZER], "ownerReferences": owners},
            "spec": {"clusterName": "c", "poolRef": pool("a")},
        });
        let claim = serde_json::from_value(claim)?;
        let before = claims(&life.world).create(&PostParams::default(), &claim).await?;
        let _replica = life.begin().await?;
        let blocked = life.waits_for("AddressClaimInvalid").await?;
        ensure!(
            message(&blocked, READY).contains("IPAddressClaim `m-0`"),
            "{}",
            message(&blocked, READY)
        );
        life.machine.delete().await?;
        life.machine.gone().await?;
        let after = claims(&life.world).get("m-0").await?;
        ensure!(after == before, "{after:?}");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn addresses_are_released_after_the_vm_is_gone() -> Result<()> {
    let life = Life::of("order", json!([pool("a")]), json!({"deleteSeconds": 600})).await?;
    let ipam = Ipam::start(&life.world);
    ipam.add("a", &["10.1.0.10"]);
    let _replica = life.begin().await?;
    life.has_one_vm_with("10.1.0.10").await?;
    life.machine.delete().await?;
    tokio::time::sleep(Duration::from_mins(9)).await;
    ensure!(life.cloud.vms()?.len() == 1, "the VM is gone early");
    let claim = claims(&life.world).get("m-0").await?;
    ensure!(claim.metadata.deletion_timestamp.is_none(), "{claim:?}");
    ensure!(
        claim
            .finalizers()
            .iter()
            .any(|name| name == ADDRESS_CLAIM_FINALIZER),
        "{claim:?}"
    );
    life.all_gone().await
}

/// The spec is needed to find the claims.
#[tokio::test(start_paused = true)]
async fn a_machine_that_cannot_be_read_releases_its_addresses() -> Result<()> {
    let life = Life::plain("unreadable").await?;
    let ipam = Ipam::start(&life.world);
    ipam.add("a", &["10.1.0.10"]);
    let _replica = life.begin().await?;
    life.has_one_vm_with("10.1.0.10").await?;
    let unreadable = json!({"spec": {"shutdownTimeoutSeconds": "soon"}});
    // The answer cannot be read either.
    let _unread = life.machine.patch(unreadable).await;
    life.machine.delete().await?;
    life.all_gone().await
}

/// A claim that was deleted before its machine had a VM would keep its name for ever.
#[tokio::test(start_paused = true)]
async fn a_claim_that_is_deleted_before_the_create_is_made_again() -> Result<()> {
    let life = Life::plain("again").await?;
    let ipam = Ipam::start(&life.world);
    let _replica = life.begin().await?;
    life.waits_for("WaitingForAddress").await?;
    let first = claims(&life.world).get("m-0").await?;
    claims(&life.world)
        .delete("m-0", &kube::api::DeleteParams::default())
        .await?;
    ipam.add("a", &["10.1.0.10"]);
    life.has_one_vm_with("10.1.0.10").await?;
    let second = claims(&life.world).get("m-0").await?;
    ensure!(first.uid() != second.uid(), "{second:?}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_forced_deletion_releases_the_addresses() -> Result<()> {
    let life = Life::plain("forced").await?;
    let ipam = Ipam::start(&life.world);
    ipam.add("a", &["10.1.0.10"]);
    let _replica = life.begin().await?;
    life.has_one_vm_with("10.1.0.10").await?;
    life.cloud
        .fail(json!([{"operation": "DeleteMachine", "code": "FailedPrecondition"}]))?;
    life.machine.delete().await?;
    life.machine
        .patch(json!({"metadata": {"annotations": {annotations::FORCE_DELETE: "true"}}}))
        .await?;
    life.machine.gone().await?;
    life.no_claims().await
}

#[tokio::test(start_paused = true)]
async fn a_moved_machine_keeps_or_gets_its_address() -> Result<()> {
    for has_address in [true, false] {
        let mut life = Life::plain("moved").await?;
        life.world.cluster("one").await?;
        let by_hand = |world: &World| ByHand::new(world, "one", "m");
        life.machine = by_hand(&life.world).infra("/spec/addressesFromPools", json!([pool("a")]));
        let target = life.world.elsewhere().await?;
        let [here, there] = [&life.world, &target].map(Ipam::start);
        let replica = life.begin().await?;
        if has_address {
            here.add("a", &["10.1.0.10"]);
            life.has_one_vm_with("10.1.0.10").await?;
        } else {
            life.waits_for("WaitingForAddress").await?;
        }
        life.world.move_when_unblocked(&target).await?;
        drop(replica);
        there.add("a", &["10.1.0.10"]);
        let moved = Life {
            machine: by_hand(&target),
            world: target,
            cloud: life.cloud,
            provider: life.provider,
        };
        let _replica = moved.provider.start(&moved.world).await?;
        moved.has_one_vm_with("10.1.0.10").await?;
        ensure!(moved.creates()? == 1, "{} creates", moved.creates()?);
        moved.machine.delete().await?;
        moved.all_gone().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_create_with_an_address_survives_a_kill_at_any_point() -> Result<()> {
    survives_a_kill_at_any_point(Step::Create).await
}

#[tokio::test(start_paused = true)]
async fn a_deletion_with_an_address_survives_a_kill_at_any_point() -> Result<()> {
    survives_a_kill_at_any_point(Step::Delete).await
}

/// When the provider is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Create,
    Delete,
}

/// Kills the provider at every call and write of a step, which another process then finishes.
async fn survives_a_kill_at_any_point(step: Step) -> Result<()> {
    let undisturbed = Trap::counting();
    let (life, _ipam, mut replica) = begun(step, &undisturbed).await?;
    finished(step, &life).await?;
    replica.terminate().await?;
    let (points, writes) = (undisturbed.points(), undisturbed.writes());
    let is_of_claim = |write: &String| write.ends_with(" ipaddressclaims");
    ensure!(writes.iter().any(is_of_claim), "no claim was written: {writes:?}");
    for point in points {
        let killed = killed_at(step, point).await;
        killed.with_context(|| format!("killed at {point:?} of {writes:?}"))?;
    }
    Ok(())
}

async fn killed_at(step: Step, point: Point) -> Result<()> {
    let trap = Trap::at(point);
    let (life, _ipam, mut replica) = begun(step, &trap).await?;
    let sprung = tokio::time::timeout(DEADLINE, trap.sprung()).await;
    sprung.context("the point is not reached")?;
    replica.kill();
    let _again = life.provider.start(&life.world).await?;
    finished(step, &life).await
}

/// Begins the step. The trap counts from here.
async fn begun(step: Step, trap: &Trap) -> Result<(Life, Ipam, Replica)> {
    let life = Life::plain("kill").await?;
    let ipam = Ipam::start(&life.world);
    ipam.add("a", &["10.1.0.10", "10.1.0.11"]);
    let replica = life.provider.clone().caught_in(trap).start(&life.world).await?;
    if step == Step::Create {
        trap.arm();
    }
    life.machine.clone().create().await?;
    if step == Step::Delete {
        life.has_one_vm_with("10.1.0.10").await?;
        trap.arm();
        life.machine.delete().await?;
    }
    Ok((life, ipam, replica))
}

async fn finished(step: Step, life: &Life) -> Result<()> {
    match step {
        Step::Create => {
            life.has_one_vm_with("10.1.0.10").await?;
            ensure!(life.creates()? <= 2, "{} creates", life.creates()?);
            Ok(())
        }
        Step::Delete => life.all_gone().await,
    }
}
