//! Secrets: needed, missing, wrong, and never shown.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use capcmi::api::conditions;
use capcmi::api::v1alpha1::InfraMachine;
use cmi_driver::Operation;
use http::StatusCode;
use management_cluster::eventually;
use management_cluster::proxy::{Fault, Proxy};
use serde_json::{Value, json};

use crate::codes::{condition, provisioned};
use crate::support::backing::with_every_backing;
use crate::support::by_hand::{self, all_become, delete_all, patch_all, small};
use crate::support::fleet::bootstrap_secret;
use crate::support::provider::service_account;
use crate::support::{Backing, ByHand, Cloud, DEADLINE, Provider, World};

with_every_backing!(no_secret_is_shown_anywhere);

const TOKEN: &str = "canary-token-7c1f";
const WRONG: &str = "canary-wrong-51aa";
const BOOT: &str = "canary-boot-90de";
/// Bootstrap data hold short words as well, and without a digit.
const PASSWORD: &str = "magpie-nest";
const SHORT: &str = "jackdaw";

/// The objects that a tenant can read.
const READABLE: &str = "inframachines,inframachinetemplates,infraclusters,machines.cluster.x-k8s.io,\
    clusters.cluster.x-k8s.io,events.events.k8s.io";

/// OPS-11, CMI-47: whatever a driver echoes, and however much is logged.
async fn no_secret_is_shown_anywhere(backing: Backing) -> Result<()> {
    let world = World::new("canary").await?;
    let cloud = Cloud::new(&world);
    let backed = backing
        .talkative(&world, &cloud, json!({"credentials": {"token": TOKEN}}))
        .await?;
    let provider = Provider::new(backed.drivers.clone())
        .flag("--log-level=trace")
        .start(&world)
        .await?;
    secret(
        &world,
        "good",
        json!({"token": TOKEN, "more": format!("first\n{TOKEN}-more\n")}),
    )
    .await?;
    secret(&world, "bad", json!({"token": WRONG})).await?;
    secret(
        &world,
        "data",
        json!({"value": format!(
            "#cloud-config\n# {BOOT}\nruncmd:\n- login --quietly {PASSWORD}\nusers:\n- {{name: a, passwd: \
                {SHORT}}}\n"
        ), "format": "cloud-config"}),
    )
    .await?;
    cloud.fail(echoes())?;
    world
        .cluster_with("c", json!({"secretRef": {"name": "good"}}))
        .await?;
    let template = json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachineTemplate",
        "metadata": {"name": "t", "namespace": world.namespace},
        "spec": {"template": {"spec": {"secretRef": {"name": "good"}, "providerSpec": small()}}},
    });
    management_cluster::apply(&world.admin, template).await?;
    let names = ["create", "status", "init", "delete", "update", "fine", "wrong"].map(str::to_owned);
    let machines = names.clone().map(|name| {
        let credentials = if name == "wrong" { "bad" } else { "good" };
        ByHand::new(&world, "c", name.clone())
            .infra("/spec/secretRef", json!({"name": credentials}))
            .infra("/spec/providerSpec/sourceDestCheck", json!(name != "init"))
            .machine("/spec/bootstrap/dataSecretName", json!("data"))
    });
    ByHand::create_all(&machines).await?;
    all_become(&world, "the failures of creates", &names, |name, machine| {
        let machine = machine.context("is gone")?;
        match name {
            "create" | "status" | "init" => condition(machine, conditions::READY, "False", Some("Internal")),
            "wrong" => condition(machine, conditions::READY, "False", Some("Unauthenticated")),
            _ => provisioned(machine),
        }
    })
    .await?;
    let label = json!({"spec": {"providerSpec": {"labels": {"a": "b"}}}});
    patch_all(&world, &names[4..5], &label).await?;
    delete_all(&world, &names[3..4]).await?;
    all_become(
        &world,
        "the failures of living machines",
        &names[3..5],
        |name, machine| {
            let machine = machine.context("is gone")?;
            let (failed, state) = match name {
                "update" => (conditions::VIRTUAL_MACHINE_UP_TO_DATE, "False"),
                _ => (conditions::DELETING, "True"),
            };
            condition(machine, failed, state, Some("Internal"))
        },
    )
    .await?;
    let log = provider.log()?;
    eventually(DEADLINE, "an echo of the list in the log", async || {
        ensure!(provider.log()?.contains("VMs can't be listed"), "not yet");
        Ok(())
    })
    .await?;
    let plugin_log = backed.log()?;
    for log in [Some(&log), plugin_log.as_ref()].into_iter().flatten() {
        ensure!(log.contains("TRACE"), "the log is not at its most talkative");
    }

    let own = std::fs::read_to_string(service_account(&world).await?)?;
    let own = own
        .lines()
        .find_map(|line| line.trim().strip_prefix("token: "))
        .map(str::to_owned);
    let objects = world.kubectl(&["get", READABLE, "-o", "json", "--show-managed-fields"])?;
    ensure!(objects.contains("[redacted]"), "nothing was echoed");
    let places = [
        ("the provider's log", provider.log()?),
        ("the plugin's log", plugin_log.unwrap_or_default()),
        ("an object or event", objects),
        ("a metric", provider.metrics().await?),
    ];
    let canaries = [TOKEN, WRONG, BOOT, PASSWORD, SHORT].map(str::to_owned);
    for canary in canaries.into_iter().chain(own) {
        is_nowhere(&canary, &places)?;
    }
    Ok(())
}

/// A secret is in none of these texts, as it is or encoded.
fn is_nowhere(canary: &str, places: &[(&str, String)]) -> Result<()> {
    let encoded = BASE64_STANDARD.encode(canary);
    for shown in [canary, encoded.trim_end_matches('=')] {
        for (place, text) in places {
            let line = text.lines().find(|line| line.contains(shown));
            ensure!(line.is_none(), "{place} shows `{shown}`: {line:?}");
        }
    }
    Ok(())
}

/// Every call echoes the credentials, and every call about a machine the bootstrap data too: a driver may
/// remember what only the create was given.
fn echoes() -> Value {
    let echo = |operation: &str, machine: &str| {
        let more = if machine.is_empty() {
            String::new()
        } else {
            format!("{BOOT} {PASSWORD} {SHORT}")
        };
        json!({
            "operation": operation, "machine": machine, "code": "Internal",
            "message": format!("could not log in with {TOKEN}, {} {more}", BASE64_STANDARD.encode(TOKEN)),
        })
    };
    let mut zones = echo("ListZones", "");
    zones["count"] = json!(1);
    json!([
        echo("CreateMachine", "create"),
        echo("GetMachineStatus", "status"),
        echo("InitializeMachine", "init"),
        echo("DeleteMachine", "delete"),
        echo("UpdateMachine", "update"),
        echo("ListMachines", ""),
        echo("DescribeClass", ""),
        zones,
    ])
}

/// CTL-CR-16, DRV-24: what is missing or wrong is named, and heals when it is repaired.
#[tokio::test]
async fn a_secret_that_is_missing_or_wrong_is_named_and_heals() -> Result<()> {
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
                "the Secret `late` that spec.secretRef names does not exist",
            ),
            "clash" => says(machine, "InvalidSecret", "has the key `userData`"),
            "wrong" => says(machine, "Unauthenticated", "does not know the token"),
            "no-boot" => says(
                machine,
                "InvalidSecret",
                "the Secret `late-boot` that spec.bootstrap.dataSecretName",
            ),
            _ => provisioned(machine),
        }
    })
    .await?;
    ensure!(cloud.vms()?.len() == 1, "a VM was made without its secrets");

    secret(&world, "late", json!({"token": "any"})).await?;
    secret(&world, "wrong", json!({"token": TOKEN})).await?;
    // Nothing but the time leads to this one.
    bootstrap_secret(&world, "late-boot").await?;
    world.kubectl(&["delete", "secret", "goes", "clash"])?;
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
        "a deletion without the Secret",
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
#[tokio::test]
async fn the_credentials_that_a_vm_was_made_with_are_used_for_it_to_the_end() -> Result<()> {
    let world = World::new("account").await?;
    let cloud = Cloud::new(&world);
    let credentials = json!({"credentials": {"token": TOKEN}, "disabledCalls": ["ListZones"]});
    let _provider = Provider::new(cloud.drivers(credentials)).start(&world).await?;
    world.cluster("c").await?;
    bootstrap_secret(&world, "boot").await?;
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

    world.kubectl(&["delete", "secret", "goes"])?;
    without_secret.delete().await?;
    without_secret
        .until("a deletion that waits for an operator", |machine| {
            by_hand::says(machine, conditions::DELETING, "True", "Unauthenticated")
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
#[tokio::test]
async fn a_vm_that_is_not_seen_without_its_credentials_is_not_taken_for_gone() -> Result<()> {
    let world = World::new("unseen").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({})))
        .flag("--inventory-interval=1h")
        .start(&world)
        .await?;
    world.cluster("c").await?;
    bootstrap_secret(&world, "boot").await?;
    secret(&world, "goes", json!({"token": TOKEN})).await?;
    let machine = ByHand::new(&world, "c", "m")
        .infra("/spec/secretRef", json!({"name": "goes"}))
        .create()
        .await?;
    machine.provisioned().await?;
    let vms = cloud.holds(1).await?;
    cloud.console()?.vanish(vms[0].id)?;
    world.kubectl(&["delete", "secret", "goes"])?;
    machine.delete().await?;
    let reported = machine
        .until("a deletion that waits for an operator", |machine| {
            by_hand::says(machine, conditions::DELETING, "True", "InvalidSecret")
        })
        .await?;
    let message = by_hand::message(&reported, conditions::DELETING);
    ensure!(
        message.contains("`goes`") && message.contains("no proof"),
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

/// The Secrets of a namespace go at once, and nothing can be put into it any more: credentials
/// that stay are the provider's.
#[tokio::test]
async fn a_namespace_can_be_deleted_with_its_machines_up_and_every_vm_goes() -> Result<()> {
    let world = World::new("going").await?;
    let cloud = Cloud::new(&world);
    let credentials = Credentials::new(&world, TOKEN)?;
    let drivers = cloud.drivers_with(credentials.entry(), json!({"credentials": {"token": TOKEN}}));
    let _provider = Provider::new(drivers).start(&world).await?;
    world.cluster("c").await?;
    let names = ["a", "b", "c"].map(str::to_owned);
    ByHand::create_all(&names.clone().map(|name| ByHand::new(&world, "c", name))).await?;
    all_become(&world, "machines without a Secret", &names, |_, machine| {
        provisioned(machine.context("is gone")?)
    })
    .await?;
    cloud.holds(3).await?;
    world.kubectl(&["delete", "namespace", &world.namespace, "--wait=false"])?;
    cloud.holds(0).await?;
    all_become(&world, "the end of every machine", &names, |_, machine| {
        ensure!(machine.is_none(), "is still there");
        Ok(())
    })
    .await
}

/// Another account would say of a VM that it is gone: a machine with a Secret keeps to
/// it, also when it is missing.
#[tokio::test]
async fn the_providers_credentials_are_for_machines_without_a_secret_alone_and_are_renewed() -> Result<()> {
    let world = World::new("own").await?;
    let cloud = Cloud::new(&world);
    let credentials = Credentials::new(&world, WRONG)?;
    let drivers = cloud.drivers_with(
        credentials.entry(),
        json!({"credentials": {"token": TOKEN}, "disabledCalls": ["ListZones"]}),
    );
    let _provider = Provider::new(drivers).start(&world).await?;
    world.cluster("c").await?;
    bootstrap_secret(&world, "boot").await?;
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

    world.kubectl(&["delete", "secret", "goes"])?;
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

/// A provider that may not read a Secret says so on the machine, and not again and again.
#[tokio::test]
async fn a_secret_that_may_not_be_read_is_said_on_the_machine() -> Result<()> {
    let world = World::new("forbidden").await?;
    let cloud = Cloud::new(&world);
    let allowed = Arc::new(AtomicBool::new(false));
    let is_allowed = Arc::clone(&allowed);
    let proxy = Proxy::start(&world.management, move |request| {
        if request.path.ends_with("/secrets/locked") && !is_allowed.load(Ordering::SeqCst) {
            Fault::Refuse(StatusCode::FORBIDDEN)
        } else {
            Fault::None
        }
    })
    .await?;
    let kubeconfig = proxy.kubeconfig(&service_account(&world).await?)?;
    let _provider = Provider::new(cloud.drivers(json!({})))
        .through(kubeconfig)
        .start(&world)
        .await?;
    world.cluster("c").await?;
    bootstrap_secret(&world, "boot").await?;
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
        message.contains("the Secret `locked` that spec.secretRef names can't be read"),
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
    condition(machine, conditions::READY, "False", Some(reason))?;
    let all = machine.status.clone().unwrap_or_default().conditions;
    let shown = conditions::get(&all, conditions::READY).map(|ready| ready.message.clone());
    ensure!(
        shown.as_ref().is_some_and(|shown| shown.contains(message)),
        "Ready says {shown:?}"
    );
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
#[tokio::test]
async fn a_bootstrap_secret_with_an_impossible_name_is_said_on_the_machine() -> Result<()> {
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
        condition(machine, conditions::READY, "False", Some("InvalidSecret"))?;
        let status = machine.status.as_ref().context("no status")?;
        let ready = conditions::get(&status.conditions, conditions::READY).context("no Ready")?;
        ensure!(
            ready.message.contains("not the name of a Secret"),
            "{}",
            ready.message
        );
        Ok(())
    })
    .await?;
    ensure!(cloud.vms()?.is_empty(), "a VM was made");
    Ok(())
}
