//! The driver of a process that may end in the middle of a call.

use std::sync::Arc;

use cmi_driver::{
    DeclaredCapabilities, Driver, Operation, PluginInfo, Readiness, Request, Result, forward_calls,
};
use tokio::task::{AbortHandle, JoinError};

use super::trap::{CallFate, Trap};

/// A driver whose calls end with the process that makes them. A call that was made goes on in the back end.
pub struct Mortal {
    inner: Arc<dyn Driver>,
    trap: Trap,
}

impl Mortal {
    /// The driver of the process that this trap may end.
    pub fn new(inner: Arc<dyn Driver>, trap: Trap) -> Self {
        Self { inner, trap }
    }

    async fn call<R: Request>(&self, request: R) -> Result<R::Response> {
        let fate = self.trap.on_call(R::OPERATION);
        if fate == CallFate::Lost {
            std::future::pending::<()>().await;
        }
        let inner = Arc::clone(&self.inner);
        let task = tokio::spawn(async move { request.send(&*inner).await });
        let running = Running {
            cancel: task.abort_handle(),
            trap: self.trap.clone(),
        };
        let made = task.await;
        drop(running);
        if fate == CallFate::Unanswered {
            std::future::pending::<()>().await;
        }
        made.unwrap_or_else(|error: JoinError| std::panic::resume_unwind(error.into_panic()))
    }
}

/// A call in the back end. It is cancelled when its caller gives it up, but not when its caller dies.
struct Running {
    cancel: AbortHandle,
    trap: Trap,
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.trap.is_dead() {
            self.cancel.abort();
        }
    }
}

forward_calls! {
    impl Driver for Mortal {
        fn connection_generation(&self) -> u64 {
            self.inner.connection_generation()
        }

        async fn prepare_call(&self, operation: Operation) -> Result<()> {
            self.inner.prepare_call(operation).await
        }

        async fn get_plugin_info(&self) -> Result<PluginInfo> {
            self.inner.get_plugin_info().await
        }

        async fn get_plugin_capabilities(&self) -> Result<DeclaredCapabilities> {
            self.inner.get_plugin_capabilities().await
        }

        async fn probe(&self) -> Result<Readiness> {
            self.inner.probe().await
        }
    }
}
