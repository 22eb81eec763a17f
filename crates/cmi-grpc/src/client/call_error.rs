//! Maps the end of a call to its answer.

use tonic::Response;

use super::exchange::{CallEnd, StatusObserver, TransportError};
use crate::trailers;
use cmi_driver::{Code, ErrorChain, Operation, Status};

/// Why a call has no response.
#[derive(Debug)]
pub(super) enum CallError {
    /// The plugin answered with a gRPC status.
    Status(Status),
    /// The plugin's server answered in HTTP that it has no such service.
    NoRoute(Status),
    /// The plugin's answer was lost, or makes no sense.
    NoAnswer(Status),
}

impl From<CallError> for Status {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Status(status) | CallError::NoRoute(status) | CallError::NoAnswer(status) => status,
        }
    }
}

/// Maps the end of a call to its answer.
///
/// * A status from the plugin is the answer.
/// * A call that broke is UNAVAILABLE: it may or may not have been carried out, and the state of the VM is
///   unknown. A call that an HTTP server does not know is UNAVAILABLE, too: the server may be a proxy that
///   has lost the plugin.
/// * An answer that cannot be parsed is INTERNAL.
pub(super) fn answer<T>(
    operation: Operation,
    observer: &StatusObserver,
    result: Result<Response<T>, tonic::Status>,
) -> Result<Response<T>, CallError> {
    let no_answer = |code, message| Err(CallError::NoAnswer(Status::new(code, message)));
    match (result, observer.ending()) {
        (Ok(response), Some(CallEnd::Ok)) => Ok(response),
        (Err(status), Some(CallEnd::Status)) => Err(CallError::Status(trailers::from_grpc(status))),
        (Ok(_) | Err(_), Some(CallEnd::NoStatus)) => no_answer(
            Code::Unavailable,
            format!("the plugin ended {operation} without a status"),
        ),
        (Err(status), Some(CallEnd::NoRoute)) => Err(CallError::NoRoute(lost(operation, status))),
        (Err(status), Some(CallEnd::Broken)) => Err(CallError::NoAnswer(lost(operation, status))),
        (Err(status), Some(CallEnd::NeverSent)) => {
            Err(CallError::NoAnswer(lost(operation, status).with_never_sent()))
        }
        (Err(status), Some(CallEnd::Ok) | None) => Err(CallError::NoAnswer(malformed(operation, status))),
        (Ok(_), Some(CallEnd::Status | CallEnd::NoRoute | CallEnd::Broken | CallEnd::NeverSent) | None) => {
            no_answer(
                Code::Internal,
                format!("the plugin's answer to {operation} is contradictory"),
            )
        }
    }
}

fn lost(operation: Operation, status: tonic::Status) -> Status {
    let why = std::error::Error::source(&status)
        .and_then(|source| source.downcast_ref::<TransportError>())
        .map_or_else(
            || status.message().to_owned(),
            |broken| ErrorChain(broken).to_string(),
        );
    Status::new(Code::Unavailable, format!("{operation} was not answered: {why}")).with_source(status)
}

fn malformed(operation: Operation, status: tonic::Status) -> Status {
    let message = format!(
        "cannot decode the plugin's answer to {operation}: {}",
        status.message()
    );
    Status::new(Code::Internal, message).with_source(status)
}
