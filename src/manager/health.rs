//! Liveness and readiness. Both can fail.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use parking_lot::Mutex;
use tokio::time::{Instant, interval};

/// The interval of the watchdog.
const BEAT: Duration = Duration::from_secs(1);
/// How late timers must be for the process to count as stalled.
const STALLED: Duration = Duration::from_secs(10);

/// The state that `/healthz` and `/readyz` report. Clones share it.
#[derive(Clone, Debug)]
pub struct Health(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    pending: Mutex<BTreeMap<u64, Waiting>>,
    next: AtomicU64,
    stopping: AtomicBool,
    failure: OnceLock<String>,
    last_beat: Mutex<Instant>,
}

/// A condition of readiness, and why it is not met, if known.
#[derive(Debug)]
struct Waiting {
    what: &'static str,
    why: Option<String>,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)?;
        match &self.why {
            Some(why) => write!(f, " ({why})"),
            None => Ok(()),
        }
    }
}

/// A condition of this replica's readiness. Dropping it does not meet it: a task that died has not filled its
/// cache.
#[derive(Debug)]
#[must_use = "the replica is ready only after `Pending::ready`"]
pub struct Pending {
    health: Health,
    id: u64,
}

impl Pending {
    /// Sets the reason why the condition is not met yet.
    pub fn set_reason(&self, why: &str) {
        if let Some(waiting) = self.health.0.pending.lock().get_mut(&self.id) {
            waiting.why = Some(why.to_owned());
        }
    }

    /// Marks the condition as met.
    pub fn ready(&self) {
        self.health.0.pending.lock().remove(&self.id);
    }
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl Health {
    /// Returns the health of a replica that is alive and ready, as far as is known.
    pub fn new() -> Self {
        Self(Arc::new(Inner {
            pending: Mutex::default(),
            next: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            failure: OnceLock::new(),
            last_beat: Mutex::new(Instant::now()),
        }))
    }

    /// Adds a condition of readiness, such as `the InfraMachine cache`.
    pub fn wait_for(&self, what: &'static str) -> Pending {
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        self.0.pending.lock().insert(id, Waiting { what, why: None });
        Pending {
            health: self.clone(),
            id,
        }
    }

    /// Makes the replica unready, because it stops.
    pub(super) fn stop(&self) {
        self.0.stopping.store(true, Ordering::Relaxed);
    }

    /// Fails liveness. The first reason is kept.
    pub(super) fn fail(&self, why: String) {
        self.0.failure.get_or_init(|| why);
    }

    /// Beats forever, so that a stall is noticed.
    pub(super) async fn watch(self) {
        let mut beats = interval(BEAT);
        loop {
            beats.tick().await;
            *self.0.last_beat.lock() = Instant::now();
        }
    }

    /// Answers `/healthz` and `/readyz`.
    pub(super) fn router(&self) -> Router {
        Router::new()
            .route(
                "/healthz",
                get(|State(health): State<Self>| async move { answer(health.liveness()) }),
            )
            .route(
                "/readyz",
                get(|State(health): State<Self>| async move { answer(health.readiness()) }),
            )
            .with_state(self.clone())
    }

    fn liveness(&self) -> Result<(), String> {
        if let Some(why) = self.0.failure.get() {
            return Err(why.clone());
        }
        let late = self.0.last_beat.lock().elapsed();
        if late > STALLED {
            return Err(format!("timers are late by {} s", late.as_secs()));
        }
        Ok(())
    }

    fn readiness(&self) -> Result<(), String> {
        if self.0.stopping.load(Ordering::Relaxed) {
            return Err("stopping".to_owned());
        }
        let pending = self.0.pending.lock();
        if pending.is_empty() {
            return Ok(());
        }
        let all: Vec<_> = pending.values().map(ToString::to_string).collect();
        Err(format!("waiting for {}", all.join(", ")))
    }
}

fn answer(outcome: Result<(), String>) -> (StatusCode, String) {
    match outcome {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test]
    async fn a_replica_is_ready_from_its_last_condition_until_it_stops() {
        let health = Health::new();
        let (machines, clusters) = (health.wait_for("machines"), health.wait_for("clusters"));
        assert_eq!(
            health.readiness(),
            Err("waiting for machines, clusters".to_owned())
        );
        machines.ready();
        clusters.set_reason("there are none");
        clusters.set_reason("they are refused");
        drop(clusters);
        assert_eq!(
            health.readiness(),
            Err("waiting for clusters (they are refused)".to_owned())
        );

        let health = Health::new();
        health.wait_for("machines").ready();
        assert_eq!(health.readiness(), Ok(()));
        health.stop();
        assert_eq!(health.readiness(), Err("stopping".to_owned()));
        assert_eq!(health.liveness(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_process_is_not_alive() {
        let health = Health::new();
        let watch = tokio::spawn(health.clone().watch());
        advance(Duration::from_mins(1)).await;
        tokio::task::yield_now().await;
        assert_eq!(health.liveness(), Ok(()));
        watch.abort();
        advance(Duration::from_secs(11)).await;
        assert!(health.liveness().is_err());
    }

    #[tokio::test]
    async fn a_process_that_lost_a_controller_is_not_alive() {
        let health = Health::new();
        health.fail("the InfraMachine controller ended unexpectedly".to_owned());
        assert!(health.liveness().is_err());
    }
}
