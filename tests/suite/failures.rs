//! Every failure that operators are likely to see is caused. Then kubectl, events, log, metrics and
//! `capcmi describe` must match `failures/records`.

mod seen;

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};
use capcmi::api::conditions::{DELETING, DRIVER_REACHABLE, PAUSED, READY, VIRTUAL_MACHINE_UP_TO_DATE};
use capcmi::api::{GROUP, annotations};
use cmi_driver::Operation;
use cmi_simulated::{Condition, PlantedVm, VmId};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use management_cluster::proxy::{Fault, Proxy};
use management_cluster::{eventually, stand_in};
use serde_json::json;

use self::seen::{Failure, Kind, Seen, Shown, Subject, hold_against_records, records};
use crate::support::by_hand::{condition, is_provisioned, says, small};
use crate::support::fleet::objects;
use crate::support::provider::{Replica, service_account};
use crate::support::{ByHand, Cloud, DEADLINE, Fleet, Plugin, Provider, Stage, World};

const UP: &str = "on the way up";
const THERE: &str = "while it is up";
const DOWN: &str = "on the way down";
const SHARED: &str = "of InfraClusters and templates";
const PROVIDER: &str = "of the provider";

/// The failures: name of the record, title, and part of the life.
const FAILURES: [(&str, &str, &str); 37] = [
    ("quota", "The quota is used up", UP),
    ("capacity", "Another machine has found that there is no room", UP),
    (
        "invalid-spec",
        "The spec does not fit the driver's schema: an unknown size",
        UP,
    ),
    ("refused-spec", "The driver refuses the spec when it creates", UP),
    ("credentials", "The back end refuses the credentials", UP),
    ("taken", "Another VM has the name", UP),
    (
        "unknown-driver",
        "The spec names a driver that is not configured",
        UP,
    ),
    ("no-driver", "The spec names no driver, and there are several", UP),
    ("unreachable", "The driver can't be reached", UP),
    ("create-timeout", "The creation takes longer than it may", UP),
    ("unanswered-create", "The driver does not answer the create", UP),
    (
        "deadline-exceeded",
        "The create takes longer than `timeouts.createMachine`",
        UP,
    ),
    ("permits", "The driver has as many calls as it may", UP),
    (
        "no-bootstrap-secret",
        "The Secret with the bootstrap data is missing",
        UP,
    ),
    ("no-bootstrap", "There are no bootstrap data yet", UP),
    ("infra-cluster", "The InfraCluster is not provisioned", UP),
    ("foreign-id", "The object was made with a providerID", UP),
    ("second", "The Machine refers to another InfraMachine", UP),
    ("ownerless", "No Machine owns the object", UP),
    ("no-cluster", "The Cluster of the Machine is missing", UP),
    ("paused", "The object is paused", UP),
    (
        "ownerless-paused",
        "No Machine owns the object, and it is paused",
        UP,
    ),
    ("vanished", "The VM is gone", THERE),
    ("crashed", "The VM has crashed", THERE),
    (
        "not-updatable",
        "The spec changes a field that a running VM does not support",
        THERE,
    ),
    ("unreachable-up", "The driver can't be reached", THERE),
    (
        "driver-removed",
        "The driver was taken out of the drivers file",
        THERE,
    ),
    (
        "driver-removed-deletion",
        "The driver was taken out of the drivers file",
        DOWN,
    ),
    ("deletion-refused", "The back end refuses to delete the VM", DOWN),
    ("deletion-paused", "The object is paused", DOWN),
    ("finalizer", "The finalizer of another keeps the object", DOWN),
    (
        "moved",
        "`clusterctl move` has marked the object and not removed it",
        DOWN,
    ),
    ("force-deleted", "The object was released by force", DOWN),
    (
        "infra-cluster-driver",
        "The InfraCluster names a driver that is not configured",
        SHARED,
    ),
    (
        "template-driver",
        "The template names no driver, and there are several",
        SHARED,
    ),
    ("orphan", "A VM has no InfraMachine", SHARED),
    ("api-server", "The API server does not answer", PROVIDER),
];

/// A record without a failure would never be compared.
#[test]
fn every_failure_has_a_record_and_every_record_a_failure() -> Result<()> {
    let names: BTreeSet<_> = FAILURES.iter().map(|(name, ..)| format!("{name}.json")).collect();
    ensure!(names.len() == FAILURES.len(), "a name is there twice");
    let files = fs::read_dir(records()).context("listing the records")?;
    let files: Result<BTreeSet<_>, _> = files
        .map(|file| file.map(|file| file.file_name().to_string_lossy().into_owned()))
        .collect();
    assert_eq!(files?, names);
    Ok(())
}

#[test]
fn every_recorded_failure_shows_its_cause_and_next_step() -> Result<()> {
    for (name, ..) in FAILURES {
        let text = fs::read_to_string(records().join(format!("{name}.json"))).context(name)?;
        let seen: Seen = serde_json::from_str(&text).context(name)?;
        let has_message = |condition: &String| condition.contains(": ");
        let has_cause = match &seen.kubectl {
            Shown::Row { message, .. } => !message.is_empty() || seen.conditions.iter().any(has_message),
            Shown::Gone => !seen.events.is_empty(),
            Shown::Unanswered => !seen.log.is_empty(),
        };
        if seen.when == SHARED {
            ensure!(
                seen.next.is_empty(),
                "{name}: `capcmi describe` has no page for it"
            );
            ensure!(has_cause || !seen.events.is_empty(), "{name} has no cause");
            continue;
        }
        ensure!(has_cause, "{name} has no cause");
        if matches!(seen.kubectl, Shown::Row { .. }) {
            ensure!(!seen.next.is_empty(), "{name} has no next step");
            ensure!(!seen.metrics.is_empty(), "{name} has no metric");
        }
    }
    Ok(())
}

/// Compares the output for machines with the records of these names.
async fn all_recorded(world: &World, provider: &Replica, failures: &[(&str, &str)]) -> Result<()> {
    let failures: Vec<_> = failures
        .iter()
        .map(|&(name, machine)| Failure {
            name,
            subject: Subject::Object(Kind::Machine, machine),
        })
        .collect();
    hold_against_records(world, provider, &failures).await
}

/// The VM with this name, which must be unique.
fn vm_of(cloud: &Cloud, name: &str) -> Result<VmId> {
    let vms = cloud.vms()?;
    let vm = vms.iter().find(|vm| vm.name == name);
    Ok(vm.with_context(|| format!("no VM {name}"))?.id)
}

/// Sets the Machine's condition for its Node, like Cluster API.
async fn node_health(world: &World, name: &str, status: &str) -> Result<()> {
    let health = json!({"status": {"nodeRef": {"name": name}, "conditions": [{
        "type": "NodeHealthy", "status": status, "reason": "Test", "message": "",
        "lastTransitionTime": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    }]}});
    objects(world, "cluster.x-k8s.io", "v1beta2", "Machine")
        .patch_status(name, &PatchParams::default(), &Patch::Merge(health))
        .await?;
    Ok(())
}

/// A drivers file with a second driver.
fn with_another(world: &World, cloud: &Cloud) -> Result<String> {
    let other = Cloud::named(world, "other").drivers_with(json!({"name": "other"}), json!({}));
    Cloud::several([cloud.drivers(json!({})), other])
}

#[tokio::test]
async fn what_keeps_a_machine_from_coming_up_is_to_be_seen() -> Result<()> {
    let world = World::new("failures-up").await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(with_another(&world, &cloud)?).start(&world).await?;
    let stage = Stage::set(&world).await?;
    let infra = json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraCluster",
        "metadata": {"name": "other", "namespace": world.namespace}, "spec": {"driver": "nowhere"},
    });
    management_cluster::apply(&world.admin, infra).await?;
    let infra = json!({"apiGroup": "infrastructure.capcmi.io", "kind": "InfraCluster", "name": "other"});
    let spec = json!({"infrastructureRef": infra});
    stand_in::create_cluster(&world.management, &world.namespace, "other", spec).await?;
    cloud.fail(json!([
        {"operation": "CreateMachine", "machine": "credentials", "code": "Unauthenticated",
        "message": "the token has expired"},
        {"operation": "CreateMachine", "machine": "refused-spec", "code": "InvalidArgument",
        "message": "there is no image `debian-13`"},
        {"operation": "CreateMachine", "machine": "create-timeout", "code": "Unavailable",
        "message": "no host answers"},
        {"operation": "CreateMachine", "machine": "unanswered-create", "hang": "before"},
    ]))?;
    cloud
        .console()?
        .plant(PlantedVm::new(&stage.cluster_id, "taken", "another-machine"))?;

    let up = stage.machine("first").create().await?;
    let up = up.provisioned().await?;
    let paused = json!({annotations::PAUSED: ""});
    // The kind exists: a Machine that Cluster API can't convert would end the watches of all Machines.
    let no_data = json!({"configRef": {"apiGroup": GROUP, "kind": "InfraMachineTemplate", "name": "none"}});
    for machine in [
        stage.machine("credentials"),
        stage.machine("refused-spec"),
        stage
            .machine("create-timeout")
            .infra("/spec/creationTimeoutSeconds", json!(1)),
        stage.machine("unanswered-create"),
        stage.machine("taken"),
        stage
            .machine("invalid-spec")
            .infra("/spec/providerSpec/size", json!("huge")),
        stage
            .machine("unknown-driver")
            .infra("/spec/driver", json!("nowhere")),
        stage.machine("no-driver").infra("/spec/driver", json!(null)),
        stage.machine("no-bootstrap").machine("/spec/bootstrap", no_data),
        stage
            .machine("no-bootstrap-secret")
            .machine("/spec/bootstrap/dataSecretName", json!("lost")),
        stage
            .machine("foreign-id")
            .infra("/spec/providerID", json!("simulated://zone-a/by-hand")),
        stage
            .machine("paused")
            .infra("/metadata/annotations", paused.clone()),
        ByHand::new(&world, "other", "infra-cluster").controlled_by_the_case(),
        ByHand::new(&world, "lost", "no-cluster").controlled_by_the_case(),
    ] {
        machine.create().await?;
    }
    let owners = json!(up.metadata.owner_references);
    for machine in [
        stage.machine("second").infra("/metadata/ownerReferences", owners),
        stage.machine("ownerless"),
        stage
            .machine("ownerless-paused")
            .infra("/metadata/annotations", paused),
    ] {
        machine.create_infra().await?;
    }
    let said = [
        ("credentials", READY, "Unauthenticated"),
        ("refused-spec", READY, "InvalidArgument"),
        ("create-timeout", READY, "CreationTimedOut"),
        ("unanswered-create", READY, "Creating"),
        ("taken", READY, "AlreadyExists"),
        ("invalid-spec", READY, "InvalidArgument"),
        ("unknown-driver", READY, "DriverNotConfigured"),
        ("no-driver", READY, "DriverNotConfigured"),
        ("no-bootstrap", READY, "WaitingForBootstrapData"),
        ("no-bootstrap-secret", READY, "InvalidSecret"),
        ("foreign-id", READY, "ForeignProviderID"),
        ("paused", PAUSED, "Paused"),
        ("second", READY, "NotReferenced"),
        ("infra-cluster", READY, "WaitingForClusterInfrastructureReady"),
        // These appear a minute after the creation.
        ("ownerless", READY, "WaitingForOwner"),
        ("ownerless-paused", PAUSED, "Paused"),
        ("no-cluster", READY, "ClusterNotFound"),
    ];
    for (name, type_, reason) in said {
        let machine = stage.machine(name);
        let what = format!("a machine that says {reason}");
        let says = |machine: &_| condition(machine, type_).is_some_and(|shown| shown.reason == reason);
        machine.until(&what, says).await?;
    }
    let failures: Vec<_> = said.iter().map(|&(name, ..)| (name, name)).collect();
    all_recorded(&world, &provider, &failures).await
}

#[tokio::test]
async fn what_is_wrong_with_what_machines_share_is_to_be_seen() -> Result<()> {
    let world = World::new("failures-shared").await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(with_another(&world, &cloud)?).start(&world).await?;
    world.cluster_with("c", json!({"driver": "nowhere"})).await?;
    let without = json!({"providerSpec": small()});
    Fleet::of(&world, "c").template_with("without", without).await?;
    let failures = [
        ("infra-cluster-driver", Kind::Cluster, "c"),
        ("template-driver", Kind::MachineTemplate, "without"),
    ];
    let failures = failures.map(|(name, kind, object)| Failure {
        name,
        subject: Subject::Object(kind, object),
    });
    hold_against_records(&world, &provider, &failures).await
}

/// A driver that hangs: calls time out, and other machines wait because no call is left.
#[tokio::test]
async fn a_driver_that_hangs_is_to_be_seen() -> Result<()> {
    let world = World::new("failures-hang").await?;
    let clouds = ["slow", "busy"].map(|name| Cloud::named(&world, name));
    let [slow, busy] = &clouds;
    let entries = [
        json!({"name": "slow", "timeouts": {"createMachine": "1s"}, "createSettleTime": "1h"}),
        // One limit stops creates, and the other a single namespace.
        json!({"name": "busy", "timeouts": {"createMachine": "1h"}, "maxConcurrentCalls": 3}),
    ];
    let [first, second] = entries;
    let drivers = [
        slow.drivers_with(first, json!({})),
        busy.drivers_with(second, json!({})),
    ];
    let provider = Provider::new(Cloud::several(drivers)?).start(&world).await?;
    let stage = Stage::set(&world).await?;
    for cloud in &clouds {
        cloud.fail(json!([{"operation": "CreateMachine", "hang": "before"}]))?;
    }
    let machine = |name: &str, driver: &str| stage.machine(name).infra("/spec/driver", json!(driver));
    let late = machine("deadline-exceeded", "slow").create().await?;
    machine("hangs", "busy").create().await?;
    eventually(DEADLINE, "a create that hangs", async || {
        ensure!(busy.count(Operation::CreateMachine, "hangs")? == 1, "none yet");
        Ok(())
    })
    .await?;
    let waiting = machine("permits", "busy").create().await?;
    for (machine, reason) in [(&late, "DeadlineExceeded"), (&waiting, "WaitingForDriver")] {
        let what = format!("a machine that says {reason}");
        let says = |machine: &_| says(machine, READY, "False", reason);
        machine.until(&what, says).await?;
    }
    let names = ["deadline-exceeded", "permits"].map(|name| (name, name));
    all_recorded(&world, &provider, &names).await
}

/// The InfraCluster reports a VM whose InfraMachine no longer exists.
#[tokio::test]
async fn an_orphan_is_to_be_seen() -> Result<()> {
    let world = World::new("failures-orphan").await?;
    let cloud = Cloud::new(&world);
    let provider = ["--orphans-interval=1s", "--orphans-min-age=1ms"]
        .into_iter()
        .fold(Provider::new(cloud.drivers(json!({}))), Provider::flag);
    let provider = provider.start(&world).await?;
    world.cluster("c").await?;
    let machine = ByHand::new(&world, "c", "gone").create().await?;
    machine.provisioned().await?;
    cloud.fail(json!([{"operation": "DeleteMachine", "code": "FailedPrecondition"}]))?;
    machine.delete().await?;
    machine
        .until("a deletion that the back end refuses", |machine| {
            says(machine, DELETING, "True", "FailedPrecondition")
        })
        .await?;
    machine.patch(json!({"metadata": {"finalizers": null}})).await?;
    machine.gone().await?;
    eventually(DEADLINE, "an event of the orphan", async || {
        let selector = "--field-selector=reason=VirtualMachineOrphaned";
        let found = world.kubectl(&["get", "events", selector, "--output=name"])?;
        ensure!(!found.is_empty(), "none yet");
        Ok(())
    })
    .await?;
    let failure = Failure {
        name: "orphan",
        subject: Subject::Object(Kind::Cluster, "c"),
    };
    hold_against_records(&world, &provider, &[failure]).await
}

#[tokio::test]
async fn a_back_end_without_room_is_to_be_seen() -> Result<()> {
    let world = World::new("failures-full").await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({"quota": 1})))
        .start(&world)
        .await?;
    let stage = Stage::set(&world).await?;
    stage.machine("first").create().await?.provisioned().await?;
    for (name, reason) in [("quota", "ResourceExhausted"), ("capacity", "WaitingForCapacity")] {
        let machine = stage.machine(name).create().await?;
        machine
            .until("a machine without room", |machine| {
                says(machine, READY, "False", reason)
            })
            .await?;
    }
    all_recorded(&world, &provider, &[("quota", "quota"), ("capacity", "capacity")]).await
}

#[tokio::test]
async fn what_becomes_of_a_vm_that_was_up_is_to_be_seen() -> Result<()> {
    const NAMES: [&str; 8] = [
        "vanished",
        "crashed",
        "not-updatable",
        "deletion-refused",
        "deletion-paused",
        "finalizer",
        "moved",
        "force-deleted",
    ];
    let world = World::new("failures-vm").await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let stage = Stage::set(&world).await?;
    let machines = NAMES.map(|name| {
        let machine = stage
            .machine(name)
            .infra("/spec/shutdownTimeoutSeconds", json!(0));
        match name {
            "finalizer" => machine.infra("/metadata/finalizers", json!(["example.com/backup"])),
            _ => machine,
        }
    });
    ByHand::create_all(&machines).await?;
    for machine in &machines {
        machine.provisioned().await?;
    }
    let [vanished, crashed, changed, refused, paused, kept, moved, forced] = &machines;
    let annotate = |key: &str, value: &str| json!({"metadata": {"annotations": {key: value}}});

    cloud.console()?.vanish(vm_of(&cloud, &vanished.name)?)?;
    cloud
        .console()?
        .set_condition(vm_of(&cloud, &crashed.name)?, Condition::Crashed)?;
    node_health(&world, &crashed.name, "True").await?;
    node_health(&world, &crashed.name, "Unknown").await?;
    changed.respecify("size", json!("large")).await?;
    cloud
        .console()?
        .set_condition(vm_of(&cloud, &refused.name)?, Condition::Locked)?;
    paused.patch(annotate(annotations::PAUSED, "")).await?;
    moved.patch(annotate(annotations::DELETE_FOR_MOVE, "")).await?;
    forced.patch(annotate(annotations::FORCE_DELETE, "true")).await?;
    for machine in [refused, paused, kept, moved, forced] {
        machine.delete().await?;
    }
    let said = [
        (vanished, READY, "VirtualMachineVanished"),
        (crashed, READY, "VirtualMachineFailed"),
        (changed, VIRTUAL_MACHINE_UP_TO_DATE, "NotHotUpdatable"),
        (refused, DELETING, "FailedPrecondition"),
        (paused, DELETING, "Paused"),
        (kept, DELETING, "WaitingForFinalizers"),
        // This appears a minute after the deletion.
        (moved, DELETING, "DeleteForMove"),
    ];
    for (machine, type_, reason) in said {
        let what = format!("a machine that says {reason}");
        let says = |machine: &_| condition(machine, type_).is_some_and(|shown| shown.reason == reason);
        machine.until(&what, says).await?;
    }
    forced.gone().await?;
    let failures: Vec<_> = NAMES.iter().map(|&name| (name, name)).collect();
    all_recorded(&world, &provider, &failures).await
}

#[tokio::test]
async fn a_driver_that_is_away_and_one_that_was_taken_out_are_to_be_seen() -> Result<()> {
    let world = World::new("failures-driver").await?;
    let cloud = Cloud::new(&world);
    let mut plugin = Plugin::start(&world, "simulated", &cloud.config(json!({}))).await?;
    let mut provider = Provider::new(plugin.drivers(json!({}))).start(&world).await?;
    let stage = Stage::set(&world).await?;
    let machine = |name: &str| {
        stage
            .machine(name)
            .infra("/spec/shutdownTimeoutSeconds", json!(0))
    };
    let up = machine("up").create().await?;
    let going = machine("going").create().await?;
    for machine in [&up, &going] {
        machine.provisioned().await?;
    }
    plugin.kill();
    // The error of a running call depends on its state, so the case waits until the connection is down.
    provider.finds_driver_reachable(false).await?;
    let new = machine("new").create().await?;
    new.until("a machine that waits for its driver", |machine| {
        says(machine, READY, "False", "Unavailable")
    })
    .await?;
    for machine in [&up, &going] {
        machine
            .until("an outage that is shown", |machine| {
                says(machine, DRIVER_REACHABLE, "False", "Unavailable") && is_provisioned(machine)
            })
            .await?;
    }
    all_recorded(
        &world,
        &provider,
        &[("unreachable", "new"), ("unreachable-up", "up")],
    )
    .await?;

    provider.process.kill();
    let other = Cloud::named(&world, "other").drivers_with(json!({"name": "other"}), json!({}));
    let provider = Provider::new(other).named("second").start(&world).await?;
    going.delete().await?;
    up.until("a VM without a driver", |machine| {
        says(machine, DRIVER_REACHABLE, "False", "DriverNotConfigured")
    })
    .await?;
    going
        .until("a deletion without a driver", |machine| {
            says(machine, DELETING, "True", "DriverNotConfigured")
        })
        .await?;
    let failures = [("driver-removed", "up"), ("driver-removed-deletion", "going")];
    all_recorded(&world, &provider, &failures).await?;

    // When the driver is back, no machine waits for the retry of the previous provider.
    drop(provider);
    plugin.listen(&world).await?;
    let drivers = plugin.drivers(json!({}));
    let _provider = Provider::new(drivers).named("third").start(&world).await?;
    up.until("a VM with its driver", |machine| {
        says(machine, DRIVER_REACHABLE, "True", "Reachable") && is_provisioned(machine)
    })
    .await?;
    going.gone().await
}

/// Every client meets the outage, but only one line of the log reports it.
#[tokio::test]
async fn an_api_server_that_does_not_answer_is_one_line_of_the_log() -> Result<()> {
    let world = World::new("failures-api").await?;
    let cloud = Cloud::new(&world);
    let proxy = Proxy::start(&world.management, |_| Fault::None).await?;
    let kubeconfig = proxy.kubeconfig(&service_account(&world).await?)?;
    let provider = Provider::new(cloud.drivers(json!({}))).through(kubeconfig);
    let provider = provider.start(&world).await?;
    drop(proxy);
    let log = eventually(DEADLINE, "watches of three kinds that fail", async || {
        let log = provider.log()?;
        let failed = |kind: &str| {
            let marked = format!("kind={kind}");
            let is_it = |line: &str| line.contains("watch failed") && line.contains(&marked);
            log.lines().any(is_it)
        };
        for kind in ["InfraMachine", "InfraCluster", "Cluster"] {
            ensure!(failed(kind), "the watch of {kind} goes on");
        }
        Ok(log)
    })
    .await?;
    // The warnings of libraries are off by default.
    let told: Vec<&str> = log
        .lines()
        .filter(|line| line.contains(" WARN capcmi::"))
        .collect();
    ensure!(told.len() == 1, "{told:#?}");
    let failure = Failure {
        name: "api-server",
        subject: Subject::ApiServer,
    };
    hold_against_records(&world, &provider, &[failure]).await
}
