//! The initial list of a watch. The API server streams it as the watch's first events, from memory, or lists
//! it in pages, from etcd, which takes several times as long.

use std::fmt::Debug;
use std::time::Duration;

use futures::stream::{BoxStream, Stream, StreamExt as _, unfold};
use kube::Resource;
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, InitialListStrategy, watcher};
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

/// Watches for ever, as kube's own watcher does, with the same back-off after failures.
///
/// # Guarantees
/// * Each list is first requested as a stream. If the stream is refused (by default before 1.34), breaks off
///   or stalls, the same list is requested in pages until it is complete.
/// * A stream is requested [`MAX_STREAM_TRIES`] times if the API server is unreachable. The same applies
///   while its watch cache is not ready, as after its start.
/// * An expired watch is followed immediately by a list, unless the last list is too young. The back-off of
///   an earlier outage does not delay that list.
/// * A list that breaks off is followed by another [`Event::Init`], never by [`Event::InitDone`].
pub(super) fn watch_list<K>(
    api: Api<K>,
    config: watcher::Config,
) -> impl Stream<Item = Result<Event<K>, watcher::Error>> + Send
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
    config: watcher::Config,
    events: BoxStream<'static, Result<Event<K>, watcher::Error>>,
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
    Unreachable(watcher::Error),
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
    fn begin(api: Api<K>, config: watcher::Config, strategy: InitialListStrategy) -> Self {
        let config = watcher::Config {
            initial_list_strategy: strategy,
            ..config
        };
        let events = watcher(api.clone(), config.clone()).default_backoff().boxed();
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

    async fn next(&mut self) -> Option<Result<Event<K>, watcher::Error>> {
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
    fn after(&mut self, error: watcher::Error) -> Streamed<K> {
        match error {
            watcher::Error::WatchStartFailed(source) => {
                self.failed_streams += 1;
                match source {
                    _ if self.failed_streams >= MAX_STREAM_TRIES => Streamed::InPages,
                    kube::Error::Api(status) if status.code == 429 || status.code >= 500 => Streamed::NotNow,
                    kube::Error::Api(_) => Streamed::InPages,
                    source => Streamed::Unreachable(watcher::Error::WatchStartFailed(source)),
                }
            }
            watcher::Error::InitialListFailed(_)
            | watcher::Error::WatchError(_)
            | watcher::Error::WatchFailed(_)
            | watcher::Error::NoResourceVersion => Streamed::InPages,
        }
    }
}

/// Whether a watch that failed with this error continues with a list.
fn lists_anew(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchError(status) => status.code == 410,
        watcher::Error::NoResourceVersion => true,
        watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchFailed(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};
    use std::{io, iter};

    use futures::stream;
    use http::{Request, Response};
    use http_body::Frame;
    use http_body_util::combinators::UnsyncBoxBody;
    use http_body_util::{BodyExt as _, Full, StreamBody};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::ResourceExt as _;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// The answer of an API server to a request.
    enum Answer {
        /// No answer: the server is unreachable.
        Unreachable,
        /// A list or page that fails with this status.
        Failed(u16),
        /// These events of a watch, which then ends.
        Ends(Vec<Value>),
        /// These events of a watch, which then stays open.
        Lasts(Vec<Value>),
        /// The only page.
        Page(Vec<Value>),
    }

    use Answer::{Ends, Failed, Lasts, Page, Unreachable};

    fn object(name: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "ns", "resourceVersion": "5"}})
    }

    fn added(name: &str) -> Value {
        json!({"type": "ADDED", "object": object(name)})
    }

    fn end_of_list() -> Value {
        json!({"type": "BOOKMARK", "object": {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {
            "resourceVersion": "7", "annotations": {"k8s.io/initial-events-end": "true"},
        }}})
    }

    fn failure(code: u16) -> Value {
        json!({
            "kind": "Status", "status": "Failure", "code": code, "message": "no", "reason": "no",
            "metadata": {}, "details": null,
        })
    }

    fn expired() -> Value {
        json!({"type": "ERROR", "object": failure(410)})
    }

    fn lines(events: Vec<Value>) -> impl Stream<Item = Result<Frame<bytes::Bytes>, Infallible>> + Send {
        stream::iter(events).map(|event| Ok(Frame::data(format!("{event}\n").into())))
    }

    fn response(answer: Answer) -> Response<UnsyncBoxBody<bytes::Bytes, Infallible>> {
        let whole = |text: Value| Full::from(text.to_string()).boxed_unsync();
        let (code, body) = match answer {
            Unreachable => unreachable!("it answers nothing"),
            Failed(code) => (code, whole(failure(code))),
            Ends(events) => (200, StreamBody::new(lines(events)).boxed_unsync()),
            Lasts(events) => {
                let body = StreamBody::new(lines(events).chain(stream::pending()));
                (200, body.boxed_unsync())
            }
            Page(items) => {
                let page = json!({"kind": "List", "metadata": {"resourceVersion": "6"}, "items": items});
                (200, whole(page))
            }
        };
        Response::builder().status(code).body(body).unwrap()
    }

    /// The requests to the API server and the resulting events, until no answer is left.
    async fn seen(answers: impl IntoIterator<Item = Answer>) -> (Vec<&'static str>, Vec<String>) {
        let (asked, shown) = seen_in_time(answers).await;
        (asked.into_iter().map(|(what, _)| what).collect(), shown)
    }

    /// As [`seen`], with the time of each request.
    async fn seen_in_time(
        answers: impl IntoIterator<Item = Answer>,
    ) -> (Vec<(&'static str, Instant)>, Vec<String>) {
        let answers = Arc::new(Mutex::new(answers.into_iter().collect::<VecDeque<_>>()));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (requests, is_over) = (Arc::clone(&asked), Arc::new(tokio::sync::Notify::new()));
        let over = Arc::clone(&is_over);
        let service = tower::service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default();
            let what = match (
                query.contains("sendInitialEvents=true"),
                query.contains("watch=true"),
            ) {
                (true, _) => "streamed list",
                (false, true) => "watch",
                (false, false) => "list in pages",
            };
            let answer = answers.lock().unwrap().pop_front();
            if answer.is_some() {
                requests.lock().unwrap().push((what, Instant::now()));
            } else {
                over.notify_one();
            }
            async move {
                match answer {
                    Some(Unreachable) => Err(io::Error::from(io::ErrorKind::ConnectionRefused)),
                    Some(answer) => Ok(response(answer)),
                    None => std::future::pending().await,
                }
            }
        });
        let api = Api::<ConfigMap>::all(kube::Client::new(service, "default"));
        let mut events = std::pin::pin!(watch_list(api, watcher::Config::default()));
        let mut shown = Vec::new();
        loop {
            tokio::select! {
                biased;
                event = events.next() => shown.push(match event.unwrap() {
                    Ok(Event::Init) => "init".to_owned(),
                    Ok(Event::InitApply(object)) => format!("listed {}", object.name_any()),
                    Ok(Event::InitDone) => "complete".to_owned(),
                    Ok(Event::Apply(object)) => format!("applied {}", object.name_any()),
                    Ok(Event::Delete(object)) => format!("deleted {}", object.name_any()),
                    Err(error) => error.to_string(),
                }),
                () = is_over.notified() => break,
            }
        }
        let asked = asked.lock().unwrap().clone();
        (asked, shown)
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_is_streamed_and_what_comes_after_it_is_watched() {
        let (asked, seen) = seen([Ends(vec![added("a"), end_of_list(), added("b")])]).await;
        assert_eq!(asked, ["streamed list"]);
        assert_eq!(seen, ["init", "listed a", "complete", "applied b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_is_not_streamed_is_read_in_pages_and_that_is_no_failure() {
        for code in [400, 403, 422] {
            let (asked, seen) = seen([Failed(code), Page(vec![object("a")]), Ends(vec![])]).await;
            assert_eq!(asked, ["streamed list", "list in pages", "watch"], "{code}");
            assert_eq!(seen, ["init", "listed a", "complete"], "{code}");
        }
    }

    /// As from an API server that has just started, and reads all objects from etcd.
    #[tokio::test(start_paused = true)]
    async fn an_unready_watch_cache_is_retried_before_listing_in_pages() {
        for code in [429, 500] {
            let refusals = |count: usize| (0..count).map(move |_| Failed(code));
            let streamed = [Ends(vec![added("a"), end_of_list()])];
            let (asked, shown) = seen(refusals(4).chain(streamed)).await;
            assert_eq!(asked, ["streamed list"; 5], "{code}");
            assert_eq!(shown, ["init", "listed a", "complete"], "{code}");
            let (asked, shown) = seen(refusals(5).chain([Page(vec![object("a")]), Ends(vec![])])).await;
            assert_eq!(asked[..5], ["streamed list"; 5], "{code}");
            assert_eq!(asked[5..], ["list in pages", "watch"], "{code}");
            assert_eq!(shown, ["init", "listed a", "complete"], "{code}");
        }
    }

    /// A proxy in between may not pass a stream, so the number of stream requests is limited.
    #[tokio::test(start_paused = true)]
    async fn an_unreachable_api_server_is_retried_with_limited_streams() {
        let outage = |tries: usize| (0..tries).map(|_| Unreachable);
        let (asked, shown) = seen(outage(4).chain([Ends(vec![end_of_list()])])).await;
        assert_eq!(asked, ["streamed list"; 5]);
        assert_eq!(shown.len(), 6, "{shown:?}");
        assert_eq!(shown[4..], ["init", "complete"]);
        let (asked, _) = seen(outage(5).chain([Page(vec![]), Ends(vec![])])).await;
        assert_eq!(asked[..5], ["streamed list"; 5]);
        assert_eq!(asked[5..], ["list in pages", "watch"]);
    }

    /// The earlier outage made the back-off long.
    #[tokio::test(start_paused = true)]
    async fn only_a_young_expired_watch_waits_before_its_next_list() {
        let answers = |outage: usize| {
            let failures = (0..outage).map(|_| Unreachable);
            let listed = || Ends(vec![end_of_list()]);
            iter::once(listed())
                .chain(failures)
                .chain([Ends(vec![expired()]), listed()])
        };
        for (outage, is_at_once) in [(8, true), (0, false)] {
            let (asked, _) = seen_in_time(answers(outage)).await;
            let [.., (_, expired_at), (last, listed_at)] = asked[..] else {
                panic!("{asked:?}")
            };
            assert_eq!(last, "streamed list");
            assert_eq!((listed_at - expired_at).is_zero(), is_at_once, "{asked:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_streamed_list_that_breaks_off_or_stalls_begins_anew_in_pages() {
        // kube retries once before it reports the end of the stream.
        let (ended, again) = (Ends(vec![added("a")]), Lasts(vec![]));
        let (expired, stalled) = (Ends(vec![added("a"), expired()]), Lasts(vec![added("a")]));
        for broken in [vec![ended, again], vec![expired], vec![stalled]] {
            let streamed = broken.len();
            let in_pages = [Page(vec![object("b")]), Ends(vec![])];
            let (asked, seen) = seen(broken.into_iter().chain(in_pages)).await;
            assert_eq!(asked[..streamed], ["streamed list", "streamed list"][..streamed]);
            assert_eq!(asked[streamed..], ["list in pages", "watch"]);
            assert_eq!(seen, ["init", "listed a", "init", "listed b", "complete"]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_in_pages_that_fails_is_tried_in_pages_until_it_is_complete() {
        let (asked, seen) = seen([Failed(422), Failed(500), Page(vec![]), Ends(vec![])]).await;
        assert_eq!(
            asked,
            ["streamed list", "list in pages", "list in pages", "watch"]
        );
        assert!(seen[1].contains("initial object list"), "{seen:?}");
        assert_eq!([&seen[0], &seen[2], &seen[3]], ["init", "init", "complete"]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_expired_watch_lists_by_stream_and_falls_back_to_pages() {
        let (asked, _) = seen([
            Failed(422),
            Page(vec![]),
            Ends(vec![expired()]),
            Ends(vec![end_of_list(), expired()]),
            Failed(422),
            Page(vec![]),
            Ends(vec![]),
        ])
        .await;
        assert_eq!(
            asked,
            [
                "streamed list",
                "list in pages",
                "watch",
                "streamed list",
                "streamed list",
                "list in pages",
                "watch"
            ]
        );
    }
}
