//! The calls of the driver contract, on the machines of a case. A call that hangs is a [`CaseError::Failed`].
//!
//! The table in `cmi-driver` has all calls; a row here has the request of the suite for each.

use std::future::Future;

use serde_json::{Map, Value};

use super::TestContext;
use crate::answer::{Answer, CaseError, CaseResult};
use crate::answer_checker::Texts;
use crate::machine_request::MachineRequest;
use cmi_driver::{
    self, Code, Console, CreateMachineRequest, DeleteMachineRequest, DeleteMachineResponse,
    DescribeClassRequest, GenerateMachineClassForMigrationRequest, GetConsoleRequest,
    GetMachineStatusRequest, GetVolumeIdsRequest, InitializeMachineRequest, LastKnownState,
    ListMachinesRequest, ListZonesRequest, ListedMachine, Machine, MachineRef, Operation, ProviderId,
    Request, RestartMachineRequest, Secrets, ShutDownMachineRequest, ShutDownMachineResponse,
    UpdateMachineRequest,
};

/// A driver call that the suite can make given only its operation.
trait SuiteCall: Request {
    /// Makes the call on a subject.
    fn on(subject: Subject<'_>) -> impl Future<Output = CaseResult<Answer<Self::Response>>> + Send;
}

/// The subject of a call.
#[derive(Clone, Copy)]
struct Subject<'a> {
    t: &'a TestContext,
    machine: &'a MachineRequest,
    id: Option<&'a ProviderId>,
}

macro_rules! suite_calls {
    ($on:ident: $($request:ident $fields:tt => $make:ident;)+) => {$(
        impl SuiteCall for $request {
            async fn on($on: Subject<'_>) -> CaseResult<Answer<Self::Response>> {
                $on.$make(Self $fields).await
            }
        }
    )+};
}

// A row for each call: the request of the suite, and the method of `Subject` that makes the call.
suite_calls! { on:
    CreateMachineRequest { machine: on.reference(), last_known_state: None } => create;
    InitializeMachineRequest { machine: on.reference(), provider_id: on.id(), last_known_state: None }
        => initialize;
    DeleteMachineRequest { machine: on.reference(), provider_id: on.id(), last_known_state: None }
        => of_machine;
    GetMachineStatusRequest { machine: on.reference(), provider_id: on.id() } => of_machine;
    ListMachinesRequest { class: on.machine.class.clone() } => of_machine;
    ShutDownMachineRequest { machine: on.reference(), provider_id: on.id(), last_known_state: None }
        => of_machine;
    UpdateMachineRequest {
        machine: on.reference(),
        provider_id: on.needed_id()?,
        last_applied_provider_spec: on.machine.class.provider_spec.clone(),
        last_known_state: None
    } => of_machine;
    RestartMachineRequest { machine: on.reference(), provider_id: on.needed_id()?, last_known_state: None }
        => of_machine;
    GetConsoleRequest { machine: on.reference(), provider_id: on.needed_id()? } => of_machine;
    GetVolumeIdsRequest { pv_specs: on.t.config().persistent_volumes.own_specs() } => of_volumes;
    GenerateMachineClassForMigrationRequest {
        provider_specific_machine_class: on.t.migration()?.class.clone(),
        machine_class: Map::new(),
        class_kind: on.t.migration()?.class_kind()
    } => of_class;
    ListZonesRequest { class: on.t.sample() } => of_class;
    DescribeClassRequest { class: on.t.sample() } => of_class;
}

/// Tries the call of an operation. A call without a row above does not compile here.
macro_rules! try_call {
    ([$operation:ident on $subject:ident] $(
        $(#[$doc:meta])* $call:ident $name:literal
            $method:ident($request:ident) -> $response:ty, $need:ident, $effect:ident, [$($class:ident).*];
    )+) => {
        match $operation {
            $(Operation::$call => Ok($request::on($subject).await?.bare()),)+
            Operation::Probe | Operation::GetPluginInfo | Operation::GetPluginCapabilities => {
                Err(CaseError::Failed(format!("{} is about no machine", $operation)))
            }
        }
    };
}

impl TestContext {
    /// Makes a call given its operation, on the machine's VM with this id, if given. An update has the
    /// request's spec before and after; a call about no machine uses the configuration's samples. The
    /// response is reduced to its code.
    ///
    /// # Errors
    /// [`CaseError::Failed`] when the call hangs, or needs an id that is not given.
    pub async fn invoke(
        &self,
        operation: Operation,
        machine: &MachineRequest,
        id: Option<&ProviderId>,
    ) -> CaseResult<Answer<()>> {
        let subject = self.subject(machine, id);
        cmi_driver::for_each_call!(try_call [operation on subject])
    }

    /// Creates the machine's VM.
    pub async fn create(&self, machine: &MachineRequest) -> CaseResult<Answer<Machine>> {
        CreateMachineRequest::on(self.subject(machine, None)).await
    }

    /// Creates the machine's VM with a LastKnownState.
    pub async fn create_with(
        &self,
        machine: &MachineRequest,
        last_known_state: Option<LastKnownState>,
    ) -> CaseResult<Answer<Machine>> {
        let request = CreateMachineRequest {
            machine: machine.reference(),
            last_known_state,
        };
        self.subject(machine, None).create(request).await
    }

    /// Deletes the machine's VM, with the provider id when it is given.
    pub async fn delete(
        &self,
        machine: &MachineRequest,
        id: Option<&ProviderId>,
    ) -> CaseResult<Answer<DeleteMachineResponse>> {
        DeleteMachineRequest::on(self.subject(machine, id)).await
    }

    /// Reads the status of the machine's VM, with the provider id when it is given.
    pub async fn status(
        &self,
        machine: &MachineRequest,
        id: Option<&ProviderId>,
    ) -> CaseResult<Answer<Machine>> {
        GetMachineStatusRequest::on(self.subject(machine, id)).await
    }

    /// Lists the VMs of the request's cluster.
    pub async fn list(&self, machine: &MachineRequest) -> CaseResult<Answer<Vec<ListedMachine>>> {
        ListMachinesRequest::on(self.subject(machine, None)).await
    }

    /// Shuts the machine's VM down.
    pub async fn shut_down(&self, machine: &MachineRequest) -> CaseResult<Answer<ShutDownMachineResponse>> {
        ShutDownMachineRequest::on(self.subject(machine, None)).await
    }

    /// Initializes the machine's VM, with the provider id when it is given.
    pub async fn initialize(
        &self,
        machine: &MachineRequest,
        id: Option<&ProviderId>,
    ) -> CaseResult<Answer<Machine>> {
        InitializeMachineRequest::on(self.subject(machine, id)).await
    }

    /// Updates the machine's VM from one spec to another.
    pub async fn update(
        &self,
        from: &MachineRequest,
        to: &MachineRequest,
        id: &ProviderId,
    ) -> CaseResult<Answer<()>> {
        let request = UpdateMachineRequest {
            machine: to.reference(),
            provider_id: id.clone(),
            last_applied_provider_spec: from.class.provider_spec.clone(),
            last_known_state: None,
        };
        self.subject(to, Some(id)).of_machine(request).await
    }

    /// Restarts the machine's VM.
    pub async fn restart(&self, machine: &MachineRequest, id: &ProviderId) -> CaseResult<Answer<()>> {
        RestartMachineRequest::on(self.subject(machine, Some(id))).await
    }

    /// Reads the console of the machine's VM.
    pub async fn console(&self, machine: &MachineRequest, id: &ProviderId) -> CaseResult<Answer<Console>> {
        GetConsoleRequest::on(self.subject(machine, Some(id))).await
    }

    /// Requests volume ids. The driver may refuse an empty list as missing (CMI-150): it has no ids either
    /// way.
    pub async fn volume_ids(&self, pv_specs: Vec<Value>) -> CaseResult<Answer<Vec<String>>> {
        let about = format!("{} PersistentVolume specs", pv_specs.len());
        let none = pv_specs.is_empty();
        let mut answer = self.send(about, GetVolumeIdsRequest { pv_specs }).await?;
        if none && answer.code() == Some(Code::InvalidArgument) {
            answer.result = Ok(Vec::new());
        }
        Ok(answer)
    }

    /// Makes a call about a class, not about a machine of it.
    pub async fn ask<Q>(&self, request: Q) -> CaseResult<Answer<Q::Response>>
    where
        Q: Request<Response: Texts>,
    {
        self.send("a class".to_owned(), request).await
    }

    fn subject<'a>(&'a self, machine: &'a MachineRequest, id: Option<&'a ProviderId>) -> Subject<'a> {
        Subject { t: self, machine, id }
    }

    async fn send<Q>(&self, about: String, request: Q) -> CaseResult<Answer<Q::Response>>
    where
        Q: Request<Response: Texts>,
    {
        let secrets = request.secrets();
        let call = request.send(&*self.shared.target.driver);
        self.timed(Q::OPERATION, about, &secrets, call).await
    }

    /// Makes any call within the limit, and checks the answer.
    ///
    /// # Errors
    /// [`CaseError::Failed`] when the call hangs; [`CaseError::Skipped`] when the run ends early.
    pub async fn timed<T: Texts>(
        &self,
        operation: Operation,
        about: String,
        secrets: &Secrets,
        call: impl Future<Output = cmi_driver::Result<T>>,
    ) -> CaseResult<Answer<T>> {
        let what = format!("{operation} of {about}");
        let result = self.watched(&what, call).await?;
        match &result {
            Ok(_) => self.answered_ok(&what),
            Err(status) => {
                self.was_refused(&what, status.code());
                if status.code() == Code::Unavailable {
                    self.is_alive(&what, &format!("it answered {status}")).await?;
                }
            }
        }
        self.shared.answer_checker.check(operation, secrets, &result);
        Ok(Answer {
            operation,
            about,
            result,
        })
    }
}

impl Subject<'_> {
    fn reference(&self) -> MachineRef {
        self.machine.reference()
    }

    fn id(&self) -> Option<ProviderId> {
        self.id.cloned()
    }

    /// Returns the id of the VM, for a call that requires it.
    fn needed_id(&self) -> CaseResult<ProviderId> {
        self.id()
            .ok_or_else(|| CaseError::failed("this call takes the id of a VM, and the case gives none"))
    }

    /// Creates the machine's VM, and records it in the tracker before the call. Code 17 with its machine
    /// counts as OK if the driver has InitializeMachine: the VM exists (INI-18).
    async fn create(self, request: CreateMachineRequest) -> CaseResult<Answer<Machine>> {
        let Self { t, machine, .. } = self;
        let tracked = t.with_own_secrets(machine);
        t.goes_on()?;
        // A call that is never sent creates no VM.
        if t.shared.liveness.is_gone() {
            t.is_back().await?;
        }
        t.tracker.record_request(&tracked);
        let mut answer = self.of_machine(request).await?;
        t.tracker.answered(&tracked, &answer.result);
        if let Err(status) = &answer.result
            && status.code() == Code::Uninitialized
            && t.supports(Operation::InitializeMachine)
            && let Some(machine) = status.machine()
        {
            answer.result = Ok(machine.clone());
        }
        Ok(answer)
    }

    /// Initializes the machine's VM, and records in the tracker that the VM exists.
    async fn initialize(self, request: InitializeMachineRequest) -> CaseResult<Answer<Machine>> {
        let answer = self.of_machine(request).await?;
        if let Ok(made) = &answer.result {
            let id = Some(made.provider_id.clone());
            self.t.made(self.machine, id, made.last_known_state.clone());
        }
        Ok(answer)
    }

    async fn of_machine<Q>(self, request: Q) -> CaseResult<Answer<Q::Response>>
    where
        Q: Request<Response: Texts>,
    {
        let (name, cluster) = (&self.machine.name, self.machine.cluster());
        let about = format!("machine `{name}` of cluster `{cluster}`");
        let answer = self.t.send(about, request).await?;
        self.t.shared.liveness.observe(&answer.result);
        Ok(answer)
    }

    async fn of_class<Q>(self, request: Q) -> CaseResult<Answer<Q::Response>>
    where
        Q: Request<Response: Texts>,
    {
        self.t.ask(request).await
    }

    async fn of_volumes(self, request: GetVolumeIdsRequest) -> CaseResult<Answer<Vec<String>>> {
        self.t.volume_ids(request.pv_specs).await
    }
}
