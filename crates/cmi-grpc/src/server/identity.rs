//! The Identity service.

use tonic::{Request, Response, Status};

use super::plugin::Plugin;
use crate::convert::Declaration;
use crate::proto::cmi::v1::identity_server::Identity;
use crate::proto::cmi::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    ProbeRequest, ProbeResponse,
};
use cmi_driver::Operation;

#[tonic::async_trait]
impl Identity for Plugin {
    async fn get_plugin_info(
        &self,
        _request: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        let info = self
            .dispatch(Operation::GetPluginInfo, |driver| async move {
                driver.get_plugin_info().await
            })
            .await?;
        Ok(Response::new(info.into()))
    }

    async fn get_plugin_capabilities(
        &self,
        _request: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        Ok(Response::new(self.declaration().await?.plugin))
    }

    async fn probe(&self, _request: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let readiness = self
            .dispatch(Operation::Probe, |driver| async move { driver.probe().await })
            .await?;
        Ok(Response::new(readiness.into()))
    }
}

impl Plugin {
    /// Returns the driver's declaration. Each of the two identity services answers a part of it.
    pub(super) async fn declaration(&self) -> Result<Declaration, Status> {
        let declared = self
            .dispatch(Operation::GetPluginCapabilities, |driver| async move {
                driver.get_plugin_capabilities().await
            })
            .await?;
        Ok(Declaration::from(&*declared.capabilities))
    }
}
