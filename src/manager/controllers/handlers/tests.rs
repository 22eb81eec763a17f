//! Which objects the events of a watch enqueue.

use std::collections::BTreeSet;

use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _};
use kube::runtime::watcher::{self, Event};
use kube_fleet::{Stored, Writer, reflector};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::coop::unconstrained;
use tokio::task::yield_now;

use super::super::{Options, Writers, caches};
use super::*;
use crate::api::identity::fixtures::existing;
use crate::api::v1alpha1::InfraMachineTemplate;
use crate::api::{self, conditions};
use crate::apiserver::leadership::Leadership;
use crate::driver::tests::{FakeDriver, driver_with_one_permit};
use crate::driver::{ConfiguredDrivers, Priority, Waker};
use crate::telemetry::metrics::Metrics;

/// A watch whose events come from a test.
struct Watch<K> {
    events: UnboundedSender<Event<K>>,
    updates: BoxStream<'static, Result<Update<K>, watcher::Error>>,
}

impl<K: Stored> Watch<K> {
    fn new(writer: Writer<K>) -> Self {
        let (sender, events) = unbounded();
        Self {
            events: sender,
            updates: reflector(writer, events.map(Ok)).boxed(),
        }
    }

    /// Returns the updates that follow from an event.
    fn take(&mut self, event: Event<K>) -> Vec<Update<K>> {
        self.events.unbounded_send(event).unwrap();
        let next = || unconstrained(self.updates.next()).now_or_never().flatten();
        std::iter::from_fn(next).map(Result::unwrap).collect()
    }
}

/// The handlers of a leading process, and the queues that they fill.
struct Watched {
    controllers: Controllers,
    machines: Watch<Machine>,
    clusters: Watch<Cluster>,
    infra_machines: Watch<DeserializeGuard<InfraMachine>>,
    infra_clusters: Watch<DeserializeGuard<InfraCluster>>,
    templates: Watch<DeserializeGuard<InfraMachineTemplate>>,
    woken: Box<dyn FnMut() -> BTreeSet<String>>,
}

fn watched() -> Watched {
    let (caches, writers) = caches();
    let options = Options {
        namespace: None,
        watch_filter: None,
        machine_concurrency: 1,
        cluster_concurrency: 1,
        template_concurrency: 1,
        inventory_interval: std::time::Duration::from_mins(1),
        max_refreshed_machines: 1000,
        remediation: false,
        volume_drain: false,
        driver_unreachable_grace: std::time::Duration::from_mins(1),
        orphans: crate::fleet::orphans::Options::default(),
        reporter: "test".to_owned(),
    };
    let config = kube::Config::new("http://127.0.0.1:9".parse().unwrap());
    let client = kube::Client::try_from(config).unwrap();
    let pool = driver_with_one_permit(FakeDriver::default());
    let drivers = ConfiguredDrivers::new(vec![pool]).unwrap();
    let controllers = Controllers::with_caches(
        caches,
        client,
        crate::nodes::workload_cluster::network(),
        options,
        drivers,
        Arc::new(Metrics::new()),
        Leadership::unelected(),
    );
    let mut queues = [
        ("machine", controllers.infra_machine_queue.receive()),
        ("cluster", controllers.infra_cluster_queue.receive()),
        ("template", controllers.template_queue.receive()),
        ("node of", controllers.taint_queue.receive()),
    ];
    let woken = move || {
        let mut woken = BTreeSet::new();
        for (what, received) in &mut queues {
            while let Ok(request) = received.try_recv() {
                woken.insert(format!("{what} {}", request.message.name()));
            }
        }
        woken
    };
    let Writers {
        machines,
        clusters,
        infra_machines,
        infra_machine_templates,
        infra_clusters,
    } = writers;
    Watched {
        controllers,
        machines: Watch::new(machines),
        clusters: Watch::new(clusters),
        infra_machines: Watch::new(infra_machines),
        infra_clusters: Watch::new(infra_clusters),
        templates: Watch::new(infra_machine_templates),
        woken: Box::new(woken),
    }
}

impl Watched {
    fn machine(&mut self, event: &Event<Machine>) -> BTreeSet<String> {
        for update in self.machines.take(event.clone()) {
            (self.controllers.on_machine())(&update);
        }
        (self.woken)()
    }

    fn cluster(&mut self, event: &Event<Cluster>) -> BTreeSet<String> {
        for update in self.clusters.take(event.clone()) {
            (self.controllers.on_cluster())(&update);
        }
        (self.woken)()
    }

    fn infra_cluster(&mut self, event: &Event<DeserializeGuard<InfraCluster>>) -> BTreeSet<String> {
        for update in self.infra_clusters.take(event.clone()) {
            (self.controllers.on_infra_cluster())(&update);
        }
        (self.woken)()
    }

    fn infra_machine(&mut self, event: &Event<DeserializeGuard<InfraMachine>>) -> BTreeSet<String> {
        for update in self.infra_machines.take(event.clone()) {
            (self.controllers.on_infra_machine())(&update);
        }
        (self.woken)()
    }
}

fn set<const N: usize>(woken: [&str; N]) -> BTreeSet<String> {
    woken.into_iter().map(str::to_owned).collect()
}

fn read<K: DeserializeOwned>(name: &str, version: u32, more: &Value) -> K {
    let mut object = json!({"metadata": {
        "namespace": "ns", "name": name, "uid": format!("u-{name}"), "resourceVersion": version.to_string(),
    }});
    json_patch(&mut object, more);
    serde_json::from_value(object).unwrap()
}

fn json_patch(into: &mut Value, more: &Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                json_patch(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more.clone(),
    }
}

fn cluster(version: u32, spec: &Value) -> Cluster {
    let infra = json!({"apiGroup": api::GROUP, "kind": "InfraCluster", "name": "ic"});
    let mut whole = json!({"spec": {"infrastructureRef": infra}});
    json_patch(&mut whole, &json!({"spec": spec}));
    read("c", version, &whole)
}

fn machine(name: &str, version: u32, status: &Value) -> Machine {
    let infra = json!({"apiGroup": api::GROUP, "kind": "InfraMachine", "name": name});
    let spec = json!({"clusterName": "c", "infrastructureRef": infra});
    read(name, version, &json!({"spec": spec, "status": status}))
}

fn infra_machine(name: &str, version: u32, more: &Value) -> DeserializeGuard<InfraMachine> {
    let mut whole = json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachine",
        "metadata": {"labels": {labels::CLUSTER_NAME: "c"}},
        "spec": {"providerSpec": {}},
    });
    json_patch(&mut whole, more);
    read(name, version, &whole)
}

/// One InfraMachine, one template and one Cluster, all in the caches.
fn settled() -> Watched {
    let mut watched = watched();
    watched.infra_machine(&Event::Apply(infra_machine("m", 1, &json!({}))));
    watched.cluster(&Event::Apply(cluster(1, &json!({}))));
    let owner = json!([{
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "c", "uid": "u-c",
    }]);
    let template = json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachineTemplate",
        "metadata": {"ownerReferences": owner},
        "spec": {"template": {"spec": {"providerSpec": {}}}},
    });
    drop(watched.templates.take(Event::Apply(read("t", 1, &template))));
    (watched.woken)();
    watched
}

/// Otherwise a reverted restart would be retried immediately, for ever.
#[tokio::test]
async fn a_remediation_wakes_for_changes_other_than_its_own_record() {
    let watched = watched();
    let queue = WorkQueue::default();
    let mut received = queue.receive();
    let notify = watched.controllers.on_remediation(queue);
    let mut cache = Watch::new(Writer::default());
    let mut wakes = |version: u32, annotations: &Value| {
        let object = json!({
            "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachineRemediation",
            "metadata": {"annotations": annotations}, "spec": {},
        });
        for update in cache.take(Event::Apply(read("m", version, &object))) {
            notify(&update);
        }
        received.try_recv().is_ok()
    };
    assert!(wakes(1, &json!({})), "it is new");
    let record = json!({annotations::RESTARTS: "1", annotations::RESTART_ISSUED_AT: "2026-01-01T00:00:00Z"});
    assert!(!wakes(2, &record));
    assert!(!wakes(3, &json!({})));
    assert!(wakes(4, &json!({annotations::PAUSED: ""})));
}

/// Otherwise a driver that returns another state with every call would be called without end.
#[tokio::test]
async fn the_state_that_a_driver_wants_back_wakes_no_reconcile() {
    let mut watched = settled();
    let recorded = |version: u32, cluster: &str, state: Option<&str>| {
        let mut record = json!({"version": "v1", "cluster": cluster});
        if let Some(state) = state {
            record["lastKnownState"] = json!(state);
        }
        let annotations = json!({"metadata": {"annotations": {annotations::VM_RECORD: record.to_string()}}});
        Event::Apply(infra_machine("m", version, &annotations))
    };
    watched.infra_machine(&recorded(2, "c-1", None));
    for (version, state) in [(3, "czE="), (4, "czI=")] {
        let woken = watched.infra_machine(&recorded(version, "c-1", Some(state)));
        assert_eq!(woken, set([]), "{state}");
    }
    let woken = watched.infra_machine(&recorded(5, "c-2", Some("czI=")));
    assert_eq!(
        woken,
        set(["machine m"]),
        "one that an administrator restores does"
    );
}

/// Otherwise hanging drivers would block the machines of others.
#[tokio::test]
async fn each_driver_permit_adds_a_worker() {
    let controllers = watched().controllers;
    assert_eq!(controllers.workers(7), 8, "the driver has one permit");
}

/// An object that is enqueued before the list is complete would be read in its old version, and not enqueued
/// again.
#[tokio::test]
async fn only_a_complete_list_wakes_its_objects() {
    let mut watched = settled();
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    for _ in 0..2 {
        for event in [
            Event::Init,
            Event::InitApply(infra_machine("m", 2, &deleted)),
            Event::InitApply(infra_machine("new", 3, &json!({}))),
        ] {
            assert_eq!(watched.infra_machine(&event), set([]));
        }
    }
    let woken = watched.infra_machine(&Event::InitDone);
    assert_eq!(woken, set(["machine m", "machine new"]));
}

#[tokio::test]
async fn a_cluster_that_a_list_shows_paused_wakes_all_that_belong_to_it() {
    let mut watched = settled();
    watched.cluster(&Event::Init);
    watched.cluster(&Event::InitApply(cluster(2, &json!({"paused": true}))));
    let woken = watched.cluster(&Event::InitDone);
    assert_eq!(woken, set(["cluster ic", "machine m", "template t"]));
}

/// A machine in deletion may be blocked by a pause of the Cluster, which ends with the Cluster.
#[tokio::test]
async fn a_cluster_that_goes_away_wakes_all_that_belonged_to_it() {
    let all = set(["cluster ic", "machine m", "template t"]);
    let mut seen = settled();
    assert_eq!(
        seen.cluster(&Event::Delete(cluster(2, &json!({"paused": true})))),
        all
    );
    let mut unseen = settled();
    unseen.cluster(&Event::Init);
    assert_eq!(unseen.cluster(&Event::InitDone), all);
}

/// The machines publish why the InfraCluster is not provisioned, and no other part of it.
#[tokio::test]
async fn a_new_reason_of_an_unprovisioned_infra_cluster_wakes_its_machines() {
    let mut watched = settled();
    let infra_cluster = |version: u32, reason: &str, message: &str, provisioned: bool| {
        let owner = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "c", "uid": "u-c",
        });
        let ready = json!({
            "type": conditions::READY, "status": "False", "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        Event::Apply(read(
            "ic",
            version,
            &json!({
                "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraCluster", "spec": {},
                "metadata": {"ownerReferences": [owner]},
                "status": {"conditions": [ready], "initialization": {"provisioned": provisioned}},
            }),
        ))
    };
    watched.infra_cluster(&infra_cluster(1, "Unavailable", "a", false));
    let said_again = watched.infra_cluster(&infra_cluster(2, "Unavailable", "b", false));
    assert_eq!(said_again, set([]));
    let another = watched.infra_cluster(&infra_cluster(3, "DriverNotConfigured", "b", false));
    assert_eq!(another, set(["machine m"]));
    let out = watched.infra_cluster(&infra_cluster(4, "Unavailable", "b", false));
    assert_eq!(out, set(["machine m"]));
    for (version, code) in [(5, "DeadlineExceeded"), (6, "Unavailable"), (7, "Aborted")] {
        let flapping = watched.infra_cluster(&infra_cluster(version, code, "b", false));
        assert_eq!(flapping, set([]), "{code}");
    }
    watched.infra_cluster(&infra_cluster(8, "Unavailable", "b", true));
    let provisioned = watched.infra_cluster(&infra_cluster(9, "Internal", "b", true));
    assert_eq!(provisioned, set([]));
}

#[tokio::test]
async fn new_and_deleted_machines_wake_their_infra_machines() {
    let mut watched = settled();
    let woken = set(["machine m"]);
    assert_eq!(watched.machine(&Event::Apply(machine("m", 1, &json!({})))), woken);
    assert_eq!(
        watched.machine(&Event::Apply(machine("m", 2, &json!({})))),
        set([])
    );
    watched.machine(&Event::Init);
    assert_eq!(watched.machine(&Event::InitDone), woken);
}

/// The provider's own write overrides the cache until the cache has it. An incomplete list is not in the
/// cache yet.
#[tokio::test]
async fn our_own_write_is_kept_until_a_list_that_holds_it_is_in_the_cache() {
    let mut watched = settled();
    let context = Arc::clone(&watched.controllers.machine_context);
    let written = infra_machine("m", 7, &json!({})).0.unwrap();
    context.states.record_write("u-m", Arc::new(written));
    watched.infra_machine(&Event::Init);
    watched.infra_machine(&Event::InitApply(infra_machine("m", 7, &json!({}))));
    let noted = context.states.get("u-m").written;
    assert!(noted.is_some(), "the cache still holds what was before");
    watched.infra_machine(&Event::InitDone);
    assert!(context.states.get("u-m").written.is_none());
}

#[tokio::test]
async fn a_machine_that_went_away_unseen_is_forgotten() {
    let mut watched = settled();
    let context = Arc::clone(&watched.controllers.machine_context);
    context.states.hint("u-m", LookUpHint::Signal);
    watched.infra_machine(&Event::Init);
    watched.infra_machine(&Event::InitDone);
    assert!(context.states.get("u-m").hint.is_none());
}

/// If a driver does not list its VMs, only the Node shows that a VM is back. A VM whose Node was silent may
/// have another address.
#[tokio::test]
async fn a_node_that_reports_hints_at_a_vm_that_is_back_or_has_changed() {
    let healthy =
        json!({"nodeRef": {"name": "n"}, "conditions": [{"type": "NodeHealthy", "status": "True"}]});
    let (silent, none) = (json!({"nodeRef": {"name": "n"}}), json!({}));
    let ready = |reason: &str| {
        json!({"status": {"conditions": [{
            "type": "Ready", "status": "False", "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]}})
    };
    for (before, reason, hint) in [
        (&silent, "VirtualMachineVanished", Some(LookUpHint::Signal)),
        (&silent, "Other", Some(LookUpHint::Signal)),
        (&none, "VirtualMachineVanished", Some(LookUpHint::Signal)),
        (&none, "Other", None),
    ] {
        let mut watched = settled();
        let context = Arc::clone(&watched.controllers.machine_context);
        watched.machine(&Event::Apply(machine("m", 1, before)));
        context.states.forget("u-m");
        watched.infra_machine(&Event::Apply(infra_machine("m", 2, &ready(reason))));
        watched.machine(&Event::Apply(machine("m", 2, &healthy)));
        assert_eq!(context.states.get("u-m").hinted(), hint, "{reason}");
    }
}

/// A process that watches InfraClusters also reconciles them.
#[tokio::test]
async fn an_infra_cluster_that_is_new_in_a_list_is_reconciled() {
    let (_caches, writers) = caches();
    let watched = watched();
    let mut cache_writer = Watch::new(writers.infra_clusters);
    let notify = watched
        .controllers
        .on_object(watched.controllers.infra_cluster_queue.clone());
    let mut woken = watched.woken;
    let infra: DeserializeGuard<InfraCluster> = read(
        "ic",
        1,
        &json!({"apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraCluster", "spec": {}}),
    );
    for event in [Event::Init, Event::InitApply(infra), Event::InitDone] {
        for update in cache_writer.take(event) {
            notify(&update);
        }
    }
    assert_eq!(woken(), set(["cluster ic"]));
}

/// Otherwise a permit would be reserved for the deleted machine while others wait.
#[tokio::test]
async fn a_machine_that_is_gone_stands_in_no_queue() {
    let mut watched = settled();
    let pool = watched.controllers.drivers.named("pool").unwrap();
    let woken = Arc::new(std::sync::Mutex::new(Vec::new()));
    let permit = |uid: &'static str| {
        let woken = Arc::clone(&woken);
        pool.try_acquire(
            Priority::Create,
            uid,
            "ns",
            Waker::new(move || woken.lock().unwrap().push(uid)),
        )
    };
    let first = permit("first").unwrap();
    assert!(permit("u-m").is_none() && permit("next").is_none());
    watched.infra_machine(&Event::Delete(infra_machine("m", 2, &json!({}))));
    drop(first);
    assert_eq!(*woken.lock().unwrap(), ["next"]);
}

/// A machine that was refused because of the driver's capabilities was never sent to the driver, and its
/// status has no driver name.
#[tokio::test]
async fn changed_capabilities_wake_all_machines_that_the_driver_may_serve() {
    let mut watched = settled();
    let record = existing("ns/made/u", &json!({"driver": "pool", "providerSpec": {}}));
    let made =
        json!({"metadata": {"annotations": {annotations::VM_RECORD: record}}, "spec": {"driver": "other"}});
    watched.infra_machine(&Event::Apply(infra_machine("made", 1, &made)));
    let others = json!({"spec": {"driver": "other"}});
    watched.infra_machine(&Event::Apply(infra_machine("others", 1, &others)));
    watched.controllers.reconcile_machines_of("pool");
    assert_eq!((watched.woken)(), set(["machine m", "machine made"]));
}

/// INI-05: the last missing precondition of a removal enqueues the Node, also a Node that came back before
/// the taint could be removed.
#[tokio::test]
async fn each_precondition_of_a_taint_removal_enqueues_the_node() {
    let mut watched = watched();
    let infra = |version, ready: &str, removed: Option<&str>| -> Event<DeserializeGuard<InfraMachine>> {
        let done = removed.map(|_| {
            json!({"type": "NotReadyTaintRemoved", "status": "True", "reason": "R", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
        });
        let ready = json!({"type": "Ready", "status": ready, "reason": "R", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let conditions: Vec<_> = [Some(ready), done].into_iter().flatten().collect();
        Event::Apply(read(
            "m",
            version,
            &json!({
                "metadata": {"labels": {labels::CLUSTER_NAME: "c"},
                    "annotations": {annotations::PROGRESS: json!({"notReadyTaint": removed}).to_string()}},
                "spec": {"notReadyTaint": {"key": "k"}},
                "status": {"initialization": {"provisioned": true}, "conditions": conditions},
            }),
        ))
    };
    let machine = |version, node: Option<&str>, healthy: &str| -> Event<Machine> {
        Event::Apply(read(
            "m",
            version,
            &json!({
                "spec": {"clusterName": "c", "infrastructureRef":
                    {"apiGroup": "infrastructure.capcmi.io", "kind": "InfraMachine", "name": "m"}},
                "status": {"nodeRef": node.map(|name| json!({"name": name})),
                    "conditions": [{"type": "NodeHealthy", "status": healthy}]},
            }),
        ))
    };
    let cluster = |version, paused: bool| -> Event<Cluster> {
        Event::Apply(read("c", version, &json!({"spec": {"paused": paused}})))
    };
    let looked_at = |woken: &BTreeSet<String>| woken.contains("node of m");
    assert!(
        looked_at(&watched.infra_machine(&infra(1, "True", None))),
        "provisioned"
    );
    assert!(looked_at(&watched.machine(&machine(2, None, "False"))), "owned");
    assert!(
        looked_at(&watched.machine(&machine(3, Some("n"), "False"))),
        "found"
    );
    watched.cluster(&cluster(4, true));
    assert!(looked_at(&watched.cluster(&cluster(5, false))), "unpaused");
    watched.controllers.taint_context.changed_nodes.remove("u-m");
    // The taint was removed: only a Node that came back is a reason.
    assert!(!looked_at(&watched.infra_machine(&infra(6, "True", Some("u/k")))));
    assert!(!looked_at(&watched.cluster(&cluster(7, true))));
    assert!(
        looked_at(&watched.machine(&machine(8, Some("n"), "True"))),
        "came up"
    );
    watched.controllers.taint_context.changed_nodes.remove("u-m");
    assert!(
        !looked_at(&watched.machine(&machine(9, Some("n"), "Unknown"))),
        "silent"
    );
    assert!(
        looked_at(&watched.machine(&machine(10, Some("n"), "True"))),
        "came back"
    );
    // The taint could not be removed yet.
    assert!(looked_at(&watched.infra_machine(&infra(
        11,
        "False",
        Some("u/k")
    ))));
    assert!(looked_at(&watched.cluster(&cluster(12, false))), "unpaused");
}

/// The Machine may be cached before that, and no other event would enqueue its InfraMachine.
#[test]
fn a_drain_counts_that_a_machine_takes_the_place_of_its_set_as_the_owner() {
    let owned_by = |kind: &str| {
        let owner = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind, "name": "o", "uid": kind,
            "controller": true,
        });
        infra_machine("m", 1, &json!({"metadata": {"ownerReferences": [owner]}}))
    };
    assert_ne!(
        infra_machine_drain_predicate(&owned_by("MachineSet")),
        infra_machine_drain_predicate(&owned_by("Machine"))
    );
}

/// Unpacking a hundred thousand objects takes seconds, and would block all tasks of the thread.
#[tokio::test]
async fn what_looks_at_every_machine_of_a_fleet_lets_others_go_on_meanwhile() {
    let mut watched = watched();
    let up = json!({
        "spec": {"driver": "pool", "notReadyTaint": {"key": "example.com/k"}},
        "status": {"initialization": {"provisioned": true}},
    });
    let silent = json!({
        "conditions": [{"type": "NodeHealthy", "status": "False"}], "nodeRef": {"name": "n"},
    });
    for number in 0..600 {
        let name = format!("m-{number}");
        watched.infra_machine(&Event::Apply(infra_machine(&name, 1, &up)));
        watched.machine(&Event::Apply(machine(&name, 1, &silent)));
    }
    let controllers = &watched.controllers;
    yield_now().await;
    assert!(controllers.enqueue_tainted_nodes().now_or_never().is_none());
    yield_now().await;
    assert!(
        controllers
            .hint_machines_with_unhealthy_nodes()
            .now_or_never()
            .is_none()
    );
    let all = || controllers.machines_of("pool", |_| true);
    yield_now().await;
    assert!(all().now_or_never().is_none());
    assert_eq!(all().await.len(), 600);
    drop((watched.woken)());
    watched.controllers.enqueue_tainted_nodes().await;
    assert_eq!((watched.woken)().len(), 600);
}
