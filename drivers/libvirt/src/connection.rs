//! Connections to the libvirt of a host.
//!
//! Every call of libvirt blocks, so none is made on a thread of the runtime. A connection is lent to one job
//! at a time, which runs on a thread that may block; there are a few for each host, so that what takes long
//! does not hold up all else. Opening one is bounded in time, and so is how often it is tried.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use cmi_driver::{Code, Result, Status};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use virt::connect::Connect;

use crate::errors;

/// Jobs on one host at the same time.
const MOST_JOBS: usize = 4;
/// How long a job may wait for its turn.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(20);
/// How long it may take to open a connection: where the daemon is stopped, libvirt itself waits for ever.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an attempt to open one keeps its place. After that it may hang for ever.
const ATTEMPT_TIMEOUT: Duration = Duration::from_mins(5);
/// Attempts that hang without a place, at most: each has a thread.
const MOST_HUNG: usize = 16;
/// How long a host that could not be reached is left alone.
const BETWEEN_TRIES: Duration = Duration::from_secs(1);
/// How long a job may take. What is still done then goes on, and a later call finds it.
const JOB_TIMEOUT: Duration = Duration::from_mins(10);
/// How often a silent daemon is asked whether it is still there, seconds, and how often in vain.
const KEEPALIVE: (i32, u32) = (3, 3);

/// A host, and what is open to it.
#[derive(Debug)]
pub struct Host {
    /// Its name in the configuration.
    pub name: String,
    uri: String,
    places: Arc<Semaphore>,
    hung: Arc<Semaphore>,
    /// A copy is with each job that runs.
    jobs: Arc<()>,
    idle: Mutex<Vec<Connection>>,
    failed: Mutex<Option<ConnectFailure>>,
    /// Whether a connection was ever open.
    was_there: AtomicBool,
}

/// A failure to connect that counts for a while.
#[derive(Debug)]
struct ConnectFailure {
    at: Instant,
    code: Code,
    message: String,
}

/// A connection, which is closed when this is dropped.
#[derive(Debug)]
struct Connection(Connect);

impl Connection {
    fn open(host: &str, uri: &str) -> Result<Self> {
        let connect = Connect::open(Some(uri)).map_err(|error| errors::not_connected(host, error))?;
        let connection = Self(connect);
        let (interval, count) = KEEPALIVE;
        // Drivers without a wire have none to keep alive.
        if let Err(error) = connection.0.set_keep_alive(interval, count) {
            tracing::debug!(host, %error, "the connection is not kept alive");
        }
        Ok(connection)
    }

    fn is_alive(&self) -> bool {
        self.0.is_alive().unwrap_or(false)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Err(error) = self.0.close() {
            tracing::debug!(%error, "closing a connection failed");
        }
    }
}

impl Host {
    /// A host to which nothing is open yet.
    pub fn new(name: &str, uri: &str) -> Self {
        handle_events();
        Self {
            name: name.to_owned(),
            uri: uri.to_owned(),
            places: Arc::new(Semaphore::new(MOST_JOBS)),
            hung: Arc::new(Semaphore::new(MOST_HUNG)),
            jobs: Arc::default(),
            idle: Mutex::default(),
            failed: Mutex::default(),
            was_there: AtomicBool::default(),
        }
    }

    /// Whether it was reached once.
    pub fn was_there(&self) -> bool {
        self.was_there.load(Ordering::Relaxed)
    }

    /// Whether the host answers. One that works on something does: a connection that is lost ends its job.
    ///
    /// # Errors
    /// Those of connecting.
    pub async fn is_there(self: &Arc<Self>) -> Result<()> {
        if Arc::strong_count(&self.jobs) > 1 {
            return Ok(());
        }
        self.run(|_| Ok(())).await
    }

    /// Runs a job with a connection of its own. The job goes on when the call that wants it is dropped.
    ///
    /// # Errors
    /// Those of the job; UNAVAILABLE when the host can't be reached, or was lost meanwhile.
    pub async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        job: impl FnOnce(&Connect) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let place = timeout(QUEUE_TIMEOUT, Arc::clone(&self.places).acquire_owned());
        let Ok(Ok(place)) = place.await else {
            let what = format!(
                "host `{}` works on too much: {MOST_JOBS} jobs did not end in time",
                self.name
            );
            return Err(Status::new(Code::Unavailable, what));
        };
        let (connection, place) = self.connection(place).await?;
        let host = Arc::clone(self);
        let running = spawn_blocking(move || {
            let _at_work = Arc::clone(&host.jobs);
            let answer = job(&connection.0);
            let answer = answer.map_err(|status| host.blamed_on_the_way(&connection, status));
            host.give_back(connection);
            drop(place);
            answer
        });
        match timeout(JOB_TIMEOUT, running).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_panic)) => Err(Status::new(
                Code::Internal,
                format!(
                    "the driver panicked in a job on host `{}`; the log says where",
                    self.name
                ),
            )),
            Err(_elapsed) => Err(Status::new(
                Code::DeadlineExceeded,
                format!("host `{}` did not end what it was asked for in time", self.name),
            )),
        }
    }

    /// A connection that is open, or a new one.
    async fn connection(&self, place: OwnedSemaphorePermit) -> Result<(Connection, OwnedSemaphorePermit)> {
        while let Some(connection) = self.pop() {
            if connection.is_alive() {
                return Ok((connection, place));
            }
        }
        self.may_try()?;
        let (name, uri) = (self.name.clone(), self.uri.clone());
        let mut opening = spawn_blocking(move || Connection::open(&name, &uri));
        let hung = Arc::clone(&self.hung);
        // The place goes with what may hang, also when the call is dropped: there are few of them at a time.
        let attempt = tokio::spawn(async move {
            if let Ok(opened) = timeout(ATTEMPT_TIMEOUT, &mut opening).await {
                return Some((opened, place));
            }
            let _hung = hung.acquire_owned().await;
            drop(place);
            let _late = opening.await;
            None
        });
        let opened = match timeout(OPEN_TIMEOUT, attempt).await {
            Ok(Ok(Some((Ok(Ok(connection)), place)))) => {
                self.was_there.store(true, Ordering::Relaxed);
                return Ok((connection, place));
            }
            Ok(Ok(Some((Ok(Err(status)), _place)))) => status,
            Ok(Ok(Some((Err(_panic), _))) | Err(_panic)) => {
                let what = format!("the driver panicked while it connected to host `{}`", self.name);
                return Err(Status::new(Code::Internal, what));
            }
            Ok(Ok(None)) | Err(_) => {
                let what = format!(
                    "host `{}` did not answer within {} s",
                    self.name,
                    OPEN_TIMEOUT.as_secs()
                );
                Status::new(Code::Unavailable, what)
            }
        };
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(ConnectFailure {
            at: Instant::now(),
            code: opened.code(),
            message: opened.message().to_owned(),
        });
        Err(opened)
    }

    fn pop(&self) -> Option<Connection> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn give_back(&self, connection: Connection) {
        if connection.is_alive() {
            self.idle
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(connection);
        }
    }

    /// The last failure, as long as it counts.
    fn may_try(&self) -> Result<()> {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        match failed
            .as_ref()
            .filter(|failure| failure.at.elapsed() < BETWEEN_TRIES)
        {
            Some(failure) => Err(Status::new(failure.code, failure.message.clone())),
            None => Ok(()),
        }
    }

    /// What a job answered on a connection that was lost says nothing about the VM.
    fn blamed_on_the_way(&self, connection: &Connection, status: Status) -> Status {
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

/// Has libvirt notice what happens to connections: answers to its questions whether a daemon is still there,
/// and their end.
fn handle_events() {
    static STARTED: OnceLock<()> = OnceLock::new();
    STARTED.get_or_init(|| {
        // Errors are answered, and not printed.
        virt::error::clear_error_callback();
        if let Err(error) = virt::event::event_register_default_impl() {
            tracing::error!(%error, "libvirt's events can't be handled: a host that hangs is noticed late");
            return;
        }
        std::thread::spawn(|| {
            loop {
                if let Err(error) = virt::event::event_run_default_impl() {
                    tracing::warn!(%error, "handling libvirt's events failed");
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

    /// DRV-30
    #[tokio::test]
    async fn a_host_that_is_not_there_is_unavailable_and_is_not_asked_again_at_once() {
        let host = host("qemu+unix:///system?socket=/nowhere/libvirt-sock");
        let mut failed_at = Vec::new();
        for _ in 0..2 {
            let status = host.run(|_| Ok(())).await.unwrap_err();
            assert_eq!(status.code(), Code::Unavailable);
            assert!(status.message().contains("`host-a`"), "{status}");
            failed_at.push(host.failed.lock().unwrap().as_ref().unwrap().at);
        }
        assert_eq!(failed_at[0], failed_at[1], "the host was asked again");
        assert_eq!(host.places.available_permits(), MOST_JOBS);
    }

    /// A daemon that is stopped: the kernel takes connections for it, and nothing answers.
    ///
    /// DRV-30
    #[tokio::test(start_paused = true)]
    async fn attempts_that_hang_are_given_up_and_give_their_places_back() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("libvirt-sock");
        let silent = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let host = host(&format!("qemu+unix:///system?socket={}", socket.display()));
        let asked = (0..MOST_JOBS).map(|_| host.run(|_| Ok(())));
        let (answers, ()) = tokio::join!(futures::future::join_all(asked), pass(OPEN_TIMEOUT));
        for answer in answers {
            let status = answer.unwrap_err();
            assert_eq!(status.code(), Code::Unavailable);
            assert!(status.message().contains("did not answer within"), "{status}");
        }
        let (answer, ()) = tokio::join!(host.run(|_| Ok(())), pass(QUEUE_TIMEOUT));
        let status = answer.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains("works on too much"), "{status}");
        pass(ATTEMPT_TIMEOUT).await;
        assert_eq!(host.places.available_permits(), MOST_JOBS);
        // The threads end with their connections: the runtime waits for them.
        drop(silent);
    }

    /// Lets time go by. It stands still by itself as long as threads are blocked.
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
        let jobs = (0..MOST_JOBS).map(|_| {
            let waits = Arc::clone(&waits);
            host.run(move |_| {
                waits.lock().unwrap().recv().unwrap();
                Ok(())
            })
        });
        let asked = async {
            while host.places.available_permits() > 0 || Arc::strong_count(&host.jobs) == 1 {
                tokio::task::yield_now().await;
            }
            host.is_there().await.unwrap();
            for _ in 0..MOST_JOBS {
                go_on.send(()).unwrap();
            }
        };
        let (jobs, ()) = tokio::join!(futures::future::join_all(jobs), asked);
        assert!(jobs.into_iter().all(|job| job.is_ok()));
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
        assert_eq!(host.idle.lock().unwrap().len(), 2);
        host.run(|_| Ok(())).await.unwrap();
        assert_eq!(host.idle.lock().unwrap().len(), 2);
    }

    #[tokio::test]
    async fn a_job_that_panics_is_an_error_and_the_next_one_runs() {
        let host = host("test:///default");
        let status = host.run::<()>(|_| panic!("canary")).await.unwrap_err();
        assert_eq!(status.code(), Code::Internal);
        assert!(!status.message().contains("canary"));
        for _ in 0..MOST_JOBS {
            host.run(|_| Ok(())).await.unwrap();
        }
    }
}
