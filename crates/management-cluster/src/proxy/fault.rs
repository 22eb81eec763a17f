//! Faults that a proxy causes.

use std::sync::Arc;

use http::StatusCode;
use tokio::sync::watch;

/// The fate of a request.
#[derive(Debug, Clone)]
pub enum Fault {
    /// It is forwarded.
    None,
    /// It is held, and forwarded once the gate opens.
    HoldBefore(Gate),
    /// It is forwarded, and the answer is held until the gate opens.
    HoldAfter(Gate),
    /// It is forwarded, and each part of the answer's body is held while the gate is closed, such as the
    /// events of a watch.
    HoldBody(Gate),
    /// It is not forwarded but answered with this status, as an API server would.
    Refuse(StatusCode),
}

/// Holds requests, or parts of answers, until a test opens it.
#[derive(Debug, Clone)]
pub struct Gate {
    state: Arc<watch::Sender<GateState>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct GateState {
    reached: usize,
    held: usize,
    open: bool,
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Self {
        Self {
            state: Arc::new(watch::Sender::new(GateState::default())),
        }
    }

    /// Returns when a request has reached the gate. It is held there, unless the gate has been opened since.
    /// For [`Fault::HoldAfter`], the API server has answered by then.
    pub async fn reached(&self) {
        self.wait_for(|state| state.reached > 0).await;
    }

    /// The number of requests held now. A request whose client has disconnected is dropped and does not
    /// count.
    pub fn held(&self) -> usize {
        self.state.borrow().held
    }

    /// Lets all requests through, those at the gate and those to come.
    pub fn open(&self) {
        self.state.send_modify(|state| state.open = true);
    }

    /// Holds those that come from now on.
    pub fn close(&self) {
        self.state.send_modify(|state| state.open = false);
    }

    pub(super) async fn pass(&self) {
        self.state.send_modify(|state| {
            state.reached += 1;
            state.held += 1;
        });
        let _held = Held(self);
        self.wait_for(|state| state.open).await;
    }

    async fn wait_for(&self, condition: impl FnMut(&GateState) -> bool) {
        // The sender lives as long as this gate, so waiting cannot fail.
        let _ = self.state.subscribe().wait_for(condition).await;
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

/// A request at a gate, until the gate opens or the client disconnects.
struct Held<'a>(&'a Gate);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.state.send_modify(|state| state.held -= 1);
    }
}
