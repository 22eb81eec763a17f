//! The plugin's declarations at the beginning of every connection.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tonic::Response;

use super::call_error::CallError;
use super::connection::{Connection, rpc};
use crate::convert::{Declaration, FieldError};
use crate::proto::capcmi::v1::get_extension_capabilities_response::Call as ExtensionCall;
use crate::proto::{capcmi::v1 as capcmi, cmi::v1 as cmi};
use cmi_driver::{Capabilities, Code, Operation, PluginInfo, Readiness, Status};

/// The plugin's declarations at the beginning of every connection.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Handshake {
    pub info: PluginInfo,
    pub capabilities: Arc<Capabilities>,
    pub extension: Extension,
}

/// Calls of the extension that replace calls of cmi.v1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extension {
    /// GetMachine for GetMachineStatus.
    pub get_machine: bool,
    /// ListMachinesPaged for ListMachines.
    pub list_machines_paged: bool,
}

/// Whether a plugin can serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PluginHealth {
    /// It can.
    Ready,
    /// The plugin has not finished starting: its answers about machines may be wrong.
    NotYet,
    /// The plugin answered with an error that it cannot serve, and why.
    Unhealthy(String),
}

/// Makes a call of the handshake that reads capabilities.
macro_rules! capabilities {
    ($connection:ident, $deadline:ident, $service:ident.$method:ident($request:expr)) => {
        rpc!(
            $connection,
            Operation::GetPluginCapabilities,
            $deadline,
            $service.$method($request)
        )
        .await
        .map(Response::into_inner)
    };
}

impl Handshake {
    /// Makes the calls in the order of the CMI specification (CMI-169), and the extension's call last. Every
    /// plugin answers with its name and its capabilities (CMI-50, CMI-58): a server that does not know these
    /// calls is not a plugin. A plugin may lack Probe or the extension. An unhealthy plugin answers the
    /// handshake, too.
    pub(super) async fn receive(
        connection: &Connection,
        deadline: Instant,
    ) -> Result<(Self, PluginHealth), Status> {
        let info = info(connection, deadline).await.map_err(no_plugin)?;
        let request = cmi::GetPluginCapabilitiesRequest {};
        let declared = capabilities!(connection, deadline, identity.get_plugin_capabilities(request))
            .map_err(no_plugin)?;
        let answer = probe(connection, deadline).await;
        let health = match PluginHealth::from_probe(&answer) {
            Some(health) => health,
            None => answer.map(|_| PluginHealth::Ready)?,
        };
        let extended = extension(connection, deadline).await?;
        let extension = Extension::of(extended.as_ref());
        let declaration = Declaration {
            plugin: declared,
            extension: extended,
        };
        // The patterns of a schema take up to a fifth of a second to compile.
        let capabilities = spawn_blocking(move || Capabilities::try_from(declaration))
            .await
            .map_err(|error| {
                Status::new(Code::Internal, "cannot compile the plugin's schema").with_source(error)
            })?
            .map_err(|error| error.in_response(Operation::GetPluginCapabilities))?;
        let handshake = Self {
            info,
            capabilities: Arc::new(capabilities),
            extension,
        };
        Ok((handshake, health))
    }
}

impl Extension {
    fn of(declared: Option<&capcmi::GetExtensionCapabilitiesResponse>) -> Self {
        let offers = |wanted| declared.is_some_and(|all| all.calls().any(|call| call == wanted));
        Self {
            get_machine: offers(ExtensionCall::GetMachine),
            list_machines_paged: offers(ExtensionCall::ListMachinesPaged),
        }
    }
}

impl PluginHealth {
    /// Interprets the answer to a probe; `None` if there was no answer. Without `ready`, and without Probe, a
    /// plugin is ready (CMI-71). An unhealthy plugin answers any other error (CMI-68, CMI-72).
    pub(super) fn from_probe(answer: &Result<Readiness, CallError>) -> Option<Self> {
        match answer {
            Ok(Readiness::Ready) => Some(Self::Ready),
            Ok(Readiness::NotReady) => Some(Self::NotYet),
            Err(CallError::Status(status)) if status.code() == Code::Unimplemented => Some(Self::Ready),
            Err(CallError::Status(status)) => Some(Self::Unhealthy(status.message().to_owned())),
            Err(CallError::NoRoute(_) | CallError::NoAnswer(_)) => None,
        }
    }
}

/// Reads the plugin's name and version.
pub(super) async fn info(connection: &Connection, deadline: Instant) -> Result<PluginInfo, CallError> {
    let request = cmi::GetPluginInfoRequest {};
    let answer = rpc!(
        connection,
        Operation::GetPluginInfo,
        deadline,
        identity.get_plugin_info(request)
    );
    // An invalid name is no reason to leave VMs unattended.
    Ok(answer
        .await?
        .into_inner()
        .try_into()
        .unwrap_or_else(|error: FieldError| {
            let error = error.in_response(Operation::GetPluginInfo);
            tracing::warn!(%error, "invalid name or version of the plugin");
            unnamed()
        }))
}

/// Reads the calls of the extension that the plugin declares; `None` if it does not serve the extension.
pub(super) async fn extension(
    connection: &Connection,
    deadline: Instant,
) -> Result<Option<capcmi::GetExtensionCapabilitiesResponse>, CallError> {
    let request = capcmi::GetExtensionCapabilitiesRequest {};
    let answer = capabilities!(
        connection,
        deadline,
        extension.get_extension_capabilities(request)
    );
    if_served(answer)
}

/// A plugin without a usable name and version.
fn unnamed() -> PluginInfo {
    PluginInfo {
        name: "unknown".to_owned(),
        version: "unknown".to_owned(),
        manifest: BTreeMap::new(),
    }
}

/// Asks whether the plugin can serve.
pub(super) async fn probe(connection: &Connection, deadline: Instant) -> Result<Readiness, CallError> {
    let answer = rpc!(
        connection,
        Operation::Probe,
        deadline,
        identity.probe(cmi::ProbeRequest {})
    );
    Ok(answer.await?.into_inner().into())
}

/// Whether the server doesn't know the call.
pub(super) fn is_unimplemented<T>(answer: &Result<T, CallError>) -> bool {
    matches!(answer, Err(CallError::Status(status)) if status.code() == Code::Unimplemented)
}

/// Returns the error for a failed call that every plugin has to answer. UNIMPLEMENTED means that the server
/// is not a plugin.
pub(super) fn no_plugin(failure: CallError) -> Status {
    match failure {
        CallError::Status(status) if status.code() == Code::Unimplemented => Status::new(
            Code::Unavailable,
            format!(
                "the gRPC server does not serve cmi.v1.Identity with GetPluginInfo, GetPluginCapabilities \
                    and Probe, as plugins must; it answers UNIMPLEMENTED (`{}`): check the endpoint, and \
                    the routes of a proxy in front of the plugin",
                status.message()
            ),
        ),
        failure => failure.into(),
    }
}

/// Returns `None` if the plugin's server does not know the service. Use this for the extension only: a server
/// without Identity is not a plugin, except for a proxy that has lost it.
fn if_served<T>(answer: Result<T, CallError>) -> Result<Option<T>, CallError> {
    match answer {
        Err(CallError::NoRoute(_)) => Ok(None),
        answer if is_unimplemented(&answer) => Ok(None),
        answer => answer.map(Some),
    }
}
