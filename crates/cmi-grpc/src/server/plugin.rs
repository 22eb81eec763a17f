//! A call of the driver on behalf of a client.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use crate::convert::FieldError;
use crate::trailers;
use cmi_driver::{Capabilities, Code, DeclaredCapabilities, Driver, Operation, Request, Status};

/// The state that the services of a plugin share.
#[derive(Clone)]
pub(super) struct Plugin(Arc<Shared>);

struct Shared {
    driver: Arc<dyn Driver>,
    /// Read once: a driver's capabilities do not change while it runs (CMI-59).
    declared: OnceCell<DeclaredCapabilities>,
    abort: CancellationToken,
}

impl Plugin {
    pub(super) fn new(driver: Arc<dyn Driver>, abort: CancellationToken) -> Self {
        Self(Arc::new(Shared {
            driver,
            declared: OnceCell::new(),
            abort,
        }))
    }

    /// Makes a call with a checked request, if the driver offers it. Removes the request's secrets from the
    /// answer before a message that is too long for a header is cut (OPS-11). The client removes them, too.
    pub(super) async fn call<Message, Q>(
        &self,
        request: tonic::Request<Message>,
    ) -> Result<Q::Response, tonic::Status>
    where
        Message: Send,
        Q: TryFrom<Message, Error = FieldError> + Request,
    {
        let message = request.into_inner();
        self.dispatch(Q::OPERATION, |driver| async move {
            self.check_offered(Q::OPERATION).await?;
            let request: Q = message
                .try_into()
                .map_err(|error: FieldError| error.in_request())?;
            let secrets = request.secrets();
            let answer = request.send(&*driver).await;
            answer.map_err(|status| status.redacted(&secrets))
        })
        .await
    }

    /// Makes a call that every driver answers. Dropping the future drops the driver's call, for example when
    /// the client is gone or its deadline has passed.
    pub(super) async fn dispatch<Answer, Running>(
        &self,
        operation: Operation,
        run: impl FnOnce(Arc<dyn Driver>) -> Running + Send,
    ) -> Result<Answer, tonic::Status>
    where
        Running: Future<Output = cmi_driver::Result<Answer>> + Send,
    {
        let started = Instant::now();
        let running = cmi_driver::catch_panic(operation, run(Arc::clone(&self.0.driver)));
        let answer = tokio::select! {
            answer = running => answer,
            () = self.0.abort.cancelled() => Err(stopping(operation)),
        };
        log(operation, &answer, started);
        answer.map_err(|status| trailers::to_grpc(&status))
    }

    /// Returns UNIMPLEMENTED for a call that the driver does not declare, without calling the driver
    /// (CMI-36).
    async fn check_offered(&self, operation: Operation) -> cmi_driver::Result<()> {
        if Capabilities::minimal().supports(operation) {
            return Ok(());
        }
        let declared = self
            .0
            .declared
            .get_or_try_init(|| self.0.driver.get_plugin_capabilities())
            .await
            // The code of that error would be mistaken for the call's own: NOT_FOUND would mean that there is
            // no VM.
            .map_err(|error| {
                let what = format!("cannot tell whether the driver implements {operation}: {error}");
                Status::new(Code::Unavailable, what)
            })?;
        declared.capabilities.check_supported(operation)
    }
}

fn stopping(operation: Operation) -> Status {
    Status::new(
        Code::Unavailable,
        format!("the plugin is stopping and did not wait for {operation} to end"),
    )
}

/// Logs names, codes and durations. The driver's message is only for the client: it may hold secrets that are
/// not of this call (OPS-11).
fn log<Answer>(operation: Operation, answer: &cmi_driver::Result<Answer>, started: Instant) {
    let code = answer.as_ref().err().map_or("OK", |status| status.code().name());
    tracing::debug!(%operation, code, took_ms = started.elapsed().as_millis(), "call");
}
