//! The admission policies that guard identities: put in place, kept there, and asked for
//! before an identity is trusted.
//!
//! clusterctl deletes every component of a provider when it upgrades or deletes it. So the policies
//! are no component: the provider installs them, and what it installs does not carry clusterctl's label. They
//! stay while no provider is installed, and they never let anything through that they refuse otherwise.
//!
//! # Guarantees
//! * What acts on a VM that may exist, or lets one be forgotten, comes after a check that began after the
//!   machine was read, and that found the policies in force; a first create needs the last check, which
//!   is at most [`CHECK_INTERVAL`] old.
//! * Providers of several versions in one management cluster do not take the policies from each other: the
//!   newest version's stand, and guard for the older ones, because no version's guard less than those of the
//!   version before. [`applied_version`] says whose they are.
//! * What was seen of objects is proof for the deletion of a VM only within one [`EnforcementEpoch`].
//! * When the policies were gone while there were identities, none is trusted until an administrator has
//!   confirmed them. That is noted in the policy itself, so that a restart keeps it.

mod applied_version;
mod check;
mod comparison;
mod identities;
mod identity_presence;

use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Client;
use semver::Version;
use serde_json::Value;
use tokio::sync::{Mutex, watch};
use tower::BoxError;

use self::check::Checks;
use self::comparison::Expected;
use crate::apiserver::Error;
use crate::leadership::Leadership;
use crate::manifests;
use crate::metrics::Metrics;
use cmi_driver::ErrorChain;

/// Between two checks, where no deletion needs one before.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// The same, until the policies are in place for the first time: the installation waits for that.
const FIRST: Duration = Duration::from_secs(2);
/// Between the beginnings of two checks, however many machines ask for one: those that ask
/// meanwhile share the next.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// The annotation of a policy that says until when identities were not guarded. An administrator removes it.
pub const UNCONFIRMED: &str = "infrastructure.capcmi.io/unconfirmed";
/// How often a check begins anew, because another provider has written in between.
const TRIES: u32 = 3;

/// Whether identities are guarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// The policies are in force, and have been since identities were confirmed.
    InForce,
    /// They are not, or could not be checked; the text says what to do. Nothing may be
    /// done that trusts an identity.
    NotInForce(Arc<str>),
}

/// Whether the policies have been in force since this process was started. What comes to the
/// cluster after that is guarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Installation {
    /// They were seen in force.
    Seen,
    /// Not yet; the text says why.
    NotYet(Arc<str>),
}

/// A time without a break in which, by all checks so far, no identity could be forged. Two that are
/// equal are the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnforcementEpoch(u64);

#[cfg(test)]
impl EnforcementEpoch {
    /// One of many.
    pub(crate) const fn nth(number: u64) -> Self {
        Self(number)
    }
}

/// Knows whether identities are guarded.
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

/// What checks say of the time before them. One that fails says nothing: the next that does not sees
/// what has changed meanwhile.
#[derive(Clone, Copy, Default)]
struct EpochState {
    /// Counts the times at which identities were found to be unguarded.
    breaks: u64,
    /// Whether the last check found them guarded.
    holds: bool,
}

impl AdmissionPolicies {
    /// One that has not checked yet, so that nothing is trusted.
    pub fn new(client: Client, metrics: Arc<Metrics>) -> Self {
        Self {
            client,
            metrics,
            namespace: None,
            enforcement: watch::Sender::new(Enforcement::NotInForce(
                "the admission policies are not checked yet".into(),
            )),
            installation: watch::Sender::new(Installation::NotYet("they are not checked yet".into())),
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

    /// The same as another version of the provider, which has these policies and bindings.
    #[must_use]
    pub fn of_version(mut self, version: &Version, policies: Vec<Value>) -> Self {
        self.checks.get_mut().expected = Some(expected(version, policies));
        self
    }

    /// The same of a provider that looks at this namespace alone, if there is one.
    #[must_use]
    pub fn within(mut self, namespace: Option<String>) -> Self {
        self.namespace = namespace;
        self
    }

    /// What the last check found.
    pub fn last_enforcement(&self) -> Enforcement {
        self.enforcement.borrow().clone()
    }

    /// The epoch in which identities are guarded, by the last check: `None` before the
    /// first, and while they are not. What was seen in another epoch, or in none, may be the
    /// doing of a forged identity.
    pub fn epoch(&self) -> Option<EnforcementEpoch> {
        let epoch = *self.epoch.borrow();
        epoch.holds.then_some(EnforcementEpoch(epoch.breaks))
    }

    /// Whether the policies have been in force, as it changes.
    pub fn installation(&self) -> watch::Receiver<Installation> {
        self.installation.subscribe()
    }

    /// Takes in whether the policies are in force: once they were, it stays so.
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

    /// Takes in what a check found.
    fn record_epoch(&self, in_force: bool) {
        self.epoch.send_modify(|epoch| {
            if !in_force {
                epoch.breaks += 1;
            }
            epoch.holds = in_force;
        });
    }

    /// What a check finds that begins after this moment. Callers at the same time share one.
    pub async fn enforcement_since(&self, moment: Instant) -> Enforcement {
        let mut checks = self.checks.lock().await;
        if let Some(last) = checks.last {
            if last >= moment {
                return self.last_enforcement();
            }
            tokio::time::sleep(MIN_CHECK_INTERVAL.saturating_sub(last.elapsed())).await;
        }
        let began = Instant::now();
        let mut checked = self.check(&mut checks).await;
        for _ in 1..TRIES {
            if !matches!(checked, Err(Error::Conflict { .. })) {
                break;
            }
            // Another provider has written in between: what is there now may do.
            checked = self.check(&mut checks).await;
        }
        let enforcement = match checked {
            Ok(enforcement) => enforcement,
            Err(error) => {
                let why = advice(&error);
                self.record_installation(Err(why.clone()));
                Enforcement::NotInForce(
                    format!(
                        "the admission policies can't be checked, and nothing is done that trusts an \
                        identity: {why}"
                    )
                    .into(),
                )
            }
        };
        checks.last = Some(began);
        self.metrics
            .admission_policies(enforcement == Enforcement::InForce);
        let before = self.enforcement.send_replace(enforcement.clone());
        if before != enforcement {
            match &enforcement {
                Enforcement::InForce => tracing::info!("the admission policies are in force"),
                Enforcement::NotInForce(why) => tracing::error!(%why, "identities are not guarded"),
            }
        }
        enforcement
    }

    /// Checks for ever. A replica that does not lead only looks: it knows then what becomes of
    /// the policies until it does.
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

/// The policies and bindings as a provider of this version puts them in place.
///
/// # Errors
/// They can't be printed, which would be a fault of the provider.
pub fn as_installed() -> Result<Vec<Value>, Error> {
    let versioned = |expected: &Expected| {
        let mut object = expected.object.clone();
        object["metadata"]["annotations"] = expected.applied.annotations();
        object
    };
    Ok(own()?.iter().map(versioned).collect())
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

/// Whether the API server does not let the provider do it.
fn is_refused(error: &Error) -> bool {
    let Error::Api { source, .. } = error else {
        return false;
    };
    matches!(&**source, kube::Error::Api(status) if status.code == 403)
}

/// What went wrong with what led to it, and what to do where the provider lacks a right.
fn advice(error: &Error) -> String {
    let what = ErrorChain(error).to_string();
    if is_refused(error) {
        format!(
            "{what}; bind the ClusterRole capcmi-admission-role of this version to the provider's \
                ServiceAccount"
        )
    } else {
        what
    }
}

#[cfg(test)]
mod tests;
