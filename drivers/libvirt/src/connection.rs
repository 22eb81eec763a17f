//! Connections to the libvirt of a host.
//!
//! Every libvirt call blocks, including the call that closes a connection, so none runs on a thread of the
//! async runtime. Each connection is lent to one job at a time, and the job runs on a blocking thread. A host
//! has a few connections, so that a long job does not delay all others. A connection is closed on its own
//! thread, and nothing waits for that thread: the host may hang.
//!
//! A call that finds no idle connection starts an attempt to open one, and waits for it with a time limit.
//! Only one attempt runs at a time, and all waiting calls share it. The attempt outlives the call. On a host
//! that is slow to connect, the new connection therefore serves a later call.
//!
//! After a failure the next attempt starts after a short pause. Calls wait for that attempt, because the
//! result of an attempt that began before the call may be outdated.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use cmi_driver::{Code, Result, Status};
use tokio::sync::{Notify, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until, timeout};
use virt::connect::Connect;

use crate::errors;

/// Connections to a host, and so jobs on it at the same time.
const MAX_CONNECTIONS: usize = 4;
/// How long a call waits for a connection while all are in use. It is longer than a hanging daemon can hold
/// its jobs. A busy host therefore does not count as unreachable.
const QUEUE_TIMEOUT: Duration = Duration::from_mins(1);
/// How long a call waits for a new connection, from when the call needs one. libvirt itself waits forever for
/// a daemon that is stopped.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an attempt to open a connection excludes other attempts. It may hang forever, for example when
/// the host loses power.
const ATTEMPT_TIMEOUT: Duration = Duration::from_mins(1);
/// How many attempts may hang beside the latest one: each occupies a thread.
const MAX_HUNG: usize = 16;
/// The back-off after a failed attempt to connect to a host.
const BETWEEN_TRIES: Duration = Duration::from_secs(1);
/// How long a call waits for its job. A job that takes longer continues, and a later call finds its result.
const JOB_TIMEOUT: Duration = Duration::from_mins(10);
/// How often libvirt sends a keep-alive message to a silent daemon, in seconds, and how many may stay
/// unanswered.
const KEEPALIVE: (i32, u32) = (5, 5);

/// A host, and its open connections.
#[derive(Debug)]
pub struct Host {
    /// Its name in the configuration.
    pub name: String,
    uri: String,
    /// Opens a connection. Blocks.
    opener: fn(&str, &str) -> Result<Connection>,
    connections: Mutex<Connections>,
    /// One permit for each idle connection. The longest waiting call gets the next permit.
    idle: Semaphore,
    /// Wakes the calls that wait for a connection when an attempt ends, or a new one may begin.
    changed: Notify,
    /// Each lent connection holds a clone, so the reference count gives the number of jobs.
    lent: Arc<()>,
    /// Whether a connection was ever open.
    was_there: AtomicBool,
}

/// The state of the connections to a host.
#[derive(Debug, Default)]
struct Connections {
    idle: Vec<Connection>,
    /// The attempt under way to open another connection.
    attempt: Option<Attempt>,
    /// How many attempts there were; numbers the next one.
    attempts: u64,
    /// How many earlier attempts have not ended.
    hung: usize,
    failed: Option<ConnectFailure>,
}

/// An attempt to open a connection.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    number: u64,
    began: Instant,
}

/// The failure of the last attempt.
#[derive(Debug)]
struct ConnectFailure {
    began: Instant,
    ended: Instant,
    code: Code,
    message: String,
}

/// How a call treats a host that could not be reached a moment ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterFailure {
    /// The call waits for the next attempt.
    Wait,
    /// The call returns the failure.
    Fail,
}

/// A connection. Dropping it closes it on a separate thread, since closing may block.
#[derive(Debug)]
struct Connection(Connect);

impl Connection {
    fn open(host: &str, uri: &str) -> Result<Self> {
        let connect = Connect::open(Some(uri)).map_err(|error| errors::not_connected(host, error))?;
        let connection = Self(connect);
        let (interval, count) = KEEPALIVE;
        // Drivers without a network connection have no keep-alive.
        if let Err(error) = connection.0.set_keep_alive(interval, count) {
            tracing::debug!(host, %error, "cannot enable keep-alive on a connection");
        }
        Ok(connection)
    }

    /// Whether libvirt considers the connection open. Sends nothing to the host.
    fn is_alive(&self) -> bool {
        self.0.is_alive().unwrap_or(false)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut last = self.0.clone();
        // Closing sends nothing as long as there is another reference.
        close(&mut self.0);
        let closing = std::thread::Builder::new().spawn(move || close(&mut last));
        if let Err(error) = closing {
            tracing::warn!(%error, "cannot start a thread to close a connection: it stays open");
        }
    }
}

fn close(connect: &mut Connect) {
    if let Err(error) = connect.close() {
        tracing::debug!(%error, "closing a connection failed");
    }
}

/// A connection that is lent to a job.
struct Lent {
    connection: Connection,
    counted: Arc<()>,
}

impl Host {
    /// Returns a host without an open connection.
    pub fn new(name: &str, uri: &str) -> Self {
        handle_events();
        Self {
            name: name.to_owned(),
            uri: uri.to_owned(),
            opener: Connection::open,
            connections: Mutex::default(),
            idle: Semaphore::new(0),
            changed: Notify::new(),
            lent: Arc::default(),
            was_there: AtomicBool::default(),
        }
    }

    /// Whether the host was ever reached.
    pub fn was_there(&self) -> bool {
        self.was_there.load(Ordering::Relaxed)
    }

    /// Checks that the host answers. A host with a running job counts as answering, since a lost connection
    /// ends its job.
    ///
    /// # Errors
    /// The error of the attempt to connect.
    pub async fn ensure_reachable(self: &Arc<Self>) -> Result<()> {
        if self.jobs() > 0 {
            return Ok(());
        }
        self.run(|_| Ok(())).await
    }

    /// Runs a job on a connection that no other job uses. The job continues when the calling future is
    /// dropped.
    ///
    /// # Errors
    /// The job's error, or UNAVAILABLE when the host can't be reached or the connection is lost.
    pub async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        job: impl FnOnce(&Connect) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let lent = self.connection(AfterFailure::Wait).await?;
        self.run_with(lent, job).await
    }

    /// Runs a job like [`Host::run`] on a host that need not answer. The call fails without waiting when the
    /// last attempt to connect has just failed.
    ///
    /// # Errors
    /// As [`Host::run`].
    pub async fn run_unless_down<T: Send + 'static>(
        self: &Arc<Self>,
        job: impl FnOnce(&Connect) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let lent = self.connection(AfterFailure::Fail).await?;
        self.run_with(lent, job).await
    }

    async fn run_with<T: Send + 'static>(
        self: &Arc<Self>,
        lent: Lent,
        job: impl FnOnce(&Connect) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let host = Arc::clone(self);
        let running = spawn_blocking(move || {
            let answer = job(&lent.connection.0);
            let answer = answer.map_err(|status| host.as_connection_loss(&lent.connection, status));
            host.give_back(lent);
            answer
        });
        match timeout(JOB_TIMEOUT, running).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_panic)) => {
                // The panic closed the job's connection, so the host may open another one.
                self.changed.notify_waiters();
                let what = format!(
                    "the driver panicked in a job on host `{}`: see its log",
                    self.name
                );
                Err(Status::new(Code::Internal, what))
            }
            Err(_elapsed) => Err(Status::new(
                Code::DeadlineExceeded,
                format!("host `{}` did not finish the operation in time", self.name),
            )),
        }
    }

    /// How many jobs have a connection.
    fn jobs(&self) -> usize {
        Arc::strong_count(&self.lent) - 1
    }

    /// Whether there are as many connections as there may be.
    fn is_full(&self, connections: &Connections) -> bool {
        connections.idle.len() + self.jobs() >= MAX_CONNECTIONS
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next idle connection.
    async fn connection(self: &Arc<Self>, after_failure: AfterFailure) -> Result<Lent> {
        let asked = Instant::now();
        // Set while the call waits for a new connection instead of a used one.
        let mut opens_since = None;
        loop {
            let mut idle = pin!(self.idle.acquire());
            let permit = loop {
                let mut changed = pin!(self.changed.notified());
                changed.as_mut().enable();
                self.ensure_attempt(asked, after_failure)?;
                let is_full = self.is_full(&self.lock());
                let until = if is_full {
                    opens_since = None;
                    asked + QUEUE_TIMEOUT
                } else {
                    *opens_since.get_or_insert_with(Instant::now) + OPEN_TIMEOUT
                };
                tokio::select! {
                    biased;
                    permit = &mut idle => break permit,
                    () = changed => {}
                    // libvirt does not report every lost connection.
                    () = sleep_until(until) => if self.is_full(&self.lock()) == is_full {
                        return Err(if is_full { self.queue_timeout() } else { self.does_not_answer() });
                    }
                }
            };
            // The semaphore is never closed.
            let Ok(permit) = permit else { continue };
            permit.forget();
            if let Some(lent) = self.lend() {
                return Ok(lent);
            }
        }
    }

    fn queue_timeout(&self) -> Status {
        let what = format!(
            "host `{}` is overloaded: {MAX_CONNECTIONS} jobs did not finish in time",
            self.name
        );
        Status::new(Code::Unavailable, what)
    }

    fn does_not_answer(&self) -> Status {
        let what = format!(
            "host `{}` did not answer within {} s",
            self.name,
            OPEN_TIMEOUT.as_secs()
        );
        Status::new(Code::Unavailable, what)
    }

    /// Starts an attempt, unless one is under way, a connection is idle, or the host has the maximum number
    /// of connections.
    ///
    /// # Errors
    /// The failure of an attempt that began after the call. A call that does not wait for the next attempt
    /// also gets the failure of the last one.
    fn ensure_attempt(self: &Arc<Self>, asked: Instant, after_failure: AfterFailure) -> Result<()> {
        if self.idle.available_permits() > 0 {
            return Ok(());
        }
        let mut connections = self.lock();
        // Idle connections are for the calls that waited longer.
        if self.is_full(&connections) {
            return Ok(());
        }
        let waits = after_failure == AfterFailure::Wait;
        let now = Instant::now();
        let mut begins = now;
        if let Some(failure) = &connections.failed {
            let next = failure.ended + BETWEEN_TRIES;
            if failure.began >= asked || (!waits && now < next) {
                return Err(Status::new(failure.code, failure.message.clone()));
            }
            begins = begins.max(next);
        }
        if let Some(attempt) = connections.attempt {
            let hangs = now >= attempt.began + ATTEMPT_TIMEOUT;
            if !hangs || connections.hung >= MAX_HUNG {
                let is_silent = now >= attempt.began + OPEN_TIMEOUT;
                return if is_silent && !waits {
                    Err(self.does_not_answer())
                } else {
                    Ok(())
                };
            }
            connections.hung += 1;
            tracing::warn!(
                host = self.name,
                hung = connections.hung,
                "connecting to a host hangs: starting another attempt"
            );
        }
        connections.attempts += 1;
        let attempt = Attempt {
            number: connections.attempts,
            began: begins,
        };
        connections.attempt = Some(attempt);
        drop(tokio::spawn(Arc::clone(self).attempt(attempt)));
        Ok(())
    }

    /// Opens a connection. The attempt is detached: it continues when the call that started it ends.
    async fn attempt(self: Arc<Self>, attempt: Attempt) {
        sleep_until(attempt.began).await;
        let host = Arc::clone(&self);
        let opening = spawn_blocking(move || {
            let began = Instant::now();
            let opened = (host.opener)(&host.name, &host.uri);
            host.end(Attempt { began, ..attempt }, opened);
        });
        if opening.await.is_err() {
            let what = format!(
                "the driver panicked while connecting to host `{}`: see its log",
                self.name
            );
            self.end(attempt, Err(Status::new(Code::Internal, what)));
        }
    }

    /// Records the result of an attempt.
    fn end(&self, attempt: Attempt, opened: Result<Connection>) {
        let mut connections = self.lock();
        let is_last = connections
            .attempt
            .is_some_and(|last| last.number == attempt.number);
        if is_last {
            connections.attempt = None;
        } else {
            connections.hung = connections.hung.saturating_sub(1);
        }
        match opened {
            Ok(connection) => {
                self.was_there.store(true, Ordering::Relaxed);
                connections.failed = None;
                if !self.is_full(&connections) {
                    connections.idle.push(connection);
                    self.idle.add_permits(1);
                }
            }
            // The failure of an earlier attempt that hung may be outdated.
            Err(_) if !is_last => {}
            Err(status) => {
                connections.failed = Some(ConnectFailure {
                    began: attempt.began,
                    ended: Instant::now(),
                    code: status.code(),
                    message: status.message().to_owned(),
                });
            }
        }
        drop(connections);
        self.changed.notify_waiters();
    }

    /// Returns an idle connection, or none if it was lost. The caller has a permit for it.
    fn lend(&self) -> Option<Lent> {
        let mut connections = self.lock();
        let connection = connections.idle.pop()?;
        connection.is_alive().then(|| Lent {
            connection,
            counted: Arc::clone(&self.lent),
        })
    }

    /// Returns a job's connection to the idle ones, or closes it where it was lost.
    fn give_back(&self, lent: Lent) {
        let Lent { connection, counted } = lent;
        if connection.is_alive() {
            let mut connections = self.lock();
            connections.idle.push(connection);
            drop(counted);
            self.idle.add_permits(1);
        } else {
            drop(counted);
            self.changed.notify_waiters();
        }
    }

    /// Maps the error of a job whose connection was lost to UNAVAILABLE: the error does not tell the state of
    /// the VM.
    fn as_connection_loss(&self, connection: &Connection, status: Status) -> Status {
        if connection.is_alive() || status.code() == Code::Unavailable {
            return status;
        }
        let what = format!(
            "the connection to host `{}` was lost: {}",
            self.name,
            status.message()
        );
        Status::new(Code::Unavailable, what).with_source(status)
    }
}

/// Runs libvirt's event loop. Without it libvirt would not notice keep-alive answers and lost connections.
fn handle_events() {
    static STARTED: OnceLock<()> = OnceLock::new();
    STARTED.get_or_init(|| {
        // Calls return their errors; libvirt would also print them.
        virt::error::clear_error_callback();
        if let Err(error) = virt::event::event_register_default_impl() {
            tracing::error!(%error, "cannot start libvirt's event loop: a hanging host is detected late");
            return;
        }
        std::thread::spawn(|| {
            loop {
                if let Err(error) = virt::event::event_run_default_impl() {
                    tracing::warn!(%error, "libvirt's event loop failed");
                    std::thread::sleep(BETWEEN_TRIES);
                }
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(uri: &str) -> Arc<Host> {
        Arc::new(Host::new("host-a", uri))
    }

    fn opened_by(uri: &str, opener: fn(&str, &str) -> Result<Connection>) -> Arc<Host> {
        Arc::new(Host {
            opener,
            ..Host::new("host-a", uri)
        })
    }

    /// How often connecting has been tried.
    fn attempts(host: &Host) -> u64 {
        host.lock().attempts
    }

    /// DRV-30
    #[tokio::test]
    async fn an_absent_host_is_unavailable_and_is_tried_again_after_a_pause() {
        let host = host("qemu+unix:///system?socket=/nowhere/libvirt-sock");
        let mut failed_at = Vec::new();
        for _ in 0..2 {
            let calls = (0..3 * MAX_CONNECTIONS).map(|_| host.run(|_| Ok(())));
            for answer in futures::future::join_all(calls).await {
                let status = answer.unwrap_err();
                assert_eq!(status.code(), Code::Unavailable);
                assert!(status.message().contains("`host-a`"), "{status}");
            }
            failed_at.push(host.lock().failed.as_ref().unwrap().ended);
        }
        assert_eq!(attempts(&host), 2, "calls at the same time share an attempt");
        assert!(failed_at[1] - failed_at[0] >= BETWEEN_TRIES, "{failed_at:?}");
        // The call does not wait for an optional host.
        host.run_unless_down(|_| Ok(())).await.unwrap_err();
        assert_eq!(attempts(&host), 2);
    }

    #[tokio::test]
    async fn a_host_that_is_back_is_reached_by_the_first_call_after_a_failure() {
        static IS_UP: AtomicBool = AtomicBool::new(false);
        let host = opened_by("test:///default", |host, uri| {
            if IS_UP.load(Ordering::SeqCst) {
                return Connection::open(host, uri);
            }
            Err(Status::new(Code::Unavailable, "down"))
        });
        host.run(|_| Ok(())).await.unwrap_err();
        IS_UP.store(true, Ordering::SeqCst);
        host.run(|_| Ok(())).await.unwrap();
    }

    /// The daemon is stopped: the kernel accepts connections, and nothing answers.
    ///
    /// DRV-30
    #[tokio::test(start_paused = true)]
    async fn calls_time_out_on_a_hanging_attempt_and_a_new_attempt_starts() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("libvirt-sock");
        let silent = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let host = host(&format!("qemu+unix:///system?socket={}", socket.display()));
        for expected in 1..=2 {
            let asked = (0..3 * MAX_CONNECTIONS).map(|_| host.run(|_| Ok(())));
            let (answers, ()) = tokio::join!(futures::future::join_all(asked), pass(OPEN_TIMEOUT));
            for answer in answers {
                let status = answer.unwrap_err();
                assert_eq!(status.code(), Code::Unavailable);
                assert!(status.message().contains("did not answer within"), "{status}");
            }
            assert_eq!(attempts(&host), expected);
            // The call does not wait for an optional host.
            let status = host.run_unless_down(|_| Ok(())).await.unwrap_err();
            assert!(status.message().contains("did not answer within"), "{status}");
            pass(ATTEMPT_TIMEOUT).await;
        }
        for _ in 0..2 * MAX_HUNG {
            let (answer, ()) = tokio::join!(host.run(|_| Ok(())), pass(OPEN_TIMEOUT));
            answer.unwrap_err();
            pass(ATTEMPT_TIMEOUT).await;
        }
        assert_eq!(host.lock().hung, MAX_HUNG);
        assert_eq!(attempts(&host), MAX_HUNG as u64 + 1);
        // The runtime waits for these threads, and they end with their connections.
        drop(silent);
    }

    /// No call would ever reach the host if each opened its own connection.
    #[tokio::test(start_paused = true)]
    async fn a_slow_connection_attempt_serves_a_later_call() {
        static OPENS: AtomicBool = AtomicBool::new(false);
        let host = opened_by("test:///default", |host, uri| {
            while !OPENS.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            Connection::open(host, uri)
        });
        let (answer, ()) = tokio::join!(host.run(|_| Ok(())), pass(OPEN_TIMEOUT));
        assert!(answer.unwrap_err().message().contains("did not answer within"));
        // A caller that times out drops its call like this.
        drop(timeout(Duration::ZERO, host.run(|_| Ok(()))).await);
        OPENS.store(true, Ordering::SeqCst);
        host.run(|_| Ok(())).await.unwrap();
        assert_eq!(attempts(&host), 1, "another connection was opened");
    }

    #[tokio::test(start_paused = true)]
    async fn hung_attempts_do_not_leave_too_many_connections() {
        static OPENS: AtomicBool = AtomicBool::new(false);
        let host = opened_by("test:///default", |host, uri| {
            while !OPENS.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            Connection::open(host, uri)
        });
        for _ in 0..2 * MAX_CONNECTIONS {
            let (answer, ()) = tokio::join!(host.run(|_| Ok(())), pass(OPEN_TIMEOUT));
            answer.unwrap_err();
            pass(ATTEMPT_TIMEOUT).await;
        }
        OPENS.store(true, Ordering::SeqCst);
        while host.lock().attempt.is_some() || host.lock().hung > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(attempts(&host), 2 * MAX_CONNECTIONS as u64);
        assert_eq!(host.lock().idle.len(), MAX_CONNECTIONS);
        assert_eq!(host.idle.available_permits(), MAX_CONNECTIONS);
    }

    /// Advances the paused clock. It does not advance automatically while threads are blocked.
    async fn pass(time: Duration) {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        tokio::time::advance(time + BETWEEN_TRIES).await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_host_that_works_on_all_that_it_can_is_there() {
        let host = host("test:///default");
        let (go_on, waits) = std::sync::mpsc::channel::<()>();
        let waits = Arc::new(Mutex::new(waits));
        let jobs = (0..MAX_CONNECTIONS).map(|_| {
            let waits = Arc::clone(&waits);
            host.run(move |_| {
                waits.lock().unwrap().recv().unwrap();
                Ok(())
            })
        });
        let asked = async {
            while host.jobs() < MAX_CONNECTIONS {
                tokio::task::yield_now().await;
            }
            host.ensure_reachable().await.unwrap();
            for _ in 0..MAX_CONNECTIONS {
                go_on.send(()).unwrap();
            }
        };
        let (jobs, ()) = tokio::join!(futures::future::join_all(jobs), asked);
        assert!(jobs.into_iter().all(|job| job.is_ok()));
    }

    /// A call that waits longer than a connection takes to open must not fail unsent.
    ///
    /// DRV-30
    #[tokio::test(start_paused = true)]
    async fn calls_queued_behind_a_lost_connection_use_the_next_one() {
        let host = host("test:///default");
        let (lose, is_lost) = std::sync::mpsc::channel::<()>();
        let (go_on, waits) = std::sync::mpsc::channel::<()>();
        let waits = Arc::new(Mutex::new(waits));
        let on = |job: Box<dyn FnOnce() + Send>| {
            let host = Arc::clone(&host);
            tokio::spawn(async move {
                let run = host.run(move |_| {
                    job();
                    Ok(())
                });
                run.await
            })
        };
        let working: Vec<_> = (1..MAX_CONNECTIONS)
            .map(|_| {
                let waits = Arc::clone(&waits);
                on(Box::new(move || waits.lock().unwrap().recv().unwrap()))
            })
            .collect();
        // A job that panics closes its connection.
        let losing = on(Box::new(move || {
            is_lost.recv().unwrap();
            panic!("canary")
        }));
        while host.jobs() < MAX_CONNECTIONS {
            tokio::task::yield_now().await;
        }
        let queued: Vec<_> = (0..MAX_CONNECTIONS).map(|_| on(Box::new(|| {}))).collect();
        pass(2 * OPEN_TIMEOUT).await;
        let before = attempts(&host);
        lose.send(()).unwrap();
        assert_eq!(losing.await.unwrap().unwrap_err().code(), Code::Internal);
        for call in queued {
            call.await.unwrap().unwrap();
        }
        assert_eq!(attempts(&host), before + 1);
        for _ in &working {
            go_on.send(()).unwrap();
        }
        for job in working {
            job.await.unwrap().unwrap();
        }
    }

    /// A connection between two jobs does not count as a new one.
    ///
    /// DRV-30
    #[tokio::test(start_paused = true)]
    async fn a_call_waits_in_turn_while_a_connection_changes_jobs() {
        let host = host("test:///default");
        let (go_on, waits) = std::sync::mpsc::channel::<()>();
        let waits = Arc::new(Mutex::new(waits));
        let run = || {
            let waits = Arc::clone(&waits);
            let host = Arc::clone(&host);
            async move {
                let job = move |_: &Connect| {
                    waits.lock().unwrap().recv().unwrap();
                    Ok(())
                };
                host.run(job).await
            }
        };
        let working: Vec<_> = (0..MAX_CONNECTIONS).map(|_| tokio::spawn(run())).collect();
        while host.jobs() < MAX_CONNECTIONS {
            tokio::task::yield_now().await;
        }
        let mut next = tokio::spawn(run());
        assert!(futures::poll!(&mut next).is_pending());
        pass(Duration::ZERO).await;
        go_on.send(()).unwrap();
        while host.lock().idle.is_empty() {
            // No task runs during this pause, so the connection has no job yet.
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut last = pin!(run());
        assert!(futures::poll!(&mut last).is_pending());
        pass(2 * OPEN_TIMEOUT).await;
        assert!(futures::poll!(&mut last).is_pending());
        for _ in 0..=MAX_CONNECTIONS {
            go_on.send(()).unwrap();
        }
        last.await.unwrap();
        next.await.unwrap().unwrap();
        for job in working {
            job.await.unwrap().unwrap();
        }
    }

    #[tokio::test]
    async fn a_connection_is_used_again_and_by_one_job_at_a_time() {
        let host = host("test:///default");
        let (started, seen) = std::sync::mpsc::channel();
        let (go_on, waits) = std::sync::mpsc::channel::<()>();
        let first = host.run(move |connect| {
            started.send(connect.as_ptr() as usize).unwrap();
            waits.recv().unwrap();
            Ok(())
        });
        let second = async {
            let seen = tokio::task::spawn_blocking(move || seen.recv().unwrap())
                .await
                .unwrap();
            let other = host.run(|connect| Ok(connect.as_ptr() as usize)).await.unwrap();
            assert_ne!(seen, other);
            go_on.send(()).unwrap();
        };
        let (first, ()) = tokio::join!(first, second);
        first.unwrap();
        assert_eq!(host.lock().idle.len(), 2);
        host.run(|_| Ok(())).await.unwrap();
        assert_eq!(host.lock().idle.len(), 2);
    }

    #[tokio::test]
    async fn a_job_that_panics_is_an_error_and_the_next_one_runs() {
        let host = host("test:///default");
        let status = host.run::<()>(|_| panic!("canary")).await.unwrap_err();
        assert_eq!(status.code(), Code::Internal);
        assert!(!status.message().contains("canary"));
        for _ in 0..MAX_CONNECTIONS {
            host.run(|_| Ok(())).await.unwrap();
        }
    }
}
