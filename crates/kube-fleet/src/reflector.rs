//! Updates a store from a watch, and reports the changes.

mod change;

use std::pin::Pin;
use std::sync::Arc;
use std::vec;

use futures::stream::{Stream, StreamExt as _, unfold};
use kube::runtime::watcher::{Error, Event};
use tokio::task::coop::consume_budget;

use self::change::changes;
use crate::store::Difference;
use crate::{Store, Stored, Writer};

pub use self::change::Change;

/// The most changes of a list in one update, because their objects are unpacked for it.
const BATCH: usize = 256;

/// Changes that the store has applied.
#[derive(Debug)]
pub struct Update<K> {
    /// The changes. A replaced object has two of them, its deletion first.
    pub changes: Vec<Change<K>>,
    /// Whether this is the last update of a list: the store holds the whole list, and all changes were
    /// reported. A broken watch starts again with a list.
    pub complete: bool,
}

/// Updates a store from the events of a [`watcher`](crate::watcher()), and yields the changes.
///
/// # Guarantees
/// * The store is updated before a change is reported, so an enqueued reconcile finds the object. For a list,
///   this happens when the list is complete: the store keeps the earlier objects until then.
/// * A list is compared with the store. Objects that changed or were deleted while no watch ran are reported
///   as if a watch had run, also after incomplete lists. An unchanged object is not reported.
/// * The store is ready when the next item is requested after the last update of the first list. State that
///   is derived from the updates is then complete, too.
pub fn reflector<K, S>(writer: Writer<K>, events: S) -> impl Stream<Item = Result<Update<K>, Error>> + Send
where
    K: Stored,
    S: Stream<Item = Result<Event<K>, Error>> + Send,
{
    let reflector = Reflector {
        store: writer.as_reader(),
        writer,
        events: Box::pin(events),
        list: None,
        is_reported: false,
    };
    unfold(reflector, |mut reflector| async {
        let update = reflector.next().await?;
        Some((update, reflector))
    })
}

struct Reflector<K: Stored, S> {
    store: Store<K>,
    writer: Writer<K>,
    events: Pin<Box<S>>,
    /// The unreported differences of a complete list. The store already has the list.
    list: Option<vec::IntoIter<Difference<K>>>,
    /// Whether the last update completed a list.
    is_reported: bool,
}

impl<K: Stored, S: Stream<Item = Result<Event<K>, Error>>> Reflector<K, S> {
    async fn next(&mut self) -> Option<Result<Update<K>, Error>> {
        if std::mem::take(&mut self.is_reported) {
            self.writer.set_ready();
        }
        loop {
            if let Some(update) = self.next_of_list().await {
                return Some(Ok(update));
            }
            // A page or a buffer of a stream has many objects, none of which waits.
            consume_budget().await;
            match self.events.next().await? {
                Ok(event) => {
                    if let Some(update) = self.take(event) {
                        return Some(Ok(update));
                    }
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Applies an event to the store. Returns the changes that a watch has shown.
    fn take(&mut self, event: Event<K>) -> Option<Update<K>> {
        let changes = match event {
            Event::Init => {
                self.writer.begin_list();
                return None;
            }
            Event::InitApply(object) => {
                self.writer.listed(object);
                return None;
            }
            Event::InitDone => {
                self.list = Some(self.writer.end_list().into_iter());
                return None;
            }
            Event::Apply(object) => {
                let now = Arc::new(object);
                let before = self.writer.apply(Arc::clone(&now));
                changes(before, Some(now))
            }
            Event::Delete(object) => changes(self.writer.delete(&object), None),
        };
        Some(Update {
            changes,
            complete: false,
        })
    }

    /// Returns the next changes of a list.
    async fn next_of_list(&mut self) -> Option<Update<K>> {
        let list = self.list.as_mut()?;
        let mut changes = Vec::new();
        for difference in list.by_ref().take(BATCH) {
            consume_budget().await;
            changes.extend(changes_of(&self.store, difference));
        }
        let complete = list.len() == 0;
        if complete {
            self.list = None;
            self.is_reported = true;
        }
        Some(Update { changes, complete })
    }
}

fn changes_of<K: Stored>(store: &Store<K>, difference: Difference<K>) -> Vec<Change<K>> {
    match difference {
        Difference::Removed(before) => changes(before.object(), None),
        Difference::Present { before, key } => {
            let now = store.entry(&key);
            changes(
                before.and_then(|before| before.object()),
                now.and_then(|now| now.object()),
            )
        }
    }
}

#[cfg(test)]
mod tests;
