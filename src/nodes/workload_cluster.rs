//! Workload clusters: connections to their API servers, with the kubeconfigs that Cluster API keeps.
//!
//! A connection is made for one reconcile. A workload cluster is under its user's control: it may be
//! unreachable for weeks, never answer, or send an endless response. So a connection has a deadline, and
//! responses have a size limit. A cluster has few connections at a time, and none until the back-off of the
//! last failure ends.

mod connection;
mod kubeconfig;
pub mod request;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use kube::Client;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio::time::timeout;
use tower::BoxError;

use crate::api::ObjectMetaExt as _;
use crate::api::cluster_api::Cluster;
use crate::api::conditions::reason;
use crate::api::retry;
use crate::apiserver::{Error, InvalidSecret, secrets};

pub use self::connection::{Answer, Connection, network};
pub use self::kubeconfig::InvalidKubeconfig;

/// Connections to one workload cluster at the same time.
const MAX_CONNECTIONS: usize = 2;
/// How long a connection may last, its requests included.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// When to retry a cluster that has too many connections.
const BUSY: Duration = Duration::from_secs(1);
/// A connection that lasts longer leads to a back-off, as a failed connection does, because it occupies a
/// worker.
pub const SLOW: Duration = Duration::from_secs(5);

/// When to reconcile the machine with this UID again, after its workload cluster had too many connections.
pub fn busy_wait(uid: &str) -> Duration {
    BUSY.mul_f64(0.5 + retry::jitter(uid, 0))
}

/// Makes the client of a workload cluster from a kubeconfig.
pub type Dial = Arc<dyn Fn(Vec<u8>) -> BoxFuture<'static, Result<Client, InvalidKubeconfig>> + Send + Sync>;

/// The workload clusters of one management cluster.
pub struct WorkloadClusters {
    management: Client,
    dial: Dial,
    known: Mutex<HashMap<String, State>>,
}

/// The state of one workload cluster. A healthy cluster without connections has no state.
#[derive(Clone, Debug, Default)]
struct State {
    connections: usize,
    last_failure: Option<LastFailure>,
}

/// Why the last connection failed, and when the next one may begin.
#[derive(Clone, Debug)]
struct LastFailure {
    cause: Arc<Unreachable>,
    count: u32,
    until: Instant,
}

/// Why a workload cluster can't be reached.
#[derive(Debug, thiserror::Error)]
pub enum Unreachable {
    /// The Secret with its kubeconfig can't be read, or has none.
    #[error(transparent)]
    Secret(#[from] InvalidSecret),
    /// The kubeconfig can't be used.
    #[error("invalid kubeconfig of the workload cluster in Secret `{secret}`")]
    Kubeconfig {
        /// The Secret that has it.
        secret: String,
        /// The cause.
        source: InvalidKubeconfig,
    },
    /// The API server answered too late, or never.
    #[error(
        "the API server of the workload cluster did not answer within {} s",
        CONNECTION_TIMEOUT.as_secs()
    )]
    TimedOut,
    /// The API server refused.
    #[error("the API server of the workload cluster answered {code} {reason}")]
    Refused {
        /// The HTTP status.
        code: u16,
        /// The reason in Kubernetes' `Status`.
        reason: String,
    },
    /// The server that answered is no API server.
    #[error(
        "the response does not come from a Kubernetes API server: check `server` in the kubeconfig of \
        the workload cluster"
    )]
    NotAnApiServer,
    /// The API server answered, but took too long.
    #[error("the API server of the workload cluster took longer than {} s to answer", SLOW.as_secs())]
    Slow,
    /// No answer came.
    #[error("cannot reach the API server of the workload cluster")]
    Failed(#[source] BoxError),
}

impl Unreachable {
    /// The reason for a status condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Secret(_) | Self::Kubeconfig { .. } => reason::INVALID_KUBECONFIG,
            Self::TimedOut | Self::Slow | Self::NotAnApiServer | Self::Refused { .. } | Self::Failed(_) => {
                reason::WORKLOAD_CLUSTER_UNREACHABLE
            }
        }
    }
}

/// The outcome of a connection.
#[derive(Debug)]
pub enum ConnectionOutcome<T> {
    /// The result of the requests.
    Done(T),
    /// No connection was made: the cluster has its maximum.
    Busy,
    /// The connection failed, or was not made because the last one failed.
    Failed {
        /// The cause.
        cause: Arc<Unreachable>,
        /// When to try again.
        retry_after: Duration,
    },
}

impl WorkloadClusters {
    /// Reads the kubeconfigs from this management cluster.
    pub fn new(management: Client, dial: Dial) -> Self {
        Self {
            management,
            dial,
            known: Mutex::default(),
        }
    }

    /// Connects to the API server of a workload cluster, and makes the requests.
    ///
    /// An error of `requests` counts against the whole workload cluster. So `requests` must return a failure
    /// of a single object as a value, not as an error.
    ///
    /// # Errors
    /// The API server of the management cluster cannot be read for the kubeconfig.
    pub async fn with_connection<T>(
        &self,
        cluster: &Cluster,
        requests: impl AsyncFnOnce(&Connection) -> Result<T, Unreachable>,
    ) -> Result<ConnectionOutcome<T>, Error> {
        let meta = &cluster.metadata;
        let uid = meta.uid();
        let _permit = match self.permit(uid, Instant::now()) {
            Ok(permit) => permit,
            Err(not_made) => return Ok(not_made),
        };
        let document = match secrets::kubeconfig(&self.management, meta.namespace(), meta.name()).await? {
            Ok(document) => document,
            Err(invalid) => return Ok(self.record_failure(uid, invalid.into(), Instant::now())),
        };
        let begun = Instant::now();
        let made = async {
            let client = (self.dial)(document).await;
            let client = client.map_err(|source| Unreachable::Kubeconfig {
                secret: secrets::kubeconfig_name(meta.name()),
                source,
            })?;
            requests(&Connection::new(client)).await
        };
        let made = timeout(CONNECTION_TIMEOUT, made).await;
        let now = Instant::now();
        match made.unwrap_or(Err(Unreachable::TimedOut)) {
            Ok(made) => {
                if now.saturating_duration_since(begun) > SLOW {
                    self.record_failure::<T>(uid, Unreachable::Slow, now);
                } else {
                    self.known.lock().entry(uid.to_owned()).or_default().last_failure = None;
                }
                Ok(ConnectionOutcome::Done(made))
            }
            Err(cause) => Ok(self.record_failure(uid, cause, now)),
        }
    }

    /// Returns a permit for a connection to a workload cluster, or the outcome to return instead.
    fn permit<T>(&self, uid: &str, now: Instant) -> Result<ConnectionPermit<'_>, ConnectionOutcome<T>> {
        let mut known = self.known.lock();
        let state = known.entry(uid.to_owned()).or_default();
        if let Some(failure) = state.last_failure.as_ref().filter(|failure| failure.until > now) {
            return Err(ConnectionOutcome::Failed {
                cause: Arc::clone(&failure.cause),
                retry_after: failure.until.saturating_duration_since(now),
            });
        }
        if state.connections >= MAX_CONNECTIONS {
            return Err(ConnectionOutcome::Busy);
        }
        state.connections += 1;
        Ok(ConnectionPermit {
            clusters: self,
            uid: uid.to_owned(),
        })
    }

    fn record_failure<T>(&self, uid: &str, cause: Unreachable, now: Instant) -> ConnectionOutcome<T> {
        let mut known = self.known.lock();
        let state = known.entry(uid.to_owned()).or_default();
        let count = state.last_failure.as_ref().map_or(0, |failure| failure.count);
        let count = match &state.last_failure {
            // Another connection began before this outage was detected.
            Some(failure) if failure.until > now => count,
            Some(_) | None => count.saturating_add(1),
        };
        let (cause, retry_after) = (Arc::new(cause), retry::backoff(count, retry::jitter(uid, count)));
        state.last_failure = Some(LastFailure {
            cause: Arc::clone(&cause),
            count,
            until: now + retry_after,
        });
        ConnectionOutcome::Failed { cause, retry_after }
    }

    /// Forgets the failures of deleted workload clusters.
    pub fn forget_all_but(&self, there: impl Fn(&str) -> bool) {
        self.known
            .lock()
            .retain(|uid, state| state.connections > 0 || there(uid));
    }
}

/// The right to hold one of a cluster's connections.
#[derive(Debug)]
struct ConnectionPermit<'a> {
    clusters: &'a WorkloadClusters,
    uid: String,
}

impl std::fmt::Debug for WorkloadClusters {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("WorkloadClusters")
    }
}

impl Drop for ConnectionPermit<'_> {
    fn drop(&mut self) {
        let mut known = self.clusters.known.lock();
        if let Some(state) = known.get_mut(&self.uid) {
            state.connections = state.connections.saturating_sub(1);
            if state.connections == 0 && state.last_failure.is_none() {
                known.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use cmi_driver::ErrorChain;

    fn clusters() -> WorkloadClusters {
        let config = kube::Config::new("http://127.0.0.1:9".parse().unwrap());
        WorkloadClusters::new(Client::try_from(config).unwrap(), network())
    }

    fn failed(clusters: &WorkloadClusters, uid: &str, now: Instant) -> Duration {
        let ConnectionOutcome::<()>::Failed { retry_after, .. } =
            clusters.record_failure(uid, Unreachable::TimedOut, now)
        else {
            panic!("a failure is none")
        };
        retry_after
    }

    #[tokio::test]
    async fn each_workload_cluster_has_two_connections_at_a_time() {
        let (clusters, now) = (clusters(), Instant::now());
        let first = clusters.permit::<()>("a", now).unwrap();
        let _second = clusters.permit::<()>("a", now).unwrap();
        assert!(matches!(
            clusters.permit::<()>("a", now),
            Err(ConnectionOutcome::Busy)
        ));
        let other = clusters.permit::<()>("b", now).unwrap();
        drop(first);
        assert!(clusters.permit::<()>("a", now).is_ok());
        drop(other);
        assert!(
            !clusters.known.lock().contains_key("b"),
            "one without a connection is kept"
        );
    }

    #[tokio::test]
    async fn an_unusable_kubeconfig_is_reported_with_its_secret_and_cause() {
        let document = "users: [{name: &a u}]";
        let secret = json!({"metadata": {}, "data": {"value": BASE64_STANDARD.encode(document)}});
        let service = tower::service_fn(move |_request: http::Request<Body>| {
            let body = Body::from(secret.to_string().into_bytes());
            async { Ok::<_, Infallible>(http::Response::new(body)) }
        });
        let clusters = WorkloadClusters::new(Client::new(service, "default"), network());
        let cluster = json!({"metadata": {"namespace": "ns", "name": "c", "uid": "u"}, "spec": {}});
        let cluster = serde_json::from_value(cluster).unwrap();
        let outcome = clusters
            .with_connection(&cluster, async |_| Ok(()))
            .await
            .unwrap();
        let ConnectionOutcome::Failed { cause, .. } = outcome else {
            panic!("connected")
        };
        let why = ErrorChain(&*cause).to_string();
        assert!(
            why.contains("in Secret `c-kubeconfig`: the kubeconfig has a YAML anchor"),
            "{why}"
        );
    }

    /// All machines of a cluster share one back-off and one cause.
    #[tokio::test]
    async fn a_failed_connection_backs_off_longer_once_for_each_outage() {
        let (clusters, start) = (clusters(), Instant::now());
        let first = failed(&clusters, "a", start);
        // A second connection, which began earlier.
        assert_eq!(failed(&clusters, "a", start), first);
        let Err(ConnectionOutcome::Failed { cause, retry_after }) = clusters.permit::<()>("a", start) else {
            panic!("connected")
        };
        assert!(matches!(*cause, Unreachable::TimedOut) && retry_after == first);
        assert!(clusters.permit::<()>("b", start).is_ok());
        assert!(clusters.permit::<()>("a", start + first).is_ok());
        assert!(failed(&clusters, "a", start + first) > first);
        clusters.forget_all_but(|_| false);
        assert!(clusters.known.lock().is_empty());
    }
}
