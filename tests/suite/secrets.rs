//! Secrets: never shown, and gone with their namespace. `tests/world` has the rest.

use anyhow::{Context, Result, ensure};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use capcmi::api::conditions;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::Api;
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::soak::dice::Dice;
use crate::soak::seed;
use crate::support::by_hand::{all_become, delete_all, patch_all, small};
use crate::support::checks::{condition, provisioned};
use crate::support::provider::service_account;
use crate::support::{Backing, ByHand, Cloud, DEADLINE, Provider, World};

const ORDER_SEED: &str = "RANDOM_ORDER_SEED";
const TOKEN: &str = "canary-token-7c1f";
const WRONG: &str = "canary-wrong-51aa";
const BOOT: &str = "canary-boot-90de";
/// Bootstrap data hold short words as well, and without a digit.
const PASSWORD: &str = "magpie-nest";
const SHORT: &str = "jackdaw";

/// The objects that a tenant can read.
const READABLE: &str = "inframachines,inframachinetemplates,infraclusters,machines.cluster.x-k8s.io,\
    clusters.cluster.x-k8s.io,events.events.k8s.io";

/// OPS-11, CMI-47: neither the echo of a driver nor a log at its most talkative shows a secret.
#[tokio::test]
async fn no_secret_is_shown_anywhere() -> Result<()> {
    let world = World::new("canary").await?;
    let cloud = Cloud::new(&world);
    let backed = Backing::Plugin
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
        ensure!(provider.log()?.contains("cannot list VMs"), "not yet");
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

/// The Secrets of a deleted namespace go first, and nothing can be created in it. The provider's own
/// credentials remain.
#[tokio::test]
#[ignore = "long: the namespace controller itself; runs in make test-all"]
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

/// The Secret with the credentials is in the namespace, and is deleted after the machines that need it.
#[tokio::test]
async fn a_deleted_namespace_keeps_the_credentials_until_its_machines_are_gone() -> Result<()> {
    let world = World::new("going-secret").await?;
    let cloud = Cloud::new(&world);
    let drivers = cloud.drivers(json!({"credentials": {"token": TOKEN}}));
    let _provider = Provider::new(drivers).start(&world).await?;
    let names = needing_a_secret(&world, 3).await?;
    cloud.holds(3).await?;
    world.kubectl(&["delete", "namespace", &world.namespace, "--wait=false"])?;
    cloud.holds(0).await?;
    all_become(&world, "the end of every machine", &names, |_, machine| {
        ensure!(machine.is_none(), "is still there");
        Ok(())
    })
    .await?;
    let namespaces: Api<Namespace> = Api::all(world.admin.clone());
    eventually(DEADLINE, "the end of the namespace", async || {
        ensure!(
            namespaces.get_opt(&world.namespace).await?.is_none(),
            "is still there"
        );
        Ok(())
    })
    .await
}

/// As a tool that prunes: every object in the foreground, in a random order, and again while one is refused.
/// `RANDOM_ORDER_SEED` repeats an order.
#[tokio::test]
async fn objects_deleted_in_a_random_order_leave_no_vm() -> Result<()> {
    let world = World::new("random-order").await?;
    let cloud = Cloud::new(&world);
    let drivers = cloud.drivers(json!({"credentials": {"token": TOKEN}}));
    let _provider = Provider::new(drivers).start(&world).await?;
    let names = needing_a_secret(&world, 4).await?;
    cloud.holds(4).await?;
    let seed = seed(ORDER_SEED)?;
    println!("{ORDER_SEED}={seed}");
    let mut dice = Dice::new(seed);
    let mut objects: Vec<String> = names
        .iter()
        .flat_map(|name| {
            ["cluster", "infracluster", "machine", "inframachine", "secret"]
                .map(|kind| format!("{kind}/{name}"))
        })
        .collect();
    for last in (1..objects.len()).rev() {
        let bound = u32::try_from(last + 1)?;
        objects.swap(last, usize::try_from(dice.below(bound))?);
    }
    let round = async || {
        let mut left = Vec::new();
        for object in &objects {
            let options = [
                "delete",
                object,
                "--cascade=foreground",
                "--wait=false",
                "--ignore-not-found",
            ];
            let deleted = world
                .kubectl(&options)
                .unwrap_or_else(|refused| refused.to_string());
            if !deleted.is_empty() {
                left.push(deleted);
            }
        }
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    };
    let what = format!("the end of all objects ({ORDER_SEED}={seed})");
    eventually(DEADLINE, &what, round).await?;
    cloud.holds(0).await?;
    Ok(())
}

/// Clusters with a machine each, of the same name, whose credentials are in a Secret of that name.
async fn needing_a_secret(world: &World, count: usize) -> Result<Vec<String>> {
    let names: Vec<_> = (0..count).map(|number| format!("n{number}")).collect();
    let mut machines = Vec::new();
    for name in &names {
        secret(world, name, json!({"token": TOKEN})).await?;
        world
            .cluster_with(name, json!({"secretRef": {"name": name}}))
            .await?;
        machines.push(ByHand::new(world, name, name.clone()).infra("/spec/secretRef", json!({"name": name})));
    }
    ByHand::create_all(&machines).await?;
    all_become(world, "machines with a Secret", &names, |_, machine| {
        provisioned(machine.context("is gone")?)
    })
    .await?;
    Ok(names)
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

async fn secret(world: &World, name: &str, data: Value) -> Result<()> {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": name, "namespace": world.namespace}, "stringData": data,
    });
    management_cluster::apply(&world.admin, secret).await?;
    Ok(())
}
