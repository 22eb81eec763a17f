//! The initial list of a watch. The API server streams it as the watch's first events, from memory, or lists
//! it in pages, from etcd, which takes several times as long.

use std::fmt::Debug;
use std::time::Duration;

use futures::stream::{BoxStream, Stream, StreamExt as _, unfold};
use kube::Resource;
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{Config, Error, Event, InitialListStrategy, watcher as kube_watcher};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

/// How long the API server may take for the next object of a streamed list.
const STALLED_AFTER: Duration = Duration::from_secs(30);
/// The longest back-off of kube's watcher: 30 s, and as much again of jitter.
const MAX_BACKOFF: Duration = Duration::from_mins(1);
/// How often the list is requested as a stream while the API server is unreachable or not ready.
const MAX_STREAM_TRIES: u32 = 5;
/// The minimum age of a list that is replaced immediately when its watch expires. A younger list waits for
/// the back-off, because its watch may expire again.
const RELISTED_AT_ONCE_AFTER: Duration = Duration::from_mins(1);

/// Watches for ever, as kube's own watcher does, with kube's default back-off after failures.
///
/// # Guarantees
/// * Each list is first requested as a stream. If the stream is refused (by default before 1.34), breaks off
///   or stalls, the same list is requested in pages until it is complete.
/// * A stream is requested five times if the API server is unreachable. The same applies while its watch
///   cache is not ready, as after its start.
/// * An expired watch is followed immediately by a list, unless the last list is too young. The back-off of
///   an earlier outage does not delay that list.
/// * A list that breaks off is followed by another [`Event::Init`], never by [`Event::InitDone`].
pub fn watcher<K>(api: Api<K>, config: Config) -> impl Stream<Item = Result<Event<K>, Error>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Default,
{
    let watch = Watch::begin(api, config, InitialListStrategy::StreamingList);
    unfold(watch, |mut watch| async {
        let event = watch.next().await?;
        Some((event, watch))
    })
}

/// A watch with one of the two list strategies.
struct Watch<K> {
    api: Api<K>,
    config: Config,
    events: BoxStream<'static, Result<Event<K>, Error>>,
    progress: Progress,
    /// When the last list was complete.
    listed_at: Option<Instant>,
    /// How often the stream of this list has failed.
    failed_streams: u32,
}

/// The progress of a watch's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Asked,
    Begun,
    Complete,
}

/// The result of the next step of a streamed list.
enum Streamed<K> {
    /// Its next event.
    Event(Event<K>),
    /// The API server is unreachable. The stream is requested again.
    Unreachable(Error),
    /// The API server is not ready. The stream is requested again.
    NotNow,
    /// Streams are not supported, or the stream failed. The list is requested in pages.
    InPages,
}

impl<K> Watch<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Default,
{
    fn begin(api: Api<K>, config: Config, strategy: InitialListStrategy) -> Self {
        let config = Config {
            initial_list_strategy: strategy,
            ..config
        };
        let events = kube_watcher(api.clone(), config.clone())
            .default_backoff()
            .boxed();
        Self {
            api,
            config,
            events,
            progress: Progress::Asked,
            listed_at: None,
            failed_streams: 0,
        }
    }

    fn restart(&mut self, strategy: InitialListStrategy) {
        *self = Self {
            listed_at: self.listed_at,
            ..Self::begin(self.api.clone(), self.config.clone(), strategy)
        };
    }

    async fn next(&mut self) -> Option<Result<Event<K>, Error>> {
        loop {
            let event = match self.config.initial_list_strategy {
                InitialListStrategy::StreamingList if self.progress != Progress::Complete => {
                    match self.streamed().await {
                        Streamed::Event(event) => Ok(event),
                        Streamed::Unreachable(error) => Err(error),
                        Streamed::NotNow => continue,
                        Streamed::InPages => {
                            let kind = K::kind(&K::DynamicType::default()).into_owned();
                            tracing::debug!(kind, "listing in pages");
                            self.restart(InitialListStrategy::ListWatch);
                            continue;
                        }
                    }
                }
                InitialListStrategy::ListWatch if self.progress == Progress::Complete => {
                    let event = self.events.next().await?;
                    if matches!(event, Ok(Event::Init)) {
                        self.restart(InitialListStrategy::StreamingList);
                        continue;
                    }
                    event
                }
                InitialListStrategy::StreamingList | InitialListStrategy::ListWatch => {
                    self.events.next().await?
                }
            };
            match &event {
                Ok(Event::Init) => self.progress = Progress::Begun,
                Ok(Event::InitDone) => {
                    self.progress = Progress::Complete;
                    self.listed_at = Some(Instant::now());
                    self.failed_streams = 0;
                }
                Err(error) if lists_anew(error) && self.is_list_old() => {
                    self.restart(InitialListStrategy::StreamingList);
                }
                Err(error) if self.is_streamed() && lists_anew(error) => self.progress = Progress::Asked,
                Ok(Event::InitApply(_) | Event::Apply(_) | Event::Delete(_)) | Err(_) => {}
            }
            return Some(event);
        }
    }

    fn is_streamed(&self) -> bool {
        self.config.initial_list_strategy == InitialListStrategy::StreamingList
    }

    /// Whether the last list is complete, and old enough to be replaced immediately.
    fn is_list_old(&self) -> bool {
        let is_old = |listed_at: Instant| listed_at.elapsed() >= RELISTED_AT_ONCE_AFTER;
        self.progress == Progress::Complete && self.listed_at.is_some_and(is_old)
    }

    /// Awaits the next event of a streamed list.
    async fn streamed(&mut self) -> Streamed<K> {
        let kind = K::kind(&K::DynamicType::default()).into_owned();
        let limit = match self.progress {
            Progress::Asked => STALLED_AFTER + MAX_BACKOFF,
            Progress::Begun | Progress::Complete => STALLED_AFTER,
        };
        match tokio::time::timeout(limit, self.events.next()).await {
            Ok(Some(Ok(Event::Init))) if self.progress == Progress::Begun => {
                tracing::debug!(kind, "streamed list ended early");
                Streamed::InPages
            }
            Ok(Some(Ok(event))) => Streamed::Event(event),
            Ok(Some(Err(error))) => {
                let source = &error as &dyn std::error::Error;
                tracing::debug!(kind, error = source, "streamed list is not available");
                self.after(error)
            }
            Ok(None) => Streamed::InPages,
            Err(_elapsed) => {
                tracing::debug!(kind, "streamed list stalled");
                Streamed::InPages
            }
        }
    }

    /// Decides the next step after a stream failed with this error.
    fn after(&mut self, error: Error) -> Streamed<K> {
        match error {
            Error::WatchStartFailed(source) => {
                self.failed_streams += 1;
                match source {
                    _ if self.failed_streams >= MAX_STREAM_TRIES => Streamed::InPages,
                    kube::Error::Api(status) if status.code == 429 || status.code >= 500 => Streamed::NotNow,
                    kube::Error::Api(_) => Streamed::InPages,
                    source => Streamed::Unreachable(Error::WatchStartFailed(source)),
                }
            }
            Error::InitialListFailed(_)
            | Error::WatchError(_)
            | Error::WatchFailed(_)
            | Error::NoResourceVersion => Streamed::InPages,
        }
    }
}

/// Whether a watch that failed with this error continues with a list.
fn lists_anew(error: &Error) -> bool {
    match error {
        Error::WatchError(status) => status.code == 410,
        Error::NoResourceVersion => true,
        Error::InitialListFailed(_) | Error::WatchStartFailed(_) | Error::WatchFailed(_) => false,
    }
}

#[cfg(test)]
mod tests;
