//! The MachineExtension service.

use tonic::{Request, Response, Status};

use super::plugin::Plugin;
use crate::convert::PageRequest;
use crate::proto::capcmi::v1::machine_extension_server::MachineExtension;
use crate::proto::capcmi::v1::{
    DescribeClassRequest, DescribeClassResponse, GenerateMachineClassForMigrationRequest,
    GenerateMachineClassForMigrationResponse, GetExtensionCapabilitiesRequest,
    GetExtensionCapabilitiesResponse, GetMachineRequest, InitializeMachineRequest, ListMachinesPagedRequest,
    ListMachinesPagedResponse, ListZonesRequest, ListZonesResponse, Machine, UpdateMachineRequest,
    UpdateMachineResponse,
};
use cmi_driver::Operation;

#[tonic::async_trait]
impl MachineExtension for Plugin {
    async fn get_extension_capabilities(
        &self,
        _request: Request<GetExtensionCapabilitiesRequest>,
    ) -> Result<Response<GetExtensionCapabilitiesResponse>, Status> {
        let declaration = self.declaration().await?;
        Ok(Response::new(declaration.extension.unwrap_or_default()))
    }

    async fn initialize_machine(
        &self,
        request: Request<InitializeMachineRequest>,
    ) -> Result<Response<Machine>, Status> {
        let machine = self
            .call(
                Operation::InitializeMachine,
                request,
                |driver, request| async move { driver.initialize_machine(request).await },
            )
            .await?;
        Ok(Response::new(machine.into()))
    }

    async fn update_machine(
        &self,
        request: Request<UpdateMachineRequest>,
    ) -> Result<Response<UpdateMachineResponse>, Status> {
        self.call(Operation::UpdateMachine, request, |driver, request| async move {
            driver.update_machine(request).await
        })
        .await?;
        Ok(Response::new(UpdateMachineResponse {}))
    }

    async fn generate_machine_class_for_migration(
        &self,
        request: Request<GenerateMachineClassForMigrationRequest>,
    ) -> Result<Response<GenerateMachineClassForMigrationResponse>, Status> {
        let class = self
            .call(
                Operation::GenerateMachineClassForMigration,
                request,
                |driver, request| async move { driver.generate_machine_class(request).await },
            )
            .await?;
        Ok(Response::new(class.into()))
    }

    async fn get_machine(&self, request: Request<GetMachineRequest>) -> Result<Response<Machine>, Status> {
        let machine = self
            .call(
                Operation::GetMachineStatus,
                request,
                |driver, request| async move { driver.get_machine_status(request).await },
            )
            .await?;
        Ok(Response::new(machine.into()))
    }

    async fn list_machines_paged(
        &self,
        request: Request<ListMachinesPagedRequest>,
    ) -> Result<Response<ListMachinesPagedResponse>, Status> {
        let page = self
            .call(
                Operation::ListMachines,
                request,
                |driver, request: PageRequest| async move {
                    let place = request.place().map_err(|error| error.in_request())?;
                    Ok(place.cut(driver.list_machines(request.list).await?))
                },
            )
            .await?;
        Ok(Response::new(page.into()))
    }

    async fn list_zones(
        &self,
        request: Request<ListZonesRequest>,
    ) -> Result<Response<ListZonesResponse>, Status> {
        let zones = self
            .call(
                Operation::ListZones,
                request,
                |driver, class: cmi_driver::MachineClass| async move { driver.zones(class).await },
            )
            .await?;
        Ok(Response::new(zones.into()))
    }

    async fn describe_class(
        &self,
        request: Request<DescribeClassRequest>,
    ) -> Result<Response<DescribeClassResponse>, Status> {
        let description = self
            .call(
                Operation::DescribeClass,
                request,
                |driver, class: cmi_driver::MachineClass| async move { driver.describe_class(class).await },
            )
            .await?;
        Ok(Response::new(description.into()))
    }
}
