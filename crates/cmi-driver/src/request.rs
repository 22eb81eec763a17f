//! The common trait of all requests.

use super::{Driver, MachineClass, Operation, Result, Secrets};

/// The request of a call, so that code can treat all calls alike.
pub trait Request: Send + Sync + Sized + 'static {
    /// The call.
    const OPERATION: Operation;
    /// The response of the call.
    type Response: Send + 'static;

    /// The class in the request; `None` for a call without a class.
    fn class(&self) -> Option<&MachineClass>;

    /// Makes the call.
    fn send(self, driver: &dyn Driver) -> impl Future<Output = Result<Self::Response>> + Send;

    /// The secrets in the request. The answer must not hold them.
    fn secrets(&self) -> Secrets {
        self.class()
            .map_or_else(Secrets::default, |class| class.secrets.clone())
    }
}

/// Implements [`Request`] for the request of each row of the table.
macro_rules! requests {
    ($(
        $(#[$doc:meta])* $operation:ident $name:literal
            $method:ident($request:ident) -> $response:ty, $need:ident, $effect:ident, [$($class:ident).*];
    )+) => {$(
        impl crate::Request for $request {
            const OPERATION: crate::Operation = crate::Operation::$operation;
            type Response = $response;

            fn class(&self) -> Option<&crate::MachineClass> {
                crate::request::class_of!(self $(. $class)*)
            }

            fn send(
                self,
                driver: &dyn crate::Driver,
            ) -> impl Future<Output = crate::Result<Self::Response>> + Send {
                driver.$method(self)
            }
        }
    )+};
}
pub(crate) use requests;

macro_rules! class_of {
    ($request:ident) => { None };
    ($request:ident . $($class:ident).+) => { Some(&$request.$($class).+) };
}
pub(crate) use class_of;
