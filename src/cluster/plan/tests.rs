//! The plan and the status for each state of a Cluster and its driver.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::api::cluster_api::{ApiEndpoint, ClusterSpec, ObjectReference};
use crate::api::v1alpha1::InfraClusterSpec;

fn observed(owner: &Cluster) -> Observed<'_> {
    Observed {
        owner: Some(owner),
        cluster_id: Some("c-1".to_owned()),
        claim: Claim::None,
        machines: 0,
        now: Timestamp::UNIX_EPOCH,
    }
}

fn annotated(key: &str) -> InfraCluster {
    let mut infra = InfraCluster::new("c", InfraClusterSpec::default());
    infra.metadata.annotations = Some([(key.to_owned(), String::new())].into());
    infra
}

fn provision() -> Plan {
    Plan::Provision {
        cluster_id: "c-1".to_owned(),
        endpoint: Endpoint::Known,
    }
}

fn cluster_at(host: &str) -> Cluster {
    let endpoint = ApiEndpoint {
        host: host.to_owned(),
        port: 6443,
    };
    let spec = ClusterSpec {
        control_plane_endpoint: Some(endpoint),
        ..ClusterSpec::default()
    };
    Cluster::new("c", spec)
}

#[test]
fn an_externally_managed_cluster_is_left_alone() {
    let owner = Cluster::new("c", ClusterSpec::default());
    assert_eq!(
        plan(&annotated(annotations::MANAGED_BY), &observed(&owner)),
        Plan::NoOp
    );
}

/// An InfraCluster in deletion, with the finalizer.
fn deleted(key: &str) -> InfraCluster {
    let mut infra = annotated(key);
    infra.metadata.finalizers = Some(vec![CLUSTER_FINALIZER.to_owned()]);
    infra.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    infra
}

fn cluster_of(infra: &str) -> Cluster {
    let mut cluster = cluster_at("10.0.0.1");
    cluster.spec.infrastructure_ref = Some(ObjectReference {
        api_group: crate::api::GROUP.to_owned(),
        kind: "InfraCluster".to_owned(),
        name: infra.to_owned(),
    });
    cluster
}

#[test]
fn a_deletion_waits_for_the_cluster_and_then_for_its_machines() {
    let reason = |infra: &InfraCluster, owner: &Cluster, machines| {
        let observed = Observed {
            machines,
            ..observed(owner)
        };
        match plan(infra, &observed) {
            Plan::Hold { reason, message } => (reason, message),
            Plan::Release => ("", String::new()),
            other => panic!("{other:?}"),
        }
    };
    let (living, mut dying) = (cluster_of("c"), cluster_of("c"));
    dying.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    let infra = deleted("other");
    let (held, message) = reason(&infra, &living, 0);
    assert_eq!(held, reason::CLUSTER_EXISTS);
    assert!(message.contains("Cluster `c`"), "{message}");
    let (held, message) = reason(&infra, &dying, 2);
    assert_eq!(held, reason::MACHINES_EXIST);
    assert!(message.contains("2 InfraMachines"), "{message}");
    assert_eq!(reason(&infra, &dying, 0).0, "");
    assert_eq!(reason(&infra, &cluster_of("another"), 0).0, "", "not needed");
    assert_eq!(reason(&deleted(annotations::MANAGED_BY), &dying, 0).0, "");
}

#[test]
fn a_deletion_without_the_finalizer_or_during_a_pause_is_left_alone() {
    let owner = cluster_of("c");
    let mut infra = deleted("other");
    infra.metadata.finalizers = None;
    assert_eq!(plan(&infra, &observed(&owner)), Plan::NoOp);
    let paused = plan(&deleted(annotations::PAUSED), &observed(&owner));
    assert!(matches!(paused, Plan::Pause(_)));
}

#[test]
fn the_cluster_and_the_annotation_pause_it() {
    let paused = Cluster::new(
        "c",
        ClusterSpec {
            paused: Some(true),
            ..ClusterSpec::default()
        },
    );
    assert!(matches!(
        plan(&annotated("other"), &observed(&paused)),
        Plan::Pause(_)
    ));
    let owner = cluster_at("10.0.0.1");
    assert!(matches!(
        plan(&annotated(annotations::PAUSED), &observed(&owner)),
        Plan::Pause(_)
    ));
    assert_eq!(plan(&annotated("other"), &observed(&owner)), provision());
}

/// Machines are created anyway: a control plane may provide its endpoint once its machines exist.
#[test]
fn a_cluster_without_an_endpoint_reports_it_and_is_provisioned() {
    let mut infra = annotated("other");
    let of = |infra: &InfraCluster, owner: &Cluster| {
        let plan = plan(infra, &observed(owner));
        status(infra, &plan, &Zones::None, Timestamp::UNIX_EPOCH)
    };
    let reason = |status: &InfraClusterStatus| {
        conditions::get(&status.conditions, conditions::READY).map(|ready| ready.reason.clone())
    };
    let nowhere = of(&infra, &cluster_at(""));
    assert_eq!(
        reason(&nowhere).as_deref(),
        Some(reason::WAITING_FOR_CONTROL_PLANE_ENDPOINT)
    );
    assert_eq!(nowhere.initialization.and_then(|it| it.provisioned), Some(true));
    assert_eq!(
        reason(&of(&infra, &cluster_at("10.0.0.1"))).as_deref(),
        Some("Ready")
    );
    infra.spec.control_plane_endpoint = Some(ApiEndpoint {
        host: "10.0.0.1".to_owned(),
        port: 6443,
    });
    assert_eq!(reason(&of(&infra, &cluster_at(""))).as_deref(), Some("Ready"));
}

/// Cluster API copies the endpoint once, so a later change has no effect.
#[test]
fn a_changed_endpoint_names_the_endpoint_that_the_cluster_keeps() {
    let mut infra = annotated("other");
    infra.spec.control_plane_endpoint = Some(ApiEndpoint {
        host: "10.0.0.2".to_owned(),
        port: 6443,
    });
    let plan = plan(&infra, &observed(&cluster_at("10.0.0.1")));
    let changed = status(&infra, &plan, &Zones::None, Timestamp::UNIX_EPOCH);
    let ready = conditions::get(&changed.conditions, conditions::READY).unwrap();
    assert_eq!(ready.reason, reason::CONTROL_PLANE_ENDPOINT_CHANGED);
    assert!(ready.message.contains("10.0.0.1:6443"), "{}", ready.message);
    assert_eq!(changed.initialization.and_then(|it| it.provisioned), Some(true));
}

#[test]
fn nothing_is_said_of_a_driver_that_was_not_asked() {
    for unasked in [Zones::NotQueried, Zones::NoSecrets("no".to_owned())] {
        let after = status(&annotated("other"), &provision(), &unasked, Timestamp::UNIX_EPOCH);
        let shown = conditions::get(&after.conditions, conditions::DRIVER_REACHABLE);
        assert_eq!(shown, None, "{unasked:?}");
    }
}

/// As for machines and templates, the status still describes the previous generation.
#[test]
fn a_pause_leaves_the_generation_that_was_observed() {
    let mut infra = zoned();
    infra.metadata.generation = Some(7);
    let paused = Plan::Pause("by a test".to_owned());
    let after = status(&infra, &paused, &Zones::NotQueried, Timestamp::UNIX_EPOCH);
    assert!(conditions::is_true(&after.conditions, conditions::PAUSED));
    assert_eq!(
        after.observed_generation,
        infra.status.unwrap().observed_generation
    );
}

#[test]
fn an_outage_leaves_the_generation_that_was_observed() {
    let mut infra = zoned();
    infra.metadata.generation = Some(7);
    let of = |code| {
        let failed = Zones::Failed(Status::new(code, "no"));
        status(&infra, &provision(), &failed, Timestamp::UNIX_EPOCH).observed_generation
    };
    assert_eq!(
        of(Code::Unavailable),
        infra.status.as_ref().unwrap().observed_generation
    );
    assert_eq!(of(Code::PermissionDenied), Some(7), "a refusal is an answer");
}

#[test]
fn a_driver_that_goes_away_does_not_take_back_what_was_provisioned() {
    let now = Timestamp::UNIX_EPOCH;
    let outage = || Zones::Failed(Status::new(Code::Unavailable, "connection refused"));
    let mut infra = annotated("other");
    let first = status(&infra, &provision(), &outage(), now);
    assert!(!conditions::is_true(&first.conditions, conditions::READY));
    assert_eq!(first.initialization, None);
    infra.status = Some(status(&infra, &provision(), &Zones::None, now));
    let later = status(&infra, &provision(), &outage(), now);
    assert!(conditions::is_true(&later.conditions, conditions::READY));
    assert!(!conditions::is_true(
        &later.conditions,
        conditions::DRIVER_REACHABLE
    ));
}

#[test]
fn a_failure_to_list_failure_domains_is_reported_once_per_reason() {
    let now = Timestamp::UNIX_EPOCH;
    let mut infra = annotated("other");
    let mut news = |zones: Zones| {
        let after = status(&infra, &provision(), &zones, now);
        let news = new_failure(&infra, &after, &zones).map(|(reason, _)| reason.to_owned());
        infra.status = Some(after);
        news
    };
    let failed = |code| Zones::Failed(Status::new(code, "no"));
    let gone = || Zones::NotConfigured("no driver `a`".to_owned());
    assert_eq!(news(gone()).as_deref(), Some(reason::DRIVER_NOT_CONFIGURED));
    assert_eq!(news(gone()), None);
    assert_eq!(news(failed(Code::Unavailable)).as_deref(), Some("Unavailable"));
    assert_eq!(news(failed(Code::DeadlineExceeded)), None, "it flaps");
    assert_eq!(news(failed(Code::Unavailable)), None, "it flaps");
    assert_eq!(news(Zones::None), None);
    assert_eq!(news(failed(Code::Unavailable)), None, "it is in use");
    assert_eq!(
        news(failed(Code::PermissionDenied)).as_deref(),
        Some("PermissionDenied")
    );
}

/// A permanent outage is reported once, and so is its end. A short outage, which a call may meet, is not.
#[test]
fn an_outage_of_a_driver_is_reported_when_it_has_lasted_and_then_once() {
    let now = Timestamp::UNIX_EPOCH;
    let mut infra = zoned();
    let mut reported = |zones: Zones, connectivity: &Connectivity| {
        let after = status(&infra, &provision(), &zones, now);
        let (after, transition) = report_connectivity(&infra, after, &zones, connectivity, now);
        let shown = conditions::get(&after.conditions, conditions::DRIVER_REACHABLE).cloned();
        infra.status = Some(after);
        (shown.map(|shown| (shown.status, shown.message)), transition)
    };
    let failed = || Zones::Failed(Status::new(Code::Unavailable, "connection refused"));
    let lost = Connectivity::Lost("cannot reach driver `a`: refused".to_owned());
    let reachable = || Some(("True".to_owned(), String::new()));
    for connectivity in [Connectivity::Unsettled, Connectivity::Kept] {
        assert_eq!(
            reported(failed(), &connectivity),
            (reachable(), None),
            "{connectivity:?}"
        );
    }
    let message = "cannot reach driver `a`: refused".to_owned();
    let unreachable = Some(("False".to_owned(), message.clone()));
    // A driver without zones is not called, and can still be unreachable.
    let first = reported(Zones::None, &lost);
    assert_eq!(first, (unreachable.clone(), Some(Transition::Lost(message))));
    for (zones, connectivity) in [
        (failed(), &lost),
        (Zones::None, &lost),
        (Zones::None, &Connectivity::Unsettled),
    ] {
        assert_eq!(reported(zones, connectivity), (unreachable.clone(), None));
    }
    assert_eq!(
        reported(Zones::None, &Connectivity::Kept),
        (reachable(), Some(Transition::Back))
    );
    assert_eq!(reported(Zones::None, &Connectivity::Kept), (reachable(), None));
}

fn zone(name: &str, attributes: Vec<(String, String)>) -> Zone {
    Zone {
        name: name.to_owned(),
        control_plane: true,
        attributes: attributes.into_iter().collect(),
    }
}

/// An InfraCluster whose driver named a failure domain.
fn zoned() -> InfraCluster {
    let mut infra = annotated("other");
    let known = Zones::Known(vec![zone("east", Vec::new())]);
    infra.status = Some(status(&infra, &provision(), &known, Timestamp::UNIX_EPOCH));
    infra
}

/// A Machine that Cluster API places in a removed failure domain would fail for good.
#[test]
fn failure_domains_are_removed_only_by_an_answer_of_the_driver() {
    let infra = zoned();
    let shown = |zones: &Zones| {
        let after = status(&infra, &provision(), zones, Timestamp::UNIX_EPOCH);
        after.failure_domains.len()
    };
    assert_eq!(shown(&Zones::None), 0);
    assert_eq!(shown(&Zones::Known(Vec::new())), 0);
    for silence in [
        Zones::NotQueried,
        Zones::Failed(Status::new(Code::Unavailable, "connection refused")),
        Zones::Failed(Status::new(Code::PermissionDenied, "no")),
        Zones::NotConfigured("no".to_owned()),
        Zones::NoSecrets("no".to_owned()),
    ] {
        assert_eq!(shown(&silence), 1, "{silence:?}");
    }
}

/// A refusal is an answer, as for a machine's call. The fault is still reported.
#[test]
fn only_an_unanswered_call_makes_a_driver_unreachable() {
    let infra = zoned();
    for code in Code::ALL {
        let failed = Zones::Failed(Status::new(code, "no"));
        let after = status(&infra, &provision(), &failed, Timestamp::UNIX_EPOCH).conditions;
        let outage = matches!(code, Code::Unavailable | Code::DeadlineExceeded);
        assert_eq!(
            conditions::is_true(&after, conditions::DRIVER_REACHABLE),
            !outage,
            "{code}"
        );
        assert!(conditions::is_true(&after, conditions::READY), "{code}");
        let reported = conditions::get(&after, conditions::FAILURE_DOMAINS_UP_TO_DATE).unwrap();
        assert_eq!(
            (
                reported.status.as_str(),
                reported.reason.as_str(),
                reported.message.as_str()
            ),
            ("False", code.name(), "no")
        );
    }
}

#[test]
fn a_driver_that_is_not_configured_any_more_is_not_called_reachable() {
    let infra = zoned();
    let gone = Zones::NotConfigured("no driver `a`".to_owned());
    let after = status(&infra, &provision(), &gone, Timestamp::UNIX_EPOCH).conditions;
    let shown = conditions::get(&after, conditions::DRIVER_REACHABLE).unwrap();
    assert_eq!(
        (shown.status.as_str(), shown.reason.as_str()),
        ("False", reason::DRIVER_NOT_CONFIGURED)
    );
}

/// One bad zone must not make the API server refuse the others, again and again.
#[test]
fn zones_that_the_schema_would_refuse_are_left_out() {
    let many = (0..200).map(|n| (format!("k{n}"), String::new())).collect();
    let long = vec![
        ("long".to_owned(), "x".repeat(65_537)),
        ("a".to_owned(), "b".to_owned()),
    ];
    let zones = Zones::Known(vec![
        zone("", Vec::new()),
        zone(&"x".repeat(257), Vec::new()),
        zone("a", long),
        zone("a", Vec::new()),
        zone("b", many),
    ]);
    let shown = status(&annotated("other"), &provision(), &zones, Timestamp::UNIX_EPOCH).failure_domains;
    let seen: Vec<_> = shown
        .iter()
        .map(|domain| (domain.name.as_str(), domain.attributes.len()))
        .collect();
    assert_eq!(seen, [("a", 1), ("b", 128)]);
}
