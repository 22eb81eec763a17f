//! Confines a panic to its call, without showing the call's input.

use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;

use super::{Code, Operation, Result, Status};

tokio::task_local! {
    /// Set while a driver's call is polled.
    static IN_CALL: ();
}

/// Makes a driver's call. A panic in it becomes INTERNAL for this call (CMI-23), and the answer does not
/// repeat the panic's message: it may hold the secrets of the call (OPS-11).
pub async fn catch_panic<T>(operation: Operation, call: impl Future<Output = Result<T>>) -> Result<T> {
    let answer = IN_CALL.scope((), AssertUnwindSafe(call).catch_unwind()).await;
    answer.unwrap_or_else(|_panic| {
        Err(Status::new(
            Code::Internal,
            format!("the driver panicked in {operation}; see its log"),
        ))
    })
}

/// Whether a driver's call is being polled on this thread. A panic hook asks this, since the message of a
/// panic in a call must not be shown.
pub fn is_in_call() -> bool {
    IN_CALL.try_with(|()| ()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CMI-23, OPS-11
    #[tokio::test]
    async fn a_panic_of_a_call_is_internal_and_its_message_is_not_repeated() {
        let call = async {
            tokio::task::yield_now().await;
            assert!(!is_in_call(), "canary-4711");
            Ok(())
        };
        let status = catch_panic(Operation::DeleteMachine, call).await.unwrap_err();
        assert_eq!(status.code(), Code::Internal);
        assert!(!status.message().contains("canary"), "{status}");
        assert!(!is_in_call(), "the call is over");
    }
}
