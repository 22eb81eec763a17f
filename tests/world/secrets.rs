//! Secrets: needed, missing, wrong, and renewed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use capcmi::api::conditions;
use capcmi::api::v1alpha1::InfraMachine;
use cmi_driver::Operation;
use fake_apiserver::Fate;
use http::Method;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};

use crate::support::by_hand::{self, all_become, delete_all, is_provisioned, patch_all};
use crate::support::checks::condition;
use crate::support::fleet::objects;
use crate::support::{ByHand, Cloud, Provider, World};

const TOKEN: &str = "the-right-token";
const WRONG: &str = "the-wrong-token";

/// CTL-CR-16, DRV-24: a missing or wrong Secret is named, and the machine heals when it is repaired.
#[tokio::test(start_paused = true)]
async fn a_missing_or_wrong_secret_is_named_and_heals() -> Result<()> {
    let world = World::new("secrets").await?;
    let cloud = Cloud::new(&world);
    let mut drivers: Value = serde_json::from_str(&cloud.drivers(json!({})))?;
    let mut guarded = drivers["drivers"][0].clone();
    guarded["name"] = json!("guarded");
    guarded["simulated"]["credentials"] = json!({"token": TOKEN});
    drivers["drivers"] = json!([drivers["drivers"][0], guarded]);
    let _provider = Provider::new(drivers.to_string()).start(&world).await?;
    world.cluster("c").await?;
    secret(&world, "clash", json!({"userData": "x"})).await?;
    secret(&world, "wrong", json!({"token": WRONG})).await?;
    secret(&world, "goes", json!({"token": TOKEN})).await?;
    let with = |name: &str, secret: &str| {
        ByHand::new(&world, "c", name).infra("/spec/secretRef", json!({"name": secret}))
    };
    let no_boot = ByHand::new(&world, "c", "no-boot");
    let machines = [
        with("missing", "late"),
        with("clash", "clash"),
        with("wrong", "wrong").infra("/spec/driver", json!("guarded")),
        with("goes", "goes"),
        no_boot.machine("/spec/bootstrap/dataSecretName", json!("late-boot")),
    ];
    let names: Vec<_> = machines.iter().map(|machine| machine.name.clone()).collect();
    ByHand::create_all(&machines).await?;
    all_become(&world, "what is wrong", &names, |name, machine| {
        let machine = machine.context("is gone")?;
        match name {
            "missing" => says(
                machine,
                "InvalidSecret",
                "Secret `late` in spec.secretRef does not exist",
            ),
            "clash" => says(machine, "InvalidSecret", "has key `userData`"),
            "wrong" => says(machine, "Unauthenticated", "does not know the token"),
            "no-boot" => says(
                machine,
                "InvalidSecret",
                "Secret `late-boot` in spec.bootstrap.dataSecretName",
            ),
            _ => provisioned(machine),
        }
    })
    .await?;
    ensure!(cloud.vms()?.len() == 1, "a VM was made without its secrets");

    secret(&world, "late", json!({"token": "any"})).await?;
    secret(&world, "wrong", json!({"token": TOKEN})).await?;
    // Only time triggers this machine's reconcile.
    secret(
        &world,
        "late-boot",
        json!({"value": "#cloud-config", "format": "cloud-config"}),
    )
    .await?;
    for name in ["goes", "clash"] {
        delete_secret(&world, name).await?;
    }
    secret(&world, "clash", json!({"token": "any"})).await?;
    let touch = json!({"metadata": {"annotations": {"example.com/touched": "1"}}});
    patch_all(&world, &names[..3], &touch).await?;
    all_become(&world, "machines with their secrets", &names, |_, machine| {
        provisioned(machine.context("is gone")?)
    })
    .await?;
    delete_all(&world, &names[3..4]).await?;
    all_become(
        &world,
        "a deletion that waits for the Secret",
        &names[3..4],
        |_, machine| {
            let machine = machine.context("is gone")?;
            condition(machine, conditions::DELETING, "True", Some("InvalidSecret"))
        },
    )
    .await?;
    secret(&world, "goes", json!({"token": TOKEN})).await?;
    patch_all(
        &world,
        &names[3..4],
        &json!({"metadata": {"annotations": {"example.com/touched": "2"}}}),
    )
    .await?;
    all_become(
        &world,
        "a deletion with the Secret",
        &names[3..4],
        |_, machine| {
            ensure!(machine.is_none(), "is still there");
            Ok(())
        },
    )
    .await?;
    cloud.holds(4).await?;
    Ok(())
}

/// CTL-DE-16, PLG-DE-16, CMI-46: another account would say of the VM that it is gone.
#[tokio::test(start_paused = true)]
async fn a_vm_keeps_the_credentials_that_it_was_created_with() -> Result<()> {
    let world = World::new("account").await?;
    let cloud = Cloud::new(&world);
    let credentials = json!({"credentials": {"token": TOKEN}, "disabledCalls": ["ListZones"]});
    let _provider = Provider::new(cloud.drivers(credentials)).start(&world).await?;
    world.cluster("c").await?;
    secret(&world, "mine", json!({"token": TOKEN})).await?;
    secret(&world, "theirs", json!({"token": WRONG})).await?;
    secret(&world, "goes", json!({"token": TOKEN})).await?;
    let with = |name: &str, secret: &str| {
        ByHand::new(&world, "c", name).infra("/spec/secretRef", json!({"name": secret}))
    };
    let (moved, without_secret) = (
        with("moved", "mine").create().await?,
        with("without-secret", "goes").create().await?,
    );
    for machine in [&moved, &without_secret] {
        machine.provisioned().await?;
    }
    moved
        .patch(json!({"spec": {"secretRef": {"name": "theirs"}}}))
        .await?;
    let up_to_date = conditions::VIRTUAL_MACHINE_UP_TO_DATE;
    let reported = moved
        .until("word of the Secret that is used", |machine| {
            by_hand::says(machine, up_to_date, "False", "SecretChanged")
        })
        .await?;
    let message = by_hand::message(&reported, up_to_date);
    ensure!(
        message.contains("`theirs`") && message.contains("`mine`"),
        "{message}"
    );
    moved.delete().await?;
    moved.gone().await?;
    cloud.holds(1).await?;

    delete_secret(&world, "goes").await?;
    without_secret.delete().await?;
    without_secret
        .until("a deletion that waits for an operator", |machine| {
            by_hand::says(machine, conditions::DELETING, "True", "InvalidSecret")
        })
        .await?;
    cloud.holds(1).await?;
    secret(&world, "goes", json!({"token": TOKEN})).await?;
    without_secret
        .patch(json!({"metadata": {"annotations": {"example.com/touched": "1"}}}))
        .await?;
    without_secret.gone().await?;
    cloud.holds(0).await?;
    Ok(())
}

/// CTL-DE-16: a driver that takes other credentials where none are given may not see the VM that those open.
#[tokio::test(start_paused = true)]
async fn a_vm_is_not_treated_as_gone_without_its_credentials() -> Result<()> {
    let world = World::new("unseen").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({})))
        .with(|options| options.inventory_interval = std::time::Duration::from_hours(1))
        .start(&world)
        .await?;
    world.cluster("c").await?;
    secret(&world, "goes", json!({"token": TOKEN})).await?;
    let machine = ByHand::new(&world, "c", "m")
        .infra("/spec/secretRef", json!({"name": "goes"}))
        .create()
        .await?;
    machine.provisioned().await?;
    let vms = cloud.holds(1).await?;
    cloud.console()?.vanish(vms[0].id)?;
    delete_secret(&world, "goes").await?;
    machine.delete().await?;
    let reported = machine
        .until("a deletion that waits for an operator", |machine| {
            by_hand::says(machine, conditions::DELETING, "True", "InvalidSecret")
        })
        .await?;
    let message = by_hand::message(&reported, conditions::DELETING);
    ensure!(
        message.contains("`goes`") && message.contains("cannot confirm that the VM is deleted"),
        "{message}"
    );
    ensure!(
        cloud.count(Operation::DeleteMachine, "m")? == 0,
        "it was deleted all the same"
    );
    secret(&world, "goes", json!({"token": TOKEN})).await?;
    machine.gone().await?;
    Ok(())
}

/// The Secrets of a deleted namespace go first, and nothing can be created in it. The provider's own
/// credentials remain.
#[tokio::test(start_paused = true)]
async fn deleting_a_namespace_deletes_every_vm() -> Result<()> {
    let world = World::new("going").await?;
    let cloud = Cloud::new(&world);
    let credentials = Credentials::new(&world, TOKEN)?;
    let drivers = cloud.drivers_with(credentials.entry(), json!({"credentials": {"token": TOKEN}}));
    let ends = Arc::new(AtomicBool::new(false));
    let has_ended = Arc::clone(&ends);
    let _provider = Provider::new(drivers)
        .requests_meet(move |call| {
            let is_create = call.method == Method::POST && call.path.contains("/namespaces/");
            if is_create && has_ended.load(Ordering::SeqCst) {
                Fate::Refused(403, "Forbidden")
            } else {
                Fate::Served
            }
        })
        .start(&world)
        .await?;
    world.cluster("c").await?;
    let names = ["a", "b", "c"].map(str::to_owned);
    ByHand::create_all(&names.clone().map(|name| ByHand::new(&world, "c", name))).await?;
    all_become(&world, "machines without a Secret", &names, |_, machine| {
        provisioned(machine.context("is gone")?)
    })
    .await?;
    cloud.holds(3).await?;
    // The namespace controller deletes all objects, and the API server refuses to create others.
    ends.store(true, Ordering::SeqCst);
    for (group, version, kind) in [
        ("", "v1", "Secret"),
        ("cluster.x-k8s.io", "v1beta2", "Cluster"),
        ("cluster.x-k8s.io", "v1beta2", "Machine"),
        ("infrastructure.capcmi.io", "v1alpha1", "InfraCluster"),
        ("infrastructure.capcmi.io", "v1alpha1", "InfraMachine"),
    ] {
        objects(&world, group, version, kind)
            .delete_collection(&DeleteParams::default(), &ListParams::default())
            .await?;
    }
    cloud.holds(0).await?;
    all_become(&world, "the end of every machine", &names, |_, machine| {
        ensure!(machine.is_none(), "is still there");
        Ok(())
    })
    .await
}

/// Another account would say of a VM that it is gone: a machine with a Secret keeps to
/// it, also when it is missing.
#[tokio::test(start_paused = true)]
async fn own_credentials_serve_machines_without_a_secret_and_are_renewed() -> Result<()> {
    let world = World::new("own").await?;
    let cloud = Cloud::new(&world);
    let credentials = Credentials::new(&world, WRONG)?;
    let drivers = cloud.drivers_with(
        credentials.entry(),
        json!({"credentials": {"token": TOKEN}, "disabledCalls": ["ListZones"]}),
    );
    let _provider = Provider::new(drivers).start(&world).await?;
    world.cluster("c").await?;
    secret(&world, "goes", json!({"token": TOKEN})).await?;
    let own = ByHand::new(&world, "c", "own").create().await?;
    let theirs = ByHand::new(&world, "c", "theirs")
        .infra("/spec/secretRef", json!({"name": "goes"}))
        .create()
        .await?;
    theirs.provisioned().await?;
    own.until("the wrong token", |machine| {
        by_hand::says(machine, conditions::READY, "False", "Unauthenticated")
    })
    .await?;

    credentials.renew(TOKEN)?;
    own.patch(json!({"metadata": {"annotations": {"example.com/touched": "1"}}}))
        .await?;
    own.provisioned().await?;
    cloud.holds(2).await?;

    delete_secret(&world, "goes").await?;
    theirs.delete().await?;
    let reported = theirs
        .until("a deletion that waits for an operator", |machine| {
            by_hand::says(machine, conditions::DELETING, "True", "InvalidSecret")
        })
        .await?;
    let message = by_hand::message(&reported, conditions::DELETING);
    ensure!(message.contains("`goes`"), "{message}");
    ensure!(
        cloud.count(Operation::DeleteMachine, "theirs")? == 0,
        "it was deleted with other credentials"
    );
    secret(&world, "goes", json!({"token": TOKEN})).await?;
    theirs
        .patch(json!({"metadata": {"annotations": {"example.com/touched": "1"}}}))
        .await?;
    theirs.gone().await?;

    // A Secret that comes later is not what its VM was made with.
    secret(&world, "late", json!({"token": WRONG})).await?;
    own.patch(json!({"spec": {"secretRef": {"name": "late"}}}))
        .await?;
    own.delete().await?;
    own.gone().await?;
    cloud.holds(0).await?;
    Ok(())
}

/// Credentials from the provider's side, as the kubelet mounts them.
struct Credentials {
    directory: std::path::PathBuf,
}

impl Credentials {
    fn new(world: &World, token: &str) -> Result<Self> {
        let directory = world.folder.join("credentials");
        std::fs::create_dir(&directory)?;
        let credentials = Self { directory };
        credentials.renew(token)?;
        std::os::unix::fs::symlink("..data/token", credentials.directory.join("token"))?;
        Ok(credentials)
    }

    /// The keys of the driver's entry in the drivers file.
    fn entry(&self) -> Value {
        json!({"credentials": {"directory": self.directory}})
    }

    /// Swaps the token as the kubelet does.
    fn renew(&self, token: &str) -> Result<()> {
        let version = format!("..{token}");
        std::fs::create_dir(self.directory.join(&version))?;
        std::fs::write(self.directory.join(&version).join("token"), token)?;
        let link = self.directory.join("..data_tmp");
        std::os::unix::fs::symlink(&version, &link)?;
        Ok(std::fs::rename(link, self.directory.join("..data"))?)
    }
}

/// A machine reports a Secret that the provider may not read, and the provider retries at intervals.
#[tokio::test(start_paused = true)]
async fn a_forbidden_secret_is_reported_and_read_once_permitted() -> Result<()> {
    let world = World::new("forbidden").await?;
    let cloud = Cloud::new(&world);
    let allowed = Arc::new(AtomicBool::new(false));
    let is_allowed = Arc::clone(&allowed);
    let _provider = Provider::new(cloud.drivers(json!({})))
        .requests_meet(move |call| {
            if call.path.ends_with("/secrets/locked") && !is_allowed.load(Ordering::SeqCst) {
                Fate::Refused(403, "Forbidden")
            } else {
                Fate::Served
            }
        })
        .start(&world)
        .await?;
    world.cluster("c").await?;
    secret(&world, "locked", json!({"token": TOKEN})).await?;
    let machine = ByHand::new(&world, "c", "m")
        .infra("/spec/secretRef", json!({"name": "locked"}))
        .create()
        .await?;
    let reported = machine
        .until("word of the Secret", |machine| {
            by_hand::says(machine, conditions::READY, "False", "InvalidSecret")
        })
        .await?;
    let message = by_hand::message(&reported, conditions::READY);
    ensure!(
        message.contains("cannot read Secret `locked` in spec.secretRef"),
        "{message}"
    );
    let last = reported.status.and_then(|status| status.last_operation);
    ensure!(
        last.is_some_and(|last| last.next_retry_time.is_some()),
        "no next try"
    );
    allowed.store(true, Ordering::SeqCst);
    machine.provisioned().await?;
    Ok(())
}

fn says(machine: &InfraMachine, reason: &str, message: &str) -> Result<()> {
    ensure!(
        by_hand::says(machine, conditions::READY, "False", reason),
        "{:?}",
        machine.status
    );
    let all = machine.status.clone().unwrap_or_default().conditions;
    let shown = conditions::get(&all, conditions::READY).map(|ready| ready.message.clone());
    ensure!(
        shown.as_ref().is_some_and(|shown| shown.contains(message)),
        "Ready says {shown:?}"
    );
    Ok(())
}

fn provisioned(machine: &InfraMachine) -> Result<()> {
    ensure!(is_provisioned(machine), "{:?}", machine.status);
    Ok(())
}

async fn delete_secret(world: &World, name: &str) -> Result<()> {
    let secrets = objects(world, "", "v1", "Secret");
    secrets.delete(name, &DeleteParams::default()).await?;
    Ok(())
}

async fn secret(world: &World, name: &str, data: Value) -> Result<()> {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": name, "namespace": world.namespace}, "stringData": data,
    });
    management_cluster::apply(&world.admin, secret).await?;
    Ok(())
}

/// Cluster API's schema takes any text for the name of the bootstrap Secret: it must not lead to another path
/// of the API server, nor be passed over in silence.
#[tokio::test(start_paused = true)]
async fn a_bootstrap_secret_with_an_invalid_name_is_reported() -> Result<()> {
    let world = World::new("names").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("c").await?;
    let names = ["elsewhere", "broken"].map(str::to_owned);
    let machines =
        [("elsewhere", "../../team-b/secrets/creds"), ("broken", "a b\nc")].map(|(name, secret)| {
            ByHand::new(&world, "c", name.to_owned())
                .controlled_by_the_case()
                .machine("/spec/bootstrap/dataSecretName", json!(secret))
        });
    ByHand::create_all(&machines).await?;
    all_become(&world, "a condition that names it", &names, |_, machine| {
        let machine = machine.context("is gone")?;
        ensure!(
            by_hand::says(machine, conditions::READY, "False", "InvalidSecret"),
            "{:?}",
            machine.status
        );
        let status = machine.status.as_ref().context("no status")?;
        let ready = conditions::get(&status.conditions, conditions::READY).context("no Ready")?;
        ensure!(
            ready.message.contains("not a valid Secret name"),
            "{}",
            ready.message
        );
        Ok(())
    })
    .await?;
    ensure!(cloud.vms()?.is_empty(), "a VM was made");
    Ok(())
}
