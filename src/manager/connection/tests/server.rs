//! A server with TLS whose connections each behave as a test wants.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::StreamExt as _;
use http::header::HeaderMap;
use http::{Request, Response, Version};
use http_body::Frame;
use http_body_util::StreamBody;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::Config;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// Streams of a connection at a time, as few as a server may allow.
const MAX_STREAMS: u32 = 10;

/// The path of a request that is not answered.
pub const SLOW: &str = "/slow";

/// The behaviour of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Conduct {
    /// It answers.
    #[default]
    Answer,
    /// It answers pings, and no request.
    Hang,
    /// It is closed at the first request, and reports that no request was processed.
    CloseUnseen,
    /// It is closed at the first request, and reports that this request was processed.
    CloseSeen,
    /// It refuses the first request as not processed, and is then closed.
    Refuse,
}

/// A request that was read.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The number of its connection, from 0.
    pub connection: usize,
    /// Its protocol version.
    pub version: Version,
    /// Method and path.
    pub what: String,
    /// Its headers.
    pub headers: HeaderMap,
}

/// The state that all connections share.
#[derive(Clone)]
struct Shared {
    asked: Arc<Mutex<Vec<Asked>>>,
    opened: Arc<Mutex<usize>>,
    conducts: Arc<Mutex<Vec<Conduct>>>,
    /// Connections before this one are silent.
    silent_before: watch::Sender<usize>,
    /// Called with the number of each connection before anything is read from it.
    on_open: Arc<Mutex<Option<OnOpen>>>,
}

type OnOpen = Box<dyn Fn(usize) + Send>;

pub struct Server {
    url: String,
    certificate: CertificateDer<'static>,
    shared: Shared,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Starts a server that offers these protocols. Its first connections follow `conducts`.
    pub async fn start(alpn: &[&str], conducts: &[Conduct]) -> Self {
        Self::listening(Some(alpn), conducts).await
    }

    /// Starts a server without TLS.
    pub async fn plain() -> Self {
        Self::listening(None, &[]).await
    }

    async fn listening(alpn: Option<&[&str]>, conducts: &[Conduct]) -> Self {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let certificate = made.cert.der().clone();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)
            .unwrap();
        config.alpn_protocols = alpn
            .unwrap_or_default()
            .iter()
            .map(|name| name.as_bytes().to_vec())
            .collect();
        let acceptor = alpn.map(|_| TlsAcceptor::from(Arc::new(config)));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let scheme = if alpn.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        let shared = Shared {
            asked: Arc::default(),
            opened: Arc::default(),
            conducts: Arc::new(Mutex::new(conducts.to_vec())),
            silent_before: watch::Sender::new(0),
            on_open: Arc::default(),
        };
        let task = tokio::spawn(accept(listener, acceptor, shared.clone()));
        Self {
            url,
            certificate,
            shared,
            task,
        }
    }

    /// Returns the configuration of a client for this server.
    pub fn config(&self) -> Config {
        let mut config = Config::new(self.url.parse().unwrap());
        config.root_cert = Some(vec![self.certificate.to_vec()]);
        config
    }

    /// Returns the requests that were read.
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().unwrap().clone()
    }

    /// Calls `call` with the number of each connection, while the client waits for the connection.
    pub fn on_open(&self, call: impl Fn(usize) + Send + 'static) {
        *self.shared.on_open.lock().unwrap() = Some(Box::new(call));
    }

    /// Makes all open connections silent: they neither read nor write, and stay open.
    pub fn fall_silent(&self) {
        let opened = *self.shared.opened.lock().unwrap();
        self.shared.silent_before.send_replace(opened);
    }
}

async fn accept(listener: TcpListener, acceptor: Option<TlsAcceptor>, shared: Shared) {
    for number in 0.. {
        let (stream, _peer) = listener.accept().await.unwrap();
        if let Some(call) = &*shared.on_open.lock().unwrap() {
            call(number);
        }
        let (acceptor, shared) = (acceptor.clone(), shared.clone());
        tokio::spawn(async move {
            let Some(acceptor) = acceptor else {
                return serve(stream, false, shared).await;
            };
            // A client that already has another connection goes away.
            let Ok(stream) = acceptor.accept(stream).await else {
                return;
            };
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            serve(stream, is_http2, shared).await;
        });
    }
}

async fn serve<S>(stream: S, is_http2: bool, shared: Shared)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = {
        let mut opened = shared.opened.lock().unwrap();
        *opened += 1;
        *opened - 1
    };
    let conduct = shared.conducts.lock().unwrap().get(connection).copied();
    let conduct = conduct.unwrap_or_default();
    match conduct {
        Conduct::Answer | Conduct::Hang => {}
        Conduct::CloseUnseen | Conduct::CloseSeen | Conduct::Refuse => return close(stream, conduct).await,
    }
    let mut silent_before = shared.silent_before.subscribe();
    let service = service_fn(move |request| {
        let answered = answer(connection, &request, &shared);
        let is_slow = request.uri().path() == SLOW;
        async move {
            if conduct == Conduct::Hang || is_slow {
                std::future::pending::<()>().await;
            }
            Ok::<_, Infallible>(answered)
        }
    });
    let io = TokioIo::new(stream);
    let silence = async {
        silent_before
            .wait_for(|before| connection < *before)
            .await
            .map(drop)
    };
    // A connection that is not polled stays open and silent.
    if is_http2 {
        let served = http2::Builder::new(TokioExecutor::new())
            .max_concurrent_streams(MAX_STREAMS)
            .serve_connection(io, service);
        tokio::pin!(served);
        tokio::select! {
            _ended = &mut served => return,
            _silent = silence => {}
        }
        std::future::pending::<()>().await;
    } else {
        let _ended = http1::Builder::new().serve_connection(io, service).await;
    }
}

fn answer(connection: usize, request: &Request<Incoming>, shared: &Shared) -> Response<Body> {
    shared.asked.lock().unwrap().push(Asked {
        connection,
        version: request.version(),
        what: format!("{} {}", request.method(), request.uri().path()),
        headers: request.headers().clone(),
    });
    let first = futures::stream::once(async { Ok(Frame::data(Bytes::from_static(b"{}"))) });
    let is_watch = request.uri().query().is_some_and(|query| query.contains("watch"));
    let body: Body = if is_watch {
        StreamBody::new(first.chain(futures::stream::pending()).boxed())
    } else {
        StreamBody::new(first.boxed())
    };
    Response::new(body)
}

type Body = StreamBody<futures::stream::BoxStream<'static, Result<Frame<Bytes>, Infallible>>>;

/// Speaks HTTP/2 by hand up to the first request.
async fn close<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, conduct: Conduct) {
    const HEADERS: u8 = 1;
    const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    const PREFACE: usize = 24;
    let mut preface = [0; PREFACE];
    // A client that already has another connection goes away.
    if stream.read_exact(&mut preface).await.is_err() {
        return;
    }
    stream.write_all(SETTINGS).await.unwrap();
    loop {
        let mut head = [0; 9];
        if stream.read_exact(&mut head).await.is_err() {
            return;
        }
        let [high, middle, low, kind, ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, high, middle, low]) as usize];
        stream.read_exact(&mut payload).await.unwrap();
        if kind == HEADERS {
            break;
        }
    }
    let last: &[u8] = match conduct {
        // GOAWAY with NO_ERROR. The last stream is 0, or 1 for the first request.
        Conduct::CloseUnseen => &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        Conduct::CloseSeen => &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0],
        // RST_STREAM of stream 1 with REFUSED_STREAM. The GOAWAY alone would report the request as processed.
        Conduct::Refuse => &[
            0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0,
        ],
        Conduct::Answer | Conduct::Hang => &[],
    };
    stream.write_all(last).await.unwrap();
    stream.flush().await.unwrap();
    if conduct == Conduct::CloseSeen {
        return;
    }
    // The client closes it.
    let _closed = stream.read_to_end(&mut Vec::new()).await;
}
