//! GenerateMachineClassForMigration.

use serde_json::{Map, Value, json};

use super::cases;
use super::requests::reaches_the_plugin;
use crate::answer::{Answer, CaseResult, ensure};
use crate::{Case, Need, Setting, TestContext};
use cmi_driver::{Code, GenerateMachineClassForMigrationRequest, MachineClassKind, Operation};

const MIGRATE: Need = Need::Call(Operation::GenerateMachineClassForMigration);
const SAMPLE: Need = Need::Setting(Setting::Migration);

pub(super) const CASES: &[Case] = cases! {
    "migrate-offered": "an undeclared call is UNIMPLEMENTED, a declared call never is"
        ["DRV-48", "DRV-MG-12"], [] => offered;
    "migrate-fills-the-class": "the sample class is converted, and existing fields are kept"
        ["DRV-49", "DRV-50", "DRV-MG-00"], [MIGRATE, SAMPLE] => fills;
    "migrate-again": "a repeated conversion gives the same result, from the converted class too"
        ["DRV-51"], [MIGRATE, SAMPLE] => again;
    "migrate-broken": "a class that cannot be converted is INTERNAL, with the reason"
        ["DRV-MG-13", "DRV-52"], [MIGRATE, Need::Setting(Setting::BrokenMigration)] => broken;
};

async fn convert(
    t: &TestContext,
    kind: MachineClassKind,
    class: &Map<String, Value>,
    into: Map<String, Value>,
) -> CaseResult<Answer<Map<String, Value>>> {
    t.ask(GenerateMachineClassForMigrationRequest {
        provider_specific_machine_class: class.clone(),
        machine_class: into,
        class_kind: kind,
    })
    .await
}

fn empty() -> Map<String, Value> {
    Map::from_iter([("metadata".to_owned(), json!({"name": "kept"}))])
}

async fn offered(t: TestContext) -> CaseResult {
    reaches_the_plugin(&t, Operation::GenerateMachineClassForMigration)?;
    let sample = t.config().migration.clone();
    let (kind, class) = sample.map_or_else(
        || {
            let kind = MachineClassKind {
                api_group: "example.com".to_owned(),
                kind: "Unknown".to_owned(),
            };
            (kind, Map::new())
        },
        |sample| (sample.class_kind(), sample.class),
    );
    let answer = convert(&t, kind, &class, empty()).await?;
    if !t.supports(Operation::GenerateMachineClassForMigration) {
        return answer.refused(Code::Unimplemented).map(|_| ());
    }
    ensure(answer.code() != Some(Code::Unimplemented), || {
        "the call is declared and not implemented".to_owned()
    })
}

async fn fills(t: TestContext) -> CaseResult {
    let sample = t.migration()?;
    let filled = convert(&t, sample.class_kind(), &sample.class, empty())
        .await?
        .ok()?;
    equal(&filled, &sample.expected)
}

fn equal(found: &Map<String, Value>, wanted: &Map<String, Value>) -> CaseResult {
    ensure(found == wanted, || {
        format!(
            "the class has to be {}, and is {}",
            Value::from(wanted.clone()),
            Value::from(found.clone())
        )
    })
}

async fn again(t: TestContext) -> CaseResult {
    let sample = t.migration()?;
    let first = convert(&t, sample.class_kind(), &sample.class, empty())
        .await?
        .ok()?;
    let second = convert(&t, sample.class_kind(), &sample.class, empty())
        .await?
        .ok()?;
    equal(&second, &first)?;
    let third = convert(&t, sample.class_kind(), &sample.class, first.clone())
        .await?
        .ok()?;
    equal(&third, &first)
}

async fn broken(t: TestContext) -> CaseResult {
    let sample = t.migration()?;
    for class in &sample.broken {
        let status = convert(&t, sample.class_kind(), class, empty())
            .await?
            .refused(Code::Internal)?;
        super::secrets::speaks(&status)?;
    }
    Ok(())
}
