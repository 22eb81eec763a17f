//! The calls of the driver contract, on the machines of a case.

use std::future::Future;

use super::Trial;
use crate::answer::{Answer, Halt, Outcome};
use crate::judge::Said;
use crate::order::Order;
use cmi_driver::{
    self, ClassDescription, Code, CreateMachineRequest, DeleteMachineRequest, DeleteMachineResponse,
    GenerateMachineClassRequest, GetMachineStatusRequest, GetVolumeIdsRequest, InitializeMachineRequest,
    LastKnownState, ListMachinesRequest, ListedMachine, Machine, MachineClass, Operation, ProviderId,
    Secrets, ShutDownMachineRequest, ShutDownMachineResponse, UpdateMachineRequest, Zone,
};

impl Trial {
    /// Creates.
    ///
    /// # Errors
    /// [`Halt::Failed`] when the call hangs; as for every call here.
    pub async fn create(&self, order: &Order) -> Outcome<Answer<Machine>> {
        self.create_with(order, None).await
    }

    /// Creates with a LastKnownState. Code 17 with its machine is as good as OK where there is an InitializeMachine: the VM
    /// is there (INI-18).
    ///
    /// # Errors
    /// [`Halt::Failed`] when the call hangs.
    pub async fn create_with(
        &self,
        order: &Order,
        last_known_state: Option<LastKnownState>,
    ) -> Outcome<Answer<Machine>> {
        let tracked = self.with_own_secrets(order);
        self.goes_on()?;
        self.tracker.asked(&tracked);
        let call = self.shared.target.driver.create_machine(CreateMachineRequest {
            machine_name: order.name.clone(),
            class: order.class.clone(),
            last_known_state,
        });
        let mut answer = self.call(Operation::CreateMachine, order, call).await?;
        self.tracker.answered(&tracked, &answer.result);
        if let Err(status) = &answer.result
            && status.code() == Code::Uninitialized
            && self.offers(Operation::InitializeMachine)
            && let Some(machine) = status.machine()
        {
            answer.result = Ok(machine.clone());
        }
        Ok(answer)
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
        let answer = self.call(Operation::InitializeMachine, order, call).await?;
        if let Ok(machine) = &answer.result {
            let id = Some(machine.provider_id.clone());
            self.made(order, id, machine.last_known_state.clone());
        }
        Ok(answer)
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

    /// Asks for volume ids. An empty list may be refused as one that is missing (CMI-150), and has no ids either way.
    ///
    /// # Errors
    /// [`Halt::Failed`] when the call hangs.
    pub async fn volume_ids(&self, pv_specs: Vec<serde_json::Value>) -> Outcome<Answer<Vec<String>>> {
        let about = format!("{} PersistentVolume specs", pv_specs.len());
        let none = pv_specs.is_empty();
        let call = self
            .shared
            .target
            .driver
            .get_volume_ids(GetVolumeIdsRequest { pv_specs });
        let mut answer = self
            .timed(Operation::GetVolumeIds, about, &Secrets::default(), call)
            .await?;
        if none && matches!(&answer.result, Err(status) if status.code() == Code::InvalidArgument) {
            answer.result = Ok(Vec::new());
        }
        Ok(answer)
    }

    /// Asks for the failure domains of the sample class.
    ///
    /// # Errors
    /// [`Halt::Failed`] when the call hangs.
    pub async fn zones(&self) -> Outcome<Answer<Vec<Zone>>> {
        let class = self.sample();
        let call = self.shared.target.driver.zones(class.clone());
        self.of_class(Operation::ListZones, &class, call).await
    }

    /// Asks what a machine of the sample class has.
    ///
    /// # Errors
    /// [`Halt::Failed`] when the call hangs.
    pub async fn describe_class(&self) -> Outcome<Answer<ClassDescription>> {
        let class = self.sample();
        let call = self.shared.target.driver.describe_class(class.clone());
        self.of_class(Operation::DescribeClass, &class, call).await
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

    /// Makes a call about a machine, its cluster or its class, by the operation's name; what it answers besides its code
    /// does not matter.
    ///
    /// # Errors
    /// [`Halt::Failed`] when the call hangs, or is about none of them.
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
            Operation::ListZones => Ok(self.zones().await?.bare()),
            Operation::DescribeClass => Ok(self.describe_class().await?.bare()),
            Operation::UpdateMachine
            | Operation::GenerateMachineClassForMigration
            | Operation::Probe
            | Operation::GetPluginInfo
            | Operation::GetPluginCapabilities => Err(Halt::Failed(format!(
                "the suite can't make {operation} of a machine alone"
            ))),
        }
    }

    async fn of_class<T: Said>(
        &self,
        operation: Operation,
        class: &MachineClass,
        call: impl Future<Output = cmi_driver::Result<T>>,
    ) -> Outcome<Answer<T>> {
        let about = "the sample class".to_owned();
        self.timed(operation, about, &class.secrets, call).await
    }

    async fn call<T: Said>(
        &self,
        operation: Operation,
        order: &Order,
        call: impl Future<Output = cmi_driver::Result<T>>,
    ) -> Outcome<Answer<T>> {
        let about = format!("machine `{}` of cluster `{}`", order.name, order.cluster());
        let answer = self.timed(operation, about, &order.class.secrets, call).await?;
        self.shared.reach.heard(&answer.result);
        Ok(answer)
    }

    /// Makes any call, within the limit, and lets the judge look at the answer.
    ///
    /// # Errors
    /// [`Halt::Failed`] when the call hangs; [`Halt::Skipped`] when the run is to end early.
    pub async fn timed<T: Said>(
        &self,
        operation: Operation,
        about: String,
        secrets: &Secrets,
        call: impl Future<Output = cmi_driver::Result<T>>,
    ) -> Outcome<Answer<T>> {
        self.goes_on()?;
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
}
