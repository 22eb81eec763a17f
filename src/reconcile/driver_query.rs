//! Asks a driver about a class before there is a machine: resolves the driver, acquires a permit, reads
//! capabilities and credentials, and makes the call.
//!
//! Machines do not use this: their plan depends on the state of the driver, and their permit is held until
//! their status is published.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;

use crate::api::ObjectMetaExt as _;
use crate::api::retry::{self, Call, Disposition};
use crate::apiserver::Error;
use crate::driver::credentials;
use crate::driver::{ConfiguredDrivers, Permit, ResolveError};
use crate::reconcile::{Enqueue, upkeep_permit};
use cmi_driver::{Capabilities, MachineClass, ProviderSpec, Request, Status};

/// A question of an object to its driver.
pub struct Query<'a> {
    /// The client that reads credentials.
    pub client: &'a Client,
    /// The configured drivers.
    pub drivers: &'a ConfiguredDrivers,
    /// The object that asks.
    pub object: &'a ObjectMeta,
    /// The driver that the object names.
    pub driver: Option<&'a str>,
    /// The Secret that the object names.
    pub secret: Option<&'a str>,
    /// The call.
    pub call: Call,
    /// Enqueues the object when the driver may answer.
    pub enqueue: &'a Enqueue,
}

/// The result of a query.
#[derive(Debug)]
pub enum QueryResult<T, E> {
    /// The driver's answer.
    Known(T),
    /// The driver does not offer the call.
    NotSupported,
    /// The driver was not asked, for this reason.
    Skipped(E),
    /// No driver resolves.
    NotResolved(ResolveError),
    /// The credentials can't be read.
    NoSecrets(String),
    /// The driver could not answer.
    Failed(Status),
}

impl Query<'_> {
    /// Asks the driver; `None` when it is busy. `spec` returns the provider spec of the class, or the reason
    /// why the driver is not asked.
    ///
    /// # Errors
    /// The API server could not be asked for the credentials.
    pub async fn run<Q: Request, E>(
        &self,
        spec: impl FnOnce(&Capabilities) -> Result<ProviderSpec, E>,
        request: impl FnOnce(MachineClass) -> Q,
    ) -> Result<Option<QueryResult<Q::Response, E>>, Error> {
        let namespace = self.object.namespace();
        let driver = match self.drivers.resolve(self.driver, namespace) {
            Ok(driver) => driver,
            Err(error) => return Ok(Some(QueryResult::NotResolved(error))),
        };
        match upkeep_permit(&driver, self.enqueue, self.object) {
            Some(permit) => self.run_with(&permit, namespace, spec, request).await.map(Some),
            None => Ok(None),
        }
    }

    async fn run_with<Q: Request, E>(
        &self,
        permit: &Permit<'_>,
        namespace: &str,
        spec: impl FnOnce(&Capabilities) -> Result<ProviderSpec, E>,
        request: impl FnOnce(MachineClass) -> Q,
    ) -> Result<QueryResult<Q::Response, E>, Error> {
        let driver = permit.configured_driver();
        let capabilities = match permit.fetch_capabilities().await {
            Ok(capabilities) => capabilities,
            Err(status) => return Ok(QueryResult::Failed(status)),
        };
        let provider_spec = match spec(&capabilities) {
            Ok(spec) => spec,
            Err(why) => return Ok(QueryResult::Skipped(why)),
        };
        if !capabilities.supports(Q::OPERATION) {
            return Ok(QueryResult::NotSupported);
        }
        let read =
            credentials::machine_class(self.client, driver, namespace, self.secret, provider_spec).await?;
        let class = match read {
            Ok(class) => class,
            Err(cause) => return Ok(QueryResult::NoSecrets(cause.to_string())),
        };
        Ok(match request(class).send(permit.driver()).await {
            Ok(known) => QueryResult::Known(known),
            // The driver declares the call, but does not offer it after all.
            Err(status) if retry::disposition(self.call, status.code()) == Disposition::Fallback => {
                QueryResult::NotSupported
            }
            Err(status) => QueryResult::Failed(status),
        })
    }
}
