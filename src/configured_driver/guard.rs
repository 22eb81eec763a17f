//! A driver behind the rules that are the same for all.
//!
//! In this order: leadership, capabilities, the circuit breaker (creates alone), the driver's rate, and
//! then the breaker and leadership again, since the wait may have been long. How many calls run at once is
//! for [`super::Permit`] to say.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value};

use super::Limits;
use super::breaker::{Breakers, ClassKey, CredentialsKey, TrialReason};
use super::bucket::TokenBucket;
use super::caller::Caller;
use super::permits::Waker;
use super::prober::Prober;
use cmi_driver::{
    Capabilities, ClassDescription, CreateMachineRequest, DeleteMachineRequest, DeleteMachineResponse,
    Driver, GenerateMachineClassRequest, GetMachineStatusRequest, GetVolumeIdsRequest,
    InitializeMachineRequest, ListMachinesRequest, ListedMachine, Machine, MachineClass, Operation,
    PluginInfo, Readiness, Result, Secrets, ShutDownMachineRequest, ShutDownMachineResponse, Status,
    UpdateMachineRequest, Zone,
};

/// A driver behind the rules that are the same for all.
#[derive(Debug)]
pub(super) struct GuardedDriver {
    caller: Caller,
    prober: Arc<Prober>,
    breakers: Breakers,
    tokens: TokenBucket,
}

impl GuardedDriver {
    pub(super) fn new(caller: Caller, prober: Arc<Prober>, limits: &Limits) -> Self {
        Self {
            caller,
            prober,
            breakers: Breakers::default(),
            tokens: TokenBucket::new(limits.calls_per_second, limits.burst),
        }
    }

    /// Whether the call may be made at all; it has not waited for the driver's rate yet.
    async fn admit(&self, operation: Operation) -> Result<Arc<Capabilities>> {
        self.caller.check_leadership()?;
        let capabilities = self.prober.capabilities().await.map_err(Status::never_sent)?;
        if capabilities.offers(operation) {
            Ok(capabilities)
        } else {
            Err(Status::unimplemented(operation).never_sent())
        }
    }

    /// Whether `uid` may go on to a create of this class; else `waker` is called when there
    /// may be room. Makes no call.
    pub(super) fn allows(&self, class: &MachineClass, uid: &str, trial: TrialReason, waker: Waker) -> bool {
        let key = self.key(class);
        let allows = self.breakers.allows(&key, uid, trial);
        if !allows {
            self.breakers.wait(&key, uid, waker);
        }
        allows
    }

    /// Calls `waker` when there may be room for a create of this class that was refused.
    pub(super) fn await_capacity(&self, class: &MachineClass, uid: &str, waker: Waker) {
        self.breakers.wait(&self.key(class), uid, waker);
    }

    /// A VM that was made with these credentials is gone: there may be room for others.
    pub(super) fn note_gone(&self, secrets: &Secrets) {
        self.breakers.on_freed(&CredentialsKey::of(secrets));
    }

    pub(super) fn breakers(&self) -> &Breakers {
        &self.breakers
    }

    fn key(&self, class: &MachineClass) -> ClassKey {
        let known = self.prober.last_known();
        match &known {
            Some(capabilities) => ClassKey::of(class, &capabilities.tag_path),
            None => ClassKey::of(class, &Capabilities::minimal().tag_path),
        }
    }

    /// A call that is no create: no breaker holds it back.
    async fn call<T, F>(
        &self,
        operation: Operation,
        secrets: Secrets,
        run: impl FnOnce(Arc<dyn Driver>) -> F + Send,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        self.admit(operation).await?;
        self.at_its_rate(operation, &secrets, || Ok(()), run).await
    }

    /// Waits for the driver's rate, looks whether the call is `still_wanted`, and makes it.
    async fn at_its_rate<T, F>(
        &self,
        operation: Operation,
        secrets: &Secrets,
        still_wanted: impl FnOnce() -> Result<()> + Send,
        run: impl FnOnce(Arc<dyn Driver>) -> F + Send,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        self.tokens.take().await;
        still_wanted()?;
        let answer = self.caller.call(operation, secrets, run).await;
        self.prober.note(&answer);
        answer
    }
}

#[async_trait]
impl Driver for GuardedDriver {
    fn connection_generation(&self) -> u64 {
        self.caller.driver.connection_generation()
    }

    async fn info(&self) -> Result<PluginInfo> {
        self.caller
            .call(
                Operation::GetPluginInfo,
                &Secrets::default(),
                |driver| async move { driver.info().await },
            )
            .await
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        self.caller.check_leadership()?;
        Ok(Capabilities::clone(&*self.prober.capabilities().await?))
    }

    async fn probe(&self) -> Result<Readiness> {
        self.caller
            .call(Operation::Probe, &Secrets::default(), |driver| async move {
                driver.probe().await
            })
            .await
    }

    async fn prepare_create(&self, class: &MachineClass) -> Result<()> {
        self.admit(Operation::CreateMachine).await?;
        self.caller.driver.prepare_create(class).await
    }

    async fn create_machine(&self, request: CreateMachineRequest) -> Result<Machine> {
        let operation = Operation::CreateMachine;
        let capabilities = self.admit(operation).await?;
        let key = ClassKey::of(&request.class, &capabilities.tag_path);
        let attempt = self.breakers.attempt(&key)?;
        let secrets = request.class.secrets.clone();
        let answer = self
            .at_its_rate(
                operation,
                &secrets,
                || attempt.check(),
                |driver| async move { driver.create_machine(request).await },
            )
            .await;
        attempt.record(&answer);
        answer
    }

    async fn delete_machine(&self, request: DeleteMachineRequest) -> Result<DeleteMachineResponse> {
        let secrets = request.class.secrets.clone();
        self.call(Operation::DeleteMachine, secrets, |driver| async move {
            driver.delete_machine(request).await
        })
        .await
    }

    async fn get_machine_status(&self, request: GetMachineStatusRequest) -> Result<Machine> {
        let secrets = request.class.secrets.clone();
        self.call(Operation::GetMachineStatus, secrets, |driver| async move {
            driver.get_machine_status(request).await
        })
        .await
    }

    async fn list_machines(&self, request: ListMachinesRequest) -> Result<Vec<ListedMachine>> {
        let secrets = request.class.secrets.clone();
        self.call(Operation::ListMachines, secrets, |driver| async move {
            driver.list_machines(request).await
        })
        .await
    }

    async fn initialize_machine(&self, request: InitializeMachineRequest) -> Result<Machine> {
        let operation = Operation::InitializeMachine;
        let capabilities = self.admit(operation).await?;
        let key = ClassKey::of(&request.class, &capabilities.tag_path);
        let secrets = request.class.secrets.clone();
        let answer = self
            .at_its_rate(
                operation,
                &secrets,
                || Ok(()),
                |driver| async move { driver.initialize_machine(request).await },
            )
            .await;
        if let Err(status) = &answer {
            self.breakers.note_failure(&key, status);
        }
        answer
    }

    async fn shut_down_machine(&self, request: ShutDownMachineRequest) -> Result<ShutDownMachineResponse> {
        let secrets = request.class.secrets.clone();
        self.call(Operation::ShutDownMachine, secrets, |driver| async move {
            driver.shut_down_machine(request).await
        })
        .await
    }

    async fn update_machine(&self, request: UpdateMachineRequest) -> Result<()> {
        let secrets = request.class.secrets.clone();
        self.call(Operation::UpdateMachine, secrets, |driver| async move {
            driver.update_machine(request).await
        })
        .await
    }

    async fn get_volume_ids(&self, request: GetVolumeIdsRequest) -> Result<Vec<String>> {
        self.call(Operation::GetVolumeIds, Secrets::default(), |driver| async move {
            driver.get_volume_ids(request).await
        })
        .await
    }

    async fn generate_machine_class(
        &self,
        request: GenerateMachineClassRequest,
    ) -> Result<Map<String, Value>> {
        let operation = Operation::GenerateMachineClassForMigration;
        self.call(operation, Secrets::default(), |driver| async move {
            driver.generate_machine_class(request).await
        })
        .await
    }

    async fn zones(&self, class: MachineClass) -> Result<Vec<Zone>> {
        let secrets = class.secrets.clone();
        self.call(Operation::ListZones, secrets, |driver| async move {
            driver.zones(class).await
        })
        .await
    }

    async fn describe_class(&self, class: MachineClass) -> Result<ClassDescription> {
        let secrets = class.secrets.clone();
        self.call(Operation::DescribeClass, secrets, |driver| async move {
            driver.describe_class(class).await
        })
        .await
    }
}
