//! The client of the API server, and the limits of its requests.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::{HeaderValue, USER_AGENT};
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Either, Full};
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use kube_fleet::ListLayer;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Layer, Service};

use super::connection::{self, is_watch, is_write};
use crate::apiserver::leadership::Leadership;

/// The maximum number of concurrent requests, except watches. Over HTTP/1.1, each needs a connection. Over
/// HTTP/2, API servers allow 100 on a connection.
const MAX_REQUESTS: usize = 64;
/// How long the API server may take to begin its answer, and for each further piece of it. The events of
/// watches have no limit.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The namespace of clients that no kubeconfig describes.
const DEFAULT_NAMESPACE: &str = "default";

/// The API server did not answer in time. The request may have been carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the API server did not answer within {} s", .0.as_secs())]
pub struct RequestTimedOut(Duration);

/// The protocol that the controllers speak to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/2 where the API server offers it: one connection for watches, another for all other requests.
    Http2,
    /// HTTP/1.1, with a connection for each concurrent request.
    Http1,
}

/// An API server in this process.
pub type InProcessService =
    BoxCloneSyncService<Request<Body>, Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError>;

/// How the manager reaches the API server.
#[derive(Clone)]
pub enum ApiServer {
    /// Over the network.
    Network {
        /// The address and the credentials.
        config: Box<Config>,
        /// The protocol of the controllers.
        protocol: Protocol,
    },
    /// In this process: tests serve an API server from memory, on a paused clock.
    InProcess(InProcessService),
}

/// Returns a client for the manager's own requests: the lease, and the reviews of callers of the diagnostics.
/// The manager makes these whether or not this replica leads. No other request shares a connection with them,
/// so that a stall of the controllers' requests does not cost the lease.
pub(super) fn manager_client(api_server: &ApiServer) -> Result<Client, kube::Error> {
    match api_server {
        ApiServer::Network { config, .. } => Ok(ClientBuilder::try_from(prepared(*config.clone()))?.build()),
        ApiServer::InProcess(service) => Ok(Client::new(service.clone(), DEFAULT_NAMESPACE)),
    }
}

/// Returns the client of the controllers, which refuses every write while this replica does not lead.
pub(super) fn controller_client(
    api_server: &ApiServer,
    leadership: Leadership,
) -> Result<Client, kube::Error> {
    let limits = RequestLimits {
        leadership,
        slots: Arc::new(Semaphore::new(MAX_REQUESTS)),
    };
    let lists = ListLayer::default();
    let (config, protocol) = match api_server {
        ApiServer::Network { config, protocol } => (prepared(*config.clone()), *protocol),
        ApiServer::InProcess(service) => {
            let builder = ClientBuilder::new(service.clone(), DEFAULT_NAMESPACE);
            return Ok(builder.with_layer(&lists).with_layer(&limits).build());
        }
    };
    match protocol {
        Protocol::Http2 if config.proxy_url.is_none() => {
            let connections = connection::http2(&config, limits.leadership.clone())?;
            let builder = ClientBuilder::new(connections, config.default_namespace);
            Ok(builder.with_layer(&lists).with_layer(&limits).build())
        }
        // kube's own client handles a proxy, or refuses it.
        Protocol::Http2 | Protocol::Http1 => Ok(ClientBuilder::try_from(config)?
            .with_layer(&lists)
            .with_layer(&limits)
            .build()),
    }
}

/// Returns a client that only reads: it refuses every write. It makes one request after another.
///
/// # Errors
/// The configuration can't be used.
pub fn reading(config: Config) -> Result<Client, kube::Error> {
    let api_server = ApiServer::Network {
        config: Box::new(config),
        protocol: Protocol::Http1,
    };
    controller_client(&api_server, Leadership::elected())
}

/// Prepares the configuration of a client. kube would repeat a refused request for minutes, even a write: a
/// reconcile is requeued instead.
fn prepared(mut config: Config) -> Config {
    config.default_retry = false;
    let agent = concat!("capcmi/", env!("CARGO_PKG_VERSION"));
    config.headers.push((USER_AGENT, HeaderValue::from_static(agent)));
    config
}

/// Limits requests: no write without leadership, not too many at the same time, and a deadline for each.
/// Watches are long-lived reads. Only the deadline applies to them, and only until the head of the answer,
/// which a server sends before the first event.
#[derive(Clone)]
struct RequestLimits {
    leadership: Leadership,
    slots: Arc<Semaphore>,
}

struct Limited<S> {
    limits: RequestLimits,
    inner: S,
}

impl<S> Layer<S> for RequestLimits {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited {
            limits: self.clone(),
            inner,
        }
    }
}

/// A complete answer, or the answer of a watch, which lasts as long as the watch.
type LimitedResponse<B> = Response<Either<Full<Bytes>, B>>;

impl<S, B> Service<Request<Body>> for Limited<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    type Response = LimitedResponse<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<LimitedResponse<B>, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let limits = self.limits.clone();
        let is_write = is_write(request.method());
        let lasts = is_watch(&request);
        if is_write && let Err(error) = limits.leadership.check() {
            return Box::pin(async move { Err(error.into()) });
        }
        // Nothing is sent before this future is polled.
        let response = self.inner.call(request);
        Box::pin(async move {
            if lasts {
                let response = in_time(response).await?.map_err(Into::into)?;
                return Ok(response.map(Either::Right));
            }
            let _slot = limits.slots.acquire().await?;
            if is_write {
                limits.leadership.check()?;
            }
            let (head, body) = in_time(response).await?.map_err(Into::into)?.into_parts();
            let whole = Full::new(collect(body).await?);
            Ok(Response::from_parts(head, Either::Left(whole)))
        })
    }
}

/// Reads a body to its end. An API server that stalls within an answer counts as not answering.
async fn collect<B>(mut body: B) -> Result<Bytes, BoxError>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    let mut whole = Vec::new();
    while let Some(frame) = in_time(body.frame()).await? {
        if let Ok(data) = frame.map_err(Into::into)?.into_data() {
            whole.extend_from_slice(&data);
        }
    }
    Ok(whole.into())
}

async fn in_time<F: Future>(step: F) -> Result<F::Output, RequestTimedOut> {
    let done = timeout(REQUEST_TIMEOUT, step).await;
    done.map_err(|_elapsed| RequestTimedOut(REQUEST_TIMEOUT))
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::FutureExt as _;
    use http::Method;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use kube::api::ListParams;
    use serde_json::Value;
    use tokio::time::Instant;
    use tower::service_fn;

    use super::*;
    use crate::apiserver::leadership::{NotLeader, is_not_leader};

    fn request(method: Method, uri: &str) -> Request<Body> {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = method;
        *request.uri_mut() = uri.parse().unwrap();
        request
    }

    fn ruled_service<F>(
        leadership: Leadership,
        slots: usize,
        answer: impl Fn() -> F + Clone,
    ) -> Limited<impl Service<Request<Body>, Response = Response<Body>, Error = BoxError, Future = F>>
    where
        F: Future<Output = Result<Response<Body>, BoxError>> + Send + 'static,
    {
        let limits = RequestLimits {
            leadership,
            slots: Arc::new(Semaphore::new(slots)),
        };
        limits.layer(service_fn(move |_| answer()))
    }

    #[tokio::test]
    async fn a_replica_that_does_not_lead_reads_but_does_not_write() {
        let sent = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&sent);
        let mut service = ruled_service(Leadership::elected(), 1, move || {
            count.fetch_add(1, Ordering::SeqCst);
            async { Ok(Response::new(Body::empty())) }
        });
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            let refused = service.call(request(method, "/x")).await.unwrap_err();
            assert!(refused.is::<NotLeader>());
            assert!(is_not_leader(&kube::Error::Service(refused)));
        }
        assert_eq!(sent.load(Ordering::SeqCst), 0);
        for method in [Method::GET, Method::HEAD, Method::OPTIONS] {
            service.call(request(method, "/x")).await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_waited_for_its_turn_longer_than_the_lease_is_not_sent() {
        let leadership = Leadership::elected();
        leadership.renew(Instant::now() + Duration::from_secs(15));
        let mut service = ruled_service(leadership, 1, || async {
            tokio::time::sleep(Duration::from_secs(20)).await;
            Ok(Response::new(Body::empty()))
        });
        let (first, second) = (
            service.call(request(Method::PUT, "/x")),
            service.call(request(Method::PUT, "/x")),
        );
        let (first, second) = tokio::join!(first, second);
        assert!(first.is_ok());
        assert!(second.unwrap_err().is::<NotLeader>());
    }

    #[tokio::test(start_paused = true)]
    async fn requests_have_a_cap_and_they_and_watches_have_a_deadline() {
        let mut service = ruled_service(Leadership::unelected(), 1, std::future::pending);
        let sent = Instant::now();
        let asked = ["/x?limit=1&watch=true", "/x", "/y"].map(|uri| {
            let answer = service.call(request(Method::GET, uri));
            async move { (answer.await.err().unwrap(), sent.elapsed()) }
        });
        let answers = futures::future::join_all(asked).await;
        let answers = answers.into_iter().map(|(error, after)| {
            assert!(error.is::<RequestTimedOut>(), "{error}");
            after.as_secs()
        });
        assert_eq!(answers.collect::<Vec<_>>(), [30, 30, 60]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_events_of_a_watch_may_be_hours_apart() {
        let limits = RequestLimits {
            leadership: Leadership::unelected(),
            slots: Arc::new(Semaphore::new(1)),
        };
        let mut service = limits.layer(service_fn(|_request: Request<Body>| async {
            let late = tokio::time::sleep(Duration::from_hours(1));
            let event = late.map(|()| Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"{}"))));
            Ok::<_, BoxError>(Response::new(StreamBody::new(futures::stream::once(Box::pin(
                event,
            )))))
        }));
        let watch = service.call(request(Method::GET, "/x?watch=true")).await;
        let event = watch.ok().unwrap().into_body().frame().await;
        assert_eq!(event.unwrap().ok().unwrap().into_data().unwrap(), "{}");
    }

    /// Otherwise 500 of the largest objects that a tenant can create would be in memory together.
    #[tokio::test]
    async fn lists_of_the_controllers_have_bounded_pages() {
        let object = format!(r#"{{"data": {{"x": "{}"}}}}"#, "x".repeat(1 << 20));
        let service = service_fn(move |request: Request<Body>| {
            let limit = request
                .uri()
                .query()
                .and_then(|query| query.strip_prefix("&limit="));
            let objects: usize = limit.and_then(|limit| limit.parse().ok()).unwrap_or_default();
            let items = vec![object.clone(); objects].join(",");
            let page =
                format!(r#"{{"kind": "List", "apiVersion": "v1", "metadata": {{}}, "items": [{items}]}}"#);
            let body = Full::from(page).map_err(|never| match never {}).boxed_unsync();
            async { Ok::<_, BoxError>(Response::new(body)) }
        });
        let api_server = ApiServer::InProcess(BoxCloneSyncService::new(service));
        let client = controller_client(&api_server, Leadership::unelected()).unwrap();
        let mut objects = 0;
        let read = kube_fleet::pages::each(&client, "/objects", ListParams::default(), |_: Value| {
            objects += 1;
            ControlFlow::Continue(())
        });
        read.await.unwrap();
        assert_eq!(objects, 16, "in the smallest page");
    }

    /// A stalled connection: the head of the answer arrives, and then nothing more.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_stalls_half_way_is_given_up_and_its_slot_is_free_again() {
        let (sender, answers) = tokio::sync::mpsc::unbounded_channel::<&'static str>();
        let answers = Arc::new(tokio::sync::Mutex::new(answers));
        let limits = RequestLimits {
            leadership: Leadership::unelected(),
            slots: Arc::new(Semaphore::new(1)),
        };
        let mut service = limits.layer(service_fn(move |_| {
            let answers = Arc::clone(&answers);
            let pieces = futures::stream::unfold(answers, |answers| async {
                let piece = answers.lock().await.recv().await?;
                Some((Ok::<_, BoxError>(Frame::data(Bytes::from(piece))), answers))
            });
            async { Ok::<_, BoxError>(Response::new(StreamBody::new(Box::pin(pieces)))) }
        }));
        sender.send("half of an").unwrap();
        let started = Instant::now();
        let stalled = service.call(request(Method::GET, "/x")).await;
        assert!(stalled.is_err_and(|error| error.is::<RequestTimedOut>()));
        assert_eq!(started.elapsed(), REQUEST_TIMEOUT);
        let slow = tokio::spawn(async move {
            for piece in ["an ", "answer"] {
                tokio::time::sleep(REQUEST_TIMEOUT / 2).await;
                sender.send(piece).unwrap();
            }
        });
        let Ok(answer) = service.call(request(Method::GET, "/x")).await else {
            panic!("slow is not stalled");
        };
        let answer = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(answer, "an answer");
        slow.await.unwrap();
    }
}
