//! Runs the reconciles of a kind: one per object at a time, and a limited number in parallel.
//!
//! This does the work of kube's own controller, over kube's scheduler. That controller takes its objects only
//! from its own kind of store, which holds each of them in full. Even a store of names would need metadata
//! and four texts for each object. It also queues all objects of a start immediately, twice, as requests with
//! reasons. Here a request is a key that the cache shares, and the objects of a start wait in a list,
//! unqueued, until a worker is free.
//!
//! # Guarantees
//! As in kube's controller:
//! * An object has one reconcile at a time. A request while it runs leads to one more reconcile after it.
//! * Requests for a waiting object are merged, at their earliest time. The backlog of a start is separate, so
//!   an object that has a request may be reconciled once more.
//! * No request is lost while an object waits. A request for an uncached object is dropped.
//! * After a shutdown no reconcile begins, and running reconciles are finished.

use std::collections::HashSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::vec;

use futures::stream::FuturesUnordered;
use futures::{Stream, StreamExt as _};
use kube::runtime::scheduler::{ScheduleRequest, Scheduler, scheduler};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::work_queue::WorkQueue;
use crate::reconcile::Action;
use crate::reconcile::caches::{Cache, Cached, NamespacedName};

/// The reconciles of a kind, with their limit.
pub(super) struct Controller<K: Cached> {
    cache: Cache<K>,
    requests: mpsc::UnboundedReceiver<ScheduleRequest<NamespacedName>>,
    sender: mpsc::UnboundedSender<ScheduleRequest<NamespacedName>>,
    /// The objects that are reconciled once, whether or not they change.
    backlog: vec::IntoIter<NamespacedName>,
    concurrency: usize,
}

/// The next due key: from the requests and from the backlog of a start, alternately. So a large backlog does
/// not delay a change for long, and endless changes do not block the backlog.
struct Due<R> {
    scheduler: Pin<Box<Scheduler<NamespacedName, R>>>,
    backlog: vec::IntoIter<NamespacedName>,
    takes_from_backlog: bool,
}

impl<R: Stream<Item = ScheduleRequest<NamespacedName>>> Due<R> {
    fn poll(
        &mut self,
        context: &mut Context<'_>,
        running: &HashSet<NamespacedName>,
        has_worker: bool,
    ) -> Poll<NamespacedName> {
        if !has_worker {
            // Requests that come due in the meantime are then known when a worker is free.
            let _ = self.scheduler.as_mut().hold().poll_next_unpin(context);
            return Poll::Pending;
        }
        if self.takes_from_backlog
            && let Some(key) = self.next_of_backlog(running)
        {
            return Poll::Ready(key);
        }
        let mut free = self.scheduler.as_mut().hold_unless(|key| !running.contains(key));
        if let Poll::Ready(Some(key)) = free.poll_next_unpin(context) {
            self.takes_from_backlog = true;
            return Poll::Ready(key);
        }
        self.next_of_backlog(running).map_or(Poll::Pending, Poll::Ready)
    }

    /// Returns the next object of the backlog. Skips objects that are being reconciled already.
    fn next_of_backlog(&mut self, running: &HashSet<NamespacedName>) -> Option<NamespacedName> {
        self.takes_from_backlog = false;
        self.backlog.find(|key| !running.contains(key))
    }
}

impl<K: Cached> Controller<K> {
    /// Creates a controller for the objects of the work queue.
    pub(super) fn new(cache: &Cache<K>, queue: &WorkQueue<K>, concurrency: u16) -> Self {
        let (sender, requests) = mpsc::unbounded_channel();
        queue.connect(&sender);
        Self {
            cache: cache.clone(),
            requests,
            sender,
            backlog: Vec::new().into_iter(),
            concurrency: usize::from(concurrency),
        }
    }

    /// Also reconciles every object of the cache once. The objects that satisfy `comes_first` come first.
    pub(super) fn with_backlog(mut self, comes_first: impl Fn(&K::Facts) -> bool) -> Self {
        let (mut first, mut others) = (Vec::new(), Vec::new());
        self.cache.scan(|all| {
            for entry in all {
                let keys = if comes_first(entry.facts()) {
                    &mut first
                } else {
                    &mut others
                };
                keys.push(entry.key().clone());
            }
        });
        first.append(&mut others);
        self.backlog = first.into_iter();
        self
    }

    /// Runs until `shutdown` resolves and every running reconcile is finished.
    pub(super) async fn run<C, E, F>(
        self,
        reconcile: impl Fn(Arc<K>, Arc<C>) -> F,
        error_policy: impl Fn(&K, &E, &C) -> Action,
        context: Arc<C>,
        shutdown: impl Future<Output = ()>,
    ) where
        F: Future<Output = Result<Action, E>>,
    {
        let mut requests = self.requests;
        let requests = futures::stream::poll_fn(move |context| requests.poll_recv(context));
        let mut due = Due {
            scheduler: Box::pin(scheduler(requests)),
            backlog: self.backlog,
            takes_from_backlog: false,
        };
        let run = |key: NamespacedName, object: Arc<K>| {
            let span = tracing::info_span!("reconciling object", object.ref = %key.reference::<K>());
            let reconciled = reconcile(Arc::clone(&object), Arc::clone(&context)).instrument(span);
            let (error_policy, context) = (&error_policy, Arc::clone(&context));
            async move {
                let action = match reconciled.await {
                    Ok(action) => action,
                    Err(error) => error_policy(&object, &error, &context),
                };
                (key, action)
            }
        };
        let mut names = HashSet::new();
        let mut running = FuturesUnordered::new();
        let mut ended = 0_usize;
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            let has_worker = names.len() < self.concurrency;
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                Some((key, action)) = running.next(), if !running.is_empty() => {
                    names.remove(&key);
                    // The reconcile of an idle machine never waits. Without a yield, a fleet of them would
                    // block the other controllers, which share the task.
                    ended += 1;
                    if ended.is_multiple_of(YIELDS_AFTER) {
                        tokio::task::yield_now().await;
                    }
                    if let Some(after) = Action::requeue_after(action) {
                        let run_at = Instant::now().checked_add(after).unwrap_or_else(far_off);
                        // This function owns the receiver.
                        let _ = self.sender.send(ScheduleRequest { message: key, run_at });
                    }
                }
                key = poll_fn(|context| due.poll(context, &names, has_worker)) => {
                    // A deleted object needs no reconcile: its deletion was handled as an event.
                    if let Some(object) = self.cache.of_key(&key) {
                        names.insert(key.clone());
                        running.push(run(key, object));
                    }
                }
            }
        }
        while running.next().await.is_some() {}
    }
}

/// How many reconciles may end in a row before other futures of the task run.
const YIELDS_AFTER: usize = 32;

fn far_off() -> Instant {
    Instant::now() + std::time::Duration::from_hours(24)
}

#[cfg(test)]
mod tests;
