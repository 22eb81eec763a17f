//! Whole scans, with a driver that lists VMs, and an API server that has the Cluster but none of its
//! machines.

use std::convert::Infallible;
use std::sync::Mutex;

use async_trait::async_trait;
use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};

use super::*;
use crate::api::identity::fixtures::existing;
use crate::api::v1alpha1::InfraMachine;
use crate::api::{DeserializeGuard, annotations};
use crate::driver::tests::configured_driver;
use cmi_driver::{
    Code, CreateMachineRequest, DeclaredCapabilities, DeleteMachineRequest, DeleteMachineResponse, Driver,
    ListMachinesRequest, Machine, Operation, PluginInfo, Readiness, Status,
};

/// A back end whose VMs all have the class `kept`, and the deleted VMs.
#[derive(Clone, Default)]
struct Cloud {
    vms: Arc<Mutex<Vec<ListedMachine>>>,
    deleted: Arc<Mutex<Vec<String>>>,
    /// A size that the back end no longer accepts.
    refused: Option<&'static str>,
}

#[async_trait]
impl Driver for Cloud {
    async fn get_plugin_info(&self) -> Result<PluginInfo, Status> {
        Err(Status::unimplemented(Operation::GetPluginInfo))
    }

    async fn get_plugin_capabilities(&self) -> Result<DeclaredCapabilities, Status> {
        Ok(Capabilities {
            operations: [Operation::ListMachines].into(),
            ..Capabilities::minimal()
        }
        .into())
    }

    async fn probe(&self) -> Result<Readiness, Status> {
        Ok(Readiness::Ready)
    }

    async fn create_machine(&self, _: CreateMachineRequest) -> Result<Machine, Status> {
        Err(Status::unimplemented(Operation::CreateMachine))
    }

    async fn delete_machine(&self, request: DeleteMachineRequest) -> Result<DeleteMachineResponse, Status> {
        self.deleted.lock().unwrap().push(request.machine.name);
        Ok(DeleteMachineResponse::default())
    }

    async fn list_machines(&self, request: ListMachinesRequest) -> Result<Vec<ListedMachine>, Status> {
        let size = request.class.provider_spec.0["size"].as_str().unwrap_or_default();
        if Some(size) == self.refused {
            return Err(Status::new(Code::InvalidArgument, format!("no size {size}")));
        }
        let all = self.vms.lock().unwrap();
        Ok(all.iter().filter(|_| size == "kept").cloned().collect())
    }
}

fn cluster() -> Value {
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": {"namespace": "ns", "name": "c", "uid": "u-c"},
        "spec": {"infrastructureRef": {"apiGroup": "infrastructure.capcmi.io", "kind": "InfraCluster",
        "name": "c"}},
    })
}

fn infra_cluster() -> Value {
    json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraCluster",
        "metadata": {"namespace": "ns", "name": "c", "uid": "u-i",
        "annotations": {annotations::CLUSTER_ID: "c-1"}}, "spec": {},
    })
}

/// A template whose class has this size and credentials.
fn template(size: &str, secret: &str) -> Value {
    json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachineTemplate",
        "metadata": {"namespace": "ns", "name": "t", "uid": "u-t", "labels": {labels::CLUSTER_NAME: "c"}},
        "spec": {"template": {"spec": {"providerSpec": {"size": size}, "secretRef": {"name": secret}}}},
    })
}

/// An API server without the Secret `gone`, and the notes of the events that it receives.
fn api_server() -> (Client, Arc<Mutex<Vec<String>>>) {
    let notes = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&notes);
    let service = tower::service_fn(move |request: Request<Body>| {
        let log = Arc::clone(&log);
        async move {
            let path = request.uri().path().to_owned();
            let items = |items: Vec<Value>| {
                json!({"apiVersion": "v1", "kind": "List", "metadata": {},
                "items": items})
            };
            let (status, answer) = if request.method() == Method::POST && path.ends_with("/events") {
                let body = request.into_body().collect_bytes().await.unwrap();
                let event: Value = serde_json::from_slice(&body).unwrap();
                log.lock()
                    .unwrap()
                    .push(event["note"].as_str().unwrap_or_default().to_owned());
                (StatusCode::CREATED, event)
            } else if path.ends_with("/secrets/gone") {
                let code = StatusCode::NOT_FOUND.as_u16();
                let status = json!({"kind": "Status", "status": "Failure", "reason": "NotFound",
                    "code": code, "message": "no"});
                (StatusCode::NOT_FOUND, status)
            } else if path.contains("/secrets/") {
                (StatusCode::OK, json!({"metadata": {"name": "there"}, "data": {}}))
            } else if path.ends_with("/infraclusters") {
                (StatusCode::OK, items(vec![infra_cluster()]))
            } else if path.ends_with("/clusters") {
                (StatusCode::OK, items(vec![cluster()]))
            } else {
                (StatusCode::OK, items(vec![]))
            };
            let mut response = Response::new(Body::from(answer.to_string().into_bytes()));
            *response.status_mut() = status;
            Ok::<_, Infallible>(response)
        }
    });
    (Client::new(service, "default"), notes)
}

fn filled<K>(objects: Vec<Value>) -> kube_fleet::Store<K>
where
    K: kube_fleet::Stored + serde::de::DeserializeOwned,
{
    let (store, mut writer) = kube_fleet::store();
    for object in objects {
        // DeserializeGuard objects can be read from text alone.
        let object = serde_json::from_str(&object.to_string()).unwrap();
        writer.apply_watcher_event(&Event::Apply(object));
    }
    store
}

/// Scans of the VMs of a Cluster with these templates.
struct Scans {
    ctx: Context,
    state: ScanState,
    notes: Arc<Mutex<Vec<String>>>,
}

impl Scans {
    fn new(cloud: &Cloud, templates: Vec<Value>) -> Self {
        let (client, notes) = api_server();
        let ctx = Context {
            client: client.clone(),
            caches: Caches {
                clusters: filled(vec![cluster()]),
                infra_clusters: filled(vec![infra_cluster()]),
                infra_machine_templates: filled(templates),
                ..Caches::empty()
            },
            drivers: ConfiguredDrivers::new(vec![configured_driver(cloud.clone())]).unwrap(),
            metrics: Arc::new(Metrics::new()),
            events: Events::new(client.clone(), "test".to_owned()),
            policies: Arc::new(AdmissionPolicies::trusting(client)),
            deletion_log: Arc::default(),
            namespace: None,
            options: Options {
                delete: true,
                interval: Duration::ZERO,
                min_age: Duration::ZERO,
                max_deletes: 10,
            },
        };
        Self {
            ctx,
            state: ScanState::default(),
            notes,
        }
    }

    /// Deletes a machine whose VM had this size and these credentials.
    fn delete_machine(&self, name: &str, size: &str, secret: &str) {
        let spec = json!({"size": size, "tags": {"capcmi.io/machine": name, "kubernetes.io/cluster": "c-1"}});
        let machine: InfraMachine = serde_json::from_value(json!({
            "metadata": {
                "namespace": "ns", "name": name, "uid": name, "deletionTimestamp": "2026-01-01T00:00:00Z",
                "labels": {labels::CLUSTER_NAME: "c"},
                "annotations": {
                    annotations::VM_RECORD: existing(
                        &format!("ns/{name}/{name}"),
                        &json!({"driver": "pool", "secret": secret, "providerSpec": spec}),
                    ),
                },
            },
            "spec": {"providerSpec": {}},
        }))
        .unwrap();
        let object = DeserializeGuard(Ok(machine));
        let during = self.ctx.policies.epoch();
        self.ctx
            .deletion_log
            .record(&object, false, wall_clock::now(), during);
    }

    async fn run(&mut self, times: usize) {
        let driver = Arc::clone(self.ctx.drivers.iter().next().unwrap());
        for _ in 0..times {
            scan_driver(&self.ctx, &driver, &mut self.state).await;
        }
    }

    fn orphans(&self) -> u64 {
        let counts = self.state.reports.values().map(ReportState::counts);
        counts.flat_map(BTreeMap::into_values).sum()
    }

    fn notes(&self, about: &str) -> usize {
        let notes = self.notes.lock().unwrap();
        notes.iter().filter(|note| note.contains(about)).count()
    }
}

fn vm(name: &str) -> ListedMachine {
    ListedMachine {
        cluster_id: Some("c-1".to_owned()),
        machine_id: Some(name.to_owned()),
        created_at: Some(jiff::Timestamp::UNIX_EPOCH),
        ..ListedMachine::new(format!("p-{name}").parse().unwrap(), name)
    }
}

/// Credentials rotate, and a driver may accept other specs than before. A list with the old ones can never be
/// made again.
#[tokio::test]
async fn a_permanently_failing_list_is_reported_once_and_blocks_no_other() {
    for (refused, secret, why) in [(None, "gone", "`gone` in"), (Some("old"), "there", "no size old")] {
        let cloud = Cloud {
            refused,
            ..Cloud::default()
        };
        cloud.vms.lock().unwrap().push(vm("left"));
        let mut scans = Scans::new(&cloud, vec![]);
        scans.delete_machine("rolled", "old", secret);
        scans.delete_machine("left", "kept", "there");
        scans.run(5).await;
        assert!(
            cloud.deleted.lock().unwrap().contains(&"left".to_owned()),
            "{why}"
        );
        assert_eq!(scans.notes(why), 1, "{:?}", scans.notes.lock().unwrap());
        let classes = scans.ctx.deletion_log.classes();
        assert!(
            classes.len() == 1 && classes[0].class.spec.contains("kept"),
            "{classes:?}"
        );
    }
}

/// The Secret of a template may stay missing for as long as its owner likes.
#[tokio::test]
async fn an_orphan_deleted_by_hand_is_forgotten_despite_a_failing_list() {
    let cloud = Cloud::default();
    cloud.vms.lock().unwrap().push(ListedMachine {
        machine_id: None,
        ..vm("left")
    });
    let mut scans = Scans::new(&cloud, vec![template("new", "gone")]);
    scans.delete_machine("left", "kept", "there");
    scans.run(3).await;
    assert_eq!((scans.orphans(), scans.notes("p-left")), (1, 1));
    cloud.vms.lock().unwrap().clear();
    scans.run(1).await;
    assert_eq!(scans.orphans(), 0);
    assert!(cloud.deleted.lock().unwrap().is_empty());
}

/// An InfraMachine with the identity `id`, still starting or with a VM.
fn machine(name: &str, id: &str, provider_id: Option<&str>) -> Value {
    json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachine",
        "metadata": {
            "namespace": "ns", "name": name, "uid": format!("u-{name}"),
            "labels": {labels::CLUSTER_NAME: "c"},
            "annotations": {
                annotations::VM_RECORD: existing(
                    &format!("ns/{name}/{id}"),
                    &json!({"driver": "pool", "providerSpec": {}}),
                ),
            },
        },
        "spec": {"providerSpec": {}, "providerID": provider_id},
    })
}

/// Only the machines that may be the owners are unpacked.
#[tokio::test]
async fn the_caches_know_the_owner_of_a_vm_by_its_id_its_identity_or_its_name() {
    let scans = Scans::new(&Cloud::default(), vec![]);
    let caches = Caches {
        infra_machines: filled(vec![
            machine("up", "other", Some("p-up")),
            machine("moved", "before-the-move", None),
            machine("new", "u-new", None),
            machine("old", "u-old", Some("p-another")),
        ]),
        ..scans.ctx.caches
    };
    let bare = |name: &str| ListedMachine {
        machine_id: None,
        ..vm(name)
    };
    let of = |name: &str, id: &str| ListedMachine {
        machine_id: Some(id.to_owned()),
        ..vm(name)
    };
    let listing = |vms: &[ListedMachine]| ClusterListing {
        scope: Scope {
            cluster: kube_fleet::NamespacedName::new("ns", "c"),
            uid: "u-c".to_owned(),
            cluster_id: "c-1".to_owned(),
        },
        requested_at: tokio::time::Instant::now(),
        vms: vms.to_vec(),
        classes: Vec::new(),
        unknown: HashSet::new(),
        impossible: Vec::new(),
        failures: Vec::new(),
    };
    let renamed = ListedMachine {
        machine_name: "renamed".to_owned(),
        ..bare("up")
    };
    let owned = [
        renamed,
        of("moved", "before-the-move"),
        of("x", "u-new"),
        bare("new"),
    ];
    for vm in &owned {
        assert!(are_owned(&[listing(std::slice::from_ref(vm))], &caches), "{vm:?}");
    }
    let two = [of("new", "u-new"), bare("new")];
    for (vms, why) in [
        (vec![bare("left")], "no machine has its name"),
        (vec![of("up", "left")], "of another machine that had the name"),
        (vec![of("old", "u-old")], "its machine has another VM"),
        (two.to_vec(), "one of the two is a second VM"),
    ] {
        assert!(!are_owned(&[listing(&owned), listing(&vms)], &caches), "{why}");
    }
}
