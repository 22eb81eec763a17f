//! Installs the admission policies that guard identities, keeps them in place, and checks them before an
//! identity is trusted.
//!
//! clusterctl deletes every component of a provider when it upgrades or deletes the provider. So the policies
//! are no component: the provider installs them without clusterctl's label. They stay while no provider is
//! installed, and they never let anything through that they refuse otherwise.
//!
//! # Guarantees
//! * A check that began after the machine was read precedes each action on a VM that may exist. A first
//!   create needs the last check, which is at most [`CHECK_INTERVAL`] old.
//! * Of several versions in one management cluster, the newest one's policies stand, and an annotation names
//!   the version. They guard for the older ones, because no version guards less than the one before.
//! * Observations of objects prove that a VM may be deleted only within one [`EnforcementEpoch`].
//! * After policies were missing while identities existed, an administrator has to confirm them first. An
//!   annotation of the policy records that, so that a restart keeps it.

mod check;
mod comparison;
mod identities;
pub mod manifests;

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use semver::Version;
use serde_json::Value;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;
use tower::BoxError;

use self::check::Checks;
use self::comparison::Expected;
use crate::apiserver::Error;
use crate::apiserver::leadership::Leadership;
use crate::telemetry::metrics::Metrics;
use cmi_driver::ErrorChain;

/// The interval of the checks, where no deletion needs one sooner.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// The interval until the policies are in place for the first time: the installation waits for that.
const FIRST: Duration = Duration::from_secs(2);
/// The least time between the starts of two checks: all machines that ask in between share the next check.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// The annotation of a policy that says until when identities were not guarded. An administrator removes it.
pub const UNCONFIRMED: &str = "infrastructure.capcmi.io/unconfirmed";

/// Whether identities are guarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// The policies are in force, and have been since identities were confirmed.
    InForce,
    /// The policies are not in force, or could not be checked; the text names the remedy. Nothing may be done
    /// that trusts an identity.
    NotInForce(Arc<str>),
}

/// Whether the policies have been in force since this process was started. Objects that come to the cluster
/// after that are guarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Installation {
    /// The policies were seen in force.
    Seen,
    /// The policies were not seen in force yet; the text says why.
    NotYet(Arc<str>),
}

/// A time without a break in the checks that identities are guarded. Equal epochs are the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnforcementEpoch(u64);

#[cfg(test)]
impl EnforcementEpoch {
    /// One of many.
    pub(crate) const fn nth(number: u64) -> Self {
        Self(number)
    }
}

/// Checks the policies, and says whether identities are guarded.
pub struct AdmissionPolicies {
    client: Client,
    metrics: Arc<Metrics>,
    /// The only namespace that the provider looks at; all without it.
    namespace: Option<String>,
    enforcement: watch::Sender<Enforcement>,
    installation: watch::Sender<Installation>,
    epoch: watch::Sender<EpochState>,
    checks: Mutex<Checks>,
}

/// The time that the checks cover. A check that fails changes nothing: the next one that succeeds sees the
/// changes.
#[derive(Clone, Copy, Default)]
struct EpochState {
    /// How often identities were found to be unguarded.
    breaks: u64,
    /// Whether the last check found them guarded.
    holds: bool,
}

impl AdmissionPolicies {
    /// Policies that are not checked yet, so that nothing is trusted.
    pub fn new(client: Client, metrics: Arc<Metrics>) -> Self {
        Self {
            client,
            metrics,
            namespace: None,
            enforcement: watch::Sender::new(Enforcement::NotInForce(
                "the admission policies are not checked yet".into(),
            )),
            installation: watch::Sender::new(Installation::NotYet("not checked yet".into())),
            epoch: watch::Sender::default(),
            checks: Mutex::default(),
        }
    }

    /// One that never checks and trusts everything.
    #[cfg(test)]
    pub(crate) fn trusting(client: Client) -> Self {
        let mut policies = Self::new(client, Arc::new(Metrics::new()));
        policies.enforcement.send_replace(Enforcement::InForce);
        policies.record_epoch(true);
        policies.checks.get_mut().last = Some(Instant::now() + Duration::from_hours(24));
        policies
    }

    /// Acts as another version of the provider, which has these policies and bindings.
    #[must_use]
    pub fn of_version(mut self, version: &Version, policies: Vec<Value>) -> Self {
        self.checks.get_mut().expected = Some(expected(version, policies));
        self
    }

    /// Acts for a provider that watches this namespace alone, if there is one.
    #[must_use]
    pub fn within(mut self, namespace: Option<String>) -> Self {
        self.namespace = namespace;
        self
    }

    /// Returns the result of the last check.
    pub fn last_enforcement(&self) -> Enforcement {
        self.enforcement.borrow().clone()
    }

    /// The current epoch; `None` before the first check, and while identities are not guarded. Observations
    /// of another epoch may come from a forged identity.
    pub fn epoch(&self) -> Option<EnforcementEpoch> {
        let epoch = *self.epoch.borrow();
        epoch.holds.then_some(EnforcementEpoch(epoch.breaks))
    }

    /// Subscribes to whether the policies have been in force.
    pub fn installation(&self) -> watch::Receiver<Installation> {
        self.installation.subscribe()
    }

    /// Records whether the policies are in force: once they were, it stays so.
    fn record_installation(&self, in_force: Result<(), String>) {
        self.installation.send_if_modified(|installation| {
            let now = match in_force {
                Ok(()) => Installation::Seen,
                Err(why) => Installation::NotYet(why.into()),
            };
            let is_changed = *installation != Installation::Seen && *installation != now;
            if is_changed {
                *installation = now;
            }
            is_changed
        });
    }

    /// Records the result of a check.
    fn record_epoch(&self, in_force: bool) {
        self.epoch.send_modify(|epoch| {
            if !in_force {
                epoch.breaks += 1;
            }
            epoch.holds = in_force;
        });
    }

    /// Returns the result of a check that begins after this moment. Concurrent callers share one check.
    pub async fn enforcement_since(&self, moment: Instant) -> Enforcement {
        let mut checks = self.checks.lock().await;
        if let Some(last) = checks.last {
            if last >= moment {
                return self.last_enforcement();
            }
            tokio::time::sleep(MIN_CHECK_INTERVAL.saturating_sub(last.elapsed())).await;
        }
        let began = Instant::now();
        let enforcement = match self.check(&mut checks).await {
            Ok(enforcement) => enforcement,
            Err(error) => {
                let why = advice(&error);
                self.record_installation(Err(why.clone()));
                Enforcement::NotInForce(
                    format!("cannot check the admission policies, so no identity is trusted: {why}").into(),
                )
            }
        };
        checks.last = Some(began);
        self.metrics
            .admission_policies(enforcement == Enforcement::InForce);
        let before = self.enforcement.send_replace(enforcement.clone());
        if before != enforcement {
            match &enforcement {
                Enforcement::InForce => tracing::info!("admission policies in force"),
                Enforcement::NotInForce(why) => tracing::error!(%why, "admission policies not in force: no \
                    identity is trusted"),
            }
        }
        enforcement
    }

    /// Checks for ever. A replica that does not lead only looks, so that it knows the state of the policies
    /// until it leads.
    pub async fn run(&self, leadership: &Leadership) {
        loop {
            let leads = leadership.is_held();
            if leads {
                self.enforcement_since(Instant::now()).await;
            } else if let Err(error) = self.inspect().await {
                self.record_installation(Err(advice(&error)));
            }
            let is_confirmed = *self.installation.borrow() == Installation::Seen;
            tokio::select! {
                () = tokio::time::sleep(if is_confirmed { CHECK_INTERVAL } else { FIRST }) => {}
                () = leadership.acquired(), if !leads => {}
            }
        }
    }
}

/// The policies and bindings as a provider of this version installs them.
///
/// # Errors
/// They can't be printed, which would be a fault of the provider.
pub fn as_installed() -> Result<Vec<Value>, Error> {
    Ok(own()?.iter().map(|expected| expected.object.clone()).collect())
}

/// The policies and bindings of this version.
fn own() -> Result<Arc<[Expected]>, Error> {
    let unprintable =
        |source: BoxError| Error::api("printing the admission policies", kube::Error::Service(source));
    let policies = manifests::policies().map_err(|error| unprintable(error.into()))?;
    let version = Version::parse(env!("CARGO_PKG_VERSION")).map_err(|error| unprintable(error.into()))?;
    Ok(expected(&version, policies))
}

fn expected(version: &Version, policies: Vec<Value>) -> Arc<[Expected]> {
    let all = policies.into_iter();
    all.filter_map(|object| Expected::new(object, version)).collect()
}

/// Whether the API server forbids the request.
fn is_refused(error: &Error) -> bool {
    let Error::Api { source, .. } = error else {
        return false;
    };
    matches!(&**source, kube::Error::Api(status) if status.code == 403)
}

/// Describes an error with its causes, and with the remedy where the provider lacks a permission.
fn advice(error: &Error) -> String {
    let what = ErrorChain(error).to_string();
    if is_refused(error) {
        format!(
            "{what}; bind the ClusterRole `capcmi-admission-role` of this version to the provider's \
                ServiceAccount"
        )
    } else {
        what
    }
}

#[cfg(test)]
mod tests;
