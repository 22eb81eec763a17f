//! One driver call: under leadership, with a deadline, counted, safe against panics, and without secrets in
//! its answer.

use std::fmt;
use std::sync::Arc;

use tokio::time::{Instant, timeout};

use super::{CredentialsDirectory, Timeouts};
use crate::apiserver::leadership::Leadership;
use crate::telemetry::metrics::Metrics;
use cmi_driver::{
    Code, DeclaredCapabilities, Driver, Operation, PluginInfo, Readiness, Request, Result, Secrets, Status,
};

/// The message of the CANCELED that a replica returns when it is not the leader. The driver is not called.
pub(super) const NOT_LEADER: &str = "this replica is not the leader";
/// Replaces a driver's message when it is unknown which part is secret.
const WITHHELD: &str = "the driver's message is withheld: cannot read the provider's credentials to remove \
    them from it";

/// Calls a driver.
#[derive(Clone)]
pub(super) struct DriverClient {
    pub name: Arc<str>,
    pub driver: Arc<dyn Driver>,
    pub leadership: Leadership,
    pub metrics: Arc<Metrics>,
    pub timeouts: Timeouts,
    pub credentials: Option<CredentialsDirectory>,
}

impl DriverClient {
    /// Returns CANCELED when this replica may not call.
    pub(super) fn check_leadership(&self) -> Result<()> {
        self.leadership.check().map_err(|error| {
            Status::new(Code::Canceled, NOT_LEADER)
                .with_source(error)
                .with_never_sent()
        })
    }

    pub(super) async fn send<R: Request>(&self, request: R) -> Result<R::Response> {
        let secrets = request.secrets();
        self.call(R::OPERATION, &secrets, |driver| async move {
            request.send(&*driver).await
        })
        .await
    }

    pub(super) async fn get_plugin_info(&self) -> Result<PluginInfo> {
        self.call(
            Operation::GetPluginInfo,
            &Secrets::default(),
            |driver| async move { driver.get_plugin_info().await },
        )
        .await
    }

    pub(super) async fn get_plugin_capabilities(&self) -> Result<DeclaredCapabilities> {
        let operation = Operation::GetPluginCapabilities;
        self.call(operation, &Secrets::default(), |driver| async move {
            driver.get_plugin_capabilities().await
        })
        .await
    }

    pub(super) async fn probe(&self) -> Result<Readiness> {
        self.call(Operation::Probe, &Secrets::default(), |driver| async move {
            driver.probe().await
        })
        .await
    }

    pub(super) async fn prepare_call(&self, operation: Operation) -> Result<()> {
        match self.driver.prepare_call(operation).await {
            Ok(()) => Ok(()),
            Err(status) => Err(self.without_own_credentials(status).await),
        }
    }

    /// Makes a call, if this replica is the leader. At the deadline, or when the caller drops this future,
    /// the driver's future is dropped. That tells a driver that its caller no longer waits.
    async fn call<T, F>(
        &self,
        operation: Operation,
        secrets: &Secrets,
        run: impl FnOnce(Arc<dyn Driver>) -> F + Send,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        self.check_leadership()?;
        let deadline = self.timeouts.of(operation);
        let started = Instant::now();
        let call = cmi_driver::catch_panic(operation, run(Arc::clone(&self.driver)));
        let answer = match timeout(deadline, call).await {
            Ok(answer) => answer,
            Err(_elapsed) => Err(Status::new(
                Code::DeadlineExceeded,
                format!(
                    "the driver did not answer {operation} within {} s",
                    deadline.as_secs()
                ),
            )),
        };
        let answer = match answer {
            Ok(answer) => Ok(answer),
            Err(status) => Err(self.without_own_credentials(status.redacted(secrets)).await),
        };
        self.record(
            operation,
            answer.as_ref().err().map(Status::code),
            started.elapsed(),
        );
        answer
    }

    /// Redacts the provider's credentials. A driver may have kept them from another call and repeat them in a
    /// call that carries none.
    async fn without_own_credentials(&self, status: Status) -> Status {
        let Some(directory) = &self.credentials else {
            return status;
        };
        match directory.get().await {
            Ok(secrets) => status.redacted(&secrets),
            Err(error) => {
                tracing::warn!(driver = %self.name, %error, "cannot read the provider's credentials");
                status.with_message(WITHHELD).with_source(error)
            }
        }
    }

    fn record(&self, operation: Operation, code: Option<Code>, took: std::time::Duration) {
        self.metrics.driver_called(&self.name, operation, code, took);
        tracing::debug!(
            driver = %self.name,
            %operation,
            code = code.map_or("OK", Code::name),
            took_ms = took.as_millis(),
            "driver call"
        );
    }
}

impl fmt::Debug for DriverClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverClient")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
