//! The Machine service.

use tonic::{Request, Response, Status};

use super::plugin::Plugin;
use super::trailing;
use crate::proto::cmi::v1::machine_server::Machine;
use crate::proto::cmi::v1::{
    CreateMachineRequest, CreateMachineResponse, DeleteMachineRequest, DeleteMachineResponse,
    GetMachineStatusRequest, GetMachineStatusResponse, GetVolumeIDsRequest, GetVolumeIDsResponse,
    ListMachinesRequest, ListMachinesResponse, ShutDownMachineRequest, ShutDownMachineResponse,
};
use crate::trailers;
use cmi_driver::Operation;

/// A response of a machine, with all that it has no room for in the trailers.
fn with_machine<Wire: From<cmi_driver::Machine>>(machine: cmi_driver::Machine) -> Response<Wire> {
    let metadata = trailers::beside(machine.clone());
    trailing::beside(Response::new(machine.into()), metadata)
}

#[tonic::async_trait]
impl Machine for Plugin {
    async fn create_machine(
        &self,
        request: Request<CreateMachineRequest>,
    ) -> Result<Response<CreateMachineResponse>, Status> {
        let machine = self
            .call(Operation::CreateMachine, request, |driver, request| async move {
                driver.create_machine(request).await
            })
            .await?;
        Ok(with_machine(machine))
    }

    async fn delete_machine(
        &self,
        request: Request<DeleteMachineRequest>,
    ) -> Result<Response<DeleteMachineResponse>, Status> {
        let deleted = self
            .call(Operation::DeleteMachine, request, |driver, request| async move {
                driver.delete_machine(request).await
            })
            .await?;
        Ok(Response::new(deleted.into()))
    }

    async fn get_machine_status(
        &self,
        request: Request<GetMachineStatusRequest>,
    ) -> Result<Response<GetMachineStatusResponse>, Status> {
        let machine = self
            .call(
                Operation::GetMachineStatus,
                request,
                |driver, request| async move { driver.get_machine_status(request).await },
            )
            .await?;
        Ok(with_machine(machine))
    }

    async fn list_machines(
        &self,
        request: Request<ListMachinesRequest>,
    ) -> Result<Response<ListMachinesResponse>, Status> {
        let machines = self
            .call(Operation::ListMachines, request, |driver, request| async move {
                driver.list_machines(request).await
            })
            .await?;
        Ok(Response::new(machines.into()))
    }

    async fn shut_down_machine(
        &self,
        request: Request<ShutDownMachineRequest>,
    ) -> Result<Response<ShutDownMachineResponse>, Status> {
        let shut_down = self
            .call(
                Operation::ShutDownMachine,
                request,
                |driver, request| async move { driver.shut_down_machine(request).await },
            )
            .await?;
        Ok(Response::new(shut_down.into()))
    }

    async fn get_volume_i_ds(
        &self,
        request: Request<GetVolumeIDsRequest>,
    ) -> Result<Response<GetVolumeIDsResponse>, Status> {
        let ids = self
            .call(Operation::GetVolumeIds, request, |driver, request| async move {
                driver.get_volume_ids(request).await
            })
            .await?;
        Ok(Response::new(ids.into()))
    }
}
