//! The Machine services.

use tonic::{Request, Response, Status};

use super::plugin::Plugin;
use super::reply;
use crate::convert::PageRequest;
use crate::proto::capcmi::v1::machine_extension_server::MachineExtension;
use crate::proto::cmi::v1::machine_server::Machine;
use crate::proto::{capcmi::v1 as capcmi, cmi::v1 as cmi};
use crate::{extension_rpcs, machine_rpcs};
use cmi_driver::{GetMachineStatusRequest, ListMachinesRequest};

/// Implements a service: each rpc of the table is a call of the driver.
macro_rules! service {
    ([$service:ident of $messages:ident { $($own:tt)* }] $(
        $driver:ident: $method:ident($request:ident $({ $($field:ident),+ })?)
            -> $response:ident, $reply:ident, $declared:ident;
    )+) => {
        #[tonic::async_trait]
        impl $service for Plugin {
            $($own)*

            $(
                async fn $method(
                    &self,
                    request: Request<$messages::$request>,
                ) -> Result<Response<$messages::$response>, Status> {
                    let answer = self.call::<_, cmi_driver::$driver>(request).await?;
                    Ok(reply::$reply(answer))
                }
            )+
        }
    };
}

machine_rpcs! {
    service [Machine of cmi {
        async fn get_machine_status(
            &self,
            request: Request<cmi::GetMachineStatusRequest>,
        ) -> Result<Response<cmi::GetMachineStatusResponse>, Status> {
            let machine = self.call::<_, GetMachineStatusRequest>(request).await?;
            Ok(reply::with_trailers(machine))
        }

        async fn list_machines(
            &self,
            request: Request<cmi::ListMachinesRequest>,
        ) -> Result<Response<cmi::ListMachinesResponse>, Status> {
            Ok(reply::plain(self.call::<_, ListMachinesRequest>(request).await?))
        }
    }]
}

extension_rpcs! {
    service [MachineExtension of capcmi {
        async fn get_extension_capabilities(
            &self,
            _request: Request<capcmi::GetExtensionCapabilitiesRequest>,
        ) -> Result<Response<capcmi::GetExtensionCapabilitiesResponse>, Status> {
            let declaration = self.declaration().await?;
            Ok(Response::new(declaration.extension.unwrap_or_default()))
        }

        async fn get_machine(
            &self,
            request: Request<capcmi::GetMachineRequest>,
        ) -> Result<Response<capcmi::Machine>, Status> {
            Ok(reply::plain(self.call::<_, GetMachineStatusRequest>(request).await?))
        }

        async fn list_machines_paged(
            &self,
            request: Request<capcmi::ListMachinesPagedRequest>,
        ) -> Result<Response<capcmi::ListMachinesPagedResponse>, Status> {
            Ok(reply::plain(self.call::<_, PageRequest>(request).await?))
        }
    }]
}
