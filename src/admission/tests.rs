use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Mutex as StdMutex;

use http::{Method, Request, Response};
use kube::api::DynamicObject;
use kube::client::Body;
use kube_fleet::pages;
use serde_json::{Value, json};

use super::check::SETTLE;
use super::comparison::{PolicyFinding, compare};
use super::*;
use crate::api::annotations;

fn expected() -> Vec<Expected> {
    let policies = policies::all();
    of_version("1.0.0", policies)
}

fn of_version(version: &str, policies: Vec<Value>) -> Vec<Expected> {
    let version = version.parse().unwrap();
    let all = policies.into_iter();
    all.filter_map(|object| Expected::new(object, &version)).collect()
}

/// Returns the object as this version writes it, with this change.
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
    assert_eq!(all.len(), policies::all().len());
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
    assert_eq!(
        all.iter()
            .filter(|expected| expected.carries_annotation())
            .count(),
        1
    );
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
        assert_eq!(compare(&expected, Some(&found)), PolicyFinding::AsExpected);
    }
}

#[test]
fn a_narrowed_policy_differs_from_the_expected_one() {
    let policy = one(comparison::CARRIER, false);
    let narrower: [fn(&mut Value); 4] = [
        |spec| spec["matchConditions"] = json!([{"name": "a", "expression": "false"}]),
        |spec| spec["matchConstraints"]["namespaceSelector"] = json!({"matchLabels": {"a": "b"}}),
        |spec| spec["matchConstraints"]["excludeResourceRules"] = json!([{"resources": ["*"]}]),
        |spec| spec["validations"] = json!([]),
    ];
    for narrow in narrower {
        let found = as_found(&policy, |object| narrow(&mut object["spec"]));
        assert!(matches!(
            compare(&policy, Some(&found)),
            PolicyFinding::Different(_)
        ));
    }
    let binding = one(comparison::CARRIER, true);
    let audits = as_found(&binding, |object| {
        object["spec"]["validationActions"] = json!(["Audit"]);
    });
    assert_eq!(
        compare(&binding, Some(&audits)),
        PolicyFinding::Different("spec.validationActions[0]".to_owned())
    );
}

/// The policies of three versions; each refuses more than the version before.
fn versions() -> [Expected; 3] {
    ["0.9.0", "1.0.0", "1.1.0-rc.1"].map(|version| {
        let mut policies = policies::all();
        for policy in &mut policies {
            policy["spec"]["of"] = json!(version);
        }
        let mut all = of_version(version, policies).into_iter();
        all.find(Expected::carries_annotation).unwrap()
    })
}

#[test]
fn an_older_version_keeps_the_policies_of_a_newer_one() {
    let [older, own, newer] = versions();
    let compared = |found| compare(&own, Some(&as_found(found, |_| {})));
    assert_eq!(compared(&own), PolicyFinding::AsExpected);
    assert_eq!(compared(&newer), PolicyFinding::Newer);
    assert!(!PolicyFinding::Newer.has_to_be_put());
    assert_eq!(compared(&older), PolicyFinding::Older);
    assert!(PolicyFinding::Older.has_to_be_put() && !PolicyFinding::Older.is_gap());
}

#[test]
fn a_policy_without_a_version_is_written_and_a_gap_only_if_it_differs() {
    let [_, own, _] = versions();
    for (changed, is_gap) in [(json!("1.0.0"), false), (json!("another"), true)] {
        let found = as_found(&own, |object| {
            object["metadata"]["annotations"] = json!({});
            object["spec"]["of"] = changed.clone();
        });
        let finding = compare(&own, Some(&found));
        assert!(
            finding.has_to_be_put() && finding.is_gap() == is_gap,
            "{finding:?}"
        );
    }
}

/// An API server that stores policies and refuses the first write of one.
#[derive(Default)]
struct Server {
    objects: StdMutex<BTreeMap<String, Value>>,
    refused: StdMutex<Option<&'static str>>,
    /// The suffixes of requests, method and path, that the server refuses.
    forbidden: StdMutex<Vec<&'static str>>,
    /// The machines of the namespace `ns`.
    machines: StdMutex<Vec<Value>>,
    /// The number of writes.
    written: StdMutex<usize>,
    /// When identities were searched for.
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
        let request = format!("{method} {path}");
        if self
            .forbidden
            .lock()
            .unwrap()
            .iter()
            .any(|end| request.ends_with(end))
        {
            return error(403, "Forbidden");
        }
        if path.contains("/inframachines") || path.contains("/infraclusters") {
            self.looked.lock().unwrap().push(tokio::time::Instant::now());
            let machines = self.machines.lock().unwrap().clone();
            let items = if path.ends_with("/inframachines") {
                machines
            } else {
                Vec::new()
            };
            return ok(&json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}));
        }
        let mut objects = self.objects.lock().unwrap();
        if *method != Method::PATCH {
            return objects.get(path).map_or_else(|| error(404, "NotFound"), ok);
        }
        *self.written.lock().unwrap() += 1;
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

/// Returns the policies of a process that has just started.
fn policies_at(server: &Arc<Server>) -> AdmissionPolicies {
    let server = Arc::clone(server);
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = Arc::clone(&server);
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            Ok::<_, Infallible>(server.answer(&head.method, head.uri.path(), &body))
        }
    });
    AdmissionPolicies::new(Client::new(service, "default"), Arc::new(Metrics::new()))
}

const CARRIER: &str =
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/capcmi-reserved-annotations";

impl Server {
    fn forbids(self: &Arc<Self>, ends: &[&'static str]) -> Arc<Self> {
        *self.forbidden.lock().unwrap() = ends.to_vec();
        Arc::clone(self)
    }

    /// Writes the annotation that identities are unconfirmed; `None` removes it.
    fn annotate(&self, until: Option<&str>) {
        let mut objects = self.objects.lock().unwrap();
        let note = json!({"metadata": {"annotations": {UNCONFIRMED: until}}});
        json_patch::merge(objects.get_mut(CARRIER).unwrap(), &note);
    }

    fn identified(&self) {
        let annotations = json!({annotations::VM_RECORD: "ns/m/u"});
        let machine = json!({"metadata": {"name": "m", "namespace": "ns", "annotations": annotations}});
        *self.machines.lock().unwrap() = vec![machine];
    }
}

async fn check(policies: &AdmissionPolicies) -> Enforcement {
    // On a paused clock, the last check began in this instant and would count.
    tokio::time::sleep(Duration::from_millis(1)).await;
    policies.enforcement_since(Instant::now()).await
}

#[track_caller]
fn why(enforcement: &Enforcement) -> &str {
    match enforcement {
        Enforcement::NotInForce(why) => why,
        Enforcement::InForce => panic!("identities are trusted"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_provider_of_one_namespace_looks_for_identities_there() {
    let all = "GET /apis/infrastructure.capcmi.io/v1alpha1/inframachines";
    let server = Arc::new(Server::default()).forbids(&[all]);
    let policies = || policies_at(&server).within(Some("ns".to_owned()));
    assert_eq!(check(&policies()).await, Enforcement::InForce);
    // An annotation of another provider may concern identities elsewhere.
    server.annotate(Some("long ago"));
    assert!(why(&check(&policies()).await).contains("long ago"));
    server.annotate(None);
    assert_eq!(check(&policies()).await, Enforcement::InForce);
    // With identities in the namespace, a missing policy is a gap.
    server.identified();
    server.objects.lock().unwrap().remove(CARRIER);
    assert!(why(&check(&policies()).await).contains("kubectl annotate"));
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_guards_no_identity_stops_nothing_where_it_is_refused() {
    for refused in [
        "PATCH /apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/capcmi-finalizer",
        "GET /apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/capcmi-finalizer",
        "PATCH /apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/capcmi-templates",
    ] {
        let server = Arc::new(Server::default()).forbids(&[refused]);
        assert_eq!(
            check(&policies_at(&server)).await,
            Enforcement::InForce,
            "{refused}"
        );
        let installed = server.objects.lock().unwrap().len();
        assert_eq!(installed, expected().len() - 1, "all others are in place");
    }
    for refused in [
        "PATCH /apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/capcmi-provider-id",
        "GET /apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/capcmi-provider-id",
    ] {
        let policies = policies_at(&Arc::new(Server::default()).forbids(&[refused]));
        let enforcement = check(&policies).await;
        assert!(
            why(&enforcement).contains("capcmi-admission-role"),
            "{enforcement:?}"
        );
    }
}

/// Otherwise objects that are restored or moved to a new installation would need a confirmation by hand.
#[tokio::test(start_paused = true)]
async fn the_policies_are_in_place_from_when_they_were_first_seen_in_force() {
    let refused =
        "PATCH /apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/capcmi-provider-id";
    let server = Arc::new(Server::default()).forbids(&[refused]);
    let policies = policies_at(&server);
    let installation = policies.installation();
    check(&policies).await;
    let now = installation.borrow().clone();
    assert!(
        matches!(&now, Installation::NotYet(why) if why.contains("capcmi-admission-role")),
        "{now:?}"
    );
    server.forbids(&[]);
    check(&policies).await;
    assert_eq!(*installation.borrow(), Installation::Seen);
    // A gap is reported elsewhere: an unready replica would stop an upgrade that repairs it.
    server.identified();
    server.objects.lock().unwrap().remove(CARRIER);
    server.forbids(&["/capcmi-reserved-annotations"]);
    why(&check(&policies).await);
    assert_eq!(*installation.borrow(), Installation::Seen);
    server.forbids(&[]);
    let confirmed_later = policies_at(&server);
    why(&check(&confirmed_later).await);
    assert_eq!(
        *confirmed_later.installation().borrow(),
        Installation::Seen,
        "unconfirmed, and in force"
    );
}

/// The old replica of a rolling upgrade holds the Lease until the new one is ready.
#[tokio::test(start_paused = true)]
async fn a_standby_replica_writes_no_policy_and_accepts_any_version() {
    let server = Arc::new(Server::default());
    let standby = || policies_at(&server);
    let first = standby();
    first.inspect().await.unwrap();
    let now = first.installation().borrow().clone();
    assert!(
        matches!(&now, Installation::NotYet(why) if why.contains("is missing")),
        "{now:?}"
    );
    assert_eq!((first.epoch(), *server.written.lock().unwrap()), (None, 0));

    let mut policies = policies::all();
    for policy in &mut policies {
        policy["spec"]["of"] = json!("another version");
    }
    let leader = standby().of_version(&"0.0.1".parse().unwrap(), policies);
    assert_eq!(check(&leader).await, Enforcement::InForce);
    let written = *server.written.lock().unwrap();
    first.inspect().await.unwrap();
    assert_eq!(*first.installation().borrow(), Installation::Seen);
    let epoch = first.epoch();
    assert!(epoch.is_some(), "what it sees now is proof when it leads");
    server.objects.lock().unwrap().remove(CARRIER);
    first.inspect().await.unwrap();
    assert_eq!((first.epoch(), *server.written.lock().unwrap()), (None, written));
    assert_eq!(check(&leader).await, Enforcement::InForce);
    first.inspect().await.unwrap();
    assert!(first.epoch().is_some() && first.epoch() != epoch);
}

/// Otherwise an API server that does not know the policy yet could let an identity through between the two.
#[tokio::test(start_paused = true)]
async fn policies_get_their_settle_time_also_after_a_half_failed_check() {
    let server = Arc::new(Server::default());
    *server.refused.lock().unwrap() = Some("capcmi-finalizer");
    let policies = policies_at(&server);
    let failed = policies.enforcement_since(Instant::now()).await;
    assert!(matches!(failed, Enforcement::NotInForce(_)), "{failed:?}");
    assert_eq!(
        server.refused.lock().unwrap().take(),
        None,
        "the write was refused"
    );
    let began = tokio::time::Instant::now();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(
        policies.enforcement_since(Instant::now()).await,
        Enforcement::InForce
    );
    let looked = server.looked.lock().unwrap().clone();
    assert!(!looked.is_empty());
    assert!(
        looked.iter().all(|looked| *looked - began >= SETTLE),
        "identities were looked for too early: {looked:?} after {began:?}"
    );
}

/// A tenant's objects may be large and deep: only their annotations are read.
#[tokio::test]
async fn the_search_for_identities_reads_pages_until_the_first_one() {
    let asked = Arc::new(StdMutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    let service = tower::service_fn(move |request: Request<Body>| {
        let uri = request.uri().to_string();
        let (is_second, is_cluster) = (uri.contains("continue="), uri.contains("/infraclusters"));
        log.lock().unwrap().push(uri);
        let annotations = if is_cluster && is_second {
            json!({annotations::CLUSTER_ID: "c"})
        } else {
            json!({"note": "n"})
        };
        let more = if is_second && !is_cluster { "" } else { "more" };
        let deep = format!("{}1{}", r#"{"a":"#.repeat(300), "}".repeat(300));
        let list = format!(
            r#"{{"apiVersion": "v1", "kind": "List", "metadata": {{"continue": "{more}"}},
                "items": [{{"metadata": {{"annotations": {annotations}}}, 
                "spec": {{"providerSpec": {deep}}}}}]}}"#
        );
        async move { Ok::<_, Infallible>(Response::new(Body::from(list.into_bytes()))) }
    });
    let client = Client::new(service, "default");
    assert!(identities::exist(&client, None).await.unwrap());
    let asked = asked.lock().unwrap();
    assert_eq!(asked.len(), 4, "{asked:?}");
    let limit = format!("limit={}", pages::PAGE);
    let is_limited = |uri: &String| uri.split(['?', '&']).any(|part| part == limit);
    assert!(asked.iter().all(is_limited), "{asked:?}");
}
