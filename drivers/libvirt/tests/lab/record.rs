//! Records each state of objects: polling would miss short states.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use futures::StreamExt as _;
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;

/// The states of all objects of a kind since this was made, each with its time. The last state of a deleted
/// object is its final one.
pub struct Record<K> {
    states: Arc<Mutex<Vec<(Instant, K)>>>,
    task: JoinHandle<()>,
}

impl<K> Record<K>
where
    K: kube::Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    /// Starts to record.
    pub fn of(api: Api<K>) -> Self {
        let states = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&states);
        let task = tokio::spawn(async move {
            let mut events = pin!(watcher(api, watcher::Config::default()).default_backoff());
            while let Some(event) = events.next().await {
                match event {
                    Ok(Event::InitApply(object) | Event::Apply(object) | Event::Delete(object)) => {
                        recorded
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push((Instant::now(), object));
                    }
                    // The watcher restarts automatically.
                    Ok(Event::Init | Event::InitDone) | Err(_) => {}
                }
            }
        });
        Self { states, task }
    }

    /// The states so far of the object with a name.
    pub fn named(&self, name: &str) -> Vec<(Instant, K)> {
        self.that(|its_name| its_name == name)
    }

    /// The states so far of the objects whose names begin with this.
    pub fn named_like(&self, prefix: &str) -> Vec<(Instant, K)> {
        self.that(|its_name| its_name.starts_with(prefix))
    }

    fn that(&self, is_it: impl Fn(&str) -> bool) -> Vec<(Instant, K)> {
        let states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let chosen = |(_, object): &&(Instant, K)| object.meta().name.as_deref().is_some_and(&is_it);
        states.iter().filter(chosen).cloned().collect()
    }
}

impl<K> Drop for Record<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}
