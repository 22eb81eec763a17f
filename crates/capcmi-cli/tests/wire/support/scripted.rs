//! A driver whose CreateMachine runs a test's closure.

use std::sync::Arc;

use async_trait::async_trait;
use cmi_driver::{
    Capabilities, CreateMachineRequest, DeclaredCapabilities, DeleteMachineRequest, DeleteMachineResponse,
    Driver, ListMachinesRequest, ListedMachine, Machine, PluginInfo, Readiness, Result,
};
use futures::future::BoxFuture;

type Create = dyn Fn(CreateMachineRequest) -> BoxFuture<'static, Result<Machine>> + Send + Sync;

/// Declares nothing, so its ListMachines must not be called.
pub struct Scripted(Box<Create>);

impl Scripted {
    pub fn creating<F>(create: impl Fn(CreateMachineRequest) -> F + Send + Sync + 'static) -> Arc<dyn Driver>
    where
        F: Future<Output = Result<Machine>> + Send + 'static,
    {
        Arc::new(Self(Box::new(move |request| Box::pin(create(request)))))
    }
}

#[async_trait]
impl Driver for Scripted {
    async fn get_plugin_info(&self) -> Result<PluginInfo> {
        Ok(PluginInfo {
            name: "scripted.example".to_owned(),
            version: "1".to_owned(),
            manifest: [("motto".to_owned(), "as you like it".to_owned())].into(),
        })
    }

    async fn get_plugin_capabilities(&self) -> Result<DeclaredCapabilities> {
        Ok(Capabilities::minimal().into())
    }

    async fn probe(&self) -> Result<Readiness> {
        Ok(Readiness::NotReady)
    }

    async fn create_machine(&self, request: CreateMachineRequest) -> Result<Machine> {
        (self.0)(request).await
    }

    async fn delete_machine(&self, _request: DeleteMachineRequest) -> Result<DeleteMachineResponse> {
        Ok(DeleteMachineResponse::default())
    }

    async fn list_machines(&self, _request: ListMachinesRequest) -> Result<Vec<ListedMachine>> {
        Ok(Vec::new())
    }
}
