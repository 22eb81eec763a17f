//! Lists of VMs: what a driver answers for a class, with the credentials of an account.
//!
//! This is not a `driver_query`: the inventory and the commands are no reconciles that a waker runs again, so
//! they wait for their permit; and they ask once what the driver can do, for many lists.

use std::sync::Arc;

use kube::Client;

use crate::apiserver::InvalidSecret;
use crate::apiserver::secrets::SECRET_REF;
use crate::configured_driver::{ConfiguredDriver, Priority};
use crate::credentials;
use cmi_driver::{
    Capabilities, Code, ListMachinesRequest, ListedMachine, MachineClass, Operation, ProviderSpec, Status,
};

/// Why there is no list. Nothing follows from that about any VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListError {
    /// The driver does not list after all (CTL-LM-12).
    NotOffered,
    /// What went wrong, for a person.
    Failed(String),
    /// The same, where only a person changes it: the Secret is not there, or the driver does
    /// not take this provider spec.
    Impossible(String),
}

/// What the driver can do, if it lists: one that can't be asked, which the error says, or does not list
/// has nothing to look through.
///
/// # Errors
/// The driver's.
pub async fn capabilities(
    driver: &ConfiguredDriver,
    requester: &str,
) -> Result<Option<Arc<Capabilities>>, Status> {
    let permit = driver.acquire(Priority::Upkeep, requester).await;
    let capabilities = permit.ask_capabilities().await?;
    Ok(Some(capabilities).filter(|capabilities| capabilities.offers(Operation::ListMachines)))
}

/// All VMs that the list of a class shows: of a provider spec, as JSON, with the credentials of an account:
/// those in a Secret of the namespace, or the provider's own.
///
/// # Errors
/// [`ListError`]: a list is whole or there is none (DRV-37).
pub async fn list(
    client: &Client,
    driver: &ConfiguredDriver,
    requester: &str,
    namespace: &str,
    secret: Option<&str>,
    spec: &str,
) -> Result<Vec<ListedMachine>, ListError> {
    // A permit for each list: others get theirs in between.
    let permit = driver.acquire(Priority::Upkeep, requester).await;
    let class = class(client, driver, namespace, secret, spec).await?;
    match permit.driver().list_machines(ListMachinesRequest { class }).await {
        Ok(machines) => Ok(machines),
        Err(status) if status.code() == Code::Unimplemented => Err(ListError::NotOffered),
        Err(status) if status.code() == Code::InvalidArgument => {
            Err(ListError::Impossible(status.message().to_owned()))
        }
        Err(status) => Err(ListError::Failed(status.message().to_owned())),
    }
}

/// The class of a call: the provider spec, read from JSON, with the credentials.
///
/// # Errors
/// What of it can't be read.
pub async fn class(
    client: &Client,
    driver: &ConfiguredDriver,
    namespace: &str,
    secret: Option<&str>,
    spec: &str,
) -> Result<MachineClass, ListError> {
    let provider_spec: ProviderSpec = serde_json::from_str(spec)
        .map_err(|error| ListError::Impossible(format!("reading the provider spec failed: {error}")))?;
    let secrets = credentials::of(client, driver, namespace, secret, SECRET_REF)
        .await
        .map_err(|error| ListError::Failed(error.to_string()))?
        .map_err(|cause| match cause {
            InvalidSecret::Missing { .. } | InvalidSecret::Name { .. } => {
                ListError::Impossible(cause.to_string())
            }
            _ => ListError::Failed(cause.to_string()),
        })?;
    Ok(MachineClass {
        provider_spec,
        secrets,
    })
}
