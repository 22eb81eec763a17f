//! The server: requests in, answers out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::unfold;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tower::BoxError;
use tower::util::BoxCloneSyncService;

use crate::eviction;
use crate::kind::Kind;
use crate::patch::Strategy;
use crate::request::Call;
use crate::selector::Selector;
use crate::store::{Key, Part, Refusal, Store};
use crate::watch::{Watch, end_of_list, line, metadata_of};

/// How long a watch lasts if the client sets no `timeoutSeconds`.
const WATCH_TIME: Duration = Duration::from_mins(5);

/// A fake API server. Clones share its objects.
#[derive(Clone)]
pub struct FakeApiServer(Arc<Inner>);

pub(crate) struct Inner {
    pub state: Mutex<State>,
    /// Notified after each change of the state.
    changed: watch::Sender<()>,
    /// The wall clock: its time at the start, and the start on tokio's clock.
    started: (Timestamp, Instant),
}

#[derive(Default)]
pub(crate) struct State {
    pub store: Store,
    /// Kinds whose watches get no events at the moment.
    pub held: BTreeSet<usize>,
    /// How often all watches were ended.
    pub cuts: u64,
    /// Whether lists are streamed by watches.
    pages_only: bool,
    recorded: Vec<Recorded>,
}

/// The fate of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is carried out and answered.
    Served,
    /// It is refused with an HTTP status and a reason, such as `Forbidden`.
    Refused(u16, &'static str),
    /// It is lost: it is not carried out, and never answered.
    Lost,
    /// It is carried out, but never answered.
    Unanswered,
    /// It is carried out, and the connection breaks before the answer.
    Broken,
}

/// A request that came, with the HTTP status of its answer.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The client that sent it.
    pub client: String,
    /// The request.
    pub call: Call,
    /// The status of the answer; 0 for a request that was lost.
    pub code: u16,
}

/// A service that answers requests in this process.
type Service = BoxCloneSyncService<Request<Body>, Response<ResponseBody>, BoxError>;

/// The body of an answer.
type ResponseBody = UnsyncBoxBody<Bytes, BoxError>;

/// The answer to a request.
enum Answer {
    Json(u16, Value),
    Watch(Box<Watch>),
}

impl FakeApiServer {
    /// A server without objects that serves these kinds.
    pub fn new(kinds: impl IntoIterator<Item = Kind>) -> Self {
        let state = State {
            store: Store::of(kinds.into_iter().collect()),
            ..State::default()
        };
        Self(Arc::new(Inner {
            state: Mutex::new(state),
            changed: watch::Sender::new(()),
            started: (Timestamp::now(), Instant::now()),
        }))
    }

    /// A client whose requests are all served.
    pub fn client(&self, name: &str) -> Client {
        Client::new(self.service(name, |_| Fate::Served), "default")
    }

    /// The transport of a client, whose requests meet the fate that `fate` decides.
    pub fn service(
        &self,
        name: &str,
        fate: impl Fn(&Call) -> Fate + Clone + Send + Sync + 'static,
    ) -> Service {
        let (server, name) = (self.0.clone(), name.to_owned());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (server, name, fate) = (Arc::clone(&server), name.clone(), fate.clone());
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await?;
                let call = Call::new(&head, &body)?;
                server.answer(&name, call, &fate).await
            }
        });
        BoxCloneSyncService::new(service)
    }

    /// The resource version of the last write.
    pub fn version(&self) -> u64 {
        self.0.state.lock().store.version()
    }

    /// Waits for a write after this version.
    pub async fn written_after(&self, version: u64) {
        let mut changed = self.0.changed.subscribe();
        // The sender lives as long as this server.
        let _written = changed.wait_for(|()| self.version() > version).await;
    }

    /// The requests so far, in their order.
    pub fn recorded(&self) -> Vec<Recorded> {
        self.0.state.lock().recorded.clone()
    }

    /// The successful writes of a client so far, without dry runs.
    pub fn writes_of(&self, client: &str) -> Vec<Recorded> {
        let is_write = |recorded: &Recorded| {
            recorded.client == client
                && recorded.call.is_write()
                && !recorded.call.is_dry_run()
                && (200..300).contains(&recorded.code)
        };
        self.recorded().into_iter().filter(is_write).collect()
    }

    /// Stops or resumes the events of a kind's watches. Caches fall behind in the meantime.
    ///
    /// # Panics
    /// The kind is not registered.
    pub fn hold_watches(&self, plural: &str, held: bool) {
        let mut state = self.0.state.lock();
        let kind = state.store.kinds.iter().position(|kind| kind.plural == plural);
        #[allow(clippy::expect_used)] // a mistake of the test
        let kind = kind.expect("the kind is registered");
        if held {
            state.held.insert(kind);
        } else {
            state.held.remove(&kind);
        }
        drop(state);
        self.0.changed.send_replace(());
    }

    /// Drops the history, and ends all watches. A watch that resumes is answered 410.
    pub fn compact(&self) {
        let mut state = self.0.state.lock();
        state.store.compact();
        state.cuts += 1;
        drop(state);
        self.0.changed.send_replace(());
    }

    /// Deletes an object immediately, despite its finalizers. A real API server does this when a finalizer is
    /// added after it checked for finalizers and before it deletes.
    ///
    /// # Panics
    /// There is no such object.
    pub fn delete_despite_finalizers(&self, plural: &str, namespace: &str, name: &str) {
        let mut state = self.0.state.lock();
        let now = self.0.now();
        #[allow(clippy::expect_used)] // a mistake of the test
        state
            .store
            .remove_named(plural, namespace, name, now)
            .expect("the object exists");
        drop(state);
        self.0.changed.send_replace(());
    }

    /// Refuses to stream lists, as servers before Kubernetes 1.34.
    pub fn list_in_pages_only(&self) {
        self.0.state.lock().pages_only = true;
    }
}

impl Inner {
    async fn answer(
        self: &Arc<Self>,
        client: &str,
        call: Call,
        fate: &impl Fn(&Call) -> Fate,
    ) -> Result<Response<ResponseBody>, BoxError> {
        let fate = fate(&call);
        let answer = match fate {
            Fate::Lost => None,
            Fate::Refused(code, reason) => {
                let refusal = Refusal::new(code, reason, "the test refuses it".to_owned());
                Some(Answer::Json(code, refusal.status()))
            }
            Fate::Served | Fate::Unanswered | Fate::Broken => Some(self.carry_out(&call)),
        };
        let code = match &answer {
            None => 0,
            Some(Answer::Json(code, _)) => *code,
            Some(Answer::Watch(_)) => 200,
        };
        self.state.lock().recorded.push(Recorded {
            client: client.to_owned(),
            call,
            code,
        });
        match (answer, fate) {
            (_, Fate::Broken) => Err("the connection broke before the answer".into()),
            (Some(answer), Fate::Served | Fate::Refused(..)) => Ok(respond(answer)?),
            _ => std::future::pending().await,
        }
    }

    /// Serves a request. Its changes are in effect when this returns.
    fn carry_out(self: &Arc<Self>, call: &Call) -> Answer {
        let before = self.state.lock().store.version();
        let answer = self
            .serve(call)
            .unwrap_or_else(|refusal| Answer::Json(refusal.code, refusal.status()));
        // A read would wake every watch for nothing.
        if self.state.lock().store.version() != before {
            self.changed.send_replace(());
        }
        answer
    }

    fn now(&self) -> Timestamp {
        let (time, instant) = self.started;
        time.checked_add(instant.elapsed()).unwrap_or(time)
    }

    fn serve(self: &Arc<Self>, call: &Call) -> Result<Answer, Refusal> {
        let parts: Vec<&str> = call.path.split('/').filter(|part| !part.is_empty()).collect();
        let mut state = self.state.lock();
        let (group, version, rest) = match parts.as_slice() {
            ["version"] => {
                let version =
                    json!({"major": "1", "minor": "36", "gitVersion": "v1.36.3", "platform": "fake"});
                return Ok(Answer::Json(200, version));
            }
            ["api", version] => return Ok(Answer::Json(200, resources(&state.store, "", version))),
            ["apis"] => return Ok(Answer::Json(200, groups(&state.store))),
            ["apis", group, version] => {
                return Ok(Answer::Json(200, resources(&state.store, group, version)));
            }
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return Err(Refusal::not_found(&call.path)),
        };
        let (namespace, plural, name, subresource) = match rest {
            ["namespaces", namespace, plural] => (*namespace, *plural, "", ""),
            ["namespaces", namespace, plural, name] => (*namespace, *plural, *name, ""),
            ["namespaces", namespace, plural, name, sub] => (*namespace, *plural, *name, *sub),
            [plural] => ("", *plural, "", ""),
            [plural, name] => ("", *plural, *name, ""),
            [plural, name, sub] => ("", *plural, *name, *sub),
            _ => return Err(Refusal::not_found(&call.path)),
        };
        if group == "authorization.k8s.io" || group == "authentication.k8s.io" {
            // Everything is allowed: no one is authenticated.
            let mut review = call.body.clone();
            review["status"] = json!({"allowed": true, "authenticated": true});
            return Ok(Answer::Json(201, review));
        }
        let kind = state
            .store
            .kinds
            .iter()
            .position(|kind| kind.group == group && kind.version == version && kind.plural == plural);
        let kind =
            kind.ok_or_else(|| Refusal::not_found("the server could not find the requested resource"))?;
        let key = Key {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        if key.name.is_empty() {
            return self.serve_collection(&mut state, key, call);
        }
        let shown = |object: &Value| {
            if call.metadata_only {
                metadata_of(object)
            } else {
                object.clone()
            }
        };
        let now = self.now();
        let (store, dry_run) = (&mut state.store, call.is_dry_run());
        let part = match subresource {
            "" => Part::Main,
            "status" if store.kinds[kind].has_status => Part::Status,
            "eviction" if call.method == Method::POST => {
                eviction::evict(
                    store,
                    &key,
                    &call.body["deleteOptions"]["preconditions"],
                    now,
                    dry_run,
                )?;
                return Ok(Answer::Json(
                    201,
                    json!({"kind": "Status", "status": "Success", "code": 201}),
                ));
            }
            _ => return Err(Refusal::not_found(&call.path)),
        };
        let object = match call.method {
            Method::GET => store.get(&key)?,
            Method::PUT => store.replace(&key, part, call.body.clone(), now, dry_run)?,
            Method::DELETE => store.delete(&key, &call.body["preconditions"], now, dry_run)?,
            Method::PATCH => {
                let strategy = Strategy::of(&call.content_type).ok_or_else(|| {
                    let message = format!("`{}` is no type of patch", call.content_type);
                    Refusal::new(415, "UnsupportedMediaType", message)
                })?;
                let manager = call.parameter("fieldManager").unwrap_or("unknown");
                store.patch(&key, part, strategy, manager, &call.body, now, dry_run)?
            }
            _ => return Err(Refusal::new(405, "MethodNotAllowed", call.method.to_string())),
        };
        Ok(Answer::Json(200, shown(&object)))
    }

    fn serve_collection(
        self: &Arc<Self>,
        state: &mut State,
        key: Key,
        call: &Call,
    ) -> Result<Answer, Refusal> {
        let selector = Selector::parse(call.parameter("labelSelector"), call.parameter("fieldSelector"))
            .map_err(Refusal::bad_request)?;
        let now = self.now();
        match call.method {
            Method::GET if call.is_watch() => self.watch(state, &key, selector, call),
            Method::GET => Ok(Answer::Json(200, list(&state.store, &key, &selector, call))),
            Method::POST => {
                let object = state
                    .store
                    .create(key, call.body.clone(), now, call.is_dry_run())?;
                Ok(Answer::Json(201, object.as_ref().clone()))
            }
            Method::DELETE => {
                let all = state.store.list(key.kind, &key.namespace, &selector);
                let all: Vec<Key> = all.map(|(key, _)| key.clone()).collect();
                for key in all {
                    state.store.delete(&key, &Value::Null, now, call.is_dry_run())?;
                }
                Ok(Answer::Json(200, json!({"kind": "Status", "status": "Success"})))
            }
            _ => Err(Refusal::new(405, "MethodNotAllowed", call.method.to_string())),
        }
    }

    fn watch(
        self: &Arc<Self>,
        state: &State,
        key: &Key,
        selector: Selector,
        call: &Call,
    ) -> Result<Answer, Refusal> {
        let streams_list = call.flag("sendInitialEvents");
        if streams_list && state.pages_only {
            let message =
                "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
            return Err(Refusal::invalid(message.to_owned()));
        }
        let since = call
            .parameter("resourceVersion")
            .and_then(|version| version.parse().ok())
            .unwrap_or(0);
        let (kind, version) = (&state.store.kinds[key.kind], state.store.version());
        let mut pending = Vec::new();
        if streams_list || since == 0 {
            let all = state.store.list(key.kind, &key.namespace, &selector);
            pending.extend(all.map(|(_, object)| {
                let object = if call.metadata_only {
                    metadata_of(object)
                } else {
                    object.as_ref().clone()
                };
                line("ADDED", &object)
            }));
        }
        if streams_list {
            pending.push(end_of_list(&kind.api_version(), &kind.kind, version));
        }
        let time = call
            .parameter("timeoutSeconds")
            .and_then(|seconds| seconds.parse().ok());
        let ends_at = Instant::now() + time.map_or(WATCH_TIME, Duration::from_secs);
        Ok(Answer::Watch(Box::new(Watch {
            server: Arc::clone(self),
            kind: key.kind,
            namespace: key.namespace.clone(),
            selector,
            metadata_only: call.metadata_only,
            seen: if streams_list || since == 0 {
                version
            } else {
                since
            },
            pending,
            ends_at,
            cuts: state.cuts,
            changed: self.changed.subscribe(),
        })))
    }
}

/// A page of a list. The token of the next page is the number of objects before it.
fn list(store: &Store, key: &Key, selector: &Selector, call: &Call) -> Value {
    let kind = &store.kinds[key.kind];
    let number = |name| call.parameter(name).and_then(|text| text.parse::<usize>().ok());
    let (limit, skipped) = (
        number("limit").filter(|limit| *limit > 0),
        number("continue").unwrap_or(0),
    );
    let shown = |object: &Value| {
        if call.metadata_only {
            metadata_of(object)
        } else {
            object.clone()
        }
    };
    let mut rest = store.list(key.kind, &key.namespace, selector).skip(skipped);
    let items: Vec<Value> = rest
        .by_ref()
        .take(limit.unwrap_or(usize::MAX))
        .map(|(_, object)| shown(object))
        .collect();
    let mut metadata = json!({"resourceVersion": store.version().to_string()});
    if rest.next().is_some() {
        metadata["continue"] = json!((skipped + items.len()).to_string());
    }
    json!({
        "apiVersion": kind.api_version(), "kind": format!("{}List", kind.kind),
        "metadata": metadata, "items": items,
    })
}

/// The groups, each with the only version of its kinds.
fn groups(store: &Store) -> Value {
    let versions: BTreeMap<_, _> = store
        .kinds
        .iter()
        .filter(|kind| !kind.group.is_empty())
        .map(|kind| (&kind.group, kind))
        .collect();
    let groups: Vec<Value> = versions
        .into_iter()
        .map(|(name, kind)| {
            let version = json!({"groupVersion": kind.api_version(), "version": kind.version});
            json!({"name": name, "versions": [version], "preferredVersion": version})
        })
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

fn resources(store: &Store, group: &str, version: &str) -> Value {
    let of_version = |kind: &&Kind| kind.group == group && kind.version == version;
    let resources: Vec<Value> = store
        .kinds
        .iter()
        .filter(of_version)
        .flat_map(Kind::discovery)
        .collect();
    let group_version = if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    };
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources,
    })
}

fn respond(answer: Answer) -> Result<Response<ResponseBody>, http::Error> {
    match answer {
        Answer::Json(code, body) => {
            let response = Response::builder()
                .status(code)
                .header("content-type", "application/json");
            response.body(Full::from(body.to_string()).map_err(Into::into).boxed_unsync())
        }
        Answer::Watch(watch) => {
            let lines = unfold(watch, |mut watch| async move {
                let line = watch.next().await?;
                Some((Ok::<_, BoxError>(Frame::data(line)), watch))
            });
            Response::builder().body(StreamBody::new(lines).boxed_unsync())
        }
    }
}
