//! A trap for a provider: its process ends at a write or a call.

use std::sync::Arc;

use cmi_driver::Operation;
use fake_apiserver::{Call, Fate};
use http::Method;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The point where a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// At its n-th driver call, counted from 0.
    Call(usize, Side),
    /// At its n-th write to the API server, counted from 0.
    Write(usize, Side),
}

/// Whether the write or the call is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It is not carried out.
    Before,
    /// It is carried out, and its answer is lost.
    After,
}

/// Counts the writes and calls of one process, and ends it at a point. Clones share the state.
#[derive(Clone, Default)]
pub struct Trap(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    sprung: Notify,
}

#[derive(Default)]
struct State {
    point: Option<Point>,
    is_armed: bool,
    /// The process has ended: its requests have no effect.
    is_dead: bool,
    /// The process can't reach the API server.
    is_cut_off: bool,
    /// When the first and the last driver call began. Also set while the trap is not armed.
    called: Option<(Instant, Instant)>,
    calls: Vec<Operation>,
    writes: Vec<String>,
}

/// The fate of a driver call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFate {
    /// It is made and answered.
    Made,
    /// It is not made, and never answered.
    Lost,
    /// It is made, and never answered.
    Unanswered,
}

impl Trap {
    /// A trap that only counts.
    pub fn counting() -> Self {
        Self::default()
    }

    /// A trap with a point.
    pub fn at(point: Point) -> Self {
        let trap = Self::default();
        trap.0.state.lock().point = Some(point);
        trap
    }

    /// Starts to count.
    pub fn arm(&self) {
        self.0.state.lock().is_armed = true;
    }

    /// Ends the process. All later requests are lost.
    pub fn kill(&self) {
        self.0.state.lock().is_dead = true;
    }

    /// Whether the process has ended.
    pub fn is_dead(&self) -> bool {
        self.0.state.lock().is_dead
    }

    /// Cuts the process off from the API server. All later requests are lost.
    pub fn cut_off(&self) {
        self.0.state.lock().is_cut_off = true;
    }

    /// When the first and the last driver call began, except for probes.
    pub fn called(&self) -> Option<(Instant, Instant)> {
        self.0.state.lock().called
    }

    /// Waits until the point is reached.
    pub async fn sprung(&self) {
        self.0.sprung.notified().await;
    }

    /// The driver calls so far, except for probes.
    pub fn calls(&self) -> Vec<Operation> {
        self.0.state.lock().calls.clone()
    }

    /// The writes so far, such as `PATCH inframachines/status`, except for events.
    pub fn writes(&self) -> Vec<String> {
        self.0.state.lock().writes.clone()
    }

    /// Both sides of each call and write so far.
    pub fn points(&self) -> Vec<Point> {
        let state = self.0.state.lock();
        let sides = [Side::Before, Side::After];
        let calls = (0..state.calls.len()).flat_map(|call| sides.map(|side| Point::Call(call, side)));
        let writes = (0..state.writes.len()).flat_map(|write| sides.map(|side| Point::Write(write, side)));
        calls.chain(writes).collect()
    }

    /// The fate of a request to the API server.
    pub fn on_request(&self, call: &Call) -> Fate {
        let mut state = self.0.state.lock();
        if state.is_dead || state.is_cut_off {
            return Fate::Lost;
        }
        let is_counted = call.is_write()
            && call.method != Method::DELETE
            && !call.path.starts_with("/apis/authorization.k8s.io")
            // Both replicas write their Lease, at irregular times.
            && !call.path.contains("/leases")
            && !call.path.contains("validatingadmissionpolic");
        if !state.is_armed || !is_counted {
            return Fate::Served;
        }
        let number = state.writes.len();
        state.writes.push(name_of(call));
        match state.point {
            Some(Point::Write(at, side)) if at == number => {
                state.is_dead = true;
                self.0.sprung.notify_one();
                match side {
                    Side::Before => Fate::Lost,
                    Side::After => Fate::Unanswered,
                }
            }
            _ => Fate::Served,
        }
    }

    /// The fate of a driver call.
    pub fn on_call(&self, operation: Operation) -> CallFate {
        let mut state = self.0.state.lock();
        if state.is_dead {
            return CallFate::Lost;
        }
        let now = Instant::now();
        state.called = Some(state.called.map_or((now, now), |(first, _)| (first, now)));
        if !state.is_armed {
            return CallFate::Made;
        }
        let number = state.calls.len();
        state.calls.push(operation);
        match state.point {
            Some(Point::Call(at, side)) if at == number => {
                state.is_dead = true;
                self.0.sprung.notify_one();
                match side {
                    Side::Before => CallFate::Lost,
                    Side::After => CallFate::Unanswered,
                }
            }
            _ => CallFate::Made,
        }
    }
}

/// The method and resource of a request: `PATCH inframachines/status`.
pub fn name_of(call: &Call) -> String {
    let parts: Vec<_> = call.path.split('/').collect();
    // The plural follows the group and version, or the namespace.
    let group_version = if call.path.starts_with("/api/") { 3 } else { 4 };
    let place = parts
        .iter()
        .position(|part| *part == "namespaces")
        .map_or(group_version, |place| place + 2);
    let subresource = parts
        .get(place + 2)
        .map(|name| format!("/{name}"))
        .unwrap_or_default();
    format!("{} {}{subresource}", call.method, parts.get(place).unwrap_or(&""))
}
