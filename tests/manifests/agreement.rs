//! The code and the API server accept the same specs. Otherwise the provider could not write a machine that
//! it has read.

use anyhow::{Context, Result, ensure};
use capcmi::api::v1alpha1::InfraMachineSpec;
use garde::Validate as _;
use serde_json::{Map, Value, json};

use crate::api_server::{User, api, dry_run, namespace, object};

/// How many specs are tried. Fewer miss combinations, more only take time.
const SPECS: usize = 200;

/// Numbers that are the same in every run, so that a failure can be looked at again.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap_or_default() % end
    }

    fn spec(&mut self) -> Value {
        let mut spec = Map::new();
        for (field, values) in fields() {
            // Half of the fields are left out: most are optional.
            if self.below(2) == 0 {
                spec.insert(field.to_owned(), values[self.below(values.len())].clone());
            }
        }
        Value::Object(spec)
    }
}

/// Values on both sides of each limit; two of three are good, so that many specs are good as a whole.
fn fields() -> Vec<(&'static str, Vec<Value>)> {
    let text = |length: usize| json!("a".repeat(length));
    let many = |fields: usize| {
        (0..fields)
            .map(|n| (format!("k{n}"), json!(n)))
            .collect::<Value>()
    };
    vec![
        (
            "providerID",
            vec![
                text(1),
                text(512),
                json!("simulated://zone-a/1"),
                json!("ü"),
                text(513),
                text(0),
            ],
        ),
        (
            "driver",
            vec![
                text(1),
                text(63),
                json!("a-1"),
                text(64),
                json!("a_b"),
                json!("-a"),
            ],
        ),
        (
            "providerSpec",
            vec![
                json!({}),
                json!({"a": {"b": [1, null]}}),
                json!({"a": "x".repeat(65_536)}),
                many(256),
                many(257),
            ],
        ),
        (
            "secretRef",
            vec![
                json!({"name": "a"}),
                json!({"name": "a".repeat(253)}),
                json!({"name": ""}),
            ],
        ),
        (
            "creationTimeoutSeconds",
            vec![json!(1), json!(86_400), json!(0), json!(86_401)],
        ),
        ("shutdownTimeoutSeconds", vec![json!(0), json!(86_400), json!(-1)]),
    ]
}

#[tokio::test]
async fn the_api_server_accepts_every_spec_that_the_code_accepts() -> Result<()> {
    let namespace = namespace().await?;
    let machines = api(User::Administrator, &namespace, "InfraMachine").await?;
    let (mut numbers, mut accepted, mut refused) = (Numbers(4711), 0, 0);
    for number in 0..SPECS {
        let spec = numbers.spec();
        let read: InfraMachineSpec = serde_json::from_value(spec.clone()).context("reading a spec")?;
        if read.validate().is_err() {
            refused += 1;
            continue;
        }
        accepted += 1;
        let machine =
            serde_json::from_value(object("InfraMachine", &format!("m-{number}"), &json!({}), &spec))?;
        let answer = machines.create(&dry_run(), &machine).await;
        answer.with_context(|| format!("the code accepts {spec}"))?;
    }
    ensure!(
        accepted > 20 && refused > 20,
        "{accepted} accepted, {refused} refused: the specs say little"
    );
    Ok(())
}
