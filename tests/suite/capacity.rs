//! What the driver says of its classes and zones, and which driver an object gets.

use anyhow::{Context, Result, ensure};
use capcmi::api::conditions;
use kube::api::DynamicObject;
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::codes::{condition, provisioned};
use crate::support::by_hand::all_become;
use crate::support::fleet::objects;
use crate::support::{ByHand, Cloud, DEADLINE, Plugin, Provider, World};

#[tokio::test]
async fn a_template_says_what_a_machine_of_it_has_and_a_cluster_where_they_may_be() -> Result<()> {
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
        ("cluster.x-k8s.io", "v1beta2", "Cluster"),
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

/// What it said before does not hold for ever: a failure domain that is gone would have a Machine placed in
/// it. And what it could not say before is noticed without a restart of the provider.
#[tokio::test]
async fn a_plugin_that_comes_back_says_anew_what_its_classes_and_zones_are() -> Result<()> {
    let world = World::new("capacity-anew").await?;
    let cloud = Cloud::new(&world);
    let old = cloud.config(json!({"zones": ["east", "west"], "disabledCalls": ["DescribeClass"]}));
    let mut plugin = Plugin::start(&world, "simulated", &old).await?;
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
    plugin.configure(&cloud.config(json!({"zones": []})))?;
    plugin.listen(&world).await?;
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

/// Before any machine is made from it; and what heals is noticed.
#[tokio::test]
async fn a_template_that_no_machine_can_be_made_from_says_which_field_is_wrong() -> Result<()> {
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
            "there is no driver `nowhere`",
        ),
        (
            "secret",
            with("/secretRef", json!({"name": "late"}))?,
            "InvalidSecret",
            "the Secret `late` that spec.secretRef names does not exist",
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

#[tokio::test]
async fn a_driver_that_is_not_there_or_not_for_the_namespace_is_named_and_not_called() -> Result<()> {
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
                "there is no driver `{name}` for namespace `{}`, which may use: simulated",
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

/// The condition of a type; null when there is none.
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
