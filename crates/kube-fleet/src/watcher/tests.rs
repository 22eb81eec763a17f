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
    let mut events = std::pin::pin!(watcher(api, Config::default()));
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
async fn a_list_is_streamed_and_then_watched() {
    let (asked, seen) = seen([Ends(vec![added("a"), end_of_list(), added("b")])]).await;
    assert_eq!(asked, ["streamed list"]);
    assert_eq!(seen, ["init", "listed a", "complete", "applied b"]);
}

#[tokio::test(start_paused = true)]
async fn a_refused_stream_is_listed_in_pages_without_a_failure() {
    for code in [400, 403, 422] {
        let (asked, seen) = seen([Failed(code), Page(vec![object("a")]), Ends(vec![])]).await;
        assert_eq!(asked, ["streamed list", "list in pages", "watch"], "{code}");
        assert_eq!(seen, ["init", "listed a", "complete"], "{code}");
    }
}

/// As from an API server that has just started, and reads all objects from etcd.
#[tokio::test(start_paused = true)]
async fn an_unready_watch_cache_is_asked_for_the_stream_again() {
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
async fn an_unreachable_server_is_asked_again_and_reported() {
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
async fn a_watch_that_expires_relists_at_once_unless_its_list_is_young() {
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
async fn a_stream_that_breaks_off_or_stalls_is_listed_in_pages() {
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
async fn a_failed_list_in_pages_is_repeated_in_pages() {
    let (asked, seen) = seen([Failed(422), Failed(500), Page(vec![]), Ends(vec![])]).await;
    assert_eq!(
        asked,
        ["streamed list", "list in pages", "list in pages", "watch"]
    );
    assert!(seen[1].contains("initial object list"), "{seen:?}");
    assert_eq!([&seen[0], &seen[2], &seen[3]], ["init", "init", "complete"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_expires_is_first_listed_as_a_stream() {
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
