use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::Response;
use http_body::Frame;
use http_body_util::StreamBody;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use kube::client::{Body, ClientBuilder};

use super::*;

const PATH: &str = "/api/v1/configmaps";

/// The number of a query's pair, such as `limit=7`.
fn number(query: &str, key: &str) -> Option<usize> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(found, _)| *found == key)?;
    value.parse().ok()
}

/// A client whose API server has this many objects of 200 kB, and the limits of the requests that it gets.
fn large_objects(objects: usize) -> (Client, Arc<Mutex<Vec<usize>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&asked);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let query = request.uri().query().unwrap_or_default();
        let (limit, first) = (number(query, "limit").unwrap(), number(query, "continue"));
        noted.lock().unwrap().push(limit);
        let first = first.unwrap_or_default();
        let last = objects.min(first + limit);
        let object = move |number: usize| {
            let padding = "x".repeat(200_000);
            let comma = if number + 1 < last { "," } else { "" };
            format!(r#"{{"metadata": {{"name": "o-{number}"}}, "data": {{"x": "{padding}"}}}}{comma}"#)
        };
        let more = if last < objects {
            last.to_string()
        } else {
            String::new()
        };
        let head = format!(
            r#"{{"kind": "List", "apiVersion": "v1", "metadata": {{"continue": "{more}"}}, "items": ["#
        );
        let pieces = std::iter::once(head)
            .chain((first..last).map(object))
            .chain(["]}".to_owned()]);
        let frames = pieces.map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::from(piece))));
        let body = StreamBody::new(futures::stream::iter(frames));
        async { Ok::<_, Infallible>(Response::new(body)) }
    });
    let client = ClientBuilder::new(service, "default").with_layer(&ListLayer::default());
    (client.build(), asked)
}

/// Otherwise 500 of the largest objects that a tenant can create would be in memory together.
#[tokio::test]
async fn a_page_that_is_too_large_is_repeated_with_fewer_objects() {
    let (client, asked) = large_objects(100);
    let mut names = Vec::new();
    let take = |object: ConfigMap| {
        names.push(object.name_any());
        ControlFlow::Continue(())
    };
    each(&client, PATH, ListParams::default(), take).await.unwrap();
    let all: Vec<_> = (0..100).map(|number| format!("o-{number}")).collect();
    assert_eq!(names, all, "each object once");
    assert_eq!(asked.lock().unwrap()[..3], [500, 62, 16]);
    assert_eq!(asked.lock().unwrap()[3..], [16; 6], "the next pages");
}

#[tokio::test]
async fn a_list_ends_when_its_reader_stops() {
    let (client, asked) = large_objects(20);
    let mut seen = 0;
    let take = |_: ConfigMap| {
        seen += 1;
        ControlFlow::Break(())
    };
    each(&client, PATH, ListParams::default(), take).await.unwrap();
    assert_eq!((seen, asked.lock().unwrap().len()), (1, 1));
}

#[tokio::test]
async fn a_page_that_is_too_large_is_an_error_with_its_size() {
    let (client, _) = large_objects(100);
    let api = kube::Api::<ConfigMap>::all(client);
    let error = api.list(&ListParams::default().limit(500)).await.unwrap_err();
    assert!(is_too_large(&error));
    let text = error.to_string();
    assert!(
        text.contains("a page of 500 objects of /api/v1/configmaps"),
        "{text}"
    );
}
