//! The definitions: the values that the API server stores, and the errors for invalid ones.

use anyhow::{Context, Result, ensure};
use capcmi::api::v1alpha1::{
    InfraMachineInitialization, InfraMachineStatus, LastOperation, MachineAddress, OperationState,
    OperationType,
};
use jiff::Timestamp;
use k8s_openapi::{
    api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::api_server::{User, api, create, merge, namespace, object, refusal};

#[tokio::test]
async fn the_provider_id_is_set_once() -> Result<()> {
    let namespace = namespace().await?;
    let machines = api(User::Provider, &namespace, "InfraMachine").await?;
    let tenant = api(User::Tenant, &namespace, "InfraMachine").await?;
    create(
        &tenant,
        &object("InfraMachine", "m", &json!({}), &json!({"driver": "a"})),
    )
    .await??;
    merge(&machines, "m", json!({"spec": {"driver": "b"}})).await?;
    merge(&machines, "m", json!({"spec": {"providerID": "cmi:///1"}})).await?;
    for (patch, why) in [
        (json!({"providerID": "cmi:///2"}), "spec.providerID is immutable"),
        (json!({"providerID": null}), "spec.providerID is immutable"),
        (json!({"driver": "c"}), "spec.driver is immutable"),
        (json!({"driver": null}), "spec.driver is immutable"),
    ] {
        let message = refusal(merge(&machines, "m", json!({"spec": patch})).await)?;
        ensure!(message.contains(why), "{patch}: {message}");
    }
    // Without a name, the machine has the only driver, and keeps it.
    create(
        &tenant,
        &object("InfraMachine", "unnamed", &json!({}), &json!({})),
    )
    .await??;
    merge(&machines, "unnamed", json!({"spec": {"providerID": "cmi:///2"}})).await?;
    let message = refusal(merge(&machines, "unnamed", json!({"spec": {"driver": "a"}})).await)?;
    ensure!(message.contains("spec.driver is immutable"), "{message}");
    let template = json!({"template": {"spec": {"providerID": "cmi:///1"}}});
    let templates = api(User::Tenant, &namespace, "InfraMachineTemplate").await?;
    let template = object("InfraMachineTemplate", "t", &json!({}), &template);
    let message = refusal(create(&templates, &template).await?)?;
    ensure!(message.contains("every machine gets its own"), "{message}");
    Ok(())
}

/// The addresses of a VM are claimed before its create, and never change.
#[tokio::test]
async fn pools_are_neither_added_nor_changed_nor_removed_later() -> Result<()> {
    let namespace = namespace().await?;
    let machines = api(User::Tenant, &namespace, "InfraMachine").await?;
    let pools = |names: &[&str]| {
        let pool =
            |name| json!({"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": name});
        json!({"addressesFromPools": names.iter().map(pool).collect::<Vec<_>>()})
    };
    for (name, before) in [("without", json!({})), ("with", pools(&["a"]))] {
        let machine = object("InfraMachine", name, &json!({}), &before);
        create(&machines, &machine).await??;
    }
    for (name, later) in [
        ("without", pools(&["a"])),
        ("with", pools(&["b"])),
        ("with", pools(&["a", "b"])),
        ("with", json!({"addressesFromPools": null})),
    ] {
        let message = refusal(merge(&machines, name, json!({"spec": later})).await)?;
        let why = "spec.addressesFromPools is immutable";
        ensure!(message.contains(why), "{name}, {later}: {message}");
    }
    Ok(())
}

#[tokio::test]
async fn a_remediation_has_no_other_strategy() -> Result<()> {
    let namespace = namespace().await?;
    let remediations = api(User::Administrator, &namespace, "InfraMachineRemediation").await?;
    let remediation = object("InfraMachineRemediation", "m", &json!({}), &json!({}));
    create(&remediations, &remediation).await??;
    let strategy = |type_: &str| json!({"spec": {"strategy": {"type": type_}}});
    merge(&remediations, "m", strategy("Restart")).await?;
    let message = refusal(merge(&remediations, "m", strategy("Replace")).await)?;
    ensure!(message.contains("spec.strategy.type"), "{message}");
    Ok(())
}

/// The API server silently drops fields that the definition lacks.
#[tokio::test]
async fn a_status_comes_back_as_it_was_written() -> Result<()> {
    let namespace = namespace().await?;
    let now = Time(Timestamp::from_second(1_700_000_000)?);
    let full = InfraMachineStatus {
        ready: true,
        initialization: Some(InfraMachineInitialization {
            provisioned: Some(true),
        }),
        addresses: vec![MachineAddress {
            type_: "InternalIP".to_owned(),
            address: "fd00::1".to_owned(),
        }],
        failure_domain: Some("zone-a".to_owned()),
        failure_reason: Some("INVALID_ARGUMENT".to_owned()),
        failure_message: Some("providerSpec.size: unknown".to_owned()),
        conditions: vec![Condition {
            type_: "Ready".to_owned(),
            status: "True".to_owned(),
            reason: "Ready".to_owned(),
            message: String::new(),
            observed_generation: Some(1),
            last_transition_time: now.clone(),
        }],
        node_name: Some("node".to_owned()),
        power_state: Some("Running".to_owned()),
        last_operation: Some(LastOperation {
            type_: OperationType::Create,
            state: OperationState::Failed,
            operation: Some("CreateMachine".to_owned()),
            code: Some("UNAVAILABLE".to_owned()),
            message: Some("no route".to_owned()),
            attempts: 3,
            last_update_time: now.clone(),
            next_retry_time: Some(now.clone()),
            inputs: Some(u64::MAX.to_string()),
        }),
        observed_generation: Some(1),
    };
    let sparse = InfraMachineStatus {
        last_operation: Some(LastOperation {
            type_: OperationType::Delete,
            state: OperationState::Processing,
            operation: None,
            code: None,
            message: None,
            attempts: 0,
            last_update_time: now,
            next_retry_time: None,
            inputs: None,
        }),
        ..InfraMachineStatus::default()
    };
    let tenant = api(User::Tenant, &namespace, "InfraMachine").await?;
    let provider = api(User::Provider, &namespace, "InfraMachine").await?;
    for (name, status) in [
        ("full", full),
        ("sparse", sparse),
        ("empty", InfraMachineStatus::default()),
    ] {
        create(&tenant, &object("InfraMachine", name, &json!({}), &json!({}))).await??;
        let patch = Patch::Merge(json!({"status": status}));
        let stored = provider
            .patch_status(name, &PatchParams::default(), &patch)
            .await?;
        let stored = stored.data.get("status").cloned().unwrap_or_else(|| json!({}));
        let status = InfraMachineStatus {
            // The default, until the provider writes another.
            observed_generation: status.observed_generation.or(Some(-1)),
            ..status
        };
        assert_eq!(
            serde_json::from_value::<InfraMachineStatus>(stored)?,
            status,
            "{name}"
        );
    }
    Ok(())
}

/// kubectl prints `<invalid>` for a date in the future, and the next retry is always in the future.
#[tokio::test]
async fn the_next_try_is_shown_as_the_time_that_it_is() -> Result<()> {
    let namespace = namespace().await?;
    let tenant = api(User::Tenant, &namespace, "InfraMachine").await?;
    let provider = api(User::Provider, &namespace, "InfraMachine").await?;
    create(&tenant, &object("InfraMachine", "m", &json!({}), &json!({}))).await??;
    let operation = json!({
        "type": "Create", "state": "Failed", "attempts": 1,
        "lastUpdateTime": "2026-01-01T00:00:00Z", "nextRetryTime": "2126-01-01T00:10:00Z",
    });
    let patch = Patch::Merge(json!({"status": {"lastOperation": operation}}));
    provider
        .patch_status("m", &PatchParams::default(), &patch)
        .await?;
    // kubectl requests and prints this table.
    let request = http::Request::get(format!("{}/m", tenant.resource_url()))
        .header(
            http::header::ACCEPT,
            "application/json;as=Table;v=v1;g=meta.k8s.io",
        )
        .body(Vec::new())?;
    let table: Value = User::Tenant.client(&namespace).await?.request(request).await?;
    let columns = table["columnDefinitions"].as_array().context("columns")?;
    let next = columns.iter().position(|column| column["name"] == "Next Try");
    let cell = &table["rows"][0]["cells"][next.context("no Next Try")?];
    ensure!(*cell == "2126-01-01T00:10:00Z", "{table}");
    Ok(())
}

#[tokio::test]
async fn a_status_that_breaks_the_contract_is_refused() -> Result<()> {
    let namespace = namespace().await?;
    let tenant = api(User::Tenant, &namespace, "InfraMachine").await?;
    let provider = api(User::Provider, &namespace, "InfraMachine").await?;
    create(&tenant, &object("InfraMachine", "m", &json!({}), &json!({}))).await??;
    let condition = json!({
        "type": "Ready", "status": "True", "reason": "Ready", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let address = json!({"type": "InternalIP", "address": "10.0.0.1"});
    for status in [
        json!({"addresses": [{"type": "Internal", "address": "10.0.0.1"}]}),
        json!({"addresses": [{"type": "InternalIP"}]}),
        json!({"addresses": vec![address; 257]}),
        json!({"conditions": [condition, condition]}),
        json!({"conditions": [{"type": "Ready", "status": "yes", "reason": "R", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]}),
        json!({"initialization": {}}),
        json!({"failureMessage": "a".repeat(10_241)}),
        json!({"lastOperation": {"type": "Create", "state": "Failed"}}),
    ] {
        let answer = provider
            .patch_status(
                "m",
                &PatchParams::default(),
                &Patch::Merge(json!({"status": status})),
            )
            .await;
        let message = refusal(answer).with_context(|| status.to_string())?;
        ensure!(message.contains("status."), "{message}");
    }
    Ok(())
}

#[tokio::test]
async fn every_identity_may_do_what_is_said_and_no_more() -> Result<()> {
    const OURS: &str = "infrastructure.capcmi.io";
    let namespace = namespace().await?;
    let expected = [
        (User::Provider, OURS, "inframachines", "", "patch", true),
        (User::Provider, OURS, "inframachines", "", "update", false),
        (User::Provider, OURS, "inframachines", "", "create", false),
        (User::Provider, OURS, "inframachines", "", "delete", false),
        (User::Provider, OURS, "inframachines", "identity", "update", true),
        (User::Provider, OURS, "inframachinetemplates", "", "patch", false),
        (
            User::Provider,
            OURS,
            "inframachinetemplates",
            "status",
            "patch",
            true,
        ),
        (User::Provider, "cluster.x-k8s.io", "machines", "", "watch", true),
        (User::Provider, "cluster.x-k8s.io", "machines", "", "patch", false),
        (User::Provider, "", "secrets", "", "get", true),
        (User::Provider, "", "secrets", "", "list", false),
        (User::Provider, "", "secrets", "", "watch", false),
        (User::Provider, "", "secrets", "", "create", false),
        (User::Provider, "", "secrets", "", "patch", false),
        (User::Provider, "", "pods", "", "get", false),
        (User::Provider, "events.k8s.io", "events", "", "create", true),
        (
            User::Provider,
            "coordination.k8s.io",
            "leases",
            "",
            "update",
            false,
        ),
        (User::Core, OURS, "inframachines", "", "create", true),
        (User::Core, OURS, "infraclustertemplates", "", "delete", true),
        (User::Core, OURS, "inframachines", "finalizers", "update", true),
        (User::Core, OURS, "inframachines", "identity", "update", false),
        (User::Core, OURS, "inframachines", "status", "patch", false),
        (User::Tenant, OURS, "inframachinetemplates", "", "create", true),
        (User::Tenant, OURS, "inframachines", "", "list", true),
        (User::Tenant, OURS, "inframachines", "identity", "update", false),
        (User::Tenant, OURS, "inframachines", "status", "patch", false),
    ];
    for (who, group, resource, subresource, verb, allowed) in expected {
        let said = may(who, &namespace, group, resource, subresource, verb).await?;
        assert_eq!(said, allowed, "{who:?} {verb} {resource}/{subresource}");
    }
    let lease = may(
        User::Provider,
        "capcmi-system",
        "coordination.k8s.io",
        "leases",
        "",
        "update",
    )
    .await?;
    ensure!(lease, "the lease in the provider's own namespace");
    Ok(())
}

async fn may(
    who: User,
    namespace: &str,
    group: &str,
    resource: &str,
    subresource: &str,
    verb: &str,
) -> Result<bool> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(who.client(namespace).await?);
    let attributes = ResourceAttributes {
        group: Some(group.to_owned()),
        namespace: Some(namespace.to_owned()),
        resource: Some(resource.to_owned()),
        subresource: Some(subresource.to_owned()),
        verb: Some(verb.to_owned()),
        ..ResourceAttributes::default()
    };
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let answer = reviews.create(&PostParams::default(), &review).await?;
    Ok(answer.status.context("no answer")?.allowed)
}

/// The name becomes a part of a request's path.
#[tokio::test]
async fn a_secret_name_that_no_secret_has_is_refused_in_every_kind() -> Result<()> {
    let namespace = namespace().await?;
    for (kind, inside_template) in [
        ("InfraMachine", false),
        ("InfraMachineTemplate", true),
        ("InfraCluster", false),
        ("InfraClusterTemplate", true),
    ] {
        let tenant = api(User::Tenant, &namespace, kind).await?;
        let long = "a".repeat(254);
        for (name, fits) in [
            ("creds.team-a", true),
            ("../../team-b/secrets/creds", false),
            ("a b\nc", false),
            ("a\n", false),
            ("A", false),
            ("a..b", false),
            (&long, false),
        ] {
            let spec = json!({"secretRef": {"name": name}});
            let spec = if inside_template {
                json!({"template": {"spec": spec}})
            } else {
                spec
            };
            let answer = create(&tenant, &object(kind, "o", &json!({}), &spec)).await?;
            if fits {
                answer?;
            } else {
                let message = refusal(answer).with_context(|| format!("{kind} {name:?}"))?;
                ensure!(message.contains("secretRef.name"), "{message}");
            }
        }
    }
    Ok(())
}
