//! Whole reconciles in tests: an API server with one machine, and a driver that keeps VMs.

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

/// An API server with one machine: it merges what it gets, and refuses what was decided on another version.
/// Every Secret holds bootstrap data, and goes with the machine.
#[derive(Clone)]
pub struct Server(Arc<Mutex<Value>>);

impl Server {
    pub fn with(machine: &InfraMachine) -> Self {
        Self::holding(serde_json::to_value(machine).unwrap())
    }

    /// With an object that need not be one that can be read.
    pub fn holding(mut object: Value) -> Self {
        object["metadata"]["resourceVersion"] = json!("1");
        Self(Arc::new(Mutex::new(object)))
    }

    pub fn object(&self) -> InfraMachine {
        serde_json::from_value(self.0.lock().unwrap().clone()).unwrap()
    }

    /// As a watch gives it.
    pub fn infra_machine(&self) -> Arc<DeserializeGuard<InfraMachine>> {
        let text = self.0.lock().unwrap().to_string();
        Arc::new(serde_json::from_str(&text).unwrap())
    }

    /// Whether a finalizer keeps it.
    pub fn is_kept(&self) -> bool {
        let object = self.0.lock().unwrap();
        let finalizers = object["metadata"]["finalizers"].as_array();
        finalizers.is_some_and(|finalizers| !finalizers.is_empty())
    }

    /// An annotation, also of an object that can't be read.
    pub fn annotation(&self, key: &str) -> Option<String> {
        let object = self.0.lock().unwrap();
        object["metadata"]["annotations"][key].as_str().map(str::to_owned)
    }

    pub fn version(&self) -> String {
        let version = &self.0.lock().unwrap()["metadata"]["resourceVersion"];
        version.as_str().unwrap().to_owned()
    }

    /// Another client writes.
    pub fn touch(&self) {
        let next = self.version().parse::<u64>().unwrap() + 1;
        self.0.lock().unwrap()["metadata"]["resourceVersion"] = json!(next.to_string());
    }

    /// A user asks for another try.
    pub fn ask_again(&self) {
        self.annotate("example.com/try", &self.version());
    }

    /// A user annotates it.
    pub fn annotate(&self, key: &str, value: &str) {
        self.0.lock().unwrap()["metadata"]["annotations"][key] = json!(value);
        self.touch();
    }

    /// Whether the object is there no more.
    pub fn is_gone(&self) -> bool {
        self.0.lock().unwrap().is_null()
    }

    /// Another client changes the object.
    pub fn change(&self, change: impl FnOnce(&mut InfraMachine)) {
        let mut object = self.object();
        change(&mut object);
        self.replace(&object);
    }

    /// Another client puts this object in the place of the one that is there.
    pub fn replace(&self, object: &InfraMachine) {
        let version = self.version();
        let mut object = serde_json::to_value(object).unwrap();
        object["metadata"]["resourceVersion"] = json!(version);
        *self.0.lock().unwrap() = object;
        self.touch();
    }

    /// The answer to a request.
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
        json_patch::merge(&mut self.0.lock().unwrap(), &patch);
        self.touch();
        Response::new(Body::from(self.0.lock().unwrap().to_string().into_bytes()))
    }

    /// What a reconcile works with whose API server this is.
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
            events: Events::new(client, "test".to_owned()),
            metrics: Arc::new(Metrics::new()),
            enqueue: Arc::new(|_| {}),
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
    /// Whether each VM is said to be uninitialized.
    is_uninitialized: bool,
}

/// A driver that finds and deletes VMs of a name by it, or by their id where the request has it.
struct VmDriver {
    back_end: Vms,
    /// Optional calls that it makes.
    offers: Vec<Operation>,
}

impl Vms {
    /// Of a driver that never answers a create.
    pub fn hanging() -> Self {
        Self {
            creates_hang: true,
            ..Self::default()
        }
    }

    /// Of a driver whose VMs are never initialized.
    pub fn uninitialized() -> Self {
        Self {
            is_uninitialized: true,
            ..Self::default()
        }
    }

    /// There is a VM of this id and name; `machine` says whose it is, where lists say so.
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

    /// How often this was called.
    pub fn count(&self, operation: Operation) -> usize {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|called| **called == operation).count()
    }

    /// A configured driver called `pool` of this back end, with these optional calls.
    /// Its shut-downs never work.
    pub fn configured_driver(&self, offers: &[Operation], create_settle_time: Duration) -> ConfiguredDriver {
        self.limited_driver(Limits::default(), offers, create_settle_time)
    }

    /// As [`Self::configured_driver`], with limits of its own.
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

    /// Without an id it deletes the first of the name, as a back end does that knows VMs by their names.
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
