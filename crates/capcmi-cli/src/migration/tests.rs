//! Tests of the migratable objects, and of the problems reported about others.

use std::convert::Infallible;

use http::{Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use super::health_checks::{HealthCheck, HealthChecks, health_checks};
use super::plan::{DISABLE_MACHINE_CREATE, Destination, MIGRATED_FROM, Migration, plan};
use super::source::Source;
use super::write::{MigrationProgress, differences, not_adopted};
use capcmi::api::annotations;
use cmi_driver::{Capabilities, tags};

fn objects() -> Vec<Value> {
    let of = |kind: &str, name: &str, owner: Option<(&str, &str)>, spec: Value| {
        let owners: Vec<_> = owner
            .into_iter()
            .map(|(kind, name)| {
                json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": kind,
                "name": name, "uid": "u"})
            })
            .collect();
        json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": kind, "spec": spec,
            "metadata": {"name": name, "namespace": "shoot", "ownerReferences": owners},
        })
    };
    let class = json!({"kind": "MachineClass", "name": "small"});
    let template = json!({"spec": {"class": class}});
    vec![
        of(
            "MachineDeployment",
            "pool",
            None,
            json!({"replicas": 1, "template": template}),
        ),
        of(
            "MachineSet",
            "pool-1",
            Some(("MachineDeployment", "pool")),
            json!({"replicas": 1, "template": template}),
        ),
        of(
            "Machine",
            "m1",
            Some(("MachineSet", "pool-1")),
            json!({"providerID": "sim://1", "class": class}),
        ),
        json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineClass",
            "metadata": {"name": "small", "namespace": "shoot"},
            "providerSpec": {"size": "s", "tags": {"team": "a", "kubernetes.io/cluster": "old"}},
            "secretRef": {"name": "user-data", "namespace": "shoot"},
            "credentialsSecretRef": {"name": "cloud", "namespace": "shoot"},
        }),
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "user-data", "namespace": "shoot"},
            "stringData": {"userData": "#cloud-config", "token": "of-both"},
        }),
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cloud", "namespace": "shoot"},
            "data": {"token": "bmV3"},
        }),
    ]
}

fn planned(objects: Vec<Value>, bootstrap: Option<&str>) -> Result<Migration, Vec<String>> {
    planned_with(objects, bootstrap, false)
}

fn planned_with(
    objects: Vec<Value>,
    bootstrap: Option<&str>,
    secrets_of_other_namespaces: bool,
) -> Result<Migration, Vec<String>> {
    let mut source = Source::default();
    for object in objects {
        source.add(object, None).unwrap();
    }
    let target = target(bootstrap, secrets_of_other_namespaces);
    plan(&source, &target, &Capabilities::minimal())
}

fn target(bootstrap: Option<&str>, secrets_of_other_namespaces: bool) -> Destination {
    Destination {
        namespace: "default".to_owned(),
        cluster: "c".to_owned(),
        driver: "pool".to_owned(),
        bootstrap_secret: bootstrap.map(str::to_owned),
        secrets_of_other_namespaces,
    }
}

/// Returns the problems reported after this change of the objects.
#[track_caller]
fn refused(change: impl FnOnce(&mut Vec<Value>)) -> String {
    let mut all = objects();
    change(&mut all);
    planned(all, None).unwrap_err().join("\n")
}

/// CTL-06: equal templates cause no rollout, and no machine is created before all Machines exist.
#[test]
fn the_migrated_set_has_the_deployments_template_and_creates_nothing() {
    let mut migration = planned(objects(), None).unwrap();
    let group = migration.groups.remove(0);
    let (set, deployment) = (group.set.unwrap().body, group.deployment.unwrap().body);
    assert_eq!(
        set["spec"]["template"]["spec"],
        deployment["spec"]["template"]["spec"]
    );
    assert_eq!(set["spec"]["replicas"], 1);
    assert_eq!(set["metadata"]["annotations"][DISABLE_MACHINE_CREATE], "true");
    assert_eq!(deployment["metadata"]["annotations"][annotations::PAUSED], "true");
    let [infra, machine] = group.machines.as_slice() else {
        panic!("{:?}", group.machines);
    };
    let wanted = set["spec"]["selector"]["matchLabels"].as_object().unwrap();
    for (label, value) in wanted {
        assert_eq!(
            machine.body["metadata"]["labels"].get(label),
            Some(value),
            "{label}"
        );
    }
    let infra = &infra.body;
    assert_eq!(
        infra["metadata"]["annotations"][annotations::ADOPT],
        r#"{"kubernetes.io/cluster":"old"}"#
    );
    assert_eq!(
        infra["spec"]["providerSpec"],
        json!({"size": "s", "tags": {"team": "a"}})
    );
    assert_eq!(infra["spec"]["providerID"], "sim://1");
}

/// A driver may find its VMs by the state that it asked the provider to keep.
#[test]
fn what_the_driver_wants_back_with_the_next_call_goes_with_its_vm() {
    let mut all = objects();
    let machine = all.iter_mut().find(|object| object["kind"] == "Machine");
    machine.unwrap()["status"] = json!({"lastKnownState": "vm 7"});
    let mut migration = planned(all, None).unwrap();
    let infra = &migration.groups.remove(0).machines[0].body;
    assert_eq!(
        infra["metadata"]["annotations"][annotations::ADOPT],
        r#"{"kubernetes.io/cluster":"old","lastKnownState":"dm0gNw=="}"#
    );
}

#[test]
fn a_too_long_last_known_state_prevents_the_migration() {
    let mut all = objects();
    let machine = all.iter_mut().find(|object| object["kind"] == "Machine");
    machine.unwrap()["status"] = json!({"lastKnownState": "x".repeat(4097)});
    let problems = planned(all, None).unwrap_err();
    let said = format!("{problems:?}");
    assert!(
        said.contains("m1") && said.contains("status.lastKnownState"),
        "{said}"
    );
}

#[test]
fn the_secrets_of_a_class_become_credentials_and_bootstrap_data() {
    let class = planned(objects(), None).unwrap().classes.remove(0);
    let data = |name: &str| {
        let found = class.objects.iter().find(|object| object.name == name);
        found.unwrap().body["data"].clone()
    };
    assert_eq!(data("small-credentials"), json!({"token": "bmV3"}));
    assert_eq!(data("small-bootstrap")["value"], "I2Nsb3VkLWNvbmZpZw==");
    let given = planned(objects(), Some("join")).unwrap();
    assert!(
        given.classes[0]
            .objects
            .iter()
            .all(|object| object.name != "small-bootstrap")
    );
    let machine = &given.groups[0].machines[1].body;
    assert_eq!(machine["spec"]["bootstrap"]["dataSecretName"], "join");
}

#[test]
fn what_can_not_be_migrated_is_named_with_what_to_do() {
    let cases: [(String, &[&str]); 10] = [
        (
            refused(|all| {
                all[2]["metadata"]["annotations"] =
                    json!({"infrastructure.capcmi.io/migrated-to": "default/other"});
            }),
            &["Machine m1", "default/other", "remove annotation"],
        ),
        (
            refused(|all| {
                let mut class = all[3].clone();
                class["kind"] = json!("OldMachineClass");
                all.push(class);
                let mut machine = all[2].clone();
                machine["metadata"] = json!({"name": "m2", "namespace": "shoot"});
                machine["spec"]["class"]["kind"] = json!("OldMachineClass");
                all.push(machine);
            }),
            &[
                "InfraMachineTemplate small would be created for both",
                "OldMachineClass small",
            ],
        ),
        (
            refused(|all| all[3]["credentialsSecretRef"]["namespace"] = json!("kube-system")),
            &["kube-system/cloud", "--secrets-of-other-namespaces"],
        ),
        (
            refused(|all| all[2]["spec"]["providerID"] = json!("")),
            &["Machine m1", "spec.providerID"],
        ),
        (
            refused(|all| all[2]["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")),
            &["Machine m1", "being deleted"],
        ),
        (
            refused(|all| all[2]["spec"]["class"]["name"] = json!("large")),
            &["class large", "rollout is in progress"],
        ),
        (
            refused(|all| drop(all.remove(3))),
            &["MachineClass small", "add it to the input"],
        ),
        (
            refused(|all| drop(all.remove(5))),
            &["credentialsSecretRef", "shoot/cloud", "add it to the input"],
        ),
        (
            refused(|all| all[4]["stringData"]["userData"] = json!("t: <<BOOTSTRAP_TOKEN>>")),
            &["<<BOOTSTRAP_TOKEN>>", "--bootstrap-secret"],
        ),
        (
            refused(|all| drop(all.remove(1))),
            &["MachineSet pool-1", "add it to the input"],
        ),
    ];
    for (said, parts) in cases {
        for part in parts {
            assert!(said.contains(part), "no `{part}` in: {said}");
        }
    }
}

#[test]
fn replicas_equal_the_number_of_machines_and_a_note_reports_changes() {
    let mut all = objects();
    all[0]["spec"]["replicas"] = json!(3);
    let group = planned(all, None).unwrap().groups.remove(0);
    assert_eq!(group.deployment.unwrap().body["spec"]["replicas"], 1);
    assert!(
        group.notes.concat().contains("spec.replicas changes from 3 to 1"),
        "{:?}",
        group.notes
    );
}

/// CTL-06: with another template or number, core would roll out, create or delete machines.
#[test]
fn objects_of_a_run_with_other_flags_or_replicas_are_differences() {
    let group = |bootstrap: &str| {
        let mut migration = planned(objects(), Some(bootstrap)).unwrap();
        migration.groups.remove(0)
    };
    let (before, now) = (group("a"), group("b"));
    let wanted = now.set.unwrap();
    let mut live = wanted.body.clone();
    // As the API server and the webhooks write it out.
    live["spec"]["template"]["spec"]["deletion"] = json!({"nodeDeletionTimeoutSeconds": 10});
    live["spec"]["template"]["spec"]["minReadySeconds"] = json!(0);
    live["spec"]["template"]["metadata"]["labels"]["more"] = json!("labels");
    assert_eq!(differences(&wanted, &live), Vec::<String>::new());
    live["spec"]["replicas"] = json!(2);
    let said = differences(&wanted, &live).concat();
    assert_eq!(said, "MachineSet pool-migrated: spec.replicas is 2, expected 1");
    let said = differences(&now.deployment.unwrap(), &before.deployment.unwrap().body).concat();
    assert!(
        said.contains("bootstrap.dataSecretName is \"a\", expected \"b\""),
        "{said}"
    );
    let mut other = now.machines[0].body.clone();
    other["spec"]["providerID"] = json!("sim://2");
    assert_eq!(differences(&now.machines[0], &other).len(), 1, "another VM");
}

/// New machines would use the old class with the old credentials, although the run reports success.
#[test]
fn changed_classes_and_secrets_are_differences_without_secret_values() {
    let class = |change: &dyn Fn(&mut Vec<Value>)| {
        let mut all = objects();
        change(&mut all);
        planned(all, None).unwrap()
    };
    let said = |change: &dyn Fn(&mut Vec<Value>)| {
        let (before, now) = (class(&|_| {}), class(change));
        let all = |migration: &Migration| {
            let of_classes = migration.classes.iter().flat_map(|class| class.objects.clone());
            let machines = migration.groups.iter().flat_map(|group| group.machines.clone());
            of_classes.chain(machines).collect::<Vec<_>>()
        };
        let (made, wanted) = (all(&before), all(&now));
        let differ = made.iter().zip(&wanted);
        differ
            .flat_map(|(made, wanted)| differences(wanted, &made.body))
            .collect::<Vec<_>>()
    };
    assert_eq!(said(&|_| {}), Vec::<String>::new());
    let size = said(&|all| all[3]["providerSpec"]["size"] = json!("l"));
    assert_eq!(size.len(), 2, "{size:?}");
    for (said, object) in size.iter().zip(["InfraMachineTemplate small", "InfraMachine m1"]) {
        assert!(
            said.starts_with(object) && said.contains("providerSpec"),
            "{said}"
        );
    }
    assert_eq!(
        said(&|all| all[5]["data"] = json!({"token": "b3RoZXI=", "region": "ZXU="})),
        [
            "Secret small-credentials: data.region has another value",
            "Secret small-credentials: data.token has another value",
        ]
    );
    assert_eq!(
        said(&|all| all[4]["stringData"]["userData"] = json!("#cloud-config 2")),
        ["Secret small-bootstrap: data.value has another value"]
    );
}

#[test]
fn a_failure_domain_that_is_no_text_is_refused_and_not_dropped() {
    let migrated = |zone: Value| {
        let mut source = Source::default();
        for mut object in objects() {
            if object["kind"] == "MachineClass" {
                object["providerSpec"][tags::FAILURE_DOMAIN] = zone.clone();
            }
            source.add(object, None).unwrap();
        }
        let mut zoned = Capabilities::minimal();
        zoned.zones = true;
        plan(&source, &target(None, false), &zoned)
    };
    let said = migrated(json!(["z1"])).unwrap_err().join("\n");
    assert!(
        said.contains(tags::FAILURE_DOMAIN) && said.contains("must be a string"),
        "{said}"
    );
    let group = migrated(json!("z1")).unwrap().groups.remove(0);
    assert_eq!(group.machines[1].body["spec"]["failureDomain"], "z1");
}

#[test]
fn the_mark_of_a_new_object_identifies_the_original_object() {
    let marks = |namespace: &str, uid: &str| {
        let mut all = objects();
        for object in &mut all {
            object["metadata"]["namespace"] = json!(namespace);
            object["metadata"]["uid"] = json!(uid);
        }
        for field in ["secretRef", "credentialsSecretRef"] {
            all[3][field]["namespace"] = json!(namespace);
        }
        let migration = planned(all, None).unwrap();
        let groups = migration.groups.iter().flat_map(super::plan::Group::objects);
        let classes = migration.classes.iter().flat_map(|class| &class.objects);
        let mark = |body: &Value| body["metadata"]["annotations"][MIGRATED_FROM].to_string();
        groups
            .chain(classes)
            .map(|object| mark(&object.body))
            .collect::<Vec<_>>()
    };
    let first = marks("shoot", "1");
    assert_eq!(first[0], "\"Machine shoot/m1 1 to c\"");
    for other in [marks("shoot", "2"), marks("other", "1")] {
        assert!(
            first.iter().zip(&other).all(|(a, b)| a != b),
            "{first:?} {other:?}"
        );
    }
}

#[test]
fn an_old_machine_set_without_machines_needs_no_class() {
    let mut all = objects();
    let mut old = all[1].clone();
    old["metadata"]["name"] = json!("pool-0");
    old["spec"]["template"]["spec"]["class"]["name"] = json!("gone");
    all.push(old.clone());
    assert_eq!(planned(all, None).unwrap().classes.len(), 1);
    // A set without an owner would create machines of that class.
    let said = refused(|all| {
        old["metadata"]["ownerReferences"] = json!([]);
        all.push(old);
    });
    assert!(said.contains("MachineClass gone"), "{said}");
}

#[test]
fn marks_of_machines_and_of_their_group_are_recognized() {
    let mut all = objects();
    let mark = json!({"infrastructure.capcmi.io/migrated-to": "default/c"});
    all[2]["metadata"]["annotations"] = mark.clone();
    let group = planned(all.clone(), None).unwrap().groups.remove(0);
    assert!(!group.is_marked() && group.has_marked("m1") && !group.has_marked("m2"));
    all[0]["metadata"]["annotations"] = mark;
    assert!(planned(all, None).unwrap().groups.remove(0).is_marked());
}

#[test]
fn machine_set_names_of_long_deployments_are_short_and_unique() {
    let set = |deployment: &str| {
        let mut all = objects();
        all[0]["metadata"]["name"] = json!(deployment);
        all[1]["metadata"]["ownerReferences"][0]["name"] = json!(deployment);
        planned(all, None).unwrap().groups.remove(0).set.unwrap().name
    };
    let long = "x".repeat(59);
    let [one, two] = ["-z1", "-z2"].map(|zone| set(&format!("{long}{zone}")));
    assert!(one.len() == 63 && two.len() == 63 && one != two, "{one} {two}");
    let said = refused(|all| {
        all[0]["metadata"]["name"] = json!("x".repeat(64));
        all[1]["metadata"]["ownerReferences"][0]["name"] = json!("x".repeat(64));
    });
    assert!(said.contains("limit of 63 characters"), "{said}");
}

#[test]
fn the_plan_names_secrets_that_it_copies_from_other_namespaces() {
    let mut all = objects();
    all[3]["credentialsSecretRef"]["namespace"] = json!("kube-system");
    all[5]["metadata"]["namespace"] = json!("kube-system");
    let class = planned_with(all, None, true).unwrap().classes.remove(0);
    let notes: Vec<_> = class.objects.iter().map(|object| object.note.as_str()).collect();
    assert_eq!(
        notes[0],
        "credentials token of kube-system/cloud and shoot/user-data"
    );
}

#[test]
fn an_infra_machine_counts_as_adopted_once_it_is_provisioned() {
    let done = json!({"status": {"initialization": {"provisioned": true}}});
    assert_eq!(not_adopted("m1", &done), None);
    let waiting = json!({"status": {"conditions": [
        {"type": "Paused", "status": "False"},
        {"type": "Ready", "status": "False", "reason": "AdoptionUnconfirmed", "message": "no VM"},
    ]}});
    assert_eq!(
        not_adopted("m1", &waiting).unwrap(),
        "m1 (AdoptionUnconfirmed: no VM)"
    );
    assert!(not_adopted("m1", &json!({})).unwrap().contains("no status yet"));
}

/// Returns the result of listing MachineHealthChecks when the API server answers like this.
async fn checks_of(code: StatusCode, answer: Value) -> HealthChecks {
    let service = tower::service_fn(move |request: Request<Body>| {
        assert_eq!(
            request.uri().path(),
            "/apis/cluster.x-k8s.io/v1beta2/namespaces/default/machinehealthchecks"
        );
        let mut response = Response::new(Body::from(answer.to_string().into_bytes()));
        *response.status_mut() = code;
        async move { Ok::<_, Infallible>(response) }
    });
    let client = Client::new(service, "default");
    let migration = planned(objects(), None).unwrap();
    let found = health_checks(
        &client,
        &migration,
        &MigrationProgress::default(),
        &target(None, false),
    )
    .await;
    found.unwrap()
}

#[tokio::test]
async fn of_all_health_checks_those_count_that_are_at_work_on_the_machines() {
    let of_pool = json!({"matchLabels": {"cluster.x-k8s.io/deployment-name": "pool"}});
    let check = |name: &str, annotations: Value, cluster: &str, selector: &Value| {
        json!({
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"clusterName": cluster, "selector": selector},
        })
    };
    let paused = json!({annotations::PAUSED: "false"});
    let of_other = json!({"matchLabels": {"cluster.x-k8s.io/deployment-name": "other"}});
    let of_all = json!({"matchExpressions": [
        {"key": "cluster.x-k8s.io/control-plane", "operator": "DoesNotExist"},
    ]});
    let unreadable = json!({"matchExpressions": [{"key": "a", "operator": "Of a later version"}]});
    let list = json!({"metadata": {}, "items": [
        check("of-pool", json!({}), "c", &of_pool),
        check("paused", paused, "c", &of_pool),
        check("of-another-cluster", json!({}), "d", &of_pool),
        check("of-other-machines", json!({}), "c", &of_other),
        check("of-all", json!({}), "c", &of_all),
        check("unreadable", json!({}), "c", &unreadable),
    ]});
    let at_work = ["of-pool", "of-all", "unreadable"].map(|name| HealthCheck {
        name: name.to_owned(),
        machines: 1,
    });
    assert_eq!(
        checks_of(StatusCode::OK, list).await,
        HealthChecks::Known(at_work.into())
    );
}

/// Neither a right nor a version of Cluster API that the migration itself does without.
#[tokio::test]
async fn health_checks_that_cannot_be_listed_do_not_stop_a_migration() {
    for code in [StatusCode::FORBIDDEN, StatusCode::NOT_FOUND] {
        let refusal = json!({
            "kind": "Status", "status": "Failure", "code": code.as_u16(), "reason": "No", "message": "no",
        });
        let checks = checks_of(code, refusal).await;
        assert_eq!(checks, HealthChecks::Unknown("no".to_owned()), "{code}");
    }
}
