use serde_json::Value;

use super::*;

fn expected() -> Vec<Expected> {
    let policies = manifests::policies().unwrap();
    policies.into_iter().filter_map(Expected::new).collect()
}

fn as_found(expected: &Expected, change: impl FnOnce(&mut Value)) -> DynamicObject {
    let mut object = expected.object.clone();
    object["metadata"]["uid"] = json!("1");
    object["metadata"]["generation"] = json!(1);
    change(&mut object);
    serde_json::from_value(object).unwrap()
}

fn one(name: &str, binding: bool) -> Expected {
    let mut all = expected().into_iter();
    all.find(|expected| expected.name == name && expected.is_binding() == binding)
        .unwrap()
}

#[test]
fn every_policy_has_a_binding_and_what_guards_identities_is_among_them() {
    let all = expected();
    assert_eq!(all.len(), manifests::policies().unwrap().len());
    for policy in all.iter().filter(|expected| !expected.is_binding()) {
        assert!(
            all.iter()
                .any(|other| other.is_binding() && other.name == policy.name)
        );
    }
    assert_eq!(
        all.iter().filter(|expected| expected.guards_identities()).count(),
        4
    );
    assert_eq!(all.iter().filter(|expected| expected.carries_mark()).count(), 1);
}

#[test]
fn defaults_of_the_api_server_change_nothing() {
    for expected in expected() {
        let found = as_found(&expected, |object| {
            if !expected.is_binding() {
                object["spec"]["matchConstraints"]["namespaceSelector"] = json!({});
                object["spec"]["matchConditions"] = json!([]);
            }
        });
        assert_eq!(judge(&expected, Some(&found)), Finding::AsExpected);
    }
}

#[test]
fn a_policy_that_was_made_to_apply_to_less_is_told_from_the_one_that_guards() {
    let policy = one(judge::CARRIER, false);
    let narrower: [fn(&mut Value); 4] = [
        |spec| spec["matchConditions"] = json!([{"name": "a", "expression": "false"}]),
        |spec| spec["matchConstraints"]["namespaceSelector"] = json!({"matchLabels": {"a": "b"}}),
        |spec| spec["matchConstraints"]["excludeResourceRules"] = json!([{"resources": ["*"]}]),
        |spec| spec["validations"] = json!([]),
    ];
    for narrow in narrower {
        let found = as_found(&policy, |object| narrow(&mut object["spec"]));
        assert!(matches!(judge(&policy, Some(&found)), Finding::Different(_)));
    }
    let binding = one(judge::CARRIER, true);
    let audits = as_found(&binding, |object| {
        object["spec"]["validationActions"] = json!(["Audit"]);
    });
    assert_eq!(
        judge(&binding, Some(&audits)),
        Finding::Different("spec.validationActions[0]".to_owned())
    );
}

#[test]
fn what_was_gone_replaced_or_changed_by_others_may_have_let_a_forged_identity_through() {
    let (policy, binding) = (one(judge::CARRIER, false), one(judge::CARRIER, true));
    let nothing = BTreeMap::new();
    let found = as_found(&policy, |_| {});
    let seen = BTreeMap::from([(policy.key(), version_of(&found))]);
    assert!(is_gap(&policy, None, &nothing));
    assert!(!is_gap(&policy, Some(&found), &nothing));
    assert!(!is_gap(&policy, Some(&found), &seen));
    let replaced = as_found(&policy, |object| object["metadata"]["uid"] = json!("2"));
    assert!(is_gap(&policy, Some(&replaced), &seen));
    let changed_and_back = as_found(&policy, |object| object["metadata"]["generation"] = json!(3));
    assert!(is_gap(&policy, Some(&changed_and_back), &seen));
    let older = as_found(&policy, |object| object["spec"]["variables"] = json!([]));
    assert!(
        !is_gap(&policy, Some(&older), &nothing),
        "that of another version"
    );
    let audits = as_found(&binding, |object| {
        object["spec"]["validationActions"] = json!(["Audit"]);
    });
    assert!(is_gap(&binding, Some(&audits), &nothing));
    let templates = one("capcmi-templates", false);
    assert!(!is_gap(&templates, None, &nothing), "a version may add policies");
}
