//! Runs the reconciles of a kind: one per object at a time, and a limited number in parallel.
//!
//! This does the work of kube's own controller, over kube's scheduler. That controller takes its objects only
//! from kube's store, which holds each of them in full. Even a store of names would need metadata and four
//! texts for each object. It also queues all objects of a start immediately, twice, as requests with
//! reasons. Here a request is a key that the store shares, and the objects of a start wait in a list,
//! unqueued, until a worker is free.
//!
//! # Guarantees
//! As in kube's controller:
//! * An object has one reconcile at a time. A request while it runs leads to one more reconcile after it.
//! * Requests for a waiting object are merged, at their earliest time. The backlog of a start is separate, so
//!   an object that has a request may be reconciled once more.
//! * No request is lost while an object waits. A request for an object that is not in the store is dropped.
//! * After a shutdown no reconcile begins, and running reconciles are finished.

use std::collections::HashSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::vec;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, Stream, StreamExt as _};
use kube::runtime::scheduler::{ScheduleRequest, Scheduler, scheduler};
use tokio::sync::mpsc;
use tokio::task::coop::consume_budget;
use tracing::Instrument as _;

use crate::{Action, NamespacedName, Store, Stored, WorkQueue};

/// The reconciles of a kind, with their limit.
pub struct Controller<K: Stored> {
    store: Store<K>,
    queue: WorkQueue<K>,
    requests: mpsc::UnboundedReceiver<ScheduleRequest<NamespacedName>>,
    /// The objects that are reconciled once, whether or not they change.
    backlog: vec::IntoIter<NamespacedName>,
    concurrency: usize,
    shutdown: BoxFuture<'static, ()>,
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

impl<K: Stored> Controller<K> {
    /// Creates a controller for the objects of the work queue, which receives all later keys. It runs at most
    /// so many reconciles at the same time.
    pub fn new(store: &Store<K>, queue: &WorkQueue<K>, concurrency: u16) -> Self {
        Self {
            store: store.clone(),
            requests: queue.receive(),
            queue: queue.clone(),
            backlog: Vec::new().into_iter(),
            concurrency: usize::from(concurrency),
            shutdown: futures::future::pending().boxed(),
        }
    }

    /// Also reconciles every object of the store once. The objects that satisfy `comes_first` come first.
    #[must_use]
    pub fn with_backlog(mut self, comes_first: impl Fn(&K::Facts) -> bool) -> Self {
        let (mut first, mut others) = (Vec::new(), Vec::new());
        self.store.scan(|all| {
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

    /// Begins no reconcile after `trigger` resolves. [`Self::run`] ends when the running reconciles have
    /// ended.
    #[must_use]
    pub fn graceful_shutdown_on(mut self, trigger: impl Future<Output = ()> + Send + 'static) -> Self {
        self.shutdown = trigger.boxed();
        self
    }

    /// Reconciles objects. `error_policy` decides when to repeat a failed reconcile.
    ///
    /// Run it in a task of its own: its reconciles share one thread. It yields to other tasks even if no
    /// reconcile ever waits.
    pub async fn run<C, E, F>(
        self,
        reconcile: impl Fn(Arc<K>, Arc<C>) -> F,
        error_policy: impl Fn(Arc<K>, &E, Arc<C>) -> Action,
        context: Arc<C>,
    ) where
        F: Future<Output = Result<Action, E>>,
    {
        let Self {
            store,
            queue,
            mut requests,
            backlog,
            concurrency,
            mut shutdown,
        } = self;
        let requests = futures::stream::poll_fn(move |context| requests.poll_recv(context));
        let mut due = Due {
            scheduler: Box::pin(scheduler(requests)),
            backlog,
            takes_from_backlog: false,
        };
        let run = |key: NamespacedName, object: Arc<K>| {
            let span = tracing::info_span!("reconciling object", object.ref = %key.reference::<K>());
            let reconciled = reconcile(Arc::clone(&object), Arc::clone(&context)).instrument(span);
            let (error_policy, context) = (&error_policy, Arc::clone(&context));
            async move {
                let result = reconciled.await;
                let action = result.unwrap_or_else(|error| error_policy(object, &error, context));
                (key, action)
            }
        };
        let mut names = HashSet::new();
        let mut running = FuturesUnordered::new();
        loop {
            // The reconcile of an object at rest never waits, and thousands of them may be due.
            consume_budget().await;
            let has_worker = names.len() < concurrency;
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                Some((key, action)) = running.next(), if !running.is_empty() => {
                    names.remove(&key);
                    if let Some(after) = Action::requeue_after(action) {
                        queue.enqueue_after(key, after);
                    }
                }
                key = poll_fn(|context| due.poll(context, &names, has_worker)) => {
                    // A deleted object needs no reconcile: its deletion was reported as a change.
                    if let Some(object) = store.get_key(&key) {
                        names.insert(key.clone());
                        running.push(run(key, object));
                    }
                }
            }
        }
        while running.next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests;
