//! A plugin that describes itself wrongly gets a verdict that names the row, even if the client refuses the
//! plugin.

use std::sync::Arc;

use async_trait::async_trait;
use capcmi_cli::commands::conformance::connect;
use cmi_conformance::{Config, ConnectionWire, NoHooks, Report, RunError, Selection, Target, run};
use cmi_driver::{Driver as _, Readiness};
use cmi_grpc::client::{Deadlines, GrpcConfig, GrpcDriver};
use cmi_grpc::proto::cmi::v1::identity_server::{Identity, IdentityServer};
use cmi_grpc::proto::cmi::v1::plugin_capability::{Rpc, Type, rpc};
use cmi_grpc::proto::cmi::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Error, Server};
use tonic::{Request, Response, Status};

/// A plugin that has got no further than this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IncompleteIdentity {
    /// CREATE_MACHINE is not declared, and not served.
    WithoutCreate,
    /// GetPluginCapabilities is not implemented.
    WithoutCapabilities,
    /// GetPluginInfo is not implemented.
    WithoutInfo,
    /// Probe does not report whether the plugin is ready.
    WithoutReadiness,
    /// No call is implemented.
    Empty,
}

#[async_trait]
impl Identity for IncompleteIdentity {
    async fn get_plugin_info(
        &self,
        _request: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        if matches!(self, Self::WithoutInfo | Self::Empty) {
            return Err(Status::unimplemented("method not implemented"));
        }
        Ok(Response::new(GetPluginInfoResponse {
            name: "new.example.com".to_owned(),
            version: "0.1.0".to_owned(),
            ..GetPluginInfoResponse::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _request: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        if matches!(self, Self::WithoutCapabilities | Self::Empty) {
            return Err(Status::unimplemented("method not implemented"));
        }
        let mut calls = vec![rpc::Type::DeleteMachine];
        if *self != Self::WithoutCreate {
            calls.push(rpc::Type::CreateMachine);
        }
        let capability = |call: rpc::Type| PluginCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: call.into() })),
        };
        Ok(Response::new(GetPluginCapabilitiesResponse {
            capabilities: calls.into_iter().map(capability).collect(),
        }))
    }

    async fn probe(&self, _request: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        if *self == Self::Empty {
            return Err(Status::unimplemented("method not implemented"));
        }
        let ready = (*self != Self::WithoutReadiness).then_some(true);
        Ok(Response::new(ProbeResponse { ready }))
    }
}

/// Serves it until the task is aborted.
fn served(identity: IncompleteIdentity) -> (GrpcConfig, JoinHandle<Result<(), Error>>) {
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let endpoint = format!("tcp://{}", incoming.local_addr().unwrap());
    let server = Server::builder().add_service(IdentityServer::new(identity));
    let serving = tokio::spawn(server.serve_with_incoming(incoming));
    let config = GrpcConfig {
        endpoint: Some(endpoint),
        ..GrpcConfig::default()
    };
    (config, serving)
}

async fn tested(identity: IncompleteIdentity) -> Result<Report, RunError> {
    let (config, serving) = served(identity);
    let client = GrpcDriver::new(&config, Deadlines::new([])).unwrap();
    let wire = ConnectionWire::new(connect(config.connector().unwrap()));
    let report = run(
        Target::plugin("the plugin", Arc::new(client), Arc::new(wire), Arc::default()),
        Config::read("providerSpec: {size: small}\ncallSeconds: 5").unwrap(),
        Arc::new(NoHooks),
        &Selection::default(),
        &(),
        CancellationToken::new(),
    )
    .await;
    serving.abort();
    report
}

/// CMI-50, CMI-58, CMI-61
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_says_too_little_of_itself_is_told_by_the_row() {
    for (identity, row) in [
        (IncompleteIdentity::WithoutCreate, "CMI-61"),
        (IncompleteIdentity::WithoutCapabilities, "CMI-58"),
        (IncompleteIdentity::WithoutInfo, "CMI-50"),
    ] {
        let report = tested(identity).await.unwrap();
        let found = &report.rule(row).unwrap().verdict;
        assert!(
            found.is_failure() && !report.passed,
            "{identity:?}: {row} {found:?}"
        );
        // Dependent rules are not named.
        let verdict = &report.rule("DRV-DE-00").unwrap().verdict;
        assert!(verdict.is_inconclusive(), "{identity:?}: {verdict:?}");
    }
}

/// Most likely the endpoint belongs to another server.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_knows_none_of_the_calls_is_no_plugin() {
    let error = tested(IncompleteIdentity::Empty).await.err().unwrap();
    let RunError::Capabilities(status) = &error else {
        panic!("{error:?}");
    };
    assert!(status.message().contains("check the endpoint"), "{status}");
}

/// CMI-71: the provider's own client.
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_says_nothing_of_its_readiness_is_taken_for_ready() {
    let (config, serving) = served(IncompleteIdentity::WithoutReadiness);
    let client = GrpcDriver::new(&config, Deadlines::new([])).unwrap();
    assert_eq!(client.probe().await.unwrap(), Readiness::Ready);
    serving.abort();
}
