//! Leader election by a Lease, the way client-go does it.
//!
//! # Guarantees
//! * For this process, leadership ends `renew_deadline` after the last successful renewal was *sent*. Other
//!   replicas wait for `lease_duration` after they *saw* that renewal, which is later. The difference is left
//!   for requests in flight.
//! * The clocks of other replicas are not trusted. A lease is abandoned when its record has not changed for
//!   its duration, on this process's monotonic clock.
//! * A replica that takes the lease names the version that it replaces. So one of two competing replicas gets
//!   it.
//! * A renewal tests that this process holds the lease, by a unique name. So renewals may overtake each
//!   other.
//! * An API server that answers slowly does not cost the lease. A renewal that waits for its answer does not
//!   delay others, and each counts from when it was sent.
//!
//! The elector is written by hand since no crate has the first guarantee. Its deadline is on the monotonic
//! clock, only renewals move it, and every call and write checks it.

use std::future::Future;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::api::wall_clock;
use crate::apiserver::leadership::Leadership;
use crate::apiserver::{OutageLog, outage_log};
use cmi_driver::ErrorChain;

/// The maximum number of renewals that wait for an answer.
const MAX_RENEWALS: usize = 8;
/// The longest pause between two attempts, in retry periods, as in client-go.
const JITTER_FACTOR: f64 = 1.2;
/// How long the handover of the lease may take.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);

/// The lease, and the replica that wants it.
#[derive(Clone, Debug)]
pub struct Election {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub lease: String,
    /// The name of this replica. It must be unique, also after a restart: see [`holder_identity`].
    pub identity: String,
    /// The durations of the election.
    pub timing: Timing,
}

/// How often the lease is renewed, and when it is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    lease_duration: Duration,
    renew_deadline: Duration,
    retry_period: Duration,
}

/// Durations that do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// Other replicas have to wait longer than the leader acts.
    #[error("--leader-elect-lease-duration must be longer than --leader-elect-renew-deadline")]
    LeaseTooShort,
    /// The leader has to try a renewal before its deadline.
    #[error(
        "--leader-elect-renew-deadline must be longer than {JITTER_FACTOR} times \
        --leader-elect-retry-period"
    )]
    DeadlineTooShort,
    /// A pause of zero would flood the API server.
    #[error("--leader-elect-retry-period must be greater than zero")]
    NoPause,
    /// A Lease counts whole seconds in 32 bits.
    #[error("--leader-elect-lease-duration must be less than one day")]
    LeaseTooLong,
}

impl Timing {
    /// Checks the durations.
    ///
    /// # Errors
    /// [`TimingError`] when they do not fit together.
    pub fn new(
        lease_duration: Duration,
        renew_deadline: Duration,
        retry_period: Duration,
    ) -> Result<Self, TimingError> {
        if retry_period.is_zero() {
            return Err(TimingError::NoPause);
        }
        if renew_deadline <= retry_period.mul_f64(JITTER_FACTOR) {
            return Err(TimingError::DeadlineTooShort);
        }
        if lease_duration <= renew_deadline {
            return Err(TimingError::LeaseTooShort);
        }
        if lease_duration > Duration::from_hours(24) {
            return Err(TimingError::LeaseTooLong);
        }
        Ok(Self {
            lease_duration,
            renew_deadline,
            retry_period,
        })
    }
}

/// Returns a unique name for this replica, also after a restart: `<host>_<random>`.
pub fn holder_identity(host: &str) -> String {
    format!("{host}_{:016x}", random())
}

/// Acquires the lease, holds it, and hands it over.
pub(super) struct Elector {
    leases: Api<Lease>,
    election: Election,
    observed: Option<Observed>,
    outage: OutageLog,
}

/// The lease as it was last seen to change.
struct Observed {
    lease: Lease,
    at: Instant,
}

#[derive(Debug, PartialEq, Eq)]
enum Attempt {
    Held,
    HeldBy(String),
}

#[derive(Debug, thiserror::Error)]
enum ElectionError {
    #[error("cannot read the lease")]
    Read(#[source] kube::Error),
    #[error("cannot create the lease")]
    Create(#[source] kube::Error),
    #[error("cannot write the lease")]
    Write(#[source] kube::Error),
    #[error("the API server did not answer in time")]
    TimedOut,
}

/// Why a renewal failed.
#[derive(Debug)]
enum RenewalError {
    /// This replica does not hold the lease, or there is no lease.
    NotOurs,
    /// This replica may still hold the lease.
    Failed(ElectionError),
}

impl From<ElectionError> for RenewalError {
    fn from(error: ElectionError) -> Self {
        Self::Failed(error)
    }
}

impl Elector {
    pub(super) fn new(client: Client, election: Election) -> Self {
        Self {
            leases: Api::namespaced(client, &election.namespace),
            election,
            observed: None,
            outage: OutageLog::new(),
        }
    }

    /// Acquires and holds the lease until it is lost, or until `release` is cancelled and the lease is handed
    /// over.
    pub(super) async fn run(mut self, leadership: Leadership, release: CancellationToken) {
        let Some(sent) = release.run_until_cancelled(self.acquire()).await else {
            leadership.resign();
            return;
        };
        leadership.renew(sent + self.election.timing.renew_deadline);
        let Election { identity, lease, .. } = &self.election;
        tracing::info!(identity, lease, "became leader");
        let asked_to_end = release
            .run_until_cancelled(self.renew_until_lost(&leadership, sent))
            .await
            .is_none();
        let is_ours = leadership.is_held();
        leadership.resign();
        if asked_to_end && is_ours {
            match timeout(RELEASE_TIMEOUT, self.hand_over()).await {
                Ok(Ok(())) => tracing::info!("released the lease"),
                Ok(Err(error)) => self.warn(&error),
                Err(_elapsed) => self.warn(&ElectionError::TimedOut),
            }
        }
    }

    /// Waits until this replica holds the lease. Returns a time that is no later than the sending of the
    /// request that got the lease.
    async fn acquire(&mut self) -> Instant {
        let mut last_holder = None;
        loop {
            let sent = Instant::now();
            let attempt = timeout(self.election.timing.renew_deadline, self.attempt()).await;
            match attempt.unwrap_or(Err(ElectionError::TimedOut)) {
                Ok(Attempt::Held) => return sent,
                Ok(Attempt::HeldBy(holder)) => {
                    if last_holder.as_ref() != Some(&holder) {
                        tracing::info!(holder, lease = self.election.lease, "waiting for the lease");
                        last_holder = Some(holder);
                    }
                }
                Err(error) => self.warn(&error),
            }
            sleep(self.pause()).await;
        }
    }

    /// Renews the lease until renewals fail for too long, or another replica holds it. A renewal is sent
    /// every `retry_period`, whether or not the previous one was answered: its connection may be dead.
    async fn renew_until_lost(&mut self, leadership: &Leadership, mut renewed: Instant) {
        let Timing {
            renew_deadline,
            retry_period,
            ..
        } = self.election.timing;
        let mut renewals = FuturesUnordered::new();
        let mut next = renewed + retry_period;
        loop {
            tokio::select! {
                biased;
                Some((sent, answer)) = renewals.next() => match answer {
                    Ok(lease) => {
                        self.answered();
                        self.observe(lease);
                        renewed = renewed.max(sent);
                        leadership.renew(sent + renew_deadline);
                    }
                    Err(RenewalError::NotOurs) => {
                        // The lease was taken, deleted or changed by hand.
                        let sent = Instant::now();
                        match timeout_at(renewed + renew_deadline, self.attempt()).await {
                            Ok(Ok(Attempt::Held)) => {
                                renewed = renewed.max(sent);
                                leadership.renew(sent + renew_deadline);
                            }
                            Ok(Ok(Attempt::HeldBy(holder))) => {
                                tracing::error!(holder, "lost the lease to another replica");
                                return;
                            }
                            Ok(Err(error)) => self.warn(&error),
                            Err(_elapsed) => self.warn(&ElectionError::TimedOut),
                        }
                    }
                    Err(RenewalError::Failed(error)) => self.warn(&error),
                },
                () = sleep_until(renewed + renew_deadline) => {}
                () = sleep_until(next), if renewals.len() < MAX_RENEWALS => {
                    let sent = Instant::now();
                    next = sent + retry_period;
                    let renewal = self.renewal(sent + renew_deadline);
                    renewals.push(async move { (sent, renewal.await) });
                }
            }
            if !leadership.is_held() {
                tracing::error!("lost the lease: it was not renewed in time");
                return;
            }
        }
    }

    /// One renewal, which is cancelled at the deadline.
    fn renewal(&self, deadline: Instant) -> impl Future<Output = Result<Lease, RenewalError>> + use<> {
        let (leases, name) = (self.leases.clone(), self.election.lease.clone());
        let renewal = json!([
            {"op": "test", "path": "/spec/holderIdentity", "value": self.election.identity},
            {"op": "add", "path": "/spec/renewTime", "value": MicroTime(wall_clock::now())},
        ]);
        async move {
            // The JSON above has the form of RFC 6902.
            let patch = serde_json::from_value(renewal).map_err(kube::Error::SerdeError);
            let patch: Patch<()> = Patch::Json(patch.map_err(ElectionError::Write)?);
            let params = PatchParams::default();
            match timeout_at(deadline, leases.patch(&name, &params, &patch)).await {
                Ok(Ok(lease)) => Ok(lease),
                // The API server reports a failed test as an invalid object.
                Ok(Err(kube::Error::Api(status))) if status.is_invalid() || status.is_not_found() => {
                    Err(RenewalError::NotOurs)
                }
                Ok(Err(error)) => Err(ElectionError::Write(error).into()),
                Err(_elapsed) => Err(ElectionError::TimedOut.into()),
            }
        }
    }

    /// Takes or renews the lease if it is ours, free, or abandoned.
    async fn attempt(&mut self) -> Result<Attempt, ElectionError> {
        let attempted = self.try_to_hold().await;
        if attempted.is_ok() {
            self.answered();
        }
        attempted
    }

    fn answered(&self) {
        self.outage.answered();
        outage_log::log_answered();
    }

    async fn try_to_hold(&mut self) -> Result<Attempt, ElectionError> {
        let Some(lease) = self
            .leases
            .get_opt(&self.election.lease)
            .await
            .map_err(ElectionError::Read)?
        else {
            return self.create().await;
        };
        self.observe(lease);
        match &self.observed {
            Some(observed) => match observed.other_holder(&self.election.identity) {
                Some(holder) => Ok(Attempt::HeldBy(holder.to_owned())),
                None => self.write(observed.lease.clone()).await,
            },
            None => self.create().await,
        }
    }

    async fn create(&mut self) -> Result<Attempt, ElectionError> {
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.election.lease.clone()),
                namespace: Some(self.election.namespace.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(self.record(None)),
        };
        let created = self
            .leases
            .create(&PostParams::default(), &lease)
            .await
            .map_err(ElectionError::Create)?;
        self.observe(created);
        Ok(Attempt::Held)
    }

    /// Writes our record over the lease that was read. The API server refuses it when the lease has changed
    /// since.
    async fn write(&mut self, mut lease: Lease) -> Result<Attempt, ElectionError> {
        lease.spec = Some(self.record(lease.spec.take()));
        let written = self
            .leases
            .replace(&self.election.lease, &PostParams::default(), &lease)
            .await
            .map_err(ElectionError::Write)?;
        self.observe(written);
        Ok(Attempt::Held)
    }

    /// Our record, as the successor of another.
    fn record(&self, before: Option<LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(wall_clock::now());
        let before = before.unwrap_or_default();
        let is_ours = before.holder_identity.as_ref() == Some(&self.election.identity);
        let transitions = before.lease_transitions.unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.election.identity.clone()),
            lease_duration_seconds: Some(whole_seconds(self.election.timing.lease_duration)),
            acquire_time: if is_ours {
                before.acquire_time
            } else {
                Some(now.clone())
            },
            renew_time: Some(now),
            lease_transitions: Some(if is_ours {
                transitions
            } else {
                transitions.saturating_add(1)
            }),
            ..LeaseSpec::default()
        }
    }

    fn observe(&mut self, lease: Lease) {
        match &mut self.observed {
            Some(observed) if observed.lease.spec == lease.spec => observed.lease = lease,
            Some(_) | None => {
                self.observed = Some(Observed {
                    lease,
                    at: Instant::now(),
                });
            }
        }
    }

    /// Removes the holder from the lease, so that the next leader need not wait for the lease to expire.
    async fn hand_over(&mut self) -> Result<(), ElectionError> {
        let Some(observed) = &self.observed else {
            return Ok(());
        };
        match self.empty(observed.lease.clone()).await {
            // A renewal in flight has changed the lease.
            Err(ElectionError::Write(kube::Error::Api(status))) if status.is_conflict() => {}
            // The lease was deleted: no replica holds it.
            Err(ElectionError::Write(kube::Error::Api(status))) if status.is_not_found() => return Ok(()),
            emptied => return emptied,
        }
        let lease = self.leases.get_opt(&self.election.lease).await;
        let Some(lease) = lease.map_err(ElectionError::Read)? else {
            return Ok(());
        };
        self.observe(lease);
        match &self.observed {
            Some(observed) if observed.holder() == Some(&self.election.identity) => {
                self.empty(observed.lease.clone()).await
            }
            Some(_) | None => Ok(()),
        }
    }

    async fn empty(&self, mut lease: Lease) -> Result<(), ElectionError> {
        let transitions = lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
        lease.spec = Some(LeaseSpec {
            lease_duration_seconds: Some(1),
            lease_transitions: transitions,
            renew_time: Some(MicroTime(wall_clock::now())),
            ..LeaseSpec::default()
        });
        self.leases
            .replace(&self.election.lease, &PostParams::default(), &lease)
            .await
            .map(drop)
            .map_err(ElectionError::Write)
    }

    /// Logs an error. A lasting error is not logged each time.
    fn warn(&self, error: &ElectionError) {
        tracing::debug!(error = %ErrorChain(error), "leader election failed");
        let is_unanswered = match error {
            ElectionError::Read(source) | ElectionError::Create(source) | ElectionError::Write(source) => {
                outage_log::is_unanswered(source)
            }
            ElectionError::TimedOut => true,
        };
        if is_unanswered {
            outage_log::log_unanswered(error);
        } else if let Some(unreported) = self.outage.failed() {
            tracing::warn!(error = %ErrorChain(error), "leader election failed{unreported}");
        }
    }

    /// Returns the retry period plus up to a fifth, so that waiting replicas do not retry together.
    fn pause(&self) -> Duration {
        let fraction = f64::from(u16::try_from(random() >> 48).unwrap_or(0)) / f64::from(u16::MAX);
        self.election
            .timing
            .retry_period
            .mul_f64(1.0 + (JITTER_FACTOR - 1.0) * fraction)
    }
}

impl Observed {
    fn holder(&self) -> Option<&String> {
        let spec = self.lease.spec.as_ref()?;
        spec.holder_identity.as_ref().filter(|holder| !holder.is_empty())
    }

    /// Returns the holder of the lease, unless it is `identity`, or has abandoned the lease.
    fn other_holder(&self, identity: &str) -> Option<&str> {
        let holder = self.holder().filter(|holder| *holder != identity)?;
        let spec = self.lease.spec.as_ref()?;
        let seconds = spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok());
        let abandoned = self.at.elapsed() >= Duration::from_secs(seconds.unwrap_or(0));
        (!abandoned).then_some(holder)
    }
}

/// Rounds up: other replicas may wait longer than needed, never shorter.
fn whole_seconds(duration: Duration) -> i32 {
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    i32::try_from(seconds).unwrap_or(i32::MAX)
}

/// A random number. The standard library keys its hash maps at random; no more is needed here.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests;
