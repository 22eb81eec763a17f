//! From the end of a call to its answer.

use tonic::Response;

use super::exchange::{Broken, Ending, Witness};
use crate::trailers;
use cmi_driver::{Code, Operation, Status};

/// Why a call has no response.
#[derive(Debug)]
pub(super) enum Failure {
    /// The plugin said so, in gRPC.
    Refused(Status),
    /// The plugin's server says in HTTP that it has no such service.
    Unserved(Status),
    /// The plugin's word was lost on the way, or makes no sense.
    Unheard(Status),
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(status) | Failure::Unserved(status) | Failure::Unheard(status) => status,
        }
    }
}

/// The answer of a call, by who ended it.
///
/// * What the plugin said is what it is.
/// * A call that broke is UNAVAILABLE: it may or may not have been done, and nothing is known of the VM. So is one that an
///   HTTP server knows nothing of: it may be a proxy that has lost the plugin.
/// * An answer that can't be understood is INTERNAL.
pub(super) fn answer<T>(
    operation: Operation,
    witness: &Witness,
    result: Result<Response<T>, tonic::Status>,
) -> Result<Response<T>, Failure> {
    let unheard = |code, message| Err(Failure::Unheard(Status::new(code, message)));
    match (result, witness.ending()) {
        (Ok(response), Some(Ending::Ok)) => Ok(response),
        (Err(status), Some(Ending::Refused)) => Err(Failure::Refused(trailers::from_grpc(status))),
        (Ok(_) | Err(_), Some(Ending::Unsaid)) => unheard(
            Code::Unavailable,
            format!("the plugin ended {operation} without a status"),
        ),
        (Err(status), Some(Ending::Unserved)) => Err(Failure::Unserved(lost(operation, status))),
        (Err(status), Some(Ending::Lost)) => Err(Failure::Unheard(lost(operation, status))),
        (Err(status), Some(Ending::NeverSent)) => Err(Failure::Unheard(lost(operation, status).never_sent())),
        (Err(status), Some(Ending::Ok) | None) => Err(Failure::Unheard(malformed(operation, status))),
        (Ok(_), Some(Ending::Refused | Ending::Unserved | Ending::Lost | Ending::NeverSent) | None) => {
            unheard(
                Code::Internal,
                format!("the plugin's answer to {operation} contradicts itself"),
            )
        }
    }
}

fn lost(operation: Operation, status: tonic::Status) -> Status {
    let why = std::error::Error::source(&status)
        .and_then(|source| source.downcast_ref::<Broken>())
        .map_or_else(|| status.message().to_owned(), |broken| super::in_words(broken));
    Status::new(Code::Unavailable, format!("{operation} was not answered: {why}")).with_source(status)
}

fn malformed(operation: Operation, status: tonic::Status) -> Status {
    let message = format!(
        "the plugin's answer to {operation} can't be understood: {}",
        status.message()
    );
    Status::new(Code::Internal, message).with_source(status)
}
