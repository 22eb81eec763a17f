//! How responses are written.

use tonic::Response;

use super::trailing;
use crate::trailers;
use cmi_driver::Machine;

/// A response that has room for the whole answer.
pub(super) fn plain<Message: From<Answer>, Answer>(answer: Answer) -> Response<Message> {
    Response::new(answer.into())
}

/// A response without fields, which only confirms the call.
pub(super) fn empty<Message: Default>((): ()) -> Response<Message> {
    Response::new(Message::default())
}

/// A response of a machine, with all that it has no room for in the trailers.
pub(super) fn with_trailers<Message: From<Machine>>(machine: Machine) -> Response<Message> {
    let metadata = trailers::beside(machine.clone());
    trailing::beside(plain(machine), metadata)
}
