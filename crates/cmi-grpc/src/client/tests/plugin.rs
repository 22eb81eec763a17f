//! A plugin that answers by a script, be it gRPC or not.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt as _};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::super::target::Stream;
use crate::proto::cmi::v1::plugin_capability::rpc::Type as Capability;
use crate::proto::cmi::v1::plugin_capability::{Rpc, Type};
use crate::proto::cmi::v1::{
    CreateMachineResponse, DeleteMachineResponse, GetPluginCapabilitiesResponse, GetPluginInfoResponse,
    PluginCapability, ProbeResponse,
};

type Body = StreamBody<BoxStream<'static, Result<Frame<Bytes>, TransportError>>>;

/// The error of a stream that the plugin resets.
#[derive(Debug, thiserror::Error)]
#[error("the plugin resets the stream")]
pub struct TransportError;

#[derive(Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    pub ending: CallEnd,
}

/// The end of an answer.
#[derive(Clone)]
pub enum CallEnd {
    /// With these trailers.
    Trailers(Vec<(&'static str, String)>),
    /// Ends without an error, although trailers are missing.
    Nothing,
    /// The stream is reset.
    Reset,
    /// The stream is refused before anything was done with it.
    Refused,
    /// The stream is reset after this long.
    ResetAfter(std::time::Duration),
    /// Never ends.
    Never,
    /// It does not begin before [`Plugin::release`], and then is OK.
    Held,
}

#[derive(Clone, Debug)]
pub struct ReceivedCall {
    /// `CreateMachine`.
    pub method: String,
    pub headers: HeaderMap,
    /// The message, without its frame.
    pub message: Vec<u8>,
}

/// The plugin's answers, and the received calls.
#[derive(Default)]
pub struct Script {
    /// The last reply of a method repeats.
    replies: Mutex<HashMap<String, VecDeque<Reply>>>,
    calls: Mutex<Vec<ReceivedCall>>,
    connections: watch::Sender<usize>,
    released: CancellationToken,
    retired: CancellationToken,
    cancelled: watch::Sender<usize>,
}

/// A plugin on a socket.
pub struct Plugin {
    folder: TempDir,
    script: Arc<Script>,
    listening: Option<(JoinHandle<()>, CancellationToken)>,
}

impl Reply {
    /// OK with this message.
    pub fn ok(message: &impl Message) -> Self {
        Self::frame(&message.encode_to_vec())
    }

    /// OK with these bytes for a message.
    pub fn frame(message: &[u8]) -> Self {
        let length = u32::try_from(message.len()).unwrap();
        let mut body = vec![0];
        body.extend(length.to_be_bytes());
        body.extend(message);
        Self::raw(body)
    }

    /// OK with this body.
    pub fn raw(body: Vec<u8>) -> Self {
        Self {
            status: 200,
            headers: vec![("content-type", "application/grpc".to_owned())],
            body,
            ending: CallEnd::Trailers(vec![("grpc-status", "0".to_owned())]),
        }
    }

    /// An error, in the headers as servers send it that have no message to send.
    pub fn error(code: u8, message: &str) -> Self {
        Self::raw(Vec::new())
            .header("grpc-status", &code.to_string())
            .header("grpc-message", message)
            .ending(CallEnd::Nothing)
    }

    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    pub fn ending(mut self, ending: CallEnd) -> Self {
        self.ending = ending;
        self
    }

    fn response(self) -> Response<Body> {
        let mut response = Response::builder().status(self.status);
        for (name, value) in &self.headers {
            response = response.header(*name, value);
        }
        let data = (!self.body.is_empty()).then(|| Ok(Frame::data(Bytes::from(self.body))));
        let end = match self.ending {
            CallEnd::Held => {
                let ok = [("grpc-status", "0".to_owned())];
                stream::iter([Ok(Frame::trailers(headers(&ok)))]).boxed()
            }
            CallEnd::Trailers(all) => stream::iter([Ok(Frame::trailers(headers(&all)))]).boxed(),
            CallEnd::Nothing | CallEnd::Refused => stream::empty().boxed(),
            CallEnd::Reset => stream::iter([Err(TransportError)]).boxed(),
            CallEnd::ResetAfter(time) => stream::once(async move {
                tokio::time::sleep(time).await;
                Err(TransportError)
            })
            .boxed(),
            CallEnd::Never => stream::pending().boxed(),
        };
        response
            .body(StreamBody::new(stream::iter(data).chain(end).boxed()))
            .unwrap()
    }
}

fn headers(all: &[(&'static str, String)]) -> HeaderMap {
    all.iter()
        .map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_str(value).unwrap(),
            )
        })
        .collect()
}

/// A declaration of these calls.
pub fn capabilities(declared: &[Capability]) -> GetPluginCapabilitiesResponse {
    let capability = |call: &Capability| PluginCapability {
        r#type: Some(Type::Rpc(Rpc {
            r#type: (*call).into(),
        })),
    };
    GetPluginCapabilitiesResponse {
        capabilities: declared.iter().map(capability).collect(),
    }
}

/// All calls of cmi.v1.
pub const ALL: [Capability; 6] = [
    Capability::CreateMachine,
    Capability::DeleteMachine,
    Capability::GetMachineStatus,
    Capability::ListMachines,
    Capability::ShutdownMachine,
    Capability::GetVolumeIds,
];

impl Plugin {
    /// Returns a plugin that declares all of cmi.v1, creates a VM `sim://1`, deletes any VM, and answers no
    /// other call. It does not listen.
    pub fn absent() -> Self {
        let plugin = Self {
            folder: tempfile::tempdir().unwrap(),
            script: Arc::default(),
            listening: None,
        };
        let info = GetPluginInfoResponse {
            name: "scripted.example.com".to_owned(),
            version: "1".to_owned(),
            ..GetPluginInfoResponse::default()
        };
        let created = CreateMachineResponse {
            provider_id: "sim://1".to_owned(),
            node_name: "m".to_owned(),
            ..CreateMachineResponse::default()
        };
        plugin.answers("GetPluginInfo", Reply::ok(&info));
        plugin.answers("GetPluginCapabilities", Reply::ok(&capabilities(&ALL)));
        plugin.answers("Probe", Reply::ok(&ProbeResponse { ready: Some(true) }));
        plugin.answers("CreateMachine", Reply::ok(&created));
        plugin.answers("DeleteMachine", Reply::ok(&DeleteMachineResponse::default()));
        plugin
    }

    /// As [`Plugin::absent`], and it listens.
    pub fn start() -> Self {
        let mut plugin = Self::absent();
        plugin.listen();
        plugin
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("cmi.sock")
    }

    /// Begins to listen.
    pub fn listen(&mut self) {
        self.accept(Arc::clone(&self.script));
    }

    /// Lets another plugin accept new connections; existing connections stay.
    pub fn hand_over(&mut self, successor: &Self) {
        if let Some((accepting, _)) = self.listening.take() {
            accepting.abort();
        }
        std::fs::remove_file(self.socket()).unwrap();
        self.accept(Arc::clone(&successor.script));
    }

    fn accept(&mut self, script: Arc<Script>) {
        let listener = UnixListener::bind(self.socket()).unwrap();
        let ended = CancellationToken::new();
        let end = ended.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let serving = serve(Arc::clone(&script), Box::new(stream));
                tokio::spawn(ended.clone().run_until_cancelled_owned(serving));
            }
        });
        self.listening = Some((accepting, end));
    }

    /// Ends as a killed process does: every connection is closed, and its socket has no listener.
    pub fn kill(&mut self) {
        if let Some((accepting, end)) = self.listening.take() {
            accepting.abort();
            end.cancel();
        }
        std::fs::remove_file(self.socket()).unwrap();
    }

    /// Accepts no more calls on the existing connections, and finishes the running calls, like a process that
    /// was told to stop.
    pub fn retire(&self) {
        self.script.retired.cancel();
    }

    /// Lets held answers go.
    pub fn release(&self) {
        self.script.released.cancel();
    }

    /// From now on, this is the answer to a method.
    pub fn answers(&self, method: &str, reply: Reply) {
        self.answers_in_turn(method, [reply]);
    }

    /// Sets the next answers to a method; the last answer repeats.
    pub fn answers_in_turn(&self, method: &str, replies: impl IntoIterator<Item = Reply>) {
        let replies = replies.into_iter().collect();
        self.script
            .replies
            .lock()
            .unwrap()
            .insert(method.to_owned(), replies);
    }

    /// The calls so far.
    pub fn calls(&self) -> Vec<ReceivedCall> {
        self.script.calls.lock().unwrap().clone()
    }

    /// The names of the calls so far.
    pub fn methods(&self) -> Vec<String> {
        self.calls().into_iter().map(|call| call.method).collect()
    }

    /// How often it was called so.
    pub fn count(&self, method: &str) -> usize {
        self.methods().iter().filter(|name| *name == method).count()
    }

    /// The number of connections so far.
    pub fn connections(&self) -> usize {
        *self.script.connections.borrow()
    }

    /// Waits until this method was called.
    pub async fn called(&self, method: &str) {
        let deadline = tokio::time::Instant::now() + super::LONG;
        while self.count(method) == 0 {
            assert!(tokio::time::Instant::now() < deadline, "{method} was not called");
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    /// Waits until callers have cancelled this many calls.
    pub async fn cancelled(&self, count: usize) {
        let mut cancelled = self.script.cancelled.subscribe();
        let waiting = cancelled.wait_for(|seen| *seen >= count);
        tokio::time::timeout(super::LONG, waiting).await.unwrap().unwrap();
    }

    /// Its script, for another listener.
    pub fn script(&self) -> Arc<Script> {
        Arc::clone(&self.script)
    }
}

impl Script {
    fn next(&self, method: &str) -> Reply {
        let mut all = self.replies.lock().unwrap();
        let reply = all.get_mut(method).and_then(|replies| match replies.len() {
            0 | 1 => replies.front().cloned(),
            _ => replies.pop_front(),
        });
        reply.unwrap_or_else(|| Reply::error(12, "unknown method"))
    }

    /// Serves one connection.
    pub fn serve(self: &Arc<Self>, stream: Box<dyn Stream>) -> impl Future<Output = ()> + Send + use<> {
        serve(Arc::clone(self), stream)
    }
}

async fn serve(script: Arc<Script>, stream: Box<dyn Stream>) {
    script.connections.send_modify(|count| *count += 1);
    let service = service_fn(|request| answer(Arc::clone(&script), request));
    let mut connection =
        pin!(http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service));
    let served = tokio::select! {
        served = &mut connection => served,
        () = script.retired.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    // The plugin does not care about a client that disconnects.
    drop(served);
}

/// Counts a call that ends without its answer.
struct Unanswered(Option<Arc<Script>>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(script) = &self.0 {
            script.cancelled.send_modify(|count| *count += 1);
        }
    }
}

async fn answer(script: Arc<Script>, request: Request<Incoming>) -> Result<Response<Body>, h2::Error> {
    let mut unanswered = Unanswered(Some(Arc::clone(&script)));
    let method = request.uri().path().rsplit('/').next().unwrap().to_owned();
    let headers = request.headers().clone();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    script.calls.lock().unwrap().push(ReceivedCall {
        method: method.clone(),
        headers,
        message: body[5..].to_vec(),
    });
    let reply = script.next(&method);
    if matches!(reply.ending, CallEnd::Never) && reply.body.is_empty() {
        std::future::pending::<()>().await;
    }
    if matches!(reply.ending, CallEnd::Held) {
        script.released.cancelled().await;
    }
    unanswered.0 = None;
    if matches!(reply.ending, CallEnd::Refused) {
        return Err(h2::Reason::REFUSED_STREAM.into());
    }
    Ok(reply.response())
}
