//! Every call, with the flaws that every call may have.

use std::sync::Arc;

use async_trait::async_trait;
use cmi_driver::{
    ClassDescription, Console, CreateMachineRequest, DeclaredCapabilities, DeleteMachineRequest,
    DeleteMachineResponse, DescribeClassRequest, Driver, GenerateMachineClassForMigrationRequest,
    GetConsoleRequest, GetMachineStatusRequest, GetVolumeIdsRequest, InitializeMachineRequest,
    ListMachinesRequest, ListZonesRequest, ListedMachine, Machine, MachineClass, Operation, PluginInfo,
    Readiness, RestartMachineRequest, Result, ShutDownMachineRequest, ShutDownMachineResponse, SpecSchema,
    UpdateMachineRequest, Zone,
};
use serde_json::{Map, Value, json};

use super::{Mutant, broken, made_up};
use crate::flaw::Flaw;

#[async_trait]
impl Driver for Mutant {
    async fn get_plugin_info(&self) -> Result<PluginInfo> {
        let mut info = self.inner.get_plugin_info().await?;
        match self.flaw {
            Flaw::InfoBadName => "_simulated_".clone_into(&mut info.name),
            Flaw::InfoLongName => info.name = "a".repeat(64),
            Flaw::InfoEmptyLabel => "simulated..capcmi.io".clone_into(&mut info.name),
            Flaw::InfoLongVersion => info.version = "1".repeat(129),
            Flaw::InfoNoVersion => info.version.clear(),
            Flaw::InfoNoHost => "simulated".clone_into(&mut info.name),
            Flaw::RestartNewName if self.inner.restarts() > 0 => info.name = format!("again.{}", info.name),
            Flaw::InfoHugeManifest => drop(info.manifest.insert("a".to_owned(), "b".repeat(5000))),
            _ => {}
        }
        Ok(info)
    }

    async fn get_plugin_capabilities(&self) -> Result<DeclaredCapabilities> {
        let declared = self.inner.get_plugin_capabilities().await?;
        let mut capabilities = Arc::unwrap_or_clone(declared.capabilities);
        match self.flaw {
            Flaw::Hides(operation) => drop(capabilities.operations.remove(&operation)),
            Flaw::CapabilitiesChange => capabilities.zones = self.turn().is_multiple_of(2),
            Flaw::CapabilitiesOfTheBackEnd => {
                let nothing = GetVolumeIdsRequest { pv_specs: Vec::new() };
                if self.inner.get_volume_ids(nothing).await.is_err() {
                    capabilities.hot_updatable.clear();
                }
            }
            Flaw::RestartNewCapabilities if self.inner.restarts() > 0 => {
                capabilities.operations.remove(&Operation::ShutDownMachine);
            }
            Flaw::SchemaRefusesTheSample => {
                capabilities.provider_spec_schema = Some(SpecSchema::new(json!({"required": ["colour"]})));
            }
            Flaw::SchemaIsNone => {
                capabilities.provider_spec_schema = Some(SpecSchema::new(json!({"type": 7})));
            }
            _ => {}
        }
        let offered = |operation: &Operation| self.offered.contains(operation);
        capabilities.operations.retain(offered);
        Ok(capabilities.into())
    }

    async fn probe(&self) -> Result<Readiness> {
        if self.flaw == Flaw::ProbeAsksTheBackEnd {
            let nothing = GetVolumeIdsRequest { pv_specs: Vec::new() };
            self.inner.get_volume_ids(nothing).await?;
        }
        let probed = self.inner.probe().await;
        let class = MachineClass::default();
        match (self.flaw, &probed) {
            (Flaw::RestartNeverReady, Ok(_)) if self.inner.restarts() > 0 => Ok(Readiness::NotReady),
            (Flaw::ProbeNeverReady, Ok(_)) => Ok(Readiness::NotReady),
            (Flaw::ProbeAlwaysReady, _) => Ok(Readiness::Ready),
            (Flaw::ProbeFailsWhileStarting, Ok(Readiness::NotReady)) => Err(broken("I am not there yet")),
            _ => {
                self.call(Operation::Probe, &class, "", async { probed }, || {
                    Readiness::Ready
                })
                .await
            }
        }
    }

    async fn create_machine(&self, mut request: CreateMachineRequest) -> Result<Machine> {
        self.misread(&mut request.machine);
        let (name, class) = (request.machine.name.clone(), request.machine.class.clone());
        let call = self.create(request);
        self.call(Operation::CreateMachine, &class, &name, call, || made_up(&name))
            .await
    }

    async fn delete_machine(&self, mut request: DeleteMachineRequest) -> Result<DeleteMachineResponse> {
        self.misread(&mut request.machine);
        let (name, class) = (request.machine.name.clone(), request.machine.class.clone());
        let call = self.delete(request);
        self.call(
            Operation::DeleteMachine,
            &class,
            &name,
            call,
            DeleteMachineResponse::default,
        )
        .await
    }

    async fn get_machine_status(&self, mut request: GetMachineStatusRequest) -> Result<Machine> {
        self.misread(&mut request.machine);
        let (name, class) = (request.machine.name.clone(), request.machine.class.clone());
        let call = self.status(request);
        self.call(Operation::GetMachineStatus, &class, &name, call, || {
            made_up(&name)
        })
        .await
    }

    async fn list_machines(&self, request: ListMachinesRequest) -> Result<Vec<ListedMachine>> {
        let class = request.class.clone();
        let call = self.list(request);
        self.call(Operation::ListMachines, &class, "list", call, Vec::new)
            .await
    }

    async fn initialize_machine(&self, mut request: InitializeMachineRequest) -> Result<Machine> {
        self.misread(&mut request.machine);
        let (name, class) = (request.machine.name.clone(), request.machine.class.clone());
        let call = self.initialize(request);
        self.call(Operation::InitializeMachine, &class, &name, call, || {
            made_up(&name)
        })
        .await
    }

    async fn shut_down_machine(&self, request: ShutDownMachineRequest) -> Result<ShutDownMachineResponse> {
        let (name, class) = (request.machine.name.clone(), request.machine.class.clone());
        let call = self.shut_down(request);
        self.call(
            Operation::ShutDownMachine,
            &class,
            &name,
            call,
            ShutDownMachineResponse::default,
        )
        .await
    }

    async fn update_machine(&self, mut request: UpdateMachineRequest) -> Result<()> {
        self.misread(&mut request.machine);
        let (name, class) = (request.machine.name.clone(), request.machine.class.clone());
        let call = self.update(request);
        self.call(Operation::UpdateMachine, &class, &name, call, || ())
            .await
    }

    async fn restart_machine(&self, mut request: RestartMachineRequest) -> Result<()> {
        self.misread(&mut request.machine);
        let (name, class) = (request.machine.name.clone(), request.machine.class.clone());
        let call = self.restart(request);
        self.call(Operation::RestartMachine, &class, &name, call, || ())
            .await
    }

    async fn get_console(&self, mut request: GetConsoleRequest) -> Result<Console> {
        self.misread(&mut request.machine);
        let (name, class) = (request.machine.name.clone(), request.machine.class.clone());
        let call = self.console_output(request);
        self.call(Operation::GetConsole, &class, &name, call, Console::default)
            .await
    }

    async fn get_volume_ids(&self, request: GetVolumeIdsRequest) -> Result<Vec<String>> {
        let class = MachineClass::default();
        let call = async {
            let ids = self.inner.get_volume_ids(request.clone()).await?;
            self.volumes(&request, ids)
        };
        self.call(Operation::GetVolumeIds, &class, "volumes", call, Vec::new)
            .await
    }

    async fn generate_machine_class_for_migration(
        &self,
        request: GenerateMachineClassForMigrationRequest,
    ) -> Result<Map<String, Value>> {
        let operation = Operation::GenerateMachineClassForMigration;
        let class = MachineClass::default();
        let found = request.machine_class.contains_key("provider");
        let call = async {
            let mut filled = self.inner.generate_machine_class_for_migration(request).await?;
            match self.flaw {
                Flaw::MigrateRenames => drop(filled.insert("metadata".to_owned(), json!({"name": "new"}))),
                Flaw::MigrateAdds if found => drop(filled.insert("again".to_owned(), json!(true))),
                _ => {}
            }
            Ok(filled)
        };
        self.call(operation, &class, "class", call, Map::new).await
    }

    async fn list_zones(&self, request: ListZonesRequest) -> Result<Vec<Zone>> {
        let class = request.class.clone();
        let call = self.failure_domains(request);
        self.call(Operation::ListZones, &class, "class", call, Vec::new)
            .await
    }

    async fn describe_class(&self, request: DescribeClassRequest) -> Result<ClassDescription> {
        let class = request.class.clone();
        let call = self.described(request);
        let nothing = ClassDescription::default;
        self.call(Operation::DescribeClass, &class, "class", call, nothing)
            .await
    }
}
