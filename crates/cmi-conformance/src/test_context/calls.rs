//! The calls of the driver contract, on the machines of a case. One that hangs is a [`CaseError::Failed`].

use std::future::Future;

use super::TestContext;
use crate::answer::{Answer, CaseError, CaseResult};
use crate::answer_checker::Texts;
use crate::machine_request::MachineRequest;
use cmi_driver::{
    self, ClassDescription, Code, CreateMachineRequest, DeleteMachineRequest, DeleteMachineResponse,
    DescribeClassRequest, GenerateMachineClassForMigrationRequest, GetMachineStatusRequest,
    GetVolumeIdsRequest, InitializeMachineRequest, LastKnownState, ListMachinesRequest, ListZonesRequest,
    ListedMachine, Machine, MachineClass, Operation, ProviderId, Request, RestartMachineRequest, Secrets,
    ShutDownMachineRequest, ShutDownMachineResponse, UpdateMachineRequest, Zone,
};

/// What a call about no machine is about.
const CLASS: &str = "a class";

impl TestContext {
    /// Creates.
    pub async fn create(&self, machine_request: &MachineRequest) -> CaseResult<Answer<Machine>> {
        self.create_with(machine_request, None).await
    }

    /// Creates with a LastKnownState. Code 17 with its machine is as good as OK where there is an
    /// InitializeMachine: the VM is there (INI-18).
    pub async fn create_with(
        &self,
        machine_request: &MachineRequest,
        last_known_state: Option<LastKnownState>,
    ) -> CaseResult<Answer<Machine>> {
        let tracked = self.with_own_secrets(machine_request);
        self.goes_on()?;
        // What is never sent makes no VM.
        if self.shared.liveness.is_gone() {
            self.is_back().await?;
        }
        self.tracker.record_request(&tracked);
        let request = CreateMachineRequest {
            machine: machine_request.reference(),
            last_known_state,
        };
        let mut answer = self.of_machine(machine_request, request).await?;
        self.tracker.answered(&tracked, &answer.result);
        if let Err(status) = &answer.result
            && status.code() == Code::Uninitialized
            && self.supports(Operation::InitializeMachine)
            && let Some(machine) = status.machine()
        {
            answer.result = Ok(machine.clone());
        }
        Ok(answer)
    }

    /// Deletes, with the provider id when it is given.
    pub async fn delete(
        &self,
        machine_request: &MachineRequest,
        id: Option<&ProviderId>,
    ) -> CaseResult<Answer<DeleteMachineResponse>> {
        let request = DeleteMachineRequest {
            machine: machine_request.reference(),
            provider_id: id.cloned(),
            last_known_state: None,
        };
        self.of_machine(machine_request, request).await
    }

    /// Reads, with the provider id when it is given.
    pub async fn status(
        &self,
        machine_request: &MachineRequest,
        id: Option<&ProviderId>,
    ) -> CaseResult<Answer<Machine>> {
        let request = GetMachineStatusRequest {
            machine: machine_request.reference(),
            provider_id: id.cloned(),
        };
        self.of_machine(machine_request, request).await
    }

    /// Lists the VMs of the request's cluster.
    pub async fn list(&self, machine_request: &MachineRequest) -> CaseResult<Answer<Vec<ListedMachine>>> {
        let request = ListMachinesRequest {
            class: machine_request.class.clone(),
        };
        self.of_machine(machine_request, request).await
    }

    /// Shuts down.
    pub async fn shut_down(
        &self,
        machine_request: &MachineRequest,
    ) -> CaseResult<Answer<ShutDownMachineResponse>> {
        let request = ShutDownMachineRequest {
            machine: machine_request.reference(),
            provider_id: None,
            last_known_state: None,
        };
        self.of_machine(machine_request, request).await
    }

    /// Initializes, with the provider id when it is given.
    pub async fn initialize(
        &self,
        machine_request: &MachineRequest,
        id: Option<&ProviderId>,
    ) -> CaseResult<Answer<Machine>> {
        let request = InitializeMachineRequest {
            machine: machine_request.reference(),
            provider_id: id.cloned(),
            last_known_state: None,
        };
        let answer = self.of_machine(machine_request, request).await?;
        if let Ok(machine) = &answer.result {
            let id = Some(machine.provider_id.clone());
            self.made(machine_request, id, machine.last_known_state.clone());
        }
        Ok(answer)
    }

    /// Updates from one spec to another.
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
        self.of_machine(to, request).await
    }

    /// Restarts.
    pub async fn restart(&self, machine_request: &MachineRequest, id: &ProviderId) -> CaseResult<Answer<()>> {
        let request = RestartMachineRequest {
            machine: machine_request.reference(),
            provider_id: id.clone(),
            last_known_state: None,
        };
        self.of_machine(machine_request, request).await
    }

    /// Asks for volume ids. An empty list may be refused as one that is missing (CMI-150),
    /// and has no ids either way.
    pub async fn volume_ids(&self, pv_specs: Vec<serde_json::Value>) -> CaseResult<Answer<Vec<String>>> {
        let about = format!("{} PersistentVolume specs", pv_specs.len());
        let none = pv_specs.is_empty();
        let mut answer = self.send(about, GetVolumeIdsRequest { pv_specs }).await?;
        if none && answer.code() == Some(Code::InvalidArgument) {
            answer.result = Ok(Vec::new());
        }
        Ok(answer)
    }

    /// Asks for the failure domains of a class.
    pub async fn zones(&self, class: MachineClass) -> CaseResult<Answer<Vec<Zone>>> {
        self.send(CLASS, ListZonesRequest { class }).await
    }

    /// Asks what a machine of a class has.
    pub async fn describe_class(&self, class: MachineClass) -> CaseResult<Answer<ClassDescription>> {
        self.send(CLASS, DescribeClassRequest { class }).await
    }

    /// Converts a class.
    pub async fn migrate(
        &self,
        request: GenerateMachineClassForMigrationRequest,
    ) -> CaseResult<Answer<serde_json::Map<String, serde_json::Value>>> {
        self.send(CLASS, request).await
    }

    /// Makes a call about a machine, its cluster or its class, by the operation's name; what it answers
    /// besides its code does not matter.
    ///
    /// # Errors
    /// [`CaseError::Failed`] when the call hangs, or is about none of them.
    pub async fn invoke(
        &self,
        operation: Operation,
        machine_request: &MachineRequest,
    ) -> CaseResult<Answer<()>> {
        match operation {
            Operation::CreateMachine => Ok(self.create(machine_request).await?.bare()),
            Operation::DeleteMachine => Ok(self.delete(machine_request, None).await?.bare()),
            Operation::GetMachineStatus => Ok(self.status(machine_request, None).await?.bare()),
            Operation::ListMachines => Ok(self.list(machine_request).await?.bare()),
            Operation::ShutDownMachine => Ok(self.shut_down(machine_request).await?.bare()),
            Operation::InitializeMachine => Ok(self.initialize(machine_request, None).await?.bare()),
            Operation::GetVolumeIds => {
                let own = &self.shared.config.persistent_volumes.own;
                let specs = own.iter().map(|volume| volume.spec.clone()).collect();
                Ok(self.volume_ids(specs).await?.bare())
            }
            Operation::ListZones => Ok(self.zones(self.sample()).await?.bare()),
            Operation::DescribeClass => Ok(self.describe_class(self.sample()).await?.bare()),
            Operation::UpdateMachine
            | Operation::RestartMachine
            | Operation::GenerateMachineClassForMigration
            | Operation::Probe
            | Operation::GetPluginInfo
            | Operation::GetPluginCapabilities => Err(CaseError::Failed(format!(
                "the suite can't make {operation} of a machine alone"
            ))),
        }
    }

    /// The same of a machine whose VM has this id, for calls that can't be made without it, too. An update
    /// leads from the request to itself.
    ///
    /// # Errors
    /// [`CaseError::Failed`] when the call hangs, or is not about machines.
    pub async fn invoke_on(
        &self,
        operation: Operation,
        machine_request: &MachineRequest,
        id: &ProviderId,
    ) -> CaseResult<Answer<()>> {
        match operation {
            Operation::UpdateMachine => self.update(machine_request, machine_request, id).await,
            Operation::RestartMachine => self.restart(machine_request, id).await,
            Operation::InitializeMachine => Ok(self.initialize(machine_request, Some(id)).await?.bare()),
            _ => self.invoke(operation, machine_request).await,
        }
    }

    async fn of_machine<Q>(
        &self,
        machine_request: &MachineRequest,
        request: Q,
    ) -> CaseResult<Answer<Q::Response>>
    where
        Q: Request<Response: Texts>,
    {
        let about = format!(
            "machine `{}` of cluster `{}`",
            machine_request.name,
            machine_request.cluster()
        );
        let answer = self.send(about, request).await?;
        self.shared.liveness.observe(&answer.result);
        Ok(answer)
    }

    async fn send<Q>(&self, about: impl Into<String>, request: Q) -> CaseResult<Answer<Q::Response>>
    where
        Q: Request<Response: Texts>,
    {
        let secrets = request.secrets();
        let call = request.send(&*self.shared.target.driver);
        self.timed(Q::OPERATION, about.into(), &secrets, call).await
    }

    /// Makes any call, within the limit, and has the answer checked.
    ///
    /// # Errors
    /// [`CaseError::Failed`] when the call hangs; [`CaseError::Skipped`] when the run is to end early.
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
            Err(status) => self.was_refused(&what, status.code()),
        }
        match &result {
            Err(status) if status.code() == Code::Unavailable => {
                self.is_alive(&what, &format!("it answered {status}")).await?;
            }
            Ok(_) | Err(_) => {}
        }
        self.shared.answer_checker.check(operation, secrets, &result);
        Ok(Answer {
            operation,
            about,
            result,
        })
    }
}
