//! Lists of VMs: the VMs that a driver reports for a class, with the credentials of an account.
//!
//! Not a `driver_query`: the inventory and the commands are not reconciles that a waker requeues, so they
//! wait for their permit. They also fetch the driver's capabilities once for many lists.

mod class_ref;
mod own;

use std::sync::Arc;

use kube::Client;

pub use self::class_ref::{ClassId, ClassRef};
pub use self::own::{only_own, own};
use crate::apiserver::{Error, InvalidSecret};
use crate::driver::credentials;
use crate::driver::{ConfiguredDriver, Priority};
use cmi_driver::{
    Capabilities, Code, ErrorChain, ListMachinesRequest, ListedMachine, MachineClass, Operation,
    ProviderSpec, Status,
};

/// Why there is no list. It proves nothing about any VM.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The driver does not list after all (CTL-LM-12).
    #[error("the driver does not implement ListMachines")]
    NotSupported,
    /// The driver failed.
    #[error(transparent)]
    Driver(#[from] Status),
    /// The provider spec is not a JSON object.
    #[error("cannot read the provider spec")]
    ProviderSpec(#[source] serde_json::Error),
    /// The credentials can't be used.
    #[error(transparent)]
    Credentials(#[from] InvalidSecret),
    /// The API server can't be asked for the credentials.
    #[error(transparent)]
    Api(#[from] Error),
}

impl ListError {
    /// Whether only an operator can change it: the Secret does not exist, or the driver refuses this provider
    /// spec.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::NotSupported | Self::ProviderSpec(_) => true,
            Self::Driver(status) => status.code() == Code::InvalidArgument,
            Self::Credentials(invalid) => match invalid {
                InvalidSecret::Missing { .. } | InvalidSecret::Name { .. } => true,
                InvalidSecret::Needed { .. }
                | InvalidSecret::Forbidden { .. }
                | InvalidSecret::OfProvider { .. }
                | InvalidSecret::NoBootstrapData(_)
                | InvalidSecret::NoKubeconfig(_)
                | InvalidSecret::Collision { .. } => false,
            },
            Self::Api(_) => false,
        }
    }

    /// Describes the error for an operator. For a driver's answer, this is the message without the code.
    pub fn message(&self) -> String {
        match self {
            Self::Driver(status) => status.message().to_owned(),
            Self::NotSupported | Self::ProviderSpec(_) | Self::Credentials(_) | Self::Api(_) => {
                ErrorChain(self).to_string()
            }
        }
    }
}

/// Returns the capabilities of a driver that lists VMs; `None` if it does not list.
///
/// # Errors
/// The error of the driver.
pub async fn capabilities(
    driver: &ConfiguredDriver,
    requester: &str,
) -> Result<Option<Arc<Capabilities>>, Status> {
    let capabilities = declared(driver, requester).await?;
    Ok(Some(capabilities).filter(|capabilities| capabilities.supports(Operation::ListMachines)))
}

/// Returns the capabilities of a driver.
///
/// # Errors
/// The error of the driver.
pub async fn declared(driver: &ConfiguredDriver, requester: &str) -> Result<Arc<Capabilities>, Status> {
    let permit = driver.acquire(Priority::Upkeep, requester).await;
    permit.fetch_capabilities().await
}

/// Lists all VMs of a class. Its Secret is in this namespace.
///
/// # Errors
/// [`ListError`]: a list is never partial (DRV-37).
pub async fn list(
    client: &Client,
    driver: &ConfiguredDriver,
    requester: &str,
    namespace: &str,
    class: &ClassRef,
) -> Result<Vec<ListedMachine>, ListError> {
    // Each list acquires its own permit, so that other calls get permits in between.
    let permit = driver.acquire(Priority::Upkeep, requester).await;
    let class = machine_class(client, driver, namespace, class).await?;
    match permit.driver().list_machines(ListMachinesRequest { class }).await {
        Ok(machines) => Ok(machines),
        Err(status) if status.code() == Code::Unimplemented => Err(ListError::NotSupported),
        Err(status) => Err(status.into()),
    }
}

/// Returns the class of a call: the provider spec, read from JSON, with the credentials.
///
/// # Errors
/// The provider spec or the credentials can't be read.
pub async fn machine_class(
    client: &Client,
    driver: &ConfiguredDriver,
    namespace: &str,
    class: &ClassRef,
) -> Result<MachineClass, ListError> {
    let provider_spec: ProviderSpec = serde_json::from_str(&class.spec).map_err(ListError::ProviderSpec)?;
    let secret = class.secret.as_deref();
    Ok(credentials::machine_class(client, driver, namespace, secret, provider_spec).await??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_errors_are_permanent_only_if_an_operator_must_act() {
        let driver = |code| ListError::from(Status::new(code, "no such zone"));
        assert!(driver(Code::InvalidArgument).is_permanent());
        assert!(!driver(Code::Unavailable).is_permanent());
        assert_eq!(driver(Code::Unavailable).message(), "no such zone");
        let spec = ListError::ProviderSpec(serde_json::from_str::<ProviderSpec>("{").unwrap_err());
        assert!(spec.is_permanent());
        assert!(
            spec.message().starts_with("cannot read the provider spec: EOF"),
            "{}",
            spec.message()
        );
        let away = kube::Error::Service("no route".into());
        let away = ListError::from(Error::api("reading the Secret", away));
        assert!(!away.is_permanent());
        assert!(away.message().ends_with("no route"), "{}", away.message());
    }
}
