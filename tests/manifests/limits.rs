//! Every limit of a spec, from both sides.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::api_server::{User, api, create, namespace, object, refusal};

/// A kind, a spec that just fits, and one that just doesn't.
type Case = (&'static str, Value, Value);

#[tokio::test]
async fn a_spec_at_its_limits_is_stored_and_one_beyond_is_refused() -> Result<()> {
    let namespace = namespace().await?;
    let cases = machines()
        .into_iter()
        .chain(clusters())
        .chain(templates())
        .chain(remediations());
    for (number, (kind, within, beyond)) in cases.enumerate() {
        let api = api(User::Administrator, &namespace, kind).await?;
        let good = object(kind, &format!("good-{number}"), &json!({}), &within);
        create(&api, &good)
            .await?
            .with_context(|| format!("{kind} {number}"))?;
        let bad = object(kind, &format!("bad-{number}"), &json!({}), &beyond);
        let message = refusal(create(&api, &bad).await?).with_context(|| format!("{kind} {number}"))?;
        ensure!(message.contains("spec."), "the field isn't named: {message}");
    }
    Ok(())
}

fn text(length: usize) -> String {
    "a".repeat(length)
}

fn map(count: usize, length: usize) -> Value {
    (0..count)
        .map(|n| (format!("k{n}"), json!(text(length))))
        .collect()
}

fn machines() -> Vec<Case> {
    let spec = |field: &str, within: Value, beyond: Value| {
        ("InfraMachine", json!({field: within}), json!({field: beyond}))
    };
    vec![
        spec("providerID", json!(text(512)), json!(text(513))),
        spec("providerID", json!("a"), json!("")),
        spec("driver", json!(text(63)), json!(text(64))),
        spec("driver", json!("a-b"), json!("a_b")),
        spec("providerSpec", map(256, 1), map(257, 1)),
        spec("providerSpec", json!({}), json!([])),
        spec(
            "secretRef",
            json!({"name": text(253)}),
            json!({"name": text(254)}),
        ),
        spec("secretRef", json!({"name": "a"}), json!({})),
        spec("creationTimeoutSeconds", json!(1), json!(0)),
        spec("creationTimeoutSeconds", json!(86_400), json!(86_401)),
        spec("shutdownTimeoutSeconds", json!(0), json!(-1)),
        spec("shutdownTimeoutSeconds", json!(86_400), json!(86_401)),
        spec(
            "notReadyTaint",
            json!({"key": "example.com/not-ready"}),
            json!({"key": "node.kubernetes.io/not-ready"}),
        ),
        spec(
            "notReadyTaint",
            json!({"key": text(63)}),
            json!({"key": text(64)}),
        ),
    ]
}

fn remediations() -> Vec<Case> {
    let strategy = |field: &str, within: Value, beyond: Value| {
        let spec = |value: Value| json!({"strategy": {field: value}});
        ("InfraMachineRemediation", spec(within), spec(beyond))
    };
    vec![
        strategy("retryLimit", json!(1), json!(0)),
        strategy("retryLimit", json!(100), json!(101)),
        strategy("timeoutSeconds", json!(1), json!(0)),
        strategy("timeoutSeconds", json!(86_400), json!(86_401)),
        strategy("type", json!("Restart"), json!("Reboot")),
    ]
}

fn clusters() -> Vec<Case> {
    let endpoint = |host: &str, port: i64| json!({"controlPlaneEndpoint": {"host": host, "port": port}});
    let case = |within: Value, beyond: Value| ("InfraCluster", within, beyond);
    vec![
        case(endpoint(&text(512), 65_535), endpoint(&text(513), 65_535)),
        case(endpoint("a", 65_535), endpoint("a", 65_536)),
        case(endpoint("a", 1), endpoint("a", 0)),
        case(endpoint("a", 1), endpoint("", 1)),
        case(endpoint("a", 1), json!({"controlPlaneEndpoint": {"host": "a"}})),
        case(json!({"driver": text(63)}), json!({"driver": text(64)})),
        case(
            json!({"secretRef": {"name": "a"}}),
            json!({"secretRef": {"name": ""}}),
        ),
    ]
}

fn templates() -> Vec<Case> {
    let with = |metadata: Value| json!({"template": {"metadata": metadata, "spec": {}}});
    let mut cases = Vec::new();
    for kind in ["InfraMachineTemplate", "InfraClusterTemplate"] {
        for field in ["labels", "annotations"] {
            cases.push((
                kind,
                with(json!({field: map(128, 1)})),
                with(json!({field: map(129, 1)})),
            ));
            cases.push((
                kind,
                with(json!({field: map(1, 65_536)})),
                with(json!({field: map(1, 65_537)})),
            ));
        }
        cases.push((kind, with(json!({"labels": {"a": ""}})), with(json!({}))));
        cases.push((kind, json!({"template": {"spec": {}}}), json!({"template": {}})));
    }
    cases
}
