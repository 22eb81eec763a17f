//! Classes and zones that the driver describes, and the driver that an object gets.

use anyhow::{Context, Result, ensure};
use capcmi::api::conditions;
use capcmi::api::v1alpha1::InfraMachine;
use kube::api::DynamicObject;
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::support::by_hand::{all_become, message, says};
use crate::support::checks::{condition, provisioned};
use crate::support::fleet::objects;
use crate::support::{ByHand, Cloud, DEADLINE, Plugin, Provider, Stage, World};

/// That Cluster API takes the failure domains over is part of the suite's case on EC2.
#[tokio::test(start_paused = true)]
async fn templates_show_capacity_and_clusters_failure_domains() -> Result<()> {
    let world = World::new("capacity").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({"zones": ["east", "west"]})))
        .start(&world)
        .await?;
    world.cluster("c").await?;
    let template = |size: &str| {
        json!({
            "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachineTemplate",
            "metadata": {"name": size, "namespace": world.namespace},
            "spec": {"template": {"spec": {"providerSpec": {"vmPool": "default", "size": size,
            "rootFsSize": 20}}}},
        })
    };
    for size in ["small", "large"] {
        management_cluster::apply(&world.admin, template(size)).await?;
    }
    for (size, cpu, memory) in [("small", "2", "4Gi"), ("large", "8", "16Gi")] {
        let status = json!({
            "capacity": {"cpu": cpu, "memory": memory, "ephemeral-storage": "20G"},
            "nodeInfo": {"architecture": "amd64", "operatingSystem": "linux"},
        });
        shows(
            &world,
            ("infrastructure.capcmi.io", "v1alpha1", "InfraMachineTemplate"),
            size,
            |template| {
                let shown = &template.data["status"];
                ensure!(
                    shown["capacity"] == status["capacity"] && shown["nodeInfo"] == status["nodeInfo"],
                    "status {shown}"
                );
                Ok(())
            },
        )
        .await?;
    }
    shows(
        &world,
        ("infrastructure.capcmi.io", "v1alpha1", "InfraCluster"),
        "c",
        |cluster| {
            let domains = &cluster.data["status"]["failureDomains"];
            let names: Vec<_> = domains
                .as_array()
                .into_iter()
                .flatten()
                .map(|domain| &domain["name"])
                .collect();
            ensure!(names == ["east", "west"], "failure domains {domains}");
            Ok(())
        },
    )
    .await
}

/// A Machine must not be placed in a failure domain that is gone. A call that the plugin did not offer before
/// is made without a restart of the provider.
#[tokio::test(start_paused = true)]
async fn a_restarted_plugin_is_asked_again_for_classes_and_zones() -> Result<()> {
    let world = World::new("capacity-anew").await?;
    let cloud = Cloud::new(&world);
    let old = cloud.config(json!({"zones": ["east", "west"], "disabledCalls": ["DescribeClass"]}));
    let mut plugin = Plugin::start(&world, "simulated", &old)?;
    let _provider = Provider::new(plugin.drivers(json!({}))).start(&world).await?;
    world.cluster("c").await?;
    let template = json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachineTemplate",
        "metadata": {"name": "t", "namespace": world.namespace},
        "spec": {"template": {"spec": {"providerSpec": {"vmPool": "default", "size": "small"}}}},
    });
    management_cluster::apply(&world.admin, template).await?;
    let templates = ("infrastructure.capcmi.io", "v1alpha1", "InfraMachineTemplate");
    let clusters = ("infrastructure.capcmi.io", "v1alpha1", "InfraCluster");
    shows(&world, templates, "t", |template| {
        ensure!(
            shown(template, conditions::READY)["status"] == "True",
            "{:#}",
            template.data["status"]
        );
        ensure!(template.data["status"]["capacity"].is_null(), "it has a capacity");
        Ok(())
    })
    .await?;
    let zones = |cluster: &DynamicObject| {
        cluster.data["status"]["failureDomains"]
            .as_array()
            .map_or(0, Vec::len)
    };
    shows(&world, clusters, "c", |cluster| {
        ensure!(zones(cluster) == 2, "{:#}", cluster.data["status"]);
        Ok(())
    })
    .await?;

    plugin.kill();
    plugin.configure(&cloud.config(json!({"zones": []})));
    plugin.listen(&world)?;
    shows(&world, templates, "t", |template| {
        ensure!(
            template.data["status"]["capacity"]["cpu"] == "2",
            "{:#}",
            template.data["status"]
        );
        Ok(())
    })
    .await?;
    shows(&world, clusters, "c", |cluster| {
        ensure!(zones(cluster) == 0, "{:#}", cluster.data["status"]);
        let up_to_date = shown(cluster, conditions::FAILURE_DOMAINS_UP_TO_DATE);
        ensure!(up_to_date["status"] == "True", "{up_to_date:#}");
        Ok(())
    })
    .await
}

/// Before any machine is made from it. A template whose Secret comes later recovers.
#[tokio::test(start_paused = true)]
async fn an_invalid_template_names_the_field_that_is_wrong() -> Result<()> {
    let world = World::new("templates").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let spec = json!({"vmPool": "default", "size": "small", "tags": {}});
    let with = |pointer: &str, value: Value| {
        let mut template = json!({"providerSpec": spec});
        let (parent, key) = pointer.rsplit_once('/').unwrap_or_default();
        template.pointer_mut(parent).context("no parent")?[key] = value;
        anyhow::Ok(template)
    };
    let cases = [
        (
            "schema",
            with("/providerSpec/size", json!("colossal"))?,
            "InvalidArgument",
            "spec.template.spec.providerSpec/size: ",
        ),
        (
            "reserved",
            with("/providerSpec/tags", json!({"kubernetes.io/cluster": "x"}))?,
            "InvalidArgument",
            "spec.template.spec.providerSpec/tags has the reserved tag `kubernetes.io/cluster`",
        ),
        (
            "limits",
            with("/providerSpec/note", json!("x".repeat(65_536)))?,
            "InvalidArgument",
            "spec.template.spec.providerSpec: has 65",
        ),
        (
            "driver",
            with("/driver", json!("nowhere"))?,
            "DriverNotConfigured",
            "no driver `nowhere`",
        ),
        (
            "secret",
            with("/secretRef", json!({"name": "late"}))?,
            "InvalidSecret",
            "Secret `late` in spec.secretRef does not exist",
        ),
    ];
    for (name, spec, ..) in &cases {
        let template = json!({
            "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachineTemplate",
            "metadata": {"name": name, "namespace": world.namespace}, "spec": {"template": {"spec": spec}},
        });
        management_cluster::apply(&world.admin, template).await?;
    }
    let kind = ("infrastructure.capcmi.io", "v1alpha1", "InfraMachineTemplate");
    let ready = |template: &DynamicObject| shown(template, conditions::READY);
    for (name, _, reason, message) in &cases {
        shows(&world, kind, name, |template| {
            let ready = ready(template);
            ensure!(
                ready["type"] == "Ready" && ready["status"] == "False" && ready["reason"] == *reason,
                "{ready:#}"
            );
            let said = ready["message"].as_str().unwrap_or_default();
            ensure!(said.starts_with(message), "{said}");
            Ok(())
        })
        .await?;
    }
    world
        .apply(
            "apiVersion: v1\nkind: Secret\nmetadata: {name: late, namespace: $NS}\nstringData: \
            {token: any}\n",
        )
        .await?;
    shows(&world, kind, "secret", |template| {
        ensure!(ready(template)["status"] == "True", "{:#}", ready(template));
        ensure!(
            template.data["status"]["capacity"]["cpu"] == "2",
            "{:#}",
            template.data["status"]
        );
        Ok(())
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_does_not_serve_the_namespace_is_not_called() -> Result<()> {
    let world = World::new("drivers").await?;
    let cloud = Cloud::new(&world);
    let mut drivers: Value = serde_json::from_str(&cloud.drivers(json!({})))?;
    let mut theirs = drivers["drivers"][0].clone();
    theirs["name"] = json!("theirs");
    theirs["namespaces"] = json!(["another-team"]);
    theirs["simulated"] = json!({"callLog": world.folder.join("theirs.jsonl")});
    drivers["drivers"] = json!([drivers["drivers"][0], theirs]);
    let _provider = Provider::new(drivers.to_string()).start(&world).await?;
    world.cluster("c").await?;
    let with = |name: &str, driver: Value| ByHand::new(&world, "c", name).infra("/spec/driver", driver);
    let machines = [
        with("nowhere", json!("nowhere")),
        with("theirs", json!("theirs")),
        with("unnamed", Value::Null),
    ];
    let names: Vec<_> = machines.iter().map(|machine| machine.name.clone()).collect();
    ByHand::create_all(&machines).await?;
    all_become(
        &world,
        "a driver, or a word on why there is none",
        &names,
        |name, machine| {
            let machine = machine.context("is gone")?;
            if name == "unnamed" {
                // The only one that serves the namespace needs no name.
                return provisioned(machine);
            }
            condition(machine, conditions::READY, "False", Some("DriverNotConfigured"))?;
            let all = machine.status.clone().unwrap_or_default().conditions;
            let shown = conditions::get(&all, conditions::READY).map(|ready| ready.message.clone());
            let expected = format!(
                "no driver `{name}` serves namespace `{}`: use one of simulated",
                world.namespace
            );
            ensure!(
                shown.as_deref() == Some(expected.as_str()),
                "Ready says {shown:?}"
            );
            Ok(())
        },
    )
    .await?;
    let calls = std::fs::read_to_string(world.folder.join("theirs.jsonl"))?;
    let about_a_machine = calls.lines().find(|line| !line.contains(r#""machine":"""#));
    ensure!(about_a_machine.is_none(), "it was called: {about_a_machine:?}");
    Ok(())
}

/// The condition of a type, or null.
fn shown(object: &DynamicObject, type_: &str) -> Value {
    let all = object.data["status"]["conditions"].as_array();
    let mut all = all.into_iter().flatten();
    all.find(|condition| condition["type"] == type_)
        .cloned()
        .unwrap_or_default()
}

async fn shows(
    world: &World,
    (group, version, kind): (&str, &str, &str),
    name: &str,
    check: impl Fn(&DynamicObject) -> Result<()>,
) -> Result<()> {
    let api = objects(world, group, version, kind);
    eventually(DEADLINE, &format!("the status of {kind} {name}"), async || {
        check(&api.get(name).await?)
    })
    .await
}

/// The class waits in the full failure domain alone, and the condition names it.
#[tokio::test(start_paused = true)]
async fn a_machine_that_names_a_full_failure_domain_says_so() -> Result<()> {
    let world = World::without_core("full-zone").await?;
    let cloud = Cloud::new(&world);
    let pool = json!({"subnet": "10.100.0.0/16", "zoneCapacity": {"east": 0}});
    let more = json!({"zones": ["east", "west"], "pools": {"default": pool}});
    let _provider = Provider::new(cloud.drivers(more)).start(&world).await?;
    let stage = Stage::set(&world).await?;
    let named = |name: &str| stage.machine(name).machine("/spec/failureDomain", json!("east"));
    let first = named("first").create().await?;
    let says_why = |reason: &'static str| {
        move |machine: &InfraMachine| {
            let why = message(machine, conditions::READY);
            says(machine, conditions::READY, "False", reason)
                && why.contains("failure domain `east`")
                && why.contains("replace the Machine")
        }
    };
    first
        .until("a refusal that names the zone", says_why("ResourceExhausted"))
        .await?;
    let second = named("second").create().await?;
    second
        .until("a wait that names the zone", says_why("WaitingForCapacity"))
        .await?;
    let others = [
        stage.machine("free"),
        stage
            .machine("west")
            .machine("/spec/failureDomain", json!("west")),
    ];
    for machine in others {
        machine.create().await?.provisioned().await?;
    }
    ensure!(
        cloud.vms()?.iter().all(|vm| vm.zone.as_deref() == Some("west")),
        "{:?}",
        cloud.vms()?
    );
    Ok(())
}
