//! Random histories of one machine. The process may end at any await point. Writes, calls and their answers
//! may be lost, and caches may be stale. Objects are moved and restored. The back end may carry out creates
//! late.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use http::{Request, Response};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::client::{Body, Client};
use proptest::prelude::*;
use tokio::runtime::Builder;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

use super::super::fakes::Server;
use super::super::fixtures::machine;
use super::super::{Context, phase_reason, reconcile};
use crate::api::DeserializeGuard;
use crate::api::annotations;
use crate::api::cluster_api::{
    Bootstrap, Cluster, ClusterInitialization, ClusterSpec, ClusterStatus, Machine, MachineSpec,
    ObjectReference,
};
use crate::api::conditions::reason;
use crate::api::identity;
use crate::api::v1alpha1::InfraMachine;
use crate::api::wall_clock;
use crate::apiserver::leadership::Leadership;
use crate::driver::{ConfiguredDriver, Limits, Namespaces, Settings};
use crate::telemetry::metrics::Metrics;
use cmi_driver::{
    Capabilities, Code, CreateMachineRequest, DeclaredCapabilities, DeleteMachineRequest,
    DeleteMachineResponse, Driver, GetMachineStatusRequest, Operation, PluginInfo, ProviderId, Readiness,
    Result, ShutDownMachineRequest, ShutDownMachineResponse, Status, UpdateMachineRequest,
};

/// How long the back end may take to carry out a create after its call has ended.
const SETTLE: Duration = Duration::from_mins(1);

/// The fate of the next write to the API server, or of the next call to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The request never arrives.
    Lost,
    /// The request is carried out, and the answer is lost.
    Unanswered,
    /// The create is carried out later, and the answer is lost.
    Late,
    /// The request is terminally refused.
    Refused,
    /// The request is refused for now.
    Exhausted,
}

/// An act in a history.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// A reconcile. The process ends after the given number of polls, if any.
    Reconcile(Option<u8>),
    /// A reconcile in a new process whose cache is stale by this number of writes.
    StaleReconcile(u8),
    /// The fate of the next write to the API server.
    Write(Fate),
    /// The fate of the next call that changes a VM.
    Call(Fate),
    /// The back end carries out its late creates.
    CarryOut,
    /// The spec changes.
    Respecify,
    /// clusterctl moves the object when nothing blocks this. The object loses its status.
    Move,
    /// A backup from this number of reconciles ago is restored, without finalizers and status.
    Restore(u8),
    /// Time passes, in seconds.
    Wait(u16),
    /// The deletion is requested.
    Delete,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let fate = prop_oneof![
        Just(Fate::Lost),
        Just(Fate::Unanswered),
        Just(Fate::Late),
        Just(Fate::Refused),
        Just(Fate::Exhausted),
    ];
    let act = prop_oneof![
        6 => Just(Act::Reconcile(None)),
        6 => (0u8..40).prop_map(|polls| Act::Reconcile(Some(polls))),
        2 => (1u8..4).prop_map(Act::StaleReconcile),
        3 => fate.clone().prop_map(Act::Write),
        4 => fate.prop_map(Act::Call),
        2 => Just(Act::CarryOut),
        1 => Just(Act::Respecify),
        1 => Just(Act::Move),
        1 => (1u8..4).prop_map(Act::Restore),
        3 => (1u16..900).prop_map(Act::Wait),
        1 => Just(Act::Delete),
    ];
    prop::collection::vec(act, 1..30)
}

/// A back end, which outlives every process of the provider.
#[derive(Clone, Default)]
struct BackEnd(Arc<Mutex<Vms>>);

#[derive(Default)]
struct Vms {
    there: Vec<ProviderId>,
    /// The creates that are carried out later, each with the end of its call.
    late: Vec<Arc<Mutex<Option<Instant>>>>,
    made: usize,
    /// The number of creates that were called.
    creates: usize,
    next: Option<Fate>,
    /// A violated guarantee.
    broken: Option<String>,
}

impl Vms {
    fn make(&mut self) -> ProviderId {
        self.made += 1;
        let id: ProviderId = format!("sim://{}", self.made).parse().unwrap();
        self.there.push(id.clone());
        id
    }

    /// Carries out late creates that were issued recently enough.
    fn carry_out(&mut self) {
        let late = std::mem::take(&mut self.late);
        for ended in late {
            let ended = *ended.lock().unwrap();
            if ended.is_none_or(|ended| ended.elapsed() < SETTLE) {
                self.make();
            }
        }
    }
}

/// The call of a create. It ends when the create is answered or times out, or when the process ends.
struct CallOfCreate(Arc<Mutex<Option<Instant>>>);

impl Drop for CallOfCreate {
    fn drop(&mut self) {
        *self.0.lock().unwrap() = Some(Instant::now());
    }
}

impl BackEnd {
    /// Carries out a call that changes a VM, or applies its fate.
    async fn change<T>(&self, change: impl FnOnce(&mut Vms) -> Result<T>) -> Result<T> {
        yield_now().await;
        let fate = self.0.lock().unwrap().next.take();
        let answer = match fate {
            None => Some(change(&mut self.0.lock().unwrap())),
            Some(Fate::Lost | Fate::Late) => None,
            Some(Fate::Unanswered) => {
                let _unseen = change(&mut self.0.lock().unwrap());
                None
            }
            Some(Fate::Refused) => Some(Err(Status::new(Code::InvalidArgument, "no"))),
            Some(Fate::Exhausted) => Some(Err(Status::new(Code::ResourceExhausted, "no room"))),
        };
        yield_now().await;
        match answer {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }

    fn creates(&self) -> usize {
        self.0.lock().unwrap().creates
    }

    fn holds(&self, id: &str) -> bool {
        self.0.lock().unwrap().there.iter().any(|vm| vm.as_str() == id)
    }

    fn driver(&self) -> ConfiguredDriver {
        let settings = Settings {
            credentials: None,
            create_settle_time: Some(SETTLE),
            name: "pool".to_owned(),
            namespaces: Namespaces::All,
            limits: Limits::default(),
        };
        let metrics = Arc::new(Metrics::new());
        ConfiguredDriver::new(settings, Arc::new(self.clone()), Leadership::unelected(), metrics)
    }
}

#[async_trait]
impl Driver for BackEnd {
    async fn get_plugin_info(&self) -> Result<PluginInfo> {
        Err(Status::unimplemented(Operation::GetPluginInfo))
    }

    async fn get_plugin_capabilities(&self) -> Result<DeclaredCapabilities> {
        use Operation::{GetMachineStatus, ShutDownMachine, UpdateMachine};
        Ok(Capabilities {
            operations: [GetMachineStatus, ShutDownMachine, UpdateMachine].into(),
            hot_updatable: vec!["/size".parse().unwrap()],
            ..Capabilities::minimal()
        }
        .into())
    }

    async fn probe(&self) -> Result<Readiness> {
        Ok(Readiness::Ready)
    }

    async fn create_machine(&self, request: CreateMachineRequest) -> Result<cmi_driver::Machine> {
        let call = CallOfCreate(Arc::default());
        {
            let mut vms = self.0.lock().unwrap();
            vms.creates += 1;
            if !vms.there.is_empty() {
                vms.broken = Some(format!("a create while there is {:?}", vms.there));
            }
            if vms.next == Some(Fate::Late) {
                vms.late.push(Arc::clone(&call.0));
            }
        }
        let made = self.change(|vms| Ok(vms.make()));
        Ok(cmi_driver::Machine::new(made.await?, request.machine.name))
    }

    async fn delete_machine(&self, request: DeleteMachineRequest) -> Result<DeleteMachineResponse> {
        let meant = |id: &ProviderId| request.provider_id.as_ref().is_none_or(|meant| meant == id);
        self.change(|vms| {
            vms.there.retain(|id| !meant(id));
            Ok(DeleteMachineResponse::default())
        })
        .await
    }

    async fn get_machine_status(&self, request: GetMachineStatusRequest) -> Result<cmi_driver::Machine> {
        yield_now().await;
        let vms = self.0.lock().unwrap();
        let found = match &request.provider_id {
            Some(id) => vms.there.iter().find(|there| *there == id),
            None => vms.there.first(),
        };
        let found = found.ok_or_else(|| Status::new(Code::NotFound, "there is none"))?;
        Ok(cmi_driver::Machine::new(found.clone(), request.machine.name))
    }

    async fn shut_down_machine(&self, _: ShutDownMachineRequest) -> Result<ShutDownMachineResponse> {
        self.change(|_| Ok(ShutDownMachineResponse::default())).await
    }

    async fn update_machine(&self, _: UpdateMachineRequest) -> Result<()> {
        self.change(|_| Ok(())).await
    }
}

/// The world around the machine.
struct World {
    back_end: BackEnd,
    server: Server,
    next_write: Arc<Mutex<Option<Fate>>>,
    /// The process of the provider.
    ctx: Arc<Context>,
    /// The object after each reconcile, with the number of creates until then.
    past: Vec<(InfraMachine, usize)>,
    /// Whether the VM was deleted after the backup that was restored last.
    is_vm_lost: bool,
    uids: usize,
}

impl World {
    fn new() -> Self {
        let object = machine().configured_driver("pool").build();
        let (back_end, server) = (BackEnd::default(), Server::with(&object));
        let next_write = Arc::default();
        let ctx = process(&server, &back_end, &next_write);
        Self {
            back_end,
            server,
            next_write,
            ctx,
            past: vec![(object, 0)],
            is_vm_lost: false,
            uids: 0,
        }
    }

    fn restart(&mut self) {
        self.ctx = process(&self.server, &self.back_end, &self.next_write);
    }

    async fn reconcile(&mut self, object: Arc<DeserializeGuard<InfraMachine>>, polls: Option<u8>) {
        let mut left = polls;
        let ctx = Arc::clone(&self.ctx);
        let mut reconcile = pin!(reconcile(&object, &ctx));
        let ended = poll_fn(|context| match &mut left {
            Some(0) => Poll::Ready(true),
            left => {
                if let Some(left) = left {
                    *left -= 1;
                }
                reconcile.as_mut().poll(context).map(|_| false)
            }
        });
        if ended.await {
            self.restart();
        }
        if !self.is_gone() {
            self.past.push((self.server.object(), self.back_end.creates()));
        }
    }

    fn is_gone(&self) -> bool {
        self.server.is_gone()
            || self.server.object().metadata.deletion_timestamp.is_some() && !self.server.is_kept()
    }

    /// Returns the object of this number of reconciles ago, with the number of creates until then.
    fn before(&self, ago: u8) -> (InfraMachine, usize) {
        let index = self.past.len().saturating_sub(1 + usize::from(ago));
        self.past[index].clone()
    }

    /// Replaces the object with an object with another UID, like clusterctl or a restore.
    fn replace(&mut self, mut object: InfraMachine) {
        self.uids += 1;
        object.metadata.uid = Some(format!("moved-{}", self.uids));
        object.status = None;
        self.server.replace(&object);
        self.past = vec![(self.server.object(), self.back_end.creates())];
        self.restart();
    }

    async fn act(&mut self, act: Act) {
        match act {
            Act::Reconcile(polls) => {
                let object = self.server.infra_machine();
                self.reconcile(object, polls).await;
            }
            Act::StaleReconcile(ago) => {
                let (stale, _) = self.before(ago);
                self.restart();
                self.reconcile(Arc::new(DeserializeGuard(Ok(stale))), None).await;
            }
            Act::Write(fate) => *self.next_write.lock().unwrap() = Some(fate),
            Act::Call(fate) => self.back_end.0.lock().unwrap().next = Some(fate),
            Act::CarryOut => self.back_end.0.lock().unwrap().carry_out(),
            Act::Respecify => self.server.change(|object| {
                object.metadata.generation = object.metadata.generation.map(|generation| generation + 1);
                let size = format!("{}", object.metadata.generation.unwrap_or_default());
                object.spec.provider_spec.insert("size".to_owned(), size.into());
            }),
            Act::Move => {
                let object = self.server.object();
                let is_blocked = identity::annotation(&object, annotations::BLOCK_MOVE).is_some();
                if !is_blocked && object.metadata.deletion_timestamp.is_none() {
                    self.replace(object);
                }
            }
            Act::Restore(ago) => {
                let (mut object, creates) = self.before(ago);
                // A backup from before the latest create would leave an orphan.
                let is_known = identity::vm_state(&object).may_exist() && creates == self.back_end.creates();
                if is_known && object.metadata.deletion_timestamp.is_none() {
                    let id = object.spec.provider_id.as_deref();
                    self.is_vm_lost = id.is_some_and(|id| !self.back_end.holds(id));
                    object.metadata.finalizers = None;
                    self.replace(object);
                    // Deleting an object before the provider sees it would leave an orphan, too.
                    *self.next_write.lock().unwrap() = None;
                    let object = self.server.infra_machine();
                    self.reconcile(object, None).await;
                }
            }
            Act::Wait(seconds) => sleep(Duration::from_secs(seconds.into())).await,
            Act::Delete => self.server.change(|object| {
                let now = || Time(wall_clock::now());
                object.metadata.deletion_timestamp.get_or_insert_with(now);
            }),
        }
    }

    /// Reconciles until the condition holds, with an API server and a driver that answer.
    async fn settle(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        *self.next_write.lock().unwrap() = None;
        self.back_end.0.lock().unwrap().next = None;
        for _ in 0..200 {
            if is_so(self) {
                return;
            }
            self.server.ask_again();
            self.act(Act::Reconcile(None)).await;
            sleep(Duration::from_secs(20)).await;
        }
        panic!(
            "{what}: {:?} of {:?}",
            self.back_end.0.lock().unwrap().there,
            self.server.object()
        );
    }
}

/// Returns a new process of the provider.
fn process(server: &Server, back_end: &BackEnd, next_write: &Arc<Mutex<Option<Fate>>>) -> Arc<Context> {
    let mut ctx = server.context(vec![back_end.driver()]);
    let (server, next_write) = (server.clone(), Arc::clone(next_write));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (server, next_write) = (server.clone(), Arc::clone(&next_write));
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            yield_now().await;
            let is_write = head.method == http::Method::PATCH && head.uri.path().contains("/inframachines/");
            let fate = if is_write {
                next_write.lock().unwrap().take()
            } else {
                None
            };
            let answer = || server.answer(&head.method, head.uri.path(), &body);
            let answer = match fate {
                None => answer(),
                Some(Fate::Unanswered | Fate::Late) => {
                    drop(answer());
                    unavailable()
                }
                Some(Fate::Lost | Fate::Refused | Fate::Exhausted) => unavailable(),
            };
            yield_now().await;
            Ok::<_, Infallible>(answer)
        }
    });
    ctx.client = Client::new(service, "default");
    let (machines, mut writer) = kube_fleet::store();
    writer.apply(Arc::new(owner()));
    ctx.caches.machines = machines;
    let (clusters, mut writer) = kube_fleet::store();
    writer.apply(Arc::new(cluster()));
    ctx.caches.clusters = clusters;
    Arc::new(ctx)
}

fn unavailable() -> Response<Body> {
    let status = r#"{"kind": "Status", "code": 503, "reason": "ServiceUnavailable", "status": "Failure"}"#;
    let response = Response::builder().status(503);
    response.body(Body::from(status.as_bytes().to_vec())).unwrap()
}

fn owner() -> Machine {
    let mut owner = Machine::new(
        "m1",
        MachineSpec {
            cluster_name: "c".to_owned(),
            bootstrap: Bootstrap {
                data_secret_name: Some("boot".to_owned()),
            },
            infrastructure_ref: ObjectReference {
                api_group: crate::api::GROUP.to_owned(),
                kind: "InfraMachine".to_owned(),
                name: "m1".to_owned(),
            },
            ..MachineSpec::default()
        },
    );
    owner.metadata.namespace = Some("ns1".to_owned());
    owner.metadata.uid = Some("owner".to_owned());
    owner
}

fn cluster() -> Cluster {
    let mut cluster = Cluster::new("c", ClusterSpec::default());
    cluster.metadata.namespace = Some("ns1".to_owned());
    cluster.metadata.uid = Some("u-c".to_owned());
    cluster.status = Some(ClusterStatus {
        initialization: Some(ClusterInitialization {
            infrastructure_provisioned: Some(true),
        }),
    });
    cluster
}

async fn live_through(acts: Vec<Act>) -> std::result::Result<(), TestCaseError> {
    wall_clock::follow_tokio();
    let mut world = World::new();
    for act in acts {
        world.act(act).await;
        if world.is_gone() {
            break;
        }
    }
    if !world.is_gone() && world.server.object().metadata.deletion_timestamp.is_none() {
        // A new spec ends a terminal refusal.
        world.act(Act::Respecify).await;
        // No other VM is created for a machine whose VM was deleted before its backup was restored.
        let is_lost = world.is_vm_lost;
        let what = if is_lost {
            "the VM vanishes"
        } else {
            "the machine comes up"
        };
        let is_settled = |world: &World| {
            let machine = world.server.object();
            machine.is_provisioned() && !is_lost
                || phase_reason(&machine) == reason::VIRTUAL_MACHINE_VANISHED && is_lost
        };
        world.settle(what, is_settled).await;
        let id = world.server.object().spec.provider_id;
        let is_there = id.as_deref().is_some_and(|id| world.back_end.holds(id));
        prop_assert_eq!(is_there, !is_lost, "the VM {:?}", id);
        world.act(Act::Delete).await;
    }
    world.settle("the machine goes", World::is_gone).await;
    let mut vms = world.back_end.0.lock().unwrap();
    vms.carry_out();
    prop_assert_eq!(&vms.there, &Vec::<ProviderId>::new(), "the object is gone");
    prop_assert_eq!(&vms.broken, &None);
    Ok(())
}

fn run(acts: Vec<Act>) -> std::result::Result<(), TestCaseError> {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(live_through(acts))
}

/// Its machine has to be replaced, as `docs/how-to/move-and-backup.md` says.
#[test]
fn a_vm_that_was_deleted_after_its_backup_is_not_made_again() {
    let made = [Act::Reconcile(None); 3];
    let deleted = [Act::Delete, Act::Reconcile(None), Act::Wait(100)];
    let kept = [Act::Write(Fate::Lost), Act::Reconcile(None), Act::Restore(2)];
    run([made, deleted, kept].concat()).unwrap();
}

proptest! {
    /// CTL-CR-00, DRV-10: no VM is created while one exists, and no object is deleted before its VM. Every
    /// state is left once the driver answers.
    #[test]
    fn no_history_creates_a_vm_beside_another_or_leaves_one(acts in acts()) {
        run(acts)?;
    }
}
