//! Complete reconciles in tests: an API server with one machine, and a driver with VMs.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use http::{Method, Request, Response};
use kube::client::{Body, Client};
use serde_json::{Value, json};

use super::Context;
use crate::admission::AdmissionPolicies;
use crate::api::DeserializeGuard;
use crate::api::v1alpha1::InfraMachine;
use crate::apiserver::Events;
use crate::apiserver::leadership::Leadership;
use crate::driver::{ConfiguredDriver, ConfiguredDrivers, Limits, Namespaces, Settings};
use crate::reconcile::caches::{Caches, ClusterIds};
use crate::telemetry::metrics::Metrics;
use cmi_driver::{
    Capabilities, Code, CreateMachineRequest, DeclaredCapabilities, DeleteMachineRequest,
    DeleteMachineResponse, Driver, GetMachineStatusRequest, ListMachinesRequest, ListedMachine, Machine,
    Operation, PluginInfo, Readiness, Result, ShutDownMachineRequest, ShutDownMachineResponse, Status,
};

/// An API server with one machine. It merges patches and refuses patches for another resource version. Every
/// Secret holds bootstrap data and disappears together with the machine.
#[derive(Clone)]
pub struct Server(Arc<Mutex<Value>>);

impl Server {
    pub fn with(machine: &InfraMachine) -> Self {
        Self::holding(serde_json::to_value(machine).unwrap())
    }

    /// The object may be unreadable.
    pub fn holding(mut object: Value) -> Self {
        object["metadata"]["resourceVersion"] = json!("1");
        Self(Arc::new(Mutex::new(object)))
    }

    pub fn object(&self) -> InfraMachine {
        serde_json::from_value(self.0.lock().unwrap().clone()).unwrap()
    }

    /// Returns the object as a watch delivers it.
    pub fn infra_machine(&self) -> Arc<DeserializeGuard<InfraMachine>> {
        let text = self.0.lock().unwrap().to_string();
        Arc::new(serde_json::from_str(&text).unwrap())
    }

    pub fn is_kept(&self) -> bool {
        let object = self.0.lock().unwrap();
        let finalizers = object["metadata"]["finalizers"].as_array();
        finalizers.is_some_and(|finalizers| !finalizers.is_empty())
    }

    /// Returns an annotation. Works for an unreadable object too.
    pub fn annotation(&self, key: &str) -> Option<String> {
        let object = self.0.lock().unwrap();
        object["metadata"]["annotations"][key].as_str().map(str::to_owned)
    }

    pub fn version(&self) -> String {
        let version = &self.0.lock().unwrap()["metadata"]["resourceVersion"];
        version.as_str().unwrap().to_owned()
    }

    /// Simulates a write of another client.
    pub fn touch(&self) {
        let next = self.version().parse::<u64>().unwrap() + 1;
        self.0.lock().unwrap()["metadata"]["resourceVersion"] = json!(next.to_string());
    }

    /// Simulates a user's request for another attempt.
    pub fn ask_again(&self) {
        self.annotate("example.com/try", &self.version());
    }

    pub fn annotate(&self, key: &str, value: &str) {
        self.0.lock().unwrap()["metadata"]["annotations"][key] = json!(value);
        self.touch();
    }

    /// Returns whether the object is deleted.
    pub fn is_gone(&self) -> bool {
        self.0.lock().unwrap().is_null()
    }

    /// Simulates a change by another client.
    pub fn change(&self, change: impl FnOnce(&mut InfraMachine)) {
        let mut object = self.object();
        change(&mut object);
        self.replace(&object);
    }

    /// Simulates a replacement of the object by another client.
    pub fn replace(&self, object: &InfraMachine) {
        let version = self.version();
        let mut object = serde_json::to_value(object).unwrap();
        object["metadata"]["resourceVersion"] = json!(version);
        *self.0.lock().unwrap() = object;
        self.touch();
    }

    pub fn answer(&self, method: &Method, path: &str, body: &[u8]) -> Response<Body> {
        if path.contains("/events") {
            return Response::new(Body::from(body.to_vec()));
        }
        if self.0.lock().unwrap().is_null() {
            return refusal(404, "NotFound");
        }
        if path.contains("/secrets/") {
            let secret = json!({"metadata": {"name": "boot"}, "data": {"value": "I2Nsb3VkLWNvbmZpZwo="}});
            return Response::new(Body::from(secret.to_string().into_bytes()));
        }
        if *method == Method::PATCH {
            return self.patch(body);
        }
        Response::new(Body::from(self.0.lock().unwrap().to_string().into_bytes()))
    }

    fn patch(&self, body: &[u8]) -> Response<Body> {
        let mut patch: Value = serde_json::from_slice(body).unwrap();
        let said = patch["metadata"]["resourceVersion"].take();
        if said != json!(self.version()) {
            return refusal(409, "Conflict");
        }
        patch["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("resourceVersion");
        let before = self.0.lock().unwrap().clone();
        json_patch::merge(&mut self.0.lock().unwrap(), &patch);
        if *self.0.lock().unwrap() != before {
            self.touch();
        }
        Response::new(Body::from(self.0.lock().unwrap().to_string().into_bytes()))
    }

    /// Returns the context of a reconcile against this API server.
    pub fn context(&self, drivers: Vec<ConfiguredDriver>) -> Context {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                Ok::<_, Infallible>(server.answer(&head.method, head.uri.path(), &body))
            }
        });
        let (client, caches) = (Client::new(service, "default"), Caches::empty());
        Context {
            policies: Arc::new(AdmissionPolicies::trusting(client.clone())),
            client: client.clone(),
            cluster_ids: Arc::new(ClusterIds::new(&caches)),
            caches,
            drivers: ConfiguredDrivers::new(drivers).unwrap(),
            states: Arc::default(),
            failures: Arc::default(),
            events: Events::new(client, "test".to_owned()),
            metrics: Arc::new(Metrics::new()),
            enqueue: Arc::new(|_| {}),
            claims_wanted: Arc::default(),
        }
    }
}

fn refusal(code: u16, reason: &str) -> Response<Body> {
    let status = json!({"kind": "Status", "code": code, "reason": reason, "status": "Failure"});
    let response = Response::builder().status(code);
    response
        .body(Body::from(status.to_string().into_bytes()))
        .unwrap()
}

/// The back end of [`VmDriver`].
#[derive(Clone, Default)]
pub struct Vms {
    existing: Arc<Mutex<Vec<ListedMachine>>>,
    calls: Arc<Mutex<Vec<Operation>>>,
    /// Whether creates are never answered.
    creates_hang: bool,
    /// Whether all VMs are reported as uninitialized.
    is_uninitialized: bool,
}

/// A driver that finds and deletes VMs by name, or by id if the request has an id.
struct VmDriver {
    back_end: Vms,
    /// The supported optional calls.
    offers: Vec<Operation>,
}

impl Vms {
    /// A driver that never answers a create.
    pub fn hanging() -> Self {
        Self {
            creates_hang: true,
            ..Self::default()
        }
    }

    /// A driver that never finishes an initialization.
    pub fn uninitialized() -> Self {
        Self {
            is_uninitialized: true,
            ..Self::default()
        }
    }

    /// Adds a VM. `machine` is the identity in lists, if any.
    pub fn add(&self, id: &str, name: &str, machine: Option<&str>) {
        self.existing.lock().unwrap().push(ListedMachine {
            machine_id: machine.map(str::to_owned),
            ..ListedMachine::new(id.parse().unwrap(), name)
        });
    }

    pub fn ids(&self) -> Vec<String> {
        let vms = self.existing.lock().unwrap();
        vms.iter().map(|vm| vm.provider_id.to_string()).collect()
    }

    /// Returns the number of calls.
    pub fn count(&self, operation: Operation) -> usize {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|called| **called == operation).count()
    }

    /// Returns a configured driver named `pool` for this back end, with these optional calls. All of its
    /// shut-downs fail.
    pub fn configured_driver(&self, offers: &[Operation], create_settle_time: Duration) -> ConfiguredDriver {
        self.limited_driver(Limits::default(), offers, create_settle_time)
    }

    /// Like [`Self::configured_driver`], with limits.
    pub fn limited_driver(
        &self,
        limits: Limits,
        offers: &[Operation],
        create_settle_time: Duration,
    ) -> ConfiguredDriver {
        let settings = Settings {
            credentials: None,
            create_settle_time: Some(create_settle_time),
            name: "pool".to_owned(),
            namespaces: Namespaces::All,
            limits,
        };
        let driver = VmDriver {
            back_end: self.clone(),
            offers: offers.to_vec(),
        };
        ConfiguredDriver::new(
            settings,
            Arc::new(driver),
            Leadership::unelected(),
            Arc::new(Metrics::new()),
        )
    }
}

impl VmDriver {
    fn record(&self, operation: Operation) {
        self.back_end.calls.lock().unwrap().push(operation);
    }
}

#[async_trait]
impl Driver for VmDriver {
    async fn get_plugin_info(&self) -> Result<PluginInfo> {
        Err(Status::unimplemented(Operation::GetPluginInfo))
    }

    async fn get_plugin_capabilities(&self) -> Result<DeclaredCapabilities> {
        Ok(Capabilities {
            operations: self.offers.iter().copied().collect(),
            ..Capabilities::minimal()
        }
        .into())
    }

    async fn probe(&self) -> Result<Readiness> {
        Ok(Readiness::Ready)
    }

    async fn create_machine(&self, _request: CreateMachineRequest) -> Result<Machine> {
        self.record(Operation::CreateMachine);
        if self.back_end.creates_hang {
            return std::future::pending().await;
        }
        Err(Status::new(Code::Unavailable, "no creates here"))
    }

    /// Without an id, deletes the first VM with the name, like a back end that identifies VMs by name.
    async fn delete_machine(&self, request: DeleteMachineRequest) -> Result<DeleteMachineResponse> {
        self.record(Operation::DeleteMachine);
        let mut vms = self.back_end.existing.lock().unwrap();
        let meant = |vm: &ListedMachine| match &request.provider_id {
            Some(id) => *id == vm.provider_id,
            None => vm.machine_name == request.machine.name,
        };
        if let Some(index) = vms.iter().position(meant) {
            vms.remove(index);
        }
        Ok(DeleteMachineResponse::default())
    }

    async fn get_machine_status(&self, request: GetMachineStatusRequest) -> Result<Machine> {
        self.record(Operation::GetMachineStatus);
        if self.back_end.is_uninitialized {
            return Err(Status::new(Code::Uninitialized, "half done"));
        }
        let vms = self.back_end.existing.lock().unwrap();
        let found = vms.iter().find(|vm| match &request.provider_id {
            Some(id) => *id == vm.provider_id,
            None => vm.machine_name == request.machine.name,
        });
        let found = found.ok_or_else(|| Status::new(Code::NotFound, "there is none"))?;
        Ok(Machine::new(
            found.provider_id.clone(),
            found.machine_name.clone(),
        ))
    }

    async fn list_machines(&self, _request: ListMachinesRequest) -> Result<Vec<ListedMachine>> {
        self.record(Operation::ListMachines);
        Ok(self.back_end.existing.lock().unwrap().clone())
    }

    async fn shut_down_machine(&self, _request: ShutDownMachineRequest) -> Result<ShutDownMachineResponse> {
        self.record(Operation::ShutDownMachine);
        Err(Status::new(Code::Unavailable, "the guest does not answer"))
    }
}
