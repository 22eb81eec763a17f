//! The admission policies: templates are immutable, and nobody can forge identities and providerIDs.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use capcmi::api::MACHINE_FINALIZER;
use capcmi::api::annotations::{self, RESERVED_ANNOTATIONS};
use capcmi::api::identity::VmRecord;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt,
    api::{
        DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, PropagationPolicy,
        WatchEvent, WatchParams,
    },
};
use management_cluster::eventually;
use serde_json::{Value, json};

use crate::api_server::{DEADLINE, User, api, create, hosted, merge, namespace, object, refusal};

const IDENTITY: &str = annotations::VM_RECORD;
const DRY_RUN: &str = "topology.cluster.x-k8s.io/dry-run";

#[tokio::test]
async fn a_tenant_can_set_no_reserved_annotation() -> Result<()> {
    let namespace = namespace().await?;
    for kind in ["InfraMachine", "InfraCluster"] {
        let api = api(User::Tenant, &namespace, kind).await?;
        create(
            &api,
            &object(kind, "plain", &json!({"annotations": {"mine": "x"}}), &json!({})),
        )
        .await??;
        for key in RESERVED_ANNOTATIONS {
            let annotations = json!({"annotations": {key: "x"}});
            let on_create = refusal(create(&api, &object(kind, "forged", &annotations, &json!({}))).await?)?;
            let on_update = refusal(merge(&api, "plain", json!({"metadata": annotations})).await)?;
            for message in [on_create, on_update] {
                ensure!(message.contains(key), "{message}");
                ensure!(message.contains("inframachines/identity"), "{message}");
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_tenant_can_neither_change_nor_remove_what_the_provider_has_set() -> Result<()> {
    let namespace = namespace().await?;
    let tenant = api(User::Tenant, &namespace, "InfraMachine").await?;
    let provider = api(User::Provider, &namespace, "InfraMachine").await?;
    create(&tenant, &object("InfraMachine", "m", &json!({}), &json!({}))).await??;
    let all: serde_json::Map<String, Value> = RESERVED_ANNOTATIONS
        .iter()
        .map(|key| ((*key).to_owned(), json!("1")))
        .collect();
    merge(&provider, "m", json!({"metadata": {"annotations": all}})).await?;

    for key in RESERVED_ANNOTATIONS {
        for value in [json!("2"), json!(""), Value::Null] {
            let patch = json!({"metadata": {"annotations": {key: value}}});
            let message = refusal(merge(&tenant, "m", patch).await)?;
            ensure!(message.contains(key), "{message}");
        }
    }
    let message = refusal(merge(&tenant, "m", json!({"metadata": {"annotations": null}})).await)?;
    for key in RESERVED_ANNOTATIONS {
        ensure!(message.contains(key), "{message}");
    }
    Ok(())
}

/// The annotation would have no effect now, but would request another VM after a move has dropped the status.
#[tokio::test]
async fn not_even_an_administrator_has_a_machine_adopt_that_is_up() -> Result<()> {
    let namespace = namespace().await?;
    let administrator = api(User::Administrator, &namespace, "InfraMachine").await?;
    let adopts = json!({"annotations": {annotations::ADOPT: "{}"}});
    for (name, metadata) in [("made", json!({})), ("adopted", adopts.clone())] {
        create(
            &administrator,
            &object("InfraMachine", name, &metadata, &json!({})),
        )
        .await??;
        let up = Patch::Merge(json!({"status": {"initialization": {"provisioned": true}}}));
        administrator
            .patch_status(name, &PatchParams::default(), &up)
            .await?;
    }
    let message = refusal(merge(&administrator, "made", json!({"metadata": adopts})).await)?;
    ensure!(
        message.contains(annotations::ADOPT) && message.contains("is up"),
        "{message}"
    );
    // Annotations from the creation remain.
    let mine = json!({"metadata": {"annotations": {"mine": "x"}}});
    merge(&administrator, "adopted", mine.clone()).await?;
    merge(&administrator, "made", mine).await?;
    Ok(())
}

#[tokio::test]
async fn whole_object_writes_that_keep_the_identity_pass() -> Result<()> {
    let namespace = namespace().await?;
    let tenant = api(User::Tenant, &namespace, "InfraMachine").await?;
    let provider = api(User::Provider, &namespace, "InfraMachine").await?;
    create(&tenant, &object("InfraMachine", "m", &json!({}), &json!({}))).await??;
    merge(&provider, "m", identity("1")).await?;

    let mut whole = tenant.get("m").await?;
    whole.labels_mut().insert("mine".to_owned(), "x".to_owned());
    whole.data["spec"]["providerSpec"] = json!({"size": "large"});
    let written = tenant.replace("m", &PostParams::default(), &whole).await?;
    ensure!(
        written
            .annotations()
            .get(IDENTITY)
            .is_some_and(|identity| identity == "1")
    );
    Ok(())
}

#[tokio::test]
async fn provider_and_administrator_write_identities() -> Result<()> {
    let namespace = namespace().await?;
    let administrator = api(User::Administrator, &namespace, "InfraMachine").await?;
    // `clusterctl move` creates the object with its identity.
    let moved = object("InfraMachine", "m", &identity("1")["metadata"], &json!({}));
    create(&administrator, &moved).await??;
    for who in [User::Provider, User::Administrator] {
        let api = api(who, &namespace, "InfraMachine").await?;
        merge(&api, "m", identity("2")).await?;
        merge(&api, "m", json!({"metadata": {"annotations": {IDENTITY: null}}})).await?;
    }
    Ok(())
}

/// VMs have no namespace: a user with write access to identities could take over the VM of any namespace.
#[tokio::test]
async fn every_right_in_one_namespace_is_no_right_to_write_an_identity() -> Result<()> {
    let namespace = namespace().await?;
    let owner = api(User::Owner, &namespace, "InfraMachine").await?;
    create(&owner, &object("InfraMachine", "m", &json!({}), &json!({}))).await??;
    for (metadata, spec) in [
        (identity("1")["metadata"].clone(), json!({})),
        (json!({}), json!({"providerID": "cmi:///foreign"})),
        (
            json!({"annotations": {"infrastructure.capcmi.io/force-delete": "true"}}),
            json!({}),
        ),
    ] {
        let on_create = refusal(create(&owner, &object("InfraMachine", "forged", &metadata, &spec)).await?)?;
        let on_update = refusal(merge(&owner, "m", json!({"metadata": metadata, "spec": spec})).await)?;
        for message in [on_create, on_update] {
            ensure!(message.contains("in the whole cluster"), "{message}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn only_users_that_may_write_identities_remove_the_finalizer() -> Result<()> {
    let namespace = namespace().await?;
    let provider = api(User::Provider, &namespace, "InfraMachine").await?;
    let administrator = api(User::Administrator, &namespace, "InfraMachine").await?;
    let held = |annotations: Value| {
        json!({"annotations": annotations, "finalizers": [MACHINE_FINALIZER,
        "example.com/theirs"]})
    };
    let machines = [
        ("with-vm", held(json!({IDENTITY: "1"})), json!({})),
        ("named", held(json!({})), json!({"providerID": "cmi:///1"})),
    ];
    for (name, metadata, spec) in &machines {
        create(&administrator, &object("InfraMachine", name, metadata, spec)).await??;
    }
    for who in [User::Tenant, User::Owner, User::Core] {
        let api = api(who, &namespace, "InfraMachine").await?;
        for (name, ..) in &machines {
            for finalizers in [json!(null), json!([]), json!(["example.com/theirs"])] {
                let patch = json!({"metadata": {"finalizers": finalizers}});
                let message = refusal(merge(&api, name, patch).await)?;
                ensure!(message.contains(MACHINE_FINALIZER), "{message}");
                ensure!(
                    message.contains("infrastructure.capcmi.io/force-delete=true"),
                    "{message}"
                );
            }
            let mut whole = api.get(name).await?;
            whole.metadata.finalizers = None;
            refusal(api.replace(name, &PostParams::default(), &whole).await)?;
            // Other finalizers belong to their owners.
            let others = json!({"metadata": {"finalizers": [MACHINE_FINALIZER, "example.com/theirs",
                format!("example.com/{who:?}").to_lowercase()]}});
            merge(&api, name, others).await?;
        }
    }
    // The object is deleted, but the finalizer remains until the provider removes it.
    let tenant = api(User::Tenant, &namespace, "InfraMachine").await?;
    for (name, ..) in &machines {
        let deleted = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Orphan),
            ..DeleteParams::default()
        };
        tenant.delete(name, &deleted).await?;
        let message = refusal(merge(&tenant, name, json!({"metadata": {"finalizers": null}})).await)?;
        ensure!(message.contains(MACHINE_FINALIZER), "{message}");
    }
    for (api, name) in [(&provider, "with-vm"), (&administrator, "named")] {
        merge(api, name, json!({"metadata": {"finalizers": null}})).await?;
        ensure!(api.get_opt(name).await?.is_none(), "{name} is still there");
    }
    Ok(())
}

/// Otherwise only an administrator could delete a machine that never had a VM.
#[tokio::test]
async fn a_machine_without_a_record_can_lose_the_finalizer() -> Result<()> {
    let namespace = namespace().await?;
    let administrator = api(User::Administrator, &namespace, "InfraMachine").await?;
    let tenant = api(User::Tenant, &namespace, "InfraMachine").await?;
    let metadata = json!({"finalizers": [MACHINE_FINALIZER]});
    create(
        &administrator,
        &object("InfraMachine", "unowned", &metadata, &json!({})),
    )
    .await??;
    merge(&tenant, "unowned", json!({"metadata": {"finalizers": null}})).await?;
    let left = tenant.get("unowned").await?;
    ensure!(left.finalizers().is_empty(), "{left:?}");
    Ok(())
}

/// If a status write could change metadata, it would bypass every policy.
#[tokio::test]
async fn a_status_write_changes_neither_finalizers_nor_annotations_nor_spec() -> Result<()> {
    let namespace = namespace().await?;
    let administrator = api(User::Administrator, &namespace, "InfraMachine").await?;
    let owner = api(User::Owner, &namespace, "InfraMachine").await?;
    let metadata = json!({"annotations": {IDENTITY: "1"}, "finalizers": [MACHINE_FINALIZER]});
    create(
        &administrator,
        &object("InfraMachine", "m", &metadata, &json!({})),
    )
    .await??;
    let before = owner.get("m").await?;
    let patch = Patch::Merge(json!({
        "metadata": {"annotations": {IDENTITY: "2"}, "finalizers": null},
        "spec": {"providerID": "cmi:///foreign"}, "status": {"nodeName": "written"},
    }));
    let written = owner.patch_status("m", &PatchParams::default(), &patch).await?;
    ensure!(written.data["status"]["nodeName"] == "written", "{written:?}");
    ensure!(written.finalizers() == before.finalizers(), "{written:?}");
    ensure!(written.annotations() == before.annotations(), "{written:?}");
    ensure!(written.data["spec"] == before.data["spec"], "{written:?}");
    Ok(())
}

/// A user who sets the id of a VM could make the provider query and finally delete that VM.
#[tokio::test]
async fn a_tenant_can_neither_make_a_machine_with_a_provider_id_nor_set_one() -> Result<()> {
    let namespace = namespace().await?;
    let named = json!({"providerID": "cmi:///foreign"});
    for who in [User::Tenant, User::Core] {
        let api = api(who, &namespace, "InfraMachine").await?;
        let name = format!("{who:?}").to_lowercase();
        let on_create = refusal(create(&api, &object("InfraMachine", "named", &json!({}), &named)).await?)?;
        create(&api, &object("InfraMachine", &name, &json!({}), &json!({}))).await??;
        let on_update = refusal(merge(&api, &name, json!({"spec": named})).await)?;
        let on_apply = {
            let forged = object("InfraMachine", &name, &json!({}), &named);
            let params = PatchParams::apply("a-tenant").force();
            refusal(api.patch(&name, &params, &Patch::Apply(&forged)).await)?
        };
        for message in [on_create, on_update, on_apply] {
            ensure!(message.contains("spec.providerID must not be set"), "{message}");
            ensure!(message.contains("inframachines/identity"), "{message}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn only_provider_and_administrator_may_write_the_provider_id() -> Result<()> {
    let namespace = namespace().await?;
    let administrator = api(User::Administrator, &namespace, "InfraMachine").await?;
    let provider = api(User::Provider, &namespace, "InfraMachine").await?;
    let tenant = api(User::Tenant, &namespace, "InfraMachine").await?;
    let named = json!({"providerID": "cmi:///1"});
    // `clusterctl move` creates the object with its providerID.
    create(
        &administrator,
        &object("InfraMachine", "moved", &json!({}), &named),
    )
    .await??;
    for (name, api) in [("by-provider", &provider), ("by-hand", &administrator)] {
        create(&tenant, &object("InfraMachine", name, &json!({}), &json!({}))).await??;
        merge(api, name, json!({"spec": named})).await?;
    }
    for name in ["moved", "by-provider", "by-hand"] {
        merge(
            &tenant,
            name,
            json!({"spec": {"providerSpec": {"size": "large"}}}),
        )
        .await?;
        let mut whole = tenant.get(name).await?;
        whole.labels_mut().insert("mine".to_owned(), "x".to_owned());
        let written = tenant.replace(name, &PostParams::default(), &whole).await?;
        ensure!(
            written.data["spec"]["providerID"] == named["providerID"],
            "{written:?}"
        );
    }
    Ok(())
}

/// Core applies machines from templates with their annotations, and adds labels later.
#[tokio::test]
async fn core_makes_machines_and_hands_out_no_identity() -> Result<()> {
    let namespace = namespace().await?;
    let core = api(User::Core, &namespace, "InfraMachine").await?;
    let provider = api(User::Provider, &namespace, "InfraMachine").await?;
    let params = PatchParams::apply("capi-machineset");
    let plain = object(
        "InfraMachine",
        "m",
        &json!({"labels": {"a": "1"}}),
        &json!({"providerSpec": {}}),
    );
    core.patch("m", &params, &Patch::Apply(&plain)).await?;
    merge(&provider, "m", identity("1")).await?;
    let labelled = object(
        "InfraMachine",
        "m",
        &json!({"labels": {"a": "2"}}),
        &json!({"providerSpec": {}}),
    );
    core.patch("m", &params, &Patch::Apply(&labelled)).await?;

    let copied = object("InfraMachine", "copy", &identity("1")["metadata"], &json!({}));
    let message = refusal(core.patch("copy", &params, &Patch::Apply(&copied)).await)?;
    ensure!(message.contains(IDENTITY), "{message}");
    for kind in ["InfraMachineTemplate", "InfraCluster", "InfraClusterTemplate"] {
        let api = api(User::Core, &namespace, kind).await?;
        let spec = if kind.ends_with("Template") {
            json!({"template": {"spec": {}}})
        } else {
            json!({})
        };
        api.patch("x", &params, &Patch::Apply(&object(kind, "x", &json!({}), &spec)))
            .await?;
        api.delete("x", &kube::api::DeleteParams::default()).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_spec_of_a_template_never_changes() -> Result<()> {
    let namespace = namespace().await?;
    for (kind, change) in TEMPLATES {
        let change: Value = serde_json::from_str(change)?;
        for who in [User::Administrator, User::Tenant, User::Core] {
            let name = format!("{who:?}").to_lowercase();
            let api = api(who, &namespace, kind).await?;
            create(&api, &template(kind, &name, &json!({}))).await??;
            // Cluster API sets owners and labels of a template.
            merge(&api, &name, json!({"metadata": {"labels": {"a": "1"}}})).await?;
            let patch = json!({"spec": {"template": {"spec": change}}});
            let message = refusal(merge(&api, &name, patch).await)?;
            ensure!(message.contains("create a new template"), "{message}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn only_the_topology_dry_run_may_try_another_spec() -> Result<()> {
    let namespace = namespace().await?;
    for (kind, change) in TEMPLATES {
        let change: Value = serde_json::from_str(change)?;
        let api = api(User::Core, &namespace, kind).await?;
        create(&api, &template(kind, "t", &json!({}))).await??;
        let marked = json!({"annotations": {DRY_RUN: ""}});
        refusal(
            apply(
                &api,
                &object(kind, "t", &json!({}), &json!({"template": {"spec": change}})),
                true,
            )
            .await,
        )?;
        refusal(
            apply(
                &api,
                &object(kind, "t", &marked, &json!({"template": {"spec": change}})),
                false,
            )
            .await,
        )?;
        apply(
            &api,
            &object(kind, "t", &marked, &json!({"template": {"spec": change}})),
            true,
        )
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_template_of_any_writer_hands_out_no_identity() -> Result<()> {
    let namespace = namespace().await?;
    for (kind, _) in TEMPLATES {
        for who in [User::Administrator, User::Tenant] {
            let api = api(who, &namespace, kind).await?;
            for key in RESERVED_ANNOTATIONS {
                let metadata = json!({"annotations": {key: "x"}});
                let message = refusal(create(&api, &template(kind, "t", &metadata)).await?)?;
                ensure!(message.contains(key), "{message}");
            }
        }
    }
    Ok(())
}

const TEMPLATES: [(&str, &str); 2] = [
    ("InfraMachineTemplate", r#"{"providerSpec": {"size": "large"}}"#),
    ("InfraClusterTemplate", r#"{"driver": "another"}"#),
];

fn template(kind: &str, name: &str, metadata: &Value) -> Value {
    let mut template = object(kind, name, &json!({}), &json!({"template": {"spec": {}}}));
    if metadata.as_object().is_some_and(|fields| !fields.is_empty()) {
        template["spec"]["template"]["metadata"] = metadata.clone();
    }
    template
}

fn identity(value: &str) -> Value {
    json!({"metadata": {"annotations": {IDENTITY: value}}})
}

async fn apply(api: &Api<DynamicObject>, object: &Value, dry_run: bool) -> kube::Result<DynamicObject> {
    let params = PatchParams {
        dry_run,
        ..PatchParams::apply("capi-topology").force()
    };
    api.patch("t", &params, &Patch::Apply(object)).await
}

/// The Secret that `spec.secretRef` names, and the Secret that the VM was made with, are needed for the
/// deletion.
#[tokio::test]
async fn a_secret_stays_while_a_machine_names_it() -> Result<()> {
    let namespace = namespace().await?;
    let administrator = User::Administrator.client(&namespace).await?;
    let secrets: Api<Secret> = Api::namespaced(administrator, &namespace);
    let machines = api(User::Administrator, &namespace, "InfraMachine").await?;
    for name in ["named", "made-with", "made", "made.with", "bootstrap"] {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}});
        secrets
            .create(&PostParams::default(), &serde_json::from_value(secret)?)
            .await?;
    }
    // As a tool has rewritten it, and as the provider writes it.
    let rewritten = concat!(
        r#"{"madeFrom":{"driver":"d","providerSpec":{},"secret":"made-with"},"cluster":"c","#,
        r#""machine":"n/m/u","state":{"name":"Exists"},"version":"v1"}"#
    );
    let written = VmRecord::parse(rewritten)?.annotation()?;
    let indented = serde_json::to_string_pretty(&serde_json::from_str::<Value>(rewritten)?)?;
    let records = [written.as_str(), rewritten, indented.as_str()];
    ensure!(records[0] != records[1], "the order of the keys is the same");
    let metadata = |record: &str| json!({"annotations": {IDENTITY: record}});
    let spec = json!({"secretRef": {"name": "named"}});
    create(
        &machines,
        &object("InfraMachine", "m", &metadata(records[0]), &spec),
    )
    .await??;
    for (name, record) in [
        ("named", records[0]),
        ("made-with", records[0]),
        ("made-with", records[1]),
        ("made-with", records[2]),
    ] {
        merge(&machines, "m", json!({"metadata": metadata(record)})).await?;
        eventually(DEADLINE, "the policy of Secrets", async || {
            let dry_run = DeleteParams {
                dry_run: true,
                ..DeleteParams::default()
            };
            let message = refusal(secrets.delete(name, &dry_run).await)?;
            ensure!(message.contains("InfraMachine m needs this Secret"), "{message}");
            Ok(())
        })
        .await?;
        refusal(secrets.delete(name, &DeleteParams::default()).await)?;
    }
    for name in ["made", "made.with", "bootstrap"] {
        secrets.delete(name, &DeleteParams::default()).await?;
    }
    refusal(
        secrets
            .delete_collection(&DeleteParams::default(), &ListParams::default())
            .await,
    )?;
    machines.delete("m", &DeleteParams::default()).await?;
    for name in ["named", "made-with"] {
        eventually(DEADLINE, "a deletion that is allowed again", async || {
            Ok(secrets.delete(name, &DeleteParams::default()).await.map(drop)?)
        })
        .await?;
    }
    Ok(())
}

/// The policy is evaluated once for each InfraMachine of the namespace.
#[tokio::test]
#[ignore = "long: creates 10,000 objects; runs in make test-all"]
async fn a_secret_is_deleted_quickly_beside_many_machines() -> Result<()> {
    const SAMPLES: usize = 5;
    let namespace = namespace().await?;
    let client = User::Administrator.client(&namespace).await?;
    let secrets: Api<Secret> = Api::namespaced(client, &namespace);
    let machines = api(User::Administrator, &namespace, "InfraMachine").await?;
    let new_secret = async |name: &str, labels: Value| {
        let metadata = json!({"name": name, "labels": labels});
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata});
        let secret = serde_json::from_value(secret)?;
        anyhow::Ok(secrets.create(&PostParams::default(), &secret).await?)
    };
    new_secret("held", json!({})).await?;
    let provider_spec = json!({"vmPool": "default", "size": "small", "labels": {"text": "x".repeat(1000)}});
    let create_machine = async |number: usize| {
        let name = format!("m{number}");
        let record = json!({
            "version": "v1", "machine": format!("{namespace}/{name}/u"), "cluster": "c",
            "state": {"name": "Exists"},
            "madeFrom": {"driver": "d", "secret": "held", "providerSpec": provider_spec},
        });
        let metadata = json!({"annotations": {IDENTITY: record.to_string()}});
        let spec = json!({"secretRef": {"name": "held"}, "providerSpec": provider_spec});
        create(&machines, &object("InfraMachine", &name, &metadata, &spec)).await??;
        anyhow::Ok(())
    };
    let mut created = 0;
    for count in [1_000, 10_000] {
        let more = stream::iter(created..count).map(Ok);
        more.try_for_each_concurrent(16, create_machine).await?;
        created = count;
        let mut slowest = [Duration::ZERO; 3];
        for sample in 0..SAMPLES {
            let labels = [json!({"cluster.x-k8s.io/cluster-name": "c"}), json!({})];
            for (place, labels) in labels.into_iter().enumerate() {
                new_secret("free", labels).await?;
                let start = Instant::now();
                secrets.delete("free", &DeleteParams::default()).await?;
                slowest[place] = slowest[place].max(start.elapsed());
            }
            let start = Instant::now();
            let message = refusal(secrets.delete("held", &DeleteParams::default()).await)?;
            slowest[2] = slowest[2].max(start.elapsed());
            ensure!(
                message.contains("needs this Secret"),
                "sample {sample}: {message}"
            );
        }
        println!("{count} InfraMachines: {slowest:?} [bootstrap, free, held], the slowest of {SAMPLES}");
        ensure!(slowest[0] < Duration::from_secs(1));
        ensure!(slowest.iter().all(|slow| *slow < Duration::from_secs(5)));
    }
    Ok(())
}

/// A hosted control plane has no rights but these, and they come by aggregation.
#[tokio::test]
async fn a_hosted_control_plane_may_set_the_endpoint_and_nothing_else() -> Result<()> {
    let namespace = namespace().await?;
    let administrator = User::Administrator.client(&namespace).await?;
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "hosted-control-planes"}, "rules": [],
        "aggregationRule": {"clusterRoleSelectors": [
            {"matchLabels": {"controlplane.cluster.x-k8s.io/aggregate-to-manager": "true"}},
        ]},
    });
    management_cluster::apply(&administrator, role).await?;
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "hosted", "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
            "name": "hosted-control-planes"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": hosted(&namespace)}],
    });
    management_cluster::apply(&administrator, binding).await?;
    let clusters = api(User::Administrator, &namespace, "InfraCluster").await?;
    create(&clusters, &object("InfraCluster", "c", &json!({}), &json!({}))).await??;
    let hosted = api(User::HostedControlPlane, &namespace, "InfraCluster").await?;
    let endpoint = json!({"spec": {"controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443}}});
    eventually(DEADLINE, "the aggregated role", async || {
        Ok(merge(&hosted, "c", endpoint.clone()).await.map(drop)?)
    })
    .await?;
    // Kamaji and k0smotron read from a cache, and k0smotron replaces the object.
    hosted.list(&ListParams::default()).await?;
    let mut events = hosted.watch(&WatchParams::default(), "0").await?.boxed();
    let first = events.try_next().await?;
    ensure!(matches!(first, Some(WatchEvent::Added(_))), "{first:?}");
    let mut whole = hosted.get("c").await?;
    whole.data["spec"]["controlPlaneEndpoint"]["port"] = json!(443);
    hosted.replace("c", &PostParams::default(), &whole).await?;
    refusal(hosted.delete("c", &DeleteParams::default()).await)?;
    refusal(
        hosted
            .patch_status("c", &PatchParams::default(), &Patch::Merge(json!({})))
            .await,
    )?;
    let machines = api(User::HostedControlPlane, &namespace, "InfraMachine").await?;
    refusal(machines.list(&ListParams::default()).await)?;
    let forged = json!({"metadata": {"annotations": {annotations::CLUSTER_ID: "x"}}});
    refusal(merge(&hosted, "c", forged).await)?;
    Ok(())
}
