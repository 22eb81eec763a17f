//! What a case works with: the driver, machines of a cluster of its own, and the hooks.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::answer::{Answer, Halt, Outcome, ensure};
use super::config::Config;
use super::hooks::{Hook, Hooks, Pull};
use super::judge::{Judge, SECRET_RULES, Said};
use super::order::Order;
use super::target::Target;
use super::tracker::Tracker;
use crate::driver::{
    self, Capabilities, Code, CreateMachineRequest, DeleteMachineRequest, DeleteMachineResponse,
    GenerateMachineClassRequest, GetMachineStatusRequest, GetVolumeIdsRequest, InitializeMachineRequest,
    LastKnownState, ListMachinesRequest, ListedMachine, Machine, Operation, ProviderId, Secrets,
    ShutDownMachineRequest, ShutDownMachineResponse, UpdateMachineRequest, tags,
};

/// How long to wait before a call that answered ABORTED is repeated.
const PATIENCE: Duration = Duration::from_millis(20);

/// What all cases of a run share.
pub struct Shared {
    /// The driver under test.
    pub target: Target,
    /// What its author said of it.
    pub config: Config,
    /// Where faults come from.
    pub hooks: Arc<dyn Hooks>,
    /// What the driver declared at the start of the run.
    pub capabilities: Capabilities,
    /// Text that no other run has.
    pub run: String,
    /// Looks at every answer.
    pub judge: Judge,
}

/// What a case works with. Clones share the machines.
#[derive(Clone)]
pub struct Trial {
    shared: Arc<Shared>,
    cluster: String,
    tracker: Arc<Tracker>,
    warnings: Arc<Mutex<Vec<String>>>,
}

impl Trial {
    /// For one case, in a cluster that no other case has.
    pub fn new(shared: Arc<Shared>, case: &str) -> Self {
        let cluster = format!("{}-{case}", shared.run);
        Self {
            shared,
            cluster,
            tracker: Arc::default(),
            warnings: Arc::default(),
        }
    }

    /// What the driver's author said of it.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// The driver under test, for calls that are not judged by the usual rules.
    pub fn target(&self) -> &Target {
        &self.shared.target
    }

    /// What the driver declared.
    pub fn capabilities(&self) -> &Capabilities {
        &self.shared.capabilities
    }

    /// Whether the driver declared a call.
    pub fn offers(&self, operation: Operation) -> bool {
        self.shared.capabilities.offers(operation)
    }

    /// Whether there is a hook.
    pub fn has(&self, hook: Hook) -> bool {
        self.shared.hooks.offers(hook)
    }

    /// The secret text in the bootstrap data.
    pub fn canary(&self) -> String {
        format!("canary-{}-of-conformance", self.shared.run)
    }

    /// A second cluster id.
    pub fn other_cluster(&self) -> String {
        format!("{}-other", self.cluster)
    }

    /// The machines of this case.
    pub fn tracker(&self) -> &Tracker {
        &self.tracker
    }

    /// What is worth a look and breaks no rule.
    pub fn warnings(&self) -> Vec<String> {
        self.warnings
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Notes what is worth a look and breaks no rule.
    pub fn warn(&self, message: impl Into<String>) {
        self.warnings
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(message.into());
    }

    /// A machine in the case's cluster. Its name is unique over all cases, for back ends where names are global.
    pub fn order(&self, label: &str) -> Order {
        let (config, capabilities) = (&self.shared.config, &self.shared.capabilities);
        let name = format!("{}-{label}", self.short());
        Order::new(config, capabilities, &self.cluster, &name, &self.canary())
    }

    fn short(&self) -> String {
        let hash = self
            .cluster
            .bytes()
            .fold(5381_u32, |hash, byte| hash.wrapping_mul(33) ^ u32::from(byte));
        format!("c{hash:08x}")
    }

    /// Creates.
    ///
    /// # Errors
    /// [`Halt::Failed`] when the call hangs; as for every call here.
    pub async fn create(&self, order: &Order) -> Outcome<Answer<Machine>> {
        self.create_with(order, None).await
    }

    /// Creates with a LastKnownState.
    ///
    /// # Errors
    /// [`Halt::Failed`] when the call hangs.
    pub async fn create_with(
        &self,
        order: &Order,
        last_known_state: Option<LastKnownState>,
    ) -> Outcome<Answer<Machine>> {
        self.track(order);
        let call = self.shared.target.driver.create_machine(CreateMachineRequest {
            machine_name: order.name.clone(),
            class: order.class.clone(),
            last_known_state,
        });
        self.call(Operation::CreateMachine, order, call).await
    }

    /// Notes a machine that a call may make, so that it is deleted after the case, with credentials that work.
    pub fn track(&self, order: &Order) {
        self.tracker
            .note(&order.clone().with_secrets(&self.shared.config.secrets));
    }

    /// Deletes, with the provider id when it is given.
    ///
    /// # Errors
    /// [`Halt::Failed`] when the call hangs.
    pub async fn delete(
        &self,
        order: &Order,
        id: Option<&ProviderId>,
    ) -> Outcome<Answer<DeleteMachineResponse>> {
        let call = self.shared.target.driver.delete_machine(DeleteMachineRequest {
            machine_name: order.name.clone(),
            provider_id: id.cloned(),
            class: order.class.clone(),
            last_known_state: None,
        });
        self.call(Operation::DeleteMachine, order, call).await
    }

    /// Reads, with the provider id when it is given.
    ///
    /// # Errors
    /// [`Halt::Failed`] when the call hangs.
    pub async fn status(&self, order: &Order, id: Option<&ProviderId>) -> Outcome<Answer<Machine>> {
        let call = self
            .shared
            .target
            .driver
            .get_machine_status(GetMachineStatusRequest {
                machine_name: order.name.clone(),
                provider_id: id.cloned(),
                class: order.class.clone(),
            });
        self.call(Operation::GetMachineStatus, order, call).await
    }

    /// Lists the VMs of the order's cluster.
    ///
    /// # Errors
    /// [`Halt::Failed`] when the call hangs.
    pub async fn list(&self, order: &Order) -> Outcome<Answer<Vec<ListedMachine>>> {
        let call = self.shared.target.driver.list_machines(ListMachinesRequest {
            class: order.class.clone(),
        });
        self.call(Operation::ListMachines, order, call).await
    }

    /// Shuts down.
    ///
    /// # Errors
    /// [`Halt::Failed`] when the call hangs.
    pub async fn shut_down(&self, order: &Order) -> Outcome<Answer<ShutDownMachineResponse>> {
        let call = self
            .shared
            .target
            .driver
            .shut_down_machine(ShutDownMachineRequest {
                machine_name: order.name.clone(),
                provider_id: None,
                class: order.class.clone(),
                last_known_state: None,
            });
        self.call(Operation::ShutDownMachine, order, call).await
    }

    /// Initializes.
    ///
    /// # Errors
    /// [`Halt::Failed`] when the call hangs.
    pub async fn initialize(&self, order: &Order) -> Outcome<Answer<Machine>> {
        let call = self
            .shared
            .target
            .driver
            .initialize_machine(InitializeMachineRequest {
                machine_name: order.name.clone(),
                provider_id: None,
                class: order.class.clone(),
                last_known_state: None,
            });
        self.call(Operation::InitializeMachine, order, call).await
    }

    /// Updates from one spec to another.
    ///
    /// # Errors
    /// [`Halt::Failed`] when the call hangs.
    pub async fn update(&self, from: &Order, to: &Order, id: &ProviderId) -> Outcome<Answer<()>> {
        let call = self.shared.target.driver.update_machine(UpdateMachineRequest {
            machine_name: to.name.clone(),
            provider_id: id.clone(),
            last_applied_provider_spec: from.class.provider_spec.clone(),
            class: to.class.clone(),
            last_known_state: None,
        });
        self.call(Operation::UpdateMachine, to, call).await
    }

    /// Asks for volume ids.
    ///
    /// # Errors
    /// [`Halt::Failed`] when the call hangs.
    pub async fn volume_ids(&self, pv_specs: Vec<serde_json::Value>) -> Outcome<Answer<Vec<String>>> {
        let about = format!("{} PersistentVolume specs", pv_specs.len());
        let call = self
            .shared
            .target
            .driver
            .get_volume_ids(GetVolumeIdsRequest { pv_specs });
        self.timed(Operation::GetVolumeIds, about, &Secrets::default(), call)
            .await
    }

    /// Converts a class.
    ///
    /// # Errors
    /// [`Halt::Failed`] when the call hangs.
    pub async fn migrate(
        &self,
        request: GenerateMachineClassRequest,
    ) -> Outcome<Answer<serde_json::Map<String, serde_json::Value>>> {
        let operation = Operation::GenerateMachineClassForMigration;
        let call = self.shared.target.driver.generate_machine_class(request);
        self.timed(operation, "a class".to_owned(), &Secrets::default(), call)
            .await
    }

    /// Makes a call about a machine, or about its cluster, by the operation's name; what it answers besides its code
    /// does not matter.
    ///
    /// # Errors
    /// [`Halt::Failed`] when the call hangs, or is about neither.
    pub async fn touch(&self, operation: Operation, order: &Order) -> Outcome<Answer<()>> {
        match operation {
            Operation::CreateMachine => Ok(self.create(order).await?.bare()),
            Operation::DeleteMachine => Ok(self.delete(order, None).await?.bare()),
            Operation::GetMachineStatus => Ok(self.status(order, None).await?.bare()),
            Operation::ListMachines => Ok(self.list(order).await?.bare()),
            Operation::ShutDownMachine => Ok(self.shut_down(order).await?.bare()),
            Operation::InitializeMachine => Ok(self.initialize(order).await?.bare()),
            Operation::GetVolumeIds => {
                let own = &self.shared.config.persistent_volumes.own;
                let specs = own.iter().map(|volume| volume.spec.clone()).collect();
                Ok(self.volume_ids(specs).await?.bare())
            }
            Operation::UpdateMachine
            | Operation::GenerateMachineClassForMigration
            | Operation::ListZones
            | Operation::DescribeClass
            | Operation::Probe
            | Operation::GetPluginInfo
            | Operation::GetPluginCapabilities => Err(Halt::Failed(format!(
                "the suite can't make {operation} of a machine alone"
            ))),
        }
    }

    async fn call<T: Said>(
        &self,
        operation: Operation,
        order: &Order,
        call: impl Future<Output = driver::Result<T>>,
    ) -> Outcome<Answer<T>> {
        let about = format!("machine `{}` of cluster `{}`", order.name, order.cluster());
        self.timed(operation, about, &order.class.secrets, call).await
    }

    /// Makes any call, within the limit, and lets the judge look at the answer.
    ///
    /// # Errors
    /// [`Halt::Failed`] when the call hangs.
    pub async fn timed<T: Said>(
        &self,
        operation: Operation,
        about: String,
        secrets: &Secrets,
        call: impl Future<Output = driver::Result<T>>,
    ) -> Outcome<Answer<T>> {
        let limit = self.shared.config.call_limit();
        let Ok(result) = tokio::time::timeout(limit, call).await else {
            return Err(Halt::Failed(format!(
                "{operation} of {about} did not answer within {} s",
                limit.as_secs_f64()
            )));
        };
        self.shared.judge.look(operation, secrets, &result);
        Ok(Answer {
            operation,
            about,
            result,
        })
    }

    /// Makes a VM that is ready to be used: created, and initialized where the driver does that.
    ///
    /// # Errors
    /// [`Halt::Failed`] when it can't be made.
    pub async fn make(&self, order: &Order) -> Outcome<Machine> {
        let machine = self.create(order).await?.ok()?;
        if self.offers(Operation::InitializeMachine) {
            let until = tokio::time::Instant::now() + self.shared.config.call_limit();
            while self
                .initialize(order)
                .await?
                .ok_or(&[Code::Uninitialized, Code::Aborted, Code::NotFound])?
                .is_none()
            {
                ensure(tokio::time::Instant::now() < until, || {
                    format!("machine `{}` was not initialized in time", order.name)
                })?;
                tokio::time::sleep(PATIENCE).await;
            }
        }
        self.settle().await;
        Ok(machine)
    }

    /// Waits as long as the driver says that the back end may answer with the state of before.
    pub async fn settle(&self) {
        let window = self.shared.capabilities.consistency_window;
        if !window.is_zero() {
            tokio::time::sleep(window).await;
        }
    }

    /// Deletes until the driver answers OK: ABORTED means that it is under way.
    ///
    /// # Errors
    /// [`Halt::Failed`] on every other answer, or when it takes too long.
    pub async fn remove(&self, order: &Order, id: Option<&ProviderId>) -> Outcome {
        let until = tokio::time::Instant::now() + self.shared.config.call_limit();
        loop {
            if self.delete(order, id).await?.ok_or(&[Code::Aborted])?.is_some() {
                return Ok(());
            }
            ensure(tokio::time::Instant::now() < until, || {
                format!("DeleteMachine of `{}` still answers ABORTED", order.name)
            })?;
            tokio::time::sleep(PATIENCE).await;
        }
    }

    /// The VM as it can be seen: by GetMachineStatus or, where there is none, by ListMachines.
    ///
    /// # Errors
    /// [`Halt::Skipped`] when the driver offers neither; [`Halt::Failed`] when it can't answer.
    pub async fn seen(&self, order: &Order) -> Outcome<Option<ProviderId>> {
        if self.offers(Operation::GetMachineStatus) {
            let answer = self.status(order, None).await?;
            if let Err(status) = &answer.result
                && status.code() == Code::Uninitialized
                && let Some(machine) = status.machine()
            {
                return Ok(Some(machine.provider_id.clone()));
            }
            let found = answer.ok_or(&[Code::NotFound])?;
            return Ok(found.map(|machine| machine.provider_id));
        }
        if self.offers(Operation::ListMachines) {
            let listed = self.list(order).await?.ok()?;
            let found = listed.into_iter().find(|vm| vm.machine_name == order.name);
            return Ok(found.map(|vm| vm.provider_id));
        }
        Err(Halt::Skipped(
            "the driver offers neither GetMachineStatus nor ListMachines, so nothing can be seen".to_owned(),
        ))
    }

    /// Fails unless the VM is there, with this id.
    ///
    /// # Errors
    /// [`Halt`] as of [`Trial::seen`], and when it is not there.
    pub async fn is_there(&self, order: &Order, id: &ProviderId) -> Outcome {
        let seen = self.seen(order).await?;
        ensure(seen.as_ref() == Some(id), || {
            let seen = seen.map_or_else(|| "gone".to_owned(), |id| format!("`{id}`"));
            format!("the VM of `{}` has to be `{id}`, and is {seen}", order.name)
        })
    }

    /// Fails unless the order's cluster has exactly these VMs. Without ListMachines there is nothing to compare.
    ///
    /// # Errors
    /// [`Halt::Failed`] with what there is.
    pub async fn has_exactly(&self, order: &Order, wanted: &[(&Order, &ProviderId)]) -> Outcome {
        if !self.offers(Operation::ListMachines) {
            return Ok(());
        }
        let mut wanted: Vec<_> = wanted
            .iter()
            .map(|(order, id)| (order.name.clone(), (*id).clone()))
            .collect();
        let listed = self.list(order).await?.ok()?;
        let mut found: Vec<_> = listed
            .into_iter()
            .map(|vm| (vm.machine_name, vm.provider_id))
            .collect();
        wanted.sort();
        found.sort();
        ensure(found == wanted, || {
            format!(
                "cluster `{}` has to have the VMs {}, and has {}",
                order.cluster(),
                written(&wanted),
                written(&found)
            )
        })
    }

    /// Fails unless the order's cluster has no VM at all.
    ///
    /// # Errors
    /// [`Halt::Failed`] with what there is.
    pub async fn has_none(&self, order: &Order) -> Outcome {
        self.has_exactly(order, &[]).await
    }

    /// Where a secret came back so far, in this case or another.
    pub fn leaks(&self) -> Vec<String> {
        let violations = self.shared.judge.violations().into_iter();
        violations
            .filter(|violation| violation.rules == SECRET_RULES)
            .map(|violation| violation.message)
            .collect()
    }

    /// Pulls a hook that is about nothing.
    ///
    /// # Errors
    /// [`Halt::Failed`] when the hook does not work.
    pub async fn pull(&self, pull: Pull) -> Outcome<Vec<u8>> {
        let name = pull.hook;
        let pulled = self.shared.hooks.pull(&pull).await;
        pulled.map_err(|error| Halt::Failed(format!("the hook `{name}` does not work: {error:#}")))
    }

    /// Pulls a hook that is about a machine.
    ///
    /// # Errors
    /// [`Halt::Failed`] when the hook does not work.
    pub async fn pull_on(&self, hook: Hook, order: &Order) -> Outcome<Vec<u8>> {
        self.pull(Pull {
            machine: order.name.clone(),
            cluster: order.cluster(),
            identity: order.tag(tags::MACHINE),
            ..Pull::new(hook)
        })
        .await
    }

    /// Undoes every hook that lasts.
    ///
    /// # Errors
    /// [`Halt::Failed`] when the hook does not work.
    pub async fn restore(&self) -> Outcome {
        self.pull(Pull::new(Hook::Restore)).await.map(|_| ())
    }
}

fn written(vms: &[(String, ProviderId)]) -> String {
    let vms: Vec<_> = vms.iter().map(|(name, id)| format!("{name} = {id}")).collect();
    format!("[{}]", vms.join(", "))
}
