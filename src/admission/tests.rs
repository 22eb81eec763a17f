use std::convert::Infallible;
use std::sync::Mutex as StdMutex;

use http::{Method, Request, Response};
use kube::client::Body;
use serde_json::Value;

use super::*;

fn expected() -> Vec<Expected> {
    let policies = manifests::policies().unwrap();
    of_version("1.0.0", policies)
}

fn of_version(version: &str, policies: Vec<Value>) -> Vec<Expected> {
    let version = version.parse().unwrap();
    let all = policies.into_iter();
    all.filter_map(|object| Expected::new(object, &version)).collect()
}

/// As this version has put it in place, and then changed.
fn as_found(expected: &Expected, change: impl FnOnce(&mut Value)) -> DynamicObject {
    let mut object = expected.object.clone();
    object["metadata"]["uid"] = json!("1");
    object["metadata"]["generation"] = json!(1);
    object["metadata"]["annotations"] = expected.stamp.annotations();
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
    let seen = BTreeMap::from([(policy.key(), Incarnation::of(&found))]);
    assert!(is_gap(&policy, None, &nothing));
    assert!(!is_gap(&policy, Some(&found), &nothing));
    assert!(!is_gap(&policy, Some(&found), &seen));
    let replaced = as_found(&policy, |object| object["metadata"]["uid"] = json!("2"));
    assert!(is_gap(&policy, Some(&replaced), &seen));
    let changed_and_back = as_found(&policy, |object| object["metadata"]["generation"] = json!(3));
    assert!(is_gap(&policy, Some(&changed_and_back), &seen));
    let of_no_version = as_found(&policy, |object| object["spec"]["variables"] = json!([]));
    assert!(is_gap(&policy, Some(&of_no_version), &nothing));
    let audits = as_found(&binding, |object| {
        object["spec"]["validationActions"] = json!(["Audit"]);
    });
    assert!(is_gap(&binding, Some(&audits), &nothing));
    let templates = one("capcmi-templates", false);
    assert!(!is_gap(&templates, None, &nothing), "a version may add policies");
}

/// The policies of three versions, each of which refuses more than the one before.
fn versions() -> [Expected; 3] {
    ["0.9.0", "1.0.0", "1.1.0-rc.1"].map(|version| {
        let mut policies = manifests::policies().unwrap();
        for policy in &mut policies {
            policy["spec"]["of"] = json!(version);
        }
        let mut all = of_version(version, policies).into_iter();
        all.find(|expected| expected.carries_mark()).unwrap()
    })
}

#[test]
fn the_policies_of_a_newer_version_guard_for_an_older_one_which_leaves_them() {
    let [older, own, newer] = versions();
    let judged = |found| judge(&own, Some(&as_found(found, |_| {})));
    assert_eq!(judged(&own), Finding::AsExpected);
    let finding = judged(&newer);
    assert_eq!(finding, Finding::Newer);
    assert!(finding.is_in_force() && !finding.has_to_be_put());
    let finding = judged(&older);
    assert_eq!(finding, Finding::Older);
    assert!(!finding.is_in_force() && finding.has_to_be_put() && finding.is_of_a_version());
    // Else a still older provider would take it for its own to replace.
    let unstamped = as_found(&own, |object| {
        object["metadata"]["annotations"] = older.stamp.annotations();
    });
    let finding = judge(&own, Some(&unstamped));
    assert_eq!(finding, Finding::Unstamped);
    assert!(finding.is_in_force() && finding.has_to_be_put());
}

#[test]
fn the_stamp_of_a_version_says_nothing_of_what_others_have_made_of_its_policy() {
    let [_, own, newer] = versions();
    let narrowed = as_found(&newer, |object| {
        object["spec"]["matchConditions"] = json!([{"name": "a"}])
    });
    let finding = judge(&own, Some(&narrowed));
    assert!(matches!(finding, Finding::Different(_)), "{finding:?}");
    assert!(!finding.is_of_a_version() && finding.has_to_be_put());
    for annotations in [
        json!({}),
        json!({stamp::VERSION: "2.0.0"}),
        json!({stamp::VERSION: "two"}),
    ] {
        let unstamped = as_found(&newer, |object| {
            object["metadata"]["annotations"] = annotations.clone()
        });
        let finding = judge(&own, Some(&unstamped));
        assert!(
            matches!(finding, Finding::Different(_)),
            "{annotations}: {finding:?}"
        );
    }
}

/// Else two providers of different versions would freeze each other's machines.
#[test]
fn what_a_newer_version_puts_in_place_of_an_older_ones_at_one_stroke_is_no_gap() {
    let [older, own, newer] = versions();
    let of = |expected: &Expected, uid: &str, generation: i64| {
        as_found(expected, |object| {
            object["metadata"]["uid"] = json!(uid);
            object["metadata"]["generation"] = json!(generation);
        })
    };
    let seen = BTreeMap::from([(own.key(), Incarnation::of(&of(&own, "1", 4)))]);
    assert!(!is_gap(&own, Some(&of(&newer, "1", 5)), &seen));
    assert!(
        is_gap(&own, Some(&of(&newer, "1", 6)), &seen),
        "others came in between"
    );
    assert!(is_gap(&own, Some(&of(&newer, "2", 1)), &seen), "it was gone");
    assert!(
        is_gap(&own, Some(&of(&older, "1", 5)), &seen),
        "no older version does that"
    );
    // At a start: an upgrade, or one that is taken back.
    for found in [&older, &newer] {
        assert!(!is_gap(&own, Some(&of(found, "1", 1)), &BTreeMap::new()));
    }
}

/// An API server without machines, which stores policies and refuses the first write of one.
#[derive(Default)]
struct Server {
    objects: StdMutex<BTreeMap<String, Value>>,
    refused: StdMutex<Option<&'static str>>,
    /// When identities were looked for.
    looked: StdMutex<Vec<tokio::time::Instant>>,
}

impl Server {
    fn answer(&self, method: &Method, path: &str, body: &[u8]) -> Response<Body> {
        let error = |code: u16, reason: &str| {
            let status = json!({"kind": "Status", "code": code, "reason": reason, "status": "Failure"});
            let body = Body::from(status.to_string().into_bytes());
            Response::builder().status(code).body(body).unwrap()
        };
        let ok = |object: &Value| Response::new(Body::from(object.to_string().into_bytes()));
        if path.contains("/inframachines") || path.contains("/infraclusters") {
            self.looked.lock().unwrap().push(tokio::time::Instant::now());
            return ok(&json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": []}));
        }
        let mut objects = self.objects.lock().unwrap();
        if *method != Method::PATCH {
            return objects.get(path).map_or_else(|| error(404, "NotFound"), ok);
        }
        let mut refused = self.refused.lock().unwrap();
        if refused.take_if(|name| path.ends_with(*name)).is_some() {
            return error(500, "InternalError");
        }
        let object = objects.entry(path.to_owned()).or_insert_with(|| json!({}));
        json_patch::merge(object, &serde_json::from_slice(body).unwrap());
        object["metadata"]["generation"] = json!(1);
        ok(object)
    }
}

/// Else an API server that does not know the policy yet would let an identity through between the two.
#[tokio::test(start_paused = true)]
async fn policies_get_the_time_to_be_known_though_the_check_that_put_them_in_place_failed_half_way() {
    let server = Arc::new(Server::default());
    *server.refused.lock().unwrap() = Some("capcmi-finalizer");
    let answering = Arc::clone(&server);
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = Arc::clone(&answering);
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            Ok::<_, Infallible>(server.answer(&head.method, head.uri.path(), &body))
        }
    });
    let guard = Guard::new(Client::new(service, "default"), Arc::new(Metrics::new()));
    let failed = guard.since(Instant::now()).await;
    assert!(matches!(failed, Standing::Unguarded(_)), "{failed:?}");
    assert_eq!(
        server.refused.lock().unwrap().take(),
        None,
        "the write was refused"
    );
    let began = tokio::time::Instant::now();
    assert_eq!(guard.since(Instant::now()).await, Standing::InForce);
    let looked = server.looked.lock().unwrap().clone();
    assert!(!looked.is_empty());
    assert!(
        looked.iter().all(|looked| *looked - began >= SETTLE),
        "identities were looked for too early: {looked:?} after {began:?}"
    );
}
